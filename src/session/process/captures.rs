//! The program stands still to be looked at: its heap, its copies, its leaks.

use super::Process;
use crate::session::arenas;
use crate::session::heapcapture::{HeapCapture, Reading};
use crate::session::heapcopy::{Captured, Forming};
use crate::session::leakscan::{DueScan, read_heap};
use crate::session::nearend::NearEnd;
use crate::session::observer::Observer;
use crate::session::stops::Stops;
use crate::session::tracee::Tracee;
use crate::tracer::copy::Means;
use crate::tracer::ptrace::Stopped;
use crate::tracer::{Result, control};
use std::sync::Arc;
use std::time::Instant;

impl Process {
    /// The program stands still, as thread `live` does, and is about to end, or wants to be scanned now: tells what its
    /// heap holds, and makes the scan that is due.
    pub(in crate::session) fn look_at_heap(&mut self, live: i32, due: Option<DueScan>) {
        self.unwritten.tell(&mut self.tracee, &mut self.observer, live);
        self.settle_heap();
        arenas::tell(&mut self.tracee, &mut self.observer, live);
        let Some(due) = due else { return };
        self.settle_heap();
        let known = self.existing.are_known();
        if let Some(scan) = self.leaks.scan(&mut self.tracee, &mut self.observer, due, known) {
            self.tests.note_scan(&self.tracee, &self.observer, scan);
        }
    }

    /// Reads and classifies the living program, then ends it: it did not obey SIGTERM.
    pub(in crate::session) fn scan_and_kill(&mut self, stops: &mut Stops) -> Result<()> {
        if let Some(due) = self.leaks.before_kill(&mut self.tracee, &self.copies, stops)? {
            self.look_at_heap(due.live, Some(due));
        }
        match control::send(self.tracee.pid, control::KILL) {
            Err(error) if !error.is_out_of_reach() => Err(error),
            _ => Ok(()),
        }
    }

    /// Lets the program stand still for a moment, `present` among its threads if that stands still already: with
    /// `means` to be copied, if that can be, else to read its heap.
    pub(in crate::session) fn capture(
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
        let (live, threads) = self.leaks.stop_for_capture(&mut self.tracee, &self.copies, present, stops)?;
        self.settle_heap();
        let known = self.existing.are_known();
        let sources = self.leaks.heap_sources(&mut self.tracee, &self.observer, live, threads, known)?;
        let copied = |means| self.copies.copy(&mut self.tracee, present, means, &sources.mappings, true, stops);
        let reading = match means.map_or(Ok(None), copied) {
            Ok(Some(Forming::Later)) => {
                return Ok(Captured::Later { stopped_ns: self.cost.note_standstill(began) });
            }
            Ok(Some(Forming::Copy(lease))) => Reading::Copied(Box::new(sources), lease),
            Ok(None) => Reading::Done(Box::new(read_heap(&mut self.tracee, &self.observer, sources))),
            Err(error) => return Ok(Captured::Overtaken(error)),
        };
        let interim = self.interim(matches!(reading, Reading::Copied(..)));
        // The stops wait to be served: the session's loop does that next.
        let stopped_ns = self.cost.note_standstill(began);
        Ok(Captured::Heap(Box::new(HeapCapture { interim, reading, stopped_ns })))
    }

    /// Reads and classifies at the end of an attach (`--leaks-at-end`), before the program is detached from.
    pub(in crate::session) fn scan_before_detach(&mut self, stops: &mut Stops) {
        if !self.leaks.is_wanted_before_detach(&self.tracee, self.identity.attached) {
            return;
        }
        // before it stands still
        self.existing.await_told(&mut self.tracee, &mut self.observer);
        let captured = self.capture(None, None, stops);
        self.leaks.note_scan_before_detach(&mut self.observer, captured);
    }

    /// All who wait for the heap get it, if one of the threads can make a copy, or there can be none. Thread `present`
    /// stands still.
    ///
    /// # Errors
    /// What was reported of `present` instead.
    pub(in crate::session) fn go_on_with_captures(
        &mut self,
        present: Option<&Stopped>,
        stops: &mut Stops,
    ) -> Result<()> {
        let mut overtaken = Ok(());
        // who waits on is behind these
        for _ in 0..self.copies.wanted() {
            let Some(wanted) = self.copies.next_wanted() else { break };
            if overtaken.is_err() {
                self.copies.wait_on(wanted);
                continue;
            }
            let captured = self.capture(present, wanted.means(), stops);
            overtaken = self.copies.answer(wanted, captured);
        }
        overtaken
    }
}

/// The last thread is about to end: tells whoever wants to know now.
pub(super) fn tell_near_end(tracee: &mut Tracee, observer: &mut Observer) {
    let settings = Arc::clone(&tracee.settings);
    let Some(hears) = settings.near_end.as_ref() else { return };
    let heap = observer.view(false);
    let (stacks, modules) = tracee.space.modules.share_records();
    let (root, _) = tracee.space.image.root_and_inner_pid();
    // Who does not listen any more needs nothing.
    let _ = hears.send(NearEnd { heap, stacks, modules, root });
}
