//! Where test frameworks run their tests.

use super::breakpoints::{Helper, Placed};
use super::facts::Facts;
use super::probes::{Deferred, TEST_TAG, ToPlace};
use super::{AddressSpace, OriginalMemory};
use crate::allocators::frameworks::{Hook, Told, hook, told};
use crate::base::addr::{Addr, LoadBias, ObjAddr};
use crate::breakpoints::Purpose;
use crate::image::elf::{Elf, base_name};
use crate::tracer::Result;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

/// The functions of frameworks in an object.
pub(super) fn hooks(elf: &Elf<'_>) -> Vec<(ObjAddr, Hook)> {
    let mut found: Vec<(ObjAddr, Hook)> =
        elf.symbols().filter_map(|symbol| Some((symbol.addr, hook(base_name(&symbol.name))?))).collect();
    found.sort_by_key(|(addr, _)| *addr);
    found.dedup_by_key(|(addr, _)| *addr);
    found
}

impl AddressSpace {
    /// Tests are to be seen, in modules that are loaded from now on.
    pub const fn watch_tests(&mut self) {
        self.tests_watched = true;
    }

    /// Watches the functions of frameworks in a module.
    pub(super) fn watch_test_hooks(&mut self, facts: &Facts, bias: LoadBias) -> Result<()> {
        for &(function, _) in &facts.test_hooks {
            self.place_or_defer(Deferred { addr: bias.to_process(function), to_place: ToPlace::Test }, None)?;
        }
        Ok(())
    }

    /// Which function of a framework begins here.
    pub fn test_hook_at(&self, at: Addr) -> Option<Hook> {
        self.module(at)?.test_hooks.get(&at).copied()
    }

    /// Whether a module has functions of a framework.
    pub fn has_test_hooks(&self) -> bool {
        self.modules.iter().any(|module| !module.test_hooks.is_empty())
    }

    /// What a framework tells where a thread has entered this function of it.
    pub fn told_by_framework(&mut self, hook: Hook, arguments: &[u64; 6]) -> Option<Told> {
        let unwinder = &mut self.unwinder;
        let mut begins_function = |addr| unwinder.begins_function(addr);
        let mut memory = OriginalMemory { memory: &mut self.memory, patches: self.code.patches() };
        told(hook, arguments, &mut memory, &mut begins_function)
    }

    /// Watches where a test begins or returns to. `thread` stands at a breakpoint. False if no breakpoint can be there.
    pub fn watch_test(&mut self, at: Addr, thread: &Stopped, raw: &RawRegs) -> Result<bool> {
        Ok(self.place(at, Purpose::Tag(TEST_TAG), Some(&Helper::at_trap(thread, raw)))? == Placed::Done(()))
    }
}
