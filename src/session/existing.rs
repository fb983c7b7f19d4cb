//! `attach --existing`: the blocks that were there before the attach, found in the allocator's own structures.
//!
//! They are told before any call is seen, while all threads stand still and no probe is placed yet: so each is there, and whatever happens to it later is seen. Only a
//! thread that is inside of the allocator at that moment may have handed out or taken back a block that does not look so yet. Such a thread goes on until it stands elsewhere.

use super::process::Process;
use super::stops::Stops;
use crate::addr::Addr;
use crate::event::EventKind;
use crate::heapwalk::{self, Sources, State};
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, procfs};
use std::time::{Duration, Instant};

/// So long threads are let go on that stand inside of the allocator.
const PATIENCE: Duration = Duration::from_secs(2);

/// So long, if all that do wait in a system call: what they wait for may never come.
const PATIENCE_WITH_SLEEPERS: Duration = Duration::from_millis(200);

/// So long they go on at a time.
const PAUSE: Duration = Duration::from_micros(50);

/// And so long at most, where one has not moved: it may have had no CPU meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The system calls that an allocator makes: mmap, mprotect, munmap, brk, sched_yield, mremap, madvise, futex. In any other one a thread is not inside of it.
const OF_ALLOCATORS: [u64; 8] = [9, 10, 11, 12, 24, 25, 28, FUTEX];
const FUTEX: u64 = 202;

/// FUTEX_WAIT_BITSET, and the flags beside it (FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME): so the C libraries wait for conditions, semaphores and threads, not for an allocator's lock.
const WAIT_BITSET: u64 = 9;
const FUTEX_FLAGS: u64 = 128 | 256;

impl Process {
    /// Tells of all blocks that are there. To be called before a probe is placed.
    pub(super) fn tell_existing(&mut self, stops: &mut Stops) -> Result<()> {
        let began = Instant::now();
        let inside = self.leave_allocator(stops)?;
        let lives = |tid: &i32| !matches!(procfs::state(self.pid, *tid), None | Some(b'Z' | b'X'));
        let Some(live) = self.tasks.tids().into_iter().find(lives) else { return Ok(()) };
        self.space.refresh_maps(live)?;
        self.space.memory.new_stop(live);
        let mappings = self.space.mappings().to_vec();
        let data = heapwalk::data_of(&mappings);
        let walk = heapwalk::walk(&Sources { mappings: &mappings, data: &data }, &mut self.space.original_memory());
        let Some(walk) = walk else {
            self.warnings.push(
                "--existing: the allocator of the process can't be walked (those of glibc, musl, mimalloc and jemalloc can): blocks from before the attach are unknown".to_owned(),
            );
            return Ok(());
        };
        for chunk in walk.chunks.iter().filter(|chunk| chunk.state == State::Live) {
            self.tell(EventKind::Existing { block: chunk.block(), size: chunk.usable() });
        }
        if !walk.findings.is_empty() {
            self.warnings.push(format!(
                "--existing: the heap was not as its allocator leaves it at {} places (`heaptrace heap` tells them): blocks from before the attach may be missing",
                walk.findings.len()
            ));
        }
        if walk.allocator.moves_aligned() {
            self.warnings.push(
                "--existing: mimalloc does not tell where in its place an aligned block begins: frees of such count as frees of unknown blocks".to_owned(),
            );
        }
        if inside > 0 {
            self.warnings.push(format!(
                "--existing: {inside} threads did not leave the allocator for a moment: of each of them one block from before the attach may be told wrongly"
            ));
        }
        // an aligned block of mimalloc is known by where its place begins
        self.leaks.existing_is_known = walk.findings.is_empty() && inside == 0 && !walk.allocator.moves_aligned();
        let stopped_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.cost.stopped_ns += stopped_ns;
        self.cost.stopped_max_ns = self.cost.stopped_max_ns.max(stopped_ns);
        Ok(())
    }

    /// Stops all threads outside of the allocator. Returns how many have not left it. One whose stop the session's loop must hear of can't.
    fn leave_allocator(&mut self, stops: &mut Stops) -> Result<usize> {
        let began = Instant::now();
        let mut pauses = Pauses::default();
        loop {
            self.stop_all_threads(None, stops)?;
            let mut places = Vec::new();
            let mut held = 0;
            for (tid, status, stopped) in &stops.waiting {
                let Ok(raw) = stopped.registers() else { continue };
                let regs = raw.regs();
                if !is_elsewhere(&raw) && self.space.may_be_in_allocator(Addr(regs.rip), Addr(regs.sp())) {
                    // it would be for nothing to wait for others: they stay where they are
                    if *status == WaitStatus::EventStop {
                        places.push(Place { tid: *tid, pc: regs.rip, sp: regs.sp(), sleeps: raw.is_in_system_call() });
                    } else {
                        held += 1;
                    }
                }
            }
            let tids: Vec<i32> = places.iter().map(|place| place.tid).collect();
            let Some(pause) = pauses.next(places, began.elapsed()) else { return Ok(tids.len() + held) };
            for tid in tids {
                stops.waiting.retain(|(waiting, ..)| *waiting != tid);
                Stopped::regained(tid).resume(0)?;
            }
            std::thread::sleep(pause);
        }
    }
}

/// Whether a thread is in a system call that no allocator makes.
fn is_elsewhere(raw: &RawRegs) -> bool {
    let number = raw.0.orig_rax;
    let awaits_no_lock = number == FUTEX && raw.0.rsi & !FUTEX_FLAGS == WAIT_BITSET;
    raw.is_in_system_call() && (!OF_ALLOCATORS.contains(&number) || awaits_no_lock)
}

/// Where a thread stands inside of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    tid: i32,
    pc: u64,
    sp: u64,
    /// Whether it is in a system call.
    sleeps: bool,
}

/// How long threads go on before they are stopped again.
#[derive(Clone, Debug, Default)]
struct Pauses {
    last: Duration,
    places: Vec<Place>,
}

impl Pauses {
    /// So long those go on that stand inside at these places. None: no longer.
    fn next(&mut self, places: Vec<Place>, passed: Duration) -> Option<Duration> {
        let patience = if places.iter().all(|place| place.sleeps) { PATIENCE_WITH_SLEEPERS } else { PATIENCE };
        if places.is_empty() || passed > patience {
            return None;
        }
        let has_moved = |place: &Place| place.sleeps || !self.places.contains(place);
        self.last = match places.iter().all(has_moved) {
            true => PAUSE,
            false => (self.last * 2).min(LONGEST_PAUSE),
        };
        self.places = places;
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: Place = Place { tid: 1, pc: 2, sp: 3, sleeps: false };
    const SLEEPING: Place = Place { tid: 4, pc: 5, sp: 6, sleeps: true };

    #[test]
    fn one_that_had_no_cpu_goes_on_for_longer_each_time() {
        let mut pauses = Pauses::default();
        let mut next = |places: &[Place]| pauses.next(places.to_vec(), Duration::ZERO).unwrap();
        assert_eq!(next(&[RUNNING]), PAUSE);
        assert_eq!(next(&[RUNNING, SLEEPING]), PAUSE * 2);
        assert_eq!(next(&[RUNNING]), PAUSE * 4);
        assert_eq!(next(&[Place { pc: 7, ..RUNNING }]), PAUSE, "it has moved");
        assert_eq!(next(&[SLEEPING]), PAUSE);
        assert_eq!(next(&[SLEEPING]), PAUSE, "no CPU makes it move");
        let longest = (0..20).map(|_| next(&[RUNNING])).max();
        assert_eq!(longest, Some(LONGEST_PAUSE));
    }

    #[test]
    fn those_that_sleep_are_waited_for_less_long() {
        let next = |places: &[Place], passed| Pauses::default().next(places.to_vec(), passed);
        let (short, long) = (PATIENCE_WITH_SLEEPERS * 2, PATIENCE * 2);
        assert_eq!(next(&[], Duration::ZERO), None);
        assert_eq!(next(&[SLEEPING], short), None);
        assert_eq!(next(&[SLEEPING, RUNNING], short), Some(PAUSE));
        assert_eq!(next(&[SLEEPING, RUNNING], long), None);
    }
}
