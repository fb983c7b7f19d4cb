//! `heaptrace heap --save`, and what becomes of such files: the same answers as of the process, differences that the
//! fixture's ledger knows, pprof, refusals, fuzzing.

use super::fuzz::{bounded, cases, change, edits};
use crate::support::checks::pprof;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use heaptrace::internal::heapfile::{compare, read, tell_all};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");
/// Magic and version.
const HEAD: usize = 12;
/// What reading may take.
const MEMORY: u64 = 8 << 20;

fn run(words: &[&str], files: &[&Path]) -> Output {
    Command::new(HEAPTRACE).args(words).args(files).output().unwrap()
}

fn answer(words: &[&str], files: &[&Path]) -> String {
    let output = run(words, files);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn row<'a>(rows: &'a Value, name: &str) -> &'a Value {
    let found = rows.as_array().unwrap().iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {rows}"))
}

/// What the fixture says until it is ready: words and numbers; and its id.
fn ledger(running: &mut Running) -> (BTreeMap<String, u64>, String) {
    let mut told = BTreeMap::new();
    loop {
        let line = running.line();
        let (name, value) = line.rsplit_once(' ').unwrap();
        match name {
            "ready" => return (told, value.to_owned()),
            _ => told.insert(name.to_owned(), value.parse().unwrap_or(0)),
        };
    }
}

fn end(mut running: Running, pid: &str) {
    procfs::assert_left_as_it_was(pid.parse().unwrap());
    running.feed(b"");
    running.wait().success();
}

/// Saves the heap of a fixture that lives on.
fn save(pid: &str, path: &Path) {
    answer(&["heap", pid, "--save"], &[path]);
}

/// A file of the fixture with many kinds of objects.
fn seed() -> &'static [u8] {
    static SEED: OnceLock<Vec<u8>> = OnceLock::new();
    SEED.get_or_init(|| saved_of_classes(&["heap"]))
}

/// Looks at the fixture with many kinds of objects by these words, and gives the file.
fn saved_of_classes(words: &[&str]) -> Vec<u8> {
    let dir = TempDir::new();
    let path = dir.path().join("seed.heap");
    let mut running = Program::fixture("classes").start();
    let (_, pid) = ledger(&mut running);
    answer(&[words, &[&pid, "--save"]].concat(), &[&path]);
    end(running, &pid);
    std::fs::read(path).unwrap()
}

/// After the process has ended the file gives the same answers, byte for byte, in all formats.
#[test]
fn a_file_tells_what_the_process_told() {
    let dir = TempDir::new();
    let path = |name: &str| dir.path().join(name);
    let saved = path("a.heap");
    for option in ["--save", "-o"] {
        let mut running = Program::fixture("classes").start();
        let (_, pid) = ledger(&mut running);
        let endings = ["txt", "json", "md", "pb.gz", "heapsnapshot"];
        let files = |name: &str| -> Vec<PathBuf> { endings.map(|ending| path(&format!("{name}.{ending}"))).to_vec() };
        let outputs = |files: &[PathBuf]| -> Vec<String> {
            files.iter().flat_map(|file| ["-o".to_owned(), file.display().to_string()]).collect()
        };
        let (live, later) = (files("live"), files("later"));
        let mut words: Vec<String> = ["heap", &pid, "--color", "never", option].map(str::to_owned).to_vec();
        words.push(saved.display().to_string());
        words.extend(outputs(&live));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = answer(&words, &[]);
        let tree = answer(&["heap", &pid, "--of", "hidden_list"], &[]);
        end(running, &pid);
        let words = outputs(&later);
        let words: Vec<&str> = ["heap"].into_iter().chain(words.iter().map(String::as_str)).collect();
        assert_eq!(answer(&words, &[&saved]), text);
        for (live, later) in live.iter().zip(&later) {
            assert_eq!(std::fs::read(live).unwrap(), std::fs::read(later).unwrap(), "{}", live.display());
        }
        let json = std::fs::read_to_string(path("live.json")).unwrap();
        assert_eq!(answer(&["heap", "--json"], &[&saved]), json);
        assert_eq!(answer(&["heap", "--of", "hidden_list"], &[&saved]), tree);
        // a file of a file is that file
        answer(&["heap", saved.to_str().unwrap(), "--save"], &[&path("b.heap")]);
        assert_eq!(std::fs::read(&saved).unwrap(), std::fs::read(path("b.heap")).unwrap());
        let markdown = std::fs::read_to_string(path("live.md")).unwrap();
        assert!(markdown.contains("| 390.94 KiB | 40 | `global 'hidden_list' in classes` |"), "{markdown}");
    }
}

/// No text out of the blocks is in a file but what the answer tells, and with `--no-text` none.
#[test]
fn no_text_is_kept_that_is_not_shown() {
    const TEXT: &str = "a hidden text";
    let dir = TempDir::new();
    let mut running = Program::fixture("changing").start();
    let (_, pid) = ledger(&mut running);
    for options in [&[][..], &["--no-text"]] {
        let path = dir.path().join("a.heap");
        let words: Vec<&str> = ["heap", &pid, "--json"].iter().chain(options).copied().chain(["--save"]).collect();
        let told = answer(&words, &[&path]);
        let count = told.matches(TEXT).count();
        // that which is there ten times
        assert_eq!(count, usize::from(options.is_empty()), "{told}");
        let body = zstd::decode_all(&std::fs::read(&path).unwrap()[HEAD..]).unwrap();
        let text = TEXT.as_bytes();
        assert_eq!(body.windows(text.len()).filter(|part| *part == text).count(), count);
    }
    end(running, &pid);
}

/// Ids of a snapshot's nodes of a name.
fn ids(snapshot: &Path, name: &str) -> BTreeSet<u64> {
    let file: Value = serde_json::from_slice(&std::fs::read(snapshot).unwrap()).unwrap();
    let numbers: Vec<u64> = file["nodes"].as_array().unwrap().iter().map(number).collect();
    let of_name = numbers.chunks(7).filter(|node| file["strings"][node[1] as usize] == name);
    of_name.map(|node| node[2]).collect()
}

/// Between two files of one process, what came, went and stayed is what the program did; the ids in snapshots of what
/// stayed are the same.
#[test]
fn a_difference_is_what_the_program_did() {
    let dir = TempDir::new();
    let [a, b] = ["a.heap", "b.heap"].map(|name| dir.path().join(name));
    let [first, second] = ["a.heapsnapshot", "b.heapsnapshot"].map(|name| dir.path().join(name));
    let mut running = Program::fixture("changing").start();
    let (before, pid) = ledger(&mut running);
    save(&pid, &a);
    running.send("");
    let (after, _) = ledger(&mut running);
    save(&pid, &b);
    end(running, &pid);
    let diff: Value = serde_json::from_str(&answer(&["diff", "--json"], &[&a, &b])).unwrap();
    assert_eq!(diff["same_process"], true);
    for name in ["Goes", "Comes", "Mixed"] {
        let told = row(&diff["types"], name);
        let of =
            |ledger: &BTreeMap<String, u64>, what: &str| ledger.get(&format!("{what} {name}")).copied().unwrap_or(0);
        let (came, went) = (of(&after, "came"), of(&after, "went"));
        let expected = [of(&before, "phase1"), of(&after, "phase2"), came, went, of(&before, "phase1") - went];
        let members = ["before", "after", "came", "went", "stayed"];
        assert_eq!(members.map(|member| number(&told[member]["blocks"])), expected, "{told}");
    }
    assert!(!diff["types"].as_array().unwrap().iter().any(|row| row["name"] == "Stays"), "{diff}");
    for (name, member) in [("left", "moved_out"), ("right", "moved_in")] {
        let told = row(&diff["holders"], &format!("global `{name}` in changing"));
        assert_eq!((number(&told[member]["blocks"]), number(&told["came"]["blocks"])), (after["moved Stays"], 0));
    }
    let goes = row(&diff["holders"], "global `goes` in changing");
    assert_eq!(number(&goes["went"]["blocks"]), after["went Goes"], "{goes}");
    // as the files of the heaps themselves have it
    let sizes = [&a, &b].map(|file| {
        let heap: Value = serde_json::from_str(&answer(&["heap", "--json"], &[file])).unwrap();
        heap["types"].as_array().unwrap().iter().map(|of| number(&of["bytes"])).sum::<u64>()
    });
    assert_eq!([&diff["all"]["before"], &diff["all"]["after"]].map(|sum| number(&sum["bytes"])), sizes);
    let text = answer(&["diff"], &[&a, &b]);
    assert!(text.contains("One process (changing") && text.contains("global `right` in changing"), "{text}");
    let markdown = dir.path().join("d.md");
    answer(&["diff", "-o", markdown.to_str().unwrap()], &[&a, &b]);
    let markdown = std::fs::read_to_string(markdown).unwrap();
    assert!(markdown.contains("| +31.64 KiB | 0 B | 31.64 KiB | +150 | 150 | 0 |  | `Comes` |"), "{markdown}");
    // it shrinks one way, and grows the other
    assert_eq!(run(&["diff", "--fail-if-grown", "0"], &[&a, &b]).status.code(), Some(0));
    assert_eq!(run(&["diff", "--fail-if-grown", "0"], &[&b, &a]).status.code(), Some(23));
    for (file, snapshot) in [(&a, &first), (&b, &second)] {
        answer(&["heap", file.to_str().unwrap(), "-o"], &[snapshot]);
    }
    assert_eq!(ids(&first, "Stays").len() as u64, before["phase1 Stays"]);
    assert_eq!(ids(&first, "Stays"), ids(&second, "Stays"));
    let stayed = ids(&first, "Mixed").intersection(&ids(&second, "Mixed")).count() as u64;
    assert_eq!(stayed, before["phase1 Mixed"] - after["went Mixed"]);
}

/// Files of two processes are compared by type and holder only, whatever their addresses and threads are called.
#[test]
fn two_processes_are_compared_by_sums() {
    let dir = TempDir::new();
    let [a, b] = ["a.heap", "b.heap"].map(|name| dir.path().join(name));
    for (path, changes) in [(&a, false), (&b, true)] {
        let mut running = Program::fixture("changing").start();
        let (_, mut pid) = ledger(&mut running);
        if changes {
            running.send("");
            pid = ledger(&mut running).1;
        }
        save(&pid, path);
        end(running, &pid);
    }
    let diff: Value = serde_json::from_str(&answer(&["diff", "--json"], &[&a, &b])).unwrap();
    assert_eq!(diff["same_process"], false);
    for (name, before, after) in [("Goes", 200, 0), ("Comes", 0, 150), ("Mixed", 80, 70)] {
        let told = row(&diff["types"], name);
        assert_eq!([&told["before"], &told["after"]].map(|sum| number(&sum["blocks"])), [before, after]);
        assert!(["came", "went", "stayed", "moved_in"].iter().all(|member| told[member].is_null()), "{told}");
    }
    let right = row(&diff["holders"], "global `right` in changing");
    assert_eq!(number(&right["after"]["blocks"]), 25);
    assert!(answer(&["diff"], &[&a, &b]).contains("Two processes (changing"));
}

/// `go tool pprof` counts the blocks of each type as the report does, and what a holder leads to is what it retains.
#[test]
fn pprof_tells_types_and_what_holders_retain() {
    let dir = TempDir::new();
    let (saved, profile) = (dir.path().join("a.heap"), dir.path().join("a.pb.gz"));
    std::fs::write(&saved, seed()).unwrap();
    let heap: Value =
        serde_json::from_str(&answer(&["heap", "--json", "-o", profile.to_str().unwrap()], &[&saved])).unwrap();
    let rows = |index: &str, column: usize| -> BTreeMap<String, u64> {
        let index = format!("-sample_index={index}");
        let top =
            pprof(&["-top", "-unit=B", "-nodefraction=0", "-edgefraction=0", "-nodecount=100000", &index], &[&profile]);
        let rows = top.lines().skip_while(|line| !line.contains("flat%")).skip(1);
        rows.map(|row| {
            let words: Vec<&str> = row.split_whitespace().collect();
            (words[5..].join(" "), words[column].trim_end_matches('B').parse().unwrap())
        })
        .collect()
    };
    let (objects, space, retained) = (rows("live_objects", 0), rows("live_space", 0), rows("live_space", 3));
    for of in heap["types"].as_array().unwrap() {
        let inferred = if of["certainty"] == "inferred" { " (inferred)" } else { "" };
        let name = format!("{}{inferred}", of["name"].as_str().unwrap());
        assert_eq!((objects[&name], space[&name]), (number(&of["blocks"]), number(&of["bytes"])), "{name}");
    }
    let holders = heap["holders"].as_array().unwrap().iter().filter(|holder| number(&holder["bytes"]) > 0);
    let mut count = 0;
    for holder in holders {
        assert_eq!(retained[holder["name"].as_str().unwrap()], number(&holder["bytes"]), "{holder}");
        count += 1;
    }
    assert!(count >= 3);
    assert_eq!(retained["(lost blocks)"], number(&heap["lost"]["bytes"]));
}

/// What is no whole file of ours is refused in words.
#[test]
fn other_files_are_refused() {
    let dir = TempDir::new();
    let path = dir.path().join("a.heap");
    let refused = |bytes: &[u8], words: &str| {
        std::fs::write(&path, bytes).unwrap();
        let output = run(&["heap"], &[&path]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{told}");
        assert!(told.contains(words) && told.contains("a.heap"), "{words}: {told}");
    };
    let whole = seed();
    for length in [0, 5, 8, 10, 12, 20, whole.len() / 2, whole.len() - 1] {
        refused(&whole[..length], "ends too early");
    }
    refused(&[whole, b"x"].concat(), "something stands behind its end");
    refused(b"{\"version\":1}", "`heaptrace heap --save` has not written this file");
    let mut newer = whole.to_vec();
    newer[8] = 4;
    refused(&newer, "a newer heaptrace has written this file");
    let mut wrong = whole.to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    refused(&wrong, "checksum");
    std::fs::write(&path, whole).unwrap();
    for (words, files, told) in [
        (&["heap", "--trim"][..], &[path.as_path()][..], "for processes"),
        (&["heap"], &[Path::new("nothing")], "name a process by its id"),
        (&["diff"], &[&path, Path::new("Cargo.toml")], "one of the two files is a heap"),
        (&["diff", "--value", "peak"], &[&path, &path], "--value is for profiles"),
        (&["diff", "-o", "x.svg"], &[&path, &path], ".md, .json or .txt"),
    ] {
        let output = run(words, files);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && stderr.contains(told), "{words:?}: {stderr}");
    }
}

/// Files from before cores could be looked at have no word of that, nor of members.
#[test]
fn files_of_the_first_version_are_read() {
    let seed = saved_of_classes(&["heap", "--no-types"]);
    let mut body = zstd::decode_all(&seed[HEAD..]).unwrap();
    let mut at = 0;
    let mut number = || {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = body[at];
            at += 1;
            number |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    };
    // the process, when it began and in which start of the machine; then when it was looked at, and by whom
    number();
    assert_eq!(number(), 1, "it has a start");
    number();
    let boot = number();
    at += boot;
    let mut number = || {
        while body[at] >= 0x80 {
            at += 1;
        }
        at += 1;
    };
    number();
    number();
    assert_eq!(body.remove(at), 0, "no core");
    let mut first = packed(&body);
    first[8] = 1;
    assert_eq!(format!("{:?}", read(&first[..], MEMORY).unwrap()), format!("{:?}", read(&seed[..], MEMORY).unwrap()));
}

/// A file with this in its frame.
fn packed(body: &[u8]) -> Vec<u8> {
    [&seed()[..HEAD], &zstd::encode_all(body, 1).unwrap()].concat()
}

/// Reads it within bounds, and tells all of what could be read. Whether it could be.
fn survives(file: &[u8], size: usize) -> bool {
    let mut could = false;
    bounded(size, || {
        if let Ok(heap) = read(file, MEMORY) {
            tell_all(&heap).unwrap();
            if let Some(diff) = compare(&heap, &heap) {
                assert_eq!(diff.all.came, diff.all.went);
            }
            could = true;
        }
    });
    could
}

/// Small files that say they are large take no more memory than they may.
#[test]
fn lengths_are_not_believed() {
    let long = [0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    let zeros = vec![0; 64 << 20];
    // an id and no start, then a text; or all up to the census, then arenas
    for start in [&[1, 0][..], &[1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]] {
        let file = packed(&[start, &long, &zeros].concat());
        assert!(file.len() < 1 << 20);
        bounded(0, || {
            let error = read(&file[..], MEMORY).unwrap_err();
            assert!(error.to_string().contains("needs more than 8388608 bytes"), "{error}");
        });
    }
    let error = read(seed(), 100 << 10).unwrap_err();
    assert!(error.to_string().contains("needs more than"), "{error}");
}

proptest! {
    #![proptest_config(cases(2000))]

    /// What was changed within the frame is read within bounds, or refused.
    #[test]
    fn changed_heaps_are_read_or_refused(edits in edits()) {
        static BODY: OnceLock<Vec<u8>> = OnceLock::new();
        let body = BODY.get_or_init(|| zstd::decode_all(&seed()[HEAD..]).unwrap());
        let (len, last) = (body.len(), body.len().saturating_sub(600));
        let changed = change(body, &[0..500.min(len), 500.min(len)..2000.min(len), last..len], &edits);
        survives(&packed(&changed), changed.len());
    }

    /// A change of the file itself is found: by the checksum, if by nothing before. Another size of zstd's window
    /// changes nothing.
    #[test]
    fn changed_files_are_refused(edits in edits()) {
        let changed = change(seed(), &[0..20, 20..40], &edits);
        if survives(&changed, changed.len()) {
            prop_assert_eq!(zstd::decode_all(&changed[HEAD..]).unwrap(), zstd::decode_all(&seed()[HEAD..]).unwrap());
        }
    }
}
