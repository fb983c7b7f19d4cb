//! fork, vfork, spawn and exec.

use super::counts::assert_sites;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::Ended;
use std::os::unix::fs::{PermissionsExt, chown};

/// T28: a forked child that is not followed is untraced, its code is clean, it allocates and ends as it wants.
#[test]
fn t28_forked_child_lives_on() {
    let program = Program::fixture("fork_child");
    let mut running = program.start_traced(&[]);
    let child: i32 = running.value("child").parse().unwrap();
    procfs::wait_until_let_go(child);
    running.send("go on");
    assert_eq!(running.line(), "parent done");
    let traced = program.collect(running.wait().success());
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    assert_eq!(traced.report.total("live_blocks"), ledger.total("live_blocks"));
    assert_eq!(children(&traced.report, "untraced"), 1);
    traced.report.assert_no_anomaly();
}

/// T28: the parent ends right after its fork, which may be before the child's first stop: the child still lives on.
#[test]
fn t28_child_of_a_parent_that_has_ended() {
    for _ in 0..crate::suite::rounds(5) {
        let program = Program::fixture("orphan");
        let traced = program.traced();
        assert_eq!(traced.ended.text(), "child\n");
        assert_eq!(children(&traced.report, "untraced"), 1);
    }
}

/// T29: a thousand short children; none fails, none is left, the parent's counts are exact.
#[test]
fn t29_thousand_short_children() {
    let program = Program::fixture("fork_many").args(["1000"]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "children 1000\n");
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
    assert_eq!(children(&traced.report, "untraced"), 1000);
    traced.report.assert_no_anomaly();
}

/// A child that is killed in its first moment is one child, and nothing is wrong with it: it may stop once more at its
/// end, and its memory may be gone when its code is to be restored.
#[test]
fn children_killed_in_their_first_moment() {
    for killer in [&["300"][..], &["300", "thread"]] {
        let program = Program::fixture("nipped_children").args(killer);
        for (options, counted) in [(&[][..], "untraced"), (&["-f"], "followed")] {
            let traced = program.traced_with(options);
            assert_eq!(traced.ended.text(), "children 300\n");
            assert_eq!(children(&traced.report, counted), 300, "{killer:?} {options:?}");
            assert!(traced.report.list("/warnings").is_empty(), "{:?}", traced.report.list("/warnings"));
            traced.report.assert_no_anomaly();
        }
    }
}

/// A followed child that is killed when it is let go: its end is nobody's to wait for but its parent's.
#[test]
fn followed_children_killed_when_they_are_let_go() {
    let program = Program::fixture("nipped_children").args(["500", "traced"]);
    let traced = program.traced_with(&["-f"]);
    assert_eq!(traced.ended.text(), "children 500\n");
    assert_eq!(children(&traced.report, "followed"), 500);
    assert!(traced.report.list("/warnings").is_empty(), "{:?}", traced.report.list("/warnings"));
}

/// T30: system, popen, posix_spawn and vfork while other threads allocate: no probe is missed, none is lifted.
#[test]
fn t30_spawn_loop_with_allocating_threads() {
    let program = Program::fixture("spawn_loop").args(["20"]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "rounds 20\n");
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    assert_eq!(traced.report.site_sum(&["worker_allocate"], "/live/objects"), 0);
    traced.report.assert_no_anomaly();
}

/// A task can have one tracer: a child that asks for its parent, by fork or by vfork, is let go before it does,
/// followed or not, and nothing is missed of the parent.
#[test]
fn a_debugger_gets_its_tracees() {
    for options in [&[][..], &["-f"]] {
        let program = Program::fixture("debugger");
        let traced = program.traced_with(options);
        assert_eq!(traced.ended.text(), "debugged\n", "{options:?}: {}", traced.ended.stderr);
        assert_eq!(traced.ended.code(), 0);
        let ledger = program.ledger();
        for total in ["allocations", "frees", "bytes_allocated"] {
            assert_eq!(traced.report.total(total), ledger.total(total), "{options:?}: {total}");
        }
        traced.report.assert_no_anomaly();
    }
}

/// T31: what a vfork child allocates stands in the memory that it shares, and is its parent's.
#[test]
fn t31_vfork_child_allocates() {
    let program = Program::fixture("vfork_malloc");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    let ledger = program.ledger();
    for name in ["allocations", "frees", "bytes_allocated", "live_blocks", "live_bytes"] {
        assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
    }
    assert_sites(&traced.report, &ledger);
    traced.report.assert_no_anomaly();
}

/// T28, T31: a child that its own parent is not the parent of (CLONE_PARENT; here it is heaptrace): with a copy of the
/// memory it lives on untraced, in the same memory it allocates on the one heap.
#[test]
fn t31_child_of_the_parents_parent() {
    for (shared, said) in [("0", "sibling done\ndone\n"), ("1", "done\n")] {
        let program = Program::fixture("tree").args(["sibling", shared]);
        let traced = program.traced();
        assert_eq!((traced.ended.code(), traced.ended.text().as_str()), (0, said), "{}", traced.ended.stderr);
        let ledger = program.ledger();
        for name in ["allocations", "frees", "bytes_allocated", "live_blocks", "live_bytes"] {
            assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
        }
        traced.report.assert_no_anomaly();
    }
}

/// T32: a helper that is set-user-ID keeps its rights, however it is started, and so do searches through $PATH. Needs
/// root, to make such a helper and to be somebody else.
#[test]
fn t32_set_user_id_helper_keeps_its_rights() {
    if let Some((report, ended)) = set_user_id_helper(&["run"]) {
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        assert_eq!(children(&report, "untraced"), 6);
        report.assert_no_anomaly();
    }
}

/// Runs a program that starts such a helper six times, under `heaptrace COMMAND`, a subcommand with options. None: not
/// without root.
pub fn set_user_id_helper(command: &[&str]) -> Option<(Report, Ended)> {
    let own = i32::try_from(std::process::id()).unwrap();
    if procfs::status_field(own, "Uid").is_none_or(|uids| uids.split_whitespace().nth(1) != Some("0")) {
        return None;
    }
    const NOBODY: u32 = 65534;
    const SOMEBODY: &str = "12345";
    let fixture = Program::fixture("spawn_helper");
    let folder = fixture.folder().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let helper = folder.join("helper");
    let (main, heaptrace) = (folder.join("main"), folder.join("heaptrace"));
    for (from, to) in
        [(fixture.exe(), &helper), (fixture.exe(), &main), (env!("CARGO_BIN_EXE_heaptrace").as_ref(), &heaptrace)]
    {
        crate::support::copy_file(from, to).unwrap();
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(&helper, Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let search = format!("/nonexistent:{}:/usr/bin:/bin", folder.display());
    let report = folder.join("report.json");
    chown(&folder, Some(12345), None).unwrap();
    for path in fixture.folder().ancestors().take(2) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_somebody = ["--reuid", SOMEBODY, "--regid", SOMEBODY, "--clear-groups"];
    let start = |words: &[&std::ffi::OsStr]| {
        let runner = Program::new("setpriv").env("PATH", &search).args(as_somebody).args(words);
        runner.plain()
    };
    let plain = start(&[main.as_os_str()]).success();
    let expected = "effective user 65534\n".repeat(6) + "done\n";
    assert_eq!(plain.text(), expected, "file systems mounted nosuid can't show this");
    let mut words = vec![heaptrace.as_os_str()];
    words.extend(command.iter().map(|word| -> &std::ffi::OsStr { word.as_ref() }));
    words.extend(["-o".as_ref(), report.as_os_str(), "--".as_ref(), main.as_os_str()]);
    let traced = start(&words);
    assert_eq!(traced.text(), expected, "{}", traced.stderr);
    Some((Report::read(&report, &traced), traced))
}

/// exec in the same process is followed: totals are the last image's, the earlier ones stand in the list of images.
#[test]
fn exec_chain_is_followed() {
    let program = Program::fixture("exec_chain").args(["3"]);
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 5);
    assert_eq!(traced.ended.text(), "last image\n");
    let ledger = program.ledger();
    assert_eq!(traced.report.total("allocations"), ledger.total("allocations"));
    assert_eq!(traced.report.total("live_bytes"), 100);
    assert_sites(&traced.report, &ledger);
    let images = traced.report.list("/images");
    assert_eq!(images.len(), 3, "{images:?}");
    traced.report.assert_no_anomaly();
}

/// A shell that execs a program: the profile is that program's, and so is its name.
#[test]
fn exec_from_a_shell() {
    let fixture = Program::fixture("peak");
    let program = Program::new("/bin/sh").args(["-c".as_ref(), "exec \"$0\"".as_ref(), fixture.exe().as_os_str()]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_eq!(traced.report.text("/program"), "peak");
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
}

/// T13: exec by a thread other than the leader while fifty allocate: the old threads vanish, the new image has its
/// probes.
#[test]
fn t13_exec_from_non_leader_with_fifty_threads() {
    exec_amid_threads(&Program::fixture("exec_thread"));
}

/// T14: exec by the leader in the middle of the other threads' allocations.
#[test]
fn t14_exec_by_the_leader_while_others_allocate() {
    exec_amid_threads(&Program::fixture("exec_thread").args(["leader"]));
}

fn exec_amid_threads(program: &Program) {
    for _ in 0..crate::suite::rounds(3) {
        let traced = program.traced();
        assert_eq!(traced.ended.code(), 6);
        assert_eq!(traced.ended.text(), "second image\n");
        assert_eq!(traced.report.total("allocations"), 10);
        assert_eq!(traced.report.total("live_bytes"), 1230);
        assert_sites(&traced.report, &program.ledger());
        assert_eq!(traced.report.list("/images").len(), 1);
        traced.report.assert_no_anomaly();
    }
}

/// A failed exec changes nothing: the old image goes on, traced.
#[test]
fn failed_exec_changes_nothing() {
    let program =
        Program::new("/bin/sh").args(["-c", "exec 2>/dev/null; (exec /nonexistent/program); echo $?; echo on"]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "127\non\n");
    assert_eq!(traced.report.list("/images").len(), 0);
}

/// A daemon's two forks: `run` ends when the process that it started ends; its grandchild, never traced, goes on.
#[test]
fn double_fork_leaves_a_clean_grandchild() {
    let program =
        Program::new("/bin/sh").args(["-c", "(sh -c 'echo \"grandchild $$\"; read line; echo \"$line\"' <&3 &) 3<&0"]);
    let mut running = program.start_traced(&[]);
    let grandchild: i32 = running.value("grandchild").parse().unwrap();
    procfs::wait_until_let_go(grandchild);
    running.send("from the grandchild");
    assert_eq!(running.line(), "from the grandchild");
    running.wait().success();
}

/// A number in `children`, which may be a count or a list.
fn children(report: &Report, name: &str) -> u64 {
    let value = &report.0["children"][name];
    value.as_u64().or(value.as_array().map(|list| list.len() as u64)).expect("children")
}
