//! What the kernel has reported and nobody has dealt with yet: stops, ends, and the tasks that are about to appear.

use super::slots::Slot;
use super::stop::{Serving, Stop};
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::status::{Event, WaitStatus};
use crate::tracer::waiting::Waiting;
use crate::tracer::{Result, TracerError, procfs};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::time::Instant;

/// Every this many stops of a program with threads, all that wait are served in turn.
const FAIRNESS: u32 = 16;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Stops {
    /// The process that each known task belongs to.
    owners: FxHashMap<i32, Slot>,
    /// Stops that were reported but not served yet, oldest first.
    pub(super) waiting: VecDeque<(i32, WaitStatus, Stopped)>,
    /// Ends that were reported but not noted yet.
    ended: VecDeque<(i32, WaitStatus)>,
    /// New tasks that their parents have announced, but that have not stopped yet.
    pub(super) expected: HashSet<i32>,
    /// New tasks that stopped before they were announced.
    pub(super) early: HashSet<i32>,
    /// New processes that stopped before they were announced, where they are followed: their parents must tell first.
    pub(super) held: Vec<(i32, WaitStatus)>,
    /// Tasks that are being detached from. One that is killed at that very moment stops once more, at its end.
    detaching: HashSet<i32>,
    /// Children in vfork(2), whose parents wait for them.
    in_vfork: HashSet<i32>,
    /// Whether a parent could not be understood: those that wait for it can't be followed.
    pub(super) announcement_lost: bool,
    /// The stop that is being answered: what is left of it if that goes wrong.
    pub(super) serving: Option<Serving>,
    wait: Waiting,
    turn: u32,
}

/// What [`Stops::next`] has to offer.
#[derive(Debug)]
pub(super) enum Next {
    /// A task has stopped.
    Stop(Stop),
    /// A task has ended.
    End(i32, WaitStatus),
    /// Nothing: heaptrace itself was interrupted.
    Nothing,
    /// No task is left to wait for.
    NoTasks,
}

impl Stops {
    pub(super) fn new() -> Self {
        Self {
            owners: FxHashMap::default(),
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
            expected: HashSet::new(),
            early: HashSet::new(),
            held: Vec::new(),
            detaching: HashSet::new(),
            in_vfork: HashSet::new(),
            announcement_lost: false,
            serving: None,
            wait: Waiting::new(),
            turn: 0,
        }
    }

    /// The process that a task belongs to, if it is known.
    pub(super) fn owner_of(&self, tid: i32) -> Option<Slot> {
        self.owners.get(&tid).copied()
    }

    /// A stop that was reported, with the process of its task.
    pub(super) fn stop(&self, status: WaitStatus, stopped: Stopped) -> Stop {
        let slot = self.owner_of(stopped.tid());
        Stop { status, stopped, slot }
    }

    /// The oldest of the stops that wait to be served.
    pub(super) fn take_waiting(&mut self) -> Option<Stop> {
        let (_, status, stopped) = self.waiting.pop_front()?;
        Some(self.stop(status, stopped))
    }

    /// A task belongs to the process in `slot` from now on.
    pub(super) fn assign(&mut self, tid: i32, slot: Slot) {
        self.owners.insert(tid, slot);
    }

    /// A task is gone, or no longer ours.
    pub(super) fn forget(&mut self, tid: i32) {
        self.owners.remove(&tid);
    }

    /// The next stop or end, oldest first. If there is none it is waited for, unless `at_once`. `pinned`: the program
    /// shares our CPU.
    pub(super) fn next(&mut self, pinned: bool, look_until: Option<Instant>) -> Result<Next> {
        if let Some((tid, status)) = self.ended.pop_front() {
            return Ok(Next::End(tid, status));
        }
        if let Some(stop) = self.take_waiting() {
            return Ok(Next::Stop(stop));
        }
        let threads = self.owners.len();
        let waited = match look_until {
            Some(moment) => self.wait.look_until(moment, threads, pinned)?,
            None => self.wait.next(threads, pinned)?,
        };
        Ok(match waited {
            Waited::Task(_, status, Some(stopped)) => Next::Stop(self.stop(status, stopped)),
            Waited::Task(tid, status, None) => {
                self.note_end(tid);
                Next::End(tid, status)
            }
            Waited::Interrupted | Waited::Nothing => Next::Nothing,
            Waited::NoTasks => Next::NoTasks,
        })
    }

    /// A stop was served. Collects from time to time all that are there, to be served in turn: the kernel reports the
    /// newest task first, and old threads would stand still while new ones are busy.
    pub(super) fn be_fair(&mut self) -> Result<()> {
        self.turn = self.turn.wrapping_add(1);
        if self.waiting.is_empty() && self.owners.len() > 1 && self.turn.is_multiple_of(FAIRNESS) {
            self.collect()?;
        }
        Ok(())
    }

    /// Takes over all that there is to report.
    pub(super) fn collect(&mut self) -> Result<()> {
        // Each is taken over at once: what broke off in the middle would leave threads stopped that nobody knows of.
        let stops = RefCell::new(self);
        ptrace::collect(
            || stops.borrow().known(),
            |tid, status, stopped| stops.borrow_mut().take_over(tid, status, stopped),
        )
    }

    /// Takes over one report; `stopped` unless the task has ended.
    fn take_over(&mut self, tid: i32, status: WaitStatus, stopped: Option<Stopped>) {
        let Some(stopped) = stopped else {
            self.note_end(tid);
            self.ended.push_back((tid, status));
            return;
        };
        // An older stop of the same id belonged to a leader that another thread's exec has replaced.
        self.waiting.retain(|(older, ..)| *older != tid);
        self.waiting.push_back((tid, status, stopped));
    }

    /// All tasks that are known, and those that are announced by stops which wait to be served.
    fn known(&self) -> Vec<i32> {
        let announced = self.waiting.iter().filter_map(|(_, status, parent)| match status {
            WaitStatus::Event(Event::Clone | Event::Fork | Event::Vfork) => {
                i32::try_from(parent.event_message().ok()?).ok()
            }
            _ => None,
        });
        self.owners.keys().chain(&self.expected).copied().chain(announced).collect()
    }

    /// While a task that waits to be served did something for us, this was reported of it.
    pub(super) fn overtake(&mut self, tid: i32, status: WaitStatus) {
        if matches!(status, WaitStatus::Exited(_) | WaitStatus::Signaled(_)) {
            self.waiting.retain(|(waiting, ..)| *waiting != tid);
            self.note_end(tid);
            self.ended.push_back((tid, status));
        } else if let Some((_, waiting, _)) = self.waiting.iter_mut().find(|(waiting, ..)| *waiting == tid) {
            *waiting = status;
        }
    }

    /// Sees to it that a new process makes its first stop, and is held there. False: it has died.
    pub(super) fn hold(&mut self, tid: i32) -> Result<bool> {
        if self.held.iter().any(|(held, _)| *held == tid) {
            return Ok(true);
        }
        if let Some(at) = self.waiting.iter().position(|(waiting, ..)| *waiting == tid) {
            self.held.extend(self.waiting.remove(at).map(|(_, status, _)| (tid, status)));
            return Ok(true);
        }
        if self.ended.iter().any(|(ended, _)| *ended == tid) {
            return Ok(false);
        }
        match ptrace::wait_task(tid, ptrace::TIMEOUT)? {
            Waited::Task(_, status, Some(_)) => {
                self.held.push((tid, status));
                Ok(true)
            }
            Waited::Nothing => Err(TracerError::Task {
                operation: "see the first stop of",
                tid,
                source: std::io::ErrorKind::TimedOut.into(),
            }),
            _ => Ok(false),
        }
    }

    /// A held process goes on: its first stop is the next to be served.
    pub(super) fn release(&mut self, tid: i32) {
        if let Some(at) = self.held.iter().position(|(held, _)| *held == tid) {
            let (_, status) = self.held.remove(at);
            self.waiting.push_front((tid, status, Stopped::regained(tid)));
        }
    }

    /// The next end that was collected.
    pub(super) fn take_end(&mut self) -> Option<(i32, WaitStatus)> {
        self.ended.pop_front()
    }

    /// A task is about to be detached from. False: it was before.
    pub(super) fn begin_detach(&mut self, tid: i32) -> bool {
        self.detaching.insert(tid)
    }

    /// Whether a task was about to be detached from, and that has not come about: it is being killed.
    pub(super) fn is_detaching(&self, tid: i32) -> bool {
        self.detaching.contains(&tid)
    }

    /// A task was detached from: it is not traced any more, and nobody will tell of its end.
    pub(super) fn end_detach(&mut self, tid: i32) {
        self.detaching.remove(&tid);
    }

    fn note_end(&mut self, tid: i32) {
        self.detaching.remove(&tid);
        self.expected.remove(&tid);
        self.held.retain(|(held, _)| *held != tid);
    }

    /// A task has just been given a child or thread, as `event` tells, which will stop by itself.
    pub(super) fn announce(&mut self, event: Event, parent: &Stopped) -> Result<()> {
        let Ok(new) = i32::try_from(parent.event_message()?) else { return Ok(()) };
        if event == Event::Vfork {
            self.in_vfork.insert(new);
        }
        // The parent's stop may be reported when the new task has come and gone.
        let was_early = self.early.remove(&new);
        if !was_early && !self.owners.contains_key(&new) && procfs::state(new, new).is_some() {
            self.expected.insert(new);
        }
        Ok(())
    }

    /// Whether a child is in vfork(2), as its parent has told, or is about to tell.
    pub(super) fn is_in_vfork(&self, child: i32) -> bool {
        let tells = |(_, status, parent): &(i32, WaitStatus, Stopped)| {
            *status == WaitStatus::Event(Event::Vfork) && parent.event_message().is_ok_and(|told| told == child as u64)
        };
        self.in_vfork.contains(&child) || self.waiting.iter().any(tells)
    }

    /// A thread comes back from vfork(2).
    pub(super) fn end_vfork(&mut self, child: i32) {
        self.in_vfork.remove(&child);
    }

    /// A new task has made its first stop.
    pub(super) fn note_arrival(&mut self, tid: i32) {
        if !self.expected.remove(&tid) {
            self.early.insert(tid);
        }
    }

    /// Whether the tasks have stopped that the events which wait to be served are about to announce.
    pub(super) fn announced_are_in(&self, stopped: &BTreeSet<i32>) -> bool {
        self.waiting.iter().all(|(_, status, parent)| match status {
            WaitStatus::Event(Event::Clone | Event::Fork | Event::Vfork) => {
                let new = parent.event_message().ok().and_then(|message| i32::try_from(message).ok());
                new.is_none_or(|new| {
                    stopped.contains(&new) || self.early.contains(&new) || self.owners.contains_key(&new)
                })
            }
            _ => true,
        })
    }
}
