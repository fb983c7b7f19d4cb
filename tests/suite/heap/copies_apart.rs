//! What a program does while a copy of it is read that nobody traces: it need not know, and the copy is in the way of
//! nothing.

use super::HEAPTRACE;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

/// So many that reading them takes long enough to be caught at it.
const BLOCKS: &str = "400000";

const QUESTIONS: [&[&str]; 2] = [&["leaks"], &["heap", "--no-types"]];

fn start() -> (Running, i32, u16) {
    let mut running = Program::fixture("under_copy").args([BLOCKS]).start();
    let ready = running.value("ready");
    let (pid, port) = ready.split_once(' ').unwrap();
    (running, pid.parse().unwrap(), port.parse().unwrap())
}

/// A heaptrace that was stopped while it reads a copy, and that copy. The process runs.
struct Asked {
    heaptrace: Child,
    copy: i32,
}

impl Asked {
    fn of(question: &[&str], pid: i32) -> Self {
        loop {
            let mut command = Command::new(HEAPTRACE);
            let command = command.args(question).arg(pid.to_string()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut heaptrace = command.spawn().unwrap();
            let live = |child: &i32| procfs::state(*child) == Some('t');
            let copy = || procfs::children(pid).into_iter().find(live).filter(|_| procfs::tracer_of(pid) == 0);
            while copy().is_none() && heaptrace.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            if let Some(copy) = copy() {
                let asked = Self { heaptrace, copy };
                asked.signal(Signal::SIGSTOP);
                procfs::wait_until("heaptrace has stopped", || {
                    matches!(procfs::state(asked.heaptrace.id() as i32), Some('T' | 'Z'))
                });
                if procfs::state(copy) == Some('t') && procfs::tracer_of(pid) == 0 {
                    return asked;
                }
                asked.end();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.heaptrace.id() as i32), signal).unwrap();
    }

    fn end(self) -> Output {
        self.signal(Signal::SIGCONT);
        self.heaptrace.wait_with_output().unwrap()
    }
}

/// Whether two processes share `what` of kcmp(2).
fn share(what: i32, one: i32, other: i32) -> bool {
    // SAFETY: kcmp takes numbers only.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, one, other, what, 0, 0) };
    assert!((0..4).contains(&compared), "{}", std::io::Error::last_os_error());
    compared == 0
}

/// A filter that comes while the copy is read would end the program for the call that takes the copy's status: no such
/// call is made, and the answer says what is left.
#[test]
fn a_filter_that_comes_while_a_copy_is_read_is_not_met() {
    for question in QUESTIONS {
        let (mut running, pid, _) = start();
        let asked = Asked::of(question, pid);
        running.send("filter");
        assert_eq!(running.line(), "filtered");
        let output = asked.end();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("stays as a zombie") && said.contains("seccomp"), "{question:?}: {said}");
        running.send("well");
        assert_eq!(running.line(), "well", "{question:?}");
        running.feed(b"");
        running.wait().success();
    }
}

/// The copy has no open file, and shares neither the table of these nor working folder and umask. So the program's port
/// is free when the program has ended, even while heaptrace stands; the copy then ends with it, and there is no answer.
#[test]
fn a_copy_holds_nothing_of_its_program_and_ends_with_it() {
    const KCMP_FILES: i32 = 2;
    const KCMP_FS: i32 = 3;
    for question in QUESTIONS {
        let (mut running, pid, port) = start();
        let asked = Asked::of(question, pid);
        assert!(!share(KCMP_FILES, pid, asked.copy) && !share(KCMP_FS, pid, asked.copy), "{question:?}");
        assert_eq!(std::fs::read_dir(format!("/proc/{}/fd", asked.copy)).unwrap().count(), 0, "{question:?}");
        running.feed(b"");
        procfs::wait_until("the program has ended", || matches!(procfs::state(pid), None | Some('Z')));
        TcpListener::bind(("127.0.0.1", port)).unwrap();
        let copy = asked.copy;
        let output = asked.end();
        running.wait().success();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("ended while heaptrace read a copy of its memory"), "{question:?}: {said}");
        procfs::wait_until("the copy has ended", || procfs::state(copy).is_none());
    }
}

/// While another tracer has the program its status can't be taken: that is told, and the other one, if it is a
/// heaptrace, takes it when it goes, and else the next heaptrace that asks.
#[test]
fn the_status_of_a_copy_is_taken_later_where_another_tracer_comes() {
    for other in ["heaptrace", "gdb"] {
        let (mut running, pid, _) = start();
        let asked = Asked::of(&["leaks"], pid);
        let copy = asked.copy;
        let program = Program::new("/bin/true");
        let tracer = match other {
            "gdb" => {
                let mut gdb = Command::new("gdb");
                gdb.args(["-q", "-nx", "-p", &pid.to_string()]).stdin(Stdio::piped()).stdout(Stdio::null());
                Ok(gdb.stderr(Stdio::null()).spawn().unwrap())
            }
            _ => Err(program.start_attached(&[], pid)),
        };
        procfs::wait_until("the other one traces it", || procfs::tracer_of(pid) != 0);
        let output = asked.end();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("stays as a zombie"), "{other}: {said}");
        assert_eq!(procfs::state(copy), Some('Z'), "{other}");
        match tracer {
            Err(attached) => {
                attached.signal(Signal::SIGTERM);
                attached.wait();
            }
            Ok(mut gdb) => {
                drop(gdb.stdin.take());
                gdb.wait().unwrap();
                let next = Command::new(HEAPTRACE).args(["leaks", &pid.to_string()]).output().unwrap();
                assert!(next.status.success() && next.stderr.is_empty(), "{}", String::from_utf8_lossy(&next.stderr));
            }
        }
        assert_eq!(procfs::children(pid), [0; 0], "{other}");
        running.send("well");
        assert_eq!(running.line(), "well", "{other}");
        running.feed(b"");
        running.wait().success();
    }
}
