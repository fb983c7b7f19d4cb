//! What is seen of a process besides its heap: mappings, threads, pages.

use super::ahead::Prefetch;
use super::core::Core;
use super::inside;
use super::modules::{self, Objects};
use crate::base::addr::Addr;
use crate::base::memory::{ReadAgain, ReadMemory};
use crate::heap::leaks::roots::{self, HeapLayout, RootSources, ThreadState};
use crate::heap::leaks::{KernelHeld, Roots};
use crate::heap::walk::census::Pages;
use crate::heap::walk::{self, Allocator, Sources, Walk};
use crate::heapmodel::LiveBlock;
use crate::image::maps::{Kind, Mapping};
use crate::tracer::kernelheld::{self, Held, SignalStacks};
use crate::tracer::memory::TargetMemory;
use crate::tracer::pagemap::PageMap;
use crate::tracer::root::TargetRoot;
use crate::tracer::standstill::StandingThread;
use crate::tracer::{Result, TracerError, procfs};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What was seen.
pub(super) struct ProcessView {
    pub(super) pid: i32,
    /// A live thread.
    pub(super) tid: i32,
    pub(super) mappings: Vec<Mapping>,
    pub(super) states: Vec<ThreadState>,
    /// The threads that are in a system call, and whether it is one that allocators make.
    pub(super) calls: BTreeMap<i32, bool>,
    /// The names of its threads, by id.
    pub(super) names: BTreeMap<i32, String>,
    /// Which pages are in memory; none if that was not asked for.
    pub(super) pages: Pages,
    /// The resident memory as the kernel tells it, in bytes.
    pub(super) resident: Option<u64>,
    /// What the kernel holds for it.
    kernel: KernelHeld,
    /// What it was seen in, if it is no live process.
    core: Option<Arc<Core>>,
}

impl ProcessView {
    /// Looks at process `pid`, which has these threads.
    pub(super) fn of(pid: i32, threads: &[StandingThread]) -> Result<Self> {
        let tid = live(pid, threads)?;
        let mappings = procfs::mappings(tid)?;
        let states = threads.iter().map(|thread| state(pid, thread)).collect();
        let names = threads.iter().map(|thread| (thread.tid, procfs::thread_name(thread.tid))).collect();
        let calls = threads.iter().filter_map(|thread| Some((thread.tid, thread.is_in_allocators_call()?))).collect();
        let kernel = held_by_kernel(tid, &mappings);
        Ok(Self {
            pid,
            tid,
            mappings,
            states,
            calls,
            names,
            pages: Pages::default(),
            resident: None,
            kernel,
            core: None,
        })
    }

    /// What a core shows.
    pub(super) fn in_core(core: &Arc<Core>) -> Self {
        let states = core.file.threads.iter();
        let states =
            states.map(|thread| ThreadState::stopped(thread.tid, thread.regs, thread.vectors.clone())).collect();
        Self {
            pid: core.file.pid,
            tid: core.file.pid,
            mappings: core.mappings().to_vec(),
            states,
            calls: BTreeMap::new(),
            names: BTreeMap::new(),
            pages: Pages { resident: core.pages(), swapped: Vec::new() },
            resident: None,
            // a core tells nothing of it
            kernel: KernelHeld::new(None, None, false, false),
            core: Some(Arc::clone(core)),
        }
    }

    /// The root folder of the process, if it is another one than ours.
    pub(super) fn root(&self) -> Option<TargetRoot> {
        if self.core.is_some() { None } else { TargetRoot::of(self.tid) }
    }

    /// With the signal stacks of the threads that could be asked.
    pub(super) fn with_signal_stacks(mut self, stacks: SignalStacks) -> Self {
        self.kernel.signal_stacks = stacks;
        self
    }

    /// Looks at the pages, too.
    pub(super) fn with_pages(mut self) -> Result<Self> {
        let (tid, mut pagemap) = (self.tid, PageMap::open(self.tid)?);
        // what the kernel maps of its own counts for no process
        let of_process = |mapping: &&Mapping| mapping.kind != Kind::Vvar && mapping.kind != Kind::Vsyscall;
        for mapping in self.mappings.iter().filter(of_process) {
            if let Some(placed) = pagemap.placed(&mapping.range()) {
                self.pages.resident.extend(placed.in_memory);
                self.pages.swapped.extend(placed.in_swap);
            }
        }
        self.resident = procfs::resident(tid);
        Ok(self)
    }

    /// The memory of the process itself.
    pub(super) fn memory(&self) -> Result<TargetMemory> {
        let mut memory = TargetMemory::open(self.pid, self.tid)?.keeping_shared();
        memory.new_stop(self.tid);
        memory.wait_for_no_servers(self.tid, &self.mappings);
        Ok(memory)
    }

    /// Walks the heap in `memory`: the process's, or a copy's.
    pub(super) fn walk(&self, memory: &mut impl ReadAgain) -> Option<Walk> {
        let sources = Sources { mappings: &self.mappings, data: &walk::data_of(&self.mappings) };
        std::thread::scope(|scope| walk::walk(&sources, &mut Prefetch::new(memory, &self.mappings, scope)))
    }

    /// The object files.
    pub(super) fn objects(&self, walk: &Walk) -> Objects {
        let mut objects = match &self.core {
            Some(core) => core.objects().clone(),
            None => modules::open(self.pid, self.tid, &self.mappings),
        };
        objects.mark_arena(walk.arenas.first().map(|arena| arena.at));
        objects
    }

    /// Where pointers to its live `blocks` may be.
    pub(super) fn roots(
        &self,
        walk: &Walk,
        objects: &Objects,
        blocks: &[LiveBlock],
        memory: &mut dyn ReadMemory,
    ) -> Roots {
        let layout = match walk.allocator {
            Allocator::Glibc => HeapLayout::Glibc,
            Allocator::Musl | Allocator::Mimalloc => HeapLayout::Other,
            Allocator::Mimalloc3 | Allocator::Jemalloc => HeapLayout::Walked,
        };
        let owned: Vec<Range<Addr>> = walk.regions.iter().map(|region| region.books.start..region.range.end).collect();
        let sources = RootSources {
            mappings: &self.mappings,
            modules: &objects.data,
            threads: &self.states,
            pid: self.pid,
            registered: &[],
            kernel: &self.kernel,
            blocks,
            layout,
            owned: &owned,
            heap_is_known: true,
        };
        let mut roots = roots::find(&sources, memory);
        roots.words.extend(inside::words(walk, objects, &self.states, memory));
        roots
    }

    /// Where the control blocks of threads are, as far as that is known. Each begins with its own address (x86-64
    /// psABI); where one does not, the thread has made its own.
    pub(super) fn control_blocks(&self, memory: &mut dyn ReadMemory) -> Vec<Addr> {
        let threads = self.states.iter().filter_map(|state| Some(Addr(state.regs?.fs_base)));
        threads.filter(|tcb| *tcb != Addr::NULL && memory.read_u64(*tcb) == Some(tcb.0)).collect()
    }

    /// Where threads have their stacks, as far as that is known.
    pub(super) fn stack_pointers(&self) -> Vec<Addr> {
        self.states.iter().filter_map(|state| state.sp.map(Addr)).collect()
    }
}

/// What the kernel holds for the process of thread `live`.
fn held_by_kernel(live: i32, mappings: &[Mapping]) -> KernelHeld {
    let Held { timers, epoll, has_aio, has_io_uring } = kernelheld::of(live, mappings);
    KernelHeld::new(timers, epoll, has_aio, has_io_uring)
}

/// Where a thread stands, as far as that is known.
fn state(pid: i32, thread: &StandingThread) -> ThreadState {
    match &thread.regs {
        Some(regs) => ThreadState::stopped(thread.tid, regs.regs(), thread.vectors.clone()),
        None => ThreadState::elsewhere(
            thread.tid,
            match procfs::position(pid, thread.tid) {
                procfs::Position::Blocked { sp: Addr(sp), .. } => Some(sp),
                _ => None,
            },
        ),
    }
}

/// A thread that lives: one that stands still if any does.
fn live(pid: i32, threads: &[StandingThread]) -> Result<i32> {
    let live = threads.iter().find(|thread| thread.regs.is_some()).or(threads.first());
    Ok(live.ok_or(TracerError::Died { tid: pid })?.tid)
}
