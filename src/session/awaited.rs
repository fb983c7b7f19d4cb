//! Probes that wait for a thread: they need room that only a stopped thread of the process can map, or code that can be
//! written only while one stands still. Whoever stops at a probe places them. Where none stands yet that a thread would
//! come to, as after an attach to a program whose code fills its pages to the last byte, one thread is stopped for it.

use super::Session;
use super::slots::Slot;
use super::tracee::Tracee;
use crate::base::addr::Addr;
use crate::breakpoints::patches::PcLocation;
use crate::session::space::Helper;
use crate::tracer::Result;
use crate::tracer::disturbance::{Disturbance, disturbance};
use crate::tracer::ptrace::{self, Stopped, Waited};
use std::time::{Duration, Instant};

/// How long an attach waits for the thread that it has asked to stop.
const EARLY: Duration = Duration::from_secs(1);

/// Whom such probes wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Awaited {
    /// Nobody, or whoever comes to a probe.
    #[default]
    Nobody,
    /// A thread that stops by itself, or can be asked to: there was none.
    AThread,
    /// The stop of this thread, which was asked.
    AStop(i32),
}

impl Session {
    /// At an attach: sees to it that no probe waits for a thread when the tracer answers others.
    pub(super) fn place_early(&mut self, slot: Slot) -> Result<()> {
        let deadline = Instant::now() + EARLY;
        if let Some(process) = self.processes.get_mut(slot) {
            process.awaited.call_for_a_thread(&mut process.tracee)?;
        }
        let is_asked =
            |session: &Self| session.processes.get(slot).is_some_and(|p| matches!(p.awaited, Awaited::AStop(_)));
        while is_asked(self) && Instant::now() < deadline {
            // What a standstill has collected comes first: these threads wait for us.
            if let Some((ended, status)) = self.stops.take_end() {
                self.note_end(ended, status);
                self.ask_another(slot)?;
                continue;
            }
            if let Some(stop) = self.stops.take_waiting() {
                self.on_stop(stop)?;
                continue;
            }
            match ptrace::wait(false)? {
                Waited::Task(_, status, Some(stopped)) => {
                    let stop = self.stops.stop(status, stopped);
                    self.on_stop(stop)?;
                }
                Waited::Task(ended, status, None) => {
                    self.note_end(ended, status);
                    self.ask_another(slot)?;
                }
                Waited::NoTasks => return Ok(()),
                Waited::Nothing | Waited::Interrupted => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    /// A thread has ended: it may be the one that was asked.
    fn ask_another(&mut self, slot: Slot) -> Result<()> {
        match self.processes.get_mut(slot) {
            Some(process) => process.awaited.try_again_for_a_thread(&mut process.tracee),
            None => Ok(()),
        }
    }
}

impl Awaited {
    /// Has a thread stop if probes wait for one: of those that it disturbs least.
    pub(super) fn call_for_a_thread(&mut self, tracee: &mut Tracee) -> Result<()> {
        if *self == Self::Nobody && tracee.space.probes.awaits_a_thread() {
            *self = Self::AThread;
        }
        self.try_again_for_a_thread(tracee)
    }

    /// The same, if there was none, or the one that was asked has ended.
    pub(super) fn try_again_for_a_thread(&mut self, tracee: &mut Tracee) -> Result<()> {
        if matches!(*self, Self::AStop(tid) if tracee.tasks.get(tid).is_none()) {
            *self = Self::AThread;
        }
        if *self != Self::AThread || !tracee.space.probes.awaits_a_thread() {
            return Ok(());
        }
        let own = tracee.tasks.tids().into_iter().filter(|tid| tracee.tasks.is_own_thread(*tid));
        let best = own.filter_map(|tid| Some((disturbance(tracee.pid, tid)?, tid))).min();
        // One that a signal has stopped stops once more when it is continued.
        if let Some((_, tid)) = best.filter(|(how, _)| *how != Disturbance::Stopped) {
            tracee.interrupt(tid)?;
            *self = Self::AStop(tid);
        }
        Ok(())
    }

    /// A thread stands still, at no probe: places what waits for that.
    pub(super) fn place_at_stop(&mut self, tracee: &mut Tracee, thread: &Stopped) -> Result<()> {
        if *self == Self::Nobody {
            return Ok(());
        }
        let raw = thread.registers()?;
        if !matches!(tracee.space.image.locate(Addr(raw.0.rip)), PcLocation::Program) {
            // It is about to tell of a probe, and places them there; or is on its way out of code of ours.
            *self = Self::AThread;
            return Ok(());
        }
        *self = Self::Nobody;
        tracee.space.probes.place_deferred(
            &mut tracee.space.image,
            &mut tracee.space.modules,
            Some(&Helper { thread, resume: raw }),
        )
    }
}
