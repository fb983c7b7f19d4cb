//! Records become events.

use super::facts::{CallerFacts, Facts};
use super::{Began, Jump, JumpState, LastFree, plain};
use crate::addr::{Addr, FunctionId, StackId, TaskId};
use crate::allocators::Kind as FunctionKind;
use crate::calls::{Returned, ToldOfBlock};
use crate::event::{EventKind, Missed};
use crate::jump::layout::{CELL_DROPPED, CELL_HEAD, CELL_SPUN, CELL_TAIL, CELL_TIMED, CELL_TSC, Kind, cell_at};
use crate::jump::merge::{Next, Record, RecordedStack};
use crate::jump::shared::Shared;
use crate::session::engine::{Part, missed_of};
use crate::session::process::Process;
use crate::session::tasks::{Role, Task};
use std::time::{Duration, Instant};

/// How long it is waited for a record whose thread has taken its number.
const TIMEOUT: Duration = Duration::from_millis(2);

const RING_DAMAGED: &str = "the program has written to memory that belongs to heaptrace: calls of a thread are missing";

/// So many records are taken out of the rings at a time.
const BATCH: u64 = 128;

/// How far the rings are drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::session) enum Drained {
    /// What is there.
    There,
    /// All, also records that come after one which is not there yet, as its thread has not published it; that one is
    /// waited for a little.
    All,
    /// Until the ring of this cell has room for half of what it holds.
    Half(u16),
}

impl Process {
    /// Takes records, in their order.
    pub(in crate::session) fn drain(&mut self, what: Drained) {
        let Some(mut jump) = self.jump.take_on() else { return };
        // who stopped last may have ended, and what it had in its memory may have changed
        let lives = |task: &&Task| task.role == Role::Thread && !task.ending;
        let first = self.tasks.get(self.pid).filter(lives).or_else(|| self.tasks.iter().find(lives));
        let reader = self.space.image.memory.reader();
        self.space.image.memory.new_stop(first.map_or(reader, |task| task.id.tid));
        let told = self.observer.events();
        let mut deadline = None;
        let mut records = std::mem::take(&mut jump.batch);
        let mut is_first = true;
        loop {
            jump.merge.look(&jump.region.mapping);
            if std::mem::take(&mut is_first) {
                jump.note_pace();
                jump.note_processors();
            }
            self.take_lists(&mut jump);
            let time_ns = self.observer.now_ns();
            let mut taken = 0u64;
            let ended = loop {
                let most = match what {
                    Drained::Half(cell) => jump.merge.left(cell).saturating_sub(jump.records_of(cell) / 2).min(BATCH),
                    Drained::There | Drained::All => BATCH,
                };
                records.clear();
                let next = jump.merge.take(&jump.region.mapping, most as usize, &mut records);
                self.observer.model().look_ahead(records.iter().map(|(_, record)| record.block()));
                let may_be_plain = jump.sampling.is_none() && self.observer.takes_all();
                self.observer.define_stacks(self.space.modules.unwinder.stacks());
                for (cell, record) in &records {
                    if !(may_be_plain && plain::take(&mut self.observer, &mut jump, *cell, record, time_ns)) {
                        self.take_record(&mut jump, *cell, record, time_ns);
                    }
                }
                taken += records.len() as u64;
                self.observer.show_progress();
                match next {
                    Next::Enough if records.is_empty() => break Next::Empty,
                    Next::Enough => {}
                    Next::Damaged(cell) => {
                        let head = jump.shared().word(cell_at(cell.into()) + CELL_HEAD);
                        self.begin_anew(&mut jump, cell, head);
                    }
                    Next::Empty | Next::Waits => break next,
                }
            };
            jump.records += taken;
            let is_half = |cell| jump.merge.left(cell) <= jump.records_of(cell) / 2;
            let is_enough = match what {
                Drained::There => true,
                Drained::All => ended == Next::Empty && taken == 0,
                Drained::Half(cell) => is_half(cell) || ended == Next::Empty && taken == 0,
            };
            if is_enough {
                break;
            }
            if ended == Next::Waits && taken == 0 {
                let now = Instant::now();
                if now > *deadline.get_or_insert(now + TIMEOUT) {
                    jump.merge.skip();
                    deadline = None;
                }
                std::thread::yield_now();
            }
        }
        jump.batch = records;
        self.note_recording(&mut jump, self.observer.events().saturating_sub(told));
        self.note_dropped(&mut jump);
        self.tell_counted(&mut jump);
        self.jump = JumpState::On(jump);
        self.space.image.memory.new_stop(reader);
    }

    /// The thread of the cell has found no room for its record with the number `head`. It finds some when it looks
    /// again.
    pub(super) fn make_room(&mut self, cell: u16, head: u64) {
        let grows = self.jump.on().is_some_and(|jump| jump.may_grow(cell));
        self.drain(if grows { Drained::All } else { Drained::Half(cell) });
        let Some(mut jump) = self.jump.take_on() else { return };
        let taken = jump.merge.tell_again(cell, &jump.region.mapping);
        if taken.is_none_or(|taken| head.wrapping_sub(taken) >= jump.records_of(cell)) {
            self.begin_anew(&mut jump, cell, head);
        } else if grows && taken == Some(head) {
            jump.grow(cell, head);
        }
        self.jump = JumpState::On(jump);
    }

    /// A ring is not as its thread leaves it: what it holds is lost, and the next record is number `head`.
    fn begin_anew(&mut self, jump: &mut Jump, cell: u16, head: u64) {
        self.warn_once(RING_DAMAGED.to_owned());
        self.note_missed_call();
        if jump.owner_mut(cell).is_some() {
            let at = cell_at(cell.into());
            jump.shared().set_word(at + CELL_HEAD, head);
            jump.shared().set_word(at + CELL_TAIL, head);
            jump.open_ring(cell, head);
        }
    }

    /// So many events were recorded without a stop.
    fn note_recording(&mut self, jump: &mut Jump, events: u64) {
        if events == 0 {
            return;
        }
        let [ticks, calls, spun] = [CELL_TSC, CELL_TIMED, CELL_SPUN].map(|place| Self::sum_of_cells(jump, place));
        jump.clock.note(ticks, calls);
        let waited = jump.clock.note_spun(spun);
        let ns = events.saturating_mul(jump.clock.event_ns()).saturating_add(waited);
        self.cost.events_without_stop += events;
        self.cost.recording_ns = self.cost.recording_ns.saturating_add(ns);
        self.progress.recording(ns);
    }

    pub(super) fn sum_of_cells(jump: &Jump, place: u64) -> u64 {
        let of_cell = |cell: u16| jump.shared().word(cell_at(cell.into()) + place);
        jump.used_cells().map(of_cell).fold(0u64, u64::wrapping_add)
    }

    /// Calls that will not return, as their threads have left them by a longjmp or an exception.
    fn note_dropped(&mut self, jump: &mut Jump) {
        let dropped = Self::sum_of_cells(jump, CELL_DROPPED);
        // the program can write there
        let new = dropped.wrapping_sub(jump.dropped).min(1 << 20);
        jump.dropped = dropped;
        for _ in 0..new {
            self.tell(EventKind::Missed(Missed::Return));
        }
    }

    fn take_record(&mut self, jump: &mut Jump, cell: u16, record: &Record, time_ns: u64) {
        let Some(owner) = jump.cells.get_mut(usize::from(cell)).and_then(Option::as_mut) else { return };
        let task = owner.task;
        let of_block = owner.told.take();
        if record.kind == Kind::Freed && jump.told.contains(&record.function) {
            let args = [record.args[0], record.args[1], record.args[2], 0, 0, 0];
            let function = self.settings.table.get(FunctionId(record.function));
            owner.told = function.and_then(|function| ToldOfBlock::of(function, &args, of_block));
            return;
        }
        let begins = record.kind == Kind::Began;
        let mut began = None;
        if record.kind == Kind::Ended && !owner.began.is_empty() {
            let was_begun = |began: &Began| began.function == record.function && began.old == record.args[0];
            if let Some(at) = owner.began.iter().rposition(was_begun) {
                began = Some(owner.began.remove(at));
                // those that began after it will not return
                let dead: Vec<Began> = owner.began.drain(at..).collect();
                dead.iter().for_each(|dead| self.abandon(task, dead));
            }
        }
        let stack = match &began {
            Some(began) => began.stack,
            None => self.stack_of(jump, cell, record.stack, Addr(record.caller)),
        };
        let is_walked = !matches!(record.stack, RecordedStack::Caller(_));
        let facts = self.facts_of(jump, record.function, stack, Addr(record.caller), is_walked);
        // readers must know each stack whose facts are kept: the next call of it is a plain one
        self.observer.define_stacks(self.space.modules.unwinder.stacks());
        if self.is_passed_on(jump, cell, record, &facts) {
            return;
        }
        let told = if is_walked { stack } else { StackId::EMPTY };
        let part = Part {
            task,
            function: FunctionId(record.function),
            kind: record.kind,
            args: [record.args[0], record.args[1], record.args[2], 0, 0, 0],
            returned: Returned { result: record.result, out: Some(Addr(record.out)), size: None },
            stack: told,
            missed: facts.missed.filter(|_| is_walked),
            family: facts.family,
            caller_is_allocator: facts.caller_is_allocator,
            told: of_block.filter(|told| record.kind == Kind::Freed && told.block.0 == record.args[0]),
            recorded: began.map(|began| began.recorded),
            interval: jump.interval_of(record.picked.into()),
            counted_since: record.kind != Kind::Ended && record.result != 0,
            time_ns,
        };
        let recorded = self.observer.take_part(&part);
        self.note_recorded(jump, record);
        if begins && let Some(owner) = jump.owner_mut(cell) {
            owner.began.push(Began { function: record.function, old: record.args[0], stack: told, recorded });
        }
    }

    /// Whether the record is of a free that another function has passed on, which has recorded it: by a jump, or by a
    /// call of its own.
    fn is_passed_on(&self, jump: &mut Jump, cell: u16, record: &Record, facts: &Facts) -> bool {
        let Some(owner) = jump.owner_mut(cell) else { return false };
        if record.kind != Kind::Freed {
            owner.last_free = None;
            return false;
        }
        let Record { function, caller, args: [block, ..], .. } = *record;
        owner.note_free(LastFree { function, block, caller }, facts.caller_is_allocator)
    }

    /// A call that had given a block back will not return.
    pub(super) fn abandon(&mut self, task: TaskId, began: &Began) {
        if let Some(event) = began.recorded.of(EventKind::ReallocAbandoned { old: Addr(began.old), task }) {
            self.tell(event);
        }
    }

    pub(super) fn facts_of(
        &mut self,
        jump: &mut Jump,
        function: u16,
        stack: StackId,
        caller: Addr,
        walked: bool,
    ) -> Facts {
        if let Some(facts) = jump.facts.latest(function, stack) {
            return facts;
        }
        let (known, may_be_kept) = match jump.facts.of_caller(function, caller) {
            Some(known) => (known, true),
            None => {
                let Some(stub) = jump.stubs.iter().find(|stub| stub.function == function).copied() else {
                    return Facts { family: None, caller_is_allocator: false, missed: None };
                };
                let frees = self
                    .settings
                    .table
                    .get(FunctionId(function))
                    .is_some_and(|function| matches!(function.kind, FunctionKind::Free { .. }));
                let space = &mut self.space;
                let wrapper = space.modules.wrapper_at(caller.sub(1));
                // What can't be told yet may be told next time: a slot of the global offset table that is not resolved.
                let (family, may_be_kept) = match wrapper {
                    Some(_) => space.modules.family_through_wrapper(&space.image, stack),
                    None => {
                        let family = space.modules.family_of_call(&space.image, stub.entry, caller, frees);
                        (family, family.is_some() || space.modules.is_callee_known(caller))
                    }
                };
                let known = CallerFacts {
                    family,
                    caller_is_allocator: space.modules.is_called_by_allocator(&space.image, caller),
                };
                // Who has called a wrapper depends on the stack.
                if may_be_kept && wrapper.is_none() {
                    jump.facts.insert(function, caller, known);
                }
                (known, may_be_kept)
            }
        };
        let stacks = || self.space.modules.unwinder.stacks();
        let missed = walked.then(|| missed_of(stacks(), stack, self.settings.max_depth)).flatten();
        let CallerFacts { family, caller_is_allocator } = known;
        let facts = Facts { family, caller_is_allocator, missed };
        if may_be_kept {
            jump.facts.note_latest(function, stack, facts);
        }
        facts
    }
}
