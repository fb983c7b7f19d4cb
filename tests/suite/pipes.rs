//! Outputs that keep heaptrace waiting: pipes that nobody reads, or not yet.

use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::Running;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;

/// A run of a small program with a named pipe as an output beside the usual files.
fn start(program: &Program) -> (Running, PathBuf) {
    let pipe = program.outside("pipe.json");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    let running = program.start_traced(&["-o", pipe.to_str().unwrap()]);
    (running, pipe)
}

fn wait_until_told(program: &Program, text: &str) {
    let told = || std::fs::read_to_string(program.outside("stderr")).is_ok_and(|stderr| stderr.contains(text));
    procfs::wait_until("the user is told", told);
}

/// Nobody ever reads: the other files are there meanwhile, and SIGTERM ends the wait with a message.
#[test]
fn no_reader_and_a_signal() {
    let program = Program::fixture("peak");
    let (running, pipe) = start(&program);
    wait_until_told(&program, &format!("heaptrace: waiting up to 60 s for a reader of {}", pipe.display()));
    assert!(program.report_path().exists() && program.profile_path().exists(), "they don't wait for the pipe");
    running.signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("pipe.json  not written: cancelled by SIGTERM"), "{}", ended.stderr);
    let traced = program.collect(ended);
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
}

/// The reader comes late, and gets all.
#[test]
fn late_reader() {
    let program = Program::fixture("peak");
    let (running, pipe) = start(&program);
    wait_until_told(&program, "for a reader of");
    let copy = program.outside("copy.json");
    std::io::copy(&mut File::open(&pipe).unwrap(), &mut File::create(&copy).unwrap()).unwrap();
    let ended = running.wait().success();
    let traced = program.collect(ended);
    assert_eq!(Report::read(&copy, &traced.ended).0, traced.report.0);
}

/// The reader is there but takes nothing: Ctrl-C ends the wait.
#[test]
fn reader_that_does_not_read() {
    let program = Program::fixture("peak");
    let pipe = program.outside("pipe.json");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    // both ends at once, so that opening does not block
    let reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    fcntl(&reader, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let running = program.start_traced(&["-o", pipe.to_str().unwrap()]);
    wait_until_told(&program, "heaptrace: waiting for the reader of");
    running.signal(Signal::SIGINT);
    let ended = running.wait();
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("cancelled by Ctrl-C (SIGINT), as its reader reads nothing"), "{}", ended.stderr);
    program.collect(ended);
}
