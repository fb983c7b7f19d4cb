//! The breakpoints of an address space: set, at return sites or elsewhere, lifted, with pads behind them, and all taken
//! out at the end. The bytes are written by [`TargetCode`](crate::tracer::code::TargetCode).

use super::AddressSpace;
use crate::base::addr::{Addr, ModuleId};
use crate::breakpoints::Purpose;
use crate::tracer::Result;
use crate::tracer::code::write::Threads;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

/// A thread that stands still, and can make a system call for us.
#[derive(Debug)]
pub(in crate::session) struct Helper<'a> {
    pub(in crate::session) thread: &'a Stopped,
    /// The registers with which it goes on.
    pub(in crate::session) resume: RawRegs,
}

impl<'a> Helper<'a> {
    /// One that has hit a breakpoint of ours, and has the registers `raw`.
    pub(in crate::session) fn at_trap(thread: &'a Stopped, raw: &RawRegs) -> Self {
        Self { thread, resume: raw.before_trap() }
    }
}

/// What became of a breakpoint to be placed, of a pad (where that is), or of room for pads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::session) enum Placed<T = ()> {
    /// It is there.
    Done(T),
    /// The address can't hold one: no code, memory that others share or write, an instruction that can't be moved.
    Impossible,
    /// It needs a pad and there is no room; a thread that stands still could make some.
    NoRoom,
}

impl AddressSpace {
    /// Makes the return to `site` stop the thread. `thread` stands at a breakpoint. False if no breakpoint can be
    /// there.
    pub fn ensure_return_site(&mut self, site: Addr, thread: &Stopped, raw: &RawRegs) -> Result<bool> {
        if self.probes.breakpoints.get(site).is_some_and(|b| b.purposes.returns) {
            return Ok(true);
        }
        // Code outside of modules is made at run time, and changes as it likes: nothing may stay there.
        let at_run_time = self.modules.module_at(site) == ModuleId::NONE;
        let is_demoted = self.modules.module(site).is_some_and(|module| module.demoted.contains(&site));
        let purpose =
            if at_run_time || is_demoted || self.probes.is_jumped { Purpose::ReturnOnce } else { Purpose::Return };
        if at_run_time {
            self.image.read_maps(&mut self.modules.findings, thread.tid())?;
            // Then what the table says of it is no longer true.
            if self.image.code.forget_if_overwritten(&self.image.memory, site) {
                self.probes.breakpoints.remove(site);
            }
        }
        Ok(self.probes.place(&mut self.image, &mut self.modules, site, purpose, Some(&Helper::at_trap(thread, raw)))?
            == Placed::Done(()))
    }

    /// From now on the return site has a breakpoint only while a call is in progress.
    pub fn demote_return_site(&mut self, site: Addr) {
        tracing::debug!("the return site {site} is mostly passed by others");
        let module = self.modules.module_at(site);
        if let Some(module) = self.modules.loaded.get_mut(module) {
            module.demoted.insert(site);
        }
        if let Some(breakpoint) = self.probes.breakpoints.get_mut(site) {
            breakpoint.purposes.returns = false;
            breakpoint.purposes.returns_once = true;
        }
    }

    /// No call returns to a site of one shot any more.
    pub fn end_return_site(&mut self, site: Addr) -> Result<()> {
        self.probes.take_away(&mut self.image, site, |purposes| purposes.returns_once.then_some(Purpose::ReturnOnce))
    }

    /// Ends the watch for returns to `addr`.
    pub fn unwatch_return(&mut self, addr: Addr) -> Result<()> {
        self.probes.take_away(&mut self.image, addr, |purposes| purposes.returns.then_some(Purpose::Return))
    }

    /// Writes all original bytes back, while threads may run, and remembers the addresses as removed. What fails is
    /// tried once more, and stays in the table if it fails again; the last error is returned then.
    pub fn restore(&mut self, threads: Threads) -> Result<()> {
        let mut result = Ok(());
        for _ in 0..2 {
            result = self.probes.lift_jumps(&mut self.image, threads);
            let all: Vec<_> = self.image.code.patches().iter().map(|(addr, _)| addr).collect();
            for addr in all {
                if let Err(error) = self.probes.lift(&mut self.image, addr) {
                    result = Err(error);
                }
            }
            if result.is_ok() {
                break;
            }
        }
        result
    }
}
