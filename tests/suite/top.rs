//! `heaptrace top` on a terminal: against a fixture's account in shared memory, and what the kernel says of terminal
//! and process.

use super::snapshot::{account, ask, stderr};
use crate::support::procfs;
use crate::support::program::{Program, engine};
use crate::support::running::Running;
use crate::support::terminal::Terminal;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::Command;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

/// A fixture that takes blocks of 100 bytes when it is told to.
struct Taker {
    program: Program,
    running: Running,
    shared: PathBuf,
    pid: i32,
}

impl Taker {
    fn of(program: Program, traced: bool) -> Self {
        let shared = program.folder().join("shared-account");
        let program = program.args(["marks"]).env("SHARED", &shared);
        let mut running = if traced { program.start_traced(&[]) } else { program.start() };
        let pid = running.value("ready").parse().unwrap();
        Self { program, running, shared, pid }
    }

    /// One that nobody traces.
    fn alone() -> Self {
        Self::of(Program::fixture("shared"), false)
    }

    /// One under `heaptrace run`.
    fn traced() -> Self {
        Self::of(Program::fixture("shared"), true)
    }

    fn take(&mut self, blocks: u32) {
        self.running.send(&format!("take {blocks}"));
        assert_eq!(self.running.line(), "ok");
    }

    /// What it has taken, by its own account.
    fn taken(&self) -> u64 {
        let account = account(&self.shared);
        assert_eq!(account.bytes[0], account.bytes[1], "it is in no call");
        account.bytes[0]
    }

    fn top(&self, options: &[&str]) -> Terminal {
        let mut command = Command::new(HEAPTRACE);
        command.arg("top").arg(self.pid.to_string()).args(["--every", "100ms"]).args(options);
        command.current_dir(self.program.folder()).env("HEAPTRACE_ENGINE", engine()).env_remove("NO_COLOR");
        Terminal::start(command, 130, 30)
    }

    /// Nobody traces it, its code is its own again, and it goes on.
    fn assert_left_alone(mut self) {
        procfs::wait_until_let_go(self.pid);
        procfs::assert_left_as_it_was(self.pid);
        self.take(2);
        self.running.feed(b"");
        assert_eq!(self.running.wait().code(), 0);
    }
}

/// The line of the fixture's site.
fn row(screen: &str) -> &str {
    screen.lines().find(|line| line.contains("  take")).unwrap_or_default()
}

/// Whether the site's line has these figures, in this order: what is live, what has grown, how many blocks.
fn says(screen: &str, figures: &[&str]) -> bool {
    let row: Vec<&str> = row(screen).split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
    row.len() > figures.len() && row[..figures.len()] == *figures
}

#[test]
fn it_attaches_shows_what_the_program_takes_and_leaves_both_as_they_were() {
    let mut taker = Taker::alone();
    let mut top = taker.top(&[]);
    top.wait_until("the first screen", |screen| screen.contains("live 0 B"));
    assert_eq!(procfs::tracer_of(taker.pid), tracer_thread(top.pid()));
    let before = taker.taken();
    taker.take(7);
    let taken = taker.taken() - before;
    let screen = top.wait_until("what was taken", |screen| says(screen, &["700 B", "+700 B", "7"]));
    assert!(screen.contains(&format!("live {taken} B in 7 blocks")), "{screen}");
    assert!(row(&screen).contains("main"), "{screen}");
    taker.take(3);
    top.wait_until("more", |screen| says(screen, &["1000 B", "+1000 B", "10"]));
    top.press("q");
    let left = top.wait();
    assert_eq!(left.status.code(), Some(0), "{}", left.text);
    assert!(says(&left.text, &["1000 B", "+1000 B", "10"]), "the last figures stay: {}", left.text);
    assert!(left.text.contains(&format!("process {} was let go, and runs on", taker.pid)), "{}", left.text);
    taker.assert_left_alone();
}

/// The thread of a heaptrace that traces, which is named so.
fn tracer_thread(pid: i32) -> i32 {
    let named = |tid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).is_ok_and(|comm| comm == "tracer\n")
    };
    procfs::threads(pid).into_iter().find(named).unwrap_or_default()
}

#[test]
fn a_process_that_is_traced_stays_traced() {
    let mut taker = Taker::traced();
    taker.take(4);
    let tracer = procfs::tracer_of(taker.pid);
    let mut top = taker.top(&[]);
    // growth counts from here
    top.wait_until("what is live", |screen| says(screen, &["400 B", "0 B", "4"]));
    taker.take(5);
    top.wait_until("what grows", |screen| says(screen, &["900 B", "+500 B", "9"]));
    top.press("q");
    let left = top.wait();
    assert_eq!(left.status.code(), Some(0), "{}", left.text);
    assert!(!left.text.contains("was let go") && says(&left.text, &["900 B", "+500 B", "9"]), "{}", left.text);
    assert_eq!(procfs::tracer_of(taker.pid), tracer, "the same heaptrace traces it on");
    taker.take(1);
    taker.running.feed(b"");
    let traced = taker.program.collect(taker.running.wait());
    assert_eq!(traced.report.site_sum(&["take"], "/allocated/objects"), account(&taker.shared).takes[0]);
    assert_eq!(traced.ended.code(), 0);
}

#[test]
fn growth_counts_from_a_mark_which_snapshots_know() {
    let mut taker = Taker::traced();
    taker.take(4);
    let mut top = taker.top(&[]);
    top.wait_until("what is live", |screen| says(screen, &["400 B", "0 B", "4"]));
    taker.take(5);
    top.wait_until("what grows", |screen| says(screen, &["900 B", "+500 B", "9"]));
    top.press("m");
    let screen = top.wait_until("the mark", |screen| screen.contains("since mark top-1"));
    assert!(says(&screen, &["900 B", "0 B", "9"]), "{screen}");
    taker.take(2);
    top.wait_until("what grows since", |screen| says(screen, &["1.07 KiB", "+200 B", "11"]));
    let pid = taker.pid.to_string();
    let since = ask(&["snapshot", &pid, "--since", "top-1", "-o", "-", "--format", "json"]);
    let since: serde_json::Value = serde_json::from_slice(&since.stdout).unwrap();
    assert_eq!(since["totals"]["live_bytes"], 200);
    // the second one begins anew
    top.press("m");
    top.wait_until("the mark", |screen| {
        screen.contains("since mark top-2") && says(screen, &["1.07 KiB", "0 B", "11"])
    });
    top.press("q");
    assert_eq!(top.wait().status.code(), Some(0));
}

#[test]
fn a_key_writes_a_snapshot_and_two_let_go_what_another_heaptrace_traces() {
    let mut taker = Taker::traced();
    taker.take(6);
    let mut top = taker.top(&[]);
    top.wait_until("what is live", |screen| says(screen, &["600 B", "0 B", "6"]));
    top.press("s");
    let name = format!("heaptrace.shared.{}.snapshot.000001.pb.gz", taker.pid);
    top.wait_until("the file", |screen| screen.contains(&format!("{name}: ")));
    let raw =
        Command::new("go").args(["tool", "pprof", "-raw"]).arg(taker.program.folder().join(&name)).output().unwrap();
    let raw = String::from_utf8_lossy(&raw.stdout).into_owned();
    assert!(raw.contains(" 600 ") && raw.contains("take"), "{raw}");
    top.press("d");
    top.wait_until("the question", |screen| screen.contains("d once more ends the tracing"));
    assert_ne!(procfs::tracer_of(taker.pid), 0);
    top.press("d");
    let left = top.wait();
    assert_eq!(left.status.code(), Some(0), "{}", left.text);
    assert!(left.text.contains("the heaptrace that traced process"), "{}", left.text);
    procfs::wait_until_let_go(taker.pid);
    taker.take(1);
    taker.running.feed(b"");
    taker.running.wait();
}

/// Signals to top end it, and give terminal and process back.
#[test]
fn signals_end_it_as_q_does() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        for traced in [false, true] {
            let mut taker = if traced { Taker::traced() } else { Taker::alone() };
            let mut top = taker.top(&[]);
            top.wait_until("the first screen", |screen| screen.contains("since this began"));
            taker.take(1);
            top.wait_until("the screen", |screen| says(screen, &["100 B"]));
            kill(Pid::from_raw(top.pid()), signal).unwrap();
            let left = top.wait();
            assert_eq!(left.status.code(), Some(0), "{signal} {traced}: {}", left.text);
            assert!(says(&left.text, &["100 B"]), "{signal} {traced}: {}", left.text);
            if traced {
                assert_ne!(procfs::tracer_of(taker.pid), 0);
                taker.running.feed(b"");
                assert_eq!(taker.running.wait().code(), 0);
            } else {
                taker.assert_left_alone();
            }
        }
    }
}

/// A terminal that goes away, as a lost connection does, ends it, too.
#[test]
fn the_end_of_the_terminal_ends_it() {
    let taker = Taker::alone();
    let mut top = taker.top(&[]);
    top.wait_until("the first screen", |screen| screen.contains("since this began"));
    let pid = top.pid();
    top.hang_up();
    procfs::wait_until("top has ended", || procfs::state(pid).is_none_or(|state| state == 'Z'));
    taker.assert_left_alone();
}

/// The beginning of a sequence of which no rest ever comes holds nothing up: signals end it, and the end of the
/// terminal.
#[test]
fn a_sequence_without_an_end_holds_nothing_up() {
    for beginning in ["\x1b[", "\x1bO", "\x1b[1;"] {
        let mut taker = Taker::traced();
        let mut top = taker.top(&[]);
        top.wait_until("the first screen", |screen| screen.contains("since this began"));
        top.press(beginning);
        taker.take(3);
        top.wait_until("what comes afterwards", |screen| says(screen, &["300 B"]));
        kill(Pid::from_raw(top.pid()), Signal::SIGTERM).unwrap();
        assert_eq!(top.wait().status.code(), Some(0));
    }
    let taker = Taker::alone();
    let mut top = taker.top(&[]);
    top.wait_until("the first screen", |screen| screen.contains("since this began"));
    top.press("\x1b[");
    let pid = top.pid();
    top.hang_up();
    procfs::wait_until("top has ended", || procfs::state(pid).is_none_or(|state| state == 'Z'));
    taker.assert_left_alone();
}

/// Who reads no more has had enough: the process is let go.
#[test]
fn who_reads_no_more_ends_it() {
    let taker = Taker::alone();
    let script = format!("{HEAPTRACE} top {} --batch --every 100ms | head -n 1", taker.pid);
    let output = Command::new("sh").args(["-c", &script]).env("HEAPTRACE_ENGINE", engine()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("traced for"), "{output:?}");
    taker.assert_left_alone();
}

/// In the background it leaves the terminal to whoever has it.
#[test]
fn a_job_in_the_background_does_not_take_the_terminal() {
    let taker = Taker::traced();
    let mut command = Command::new("sh");
    command.args(["-mc", &format!("{HEAPTRACE} top {} & wait $!; echo status $?; read line", taker.pid)]);
    let mut shell = Terminal::start(command, 130, 30);
    shell.wait_until("the refusal", |screen| {
        screen.contains("another job has the terminal") && screen.contains("status 125")
    });
    shell.press("\n");
    assert_eq!(shell.wait().status.code(), Some(0));
}

#[test]
fn the_end_of_the_program_is_told_with_its_last_figures() {
    for traced in [false, true] {
        let mut taker = if traced { Taker::traced() } else { Taker::alone() };
        let mut top = taker.top(&[]);
        top.wait_until("the first screen", |screen| screen.contains("since this began"));
        taker.take(8);
        top.wait_until("the screen", |screen| says(screen, &["800 B"]));
        taker.running.feed(b"");
        assert_eq!(taker.running.wait().code(), 0);
        let left = top.wait();
        assert_eq!(left.status.code(), Some(0), "{traced}: {}", left.text);
        assert!(left.text.contains(&format!("process {} has ended", taker.pid)), "{traced}: {}", left.text);
        assert!(says(&left.text, &["800 B"]), "{traced}: {}", left.text);
    }
}

#[test]
fn another_size_is_drawn_anew() {
    let mut taker = Taker::traced();
    taker.take(1);
    let mut top = taker.top(&[]);
    top.wait_until("two pictures", |screen| screen.contains("bytes allocated per second"));
    top.resize(70, 14);
    top.wait_until("a small screen", |screen| {
        !screen.contains("per second") && says(screen, &["100 B"]) && !screen.contains("calls/s")
    });
    top.resize(110, 30);
    top.wait_until("a large screen", |screen| {
        screen.contains("bytes allocated per second") && says(screen, &["100 B"])
    });
    top.press("?");
    top.wait_until("help", |screen| screen.contains("any key closes this"));
    top.press("x/nosuch");
    top.wait_until("a filter", |screen| screen.contains("none of these sites has that text"));
    // Ctrl-C while the filter is typed
    top.press("\x03");
    assert_eq!(top.wait().status.code(), Some(0));
}

/// Where there is no terminal the way out is named, and --batch goes it.
#[test]
fn without_a_terminal_it_prints() {
    let mut taker = Taker::traced();
    taker.take(5);
    let pid = taker.pid.to_string();
    let refused = ask(&["top", &pid]);
    assert_eq!(refused.status.code(), Some(125));
    let said = stderr(&refused);
    assert!(said.contains("heaptrace top --batch -n 1 PID") && said.contains("heaptrace snapshot PID"), "{said}");
    let printed = ask(&["top", &pid, "--batch", "-n", "2", "--every", "100ms"]);
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert_eq!((printed.status.code(), stderr(&printed)), (Some(0), String::new()), "{text}");
    let answers: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(answers.len(), 2, "{text}");
    for answer in answers {
        assert!(says(answer, &["500 B", "0 B", "5"]) && answer.contains("live 500 B in 5 blocks"), "{text}");
    }
    for (arguments, reason) in [
        (vec!["top", "--batch", "999999999"], "999999999"),
        (vec!["top", "--batch", "--every", "2m", &pid], "100ms to 60s"),
        (vec!["top"], "PID"),
    ] {
        let refused = ask(&arguments);
        assert_eq!(refused.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&refused).contains(reason), "{arguments:?}: {}", stderr(&refused));
    }
    drop(taker);
    let mut alone = Taker::alone();
    alone.take(3);
    let pid = alone.pid.to_string();
    let printed = ask(&["top", &pid, "--batch", "-n", "1"]);
    assert_eq!(printed.status.code(), Some(0), "{}", stderr(&printed));
    assert!(String::from_utf8_lossy(&printed.stdout).contains("live 0 B"), "allocated since: nothing");
    alone.assert_left_alone();
}

/// One answer about a process that nobody traces is of a time in which it was looked at, not of its first moment.
#[test]
fn the_only_answer_is_of_what_came_meanwhile() {
    let mut running = Program::fixture("hand_to_hand").args(["0"]).start();
    let pid = running.value("ready");
    let began = std::time::Instant::now();
    let printed = ask(&["top", &pid, "--batch", "-n", "1", "--every", "600ms"]);
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert_eq!(printed.status.code(), Some(0), "{}", stderr(&printed));
    assert!(began.elapsed().as_millis() >= 600, "{text}");
    assert!(!text.contains("peak 0 B"), "{text}");
    running.feed(b"");
    running.wait().success();
}

/// A program's name can hold whatever a terminal would do something for.
#[test]
fn a_program_s_name_does_nothing_to_the_terminal() {
    let fixture = Program::fixture("shared");
    let evil = fixture.folder().join("evil\x1b]0;gotcha\x07\x1b[41m");
    crate::support::copy_file(fixture.exe(), &evil).unwrap();
    let mut taker = Taker::of(Program::new(&evil).keeping(fixture), false);
    let mut top = taker.top(&[]);
    taker.take(1);
    top.wait_until("the name", |screen| screen.contains("evil?]0;gotcha??[41m (process"));
    top.press("q");
    let left = top.wait();
    let has = |bytes: &[u8]| left.bytes.windows(bytes.len()).any(|window| window == bytes);
    assert!(!has(b"\x1b]0;gotcha") && !has(b"\x1b[41m"), "{}", left.text);
    taker.assert_left_alone();
}

/// More sites than are sent: a filter finds among all of them, sums by function and module are those of all, and a
/// stack can be gone through.
#[test]
fn all_sites_are_searched_and_grouped() {
    let program = Program::fixture("many_sites");
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    let mut command = Command::new(HEAPTRACE);
    command.arg("top").arg(pid.to_string()).args(["--every", "100ms"]).current_dir(program.folder());
    command.env("HEAPTRACE_ENGINE", engine()).env_remove("NO_COLOR");
    let mut top = Terminal::start(command, 130, 30);
    let row = |screen: &str, figures: &[&str], name: &str| {
        let has = |line: &str| {
            let words: Vec<&str> = line.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
            words.starts_with(figures) && words.last().is_some_and(|last| last.starts_with(name))
        };
        screen.lines().any(has)
    };
    top.wait_until("the first sites", |screen| screen.contains("site (300, of 10"));
    top.press("/NEEDLE");
    // of those that were sent
    top.wait_until("none of them", |screen| screen.contains("none of these sites has that text"));
    top.press("\r");
    let screen = top.wait_until("both", |screen| screen.contains("site (2, of 2 stacks with `NEEDLE`)"));
    for way in ["needle (many_sites.c", "needle (many_sites.c"] {
        assert!(row(&screen, &["10 B", "0 B", "1"], way), "{screen}");
    }
    assert!(screen.contains("< first_way < main") && screen.contains("< second_way < main"), "{screen}");
    top.press("f");
    let screen = top.wait_until("one function", |screen| screen.contains("function (1, of 2 stacks with `NEEDLE`)"));
    assert!(row(&screen, &["20 B", "0 B", "2"], "needle"), "{screen}");
    top.press("\x1b");
    let screen = top.wait_until("all functions", |screen| screen.contains("function (2, of 10"));
    assert!(row(&screen, &["1.00 MiB", "0 B", "1,024"], "store"), "{screen}");
    assert!(row(&screen, &["20 B", "0 B", "2"], "needle"), "{screen}");
    // the largest stack of `store`: store, and twice ten functions and `go`
    top.press("\r");
    let screen =
        top.wait_until("the stack", |screen| screen.contains("stack that comes first of 1024, innermost first"));
    assert!(screen.contains("│store  "), "{screen}");
    top.press("JJ");
    let screen = top.wait_until("more of it", |screen| screen.contains("innermost first; 2 above"));
    assert!(!screen.contains("│store  "), "{screen}");
    top.press("\x1b[6~\x1b[6~\x1b[6~");
    top.wait_until("its end", |screen| screen.contains("│_start"));
    top.press("\r");
    top.press("f");
    let module = program.exe().file_name().unwrap().to_string_lossy().into_owned();
    let screen = top.wait_until("modules", |screen| screen.contains("  module (1, of 10"));
    assert!(row(&screen, &["1.00 MiB", "0 B", "1,026"], &module), "{screen}");
    top.press("f");
    top.wait_until("sites again", |screen| screen.contains("site (300, of 10"));
    top.press("q");
    assert_eq!(top.wait().status.code(), Some(0));
    running.feed(b"");
    program.collect(running.wait().success());
}
