//! Findings on machines made up.

use super::facts::{Facts, Leftovers, Libc, Trial};
use super::*;
use crate::tracer::probe::{CodeAccess, StopCost};
use std::path::PathBuf;
use std::time::Duration;

/// The same in all rounds, in nanoseconds.
fn steady(nanos: u64) -> StopCost {
    let each = Duration::from_nanos(nanos);
    StopCost { typical: each, low: each, high: each }
}

fn machine() -> Facts {
    Facts {
        kernel: "6.1.0-18-amd64".into(),
        proc: None,
        settings: true,
        contained: false,
        yama: Some(0),
        privileged: false,
        seccomp: Some(0),
        trial: Trial::Done { code: CodeAccess::Running, stop: Some(steady(42_300)), pinned: Some(steady(9_800)) },
        no_shared_memory: None,
        cpus: 8,
        virtual_machine: true,
        shadow_stack: false,
        hidepid: None,
        debian: true,
        libc: Some(Libc {
            path: "/lib/libc.so.6".into(),
            build_id: Some("aabbcc".into()),
            debug_file: Some("/usr/lib/debug/.build-id/aa/bbcc.debug".into()),
        }),
        debug_path: vec![],
        debuginfod: false,
    }
}

fn find(facts: &Facts, title: &str) -> Option<Finding> {
    judge::findings(facts).into_iter().find(|finding| finding.title == title)
}

fn cure(facts: &Facts, title: &str) -> (Level, String) {
    let finding = find(facts, title).unwrap();
    (finding.level, finding.cure.unwrap_or_default())
}

#[test]
fn a_good_machine_has_no_complaint() {
    let findings = judge::findings(&machine());
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    insta::assert_snapshot!(render(&findings, false));
}

#[test]
fn a_bad_machine_names_each_cure() {
    let facts = Facts {
        yama: Some(2),
        seccomp: Some(2),
        trial: Trial::NoTrace("could not seize task 5: Operation not permitted (os error 1)".into()),
        hidepid: Some("invisible".into()),
        libc: Some(Libc { path: "/lib/libc.so.6".into(), build_id: Some("aabbcc".into()), debug_file: None }),
        debug_path: vec![(PathBuf::from("/gone"), false), (PathBuf::from("/there"), true)],
        debuginfod: true,
        ..machine()
    };
    insta::assert_snapshot!(render(&judge::findings(&facts), false));
}

#[test]
fn without_a_proc_of_our_own_nothing_is_tried() {
    let facts =
        Facts { proc: Some("/proc is not mounted".into()), trial: Trial::NotMade, settings: false, ..machine() };
    let findings = judge::findings(&facts);
    assert!(!possible(&findings));
    assert_eq!(find(&facts, "processes").unwrap().level, Level::Fail);
    for title in ["tracing", "breakpoints", "attach", "speed", "settings"] {
        assert_eq!(find(&facts, title), None, "{title}");
    }
}

#[test]
fn what_can_t_be_seen_from_a_container_is_not_promised() {
    let facts = Facts { settings: false, yama: None, contained: true, privileged: true, ..machine() };
    assert_eq!(find(&facts, "settings").unwrap().level, Level::Warn);
    assert!(find(&facts, "attach").unwrap().text.contains("user namespace"));
    let facts = Facts { contained: false, ..facts };
    assert!(find(&facts, "attach").unwrap().text.contains("any process"));
}

#[test]
fn attach_depends_on_yama_and_capability() {
    let level = |yama, privileged| find(&Facts { yama, privileged, ..machine() }, "attach").unwrap().level;
    for (yama, alone, privileged) in [
        (None, Level::Ok, Level::Ok),
        (Some(0), Level::Ok, Level::Ok),
        (Some(1), Level::Warn, Level::Ok),
        (Some(2), Level::Warn, Level::Ok),
        (Some(3), Level::Warn, Level::Warn),
    ] {
        assert_eq!((level(yama, false), level(yama, true)), (alone, privileged), "{yama:?}");
    }
}

#[test]
fn a_refused_trial_is_blamed_on_what_most_likely_refused_it() {
    let refused = |yama, seccomp, privileged| {
        let trial = Trial::NoTrace("no".into());
        let (level, cure) = cure(&Facts { yama, seccomp, privileged, trial, ..machine() }, "tracing");
        assert_eq!(level, Level::Fail);
        cure
    };
    assert!(refused(Some(3), Some(0), true).contains("reboot"));
    assert!(refused(Some(2), Some(2), false).contains("sysctl"));
    assert!(refused(Some(2), Some(2), true).contains("--cap-add SYS_PTRACE"));
    assert!(refused(None, Some(0), true).contains("AppArmor"));
}

#[test]
fn a_kernel_that_forbids_to_write_code_is_told_with_its_boot_parameter() {
    let trial = Trial::Done { code: CodeAccess::StoppedOnly, stop: None, pinned: None };
    let facts = Facts { trial, ..machine() };
    let (level, cure) = cure(&facts, "breakpoints");
    assert_eq!(level, Level::Warn);
    assert!(cure.contains("proc_mem.force_override=ptrace"));
    assert!(possible(&judge::findings(&facts)));
}

#[test]
fn where_no_breakpoint_can_be_written_nothing_works() {
    let facts = Facts { trial: Trial::NoBreakpoint("Input/output error".into()), ..machine() };
    assert_eq!(cure(&facts, "breakpoints").0, Level::Fail);
    assert!(!possible(&judge::findings(&facts)));
    assert_eq!(find(&facts, "tracing").unwrap().level, Level::Ok);
}

#[test]
fn kernels_are_judged_by_number() {
    let level = |kernel: &str| find(&Facts { kernel: kernel.into(), ..machine() }, "kernel").unwrap().level;
    assert_eq!(level("3.3.8"), Level::Fail);
    assert_eq!(level("2.6.32-754.el6"), Level::Fail);
    assert_eq!(level("3.4"), Level::Ok);
    assert_eq!(level("3.10.0"), Level::Ok);
    assert_eq!(level("10.0"), Level::Ok);
    assert_eq!(level(""), Level::Warn);
}

#[test]
fn pinning_is_recommended_only_where_it_pays() {
    let with = |stop, pinned: Option<u64>, cpus| {
        let trial = Trial::Done { code: CodeAccess::Running, stop: Some(steady(stop)), pinned: pinned.map(steady) };
        find(&Facts { trial, cpus, ..machine() }, "speed").unwrap().cure
    };
    assert!(with(42_000, Some(10_000), 2).unwrap().contains("4.2 times faster"));
    assert_eq!(with(11_000, Some(10_000), 2), None);
    assert_eq!(with(42_000, Some(10_000), 1), None);
    assert_eq!(with(42_000, None, 2), None);
    assert_eq!(with(42_000, Some(0), 2), None);
}

#[test]
fn a_cost_that_varies_is_told_as_a_range() {
    let text = |low| {
        let stop = StopCost { low: Duration::from_nanos(low), ..steady(42_300) };
        let trial = Trial::Done { code: CodeAccess::Running, stop: Some(stop), pinned: None };
        find(&Facts { trial, ..machine() }, "speed").unwrap().text
    };
    assert!(text(11_000).contains("between 11 µs and 42 µs now"), "{}", text(11_000));
    assert!(!text(41_000).contains("between"), "{}", text(41_000));
}

#[test]
fn colours_only_on_request() {
    let findings = judge::findings(&machine());
    assert!(!render(&findings, false).contains('\x1b'));
    assert!(render(&findings, true).contains("\x1b[32mok  \x1b[0m"));
}

#[test]
fn leftovers_are_told_with_their_cure() {
    let told = |leftovers| judge::leftovers(7, &leftovers, true);
    assert_eq!(told(Leftovers::None).level, Level::Ok);
    assert_eq!(told(Leftovers::Traced { by: 8 }).level, Level::Ok);
    let finding = told(Leftovers::Some { breakpoints: 15, unproved: 0 });
    assert!(finding.text.contains("15 breakpoints") && !finding.text.contains("differ"), "{}", finding.text);
    assert!(finding.cure.unwrap().contains("heaptrace attach --duration 1s 7"));
    let finding = told(Leftovers::Some { breakpoints: 15, unproved: 2 });
    assert!(finding.text.contains("differs from the files in 2 bytes"), "{}", finding.text);
    assert_eq!(told(Leftovers::Unknown("gone".into())).level, Level::Warn);
    // a guardian has not let go of it in all the time that it was waited for
    let unsettled = |leftovers| judge::leftovers(7, &leftovers, false);
    for leftovers in [Leftovers::Some { breakpoints: 15, unproved: 0 }, Leftovers::Memory(4096)] {
        let finding = unsettled(leftovers);
        assert!(finding.level == Level::Warn && finding.text.contains("guardian seems to be at work"));
        assert!(finding.cure.unwrap().starts_with("ask again"));
    }
    assert_eq!(unsettled(Leftovers::None).level, Level::Ok);
}

#[test]
fn the_engine_of_a_process_is_told_with_its_cause() {
    use crate::session::{EngineForecast, JumpIneligible};
    let of = |prospect| judge::engine_of(7, &prospect);
    let jump = of(Ok(EngineForecast::Jump));
    assert!(jump.level == Level::Ok && jump.text.contains("process 7: trap at first, jump"), "{}", jump.text);
    let filters = of(Ok(EngineForecast::Trap(JumpIneligible::Seccomp)));
    assert!(filters.level == Level::Warn && filters.text.ends_with("as it filters its system calls (seccomp)"));
    assert!(filters.cure.unwrap().contains("--duration"));
    assert!(of(Ok(EngineForecast::Not64Bit)).text.contains("64-bit"));
    assert!(of(Err("gone".to_owned())).text.contains("gone"));
}

#[test]
fn programs_with_a_shadow_stack_stay_with_trap() {
    let text = |shadow_stack| find(&Facts { shadow_stack, ..machine() }, "engine").unwrap().text;
    assert!(text(true).contains("trap for programs with a shadow stack") && !text(false).contains("shadow"));
}
