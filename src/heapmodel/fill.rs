//! Capacity that a program has never written: told by a byte that fills each block when it is handed out, and that
//! still stands at its end when it is given back.
//!
//! glibc's malloc fills its blocks if its tunable `glibc.malloc.perturb` says so. That it has is not believed, but
//! seen: a block counts only if all of it held the byte when it was handed out. So what is told is true of any
//! allocator: these bytes are as they were then. (A program that writes the very same byte there changes nothing.)
//!
//! What a realloc adds is not filled by glibc. The session writes the byte there before the thread goes on
//! ([`Blocks::resized`] says where), but not between the end of what was asked for and the end of the old chunk: a
//! program may have written there, as malloc_usable_size(3) tells it that it can. What stands there is noted instead: a
//! [`Gap`].

use crate::base::addr::Addr;
use crate::base::figures::{grouped, plural};
use crate::base::memory::ReadMemory;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// What glibc is told to fill freed memory with (`glibc.malloc.perturb`). What it hands out holds the other bits,
/// [`FILL`].
pub const PERTURB: u8 = !FILL;

/// What blocks are filled with: it is in no UTF-8 text, and neither small numbers nor pointers have it.
pub const FILL: u8 = 0xf5;

/// So many bytes are read at once.
const PIECE: usize = 1 << 16;

/// A piece of a filled block.
static FILLED: [u8; PIECE] = [FILL; PIECE];

/// glibc's chunks have no more bytes behind what was asked for: up to a page and two words, where they are mapped for
/// themselves.
const MAX_SLACK: u64 = 4096 + 32;

/// So many gaps are remembered of a block. What lies before the first of them is not told.
const MAX_GAPS: usize = 8;

/// Bits of a chunk's size that tell something else, and that of a chunk which was mapped for itself (glibc's malloc.c).
const FLAGS: u64 = 7;
const IS_MAPPED: u64 = 2;

/// Bytes of a block that held something else when it was handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Gap {
    /// Where it begins, from the block's beginning on.
    at: u64,
    bytes: Box<[u8]>,
}

impl Gap {
    const fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// What lies in this part of the block.
    fn within(&self, part: Range<u64>) -> Option<Self> {
        let (at, end) = (self.at.max(part.start), self.end().min(part.end));
        let inside = |at: u64| usize::try_from(at.checked_sub(self.at)?).ok();
        let bytes = self.bytes.get(inside(at)?..inside(end)?)?;
        (!bytes.is_empty()).then(|| Self { at, bytes: bytes.into() })
    }
}

/// A live block of which it is known what its end held.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Filled {
    size: u64,
    /// From here on nothing had been written when it was handed out: the fill stood there, but for the gaps.
    from: u64,
    /// Ascending; all behind `from`.
    gaps: Vec<Gap>,
}

impl Filled {
    /// How many bytes at its end are as they were.
    fn unwritten(&self, block: Addr, memory: &mut impl ReadMemory) -> u64 {
        let mut end = self.size;
        for gap in self.gaps.iter().rev() {
            end -= filled_end(block, gap.end()..end, memory);
            if end > gap.end() {
                return self.size - end;
            }
            let mut now = vec![0; gap.bytes.len()];
            if memory.read(block.add(gap.at), &mut now) < now.len() {
                return self.size - end;
            }
            end -= now.iter().rev().zip(gap.bytes.iter().rev()).take_while(|(now, then)| now == then).count() as u64;
            if end > gap.at {
                return self.size - end;
            }
        }
        self.size - end + filled_end(block, self.from..end, memory)
    }
}

/// A realloc between its entry and its return.
#[derive(Clone, Debug)]
struct Resizing {
    filled: Filled,
    unwritten: u64,
    /// How much the program may use of the old block, if that is known.
    usable: Option<u64>,
}

/// The live blocks of a process whose ends are known.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    filled: FxHashMap<Addr, Filled>,
    /// By thread and block.
    resizing: FxHashMap<(u32, Addr), Resizing>,
    /// How many blocks of at least a byte were handed out, ...
    handed_out: u64,
    /// ... and of how many of them the end is known.
    known: u64,
}

impl Blocks {
    /// A block was handed out.
    pub fn handed_out(&mut self, block: Addr, size: u64, memory: &mut impl ReadMemory) {
        if size == 0 || filled_end(block, 0..size, memory) < size {
            self.filled.remove(&block);
            self.handed_out += u64::from(size > 0);
        } else {
            self.insert(block, Filled { size, from: 0, gaps: Vec::new() });
        }
    }

    fn insert(&mut self, block: Addr, filled: Filled) {
        self.handed_out += 1;
        self.known += 1;
        self.filled.insert(block, filled);
    }

    /// A block is about to be given back. How many bytes at its end were never written, if that is known.
    pub fn given_back(&mut self, block: Addr, memory: &mut impl ReadMemory) -> Option<u64> {
        self.filled.remove(&block).map(|filled| filled.unwritten(block, memory))
    }

    /// The thread with this serial number is about to have a block resized. The same of the block as it is. `chunks`:
    /// the function may be glibc's, of which the size of a block's chunk is believed.
    pub fn resizes(&mut self, task: u32, block: Addr, chunks: bool, memory: &mut impl ReadMemory) -> Option<u64> {
        // of a call whose return was not seen
        self.resizing.remove(&(task, block));
        let filled = self.filled.remove(&block)?;
        let unwritten = filled.unwritten(block, memory);
        let usable = if chunks { usable(block, filled.size, memory) } else { None };
        self.resizing.insert((task, block), Resizing { filled, unwritten, usable });
        Some(unwritten)
    }

    /// It was resized; null if not. What has to be filled in the new block, then, for its end to be known: if that is
    /// not possible, it is to be [forgotten](Self::forget).
    pub fn resized(
        &mut self,
        task: u32,
        old: Addr,
        (new, size): (Addr, u64),
        memory: &mut impl ReadMemory,
    ) -> Option<Range<Addr>> {
        let before = self.resizing.remove(&(task, old));
        if new.is_null() {
            // It was freed, or it is as it was.
            if let Some(Resizing { filled, .. }) = before.filter(|_| size > 0) {
                self.filled.insert(old, filled);
            }
            return None;
        }
        let was_smaller = |before: &Resizing| before.filled.size < size;
        let Some(Resizing { filled, unwritten, usable }) =
            before.filter(|was| size > 0 && (!was_smaller(was) || was.usable.is_some()))
        else {
            self.filled.remove(&new);
            self.handed_out += u64::from(size > 0);
            return None;
        };
        let old_size = filled.size;
        let mut from = (old_size - unwritten).min(size);
        let mut gaps: Vec<Gap> = filled.gaps.iter().filter_map(|gap| gap.within(from..size)).collect();
        let mut to_fill = None;
        if let Some(usable) = usable.filter(|_| old_size < size) {
            let slack = old_size..usable.min(size);
            let mut bytes = vec![0; usize::try_from(slack.end - slack.start).unwrap_or(0)];
            if memory.read(new.add(slack.start), &mut bytes) < bytes.len() {
                self.filled.remove(&new);
                self.handed_out += 1;
                return None;
            }
            if !bytes.is_empty() && bytes.iter().any(|byte| *byte != FILL) {
                gaps.push(Gap { at: slack.start, bytes: bytes.into() });
            }
            if filled_end(new, slack.end..size, memory) < size - slack.end {
                to_fill = Some(new.add(slack.end)..new.add(size));
            }
        }
        if gaps.len() > MAX_GAPS {
            let first = gaps.len() - MAX_GAPS;
            from = gaps.get(first).map_or(from, |gap| gap.at);
            gaps.drain(..first);
        }
        self.insert(new, Filled { size, from, gaps });
        to_fill
    }

    /// Nothing is known of this block.
    pub fn forget(&mut self, block: Addr) {
        self.known -= u64::from(self.filled.remove(&block).is_some());
    }

    /// How many bytes at the ends of all live blocks were never written, by their addresses.
    pub fn live(&self, memory: &mut impl ReadMemory) -> Vec<(Addr, u64)> {
        let mut live: Vec<(Addr, u64)> =
            self.filled.iter().map(|(block, filled)| (*block, filled.unwritten(*block, memory))).collect();
        live.sort_unstable();
        live
    }

    /// What can't be told, in words.
    pub fn untold(&self) -> Option<String> {
        let Self { known, handed_out, .. } = *self;
        match (known, handed_out) {
            (_, 0) => None,
            (0, _) => Some(format!(
                "capacity that was never written is unknown (--perturb): none of {} had the fill of glibc's malloc; \
                 blocks of calloc and of other allocators lack it",
                plural(handed_out, "block")
            )),
            (known, all) if known < all => Some(format!(
                "capacity that was never written is known for {} of {} (--perturb): the others lacked the fill of \
                 glibc's malloc, as blocks of calloc do",
                grouped(known),
                plural(all, "block")
            )),
            _ => None,
        }
    }
}

/// How many bytes at the end of this part of a block hold the fill. What can't be read does not.
fn filled_end(block: Addr, part: Range<u64>, memory: &mut impl ReadMemory) -> u64 {
    let mut end = part.end;
    let mut piece = Vec::new();
    while end > part.start {
        // the first one reads little: most blocks are small, or written to their ends
        let most = if end == part.end { 4096 } else { PIECE as u64 };
        let length = most.min(end - part.start);
        let start = end - length;
        let Ok(length) = usize::try_from(length) else { break };
        piece.resize(length, 0);
        if memory.read(block.add(start), &mut piece) < length {
            break;
        }
        if Some(piece.as_slice()) == FILLED.get(..length) {
            end = start;
            continue;
        }
        end -= piece.iter().rev().take_while(|byte| **byte == FILL).count() as u64;
        break;
    }
    part.end - end
}

/// How many bytes of a block of glibc's the program may use; None if it does not look like one.
fn usable(block: Addr, size: u64, memory: &mut impl ReadMemory) -> Option<u64> {
    let chunk = memory.read_u64(Addr(block.0.checked_sub(8)?))?;
    let head = if chunk & IS_MAPPED != 0 { 16 } else { 8 };
    let usable = (chunk & !FLAGS).checked_sub(head)?;
    (usable >= size && usable - size <= MAX_SLACK).then_some(usable)
}

#[cfg(test)]
mod tests;
