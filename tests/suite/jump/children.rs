//! Children and other images of processes on the jump engine.

use super::by;
use crate::suite::counts::assert_sites;
use crate::support::program::{Program, Traced};
use std::os::unix::fs::PermissionsExt;

/// J35: a thread, the first one or another, executes a program while fifty others are in the routine.
#[test]
fn j35_a_thread_executes_a_program_amid_others() {
    for leader in [&[][..], &["leader"]] {
        let program = Program::fixture("exec_thread").args(leader);
        for _ in 0..crate::suite::rounds(3) {
            let traced = by("jump", &program, &[]);
            assert_eq!(
                (traced.ended.code(), traced.ended.text().as_str()),
                (6, "second image\n"),
                "{}",
                traced.ended.stderr
            );
            assert_sites(&traced.report, &program.ledger());
            assert_eq!(traced.report.total("live_bytes"), 1230);
            assert_eq!(traced.report.total("allocations"), 10);
            traced.report.assert_no_anomaly();
        }
    }
}

/// J35: the program that is executed has other rights (set-user-ID). It has them, as without heaptrace where that may
/// trace all users' processes, and is on the engine.
#[test]
fn j35_a_program_with_other_rights_is_executed() {
    let program = Program::fixture("exec_rights");
    let other = program.outside("other");
    crate::support::copy_file(program.exe(), &other).unwrap();
    if std::os::unix::fs::chown(&other, Some(65534), None).is_err() {
        eprintln!("no file of another user can be made here: not tested");
        return;
    }
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
    for folder in [program.outside("").as_path(), program.folder()] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let program = program.clone().args([other.as_os_str()]);
    let plain = program.plain();
    assert!(plain.text().starts_with("rights 0 65534 1\n"), "{}", plain.text());
    let traced = by("jump", &program, &[]);
    assert_eq!(traced.ended.text(), plain.text(), "{}", traced.ended.stderr);
    assert_eq!(traced.report.site_sum(&["second_allocate"], "/allocated/objects"), 20_000);
    assert_eq!(traced.report.site_sum(&["second_allocate"], "/freed/objects"), 20_000);
    traced.report.assert_no_anomaly();
}

/// J36: children that execute another program at once get no mapping from heaptrace, and keep none of their parent's
/// shared memory.
#[test]
fn j36_children_that_execute_at_once_get_no_mapping() {
    let program = Program::fixture("execs_at_once").args(["/memfd:heaptrace"]);
    assert_eq!(program.plain().text(), "named 0\n");
    let assert_well = |traced: &Traced| {
        assert_eq!(traced.ended.text(), "named 1\n", "{}", traced.ended.stderr);
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    };
    assert_well(&by("jump", &program, &[]));
    let each = program.outside("each.%p.json");
    let running = program.start_traced(&["--engine", "jump", "-f", "-o", each.to_str().unwrap()]);
    let traced = program.collect(running.wait().success());
    assert_well(&traced);
}

/// J37: children in vfork, amid threads that allocate, ask for their parent as tracer. They get it, and no signal
/// before their exec: what they call until then, in code that is their parent's, is that code as it was. What others
/// allocate meanwhile is not seen, which is told; of all else nothing is missing.
#[test]
fn j37_children_in_vfork_get_their_parents_as_tracers() {
    let program = Program::fixture("traceme_in_vfork").stays_on_trap("threads ran while heaptrace let a child go");
    for options in [&[][..], &["-f"]] {
        let traced = program.traced_with(&[&["--engine", "jump"], options].concat());
        assert_eq!(traced.ended.text(), "debugged\n", "{options:?}: {}", traced.ended.stderr);
        let (report, ledger) = (&traced.report, program.ledger());
        assert_eq!(report.text("/engine"), "jump");
        assert!(report.0["warnings"].to_string().contains("for its parent to trace"), "{}", traced.ended.stderr);
        let seen = |site| report.site_sum(&[site], "/allocated/objects");
        assert_eq!(seen("borrower_allocate"), 20);
        assert_eq!(report.site_sum(&["borrower_allocate"], "/freed/objects"), 20);
        assert_eq!(seen("unseen_allocate"), 0);
        let made = ledger.sites["worker_allocate"]["allocations"];
        // how many depends on how long the children live, and on who gets the processors
        assert!((100..=made).contains(&seen("worker_allocate")), "{} of {made}", seen("worker_allocate"));
        for anomaly in ["lost", "double_frees", "truncated_stacks"] {
            assert_eq!(report.anomaly(anomaly), 0, "{anomaly}: {}", traced.ended.stderr);
        }
    }
}
