//! A moment at which jumps can be written: no thread is between the instructions that a jump takes the place of, nor
//! will come back there.
//!
//! An int3 stands on the first of these instructions already, at which each thread stops that arrives from now on. So
//! it is enough to see each of the others once, and to let nobody go on who has stopped. Threads that run are told to
//! stop. Those that sleep in the kernel are left alone, as a PTRACE_INTERRUPT would end epoll_wait(2) and its kin
//! early.
//!
//! A signal may have interrupted a thread in between, and its handler may go on for long. The kernel has written the
//! address to which it returns to the stack: so none may stand there.
//!
//! A thread that is about to get a signal there stands until it gets it: so it gets it at once, and goes on.

use crate::base::addr::Addr;
use crate::base::progress::Progress;
use crate::breakpoints::patches::PcLocation;
use crate::breakpoints::patches::own::LONGEST_MOVED;
use crate::session::observer::Observer;
use crate::session::space::Candidate;
use crate::session::stops::Stops;
use crate::session::tracee::Tracee;
use crate::session::trap::leave_for_signal;
use crate::tracer::Result;
use crate::tracer::procfs::{self, Position};
use crate::tracer::ptrace::{SYSTEM_CALL_STOP, Stopped};
use crate::tracer::status::{Event, SIGTRAP, WaitStatus, is_fault};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long the threads are waited for.
const TIMEOUT: Duration = Duration::from_millis(50);

/// So many bytes of a stack are read at once.
const PIECE: u64 = 1 << 16;

/// Whether the moment has come.
#[derive(Debug)]
pub(super) enum Standstill {
    /// Yes: where all threads are.
    Reached(Vec<Standing>),
    /// Not now: why, in words.
    Missed(&'static str),
}

const WERE_INSIDE: &str = "its threads were in the allocator's first instructions whenever heaptrace looked";
const RAN_NOT: &str = "its threads got no processor time, so heaptrace could not see them outside the allocator";
const WILL_RETURN: &str = "a signal handler was to return to the allocator's first instructions";

/// A thread that stands, or sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    tid: i32,
    pub(super) pc: Addr,
    sp: Addr,
}

impl Standing {
    pub(super) const fn new(tid: i32, pc: Addr, sp: Addr) -> Self {
        Self { tid, pc, sp }
    }

    /// Whether a word on its stack is one for which `leads_there` holds.
    pub(super) fn has_on_stack(&self, tracee: &mut Tracee, leads_there: &dyn Fn(u64) -> bool) -> bool {
        let Standing { tid, sp, .. } = *self;
        let Some(mapping) = tracee.space.mapping_now(tid, sp) else { return false };
        let end = mapping.end.0;
        let mut at = sp.0 / 8 * 8;
        let mut piece = vec![0; PIECE as usize];
        while at < end {
            let wanted = usize::try_from((end - at).min(PIECE)).unwrap_or(0);
            let Some(bytes) = piece.get_mut(..wanted) else { return false };
            let read = tracee.space.image.memory.read_uncached(Addr(at), bytes);
            let words = bytes.get(..read).unwrap_or_default().chunks_exact(8);
            let mut words = words.map(|word| word.try_into().map(u64::from_le_bytes).unwrap_or(0));
            if words.any(leads_there) {
                return true;
            }
            if read < wanted {
                return false;
            }
            at += PIECE;
        }
        false
    }
}

/// Where a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stand {
    /// Somewhere else. None: it has ended.
    Clear(Option<Standing>),
    /// It can't be told yet.
    Unknown,
    /// It has stopped between these instructions, or in a pad.
    Inside,
}

/// Those who are waited for, and what they may do meanwhile.
pub(super) struct Awaiting<'a> {
    pub(super) tracee: &'a mut Tracee,
    pub(super) observer: &'a mut Observer,
    pub(super) progress: &'a Progress,
    pub(super) stops: &'a mut Stops,
}

impl Awaiting<'_> {
    /// The thread `tid` has stopped: waits until no other one can be where jumps to `candidates` are to be written.
    pub(super) fn standstill(&mut self, tid: i32, candidates: &[Candidate]) -> Result<Standstill> {
        let replaced: Vec<_> = candidates.iter().map(|one| one.addr.0 + 1..one.addr.0 + LONGEST_MOVED as u64).collect();
        let deadline = Instant::now() + TIMEOUT;
        let mut asked = BTreeSet::new();
        loop {
            if self.tracee.tasks.len() > 1 {
                self.stops.collect()?;
            }
            let (mut awaited, mut is_inside) = (false, false);
            let regs = Stopped::regained(tid).registers()?.regs();
            let mut all = vec![Standing { tid, pc: Addr(regs.rip), sp: Addr(regs.sp()) }];
            for other in self.tracee.tasks.tids().into_iter().filter(|other| *other != tid) {
                match self.stand_of(other, &replaced)? {
                    Stand::Clear(standing) => all.extend(standing),
                    Stand::Unknown => {
                        awaited = true;
                        if procfs::state(self.tracee.pid, other) == Some(b'R') && asked.insert(other) {
                            self.tracee.interrupt(other)?;
                        }
                    }
                    Stand::Inside => {
                        (awaited, is_inside) = (true, true);
                        if !self.goes_on_inside(other)? {
                            return Ok(Standstill::Missed(WERE_INSIDE));
                        }
                        asked.remove(&other);
                    }
                }
            }
            if !awaited {
                let leads_there = |word: u64| replaced.iter().any(|range| range.contains(&word));
                let returns = all.iter().any(|one| one.has_on_stack(self.tracee, &leads_there));
                return Ok(if returns { Standstill::Missed(WILL_RETURN) } else { Standstill::Reached(all) });
            }
            if Instant::now() > deadline {
                return Ok(Standstill::Missed(if is_inside { WERE_INSIDE } else { RAN_NOT }));
            }
            std::thread::yield_now();
        }
    }

    /// Lets a thread go on that has stopped inside. False: it stands there until the session has served its stop.
    fn goes_on_inside(&mut self, tid: i32) -> Result<bool> {
        let of_it = |(waiting, ..): &(i32, WaitStatus, Stopped)| *waiting == tid;
        let Some(at) = self.stops.waiting.iter().position(of_it) else { return Ok(true) };
        let Some(signal) = self.stops.waiting.get(at).and_then(|(_, status, _)| signal_to_go_on_with(*status)) else {
            return Ok(false);
        };
        let thread = Stopped::regained(tid);
        if signal != 0 {
            leave_for_signal(self.tracee, self.observer, &thread)?;
            if is_fault(signal) {
                self.progress.fault();
            }
        }
        self.stops.waiting.remove(at);
        match thread.resume(signal) {
            Err(error) if !error.is_out_of_reach() => Err(error),
            _ => Ok(true),
        }
    }

    fn stand_of(&self, tid: i32, replaced: &[Range<u64>]) -> Result<Stand> {
        let is_inside = |pc: u64| {
            replaced.iter().any(|range| range.contains(&pc))
                || !matches!(self.tracee.space.image.locate(Addr(pc)), PcLocation::Program | PcLocation::BehindTrap(_))
        };
        if let Some((_, status, stopped)) = self.stops.waiting.iter().find(|(waiting, ..)| *waiting == tid) {
            // it executes nothing more, wherever it stands
            if *status == WaitStatus::Event(Event::Exit) {
                return Ok(Stand::Clear(None));
            }
            let regs = match stopped.registers() {
                Ok(raw) => raw.regs(),
                // it is being killed
                Err(error) if error.is_out_of_reach() => return Ok(Stand::Clear(None)),
                Err(error) => return Err(error),
            };
            let has_hit = *status == WaitStatus::Signal(SIGTRAP) && stopped.is_breakpoint_trap()?;
            let inside = !has_hit && is_inside(regs.rip);
            let standing = Standing { tid, pc: Addr(regs.rip), sp: Addr(regs.sp()) };
            return Ok(if inside { Stand::Inside } else { Stand::Clear(Some(standing)) });
        }
        let group = procfs::thread_group(tid)?.unwrap_or(self.tracee.pid);
        match procfs::state(group, tid) {
            None | Some(b'Z' | b'X') => return Ok(Stand::Clear(None)),
            Some(b'R') => return Ok(Stand::Unknown),
            Some(_) => {}
        }
        Ok(match procfs::position(group, tid) {
            Position::Blocked { pc, sp } if !is_inside(pc.0) => Stand::Clear(Some(Standing { tid, pc, sp })),
            _ => Stand::Unknown,
        })
    }
}

/// With which signal a thread goes on that is not to stay where it has stopped, 0: with none. None: only who serves the
/// stop can tell.
const fn signal_to_go_on_with(status: WaitStatus) -> Option<i32> {
    match status {
        WaitStatus::EventStop => Some(0),
        // these two may be ours
        WaitStatus::Signal(SIGTRAP | SYSTEM_CALL_STOP) => None,
        WaitStatus::Signal(signal) => Some(signal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_about_to_get_a_signal_goes_on_with_it() {
        let told = [WaitStatus::EventStop, WaitStatus::Signal(17), WaitStatus::Signal(11)];
        assert_eq!(told.map(signal_to_go_on_with), [Some(0), Some(17), Some(11)]);
        let trap = [WaitStatus::Signal(SIGTRAP), WaitStatus::Signal(SYSTEM_CALL_STOP)];
        assert_eq!(trap.map(signal_to_go_on_with), [None, None]);
        let others = [WaitStatus::GroupStop(19), WaitStatus::Event(Event::Clone), WaitStatus::Unknown(5)];
        assert_eq!(others.map(signal_to_go_on_with), [None; 3]);
    }
}
