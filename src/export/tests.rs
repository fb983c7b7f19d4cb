//! All formats on one profile made by hand.

mod advice;
mod check;
mod ci;
mod escapes;
mod firefox;
mod foreign;
mod go_pprof;
mod html;
mod many;
mod numbers;
mod report;
mod runtimes;
mod summary;
mod timeline;

use super::*;
use crate::base::addr::{Addr, ModuleId};
use crate::profile::births::{Births, Born, Moment};
use crate::profile::course::HeapHistory;
use crate::profile::leaks::{
    BaselineStatus, Budget, LeakSite, Leaks, PathStep, RetentionPath, ScanMoment, Suppression, Verdict, VerdictKind,
};
use crate::profile::{
    AllocatorUse, Amount, Anomalies, Children, Conditions, Cost, Exit, Finding, FindingKind, Function, Histograms,
    Image, Line, Location, Meta, Mode, ModuleInfo, ProcessInfo, Resident, Sample, Samples, Stack, Stacks, SymbolStatus,
    TimelinePoint, Totals,
};
use crate::unwinder::Quality;
pub(crate) use advice::wasteful;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

const fn amount(objects: u64, bytes: u64) -> Amount {
    Amount { objects, bytes }
}

/// Everything that makes formats stumble, in a profile whose sums agree: an inlined call, an operator between malloc
/// and its caller, an unresolved library on a truncated stack, an empty stack, a Rust name that is its own system name,
/// a separator of folded stacks in a name, a sample that only frees, one of zeros, blocks of no bytes.
pub(crate) fn sample_profile() -> Profile {
    let mut profile = profile_without_types();
    profile.find_object_types(&mut |_, _, _| None);
    profile
}

fn profile_without_types() -> Profile {
    Profile {
        meta: meta(),
        totals: totals(),
        cost: Cost {
            wall_ns: 2_310_000_000,
            waited_ns: Some(1_200_000_000),
            waited_range_ns: None,
            cpu_ns: 1_500_000_000,
            user_ns: 900_000_000,
            stops_cpu_ns: 0,
            known_cpu_ns: 0,
            stopped_ns: 1_200_000_000,
            stopped_max_ns: 31_000_000,
            events: 225,
            events_without_stop: 0,
            recording_ns: 0,
            stops: 334,
            promotion: None,
            conditions: Conditions { threads: 2, pinned: false, free_stacks: true, jump: false },
        },
        anomalies: Anomalies { truncated_stacks: 100, guessed_stacks: 1, abandoned_calls: 2, ..Anomalies::default() },
        allocators: vec![AllocatorUse { module: 2, functions: ["calloc", "free", "malloc"].map(str::to_owned).into() }],
        modules: modules(),
        images: vec![Image {
            pid: 4242,
            program: "sh".to_owned(),
            totals: Totals {
                allocations: 120,
                bytes_allocated: 34_816,
                live_blocks: 7,
                live_bytes: 512,
                ..Totals::default()
            },
            gone_with_exec: amount(7, 512),
        }],
        children: Children { followed: 0, untraced: 2, untraced_names: vec!["gzip".to_owned()] },
        timeline: [(0, 0, 0), (1_420_000_000, 1_060_000, 116), (2_300_000_000, 266_272, 116)]
            .map(|(t_ns, live_bytes, allocations)| TimelinePoint { t_ns, live_bytes, allocations })
            .into(),
        histograms: Histograms {
            size: histogram(&[(0, 1), (6, 1), (7, 100), (11, 10), (19, 4)]),
            lifetime: histogram(&[(0, 90), (3, 19)]),
        },
        strings: ["main", "worker", "malloc", "calloc", "free", "operator new(unsigned long)"]
            .map(str::to_owned)
            .into(),
        functions: functions(),
        locations: locations(),
        stacks: stacks().into_iter().collect(),
        samples: samples().into_iter().collect(),
        growths: Vec::new(),
        stranded: Vec::new(),
        capacities: Vec::new(),
        findings: vec![Finding {
            kind: FindingKind::DoubleFree,
            count: 3,
            block: Addr(0x5555_5557_0010),
            size: Some(64),
            given_size: None,
            offset: None,
            align: None,
            given_align: None,
            stack: 4,
            alloc_stack: Some(2),
            free_stack: Some(4),
            thread: "worker".to_owned(),
            function: "free".to_owned(),
            baseline: None,
        }],
        leaks: None,
        tests: None,
        suppressions: Vec::new(),
        verdict: None,
        budgets: Vec::new(),
        warnings: vec!["2 children ran untraced; what they allocated is not here.".to_owned()],
        processes: Vec::new(),
        saved: None,
        course: HeapHistory::of_births(Some(births())),
    }
}

/// The same after `check`: leaks of all classes, one site of several, one rule that hides and one that does not, a
/// baseline.
pub(crate) fn check_profile() -> Profile {
    let mut profile = sample_profile();
    profile.meta.mode = Mode::Check;
    profile.leaks = Some(leaks());
    let rule = |rule: &str, line, hidden| Suppression {
        rule: rule.to_owned(),
        file: "ci/leaks.supp".to_owned(),
        line,
        hidden,
        hidden_errors: 0,
    };
    profile.suppressions = vec![rule("clone", 3, amount(1, 0)), rule("^unused$", 4, Amount::default())];
    profile.budgets = vec![Budget { name: "max-peak", limit: 1_048_576, actual: 1_060_000 }];
    profile.verdict = Some(Verdict {
        kind: VerdictKind::Errors,
        reasons: vec!["1 error in the use of the heap".to_owned(), "3200 bytes in 5 blocks leaked".to_owned()],
        exit_status: 23,
        leak_kinds: [true, true, false, false],
        errors: true,
    });
    profile
}

fn leaks() -> Leaks {
    let site = |stack, amounts: [Amount; 4]| LeakSite {
        stack,
        thread: 0,
        alloc_fn: 2,
        amounts,
        holds: Amount::default(),
        path: None,
        suppressed_by: [None; 4],
        baseline: [None; 4],
        doubts: Default::default(),
    };
    let none = Amount::default();
    let path = RetentionPath {
        root: "global `cache` +8 in libfoo.so.1".to_owned(),
        root_address: Some(Addr(0x7fff_f000_8008)),
        steps: vec![
            PathStep { block: Addr(0x5555_5558_0010), size: 64, stack: 2, target_offset: 0, next_offset: Some(16) },
            PathStep { block: Addr(0x5555_5559_0010), size: 262_144, stack: 1, target_offset: 0, next_offset: None },
        ],
    };
    Leaks {
        moment: ScanMoment::Exit,
        stopped_ns: 1_500_000,
        copied: false,
        unreadable_names: Vec::new(),
        scanned_bytes: 12_345_678,
        unreadable_bytes: 0,
        untold: Vec::new(),
        sites: vec![
            LeakSite {
                holds: amount(2, 128),
                baseline: [Some(BaselineStatus::Grown), None, Some(BaselineStatus::Known), None],
                ..site(0, [amount(3, 3_072), none, amount(1, 1_024), none])
            },
            LeakSite { thread: 1, ..site(2, [none, amount(2, 128), none, none]) },
            LeakSite { path: Some(path), ..site(1, [none, none, none, amount(1, 262_144)]) },
            LeakSite { suppressed_by: [Some(0), None, None, None], ..site(5, [amount(1, 0), none, none, none]) },
            LeakSite { thread: 1, alloc_fn: 3, ..site(3, [none, none, amount(1, 32), none]) },
        ],
        asked: None,
    }
}

/// A profile in which nothing happened.
pub(crate) fn empty_profile() -> Profile {
    let mut profile = sample_profile();
    profile.totals = Totals::default();
    profile.anomalies = Anomalies::default();
    profile.cost = Cost { wall_ns: 1_000_000, ..Cost::default() };
    profile.children = Children::default();
    profile.images.clear();
    profile.timeline.clear();
    profile.histograms = Histograms::default();
    profile.samples = Samples::default();
    profile.stacks = Stacks::default();
    profile.course = HeapHistory::of_births(Some(Births { blocks: Vec::new(), moments: Vec::new(), existing: 0 }));
    profile.findings.clear();
    profile.warnings.clear();
    profile
}

/// The same process while it runs.
pub(crate) fn attach_profile() -> Profile {
    let mut profile = sample_profile();
    profile.meta.mode = Mode::Attach;
    profile.meta.process.exit = None;
    profile.meta.complete = false;
    profile.meta.process.resident = Some(Resident { peak_bytes: 2_000_000, all_blocks_known: false });
    profile.totals.preexisting_frees = 12;
    profile
}

fn meta() -> Meta {
    Meta {
        process: ProcessInfo {
            pid: 4242,
            pid_inside: None,
            program: "app".to_owned(),
            command: ["./app", "--input", "a b.xml"].map(str::to_owned).into(),
            cwd: PathBuf::from("/home/user"),
            started_at: UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            of_another_user: false,
            users: std::collections::BTreeSet::new(),
            user_is_unknown: false,
            exit: Some(Exit::Code(0)),
            resident: Some(Resident { peak_bytes: 2_000_000, all_blocks_known: true }),
        },
        mode: Mode::Run,
        part: 1,
        duration_ns: 2_310_000_000,
        engine: "trap".to_owned(),
        complete: true,
        session: "0123456789abcdef".to_owned(),
        sample_interval: 0,
    }
}

fn totals() -> Totals {
    Totals {
        allocations: 116,
        frees: 109,
        reallocations: 4,
        bytes_allocated: 1_065_248,
        bytes_freed: 798_976,
        live_blocks: 7,
        live_bytes: 266_272,
        peak_blocks: 64,
        peak_bytes: 1_060_000,
        peak_at_ns: 1_420_000_000,
        temporary: 92,
        failed: 1,
        preexisting_frees: 0,
        counted_allocations: 0,
        counted_bytes: 0,
    }
}

fn histogram(buckets: &[(usize, u64)]) -> Vec<u64> {
    let mut histogram = vec![0; buckets.iter().map(|bucket| bucket.0 + 1).max().unwrap_or(0)];
    for (bucket, count) in buckets {
        histogram[*bucket] = *count;
    }
    histogram
}

fn modules() -> Vec<ModuleInfo> {
    let all = SymbolStatus { functions: true, files: true, lines: true, inlines: true };
    let names = SymbolStatus { functions: true, ..SymbolStatus::default() };
    let module = |id: u32, path: &str, build_id: Option<&str>, start, symbols| ModuleInfo {
        id: ModuleId(id),
        path: PathBuf::from(path),
        build_id: build_id.map(str::to_owned),
        start: Addr(start),
        end: Addr(start + 0x10_0000),
        file_offset: 0x1000,
        symbols,
        debug_package: None,
    };
    vec![
        module(0, "/home/user/app", Some("00112233445566778899aabbccddeeff00112233"), 0x5555_5555_5000, all),
        module(
            1,
            "/usr/lib/libfoo.so.1",
            Some("ffeeddccbbaa99887766554433221100ffeeddcc"),
            0x7fff_f000_0000,
            SymbolStatus::default(),
        ),
        module(2, "/usr/lib/libstdc++.so.6", None, 0x7fff_f700_0000, names),
    ]
}

fn functions() -> Vec<Function> {
    let function = |name: &str, system_name: &str, file: Option<&str>, start_line| Function {
        name: name.to_owned(),
        system_name: system_name.to_owned(),
        file: file.map(str::to_owned),
        start_line,
    };
    vec![
        function("new_node", "new_node", Some("src/node.c"), 8),
        function("parse_document", "parse_document", Some("src/parse.c"), 100),
        function("main", "main", Some("src/main.c"), 20),
        function("operator new(unsigned long)", "_Znwm", None, 0),
        function(
            "std::vector<int, std::allocator<int> >::reserve(unsigned long)",
            "_ZNSt6vectorIiSaIiEE7reserveEm",
            Some("/usr/include/c++/12/bits/stl_vector.h"),
            70,
        ),
        function("libfoo.so.1+0x1234", "libfoo.so.1+0x1234", None, 0),
        function("worker_main", "worker_main", Some("src/worker.c"), 5),
        function("clean;up", "clean;up", Some("src/main.c"), 50),
        function(
            "<alpha::Beta as core::clone::Clone>::clone",
            "<alpha::Beta as core::clone::Clone>::clone",
            Some("src/beta.rs"),
            1,
        ),
    ]
}

fn locations() -> Vec<Location> {
    let line = |function, line, inlined| Line { function, line, inlined };
    let location = |module: usize, address, offset, lines: &[Line]| Location {
        module: Some(module),
        address: Addr(address),
        offset,
        lines: lines.to_vec(),
    };
    vec![
        location(0, 0x5555_5555_5100, 0x1100, &[line(0, 9, true), line(1, 120, false)]),
        location(0, 0x5555_5555_5200, 0x1200, &[line(2, 30, false)]),
        location(2, 0x7fff_f700_1000, 0x2000, &[line(3, 0, false)]),
        location(0, 0x5555_5555_5300, 0x1300, &[line(4, 79, false)]),
        location(1, 0x7fff_f000_0234, 0x1234, &[line(5, 0, false)]),
        location(0, 0x5555_5555_5400, 0x1400, &[line(6, 12, false)]),
        location(0, 0x5555_5555_5500, 0x1500, &[line(7, 55, false)]),
        location(0, 0x5555_5555_5600, 0x1600, &[line(8, 3, false)]),
        location(0, 0x5555_5555_5210, 0x1210, &[line(2, 31, false)]),
    ]
}

fn stacks() -> Vec<Stack> {
    let stack = Stack::new;
    vec![
        stack(&[0, 1], Quality::Complete),
        stack(&[3, 8], Quality::Complete),
        stack(&[4, 5], Quality::Truncated),
        stack(&[], Quality::Truncated),
        stack(&[6, 1], Quality::Complete),
        stack(&[7, 1], Quality::Guessed),
    ]
}

/// The blocks that the samples have live: one of them stands for two.
fn births() -> Births<usize> {
    let block = |birth, bytes, blocks, stack| Born { birth, bytes, blocks, task: 1, stack, inherited: false };
    let moment = |t_ns, births| Moment { t_ns, births };
    Births {
        blocks: vec![
            block(2, 1024, 1, 0),
            block(5, 262_144, 1, 1),
            block(7, 32, 1, 3),
            block(90, 1024, 1, 0),
            block(91, 2048, 2, 0),
            block(116, 0, 1, 5),
        ],
        moments: vec![moment(1_000_000, 0), moment(5_000_000, 7), moment(2_300_000_000, 116)],
        existing: 0,
    }
}

fn samples() -> Vec<Sample> {
    let none = Sample {
        interval: 0,
        stack: 0,
        thread: 0,
        alloc_fn: 2,
        program: None,
        inherited: false,
        size: 0,
        allocated: amount(0, 0),
        freed: amount(0, 0),
        deallocated: amount(0, 0),
        live: amount(0, 0),
        at_peak: amount(0, 0),
        temporary: 0,
        lifetime_ns: 0,
        freed_elsewhere: 0,
    };
    vec![
        Sample {
            size: 1024,
            allocated: amount(10, 10_240),
            freed: amount(6, 6_144),
            live: amount(4, 4_096),
            at_peak: amount(8, 8_192),
            temporary: 2,
            lifetime_ns: 6 * 250_000_000,
            ..none
        },
        Sample {
            stack: 1,
            alloc_fn: 5,
            size: 262_144,
            allocated: amount(4, 1_048_576),
            freed: amount(3, 786_432),
            live: amount(1, 262_144),
            at_peak: amount(4, 1_048_576),
            ..none
        },
        Sample {
            stack: 2,
            thread: 1,
            size: 64,
            allocated: amount(100, 6_400),
            freed: amount(100, 6_400),
            at_peak: amount(50, 3_200),
            temporary: 90,
            lifetime_ns: 12_345_600,
            freed_elsewhere: 7,
            ..none
        },
        Sample {
            stack: 3,
            thread: 1,
            alloc_fn: 3,
            size: 32,
            allocated: amount(1, 32),
            live: amount(1, 32),
            at_peak: amount(1, 32),
            ..none
        },
        Sample { stack: 4, alloc_fn: 4, size: 1024, deallocated: amount(6, 6_144), ..none },
        Sample { stack: 4, alloc_fn: 4, size: 262_144, deallocated: amount(3, 786_432), ..none },
        Sample { stack: 4, thread: 1, alloc_fn: 4, size: 64, deallocated: amount(100, 6_400), ..none },
        Sample { stack: 5, allocated: amount(1, 0), live: amount(1, 0), at_peak: amount(1, 0), ..none },
        Sample { size: 4096, ..none },
    ]
}

/// The profile in a format, as bytes.
fn exported(format: Format, profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(format, profile, &ExportOptions::default(), &mut bytes).expect("memory takes everything");
    bytes
}

/// The profile in a format of text; the version of heaptrace replaced.
fn exported_text(format: Format, profile: &Profile) -> String {
    let text = String::from_utf8(exported(format, profile)).expect("UTF-8");
    text.replace(env!("CARGO_PKG_VERSION"), "[version]")
}

#[test]
fn formats_are_told_by_the_longest_suffix() {
    let format = |name: &str| Format::from_path(Path::new(name));
    assert_eq!(format("dir/a.pb.gz"), Ok(Format::PprofGz));
    assert_eq!(format("a.b.pb"), Ok(Format::Pprof));
    assert_eq!(format("a.json"), Ok(Format::Json));
    assert_eq!(format("a.json.gz"), Ok(Format::JsonGz));
    assert_eq!(format("a.dhat.json"), Ok(Format::Dhat));
    assert_eq!(format("a.firefox.json"), Ok(Format::Firefox));
    assert_eq!(format("a.firefox.json.gz"), Ok(Format::FirefoxGz));
    assert_eq!(format("a.dhat.json.gz"), Err(FormatError::NotYet { suffix: "dhat.json.gz" }));
    for unknown in ["a", "a.gz", "pb.gz", ".json", "a.json.bak", "ajson", "a.JSON"] {
        let message = format(unknown).expect_err(unknown).to_string();
        assert!(message.contains(".pb.gz .pb .svg .html .folded .json .json.gz .txt"), "{message}");
    }
}

#[test]
fn formats_are_told_by_name() {
    for expected in Format::ALL {
        assert_eq!(Format::from_name(expected.name()), Ok(expected));
    }
    assert_eq!(Format::from_name(".svg"), Ok(Format::Svg));
    assert_eq!(Format::from_name("dhat.json.gz"), Err(FormatError::NotYet { suffix: "dhat.json.gz" }));
    assert!(Format::from_name("dot").expect_err("unknown").to_string().contains(".folded"));
}

#[test]
fn folded_stacks() {
    // one line for 100 blocks on a truncated stack; none for those whose column is zero; `;` is no part of a name
    let peak = [
        "[unknown stack] 32",
        "main;parse_document;new_node 8192",
        "main;std::vector<int, std::allocator<int> >::reserve(unsigned long) 1048576",
        "worker_main;libfoo.so.1+0x1234 3200",
    ];
    assert_eq!(exported_text(Format::Folded, &sample_profile()).lines().collect::<Vec<_>>(), peak);
    let mut attach = attach_profile();
    attach.functions[0].name = "new;\nnode".to_owned();
    let live = [
        "[unknown stack] 32",
        "main;parse_document;new: node 4096",
        "main;std::vector<int, std::allocator<int> >::reserve(unsigned long) 262144",
    ];
    assert_eq!(exported_text(Format::Folded, &attach).lines().collect::<Vec<_>>(), live);
}

#[test]
fn text_report() {
    insta::assert_snapshot!(exported_text(Format::Txt, &sample_profile()));
}

#[test]
fn every_format_can_hold_nothing() {
    for format in Format::ALL {
        let bytes = exported(format, &empty_profile());
        assert_eq!(bytes.is_empty(), format == Format::Folded, "{format}");
    }
}

/// Names with characters that sort before the semicolon: such stacks were once refused as unsorted.
#[test]
fn names_of_any_kind_make_a_flame_graph() {
    let mut profile = sample_profile();
    for (i, function) in profile.functions.iter_mut().enumerate() {
        function.name = ["f", "f x", "f x(int, char)", "f!"][i % 4].to_owned();
    }
    let svg = exported_text(Format::Svg, &profile);
    assert!(svg.trim_end().ends_with("</svg>") && svg.contains("f x(int, char)"), "{svg}");
}

#[test]
fn flame_graph_shows_names_and_bytes() {
    let svg = exported_text(Format::Svg, &sample_profile());
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    for part in [
        "app: bytes live at the peak",
        "1.01 MiB in 4 stacks, pid 4242",
        "new_node (8,192 bytes, 0.77%)",
        "worker_main (3,200 bytes",
    ] {
        assert!(svg.contains(part), "{part} is not in {svg}");
    }
    assert_eq!(svg, exported_text(Format::Svg, &sample_profile()), "the same in every run");
    // the outermost functions are on top, and each module has a hue: the order of its colours' parts
    let attribute = |name: &str, attribute: &str| {
        let (_, rest) = svg.split_once(&format!("<title>{name} (")).unwrap();
        let (_, rest) = rest.split_once(&format!(" {attribute}=\"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let y = |name: &str| attribute(name, "y").parse::<u32>().unwrap();
    assert!(y("all") < y("main") && y("main") < y("new_node"), "{svg}");
    let hue = |name: &str| {
        let parts = attribute(name, "fill");
        let parts = parts.trim_start_matches("rgb(").trim_end_matches(')').split(',');
        let parts: Vec<u8> = parts.map(|part| part.trim().parse().unwrap()).collect();
        let mut order = [0, 1, 2];
        order.sort_by_key(|&part| parts[part]);
        order
    };
    assert_eq!(hue("main"), hue("new_node"));
    let empty = exported_text(Format::Svg, &empty_profile());
    assert!(empty.contains("Nothing to draw") && empty.trim_end().ends_with("</svg>"));
}

#[test]
fn absurd_sizes_do_no_harm() {
    let mut profile = sample_profile();
    profile.meta.sample_interval = 1;
    profile.samples.change(|sample| {
        let absurd = amount(u64::MAX, u64::MAX);
        (sample.size, sample.temporary) = (u64::MAX, u64::MAX);
        (sample.allocated, sample.freed, sample.live, sample.at_peak) = (absurd, absurd, absurd, absurd);
    });
    profile.histograms.size = vec![u64::MAX; 70];
    profile.cost = Cost {
        wall_ns: 1,
        stopped_ns: u64::MAX,
        stopped_max_ns: u64::MAX,
        events: u64::MAX,
        stops: 1,
        ..Cost::default()
    };
    for format in Format::ALL {
        assert!(!exported(format, &profile).is_empty(), "{format}");
    }
    summary::summary_of(&profile);
    assert!(exported_text(Format::Svg, &profile).contains("Not drawn"));
}

#[test]
fn wrong_indices_do_no_harm() {
    let mut profile = sample_profile();
    profile.samples.edit(|samples| samples[0].stack = 99);
    profile.samples.edit(|samples| samples[1].thread = 99);
    profile.stacks.edit(|stacks| stacks[0].locations = vec![0, 1, 99]);
    profile.locations[0].lines[0].function = 99;
    profile.locations[1].module = Some(99);
    profile.allocators[0].module = 99;
    profile.findings[0].stack = 99;
    profile.leaks = check_profile().leaks;
    for site in profile.leaks.iter_mut().flat_map(|leaks| &mut leaks.sites) {
        (site.stack, site.thread, site.alloc_fn, site.suppressed_by) = (99, 99, 99, [Some(99); 4]);
        site.path.iter_mut().flat_map(|path| &mut path.steps).for_each(|step| step.stack = 99);
    }
    for format in Format::ALL {
        assert!(!exported(format, &profile).is_empty(), "{format}");
    }
    summary::summary_of(&profile);
}

#[test]
fn callers_stay_together_whatever_their_names() {
    let mut profile = sample_profile();
    // sorted as text, `main-x` would come between `main` and `main;…`
    profile.functions[6].name = "main-x".to_owned();
    profile.stacks.replace(2, Stack::new(&[5], Quality::Complete));
    profile.stacks.replace(3, Stack::new(&[1], Quality::Complete));
    let folded = exported_text(Format::Folded, &profile);
    let callers: Vec<&str> = folded.lines().filter_map(|line| line.split([';', ' ']).next()).collect();
    assert_eq!(callers, ["main", "main", "main", "main-x"]);
}

#[test]
fn a_name_that_ends_in_a_number_is_not_taken_for_a_second_value() {
    let mut profile = sample_profile();
    profile.functions[0].name = "f 12".to_owned();
    let folded = exported_text(Format::Folded, &profile);
    assert!(folded.contains(";f_12 8192"), "{folded}");
}
