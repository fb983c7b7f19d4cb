//! Guards: probes on the functions of unwinders that look at the stacks of those who call them, where a process has
//! allocators whose own operators new and delete are on the jump engine. An exception may leave these; it must not meet
//! our return address.

use crate::base::addr::{Addr, FunctionId};
use crate::session::space::image::Image;
use crate::session::space::jumps::Candidate;
use crate::session::space::modules::Modules;
use crate::session::space::probes::{Deferred, GUARD_TAG, Probes, ToPlace};
use crate::tracer::Result;

/// A guard is no function of an allocator: no table knows it.
pub(in crate::session::space) const NO_FUNCTION: FunctionId = FunctionId(u16::MAX);

impl Probes {
    /// Places the guards of modules that have come, if others have some.
    pub(in crate::session::space) fn guard_new_modules(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
    ) -> Result<()> {
        if !self.is_guarded {
            return Ok(());
        }
        for addr in modules.unwinder_functions() {
            if !self.has_guard(addr) {
                self.place_or_defer(image, modules, Deferred { addr, to_place: ToPlace::Guard }, None)?;
            }
        }
        Ok(())
    }

    /// Whether guards are wanted, and exceptions can be thrown past them: a function could not be watched, or a module
    /// may throw by an unwinder of its own.
    pub fn guards_are_passed(&self, modules: &Modules) -> bool {
        self.is_guarded && !self.guards_hold(modules)
    }

    pub(in crate::session::space) fn guards_hold(&self, modules: &Modules) -> bool {
        let throws_unseen = modules.loaded.iter().any(|module| module.throws_unseen);
        !throws_unseen && modules.unwinder_functions().into_iter().all(|addr| self.has_guard(addr))
    }

    pub(in crate::session::space) fn has_guard(&self, addr: Addr) -> bool {
        self.breakpoints.get(addr).is_some_and(|breakpoint| breakpoint.purposes.tags & GUARD_TAG != 0)
    }

    /// The guards, as functions whose first instructions can be moved.
    pub fn guard_candidates(&self, modules: &Modules) -> Vec<Candidate> {
        let mut guards = modules.guards_to_be();
        guards.retain(|guard| self.has_guard(guard.addr));
        guards
    }
}
