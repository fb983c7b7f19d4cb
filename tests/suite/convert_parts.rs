//! `heaptrace convert` of real runs: parts by marks and times against an account, names on another machine, what the
//! user sees.

use crate::support::checks::google_pprof;
use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");
const ID: &str = "abcdef0123456789";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn report(program: &Program, trace: &Path, options: &[&str]) -> Value {
    let words = ["convert", "-q", text(trace), "-o", "-", "--format", "json"];
    let ended = program.start_heaptrace(words.iter().chain(options)).wait().success();
    serde_json::from_slice(&ended.stdout).unwrap()
}

/// Allocations, frees, and what is live: blocks and bytes.
fn figures(report: &Value) -> [u64; 6] {
    ["allocations", "bytes_allocated", "frees", "bytes_freed", "live_blocks", "live_bytes"]
        .map(|figure| report["totals"][figure].as_u64().unwrap())
}

fn step(running: &mut Running, line: &str) {
    running.send(line);
    running.line();
}

fn order(pid: &str, words: &[&str]) {
    let done = Command::new(HEAPTRACE).args(["ctl", pid]).args(words).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Of a program that does what it is told, each part is exactly what it did then; pauses and marks leave the whole what
/// it was in the run, byte for byte.
#[test]
fn parts_between_marks_are_what_was_done_then() {
    let program = Program::fixture("steps");
    let trace = program.outside("t.fxt.zst");
    let mut running = program.start_traced(&["--trace", text(&trace)]);
    let pid = running.value("ready ");
    step(&mut running, "a 10 100");
    order(&pid, &["mark", "one"]);
    step(&mut running, "a 5 1000");
    step(&mut running, "b 3 7");
    step(&mut running, "free a 4");
    order(&pid, &["mark", "two"]);
    order(&pid, &["pause"]);
    step(&mut running, "a 9 50");
    step(&mut running, "free a 1");
    order(&pid, &["resume"]);
    step(&mut running, "free b 1");
    program.collect(running.wait().success());
    let of = |options: &[&str]| figures(&report(&program, &trace, options));
    assert_eq!(of(&["--at", "@one"]), [10, 1000, 0, 0, 10, 1000]);
    assert_eq!(of(&["--at", "@two"]), [18, 6021, 4, 400, 14, 5621]);
    assert_eq!(of(&["--from", "@one", "--to", "@two"]), [8, 5021, 4, 400, 8, 5021]);
    assert_eq!(of(&["--to", "@one"]), [10, 1000, 0, 0, 10, 1000]);
    assert_eq!(of(&["--from", "@two"]), [0, 0, 2, 107, 0, 0]);
    assert_eq!(of(&["--from", "@one"]), [8, 5021, 6, 507, 7, 5014]);
    assert_eq!(of(&[]), [18, 6021, 6, 507, 12, 5514]);
    let again = ["again.json", "again.pb.gz"].map(|name| program.outside(name));
    let words = ["convert", "-q", text(&trace), "-o", text(&again[0]), "-o", text(&again[1])];
    program.start_heaptrace(words).wait().success();
    assert!(fs::read(program.report_path()).unwrap() == fs::read(&again[0]).unwrap());
    assert!(fs::read(program.profile_path()).unwrap() == fs::read(&again[1]).unwrap());

    let wrong = program.start_heaptrace(["convert", "-q", text(&trace), "--at", "@three"]).wait();
    assert_eq!(wrong.code(), 125);
    assert!(
        wrong.stderr.contains("the trace has no mark named `three`") && wrong.stderr.contains("one, two"),
        "{}",
        wrong.stderr
    );
    let svg = |value: &str| {
        let words = ["convert", "-q", text(&trace), "-o", "-", "--format", "folded", "--value", value];
        let folded = program.start_heaptrace(words).wait().success().text();
        folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    assert_eq!((svg("live"), svg("allocated")), (5514, 6021));
}

/// The fixture `peak` with a build id of ours, in a folder of its own.
fn copy() -> (TempDir, Program) {
    let built = fixtures::program_with("peak", &[&format!("-Wl,--build-id=0x{ID}")]);
    let folder = TempDir::new();
    let copy = folder.path().join("peak");
    crate::support::copy_file(built, &copy).unwrap();
    (folder, Program::new(&copy))
}

/// What was traced without names gets them where its files are, whatever stands in the program's place now.
#[test]
fn names_are_found_on_another_machine() {
    let (home, program) = copy();
    let (trace, store) = (program.outside("t.fxt"), program.outside("store"));
    program.traced_with(&["--no-symbolize", "--trace", text(&trace), "--save-binaries", text(&store)]);
    let sysroot = program.outside("root");
    let below = sysroot.join(text(program.exe()).trim_start_matches('/'));
    fs::create_dir_all(below.parent().unwrap()).unwrap();
    fs::rename(program.exe(), &below).unwrap();
    let has_names = |options: &[&str]| report(&program, &trace, options)["frames"].to_string().contains("\"early\"");
    assert!(!has_names(&[]), "the program is gone");
    assert!(has_names(&["--debug-dir", text(&store)]));
    assert!(has_names(&["--sysroot", text(&sysroot)]));

    // Another program of the same name and the same addresses: its names would be lies.
    let other = fixtures::program_with("peak", &["-Wl,--build-id=0x1234567812345678"]);
    crate::support::copy_file(other, program.exe()).unwrap();
    assert!(!has_names(&[]));
    assert!(has_names(&["--debug-dir", text(&store)]));
    let ended = program.start_heaptrace(["convert", "-q", text(&trace), "-o", "-", "--format", "txt"]).wait().success();
    let told = ended.text() + &ended.stderr;
    assert!(told.contains("build id"), "{told}");

    // pprof reads the same folder.
    let profile = program.outside("unnamed.pb.gz");
    program.start_heaptrace(["convert", "-q", "--no-symbolize", text(&trace), "-o", text(&profile)]).wait().success();
    fs::remove_file(program.exe()).unwrap();
    let mut pprof = Command::new(google_pprof());
    pprof.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home.path()).env("PPROF_TMPDIR", home.path());
    pprof.env("PPROF_BINARY_PATH", &store).args(["-top", "-nodefraction=0"]).arg(&profile);
    let top = String::from_utf8(pprof.output().unwrap().stdout).unwrap();
    assert!(top.contains("early") && top.contains("high"), "{top}");
}

/// Names of outputs have the patterns of `run`, and the process's own values.
#[test]
fn names_of_outputs_have_patterns() {
    let program = Program::fixture("peak");
    let trace = program.outside("t.fxt");
    let traced = program.traced_with(&["--trace", text(&trace)]);
    let pid = traced.report.number("/pid");
    let pattern = program.outside("%n.%p.json");
    program.start_heaptrace(["convert", "-q", text(&trace), "-o", text(&pattern)]).wait().success();
    assert!(program.outside(&format!("peak.{pid}.json")).exists());
    program.start_heaptrace(["convert", "-q", text(&trace)]).wait().success();
    assert!(program.folder().join(format!("heaptrace.peak.{pid}.pb.gz")).exists());
}

/// On a terminal a bar shows how far it is, unless nobody wants to hear anything.
#[test]
fn a_terminal_gets_a_progress_bar() {
    let program = Program::fixture("pairs").args(["40000"]);
    let trace = program.outside("bar.fxt");
    program.traced_with(&["--trace", text(&trace)]);
    let on_terminal = |options: &str| {
        let shell = format!(
            "stty cols 100; '{HEAPTRACE}' convert {options} '{}' -o '{}'",
            text(&trace),
            text(&program.outside("x.json"))
        );
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &shell, "/dev/null"]).env("TERM", "xterm").stdin(std::process::Stdio::null());
        let output = script.output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = on_terminal("");
    assert!(shown.contains("bar.fxt [") && shown.contains("MiB/"), "{shown}");
    assert_eq!(on_terminal("-q"), "");
    assert!(!on_terminal("--progress never").contains("bar.fxt ["));
}
