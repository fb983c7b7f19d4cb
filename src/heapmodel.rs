//! The heap as the event stream tells it: live blocks, per-site totals, the peak, errors.
//!
//! Pure. A *site* is what one thread does with blocks of one size on one stack through one function.
//!
//! An event costs a few hash look-ups, whatever the size of the heap. What was live at the peak is known exactly,
//! without a copy of anything: each new maximum begins a new *peak epoch*, and a site notes its live figures when it
//! changes for the first time in an epoch; sites that have not changed since have the same figures as at the peak.

mod arenas;
mod birthtimes;
mod blocks;
mod booking;
mod capacity;
mod errors;
mod figures;
pub mod fill;
mod firsts;
mod gap;
mod growth;
mod ignored;
mod mapped;
mod marks;
mod newest;
mod period;
mod pertest;
mod ranges;
mod reallocs;
mod sites;
mod sitetable;
mod timeline;
mod traits;
mod view;

use crate::base::addr::{Addr, FunctionId, ProcessId, StackId, TaskId};
use crate::base::figures::{Amount, Anomalies, Capacity, CrossThreadFreed, Growth, Histograms, TimelinePoint, Totals};
use crate::event::{Call, Event, EventKind, EventSink, Preexisting};
use arenas::{Arenas, Part};
use birthtimes::BirthTimes;
use blocks::{Block, Blocks};
use capacity::Capacities;
use errors::Errors;
pub use errors::HeapError;
use figures::Figures;
use gap::Gap;
use growth::Growths;
use ignored::Ignored;
use mapped::Mapped;
pub use marks::Mark;
use marks::Marks;
use newest::Newest;
pub use period::Counted;
use pertest::Tests;
pub use pertest::{TestFigures, TestTally};
use reallocs::Reallocs;
use serde::{Deserialize, Serialize};
use sites::Sites;
pub use sitetable::SiteTable;
use timeline::Timeline;
pub use view::HeapView;

/// Identity of a site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SiteKey {
    /// The stack of the call.
    pub stack: StackId,
    /// Serial number of the calling thread ([`crate::base::addr::TaskId::serial`]).
    pub task: u32,
    /// The function called.
    pub function: FunctionId,
    /// Block size in bytes: exact for the first 64 sizes of a stack and thread, then rounded down to eighths of an
    /// octave. (The amounts are exact in any case.)
    pub size: u64,
    /// See [`crate::event::Call::interval`].
    pub interval: u64,
}

/// The figures of one site; the fields are those of `profile::Sample`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see profile::Sample")]
pub struct SiteStats {
    pub key: SiteKey,
    pub inherited: bool,
    pub allocated: Amount,
    pub freed: Amount,
    pub deallocated: Amount,
    pub live: Amount,
    pub at_peak: Amount,
    pub temporary: u64,
    pub lifetime_ns: u64,
    pub freed_elsewhere: u64,
}

/// An immutable view of the model at one moment.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each field's type says what it is")]
pub struct Snapshot {
    pub totals: Totals,
    pub sites: SiteTable,
    pub timeline: Vec<TimelinePoint>,
    pub histograms: Histograms,
    /// By the stacks of the larger blocks, sorted; only where each block is recorded.
    pub growths: Vec<(StackId, Growth)>,
    /// By the stacks of the blocks, sorted.
    pub capacities: Vec<(StackId, Capacity)>,
    /// By the stacks of the blocks and by arena, sorted; only where arenas are told.
    pub stranded: Vec<(StackId, CrossThreadFreed)>,
    /// Without frees of what was not live, if [`Self::frees_unseen`].
    pub errors: Vec<HeapError>,
    /// What was not seen, or not wholly, and the program's errors in numbers.
    pub anomalies: Anomalies,
    /// Whether blocks were freed by ways that are not seen: then blocks may be allocated so, too, and a free of what is
    /// not known to be live is no error.
    pub frees_unseen: bool,
    /// Addresses that were handed out while the model still held a block there, which no error of the program explains:
    /// frees that were not seen.
    pub unseen_frees: u64,
    /// See [`EventKind::Began`]. If it is not 0 the sites hold the blocks that were recorded, and all else what they
    /// stand for.
    pub sample_interval: u64,
}

/// A live block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// Its address.
    pub addr: Addr,
    /// Its requested size in bytes.
    pub size: u64,
    /// Where it was allocated, for [`HeapModel::site`].
    pub site: SiteId,
    /// Whether it was inherited over a fork.
    pub inherited: bool,
}

/// So many events before one the table of blocks is asked for the line of its block. The processor has room for some
/// tens of lines that are on their way.
const FAR: usize = 16;

/// So many before one that line has come, and what it says is asked for.
const NEAR: usize = 6;

/// An interned site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SiteId(pub u32);

/// The heap of one process.
#[derive(Clone, Debug)]
pub struct HeapModel {
    preexisting: Preexisting,
    paused: bool,
    free_stacks: bool,
    /// When the stream began, in nanoseconds since the session did.
    began_ns: u64,
    /// The time of the latest event, counted from there.
    now_ns: u64,
    blocks: Blocks,
    /// What the program has mapped by itself.
    mapped: Mapped,
    sites: Sites,
    timeline: Timeline,
    figures: Figures,
    /// Number of allocations in the life of the process and its ancestors: the clock of lifetimes.
    births: u64,
    birth_times: BirthTimes,
    newest: Newest,
    growths: Growths,
    capacities: Capacities,
    arenas: Arenas,
    reallocs: Reallocs,
    errors: Errors,
    gap: Gap,
    ignored: Ignored,
    marks: Marks,
    tests: Tests,
}

impl Default for HeapModel {
    fn default() -> Self {
        Self::new(Preexisting::None)
    }
}

impl EventSink for HeapModel {
    fn take(&mut self, event: &Event) {
        self.apply(event);
    }

    fn fork(&self, _: ProcessId) -> Option<Box<dyn EventSink>> {
        Some(Box::new(self.clone()))
    }
}

impl HeapModel {
    /// The model of a stream of which nothing was read yet. A stream that does not tell of its beginning, as tests make
    /// them up, begins with `preexisting`.
    pub fn new(preexisting: Preexisting) -> Self {
        Self {
            preexisting,
            free_stacks: true,
            began_ns: 0,
            now_ns: 0,
            blocks: Blocks::new(),
            mapped: Mapped::default(),
            sites: Sites::default(),
            timeline: Timeline::new(),
            figures: Figures::new(0),
            births: 0,
            birth_times: BirthTimes::default(),
            newest: Newest::default(),
            growths: Growths::default(),
            capacities: Capacities::default(),
            arenas: Arenas::default(),
            reallocs: Reallocs::default(),
            errors: Errors::default(),
            paused: false,
            gap: Gap::default(),
            ignored: Ignored::default(),
            marks: Marks::default(),
            tests: Tests::default(),
        }
    }

    /// The same, of which one byte in `interval` is sampled, if it is not 0.
    fn sampled(preexisting: Preexisting, interval: u64) -> Self {
        Self { figures: Figures::new(interval), ..Self::new(preexisting) }
    }

    /// The process came to be by a fork, as a copy of the one whose past this is: it has all its blocks, and has
    /// allocated none of them. Its frees of inherited blocks count as `preexisting_frees`. `child` is the serial number
    /// of its thread, the copy of `parent`.
    fn begin_fork(&mut self, parent: u32, child: u32, among_threads: bool) {
        if among_threads {
            self.expect_unknown_frees();
        }
        self.figures = self.figures.fork(self.births);
        self.birth_times = BirthTimes::default();
        self.sites.inherit();
        self.timeline = Timeline::new();
        self.ignored.fork(parent, child);
        self.tests.fork(parent, child, self.births);
        self.mapped.fork(parent, child);
        (self.newest, self.growths, self.capacities) = (Newest::default(), Growths::default(), Capacities::default());
        self.arenas = Arenas::default();
        self.errors.fork();
        self.reallocs.fork(parent, child);
    }

    /// The heap of another program, in the same process.
    fn begin_image(&mut self) {
        let Self { free_stacks, began_ns, now_ns, paused, figures, .. } = *self;
        *self = Self { free_stacks, began_ns, now_ns, ..Self::sampled(Preexisting::None, figures.sample_interval) };
        // The errors are of one program; what was not seen, of the process.
        self.figures.anomalies = Anomalies { lost: figures.anomalies.lost + figures.unseen_frees, ..figures.anomalies };
        if paused {
            self.set_paused(true);
        }
    }

    /// Event number `at` of a row of them follows, and `block` says which blocks they are about: fetches what is known
    /// of those to come, so that no event waits for memory by itself.
    #[inline(always)]
    pub fn look_ahead(&self, at: usize, block: impl Fn(usize) -> Option<Addr>) {
        if at == 0 {
            (0..FAR).filter_map(&block).for_each(|block| self.blocks.prefetch(block));
        }
        if let Some(far) = block(at + FAR) {
            self.blocks.prefetch(far);
        }
        if let Some(site) = block(at + NEAR).and_then(|near| self.blocks.look_closer(near)) {
            self.sites.prefetch(site);
        }
    }

    /// Takes one event, in the order in which they were reported.
    pub fn apply(&mut self, event: &Event) {
        match event.kind {
            EventKind::Allocated { block, size, ref by } => self.take_allocated(event.time_ns, block, size, by),
            EventKind::Freed { block, internal, given_size, ref by } => {
                self.take_freed(event.time_ns, (block, internal), given_size, by);
            }
            _ => {
                self.begin_event(event.time_ns, event.kind.call());
                self.apply_rare(event);
            }
        }
    }

    /// Takes an [`EventKind::Allocated`], told by its parts.
    pub fn take_allocated(&mut self, time_ns: u64, block: Addr, size: u64, by: &Call) {
        self.begin_event(time_ns, Some(by));
        self.allocate(block, size, by);
    }

    /// Takes an [`EventKind::Freed`], told by its parts.
    pub fn take_freed(&mut self, time_ns: u64, (block, internal): (Addr, bool), given_size: Option<u64>, by: &Call) {
        self.begin_event(time_ns, Some(by));
        self.free(block, internal, given_size, by);
    }

    /// Something happens at this time of the session, by this call if it is one.
    #[inline]
    fn begin_event(&mut self, time_ns: u64, by: Option<&Call>) {
        self.now_ns = time_ns.saturating_sub(self.began_ns);
        if self.gap.was_there() {
            self.note_first_after_gap(by);
        }
    }

    /// Each block that was freed while nobody looked may have got the address of one that was freed before.
    #[cold]
    #[inline(never)]
    fn note_first_after_gap(&mut self, by: Option<&Call>) {
        if by.is_some_and(|by| self.gap.is_first_of(by.task.serial)) {
            self.blocks.forget_freed();
        }
    }

    /// What comes less often, apart from the rest: room on the stack for whole models, as some of these want, would
    /// have to be made for each event.
    #[inline(never)]
    fn apply_rare(&mut self, event: &Event) {
        match event.kind {
            EventKind::Allocated { .. } | EventKind::Freed { .. } => {}
            EventKind::ReallocBegan { old, by } => {
                let realloc = self.begin_realloc(old, by);
                self.reallocs.push(realloc);
            }
            EventKind::ReallocEnded { old, new, size, by } => {
                let begun = match self.reallocs.take(old, by.task.serial) {
                    Some(begun) => begun,
                    None => self.begin_realloc(old, by),
                };
                self.end_realloc(&begun, new, size, &by);
            }
            EventKind::AllocatedUnseen { size, by } => self.allocate_unseen(size, &by),
            EventKind::ReallocAbandoned { old, task } => {
                self.reallocs.take(old, task.serial);
            }
            EventKind::Unwritten { block, bytes } => self.note_unwritten(block, bytes),
            EventKind::ArenaPart { arena, is_main, start, bytes, live, free } => {
                self.arenas.tell(start, Part { arena, is_main, bytes, live, free });
            }
            EventKind::NotRecorded { task } => {
                self.newest.forget(task.serial);
            }
            EventKind::Counted { allocations, bytes } => {
                let totals = &mut self.figures.totals;
                totals.counted_allocations = totals.counted_allocations.saturating_add(allocations);
                totals.counted_bytes = totals.counted_bytes.saturating_add(bytes);
            }
            EventKind::Mapping { change, ref by } => self.change_mappings(change, by),
            EventKind::Remapped { old, old_bytes, new, new_bytes, ref by } => {
                self.remap((old, old_bytes.bytes()), (new, new_bytes.bytes()), by);
            }
            EventKind::Failed { .. } => self.figures.totals.failed += 1,
            EventKind::Missed(missed) => self.figures.count_missed(missed),
            EventKind::Began { preexisting, free_stacks, sample_interval, .. } => {
                let began_ns = event.time_ns;
                *self = Self { free_stacks, began_ns, ..Self::sampled(preexisting, sample_interval) };
            }
            EventKind::Forked { parent, child, among_threads, .. } => {
                (self.began_ns, self.now_ns) = (event.time_ns, 0);
                self.begin_fork(parent.serial, child.serial, among_threads);
            }
            EventKind::Exec { .. } => self.begin_image(),
            EventKind::Existing { block, size } => self.take_existing(block, size),
            EventKind::UnknownFreesExpected => self.expect_unknown_frees(),
            EventKind::Unobserved => {
                self.expect_unknown_frees();
                self.gap.births = self.births;
                self.gap.end();
            }
            EventKind::Paused(paused) => self.set_paused(paused),
            EventKind::BlockIgnored(inside) => self.ignored.add(inside, self.births),
            EventKind::NewBlocksIgnored { task, ignore } => self.ignored.mute(task.serial, ignore),
            EventKind::Mark(name) => self.marks.set(name, self.now_ns, self.births),
            EventKind::TestBegan { test, task, alone } => {
                self.tests.begin(test, task.serial, alone, (self.now_ns, self.births));
            }
            EventKind::TestJoined { task, parent } => self.tests.join(task.serial, parent.serial),
            EventKind::TestEnded { task } => self.tests.end(task.serial, self.now_ns),
        }
    }

    /// What was not seen so far, or not wholly, and the program's errors in numbers.
    pub fn anomalies(&self) -> Anomalies {
        let Figures { anomalies, unseen_frees, .. } = self.figures;
        self.errors.count_in(Anomalies { lost: anomalies.lost + unseen_frees, ..anomalies })
    }

    /// For how long the stream has lasted at this time of the session, in nanoseconds.
    pub const fn age_ns(&self, session_ns: u64) -> u64 {
        session_ns.saturating_sub(self.began_ns)
    }

    /// The bytes that are live. Cheap.
    pub fn live_bytes(&self) -> u64 {
        self.figures.totals.live_bytes
    }

    /// The bytes that were allocated so far. Cheap.
    pub fn allocated_bytes(&self) -> u64 {
        self.figures.totals.bytes_allocated
    }

    /// The sums so far. Cheap, unless blocks are sampled: then all sites are looked at.
    pub fn totals(&self) -> Totals {
        self.figures.totals_of(|| self.sites.stats(self.figures.peak_epoch))
    }

    /// Whether there can be blocks whose allocation was not seen.
    pub fn may_have_unknown_blocks(&self) -> bool {
        self.preexisting == Preexisting::Unknown
    }

    /// Whether the thread's latest allocation is known to be a recorded one: [`EventKind::NotRecorded`] would change
    /// something.
    pub fn is_latest_recorded(&self, task: TaskId) -> bool {
        self.newest.of(task.serial).is_some()
    }

    /// Whether a block is known to live at `addr`.
    pub fn is_live(&self, addr: Addr) -> bool {
        self.blocks.get(addr).is_some()
    }

    /// Frees of unknown blocks count as preexisting from now on. Each block whose allocation was not seen may have got
    /// the address of one that was freed before.
    fn expect_unknown_frees(&mut self) {
        self.preexisting = Preexisting::Unknown;
        self.blocks.forget_freed();
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
        self.expect_unknown_frees();
        self.gap.end();
    }

    /// All live blocks, in no order; without what the program has mapped by itself.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> {
        self.blocks.iter().map(|(addr, block)| live_block(addr, &block, self.figures.inherited_births))
    }

    /// How many blocks were allocated in the life of the process and its ancestors.
    pub fn births(&self) -> u64 {
        self.births
    }

    /// All live blocks, and what the program has mapped by itself, with the numbers of their births, in no order: 0 for
    /// those that were there before tracing began.
    pub fn live_births(&self) -> impl Iterator<Item = (u64, LiveBlock)> {
        let mapped = self.mapped.ranges.mappings().into_iter().map(|m| {
            let block = Block { size: m.bytes, site: m.site, birth: m.birth };
            (m.birth, live_block(m.start, &block, self.figures.inherited_births))
        });
        self.block_births().chain(mapped)
    }

    /// The same without what the program has mapped by itself: no two of these have an address in common.
    pub fn block_births(&self) -> impl Iterator<Item = (u64, LiveBlock)> {
        let blocks = self.blocks.iter();
        blocks.map(|(addr, block)| (block.birth, live_block(addr, &block, self.figures.inherited_births)))
    }

    /// The figures of a site; None for an id of another model.
    pub fn site(&self, id: SiteId) -> Option<SiteStats> {
        self.sites.stats_of(id.0, self.figures.peak_epoch)
    }

    /// The marks so far, the oldest first.
    pub fn marks(&self) -> &[Mark] {
        self.marks.list()
    }

    /// All that the events have told, as text: equal streams give equal text.
    #[cfg(any(test, debug_assertions))]
    pub fn contents(&self) -> String {
        let mut blocks: Vec<LiveBlock> = self.live_blocks().collect();
        blocks.sort_unstable_by_key(|block| block.addr);
        let mut ignored = self.ignored_blocks();
        ignored.sort_unstable();
        let (snapshot, reallocs, marks, tests) = (self.snapshot(), &self.reallocs, self.marks(), self.tests());
        let mapped = self.mapped.ranges.mappings();
        format!(
            "{snapshot:?}\n{blocks:?}\n{mapped:?}\n{ignored:?}\n{reallocs:?}\n{:?}\n{marks:?}\n{tests:?}",
            self.preexisting
        )
    }

    /// Bytes of heap that blocks and sites take, at the worst moment of growth.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.blocks.memory() + self.sites.memory()
    }
}

#[cfg(test)]
mod tests;

fn live_block(addr: Addr, block: &Block, inherited_births: u64) -> LiveBlock {
    LiveBlock { addr, size: block.size, site: SiteId(block.site), inherited: block.birth <= inherited_births }
}
