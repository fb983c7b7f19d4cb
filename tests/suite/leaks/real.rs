//! Real programs: what heaptrace calls definitely lost is what Memcheck calls so, block for block.

use crate::suite::realprograms::{git, jq, ls, perl, python3, sqlite3, xmllint};
use crate::support::leakcheck::{Amount, Found, Record};
use crate::support::procfs;
use crate::support::program::{Program, installed};
use crate::support::running::Running;
use nix::sys::signal::Signal;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Compares definite and indirect blocks of both, and returns the definite ones.
fn assert_definite_equal(program: &Program) -> Amount {
    let (memcheck_ended, memcheck) = program.memcheck_leaks(&[]);
    let checked = program.checked(&[]);
    let ours = Found::from_report(&checked.report);
    compare(program, &memcheck, &ours);
    assert_eq!(checked.ended.text(), memcheck_ended.text(), "{}", program.exe().display());
    let expected = match memcheck_ended.code() {
        0 if ours.totals()[0].blocks > 0 => 23,
        own => own,
    };
    assert_eq!(checked.ended.code(), expected, "{}", checked.ended.stderr);
    ours.totals()[0]
}

fn compare(program: &Program, memcheck: &Found, ours: &Found) {
    let (theirs, mine) = (memcheck.totals(), ours.totals());
    let blamed = |found: &Found| {
        let lost = found.records.iter().filter(|record| record.class < 2);
        let frames = |record: &Record| -> Vec<_> { record.stack.iter().map(|frame| frame.function.clone()).collect() };
        lost.map(|record| format!("\n    {:?} {}", record.amount, frames(record).join(" <- "))).collect::<String>()
    };
    assert!(
        theirs[..2] == mine[..2],
        "{}: Memcheck {theirs:?}{}\nheaptrace {mine:?}{}",
        program.exe().display(),
        blamed(memcheck),
        blamed(ours)
    );
}

/// Programs that release, or still hold, all they have.
#[test]
fn nothing_is_lost_in_jq_sqlite3_ls_xmllint() {
    for program in [jq(), sqlite3(), ls(), xmllint()] {
        assert_eq!(assert_definite_equal(&program), Amount::default(), "{}", program.exe().display());
    }
}

/// Python's objects are known by pointers behind their garbage collector's header, which makes most of them possible.
#[test]
fn nothing_is_lost_in_python3() {
    assert_definite_equal(&python3());
}

/// git leaves small things behind at its end, some of them lost.
#[test]
fn what_git_loses() {
    let lost = assert_definite_equal(&git().args(["log", "--graph", "--oneline"]));
    assert!(lost.blocks > 0, "git has mended its leaks: take another command");
    let lost = assert_definite_equal(&git().args(["blame", "file3"]));
    assert!(lost.blocks > 0, "git has mended its leaks: take another command");
}

/// perl does not tidy up, unless told to, and has lost the only pointers to some of what it had.
#[test]
fn what_perl_loses() {
    let lost = assert_definite_equal(&perl());
    assert!(lost.blocks > 0, "perl has mended its leaks: take another program");
}

/// A server on the socket that it got, asked for something, then told to end.
fn serve(server: Running, socket: &Path) -> crate::support::running::Ended {
    procfs::wait_until("redis-server listens", || UnixStream::connect(socket).is_ok());
    for request in ["SET key value\r\n", "LPUSH list a b c\r\n", "HSET hash field value\r\n", "GET key\r\n"] {
        let mut stream = UnixStream::connect(socket).unwrap();
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut answer = [0; 2];
        std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
    }
    server.signal(Signal::SIGTERM);
    server.wait()
}

/// redis-server on SIGTERM, which it takes for a request to end in order: with jemalloc, threads, and all its data.
#[test]
fn redis_server_on_sigterm() {
    let socket = |name: &str| -> PathBuf {
        // a socket's path is limited to 107 bytes, which the build directory may exceed
        std::env::temp_dir().join(format!("heaptrace-leaks-{name}-{}.sock", std::process::id()))
    };
    let program = |socket: &Path| {
        let socket = socket.to_str().unwrap();
        let args = ["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--daemonize", "no"];
        Program::new(installed(Path::new("redis-server"))).args(args)
    };
    let path = socket("memcheck");
    let under_memcheck = program(&path);
    let memcheck = under_memcheck.memcheck_command(&["--soname-synonyms=somalloc=*jemalloc*"]);
    serve(under_memcheck.start_under(memcheck), &path).success();
    let memcheck = under_memcheck.memcheck_found();

    let path = socket("heaptrace");
    let under_heaptrace = program(&path);
    let ended = serve(under_heaptrace.start_checked(&[]), &path);
    let checked = under_heaptrace.collect_checked(ended);
    let ours = Found::from_report(&checked.report);
    compare(&under_heaptrace, &memcheck, &ours);
    let expected = if ours.totals()[0].blocks > 0 { 23 } else { 0 };
    assert_eq!(checked.ended.code(), expected, "{}", checked.ended.stderr);
    assert!(ours.totals()[3].blocks > 100);
}
