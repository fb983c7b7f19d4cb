//! The library's face, as another crate uses it.

use crate::support::fixtures;
use crate::support::tempdir::TempDir;
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
