//! True numbers: totals and sites against the fixtures' own ledgers.

use crate::support::counter::assert_equals_counter;
use crate::support::fixtures;
use crate::support::ledger::Ledger;
use crate::support::program::{Program, Traced};
use crate::support::report::{Report, functions_of, plain};

/// All totals that a ledger of a single-threaded program knows.
pub const TOTALS: [&str; 10] = [
    "allocations",
    "frees",
    "reallocations",
    "failed",
    "bytes_allocated",
    "bytes_freed",
    "live_blocks",
    "live_bytes",
    "peak_bytes",
    "peak_blocks",
];

/// Runs a fixture whose ledger holds every call of the process, and compares everything.
fn assert_ledger_exact(program: &Program) -> Traced {
    let traced = program.traced();
    let ledger = program.ledger();
    let wrong: Vec<_> = TOTALS
        .into_iter()
        .filter(|name| traced.report.total(name) != ledger.total(name))
        .map(|name| format!("{name}: heaptrace {}, ledger {}", traced.report.total(name), ledger.total(name)))
        .collect();
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), traced.ended.stderr);
    assert_sites(&traced.report, &ledger);
    traced.report.assert_consistent();
    traced
}

/// Every function of the ledger is the innermost frame of sites with its sums.
pub fn assert_sites(report: &Report, ledger: &Ledger) {
    for (function, figures) in &ledger.sites {
        let at = [function.as_str()];
        assert_eq!(report.site_sum(&at, "/allocated/objects"), figures["allocations"], "blocks of {function}");
        assert_eq!(report.site_sum(&at, "/allocated/bytes"), figures["bytes_allocated"], "bytes of {function}");
    }
}

/// T19, T20: malloc, calloc, realloc in all its endings, reallocarray, the memalign family, zero sizes, failures.
#[test]
fn t19_t20_every_entry_of_glibc() {
    let program = Program::fixture("basic");
    let traced = assert_ledger_exact(&program);
    assert_eq!(traced.ended.code(), 7);
    assert_eq!(traced.ended.text(), "done\n");
    traced.report.assert_no_anomaly();
}

/// The same program in every shape of executable.
#[test]
fn every_entry_of_glibc_in_every_shape() {
    for flags in [&["-no-pie"][..], &["-O0"], &["-O3", "-fomit-frame-pointer"]] {
        let program = Program::new(fixtures::program_with("basic", flags));
        let traced = assert_ledger_exact(&program);
        assert_eq!(traced.ended.code(), 7, "{flags:?}");
        traced.report.assert_no_anomaly();
    }
}

/// In static programs the allocator is the program's own code. Their C library allocates a few blocks at the start (the
/// search paths for libraries), so that the sites are compared, and the totals that it does not change.
#[test]
fn every_entry_of_glibc_in_static_programs() {
    for flags in ["-static", "-static-pie"] {
        let program = Program::new(fixtures::program_with("basic", &[flags]));
        let traced = program.traced();
        assert_eq!(traced.ended.code(), 7, "{flags}");
        let ledger = program.ledger();
        assert_sites(&traced.report, &ledger);
        for name in ["frees", "reallocations", "failed", "bytes_freed"] {
            assert_eq!(traced.report.total(name), ledger.total(name), "{name} with {flags}");
        }
        traced.report.assert_consistent();
        traced.report.assert_no_anomaly();
    }
}

/// The moment of the peak, what was live then by site, and what was temporary.
#[test]
fn peak_and_temporary_blocks_are_exact() {
    let program = Program::fixture("peak");
    let traced = assert_ledger_exact(&program);
    let report = &traced.report;
    assert_eq!((report.total("peak_bytes"), report.total("peak_blocks")), (60_000, 15));
    let at_peak = |function| report.site_sum(&[function], "/at_peak/bytes");
    assert_eq!([at_peak("early"), at_peak("high"), at_peak("late"), at_peak("temporary")], [10_000, 50_000, 0, 0]);
    assert_eq!(report.site_sum(&["late"], "/live/objects"), 20);
    assert_eq!(report.site_sum(&["temporary"], "/temporary"), 25);
    assert_eq!(report.site_sum(&["late"], "/temporary"), 0);
    report.assert_no_anomaly();
}

/// For how long blocks lived, on average, against the program's own clock. What is live does not count.
#[test]
fn lifetimes_are_those_that_the_program_has_measured() {
    let program = Program::fixture("lifetimes");
    let traced = program.traced();
    let told: Vec<u64> = traced.ended.text().split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let [rest_least, rest_most, brief_least, brief_most] = told[..] else { panic!("{told:?}") };
    let lifetime = |function: &str| {
        let at = [function];
        let mut sites = traced.report.sites_at(&at);
        let mean = sites.next().expect(function)["mean_lifetime_ns"].as_u64().expect(function);
        assert_eq!(sites.next(), None, "{function}");
        mean
    };
    let (rest, brief, mixed) = (lifetime("resting"), lifetime("brief"), lifetime("mixed"));
    if traced.report.0["engine"] == "trap" {
        // An age is known to a sixtieth of it, and all times are in steps.
        let is_within = |told: u64, least: u64, most: u64| least <= told + 1000 && told <= most + most / 60 + 5000;
        assert!(is_within(rest, rest_least, rest_most), "{rest}: {rest_least} to {rest_most}");
        assert!(is_within(brief, brief_least, brief_most), "{brief}: {brief_least} to {brief_most}");
    } else {
        // A time is that at which a record is read, a little later.
        assert!(rest_least / 2 < rest && rest < 2 * rest_most, "{rest}: {rest_least} to {rest_most}");
        assert!(brief < rest_least / 8, "{brief}: {brief_least} to {brief_most}");
    }
    assert!(mixed < rest_least / 2, "{mixed}: those that live do not count");
    let live = traced.report.site_sum(&["mixed"], "/live/objects");
    assert_eq!((traced.report.site_sum(&["mixed"], "/freed/objects"), live), (1, 2));
}

/// T21: every operator new and delete; an exception out of new and a retry with the same stack pointer; a new_handler
/// that frees; exceptions through frames with return probes. The allocator is malloc below libstdc++.
#[test]
fn t21_operators_bad_alloc_and_exceptions() {
    let program = Program::fixture("operators");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.anomaly("mismatched_frees"), 0);
    assert_eq!(traced.report.anomaly("unknown_frees"), 0);
    traced.report.assert_consistent();
    assert_equals_counter(&program, &[]);
}

/// T21, T25: the same with jemalloc, whose operator new does not go through malloc and throws by itself.
#[test]
fn t25_operators_with_jemalloc() {
    let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    assert!(std::path::Path::new(library).exists(), "install the Debian package libjemalloc2");
    let program = Program::fixture("operators").env("LD_PRELOAD", library).stays_on_trap("recorded calls of operator");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.anomaly("unknown_frees"), 0);
    assert_eq!(traced.report.anomaly("double_frees"), 0);
    traced.report.assert_consistent();
}

/// T22, T23: a handler on an alternate stack allocates in the middle of malloc; longjmp leaves malloc for good.
#[test]
fn t22_t23_signal_handler_and_longjmp_in_malloc() {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("handler_in_malloc", &[&bump]));
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.site_sum(&["abandoned_allocate"], "/allocated/objects"), 0);
    assert_eq!(traced.report.anomaly("abandoned_calls"), 20);
    assert_eq!(traced.report.anomaly("unknown_frees"), 0);
    traced.report.assert_consistent();
}

/// T22: threads are cancelled inside malloc, at a cancellation point or anywhere; their cleanup handlers allocate. The
/// calls that never returned allocated nothing, and are told.
#[test]
fn t22_threads_cancelled_in_malloc() {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("cancel", &[&bump]));
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "cancelled 40\n");
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.site_sum(&["cancelled_allocate"], "/allocated/objects"), 0);
    assert_eq!(traced.report.anomaly("abandoned_calls"), 40);
    assert_eq!(traced.report.anomaly("unknown_frees"), 0);
    traced.report.assert_consistent();
}

/// A Rust program: totals as the in-process counter has them, the leaked blocks on their site.
#[test]
fn rust_program_equals_counter() {
    let program = Program::fixture("rust_mix");
    let (_, report) = assert_equals_counter(&program, &[]);
    let leaked: u64 = report
        .sites()
        .iter()
        .filter(|site| functions_of(site).iter().any(|name| plain(name) == "rust_mix::leak"))
        .map(|site| site["live"]["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(leaked, 25 * 128);
    report.assert_no_anomaly();
}

/// Where blocks come and go past the functions that have probes, as the program's own allocator lets them, a free of
/// what is not live is no error of the program.
#[test]
fn frees_beside_an_allocator_with_side_doors_are_no_findings() {
    // Its malloc begins with what can't be moved.
    let traced = Program::fixture("side_doors").stays_on_trap("recorded calls of").traced();
    assert_eq!(traced.ended.text(), "done\n", "{}", traced.ended.stderr);
    assert!(traced.report.list("/findings").is_empty());
    let [warning] = traced.report.list("/warnings") else { panic!("{:?}", traced.report.list("/warnings")) };
    let warning = warning.as_str().unwrap();
    assert!(warning.contains("10 frees of blocks that were not live") && warning.contains("10 times"), "{warning}");
}

/// Double and invalid frees are found, counted, told apart and shown with their stacks; the program goes on.
#[test]
fn double_and_invalid_frees_are_findings() {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("bad_frees", &[&bump]));
    let traced = program.traced_with(&["--top", "9"]);
    assert_eq!(traced.ended.text(), "done\n");
    let report = &traced.report;
    assert_eq!(report.anomaly("double_frees"), 3);
    assert_eq!(report.anomaly("unknown_frees"), 3);
    let found: Vec<_> =
        report.list("/findings").iter().map(|finding| plain(&functions_of(finding)[0]).to_owned()).collect();
    assert!(found.contains(&"second_free".to_owned()), "{found:?}");
    assert!(found.contains(&"invalid_free".to_owned()), "{found:?}");
    let double =
        report.list("/findings").iter().find(|finding| plain(&functions_of(finding)[0]) == "second_free").unwrap();
    assert_eq!(double["stack"][0]["line"], fixtures::site_line("bad_frees", "second_free"));
    let freed_at = double["free_stack"][0]["function"].as_str().unwrap();
    assert_eq!(plain(freed_at), "first_free");
    let inside = report.list("/findings").iter().find(|finding| finding["offset"] == 16).expect("free(live + 16)");
    assert_eq!((inside["size"].as_u64(), inside["kind"].as_str()), (Some(72), Some("invalid_free")));
    assert_eq!(plain(inside["alloc_stack"][0]["function"].as_str().unwrap()), "make");
    assert!(traced.ended.stderr.contains("16 bytes inside a live block of 72 bytes"), "{}", traced.ended.stderr);
    // what is freed twice counts once
    let ledger = program.ledger();
    assert_eq!(report.total("frees"), ledger.total("frees"));
    assert_eq!(report.total("live_bytes"), ledger.total("live_bytes"));
    report.assert_consistent();
}

/// Repeats of one kind of error hide no other kind, and all formats say the same of each.
#[test]
fn an_error_of_each_kind_is_shown() {
    let bump = fixtures::library("bump");
    let program = Program::new(fixtures::program_linked("bad_frees", &[&bump]));
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let summary = flat(&program.traced_with(&["--top", "1"]).ended.stderr);
    assert!(summary.contains("freed twice: ") && summary.contains("freed, but never allocated: "), "{summary}");
    assert!(summary.contains("and 4 more, all of them in report.json"), "{summary}");

    let junit = program.outside("errors.junit.xml");
    let options = ["--top", "9", "--github", "-o", junit.to_str().unwrap()];
    let checked = program.checked(&options);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    let (report, junit) = (flat(&checked.ended.stderr), std::fs::read_to_string(&junit).unwrap());
    let annotations: Vec<&str> = checked.ended.stderr.lines().filter(|line| line.contains(" (heaptrace)::")).collect();
    let sentences: Vec<&str> = annotations.iter().map(|line| line.rsplit_once("::").unwrap().1).collect();
    assert!(sentences[0].starts_with("freed twice: ") && sentences[1].starts_with("freed, but never"), "{sentences:?}");
    for sentence in sentences {
        assert!(junit.contains(sentence), "{sentence:?} in {junit}");
        // the report has each of those that the others count together
        let first = sentence.split("; and ").next().unwrap();
        assert!(report.contains(first), "{first:?} in {report}");
    }
}

/// glibc aborts a program that frees twice: the status is passed on, and the finding is there.
#[test]
fn double_free_that_aborts_is_reported() {
    let traced = Program::fixture("double_free").traced();
    assert_eq!(traced.ended.code(), 134);
    assert_eq!(traced.report.anomaly("double_frees"), 1);
    assert_eq!(traced.report.text("/findings/0/stack/0/function"), "main");
    assert_eq!(traced.report.number("/findings/0/stack/0/line"), fixtures::site_line("double_free", "double_free"));
    assert!(traced.ended.stderr.contains("double free"), "{}", traced.ended.stderr);
}

/// new and free, malloc and delete, new[] and delete are mismatches, each found once.
#[test]
fn mismatched_frees_are_findings() {
    let traced = Program::fixture("mismatched").traced();
    assert_eq!(traced.ended.code(), 0);
    assert_eq!(traced.report.anomaly("mismatched_frees"), 3, "{:?}", traced.report.list("/findings"));
    assert_eq!(traced.report.anomaly("unknown_frees"), 0);
}

/// Without stacks at frees the totals stay the same.
#[test]
fn no_free_stacks_changes_no_total() {
    let program = Program::fixture("basic");
    let traced = program.traced_with(&["--no-free-stacks"]);
    let ledger = program.ledger();
    for name in TOTALS {
        assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
    }
    traced.report.assert_consistent();
}

/// Allocation functions that the user declares are counted under their own name, the malloc below them is part of them.
#[test]
fn declared_functions_are_counted() {
    // the jump engine leaves them to stops, and says so if it has come by the time of the next malloc
    let left = "--alloc-fn or --free-fn declares";
    let program = Program::fixture("pool").stays_on_trap(left);
    let traced = program.traced_with(&["--alloc-fn", "pool_get:size=arg2", "--free-fn", "pool_put:ptr=arg2"]);
    assert_eq!(traced.ended.text(), "done\n");
    let ledger = program.ledger();
    assert_eq!(traced.report.site_sum(&["user"], "/allocated/objects"), ledger.sites["user"]["allocations"]);
    assert_eq!(traced.report.site_sum(&["user"], "/allocated/bytes"), ledger.sites["user"]["bytes_allocated"]);
    assert_eq!(traced.report.site_sum(&["user"], "/live/objects"), 5);
    let warnings = traced.report.list("/warnings");
    assert!(warnings.iter().all(|told| told.to_string().contains(left)), "both are known: {warnings:?}");
}

/// Whoever names the wrong argument is told so: here the first one is the pool's address.
#[test]
fn a_pointer_that_is_declared_as_a_size_is_told() {
    let program = Program::fixture("pool").stays_on_trap("--alloc-fn or --free-fn declares");
    for (spec, is_wrong) in [("pool_get", true), ("pool_get:size=arg1", true), ("pool_get:size=arg2", false)] {
        let traced = program.traced_with(&["--alloc-fn", spec, "--free-fn", "pool_put:ptr=arg2"]);
        let warnings: Vec<_> = traced.report.list("/warnings").iter().filter_map(|told| told.as_str()).collect();
        let told = warnings.iter().find(|told| told.starts_with("--alloc-fn pool_get: "));
        assert_eq!(told.is_some(), is_wrong, "{spec}: {warnings:?}");
        let says_what = |told: &&str| told.contains("looks like a pointer (0x") && told.contains("pool_get:size=arg2");
        assert!(told.is_none_or(says_what), "{told:?}");
    }
}

/// A declared name that no module defines is an error with the names that may have been meant; what was recorded is
/// written all the same, and `check` does not judge.
#[test]
fn unknown_declared_functions_are_errors() {
    let program = Program::fixture("pool");
    for (option, spec, similar) in [
        ("--alloc-fn", "pool_gett:size=arg2", "pool_get"),
        ("--free-fn", "Pool_put", "pool_put"),
        ("--alloc-fn", "nowhere.so+0x1234", "no such module"),
    ] {
        let traced = program.traced_with(&[option, spec]);
        assert_eq!(traced.ended.code(), 125, "{spec}: {}", traced.ended.stderr);
        assert_eq!(traced.report.total("allocations"), 20, "{spec}");
        let name = spec.split(':').next().unwrap();
        let warnings: Vec<_> = traced.report.list("/warnings").iter().filter_map(|w| w.as_str()).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(name) && warnings[0].contains(similar), "{warnings:?}");
        assert!(traced.ended.stderr.contains(similar), "{}", traced.ended.stderr);
        // a program that would pass otherwise
        let checked = Program::new("/bin/true").checked(&[option, spec]);
        assert_eq!(checked.ended.code(), 125, "{spec}: {}", checked.ended.stderr);
    }
    // an alias of a function that has a probe by another name is not unknown
    let program = program.stays_on_trap("recorded calls of malloc");
    let traced = program.traced_with(&["--alloc-fn", "malloc", "--alloc-fn", "__libc_malloc"]);
    assert_eq!((traced.ended.code(), traced.report.list("/warnings").len()), (0, 0), "{}", traced.ended.stderr);
}
