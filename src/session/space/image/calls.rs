//! What a call instruction calls, through stubs of the PLT and slots of the global offset table.

use crate::base::addr::Addr;
use crate::session::space::image::Image;

/// What a call instruction calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::session::space) struct Callee {
    pub(in crate::session::space) addr: Addr,
    /// Not so where a slot of the global offset table still leads to the dynamic linker: it will tell next time.
    pub(in crate::session::space) is_resolved: bool,
}

/// A stub leads to a slot, and that to a function; or to one stub more, where a program has the address of a function
/// of its library.
const LONGEST_CHAIN: usize = 4;

impl Image {
    /// What the call instruction in front of `return_addr` calls, through a PLT stub if there is one. None for calls
    /// through registers and the like.
    pub(in crate::session::space) fn callee(&self, return_addr: Addr) -> Option<Callee> {
        let code = self.code_before::<6>(return_addr)?;
        match code {
            // call [rip+disp32]
            [0xff, 0x15, a, b, c, d] => {
                let addr = self.pointer(relative(return_addr, [a, b, c, d]))?;
                Some(Callee { addr, is_resolved: true })
            }
            // call rel32
            [_, 0xe8, a, b, c, d] => {
                let target = relative(return_addr, [a, b, c, d]);
                let Some(addr) = self.plt_target(target) else {
                    return Some(Callee { addr: target, is_resolved: true });
                };
                Some(Callee { addr, is_resolved: !self.asks_the_linker(addr) })
            }
            _ => None,
        }
    }

    /// Where a PLT stub at `stub` jumps: `jmp [rip+disp32]`, perhaps behind an endbr64 and with a bnd prefix.
    pub(in crate::session::space) fn plt_target(&self, stub: Addr) -> Option<Addr> {
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

    /// Whether a slot of the global offset table that leads to `addr` is not resolved yet: `push imm32`, perhaps behind
    /// an endbr64, before the PLT goes to the dynamic linker.
    pub(in crate::session::space) fn asks_the_linker(&self, addr: Addr) -> bool {
        let mut code = [0; 5];
        self.read_code(addr, &mut code) && matches!(code, [0x68, ..] | [0xf3, 0x0f, 0x1e, 0xfa, 0x68])
    }

    pub(in crate::session::space) fn code_before<const N: usize>(&self, addr: Addr) -> Option<[u8; N]> {
        let mut code = [0; N];
        self.read_code(addr.sub(N as u64), &mut code).then_some(code)
    }

    pub(in crate::session::space) fn read_code(&self, addr: Addr, code: &mut [u8]) -> bool {
        let complete = self.memory.read_uncached(addr, code) == code.len();
        self.code.patches().mask(addr, code);
        complete
    }

    pub(in crate::session::space) fn pointer(&self, at: Addr) -> Option<Addr> {
        let mut word = [0; 8];
        (self.memory.read_uncached(at, &mut word) == 8).then(|| Addr(u64::from_le_bytes(word)))
    }

    /// What a call through the slot goes to.
    pub(in crate::session::space) fn called_through(&self, slot: Addr) -> Called {
        let Some(mut at) = self.pointer(slot).filter(|at| *at != Addr::NULL) else { return Called::Nothing };
        for _ in 0..LONGEST_CHAIN {
            if !self.maps.find(at).is_some_and(|mapping| mapping.perms.execute) {
                return Called::Nothing;
            }
            if self.asks_the_linker(at) {
                return Called::Later;
            }
            match self.plt_target(at) {
                Some(next) => at = next,
                None => return Called::Function(at),
            }
        }
        Called::Later
    }
}

/// The address that a displacement at the end of an instruction means; `next` is the following instruction.
fn relative(next: Addr, displacement: [u8; 4]) -> Addr {
    next.add(i64::from(i32::from_le_bytes(displacement)).cast_unsigned())
}

/// See [`Image::called_through`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::session::space) enum Called {
    /// This function.
    Function(Addr),
    /// The dynamic linker, which finds the function then.
    Later,
    /// Nothing: the slot has not been filled.
    Nothing,
}
