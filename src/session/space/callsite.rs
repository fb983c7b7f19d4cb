//! Which family of functions the *program* called: operator new and delete of libstdc++ are thin wrappers of malloc and
//! free, and have no probes of their own.
//!
//! operator new calls malloc: its return address lies inside operator new. operator delete jumps to free, as operator new[]
//! does to operator new: on the stack nothing is left of them, but the call instruction in front of the program's return
//! address still names them.

use super::AddressSpace;
use crate::addr::{Addr, StackId};
use crate::allocators::Family;

impl AddressSpace {
    /// The family of a call that has arrived at the probe `entry` and will return to `return_addr`. `frees`: the function
    /// may have been reached by a jump out of another one. None if it can't be told.
    pub fn family_of_call(&mut self, entry: Addr, return_addr: Addr, frees: bool) -> Option<Family> {
        let own = self.entry_families.get(&entry).copied().flatten();
        // Only malloc and free hide behind wrappers.
        if !frees || own != Some(Family::Malloc) || self.wrappers.is_empty() {
            return own;
        }
        self.family_of_callee(return_addr)
    }

    /// Whether a return address lies in operator new or one of its kin: the program called that, not what it called.
    pub fn is_wrapper(&self, return_addr: Addr) -> bool {
        let caller = return_addr.sub(1);
        self.wrappers.iter().any(|(range, _)| range.contains(&caller))
    }

    /// Whether a wrapper begins here.
    pub fn is_wrapper_entry(&self, addr: Addr) -> bool {
        self.wrappers.iter().any(|(range, _)| range.start == addr)
    }

    /// The family of an allocation that came through operator new or one of its kin, whose stack is `stack`. operator
    /// new[] jumps to operator new: which of them was called only the program's own call instruction tells.
    pub fn family_through_wrapper(&mut self, stack: StackId) -> Option<Family> {
        if let Some(&known) = self.stack_families.get(&stack) {
            return known;
        }
        let frames = self.unwinder.stacks().frames(stack);
        let caller = frames.iter().map(|frame| frame.addr.raw()).find(|&addr| !self.is_wrapper(addr));
        let family = caller.and_then(|return_addr| self.family_of_callee(return_addr));
        if family.is_some() {
            self.stack_families.insert(stack, family);
        }
        family
    }

    fn family_of_callee(&mut self, return_addr: Addr) -> Option<Family> {
        if let Some(&known) = self.call_families.get(&return_addr) {
            return known;
        }
        let callee = self.callee(return_addr);
        let family = callee.and_then(|callee| {
            let wrapper = self.wrappers.iter().find(|(range, _)| range.start == callee).map(|(_, family)| *family);
            wrapper.or_else(|| self.entry_families.get(&callee).copied().flatten())
        });
        // A slot of the global offset table that is not resolved yet will tell next time.
        if family.is_some() || callee.is_none() {
            self.call_families.insert(return_addr, family);
        }
        family
    }

    /// What the call instruction in front of `return_addr` calls, through a PLT stub if there is one. None for calls through
    /// registers and the like.
    fn callee(&self, return_addr: Addr) -> Option<Addr> {
        let code = self.code_before::<6>(return_addr)?;
        match code {
            // call [rip+disp32]
            [0xff, 0x15, a, b, c, d] => self.pointer(relative(return_addr, [a, b, c, d])),
            // call rel32
            [_, 0xe8, a, b, c, d] => {
                let target = relative(return_addr, [a, b, c, d]);
                Some(self.plt_target(target).unwrap_or(target))
            }
            _ => None,
        }
    }

    /// Where a PLT stub at `stub` jumps: `jmp [rip+disp32]`, perhaps behind an endbr64 and with a bnd prefix.
    fn plt_target(&self, stub: Addr) -> Option<Addr> {
        let mut code = [0; 16];
        self.read_code(stub, &mut code).then_some(())?;
        let mut skip = 0;
        if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            skip += 4;
        }
        if code.get(skip) == Some(&0xf2) {
            skip += 1;
        }
        let [0xff, 0x25, a, b, c, d] = *code.get(skip..skip + 6)? else { return None };
        self.pointer(relative(stub.add(skip as u64 + 6), [a, b, c, d]))
    }

    fn code_before<const N: usize>(&self, addr: Addr) -> Option<[u8; N]> {
        let mut code = [0; N];
        self.read_code(addr.sub(N as u64), &mut code).then_some(code)
    }

    fn read_code(&self, addr: Addr, code: &mut [u8]) -> bool {
        let complete = self.memory.read_uncached(addr, code) == code.len();
        self.breakpoints.mask(addr, code);
        complete
    }

    fn pointer(&self, at: Addr) -> Option<Addr> {
        let mut word = [0; 8];
        (self.memory.read_uncached(at, &mut word) == 8).then(|| Addr(u64::from_le_bytes(word)))
    }
}

/// The address that a displacement at the end of an instruction means; `next` is the following instruction.
fn relative(next: Addr, displacement: [u8; 4]) -> Addr {
    next.add(i64::from(i32::from_le_bytes(displacement)).cast_unsigned())
}
