//! Starting a program, its surroundings, and how it ends.

use crate::support::checks::shell_status;
use crate::support::counter::assert_same_behaviour;
use crate::support::program::Program;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// T01: arguments, environment, descriptors, signal mask and dispositions, limits, folder, input, both outputs and exit
/// status are those of a plain run.
#[test]
fn t01_surroundings_are_those_of_a_plain_run() {
    let program = Program::fixture("surroundings")
        .args(["one", "", "three words in one", "--", "-o"])
        .env("EMPTY", "")
        .input(vec![b'x'; 100_000]);
    let plain = program.plain();
    let traced = program.traced();
    // a pipe may be read in other portions
    let differing: Vec<_> = plain
        .text()
        .lines()
        .filter(|line| !line.starts_with("input"))
        .filter(|line| !traced.ended.text().lines().any(|other| other == *line))
        .map(str::to_owned)
        .collect();
    assert!(differing.is_empty(), "seen without heaptrace only: {differing:?}\n{}", traced.ended.text());
    assert_eq!((plain.code(), traced.ended.code()), (23, 23));
    assert!(traced.ended.stderr.contains("on standard error\n"));
}

/// T01: SIGPIPE, which Rust programs ignore, keeps its default.
#[test]
fn t01_sigpipe_is_the_default() {
    let ended = Program::fixture("surroundings").traced().ended;
    assert!(ended.text().contains("signal 13 blocked 0 default"), "{}", ended.text());
}

/// T01: what heaptrace's parent ignores its program ignores, too, as after nohup or in the background of a script.
#[test]
fn t01_ignored_signals_stay_ignored() {
    let program = Program::fixture("surroundings");
    let out = program.outside("heap.json");
    let (exe, out) = (program.exe().to_str().unwrap(), out.to_str().unwrap());
    let ignored = |words: &[&str]| {
        let script = "trap '' HUP INT QUIT PIPE BUS USR1 XFSZ; exec \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).args(words).stdin(Stdio::null());
        let text = String::from_utf8(shell.output().unwrap().stdout).unwrap();
        let signals = text.lines().filter(|line| line.starts_with("signal ") && line.ends_with("ignored"));
        signals.map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = ignored(&[exe]);
    assert_eq!(plain.len(), 7, "{plain:?}");
    assert_eq!(ignored(&[env!("CARGO_BIN_EXE_heaptrace"), "run", "-q", "-o", out, "--", exe]), plain);
}

/// A program that somebody has open for writing (a linker, a copy) can't be started; its loader has no part in that.
#[test]
fn a_program_that_is_being_written() {
    let program = Program::new("/bin/true");
    let copy = program.folder().join("copy");
    crate::support::copy_file(program.exe(), &copy).unwrap();
    let writer = std::fs::OpenOptions::new().append(true).open(&copy).unwrap();
    let ended = program.start_heaptrace(["run", copy.to_str().unwrap()]).wait();
    drop(writer);
    assert_eq!(ended.code(), 126);
    assert!(ended.stderr.contains("Text file busy") && !ended.stderr.contains("loader"), "{}", ended.stderr);
}

/// A program may end by return, exit from any thread, _exit, a raw exit_group or a signal: heaptrace passes the status
/// on as a shell would, and the report tells which it was, with the block that was left.
#[test]
fn every_way_to_end_is_passed_on() {
    for (way, status) in [
        ("return", 31),
        ("_exit", 32),
        ("exit_group", 34),
        ("thread", 33),
        ("abort", 134),
        ("segv", 139),
        ("kill", 137),
        ("realtime", 128 + 34 + 5),
    ] {
        let program = Program::fixture("ends").args([way]);
        let plain = program.plain();
        assert_eq!(shell_status(&plain.status), status, "{way}: the fixture itself");
        let traced = program.traced();
        assert_same_behaviour(&plain, &traced.ended);
        assert_eq!(traced.ended.code(), status, "{way}");
        let exit = &traced.report.0["exit"];
        if status > 128 {
            assert_eq!(exit["signal"], status - 128, "{way}");
        } else {
            assert_eq!(exit["code"], status, "{way}");
        }
        assert_eq!(traced.report.site_sum(&["main"], "/live/bytes"), 1000, "{way}");
        assert_eq!(traced.report.0["complete"], true, "{way}");
    }
}

/// T02: a script is run by its interpreter, and the profile is the interpreter's.
#[test]
fn t02_script_with_shebang() {
    let program = Program::new("/bin/sh");
    let script = program.folder().join("script");
    std::fs::write(&script, "#!/bin/sh\necho hello from \"$1\"\nexit 3\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = Program::new(&script).args(["script"]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "hello from script\n");
    assert_eq!(traced.ended.code(), 3);
    assert!(traced.report.total("allocations") > 0);
}

/// A program that is found by PATH, not by a path.
#[test]
fn program_is_found_by_path_variable() {
    let program = Program::new("/bin/true");
    let ended =
        program.start_heaptrace(["run", "-o", program.report_path().to_str().unwrap(), "sh", "-c", "exit 9"]).wait();
    assert_eq!(ended.code(), 9);
}

/// `--pin` changes neither output nor totals.
#[test]
fn pinned_run_counts_the_same() {
    let program = Program::fixture("peak");
    let traced = program.traced_with(&["--pin"]);
    assert_eq!(traced.ended.code(), 0);
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
}

/// A run that takes part in a pipeline ends by SIGPIPE like any other program.
#[test]
fn closed_pipe_ends_the_program() {
    let program = Program::new("/bin/sh");
    let line = format!(
        "{} run -q -o {} -- /usr/bin/seq 1000000 | head -n 1",
        env!("CARGO_BIN_EXE_heaptrace"),
        program.report_path().display()
    );
    let ended = Program::new("/bin/sh").args(["-c", &line]).plain();
    assert_eq!(ended.text(), "1\n");
    let report = std::fs::read_to_string(program.report_path()).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["exit"]["signal"], 13);
}
