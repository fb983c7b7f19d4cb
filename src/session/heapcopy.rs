//! The copies of a process under trace: it stands still only to be copied, and whoever asks reads the copy while it
//! runs on.
//!
//! The tracer thread makes a copy by a thread that it has interrupted, in code of the program's own;
//! where all have stopped for something else, what they have stopped for is served first. It kills the copy when that
//! has been read, or when the process ends, executes another program or is let go; then a thread of the process takes
//! its status.

use super::copylease::{CopiedMemory, CopyLease, CopyMaker};
use super::heapcapture::HeapCapture;
use super::requests::{Answer, Reply, RequestKind, Requests};
use super::stops::Stops;
use super::tracee::Tracee;
use crate::base::addr::Addr;
use crate::breakpoints::patches::PcLocation;
use crate::image::maps::Mapping;
use crate::profile::Exit;
use crate::tracer::control::Control;
use crate::tracer::copy::{self, Forked, Means};
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, TracerError, procfs};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// So often a process is stopped for one that can make a copy, or take the status of one.
const MAX_TRIES: u32 = 1000;

/// A thread that stood in code of ours runs on for so long at most before it is stopped again, each time for another
/// while. It must not be long: threads that record calls faster than they are drained wait in our code most of the
/// time, but not just after they were drained, as at each try.
const LONGEST_PAUSE: u32 = 61;

/// What a process has of copies.
#[derive(Debug, Default)]
pub(super) struct HeapCopies {
    /// Who waits for a heap until a thread can make a copy.
    wanted: VecDeque<HeapRequest>,
    /// Those that live, each with the mark that tells its reader that it does no longer.
    alive: Vec<(Forked, Arc<AtomicBool>)>,
    /// Those whose end was waited for, and whose status the process has still to take.
    dead: Vec<Forked>,
    /// Those whose status could not be taken, as the process had executed another program, with the times of their
    /// starts: numbers are given again.
    left: Vec<(Forked, Option<u64>)>,
    /// How often threads may still be stopped for that.
    tries: u32,
    /// How many threads have stopped that could do nothing of all this.
    in_vain: u32,
    /// Whether the last one that has stopped is of these.
    is_to_be_tried_again: bool,
    /// Threads that are still within a call that they made for us, as requests failed: see [`function::call`]. They go
    /// on with it when they are resumed.
    ///
    /// [`function::call`]: crate::tracer::remote::function::call
    within_call: BTreeSet<i32>,
}

impl HeapCopies {
    /// Whether there is something to be done that only an interrupted thread can do.
    pub(super) fn await_a_thread(&self) -> bool {
        !self.wanted.is_empty() || !self.dead.is_empty()
    }

    /// Whether nothing may be asked of thread `tid` at this stop, as it is still within a call made for us.
    pub(super) fn is_within_call(&self, tid: i32) -> bool {
        self.within_call.contains(&tid)
    }

    /// Nobody waits for the copy that no thread could make in this moment.
    pub(super) const fn forget_the_last(&mut self) {
        self.is_to_be_tried_again = false;
    }
}

/// Somebody who waits for the heap.
#[derive(Debug)]
pub(super) struct HeapRequest {
    means: Option<Means>,
    reply: Sender<Reply>,
    tries: u32,
    /// For how long the process has stood still for it so far, ns.
    stopped_ns: u64,
}

impl HeapRequest {
    /// By which means a copy is to be made. None: the process's own heap is read, as all tries were in vain if not for
    /// want of means.
    pub(super) fn means(&self) -> Option<Means> {
        self.means.filter(|_| self.tries > 0)
    }
}

/// What came of a try to read the heap.
pub(super) enum Captured {
    Heap(Box<HeapCapture>),
    /// No thread can make a copy now, but one will after what it has stopped for.
    Later {
        /// For how long the process has stood still for nothing, ns.
        stopped_ns: u64,
    },
    /// What was reported of the thread that stands still while it was to make a copy.
    Overtaken(TracerError),
}

impl HeapCopies {
    /// Somebody wants the heap, and hears of it as soon as a thread stands where it can make a copy, if there can be
    /// one.
    pub(super) fn want(&mut self, means: Option<Means>, reply: Sender<Reply>) {
        self.wanted.push_back(HeapRequest { means, reply, tries: MAX_TRIES, stopped_ns: 0 });
    }

    /// How many wait for a heap.
    pub(super) fn wanted(&self) -> usize {
        self.wanted.len()
    }

    /// The next of those who wait.
    pub(super) fn next_wanted(&mut self) -> Option<HeapRequest> {
        self.wanted.pop_front()
    }

    /// One of them waits on, behind all others.
    pub(super) fn wait_on(&mut self, wanted: HeapRequest) {
        self.wanted.push_back(wanted);
    }

    /// What came of a try for one of them: they hear of it, or wait on.
    ///
    /// # Errors
    /// What was reported of the thread that stands still.
    pub(super) fn answer(
        &mut self,
        wanted: HeapRequest,
        captured: std::result::Result<Captured, String>,
    ) -> Result<()> {
        let reply = match captured {
            Ok(Captured::Later { stopped_ns }) => {
                let stopped_ns = wanted.stopped_ns + stopped_ns;
                self.wait_on(HeapRequest { tries: wanted.tries.saturating_sub(1), stopped_ns, ..wanted });
                return Ok(());
            }
            Ok(Captured::Overtaken(error)) => {
                self.wait_on(wanted);
                self.is_to_be_tried_again = true;
                return Err(error);
            }
            Ok(Captured::Heap(mut capture)) => {
                capture.stopped_ns += wanted.stopped_ns;
                Ok(Answer::Captured(capture))
            }
            Err(cause) => Err(cause),
        };
        // The one who asked may have gone.
        let _ = wanted.reply.send(reply);
        Ok(())
    }

    /// Has one of the threads that stand still make a copy. None: there can be none. `mappings`: the program's.
    /// `with_pointers`: all that may hold pointers is wanted, not only the allocator's memory. What is shared changes
    /// under a copy.
    ///
    /// # Errors
    /// What was reported of `present` instead.
    pub(super) fn copy(
        &mut self,
        tracee: &mut Tracee,
        present: Option<&Stopped>,
        means: Means,
        mappings: &[Mapping],
        with_pointers: bool,
        stops: &mut Stops,
    ) -> Result<Option<Forming>> {
        let is_shared = |mapping: &Mapping| mapping.perms.shared && mapping.perms.write;
        if with_pointers && mappings.iter().any(is_shared) || !copy::may_be_made(tracee.pid, tracee.tasks.tids()) {
            return Ok(None);
        }
        let waiting = stops.waiting.iter().filter(|(tid, ..)| tracee.tasks.is_own_thread(*tid));
        let told_to: Vec<&Stopped> = present
            .into_iter()
            .chain(waiting.clone().filter(|(_, status, _)| *status == WaitStatus::EventStop).map(|(.., thread)| thread))
            .collect();
        let maker = told_to.iter().find_map(|thread| Some((*thread, self.can_call(tracee, thread, mappings)?)));
        let Some((thread, resume)) = maker else {
            let busy = |status: &WaitStatus| matches!(status, WaitStatus::Signal(_) | WaitStatus::Event(_));
            let busy: Vec<i32> = waiting.filter(|(_, status, _)| busy(status)).map(|(tid, ..)| *tid).collect();
            let comes = !busy.is_empty() || !told_to.is_empty();
            self.is_to_be_tried_again = !told_to.is_empty();
            for tid in busy {
                // it stops once more when it has been served
                tracee.interrupt(tid)?;
            }
            return Ok(comes.then_some(Forming::Later));
        };
        let tid = thread.tid();
        let is_present = present.is_some_and(|present| present.tid() == tid);
        if let Err(error) = self.take_left_statuses(thread, means) {
            match error {
                TracerError::Overtaken { .. } if is_present => return Err(error),
                TracerError::Overtaken { tid, status } => stops.overtake(tid, status),
                _ => self.note_failed_call(&error),
            }
            return Ok(None);
        }
        let mut left = None;
        let made =
            Forked::make(thread, &resume, tracee.pid, means, mappings, &mut tracee.space.image.memory, &mut left);
        if let Some(left) = left {
            self.note_dead_copy(left);
        }
        let made = match made {
            Err(error @ TracerError::Overtaken { .. }) if is_present => return Err(error),
            Err(TracerError::Overtaken { tid, status }) => {
                stops.overtake(tid, status);
                None
            }
            Err(error) => {
                self.note_failed_call(&error);
                None
            }
            Ok(made) => made,
        };
        let Some(forked) = made else { return Ok(None) };
        if forked.is_maker_within() {
            self.within_call.insert(tid);
        }
        let memory = forked.memory().ok().filter(|_| forked.is_whole());
        let lease = memory.map(|mut memory| {
            memory.wait_for_no_servers(tracee.space.image.memory.reader(), mappings);
            self.lease(tracee, forked, memory)
        });
        if lease.is_none() && forked.is_over() {
            self.note_dead_copy(forked);
        } else if lease.is_none() {
            self.alive.push((forked, Arc::default()));
            self.end_copy(forked.pid());
        }
        Ok(lease.map(|lease| Forming::Copy(Box::new(lease))))
    }

    /// A thread was to make a call for us, and nothing else was reported of it instead.
    fn note_failed_call(&mut self, error: &TracerError) {
        tracing::debug!("{error}");
        if let TracerError::Unresponsive { tid } = *error {
            self.within_call.insert(tid);
        }
    }

    fn lease(&mut self, tracee: &Tracee, forked: Forked, memory: TargetMemory) -> CopyLease {
        let has_ended = Arc::<AtomicBool>::default();
        self.alive.push((forked, Arc::clone(&has_ended)));
        let memory = CopiedMemory::new(memory, tracee.space.image.code.patches().clone());
        let maker = MakerByRequest {
            requests: Arc::clone(&tracee.settings.requests),
            control: Arc::clone(&tracee.control),
            of: tracee.pid,
            copy: forked.pid(),
        };
        CopyLease::new(memory, Box::new(maker), has_ended)
    }

    /// The registers with which a thread goes on that stands where it can make a call for us: in the program's code,
    /// not in ours, nor within another such call.
    fn can_call(&self, tracee: &Tracee, thread: &Stopped, mappings: &[Mapping]) -> Option<RawRegs> {
        let raw = thread.registers().ok()?;
        let resume = raw.repeating_system_call().unwrap_or(raw);
        let is_the_program_s = tracee.space.image.locate(Addr(resume.0.rip)) == PcLocation::Program;
        let is_free = is_the_program_s && !self.is_within_call(thread.tid());
        (is_free && copy::can_make(thread, &resume, mappings)).then_some(resume)
    }

    /// Kills all copies: they hold what the process is about to give up, its open files above all.
    pub(super) fn end_all(&self) {
        for (copy, has_ended) in &self.alive {
            has_ended.store(true, Ordering::Release);
            copy.kill();
        }
    }

    /// Kills the copy `pid`.
    pub(super) fn end_copy(&self, pid: i32) {
        if let Some((copy, has_ended)) = self.alive.iter().find(|(copy, _)| copy.pid() == pid) {
            has_ended.store(true, Ordering::Release);
            copy.kill();
        }
    }

    /// Task `tid`, of which nobody knows, has ended. True if it was a copy: a thread is made to stop, to take its
    /// status.
    pub(super) fn note_end_of_copy(&mut self, tracee: &mut Tracee, tid: i32) -> bool {
        let Some(at) = self.alive.iter().position(|(copy, _)| copy.pid() == tid) else { return false };
        let (copy, has_ended) = self.alive.swap_remove(at);
        has_ended.store(true, Ordering::Release);
        self.note_dead_copy(copy);
        self.is_to_be_tried_again = false;
        ask_a_thread(tracee);
        true
    }

    /// The end of a copy was waited for: a thread will be asked to take its status.
    fn note_dead_copy(&mut self, copy: Forked) {
        self.dead.push(copy);
        self.tries = MAX_TRIES;
        self.is_to_be_tried_again = true;
    }

    /// A thread has stopped as heaptrace has interrupted it: it takes the statuses of those copies that have ended.
    ///
    /// # Errors
    /// What was reported of it instead.
    pub(super) fn on_interrupted(&mut self, tracee: &mut Tracee, thread: &Stopped) -> Result<()> {
        // another stop than the one in which it failed
        self.within_call.remove(&thread.tid());
        if !self.dead.is_empty() {
            self.take_statuses(tracee, thread)?;
            if !self.dead.is_empty() && self.tries > 0 {
                self.tries -= 1;
                self.is_to_be_tried_again = true;
            }
        }
        Ok(())
    }

    /// Between two stops: what a thread could not do for copies another one is asked to do, or the same a moment later.
    pub(super) fn try_again(&mut self, tracee: &mut Tracee) {
        if std::mem::take(&mut self.is_to_be_tried_again) {
            self.in_vain = self.in_vain.wrapping_add(1);
            let pause = self.in_vain.wrapping_mul(17) % LONGEST_PAUSE;
            std::thread::sleep(Duration::from_micros(u64::from(pause)));
            ask_a_thread(tracee);
        }
    }

    fn take_statuses(&mut self, tracee: &mut Tracee, thread: &Stopped) -> Result<()> {
        let mappings = procfs::mappings(thread.tid())?;
        if self.can_call(tracee, thread, &mappings).is_none() {
            return Ok(());
        }
        while let Some(&copy) = self.dead.last() {
            let taken = match copy.status_taken_by(thread) {
                Err(error @ TracerError::Filtered { .. }) => {
                    tracee.warn_once(format!(
                        "the copy of process {} that heaptrace read stays as a zombie until the process ends, as the \
                         process could not collect its exit status: {error}",
                        tracee.pid
                    ));
                    false
                }
                Err(error @ TracerError::Unresponsive { .. }) => {
                    // another thread is asked
                    self.note_failed_call(&error);
                    return Ok(());
                }
                taken => taken?,
            };
            if !taken {
                tracing::debug!("a zombie is left: process {}", copy.pid());
                self.left.push((copy, procfs::start_time(copy.pid())));
            }
            self.dead.pop();
        }
        Ok(())
    }

    /// A thread that can make a copy takes the statuses of those that the process had made before it executed the
    /// present program.
    ///
    /// # Errors
    /// What was reported of it instead.
    fn take_left_statuses(&mut self, thread: &Stopped, means: Means) -> Result<()> {
        while let Some(&(copy, started)) = self.left.last() {
            // the program may have taken it itself, and have another child of that number
            let is_it = started.is_some() && procfs::start_time(copy.pid()) == started;
            let copy = copy.after_exec(means);
            let taken = !is_it
                || match copy.status_taken_by(thread) {
                    Err(TracerError::Filtered { .. }) => true,
                    taken => taken?,
                };
            if !taken {
                break;
            }
            self.left.pop();
        }
        Ok(())
    }

    /// The process is about to be let go: no copy of it is left, nor a zombie of one, also of those that other
    /// heaptraces have had made.
    pub(super) fn end_before_detach(&mut self, tracee: &mut Tracee, exit: Option<Exit>, stops: &mut Stops) {
        self.wanted.clear();
        for (copy, has_ended) in std::mem::take(&mut self.alive) {
            has_ended.store(true, Ordering::Release);
            copy.end();
            self.dead.push(copy);
        }
        let known: Vec<i32> = self.dead.iter().map(Forked::pid).collect();
        let others = copy::left_by_others(tracee.pid, &tracee.space.image.memory);
        self.dead.extend(others.into_iter().filter(|copy| !known.contains(&copy.pid())));
        if self.dead.is_empty() || exit.is_some() {
            return;
        }
        if let Err(error) = tracee.stop_all_threads(None, stops) {
            tracing::debug!("{error}");
        }
        let mut overtaken = Vec::new();
        for (tid, status, _) in &stops.waiting {
            if *status == WaitStatus::EventStop
                && tracee.tasks.is_own_thread(*tid)
                && let Err(error) = self.take_statuses(tracee, &Stopped::regained(*tid))
            {
                tracing::debug!("a zombie is left: {error}");
                if let TracerError::Overtaken { tid, status } = error {
                    overtaken.push((tid, status));
                }
            }
        }
        for (tid, status) in overtaken {
            stops.overtake(tid, status);
        }
    }
}

/// The tracer thread, which made the copy `copy` of the process `of`, reached by a request.
#[derive(Debug)]
struct MakerByRequest {
    requests: Arc<Requests>,
    control: Arc<Control>,
    of: i32,
    copy: i32,
}

impl CopyMaker for MakerByRequest {
    fn end(&self) {
        // a tracer that has ended has taken its copies with it
        let _ = self.requests.ask(&self.control, self.of, RequestKind::EndCopy(self.copy));
    }

    fn order_end(&self) {
        self.requests.order_about(self.of, &self.control, RequestKind::EndCopy(self.copy));
    }
}

/// Tells a thread to stop, one that runs if there is one.
fn ask_a_thread(tracee: &mut Tracee) {
    let threads = tracee.tasks.tids().into_iter().filter(|tid| tracee.tasks.is_own_thread(*tid));
    let threads = threads.map(|tid| (tid, procfs::state(tracee.pid, tid)));
    let taker = threads.min_by_key(|(_, state)| match state {
        Some(b'R') => 0,
        Some(b'S') => 1,
        _ => 2,
    });
    if let Some((tid, _)) = taker {
        let _ = tracee.interrupt(tid);
    }
}

/// Whether a copy is there.
pub(super) enum Forming {
    Copy(Box<CopyLease>),
    /// See [`Captured::Later`].
    Later,
}
