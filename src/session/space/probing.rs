//! Probes that come and go while the session lasts.

use super::probes::{Deferred, Probing, RESOLVER_TAG, TEST_TAG, ToPlace};
use super::{AddressSpace, Helper, Placed};
use crate::allocators::AllocatorTable;
use crate::base::addr::{Addr, FunctionId};
use crate::breakpoints::{Engine, Probe, Purpose};
use crate::tracer::Result;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

impl AddressSpace {
    /// Places guards in all modules, and from now on in those that come. Whether no exception can be thrown past them.
    ///
    /// # Errors
    /// What the kernel or the process says.
    pub fn guard_unwinders(&mut self, thread: &Stopped, raw: &RawRegs) -> Result<bool> {
        for addr in self.modules.unwinder_functions() {
            if !self.probes.has_guard(addr) {
                self.probes.place_or_defer(
                    &mut self.image,
                    &mut self.modules,
                    Deferred { addr, to_place: ToPlace::Guard },
                    Some(&Helper::at_trap(thread, raw)),
                )?;
            }
        }
        self.probes.is_guarded = self.probes.guards_hold(&self.modules);
        Ok(self.probes.is_guarded)
    }

    /// Which functions get probes from now on: places what is missing, takes away what is too much.
    pub fn set_probing(&mut self, probing: Probing, table: &AllocatorTable) -> Result<()> {
        self.probes.probing = probing;
        let unwanted: Vec<Addr> = self
            .probes
            .breakpoints
            .iter()
            .filter(|(_, breakpoint)| {
                // a jump costs so little that it stays
                let is_unwanted = |probe: Probe| probe.engine == Engine::Trap && !probing.wants(probe.function, table);
                breakpoint.purposes.entry.is_some_and(is_unwanted)
            })
            .map(|(addr, _)| addr)
            .collect();
        for addr in unwanted {
            self.probes.take_away(&mut self.image, addr, |purposes| purposes.entry.map(Purpose::Entry))?;
        }
        self.probes.place_probes(&mut self.image, &mut self.modules, table)
    }

    /// Places what was held back, if anything was.
    pub fn place_held_back(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.probes.holds_back) {
            return Ok(());
        }
        self.probes.place_deferred(&mut self.image, &mut self.modules, None)?;
        self.probes.watch_start(&mut self.image, &mut self.modules)
    }

    /// Watches where a resolver returns to. False if no breakpoint can be there.
    pub fn watch_resolved(&mut self, at: Addr, helper: &Helper<'_>) -> Result<bool> {
        Ok(self.probes.place(&mut self.image, &mut self.modules, at, Purpose::Tag(RESOLVER_TAG), Some(helper))?
            == Placed::Done(()))
    }

    /// No resolver returns to `at` any more.
    pub fn unwatch_resolved(&mut self, at: Addr) -> Result<()> {
        if self.modules.resolver_at(at).is_some() {
            return Ok(());
        }
        self.probes.take_away(&mut self.image, at, |purposes| {
            (purposes.tags & RESOLVER_TAG != 0).then_some(Purpose::Tag(RESOLVER_TAG))
        })
    }

    /// A resolver has said that calls of `function` go to `at`.
    pub fn resolved(&mut self, function: FunctionId, at: Addr, table: &AllocatorTable) -> Result<()> {
        if !self.modules.is_seen(at, function, table) && self.modules.note_function(at, function, table) {
            self.probes.place_probes(&mut self.image, &mut self.modules, table)?;
        }
        Ok(())
    }

    /// Watches where a test begins or returns to. `thread` stands at a breakpoint. False if no breakpoint can be there.
    pub fn watch_test(&mut self, at: Addr, thread: &Stopped, raw: &RawRegs) -> Result<bool> {
        Ok(self.probes.place(
            &mut self.image,
            &mut self.modules,
            at,
            Purpose::Tag(TEST_TAG),
            Some(&Helper::at_trap(thread, raw)),
        )? == Placed::Done(()))
    }
}
