//! Heaps of mimalloc 3, held against what the program knows of its blocks.

use super::*;
use crate::support::python;
use std::path::PathBuf;

/// The releases that the tests have, with records of pages in two places and forms.
fn libraries() -> [PathBuf; 2] {
    python::MIMALLOCS.map(python::mimalloc)
}

/// One thread, two and sixteen, with the library before glibc's malloc, and linked.
#[test]
fn each_block_of_mimalloc_3_is_found() {
    for library in libraries() {
        for threads in ["1", "2", "16"] {
            let program = Program::fixture("blocks_of").args([threads]).env("LD_PRELOAD", &library);
            assert_blocks(&program, "mimalloc", true);
        }
        let linked = fixtures::program_linked("blocks_of", &[&library]);
        assert_blocks(&Program::new(linked), "mimalloc", true);
    }
}

/// What threads leave that have ended, blocks with large alignments and huge ones, and blocks of any thread that others
/// have freed.
#[test]
fn what_ended_threads_leave_is_found() {
    for library in libraries() {
        let (running, pid, blocks) = start_blocks(&Program::fixture("left_blocks").env("LD_PRELOAD", &library));
        let answer = heap(pid, &[]);
        assert_eq!(answer["findings"].as_array().unwrap().len(), 0, "{answer}");
        let (found, _) = heap_of(pid);
        for (at, (size, usable)) in &blocks.live {
            let (begin, room) = found.range(..=at).next_back().unwrap_or_else(|| panic!("no block at {at:#x}"));
            assert_eq!(begin + room, at + usable, "{at:#x} of {size}, in one at {begin:#x}");
        }
        for at in &blocks.freed {
            let before = found.range(..=at).next_back();
            assert!(before.is_none_or(|(begin, room)| begin + room <= *at), "{at:#x} is free, and in {before:x?}");
        }
        let more = found.len() - blocks.live.len();
        assert!(more <= 24, "{} blocks, found {}", blocks.live.len(), found.len());
        assert!(blocks.live.len() > 1000 && blocks.freed.len() > 1000, "{}", blocks.live.len());
        end(running, pid);
    }
}

/// Under load, in the midst of its calls: no more is amiss than few things for each thread.
#[test]
fn a_busy_process_with_mimalloc_3_is_looked_at_and_lives() {
    for library in libraries() {
        let program = Program::fixture("victim").args(["4"]).env("LD_PRELOAD", library);
        let (victim, pid) = super::super::attach::start_victim(&program);
        for options in [&[][..], &["--no-stop"]] {
            for _ in 0..super::super::rounds(2) {
                let answer = heap(pid, options);
                assert_eq!(answer["allocator"], "mimalloc", "{answer}");
                assert!(number(&answer, "/uses/live/resident") > 0, "{answer}");
                if options.is_empty() {
                    assert!(answer["findings"].as_array().unwrap().len() <= 4, "{answer}");
                    assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
                }
            }
        }
        let text = String::from_utf8(ask(pid, &[]).stdout).unwrap();
        assert!(text.contains("Arena") && text.contains("in no block") && !text.contains("malloc_trim"), "{text}");
        super::super::attach::assert_victim_well(victim, pid);
    }
}
