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
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, procfs};
use std::time::{Duration, Instant};

/// So long threads are let go on that stand inside of the allocator.
const PATIENCE: Duration = Duration::from_millis(200);

/// So long they go on at a time.
const PAUSE: Duration = Duration::from_micros(50);

/// The system calls that an allocator makes: mmap, mprotect, munmap, brk, sched_yield, mremap, madvise, futex. In any other one a thread is not inside of it.
const OF_ALLOCATORS: [u64; 8] = [9, 10, 11, 12, 24, 25, 28, 202];

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

    /// Stops all threads outside of the allocator. Returns how many have not left it.
    fn leave_allocator(&mut self, stops: &mut Stops) -> Result<usize> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.stop_all_threads(None, stops)?;
            let mut inside = Vec::new();
            for (tid, status, stopped) in &stops.waiting {
                let Ok(raw) = stopped.registers() else { continue };
                let elsewhere = raw.is_in_system_call() && !OF_ALLOCATORS.contains(&raw.0.orig_rax);
                let regs = raw.regs();
                if !elsewhere && self.space.may_be_in_allocator(Addr(regs.rip), Addr(regs.sp())) {
                    inside.push((*tid, *status));
                }
            }
            if inside.is_empty() || Instant::now() > deadline {
                return Ok(inside.len());
            }
            for (tid, status) in inside {
                // others have something to tell that the session's loop must hear
                if status == WaitStatus::EventStop {
                    stops.waiting.retain(|(waiting, ..)| *waiting != tid);
                    Stopped::regained(tid).resume(0)?;
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}
