//! The jump engine in a process: calls are recorded by a routine in the process itself, and drained here.
//!
//! | what | where |
//! |---|---|
//! | what is kept for a process, the threads' cells | here |
//! | a moment at which its code can be changed | `standstill.rs` |
//! | what an earlier heaptrace has left there | `left.rs` |
//! | how it comes to the engine, and leaves it | `promote.rs` |
//! | records become events | `drain.rs`, most of them in `plain.rs` |
//! | stacks that the routine does not know | `unknown.rs` |
//! | what recording costs the program | `clock.rs` |
//! | which blocks were picked, where they are sampled | `sampling.rs` |
//! | a thread asks: its call is seen by the trap engine | `ask.rs` |
//! | what is seen at stops all the same, or takes longer, and why | `fallback.rs` |
//! | a thread is taken out of the routine before a signal | `signal.rs` |
//!
//! The routine keeps calls in progress in the thread's cell. Where the observer must know of them (a signal, an ask)
//! they are handed over to it, as calls whose return breakpoints it awaits; the thread then asks at each call until it
//! has none of those.

mod ask;
mod clock;
mod drain;
mod facts;
mod fallback;
mod left;
mod locked;
mod plain;
mod promote;
mod sampling;
mod signal;
mod standstill;
mod unknown;

use crate::addr::{Addr, StackId, TaskId};
use crate::arch::Regs;
use crate::calls::{Recorded, ToldOfBlock};
use crate::jump::frames;
use crate::jump::layout::{
    CELL_COPIES, CELL_GONE, CELL_HEAD, CELL_INDEX, CELL_KEYS, CELL_LIMIT, CELL_MODE, CELL_RING, CELL_SIZE,
    CELL_STACK_BEGIN, CELL_STACK_END, CELL_TAIL, COPIES, IMPATIENT, LIST_WORDS, Mode, NESTED, NESTED_KEYS, Nested,
    PATIENT, RECORD_SIZE, RING_LEAST, RING_MOST, SPINS, cell_at, cell_slot, nested_slot, ring_at,
};
use crate::jump::lists::Lists;
use crate::jump::load::{Load, Promotion};
use crate::jump::merge::{Merge, Record};
use crate::jump::nodes::Nodes;
use crate::jump::rules::Rules;
use crate::jump::shared::Shared;
use crate::jump::stub::Stub;
use crate::jump::tails::Tails;
use crate::jump::undo::{Code, Place};
use crate::maps::Mapping;
use crate::memory::ReadMemory;
use crate::session::process::Process;
use crate::tracer::jump::region::{Region, SharedMapping};
use crate::unwinder::LatestWalk;
use clock::Clock;
pub(super) use drain::Drained;
use facts::KnownFacts;
use fallback::NoCell;
pub(super) use fallback::{Cause, Fallbacks};
pub(super) use left::Stays;
use rustc_hash::FxHashMap;
use sampling::Sampling;
use std::ops::Range;
use std::time::{Duration, Instant};

/// So many copies of stacks are taken at a time where they come fast.
const FEW_COPIES: u64 = 8;

/// All rings of a process together have room for so many records, 32 MiB, or for what they have at first.
const MAX_RECORDS: u64 = (32 << 20) / RECORD_SIZE;

/// Whether a process is on the jump engine.
#[derive(Debug, Default)]
pub(super) enum JumpState {
    /// No, and it is not to be.
    #[default]
    Off,
    /// As soon as it can be done.
    Wanted(Awaited),
    /// When its stops take too much of its time. What they took when it was looked at last.
    WhenBusy(Load, Attempts),
    /// Yes.
    On(Box<Jump>),
}

/// How often it could not be done at the moment.
type Attempts = u32;

/// A moment at which it can be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Awaited {
    attempts: Attempts,
    /// It is not tried before the process is traced for so long, ns.
    not_before_ns: u64,
    /// Why it could not be done last, in words.
    why: Option<&'static str>,
}

impl From<Promotion> for JumpState {
    fn from(promotion: Promotion) -> Self {
        match promotion {
            Promotion::Never => Self::Off,
            Promotion::AtOnce => Self::Wanted(Awaited::default()),
            Promotion::WhenBusy => Self::WhenBusy(Load::default(), 0),
        }
    }
}

impl JumpState {
    /// The engine, if the process is on it.
    pub(super) fn on(&self) -> Option<&Jump> {
        match self {
            Self::On(jump) => Some(jump),
            _ => None,
        }
    }

    /// Takes the engine out for as long as the process is changed with what it has recorded. Nothing changes where
    /// there is none.
    fn take_on(&mut self) -> Option<Box<Jump>> {
        match std::mem::take(self) {
            Self::On(jump) => Some(jump),
            other => {
                *self = other;
                None
            }
        }
    }

    fn on_mut(&mut self) -> Option<&mut Jump> {
        match self {
            Self::On(jump) => Some(jump),
            _ => None,
        }
    }
}

/// What is kept for a process on the jump engine.
#[derive(Debug)]
pub(super) struct Jump {
    region: Region,
    code: Code,
    /// By number.
    stubs: Vec<Stub>,
    /// Those of the stubs' functions that are operators that pass their calls on, and are told more than what they call
    /// is.
    told: Vec<u16>,
    plain: plain::PlainFunctions,
    nodes: Nodes,
    rules: Rules,
    tails: Tails,
    /// Room for a list that is taken.
    listed: Vec<u64>,
    /// The list that was taken last.
    latest: LatestWalk,
    merge: Merge,
    /// How many records the ring of each cell has room for.
    rings: Vec<u64>,
    /// Which thread has each cell.
    cells: Vec<Option<Owner>>,
    by_tid: FxHashMap<i32, u16>,
    /// Functions that are seen at stops, and why. Those that are neither here nor have a stub came later.
    at_stops: FxHashMap<Addr, Cause>,
    /// What is known of a call by its function and stack, or by its function and caller.
    facts: KnownFacts,
    /// The stacks of callers of frees that are not walked, where the thread found none.
    callers: FxHashMap<Addr, StackId>,
    /// How many calls of calls are entered.
    nested: u64,
    /// Threads that are children in vfork(2), or wait for one: they share a cell with another task.
    sharing: Vec<i32>,
    /// Dead frames that the cells have counted, as they were told last.
    dropped: u64,
    clock: Clock,
    /// If blocks are sampled.
    sampling: Option<Sampling>,
    /// How many records came since it was last asked.
    records: u64,
    /// Room for records that were taken out of the rings.
    batch: Vec<(u16, Record)>,
    /// How many stacks the threads had copied when the rings were drained last.
    copies: u64,
    /// How many the tracer and the program have.
    processors: usize,
    /// When the rings were drained last, and after how long one of them would have been half full then.
    drained: Instant,
    until_half: Duration,
    /// How many cells were in use at a time, at most: those behind have nothing in them.
    used: u16,
}

/// The thread that has a cell.
#[derive(Debug)]
struct Owner {
    task: TaskId,
    fs_base: u64,
    /// Calls of it whose beginnings were told.
    began: Vec<Began>,
    /// The stacks that it has listed.
    lists: Lists,
    /// Its latest record, if that is of an operator that passes the call on.
    told: Option<ToldOfBlock>,
    /// Its latest record, if that is of a free.
    last_free: Option<LastFree>,
}

/// A free that was recorded: another one of the same block that follows may be the same, passed on by the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LastFree {
    function: u16,
    block: u64,
    caller: u64,
}

/// A call that has begun by giving a block back.
#[derive(Clone, Copy, Debug)]
struct Began {
    function: u16,
    old: u64,
    stack: StackId,
    recorded: Recorded,
}

impl Owner {
    /// Notes a free as the thread's latest. Whether it is the one before, passed on: by a jump, or by a call of the
    /// allocator's own.
    fn note_free(&mut self, free: LastFree, by_allocator: bool) -> bool {
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
    const fn used_cells(&self) -> Range<u16> {
        0..self.used
    }

    fn shared(&self) -> &SharedMapping {
        &self.region.mapping
    }

    /// Tells the threads whether it is worth while to wait for room without a stop.
    fn note_processors(&self) {
        let spins = if self.by_tid.len() < self.processors { PATIENT } else { IMPATIENT };
        if self.shared().half(SPINS) != spins {
            self.shared().set_half(SPINS, spins);
        }
    }

    /// Notes how fast the rings, lists and slots for copies fill: what the fullest was seen to hold has come since they
    /// were drained last. A few copies count as half of a ring: until the first one was unwound, each call with its new
    /// frame is copied, too.
    fn note_pace(&mut self) {
        let copies = Process::sum_of_cells(self, CELL_COPIES);
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

    fn place(&self, cell: Option<u16>) -> Place<'_> {
        Place { region: self.region.code, code: &self.code, stubs: &self.stubs, cell }
    }

    /// Whether a program counter is in the routine or in a stub.
    pub(super) fn contains(&self, pc: Addr) -> bool {
        self.place(None).contains(pc)
    }

    pub(in crate::session) fn cell_of(&self, tid: i32) -> Option<u16> {
        self.by_tid.get(&tid).copied()
    }

    fn owner_mut(&mut self, cell: u16) -> Option<&mut Owner> {
        self.cells.get_mut(usize::from(cell))?.as_mut()
    }

    /// Gives a thread a cell, whose stack is the mapping `stack`. None if there is none left.
    fn give_cell(&mut self, task: TaskId, fs_base: u64) -> Option<u16> {
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
        frames::set_depth(shared, cell, 0);
        if self.sampling.is_some() {
            crate::jump::sampling::begin_cell(shared, cell, crate::sampling::random_seed() as u32);
        }
        shared.set_half(at + CELL_MODE, Mode::Ask as u32);
        shared.set_half(slot + 8, u32::from(cell));
        shared.set_word(slot, fs_base);
        self.merge.open(cell, head, records);
        self.used = self.used.max(cell.saturating_add(1));
        let lists = Lists::begin(&self.region.mapping, cell);
        *self.cells.get_mut(free)? =
            Some(Owner { task, fs_base, began: Vec::new(), lists, told: None, last_free: None });
        self.by_tid.insert(task.tid, cell);
        Some(cell)
    }

    /// How many records the ring of a cell has room for.
    fn records_of(&self, cell: u16) -> u64 {
        self.rings.get(usize::from(cell)).copied().unwrap_or(RING_LEAST)
    }

    /// Whether so many more records may have room in all rings together.
    fn has_memory_for(&self, records: u64) -> bool {
        let used = self.rings.iter().take(self.used.into()).fold(0u64, |sum, records| sum.saturating_add(*records));
        used.saturating_add(records) <= MAX_RECORDS
    }

    /// Whether the ring of a cell can become larger.
    fn may_grow(&self, cell: u16) -> bool {
        let records = self.records_of(cell);
        records < RING_MOST && self.has_memory_for(RING_MOST - records)
    }

    /// Makes the ring of a cell as large as one can be. Nothing is in it, its thread stands, and looks for room again:
    /// the next record is number `head`.
    fn grow(&mut self, cell: u16, head: u64) {
        let shared = &self.region.mapping;
        let (at, records) = (ring_at(cell.into()), self.records_of(cell));
        shared.allocate(at + records * RECORD_SIZE, (RING_MOST - records) * RECORD_SIZE);
        if let Some(records) = self.rings.get_mut(usize::from(cell)) {
            *records = RING_MOST;
        }
        self.open_ring(cell, head);
    }

    /// The ring of a cell is empty, and the next record of its thread is number `head`.
    fn open_ring(&mut self, cell: u16, head: u64) {
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
    fn set_stack(&self, cell: u16, begin: u64, end: u64) {
        let at = cell_at(cell.into());
        self.shared().set_word(at + CELL_STACK_BEGIN, u64::MAX);
        self.shared().set_word(at + CELL_STACK_END, end);
        self.shared().set_word(at + CELL_STACK_BEGIN, begin);
    }

    fn stack_range(&self, cell: u16) -> Range<u64> {
        let at = cell_at(cell.into());
        self.shared().word(at + CELL_STACK_BEGIN)..self.shared().word(at + CELL_STACK_END)
    }

    fn knows_stack(&self, cell: u16, sp: u64) -> bool {
        self.stack_range(cell).contains(&sp)
    }

    fn set_mode(&self, cell: u16, mode: Mode) {
        self.shared().set_half(cell_at(cell.into()) + CELL_MODE, mode as u32);
    }

    /// Takes a thread's cell away; its records must have been drained.
    fn take_cell(&mut self, tid: i32) -> Option<Owner> {
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
    fn judge_nested(&mut self, outer: u16, inner: u16, caller: Addr, verdict: Nested) {
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
}

impl Process {
    /// Whether the thread's calls are recorded, or asked for, from here on: they are asked for while something is known
    /// of it that concerns its next call.
    pub(super) fn note_mode(&mut self, tid: i32) {
        let Some(jump) = self.jump.on() else { return };
        let Some(cell) = jump.cell_of(tid) else { return };
        let Some(task) = self.tasks.get(tid) else { return };
        let asks = self.observer.concerns_next(task.id)
            || !task.counted.is_empty()
            || jump.sharing.contains(&tid)
            || self.tasks.has_sharers()
            || self.space.probes.guards_are_passed(&self.space.modules)
            || self.signals.awaits_stop_of(tid);
        jump.set_mode(cell, if asks { Mode::Ask } else { Mode::Record });
    }

    /// The same of all threads.
    pub(super) fn note_modes(&mut self) {
        let tids: Vec<i32> = self.jump.on().map(|jump| jump.by_tid.keys().copied().collect()).unwrap_or_default();
        tids.into_iter().for_each(|tid| self.note_mode(tid));
    }

    /// The task begins or ends to share its cell with a child in vfork(2).
    pub(super) fn share_cell(&mut self, tid: i32, shares: bool) {
        if let Some(jump) = self.jump.on_mut() {
            jump.sharing.retain(|known| *known != tid);
            if shares {
                jump.sharing.push(tid);
            }
        }
        self.note_mode(tid);
    }

    /// Gives a thread at a function's entry a cell, if it can have one, and tells the routine of its stack.
    fn prepare_cell(&mut self, tid: i32, fs_base: u64, entered: &Regs) {
        let Some(task) = self.tasks.get(tid).map(|task| task.id) else { return };
        let points_to_itself = |process: &mut Self| process.space.image.memory.read_u64(Addr(fs_base)) == Some(fs_base);
        if fs_base <= CELL_GONE || !points_to_itself(self) {
            self.fallbacks.note_thread(task, NoCell::ThreadPointer);
            return;
        }
        let Some(jump) = self.jump.on_mut() else { return };
        let known = jump.cell_of(tid).filter(|cell| {
            let owner = jump.cells.get(usize::from(*cell)).and_then(Option::as_ref);
            owner.is_some_and(|owner| owner.fs_base == fs_base)
        });
        let Some(cell) = known.or_else(|| jump.give_cell(task, fs_base)) else {
            if jump.cells.iter().all(Option::is_some) {
                self.fallbacks.note_thread(task, NoCell::Taken);
            }
            return;
        };
        let sp = entered.sp();
        if !jump.knows_stack(cell, sp)
            && let Some(mapping) = self.space.mapping_now(tid, Addr(sp))
            && (self.has_grown(cell, &mapping)
                || self.space.modules.stays_on_stack(&mut self.space.image, entered, &mapping))
            && let Some(jump) = self.jump.on()
        {
            // A thread's own data lies above its stack, and what follows in the mapping may be another's.
            let own = (sp..mapping.end.0).contains(&fs_base);
            jump.set_stack(cell, mapping.start.0, if own { fs_base } else { mapping.end.0 });
        }
    }

    /// Whether `mapping` holds the stack that the cell's thread is known to have: then it has grown, and to look at all
    /// of its frames once more, at each page, would take longer the deeper they are.
    fn has_grown(&self, cell: u16, mapping: &Mapping) -> bool {
        let known = self.jump.on().map(|jump| jump.stack_range(cell)).unwrap_or_default();
        !known.is_empty() && mapping.start.0 < known.start && known.end <= mapping.end.0
    }

    /// How many records came since this was last asked.
    pub(super) fn take_record_count(&mut self) -> u64 {
        self.jump.on_mut().map_or(0, |jump| std::mem::take(&mut jump.records))
    }

    /// How long it takes the fastest thread to fill half of its ring, as far as was seen.
    pub(super) fn until_half_full(&self) -> Duration {
        self.jump.on().map_or(Duration::MAX, |jump| jump.until_half)
    }
}
