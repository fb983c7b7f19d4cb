//! What threads that stand inside of the allocator hold in its own form.
//!
//! A block that is just being freed or handed out is named there by its chunk: the program's pointer is gone, or not
//! yet made. glibc's malloc
//! keeps the address of the chunk's header, 16 bytes before the block, in a register or in a frame (malloc/malloc.c,
//! `mem2chunk`). Elsewhere such
//! an address is an old word of no meaning, and holds nothing. Other allocators that are walked name a block by its own
//! address, or mark it
//! first.

use super::modules::{Object, Objects};
use crate::arch::Regs;
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use crate::heap::leaks::roots::ThreadState;
use crate::heap::leaks::{RootKind, RootWord};
use crate::heap::walk::{Allocator, State, Walk};
use crate::image::elf::{Binding, Elf, PlainSymbols};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The allocator's functions that other objects may call, by which its code is found.
const FUNCTIONS: [&str; 16] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "malloc_trim",
    "malloc_usable_size",
    "malloc_info",
    "malloc_stats",
    "mallinfo",
    "mallinfo2",
    "mallopt",
];

/// An allocator's inner functions lie no further from those than this, in bytes.
const NEAR: u64 = 32 << 10;

/// What an allocator calls in its library (locks, system calls, memcpy) has no larger frames, in bytes: so near its
/// return address lies.
const CALLEE_FRAMES: usize = 192;

/// The allocator's own frames are not larger than this, in bytes.
const FRAMES: usize = 1024;

/// Since glibc 2.32 a free chunk's link to the next one is not as it is, but with its own address, so far to the right,
/// upon it (`PROTECT_PTR`).
const LINK_SHIFT: u32 = 12;

/// What a function without calls may use below the stack pointer, in bytes.
const RED_ZONE: u64 = 128;

/// The blocks that threads inside of the allocator name by their chunks.
pub(super) fn words(
    walk: &Walk,
    objects: &Objects,
    threads: &[ThreadState],
    memory: &mut dyn ReadMemory,
) -> Vec<RootWord> {
    let (mut words, mut found) = (Vec::new(), BTreeSet::new());
    let object = allocator_object(walk, objects).filter(|_| walk.allocator == Allocator::Glibc);
    let Some(object) = object else { return words };
    let mut code: Option<Vec<Range<Addr>>> = None;
    for thread in threads {
        let Some(regs) = thread.regs.filter(|regs| object.range.contains(&Addr(regs.rip))) else { continue };
        let code = code.get_or_insert_with(|| allocator_code(object));
        let is_inside = |at: u64| code.iter().any(|range| range.contains(&Addr(at)));
        let mut frames = [0; FRAMES + RED_ZONE as usize];
        let read = memory.read(Addr(regs.sp().saturating_sub(RED_ZONE)), &mut frames);
        let frames = frames.get(..read).unwrap_or_default();
        let above = frames.get(RED_ZONE as usize..).unwrap_or_default();
        if !is_inside(regs.rip) && !words_of(above).take(CALLEE_FRAMES / 8).any(is_inside) {
            continue;
        }
        let mut held: Vec<u64> = regs.gpr.iter().copied().chain(words_of(frames)).collect();
        while let Some(value) = held.pop() {
            let Some(block) = live_block_of(walk, Addr(value)).filter(|block| found.insert(*block)) else { continue };
            words.push(RootWord { value: block.0, kind: RootKind::Stack { tid: thread.tid } });
            // the rest of a list that the thread has just taken, to merge its chunks (`malloc_consolidate`)
            held.extend(memory.read_u64(block).into_iter().flat_map(|link| [link, link ^ (block.0 >> LINK_SHIFT)]));
        }
    }
    words
}

/// A thread that stood inside of the allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inside {
    pub(super) tid: i32,
    /// Where; None in a system call, where it stays for as long as that takes.
    pub(super) running: Option<Regs>,
}

impl Inside {
    /// Whether it may not have moved since it stood as `before`: it is at the same instruction, with the same stack.
    /// What else is in its registers a system call or a handler of signals may have changed.
    pub(super) fn stands_where(&self, before: &Self) -> bool {
        let place = |thread: &Self| thread.running.map(|regs| (thread.tid, regs.rip, regs.sp()));
        place(self).is_some_and(|now| Some(now) == place(before))
    }
}

/// The threads that stand inside of the allocator: their instruction pointer lies in its code, or a return address does
/// that is near the top of their stack. Where its code is not known, all that run count.
pub(super) fn threads(
    walk: &Walk,
    objects: &Objects,
    threads: &[ThreadState],
    calls: &BTreeMap<i32, bool>,
    memory: &mut dyn ReadMemory,
) -> Vec<Inside> {
    let mut code: Option<Vec<Range<Addr>>> = None;
    let mut inside = Vec::new();
    for thread in threads {
        let Some(regs) = thread.regs else { continue };
        let call = calls.get(&thread.tid);
        if call == Some(&false) {
            continue;
        }
        let code = code.get_or_insert_with(|| {
            let Some(object) = allocator_object(walk, objects) else { return Vec::new() };
            // a C library and a program have much code besides
            let own = allocator_code(object);
            let has_more = matches!(walk.allocator, Allocator::Glibc | Allocator::Musl);
            if has_more && !own.is_empty() { own } else { vec![object.range.clone()] }
        });
        let is_inside = |at: u64| code.iter().any(|range| range.contains(&Addr(at)));
        let mut frames = [0; CALLEE_FRAMES];
        let read = memory.read(Addr(regs.sp()), &mut frames);
        let frames = frames.get(..read).unwrap_or_default();
        if (code.is_empty() && call.is_none()) || is_inside(regs.rip) || words_of(frames).any(is_inside) {
            inside.push(Inside { tid: thread.tid, running: call.is_none().then_some(regs) });
        }
    }
    inside
}

/// The live block whose chunk begins at `at`.
fn live_block_of(walk: &Walk, at: Addr) -> Option<Addr> {
    let chunk = walk.chunks.get(walk.starting_at(at)?)?;
    (chunk.state == State::Live).then(|| chunk.block())
}

/// The whole words of `bytes`.
fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).filter_map(|bytes| word(bytes, 0))
}

/// The object whose data hold the allocator's main structure.
fn allocator_object<'a>(walk: &Walk, objects: &'a Objects) -> Option<&'a Object> {
    let at = walk.arenas.first()?.at;
    let holder = objects.data.iter().find(|data| data.ranges.iter().any(|range| range.contains(&at)))?;
    objects.found.iter().find(|object| object.id == holder.id)
}

/// Where an object's allocator is: its functions, and the ones without names around them, up to those of other
/// purposes.
fn allocator_code(object: &Object) -> Vec<Range<Addr>> {
    let Ok(elf) = Elf::parse(&object.bytes) else { return Vec::new() };
    code_of(&elf.plain_symbols()).into_iter().map(|range| shifted(object, &range)).collect()
}

fn shifted(object: &Object, range: &Range<u64>) -> Range<Addr> {
    let at = |addr| object.bias.to_process(crate::base::addr::ObjAddr(addr));
    at(range.start)..at(range.end)
}

fn code_of(symbols: &PlainSymbols<'_>) -> Vec<Range<u64>> {
    let global = symbols.iter().filter(|symbol| symbol.is_function() && symbol.binding != Binding::Local);
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for symbol in global {
        let name = crate::image::elf::base_name(&symbol.name);
        let name = name.strip_prefix("__libc_").unwrap_or(name);
        let range = symbol.addr.0..symbol.addr.0.saturating_add(symbol.size.max(1));
        // musl's inner ones, which are hidden: a static program's table has them as global
        let is_inner = ["malloc_", "__malloc_"].iter().any(|prefix| name.starts_with(prefix));
        if FUNCTIONS.contains(&name) || is_inner { own.push(range) } else { others.push(range) }
    }
    // names of one function by which nobody knows it as the allocator's: cfree
    others.retain(|other| own.iter().all(|own| own.start != other.start));
    own.sort_by_key(|range| range.start);
    own.dedup();
    let around = |range: &Range<u64>| {
        let before = others.iter().map(|other| other.end).filter(|end| *end <= range.start).max();
        let behind = others.iter().map(|other| other.start).filter(|start| *start >= range.end).min();
        let first = before.unwrap_or(range.start).max(range.start.saturating_sub(NEAR));
        first..behind.unwrap_or(range.end).min(range.end.saturating_add(NEAR))
    };
    own.iter().map(around).collect()
}
