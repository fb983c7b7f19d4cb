//! The threads' cells and rings in the shared region.

use super::{Jump, LastFree, Owner};
use crate::base::addr::{Addr, TaskId};
use crate::event::calls::ToldOfBlock;
use crate::image::maps::Mapping;
use crate::jump::frames;
use crate::jump::layout::{
    CELL_COPIES, CELL_FRAMES, CELL_GONE, CELL_HEAD, CELL_INDEX, CELL_KEYS, CELL_LIMIT, CELL_MODE, CELL_RING, CELL_SIZE,
    CELL_STACK_BEGIN, CELL_STACK_END, CELL_TAIL, CELL_TOLD, CELL_TOLD_ALIGN, CELL_TOLD_FLAGS, CELL_TOLD_HEAD,
    CELL_TOLD_SIZE, COPIES, FLAG_SIZED, FRAME_SIZE, FRAME_SLOT, IMPATIENT, LIST_WORDS, Mode, NESTED, NESTED_KEYS,
    Nested, PATIENT, RECORD_SIZE, RING_LEAST, RING_MOST, SPINS, cell_at, cell_slot, nested_slot, ring_at,
};
use crate::jump::lists::Lists;
use crate::jump::shared::Shared;
use crate::jump::undo::Place;
use crate::tracer::jump::region::SharedMapping;
use std::ops::Range;
use std::time::{Duration, Instant};

/// So many copies of stacks are taken at a time where they come fast.
const FEW_COPIES: u64 = 8;

/// All rings of a process together have room for so many records, 32 MiB, or for what they have at first.
const MAX_RECORDS: u64 = (32 << 20) / RECORD_SIZE;

impl Owner {
    /// Notes a free as the thread's latest. Whether it is the one before, passed on: by a jump, or by a call of the
    /// allocator's own.
    pub(super) fn note_free(&mut self, free: LastFree, by_allocator: bool) -> bool {
        let is_same = self.last_free.is_some_and(|last| {
            last.block == free.block && last.function != free.function && (last.caller == free.caller || by_allocator)
        });
        if !is_same {
            self.last_free = Some(free);
        }
        is_same
    }
}

impl Jump {
    /// The numbers of the cells that a thread has, or has had.
    pub(super) const fn used_cells(&self) -> Range<u16> {
        0..self.used
    }

    pub(super) fn shared(&self) -> &SharedMapping {
        &self.region.mapping
    }

    /// Tells the threads whether it is worth while to wait for room without a stop.
    pub(super) fn note_processors(&self) {
        let spins = if self.by_tid.len() < self.processors { PATIENT } else { IMPATIENT };
        if self.shared().half(SPINS) != spins {
            self.shared().set_half(SPINS, spins);
        }
    }

    /// Notes how fast the rings, lists and slots for copies fill: what the fullest was seen to hold has come since they
    /// were drained last. A few copies count as half of a ring: until the first one was unwound, each call with its new
    /// frame is copied, too.
    pub(super) fn note_pace(&mut self) {
        let copies = self.sum_of_cells(CELL_COPIES);
        // the program can write there
        let copied = copies.wrapping_sub(std::mem::replace(&mut self.copies, copies)).min(COPIES);
        let listed = self.cells.iter().flatten().map(|owner| owner.lists.waiting(&self.region.mapping)).max();
        let listed = listed.unwrap_or(0) * RING_MOST / LIST_WORDS;
        let can_grow = self.has_memory_for(RING_MOST - RING_LEAST);
        let fullest = self.merge.fullest(can_grow).max(copied * (RING_MOST / 2 / FEW_COPIES)).max(listed);
        let since = std::mem::replace(&mut self.drained, Instant::now());
        let passed = self.drained.saturating_duration_since(since);
        let half = passed.as_nanos() * u128::from(RING_MOST / 2) / u128::from(fullest.max(1));
        self.until_half = Duration::from_nanos(u64::try_from(half).unwrap_or(u64::MAX));
    }

    pub(super) fn place(&self, cell: Option<u16>) -> Place<'_> {
        Place { region: self.region.code, code: &self.code, stubs: &self.stubs, cell }
    }

    /// Whether a program counter is in the routine or in a stub.
    pub(in crate::session) fn contains(&self, pc: Addr) -> bool {
        self.place(None).contains(pc)
    }

    pub(in crate::session) fn cell_of(&self, tid: i32) -> Option<u16> {
        self.by_tid.get(&tid).copied()
    }

    pub(super) fn owner_mut(&mut self, cell: u16) -> Option<&mut Owner> {
        self.cells.get_mut(usize::from(cell))?.as_mut()
    }

    /// Gives a thread a cell, whose stack is the mapping `stack`. None if there is none left.
    pub(super) fn give_cell(&mut self, task: TaskId, fs_base: u64) -> Option<u16> {
        let free = self.cells.iter().position(Option::is_none)?;
        let cell = u16::try_from(free).ok()?;
        let slot = self.free_key(fs_base)?;
        let at = cell_at(cell.into());
        let shared = self.shared();
        if cell >= self.used {
            shared.allocate(at, CELL_SIZE);
            shared.allocate(ring_at(cell.into()), RING_LEAST * RECORD_SIZE);
        }
        let records = self.records_of(cell);
        let head = shared.word(at + CELL_HEAD);
        shared.set_word(at + CELL_TAIL, head);
        shared.set_word(at + CELL_RING, records);
        shared.set_word(at + CELL_LIMIT, head.wrapping_add(records));
        shared.set_word(at + CELL_STACK_BEGIN, u64::MAX);
        shared.set_word(at + CELL_STACK_END, 0);
        shared.set_word(at + CELL_TOLD, 0);
        frames::set_depth(shared, cell, 0);
        if self.sampling.is_some() {
            crate::jump::sampling::begin_cell(shared, cell, crate::base::sampling::random_seed() as u32);
        }
        shared.set_half(at + CELL_MODE, Mode::Ask as u32);
        shared.set_half(slot + 8, u32::from(cell));
        shared.set_word(slot, fs_base);
        self.merge.open(cell, head, records);
        self.used = self.used.max(cell.saturating_add(1));
        let lists = Lists::begin(&self.region.mapping, cell);
        *self.cells.get_mut(free)? = Some(Owner { task, fs_base, began: Vec::new(), lists, last_free: None });
        self.by_tid.insert(task.tid, cell);
        Some(cell)
    }

    /// What the thread of the cell was given by an operator that passes its call on, if it has recorded nothing since.
    /// It concerns the call that the thread makes now, and none that comes later.
    pub(super) fn take_told(&self, cell: u16) -> Option<ToldOfBlock> {
        let shared = self.shared();
        let word = |place| shared.word(cell_at(cell.into()) + place);
        let (block, align) = (Addr(word(CELL_TOLD)), word(CELL_TOLD_ALIGN));
        let size = (word(CELL_TOLD_FLAGS) & FLAG_SIZED != 0).then(|| word(CELL_TOLD_SIZE));
        let concerns_next = word(CELL_TOLD_HEAD) == word(CELL_HEAD) && !block.is_null();
        shared.set_word(cell_at(cell.into()) + CELL_TOLD, 0);
        concerns_next.then_some(ToldOfBlock { block, size, align })
    }

    /// How many records the ring of a cell has room for.
    pub(super) fn records_of(&self, cell: u16) -> u64 {
        self.rings.get(usize::from(cell)).copied().unwrap_or(RING_LEAST)
    }

    /// Whether so many more records may have room in all rings together.
    fn has_memory_for(&self, records: u64) -> bool {
        let used = self.rings.iter().take(self.used.into()).fold(0u64, |sum, records| sum.saturating_add(*records));
        used.saturating_add(records) <= MAX_RECORDS
    }

    /// Whether the ring of a cell can become larger.
    pub(super) fn may_grow(&self, cell: u16) -> bool {
        let records = self.records_of(cell);
        records < RING_MOST && self.has_memory_for(RING_MOST - records)
    }

    /// Makes the ring of a cell as large as one can be. Nothing is in it, its thread stands, and looks for room again:
    /// the next record is number `head`.
    pub(super) fn grow(&mut self, cell: u16, head: u64) {
        let shared = &self.region.mapping;
        let (at, records) = (ring_at(cell.into()), self.records_of(cell));
        shared.allocate(at + records * RECORD_SIZE, (RING_MOST - records) * RECORD_SIZE);
        if let Some(records) = self.rings.get_mut(usize::from(cell)) {
            *records = RING_MOST;
        }
        self.open_ring(cell, head);
    }

    /// The ring of a cell is empty, and the next record of its thread is number `head`.
    pub(super) fn open_ring(&mut self, cell: u16, head: u64) {
        let records = self.records_of(cell);
        self.shared().set_word(cell_at(cell.into()) + CELL_RING, records);
        self.merge.open(cell, head, records);
    }

    /// Where the key of a thread can be written. None if the thread pointer has one already, or the table is full.
    fn free_key(&self, fs_base: u64) -> Option<u64> {
        let mut free = None;
        for step in 0..CELL_KEYS {
            let at = CELL_INDEX + (cell_slot(fs_base) + step) % CELL_KEYS * 16;
            match self.shared().word(at) {
                0 => return free.or(Some(at)),
                CELL_GONE => free = free.or(Some(at)),
                key if key == fs_base => return None,
                _ => {}
            }
        }
        free
    }

    /// The stack of the cell's thread lies between these process addresses.
    pub(super) fn set_stack(&self, cell: u16, begin: u64, end: u64) {
        let at = cell_at(cell.into());
        self.shared().set_word(at + CELL_STACK_BEGIN, u64::MAX);
        self.shared().set_word(at + CELL_STACK_END, end);
        self.shared().set_word(at + CELL_STACK_BEGIN, begin);
    }

    pub(super) fn stack_range(&self, cell: u16) -> Range<u64> {
        let at = cell_at(cell.into());
        self.shared().word(at + CELL_STACK_BEGIN)..self.shared().word(at + CELL_STACK_END)
    }

    pub(super) fn knows_stack(&self, cell: u16, sp: u64) -> bool {
        self.stack_range(cell).contains(&sp)
    }

    pub(super) fn set_mode(&self, cell: u16, mode: Mode) {
        self.shared().set_half(cell_at(cell.into()) + CELL_MODE, mode as u32);
    }

    /// Takes a thread's cell away; its records must have been drained.
    pub(super) fn take_cell(&mut self, tid: i32) -> Option<Owner> {
        let cell = self.by_tid.remove(&tid)?;
        let owner = self.cells.get_mut(usize::from(cell))?.take()?;
        for step in 0..CELL_KEYS {
            let at = CELL_INDEX + (cell_slot(owner.fs_base) + step) % CELL_KEYS * 16;
            match self.shared().word(at) {
                0 => break,
                key if key == owner.fs_base => {
                    let next = CELL_INDEX + (cell_slot(owner.fs_base) + step + 1) % CELL_KEYS * 16;
                    let ends_search = self.shared().word(next) == 0;
                    self.shared().set_word(at, if ends_search { 0 } else { CELL_GONE });
                    break;
                }
                _ => {}
            }
        }
        self.merge.close(cell);
        Some(owner)
    }

    /// Enters what a call within a call is.
    pub(super) fn judge_nested(&mut self, outer: u16, inner: u16, caller: Addr, verdict: Nested) {
        if 2 * self.nested >= NESTED_KEYS {
            return;
        }
        let functions = u32::from(outer) | u32::from(inner) << 16;
        for step in 0..NESTED_KEYS {
            let at = NESTED + (nested_slot(caller.0) + step) % NESTED_KEYS * 16;
            let shared = self.shared();
            match shared.word(at) {
                0 => {
                    shared.set_word(at + 8, u64::from(functions) | u64::from(verdict as u32) << 32);
                    shared.set_word(at, caller.0);
                    self.nested += 1;
                    return;
                }
                key if key == caller.0 && shared.half(at + 8) == functions => return,
                _ => {}
            }
        }
    }

    /// Whether `mapping` holds the stack that the cell's thread is known to have: then it has grown, and to look at all
    /// of its frames once more, at each page, would take longer the deeper they are.
    pub(super) fn has_grown(&self, cell: u16, mapping: &Mapping) -> bool {
        let known = self.stack_range(cell);
        !known.is_empty() && mapping.start.0 < known.start && known.end <= mapping.end.0
    }

    /// The frame is not to be found any more by its slot.
    pub(super) fn clear_slot(&self, frame: &frames::Frame) {
        let at = cell_at(frame.cell.into()) + CELL_FRAMES + u64::from(frame.index) * FRAME_SIZE;
        self.shared().set_word(at + FRAME_SLOT, 0);
    }

    /// The sum of what all cells hold at this place.
    pub(super) fn sum_of_cells(&self, place: u64) -> u64 {
        let of_cell = |cell: u16| self.shared().word(cell_at(cell.into()) + place);
        self.used_cells().map(of_cell).fold(0u64, u64::wrapping_add)
    }
}
