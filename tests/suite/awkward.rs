//! Targets that are in the middle of something when heaptrace attaches, or that hold it up: exec, workers of the
//! kernel, the freezer.

use super::guardian::guardian_of;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::{Ended, Running};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Within so long heaptrace ends when it is told to: five seconds, and what a busy machine takes to write the profile.
const PROMPT: Duration = Duration::from_secs(15);

/// Starts a program that says `ready PID`.
fn start(fixture: &str, arguments: &[&str]) -> (Running, i32) {
    let mut running = Program::fixture(fixture).args(arguments).start();
    let pid = running.value("ready").parse().unwrap();
    (running, pid)
}

/// How often the program has executed itself; None: its command line is not there, as that of a new image is not for a
/// moment.
fn execs(pid: i32) -> Option<u64> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let last = line.strip_suffix(&[0]).and_then(|line| line.rsplit(|&byte| byte == 0).next());
    last.and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

/// Whether it lives its state does not tell: in an exec by another thread its leader is a zombie for a moment.
fn assert_goes_on(target: &mut Running, pid: i32) {
    let mut before = None;
    target.wait_until("it executes itself again", || {
        let now = execs(pid);
        before = before.or(now);
        before.is_some_and(|before| now.is_some_and(|now| now > before + 2))
    });
}

fn attach(pid: i32, options: &[&str]) -> Ended {
    let tracer = Program::new("/bin/true");
    tracer.start_attached(options, pid).wait_at_most(Duration::from_secs(30))
}

/// What was written too early belongs to the new image, which would die of it.
#[test]
fn attach_in_the_middle_of_an_exec() {
    let (mut target, pid) = start("exec_loop", &["0", "0"]);
    for _ in 0..crate::suite::rounds(20) {
        attach(pid, &["--duration", "10ms"]).success();
        assert_goes_on(&mut target, pid);
    }
    target.signal(Signal::SIGKILL);
    target.assert_killed();
}

/// An exec waits for all other threads to end, for which some wait for their tracer; and that waits for the exec.
#[test]
fn attach_to_threads_that_execute() {
    let (mut target, pid) = start("exec_loop", &["3", "0"]);
    for _ in 0..crate::suite::rounds(20) {
        attach(pid, &["--duration", "20ms"]).success();
        assert_goes_on(&mut target, pid);
    }
    target.signal(Signal::SIGKILL);
    target.assert_killed();
}

/// What a program does with SIGTRAP is reset by exec; so a new image has to be given our handler before it can run into
/// a breakpoint.
fn killed_at_an_exec(threads: &str, rounds: u32) {
    let (mut target, pid) = start("exec_loop", &[threads, "0"]);
    for round in 0..crate::suite::rounds(rounds) {
        let tracer = Program::new("/bin/true");
        let mut attached = tracer.start_attached(&[], pid);
        // in every other round as soon as it can be: the image that it attaches to is one that has just begun
        match round % 2 {
            0 => procfs::wait_until_answered(pid),
            _ => attached.wait_until("its program is traced", || procfs::tracer_of(pid) != 0),
        }
        let guardian = guardian_of(attached.pid());
        // at another moment each time
        let since = Instant::now();
        procfs::wait_until("its moment has come", || since.elapsed() > Duration::from_micros(u64::from(round) * 700));
        kill(Pid::from_raw(attached.pid()), Signal::SIGKILL).unwrap();
        procfs::wait_until("the guardian has gone", || matches!(procfs::state(guardian), None | Some('Z' | 'X')));
        attached.assert_killed();
        assert_goes_on(&mut target, pid);
    }
    target.signal(Signal::SIGKILL);
    target.assert_killed();
}

#[test]
fn killed_while_a_thread_executes() {
    killed_at_an_exec("0", 20);
}

/// The guardian, too, must not wait for threads that another one's exec has ended.
#[test]
fn killed_while_threads_execute() {
    killed_at_an_exec("3", 20);
}

/// A process that executes others all the time, by a child that shares its memory until it does: heaptrace is killed at
/// any moment of that, and the next one comes before its guardian has gone. The process lives, and so do the children
/// of vfork; those of posix_spawn that heaptrace has not met yet are left out, as docs/limits.md says.
fn killed_while_it_starts_others(engine: &str, rounds: u32) {
    let mut target = Program::fixture("starts_others").start();
    let pid: i32 = target.value("ready").parse().unwrap();
    for round in 0..crate::suite::rounds(rounds) {
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&["--engine", engine], pid);
        match round % 3 {
            0 => procfs::wait_until_answered(pid),
            1 => procfs::wait_until("it is traced", || procfs::tracer_of(pid) != 0),
            _ => procfs::wait_until_probed(pid),
        }
        // at another moment each time
        let since = Instant::now();
        procfs::wait_until("its moment has come", || since.elapsed() > Duration::from_micros(u64::from(round) * 900));
        kill(Pid::from_raw(attached.pid()), Signal::SIGKILL).unwrap();
        attached.assert_killed();
        target.send("still alive?");
        assert!(target.line().starts_with("alive "), "{engine}, kill {round}");
    }
    target.feed(b"");
    target.wait().success();
}

#[test]
fn killed_while_a_process_starts_others_by_vfork_and_posix_spawn() {
    killed_while_it_starts_others("trap", 20);
}

/// The jump engine's memory is shared with such a child, too.
#[test]
fn killed_while_a_process_starts_others_by_vfork_and_posix_spawn_with_the_jump_engine() {
    killed_while_it_starts_others("jump", 20);
}

/// The child in the fixture `spawn_waits`, which waits to open its FIFO.
fn waiting_child(pid: i32) -> i32 {
    let mut found = None;
    procfs::wait_until("the child waits", || {
        found = procfs::children(pid).first().copied().filter(|child| procfs::state(*child) == Some('S'));
        found.is_some()
    });
    found.unwrap()
}

/// For how long a process has run, in ticks of 10 ms.
fn ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
}

/// Kills heaptrace, which has written breakpoints, while a child is on its way to one of them, where it waits for the
/// guardian, which takes its time.
fn killed_before_a_child_executes(
    running: &mut Running,
    child: i32,
    gate: &Path,
    tracer: Option<&Running>,
    what: &str,
) {
    let killed = tracer.map_or(running.pid(), Running::pid);
    let traced = procfs::status_field(child, "PPid").unwrap().trim().parse().unwrap();
    let guardian = guardian_of(killed);
    kill(Pid::from_raw(guardian), Signal::SIGSTOP).unwrap();
    procfs::wait_until("the guardian is stopped", || procfs::state(guardian) == Some('T'));
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    procfs::wait_until("the program is let go", || procfs::tracer_of(traced) == 0);
    let before = ticks(child).unwrap();
    drop(std::fs::OpenOptions::new().write(true).open(gate).unwrap());
    procfs::wait_until("the child stands at a breakpoint, or has died", || {
        procfs::state(child).is_none_or(|state| state == 'Z') || ticks(child).is_none_or(|ticks| ticks > before + 5)
    });
    kill(Pid::from_raw(guardian), Signal::SIGCONT).unwrap();
    assert_eq!(running.line(), "SigBlk:\t0000000000000000", "{what}");
    assert_eq!(running.line(), "status 0", "{what}");
}

/// The fixture `spawn_waits`, which starts its program so, and the FIFO at which its child waits.
fn spawning(blocked: &str, by: &str) -> (Program, PathBuf) {
    let program = Program::fixture("spawn_waits");
    let gate = program.outside("gate");
    (program.args([OsStr::new(blocked), gate.as_os_str(), OsStr::new(by)]), gate)
}

/// Such a child begins with all signals blocked, so that the first trap that nobody serves would kill it.
#[test]
fn a_child_of_posix_spawn_waits_for_the_guardian() {
    for options in SPAWNING {
        let (program, gate) = spawning("none", "posix_spawn");
        let mut running = program.start_traced(options);
        let child = waiting_child(running.value("ready").parse().unwrap());
        killed_before_a_child_executes(&mut running, child, &gate, None, &format!("{options:?}"));
        running.assert_killed();
    }
}

/// A child that shares the memory and was there before heaptrace has no handler from its parent: it is given one before
/// there is any breakpoint.
#[test]
fn a_child_that_began_before_the_attach_waits_for_the_guardian() {
    for options in SPAWNING {
        for by in ["vfork", "posix_spawn"] {
            let (program, gate) = spawning("none", by);
            let mut running = program.start();
            let pid = running.value("ready").parse().unwrap();
            let child = waiting_child(pid);
            let tracer = Program::new("/bin/true");
            let attached = tracer.start_attached(options, pid);
            procfs::wait_until_probed(pid);
            let what = format!("{by}, {options:?}");
            killed_before_a_child_executes(&mut running, child, &gate, Some(&attached), &what);
            running.wait().success();
            attached.assert_killed();
        }
    }
}

const SPAWNING: [&[&str]; 3] = [&["--engine", "trap"], &["--engine", "trap", "-f"], &["--engine", "jump"]];

/// What such a child executes has the mask that it has without heaptrace.
#[test]
fn a_program_that_posix_spawn_starts_has_its_mask() {
    for blocked in ["none", "all"] {
        let told = |options: Option<&[&str]>| {
            let (program, gate) = spawning(blocked, "posix_spawn");
            let mut running = match options {
                Some(options) => program.start_traced(options),
                None => program.start(),
            };
            waiting_child(running.value("ready").parse().unwrap());
            drop(std::fs::OpenOptions::new().write(true).open(&gate).unwrap());
            let lines = [running.line(), running.line()];
            running.wait().success();
            lines
        };
        let expected = told(None);
        for options in SPAWNING {
            assert_eq!(told(Some(options)), expected, "{blocked}, {options:?}");
        }
    }
}

/// In the first moments of an attach a thread runs into probes all the time: no probe may stand before our handler for
/// SIGTRAP is
/// installed. An image that the dynamic linker is loading meets one, too.
#[test]
fn killed_as_soon_as_it_writes_to_a_busy_process() {
    let mut target = Program::fixture("sets_actions").start();
    let pid: i32 = target.value("ready").parse().unwrap();
    for round in 0..crate::suite::rounds(20) {
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_probed(pid);
        let since = Instant::now();
        procfs::wait_until("its moment has come", || since.elapsed() > Duration::from_micros(u64::from(round) * 250));
        let guardian = guardian_of(attached.pid());
        kill(Pid::from_raw(attached.pid()), Signal::SIGKILL).unwrap();
        procfs::wait_until("the guardian has gone", || matches!(procfs::state(guardian), None | Some('Z' | 'X')));
        attached.assert_killed();
        target.send("still alive?");
        assert_eq!(target.line(), "alive", "kill {round}");
        procfs::wait_until_let_go(pid);
        procfs::assert_left_as_it_was(pid);
    }
    target.feed(b"");
    target.wait().success();
}

/// A worker of the kernel's reports stops, but never returns to the program's code: whoever waits for that waits for
/// ever.
#[test]
fn workers_of_the_kernel_are_left_alone() {
    let mut target = Program::fixture("kernel_workers").start();
    let first = target.line();
    let Some(pid) = first.strip_prefix("ready ") else {
        assert_eq!(first, "none");
        println!("skipped: the kernel offers no io_uring here");
        return;
    };
    let pid = pid.parse().unwrap();
    for _ in 0..crate::suite::rounds(5) {
        attach(pid, &["--duration", "100ms"]).success();
        target.send("still alive?");
        assert_eq!(target.line(), "alive");
        procfs::assert_text_intact(pid);
    }
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    procfs::wait_until("the handler is there", || procfs::catches(pid, Signal::SIGTRAP));
    kill(Pid::from_raw(attached.pid()), Signal::SIGKILL).unwrap();
    attached.assert_killed();
    procfs::wait_until_let_go(pid);
    target.send("still alive?");
    assert_eq!(target.line(), "alive");
    target.feed(b"");
    target.wait().success();
}

/// A group of processes that the kernel can freeze; None where this one can't make any.
struct Freezer(PathBuf);

impl Freezer {
    fn new(pid: i32) -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/freezer/heaptrace-test-{pid}"));
        std::fs::create_dir(&folder).ok()?;
        let freezer = Self(folder);
        std::fs::write(freezer.0.join("cgroup.procs"), pid.to_string()).ok()?;
        freezer.set("FROZEN").then_some(freezer)
    }

    fn set(&self, state: &str) -> bool {
        let file = self.0.join("freezer.state");
        std::fs::write(&file, state).is_ok() && std::fs::read_to_string(file).is_ok()
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set("THAWED");
        if let Ok(all) = std::fs::read_to_string(self.0.join("cgroup.procs")) {
            for pid in all.lines() {
                let _ = std::fs::write("/sys/fs/cgroup/freezer/cgroup.procs", pid);
            }
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Whether a frozen thread stands behind a breakpoint of which nobody has been told: a SIGTRAP waits to be delivered to
/// it.
fn has_frozen_at_a_breakpoint(pid: i32) -> bool {
    let pending = |tid| procfs::status_field(tid, "SigPnd").and_then(|set| u64::from_str_radix(&set, 16).ok());
    procfs::threads(pid).into_iter().any(|tid| {
        procfs::state(tid) == Some('D')
            && pending(tid).is_some_and(|set| set & (1 << (Signal::SIGTRAP as i32 - 1)) != 0)
    })
}

/// A process that is frozen in the middle of its stops does not hold heaptrace up, and is whole when it is thawed.
#[test]
fn a_frozen_process_is_let_go() {
    let program = Program::fixture("victim").args(["4"]);
    for _ in 0..crate::suite::rounds(3) {
        let (mut victim, pid) = super::attach::start_victim(&program);
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_answered(pid);
        // Until a thread has brought it in, a thread that freezes behind a breakpoint has nothing that saves it when it
        // is thawed.
        procfs::wait_until("the handler is there", || procfs::catches(pid, Signal::SIGTRAP));
        let Some(freezer) = Freezer::new(pid) else {
            println!("skipped: there is no freezer here");
            attached.signal(Signal::SIGTERM);
            attached.wait();
            return;
        };
        // Such a thread needs the handler when it is thawed.
        for _ in 0..50 {
            if has_frozen_at_a_breakpoint(pid) {
                break;
            }
            freezer.set("THAWED");
            freezer.set("FROZEN");
        }
        let began = Instant::now();
        attached.signal(Signal::SIGTERM);
        attached.wait_at_most(Duration::from_secs(30));
        assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
        drop(freezer);
        victim.send("still alive?");
        assert_eq!(victim.line(), "alive");
        victim.feed(b"");
        assert_eq!(victim.line(), "ok");
        victim.wait().success();
    }
}

/// Whether a thread of a process sleeps in the kernel, where no signal wakes it.
fn is_held_up(pid: i32, thread: &str) -> bool {
    procfs::threads(pid).into_iter().any(|tid| {
        std::fs::read_to_string(format!("/proc/{tid}/comm")).is_ok_and(|comm| comm.trim() == thread)
            && procfs::state(tid) == Some('D')
    })
}

/// The last resort: the kernel holds the tracer thread up for ever, and heaptrace ends nevertheless; the guardian does
/// the rest.
#[test]
fn a_read_that_never_ends_does_not_keep_heaptrace() {
    let mut target = Program::fixture("stalled").start();
    let first = target.line();
    let Some(pid) = first.strip_prefix("ready ") else {
        assert_eq!(first, "none");
        println!("skipped: the kernel offers no userfaultfd here");
        return;
    };
    let pid = pid.parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    let guardian = guardian_of(attached.pid());
    target.send("go");
    procfs::wait_until("the tracer thread is held up", || is_held_up(attached.pid(), "tracer"));
    let began = Instant::now();
    attached.signal(Signal::SIGTERM);
    let ended = attached.wait_at_most(Duration::from_secs(30));
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("the kernel blocks heaptrace"), "{}", ended.stderr);
    procfs::wait_until("the guardian has gone", || matches!(procfs::state(guardian), None | Some('Z' | 'X')));
    procfs::wait_until_let_go(pid);
    target.send("still alive?");
    assert_eq!(target.line(), "alive");
    procfs::assert_left_as_it_was(pid);
    assert!(!procfs::catches(pid, Signal::SIGTRAP), "our handler for SIGTRAP is still there");
    target.feed(b"");
    assert_eq!(target.line(), "ok");
    target.wait().success();
}

/// A program whose exec waits for somebody else is not waited for: SIGTERM goes to it, and Ctrl-C twice gives up.
#[test]
fn an_exec_that_does_not_end_does_not_keep_heaptrace() {
    for signals in [&[Signal::SIGTERM][..], &[Signal::SIGINT, Signal::SIGINT]] {
        let script = Program::new("/bin/true");
        let (interpreter, path) = (script.folder().join("interpreter"), script.folder().join("script"));
        crate::support::copy_file("/bin/true", &interpreter).unwrap();
        std::fs::write(&path, format!("#!{}\n", interpreter.display())).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut lease = Program::fixture("lease").args([interpreter.to_str().unwrap()]).start();
        if lease.line() == "none" {
            println!("skipped: files can't have leases here");
            return;
        }
        let running = Program::new(&path).start_traced(&[]);
        assert_eq!(lease.line(), "asked");
        let began = Instant::now();
        for (sent, signal) in signals.iter().enumerate() {
            // one that waits to be taken would be the same one
            procfs::wait_until("the signal before was taken", || {
                let pending = procfs::status_field(running.pid(), "ShdPnd").unwrap_or_default();
                sent == 0 || u64::from_str_radix(&pending, 16).is_ok_and(|pending| pending == 0)
            });
            running.signal(*signal);
        }
        let ended = running.wait_at_most(Duration::from_secs(30));
        assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
        assert_ne!(ended.code(), 0, "{}", ended.stderr);
        if signals.len() > 1 {
            assert!(ended.stderr.contains("was not started"), "{}", ended.stderr);
        }
        lease.feed(b"");
        lease.wait().success();
    }
}

/// A guardian that is frozen can't be killed before it is thawed.
#[test]
fn a_frozen_guardian_does_not_keep_heaptrace() {
    let program = Program::fixture("victim").args(["1"]);
    let (victim, pid) = super::attach::start_victim(&program);
    let attached = Program::new("/bin/true").start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    let guardian = guardian_of(attached.pid());
    let Some(freezer) = Freezer::new(guardian) else {
        println!("skipped: there is no freezer here");
        attached.signal(Signal::SIGTERM);
        attached.wait();
        return;
    };
    procfs::wait_until("the guardian is frozen", || {
        std::fs::read_to_string(freezer.0.join("freezer.state")).is_ok_and(|state| state.trim() == "FROZEN")
    });
    let began = Instant::now();
    attached.signal(Signal::SIGTERM);
    attached.wait_at_most(Duration::from_secs(30)).success();
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    drop(freezer);
    procfs::wait_until("the guardian has gone", || matches!(procfs::state(guardian), None | Some('Z' | 'X')));
    super::attach::assert_victim_well(victim, pid);
}

/// A thread is in the midst of clone(2) at the attach: the kernel has decided already that the new thread is not
/// traced, and lists it nowhere. It died of the first breakpoint that it came to.
#[test]
fn attach_while_a_thread_is_half_made() {
    let mut target = Program::fixture("half_made").start();
    let first = target.line();
    let Some(ids) = first.strip_prefix("ready ") else {
        assert_eq!(first, "none");
        println!("skipped: the kernel offers no userfaultfd here");
        return;
    };
    let (pid, maker) = ids.split_once(' ').unwrap();
    let (pid, maker): (i32, i32) = (pid.parse().unwrap(), maker.parse().unwrap());
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until("its maker is traced", || procfs::tracer_of(maker) != 0);
    // as long as it is not made, no breakpoint may be there: who waits for that only notices if one is
    let began = Instant::now();
    procfs::wait_until("its time has passed", || {
        began.elapsed() > Duration::from_secs(1) || !procfs::text_differences(pid).is_empty()
    });
    assert_eq!(procfs::text_differences(pid), [], "breakpoints while a thread is half made");
    target.send("go on");
    assert_eq!(target.line(), "made");
    procfs::wait_until_answered(pid);
    procfs::order(pid, "detach");
    attached.wait().success();
    procfs::assert_left_as_it_was(pid);
    target.feed(b"");
    target.wait().success();
}
