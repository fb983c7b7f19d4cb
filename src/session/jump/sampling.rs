//! Sampling by the routine (`--sample-interval`): the tracer enters picked blocks of calls that it sees at stops into
//! the routine's table, and tells how many calls were counted only.

use super::clock::COUNTED_NS;
use super::{Account, Jump, JumpEngine, JumpState};
use crate::base::addr::Addr;
use crate::base::sampling::governor::{Governor, Spent};
use crate::event::EventKind;
use crate::heapmodel::HeapModel;
use crate::jump::layout::{
    CELL_BYTES, CELL_CALLS, CELL_SINCE, COUNTED, INTERVALS, Kind, LIVE_AREA, LIVE_BUCKET, LIVE_BUCKETS, PAGE_AREA,
    PAGES, SAMPLED, cell_at,
};
use crate::jump::merge::Record;
use crate::jump::sampling;
use crate::jump::shared::Shared;
use crate::session::observer::Observer;
use crate::session::tracee::Tracee;
use crate::tracer::cputime;
use crate::tracer::jump::region::SharedMapping;

/// What is kept for a process whose routine samples.
#[derive(Debug)]
pub(super) struct Sampling {
    /// The cells' sums when they were told last: calls that were counted only, and their bytes.
    counted: (u64, u64),
    /// What counting has taken of the program's time, ns.
    counted_ns: u64,
    /// The intervals by their numbers, in bytes; number 0 is none.
    intervals: [u64; INTERVALS as usize],
    /// What keeps the cost low, if that was asked for.
    governor: Option<Governor>,
}

impl Sampling {
    /// Begins in a new region, where `model` knows the picked blocks.
    /// Each interval is twice the one before; the least one is in use, until the cost is more than `most_permille` of
    /// the program's time.
    pub(super) fn begin(shared: &SharedMapping, interval: u64, most_permille: Option<u32>, model: &HeapModel) -> Self {
        let mut intervals = [0; INTERVALS as usize];
        for (number, slot) in intervals.iter_mut().enumerate().skip(1) {
            *slot = interval.max(1).saturating_mul(1 << (number - 1));
        }
        shared.allocate(PAGE_AREA, PAGES);
        shared.allocate(LIVE_AREA, LIVE_BUCKETS * LIVE_BUCKET);
        sampling::begin(shared, &intervals, sampling::distances());
        model.live_blocks().for_each(|block| sampling::note_live(shared, block.addr));
        let governor = most_permille.map(|most| Governor::new(most, INTERVALS as u32 - 1));
        Self { counted: (0, 0), counted_ns: 0, intervals, governor }
    }
}

impl Jump {
    /// With which interval the next block of the cell's thread, of `size` bytes, is picked; 0: it is not; None if the
    /// routine does not sample. It is the countdown that the routine goes on with.
    pub(in crate::session) fn picks(&self, cell: u16, size: u64) -> Option<u64> {
        self.sampling.as_ref()?;
        Some(sampling::picks(self.shared(), cell, size).map_or(0, |number| self.interval_of(number.into())))
    }

    /// The interval that a record or a frame names, in bytes; 0: its call was not picked.
    pub(super) fn interval_of(&self, number: u64) -> u64 {
        let Some(sampling) = self.sampling.as_ref().filter(|_| number > 0 && number < COUNTED) else { return 0 };
        sampling.intervals.get(number as usize).copied().unwrap_or(0)
    }

    /// The routine keeps its table itself, but for a realloc that has given its block back by asking for none: that is
    /// told by the model alone.
    pub(super) fn note_recorded(&self, observer: &mut Observer, record: &Record) {
        observer.take_changed_blocks();
        let old = Addr(record.args[0]);
        let is_end = record.kind == Kind::Ended && record.result == 0;
        if self.sampling.is_some() && is_end && !old.is_null() && !observer.model().is_live(old) {
            sampling::note_dead(self.shared(), old);
        }
    }

    /// Passes on what the routine has counted, and not recorded, since the last time.
    pub(super) fn tell_counted(&mut self, observer: &mut Observer, account: &mut Account) {
        if self.sampling.is_none() || self.shared().half(SAMPLED) == 0 {
            return;
        }
        let sums = [CELL_CALLS, CELL_BYTES].map(|place| self.sum_of_cells(place));
        let Some(sampling) = &mut self.sampling else { return };
        let (calls, bytes) = (sums[0].wrapping_sub(sampling.counted.0), sums[1].wrapping_sub(sampling.counted.1));
        if observer.is_paused() {
            sampling.counted = (sums[0], sums[1]);
            return;
        }
        // A thread may take back what the observer has already: what it counts next makes up for that. The program can
        // write there, too.
        if calls.cast_signed() > 0 && bytes.cast_signed() >= 0 {
            sampling.counted = (sums[0], sums[1]);
            let ns = calls.saturating_mul(COUNTED_NS);
            sampling.counted_ns = sampling.counted_ns.saturating_add(ns);
            account.recording(ns);
            observer.tell(EventKind::Counted { allocations: calls, bytes });
        }
    }
}

impl JumpEngine {
    /// What the thread of the cell counted only, since it picked a block last, came between that and what it frees now.
    pub(super) fn note_counted_since(&self, tracee: &Tracee, observer: &mut Observer, tid: i32) {
        let Some(jump) = self.on().filter(|jump| jump.sampling.is_some()) else { return };
        let Some((cell, task)) = jump.cell_of(tid).zip(tracee.tasks.get(tid).map(|task| task.id)) else { return };
        let at = cell_at(cell.into());
        if jump.shared().word(at + CELL_CALLS) != jump.shared().word(at + CELL_SINCE) {
            observer.note_not_recorded(task);
        }
    }

    /// At a stop, before the thread goes on: the routine is to know which blocks live that were picked.
    pub(in crate::session) fn note_picked_blocks(&self, observer: &mut Observer) {
        let changed = observer.take_changed_blocks();
        let Some(jump) = self.on().filter(|jump| jump.sampling.is_some()) else { return };
        for block in changed.into_iter().filter(|block| !block.is_null()) {
            if observer.model().is_live(block) {
                sampling::note_live(jump.shared(), block);
            } else {
                sampling::note_dead(jump.shared(), block);
            }
        }
    }

    /// Chooses the interval that the routine samples with from here on, by what it has cost until now.
    pub(in crate::session) fn govern(&mut self, pid: i32) {
        let Self { state: JumpState::On(jump), account } = self else { return };
        let shared = &jump.region.mapping;
        let Some(Sampling { governor: Some(governor), counted_ns, .. }) = &mut jump.sampling else { return };
        let Some(time) = cputime::of_process(pid) else { return };
        let spent =
            Spent { picked: account.recording_ns.saturating_sub(*counted_ns), counted: *counted_ns, all: time.all_ns };
        if let Some(number) = governor.next(spent) {
            sampling::use_interval(shared, number);
        }
    }
}
