//! Strings and byte strings as CPython keeps them.

use super::layout::TextLayout;
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};

/// Where an object has its type.
pub(super) const TYPE: u64 = 8;

/// Where strings have their length, and objects of variable size theirs.
pub(super) const LENGTH: u64 = 16;

/// Where strings have their state, and byte strings their bytes.
const STATE: usize = 32;

/// Nothing that a person has named is longer.
const LONGEST: u64 = 1 << 12;

/// No function has more bytes of lines.
const LONGEST_BYTES: u64 = 1 << 20;

/// The string at `at`, whose type must be `text_type`; None if it is none of the compact form (PEP 393), which all
/// names in code objects have. What is no character by itself (surrogates) is replaced. With the size of the object in
/// bytes.
pub(super) fn string<M>(memory: &mut M, at: Addr, text_type: Addr, layout: TextLayout) -> Option<(String, u64)>
where
    M: ReadMemory + ?Sized,
{
    let mut head = [0; 40];
    if memory.read(at, &mut head) < head.len() || word(&head, TYPE as usize) != Some(text_type.0) {
        return None;
    }
    let length = word(&head, LENGTH as usize).filter(|length| *length <= LONGEST)?;
    let state = word(&head, STATE)?;
    let (width, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
    if !is_compact || !matches!(width, 1 | 2 | 4) || (is_ascii && width != 1) {
        return None;
    }
    let begin = if is_ascii { layout.ascii } else { layout.compact };
    let bytes = read(memory, at.add(begin), length * width)?;
    let text = match width {
        1 if is_ascii && !bytes.is_ascii() => return None,
        1 => bytes.iter().copied().map(char::from).collect(),
        2 => {
            let units = bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
            units.map(|unit| char_of(u32::from(unit))).collect()
        }
        _ => {
            let units = bytes.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
            units.map(char_of).collect()
        }
    };
    Some((text, begin + length * width))
}

fn char_of(unit: u32) -> char {
    char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte string (`PyBytesObject`) at `at`, with the size of the object.
pub(super) fn bytes<M: ReadMemory + ?Sized>(memory: &mut M, at: Addr) -> Option<(Vec<u8>, u64)> {
    let length = memory.read_u64(at.add(LENGTH)).filter(|length| *length <= LONGEST_BYTES)?;
    Some((read(memory, at.add(STATE as u64), length)?, STATE as u64 + length))
}

/// A piece of memory; None if any byte of it can't be read.
pub(super) fn read<M: ReadMemory + ?Sized>(memory: &mut M, at: Addr, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    (memory.read(at, &mut bytes) == bytes.len()).then_some(bytes)
}
