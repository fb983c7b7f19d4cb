//! What a recording holds of the tests of a program.

use crate::base::addr::{StackId, TestId};
use crate::base::figures::Amount;
use crate::base::leakclass::LeakClass;
use crate::heapmodel::TestTally;

/// What is known of the tests of a process.
#[derive(Debug)]
pub struct TestsRecord {
    /// Their names, by [`TestId`].
    pub names: Vec<String>,
    /// What they have done.
    pub tally: TestTally,
    /// Blocks that were live when memory was read.
    pub live: Vec<LiveOfTest>,
    /// Whether a framework was found that is known.
    pub has_framework: bool,
    /// How many tests the report lacks: their names could not be read, or they could not be watched.
    pub untold: u64,
}

/// Live blocks of one test (None: outside of tests), one stack and one class: where they were allocated; of indirectly
/// leaked ones, where the block was that they hang on.
pub type LiveOfTest = (Option<TestId>, StackId, LeakClass, Amount);
