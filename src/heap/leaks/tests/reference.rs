//! Random heaps, against the definitions of the Valgrind manual written down as plainly as can be: sets that grow until
//! nothing is added any more.

use super::*;
use crate::heap::leaks::{BlockIndex, PartRead, Pointer, Pointers};
use proptest::prelude::*;

/// A value in a slot: nothing, a pointer to a block's start, or that many bytes behind it; and with a tag in its upper
/// 16 bits.
#[derive(Clone, Debug)]
enum Slot {
    Nothing,
    Start(usize),
    Behind(usize, u64),
    Tagged(usize, u64, u64),
}

const SLOTS: usize = 4;
const ROOT_SLOTS: usize = 6;

fn slot(blocks: usize) -> impl Strategy<Value = Slot> {
    prop_oneof![
        5 => Just(Slot::Nothing),
        4 => (0..blocks).prop_map(Slot::Start),
        2 => (0..blocks, 0..80u64).prop_map(|(n, offset)| Slot::Behind(n, offset)),
        1 => (0..blocks, 0..12u64, 1..1u64 << 16).prop_map(|(n, offset, tag)| Slot::Tagged(n, offset, tag)),
    ]
}

fn heap() -> impl Strategy<Value = (Vec<u64>, Vec<Vec<Slot>>, Vec<Slot>)> {
    (1..24usize).prop_flat_map(|n| {
        (
            // distances between blocks, in words: adjacent ones too, and some far away
            prop::collection::vec(prop_oneof![Just(9u64), 9..30u64, Just(100_000u64), Just(1 << 20)], n),
            prop::collection::vec(prop::collection::vec(slot(n), SLOTS), n),
            prop::collection::vec(slot(n), ROOT_SLOTS),
        )
    })
}

/// Blocks of 72 bytes, 64-byte offsets and more may point past the end.
struct Naive {
    starts: Vec<u64>,
    /// From block (or root: None) to block, by start or not.
    edges: Vec<(Option<usize>, usize, bool)>,
}

const SIZE: u64 = 72;

impl Naive {
    fn block_of(&self, value: u64) -> Option<(usize, bool)> {
        let address = value % (1 << 48);
        let size = if address == value { SIZE } else { 8 };
        self.starts
            .iter()
            .position(|start| (*start..start + size).contains(&address))
            .map(|n| (n, self.starts[n] == value))
    }

    fn grow(&self, mut set: Vec<bool>, may: impl Fn(Option<usize>, bool, &[bool]) -> bool) -> Vec<bool> {
        loop {
            let before = set.clone();
            for (from, to, start) in &self.edges {
                if may(*from, *start, &set) {
                    set[*to] = true;
                }
            }
            if set == before {
                return set;
            }
        }
    }

    fn classes(&self) -> Vec<LeakClass> {
        let n = self.starts.len();
        let reachable = self.grow(vec![false; n], |from, start, set| start && from.is_none_or(|from| set[from]));
        let possible = self.grow(reachable.clone(), |from, _, set| from.is_none_or(|from| set[from]));
        let leads_to = |a: usize| {
            let mut set = vec![false; n];
            set[a] = true;
            self.grow(set, |from, _, set| from.is_some_and(|from| set[from]))
        };
        let leads: Vec<_> = (0..n).map(leads_to).collect();
        (0..n)
            .map(|block| {
                let others = (0..n).filter(|other| *other != block && !possible[*other] && leads[*other][block]);
                let mut others = others.collect::<Vec<_>>();
                if reachable[block] {
                    Reachable
                } else if possible[block] {
                    Possible
                } else if others.iter().any(|other| !leads[block][*other]) {
                    Indirect
                } else {
                    // a cycle, with nothing before it
                    others.retain(|other| self.starts[*other] < self.starts[block]);
                    if others.is_empty() { Definite } else { Indirect }
                }
            })
            .collect()
    }
}

/// A heap with these blocks and roots.
fn made(distances: &[u64], slots: &[Vec<Slot>], roots: &[Slot]) -> (Target, Naive) {
    let mut at = HEAP;
    let starts: Vec<u64> = distances
        .iter()
        .map(|words| {
            at += words * 8;
            at
        })
        .collect();
    let value = |slot: &Slot| match slot {
        Slot::Nothing => 0,
        Slot::Start(n) => starts[*n],
        Slot::Behind(n, offset) => starts[*n] + offset,
        Slot::Tagged(n, offset, tag) => starts[*n] + offset + (tag << 48),
    };
    let mut target = Target { root_size: 4096, ..Target::default() };
    let mut naive = Naive { starts: starts.clone(), edges: Vec::new() };
    for (i, slot) in roots.iter().enumerate() {
        target.root(i as u64 * 3, value(slot));
        naive.edges.extend(naive.block_of(value(slot)).map(|(to, start)| (None, to, start)));
    }
    for (n, slots) in slots.iter().enumerate() {
        target.block(starts[n], SIZE);
        for (i, slot) in slots.iter().enumerate() {
            target.word(starts[n] + i as u64 * 16, value(slot));
            naive.edges.extend(naive.block_of(value(slot)).map(|(to, start)| (Some(n), to, start)));
        }
    }
    (target, naive)
}

/// The pointers of all blocks and roots, in order.
fn pointers(graph: &Graph) -> (Vec<Vec<Pointer>>, Vec<u32>) {
    let blocks = (0..graph.blocks().len() as u32).map(|block| graph.pointers(block).collect()).collect();
    (blocks, graph.root_pointers().map(|(.., block)| block).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn classes_are_those_of_the_definitions((distances, slots, roots) in heap()) {
        let (mut target, naive) = made(&distances, &slots, &roots);
        target.blocks.reverse();
        let scan = target.scan_with(&ScanOptions { heuristics: Heuristics::NONE, ..ScanOptions::default() });
        let classes: Vec<_> = scan.blocks().map(|(_, class)| class).collect();
        prop_assert_eq!(&classes, &naive.classes());
        for (n, (_, class)) in scan.blocks().enumerate() {
            check_path(&mut target, &scan, n, class)?;
            match scan.leader(n) {
                Some(leader) => prop_assert!(class == Indirect && classes[leader] == Definite),
                None => prop_assert!(class != Indirect),
            }
        }
    }

    /// Blocks that are read in two parts have the same pointers, wherever the parts meet; some blocks lie in others.
    #[test]
    fn two_parts_have_the_pointers_of_the_whole((distances, slots, roots) in heap(), nested in 0..4usize) {
        let (mut target, naive) = made(&distances, &slots, &roots);
        for start in naive.starts.iter().step_by(nested + 1).take(nested * 4) {
            target.block(start + 16, 24);
        }
        let (roots, options) = (target.roots(), ScanOptions::default());
        target.map(ROOTS);
        let whole = Graph::read(target.blocks.clone(), &roots, &mut target, &options);
        let index = BlockIndex::new(target.blocks.clone());
        let (starts, end) = (index.starts(), index.blocks().len());
        for cut in 0..=end {
            let mut part = |part| PartRead::of(&index, &starts, part, &mut target, &options.files, &mut ());
            let parts = [part(0..cut), part(cut..end)];
            let read = Pointers::of_parts(&index, &roots, &mut target, &options, parts);
            let joined = Graph::join(index.clone(), &roots, read);
            prop_assert_eq!(pointers(&joined), pointers(&whole), "{}", cut);
            prop_assert_eq!(joined.unreadable_bytes(), whole.unreadable_bytes());
        }
        prop_assert!(index.middle() <= end);
    }
}

/// Each step of a path must be there in memory.
fn check_path(target: &mut Target, scan: &Scan, n: usize, class: LeakClass) -> Result<(), TestCaseError> {
    let Some(path) = scan.path_to(n) else {
        prop_assert!(matches!(class, Definite | Indirect));
        return Ok(());
    };
    prop_assert!(matches!(class, Reachable | Possible));
    let mut place = path.root_address.unwrap();
    for step in &path.steps {
        let addr = scan.block(step.block).unwrap().0.addr;
        let untagged = target.read_u64(place).map(|word| word % (1 << 48));
        prop_assert_eq!(untagged, Some(addr.0 + step.target_offset));
        prop_assert!(class == Possible || step.target_offset == 0);
        place = addr.add(step.next_offset.unwrap_or(0));
    }
    prop_assert_eq!(path.steps.last().map(|step| (step.block, step.next_offset)), Some((n, None)));
    Ok(())
}
