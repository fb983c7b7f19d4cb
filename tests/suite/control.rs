//! The control socket: one heaptrace asks another that traces a process.

use super::attach::{assert_victim_well, start_victim};
use crate::support::procfs::{self, order};
use crate::support::program::Program;
use crate::support::running::Running;
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

fn ask(arguments: &[&str]) -> Output {
    Command::new(HEAPTRACE).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A command that the user nobody runs.
fn as_nobody(program: &Path) -> Command {
    let is_root = procfs::is_root();
    let mut command = Command::new(if is_root { "setpriv" } else { "sudo" });
    let options: &[&str] =
        if is_root { &["--reuid=65534", "--regid=65534", "--clear-groups"] } else { &["-n", "-u", "nobody"] };
    command.args(options).arg(program);
    command
}

/// `ctl PID detach` ends the tracing as Ctrl-C does: the process lives, the profile is written.
#[test]
fn ctl_detach_lets_the_process_go() {
    let program = Program::fixture("victim").args(["3"]);
    let (victim, pid) = start_victim(&program);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    let wrong = ask(&["ctl", &attached.pid().to_string(), "detach"]);
    assert_eq!(wrong.status.code(), Some(125));
    assert!(stderr(&wrong).contains("is not being traced"), "{}", stderr(&wrong));
    let asked = ask(&["ctl", &pid.to_string(), "detach"]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    let traced = tracer.collect(attached.wait());
    assert_eq!(traced.ended.code(), 0);
    assert_victim_well(victim, pid);
}

/// Others than the tracer's user and root are not answered.
#[test]
fn another_user_is_refused() {
    let program = Program::fixture("victim").args(["1"]);
    let (victim, pid) = start_victim(&program);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    let copy = program.folder().join("heaptrace");
    crate::support::copy_file(HEAPTRACE, &copy).unwrap();
    for folder in copy.ancestors().skip(1).take_while(|folder| folder.starts_with(std::env::temp_dir())) {
        let _ = std::fs::set_permissions(folder, PermissionsExt::from_mode(0o1777));
    }
    let other = as_nobody(&copy).args(["ctl", &pid.to_string(), "detach"]).output().unwrap();
    assert_eq!(other.status.code(), Some(125));
    assert!(stderr(&other).contains("belongs to another user"), "{}", stderr(&other));
    attached.signal(Signal::SIGINT);
    tracer.collect(attached.wait());
    assert_victim_well(victim, pid);
}

/// A tracer that is no heaptrace is named, and an untraced process is told from one that does not exist.
#[test]
fn what_can_not_be_asked_is_said() {
    let gone = ask(&["ctl", "999999999", "detach"]);
    assert_eq!(gone.status.code(), Some(125));
    assert!(stderr(&gone).contains("there is no process 999999999"), "{}", stderr(&gone));
    let own = std::process::id().to_string();
    assert!(stderr(&ask(&["ctl", &own, "detach"])).contains("is not being traced"));
    for (words, reason) in [
        (vec!["ctl", "12"], "the order is missing"),
        (vec!["ctl", "x", "detach"], "`x` is not a process id"),
        (vec!["ctl", "12", "dance"], "there is no order `dance`"),
    ] {
        let asked = ask(&words);
        assert_eq!(asked.status.code(), Some(125));
        assert!(stderr(&asked).contains(reason), "{}", stderr(&asked));
    }
}

/// Lets the fixture `steps` do one step.
fn step(running: &mut Running, line: &str) {
    running.send(line);
    assert_eq!(running.line(), "ok");
}

/// In a pause allocations are not recorded, the ends of recorded blocks are; before the first block no probe is there
/// at all, and the blocks of the pause are no errors when they are freed.
#[test]
fn what_happens_in_a_pause_is_not_recorded() {
    let program = Program::fixture("steps");
    let mut running = program.start_traced(&["--start-paused"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    let entries = |differences: Vec<(std::path::PathBuf, u64)>| {
        differences.iter().filter(|(path, _)| path.to_string_lossy().contains("libc.so")).count()
    };
    step(&mut running, "a 10 100");
    // what stays are the watches for new libraries, sigaction and exec, with the room that two of these need to run
    let idle = entries(procfs::text_differences(pid));
    assert!(idle <= 16, "{idle}");
    order(pid, "resume");
    assert!(entries(procfs::text_differences(pid)) > idle + 5);
    step(&mut running, "b 5 1000");
    order(pid, "pause");
    for line in ["free b 2", "free a 3", "a 7 10", "realloc b 1500", "realloc a 200"] {
        step(&mut running, line);
    }
    order(pid, "pause");
    order(pid, "resume");
    step(&mut running, "free a 4");
    step(&mut running, "b 1 50");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0);
    let report = &traced.report;
    assert_eq!(report.total("allocations"), 5 + 1 + 1);
    assert_eq!(report.total("reallocations"), 1);
    assert_eq!(report.total("frees"), 2 + 1);
    assert_eq!(report.total("live_bytes"), 2 * 1000 + 1500 + 50);
    for anomaly in ["lost", "unknown_frees", "double_frees", "abandoned_calls"] {
        assert_eq!(report.anomaly(anomaly), 0, "{anomaly}");
    }
    assert!(report.0["warnings"].to_string().contains("collecting paused for"), "{}", report.0["warnings"]);
}

/// `--delay` begins by itself; `--toggle-signal` ends and begins collecting. Signals to heaptrace are not the
/// program's.
#[test]
fn delay_and_toggle_signal_begin_and_end_collecting() {
    let program = Program::fixture("steps");
    // By the trap engine: the jumps of the other one stay in a pause, so that it can't be seen from outside.
    let mut running = program.start_traced(&["--engine", "trap", "--delay", "300ms", "--toggle-signal", "USR2"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running, "a 10 100");
    // breakpoints, and the pads that stay behind in a pause
    let changed = || procfs::text_differences(pid).len();
    let idle = changed();
    procfs::wait_until("collecting has begun", || changed() > idle + 5);
    step(&mut running, "b 5 1000");
    step(&mut running, "free b 5");
    let collecting = changed();
    running.signal(Signal::SIGUSR2);
    procfs::wait_until("collecting pauses", || changed() < collecting);
    step(&mut running, "b 3 1000");
    let paused = changed();
    running.signal(Signal::SIGUSR2);
    procfs::wait_until("collecting goes on", || changed() > paused);
    step(&mut running, "b 2 30");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0);
    assert_eq!(traced.report.total("allocations"), 7);
    assert_eq!(traced.report.total("live_bytes"), 60);
}

/// What `heaptrace leaks` answers.
fn leaks(pid: i32, options: &[&str]) -> String {
    let pid = pid.to_string();
    let asked = ask(&[&["leaks", pid.as_str()], options].concat());
    assert!(asked.status.success(), "{}", stderr(&asked));
    String::from_utf8(asked.stdout).unwrap()
}

/// Blocks and bytes of a class in the JSON answer.
fn class_of(answer: &str, class: &str) -> (u64, u64) {
    let report: serde_json::Value = serde_json::from_str(answer).unwrap();
    let amount = &report["leaks"][class];
    (amount["blocks"].as_u64().unwrap(), amount["bytes"].as_u64().unwrap())
}

/// Who asks for what has grown before any scan was made gets all, and is told so.
#[test]
fn the_first_scan_compares_with_nothing() {
    let program = Program::fixture("steps");
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running, "a 10 100");
    let text = leaks(pid, &["--increased"]);
    assert!(text.contains("this is the first scan") && !text.contains("since the last scan"), "{text}");
    assert!(text.contains("Still reachable 1,000 bytes in 10 blocks"), "{text}");
    step(&mut running, "a 1 100");
    let text = leaks(pid, &["--increased"]);
    assert!(text.contains("since the last scan") && text.contains("Still reachable 100 bytes in 1 block"), "{text}");
    drop(running.wait());
}

/// `leaks` classifies what is live now, tells growth, and explains what is still reachable, again and again while the
/// program goes on.
#[test]
fn leaks_of_a_living_process() {
    let program = Program::fixture("steps");
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    for line in ["a 10 100", "b 3 50", "lose a 4", "b 1 50"] {
        step(&mut running, line);
    }
    let answer = leaks(pid, &["--json"]);
    assert_eq!(class_of(&answer, "definite"), (4, 400));
    assert_eq!(class_of(&answer, "reachable"), (6 + 4, 600 + 200));
    for line in ["lose a 2", "lose b 1", "b 1 50"] {
        step(&mut running, line);
    }
    let text = leaks(pid, &["--increased"]);
    assert!(text.contains("what has grown since the last scan"), "{text}");
    assert!(text.contains("lost 250 bytes in 3 blocks"), "{text}");
    assert!(text.contains("steps_a") && text.contains("steps_b") && text.contains("it stood still for"), "{text}");
    let text = leaks(pid, &["--increased"]);
    assert!(!text.contains("Definitely") && !text.contains("Still reachable"), "{text}");
    step(&mut running, "b 4 500");
    let text = leaks(pid, &["--increased"]);
    assert!(text.contains("Still reachable 2,000 bytes in 4 blocks, in 1 place"), "{text}");
    assert!(text.contains("steps_b") && !text.contains("steps_a"), "{text}");
    running.send("where a");
    let block: u64 = running.line().parse().unwrap();
    let text = leaks(pid, &["--explain", &format!("{:#x}", block + 99)]);
    assert!(text.contains("still reachable") && text.contains("global `lists`"), "{text}");
    let text = leaks(pid, &["--explain", "1000"]);
    assert!(text.contains("no live block at 0x1000"), "{text}");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0);
    traced.report.assert_no_anomaly();
    assert_eq!(traced.report.total("allocations"), 15 + 4);
}

/// What hangs on lost blocks is told by its increase, too, at each look.
#[test]
fn what_hangs_on_lost_blocks_is_told_by_its_increase() {
    let program = Program::fixture("leaks/grows");
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    running.send("");
    assert_eq!(running.line(), "lost");
    leaks(pid, &["--increased"]);
    for _ in 0..3 {
        running.send("");
        assert_eq!(running.line(), "lost");
        let text = leaks(pid, &["--increased"]);
        assert!(text.contains("Definitely lost 100,800 bytes in 200 blocks"), "{text}");
    }
    running.feed(b"");
    running.wait().success();
}

/// In a process that was attached to, what hangs on blocks from before is no leak; `--leaks-at-end` tells the rest.
/// What lay in blocks from before is not known, and no block is called lost for it.
#[test]
fn leaks_at_the_end_of_an_attach() {
    let program = Program::fixture("steps");
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running, "a 3 64");
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&["--leaks-at-end"], pid);
    procfs::wait_until_probed(pid);
    // it is answered when all probes are in place
    order(pid, "resume");
    for line in ["b 5 500", "lose a 3", "lose b 2", "b 1 50"] {
        step(&mut running, line);
    }
    attached.signal(Signal::SIGINT);
    let traced = tracer.collect(attached.wait());
    assert_eq!(traced.ended.code(), 0);
    let said = &traced.ended.stderr;
    assert!(said.contains("lost 1,000 bytes in 2 blocks"), "{said}");
    assert!(said.contains("from before the attach are unknown"), "{said}");
    assert_eq!(traced.report.number("/leaks/definite/bytes"), 1000);
    procfs::assert_left_as_it_was(pid);
    step(&mut running, "free b 1");
    running.wait().success();
}

/// To stand still for a scan wakes nobody: calls that the kernel lets fail with EINTR are made once more.
#[test]
fn t05_a_scan_wakes_no_sleepers() {
    let program = Program::fixture("sleepers").args(["3000"]);
    let mut sleepers = program.start();
    let pid: i32 = sleepers.value("asleep").parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    for _ in 0..3 {
        leaks(pid, &[]);
    }
    order(pid, "detach");
    attached.wait().success();
    procfs::assert_left_as_it_was(pid);
    for _ in 0..8 {
        let line = sleepers.line();
        assert!(line.ends_with("on time 0"), "{line}");
    }
    sleepers.wait().success();
}

/// A program that traces a child of its own, and answers where heaptrace would; the child's id is its first line.
fn impostor(answer: &str) -> Running {
    const TEXT: &str = r#"
import ctypes, os, socket, sys, time
answer = sys.argv[1]
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
seize = 0x4206
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.ptrace(seize, child, 0, 0)
folder = os.environ["TMPDIR"] + "/heaptrace-%d" % os.getuid()
os.makedirs(folder, 0o700, exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind("%s/%d.sock" % (folder, os.getpid()))
listener.listen(5)
print("child", child, flush=True)
peer, _ = listener.accept()
peer.recv(65536)
try:
    if answer == "endless":
        while True:
            peer.sendall(b"x" * (1 << 16))
    peer.sendall(answer.encode() + b"\n")
except OSError:
    pass
sys.stdin.read()
os.kill(child, 9)
"#;
    let program = Program::new("python3").args(["-c", TEXT, answer]);
    let folder = program.folder().to_owned();
    program.env("TMPDIR", folder).start()
}

/// What another program answers in a heaptrace's place is text, and no longer than it may be.
#[test]
fn an_answer_moves_no_cursor_and_fills_no_memory() {
    for (answer, words, expected) in [
        (
            r#"{"done":"\u001b]0;title\u0007\u001b[31mred\u009b\u202e\nnext\n"}"#,
            &["leaks"][..],
            "?]0;title??[31mred??\nnext\n",
        ),
        (r#"{"failed":"\u001b[31mred"}"#, &["ctl", "detach"], "?[31mred"),
        (r#"{"done":"{\"a\":\"\u009b\"}"}"#, &["leaks", "--json"], r#"{"a":"\u009b"}"#),
        (r#"{"done":"\u001b[31m"}"#, &["leaks", "--json"], "is not JSON"),
        ("endless", &["leaks"], "the message is longer than the maximum of 1024 KiB"),
    ] {
        let mut impostor = impostor(answer);
        let child = impostor.value("child");
        let (command, options) = words.split_first().unwrap();
        let asked = ask(&[&[command, child.as_str()], options].concat());
        let said = format!("{}{}", String::from_utf8_lossy(&asked.stdout), stderr(&asked));
        assert!(said.contains(expected), "{words:?}: {said:?}");
        assert!(!said.contains(['\x1b', '\x07', '\u{9b}', '\u{202e}']), "{said:?}");
        impostor.feed(b"");
        impostor.wait();
    }
}

/// `ctl PID detach` comes back when no thread is traced any more.
#[test]
fn ctl_detach_answers_when_it_is_done() {
    let program = Program::fixture("sleepers").args(["20000"]);
    let mut sleepers = program.start();
    let pid: i32 = sleepers.value("asleep").parse().unwrap();
    for _ in 0..5 {
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_answered(pid);
        let asked = ask(&["ctl", &pid.to_string(), "detach"]);
        let traced: Vec<i32> = procfs::threads(pid).into_iter().filter(|&tid| procfs::tracer_of(tid) != 0).collect();
        assert!(asked.status.success(), "{}", stderr(&asked));
        assert_eq!(traced, Vec::<i32>::new());
        attached.wait().success();
    }
    sleepers.signal(Signal::SIGKILL);
    sleepers.wait();
}

/// A folder that another user has put where the socket would be is told of, with what to do, by both sides.
#[test]
fn a_planted_folder_is_told_with_its_cure() {
    if !procfs::is_root() {
        return;
    }
    let program = Program::fixture("steps");
    let folder = program.outside("tmp");
    std::fs::create_dir(&folder).unwrap();
    let planted = folder.join("heaptrace-0");
    std::fs::create_dir(&planted).unwrap();
    std::os::unix::fs::chown(&planted, Some(65534), None).unwrap();
    // The other places must not serve. heaptrace itself may lie below one of them.
    let script = "exec 3<\"$1\" && shift && mount -t tmpfs none /run && mount --bind \"$TMPDIR\" /tmp && export TMPDIR=/tmp && \
                  exec /proc/self/fd/3 \"$@\"";
    let ended = Program::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", HEAPTRACE, "run", "-o", "/dev/null", "--format", "json"])
        .args(["/bin/true"])
        .env("TMPDIR", folder.to_str().unwrap())
        .start()
        .wait();
    assert!(ended.stderr.contains("/heaptrace-0 belongs to another user (uid 65534)"), "{}", ended.stderr);
    assert!(ended.stderr.contains("$TMPDIR set to a folder of your own"), "{}", ended.stderr);
}
