//! The summary as a user sees it.

use super::*;
use crate::export::output::{Outcome, OutputError};
use crate::export::summary::{SummaryOptions, summary};
use crate::profile::PromotedAt;
use crate::profile::build::TRUNCATED_STACK;

/// The summary as it is by default.
pub(super) fn summary_of(profile: &Profile) -> String {
    plain(profile, 100)
}

fn plain(profile: &Profile, width: usize) -> String {
    summary(profile, &SummaryOptions { width, ..SummaryOptions::default() })
}

#[test]
fn summary_of_a_run() {
    let failed = OutputError::from(io::Error::from_raw_os_error(28));
    let files = [
        Outcome {
            path: PathBuf::from("heaptrace.app.4242.pb.gz"),
            format: Format::PprofGz,
            allocated_bytes: 1,
            result: Ok(12_345),
        },
        Outcome { path: PathBuf::from("/full/app.svg"), format: Format::Svg, allocated_bytes: 1, result: Err(failed) },
    ];
    let options = SummaryOptions { files: &files, ..SummaryOptions::default() };
    insta::assert_snapshot!(summary(&sample_profile(), &options));
}

#[test]
fn summary_of_an_attach() {
    insta::assert_snapshot!(plain(&attach_profile(), 80));
}

#[test]
fn summary_of_nothing() {
    insta::assert_snapshot!(plain(&empty_profile(), 80));
}

#[test]
fn what_would_show_more_of_resident_memory_is_told() {
    let mut profile = sample_profile();
    let resident = |bytes| Some(Resident { peak_bytes: bytes, all_blocks_known: true });
    let is_told = |profile: &Profile| plain(profile, 200).contains("--mmap");
    profile.meta.process.resident = resident(20 << 20);
    assert!(!is_told(&profile), "code and libraries");
    profile.meta.process.resident = resident(64 << 20);
    assert!(is_told(&profile));
    profile.allocators[0].functions.push("mmap".to_owned());
    assert!(!is_told(&profile), "it is on");
}

/// Whose interpreter is seen, and little of whose memory.
#[test]
fn what_would_show_more_of_python_is_told() {
    let mut profile = sample_profile();
    let shows = |profile: &Profile, word: &str| plain(profile, 100).contains(word);
    assert!(!shows(&profile, "--python") && !shows(&profile, "PYTHONMALLOC"));
    profile.functions.iter_mut().for_each(|function| "_PyEval_EvalFrameDefault".clone_into(&mut function.name));
    assert!(shows(&profile, "--python") && !shows(&profile, "PYTHONMALLOC"));
    let resident = Resident { peak_bytes: profile.totals.peak_bytes * 3, all_blocks_known: true };
    profile.meta.process.resident = Some(resident);
    assert!(shows(&profile, "--python") && shows(&profile, "PYTHONMALLOC=malloc"));
    profile.meta.process.resident = Some(Resident { all_blocks_known: false, ..resident });
    assert!(!shows(&profile, "PYTHONMALLOC"), "how much the blocks explain is not known");
}

#[test]
fn lines_keep_to_the_width() {
    for width in [80, 100, 160] {
        for profile in [sample_profile(), attach_profile()] {
            let text = plain(&profile, width);
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > width).collect();
            assert!(wide.is_empty(), "wider than {width}: {wide:#?}");
        }
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let colored = summary(&sample_profile(), &SummaryOptions { color: true, ..SummaryOptions::default() });
    assert!(colored.contains("\x1b["));
    let mut bare = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once("\x1b[") {
        bare.push_str(before);
        rest = after.split_once('m').expect("a complete sequence").1;
    }
    bare.push_str(rest);
    let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(trimmed(&bare), trimmed(&plain(&sample_profile(), 100)));
}

#[test]
fn help_comes_only_where_much_time_was_lost() {
    let mut profile = sample_profile();
    let says = |profile: &Profile, what: &str| {
        let text = plain(profile, 100);
        text.split_whitespace().collect::<Vec<_>>().join(" ").contains(what)
    };
    assert!(!says(&profile, "--pin"), "two threads");
    profile.cost.conditions.threads = 1;
    assert!(says(&profile, "--pin"));
    profile.cost.conditions.pinned = true;
    assert!(!says(&profile, "--pin"), "it is on");
    assert!(!says(&profile, "heaptrace attach --duration"), "too short to trace a part of it");
    profile.cost.wall_ns = 60_000_000_000;
    profile.cost.waited_ns = Some(profile.cost.wall_ns / 5);
    assert!(!says(&profile, "heaptrace attach --duration"));
    profile.cost.waited_ns = Some(profile.cost.wall_ns / 5 + 1);
    assert!(says(&profile, "heaptrace attach --duration"));
    profile.meta.mode = Mode::Attach;
    profile.cost.conditions.pinned = false;
    assert!(!says(&profile, "--pin") && !says(&profile, "heaptrace attach --duration"), "a process can't be pinned");
}

#[test]
fn when_and_why_the_jump_engine_came_is_told() {
    let mut profile = sample_profile();
    let text = |profile: &Profile| plain(profile, 100).split_whitespace().collect::<Vec<_>>().join(" ");
    profile.cost.promotion = Some(PromotedAt { after_ns: 412_000_000, stops_permille: Some(383), attempts: 0 });
    let told = text(&profile);
    let busy = "to the jump engine after 412.0 ms, as stops took 38.3 % of its time";
    assert!(told.contains(busy), "{told}");
    profile.cost.promotion = Some(PromotedAt { after_ns: 412_000_000, stops_permille: None, attempts: 1 });
    let told = text(&profile);
    assert!(told.contains("only from 412.0 ms on"), "{told}");
    profile.cost.promotion = Some(PromotedAt { after_ns: 412_000_000, stops_permille: None, attempts: 0 });
    assert!(!text(&profile).contains("412.0 ms"), "it began with its first call");
}

/// What is cut off is marked once at its stack, and the count says what helps if the depth was too small.
#[test]
fn a_truncated_stack_is_marked_once() {
    let mut profile = sample_profile();
    let count = |profile: &Profile, what: &str| plain(profile, 160).matches(what).count();
    let stacks = count(&profile, "outer frames are missing");
    // as the builder makes them: the last frame says it, too
    profile.functions.push(profile.functions[0].clone());
    let function = profile.functions.len() - 1;
    profile.functions[function].name = TRUNCATED_STACK.to_owned();
    let lines = vec![Line { function, line: 0, inlined: false }];
    profile.locations.push(Location { module: None, address: Addr(0), offset: 0, lines });
    let location = profile.locations.len() - 1;
    profile.stacks.edit(|stacks| {
        let cut = stacks.iter_mut().filter(|stack| stack.quality == Quality::Truncated && !stack.locations.is_empty());
        cut.for_each(|stack| stack.locations.push(location as u32));
    });
    assert!(stacks > 0 && count(&profile, "outer frames are missing") == stacks);
    assert_eq!(count(&profile, TRUNCATED_STACK), 0);
    assert_eq!(count(&profile, "--max-depth"), 0);
    profile.anomalies.cut_stacks = profile.anomalies.truncated_stacks;
    assert_eq!(count(&profile, "--max-depth 10000 keeps the outermost frames"), 1);
}

/// A profile of nothing is no use to look at: it is not recommended.
#[test]
fn an_empty_profile_is_not_recommended() {
    let file = |name: &str, allocated_bytes| Outcome {
        path: PathBuf::from(name),
        format: Format::PprofGz,
        allocated_bytes,
        result: Ok(100),
    };
    let files = [file("a.pb.gz", 0), file("b.pb.gz", 7), file("c.pb.gz", 7), file("d.pb.gz", 1)];
    let options = SummaryOptions { files: &files, ..SummaryOptions::default() };
    // of several the one with most in it
    assert!(summary(&sample_profile(), &options).contains("go tool pprof -top b.pb.gz"));
    assert!(!summary(&empty_profile(), &options).contains("go tool pprof"));
}

#[test]
fn shares_without_symbols_do_not_add_up_unnoticed() {
    let mut profile = sample_profile();
    let each = "counts for each";
    assert!(!plain(&profile, 160).contains(each), "one module: nothing to add up");
    // the same bytes pass through unnamed code of two modules
    let unnamed = profile.functions.iter().position(|function| function.name.starts_with("libfoo")).expect("there");
    let is_worker = |line: &Line| profile.functions[line.function].name == "worker_main";
    let other = profile.locations.iter().position(|location| location.lines.iter().any(is_worker)).expect("there");
    profile.locations[other].lines = vec![Line { function: unnamed, line: 0, inlined: false }];
    let text = plain(&profile, 160);
    let lines = text.lines().filter(|line| line.contains("6.25 KiB    0.6 %  ") && line.contains(" place"));
    assert!(lines.count() == 2 && text.contains(each), "{text}");
}

#[test]
fn the_target_can_t_write_to_the_terminal_through_names() {
    let mut profile = sample_profile();
    profile.functions[1].name = "evil\x1b[2J".to_owned();
    profile.meta.process.program = "evil\x1b]0;x\x07".to_owned();
    profile.warnings.push("evil\x1b[2J".to_owned());
    assert!(!plain(&profile, 100).contains('\x1b'));
}

/// Rows whose own functions are the same are told apart by what the standard library did for them, and what all rows
/// share is said once.
#[test]
fn rows_that_look_alike_are_told_apart() {
    let mut profile = sample_profile();
    let mut function = |name: &str, file: Option<&str>| {
        let file = file.map(str::to_owned);
        profile.functions.push(Function { name: name.to_owned(), system_name: name.to_owned(), file, start_line: 0 });
        let lines = vec![Line { function: profile.functions.len() - 1, line: 7, inlined: false }];
        profile.locations.push(Location { module: Some(0), address: Addr(1), offset: 1, lines });
        profile.locations.len() - 1
    };
    let own = function("Cache::fill(int)", Some("/src/cache.cc"));
    let main = function("main", Some("/src/main.cc"));
    let allocator = function("std::allocator<char>::allocate", None);
    let [map, string] = ["std::map<int, int>::emplace", "std::string::assign"].map(|name| function(name, None));
    let wrapper = function("pool_take", Some("/src/pool.cc"));
    profile.samples.edit(|samples| samples.truncate(2));
    let template = profile.samples.row(0);
    let mut rows = |stacks: [Vec<usize>; 2]| {
        for (index, locations) in stacks.into_iter().enumerate() {
            profile.stacks.replace(index, Stack::new(&locations, Quality::Complete));
            let sample = Sample { stack: index, live: amount(1, 64), at_peak: amount(1, 64), ..template };
            profile.samples.edit(|samples| samples[index] = sample);
        }
        plain(&profile, 100)
    };
    let text = rows([vec![allocator, map, own, main], vec![allocator, string, own, main]]);
    assert!(text.contains("×  std::map<int, int>::emplace") && text.contains("×  std::string::assign"), "{text}");
    assert!(text.contains("Cache::fill(int)") && text.contains("/src/cache.cc:7"), "{text}");
    let text = rows([vec![wrapper, own, main], vec![wrapper, main]]);
    assert!(text.contains("all of these through pool_take (pool.cc:7)"), "{text}");
    assert!(
        text.contains("×  Cache::fill(int)") && text.contains("×  main") && !text.contains("×  pool_take"),
        "{text}"
    );
}

/// Stacks of the same functions are one row, which names all the lines that have a part in it.
#[test]
fn a_row_has_the_lines_of_all_its_stacks() {
    let mut profile = sample_profile();
    profile.functions.push(Function {
        name: "build".to_owned(),
        system_name: "build".to_owned(),
        file: Some("/src/build.cc".to_owned()),
        start_line: 1,
    });
    let function = profile.functions.len() - 1;
    profile.samples.edit(|samples| samples.truncate(4));
    let template = profile.samples.row(0);
    for (index, line) in [12, 9, 9, 30].into_iter().enumerate() {
        let lines = vec![Line { function, line, inlined: false }];
        profile.locations.push(Location { module: Some(0), address: Addr(1), offset: 1, lines });
        let locations = vec![profile.locations.len() - 1];
        profile.stacks.replace(index, Stack::new(&locations, Quality::Complete));
        let sample = Sample { stack: index, live: amount(1, 64), at_peak: amount(1, 64), ..template };
        profile.samples.edit(|samples| samples[index] = sample);
    }
    let text = plain(&profile, 100);
    assert!(text.contains("build  /src/build.cc:9, 12, 30\n"), "{text}");
    profile.samples.edit(|samples| samples.truncate(1));
    let text = plain(&profile, 100);
    assert!(text.contains("build  /src/build.cc:12\n"), "lines without a sample are not told: {text}");
}

#[test]
fn slowness_is_told_in_times() {
    let waiting = |about_ns, range_ns| cost::Waiting { wall_ns: 1_000_000, about_ns, range_ns };
    let expected = [
        (0, "hardly slower"),
        (500_000, "2 times slower"),
        (600_000, "2.5 times slower"),
        (960_000, "25 times slower"),
        (997_000, "330 times slower"),
        (999_400, "1,700 times slower"),
        (1_000_000, "more than 10,000 times slower"),
    ];
    for (waited, text) in expected {
        assert_eq!(waiting(waited, None).slowness().as_deref(), Some(text));
    }
    let nothing = cost::Waiting { wall_ns: 0, about_ns: 0, range_ns: None };
    assert_eq!(nothing.slowness().as_deref(), Some("hardly slower"));
    for (least, most, text) in [
        (0, 500_000, "up to 2 times slower"),
        (500_000, 700_000, "2 to 3.3 times slower"),
        (960_000, 979_000, "25 to 48 times slower"),
        (500_000, 550_000, "2.1 times slower"),
    ] {
        assert_eq!(waiting(520_000, Some((least, most))).slowness().as_deref(), Some(text));
    }
    for (least, most, share) in [
        (0, 600_000, "waits 0.0 to 60.0 % of the time"),
        (500_000, 960_000, "waits 50.0 to 96.0 % of the time"),
        (875_000, 1_000_000, "waits 90.0 % of the time"),
    ] {
        let waiting = waiting(900_000, Some((least, most)));
        assert_eq!((waiting.slowness(), waiting.slowness_or_share().as_str()), (None, share));
    }
}

/// Those that are shown are the first of all in their order, however many were dropped on the way.
#[test]
fn the_largest_of_many_sites_are_those_of_a_sorted_list() {
    use crate::export::sections::Largest;
    use crate::export::view::View;
    let mut profile = empty_profile();
    let mut state = 1u64;
    for stack in 0..30_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = state >> 56;
        let allocated = amount(u64::from(bytes > 0), bytes);
        profile.samples.push(&Sample { stack, allocated, freed: allocated, ..samples().swap_remove(0) });
        profile.locations.push(Location {
            module: None,
            address: Addr(stack as u64),
            offset: stack as u64,
            lines: vec![Line { function: stack, line: 1, inlined: false }],
        });
        let name = format!("f{stack}");
        profile.functions.push(Function { system_name: name.clone(), name, file: None, start_line: 0 });
        profile.stacks.push(Stack::new(&[profile.locations.len() - 1], Quality::Complete));
    }
    let view = View::new(&profile);
    let mut sorted: Vec<_> = view.sites().iter().filter(|site| site.allocated != Amount::default()).collect();
    sorted.sort_by_key(|site| (std::cmp::Reverse((site.allocated.bytes, site.allocated.objects)), site.stack));
    assert!(sorted.len() > 25_000);
    for top in [0, 1, 3, 5_000, usize::MAX] {
        let largest = Largest::by_bytes(view.sites(), top, |site| site.allocated);
        let shown: Vec<usize> = largest.shown.iter().map(|site| site.stack).collect();
        assert_eq!(shown, sorted.iter().take(top).map(|site| site.stack).collect::<Vec<_>>());
        let whole: u64 = sorted.iter().map(|site| site.allocated.bytes).sum();
        assert_eq!((largest.count, largest.whole), (sorted.len(), whole));
    }
}

#[test]
fn stacks_with_temporary_blocks_are_ranked_by_these() {
    let mut profile = sample_profile();
    profile.totals.live_bytes = 0;
    profile.totals.temporary = profile.totals.allocations;
    profile.samples.change(|sample| {
        (sample.live, sample.freed, sample.temporary) = (Amount::default(), sample.allocated, sample.allocated.objects);
    });
    let summary = summary_of(&profile);
    let (_, table) = summary.split_once("Temporary, about: ").unwrap();
    let title = table.lines().next().unwrap();
    assert!(title.contains("stacks; the 3 with most blocks:"), "{title}");
    let counts =
        table.lines().filter_map(|line| line.split_once(" ×")?.0.rsplit(' ').next()?.replace(',', "").parse().ok());
    let counts: Vec<u64> = counts.take(3).collect();
    assert!(counts.len() == 3 && counts.is_sorted_by(|one, next| one >= next), "{table}");
}
