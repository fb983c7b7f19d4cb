//! Every way to a verdict, with its exit status.

use super::*;
use crate::export::tests::{check_profile, empty_profile};
use crate::profile::leaks::ScanMoment;
use crate::profile::{Meta, ProcessInfo};

/// A run that was watched to its end, and is clean.
fn clean() -> Profile {
    let mut profile = empty_profile();
    profile.leaks = Some(Leaks {
        moment: ScanMoment::Exit,
        stopped_ns: 0,
        copied: false,
        unreadable_names: Vec::new(),
        scanned_bytes: 4096,
        unreadable_bytes: 0,
        untold: Vec::new(),
        sites: Vec::new(),
        asked: None,
    });
    profile
}

/// The same with the leaks of the sample: 3072 bytes definite, 128 indirect, 1056 possible, 262144 reachable.
fn leaking() -> Profile {
    let mut profile = clean();
    profile.leaks = check_profile().leaks;
    for site in profile.leaks.iter_mut().flat_map(|leaks| &mut leaks.sites) {
        site.baseline = [None; 4];
    }
    profile
}

fn judged(mut profile: Profile, policy: &Policy, circumstances: &Completeness) -> (VerdictKind, u8, Vec<String>) {
    judge(&mut profile, policy, circumstances);
    let verdict = profile.verdict.expect("a verdict");
    (verdict.kind, verdict.exit_status, verdict.reasons)
}

fn by_default(profile: Profile) -> (VerdictKind, u8, Vec<String>) {
    judged(profile, &Policy::default(), &Completeness::default())
}

#[test]
fn a_run_that_was_seen_and_leaks_nothing_is_clean() {
    assert_eq!(by_default(clean()), (VerdictKind::Clean, 0, Vec::new()));
}

/// What was not read can hold the pointers to blocks that look lost, and hides none.
#[test]
fn leaks_are_not_certain_where_memory_was_not_read() {
    let unread = |mut profile: Profile| {
        profile.leaks.iter_mut().for_each(|leaks| leaks.unreadable_bytes = 4096);
        by_default(profile)
    };
    assert_eq!(unread(clean()), (VerdictKind::Clean, 0, Vec::new()));
    let (kind, status, reasons) = unread(leaking());
    assert_eq!((kind, status), (VerdictKind::Inconclusive, 125));
    assert!(reasons.iter().any(|reason| reason.starts_with("4,096 bytes")), "{reasons:?}");
}

/// A child's failure is its parent's affair, but not that it was killed before it could be looked at.
#[test]
fn a_childs_end_counts_only_if_it_hides_something() {
    let child = Completeness { is_child: true, ..Completeness::default() };
    let ended = |profile: Profile, exit| {
        let profile = Profile {
            meta: Meta { process: ProcessInfo { exit: Some(exit), ..profile.meta.process }, ..profile.meta },
            ..profile
        };
        let alone = judged(profile.clone(), &Policy::default(), &Completeness::default()).1;
        (alone, judged(profile, &Policy::default(), &child).1)
    };
    assert_eq!(ended(clean(), Exit::Code(3)), (3, 0));
    assert_eq!(ended(clean(), Exit::Signal(11)), (139, 0));
    assert_eq!(ended(leaking(), Exit::Code(3)), (3, 23));
    assert_eq!(ended(Profile { leaks: None, ..clean() }, Exit::Signal(9)), (125, 125));
}

/// What Memcheck's own defaults count, and what hangs on it.
#[test]
fn definite_and_indirect_leaks_fail_and_others_only_on_request() {
    let (kind, status, reasons) = by_default(leaking());
    assert_eq!((kind, status), (VerdictKind::Leaks, 23));
    assert_eq!(reasons, ["3,200 bytes in 5 blocks leaked (definite, indirect)"]);
    let only = |leak_kinds| judged(leaking(), &Policy { leak_kinds, ..Policy::default() }, &Completeness::default());
    assert_eq!(only([true, false, false, false]).2, ["3,072 bytes in 3 blocks leaked (definite)"]);
    assert_eq!(only([false, true, false, false]).2, ["128 bytes in 2 blocks leaked (indirect)"]);
    assert_eq!(only([false, false, true, false]).2, ["1,056 bytes in 2 blocks leaked (possible)"]);
    assert_eq!(only([false, false, false, true]).2, ["262,144 bytes in 1 block leaked (reachable)"]);
    assert_eq!(only([false; 4]), (VerdictKind::Clean, 0, Vec::new()));
}

#[test]
fn a_suppressed_block_takes_along_what_hangs_on_it() {
    let mut profile = leaking();
    profile.leaks.as_mut().expect("leaks").sites[0].suppressed_by[0] = Some(1);
    let leaks = profile.leaks.as_ref().expect("leaks");
    assert_eq!(leaks.totals().map(|amount| amount.bytes), [0, 0, 1056, 262_144]);
    assert_eq!(leaks.suppressed(), Amount { objects: 6, bytes: 3200 });
    assert_eq!(by_default(profile), (VerdictKind::Clean, 0, Vec::new()));
}

#[test]
fn what_the_baseline_knows_does_not_fail() {
    let with = |status| {
        let mut profile = leaking();
        profile.leaks.as_mut().expect("leaks").sites[0].baseline[0] = Some(status);
        profile.findings = check_profile().findings;
        profile.findings[0].baseline = Some(status);
        by_default(profile)
    };
    assert_eq!(with(BaselineStatus::Known), (VerdictKind::Clean, 0, Vec::new()));
    for status in [BaselineStatus::New, BaselineStatus::Grown] {
        let (kind, exit_status, reasons) = with(status);
        assert_eq!((kind, exit_status), (VerdictKind::Errors, 23));
        assert!(reasons[1].contains("that the baseline does not know"), "{reasons:?}");
    }
}

#[test]
fn errors_weigh_more_than_leaks_unless_they_are_off() {
    let mut profile = leaking();
    profile.findings = check_profile().findings;
    let (kind, status, reasons) = by_default(profile.clone());
    assert_eq!((kind, status), (VerdictKind::Errors, 23));
    assert_eq!(reasons, ["1 error in the use of the heap", "3,200 bytes in 5 blocks leaked (definite, indirect)"]);
    let policy = Policy { errors: false, leak_exit_code: 3, ..Policy::default() };
    let (kind, status, _) = judged(profile, &policy, &Completeness::default());
    assert_eq!((kind, status), (VerdictKind::Leaks, 3));
}

#[test]
fn budgets_hold_to_the_last_byte() {
    let mut profile = leaking();
    profile.totals = check_profile().totals;
    let limited = |limits| judged(profile.clone(), &Policy { limits, ..Policy::default() }, &Completeness::default());
    let none = Limits { max_leaked_bytes: Some(3200), ..Limits::default() };
    assert_eq!(limited(none), (VerdictKind::Clean, 0, Vec::new()), "leaks within the budget are none");
    let exact = Limits { max_peak: Some(1_060_000), max_allocations: Some(116), max_live: Some(266_272), ..none };
    assert_eq!(limited(exact).0, VerdictKind::Clean);
    let less = Limits {
        max_leaked_bytes: Some(3199),
        max_peak: Some(1_059_999),
        max_allocations: Some(115),
        max_live: Some(266_271),
    };
    let (kind, status, reasons) = limited(less);
    assert_eq!((kind, status, reasons.len()), (VerdictKind::OverBudget, 23, 4));
    assert_eq!(reasons[0], "--max-leaked-bytes is exceeded: 3,200 bytes instead of 3,199");
    assert_eq!(reasons[2], "--max-allocations is exceeded: 116 allocations instead of 115");
}

#[test]
fn the_program_s_own_failure_comes_first() {
    for (exit, status) in [(Exit::Code(1), 1), (Exit::Code(255), 255), (Exit::Signal(11), 139), (Exit::Signal(64), 192)]
    {
        let mut profile = leaking();
        profile.meta.process.exit = Some(exit);
        profile.anomalies.lost = 5;
        let (kind, exit_status, reasons) = by_default(profile);
        assert_eq!((kind, exit_status), (VerdictKind::ProgramFailed, status));
        assert_eq!(reasons.len(), 3, "the other reasons are told too: {reasons:?}");
    }
}

#[test]
fn a_program_out_of_time_gives_124_whatever_else() {
    let circumstances = Completeness { timed_out: true, not_scanned: Some("no".to_owned()), ..Completeness::default() };
    for exit in [Some(Exit::Signal(15)), Some(Exit::Signal(9)), Some(Exit::Code(0)), None] {
        let mut profile = clean();
        (profile.meta.process.exit, profile.meta.complete, profile.leaks) = (exit, false, None);
        let (kind, status, reasons) = judged(profile, &Policy::default(), &circumstances);
        assert_eq!((kind, status), (VerdictKind::ProgramFailed, 124));
        assert_eq!(reasons[0], "the program did not end in time");
    }
}

/// A gate must never be green because it was blind.
#[test]
fn what_was_not_seen_is_never_green() {
    type Blinded = fn(&mut Profile);
    let cases: [(&str, Blinded); 7] = [
        ("no allocator", |profile| profile.allocators.clear()),
        ("no function", |profile| profile.allocators[0].functions.clear()),
        ("not read", |profile| profile.leaks = None),
        ("lost", |profile| profile.anomalies.lost = 1),
        ("sampled", |profile| profile.meta.sample_interval = 4096),
        ("left early", |profile| profile.meta.complete = false),
        ("killed", |profile| (profile.meta.process.exit, profile.leaks) = (Some(Exit::Signal(9)), None)),
    ];
    for (name, blind) in cases {
        let mut profile = clean();
        blind(&mut profile);
        let (kind, status, reasons) = by_default(profile);
        assert_eq!((kind, status), (VerdictKind::Inconclusive, 125), "{name}");
        assert!(!reasons.is_empty(), "{name}");
    }
    let not_scanned = Some("its registers could not be read".to_owned());
    let failed = Completeness { not_scanned, ..Completeness::default() };
    let (kind, status, reasons) = judged(clean(), &Policy::default(), &failed);
    assert_eq!((kind, status), (VerdictKind::Inconclusive, 125));
    assert_eq!(reasons, ["the memory could not be checked: its registers could not be read"]);
}

#[test]
fn what_was_found_is_certain_unless_events_were_lost() {
    let mut profile = leaking();
    profile.meta.complete = false;
    assert_eq!(by_default(profile.clone()).0, VerdictKind::Leaks);
    profile.anomalies.lost = 1;
    assert_eq!(by_default(profile).0, VerdictKind::Inconclusive);
}

#[test]
fn children_that_ran_untraced_matter_if_asked() {
    let mut profile = clean();
    profile.children = check_profile().children;
    assert_eq!(by_default(profile.clone()).0, VerdictKind::Clean);
    let policy = Policy { require_all: true, ..Policy::default() };
    let (kind, status, reasons) = judged(profile, &policy, &Completeness::default());
    assert_eq!((kind, status), (VerdictKind::Inconclusive, 125));
    assert_eq!(reasons, ["2 child processes (gzip) were not checked"]);
}
