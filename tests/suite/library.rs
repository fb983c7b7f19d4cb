//! The library's face, as another crate uses it.

use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::tempdir::TempDir;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds an example in the folder and the profile that the program under test was built in.
fn example(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_heaptrace")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "--offline", "--quiet", "--example", name, "--target-dir"]);
    build.arg(folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    folder.join("examples").join(name)
}

/// The example runs a program, judges it, reads the profile and writes it in the formats that it is told.
#[test]
fn the_library_runs_checks_reads_and_writes() {
    let embed = example("embed");
    let dir = TempDir::new();
    for output in ["report.json", "profile.pb.gz", "flame.svg", "it.junit.xml"] {
        let file = dir.path().join(output);
        let told = Command::new(&embed).arg(&file).arg(fixtures::program("leaks/trees")).output().unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        let text = String::from_utf8(told.stdout).unwrap();
        assert!(text.contains("\nleaks\n") && text.contains("bytes at the peak"), "{text}");
        assert!(text.lines().any(|line| line == "    main"), "{text}");
    }
    let report = std::fs::read(dir.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["verdict"]["result"], "leaks");
}

/// The other example sees of a process what the program sees, and saves a file that the program reads.
#[test]
fn the_library_looks_at_a_heap() {
    let look = example("heap");
    let dir = TempDir::new();
    let file = dir.path().join("now.heap");
    let mut running = Program::fixture("untouched").start();
    let pid = running.value("ready");
    let output = Command::new(&look).arg(&pid).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen = |of: &dyn AsRef<OsStr>| {
        let heaptrace = env!("CARGO_BIN_EXE_heaptrace");
        let output = Command::new(heaptrace).args(["heap", "--json"]).arg(of).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        ["live", "mapped"].iter().filter_map(|kind| answer["chunks"][kind]["count"].as_u64()).sum::<u64>()
    };
    let blocks = seen(&pid);
    assert_eq!(seen(&file), blocks);
    let text = String::from_utf8(output.stdout).unwrap();
    let bytes = text.strip_prefix(&format!("untouched: {blocks} blocks, ")).and_then(|text| text.split(' ').next());
    // the fixture keeps 100 MiB, by its own count
    assert!(bytes.and_then(|bytes| bytes.parse::<u64>().ok()).is_some_and(|bytes| bytes >= 100 << 20), "{text}");
    running.feed(b"");
    running.wait().success();
}
