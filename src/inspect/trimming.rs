//! `malloc_trim(0)`, called in a process that stands still.
//!
//! Its thread calls it as a signal handler would, so it must not be inside of malloc: neither with an arena's lock,
//! which it would wait for itself for ever, nor between two steps of what glibc does without one while a process has
//! one thread only. So the thread is one that sleeps in a system call that a signal would end early: malloc makes none
//! such but getrandom(2), at its beginning, and futex(2), for a lock. All arenas' locks are free, as read from memory.
//! And the thread is in no signal handler, which may have interrupted malloc: nowhere on its stack stands the address
//! that handlers return to. To other threads a call is no more than one by a thread of their own: they may be inside of
//! malloc, without a lock.

use super::modules;
use super::seen::ProcessView;
use crate::base::addr::Addr;
use crate::heap::walk::{self, Allocator, Walk, glibc};
use crate::image::maps::Mapping;
use crate::tracer::memory::TargetMemory;
use crate::tracer::pagemap::PageMap;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::remote::function::{self, Filters, Function, RESTORER};
use crate::tracer::standstill::{self, Standstill};
use crate::tracer::{Result, TracerError, procfs};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// `SYS_getrandom`, which malloc calls once.
const GETRANDOM: u64 = 318;

/// A larger stack is not looked through for handlers, in bytes.
const LARGEST_STACK: u64 = 64 << 20;

/// So much of it is read at once.
const PIECE: usize = 64 << 10;

/// Why `malloc_trim(0)` was not called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotTrimmed {
    /// Another allocator than glibc's.
    #[error("its allocator is not glibc's, or the program has not called it yet")]
    NoGlibc,
    /// The function is not there: a static program that does not use it.
    #[error("it has no malloc_trim: the program is linked statically, and does not call it itself")]
    NoFunction,
    /// A thread is inside of malloc.
    #[error("a thread is inside malloc at the moment, and holds a lock: try again")]
    Locked,
    /// No thread can call.
    #[error(
        "no thread can call malloc_trim at the moment (that takes one that sleeps in a system call, outside signal \
         handlers): try again"
    )]
    NoCaller,
    /// System calls are filtered.
    #[error("it filters its system calls (seccomp): one more call may end it")]
    Seccomp,
    /// The heap is not understood.
    #[error(
        "its heap is inconsistent, and malloc_trim may end the process; a thread may have been changing the heap: then \
         try again"
    )]
    Broken,
}

/// Has process `pid`, in which `seen` and `walk` were found a moment ago, stand still once more, only for the call. The
/// bytes that were given back, of what lies in the
/// allocator's regions; and how long the process stood for that.
///
/// # Errors
/// It can't be traced any more, or any failure of a request.
pub(super) fn trim(
    seen: &ProcessView,
    walk: Option<&Walk>,
) -> Result<(std::result::Result<u64, NotTrimmed>, Duration)> {
    let prepared = match prepare(seen, walk) {
        Ok(prepared) => prepared,
        Err(why) => return Ok((Err(why), Duration::ZERO)),
    };
    let (called, stood) = standstill::stand_still(seen.pid, |still| prepared.call(seen, still), |called| called)?;
    Ok((called?, stood))
}

/// What is known of the call before the process stands still for it.
struct Prepared<'a> {
    walk: &'a Walk,
    /// The function.
    trim: Addr,
    /// Where handlers of signals return to.
    restorer: Addr,
}

fn prepare<'a>(seen: &ProcessView, walk: Option<&'a Walk>) -> std::result::Result<Prepared<'a>, NotTrimmed> {
    let of_glibc = walk.filter(|walk| walk.allocator == Allocator::Glibc);
    let walk = of_glibc.ok_or(NotTrimmed::NoGlibc)?;
    if !walk.findings.is_empty() {
        return Err(NotTrimmed::Broken);
    }
    let objects = modules::open(seen.pid, seen.tid, &seen.mappings);
    let main = walk.arenas.first().map(|arena| arena.at);
    let holder =
        objects.data.iter().find(|data| data.ranges.iter().any(|range| main.is_some_and(|at| range.contains(&at))));
    let object = holder.and_then(|data| objects.found.iter().find(|object| object.id == data.id));
    let found = object.and_then(|object| object.function("malloc_trim").zip(object.code_at(&RESTORER)));
    let (trim, restorer) = found.ok_or(NotTrimmed::NoFunction)?;
    Ok(Prepared { walk, trim, restorer })
}

impl Prepared<'_> {
    /// Makes the call, if this is a moment for it.
    fn call(&self, seen: &ProcessView, still: &Standstill) -> Result<std::result::Result<u64, NotTrimmed>> {
        let Some((first, _)) = still.sleepers().next() else { return Ok(Err(NotTrimmed::NoCaller)) };
        let tid = first.tid();
        let mappings = procfs::mappings(tid)?;
        let mut memory = TargetMemory::open(seen.pid, tid)?;
        memory.new_stop(tid);
        // Threads may have made arenas since; and it may have executed another program.
        let arenas = glibc::arenas(&walk::data_of(&mappings), &mut memory);
        let is_same = |addr: Addr| mapping_of(addr, &mappings) == mapping_of(addr, &seen.mappings);
        let is_same_heap = arenas.first() == self.walk.arenas.first().map(|arena| &arena.at);
        if !is_same_heap || !is_same(self.trim) || !is_same(self.restorer) {
            return Ok(Err(NotTrimmed::Broken));
        }
        let is_free = |at: &Addr| {
            let mut lock = [0; 4];
            memory.read_uncached(*at, &mut lock) == lock.len() && lock == [0; 4]
        };
        if !arenas.iter().all(is_free) {
            return Ok(Err(NotTrimmed::Locked));
        }
        let caller = still.sleepers().find(|(thread, resume)| {
            let number = thread.registers().map_or(GETRANDOM, |regs| regs.0.orig_rax);
            number != GETRANDOM
                && !procfs::has_shadow_stack(thread.tid())
                && may_call(resume, self.restorer, &mappings, &memory)
        });
        let Some((thread, resume)) = caller else { return Ok(Err(NotTrimmed::NoCaller)) };
        memory.stands_still(Some(thread.tid()));
        let before = resident(self.walk, thread)?;
        let call = Function { at: self.trim, rax: 0, arguments: [0; 6], filters: Filters::Process };
        match function::call(thread, &resume, &call, self.restorer, &mut memory, &mut None) {
            Err(TracerError::Filtered { .. }) => return Ok(Err(NotTrimmed::Seccomp)),
            called => called?,
        }
        Ok(Ok(before.saturating_sub(resident(self.walk, thread)?)))
    }
}

/// Where the file's piece lies that an address is in, and the file.
fn mapping_of(addr: Addr, mappings: &[Mapping]) -> Option<(Range<Addr>, Option<&Path>)> {
    let found = mappings.iter().find(|mapping| mapping.contains(addr))?;
    Some((found.range(), found.path.as_deref()))
}

/// Whether a thread that sleeps has room on its stack, and no handler there.
fn may_call(resume: &RawRegs, restorer: Addr, mappings: &[Mapping], memory: &TargetMemory) -> bool {
    let sp = Addr(resume.0.rsp);
    let Some(stack) = mappings.iter().find(|mapping| mapping.contains(sp) && mapping.perms.write) else { return false };
    if !function::has_room(resume, mappings) || stack.end.0 - sp.0 > LARGEST_STACK {
        return false;
    }
    let mut piece = vec![0; PIECE];
    let mut at = Addr(sp.0 & !7);
    while at < stack.end {
        let wanted = PIECE.min(usize::try_from(stack.end.0 - at.0).unwrap_or(PIECE));
        let Some(buffer) = piece.get_mut(..wanted) else { return false };
        if memory.read_uncached(at, buffer) != wanted {
            return false;
        }
        if buffer.chunks_exact(8).any(|word| word == restorer.0.to_le_bytes()) {
            return false;
        }
        at = at.add(wanted as u64);
    }
    true
}

/// What of the allocator's regions is in memory, in bytes.
fn resident(walk: &Walk, thread: &Stopped) -> Result<u64> {
    let mut pages = PageMap::open(thread.tid())?;
    let mut bytes = 0;
    for region in &walk.regions {
        let whole = Addr(region.books.start.0 & !4095)..Addr(region.range.end.0.next_multiple_of(4096));
        let placed = pages.placed(&whole).unwrap_or_default();
        bytes += placed.in_memory.iter().map(|range| range.end.0 - range.start.0).sum::<u64>();
    }
    Ok(bytes)
}
