//! Waiting for the next stop, in the way that is fastest for the target.
//!
//! To block is to let the CPU go idle, and in a virtual machine it takes 20 to 40 µs to wake one up again: longer than
//! all that is done at a stop. While stops follow each other closely, and a CPU is left for it, the tracer therefore
//! looks for the next one for a moment before it blocks.

use super::Result;
use super::ptrace::{self, Waited};
use std::time::{Duration, Instant};

/// For how long to look: about what a wake-up costs.
const TIMEOUT: Duration = Duration::from_micros(60);

/// The time from one look to the next where something else is waited for, too.
const BETWEEN_LOOKS: Duration = Duration::from_micros(5);

/// So often in a row looking may fail before it is given up.
const CREDIT: u8 = 4;

/// Decides whether to look or to block.
#[derive(Debug)]
pub struct Waiting {
    cpus: usize,
    credit: u8,
}

impl Default for Waiting {
    fn default() -> Self {
        Self::new()
    }
}

impl Waiting {
    /// For this machine.
    pub fn new() -> Self {
        Self { cpus: std::thread::available_parallelism().map_or(1, usize::from), credit: 0 }
    }

    /// Whether a CPU is left to look, without waiting: see [`Self::next`].
    const fn has_cpu(&self, threads: usize, pinned: bool) -> bool {
        !pinned && threads < self.cpus
    }

    /// Looks for a stop until a moment. Where no CPU is left for that, waits for one as [`Self::next`] does, if the
    /// moment is not there yet.
    ///
    /// # Errors
    /// Those of wait4(2).
    pub fn look_until(&mut self, moment: Instant, threads: usize, pinned: bool) -> Result<Waited> {
        loop {
            let found = ptrace::wait(false)?;
            if !matches!(found, Waited::Nothing) || Instant::now() >= moment {
                return Ok(found);
            }
            if !self.has_cpu(threads, pinned) {
                return self.next(threads, pinned);
            }
            // The kernel's look takes locks that the target's threads want, too.
            let next = Instant::now() + BETWEEN_LOOKS;
            while Instant::now() < next.min(moment) {
                std::hint::spin_loop();
            }
        }
    }

    /// Waits for a stop. `threads` is the number of tasks that may want a CPU, all of which share one with the tracer
    /// if `pinned`.
    pub fn next(&mut self, threads: usize, pinned: bool) -> Result<Waited> {
        if !self.has_cpu(threads, pinned) {
            return ptrace::wait(true);
        }
        let began = Instant::now();
        if self.credit > 0 {
            loop {
                match ptrace::wait(false)? {
                    Waited::Nothing if began.elapsed() < TIMEOUT => std::thread::yield_now(),
                    Waited::Nothing => break,
                    found => {
                        self.credit = CREDIT;
                        return Ok(found);
                    }
                }
            }
            self.credit -= 1;
        }
        let found = ptrace::wait(true)?;
        // Including the wake-up, which would have been saved.
        if self.credit == 0 && began.elapsed() < 2 * TIMEOUT {
            self.credit = CREDIT;
        }
        Ok(found)
    }
}
