//! Allocator functions that are chosen at run time (IFUNC): the dynamic linker calls a resolver, and what that returns
//! is what the
//! program will call. It is probed when the resolver returns, before the first call.

use super::hit::Hit;
use super::process::Process;
use crate::arch::Regs;
use crate::base::addr::{Addr, FunctionId};
use crate::base::memory::ReadMemory;
use crate::session::space::Helper;
use crate::tracer::Result;

/// A resolver that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolving {
    tid: i32,
    function: FunctionId,
    /// Where it returns to.
    site: Addr,
    /// The stack pointer at its entry.
    sp: u64,
}

impl Resolving {
    /// Whether the thread `tid` runs it.
    pub(super) const fn is_of(&self, tid: i32) -> bool {
        self.tid == tid
    }
}

impl Process {
    /// A thread is where a resolver begins or returns to.
    pub(super) fn on_resolver(&mut self, hit: &Hit<'_>, regs: &Regs) -> Result<()> {
        let returns = |r: &Resolving| r.tid == hit.tid && r.site == hit.at && r.sp.wrapping_add(8) == regs.sp();
        if let Some(index) = self.resolving.iter().position(returns) {
            let ended = self.resolving.swap_remove(index);
            self.settle();
            self.tracee.space.resolved(ended.function, Addr(regs.result()), &self.tracee.settings.table)?;
            self.observer.define_modules(self.tracee.space.modules.module_records());
        }
        if let Some(function) = self.tracee.space.modules.resolver_at(hit.at) {
            let Some(site) = self.tracee.space.image.original_memory().read_u64(Addr(regs.sp())).map(Addr) else {
                return Ok(());
            };
            if self.tracee.space.watch_resolved(site, &Helper::at_trap(hit.thread, hit.raw))? {
                self.resolving.push(Resolving { tid: hit.tid, function, site, sp: regs.sp() });
            }
        } else if !self.resolving.iter().any(|resolving| resolving.site == hit.at) {
            self.tracee.space.unwatch_resolved(hit.at)?;
        }
        Ok(())
    }
}
