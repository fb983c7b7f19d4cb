//! A thread at a breakpoint.

use crate::base::addr::Addr;
use crate::breakpoints::Breakpoint;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

/// A thread that has hit a breakpoint and stands still.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit<'a> {
    pub(super) tid: i32,
    pub(super) thread: &'a Stopped,
    /// As at the trap: the program counter is behind the int3.
    pub(super) raw: &'a RawRegs,
    /// Where the breakpoint is.
    pub(super) at: Addr,
    /// What it was for when it was hit.
    pub(super) breakpoint: &'a Breakpoint,
}
