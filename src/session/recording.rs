//! What a session leaves behind when it has ended: everything that naming and writing need, and nothing of the process.

use super::aftermath::TracingAborted;
use super::leakrecord::LeakScan;
use super::modulerecord::ModuleRecord;
use super::testsrecord::TestsRecord;
use crate::allocators::AllocatorTable;
use crate::base::addr::{ImageId, ProcessId, StackId};
use crate::heapmodel::Snapshot;
use crate::profile::course::HeapHistory;
use crate::profile::symbolize::ScriptNames;
use crate::profile::{Anomalies, ProcessInfo, RunFacts};
use crate::tracer::root::TargetRoot;
use crate::unwinder::StackTable;
use std::collections::HashMap;
use std::sync::Arc;

/// What was found out of one process.
#[derive(Debug)]
#[allow(missing_docs, reason = "each field's type says what it is")]
pub struct Recording {
    pub snapshot: Snapshot,
    pub stacks: StackTable,
    pub table: Arc<AllocatorTable>,
    /// All modules of the last image, also those unloaded since.
    pub modules: Vec<ModuleRecord>,
    /// The lines of scripts in the session's stacks.
    pub scripts: ScriptNames,
    /// Names by [`crate::base::addr::TaskId::serial`].
    pub thread_names: HashMap<u32, String>,
    pub process: ProcessInfo,
    /// Ties the files of a session together: 16 hex digits.
    pub session: String,
    /// Where its stream of events ends.
    pub stream: StreamEnd,
    /// What is known of its run.
    pub facts: RunFacts,
    /// Its place in the order in which the processes came to be.
    pub number: u64,
    /// Its root folder, if it is not ours.
    pub root: Option<Arc<TargetRoot>>,
    pub anomalies: Anomalies,
    /// The leak scan. If one was made, `snapshot` is of its moment.
    pub leaks: LeakScan,
    /// What its tests did, if that was wanted.
    pub tests: Option<TestsRecord>,
    /// Why it is not of the blocks between two marks that were asked for, in words.
    pub missing_mark: Option<String>,
    /// What was noted along the way, if that was wanted.
    pub course: HeapHistory<StackId>,
    /// Why, if the tracing ended in the middle.
    pub broken_off: Option<TracingAborted>,
    /// Whether Ctrl-C was pressed while it was traced.
    pub interrupted: bool,
    /// Whether a signal to heaptrace asked for the end of the tracing.
    pub dismissed: bool,
}

impl Recording {
    /// The id of this image of this process, for files: its figures are its own, and add up with those of others. The
    /// first image of the first process has that of the session; the same recording always has the same one, also out
    /// of a trace.
    pub fn image_session(&self) -> String {
        if self.facts.parent.is_none() && self.facts.images.is_empty() {
            return self.session.clone();
        }
        // Fowler, Noll and Vo's hash, 64 bits, FNV-1a.
        let numbers = [self.number, self.facts.images.len() as u64].map(u64::to_le_bytes);
        let bytes = self.session.bytes().chain(numbers.into_iter().flatten());
        let hash = bytes
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        format!("{hash:016x}")
    }

    /// Whether it has anything to tell of its own.
    pub const fn is_silent(&self) -> bool {
        let totals = &self.snapshot.totals;
        totals.allocations + totals.frees + totals.preexisting_frees + totals.failed == 0
    }

    /// Visits each stack that something refers to, some more than once, and puts in its place what it is changed to.
    pub fn change_stacks(&mut self, mut change: impl FnMut(&mut StackId)) {
        self.snapshot.sites.change(|site| change(&mut site.key.stack));
        let Snapshot { errors, growths, capacities, stranded, .. } = &mut self.snapshot;
        let scanned = match &mut self.leaks {
            LeakScan::Done(scan) => Some(&mut scan.sites),
            LeakScan::NotWanted | LeakScan::Missed(_) => None,
        };
        let of_errors = errors.iter_mut().flat_map(|error| {
            [Some(&mut error.stack), error.alloc_stack.as_mut(), error.free_stack.as_mut()].into_iter().flatten()
        });
        let of_scan = scanned.into_iter().flat_map(|sites| sites.values_mut()).map(|key| &mut key.stack);
        let of_growths = growths.iter_mut().map(|(stack, _)| stack);
        let of_capacities = capacities.iter_mut().map(|(stack, _)| stack);
        let of_stranded = stranded.iter_mut().map(|(stack, _)| stack);
        let of_blocks = self.course.births.iter_mut().flat_map(|births| &mut births.blocks).map(|born| &mut born.stack);
        let of_tables = of_growths.chain(of_capacities).chain(of_stranded);
        of_errors.chain(of_scan).chain(of_blocks).chain(of_tables).for_each(change);
    }
}

/// Where a process's stream of events ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamEnd {
    /// The process.
    pub process: ProcessId,
    /// Its last image.
    pub image: ImageId,
    /// How many events there were.
    pub next_seq: u64,
    /// Whether sites that came over a fork are left out of the recording.
    pub without_inherited: bool,
}
