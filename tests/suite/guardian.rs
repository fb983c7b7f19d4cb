//! T42: heaptrace is killed, and the target lives on with its code restored.

use super::attach::start_victim;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;
use nix::sys::signal::Signal;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

/// The guardian process of a running heaptrace.
pub fn guardian_of(heaptrace: i32) -> i32 {
    let mut found = Vec::new();
    procfs::wait_until("there is a guardian", || {
        found = procfs::children(heaptrace)
            .into_iter()
            .filter(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"guardian\0"))
            .collect();
        found.len() == 1
    });
    found[0]
}

fn wait_until_gone(pid: i32) {
    procfs::wait_until("the guardian has gone", || matches!(procfs::state(pid), None | Some('Z' | 'X')));
}

/// Kills heaptrace and waits until its guardian is gone, and the kernel is done with heaptrace, too.
pub fn kill_heaptrace(heaptrace: i32, pid: i32) {
    let guardian = guardian_of(heaptrace);
    assert!(!procfs::group_members(heaptrace).contains(&guardian), "the terminal's signals would reach it");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(heaptrace), Signal::SIGKILL).unwrap();
    wait_until_gone(guardian);
    procfs::wait_until_let_go(pid);
}

/// Stops heaptrace by SIGSTOP, and waits until all of its threads stand.
pub fn stop_heaptrace(running: &Running) {
    running.signal(Signal::SIGSTOP);
    let stands = |tid: i32| procfs::state(tid) == Some('T');
    procfs::wait_until("heaptrace stands still", || procfs::threads(running.pid()).into_iter().all(stands));
}

/// Hears from the victim that all is well, and looks itself.
pub fn assert_untouched(victim: &mut Running, pid: i32) {
    victim.send("still alive?");
    assert_eq!(victim.line(), "alive");
    procfs::assert_left_as_it_was(pid);
    assert!(!procfs::catches(pid, Signal::SIGTRAP), "our handler for SIGTRAP is still there");
}

fn killed_in_attach(threads: &str, rounds: u32) {
    attach_rounds(threads, rounds, |victim, pid, attached| {
        kill_heaptrace(attached.pid(), pid);
        assert_untouched(victim, pid);
        attached.assert_killed();
    });
}

/// Attaches to a victim again and again, each time until its probes have been hit; what happens then, `then` says. In
/// the end the victim must have found nothing wrong.
fn attach_rounds(threads: &str, rounds: u32, mut then: impl FnMut(&mut Running, i32, Running)) {
    let program = Program::fixture("victim").args([threads]);
    let (mut victim, pid) = start_victim(&program);
    for round in 0..crate::suite::rounds(rounds) {
        let attached = Program::new("/bin/true").start_attached(&["-v"], pid);
        wait_until_working(&mut victim, pid, threads != "0", round);
        then(&mut victim, pid, attached);
    }
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

fn killed_in_run(threads: &str, rounds: u32) {
    for round in 0..crate::suite::rounds(rounds) {
        let program = Program::fixture("victim").args([threads]);
        let mut running = program.start_traced(&[]);
        let pid: i32 = running.value("ready").parse().unwrap();
        wait_until_working(&mut running, pid, true, round);
        kill_heaptrace(running.pid(), pid);
        assert_untouched(&mut running, pid);
        running.feed(b"");
        assert_eq!(running.line(), "ok");
        running.assert_killed();
    }
}

/// Probes are in place and, if it works, hit; a different number of times in each round.
fn wait_until_working(victim: &mut Running, pid: i32, hits: bool, round: u32) {
    // A thread that is just making the call which installs the handler can't be helped: once an order is answered, it
    // is over.
    procfs::wait_until_answered(pid);
    procfs::wait_until("the handler is there", || !hits || procfs::catches(pid, Signal::SIGTRAP));
    for _ in 0..=round % 3 {
        victim.send("still alive?");
        assert_eq!(victim.line(), "alive");
    }
}

/// T42: an idle process under `attach`.
#[test]
fn t42_killed_in_attach_to_an_idle_process() {
    killed_in_attach("0", 3);
}

/// T42: one thread that does nothing but allocate.
#[test]
fn t42_killed_in_attach_to_one_busy_thread() {
    killed_in_attach("1", 4);
}

/// T42: eight of them.
#[test]
fn t42_killed_in_attach_to_eight_busy_threads() {
    killed_in_attach("8", 4);
}

/// T42: an idle program under `run`.
#[test]
fn t42_killed_in_run_of_an_idle_program() {
    killed_in_run("0", 3);
}

/// T42: one thread that does nothing but allocate.
#[test]
fn t42_killed_in_run_with_one_busy_thread() {
    killed_in_run("1", 4);
}

/// T42: eight of them.
#[test]
fn t42_killed_in_run_with_eight_busy_threads() {
    killed_in_run("8", 4);
}

/// T42, J46: heaptrace is stopped, until threads of the victim wait for it, and then killed.
#[test]
fn t42_killed_while_it_is_stopped() {
    for threads in ["1", "8"] {
        attach_rounds(threads, 2, |victim, pid, attached| {
            stop_heaptrace(&attached);
            let waits = |tid: i32| procfs::state(tid) == Some('t');
            procfs::wait_until("a thread waits for it", || procfs::threads(pid).into_iter().any(waits));
            kill_heaptrace(attached.pid(), pid);
            assert_untouched(victim, pid);
            attached.assert_killed();
        });
    }
}

/// A guardian ends with heaptrace, and holds none of its descriptors: the pipe ends when the program does.
#[test]
fn a_guardian_leaves_with_heaptrace() {
    let program = Program::fixture("victim").args(["1"]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    let guardian = guardian_of(running.pid());
    for entry in std::fs::read_dir(format!("/proc/{guardian}/fd")).unwrap() {
        let target = std::fs::read_link(entry.unwrap().path()).unwrap();
        let target = target.to_string_lossy();
        // its own standard streams, what it hears by, the program's memory, and the claim on the program
        let is_its_own = target == "/dev/null" || target.starts_with("socket:");
        assert!(is_its_own || target.ends_with("/mem") || target == format!("/proc/{pid}"), "{target}");
    }
    running.wait().success();
    wait_until_gone(guardian);
}

/// Kills the guardian alone, and waits until another one knows of process `pid` what it has to.
fn replace_guardian(heaptrace: i32, pid: i32) {
    let killed = guardian_of(heaptrace);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    wait_until_gone(killed);
    let holds_memory = |guardian: i32| {
        let links = std::fs::read_dir(format!("/proc/{guardian}/fd")).into_iter().flatten().flatten();
        links.into_iter().any(|link| std::fs::read_link(link.path()).is_ok_and(|target| target.ends_with("mem")))
    };
    procfs::wait_until("there is another guardian", || {
        let guardian = guardian_of(heaptrace);
        guardian != killed && holds_memory(guardian)
    });
    // the tracer thread tells the rest before it answers
    procfs::wait_until_answered(pid);
}

/// T42: the guardian is killed alone, and heaptrace later: another guardian does its work.
#[test]
fn t42_killed_after_its_guardian() {
    for threads in ["0", "2"] {
        attach_rounds(threads, 2, |victim, pid, attached| {
            replace_guardian(attached.pid(), pid);
            kill_heaptrace(attached.pid(), pid);
            assert_untouched(victim, pid);
            attached.assert_killed();
        });
    }
}

/// Kills the guardian and heaptrace, and waits until the kernel is done with both.
fn kill_both(heaptrace: i32, pid: i32) {
    let guardian = guardian_of(heaptrace);
    for killed in [guardian, heaptrace] {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    }
    wait_until_gone(guardian);
    wait_until_untraced(pid);
}

fn wait_until_untraced(pid: i32) {
    procfs::wait_until("nobody traces it", || procfs::threads(pid).into_iter().all(|tid| procfs::tracer_of(tid) == 0));
}

fn send(process: i32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), signal).unwrap();
}

/// Kills a heaptrace whose guardian is stopped, and has not begun its work. Returns the guardian.
fn kill_while_its_guardian_stands(attached: Running, pid: i32) -> i32 {
    let guardian = guardian_of(attached.pid());
    send(guardian, Signal::SIGSTOP);
    procfs::wait_until("the guardian stands still", || procfs::state(guardian) == Some('T'));
    attached.signal(Signal::SIGKILL);
    attached.assert_killed();
    wait_until_untraced(pid);
    guardian
}

/// T42: another heaptrace attaches while the guardian of one that was killed has not begun its work. It took what stood
/// there for left by nobody, and both wrote to the same places: programs died of that.
#[test]
fn t42_an_attach_waits_for_the_guardian_of_another_heaptrace() {
    attach_rounds("2", 2, |victim, pid, attached| {
        let guardian = kill_while_its_guardian_stands(attached, pid);
        let differences = procfs::text_differences(pid);
        assert_ne!(differences, []);
        let tracer = Program::new("/bin/true");
        let next = tracer.start_attached(&[], pid);
        // so long it would have needed by far, had it not waited
        let began = std::time::Instant::now();
        procfs::wait_until("its time has passed", || {
            assert_eq!(procfs::tracer_of(pid), 0, "it does not wait");
            began.elapsed() > std::time::Duration::from_secs(1)
        });
        assert_eq!(procfs::text_differences(pid), differences, "it has written to the code");
        send(guardian, Signal::SIGCONT);
        procfs::wait_until_answered(pid);
        wait_until_gone(guardian);
        procfs::order(pid, "detach");
        next.wait().success();
        procfs::wait_until_let_go(pid);
        assert_untouched(victim, pid);
    });
}

fn doctor(pid: i32) -> String {
    let asked = Program::new("/bin/true").start_heaptrace(["doctor", &pid.to_string()]);
    let text = asked.wait().text();
    text.lines().find(|line| line.contains("leftovers")).unwrap_or_default().to_owned()
}

/// Whether a process has the folder of process `pid` in /proc open, as one does that waits for a claim on it.
fn has_folder_open(process: i32, pid: i32) -> bool {
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let folder = std::path::PathBuf::from(format!("/proc/{pid}"));
    links.into_iter().any(|link| std::fs::read_link(link.path()).is_ok_and(|target| target == folder))
}

/// T42: `doctor` is asked while the guardian of a heaptrace that was killed has not begun its work. It called
/// leftovers, without a guardian, what was about to be taken away.
#[test]
fn t42_doctor_waits_for_the_guardian() {
    attach_rounds("2", 2, |victim, pid, attached| {
        let guardian = kill_while_its_guardian_stands(attached, pid);
        let asked = Program::new("/bin/true").start_heaptrace(["doctor", &pid.to_string()]);
        procfs::wait_until("it waits", || {
            assert!(asked.is_alive(), "it does not wait");
            has_folder_open(asked.pid(), pid)
        });
        send(guardian, Signal::SIGCONT);
        let text = asked.wait().text();
        // the jump engine's memory may stay mapped
        let told = text.lines().find(|line| line.contains("leftovers")).unwrap();
        assert!(told.contains("none of an earlier heaptrace") || told.contains("memory mapped"), "{text}");
        procfs::wait_until_let_go(pid);
        assert_untouched(victim, pid);
    });
}

/// A guardian that is stopped is waited for, but not for ever, and `doctor` says so.
#[test]
fn doctor_says_that_a_guardian_does_not_finish() {
    attach_rounds("0", 1, |victim, pid, attached| {
        let guardian = kill_while_its_guardian_stands(attached, pid);
        let told = doctor(pid);
        assert!(told.contains("its guardian seems to be at work"), "{told}");
        send(guardian, Signal::SIGCONT);
        wait_until_gone(guardian);
        assert!(doctor(pid).contains("none"));
        procfs::wait_until_let_go(pid);
        assert_untouched(victim, pid);
    });
}

/// What an attach told of an earlier heaptrace.
fn told_of_earlier_one(traced: &crate::support::program::Traced) -> String {
    let warnings = traced.report.list("/warnings").iter().filter_map(|warning| warning.as_str());
    warnings.filter(|warning| warning.contains("an earlier heaptrace")).collect()
}

/// T42: heaptrace and its guardian are killed together: `doctor` tells, and the next attach takes out what they have
/// left, be there threads that wait in the handler for SIGTRAP or not. `HEAPTRACE_TEST_FACTOR=50` does it 200 times.
#[test]
fn t42_killed_together_with_its_guardian() {
    for threads in ["0", "3"] {
        attach_rounds(threads, 2, |victim, pid, attached| {
            kill_both(attached.pid(), pid);
            attached.assert_killed();
            assert!(doctor(pid).contains("has left"), "{}", doctor(pid));
            let traced = super::attach::attach_while_it_works(victim, pid);
            let told = told_of_earlier_one(&traced);
            assert!(told.ends_with("from the program's code"), "{told}\n{}", traced.ended.stderr);
            assert_eq!(traced.report.anomaly("lost"), 0);
            procfs::wait_until_let_go(pid);
            assert_untouched(victim, pid);
            assert!(doctor(pid).contains("none"), "{}", doctor(pid));
        });
    }
}

/// An int3 that somebody else has written stays where it is: without a trace of heaptrace in the process, and with one.
#[test]
fn breakpoints_of_others_are_left_alone() {
    let program = Program::fixture("victim").args(["0"]);
    let (mut victim, pid) = start_victim(&program);
    let libc =
        procfs::text_mappings(pid).into_iter().find(|mapping| mapping.path.to_string_lossy().contains("libc.so"));
    // the procedure linkage table: no function begins there, and no call returns there
    let place = libc.unwrap().start;
    let memory = std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    let mut original = [0];
    memory.read_exact_at(&mut original, place).unwrap();
    memory.write_all_at(&[0xcc], place).unwrap();
    let is_there = || {
        let mut byte = [0];
        memory.read_exact_at(&mut byte, place).unwrap();
        byte == [0xcc]
    };
    let tracer = Program::new("/bin/true");
    let attach = || {
        let ended = tracer.start_attached(&["--duration", "200ms"], pid).wait().success();
        ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let told = attach();
    assert!(!told.contains("an earlier heaptrace"), "{told}");
    assert!(is_there() && doctor(pid).contains("none"), "{}", doctor(pid));

    let attached = tracer.start_attached(&["-v"], pid);
    procfs::wait_until_answered(pid);
    kill_both(attached.pid(), pid);
    attached.assert_killed();
    let told = attach();
    assert!(told.contains("in 1 byte,") && told.contains("left this alone"), "{told}");
    assert!(is_there());
    memory.write_all_at(&original, place).unwrap();
    procfs::wait_until_let_go(pid);
    assert_untouched(&mut victim, pid);
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

/// The loss of a guardian is told in the summary, and harms nobody.
#[test]
fn the_loss_of_a_guardian_is_told() {
    let program = Program::fixture("victim").args(["2"]);
    let (victim, pid) = start_victim(&program);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    replace_guardian(attached.pid(), pid);
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    let told = traced.report.list("/warnings").iter().any(|warning| warning.to_string().contains("guardian"));
    assert!(told, "{}", traced.ended.stderr);
    super::attach::assert_victim_well(victim, pid);
}

/// T42: a program that a SIGTRAP of its own ends, ends by it as without us.
#[test]
fn t42_own_traps_end_a_program_as_ever() {
    for mode in ["raise", "int3"] {
        let program = Program::fixture("own_trap").args([mode]);
        assert_eq!(program.plain().status.signal(), Some(Signal::SIGTRAP as i32));
        let traced = program.traced();
        assert_eq!(traced.ended.code(), 128 + Signal::SIGTRAP as i32, "{mode}: {}", traced.ended.stderr);
        assert_eq!(traced.report.0["exit"]["signal"], Signal::SIGTRAP as i32);
        assert_eq!(traced.report.total("allocations"), 200);
    }
}

/// T42: our handler for SIGTRAP is hidden from the program that asks for its action, and from its children.
#[test]
fn t42_the_handler_is_not_seen() {
    for mode in ["query", "fork"] {
        let program = Program::fixture("own_trap").args([mode]);
        let traced = program.traced();
        assert_eq!(traced.ended.text(), "ok\n", "{mode}: {}", traced.ended.stderr);
        assert_eq!(traced.ended.code(), 0);
    }
}

/// T42: a program that handles SIGTRAP itself and is idle lives on, its handler with it.
#[test]
fn t42_killed_in_run_of_a_program_with_its_own_handler() {
    let program = Program::fixture("own_trap").args(["handled"]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    kill_heaptrace(running.pid(), pid);
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    running.assert_killed();
}

/// T42: a program that has only asked for SIGTRAP's action, as interpreters do at their start, has our handler again.
#[test]
fn t42_killed_in_run_of_a_program_that_asked_for_the_action() {
    let program = Program::fixture("own_trap").args(["queried"]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    assert!(procfs::catches(pid, Signal::SIGTRAP), "our handler has not come back");
    kill_heaptrace(running.pid(), pid);
    assert_untouched(&mut running, pid);
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    running.assert_killed();
}

/// An action that was set behind our back, by a system call without the C library, outlives the detach.
#[test]
fn an_action_set_past_the_c_library_is_kept() {
    let program = Program::fixture("own_trap").args(["unseen"]);
    let mut running = program.start_traced(&["--duration", "700ms"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    procfs::wait_until_let_go(pid);
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    running.wait().success();
}

/// The only thread that could take the handler out is met in the middle of a fork.
#[test]
fn a_forking_program_is_left_without_the_handler() {
    let program = Program::fixture("fork_many").args(["1000000"]);
    let forking = program.start();
    let pid = forking.pid();
    for _ in 0..crate::suite::rounds(10) {
        let tracer = Program::new("/bin/true");
        tracer.start_attached(&["--duration", "40ms"], pid).wait().success();
        procfs::assert_left_as_it_was(pid);
        assert!(!procfs::catches(pid, Signal::SIGTRAP), "our handler for SIGTRAP is still there");
    }
    assert!(forking.is_alive());
    forking.signal(Signal::SIGKILL);
    forking.assert_killed();
}

/// T42: heaptrace is killed at one call of the edge after the other: in front of every request, read and write by which
/// it traces. Neither the program nor a child that it has forked is hurt: registers, flags, floating-point state and
/// signal mask are as they were. Before our handler is installed `run` has the kernel kill the program, which has done
/// nothing yet then.
fn killed_at_any_call(options: &[&str], mode: &str) {
    let killed_at = |call: u64| {
        let program = Program::fixture("killed_children").args(["2", mode]);
        let running = program.env("HEAPTRACE_INJECT", format!("abort:{call}")).start_traced(options);
        let ended = running.wait();
        let is_killed = ended.status.signal() == Some(Signal::SIGKILL as i32);
        let text = ended.text();
        assert!(is_killed || ended.code() == 0, "{call}: {} {}", ended.status, ended.stderr);
        assert!(text == "begins\nok\n" || is_killed && text.is_empty(), "{call}: {text} {}", ended.stderr);
        (is_killed, !text.is_empty())
    };
    // how many calls there are
    let (mut low, mut high) = (1, 20_000);
    assert!(!killed_at(high).0, "there are more calls");
    while low < high {
        let middle = u64::midpoint(low, high);
        if killed_at(middle).0 { low = middle + 1 } else { high = middle }
    }
    // calls are no random moments: more of them at another time would say the same
    let kills = 40;
    let survived = (1..=kills).filter(|kill| killed_at(low * kill / kills) == (true, true)).count();
    // their number depends on how often the tracer looks for the next stop, and some come before the program's first
    // call
    assert!(survived as u64 > kills / 8, "{survived} of {kills}");
}

/// T42: children that run untraced.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t42_killed_at_any_call_with_children() {
    killed_at_any_call(&[], "plain");
}

/// T42: children that are followed.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t42_killed_at_any_call_with_followed_children() {
    killed_at_any_call(&["-f"], "plain");
}

/// T42: on an alternate signal stack, which stays as it is.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t42_killed_at_any_call_on_an_alternate_stack() {
    killed_at_any_call(&[], "alternate");
}

/// T42: with children that share the memory; these may be lost, the program may not.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "only builds with debug assertions can be ordered to fail")]
fn t42_killed_at_any_call_with_vm_sharers() {
    killed_at_any_call(&[], "spawn");
}

/// T42: a program that shared a CPU with heaptrace may run on all again.
#[test]
fn t42_killed_in_run_of_a_pinned_program() {
    let program = Program::fixture("victim").args(["0"]);
    let mut running = program.start_traced(&["--pin"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    kill_heaptrace(running.pid(), pid);
    let cpus = |pid| procfs::status_field(pid, "Cpus_allowed_list").unwrap();
    assert_eq!(cpus(pid), cpus(i32::try_from(std::process::id()).unwrap()));
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    running.assert_killed();
}

/// T42: a tree of processes: none of them dies of it.
#[test]
fn t42_killed_in_run_of_a_tree() {
    let program = Program::fixture("tree").args(["inherit"]);
    let mut running = program.start_traced(&["-f"]);
    let child: i32 = running.value("child").parse().unwrap();
    kill_heaptrace(running.pid(), child);
    procfs::assert_left_as_it_was(child);
    running.send("go on");
    assert_eq!(running.line(), "parent done");
    running.assert_killed();
}
