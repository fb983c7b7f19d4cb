//! What the program has mapped by itself (`--mmap`), among all that it has allocated.

use super::{Profile, Sample};
use crate::base::figures::Amount;

/// The functions of the C library through which programs map memory, and give it back, as samples name them.
pub const FUNCTIONS: [&str; 5] = ["mmap", "munmap", "mremap", "brk", "sbrk"];

/// The family that all of them are: the pprof label `family`.
pub const FAMILY: &str = "mmap";

/// What such functions have allocated, in whole pages, whether touched or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Ever.
    pub allocated: Amount,
    /// What of it is mapped now, or was at the end.
    pub live: Amount,
    /// What of it was at the moment of the process's peak.
    pub at_peak: Amount,
}

impl Profile {
    /// Whether the sample is of what the program has mapped by itself.
    pub fn is_mapped(&self, sample: &Sample) -> bool {
        self.strings.get(sample.alloc_fn).is_some_and(|function| FUNCTIONS.contains(&function.as_str()))
    }

    /// Whether what the program maps by itself was recorded.
    pub fn records_mappings(&self) -> bool {
        let is_of_mappings = |function: &String| FUNCTIONS.contains(&function.as_str());
        self.allocators.iter().any(|allocator| allocator.functions.iter().any(is_of_mappings))
    }

    /// What the program has mapped by itself; None if that was not recorded, or there was nothing.
    pub fn mapped(&self) -> Option<Mapped> {
        // by the string, as there may be a million samples
        let is_own: Vec<bool> = self.strings.iter().map(|function| FUNCTIONS.contains(&function.as_str())).collect();
        let none = Amount::default();
        let mut sum = Mapped { allocated: none, live: none, at_peak: none };
        if is_own.contains(&true) {
            let is_own = |sample: &Sample| is_own.get(sample.alloc_fn).copied().unwrap_or_default();
            for sample in self.samples.iter().filter(is_own) {
                sum.allocated = sum.allocated.plus(sample.allocated);
                sum.live = sum.live.plus(sample.live);
                sum.at_peak = sum.at_peak.plus(sample.at_peak);
            }
        }
        (sum.allocated.bytes > 0 || sum.live.bytes > 0).then_some(sum)
    }
}
