//! The oracles themselves must be right before anything is held against them.

use crate::support::ledger::Ledger;
use crate::support::program::Program;
use crate::support::{fixtures, procfs};

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
