//! What `heap` and `leaks` do to a process besides looking: its waits end in time, and it does not stand longer because
//! heaptrace is stopped.

use super::HEAPTRACE;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// So many that reading them takes long enough to be caught at it.
const BLOCKS: &str = "600000";

fn signal(heaptrace: &Child, signal: Signal) {
    kill(Pid::from_raw(heaptrace.id() as i32), signal).unwrap();
}

/// heaptrace is told to stop while the process stands to be read: it stops when it has let the process go.
#[test]
fn a_process_does_not_stand_because_heaptrace_is_stopped() {
    for how in [Signal::SIGTSTP, Signal::SIGSTOP] {
        let mut running = Program::fixture("under_copy").args([BLOCKS, "shared"]).start();
        let ready = running.value("ready");
        let pid: i32 = ready.split_once(' ').unwrap().0.parse().unwrap();
        let mut command = Command::new(HEAPTRACE);
        // a job of its own, as a shell makes it
        command.args(["leaks", &pid.to_string()]).process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        let heaptrace = command.spawn().unwrap();
        procfs::wait_until("the process stands", || procfs::state(pid) == Some('t'));
        signal(&heaptrace, how);
        assert_ne!(procfs::tracer_of(pid), 0, "{how}: it was read too fast");
        procfs::wait_until("the process is let go", || procfs::tracer_of(pid) == 0);
        running.send("well");
        assert_eq!(running.line(), "well", "{how}");
        procfs::wait_until("heaptrace has stopped", || procfs::state(heaptrace.id() as i32) == Some('T'));
        signal(&heaptrace, Signal::SIGCONT);
        let output = heaptrace.wait_with_output().unwrap();
        assert!(output.status.success(), "{how}: {}", String::from_utf8_lossy(&output.stderr));
        running.feed(b"");
        running.wait().success();
    }
}

/// The kernel's calls with a limit of time that it does not take up again, as the sleepers' arguments: alone, and those
/// that the C library makes in another way where there are other threads. The last ones it does take up, each in a
/// thread of one process.
const TIMED: [&[&str]; 10] = [
    &["epoll_wait"],
    &["epoll_pwait2"],
    &["semtimedop"],
    &["sigtimedwait"],
    &["io_getevents"],
    &["io_pgetevents"],
    &["recvmmsg"],
    &["epoll_wait", "among threads"],
    &["sigtimedwait", "among threads"],
    &["kernel"],
];

/// The calls of the sleepers' `kernel`.
const KERNELS: [&str; 9] =
    ["poll", "select", "nanosleep", "futex", "ppoll", "pselect", "clock_nanosleep", "futex_waitv", "mq_timedreceive"];

/// A wait with a limit of time that the kernel does not take up again goes on with what is left: it ends in time,
/// however often the process is asked.
#[test]
fn waits_end_in_time_however_often_a_process_is_asked() {
    for question in [&["leaks"][..], &["heap", "--no-types"], &["attach", "--existing", "--duration", "50ms", "-q"]] {
        assert_all_end_in_time(question, Program::start);
    }
}

/// The same of one that is traced.
#[test]
fn waits_end_in_time_however_often_a_traced_process_is_copied() {
    assert_all_end_in_time(&["leaks"], |program| program.start_traced(&["--engine", "trap"]));
}

const LIMIT: Duration = Duration::from_secs(8);

fn assert_all_end_in_time(question: &[&str], start: impl Fn(&Program) -> Running) {
    let limit = LIMIT.as_millis().to_string();
    let program = |call: &&[&str]| Program::fixture("sleepers").args([&[limit.as_str()], *call].concat());
    let programs: Vec<Program> = TIMED.iter().map(program).collect();
    let mut sleepers: Vec<_> = programs.iter().map(start).collect();
    let pids: Vec<i32> = sleepers.iter_mut().map(|sleeper| sleeper.value("asleep").parse().unwrap()).collect();
    let began = Instant::now();
    let mut asked = [0; TIMED.len()];
    let mut took = [None; TIMED.len()];
    while took.contains(&None) && began.elapsed() < LIMIT * 3 {
        for (of, pid) in pids.iter().enumerate() {
            if procfs::state(*pid).is_none_or(|state| state == 'Z') {
                took[of].get_or_insert(began.elapsed());
                continue;
            }
            let mut command = Command::new(HEAPTRACE);
            command.args(question).arg(pid.to_string()).current_dir(programs[of].folder());
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            asked[of] += 1;
        }
        // the tests beside this one need the processors, too
        std::thread::sleep(Duration::from_millis(200));
    }
    for (of, mut sleeper) in sleepers.into_iter().enumerate() {
        let (call, asked) = (TIMED[of], asked[of]);
        let took = took[of].unwrap_or_else(|| panic!("{question:?}: {call:?} did not end, asked {asked} times"));
        assert!(asked > 1 && took < LIMIT * 2, "{question:?}: {call:?} took {took:?}, asked {asked} times");
        // by its own clock it was not too early
        let lines = if call == ["kernel"] { &KERNELS[..] } else { &call[..1] };
        for line in lines {
            assert_eq!(sleeper.line(), format!("{line} on time 0"), "{question:?}");
        }
        sleeper.wait().success();
    }
}
