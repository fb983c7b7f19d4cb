//! Guards: probes on the functions of unwinders that look at the stacks of those who call them, where a process has
//! allocators whose own operators new and delete are on the jump engine. An exception may leave these; it must not meet
//! our return address.

use super::AddressSpace;
use super::breakpoints::Helper;
use super::jumps::Candidate;
use super::probes::{Deferred, GUARD_TAG, ToPlace};
use crate::base::addr::{Addr, FunctionId};
use crate::tracer::Result;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

/// A guard is no function of an allocator: no table knows it.
const NO_FUNCTION: FunctionId = FunctionId(u16::MAX);

impl AddressSpace {
    /// Places guards in all modules, and from now on in those that come. Whether no exception can be thrown past them.
    ///
    /// # Errors
    /// What the kernel or the process says.
    pub fn guard_unwinders(&mut self, thread: &Stopped, raw: &RawRegs) -> Result<bool> {
        for addr in self.unwinder_functions() {
            if !self.has_guard(addr) {
                self.place_or_defer(Deferred { addr, to_place: ToPlace::Guard }, Some(&Helper::at_trap(thread, raw)))?;
            }
        }
        self.is_guarded = self.guards_hold();
        Ok(self.is_guarded)
    }

    /// Places the guards of modules that have come, if others have some.
    pub(super) fn guard_new_modules(&mut self) -> Result<()> {
        if !self.is_guarded {
            return Ok(());
        }
        for addr in self.unwinder_functions() {
            if !self.has_guard(addr) {
                self.place_or_defer(Deferred { addr, to_place: ToPlace::Guard }, None)?;
            }
        }
        Ok(())
    }

    /// Whether guards are wanted, and exceptions can be thrown past them: a function could not be watched, or a module
    /// may throw by an unwinder of its own.
    pub fn guards_are_passed(&self) -> bool {
        self.is_guarded && !self.guards_hold()
    }

    fn guards_hold(&self) -> bool {
        let throws_unseen = self.modules.iter().any(|module| module.throws_unseen);
        !throws_unseen && self.unwinder_functions().into_iter().all(|addr| self.has_guard(addr))
    }

    fn has_guard(&self, addr: Addr) -> bool {
        self.breakpoints.get(addr).is_some_and(|breakpoint| breakpoint.purposes.tags & GUARD_TAG != 0)
    }

    fn unwinder_functions(&self) -> Vec<Addr> {
        self.modules.iter().flat_map(|module| &module.unwinder).map(|function| function.start).collect()
    }

    /// The guards, as functions whose first instructions can be moved.
    pub fn guard_candidates(&self) -> Vec<Candidate> {
        let mut guards = self.guards_to_be();
        guards.retain(|guard| self.has_guard(guard.addr));
        guards
    }

    /// The same of those that are not placed yet, too.
    pub(super) fn guards_to_be(&self) -> Vec<Candidate> {
        let all = self.modules.iter().flat_map(|module| module.unwinder.iter().map(move |function| (module, function)));
        let candidates = all.map(|(module, function)| Candidate {
            addr: function.start,
            size: function.end.0 - function.start.0,
            function: NO_FUNCTION,
            module: module.id,
            is_told: false,
        });
        candidates.collect()
    }
}
