//! The oracles themselves must be right before anything is held against them.

use crate::support::ledger::Ledger;
use crate::support::program::Program;
use crate::support::{fixtures, procfs};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Ledger, in-process counter and Memcheck agree about a program that uses every allocator entry.
#[test]
fn ledger_counter_and_memcheck_agree() {
    let program = Program::fixture("peak");
    let (ended, counts) = program.counted();
    ended.success();
    let ledger = program.ledger();
    for name in ["allocations", "frees", "reallocations", "bytes_allocated", "bytes_freed", "live_blocks", "live_bytes"]
    {
        assert_eq!(counts.root[name], ledger.total(name), "{name}");
    }
    assert_eq!(counts.others, 0);
    let (_, [allocations, frees, bytes]) = program.memcheck();
    assert_eq!(
        [allocations, frees, bytes],
        [ledger.total("allocations"), ledger.total("frees"), ledger.total("bytes_allocated")]
    );
}

/// The counter knows every entry and every way in which it can fail.
#[test]
fn counter_knows_every_entry() {
    let program = Program::fixture("basic");
    let (ended, counts) = program.counted();
    assert_eq!(ended.code(), 7);
    let ledger = program.ledger();
    for (name, value) in &counts.root {
        assert_eq!(*value, ledger.total(name), "{name}");
    }
}

/// The ledger's lines are read as they are written.
#[test]
fn ledger_is_parsed() {
    let ledger = Ledger::parse("ledger allocations=3 live_bytes=20\nsite f allocations=2\nsite g allocations=1\n");
    assert_eq!(ledger.total("live_bytes"), 20);
    assert_eq!(ledger.sites["f"]["allocations"], 2);
    assert_eq!(ledger.sites.len(), 2);
}

/// The comparison of code with its file finds what a debugger writes, and nothing in a process left alone.
#[test]
fn changed_code_is_noticed() {
    let program = Program::fixture("victim").args(["1"]);
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    procfs::assert_left_as_it_was(pid);
    let mapping = procfs::text_mappings(pid).into_iter().find(|mapping| mapping.path == program.exe()).unwrap();
    let memory = std::fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")).unwrap();
    // the last byte of the mapping is slack: changing it harms nobody
    std::os::unix::fs::FileExt::write_all_at(&memory, &[0xcc], mapping.end - 1).unwrap();
    let differences = procfs::text_differences(pid);
    assert_eq!(differences.len(), 1);
    assert_eq!(differences[0].0, program.exe());
    victim.wait().success();
}

/// Markers in the sources are found.
#[test]
fn site_markers_are_found() {
    let line = fixtures::site_line("sites", "leaf");
    let text = std::fs::read_to_string(fixtures::source("sites")).unwrap();
    assert!(text.lines().nth(usize::try_from(line).unwrap() - 1).unwrap().contains("inlined(size)"));
}

/// Memcheck's records are read with blocks and bytes of their own, without what hangs on them.
#[test]
fn memcheck_records_are_read() {
    let program = Program::new(fixtures::program("leaks/trees"));
    let (_, found) = program.memcheck_leaks(&[]);
    let functions = found.by_function();
    let amounts = |name: &str| functions[name].map(|amount| [amount.blocks, amount.bytes]);
    assert_eq!(amounts("list_head"), [[1, 24], [0, 0], [0, 0], [0, 0]]);
    assert_eq!(amounts("list_item"), [[0, 0], [20_000, 480_000], [0, 0], [0, 0]]);
    assert_eq!(amounts("held_node"), [[0, 0], [0, 0], [0, 0], [63, 2016]]);
}

/// Builds the programs that tests ask for by name alone, several at once. `./test` does this first, so that no test
/// waits for the compilers of others.
#[test]
#[ignore = "only a saving of time: tests build what they need themselves"]
fn fixtures_are_built() {
    let mut names = BTreeSet::new();
    for file in sources_of_tests() {
        let text = std::fs::read_to_string(file).unwrap();
        for asked in ["Program::fixture(\"", "fixtures::program(\""] {
            names.extend(text.split(asked).skip(1).filter_map(|rest| rest.split('"').next().map(str::to_owned)));
        }
    }
    // what a helper of a test completes is no name yet
    names.retain(|name| {
        ["c", "cc", "rs"].iter().any(|kind| fixtures::source_dir().join(format!("{name}.{kind}")).exists())
    });
    assert!(names.len() > 100, "{names:?}");
    let names = Mutex::new(names.into_iter());
    let next = || names.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(name) = next() {
                    fixtures::program(&name);
                }
            });
        }
    });
}

/// Each line of the lists of tests that `./test` reads names a test.
#[test]
fn each_name_in_the_lists_has_a_test() {
    let output = Command::new(std::env::current_exe().unwrap()).args(["--list", "--format=terse"]).output().unwrap();
    let all = String::from_utf8(output.stdout).unwrap();
    let tests: Vec<&str> = all.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    assert!(tests.len() > 800, "{}", tests.len());
    for (list, about) in [("both_engines", 150..=220), ("quick", 50..=70)] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(list)).unwrap();
        let names: Vec<String> =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("suite::{line}")).collect();
        for name in &names {
            assert!(tests.iter().any(|test| test.starts_with(name.as_str())), "tests/{list}: no test is {name}…");
        }
        // as `./test` has them chosen: by a part of the name
        let chosen = tests.iter().filter(|test| names.iter().any(|name| test.contains(name.as_str()))).count();
        assert!(about.contains(&chosen), "tests/{list} chooses {chosen} tests, not {about:?}");
    }
}

fn sources_of_tests() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}
