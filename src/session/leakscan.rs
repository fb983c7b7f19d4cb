//! The leak scan: all threads are made to stop, the live blocks and the memory that may point to them are read, the
//! blocks are classified.
//!
//! The best moment is libc's `_exit`: the exit handlers have run, all threads are still there. A program that ends
//! otherwise (exit_group of its own, a deadly signal) is read when the last of its threads reports its end; the
//! registers of those that had reported before were kept, and their stacks are still mapped. A program that lives on is
//! read on request, or when it says so itself.

use super::heapcapture::{HeapRead, HeapSources};
use super::heapcopy::{Captured, HeapCopies};
use super::kernelheld::{self, MAX_ASKING, SignalStacks};
use super::leakrecord::{LeakScan, ScanRecord};
use super::observer::Observer;
use super::space::Annotation;
use super::stops::Stops;
use super::tasks::Role;
use super::tracee::Tracee;
use crate::arch::Regs;
use crate::base::addr::Addr;
use crate::event::EventKind;
use crate::heap::leaks::roots::ThreadState;
use crate::heap::leaks::{Scan, ScanOptions};
use crate::image::maps::Mapping;
use crate::profile::Exit;
use crate::profile::leaks::ScanMoment;
use crate::tracer::procfs;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::{Result, TracerError};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// `SYS_exit`, the end of one thread alone; of a thread that ends with its process the register holds something else.
const SYS_EXIT: u64 = 60;

/// The leak scan of a process: what is kept for it, and what it has found.
#[derive(Debug, Default)]
pub(super) struct LeakScanner {
    /// Threads that have reported their end together with their process's.
    ended: Vec<ThreadState>,
    /// The names that they had.
    names: HashMap<i32, String>,
    /// Memory whose pointers count, as the program says.
    regions: Vec<Range<Addr>>,
    /// The signal stacks of the threads that could be asked for the scan that follows.
    signal_stacks: SignalStacks,
    done: Option<Box<ScanRecord>>,
    failure: Option<String>,
}

/// A scan that is to be made now: the program stands still.
#[derive(Debug)]
pub(super) struct DueScan {
    /// A thread that stands still.
    pub(super) live: i32,
    threads: Vec<ThreadState>,
    moment: ScanMoment,
    began: Instant,
}

/// What the end of a thread means.
#[derive(Debug)]
pub(super) enum ThreadEnding {
    /// Nothing: others are left, or all was looked at before.
    One,
    /// It is the last one: the heap is to be looked at, and scanned if that is wanted.
    Last(Option<DueScan>),
}

impl LeakScanner {
    /// No scan can be made any more, for this reason.
    pub(super) fn give_up(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// That of a copy of the process.
    pub(super) fn fork(&self) -> Self {
        Self { regions: self.regions.clone(), ..Self::default() }
    }

    /// What became of it, for a session that wanted one.
    pub(super) fn into_scan(self, exit: Option<Exit>) -> LeakScan {
        match (self.done, self.failure, exit) {
            (Some(done), ..) => LeakScan::Done(done),
            (None, Some(cause), _) => LeakScan::Missed(cause),
            (None, None, Some(_)) => {
                LeakScan::Missed("the program disappeared before its memory could be read".to_owned())
            }
            (None, None, None) => LeakScan::Missed("tracing ended before the program did".to_owned()),
        }
    }

    /// Whether one is wanted, and was not made.
    fn is_wanted(&self, tracee: &Tracee) -> bool {
        tracee.settings.leak_scan.is_some() && self.done.is_none()
    }

    /// A thread has entered a function by which the program tells of its memory. It may ask for a scan.
    pub(super) fn on_annotation(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        (tid, at): (i32, Addr),
        regs: &Regs,
        stops: &mut Stops,
    ) -> Result<Option<DueScan>> {
        let (Some(annotation), Some(task)) = (tracee.space.modules.annotation_at(at), tracee.tasks.get(tid)) else {
            return Ok(None);
        };
        let task = task.id;
        let [first, second, ..] = regs.arguments();
        let region = Addr(first)..Addr(first.saturating_add(second));
        match annotation {
            Annotation::IgnoreObject => observer.tell(EventKind::BlockIgnored(Addr(first))),
            Annotation::Disable => observer.tell(EventKind::NewBlocksIgnored { task, ignore: true }),
            Annotation::Enable => observer.tell(EventKind::NewBlocksIgnored { task, ignore: false }),
            Annotation::RegisterRegion => self.regions.push(region),
            Annotation::UnregisterRegion => {
                if let Some(index) = self.regions.iter().position(|known| *known == region) {
                    self.regions.swap_remove(index);
                }
            }
            Annotation::CheckNow => return self.stop_at_call(tracee, tid, regs, regs, (ScanMoment::Program, stops)),
        }
        Ok(None)
    }

    /// A thread has arrived at libc's `_exit`.
    pub(super) fn on_libc_exit(
        &mut self,
        tracee: &mut Tracee,
        copies: &HeapCopies,
        thread: &Stopped,
        raw: &RawRegs,
        stops: &mut Stops,
    ) -> Result<Option<DueScan>> {
        let at_entry = raw.regs();
        let outer = tracee.space.modules.caller_of_exit(&mut tracee.space.image, &at_entry).unwrap_or(at_entry);
        let due = self.stop_at_call(tracee, thread.tid(), &at_entry, &outer, (ScanMoment::Exit, stops))?;
        if due.is_some() {
            self.signal_stacks = kernelheld::signal_stacks(tracee, copies, thread, stops)?;
        }
        Ok(due)
    }

    /// Stops the program for a scan, while a thread stands at the entry of a function without arguments. `outer`: the
    /// registers of the innermost frame whose values still count, the caller's or one further out.
    fn stop_at_call(
        &self,
        tracee: &mut Tracee,
        tid: i32,
        at_entry: &Regs,
        outer: &Regs,
        (moment, stops): (ScanMoment, &mut Stops),
    ) -> Result<Option<DueScan>> {
        // A child that shares the memory ends alone. The scan of an earlier thread that has arrived here holds.
        if !self.is_wanted(tracee) || !tracee.tasks.is_own_thread(tid) {
            return Ok(None);
        }
        let began = Instant::now();
        let mut own = ThreadState::in_call(tid, outer);
        if tid == tracee.pid {
            own.start_frames = tracee.space.modules.start_frames(&mut tracee.space.image, at_entry, true);
        }
        let mut threads = tracee.stop_all_threads(Some(tid), stops)?;
        threads.push(own);
        Ok(Some(DueScan { live: tid, threads, moment, began }))
    }

    /// A thread is about to disappear.
    pub(super) fn on_thread_ending(
        &mut self,
        tracee: &mut Tracee,
        tid: i32,
        thread: &Stopped,
        stops: &Stops,
    ) -> Result<ThreadEnding> {
        let Some(task) = tracee.tasks.get_mut(tid).filter(|task| task.role == Role::Thread) else {
            return Ok(ThreadEnding::One);
        };
        task.ending = true;
        if self.done.is_some() {
            return Ok(ThreadEnding::One);
        }
        // A thread just created may not have made its first stop, or not been served.
        let is_coming = |new: &i32| matches!(procfs::thread_group(*new), Ok(Some(group)) if group == tracee.pid);
        let is_last = tracee.tasks.iter().all(|task| task.role != Role::Thread || task.ending)
            && !stops.expected.iter().any(is_coming);
        if tracee.settings.leak_scan.is_none() {
            return Ok(if is_last { ThreadEnding::Last(None) } else { ThreadEnding::One });
        }
        let raw = thread.registers()?;
        if raw.0.orig_rax != SYS_EXIT || is_last {
            self.names.insert(tid, procfs::thread_name(tid));
            let state = tracee.stopped_thread(thread, &raw);
            self.ended.push(state);
        }
        if !is_last {
            return Ok(ThreadEnding::One);
        }
        let threads = std::mem::take(&mut self.ended);
        let (moment, began) = (ScanMoment::LastThread, Instant::now());
        Ok(ThreadEnding::Last(Some(DueScan { live: tid, threads, moment, began })))
    }

    /// The program is about to be killed, as it did not obey SIGTERM: stops it for a scan.
    pub(super) fn before_kill(
        &mut self,
        tracee: &mut Tracee,
        copies: &HeapCopies,
        stops: &mut Stops,
    ) -> Result<Option<DueScan>> {
        if !self.is_wanted(tracee) {
            return Ok(None);
        }
        let began = Instant::now();
        let threads = tracee.stop_all_threads(None, stops)?;
        let Some(live) = threads.iter().find(|thread| thread.regs.is_some()).map(|thread| thread.tid) else {
            self.failure = Some("no thread of the program could be stopped".to_owned());
            return Ok(None);
        };
        self.signal_stacks = kernelheld::signal_stacks_of_waiting(tracee, copies, stops, None);
        Ok(Some(DueScan { live, threads, moment: ScanMoment::Request, began }))
    }

    /// Stops a program that lives on, to read its heap or to have it copied; `present` among its threads if that stands
    /// still already. A thread that stands still, and all of them.
    pub(super) fn stop_for_capture(
        &mut self,
        tracee: &mut Tracee,
        copies: &HeapCopies,
        present: Option<&Stopped>,
        stops: &mut Stops,
    ) -> std::result::Result<(i32, Vec<ThreadState>), String> {
        let in_words = |error: TracerError| error.to_string();
        let mut threads = tracee.stop_all_threads(present.map(Stopped::tid), stops).map_err(in_words)?;
        if let Some(present) = present {
            let raw = present.registers().map_err(in_words)?;
            threads.push(tracee.stopped_thread(present, &raw));
        }
        let Some(live) = threads.iter().find(|thread| thread.regs.is_some()).map(|thread| thread.tid) else {
            return Err("no thread of the program could be stopped".to_owned());
        };
        self.signal_stacks = kernelheld::signal_stacks_of_waiting(tracee, copies, stops, Some(MAX_ASKING));
        Ok((live, threads))
    }

    /// Whether the heap is to be read when the program is detached from: `--leaks-at-end`.
    pub(super) fn is_wanted_before_detach(&self, tracee: &Tracee, attached: bool) -> bool {
        attached && self.is_wanted(tracee)
    }

    /// What came of that.
    pub(super) fn note_scan_before_detach(
        &mut self,
        observer: &mut Observer,
        captured: std::result::Result<Captured, String>,
    ) {
        match captured.and_then(classified) {
            Ok(Some(LeakScan::Done(mut record))) => {
                record.snapshot = observer.model().snapshot();
                record.at_seq = observer.stream_end().next_seq;
                observer.profile_ends();
                self.done = Some(record);
            }
            Ok(_) => {}
            Err(cause) => self.failure = Some(cause),
        }
    }

    /// Reads and classifies. All that has happened must be in the model. What was found, if something was.
    pub(super) fn scan(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        due: DueScan,
        existing_is_known: bool,
    ) -> Option<&Scan> {
        match self.try_scan(tracee, observer, due, existing_is_known) {
            Ok(record) => self.done = Some(Box::new(record)),
            Err(cause) => self.failure = Some(cause),
        }
        self.done.as_ref().map(|record| &record.scan)
    }

    fn try_scan(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        due: DueScan,
        existing_is_known: bool,
    ) -> std::result::Result<ScanRecord, String> {
        let DueScan { live, threads, moment, began } = due;
        let own_suppressions = tracee.space.modules.own_suppressions(&tracee.space.image);
        let sources = self.heap_sources(tracee, observer, live, threads, existing_is_known)?;
        let HeapRead { graph, sites, thread_names } = read_heap(tracee, observer, sources);
        let stopped_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let snapshot = observer.model().snapshot();
        let at_seq = observer.stream_end().next_seq;
        observer.profile_ends();
        Ok(ScanRecord {
            scan: graph.classify(),
            sites,
            snapshot,
            at_seq,
            moment,
            stopped_ns,
            copied: false,
            thread_names,
            own_suppressions,
        })
    }

    /// What has to be known of a program that stands still to read its heap, or a copy of it. `live`: one of its
    /// threads that stand still. All that has happened must be in the model.
    pub(super) fn heap_sources(
        &mut self,
        tracee: &mut Tracee,
        observer: &Observer,
        live: i32,
        threads: Vec<ThreadState>,
        existing_is_known: bool,
    ) -> std::result::Result<HeapSources, String> {
        let failed = |error: TracerError| format!("the program's memory could not be read: {error}");
        tracee.space.refresh_maps(live).map_err(failed)?;
        if tracee.space.image.mappings().is_empty() {
            return Err("the program's memory was gone already".to_owned());
        }
        let mut thread_names = std::mem::take(&mut self.names);
        thread_names.extend(
            threads
                .iter()
                .map(|thread| (thread.tid, procfs::thread_name(thread.tid)))
                .filter(|(_, name)| !name.is_empty()),
        );
        tracee.space.image.memory.new_stop(live);
        let options = tracee.settings.leak_scan.clone().unwrap_or_default();
        // what the jump engine has recorded of blocks keeps none of them
        let is_the_program_s = |mapping: &&Mapping| !mapping.is_heaptrace_s();
        let mappings: Vec<Mapping> = tracee.space.image.mappings().iter().filter(is_the_program_s).cloned().collect();
        let signal_stacks = std::mem::take(&mut self.signal_stacks);
        Ok(HeapSources {
            pid: tracee.pid,
            kernel: kernelheld::held_by_kernel(live, &mappings, signal_stacks),
            mappings,
            modules: tracee.space.modules.module_data(),
            threads,
            thread_names,
            registered: self.regions.clone(),
            layout: tracee.space.modules.heap_layout(&tracee.settings.table),
            heap_is_known: existing_is_known || !observer.model().may_have_unknown_blocks(),
            ignored: observer.model().ignored_blocks().into_iter().collect(),
            table: Arc::clone(&tracee.settings.table),
            options: ScanOptions { files: tracee.space.image.mapped_files(), ..options },
        })
    }
}

/// Reads the heap of a program that stands still.
pub(super) fn read_heap(tracee: &mut Tracee, observer: &Observer, sources: HeapSources) -> HeapRead {
    let model = observer.model();
    let site = |id| model.site(id).map(|stats| stats.key);
    let blocks = model.live_blocks().collect();
    // those who serve faults may stand still, too
    tracee.space.image.memory.wait_for_no_faults(procfs::serves_faults(tracee.pid));
    tracee.space.image.memory.wait_for_no_servers(tracee.space.image.memory.reader(), &sources.mappings);
    tracee.space.image.memory.look_behind_protection(true);
    let read = sources.read(blocks, site, &mut tracee.space.image.original_memory());
    tracee.space.image.memory.look_behind_protection(false);
    tracee.space.image.memory.wait_for_servers();
    tracee.space.image.memory.wait_for_no_faults(false);
    read
}

/// The scan of a heap that was read while its program stood still.
fn classified(captured: Captured) -> std::result::Result<Option<LeakScan>, String> {
    match captured {
        Captured::Heap(capture) => capture.classify().map(|recording| Some(recording.leaks)),
        Captured::Later { .. } | Captured::Overtaken(_) => Ok(None),
    }
}
