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

use crate::addr::Addr;
use crate::patches::PcLocation;
use crate::patches::own::LONGEST_MOVED;
use crate::session::process::Process;
use crate::session::space::Candidate;
use crate::session::stops::Stops;
use crate::tracer::Result;
use crate::tracer::procfs::{self, Position};
use crate::tracer::ptrace::Stopped;
use crate::tracer::status::{SIGTRAP, WaitStatus};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long the threads are waited for.
const PATIENCE: Duration = Duration::from_millis(50);

/// So many bytes of a stack are read at once.
const PIECE: u64 = 1 << 16;

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

impl Process {
    /// The thread `tid` has stopped: waits until no other one can be where jumps to `candidates` are to be written.
    /// Returns where all of them are; None: there is no such moment now.
    pub(super) fn comes_to_standstill(
        &mut self,
        tid: i32,
        candidates: &[Candidate],
        stops: &mut Stops,
    ) -> Result<Option<Vec<Standing>>> {
        let replaced: Vec<_> = candidates.iter().map(|one| one.addr.0 + 1..one.addr.0 + LONGEST_MOVED as u64).collect();
        let deadline = Instant::now() + PATIENCE;
        let mut asked = BTreeSet::new();
        loop {
            if self.tasks.len() > 1 {
                stops.collect()?;
            }
            let mut awaited = false;
            let regs = Stopped::regained(tid).registers()?.regs();
            let mut all = vec![Standing { tid, pc: Addr(regs.rip), sp: Addr(regs.sp()) }];
            for other in self.tasks.tids().into_iter().filter(|other| *other != tid) {
                match self.stand_of(other, &replaced, stops)? {
                    Stand::Clear(standing) => all.extend(standing),
                    Stand::Unknown => {
                        awaited = true;
                        if procfs::state(self.pid, other) == Some(b'R') && asked.insert(other) {
                            self.interrupt(other)?;
                        }
                    }
                    Stand::Inside => {
                        awaited = true;
                        let own = |(tid, status, _): &(i32, WaitStatus, Stopped)| {
                            *tid == other && *status == WaitStatus::EventStop
                        };
                        let Some(at) = stops.waiting.iter().position(own) else { continue };
                        stops.waiting.remove(at);
                        asked.remove(&other);
                        Stopped::regained(other).resume(0)?;
                    }
                }
            }
            if !awaited {
                let leads_there = |word: u64| replaced.iter().any(|range| range.contains(&word));
                let returns = all.iter().any(|one| self.has_on_stack(one, &leads_there));
                return Ok((!returns).then_some(all));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::yield_now();
        }
    }

    fn stand_of(&self, tid: i32, replaced: &[Range<u64>], stops: &Stops) -> Result<Stand> {
        let is_inside = |pc: u64| {
            replaced.iter().any(|range| range.contains(&pc))
                || !matches!(self.space.locate(Addr(pc)), PcLocation::Program | PcLocation::BehindTrap(_))
        };
        if let Some((_, status, stopped)) = stops.waiting.iter().find(|(waiting, ..)| *waiting == tid) {
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
        let group = procfs::thread_group(tid)?.unwrap_or(self.pid);
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

    /// Whether a word on the stack of a thread that stands is one for which `leads_there` holds.
    pub(super) fn has_on_stack(&mut self, standing: &Standing, leads_there: &dyn Fn(u64) -> bool) -> bool {
        let Standing { tid, sp, .. } = *standing;
        let Some(mapping) = self.space.mapping_now(tid, sp) else { return false };
        let end = mapping.end.0;
        let mut at = sp.0 / 8 * 8;
        let mut piece = vec![0; PIECE as usize];
        while at < end {
            let wanted = usize::try_from((end - at).min(PIECE)).unwrap_or(0);
            let Some(bytes) = piece.get_mut(..wanted) else { return false };
            let read = self.space.memory.read_uncached(Addr(at), bytes);
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
