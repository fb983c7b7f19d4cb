//! Words of the target that lead to an allocator's own structures: where they are looked for.

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::image::maps::{Kind, Mapping};
use std::ops::Range;

/// So much is read at once.
const PIECE: u64 = 64 << 10;

/// Where a module's data ends: behind what comes of its file is memory that begins as zeros.
pub(super) fn end_of_data(data: &Range<Addr>, mappings: &[Mapping]) -> Addr {
    let first = mappings.partition_point(|mapping| mapping.start < data.end);
    let mut end = data.end;
    for mapping in mappings.iter().skip(first) {
        if mapping.start != end || !is_ours(mapping) {
            break;
        }
        end = mapping.end;
    }
    end
}

/// Whether a mapping is memory of the process's own, which it may write to.
pub(super) fn is_ours(mapping: &Mapping) -> bool {
    matches!(mapping.kind, Kind::Anonymous | Kind::Heap)
        && mapping.perms.read
        && mapping.perms.write
        && !mapping.perms.shared
}

/// Tells of all words in a range that are not zero, until `take` says that it is enough.
pub(super) fn words_in(
    range: &Range<Addr>,
    memory: &mut dyn ReadMemory,
    take: &mut dyn FnMut(Addr, u64, &mut dyn ReadMemory) -> bool,
) {
    let mut bytes = Vec::new();
    for part in memory.touched(range.clone()) {
        let mut at = Addr(part.start.max(range.start).0.next_multiple_of(8));
        let end = part.end.min(range.end);
        while at < end {
            let len = PIECE.min(end.0 - at.0);
            bytes.resize(len as usize, 0);
            let read = memory.read(at, &mut bytes);
            for (place, word) in (at.0..).step_by(8).zip(bytes.get(..read).unwrap_or(&[]).chunks_exact(8)) {
                let word = word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
                if word != 0 && !take(Addr(place), word, memory) {
                    return;
                }
            }
            at = at.add(len);
        }
    }
}
