//! What a leak scan has found, and what is kept for one while a program runs.

use super::space::OwnSuppressions;
use crate::heap::leaks::Scan;
use crate::heapmodel::{SiteId, SiteKey, Snapshot};
use crate::profile::leaks::ScanMoment;
use rustc_hash::FxHashMap;
use std::collections::HashMap;

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
