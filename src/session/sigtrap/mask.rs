//! Undoing what an int3 does to the program's own handling of SIGTRAP.
//!
//! The kernel forces the signal of a trap: if SIGTRAP is blocked, or ignored, it unblocks it and resets its action to
//! the default before the tracer is even told. Threads that block all signals and allocate are routine (pthread_create,
//! posix_spawn), so the mask is repaired where it looks as if that had happened, or where the thread had that very mask
//! with SIGTRAP when it was looked at last, as at the attach. The action is repaired, by a system call that the thread
//! makes for us, in programs that have set one: a probe on sigaction(2) tells. What a program had set before an attach
//! is asked for before there is a probe of the allocator, as the first hit can be the one that resets it.

use super::{BreakpointHits, IGNORING, SIGTRAP_BIT, SigtrapGuard, TrapAction, bit};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::session::tracee::Tracee;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::tracer::remote::KernelAction;
use crate::tracer::sigtrap_fallback::IGNORE;
use crate::tracer::status::SIGTRAP;
use crate::tracer::{Result, TracerError, procfs};

/// Every this many hits of a breakpoint the mask is looked at again: it costs 0.7 µs.
const SAMPLE: u32 = 64;

/// What a mask with "all signals" blocked may leave open: SIGKILL and SIGSTOP can't be blocked, glibc keeps 32 and 33
/// for itself, and a trap opens SIGTRAP.
const MAY_BE_UNBLOCKED: u64 = bit(9) | bit(19) | bit(32) | bit(33) | SIGTRAP_BIT;

/// Whether SIGTRAP must have been blocked too: all else is.
pub(in crate::session) const fn looks_forced_open(mask: u64) -> bool {
    mask & SIGTRAP_BIT == 0 && mask | MAY_BE_UNBLOCKED == u64::MAX
}

/// What a trap has left of the handler for SIGTRAP, the program's or ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HandlerAtTrap {
    /// There was none.
    None,
    /// It is not there any more.
    Reset,
    /// It is there, and was not installed anew since this thread ran last.
    Untouched,
    /// It is there, and was installed anew since: a trap may have reset it before.
    Installed,
}

const HANDLER_LOST: &str = "the program handles SIGTRAP, but blocked it when a thread hit a probe: the kernel reset \
    its handler to the default action, and heaptrace could not restore it";

const IGNORING_LOST: &str = "the program ignored SIGTRAP; the kernel reset that to the default action when a thread \
    hit a probe, and heaptrace could not restore it: a SIGTRAP would end the program now";

impl SigtrapGuard {
    /// Repairs the mask of a thread that has hit the breakpoint at `at`, and the action if the kernel has reset it.
    pub(in crate::session) fn repair_trap(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
        raw: &RawRegs,
        at: Addr,
    ) -> Result<()> {
        let tid = thread.tid();
        let seen = self.trap_mask.by_breakpoint.entry((tid, at)).or_insert(BreakpointHits { blocked: false, hits: 0 });
        let careful = self.trap_mask.action != TrapAction::Default || self.trap_mask.blocking.contains_key(&tid);
        let look = careful || seen.blocked || seen.hits.is_multiple_of(SAMPLE);
        seen.hits = seen.hits.wrapping_add(1);
        if !look {
            return Ok(());
        }
        let handler = if careful { self.handler_at_trap(tid) } else { HandlerAtTrap::None };
        let mask = thread.signal_mask()?;
        if self.was_blocked(tracee, tid, mask, handler) {
            if looks_forced_open(mask)
                && let Some(seen) = self.trap_mask.by_breakpoint.get_mut(&(tid, at))
            {
                seen.blocked = true;
            }
            // Where all is blocked, that mostly lasts for a moment: the mask itself tells again.
            if careful && !looks_forced_open(mask) {
                self.trap_mask.blocking.insert(tid, mask | SIGTRAP_BIT);
            }
            thread.set_signal_mask(mask | SIGTRAP_BIT)?;
            self.suspect_fallback();
        } else if mask & SIGTRAP_BIT == 0 {
            self.trap_mask.blocking.remove(&tid);
        }
        match self.trap_mask.action {
            TrapAction::Default => {}
            // Our handler stands there meanwhile: see [`super::fallback`].
            TrapAction::Known([IGNORE, ..]) if tracee.shares_trap_action(tid) => {}
            TrapAction::Known(action) if action[0] == IGNORE || handler == HandlerAtTrap::Reset => {
                self.set_trap_action(tracee, thread, raw.before_trap(), action)?;
            }
            TrapAction::Known(_) => {}
            TrapAction::Unknown if handler == HandlerAtTrap::Reset => {
                tracee.warn_once(HANDLER_LOST.to_owned());
                self.trap_mask.action = TrapAction::Default;
            }
            TrapAction::Unknown => self.learn_trap_action(tracee, thread, raw.before_trap())?,
        }
        if careful {
            self.trap_mask.resumed.insert(tid, self.trap_mask.installed);
        }
        Ok(())
    }

    /// Whether the program ignores SIGTRAP. Mostly the kernel does not know that while it is traced: see
    /// [`super::fallback`].
    pub(in crate::session) const fn ignores_trap(&self) -> bool {
        matches!(self.trap_mask.action, TrapAction::Known([IGNORE, ..]))
    }

    /// Whether the program has no handler for SIGTRAP, so that it can have ours.
    pub(in crate::session) fn leaves_trap_alone(&self) -> bool {
        self.trap_mask.action == TrapAction::Default || self.ignores_trap()
    }

    /// Whether the program ignores SIGTRAP, but the kernel does not know that at present.
    pub(in crate::session) fn has_lost_ignoring(&self, tracee: &Tracee) -> bool {
        self.ignores_trap() && procfs::status_signals(tracee.pid, "SigIgn").is_some_and(|set| set & SIGTRAP_BIT == 0)
    }

    /// What a trap of this thread has left of the handler for SIGTRAP.
    fn handler_at_trap(&self, tid: i32) -> HandlerAtTrap {
        let expected = match self.trap_mask.action {
            TrapAction::Default | TrapAction::Known([IGNORE, ..]) => self.fallback.handler().is_some(),
            TrapAction::Known(_) | TrapAction::Unknown => true,
        };
        if !expected {
            return HandlerAtTrap::None;
        }
        if procfs::status_signals(tid, "SigCgt").is_none_or(|set| set & SIGTRAP_BIT == 0) {
            return HandlerAtTrap::Reset;
        }
        let installed = self.trap_mask.resumed.get(&tid).copied().unwrap_or(self.trap_mask.installed_at_first);
        if installed == self.trap_mask.installed { HandlerAtTrap::Untouched } else { HandlerAtTrap::Installed }
    }

    /// Whether a thread that has hit a breakpoint, and has `mask` since, had SIGTRAP blocked before.
    fn was_blocked(&self, tracee: &Tracee, tid: i32, mask: u64, handler: HandlerAtTrap) -> bool {
        if mask & SIGTRAP_BIT != 0 || self.opened_for_sharer(tid) == Some(mask) {
            return false;
        }
        // The kernel resets a handler where the signal was blocked, and there only.
        if handler == HandlerAtTrap::Untouched {
            return false;
        }
        looks_forced_open(mask)
            || self.trap_mask.blocking.get(&tid) == Some(&(mask | SIGTRAP_BIT))
            || handler == HandlerAtTrap::Reset && !self.leaves_trap_alone() && !tracee.others_may_have_hit(tid)
    }

    /// A handler for SIGTRAP was installed by us.
    pub(in crate::session) const fn note_handler_installed(&mut self) {
        self.trap_mask.installed = self.trap_mask.installed.wrapping_add(1);
    }

    /// At an attach, before there is a probe of the allocator: what was installed until now was installed before all
    /// hits.
    pub(in crate::session) const fn begin_to_watch_trap_action(&mut self) {
        self.trap_mask.installed_at_first = self.trap_mask.installed;
    }

    /// A thread has ended.
    pub(in crate::session) fn forget_thread(&mut self, tid: i32) {
        self.trap_mask.by_breakpoint.retain(|(task, _), _| *task != tid);
        self.trap_mask.blocking.remove(&tid);
        self.trap_mask.resumed.remove(&tid);
        self.forget_trap_of_sharer(tid);
        self.yielded.remove(&tid);
    }

    /// A thread that is about to be detached from has hit a breakpoint: gives it its mask, and the process its action,
    /// back. Its end, should that come instead, is told by the requests that follow.
    pub(in crate::session) fn repair_trap_for_detach(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
        raw: &RawRegs,
        at: Addr,
    ) -> Result<()> {
        match self.repair_trap(tracee, thread, raw, at) {
            Err(TracerError::Overtaken { .. }) => Ok(()),
            repaired => repaired,
        }
    }

    /// After a detach: tells what could not be kept.
    pub(in crate::session) fn note_trap_action_left(&self, tracee: &mut Tracee) {
        let has = |key| procfs::status_signals(tracee.pid, key).map(|set| set & SIGTRAP_BIT != 0);
        let lost = match self.trap_mask.action {
            TrapAction::Default => None,
            TrapAction::Known([IGNORE, ..]) => has("SigIgn").filter(|kept| !kept).map(|_| IGNORING_LOST),
            TrapAction::Known(_) | TrapAction::Unknown => has("SigCgt").filter(|kept| !kept).map(|_| HANDLER_LOST),
        };
        if let Some(lost) = lost {
            tracee.warn_once(lost.to_owned());
        }
    }

    /// A thread enters sigaction(2). If it is about SIGTRAP, the outcome is asked for at its return, which is made to
    /// stop; or taken from the arguments where a stop itself would undo it.
    pub(in crate::session) fn on_sigaction(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
        raw: &RawRegs,
    ) -> Result<()> {
        let (signal, action) = (raw.0.rdi, raw.0.rsi);
        if signal != SIGTRAP as u64 {
            return Ok(());
        }
        self.yield_trap_action(tracee, thread)?;
        if !tracee.shares_trap_action(thread.tid()) {
            self.note_own_action_of_sharer(thread.tid(), action != 0);
            return Ok(());
        }
        if action == 0 {
            return Ok(());
        }
        let handler = tracee.space.image.memory.read_u64(Addr(action));
        self.trap_mask.action = match handler {
            Some(0) => TrapAction::Default,
            Some(IGNORE) => TrapAction::Known(IGNORING),
            _ => TrapAction::Unknown,
        };
        let Some(return_addr) = tracee.space.image.memory.read_word_uncached(Addr(raw.0.rsp)) else { return Ok(()) };
        tracee.space.ensure_return_site(Addr(return_addr), thread, raw).map(drop)
    }

    /// At attach, and in a new image: what the program does with SIGTRAP so far.
    pub(in crate::session) fn note_trap_action(&mut self, tracee: &Tracee, tid: i32) {
        for thread in tracee.tasks.tids() {
            let mask = procfs::status_signals(thread, "SigBlk");
            if let Some(mask) = mask.filter(|mask| mask & SIGTRAP_BIT != 0) {
                self.trap_mask.blocking.insert(thread, mask);
            }
        }
        let has = |key| procfs::status_signals(tid, key).is_some_and(|set| set & SIGTRAP_BIT != 0);
        if has("SigIgn") {
            self.trap_mask.action = TrapAction::Known(IGNORING);
        } else if has("SigCgt") {
            self.trap_mask.action = TrapAction::Unknown;
        }
    }

    /// Whether SIGTRAP's action is to be asked for yet.
    pub(in crate::session) fn has_trap_action_to_learn(&self, tracee: &Tracee) -> bool {
        self.trap_mask.action == TrapAction::Unknown && !procfs::has_seccomp(tracee.pid)
    }

    /// Asks for SIGTRAP's action, by a thread that goes on with the registers `resume`.
    pub(in crate::session) fn learn_trap_action(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
        resume: RawRegs,
    ) -> Result<()> {
        // A filter may kill the program for a system call that it would never make itself.
        if procfs::has_seccomp(thread.tid()) {
            return Ok(());
        }
        let Some(mut caller) = tracee.space.image.caller(thread, resume)? else { return Ok(()) };
        let scratch = caller.borrow_stack();
        let called = caller.exchange_signal_action(SIGTRAP, Addr(0), scratch.at)?;
        match called {
            0 => {
                let mut action = [0; 4];
                for (at, word) in (0..).zip(&mut action) {
                    *word = caller.memory.read_word_uncached(scratch.at.add(8 * at)).unwrap_or(0);
                }
                self.trap_mask.action = if action[0] == 0 { TrapAction::Default } else { TrapAction::Known(action) };
            }
            _ => self.trap_mask.action = TrapAction::Default,
        }
        caller.return_stack(&scratch)
    }

    /// Lets a thread that goes on with the registers `resume` set SIGTRAP's action.
    pub(in crate::session) fn set_trap_action(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
        resume: RawRegs,
        action: KernelAction,
    ) -> Result<()> {
        // As above.
        if procfs::has_seccomp(thread.tid()) {
            let lost = if action[0] == IGNORE { IGNORING_LOST } else { HANDLER_LOST };
            tracee.warn_once(lost.to_owned());
            return Ok(());
        }
        let Some(mut caller) = tracee.space.image.caller(thread, resume)? else { return Ok(()) };
        let scratch = caller.borrow_stack();
        caller.put_action(&scratch, action)?;
        caller.exchange_signal_action(SIGTRAP, scratch.at, Addr(0))?;
        caller.return_stack(&scratch)?;
        self.note_handler_installed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t07_only_a_mask_with_all_others_blocked_is_repaired() {
        assert!(looks_forced_open(!(SIGTRAP_BIT | bit(9) | bit(19))));
        assert!(looks_forced_open(!MAY_BE_UNBLOCKED));
        assert!(!looks_forced_open(u64::MAX));
        assert!(!looks_forced_open(0));
        assert!(!looks_forced_open(!(SIGTRAP_BIT | bit(2))));
    }
}
