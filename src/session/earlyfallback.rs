//! At an attach: the handler for SIGTRAP is installed, or the program's own is asked for, before there is any probe.

use super::Session;
use super::process::Process;
use super::slots::Slot;
use super::stop::Serving;
use super::tracee::Tracee;
use crate::tracer::disturbance::{Disturbance, disturbance};
use crate::tracer::ptrace::{self, Waited};
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, TracerError, procfs};
use std::time::{Duration, Instant};

/// How long an attach waits for a thread that runs to stop.
const EARLY: Duration = Duration::from_secs(1);

/// So often an attach looks for a thread that can be interrupted, after such pauses or the stops of others.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Which thread is interrupted at an attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WhoCalls {
    /// This one.
    This(i32),
    /// None at this moment; one may come.
    NobodyYet,
    /// Each would notice it.
    Nobody,
}

impl Session {
    /// At an attach, before there is any probe: lets a thread install the handler, one that runs, or one that sleeps
    /// and does not notice. Were it left to the first that hits a probe, all that hit one at that moment would die of
    /// theirs if heaptrace was killed then. This serves threads that have stopped meanwhile: at the first stop of a
    /// new image the handler is installed, too. Only where all threads sleep in calls that would have to be made anew
    /// with their whole time limits, the first that hits a probe has to do it.
    ///
    /// If the program has an action of its own, a thread asks for that instead, any sleeping one if need be: the first
    /// that hits a probe may have SIGTRAP blocked, and the action would be lost.
    pub(super) fn call_for_trap_action_early(&mut self, slot: Slot) -> Result<()> {
        let Some(process) = self.processes.get(slot) else { return Ok(()) };
        let learns = process.sigtrap.has_trap_action_to_learn(&process.tracee);
        let deadline = Instant::now() + EARLY;
        let (mut asked, mut looks) = (None, 0);
        while Instant::now() < deadline {
            let Some(process) = self.processes.get_mut(slot).filter(|process| match learns {
                true => process.sigtrap.has_trap_action_to_learn(&process.tracee),
                false => process.sigtrap.has_no_fallback_yet(),
            }) else {
                return Ok(());
            };
            asked = asked.filter(|tid| process.tracee.tasks.get(*tid).is_some());
            if asked.is_none() {
                match who_can_make_a_call(&process.tracee, learns) {
                    WhoCalls::This(tid) => {
                        process.tracee.interrupt(tid)?;
                        asked = Some(tid);
                    }
                    WhoCalls::NobodyYet if looks < LOOKS => looks += 1,
                    WhoCalls::NobodyYet | WhoCalls::Nobody => return Ok(()),
                }
            }
            match ptrace::wait(false)? {
                Waited::Task(stopped_tid, status, Some(stopped)) => {
                    if asked == Some(stopped_tid) && status == WaitStatus::EventStop {
                        self.stops.serving = Some(Serving { tid: stopped_tid, status, answer: None });
                        process.tracee.space.image.memory.stands_still(Some(stopped_tid));
                        let Process { tracee, sigtrap, teardown, .. } = process;
                        let called = match learns {
                            true => tracee
                                .resume_registers(&stopped)
                                .and_then(|resume| sigtrap.learn_trap_action(tracee, &stopped, resume)),
                            false => sigtrap.keep_fallback(tracee, teardown, &stopped, &self.stops),
                        };
                        let status = match called {
                            Err(TracerError::Overtaken { status, .. }) => status,
                            Err(error) if error.is_out_of_reach() => status,
                            Err(error) => return Err(error),
                            Ok(()) => status,
                        };
                        let stop = self.stops.stop(status, stopped);
                        return self.on_stop(stop);
                    }
                    let stop = self.stops.stop(status, stopped);
                    self.on_stop(stop)?;
                }
                Waited::Task(ended, status, None) => self.note_end(ended, status),
                Waited::NoTasks => return Ok(()),
                Waited::Nothing | Waited::Interrupted if asked.is_none() => std::thread::sleep(PAUSE),
                Waited::Nothing | Waited::Interrupted => std::thread::yield_now(),
            }
        }
        Ok(())
    }
}

/// The thread that is disturbed least by an interruption. One that sleeps in a timed call is taken only if `anyone`
/// will do.
fn who_can_make_a_call(tracee: &Tracee, anyone: bool) -> WhoCalls {
    let may = |found: &Disturbance| match found {
        Disturbance::None | Disturbance::Unnoticed => true,
        Disturbance::Longer => anyone,
        Disturbance::Stopped => false,
    };
    let mut passing = false;
    let mut best = None;
    for tid in tracee.tasks.tids().into_iter().filter(|tid| tracee.tasks.is_own_thread(*tid)) {
        match disturbance(tracee.pid, tid) {
            Some(found) if may(&found) => best = best.min(Some((found, tid))).or(Some((found, tid))),
            Some(_) => {}
            // It has stopped for us, as at an exec; or it waits for a disk, or has a signal to deal with.
            None => passing |= !matches!(procfs::state(tracee.pid, tid), None | Some(b'Z' | b'X')),
        }
    }
    match best {
        Some((_, tid)) => WhoCalls::This(tid),
        None if passing => WhoCalls::NobodyYet,
        None => WhoCalls::Nobody,
    }
}
