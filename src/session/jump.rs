//! The jump engine in a process: calls are recorded by a routine in the process itself, and drained here.
//!
//! | what | where |
//! |---|---|
//! | what is kept for a process | here |
//! | the threads' cells and rings | `cells.rs` |
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
mod cells;
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

use crate::arch::Regs;
use crate::base::addr::{Addr, StackId, TaskId};
use crate::base::engine::EngineChoice;
use crate::base::memory::ReadMemory;
use crate::base::progress::Progress;
use crate::event::calls::Recorded;
use crate::jump::layout::{CELL_GONE, Mode};
use crate::jump::lists::Lists;
use crate::jump::load::Load;
use crate::jump::merge::{Merge, Record};
use crate::jump::nodes::Nodes;
use crate::jump::rules::Rules;
use crate::jump::stub::Stub;
use crate::jump::tails::Tails;
use crate::jump::undo::Code;
use crate::profile::{Cost, PromotedAt};
use crate::session::observer::Observer;
use crate::session::sigtrap::SigtrapGuard;
use crate::session::tracee::Tracee;
use crate::tracer::jump::region::Region;
use crate::unwinder::LatestWalks;
pub(super) use ask::Asked;
use clock::Clock;
pub(super) use drain::Drained;
use facts::KnownFacts;
pub(super) use fallback::Cause;
use fallback::Fallbacks;
use fallback::NoCell;
pub(super) use promote::AtEntry;
use rustc_hash::FxHashMap;
use sampling::Sampling;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The jump engine of a process, through all the images that it becomes.
#[derive(Debug)]
pub(super) struct JumpEngine {
    state: JumpState,
    account: Account,
}

/// What the engine has done in a process, and could not do, in whatever image.
#[derive(Debug)]
struct Account {
    progress: Arc<Progress>,
    fallbacks: Fallbacks,
    /// See [`Cost::events_without_stop`].
    events_without_stop: u64,
    /// See [`Cost::recording_ns`].
    recording_ns: u64,
    /// When the process came to the engine last, if it has.
    promotion: Option<PromotedAt>,
}

impl Account {
    /// Recording has taken so much of the program's CPU time.
    fn recording(&mut self, ns: u64) {
        self.recording_ns = self.recording_ns.saturating_add(ns);
        self.progress.recording(ns);
    }
}

/// Whether a process is on the jump engine.
#[derive(Debug, Default)]
enum JumpState {
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

impl From<EngineChoice> for JumpState {
    fn from(engine: EngineChoice) -> Self {
        match engine {
            EngineChoice::Trap => Self::Off,
            EngineChoice::Jump => Self::Wanted(Awaited::default()),
            EngineChoice::Auto => Self::WhenBusy(Load::default(), 0),
        }
    }
}

impl JumpState {
    /// The engine, if the process is on it.
    fn on(&self) -> Option<&Jump> {
        match self {
            Self::On(jump) => Some(jump),
            _ => None,
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
    plain: plain::PlainFunctions,
    nodes: Nodes,
    rules: Rules,
    tails: Tails,
    /// Room for a list that is taken.
    listed: Vec<u64>,
    /// The list that was taken last.
    latest: LatestWalks,
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
    /// How many of all records were no plain ones.
    looked_up: u64,
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

impl JumpEngine {
    pub(super) fn new(engine: EngineChoice, progress: Arc<Progress>) -> Self {
        let account = Account {
            progress,
            fallbacks: Fallbacks::default(),
            events_without_stop: 0,
            recording_ns: 0,
            promotion: None,
        };
        Self { state: engine.into(), account }
    }

    /// What is kept for the process, if it is on the engine.
    pub(super) fn on(&self) -> Option<&Jump> {
        self.state.on()
    }

    /// Adds what the engine has cost to what else has.
    pub(super) fn add_cost(&self, cost: &mut Cost) {
        let Account { events_without_stop, recording_ns, promotion, .. } = self.account;
        cost.events_without_stop = events_without_stop;
        cost.recording_ns = recording_ns;
        cost.promotion = promotion;
        cost.conditions.jump = promotion.is_some();
    }

    /// What it could not record, where that is worth telling of a process with so many events.
    pub(super) fn fallbacks_in_words(&self, events: u64) -> Vec<String> {
        self.account.fallbacks.in_words(events)
    }

    /// Whether the thread's calls are recorded, or asked for, from here on: they are asked for while something is known
    /// of it that concerns its next call.
    pub(super) fn note_mode(&self, tracee: &Tracee, observer: &Observer, sigtrap: &SigtrapGuard, tid: i32) {
        let Some(jump) = self.on() else { return };
        let Some(cell) = jump.cell_of(tid) else { return };
        let Some(task) = tracee.tasks.get(tid) else { return };
        let asks = observer.concerns_next(task.id)
            || !task.counted.is_empty()
            || jump.sharing.contains(&tid)
            || tracee.tasks.has_sharers()
            || tracee.space.probes.guards_are_passed(&tracee.space.modules)
            || sigtrap.awaits_stop_of(tid);
        jump.set_mode(cell, if asks { Mode::Ask } else { Mode::Record });
    }

    /// The same of all threads.
    pub(super) fn note_modes(&self, tracee: &Tracee, observer: &Observer, sigtrap: &SigtrapGuard) {
        let tids: Vec<i32> = self.on().map(|jump| jump.by_tid.keys().copied().collect()).unwrap_or_default();
        tids.into_iter().for_each(|tid| self.note_mode(tracee, observer, sigtrap, tid));
    }

    /// The task begins or ends to share its cell with a child in vfork(2).
    pub(super) fn share_cell(&mut self, tid: i32, shares: bool) {
        if let Some(jump) = self.state.on_mut() {
            jump.sharing.retain(|known| *known != tid);
            if shares {
                jump.sharing.push(tid);
            }
        }
    }

    /// Gives a thread at a function's entry a cell, if it can have one, and tells the routine of its stack.
    fn prepare_cell(&mut self, tracee: &mut Tracee, tid: i32, fs_base: u64, entered: &Regs) {
        let Some(task) = tracee.tasks.get(tid).map(|task| task.id) else { return };
        if fs_base <= CELL_GONE || tracee.space.image.memory.read_u64(Addr(fs_base)) != Some(fs_base) {
            self.account.fallbacks.note_thread(task, NoCell::ThreadPointer);
            return;
        }
        let JumpState::On(jump) = &mut self.state else { return };
        let known = jump.cell_of(tid).filter(|cell| {
            let owner = jump.cells.get(usize::from(*cell)).and_then(Option::as_ref);
            owner.is_some_and(|owner| owner.fs_base == fs_base)
        });
        let Some(cell) = known.or_else(|| jump.give_cell(task, fs_base)) else {
            if jump.cells.iter().all(Option::is_some) {
                self.account.fallbacks.note_thread(task, NoCell::Taken);
            }
            return;
        };
        let sp = entered.sp();
        if !jump.knows_stack(cell, sp)
            && let Some(mapping) = tracee.space.mapping_now(tid, Addr(sp))
            && (jump.has_grown(cell, &mapping)
                || tracee.space.modules.stays_on_stack(&mut tracee.space.image, entered, &mapping))
        {
            // A thread's own data lies above its stack, and what follows in the mapping may be another's.
            let own = (sp..mapping.end.0).contains(&fs_base);
            jump.set_stack(cell, mapping.start.0, if own { fs_base } else { mapping.end.0 });
        }
    }

    /// How many records came since this was last asked.
    pub(super) fn take_record_count(&mut self) -> u64 {
        self.state.on_mut().map_or(0, |jump| std::mem::take(&mut jump.records))
    }

    /// How long it takes the fastest thread to fill half of its ring, as far as was seen.
    pub(super) fn until_half_full(&self) -> Duration {
        self.on().map_or(Duration::MAX, |jump| jump.until_half)
    }
}
