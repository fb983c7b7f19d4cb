//! Which family of functions the *program* called: operator new and delete of libstdc++ are thin wrappers of malloc and
//! free, and have no probes of their own.
//!
//! operator new calls malloc: its return address lies inside operator new. operator delete jumps to free, as operator
//! new[] does to operator new: on the stack nothing is left of them, but the call instruction in front of the program's
//! return address still names them.

use crate::allocators::{AllocatorTable, Family};
use crate::base::addr::{Addr, StackId};
use crate::session::space::image::Image;
use crate::session::space::image::calls::Callee;
use crate::session::space::modules::{Module, Modules};
use std::ops::Range;

/// So many bytes of a stack are looked at for frames of an allocator's inner functions.
const FRAMES_OF_ALLOCATOR: usize = 2048;

/// So many frames between mmap and an allocator's function are looked at.
const FRAMES_OF_MAPPING: usize = 32;

impl Modules {
    /// Whether a call that will return to `return_addr` was made by the allocator's own code. Where the function that
    /// it calls there belongs to another, it was that one that has come here by jumps: the frames of __cxa_end_catch,
    /// which frees an exception, are all replaced.
    pub fn is_called_by_allocator(&mut self, image: &Image, return_addr: Addr) -> bool {
        if !self.is_allocator_code(return_addr) {
            return false;
        }
        let caller = self.module_at(return_addr);
        if let Some(&is_outward) = self.loaded.calls(caller).outward.get(&return_addr) {
            return !is_outward;
        }
        let callee = image.callee(return_addr);
        let is_outward = callee
            .is_some_and(|callee| !self.is_allocator_code(callee.addr) && self.is_foreign(callee.addr, return_addr));
        self.loaded.calls_mut(caller).outward.insert(return_addr, is_outward);
        !is_outward
    }

    /// Whether a function called from the allocator's code is of another module, or of the machinery of exceptions in
    /// its own.
    pub(in crate::session::space) fn is_foreign(&self, callee: Addr, return_addr: Addr) -> bool {
        let runtime = || self.loaded.iter().flat_map(|module| &module.exception_runtime);
        self.module_at(callee) != self.module_at(return_addr) || runtime().any(|code| code.contains(&callee))
    }

    /// Whether a thread with this instruction and stack pointer may be inside of the allocator. A library's allocator
    /// calls nothing outside of it; of one in the program, which code is its own is known in part: then an address in
    /// that on the stack tells it.
    pub fn may_be_in_allocator(&self, image: &Image, pc: Addr, sp: Addr) -> bool {
        if self.is_allocator_code(pc) {
            return true;
        }
        if !self.module(pc).is_some_and(|module| module.is_program && !module.allocator_code.is_empty()) {
            return false;
        }
        let mut frames = [0; FRAMES_OF_ALLOCATOR];
        let read = image.memory.read_uncached(sp, &mut frames);
        let words = frames.get(..read).unwrap_or_default().chunks_exact(8);
        words.filter_map(|word| crate::base::memory::word(word, 0)).any(|word| self.is_allocator_code(Addr(word)))
    }

    /// Whether `stack` leads through an allocator to the function at `entry`, one of mmap and its kin. The C library's
    /// own code is an allocator's in part: there the functions tell that are on the stack, or are called there.
    pub fn is_within_allocator(&self, image: &Image, stack: StackId, entry: Addr) -> bool {
        let library = self.module_at(entry);
        let is_entry = |addr: Addr| {
            let module = self.module(addr);
            module.and_then(|module| module.entry_families.get(&addr)).is_some_and(|f| *f != Some(Family::Mapping))
        };
        let frames = self.unwinder.stacks().frames(stack);
        frames.iter().take(FRAMES_OF_MAPPING).any(|frame| {
            let at = frame.addr.lookup();
            let Some(module) = self.module(at) else { return false };
            let is_own = module.id == library && !module.is_program;
            let code = if is_own { &module.entries } else { &module.allocator_code };
            code.iter().any(|code| code.contains(&at))
                || image.callee(frame.addr.raw()).is_some_and(|callee| is_entry(callee.addr))
        })
    }

    /// Whether a call of brk(2)'s function at `brk` that will return to `return_addr` is made by the C library itself:
    /// that is sbrk(3), whose own entry tells all. Where the program holds the C library, sbrk's symbol tells which
    /// code that is.
    pub fn is_called_by_sbrk(&self, brk: Addr, return_addr: Addr, table: &AllocatorTable) -> bool {
        let Some(module) = self.module(brk).filter(|module| module.id == self.module_at(return_addr)) else {
            return false;
        };
        !module.is_program || table.is_sbrk_at(&module.symbols, module.bias.to_object(return_addr))
    }

    pub(in crate::session::space) fn is_allocator_code(&self, addr: Addr) -> bool {
        self.module(addr).is_some_and(|module| module.allocator_code.iter().any(|code| code.contains(&addr)))
    }

    /// The family of a call that has arrived at the probe `entry` and will return to `return_addr`. `frees`: the
    /// function may have been reached by a jump out of another one. None if that is not known.
    pub fn family_of_call(&mut self, image: &Image, entry: Addr, return_addr: Addr, frees: bool) -> Option<Family> {
        let own = self.probed_family(entry);
        // Only malloc and free hide behind wrappers.
        if !frees || own != Some(Family::Malloc) || !self.loaded.iter().any(|module| !module.wrappers.is_empty()) {
            return own;
        }
        self.family_of_callee(image, return_addr)
    }

    /// Where the function begins that `addr` lies in, if that is operator new or one of its kin: whoever returns there
    /// was called by that, not by the program.
    pub fn wrapper_at(&self, addr: Addr) -> Option<Addr> {
        let wrappers = &self.module(addr)?.wrappers;
        wrappers.iter().find(|(range, _)| range.contains(&addr)).map(|(range, _)| range.start)
    }

    /// The family of an allocation that came through operator new or one of its kin, whose stack is `stack`. operator
    /// new[] jumps to operator new: which of them was called only the program's own call instruction tells. And whether
    /// that is known for good, also if it can't be found out.
    pub fn family_through_wrapper(&mut self, image: &Image, stack: StackId) -> (Option<Family>, bool) {
        if let Some(&known) = self.stack_families.get(&stack) {
            return (Some(known), true);
        }
        let frames = self.unwinder.stacks().frames(stack);
        let caller = frames.iter().map(|frame| frame.addr.raw()).find(|addr| self.wrapper_at(addr.sub(1)).is_none());
        let family = caller.and_then(|return_addr| self.family_of_callee(image, return_addr));
        let is_known = family.is_some() || caller.is_none_or(|return_addr| self.is_callee_known(return_addr));
        // What can't be found out now may be known once other modules are loaded.
        if let Some(family) = family {
            self.stack_families.insert(stack, family);
        }
        (family, is_known)
    }

    pub(in crate::session::space) fn family_of_callee(&mut self, image: &Image, return_addr: Addr) -> Option<Family> {
        let caller = self.module_at(return_addr);
        if let Some(&known) = self.loaded.calls(caller).families.get(&return_addr) {
            return known;
        }
        let callee = image.callee(return_addr);
        let family = callee.and_then(|Callee { addr, .. }| {
            let wrappers = self.module(addr).into_iter().flat_map(|module| &module.wrappers);
            let wrapper = wrappers.into_iter().find(|(range, _)| range.start == addr).map(|(_, family)| *family);
            wrapper.or_else(|| self.probed_family(addr))
        });
        if family.is_some() || callee.is_none_or(|callee| callee.is_resolved) {
            self.loaded.calls_mut(caller).families.insert(return_addr, family);
        }
        family
    }

    /// The family of the probed function that begins at `entry`.
    pub(in crate::session::space) fn probed_family(&self, entry: Addr) -> Option<Family> {
        self.module(entry)?.entry_families.get(&entry).copied().flatten()
    }

    /// Whether it is known for good what the call in front of `return_addr` calls.
    pub fn is_callee_known(&self, return_addr: Addr) -> bool {
        self.loaded.calls(self.module_at(return_addr)).families.contains_key(&return_addr)
    }
}

impl Module {
    /// Remembers which code is the allocator's, of which a function of `size` bytes at `addr` is one: all of a library
    /// that provides one (but for the machinery of exceptions, if it holds that, too), of the program itself only the
    /// allocator's own functions.
    pub(in crate::session::space) fn note_allocator_code(&mut self, addr: Addr, size: u64) {
        let code = if self.is_program {
            vec![addr..addr.add(size.max(1))]
        } else {
            without(self.mapped.code(), &self.exception_runtime)
        };
        let new = code.into_iter().chain(self.internal_code.iter().cloned());
        let new: Vec<_> = new.filter(|range| !self.allocator_code.contains(range)).collect();
        self.allocator_code.extend(new);
    }
}

/// Code without some parts of it.
fn without(code: Vec<Range<Addr>>, parts: &[Range<Addr>]) -> Vec<Range<Addr>> {
    parts.iter().fold(code, |code, part| {
        let pieces = code.into_iter().flat_map(|range| {
            let (before, after) = (range.start..range.end.min(part.start), range.start.max(part.end)..range.end);
            if part.start >= range.end || part.end <= range.start {
                [range, Addr::NULL..Addr::NULL]
            } else {
                [before, after]
            }
        });
        pieces.filter(|range| range.start < range.end).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_out_of_code() {
        let range = |start, end| Addr(start)..Addr(end);
        let parts = [range(0x10, 0x20), range(0x50, 0x90), range(0xf0, 0x120), range(0x18, 0x30)];
        let left = without(vec![range(0x10, 0x60), range(0x80, 0x100)], &parts);
        assert_eq!(left, [range(0x30, 0x50), range(0x90, 0xf0)]);
        assert_eq!(without(vec![range(0x10, 0x60)], &[]), [range(0x10, 0x60)]);
    }
}
