//! `heaptrace view`: which page is opened, by what, and what is said where nothing opens it.

use crate::support::program::Program;
use crate::support::tempdir::TempDir;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Writes a program that notes its words in a file beside it, and ends with `status`.
fn noting(path: &Path, status: u8) {
    std::fs::write(path, format!("#!/bin/sh\necho \"$@\" > \"$0.words\"\nexit {status}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// What such a program was told.
fn words(path: &Path) -> Option<String> {
    let told = std::fs::read_to_string(format!("{}.words", path.display())).ok()?;
    Some(told.trim_end().to_owned())
}

/// Asks for a view of a file, with these browsers and nothing else in $PATH but what is in `folder`.
fn view(folder: &Path, browsers: &str, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
    command.arg("view").args(words).current_dir(folder).env("BROWSER", browsers).env("PATH", folder);
    command.env("XDG_CACHE_HOME", folder.join("cache")).output().unwrap()
}

#[test]
fn a_browser_gets_a_page_of_the_profile() {
    let dir = TempDir::new();
    let profile = dir.path().join("a%i.pb.gz");
    let program = Program::fixture("sites");
    program.traced();
    crate::support::copy_file(program.profile_path(), &profile).unwrap();
    let (failing, opening) = (dir.path().join("failing"), dir.path().join("opening"));
    noting(&failing, 3);
    noting(&opening, 0);
    let browsers = format!("{}:{} --new", failing.display(), opening.display());
    let output = view(dir.path(), &browsers, &["a%i.pb.gz"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = String::from_utf8(output.stdout).unwrap().trim_end().to_owned();
    assert_eq!(words(&failing), Some(page.clone()));
    assert_eq!(words(&opening), Some(format!("--new {page}")));
    assert!(std::fs::read_to_string(&page).unwrap().to_lowercase().starts_with("<!doctype html"), "{page}");
    let folder = std::fs::metadata(Path::new(&page).parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o77, 0);
    // a page is opened as it is
    let output = view(dir.path(), opening.to_str().unwrap(), &[&page]);
    assert!(output.status.success());
    assert_eq!(words(&opening), Some(page.clone()));
    // nothing opens it
    let output = view(dir.path(), failing.to_str().unwrap(), &[&page]);
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("could not start a browser") && said.contains(&page), "{said}");
    // pprof reads its own format as it is, and another one converted
    let go = dir.path().join("go");
    noting(&go, 0);
    assert!(view(dir.path(), "", &["--pprof", "a%i.pb.gz"]).status.success());
    assert_eq!(words(&go).unwrap(), "tool pprof -http=: a%i.pb.gz");
    crate::support::copy_file(program.report_path(), dir.path().join("b.json")).unwrap();
    // without the lines of sources there is less in a page
    let length = |words: &[&str]| {
        let output = view(dir.path(), opening.to_str().unwrap(), words);
        assert!(output.status.success());
        std::fs::metadata(String::from_utf8(output.stdout).unwrap().trim_end()).unwrap().len()
    };
    let (with, without) = (length(&["b.json"]), length(&["--no-source", "b.json"]));
    assert!(without < with, "{without} of {with} bytes");
    assert!(view(dir.path(), "", &["--pprof", "b.json"]).status.success());
    let told = words(&go).unwrap();
    assert!(
        told.ends_with("/cache/heaptrace/b.pb.gz") && Path::new(told.rsplit(' ').next().unwrap()).exists(),
        "{told}"
    );
}
