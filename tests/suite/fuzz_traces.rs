//! Fuzzers of event traces, as `fuzz.rs` has them of other files: whatever the bytes, nothing panics, hangs, or takes
//! memory without bound. Real traces are changed bit by bit, and record by record.

use super::fuzz::{Edits, bounded, cases, change, edits};
use crate::support::program::Program;
use heaptrace::internal::trace::reader::Reader;
use heaptrace::internal::trace::{Ending, Moment, Replay, ReplayOptions, TracePart, fxt};
use proptest::prelude::*;
use proptest::sample::Index;
use std::ops::Range;
use std::sync::OnceLock;

/// A real trace, and where its records lie.
struct Seed {
    bytes: Vec<u8>,
    records: Vec<Range<usize>>,
}

/// A tree of processes, a chain of execs, leaks that are looked for, and the rest of a circular trace.
fn seeds() -> &'static [Seed] {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let circular = ["--trace-mode", "circular", "--trace-size", "256KiB"];
        vec![
            seed(&Program::fixture("fork_many").args(["4"]), &["-f"]),
            seed(&Program::fixture("exec_chain"), &[]),
            seed(&Program::fixture("basic"), &["--sample-interval", "100"]),
            seed(&Program::fixture("pairs").args(["2500"]), &circular),
        ]
    })
}

fn seed(program: &Program, options: &[&str]) -> Seed {
    let trace = program.outside("seed.fxt");
    let mut words = vec!["--trace", trace.to_str().unwrap()];
    words.extend_from_slice(options);
    program.start_traced(&words).wait();
    let bytes = std::fs::read(&trace).unwrap();
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + 8) {
        let end = at + 8 * fxt::record_words(u64::from_le_bytes(header.try_into().unwrap()));
        records.push(at..end);
        at = end;
    }
    Seed { bytes, records }
}

/// One change of the order of records, or of a record as a whole.
#[derive(Clone, Debug)]
enum Change {
    Swap(Index, Index),
    Repeat(Index, u8),
    Remove(Index),
    /// A record with this header, which says its own length, and random words.
    MakeUp(Index, u64, u64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    // Mostly types that there are, and short.
    let header = (any::<u64>(), 0_u64..10, 0_u64..40).prop_map(|(noise, kind, words)| {
        let rest = noise & !0xffff;
        kind | words << 4 | rest
    });
    let change = prop_oneof![
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Swap(a, b)),
        (any::<Index>(), 1_u8..40).prop_map(|(at, times)| Change::Repeat(at, times)),
        any::<Index>().prop_map(Change::Remove),
        (any::<Index>(), header, any::<u64>()).prop_map(|(at, header, noise)| Change::MakeUp(at, header, noise)),
    ];
    prop::collection::vec(change, 0..8)
}

/// The trace with these changes, and where the heads of its records are then.
fn rearranged(seed: &Seed, changes: &[Change]) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut records: Vec<Vec<u8>> = seed.records.iter().map(|record| seed.bytes[record.clone()].to_vec()).collect();
    for change in changes {
        let at = |index: &Index| index.index(records.len());
        match change {
            Change::Swap(a, b) => {
                let (a, b) = (at(a), at(b));
                records.swap(a, b);
            }
            Change::Repeat(index, times) => {
                let at = at(index);
                let copies = vec![records[at].clone(); usize::from(*times)];
                records.splice(at..at, copies);
            }
            Change::Remove(index) => drop(records.remove(at(index))),
            Change::MakeUp(index, header, noise) => {
                let words =
                    (1..fxt::record_words(*header).clamp(1, 64) as u64).map(|word| noise.rotate_left(word as u32 * 7));
                let record = std::iter::once(*header).chain(words).flat_map(u64::to_le_bytes);
                let at = at(index);
                records.insert(at, record.collect());
            }
        }
    }
    let mut heads = Vec::new();
    let mut bytes = Vec::new();
    for record in records {
        heads.push(bytes.len()..bytes.len() + record.len().min(24));
        bytes.extend(record);
    }
    (bytes, heads)
}

/// Reads as `heaptrace convert` does.
fn read(bytes: &[u8], part: TracePart) {
    let mut reader = Reader::new(bytes, false);
    let mut replay = Replay::new(ReplayOptions { part, profile_each: true, ..ReplayOptions::default() });
    let ending = loop {
        match reader.next_item() {
            Ok(Some(item)) => replay.take(item),
            Ok(None) => break Ending::Torn,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(reader.skip_rest(1 << 20) <= bytes.len() as u64);
                break Ending::Damaged;
            }
        }
    };
    drop(replay.finish(reader.gaps(), ending));
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn fuzz_traces(which: Index, changes in changes(), edits in prop::option::of(edits()), at in 0_u64..50_000_000) {
        let seed = which.get(seeds());
        let (mut bytes, heads) = rearranged(seed, &changes);
        if let Some(edits) = edits {
            let edits: Edits = edits;
            bytes = change(&bytes, &heads, &edits);
        }
        let (half, at) = (Moment::Time(at / 2), Moment::Time(at));
        for part in [TracePart::Whole, TracePart::At(at), TracePart::Window(at, None), TracePart::Window(half, Some(at))] {
            bounded(bytes.len(), || read(&bytes, part));
        }
    }

    /// Nothing of it is a trace, but its first record.
    #[test]
    fn fuzz_made_up_traces(words in prop::collection::vec((0_u64..16, 0_u64..6, any::<u64>()), 0..200)) {
        let words = words.iter().map(|(kind, words, noise)| kind | words << 4 | (noise & !0xffff));
        let bytes: Vec<u8> = std::iter::once(fxt::MAGIC).chain(words).flat_map(u64::to_le_bytes).collect();
        bounded(bytes.len(), || read(&bytes, TracePart::Whole));
    }
}
