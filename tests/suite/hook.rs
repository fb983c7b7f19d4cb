//! `--on-profile`: the user's command gets each finished file, and what becomes of it is told.

use crate::support::procfs;
use crate::support::program::Program;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::path::Path;

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

/// Once for each file, with an absolute path, when the file is whole; its output goes to standard error.
#[test]
fn each_file_is_passed_on() {
    let program = Program::fixture("peak");
    let log = program.outside("log");
    let command = format!(
        "echo \"$HEAPTRACE_FILE\" >> {log}; wc -c < \"$HEAPTRACE_FILE\" >> {log}; echo said; read line && echo stdin",
        log = log.display()
    );
    let relative = program.folder().join("beside.txt");
    // the last command fails: there is nothing to read on standard input
    let ended = program.start_traced(&["-o", "beside.txt", "--on-profile", &format!("{command}; true")]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let expected: Vec<String> = [program.report_path(), program.profile_path(), relative]
        .iter()
        .flat_map(|file| [file.display().to_string(), std::fs::metadata(file).unwrap().len().to_string()])
        .collect();
    assert_eq!(lines(&log), expected);
    assert_eq!(ended.stderr.matches("said\n").count(), 3, "{}", ended.stderr);
    assert_eq!(ended.text(), program.plain().text(), "the program's standard output is its own");
    assert!(!ended.stderr.contains("stdin"));
}

/// A failure is named and costs heaptrace's status, but not the program's own, nor the other files.
#[test]
fn failure_is_told() {
    let failing = ["--on-profile", "case $HEAPTRACE_FILE in *.json) exit 3;; esac; echo fine"];
    let program = Program::fixture("peak");
    let ended = program.start_traced(&failing).wait();
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("--on-profile failed for") && ended.stderr.contains("exit status: 3"));
    assert!(ended.stderr.contains("report.json: exit") && ended.stderr.contains("fine\n"), "{}", ended.stderr);
    program.collect(ended);
    let ended = Program::fixture("ends").args(["return"]).start_traced(&failing).wait();
    assert_eq!(ended.code(), 31, "{}", ended.stderr);
}

/// A file that could not be written is not passed on.
#[test]
fn lost_files_are_not_passed_on() {
    let program = Program::fixture("peak");
    let full = program.folder().join("full.json");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let options = ["-q", "-o", full.to_str().unwrap(), "--on-profile", "echo \"got $HEAPTRACE_FILE\""];
    let ended = program.start_traced(&options).wait();
    assert_eq!(ended.code(), 125);
    assert_eq!(ended.stderr.matches("got ").count(), 2, "{}", ended.stderr);
}

/// When it runs, no process is traced any more, be it one that has been left running.
#[test]
fn nothing_is_traced_any_more() {
    let program = Program::fixture("forever").args(["2"]);
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let command = format!("grep -h TracerPid /proc/{pid}/task/*/status");
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&["--on-profile", &command], pid);
    procfs::wait_until_probed(pid);
    attached.signal(Signal::SIGINT);
    let ended = attached.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let traced: Vec<_> = ended.stderr.lines().filter_map(|line| line.strip_prefix("TracerPid:")).collect();
    assert!(traced.len() >= 4 && traced.iter().all(|tracer| tracer.trim() == "0"), "{traced:?}");
    target.assert_alive();
    target.signal(Signal::SIGKILL);
    target.wait();
}

/// Ctrl-C ends a command that hangs, although heaptrace keeps the signal for itself.
#[test]
fn interrupt_ends_the_command() {
    let program = Program::new("/bin/true");
    let mark = program.outside("mark");
    let command = format!("echo > {}; exec tail -f /dev/null", mark.display());
    let output = program.report_path();
    let args = ["run", "-o", output.to_str().unwrap(), "--on-profile", &command, "/bin/true"];
    let running = program.start_heaptrace(args);
    procfs::wait_until("the command runs", || mark.exists());
    killpg(Pid::from_raw(running.pid()), Signal::SIGINT).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("was ended by Ctrl-C (SIGINT)"), "{}", ended.stderr);
    assert!(ended.stderr.contains("report.json; that file is complete"), "{}", ended.stderr);
    assert!(output.exists());
}

/// A command that hangs, and leaves children: while the program runs parts go on being written; heaptrace ends when a
/// fixed time has passed, nothing of the command is left, and all files are there.
#[test]
fn a_command_that_hangs_holds_neither_the_parts_nor_the_end_up() {
    let program = Program::fixture("forever").args(["1"]);
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let pids = program.outside("pids");
    let command =
        format!("tail -f /dev/null & echo $! >> {0}; echo $$ >> {0}; trap '' TERM; tail -f /dev/null", pids.display());
    let part = program.outside("part.%i.json");
    let tracer = Program::new("/bin/true");
    let whole = program.outside("whole.json");
    let outputs = ["-o", part.to_str().unwrap(), "-o", whole.to_str().unwrap()];
    let options = [&["--profile-every", "100ms", "--on-profile", &command][..], &outputs].concat();
    let attached = tracer.start_attached(&options, pid);
    let is_there = |number: u32| program.outside(&format!("part.{number:06}.json")).exists();
    procfs::wait_until("parts are written beside the command", || is_there(4));
    assert_eq!(lines(&pids).len(), 2, "one command at a time");
    attached.signal(Signal::SIGINT);
    let over = std::time::Instant::now();
    procfs::wait_until("the profile of the end is there", || whole.exists());
    assert!(over.elapsed().as_secs() < 20, "it has waited for the command: {:?}", over.elapsed());
    // it would take a processor from the tests beside this one, for half a minute
    target.signal(Signal::SIGSTOP);
    let ended = attached.wait();
    assert!((29..90).contains(&over.elapsed().as_secs()), "{:?}", over.elapsed());
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    for said in [
        "waiting up to 30 s for --on-profile",
        "was ended after 30 s for",
        "part.000001.json; that file is complete",
        "not run for",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    for process in lines(&pids) {
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "{process} of the command is still there");
    }
    tracer.collect(ended);
    target.assert_alive();
    target.signal(Signal::SIGKILL);
    target.wait();
}

/// A command for parts ends by a signal, too, when the program has ended.
#[test]
fn a_signal_ends_the_waiting_for_the_command_of_a_part() {
    let program = Program::fixture("steps");
    let mark = program.outside("mark");
    let part = program.outside("part.%i.json");
    let command = format!("case $HEAPTRACE_FILE in *part.*) echo > {}; exec tail -f /dev/null;; esac", mark.display());
    let options = ["--profile-every", "50ms", "-o", part.to_str().unwrap(), "--on-profile", &command];
    let mut running = program.start_traced(&options);
    procfs::wait_until("the command runs", || mark.exists());
    running.feed(b"");
    procfs::wait_until("the program has ended", || {
        std::fs::read_to_string(program.outside("stderr")).is_ok_and(|text| text.contains("waiting up to"))
    });
    running.signal(Signal::SIGTERM);
    let ended = running.wait();
    assert!(ended.stderr.contains("was ended by SIGTERM for"), "{}", ended.stderr);
}

/// What the shell says of a command that is not there is put in words.
#[test]
fn a_command_that_is_not_there_is_told() {
    let ended = Program::fixture("peak").start_traced(&["--on-profile", "no-such-uploader"]).wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("exit status: 127 (the shell did not find the command)"), "{}", ended.stderr);
}

/// The command gets the signal mask that heaptrace was started with: what heaptrace has blocked for itself would make
/// Ctrl-Z and Ctrl-C do nothing in it.
#[test]
fn the_command_has_no_more_signals_blocked_than_heaptrace_got() {
    let program = Program::fixture("forever").args(["1"]);
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let expected = format!("SigBlk:\t{}\n", procfs::status_field(pid, "SigBlk").unwrap());
    let hook = ["--on-profile", "grep SigBlk /proc/self/status"];
    let attached = Program::new("/bin/true").start_attached(&hook, pid);
    procfs::wait_until_probed(pid);
    attached.signal(Signal::SIGINT);
    let ended = attached.wait().success();
    assert_eq!(ended.stderr.matches(&expected).count(), 2, "{expected}{}", ended.stderr);
    target.assert_alive();
    target.signal(Signal::SIGKILL);
    target.wait();
    let ended = Program::new("/bin/true").start_traced(&hook).wait().success();
    assert_eq!(ended.stderr.matches(&expected).count(), 2, "{expected}{}", ended.stderr);
}
