//! Records become events.

use super::facts::{CallerFacts, Facts};
use super::{Account, Began, Jump, JumpEngine, JumpState, LastFree, plain};
use crate::allocators::Kind as FunctionKind;
use crate::base::addr::{Addr, FunctionId, StackId, TaskId};
use crate::event::calls::{Returned, ToldOfBlock};
use crate::event::{EventKind, Missed};
use crate::jump::layout::{CELL_DROPPED, CELL_HEAD, CELL_SPUN, CELL_TAIL, CELL_TIMED, CELL_TSC, Kind, cell_at};
use crate::jump::merge::{Next, Record, RecordedStack};
use crate::jump::shared::Shared;
use crate::session::engine::{Part, missed_of};
use crate::session::observer::Observer;
use crate::session::tasks::{Role, Task};
use crate::session::tracee::Tracee;
use std::time::{Duration, Instant};

/// How long it is waited for a record whose thread has taken its number.
const TIMEOUT: Duration = Duration::from_millis(2);

const RING_DAMAGED: &str = "the program has written to heaptrace's memory: calls of a thread are missing";

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

impl JumpEngine {
    /// Passes all that the routine has recorded until now to the observer, see
    /// [`crate::session::process::Process::settle`].
    pub(in crate::session) fn settle(&mut self, tracee: &mut Tracee, observer: &mut Observer) {
        self.drain(tracee, observer, Drained::All);
        observer.tell_counted();
    }

    /// Takes records, in their order.
    pub(in crate::session) fn drain(&mut self, tracee: &mut Tracee, observer: &mut Observer, what: Drained) {
        let Self { state: JumpState::On(jump), account } = self else { return };
        // who stopped last may have ended, and what it had in its memory may have changed
        let lives = |task: &&Task| task.role == Role::Thread && !task.ending;
        let first = tracee.tasks.get(tracee.pid).filter(lives).or_else(|| tracee.tasks.iter().find(lives));
        let reader = tracee.space.image.memory.reader();
        tracee.space.image.memory.new_stop(first.map_or(reader, |task| task.id.tid));
        let told = observer.events();
        let mut deadline = None;
        let mut records = std::mem::take(&mut jump.batch);
        let mut is_first = true;
        loop {
            jump.merge.look(&jump.region.mapping);
            if std::mem::take(&mut is_first) {
                jump.note_pace();
                jump.note_processors();
            }
            jump.take_lists(tracee);
            let time_ns = observer.now_ns();
            let mut taken = 0u64;
            let ended = loop {
                let most = match what {
                    Drained::Half(cell) => jump.merge.left(cell).saturating_sub(jump.records_of(cell) / 2).min(BATCH),
                    Drained::There | Drained::All => BATCH,
                };
                records.clear();
                let next = jump.merge.take(&jump.region.mapping, most as usize, &mut records);
                let may_be_plain = jump.sampling.is_none() && observer.takes_all();
                observer.define_stacks(tracee.space.modules.unwinder.stacks());
                for (at, (cell, record)) in records.iter().enumerate() {
                    observer.model().look_ahead(at, |at| records.get(at).map(|(_, record)| record.block()));
                    if !(may_be_plain && plain::take(observer, jump, *cell, record, time_ns)) {
                        jump.looked_up += 1;
                        jump.take_record(tracee, observer, account, (*cell, record), time_ns);
                    }
                }
                taken += records.len() as u64;
                observer.show_progress();
                match next {
                    Next::Enough if records.is_empty() => break Next::Empty,
                    Next::Enough => {}
                    Next::Damaged(cell) => {
                        let head = jump.shared().word(cell_at(cell.into()) + CELL_HEAD);
                        jump.begin_anew(tracee, observer, cell, head);
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
        jump.note_recording(account, observer.events().saturating_sub(told));
        jump.note_dropped(observer);
        jump.tell_counted(observer, account);
        tracee.space.image.memory.new_stop(reader);
    }

    /// The thread of the cell has found no room for its record with the number `head`. It finds some when it looks
    /// again.
    pub(super) fn make_room(&mut self, tracee: &mut Tracee, observer: &mut Observer, cell: u16, head: u64) {
        let grows = self.on().is_some_and(|jump| jump.may_grow(cell));
        self.drain(tracee, observer, if grows { Drained::All } else { Drained::Half(cell) });
        let JumpState::On(jump) = &mut self.state else { return };
        let taken = jump.merge.tell_again(cell, &jump.region.mapping);
        if taken.is_none_or(|taken| head.wrapping_sub(taken) >= jump.records_of(cell)) {
            jump.begin_anew(tracee, observer, cell, head);
        } else if grows && taken == Some(head) {
            jump.grow(cell, head);
        }
    }
}

impl Jump {
    /// A ring is not as its thread leaves it: what it holds is lost, and the next record is number `head`.
    fn begin_anew(&mut self, tracee: &mut Tracee, observer: &mut Observer, cell: u16, head: u64) {
        tracee.warn_once(RING_DAMAGED.to_owned());
        observer.tell(EventKind::Missed(Missed::Call));
        if self.owner_mut(cell).is_some() {
            let at = cell_at(cell.into());
            self.shared().set_word(at + CELL_HEAD, head);
            self.shared().set_word(at + CELL_TAIL, head);
            self.open_ring(cell, head);
        }
    }

    /// So many events were recorded without a stop.
    fn note_recording(&mut self, account: &mut Account, events: u64) {
        if events == 0 {
            return;
        }
        let [ticks, calls, spun] = [CELL_TSC, CELL_TIMED, CELL_SPUN].map(|place| self.sum_of_cells(place));
        self.clock.note(ticks, calls);
        let waited = self.clock.note_spun(spun);
        let ns = events.saturating_mul(self.clock.event_ns()).saturating_add(waited);
        account.events_without_stop += events;
        account.recording(ns);
    }

    /// Calls that will not return, as their threads have left them by a longjmp or an exception.
    fn note_dropped(&mut self, observer: &mut Observer) {
        let dropped = self.sum_of_cells(CELL_DROPPED);
        // the program can write there
        let new = dropped.wrapping_sub(std::mem::replace(&mut self.dropped, dropped)).min(1 << 20);
        for _ in 0..new {
            observer.tell(EventKind::Missed(Missed::Return));
        }
    }

    fn take_record(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        account: &mut Account,
        (cell, record): (u16, &Record),
        time_ns: u64,
    ) {
        let Some(owner) = self.cells.get_mut(usize::from(cell)).and_then(Option::as_mut) else { return };
        let task = owner.task;
        let begins = record.kind == Kind::Began;
        let mut began = None;
        if record.kind == Kind::Ended && !owner.began.is_empty() {
            let was_begun = |began: &Began| began.function == record.function && began.old == record.args[0];
            if let Some(at) = owner.began.iter().rposition(was_begun) {
                began = Some(owner.began.remove(at));
                // those that began after it will not return
                let dead: Vec<Began> = owner.began.drain(at..).collect();
                dead.iter().for_each(|dead| dead.abandon(task, observer));
            }
        }
        let stack = match &began {
            Some(began) => began.stack,
            None => self.stack_of(tracee, account, cell, record.stack, Addr(record.caller)),
        };
        let is_walked = !matches!(record.stack, RecordedStack::Caller(_));
        let facts = self.facts_of(tracee, record.function, stack, Addr(record.caller), is_walked);
        // readers must know each stack whose facts are kept: the next call of it is a plain one
        observer.define_stacks(tracee.space.modules.unwinder.stacks());
        if self.is_passed_on(cell, record, &facts) {
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
            told: record.told().map(|(size, align)| ToldOfBlock { block: record.block(), size, align }),
            recorded: began.map(|began| began.recorded),
            interval: self.interval_of(record.picked.into()),
            counted_since: record.counted() != 0,
            time_ns,
        };
        let recorded = observer.take_part(&part);
        self.note_recorded(observer, record);
        if begins && let Some(owner) = self.owner_mut(cell) {
            owner.began.push(Began { function: record.function, old: record.args[0], stack: told, recorded });
        }
    }

    /// Whether the record is of a free that another function has passed on, which has recorded it: by a jump, or by a
    /// call of its own.
    fn is_passed_on(&mut self, cell: u16, record: &Record, facts: &Facts) -> bool {
        let Some(owner) = self.owner_mut(cell) else { return false };
        if record.kind != Kind::Freed {
            owner.last_free = None;
            return false;
        }
        let Record { function, caller, args: [block, ..], .. } = *record;
        owner.note_free(LastFree { function, block, caller }, facts.caller_is_allocator)
    }

    pub(super) fn facts_of(
        &mut self,
        tracee: &mut Tracee,
        function: u16,
        stack: StackId,
        caller: Addr,
        walked: bool,
    ) -> Facts {
        if let Some(facts) = self.facts.latest(function, stack) {
            return facts;
        }
        let (known, may_be_kept) = match self.facts.of_caller(function, caller) {
            Some(known) => (known, true),
            None => {
                let Some(stub) = self.stubs.iter().find(|stub| stub.function == function && !stub.is_told()).copied()
                else {
                    return Facts { family: None, caller_is_allocator: false, missed: None };
                };
                let frees = tracee
                    .settings
                    .table
                    .get(FunctionId(function))
                    .is_some_and(|function| matches!(function.kind, FunctionKind::Free { .. }));
                let space = &mut tracee.space;
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
                    self.facts.insert(function, caller, known);
                }
                (known, may_be_kept)
            }
        };
        let stacks = || tracee.space.modules.unwinder.stacks();
        let missed = walked.then(|| missed_of(stacks(), stack, tracee.settings.max_depth)).flatten();
        let CallerFacts { family, caller_is_allocator } = known;
        let facts = Facts { family, caller_is_allocator, missed };
        if may_be_kept {
            self.facts.note_latest(function, stack, facts);
        }
        facts
    }
}

impl Began {
    /// The call will not return.
    pub(super) fn abandon(&self, task: TaskId, observer: &mut Observer) {
        if let Some(event) = self.recorded.of(EventKind::ReallocAbandoned { old: Addr(self.old), task }) {
            observer.tell(event);
        }
    }
}
