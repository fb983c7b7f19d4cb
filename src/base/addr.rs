//! Addresses and identities: newtypes that can't be mixed up.
//!
//! Two address spaces exist. A *process address* ([`Addr`]) is where a byte is in the running target. An
//! *object address* ([`ObjAddr`]) is where the ELF file's own headers and tables say that it is. They differ
//! by the module's *load bias*, and only [`LoadBias`] converts.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An address in the target process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Addr(pub u64);

/// An address as the object file's headers, symbols and CFI state it (before relocation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjAddr(pub u64);

/// What a module's object addresses are shifted by in the process: `process = object + bias` (wrapping, as
/// a bias may be "negative" for prelinked objects).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LoadBias(pub u64);

impl LoadBias {
    /// Where `addr` of the object file is in the process.
    pub const fn to_process(self, addr: ObjAddr) -> Addr {
        Addr(addr.0.wrapping_add(self.0))
    }

    /// What the object file calls the process address `addr`.
    pub const fn to_object(self, addr: Addr) -> ObjAddr {
        ObjAddr(addr.0.wrapping_sub(self.0))
    }
}

impl Addr {
    /// The null pointer.
    pub const NULL: Self = Self(0);

    /// Whether this is the null pointer.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on (wrapping).
    #[must_use]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The address `bytes` before (wrapping).
    #[must_use]
    pub const fn sub(self, bytes: u64) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

/// Where the places begin that stand for lines of scripts: canonical, and no user's code can lie there.
const SCRIPTS: u64 = 0xff00_0000_0000_0000;

impl Addr {
    /// The place that stands for a line of a function that an interpreter runs, by its number in the session: no code
    /// lies there.
    pub const fn of_script(number: u32) -> Self {
        Self(SCRIPTS | number as u64)
    }

    /// The number of such a place.
    pub const fn script(self) -> Option<u32> {
        if self.0 & !(u32::MAX as u64) == SCRIPTS { Some(self.0 as u32) } else { None }
    }
}

/// The code address of one stack frame.
///
/// A return address points *behind* the call, which may be the next line, the next function or, after a call that never
/// returns, the next function's first byte. Every look-up (CFI, symbols, lines) must therefore use the address less
/// one, except where the frame stands at exactly this instruction: it was interrupted there (the innermost frame, and
/// the frame below a signal handler), or it is to begin there (the trampoline that a signal handler returns to, and the
/// function that a fiber's first one returns to).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FrameAddr {
    /// The frame was about to execute this instruction.
    Instruction(Addr),
    /// The frame continues here when its callee returns.
    Return(Addr),
}

impl FrameAddr {
    /// The address to look up: the one place where the −1 of return addresses lives.
    pub const fn lookup(self) -> Addr {
        match self {
            Self::Instruction(addr) => addr,
            Self::Return(addr) => addr.sub(1),
        }
    }

    /// The address as it stands in the register or on the stack.
    pub const fn raw(self) -> Addr {
        match self {
            Self::Instruction(addr) | Self::Return(addr) => addr,
        }
    }
}

/// A thread of the target, or a child that shares its memory. The kernel reuses thread ids; the serial number, given by
/// us in the order in which threads were first seen, is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId {
    /// Thread id in heaptrace's pid namespace.
    pub tid: i32,
    /// Unique in a session, whatever the number of processes; from 1 on.
    pub serial: u32,
}

/// A process of the session. The kernel reuses process ids; the number, given by us in the order in which processes
/// came to be, is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId {
    /// Process id in heaptrace's pid namespace.
    pub pid: i32,
    /// Unique in a session; from 0 on.
    pub number: u32,
}

/// A program image of a process: what it is from its start, a fork or an exec to the next exec or its end. Unique in a
/// session, from 0 on. A [`StackId`] means something in its image only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ImageId(pub u32);

/// One module (ELF object) loaded once. A library that is unloaded and loaded again gets a new id, so an address in a
/// stack keeps its meaning. Unique in a session; a forked child has its parent's modules under the same ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleId(pub u32);

impl ModuleId {
    /// Code that belongs to no module (JIT code, or a frame whose module could not be told).
    pub const NONE: Self = Self(u32::MAX);
}

/// An interned call stack: an index into the [`crate::unwinder::StackTable`] of its image. The table of a forked child
/// begins as a copy of its parent's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StackId(pub u32);

impl StackId {
    /// The empty stack: unwinding was switched off or failed at the first frame.
    pub const EMPTY: Self = Self(0);
    /// That of blocks that were there before tracing began: no table has it.
    pub const EXISTING: Self = Self(u32::MAX);
}

/// A test of a test program, by its name: tests of one name are one. From 0 on in each image; a forked child has its
/// parent's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TestId(pub u32);

/// Index into [`crate::allocators::AllocatorTable`] (the built-in functions, then the user's declarations): which
/// allocator function a probe or an event is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct FunctionId(pub u16);

macro_rules! hex_format {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )*};
}
hex_format!(Addr, ObjAddr, LoadBias);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_addresses_are_looked_up_one_byte_before() {
        assert_eq!(FrameAddr::Return(Addr(0x1000)).lookup(), Addr(0xfff));
        assert_eq!(FrameAddr::Instruction(Addr(0x1000)).lookup(), Addr(0x1000));
    }

    #[test]
    fn bias_converts_both_ways_and_wraps() {
        let bias = LoadBias(0x5555_0000_0000);
        assert_eq!(bias.to_object(bias.to_process(ObjAddr(0x1234))), ObjAddr(0x1234));
        let negative = LoadBias(0u64.wrapping_sub(0x1000));
        assert_eq!(negative.to_process(ObjAddr(0x3000)), Addr(0x2000));
    }
}
