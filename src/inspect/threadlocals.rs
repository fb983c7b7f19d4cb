//! Where threads have the thread-local variables of modules.
//!
//! A program has its own right before the thread's control block. Those of libraries are where the slots say that the
//! dynamic linker has filled for their own code ([`TlsSlot`]): at an offset from the control block, or at what the
//! thread's vector has for the module's number.

use super::modules::{Object, Objects};
use crate::base::addr::{Addr, LoadBias};
use crate::base::memory::ReadMemory;
use crate::heap::graph::declared::ThreadBlock;
use crate::image::elf::{Elf, Tls, TlsSlot, TlsSlotKind};
use std::collections::BTreeSet;
use std::ops::Range;

/// Where the control block points to the thread's vector (`dtv` of glibc's tcbhead_t and of musl's struct pthread).
const VECTOR: u64 = 8;
/// An entry of a vector of glibc: the block, and what is to be freed (`dtv_t` in sysdeps/generic/dl-dtv.h).
const GLIBC_ENTRY: u64 = 16;
/// In front of glibc's entry 0 is the number of the last one.
const GLIBC_LENGTH: u64 = 16;
/// What an entry of glibc's has whose block was not used yet (`TLS_DTV_UNALLOCATED`).
const UNALLOCATED: u64 = u64::MAX;
/// An entry of a vector of musl: the block. Entry 0 is the number of the last one.
const MUSL_ENTRY: u64 = 8;
/// So far below a control block variables are at most that are at a fixed offset from it.
const FURTHEST: u64 = 1 << 30;

/// The thread-local variables of a module.
#[derive(Clone, Debug)]
pub(super) struct ThreadLocals {
    tls: Tls,
    bias: LoadBias,
    /// What says where those of a library are. None: it is the program.
    slots: Option<Vec<TlsSlot>>,
    module: u32,
}

/// Where a module's variables are in every thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Whereabouts {
    /// So far behind the control block; negative, as a whole number of 64 bits.
    Offset(u64),
    /// Under this number in the thread's vector.
    Numbered(u64),
}

impl ThreadLocals {
    /// Those of an object with the number `module`; None: it has none.
    pub(super) fn of(object: &Object, module: u32) -> Option<Self> {
        let elf = Elf::parse(&object.bytes).ok()?;
        let tls = elf.tls()?;
        let slots = (!elf.is_program()).then(|| elf.tls_slots());
        Some(Self { tls, bias: object.bias, slots, module })
    }

    fn size(&self) -> Option<u64> {
        self.tls.image.end.checked_sub(self.tls.image.start)
    }

    /// Where a slot says that they are.
    fn told_by(&self, slot: &TlsSlot, memory: &mut dyn ReadMemory) -> Option<Whereabouts> {
        let at = self.bias.to_process(slot.at);
        let near = |offset: u64| offset.wrapping_neg() <= FURTHEST;
        match slot.kind {
            TlsSlotKind::Offset => Some(Whereabouts::Offset(memory.read_u64(at)?.wrapping_sub(slot.variable))),
            TlsSlotKind::Module => Some(Whereabouts::Numbered(memory.read_u64(at)?)),
            TlsSlotKind::Descriptor => {
                let argument = memory.read_u64(Addr(at.0.checked_add(8)?))?;
                if near(argument) {
                    return Some(Whereabouts::Offset(argument.wrapping_sub(slot.variable)));
                }
                // glibc's struct tlsdesc_dynamic_arg and musl's: the number and the offset
                let number = memory.read_u64(Addr(argument))?;
                let offset = memory.read_u64(Addr(argument.checked_add(8)?))?;
                (offset == slot.variable).then_some(Whereabouts::Numbered(number))
            }
        }
    }

    /// Where its slots say that they are, with a symbol or without. None: they don't say the same. (A symbol may be
    /// another module's.)
    fn whereabouts(&self, by_symbol: bool, memory: &mut dyn ReadMemory) -> Option<Whereabouts> {
        let slots = self.slots.iter().flatten().filter(|slot| slot.by_symbol == by_symbol);
        let told: BTreeSet<Whereabouts> = slots.filter_map(|slot| self.told_by(slot, memory)).collect();
        let offsets = told.iter().filter(|at| matches!(at, Whereabouts::Offset(_))).count();
        let is_one = offsets <= 1 && told.len() - offsets <= 1;
        told.first().filter(|_| is_one).copied()
    }

    /// Where the thread with this control block has them.
    fn of_thread(&self, at: Whereabouts, thread: &Thread, memory: &mut dyn ReadMemory) -> Option<Range<Addr>> {
        let size = self.size()?;
        let start = match at {
            Whereabouts::Offset(offset) => {
                let start = thread.block.0.wrapping_add(offset);
                // all of it is below the control block
                let below = thread.block.0.checked_sub(start)?;
                (size <= below && below <= FURTHEST).then_some(start)?
            }
            Whereabouts::Numbered(number) => thread.numbered(number, memory)?,
        };
        let phase = self.tls.image.start.checked_rem(self.tls.align)?;
        (start.checked_rem(self.tls.align)? == phase).then_some(())?;
        Some(Addr(start)..Addr(start.checked_add(size)?))
    }

    /// Where the thread with this control block has those of the program: right before it (x86-64 psABI, TLS variant
    /// II), as it is linked.
    fn of_program(&self, block: Addr) -> Option<Range<Addr>> {
        let size = self.size()?;
        // as linkers make it; else the block begins elsewhere
        let is_aligned = self.tls.image.start.checked_rem(self.tls.align)? == 0;
        let start = block.0.checked_sub(size.checked_next_multiple_of(self.tls.align)?).filter(|_| is_aligned)?;
        Some(Addr(start)..Addr(start + size))
    }
}

impl ThreadLocals {
    /// Those of a thread. glibc makes a block for them, at the first use by each thread (`allocate_dtv_entry` in
    /// elf/dl-tls.c), and makes others when libraries have gone: of a thread that has not used them since it still has
    /// those. musl makes a library's with the library, and no library ever goes.
    fn block(&self, range: Range<Addr>, is_glibc: bool) -> ThreadBlock {
        let size = range.end.0 - range.start.0;
        // allocators round up by a quarter at most
        let room = is_glibc.then_some(self.tls.align.saturating_add(32 + size / 4));
        ThreadBlock { range, module: self.module, room }
    }
}

/// A thread, by its control block.
#[derive(Clone, Copy, Debug)]
struct Thread {
    block: Addr,
    /// Its vector of blocks by the numbers of modules.
    vector: u64,
    /// The number of the last entry.
    last: u64,
    /// The size of an entry in bytes.
    entry: u64,
}

impl Thread {
    fn of(block: Addr, is_glibc: bool, memory: &mut dyn ReadMemory) -> Self {
        let vector = memory.read_u64(Addr(block.0.wrapping_add(VECTOR))).unwrap_or(0);
        let length = if is_glibc { vector.wrapping_sub(GLIBC_LENGTH) } else { vector };
        let last = memory.read_u64(Addr(length)).unwrap_or(0);
        Self { block, vector, last, entry: if is_glibc { GLIBC_ENTRY } else { MUSL_ENTRY } }
    }

    /// The start of the block with this number.
    fn numbered(&self, number: u64, memory: &mut dyn ReadMemory) -> Option<u64> {
        if number == 0 || number > self.last {
            return None;
        }
        let at = self.vector.checked_add(number.checked_mul(self.entry)?)?;
        memory.read_u64(Addr(at)).filter(|start| *start != 0 && *start != UNALLOCATED)
    }
}

/// Where the threads with these control blocks have the variables of all modules.
pub(super) fn blocks(
    modules: &[ThreadLocals],
    objects: &Objects,
    threads: &[Addr],
    memory: &mut dyn ReadMemory,
) -> Vec<ThreadBlock> {
    // musl has no such function
    let is_glibc = objects.found.iter().any(|object| object.function("gnu_get_libc_version").is_some());
    found(modules, is_glibc, threads, memory)
}

fn found(modules: &[ThreadLocals], is_glibc: bool, threads: &[Addr], memory: &mut dyn ReadMemory) -> Vec<ThreadBlock> {
    let threads: Vec<Thread> = threads.iter().map(|block| Thread::of(*block, is_glibc, memory)).collect();
    let mut found = Vec::new();
    let mut programs = modules.iter().filter(|module| module.slots.is_none());
    if let (Some(program), None) = (programs.next(), programs.next()) {
        let ranges = threads.iter().filter_map(|thread| program.of_program(thread.block));
        found.extend(ranges.map(|range| program.block(range, is_glibc)));
    }
    for by_symbol in [false, true] {
        let mut before = found.clone();
        before.sort_unstable_by_key(|block| block.range.start);
        let known: BTreeSet<u32> = before.iter().map(|block| block.module).collect();
        for module in modules.iter().filter(|module| !known.contains(&module.module)) {
            let Some(at) = module.whereabouts(by_symbol, memory) else { continue };
            for thread in &threads {
                let Some(range) = module.of_thread(at, thread, memory) else { continue };
                // what is sure does not overlap: the last one that begins before its end
                let behind = before.partition_point(|block| block.range.start < range.end);
                let other = behind.checked_sub(1).and_then(|last| before.get(last));
                if !by_symbol || other.is_none_or(|other| other.range.end <= range.start) {
                    found.push(module.block(range, is_glibc));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
