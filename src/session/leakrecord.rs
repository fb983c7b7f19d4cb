//! What a leak scan has found, and what is kept for one while a program runs.

use super::space::OwnSuppressions;
use crate::base::addr::Addr;
use crate::heap::leaks::Scan;
use crate::heap::leaks::roots::ThreadState;
use crate::heapmodel::{SiteId, SiteKey, Snapshot};
use crate::profile::Exit;
use crate::profile::leaks::ScanMoment;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::ops::Range;

/// A leak scan that was made.
#[derive(Debug)]
pub struct ScanRecord {
    /// The classes.
    pub scan: Scan,
    /// The sites of its blocks.
    pub sites: FxHashMap<SiteId, SiteKey>,
    /// The heap at that moment.
    pub snapshot: Snapshot,
    /// How many events the process had had.
    pub at_seq: u64,
    /// When memory was read.
    pub moment: ScanMoment,
    /// For how long the process stood still, ns.
    pub stopped_ns: u64,
    /// Whether it stood only to be copied, and the copy was read.
    pub copied: bool,
    /// The threads' names, by id.
    pub thread_names: HashMap<i32, String>,
    /// Suppressions that the program has in itself.
    pub own_suppressions: Vec<OwnSuppressions>,
}

/// What became of the leak scan.
#[derive(Debug)]
pub enum LeakScan {
    /// None was asked for.
    NotWanted,
    /// None could be made; the cause in words.
    Missed(String),
    /// It was made.
    Done(Box<ScanRecord>),
}

/// The state of the leak scan in a session.
#[derive(Debug, Default)]
pub(super) struct LeakWatch {
    /// Threads that have reported their end together with their process's.
    pub(super) ended: Vec<ThreadState>,
    /// The names that they had.
    pub(super) names: HashMap<i32, String>,
    /// Memory whose pointers count, as the program says.
    pub(super) regions: Vec<Range<Addr>>,
    /// The signal stacks of the threads that could be asked for the scan that follows.
    pub(super) signal_stacks: super::kernelheld::SignalStacks,
    pub(super) done: Option<Box<ScanRecord>>,
    pub(super) failure: Option<String>,
}

impl LeakWatch {
    /// No scan can be made any more, for this reason.
    pub(super) fn give_up(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// That of a copy of the process.
    pub(super) fn fork(&self) -> Self {
        Self { regions: self.regions.clone(), ..Self::default() }
    }

    /// What became of it, for a session that wanted one.
    pub(super) fn into_scan(self, exit: Option<Exit>) -> LeakScan {
        match (self.done, self.failure, exit) {
            (Some(done), ..) => LeakScan::Done(done),
            (None, Some(cause), _) => LeakScan::Missed(cause),
            (None, None, Some(_)) => {
                LeakScan::Missed("the program disappeared before its memory could be read".to_owned())
            }
            (None, None, None) => LeakScan::Missed("tracing was ended before the program ended".to_owned()),
        }
    }
}
