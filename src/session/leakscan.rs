//! The leak scan: all threads are made to stop, the live blocks and the memory that may point to them are read, the
//! blocks are classified.
//!
//! The best moment is libc's `_exit`: the exit handlers have run, all threads are still there. A program that ends
//! otherwise (exit_group of its own, a deadly signal) is read when the last of its threads reports its end; the
//! registers of those that had reported before were kept, and their stacks are still mapped. A program that lives on is
//! read on request, or when it says so itself.

use super::heapcapture::{HeapCapture, HeapRead, HeapSources, Reading};
use super::heapcopy::{Captured, Forming};
use super::kernelheld::MAX_ASKING;
use super::leakrecord::{LeakScan, ScanRecord};
use super::process::Process;
use super::space::Annotation;
use super::stops::Stops;
use super::tasks::Role;
use crate::arch::Regs;
use crate::base::addr::Addr;
use crate::event::EventKind;
use crate::heap::leaks::ScanOptions;
use crate::heap::leaks::roots::ThreadState;
use crate::image::maps::Mapping;
use crate::profile::leaks::ScanMoment;
use crate::tracer::copy::Means;
use crate::tracer::procfs;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::{Result, TracerError, control};
use std::sync::Arc;
use std::time::Instant;

/// `SYS_exit`, the end of one thread alone; of a thread that ends with its process the register holds something else.
const SYS_EXIT: u64 = 60;

impl Process {
    /// A thread has entered a function by which the program tells of its memory.
    pub(super) fn on_annotation(&mut self, tid: i32, regs: &Regs, at: Addr, stops: &mut Stops) -> Result<()> {
        let (Some(annotation), Some(task)) = (self.tracee.space.modules.annotation_at(at), self.tracee.tasks.get(tid))
        else {
            return Ok(());
        };
        let task = task.id;
        let [first, second, ..] = regs.arguments();
        let region = Addr(first)..Addr(first.saturating_add(second));
        match annotation {
            Annotation::IgnoreObject => self.observer.tell(EventKind::BlockIgnored(Addr(first))),
            Annotation::Disable => self.observer.tell(EventKind::NewBlocksIgnored { task, ignore: true }),
            Annotation::Enable => self.observer.tell(EventKind::NewBlocksIgnored { task, ignore: false }),
            Annotation::RegisterRegion => self.leaks.regions.push(region),
            Annotation::UnregisterRegion => {
                if let Some(index) = self.leaks.regions.iter().position(|known| *known == region) {
                    self.leaks.regions.swap_remove(index);
                }
            }
            Annotation::CheckNow => self.scan_from((tid, None), regs, regs, ScanMoment::Program, stops)?,
        }
        Ok(())
    }

    /// A thread has arrived at libc's `_exit`.
    pub(super) fn on_libc_exit(&mut self, thread: &Stopped, raw: &RawRegs, stops: &mut Stops) -> Result<()> {
        let at_entry = raw.regs();
        let outer =
            self.tracee.space.modules.caller_of_exit(&mut self.tracee.space.image, &at_entry).unwrap_or(at_entry);
        self.scan_from((thread.tid(), Some(thread)), &at_entry, &outer, ScanMoment::Exit, stops)
    }

    /// Stops the program and scans it, while a thread stands at the entry of a function without arguments; the stop
    /// itself if the thread may be had make calls there. `outer`: the registers of the innermost frame whose values
    /// still count, the caller's or one further out.
    fn scan_from(
        &mut self,
        (tid, thread): (i32, Option<&Stopped>),
        at_entry: &Regs,
        outer: &Regs,
        moment: ScanMoment,
        stops: &mut Stops,
    ) -> Result<()> {
        let is_program = self.tracee.tasks.get(tid).is_some_and(|task| task.role == Role::Thread);
        // A child that shares the memory ends alone. The scan of an earlier thread that has arrived here holds.
        if self.tracee.settings.leak_scan.is_none() || !is_program || self.leaks.done.is_some() {
            return Ok(());
        }
        let began = Instant::now();
        let mut own = ThreadState::in_call(tid, outer);
        if tid == self.tracee.pid {
            own.start_frames = self.tracee.space.modules.start_frames(&mut self.tracee.space.image, at_entry, true);
        }
        let mut threads = self.tracee.stop_all_threads(Some(tid), stops)?;
        threads.push(own);
        if let Some(thread) = thread {
            self.leaks.signal_stacks = self.signal_stacks(thread, stops)?;
        }
        self.scan(tid, &threads, moment, began);
        Ok(())
    }

    /// A thread is about to disappear.
    pub(super) fn on_thread_ending(&mut self, tid: i32, thread: &Stopped, stops: &Stops) -> Result<()> {
        let Some(task) = self.tracee.tasks.get_mut(tid).filter(|task| task.role == Role::Thread) else { return Ok(()) };
        task.ending = true;
        if self.leaks.done.is_some() {
            return Ok(());
        }
        // A thread just created may not have made its first stop, or not been served.
        let is_coming = |new: &i32| matches!(procfs::thread_group(*new), Ok(Some(group)) if group == self.tracee.pid);
        let is_last = self.tracee.tasks.iter().all(|task| task.role != Role::Thread || task.ending)
            && !stops.expected.iter().any(is_coming);
        if self.tracee.settings.leak_scan.is_none() {
            if is_last {
                self.tell_unwritten(tid);
                self.tell_arenas(tid);
            }
            return Ok(());
        }
        let raw = thread.registers()?;
        if raw.0.orig_rax != SYS_EXIT || is_last {
            self.leaks.names.insert(tid, procfs::comm(tid));
            let state = self.tracee.stopped_thread(thread, &raw);
            self.leaks.ended.push(state);
        }
        if is_last {
            let threads = std::mem::take(&mut self.leaks.ended);
            self.scan(tid, &threads, ScanMoment::LastThread, Instant::now());
        }
        Ok(())
    }

    /// Reads and classifies the living program, then ends it: it did not obey SIGTERM.
    pub(super) fn scan_and_kill(&mut self, stops: &mut Stops) -> Result<()> {
        if self.tracee.settings.leak_scan.is_some() && self.leaks.done.is_none() {
            let began = Instant::now();
            let threads = self.tracee.stop_all_threads(None, stops)?;
            match threads.iter().find(|thread| thread.regs.is_some()) {
                Some(live) => {
                    self.leaks.signal_stacks = self.signal_stacks_of_waiting(stops, None);
                    self.scan(live.tid, &threads, ScanMoment::Request, began);
                }
                None => self.leaks.failure = Some("no thread of the program could be stopped".to_owned()),
            }
        }
        match control::send(self.tracee.pid, control::KILL) {
            Err(error) if !error.is_out_of_reach() => Err(error),
            _ => Ok(()),
        }
    }

    /// Lets the program stand still for a moment, `present` among its threads if that stands still already: with
    /// `means` to be copied, if that can be, else to read its heap.
    pub(super) fn capture(
        &mut self,
        present: Option<&Stopped>,
        means: Option<Means>,
        stops: &mut Stops,
    ) -> std::result::Result<Captured, String> {
        if self.tracee.settings.sample_interval > 0 {
            return Err(
                "only a sample of its blocks is recorded (--sample-interval): heaptrace can't say which of them are lost"
                    .to_owned(),
            );
        }
        let began = Instant::now();
        let in_words = |error: TracerError| error.to_string();
        let mut threads = self.tracee.stop_all_threads(present.map(Stopped::tid), stops).map_err(in_words)?;
        if let Some(present) = present {
            let raw = present.registers().map_err(in_words)?;
            threads.push(self.tracee.stopped_thread(present, &raw));
        }
        let Some(live) = threads.iter().find(|thread| thread.regs.is_some()).map(|thread| thread.tid) else {
            return Err("no thread of the program could be stopped".to_owned());
        };
        self.leaks.signal_stacks = self.signal_stacks_of_waiting(stops, Some(MAX_ASKING));
        let sources = self.heap_sources(live, threads)?;
        let copy = means.map_or(Ok(None), |means| {
            self.copies.copy(&mut self.tracee, present, means, &sources.mappings, true, stops)
        });
        let reading = match copy {
            Ok(Some(Forming::Later)) => return Ok(Captured::Later { stopped_ns: self.cost.note_standstill(began) }),
            Ok(Some(Forming::Copy(lease))) => Reading::Copied(Box::new(sources), lease),
            Ok(None) => Reading::Done(Box::new(self.read_heap(sources))),
            Err(error) => return Ok(Captured::Overtaken(error)),
        };
        let interim = self.interim(matches!(reading, Reading::Copied(..)));
        // The stops wait to be served: the session's loop does that next.
        let stopped_ns = self.cost.note_standstill(began);
        Ok(Captured::Heap(Box::new(HeapCapture { interim, reading, stopped_ns })))
    }

    /// Reads and classifies at the end of an attach (`--leaks-at-end`), before the program is detached from.
    pub(super) fn scan_before_detach(&mut self, stops: &mut Stops) {
        if self.tracee.settings.leak_scan.is_none() || self.leaks.done.is_some() || !self.identity.attached {
            return;
        }
        // before it stands still
        self.existing.await_told(&mut self.tracee, &mut self.observer);
        match self.capture(None, None, stops).and_then(classified) {
            Ok(Some(LeakScan::Done(mut record))) => {
                record.snapshot = self.observer.model().snapshot();
                record.at_seq = self.observer.stream_end().next_seq;
                self.observer.profile_ends();
                self.leaks.done = Some(record);
            }
            Ok(_) => {}
            Err(cause) => self.leaks.failure = Some(cause),
        }
    }

    /// Reads and classifies. `live`: a thread that stands still.
    fn scan(&mut self, live: i32, threads: &[ThreadState], moment: ScanMoment, began: Instant) {
        match self.try_scan(live, threads, moment, began) {
            Ok(record) => self.leaks.done = Some(Box::new(record)),
            Err(cause) => self.leaks.failure = Some(cause),
        }
    }

    fn try_scan(
        &mut self,
        live: i32,
        threads: &[ThreadState],
        moment: ScanMoment,
        began: Instant,
    ) -> std::result::Result<ScanRecord, String> {
        self.tell_unwritten(live);
        self.tell_arenas(live);
        let own_suppressions = self.tracee.space.modules.own_suppressions(&self.tracee.space.image);
        let sources = self.heap_sources(live, threads.to_vec())?;
        let read = self.read_heap(sources);
        let stopped_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let snapshot = self.observer.model().snapshot();
        let HeapRead { graph, sites, thread_names } = read;
        let at_seq = self.observer.stream_end().next_seq;
        self.observer.profile_ends();
        let scan = graph.classify();
        self.tests.note_scan(&self.tracee, &self.observer, &scan);
        Ok(ScanRecord {
            scan,
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
    /// threads that stand still.
    fn heap_sources(&mut self, live: i32, threads: Vec<ThreadState>) -> std::result::Result<HeapSources, String> {
        self.settle_heap();
        let failed = |error: TracerError| format!("the program's memory could not be read: {error}");
        self.tracee.space.refresh_maps(live).map_err(failed)?;
        if self.tracee.space.image.mappings().is_empty() {
            return Err("the program's memory was gone already".to_owned());
        }
        let mut thread_names = std::mem::take(&mut self.leaks.names);
        thread_names.extend(
            threads.iter().map(|thread| (thread.tid, procfs::comm(thread.tid))).filter(|(_, name)| !name.is_empty()),
        );
        self.tracee.space.image.memory.new_stop(live);
        let options = self.tracee.settings.leak_scan.clone().unwrap_or_default();
        // what the jump engine has recorded of blocks keeps none of them
        let is_the_program_s = |mapping: &&Mapping| !mapping.is_heaptrace_s();
        let mappings: Vec<Mapping> =
            self.tracee.space.image.mappings().iter().filter(is_the_program_s).cloned().collect();
        let signal_stacks = std::mem::take(&mut self.leaks.signal_stacks);
        Ok(HeapSources {
            pid: self.tracee.pid,
            kernel: Self::held_by_kernel(live, &mappings, signal_stacks),
            mappings,
            modules: self.tracee.space.modules.module_data(),
            threads,
            thread_names,
            registered: self.leaks.regions.clone(),
            layout: self.tracee.space.modules.heap_layout(&self.tracee.settings.table),
            heap_is_known: self.existing.are_known() || !self.observer.model().may_have_unknown_blocks(),
            ignored: self.observer.model().ignored_blocks().into_iter().collect(),
            table: Arc::clone(&self.tracee.settings.table),
            options: ScanOptions { files: self.tracee.space.image.mapped_files(), ..options },
        })
    }

    /// Reads the heap of a program that stands still.
    fn read_heap(&mut self, sources: HeapSources) -> HeapRead {
        let model = self.observer.model();
        let site = |id| model.site(id).map(|stats| stats.key);
        let blocks = model.live_blocks().collect();
        // those who serve faults may stand still, too
        self.tracee.space.image.memory.wait_for_no_faults(procfs::serves_faults(self.tracee.pid));
        self.tracee.space.image.memory.wait_for_no_servers(self.tracee.space.image.memory.reader(), &sources.mappings);
        self.tracee.space.image.memory.look_behind_protection(true);
        let read = sources.read(blocks, site, &mut self.tracee.space.image.original_memory());
        self.tracee.space.image.memory.look_behind_protection(false);
        self.tracee.space.image.memory.wait_for_servers();
        self.tracee.space.image.memory.wait_for_no_faults(false);
        read
    }
}

/// The scan of a heap that was read while its program stood still.
fn classified(captured: Captured) -> std::result::Result<Option<LeakScan>, String> {
    match captured {
        Captured::Heap(capture) => capture.classify().map(|recording| Some(recording.leaks)),
        Captured::Later { .. } | Captured::Overtaken(_) => Ok(None),
    }
}
