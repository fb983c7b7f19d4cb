//! Verdicts on made-up facts, and the reading of facts from processes that the test starts.

use super::*;
use std::process::{Command, Stdio};

const ALL: u64 = u64::MAX >> 23;

fn user() -> OwnFacts {
    OwnFacts { pid: 1, uid: 1000, gid: 1000, user_namespace: Some(7), ..OwnFacts::default() }
}

fn root() -> OwnFacts {
    OwnFacts { pid: 1, effective: ALL, permitted: ALL, user_namespace: Some(7), ..OwnFacts::default() }
}

fn ordinary() -> TargetFacts {
    TargetFacts {
        name: "app".into(),
        state: 'S',
        thread_group: 50,
        uids: vec![1000; 3],
        gids: vec![1000; 3],
        dumpable: Some(true),
        user_namespace: Some(7),
        is_64_bit: Some(true),
        ..TargetFacts::default()
    }
}

fn verdict(target: TargetFacts, own: OwnFacts) -> Cause {
    judge(50, libc::EPERM, &Visibility::Visible(target), &own)
}

#[test]
fn what_no_right_could_change_comes_first() {
    assert_eq!(judge(50, libc::ESRCH, &Visibility::Gone { inside: vec![] }, &root()), Cause::NoSuchProcess);
    let inside = Visibility::Gone { inside: vec![71, 72] };
    assert_eq!(judge(50, libc::ENOENT, &inside, &root()), Cause::IdInside { outside: vec![71, 72] });
    assert_eq!(judge(50, libc::EPERM, &Visibility::Hidden, &user()), Cause::Hidden);
    assert_eq!(judge(50, libc::ESRCH, &Visibility::Visible(ordinary()), &user()), Cause::NoSuchProcess);
    assert_eq!(verdict(TargetFacts { thread_group: 1, ..ordinary() }, root()), Cause::Ourselves);
    assert_eq!(verdict(TargetFacts { thread_group: 49, ..ordinary() }, root()), Cause::Thread { of: 49 });
    assert_eq!(verdict(TargetFacts { state: 'Z', ..ordinary() }, root()), Cause::Zombie);
    assert_eq!(
        verdict(TargetFacts { kernel_thread: true, uids: vec![0; 3], ..ordinary() }, user()),
        Cause::KernelThread
    );
    let traced = TargetFacts { tracer: Some((99, "gdb".into())), uids: vec![0; 3], ..ordinary() };
    assert_eq!(
        verdict(traced, OwnFacts { yama: Some(1), ..user() }),
        Cause::AlreadyTraced { by: 99, name: "gdb".into() }
    );
    assert_eq!(verdict(ordinary(), OwnFacts { yama: Some(3), ..root() }), Cause::NobodyMayTrace);
}

#[test]
fn without_the_capability_user_yama_and_dumpable_are_told_in_this_order() {
    let own = || OwnFacts { yama: Some(1), ..user() };
    let mut target = TargetFacts { uids: vec![1000, 0, 0], dumpable: Some(false), permitted: 1, ..ordinary() };
    assert_eq!(verdict(target.clone(), own()), Cause::OtherUser { uid: 0 });
    target.uids = vec![1000; 3];
    target.gids = vec![1000, 44, 44];
    assert_eq!(verdict(target.clone(), own()), Cause::OtherUser { uid: 1000 });
    target.gids = vec![1000; 3];
    assert_eq!(verdict(target.clone(), own()), Cause::Yama { scope: 1 });
    assert_eq!(verdict(target.clone(), OwnFacts { yama: Some(2), ..user() }), Cause::Yama { scope: 2 });
    for yama in [None, Some(0)] {
        assert_eq!(verdict(target.clone(), OwnFacts { yama, ..user() }), Cause::NotDumpable);
    }
    target.dumpable = Some(true);
    assert_eq!(verdict(target.clone(), user()), Cause::MoreCapable);
    target.permitted = 0;
    assert_eq!(verdict(target.clone(), user()), Cause::Unknown { errno: libc::EPERM });
    target.user_namespace = Some(8);
    assert_eq!(verdict(target, user()), Cause::OtherUserNamespace);
}

#[test]
fn the_capability_rules_out_all_that_it_overrides() {
    let target = TargetFacts { uids: vec![5; 3], dumpable: Some(false), permitted: 1, ..ordinary() };
    let own = OwnFacts { yama: Some(2), ..root() };
    assert_eq!(verdict(target.clone(), own.clone()), Cause::Unknown { errno: libc::EPERM });
    assert_eq!(
        verdict(TargetFacts { user_namespace: Some(8), ..target.clone() }, own.clone()),
        Cause::OtherUserNamespace
    );
    let below = TargetFacts { user_namespace: Some(8), namespace_below: Some(true), ..target.clone() };
    assert_eq!(verdict(below, own.clone()), Cause::Unknown { errno: libc::EPERM });
    assert_eq!(verdict(TargetFacts { is_64_bit: Some(false), ..target }, own), Cause::Not64Bit);
}

#[test]
fn memory_of_another_user_takes_a_second_capability() {
    let target = Visibility::Visible(TargetFacts { uids: vec![5; 3], ..ordinary() });
    let own = OwnFacts { effective: 1 << CAP_SYS_PTRACE, ..root() };
    assert_eq!(judge(50, libc::EACCES, &target, &own), Cause::ForeignMemory { uid: 5 });
    assert_eq!(judge(50, libc::EACCES, &target, &root()), Cause::Unknown { errno: libc::EACCES });
    assert_eq!(judge(50, libc::EPERM, &target, &own), Cause::Unknown { errno: libc::EPERM });
}

#[test]
fn every_message_names_process_cause_and_cure() {
    let message = |cause| Refusal { operation: "attach to", pid: 50, name: "app".into(), cause }.to_string();
    insta::assert_snapshot!(
        [
            Cause::NoSuchProcess,
            Cause::IdInside { outside: vec![71, 72] },
            Cause::Hidden,
            Cause::Ourselves,
            Cause::Thread { of: 49 },
            Cause::Zombie,
            Cause::KernelThread,
            Cause::AlreadyTraced { by: 99, name: "gdb".into() },
            Cause::NobodyMayTrace,
            Cause::OtherUser { uid: 0 },
            Cause::Yama { scope: 1 },
            Cause::Yama { scope: 2 },
            Cause::NotDumpable,
            Cause::MoreCapable,
            Cause::OtherUserNamespace,
            Cause::Not64Bit,
            Cause::ForeignMemory { uid: 33 },
            Cause::Unknown { errno: libc::EPERM },
        ]
        .map(message)
        .join("\n")
    );
}

/// A child that lives until its standard input is closed.
fn sleeper() -> std::process::Child {
    Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn reads_the_facts_of_a_child() {
    let mut child = sleeper();
    let pid = i32::try_from(child.id()).unwrap();
    let Visibility::Visible(facts) = read_target(pid) else { panic!("not visible") };
    let own = read_own();
    drop(child.stdin.take());
    // The child is not waited for yet: a zombie.
    while procfs::state(pid, pid) != Some(b'Z') {
        std::thread::yield_now();
    }
    let zombie = explain(pid, libc::EPERM, "attach to").cause;
    child.wait().unwrap();
    assert_eq!((facts.thread_group, facts.is_64_bit, facts.kernel_thread), (pid, Some(true), false));
    assert_eq!((facts.uids, facts.gids), (vec![own.uid; 3], vec![own.gid; 3]));
    assert_eq!((facts.tracer, facts.user_namespace), (None, own.user_namespace));
    assert_eq!(zombie, Cause::Zombie);
    assert_eq!(explain(pid, libc::ESRCH, "attach to").cause, Cause::NoSuchProcess);
}

#[test]
fn names_the_process_that_traces_already() {
    // gdb as the other tracer would be a dependency; a thread of ours does the same.
    let mut child = sleeper();
    let pid = i32::try_from(child.id()).unwrap();
    let cause = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                crate::tracer::ptrace::seize(pid, false).unwrap();
                explain(pid, libc::EPERM, "attach to").cause
            })
            .join()
            .unwrap()
    });
    drop(child.stdin.take());
    child.wait().unwrap();
    // The tracing thread's process, although TracerPid names the thread.
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(cause, Cause::AlreadyTraced { by: own, name: procfs::comm(own) });
}

#[test]
fn tells_a_thread_from_its_process() {
    let pid = i32::try_from(std::process::id()).unwrap();
    assert_eq!(explain(pid, libc::EPERM, "attach to").cause, Cause::Ourselves);
    // Process 1 and 2 of the machine, or of a container: seen, whoever runs the test.
    assert!(matches!(read_target(1), Visibility::Visible(facts) if facts.thread_group == 1));
}
