//! The heap as gdb tells it, with the structures that libc's own debug information has: the same chunks.

use super::{end, heap, number, start};
use crate::support::fixtures;
use crate::support::program::Program;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What `chunks_by_gdb.py` counts in process `pid`.
fn by_gdb(pid: i32) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/chunks_by_gdb.py");
    let mut gdb = Command::new("gdb");
    let output = gdb.args(["-q", "-nx", "-batch", "-p", &pid.to_string(), "-x"]).arg(script).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let chunks = text.lines().find_map(|line| line.strip_prefix("chunks "));
    let chunks = chunks.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(chunks).unwrap()
}

/// Blocks in both arenas, threads' caches, fast bins, bins and ends: as many, and as large.
#[test]
fn the_chunks_are_those_that_gdb_counts() {
    let program = Program::new(fixtures::program("heap_of"));
    let (running, pid, _) = start(&program);
    let told = by_gdb(pid);
    let answer = heap(pid, &[]);
    let of = |state: &str, what: &str| number(&answer, &format!("/chunks/{state}/{what}"));
    for state in ["tcache", "fast", "free", "top"] {
        assert_eq!(of(state, "count"), number(&told, &format!("/{state}/0")), "{state}: {answer}\n{told}");
        assert_eq!(of(state, "bytes"), number(&told, &format!("/{state}/1")), "{state}: {answer}\n{told}");
    }
    // gdb's script counts the caches themselves, which are the allocator's own, among the blocks
    let live = |what: &str| of("live", what) + of("own", what);
    assert_eq!(live("count"), number(&told, "/live/0"), "{answer}\n{told}");
    assert_eq!(live("bytes"), number(&told, "/live/1"), "{answer}\n{told}");
    end(running, pid);
}
