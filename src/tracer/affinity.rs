//! Sharing one CPU with the target (`--pin`).
//!
//! A stop costs about 10 µs where tracer and target share a CPU, and up to 45 µs across CPUs of a virtual machine: the
//! wake-up of an idle CPU is what takes long. The mask is inherited by children and visible to the target, hence an
//! option.

use super::injection::{self, Call};
use super::{Result, TracerError};

/// A set of CPUs.
#[derive(Clone, Copy)]
pub struct CpuSet(libc::cpu_set_t);

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        self.cpus().eq(other.cpus())
    }
}

impl std::fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.cpus()).finish()
    }
}

impl CpuSet {
    /// The CPUs on which `tid` may run (0: the calling thread).
    pub fn of(tid: i32) -> Result<Self> {
        // SAFETY: an all-zero cpu_set_t is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is valid for the size given.
        let result = unsafe { libc::sched_getaffinity(tid, size_of::<libc::cpu_set_t>(), &raw mut set) };
        if result == 0 { Ok(Self(set)) } else { Err(TracerError::last("read the CPU affinity of", tid)) }
    }

    /// The set of one CPU: the last of this set, as the first is the one that serves most interrupts.
    pub fn single(&self) -> Option<Self> {
        let cpu = self.cpus().last()?;
        // SAFETY: an all-zero cpu_set_t is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `cpu` came out of a set of this size.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        Some(Self(set))
    }

    /// Lets `tid` (0: the calling thread) run on these CPUs only.
    pub fn apply(&self, tid: i32) -> Result<()> {
        injection::point(Call::Other).map_err(|source| TracerError::Task {
            operation: "set the CPU affinity of",
            tid,
            source,
        })?;
        // SAFETY: the set is valid for the size given.
        let result = unsafe { libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        if result == 0 { Ok(()) } else { Err(TracerError::last("set the CPU affinity of", tid)) }
    }

    fn cpus(&self) -> impl Iterator<Item = usize> + '_ {
        let capacity = 8 * size_of::<libc::cpu_set_t>();
        // SAFETY: every index is below the set's capacity.
        (0..capacity).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &self.0) })
    }
}
