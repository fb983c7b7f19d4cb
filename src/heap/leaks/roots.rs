//! Where a program can hold pointers outside of its heap: module data, stacks, thread-local data, registers, and all
//! other writable memory that is not the allocator's. Pure.
//!
//! What belongs to the allocator is subtracted exactly, as the kernel merges neighbouring mappings: a large malloc and
//! the program's own mmap may be one line of the maps. In glibc that is the brk heap, the arenas of threads by their
//! `heap_info`, and single mmapped chunks by their headers (malloc/malloc.c, malloc/arena.c); of other allocators, what
//! a walk has found, or the mappings that hold blocks.

mod glibc;
mod merged;
mod pieces;
mod signalframes;
mod signalstacks;

use super::{KernelHeld, KernelHolder, RootKind, RootWord, Roots, Unavailable};
use crate::arch::xsave::VectorWord;
use crate::arch::{PAGE_SIZE, Regs, reg};
use crate::base::addr::{Addr, ModuleId};
use crate::base::memory::ReadMemory;
use crate::heapmodel::LiveBlock;
use crate::image::maps::{Kind, Mapping};
use pieces::Pieces;
use std::ops::Range;

/// Bytes below the stack pointer that a leaf function may use (System V x86-64 ABI, "red zone").
const RED_ZONE: u64 = 128;

/// Size of glibc's `struct pthread` and musl's, rounded up: 2304 bytes in glibc 2.36, 200 in musl.
const THREAD_STRUCT: u64 = 0x900;

/// Where the thread control block holds a pointer to itself (x86-64 TLS ABI, variant II), and a second time (glibc and
/// musl: `self`); and where its pointer to the dynamic thread vector is.
const TCB_SELF: u64 = 16;
const TCB_DTV: u64 = 8;

/// glibc's thread descriptor points behind the header of the dynamic thread vector (elf/dl-tls.c, `_dl_allocate_tls`).
const DTV_HEADER: u64 = 16;

/// Which allocator manages the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeapLayout {
    /// glibc's malloc, whose structures can be followed.
    Glibc,
    /// Any other: the mappings that hold its blocks are taken for its own.
    Other,
    /// One of which is known what is its own ([`RootSources::owned`]).
    Walked,
}

/// A module's writable data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleData {
    /// The module.
    pub id: ModuleId,
    /// Its writable segments as the file states them, read-only after relocation (relro) or not; ascending.
    pub ranges: Vec<Range<Addr>>,
    /// The size of its thread-local variables in bytes.
    pub tls_size: u64,
    /// Whether glibc's allocator is in it, and where its main arena is, if a symbol tells.
    pub glibc: Option<Option<Range<Addr>>>,
}

/// What is known of a thread that stands still.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadState {
    /// Its id.
    pub tid: i32,
    /// Its stack pointer; None if it could not be made to stop.
    pub sp: Option<u64>,
    /// Its registers; None if it could not be made to stop. Those that hold nothing of use are zero.
    pub regs: Option<Regs>,
    /// What its vector registers hold, word by word.
    pub vectors: Vec<VectorWord>,
    /// Whether a function may have something in the red zone below the stack pointer: not one that has just called
    /// another.
    pub has_red_zone: bool,
    /// Where the frames of the C library lie that have called main: they hold nothing of the program's, but for old
    /// words.
    pub start_frames: Option<Range<Addr>>,
}

impl ThreadState {
    /// A thread that stands still with these registers, anywhere.
    pub fn stopped(tid: i32, regs: Regs, vectors: Vec<VectorWord>) -> Self {
        Self { tid, sp: Some(regs.sp()), regs: Some(regs), vectors, has_red_zone: true, start_frames: None }
    }

    /// A thread that has just called a function, without arguments that matter: it has no use for what a function need
    /// not keep, vector registers included.
    pub fn in_call(tid: i32, regs: &Regs) -> Self {
        let regs = regs.kept_by_callees();
        Self {
            tid,
            sp: Some(regs.sp()),
            regs: Some(regs),
            vectors: Vec::new(),
            has_red_zone: false,
            start_frames: None,
        }
    }

    /// A thread that could not be made to stop, and of which at most the stack pointer is known.
    pub const fn elsewhere(tid: i32, sp: Option<u64>) -> Self {
        Self { tid, sp, regs: None, vectors: Vec::new(), has_red_zone: true, start_frames: None }
    }

    /// The lowest address of its stack that may be in use.
    fn stack_top(&self) -> Option<Addr> {
        let red_zone = if self.has_red_zone { RED_ZONE } else { 0 };
        self.sp.map(|sp| Addr(sp.saturating_sub(red_zone)))
    }
}

/// What the roots are found from.
#[derive(Clone, Copy, Debug)]
pub struct RootSources<'a> {
    /// All mappings in the order of addresses.
    pub mappings: &'a [Mapping],
    /// The modules' data.
    pub modules: &'a [ModuleData],
    /// All threads that are alive.
    pub threads: &'a [ThreadState],
    /// The id of the process, which is that of its first thread, alive or not.
    pub pid: i32,
    /// Memory whose pointers count, as the program has said; not all of it need be there.
    pub registered: &'a [Range<Addr>],
    /// What the kernel holds.
    pub kernel: &'a KernelHeld,
    /// The allocator's live blocks, sorted by address; without those of functions that the user declared, which may lie
    /// in any memory.
    pub blocks: &'a [LiveBlock],
    /// How the heap is laid out.
    pub layout: HeapLayout,
    /// What is the allocator's own, if its heap was walked.
    pub owned: &'a [Range<Addr>],
    /// Whether all blocks are known. In a process that was attached to, blocks from before are not: the allocator's
    /// memory then is a root, but for the blocks that are known.
    pub heap_is_known: bool,
}

/// Finds the roots. `memory` is read for the allocator's and the threads' own structures only.
pub fn find(sources: &RootSources<'_>, memory: &mut dyn ReadMemory) -> Roots {
    let mut pieces = Pieces::default();
    for module in sources.modules {
        for range in &module.ranges {
            pieces.add(range, RootKind::Data { module: module.id });
        }
    }
    for mapping in sources.mappings.iter().filter(|mapping| may_hold_roots(mapping)) {
        pieces.add(&mapping.range(), RootKind::Anonymous);
    }
    for mapping in sources.mappings.iter().filter(|mapping| is_protected(mapping)) {
        for part in memory.touched(mapping.range()) {
            // The kernel may refuse it, and a core need not have it.
            if memory.read(part.start, &mut [0; 8]) == 8 {
                pieces.add(&part, RootKind::Anonymous);
            }
        }
    }
    let has_glibc = sources.modules.iter().any(|module| module.glibc.is_some());
    for (module, rest) in page_rests(sources.modules) {
        pieces.subtract(&rest);
        if has_glibc {
            for part in readable_parts(&rest, sources.mappings) {
                pieces.add(&part, RootKind::Data { module });
            }
        }
    }
    let owned = match sources.layout {
        _ if !sources.heap_is_known => Vec::new(),
        HeapLayout::Glibc => glibc::owned(sources, memory),
        HeapLayout::Other => blocks_mappings(sources.blocks, sources.mappings),
        HeapLayout::Walked => sources.owned.to_vec(),
    };
    for range in &owned {
        pieces.subtract_unless_data(range);
    }
    for arena in glibc::main_arenas(sources.modules, memory) {
        pieces.subtract(&arena);
    }
    let (unused, descriptors) = unused_stacks(sources, memory);
    for stack in unused {
        pieces.subtract_unless_data(&stack);
    }
    if sources.layout == HeapLayout::Other {
        for (tid, stack) in merged::stacks(sources, &owned) {
            pieces.add(&stack, RootKind::Stack { tid });
        }
    }
    for (tid, stack) in stacks_in_blocks(sources) {
        pieces.add(&stack, RootKind::Stack { tid });
    }
    label_threads(&mut pieces, sources);
    let signal_stacks = signalstacks::known(sources, memory);
    let stale = signalstacks::unused(sources, &signal_stacks);
    for stack in &stale {
        pieces.subtract(stack);
    }
    for part in sources.registered.iter().flat_map(|region| readable_parts(region, sources.mappings)) {
        pieces.add(&part, RootKind::Registered);
    }
    let mut words = words(sources.threads, memory);
    // The C library keeps an ended thread's table for the next one on that stack.
    let kept = descriptors.into_iter().filter_map(|tcb| thread_vector(tcb, memory));
    words.extend(kept.map(|value| RootWord { value, kind: RootKind::Anonymous }));
    words.extend(sources.kernel.words());
    words.extend(signal_stacks.words());
    let unasked = (signal_stacks.unknown > 0).then_some(Unavailable::SignalStacks);
    let untold = sources.kernel.untold.iter().copied().chain(unasked).collect();
    Roots { ranges: pieces.into_ranges(), words, stale, untold, unasked_threads: signal_stacks.unknown }
}

/// Memory of the program that it can write to, or could: pages without a file are made read-only when what they hold is
/// complete.
fn may_hold_roots(mapping: &Mapping) -> bool {
    let is_of_program = is_readable(mapping) && !mapping.is_heaptrace_s();
    is_of_program && (mapping.perms.write || mapping.kind == Kind::Anonymous)
}

/// More than this is reserved rather than protected. To look for what was written in it takes long on kernels before
/// 6.7.
const LARGEST_PROTECTED: u64 = 1 << 30;

/// Memory without a file that nobody may read, the program neither. It has protected what it has written there (garbage
/// collectors and guard schemes do so for a while), or only reserved it.
fn is_protected(mapping: &Mapping) -> bool {
    let is_private = mapping.kind == Kind::Anonymous && !mapping.perms.shared;
    is_private && !mapping.perms.read && mapping.size() <= LARGEST_PROTECTED && !mapping.is_heaptrace_s()
}

/// What of `region` can be read.
fn readable_parts(region: &Range<Addr>, mappings: &[Mapping]) -> impl Iterator<Item = Range<Addr>> {
    let readable = mappings.iter().filter(|mapping| is_readable(mapping));
    readable
        .map(|mapping| region.start.max(mapping.start)..region.end.min(mapping.end))
        .filter(|part| part.start < part.end)
}

/// Readable memory of the program; not devices, whose memory may do things when it is read.
fn is_readable(mapping: &Mapping) -> bool {
    let is_device = |path: &std::path::Path| {
        let special = path.starts_with("/dev") && !path.starts_with("/dev/shm") && path != "/dev/zero";
        special || path.to_string_lossy().starts_with("anon_inode:")
    };
    match mapping.kind {
        Kind::Anonymous | Kind::Heap | Kind::Stack => mapping.perms.read,
        Kind::File => mapping.perms.read && !mapping.path.as_deref().is_some_and(is_device),
        Kind::Vdso | Kind::Vvar | Kind::Vsyscall | Kind::Other => false,
    }
}

/// What lies in the pages of modules' data, but before, between or behind the data. musl gives it to its allocator;
/// glibc's dynamic linker keeps there what it allocates before there is an allocator, the program's own `link_map`
/// among it (elf/dl-minimal-malloc.c).
fn page_rests(modules: &[ModuleData]) -> Vec<(ModuleId, Range<Addr>)> {
    let mut rests = Vec::new();
    for module in modules {
        for range in &module.ranges {
            let first = Addr(range.start.0 / PAGE_SIZE * PAGE_SIZE);
            let last = Addr(range.end.0.div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE));
            let is_data = |at: Addr| module.ranges.iter().any(|other| other.contains(&at));
            // Two segments may share a page.
            if first < range.start && !is_data(range.start.sub(1)) {
                rests.push((module.id, first..range.start));
            }
            if range.end < last && !is_data(range.end) {
                let next = module.ranges.iter().map(|other| other.start).filter(|&start| start >= range.end).min();
                rests.push((module.id, range.end..next.map_or(last, |next| next.min(last))));
            }
        }
    }
    rests
}

/// The mappings that hold blocks.
fn blocks_mappings(blocks: &[LiveBlock], mappings: &[Mapping]) -> Vec<Range<Addr>> {
    let holds_block = |mapping: &&Mapping| {
        let first = blocks.partition_point(|block| block.addr < mapping.start);
        blocks.get(first).is_some_and(|block| block.addr < mapping.end)
    };
    mappings.iter().filter(holds_block).map(Mapping::range).collect()
}

/// The mapping that holds `addr`.
fn mapping_at(mappings: &[Mapping], addr: u64) -> Option<(usize, &Mapping)> {
    let after = mappings.partition_point(|mapping| mapping.start.0 <= addr).checked_sub(1)?;
    mappings.get(after).filter(|mapping| mapping.contains(Addr(addr))).map(|mapping| (after, mapping))
}

/// Whether memory that can't be touched lies below this one of the mappings, as below stacks.
fn has_guard(mappings: &[Mapping], index: usize) -> bool {
    let below = index.checked_sub(1).and_then(|below| mappings.get(below));
    let start = mappings.get(index).map(|mapping| mapping.start);
    below.is_some_and(|below| Some(below.end) == start && !below.perms.write && !below.perms.read)
}

/// The parts of stacks that hold nothing but old words: what lies below the stack pointers of live threads, the C
/// library's frames below main, and the stacks of ended threads, which glibc keeps for new ones; and where the
/// descriptors of those lie.
fn unused_stacks(sources: &RootSources<'_>, memory: &mut dyn ReadMemory) -> (Vec<Range<Addr>>, Vec<Addr>) {
    let mappings = sources.mappings;
    let mut unused = Vec::new();
    let mut in_use = Vec::new();
    for thread in sources.threads {
        if let Some((index, mapping)) = thread.regs.and_then(|regs| mapping_at(mappings, regs.fs_base)) {
            in_use.push(index);
            // On an alternate stack, or on a fiber's: how much of its own is in use can't be told.
            if thread.sp.is_some_and(|sp| !mapping.contains(Addr(sp))) {
                continue;
            }
        }
    }
    for thread in sources.threads {
        unused.extend(thread.start_frames.clone());
        let (Some(sp), Some(top)) = (thread.sp, thread.stack_top()) else { continue };
        let Some((index, mapping)) = mapping_at(mappings, sp) else { continue };
        in_use.push(index);
        if mapping.kind == Kind::Stack || (mapping.kind == Kind::Anonymous && has_guard(mappings, index)) {
            unused.push(mapping.start..top.max(mapping.start));
        }
    }
    if sources.threads.iter().any(|thread| thread.regs.is_none()) {
        // Some stack is in use by a thread of which nothing is known.
        return (unused, Vec::new());
    }
    if sources.threads.iter().all(|thread| thread.tid != sources.pid) {
        // The first thread has ended before the others (pthread_exit); there is no descriptor on its stack.
        let first = mappings
            .iter()
            .enumerate()
            .filter(|(index, mapping)| mapping.kind == Kind::Stack && !in_use.contains(index));
        unused.extend(first.map(|(_, mapping)| mapping.range()));
    }
    let tls_size = static_tls_size(sources.modules);
    let mut descriptors = Vec::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let candidate = mapping.kind == Kind::Anonymous && mapping.perms.write && has_guard(mappings, index);
        if candidate
            && !in_use.contains(&index)
            && let Some(tcb) = find_control_block(mapping, memory)
        {
            // The descriptor itself stays: the result of a thread that was not joined yet lies in it.
            unused.push(mapping.start..Addr(tcb.0.saturating_sub(tls_size)).max(mapping.start));
            descriptors.push(tcb);
        }
    }
    (unused, descriptors)
}

/// The stacks of threads that run on a block of the heap: fibers.
fn stacks_in_blocks(sources: &RootSources<'_>) -> Vec<(i32, Range<Addr>)> {
    let stack = |thread: &ThreadState| {
        let sp = Addr(thread.sp?);
        let last = sources.blocks.partition_point(|block| block.addr <= sp).checked_sub(1)?;
        let block = sources.blocks.get(last)?;
        let end = block.addr.add(block.size);
        (sp < end).then(|| (thread.tid, thread.stack_top().unwrap_or(sp).max(block.addr)..end))
    };
    sources.threads.iter().filter_map(stack).collect()
}

/// Stacks larger than this are not looked through for the descriptor of an ended thread.
const LARGEST_STACK: u64 = 256 << 20;

/// The last address in the mapping that has the form of a thread control block.
fn find_control_block(mapping: &Mapping, memory: &mut dyn ReadMemory) -> Option<Addr> {
    const CHUNK: u64 = 64 * 1024;
    /// glibc and musl align thread descriptors to this.
    const ALIGNMENT: u64 = 64;
    if mapping.size() > LARGEST_STACK {
        return None;
    }
    let mut end = mapping.end.0;
    while end > mapping.start.0 {
        let start = end.saturating_sub(CHUNK).max(mapping.start.0);
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        let read = memory.read(Addr(start), &mut bytes);
        let mut at = end - ALIGNMENT;
        while at >= start {
            let word = |offset: u64| {
                let offset = usize::try_from(at - start + offset).ok()?;
                let bytes = bytes.get(..read)?.get(offset..offset + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            if word(0) == Some(at) && word(TCB_SELF) == Some(at) {
                return Some(Addr(at));
            }
            let Some(next) = at.checked_sub(ALIGNMENT) else { break };
            at = next;
        }
        end = start;
    }
    None
}

/// An upper bound of the static thread-local storage: the variables of all modules, each aligned to a cache line.
fn static_tls_size(modules: &[ModuleData]) -> u64 {
    modules.iter().map(|module| module.tls_size.next_multiple_of(64)).fold(0, u64::saturating_add)
}

/// Names the pieces that belong to threads.
fn label_threads(pieces: &mut Pieces, sources: &RootSources<'_>) {
    let tls_size = static_tls_size(sources.modules);
    for thread in sources.threads {
        let tid = thread.tid;
        if let (Some(sp), Some(top)) = (thread.sp, thread.stack_top())
            && let Some((_, mapping)) = mapping_at(sources.mappings, sp)
        {
            pieces.label(&(top.max(mapping.start)..mapping.end), RootKind::Stack { tid });
        }
        if let Some(regs) = thread.regs.filter(|regs| regs.fs_base != 0) {
            let tcb = Addr(regs.fs_base);
            pieces.label(&(Addr(tcb.0.saturating_sub(tls_size))..tcb), RootKind::Tls { tid });
            pieces.label(&(tcb..tcb.add(THREAD_STRUCT)), RootKind::ThreadData { tid });
        }
    }
}

/// The general-purpose registers but the stack pointer, by DWARF number.
const REGISTERS: [(usize, &str); 15] = [
    (reg::RAX, "rax"),
    (reg::RDX, "rdx"),
    (reg::RCX, "rcx"),
    (reg::RBX, "rbx"),
    (reg::RSI, "rsi"),
    (reg::RDI, "rdi"),
    (reg::RBP, "rbp"),
    (reg::R8, "r8"),
    (reg::R9, "r9"),
    (reg::R10, "r10"),
    (reg::R11, "r11"),
    (reg::R12, "r12"),
    (reg::R13, "r13"),
    (reg::R14, "r14"),
    (reg::R15, "r15"),
];

/// Registers, and the start of each thread's dynamic thread vector.
fn words(threads: &[ThreadState], memory: &mut dyn ReadMemory) -> Vec<RootWord> {
    let mut words = Vec::new();
    for thread in threads {
        let tid = thread.tid;
        let Some(regs) = &thread.regs else { continue };
        for (number, name) in REGISTERS {
            if let Some(&value) = regs.gpr.get(number).filter(|value| **value != 0) {
                words.push(RootWord { value, kind: RootKind::Register { tid, name } });
            }
        }
        if regs.gs_base != 0 {
            words.push(RootWord { value: regs.gs_base, kind: RootKind::Register { tid, name: "gs_base" } });
        }
        let vectors = thread.vectors.iter().filter(|word| word.value != 0);
        words.extend(
            vectors.map(|word| RootWord { value: word.value, kind: RootKind::Register { tid, name: word.name } }),
        );
        let vector = (regs.fs_base != 0).then(|| thread_vector(Addr(regs.fs_base), memory)).flatten();
        words.extend(vector.map(|value| RootWord { value, kind: RootKind::ThreadData { tid } }));
    }
    words
}

/// The start of the dynamic thread vector of the thread with this control block.
fn thread_vector(tcb: Addr, memory: &mut dyn ReadMemory) -> Option<u64> {
    memory.read_u64(Addr(tcb.0.wrapping_add(TCB_DTV)))?.checked_sub(DTV_HEADER)
}

#[cfg(test)]
mod tests;
