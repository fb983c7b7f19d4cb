//! The heap of a program that lives on, as it was read at one moment.

use super::interim::Interim;
use super::leakrecord::{LeakScan, ScanRecord};
use super::recording::Recording;
use crate::heapmodel::{SiteId, SiteKey, Snapshot};
use crate::leaks::Graph;
use crate::profile::leaks::ScanMoment;
use rustc_hash::FxHashMap;
use std::collections::HashMap;

/// What was read while the program stood still: what a classification needs.
#[derive(Debug)]
pub(super) struct HeapRead {
    pub(super) graph: Graph,
    pub(super) sites: FxHashMap<SiteId, SiteKey>,
    pub(super) thread_names: HashMap<i32, String>,
}

/// The heap of a program that lives on, read and not classified yet: that takes longer, and can be done while it runs.
#[derive(Debug)]
pub struct HeapCapture {
    pub(super) interim: Interim,
    pub(super) read: HeapRead,
    pub(super) stopped_ns: u64,
}

impl HeapCapture {
    /// Classifies the blocks. What the session had found out by then, with the scan in it.
    pub fn classify(self) -> Recording {
        let Self { interim, read, stopped_ns } = self;
        let mut recording = interim.into_recording();
        let HeapRead { graph, sites, thread_names } = read;
        recording.leaks = LeakScan::Done(Box::new(ScanRecord {
            scan: graph.classify(),
            sites,
            snapshot: Snapshot::default(),
            at_seq: recording.stream.next_seq,
            moment: ScanMoment::Request,
            stopped_ns,
            thread_names,
            own_suppressions: Vec::new(),
        }));
        recording
    }
}
