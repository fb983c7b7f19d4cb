//! `--save-binaries`: what is kept serves pprof and `--debug-dir` when the program itself is gone.

use crate::support::checks::google_pprof;
use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::tempdir::TempDir;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ID: &str = "abcdef0123456789";
const PLACE: &str = ".build-id/ab/cdef0123456789.debug";

/// The fixture `peak` with a build id of ours, in a folder of its own from which it may vanish.
fn program() -> (TempDir, Program) {
    copy_of(&fixtures::program_with("peak", &[&format!("-Wl,--build-id=0x{ID}")]))
}

fn copy_of(built: &Path) -> (TempDir, Program) {
    let folder = TempDir::new();
    let copy = folder.path().join("peak");
    crate::support::copy_file(built, &copy).unwrap();
    (folder, Program::new(&copy))
}

fn save(program: &Program, options: &[&str]) -> (crate::support::program::Traced, PathBuf) {
    let store = program.outside("store/deep");
    let mut all = vec!["--save-binaries", store.to_str().unwrap()];
    all.extend(options);
    (program.traced_with(&all), store)
}

fn strip(program: &Path) {
    let done = Command::new("strip").arg(program).status().unwrap();
    assert!(done.success());
}

fn inode(path: &Path) -> (u64, u64) {
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.ino(), metadata.size())
}

/// Every mapped file is in the tree, byte by byte, by both its names.
#[test]
fn all_modules_are_saved() {
    let (_home, program) = program();
    let (traced, store) = save(&program, &[]);
    assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
    let mut compared = 0;
    for module in traced.report.list("/modules") {
        let path = Path::new(module["path"].as_str().unwrap());
        let Some(id) = module["build_id"].as_str().filter(|_| path.is_absolute()) else { continue };
        let original = std::fs::read(path).unwrap();
        let in_tree = store.join(".build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
        assert!(std::fs::read(&in_tree).unwrap() == original, "{}", in_tree.display());
        let by_name = store.join(id).join(path.file_name().unwrap());
        assert!(std::fs::read(&by_name).unwrap() == original, "{}", by_name.display());
        compared += 1;
    }
    // the program, libc, the loader
    assert!(compared >= 3, "{compared} of {:?}", traced.report.list("/modules"));
    assert!(traced.ended.stderr.contains("binaries are in"), "{}", traced.ended.stderr);
}

/// pprof finds the names of a profile without names, when the program itself is not there any more.
#[test]
fn pprof_reads_the_saved_binaries() {
    let (_home, program) = program();
    let (traced, store) = save(&program, &["--no-symbolize"]);
    std::fs::remove_file(program.exe()).unwrap();
    let top = |path: &Path| {
        let mut pprof = Command::new(google_pprof());
        pprof.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", path).env("PPROF_TMPDIR", path);
        pprof.env("PPROF_BINARY_PATH", path).args(["-top", "-nodefraction=0"]).arg(&traced.profile);
        String::from_utf8(pprof.output().unwrap().stdout).unwrap()
    };
    assert!(!top(program.folder()).contains("early"), "the names are not in the profile itself");
    let named = top(&store);
    for function in ["early", "high", "main", "__libc_start_main"] {
        assert!(named.contains(function), "no {function} in\n{named}");
    }
}

/// `--debug-dir` reads them too: the names of a program that was stripped meanwhile. A stripped program that is saved
/// later does not replace the better copy; one with symbols replaces a stripped one.
#[test]
fn debug_dir_reads_the_saved_binaries() {
    let (_home, program) = program();
    let (_, store) = save(&program, &[]);
    let place = store.join(PLACE);
    let whole = inode(&place);
    strip(program.exe());
    let plain = program.traced().report;
    assert_eq!(plain.sites_at(&["early", "main"]).count(), 0, "the program has no symbols any more");
    let (traced, _) = save(&program, &["--debug-dir", store.to_str().unwrap()]);
    assert!(traced.report.sites_at(&["early", "main"]).count() > 0);
    assert_eq!(inode(&place), whole, "the copy with debug information stays");

    std::fs::remove_file(&place).unwrap();
    save(&program, &[]);
    let stripped = inode(&place);
    assert!(stripped.1 < whole.1);
    save(&program, &[]);
    assert_eq!(inode(&place), stripped, "the same file is not written again");
    let (_home, again) = self::program();
    again.traced_with(&["--save-binaries", store.to_str().unwrap()]);
    assert_eq!(inode(&place).1, whole.1, "the stripped copy gives way to a whole one");
}

/// A module without a build id could not be found again: it is left out, and the user is told.
#[test]
fn without_build_id() {
    let (_home, program) = copy_of(&fixtures::program_with("peak", &["-Wl,--build-id=none"]));
    let (traced, store) = save(&program, &[]);
    assert_eq!(traced.ended.code(), 0);
    let warned = traced.report.list("/warnings").iter().filter_map(|warning| warning.as_str());
    let about: Vec<_> = warned.filter(|warning| warning.contains("build id")).collect();
    assert!(about.len() == 1 && about[0].contains(program.exe().to_str().unwrap()), "{about:?}");
    // the libraries are there
    assert!(store.join(".build-id").read_dir().unwrap().count() >= 2);
}

/// A place that can't be written to is refused before the program starts; what fails later is named and costs the
/// status.
#[test]
fn unwritable_places() {
    let program = Program::new("/bin/true");
    let (file, mark) = (program.outside("file"), program.folder().join("mark"));
    std::fs::write(&file, "").unwrap();
    let below = file.join("store");
    let args = ["run", "--save-binaries", below.to_str().unwrap(), "/usr/bin/touch", mark.to_str().unwrap()];
    let ended = program.start_heaptrace(args).wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains(below.to_str().unwrap()), "{}", ended.stderr);
    assert!(!mark.exists(), "the program has run");

    let (_home, program) = self::program();
    let store = program.outside("store/deep");
    std::fs::create_dir_all(store.join(".build-id")).unwrap();
    std::fs::write(store.join(".build-id/ab"), "a file in the place of a folder").unwrap();
    let (traced, _) = save(&program, &["-q"]);
    assert_eq!(traced.ended.code(), 125);
    assert!(traced.ended.stderr.contains(".build-id/ab"), "{}", traced.ended.stderr);
    assert!(store.join(".build-id").read_dir().unwrap().count() >= 3, "the others are saved");
}
