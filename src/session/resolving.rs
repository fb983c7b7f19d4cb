//! Allocator functions that are chosen at run time (IFUNC): the dynamic linker calls a resolver, and what that returns
//! is what the program will call. It is probed when the resolver returns, before the first call.

use super::hit::Hit;
use super::observer::Observer;
use super::tracee::Tracee;
use crate::arch::Regs;
use crate::base::addr::{Addr, FunctionId};
use crate::base::memory::ReadMemory;
use crate::session::space::Helper;
use crate::tracer::Result;

/// The resolvers that run.
#[derive(Debug, Default)]
pub(super) struct Resolvers(Vec<Resolving>);

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Resolving {
    tid: i32,
    function: FunctionId,
    /// Where it returns to.
    site: Addr,
    /// The stack pointer at its entry.
    sp: u64,
}

impl Resolvers {
    /// The thread `tid` is gone, or its calls are.
    pub(super) fn forget(&mut self, tid: i32) {
        self.0.retain(|resolving| resolving.tid != tid);
    }

    /// A thread is where a resolver begins or returns to. What has happened before must be settled.
    pub(super) fn on_hit(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        hit: &Hit<'_>,
        regs: &Regs,
    ) -> Result<()> {
        let returns = |r: &Resolving| r.tid == hit.tid && r.site == hit.at && r.sp.wrapping_add(8) == regs.sp();
        if let Some(index) = self.0.iter().position(returns) {
            let ended = self.0.swap_remove(index);
            tracee.space.resolved(ended.function, Addr(regs.result()), &tracee.settings.table)?;
            observer.define_modules(tracee.space.modules.module_records());
        }
        if let Some(function) = tracee.space.modules.resolver_at(hit.at) {
            let Some(site) = tracee.space.image.original_memory().read_u64(Addr(regs.sp())).map(Addr) else {
                return Ok(());
            };
            if tracee.space.watch_resolved(site, &Helper::at_trap(hit.thread, hit.raw))? {
                self.0.push(Resolving { tid: hit.tid, function, site, sp: regs.sp() });
            }
        } else if !self.0.iter().any(|resolving| resolving.site == hit.at) {
            tracee.space.unwatch_resolved(hit.at)?;
        }
        Ok(())
    }
}
