use super::*;
use crate::base::addr::ObjAddr;
use std::collections::BTreeMap;

/// Words by their addresses.
#[derive(Default)]
struct Words(BTreeMap<u64, u64>);

impl ReadMemory for Words {
    fn read(&mut self, addr: Addr, buffer: &mut [u8]) -> usize {
        match self.0.get(&addr.0) {
            Some(word) if buffer.len() == 8 => {
                buffer.copy_from_slice(&word.to_le_bytes());
                8
            }
            _ => 0,
        }
    }
}

const BIAS: u64 = 0x7f00_0000_0000;
const THREAD: u64 = 0x7e00_0000_1000;
const DTV: u64 = 0x5500_0000_0010;
const SLOT: u64 = 0x3fb0;
const SIZE: u64 = 0x50;

fn library(slots: Vec<TlsSlot>) -> ThreadLocals {
    let tls = Tls { image: 0x2000..0x2000 + SIZE, align: 16 };
    ThreadLocals { tls, bias: LoadBias(BIAS), slots: Some(slots), module: 4 }
}

const fn slot(kind: TlsSlotKind, by_symbol: bool, variable: u64) -> TlsSlot {
    TlsSlot { by_symbol, kind, at: ObjAddr(SLOT), variable }
}

/// A thread of glibc with three entries: used, not used yet, never given.
fn glibc() -> Words {
    let words = [
        (THREAD, THREAD),
        (THREAD + 8, DTV),
        (DTV - 16, 3),
        (DTV, 7),
        (DTV + 16, THREAD - 0x100),
        (DTV + 32, 0x5500_0000_8000),
        (DTV + 48, u64::MAX),
    ];
    Words(words.into_iter().collect())
}

fn starts(module: ThreadLocals, is_glibc: bool, mut words: Words) -> Vec<u64> {
    let blocks = found(&[module], is_glibc, &[Addr(THREAD)], &mut words);
    assert!(blocks.iter().all(|block| block.module == 4 && block.range.end.0 - block.range.start.0 == SIZE));
    blocks.iter().map(|block| block.range.start.0).collect()
}

#[test]
fn numbers_lead_by_the_vectors_of_glibc() {
    let of = |number: u64| {
        let mut words = glibc();
        words.0.insert(BIAS + SLOT, number);
        starts(library(vec![slot(TlsSlotKind::Module, false, 0)]), true, words)
    };
    assert_eq!(of(1), [THREAD - 0x100]);
    assert_eq!(of(2), [0x5500_0000_8000]);
    // not used yet, beyond the last, none
    assert_eq!([of(3), of(4), of(0), of(u64::MAX)], [[0u64; 0]; 4]);
}

#[test]
fn numbers_lead_by_the_vectors_of_musl() {
    let of = |number: u64| {
        let words = [(THREAD + 8, DTV), (DTV, 2), (DTV + 8, THREAD - 0x80), (DTV + 16, 0x5500_0000_9000)];
        let mut words = Words(words.into_iter().collect());
        words.0.insert(BIAS + SLOT, number);
        starts(library(vec![slot(TlsSlotKind::Module, false, 0)]), false, words)
    };
    assert_eq!(of(1), [THREAD - 0x80]);
    assert_eq!(of(2), [0x5500_0000_9000]);
    assert_eq!(of(3), [0u64; 0]);
}

#[test]
fn offsets_lead_from_the_control_block() {
    let of = |value: u64, variable: u64| {
        let mut words = glibc();
        words.0.insert(BIAS + SLOT, value);
        starts(library(vec![slot(TlsSlotKind::Offset, false, variable)]), true, words)
    };
    assert_eq!(of(0u64.wrapping_sub(0xa0 - 0x28), 0x28), [THREAD - 0xa0]);
    // not aligned; beyond the control block; behind it; too far
    assert_eq!(of(0u64.wrapping_sub(0xa8), 0), [0u64; 0]);
    assert_eq!(of(0u64.wrapping_sub(0x40), 0), [0u64; 0]);
    assert_eq!(of(0x100, 0), [0u64; 0]);
    assert_eq!(of(1 << 63, 0), [0u64; 0]);
}

#[test]
fn descriptors_lead_both_ways() {
    let of = |argument: u64, pair: Option<(u64, u64)>| {
        let mut words = glibc();
        words.0.insert(BIAS + SLOT + 8, argument);
        if let Some((number, offset)) = pair {
            words.0.extend([(argument, number), (argument + 8, offset)]);
        }
        starts(library(vec![slot(TlsSlotKind::Descriptor, false, 0x20)]), true, words)
    };
    assert_eq!(of(0u64.wrapping_sub(0xa0 - 0x20), None), [THREAD - 0xa0]);
    assert_eq!(of(0x5500_0000_4000, Some((2, 0x20))), [0x5500_0000_8000]);
    // another variable's
    assert_eq!(of(0x5500_0000_4000, Some((2, 0x28))), [0u64; 0]);
    assert_eq!(of(0x5500_0000_4000, None), [0u64; 0]);
}

/// The program has a variable of the name that the library's slot names: the library's block is not where the program's
/// is.
#[test]
fn what_a_symbol_says_may_be_anothers() {
    let program = ThreadLocals { slots: None, module: 0, ..library(Vec::new()) };
    let mut words = glibc();
    words.0.insert(BIAS + SLOT, 0u64.wrapping_sub(SIZE));
    let named = library(vec![slot(TlsSlotKind::Offset, true, 0)]);
    let blocks = found(&[named.clone(), program.clone()], true, &[Addr(THREAD)], &mut words);
    let modules: Vec<u32> = blocks.iter().map(|block| block.module).collect();
    assert_eq!(modules, [0]);
    // a slot without a symbol is the library's own
    words.0.insert(BIAS + 0x4000, 2);
    let sure = TlsSlot { at: ObjAddr(0x4000), ..slot(TlsSlotKind::Module, false, 0) };
    let both = ThreadLocals { slots: Some(vec![sure, slot(TlsSlotKind::Offset, true, 0)]), ..named };
    let blocks = found(&[both, program], true, &[Addr(THREAD)], &mut words);
    let of_library = blocks.iter().find(|block| block.module == 4).unwrap();
    assert_eq!(of_library.range.start, Addr(0x5500_0000_8000));
}

/// Slots that contradict each other say nothing.
#[test]
fn slots_that_contradict_each_other_are_left_alone() {
    let mut words = glibc();
    words.0.extend([(BIAS + SLOT, 1), (BIAS + 0x4000, 2)]);
    let other = TlsSlot { at: ObjAddr(0x4000), ..slot(TlsSlotKind::Module, false, 0) };
    assert_eq!(starts(library(vec![slot(TlsSlotKind::Module, false, 0), other]), true, words), [0u64; 0]);
}
