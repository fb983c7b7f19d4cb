//! What the kernel holds for a process: its threads are asked for their signal stacks, too.

use super::heapcopy::HeapCopies;
use super::stops::Stops;
use super::tracee::Tracee;
use crate::base::addr::Addr;
use crate::breakpoints::patches::PcLocation;
use crate::heap::leaks::KernelHeld;
use crate::image::maps::Mapping;
use crate::tracer::kernelheld::{self, Held};
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, TracerError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Signal stacks of the threads that could be asked, by their ids.
pub(super) type SignalStacks = BTreeMap<i32, Option<Range<Addr>>>;

/// Threads of a program that lives on are asked for no longer than this, in all.
pub(super) const MAX_ASKING: Duration = kernelheld::ASKING;

/// What the kernel tells of the process, which has these mappings. `live`: a thread that lives; `signal_stacks`:
/// those of its threads.
pub(super) fn held_by_kernel(live: i32, mappings: &[Mapping], signal_stacks: SignalStacks) -> KernelHeld {
    let Held { timers, epoll, has_aio, has_io_uring } = kernelheld::of(live, mappings);
    KernelHeld { signal_stacks, ..KernelHeld::new(timers, epoll, has_aio, has_io_uring) }
}

/// Has `own`, which stands at a breakpoint of ours, and all threads that heaptrace has interrupted ask for their
/// signal stacks.
///
/// # Errors
/// What was reported of `own` instead.
pub(super) fn signal_stacks(
    tracee: &mut Tracee,
    copies: &HeapCopies,
    own: &Stopped,
    stops: &mut Stops,
) -> Result<SignalStacks> {
    let mut stacks = SignalStacks::new();
    let resume = tracee.resume_registers(own)?;
    match signal_stack(tracee, own, resume) {
        Ok(stack) => stacks.extend(stack.map(|stack| (own.tid(), stack))),
        Err(error @ TracerError::Overtaken { .. }) => return Err(error),
        Err(error) => tracing::debug!("{error}"),
    }
    stacks.extend(signal_stacks_of_waiting(tracee, copies, stops, None));
    Ok(stacks)
}

/// Has all threads that heaptrace has interrupted ask. `most`: of a program that lives on, which stands still no
/// longer for this: only those on the C library's stacks are asked there, as what a call lays down below the stack
/// pointer may be somebody's elsewhere.
pub(super) fn signal_stacks_of_waiting(
    tracee: &mut Tracee,
    copies: &HeapCopies,
    stops: &mut Stops,
    most: Option<Duration>,
) -> SignalStacks {
    let began = Instant::now();
    let mut stacks = SignalStacks::new();
    let mut overtaken = Vec::new();
    for (tid, status, thread) in &stops.waiting {
        if !tracee.tasks.is_own_thread(*tid) || *status != WaitStatus::EventStop {
            continue;
        }
        let Some(resume) = can_be_asked(tracee, copies, thread) else { continue };
        if most.is_some_and(|most| {
            began.elapsed() > most || !kernelheld::is_on_own_stack(&resume, tracee.space.image.mappings())
        }) {
            continue;
        }
        match signal_stack(tracee, thread, resume) {
            Ok(stack) => stacks.extend(stack.map(|stack| (*tid, stack))),
            Err(TracerError::Overtaken { tid, status }) => overtaken.push((tid, status)),
            Err(error) => tracing::debug!("{error}"),
        }
    }
    overtaken.into_iter().for_each(|(tid, status)| stops.overtake(tid, status));
    stacks
}

/// The registers with which a thread goes on that heaptrace has interrupted; None: it stands in code of ours,
/// or in a call that it makes for us.
fn can_be_asked(tracee: &Tracee, copies: &HeapCopies, thread: &Stopped) -> Option<RawRegs> {
    let raw = thread.registers().ok()?;
    let resume = raw.repeating_system_call().unwrap_or(raw);
    let is_the_program_s = tracee.space.image.locate(Addr(resume.0.rip)) == PcLocation::Program;
    (is_the_program_s && !copies.is_within_call(thread.tid())).then_some(resume)
}

fn signal_stack(tracee: &mut Tracee, thread: &Stopped, resume: RawRegs) -> Result<Option<Option<Range<Addr>>>> {
    let Some(mut caller) = tracee.space.image.caller(thread, resume)? else { return Ok(None) };
    kernelheld::signal_stack(&mut caller)
}
