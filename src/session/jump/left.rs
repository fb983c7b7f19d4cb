//! Memory of the jump engine that a process no longer needs: at the detach, and of a heaptrace that has left. Threads
//! that were in calls then return through it. It is
//! unmapped once no thread can come back to it; until then, all but the code and the cells through which they return.

use super::standstill::Standing;
use super::{Jump, JumpEngine};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::jump::frames;
use crate::jump::layout::{
    CELL_FRAMES, CELLS, CODE_SIZE, COPY_AREA, FRAME_SIZE, FRAME_SLOT, FRAMES, REGION_SIZE, cell_at,
};
use crate::jump::stub::{BACK, ENTRIES, STUB_SIZE, STUBS};
use crate::session::addedmemory::Stays;
use crate::session::observer::Observer;
use crate::session::space::LeftRegion;
use crate::session::tracee::Tracee;
use crate::tracer::Result;
use crate::tracer::code::write::write_word;
use crate::tracer::jump::region;
use crate::tracer::procfs::{self, Position};
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

impl JumpEngine {
    /// Whether it is the one that this heaptrace records with.
    fn is_own_region(&self, left: &LeftRegion) -> bool {
        self.on().is_some_and(|jump| jump.region.code == left.code)
    }

    /// The code is restored, and `thread` has stopped and is about to be detached from: takes it out of the routine,
    /// and puts the return addresses of its calls back. These are
    /// told no more.
    pub(in crate::session) fn leave_routine_for_good(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        thread: &Stopped,
    ) -> Result<()> {
        let tid = thread.tid();
        if self.on().is_none() {
            return Ok(());
        }
        tracee.space.image.memory.new_stop(tid);
        self.take_out_of_routine(tracee, observer, thread)?;
        let Some(jump) = self.on() else { return Ok(()) };
        let Some(cell) = jump.cell_of(tid) else { return Ok(()) };
        let all = frames::of_cell(jump.shared(), cell);
        all.iter().try_for_each(|frame| jump.put_back(tracee, frame))
    }

    /// Whether a thread that sleeps returns through the routine, as far as its cell tells.
    pub(in crate::session) fn sleeps_in_a_call(&self, tracee: &mut Tracee, tid: i32) -> bool {
        let Some(jump) = self.on() else { return false };
        let Some(cell) = jump.cell_of(tid) else { return false };
        let all = frames::of_cell(jump.shared(), cell);
        tracee.space.image.memory.new_stop(tid);
        all.iter().any(|frame| jump.is_ours_at(tracee, frame.slot))
    }

    /// `thread` has stopped, and all others sleep or are gone; the code is restored. Lets it unmap what nobody needs of
    /// the jump engine's memory, this heaptrace's and earlier ones'. Returns what stays.
    pub(in crate::session) fn unmap_regions(
        &self,
        tracee: &mut Tracee,
        thread: &Stopped,
        resume: RawRegs,
    ) -> Result<Stays> {
        let tid = thread.tid();
        tracee.space.image.memory.new_stop(tid);
        let mut standing = vec![Standing::new(tid, Addr(resume.0.rip), Addr(resume.0.rsp))];
        let mut is_known = true;
        for other in tracee.tasks.tids().into_iter().filter(|other| *other != tid) {
            let group = procfs::thread_group(other)?.unwrap_or(tracee.pid);
            match procfs::position(group, other) {
                Position::Blocked { pc, sp } => standing.push(Standing::new(other, pc, sp)),
                Position::Unknown if matches!(procfs::state(group, other), None | Some(b'Z' | b'X')) => {}
                Position::Running | Position::Unknown => is_known = false,
            }
        }
        let mut stays = Stays::default();
        for left in tracee.space.left_regions(tid)? {
            if is_known && !is_needed(tracee, &left, self.is_own_region(&left), &standing) {
                stays.refused += give_back(tracee, thread, resume, &left)?;
                continue;
            }
            let is_clear = is_known && needs_cells_alone(&left, self.is_own_region(&left), &standing);
            let rest = left.shared_size.saturating_sub(COPY_AREA);
            stays.needed += REGION_SIZE + left.shared_size;
            if is_clear && rest > 0 {
                stays.needed -= rest;
                let caller = tracee.space.image.caller(thread, resume)?;
                let rest_at = left.shared.add(COPY_AREA);
                let is_gone = caller.map_or(Ok(false), |mut caller| region::unmap(&mut caller, rest_at, rest))?;
                stays.refused += if is_gone { 0 } else { rest };
            }
        }
        Ok(stays)
    }
}

/// `thread` has stopped, and all threads are where `standing` says: gives back what nobody needs of
/// what earlier heaptraces have left. `resume`: where
/// the thread goes on.
pub(super) fn give_back_left_regions(
    tracee: &mut Tracee,
    thread: &Stopped,
    resume: RawRegs,
    standing: &[Standing],
) -> Result<()> {
    // What a forked child has without the shared region still holds moved instructions.
    let whole = |left: &LeftRegion| left.shared_size > 0;
    for left in tracee.space.left_regions(thread.tid())?.into_iter().filter(whole) {
        if !is_needed(tracee, &left, false, standing) {
            give_back(tracee, thread, resume, &left)?;
        }
    }
    Ok(())
}

/// Whether a thread may come back to a region. `is_own`: it is the one that this heaptrace records with.
fn is_needed(tracee: &mut Tracee, left: &LeftRegion, is_own: bool, standing: &[Standing]) -> bool {
    let code = left.code.0..left.code.0 + CODE_SIZE;
    let stubs = left.code.0 + STUBS..left.code.0 + ENTRIES;
    // From its own routine a heaptrace takes each thread that comes to a signal: so nothing comes back but what a
    // stub has called. Other words are what its calls of the
    // routine have left on the stack. When an earlier heaptrace was killed a handler may have interrupted anything.
    let leads_back = |word: u64| {
        code.contains(&word) && (!is_own || stubs.contains(&word) && (word - stubs.start) % STUB_SIZE == BACK)
    };
    if standing.iter().any(|one| code.contains(&one.pc.0) || one.has_on_stack(tracee, &leads_back)) {
        return true;
    }
    // A handler on a stack of its own may have interrupted a call; or a fiber sleeps in one.
    let frames =
        (0..CELLS).flat_map(|cell| (0..FRAMES).map(move |frame| cell_at(cell) + CELL_FRAMES + frame * FRAME_SIZE));
    frames.into_iter().any(|frame| {
        let slot = tracee.space.image.memory.read_u64(left.shared.add(frame + FRAME_SLOT)).filter(|slot| *slot != 0);
        let returns_to = slot.and_then(|slot| tracee.space.image.memory.read_u64(Addr(slot)));
        returns_to.is_some_and(leads_back)
    })
}

/// Returns how many bytes stay all the same.
fn give_back(tracee: &mut Tracee, thread: &Stopped, resume: RawRegs, left: &LeftRegion) -> Result<u64> {
    match tracee.space.image.caller(thread, resume)? {
        Some(mut caller) => region::give_back(&mut caller, left.code, left.shared, left.shared_size),
        None => Ok(REGION_SIZE + left.shared_size),
    }
}

impl Jump {
    /// Whether the word on a stack at `slot` leads to the routine.
    fn is_ours_at(&self, tracee: &mut Tracee, slot: Addr) -> bool {
        tracee.space.image.memory.read_u64(slot).is_some_and(|addr| self.contains(Addr(addr)))
    }

    /// Writes the caller's address to where it belongs, if ours stands there.
    pub(super) fn put_back(&self, tracee: &mut Tracee, frame: &frames::Frame) -> Result<()> {
        if self.is_ours_at(tracee, frame.slot) {
            write_word(&mut tracee.space.image.memory, frame.slot, frame.caller.0)?;
        }
        Ok(())
    }
}

/// Whether the threads that return through the region need its cells and nothing behind. In that of an earlier
/// heaptrace a handler that sleeps now may have interrupted the
/// routine anywhere, also while it copied or recorded. `is_own`: this heaptrace has taken each thread out that came to
/// a signal there.
fn needs_cells_alone(left: &LeftRegion, is_own: bool, standing: &[Standing]) -> bool {
    let code = left.code.0..left.code.0 + CODE_SIZE;
    is_own && standing.iter().all(|one| !code.contains(&one.pc.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jump::layout::SHARED_SIZE;

    #[test]
    fn the_rest_of_an_earlier_region_stays_while_a_thread_may_go_on_in_its_routine() {
        let left = LeftRegion { code: Addr(0x10_0000), shared: Addr(0x100_0000), shared_size: SHARED_SIZE };
        let at = |pc: u64| [Standing::new(1, Addr(0x7000), Addr(0x9000)), Standing::new(2, Addr(pc), Addr(0xa000))];
        assert!(needs_cells_alone(&left, true, &at(0x8000)));
        assert!(!needs_cells_alone(&left, true, &at(left.code.0)));
        // a handler sleeps at 0x8000, and its frame leads into the routine
        assert!(!needs_cells_alone(&left, false, &at(0x8000)));
        assert!(!needs_cells_alone(&left, false, &at(left.code.0 + CODE_SIZE - 1)));
    }
}
