//! The rings of all threads, merged into one order by the records' keys.
//!
//! A call that gives something back has an odd key, 2s + 1 with a number s of its own, taken before it begins; the end
//! of a call an even one, 2g, where g is how many numbers had been taken by then. Numbers have no holes, but a thread
//! that has taken one may not have published its record yet. So:
//!
//! * all rings' heads are read twice: a record with an odd key is taken if it lies below the first reading, one with an
//!   even key below the second. Before a free's key was taken, the allocation of its block was published: it is below
//!   the second reading;
//! * the record with the number s is taken when all with smaller numbers were; an even key 2g when all numbers below g
//!   were.
//!
//! A number that does not come belongs to a thread in its commit window, or to one that is gone. Who must have all that
//! is there ([`Merge::skip`]) passes over it.

use super::layout::{
    CELL_HEAD, CELL_TAIL, CELLS, FLAG_CALLER, FLAG_COPY, FLAG_LISTED, FLAG_SIZED, FLAG_TOLD, KIND_MASK, Kind,
    PICKED_SHIFT, RECORD_ARGS, RECORD_CALLER, RECORD_KEY, RECORD_OUT, RECORD_RESULT, RECORD_SIZE, RECORD_WHAT,
    RING_LEAST, RING_MOST, cell_at, record_at,
};
use super::shared::Shared;
use crate::base::addr::Addr;

/// A record, as a thread has written it; nothing of it is checked but its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What orders it.
    pub key: u64,
    /// What it tells.
    pub kind: Kind,
    /// The function.
    pub function: u16,
    /// What its stack is.
    pub stack: RecordedStack,
    /// With which interval the call was picked: see [`RECORD_WHAT`].
    pub picked: u8,
    /// [`FLAG_TOLD`] and [`FLAG_SIZED`], as bits 0 and 1: see [`Self::told`], which looks at them. Whatever is done in
    /// [`Self::of`] is done for each record.
    pub passed: u8,
    /// What the function returned. See [`RECORD_RESULT`].
    pub result: u64,
    /// Its first three arguments.
    pub args: [u64; 3],
    /// The block's address, where it was written to memory.
    pub out: u64,
    /// The return address of the call.
    pub caller: u64,
}

/// What a record says of its stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordedStack {
    /// It is the one with this id.
    Known(u32),
    /// It was not walked: the id of the stack that has the caller only; 0: the thread found none.
    Caller(u32),
    /// It is the list with this number, of the thread whose record or frame it is.
    Listed(u32),
    /// It lies in this copy slot.
    Copied(u32),
}

impl RecordedStack {
    /// As the second word of a record, or of a frame, has it.
    #[inline(always)]
    pub const fn of(what: u64) -> Self {
        let number = what as u32;
        if what & FLAG_LISTED != 0 {
            Self::Listed(number)
        } else if what & FLAG_COPY != 0 {
            Self::Copied(number)
        } else if what & FLAG_CALLER != 0 {
            Self::Caller(number)
        } else {
            Self::Known(number)
        }
    }
}

/// The function that the second word of a record, or of a frame, names.
pub const fn function_of(what: u64) -> u16 {
    (what >> 32) as u16
}

impl Record {
    /// The block that it is about, as far as the record says by itself.
    #[inline]
    pub const fn block(&self) -> Addr {
        Addr(if matches!(self.kind, Kind::Ended) { self.result } else { self.args[0] })
    }

    /// The size of the block, if it is known, and its alignment (0: none), as an operator was given them that has
    /// passed the block on to this call.
    #[inline]
    pub fn told(&self) -> Option<(Option<u64>, u64)> {
        let is_told = self.kind == Kind::Freed && self.passed & 1 != 0;
        is_told.then_some(((self.passed & 2 != 0).then_some(self.out), self.result))
    }

    /// How many calls of the thread were counted, and not recorded, since it picked a block last, as a record tells
    /// that is of no end.
    #[inline]
    pub fn counted(&self) -> u64 {
        if self.kind == Kind::Ended || self.told().is_some() { 0 } else { self.result }
    }

    /// From its bytes. None if it is of no known kind.
    #[inline(always)]
    pub fn of(words: &[u64; (RECORD_SIZE / 8) as usize]) -> Option<Self> {
        let at = |offset: u64| words.get((offset / 8) as usize).copied().unwrap_or(0);
        let what = at(RECORD_WHAT);
        let kind = match (what >> 48) as u8 & KIND_MASK {
            1 => Kind::Freed,
            2 => Kind::Began,
            3 => Kind::Ended,
            _ => return None,
        };
        Some(Self {
            key: at(RECORD_KEY),
            kind,
            function: function_of(what),
            stack: RecordedStack::of(what),
            picked: (what >> PICKED_SHIFT) as u8,
            passed: (what >> FLAG_TOLD.trailing_zeros()) as u8 & 3,
            result: at(RECORD_RESULT),
            args: [at(RECORD_ARGS), at(RECORD_ARGS + 8), at(RECORD_ARGS + 16)],
            out: at(RECORD_OUT),
            caller: at(RECORD_CALLER),
        })
    }
}

/// Why no more records were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// There were as many as were asked for.
    Enough,
    /// Nothing is left of what was there at the last [`Merge::look`].
    Empty,
    /// A record waits for one with a smaller number, which is not there yet, or came after the rings were looked at
    /// first.
    Waits,
    /// A cell's ring is not as a thread leaves it: it is closed, and what it holds is lost.
    Damaged(u16),
}

#[derive(Clone, Copy, Debug)]
struct Ring {
    cell: u16,
    /// How many records it has room for: a power of two.
    records: u64,
    /// Records taken so far.
    taken: u64,
    /// What the tail says: the thread may write as far beyond it as the ring is long.
    told: u64,
    /// The heads at the two readings.
    first: u64,
    second: u64,
    /// The next record's key; None if there is none below the second reading.
    key: Option<u64>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Merge {
    rings: Vec<Ring>,
    /// All smaller numbers were taken, or passed over.
    next: u64,
    /// Cells whose heads can't be true, and that nobody was told of yet.
    damaged: Vec<u16>,
}

/// So many records before one is read its line is asked for: the thread's processor has it.
const READ_AHEAD: u64 = 24;

/// After so many records at the latest a thread may use their places again.
const TELL_EACH: u64 = 64;

impl Merge {
    /// Takes up a cell whose ring is empty, and has room for so many `records`: its head and tail are at `position`.
    pub fn open(&mut self, cell: u16, position: u64, records: u64) {
        self.close(cell);
        let records = records.clamp(RING_LEAST, RING_MOST);
        let (taken, told, first, second) = (position, position, position, position);
        self.rings.push(Ring { cell, records, taken, told, first, second, key: None });
    }

    /// Forgets a cell.
    pub fn close(&mut self, cell: u16) {
        self.rings.retain(|ring| ring.cell != cell);
    }

    /// Tells the thread of the cell once more how much of its ring was taken. None if it has none; else how many
    /// records that were.
    pub fn tell_again<S: Shared + ?Sized>(&mut self, cell: u16, shared: &S) -> Option<u64> {
        let ring = self.rings.iter_mut().find(|ring| ring.cell == cell)?;
        ring.told = !ring.taken;
        ring.tell(shared);
        Some(ring.taken)
    }

    /// How many records the ring of a cell was seen to hold at the last [`Self::look`] that were not taken yet.
    pub fn left(&self, cell: u16) -> u64 {
        let ring = self.rings.iter().find(|ring| ring.cell == cell);
        ring.map_or(0, |ring| ring.second.wrapping_sub(ring.taken))
    }

    /// How many records a ring of the largest size would have held at the last [`Self::look`] that was as full as the
    /// fullest one is, of those that can't grow.
    pub fn fullest(&self, can_grow: bool) -> u64 {
        let filled = |ring: &Ring| {
            let left = ring.second.wrapping_sub(ring.taken);
            if can_grow { left } else { left.saturating_mul(RING_MOST / ring.records) }
        };
        self.rings.iter().map(filled).max().unwrap_or(0)
    }

    /// Reads how far the rings are filled.
    pub fn look<S: Shared + ?Sized>(&mut self, shared: &S) {
        for ring in &mut self.rings {
            ring.first = shared.word(cell_at(ring.cell.into()) + CELL_HEAD);
        }
        for ring in &mut self.rings {
            ring.second = shared.word(cell_at(ring.cell.into()) + CELL_HEAD);
            ring.key = ring.peek(shared);
        }
        self.damaged.extend(self.rings.iter().filter(|ring| ring.is_damaged()).map(|ring| ring.cell));
    }

    /// Takes the next records of those that were there at the last [`Self::look`], `most` of them at most, each with
    /// its cell.
    pub fn take<S: Shared + ?Sized>(&mut self, shared: &S, most: usize, taken: &mut Vec<(u16, Record)>) -> Next {
        let enough = taken.len().saturating_add(most);
        while taken.len() < enough {
            let next = self.take_run(shared, enough, taken);
            if next != Next::Enough {
                self.rings.iter_mut().for_each(|ring| ring.tell(shared));
                return next;
            }
        }
        Next::Enough
    }

    /// Takes records of the ring that has the smallest key, for as long as it does.
    fn take_run<S: Shared + ?Sized>(&mut self, shared: &S, enough: usize, taken: &mut Vec<(u16, Record)>) -> Next {
        if let Some(cell) = self.damaged.pop() {
            self.close(cell);
            return Next::Damaged(cell);
        }
        let Some((at, others)) = self.smallest() else { return Next::Empty };
        let Some(ring) = self.rings.get_mut(at) else { return Next::Empty };
        let cell = ring.cell;
        while taken.len() < enough
            && let Some(key) = ring.key
            && others.is_none_or(|others| (key, at) < others)
        {
            let (number, is_odd) = (key / 2, key % 2 == 1);
            if is_odd && ring.taken >= ring.first {
                // It came while the heads were read. Others, with larger numbers, may have waited for it since long
                // before.
                return if self.rings.iter().any(Ring::has_early) { Next::Waits } else { Next::Empty };
            }
            if number > self.next {
                return Next::Waits;
            }
            let Some(record) = ring.take(shared) else {
                self.close(cell);
                return Next::Damaged(cell);
            };
            if is_odd {
                self.next = self.next.max(number + 1);
            }
            taken.push((cell, record));
        }
        Next::Enough
    }

    /// The ring with the smallest key, and the smallest key of all others with its ring; of equal keys that of the ring
    /// that comes first. With many threads each record needs this: one pass, without branches that depend on the keys.
    #[inline]
    fn smallest(&self) -> Option<(usize, Option<(u64, usize)>)> {
        const NONE: (u64, usize) = (u64::MAX, usize::MAX);
        let (mut least, mut other) = (NONE, NONE);
        for this in self.rings.iter().enumerate().map(|(at, ring)| (ring.key.unwrap_or(u64::MAX), at)) {
            let is_least = this.0 < least.0;
            let is_other = this.0 < other.0;
            other = if is_least {
                least
            } else if is_other {
                this
            } else {
                other
            };
            least = if is_least { this } else { least };
        }
        let found = |(key, at): (u64, usize)| (at != NONE.1).then_some((key, at));
        found(least).map(|(_, at)| (at, found(other)))
    }

    /// Passes over numbers that have not come, up to the first record that waits.
    pub fn skip(&mut self) {
        if let Some(key) = self.rings.iter().filter_map(|ring| ring.key).min() {
            self.next = self.next.max(key / 2);
        }
    }
}

impl Ring {
    /// Whether its head can't be true.
    const fn is_damaged(&self) -> bool {
        let filled = self.second.wrapping_sub(self.taken);
        filled > self.records || self.first.wrapping_sub(self.taken) > filled
    }

    /// Whether it holds a record that was there at the first reading.
    const fn has_early(&self) -> bool {
        self.taken != self.second && self.taken < self.first
    }

    #[inline(always)]
    fn at(&self) -> u64 {
        self.record(self.taken)
    }

    /// Where the record of this number is.
    #[inline(always)]
    fn record(&self, number: u64) -> u64 {
        record_at(self.cell.into(), self.records, number)
    }

    #[inline(always)]
    fn peek<S: Shared + ?Sized>(&self, shared: &S) -> Option<u64> {
        // no key is the largest number, but the program may write there
        (self.taken != self.second).then(|| shared.word(self.at() + RECORD_KEY).min(u64::MAX - 1))
    }

    /// Reads the next record and gives its place back. None if it is none.
    #[inline(always)]
    fn take<S: Shared + ?Sized>(&mut self, shared: &S) -> Option<Record> {
        let mut words = [0; (RECORD_SIZE / 8) as usize];
        let ahead = self.taken.wrapping_add(READ_AHEAD);
        // what is not there yet its thread is about to write
        if self.second.wrapping_sub(ahead) <= self.records {
            shared.prefetch(self.record(ahead));
        }
        if !shared.copy_words(self.at(), &mut words) {
            return None;
        }
        let record = Record::of(&words);
        self.taken = self.taken.wrapping_add(1);
        if self.taken.is_multiple_of(TELL_EACH) {
            self.tell(shared);
        }
        self.key = self.peek(shared);
        record
    }

    /// Gives the places of all records that were taken back to the thread.
    fn tell<S: Shared + ?Sized>(&mut self, shared: &S) {
        if self.told != self.taken {
            shared.set_word(cell_at(self.cell.into()) + CELL_TAIL, self.taken);
            self.told = self.taken;
        }
    }
}

const _: () = assert!(CELLS <= u16::MAX as u64 && FLAG_SIZED == 2 * FLAG_TOLD);

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
