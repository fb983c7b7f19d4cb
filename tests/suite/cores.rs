//! `heaptrace heap --core` and `leaks --core`: the kernel's core and gdb's tell what the process itself told.

use crate::support::program::{Program, installed};
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

fn run(words: &[&str], paths: &[&Path]) -> Output {
    Command::new(HEAPTRACE).args(words).args(paths).output().unwrap()
}

fn answer(words: &[&str], paths: &[&Path]) -> Value {
    let output = run(words, paths);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(words: &[&str], paths: &[&Path]) -> String {
    let output = run(words, paths);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// Starts a fixture that says `ready PID`.
fn start(program: &Program) -> (Running, String) {
    let mut running = program.start();
    if program.exe().ends_with("heap_of") {
        running.send("begin");
    }
    loop {
        if let Some(pid) = running.line().strip_prefix("ready ") {
            return (running, pid.to_owned());
        }
    }
}

/// What gdb keeps of a process, which lives on.
fn by_gdb(pid: &str, dir: &TempDir) -> PathBuf {
    let gcore = installed(Path::new("/usr/bin/gcore"));
    let status = Command::new(gcore).arg("-o").arg(dir.path().join("gdb")).arg(pid).output().unwrap().status;
    assert!(status.success());
    dir.path().join(format!("gdb.{pid}"))
}

/// What the kernel keeps of a process that a signal ends; None where it gives cores to a program (core(5)), which may
/// put them anywhere.
fn by_kernel(running: Running, pid: &str) -> Option<PathBuf> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let folder = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    let status = Command::new("prlimit").args(["--core=unlimited", "--pid", pid]).status().unwrap();
    assert!(status.success());
    running.signal(Signal::SIGABRT);
    running.wait();
    if pattern.starts_with('|') || pattern.contains('/') {
        return None;
    }
    let is_core =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(pattern.trim()));
    let found = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_core);
    Some(found.expect("the kernel has written a core"))
}

/// Threads have no names in cores.
fn without_thread_names(text: &str) -> String {
    let mut parts = text.split("thread ");
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        let rest = &part[digits.len()..];
        let rest = rest.strip_prefix(" (").and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
        out += &format!("thread {digits}{rest}");
    }
    out
}

/// All that is said of blocks is what was said of the process.
fn assert_same_blocks(live: &Value, core: &Value, what: &str) {
    for key in [
        "pid",
        "threads",
        "allocator",
        "chunks",
        "sizes",
        "findings",
        "reachable",
        "lost",
        "held_by_several",
        "holders",
        "types",
        "largest",
        "duplicates",
        "mapped_bytes_of_allocator",
    ] {
        let text = |value: &Value| without_thread_names(&value[key].to_string());
        assert_eq!(text(core), text(live), "{what}: {key}");
    }
    let of = |value: &Value, name: &str, what: &str| value["uses"][name][what].as_u64().unwrap_or(0);
    for name in ["live", "headers", "bins", "tops", "unknown_heap"] {
        assert_eq!(of(core, name, "reserved"), of(live, name, "reserved"), "{what}: {name}");
    }
    // a page that was only ever read is resident, and holds zeros
    assert!(of(core, "live", "resident") <= of(live, "live", "resident"), "{what}");
}

/// Objects of twenty classes in a dynamic and a static program; several threads' arenas.
#[test]
fn a_core_tells_what_the_process_told() {
    let programs = [
        Program::fixture("classes"),
        Program::new(crate::support::fixtures::program_with("classes", &["-static"])),
        Program::fixture("heap_of"),
        Program::fixture("lost_blocks"),
    ];
    for program in programs {
        let dir = TempDir::new();
        let (running, pid) = start(&program);
        let live = answer(&["heap", "--json", &pid], &[]);
        let lost = answer(&["leaks", "--json", &pid], &[]);
        let mut cores = vec![by_gdb(&pid, &dir)];
        cores.extend(by_kernel(running, &pid));
        for core in cores {
            let what = core.display().to_string();
            let told = answer(&["heap", "--json", "--core"], &[&core, program.exe()]);
            assert_same_blocks(&live, &told, &what);
            assert_eq!(told["core"]["missing"], 0, "{what}");
            assert_eq!(told["stood_ns"], Value::Null, "{what}");
            // a core is known by what it is, too
            assert_eq!(answer(&["heap", "--json"], &[&core]), told, "{what}");
            let leaks = answer(&["leaks", "--json", "--core"], &[&core]);
            for key in ["definite", "indirect", "possible", "reachable", "unreadable_bytes"] {
                assert_eq!(leaks["leaks"][key], lost["leaks"][key], "{what}: {key}");
            }
            assert_eq!(leaks["sizes"], lost["sizes"], "{what}");
            // and goes into files, as a process does
            let saved = dir.path().join("saved.heap");
            answer(&["heap", "--json", "--core", core.to_str().unwrap(), "--save"], &[&saved]);
            assert_eq!(answer(&["heap", "--json"], &[&saved]), told, "{what}");
        }
    }
}

/// What is wrong is told with its cause, and what can be told without is.
#[test]
fn what_is_missing_is_said() {
    let dir = TempDir::new();
    let program = Program::fixture("lost_blocks");
    let (running, pid) = start(&program);
    let core = by_gdb(&pid, &dir);
    running.signal(Signal::SIGABRT);
    let whole = answer(&["leaks", "--json", "--core"], &[&core]);

    let other = refused(&["heap", "--core"], &[&core, Path::new("/bin/true")]);
    assert!(other.contains("/bin/true is not the program of this core"), "{other}");
    assert!(refused(&["leaks", "--core"], &[&dir.path().join("none")]).contains("none: can't be read"));
    assert!(refused(&["leaks", "--core"], &[program.exe()]).contains("not a core file"));

    // without the files its globals have no names, and the blocks are the same
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let output = run(&["heap", "--json", "--core", core.to_str().unwrap(), "--sysroot"], &[&empty]);
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert!(
        warnings.contains("libc.so.6") && warnings.contains("its symbols and constants are missing here"),
        "{warnings}"
    );
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let with_files = answer(&["heap", "--json", "--core"], &[&core]);
    assert_eq!(told["chunks"], with_files["chunks"]);

    // cut anywhere: told, or refused; never a crash
    let bytes = fs::read(&core).unwrap();
    let cut = dir.path().join("cut");
    let mut told = 0;
    for part in 1..=16 {
        fs::write(&cut, &bytes[..bytes.len() * part / 16 - 1]).unwrap();
        let output = run(&["leaks", "--json", "--core"], &[&cut]);
        let error = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            Some(0) => told += 1,
            Some(1 | 125) => assert!(error.contains("can't be walked") || error.contains("it ends before"), "{error}"),
            _ => panic!("{:?}: {error}", output.status),
        }
    }
    assert!(told > 0);
    // the kernel's have their notes first
    let (running, pid) = start(&program);
    if let Some(core) = by_kernel(running, &pid) {
        let bytes = fs::read(&core).unwrap();
        fs::write(&cut, &bytes[..bytes.len() - (16 << 10)]).unwrap();
        assert!(answer(&["heap", "--json", "--core"], &[&cut])["core"]["missing"].as_u64() > Some(0));
        let output = run(&["heap", "--core"], &[&cut]);
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        assert!(words.join(" ").contains("The file was cut: "), "{text}");
    }
    assert!(whole["leaks"]["definite"]["blocks"].as_u64() > Some(0));
    let untold = whole["leaks"]["untold"].as_array().unwrap();
    assert!(["timers", "epoll"].iter().all(|held| untold.contains(&serde_json::json!(held))), "{untold:?}");
}
