//! `attach --existing`: the blocks that were there before the attach, found in the allocator's own structures.
//!
//! All threads stand still outside of the allocator while the process is copied and the probes are placed: so each
//! block that is there at that moment is in the copy, and whatever happens to it later is seen. Only a thread that is
//! inside of the allocator then may have handed out or taken back a block that does not look so yet. Such a thread goes
//! on until it stands elsewhere. A thread of ours walks the copy while the process runs on. Until that is done the
//! events are held back (`observer/held.rs`); who needs the heap waits ([`ExistingBlocks::await_told`]). Where there
//! can be no copy, the process stands still while its own heap is walked.

use super::copylease::CopyLease;
use super::cost::CostMeter;
use super::heapcopy::{Forming, HeapCopies};
use super::observer::Observer;
use super::stops::Stops;
use super::tracee::Tracee;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::heap::walk::{self, Sources, State, Walk};
use crate::image::maps::Mapping;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::standstill::is_allocators_call;
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, procfs};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// For this time heaptrace lets threads go on that stand inside the allocator.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The same if all of them wait in a system call: what they wait for may never come.
const PATIENCE_WITH_SLEEPERS: Duration = Duration::from_millis(200);

/// How long they go on before the next look.
const PAUSE: Duration = Duration::from_micros(50);

/// And at most for this time, if one has not moved: it may have had no CPU meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// heaptrace holds back at most this number of events, in some 100 MB. Then the program waits for the walk to end.
const MAX_HELD: usize = 1 << 20;

/// For this time heaptrace passes held-back blocks and events to readers, between two stops; the program waits
/// meanwhile.
const AT_A_TIME: Duration = Duration::from_micros(250);

const FUTEX: u64 = 202;

/// FUTEX_WAIT_BITSET, and the flags beside it (FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME): the C libraries wait by it
/// for conditions, semaphores and threads, not for an allocator's lock.
const WAIT_BITSET: u64 = 9;
const FUTEX_FLAGS: u64 = 128 | 256;

/// What was found.
#[derive(Debug)]
struct Found {
    /// Each with its usable size in bytes.
    blocks: Vec<(Addr, u64)>,
    /// How many places of the heap are inconsistent.
    findings: usize,
    moves_aligned: bool,
}

impl From<Walk> for Found {
    fn from(walk: Walk) -> Self {
        let live = walk.chunks.iter().filter(|chunk| chunk.state == State::Live);
        Self {
            blocks: live.map(|chunk| (chunk.block(), chunk.usable())).collect(),
            findings: walk.findings.len(),
            moves_aligned: walk.allocator.moves_aligned(),
        }
    }
}

/// Why nothing was found, in words.
type NotFound = String;

/// The blocks of a process from before the attach.
#[derive(Debug, Default)]
pub(super) struct ExistingBlocks {
    /// There while heaptrace looks for them or passes them on.
    search: Option<Search>,
    are_known: bool,
}

/// A walk over a copy that goes on, or whose blocks readers are getting.
#[derive(Debug)]
struct Search {
    /// None: it has ended.
    walk: Option<Receiver<std::result::Result<Found, NotFound>>>,
    /// How many threads have not left the allocator.
    inside: usize,
}

impl ExistingBlocks {
    /// Those of a copy of the process.
    pub(super) fn fork(&self) -> Self {
        Self { search: None, are_known: self.are_known }
    }

    /// Whether all blocks from before the attach are known: the allocator's own memory then holds no pointers that
    /// count.
    pub(super) const fn are_known(&self) -> bool {
        self.are_known
    }

    /// Not all are known any more, or it is another program.
    pub(super) const fn forget(&mut self) {
        self.are_known = false;
    }

    /// Copies the process to find all its blocks; or finds them while it stands still. Callers place probes only later.
    /// Afterwards all threads stand still until their stops are served.
    pub(super) fn look(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        copies: &mut HeapCopies,
        cost: &mut CostMeter,
        stops: &mut Stops,
    ) -> Result<()> {
        let began = Instant::now();
        let inside = leave_allocator(tracee, stops)?;
        let refresh = |tid| tracee.space.refresh_maps(tid).map(|()| tid);
        let live = match procfs::through_any(tracee.pid, tracee.tasks.tids(), refresh) {
            Err(error) if error.is_out_of_reach() => return Ok(()),
            refreshed => refreshed?,
        };
        tracee.space.image.memory.new_stop(live);
        let is_the_program_s = |mapping: &&Mapping| !mapping.is_heaptrace_s();
        let mappings: Vec<Mapping> = tracee.space.image.mappings().iter().filter(is_the_program_s).cloned().collect();
        let is_paused = observer.is_paused();
        let copy = match tracee.settings.copy {
            // what a pause records depends on the blocks that are known
            Some(means) if !is_paused => copies.copy(tracee, None, means, &mappings, false, stops)?,
            _ => None,
        };
        tracee.space.image.memory.stands_still(None);
        observer.hold_back();
        self.search = Some(Search { walk: None, inside });
        let walk = match copy {
            Some(Forming::Copy(lease)) => walk_on_own_thread(lease, mappings.clone()),
            Some(Forming::Later) | None => {
                // it stands still: there is nothing to wait for
                copies.forget_the_last();
                None
            }
        };
        match walk {
            Some(walk) => self.search = Some(Search { walk: Some(walk), inside }),
            None => {
                let found = walk_heap(&mappings, &mut tracee.space.image.original_memory());
                self.note(tracee, observer, found, inside);
                self.tell(observer, Duration::MAX);
                let why = if is_paused { "collecting was to begin later" } else { "it could not be copied" };
                tracee.warnings.push(format!(
                    "--existing: the process stood still for {} ms while heaptrace read its heap, as {why}",
                    began.elapsed().as_millis()
                ));
            }
        }
        cost.note_standstill(began);
        Ok(())
    }

    /// Something is about to read the heap, or the heap changes as a whole: waits until readers have the blocks from
    /// before the attach, and all that has happened since.
    pub(super) fn await_told(&mut self, tracee: &mut Tracee, observer: &mut Observer) {
        let Some(Search { walk, inside }) = &mut self.search else { return };
        let inside = *inside;
        if let Some(walk) = walk.take() {
            let found = walk.recv().unwrap_or_else(|_| Err(broken_down()));
            self.note(tracee, observer, found, inside);
        }
        self.tell(observer, Duration::MAX);
    }

    /// Between two stops: takes the blocks that were found, and passes on some of what is held back.
    pub(super) fn go_on(&mut self, tracee: &mut Tracee, observer: &mut Observer) {
        let Some(Search { walk, inside }) = &mut self.search else { return };
        let inside = *inside;
        if observer.held().is_some_and(|held| held >= MAX_HELD) {
            return self.await_told(tracee, observer);
        }
        if let Some(going) = walk {
            let found = match going.try_recv() {
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => Err(broken_down()),
                Ok(found) => found,
            };
            *walk = None;
            self.note(tracee, observer, found, inside);
        }
        self.tell(observer, AT_A_TIME);
    }

    /// Whether the readers still lack blocks from before the attach.
    pub(super) const fn are_awaited(&self) -> bool {
        self.search.is_some()
    }

    /// Whether there is something for readers between two stops.
    pub(super) fn has_some_to_tell(&self) -> bool {
        self.search.as_ref().is_some_and(|search| search.walk.is_none())
    }

    fn tell(&mut self, observer: &mut Observer, most: Duration) {
        observer.tell_held(most);
        if observer.held().is_none() {
            self.search = None;
        }
    }

    /// Takes the blocks that were there; `inside`: how many threads had not left the allocator.
    fn note(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        found: std::result::Result<Found, NotFound>,
        inside: usize,
    ) {
        let Found { blocks, findings, moves_aligned } = match found {
            Ok(found) => found,
            Err(why) => {
                tracee.warnings.push(format!("--existing: {why}: blocks from before the attach are unknown"));
                return observer.take_existing(Vec::new());
            }
        };
        observer.take_existing(blocks);
        if findings > 0 {
            tracee.warnings.push(format!(
                "--existing: the heap is inconsistent at {findings} places (`heaptrace heap` lists them): blocks from \
                 before the attach may be missing"
            ));
        }
        if moves_aligned {
            tracee.warnings.push(
                "--existing: mimalloc does not record where an aligned block begins: frees of aligned blocks count as \
                 frees of unknown blocks"
                    .to_owned(),
            );
        }
        if inside > 0 {
            tracee.warnings.push(format!(
                "--existing: {inside} threads stayed inside the allocator: one block of each from before the attach \
                 may be wrong"
            ));
        }
        // an aligned block of mimalloc is known by where its place begins
        self.are_known = findings == 0 && inside == 0 && !moves_aligned;
    }
}

/// Stops all threads outside the allocator. Returns how many have not left it. A thread whose stop the session's loop
/// must serve can't leave it.
fn leave_allocator(tracee: &mut Tracee, stops: &mut Stops) -> Result<usize> {
    let began = Instant::now();
    let mut pauses = Pauses::default();
    loop {
        tracee.stop_all_threads(None, stops)?;
        let mut places = Vec::new();
        let mut held = 0;
        for (tid, status, stopped) in &stops.waiting {
            let Ok(raw) = stopped.registers() else { continue };
            let regs = raw.regs();
            if !is_elsewhere(&raw)
                && tracee.space.modules.may_be_in_allocator(&tracee.space.image, Addr(regs.rip), Addr(regs.sp()))
            {
                // waiting for others would be useless: they stay where they are
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

fn walk_heap(mappings: &[Mapping], memory: &mut dyn ReadMemory) -> std::result::Result<Found, NotFound> {
    let data = walk::data_of(mappings);
    let walk = walk::walk(&Sources { mappings, data: &data }, memory);
    walk.map(Found::from).ok_or_else(|| {
        "the allocator of the process can't be walked (those of glibc, musl, mimalloc and jemalloc can)".to_owned()
    })
}

/// Walks a copy. None if there can be no thread for that.
fn walk_on_own_thread(
    mut lease: Box<CopyLease>,
    mappings: Vec<Mapping>,
) -> Option<Receiver<std::result::Result<Found, NotFound>>> {
    let (send, receive) = channel();
    let walk = move || {
        let found = walk_heap(&mappings, &mut lease.memory);
        let found = if lease.is_whole() { found } else { Err("the copy of the process ended early".to_owned()) };
        // before the copy ends: the tracer thread may have no time for that yet
        let _ = send.send(found);
        let _ = lease.end();
    };
    let begun = std::thread::Builder::new().name("existing blocks".to_owned()).spawn(walk);
    begun.map_err(|error| tracing::debug!("no copy is walked: {error}")).ok()?;
    Some(receive)
}

fn broken_down() -> NotFound {
    "the thread that walked the heap panicked".to_owned()
}

/// Whether a thread is in a system call that no allocator makes.
fn is_elsewhere(raw: &RawRegs) -> bool {
    let number = raw.0.orig_rax;
    let awaits_no_lock = number == FUTEX && raw.0.rsi & !FUTEX_FLAGS == WAIT_BITSET;
    raw.is_in_system_call() && (!is_allocators_call(number.cast_signed()) || awaits_no_lock)
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
    /// How long the threads go on that stand inside at these places. None: no longer.
    fn next(&mut self, places: Vec<Place>, passed: Duration) -> Option<Duration> {
        let patience = if places.iter().all(|place| place.sleeps) { PATIENCE_WITH_SLEEPERS } else { TIMEOUT };
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
        let (short, long) = (PATIENCE_WITH_SLEEPERS * 2, TIMEOUT * 2);
        assert_eq!(next(&[], Duration::ZERO), None);
        assert_eq!(next(&[SLEEPING], short), None);
        assert_eq!(next(&[SLEEPING, RUNNING], short), Some(PAUSE));
        assert_eq!(next(&[SLEEPING, RUNNING], long), None);
    }
}
