//! The heap of a program that lives on, as it was at one moment.

use super::copylease::CopyLease;
use super::interim::LiveSnapshot;
use super::leakrecord::{LeakScan, ScanRecord};
use super::recording::Recording;
use crate::allocators::AllocatorTable;
use crate::base::addr::{Addr, FunctionId};
use crate::base::memory::ReadMemory;
use crate::heap::leaks::roots::{HeapLayout, ModuleData, RootSources, ThreadState, find};
use crate::heap::leaks::{Graph, KernelHeld, RootKind, RootWord, ScanOptions};
use crate::heapmodel::{LiveBlock, SiteId, SiteKey, Snapshot};
use crate::image::maps::Mapping;
use crate::profile::leaks::ScanMoment;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What was read while the program, or its copy, stood still: what a classification needs.
#[derive(Debug)]
pub(super) struct HeapRead {
    pub(super) graph: Graph,
    pub(super) sites: FxHashMap<SiteId, SiteKey>,
    pub(super) thread_names: HashMap<i32, String>,
}

/// All that has to be known of a program, besides its memory and its blocks, to read its heap.
#[derive(Debug)]
pub(super) struct HeapSources {
    pub(super) pid: i32,
    /// Without what we have added.
    pub(super) mappings: Vec<Mapping>,
    pub(super) modules: Vec<ModuleData>,
    pub(super) threads: Vec<ThreadState>,
    pub(super) thread_names: HashMap<i32, String>,
    pub(super) registered: Vec<Range<Addr>>,
    pub(super) layout: HeapLayout,
    /// See [`RootSources::heap_is_known`].
    pub(super) heap_is_known: bool,
    pub(super) kernel: KernelHeld,
    /// Blocks that the program says are no leaks.
    pub(super) ignored: Vec<Addr>,
    pub(super) table: Arc<AllocatorTable>,
    pub(super) options: ScanOptions,
}

impl HeapSources {
    /// Reads the live blocks, and the roots. `site`: what a block's site is.
    pub(super) fn read(
        self,
        mut blocks: Vec<LiveBlock>,
        site: impl Fn(SiteId) -> Option<SiteKey>,
        memory: &mut dyn ReadMemory,
    ) -> HeapRead {
        blocks.sort_unstable_by_key(|block| block.addr);
        let mut sites = FxHashMap::default();
        for block in &blocks {
            if let std::collections::hash_map::Entry::Vacant(slot) = sites.entry(block.site)
                && let Some(key) = site(block.site)
            {
                slot.insert(key);
            }
        }
        let is_declared = |function: FunctionId| self.table.is_declared(function);
        let of_allocator =
            |block: &&LiveBlock| sites.get(&block.site).is_none_or(|key: &SiteKey| !is_declared(key.function));
        let allocators: Vec<LiveBlock> = blocks.iter().filter(of_allocator).copied().collect();
        let sources = RootSources {
            mappings: &self.mappings,
            modules: &self.modules,
            threads: &self.threads,
            pid: self.pid,
            registered: &self.registered,
            kernel: &self.kernel,
            blocks: &allocators,
            layout: self.layout,
            owned: &[],
            heap_is_known: self.heap_is_known,
        };
        let mut roots = find(&sources, memory);
        let ignored = self.ignored.iter();
        roots.words.extend(ignored.map(|block| RootWord { value: block.0, kind: RootKind::Ignored }));
        let graph = Graph::read(blocks, &roots, memory, &self.options);
        HeapRead { graph, sites, thread_names: self.thread_names }
    }
}

/// How far the reading is.
#[derive(Debug)]
pub(super) enum Reading {
    /// All was read.
    Done(Box<HeapRead>),
    /// A copy is to be read.
    Copied(Box<HeapSources>, Box<CopyLease>),
}

/// The heap of a program that lives on, not classified yet: that takes longer, and can be done while it runs.
#[derive(Debug)]
pub struct HeapCapture {
    pub(super) interim: LiveSnapshot,
    pub(super) reading: Reading,
    pub(super) stopped_ns: u64,
}

impl HeapCapture {
    /// Reads the copy, if there is one, and classifies the blocks. What the session had found out by then, with the
    /// scan in it. Not for the tracer thread, unless there is no copy.
    ///
    /// # Errors
    /// The copy has ended before it was read, in words.
    pub fn classify(self) -> Result<Recording, String> {
        let Self { interim, reading, stopped_ns } = self;
        let copied = matches!(reading, Reading::Copied(..));
        let read = match reading {
            Reading::Done(read) => *read,
            Reading::Copied(sources, mut lease) => {
                let heap = interim.heap();
                let site = |id| heap.site(id).map(|stats| stats.key);
                let read = sources.read(heap.live_blocks().collect(), site, &mut lease.memory);
                lease.end()?;
                read
            }
        };
        let mut recording = interim.into_recording();
        let HeapRead { graph, sites, thread_names } = read;
        recording.leaks = LeakScan::Done(Box::new(ScanRecord {
            scan: graph.classify(),
            sites,
            snapshot: Snapshot::default(),
            at_seq: recording.stream.next_seq,
            moment: ScanMoment::Request,
            stopped_ns,
            copied,
            thread_names,
            own_suppressions: Vec::new(),
        }));
        Ok(recording)
    }
}
