//! Undoing what an int3 does to the program's own handling of SIGTRAP.
//!
//! The kernel forces the signal of a trap: if SIGTRAP is blocked, or ignored, it unblocks it and resets its action to the
//! default before the tracer is even told. Threads that block all signals and allocate are routine (pthread_create,
//! posix_spawn), so the mask is repaired where it looks as if that had happened. The action is repaired, by a system call that
//! the thread makes for us, in programs that have set one: a probe on sigaction(2) tells.

use super::process::Process;
use crate::addr::Addr;
use crate::memory::ReadMemory;
use crate::session::space::Ensured;
use crate::tracer::ptrace::{RawRegs, Stopped};
use crate::tracer::remote::{KernelAction, RemoteCall};
use crate::tracer::status::{SIGTRAP, WaitStatus};
use crate::tracer::{Result, procfs};
use rustc_hash::FxHashMap;

/// Which breakpoints were hit with all signals blocked: the same ones will be again.
#[derive(Debug, Default)]
pub struct TrapMask {
    pub(super) action: TrapAction,
    by_breakpoint: FxHashMap<(i32, Addr), Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    blocked: bool,
    hits: u32,
}

/// Every this many hits of a breakpoint the mask is looked at again: it costs 0.7 µs.
const SAMPLE: u32 = 64;

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

pub(super) const SIGTRAP_BIT: u64 = bit(SIGTRAP);

/// SIGKILL and SIGSTOP can't be blocked; glibc keeps 32 and 33 for itself and leaves them open.
const UNTOLD: u64 = bit(9) | bit(19) | bit(32) | bit(33) | SIGTRAP_BIT;

/// Whether SIGTRAP must have been blocked too: all else is.
const fn looks_forced_open(mask: u64) -> bool {
    mask & SIGTRAP_BIT == 0 && mask | UNTOLD == u64::MAX
}

/// What the program wants to happen at a SIGTRAP, where that is not the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrapAction {
    /// The default action, which the kernel's reset leaves as it is.
    #[default]
    Default,
    /// Something else, that has to be asked for at a moment when it has not been reset yet.
    Unknown,
    /// This.
    Known(KernelAction),
}

/// SIG_IGN as a handler.
const IGNORE: u64 = 1;

impl Process {
    /// Repairs the mask of a thread that has hit the breakpoint at `at`, and the action if the kernel has reset it. Some:
    /// the thread's end was reported instead.
    pub(super) fn repair_trap(
        &mut self,
        tid: i32,
        thread: &Stopped,
        raw: &RawRegs,
        at: Addr,
    ) -> Result<Option<WaitStatus>> {
        let seen = self.trap_mask.by_breakpoint.entry((tid, at)).or_insert(Seen { blocked: false, hits: 0 });
        let careful = self.trap_mask.action != TrapAction::Default;
        let look = careful || seen.blocked || seen.hits.is_multiple_of(SAMPLE);
        seen.hits = seen.hits.wrapping_add(1);
        let mut forced_open = false;
        if look {
            let mask = thread.signal_mask()?;
            if looks_forced_open(mask) {
                forced_open = true;
                seen.blocked = true;
                thread.set_signal_mask(mask | SIGTRAP_BIT)?;
                self.suspect_retry_handler();
            }
        }
        match self.trap_mask.action {
            TrapAction::Default => Ok(None),
            TrapAction::Known(action) if action[0] == IGNORE => self.set_trap_action(thread, raw, action),
            // The handler is gone: the kernel takes it away only where the signal was blocked.
            TrapAction::Known(action)
                if procfs::status_signals(tid, "SigCgt").is_none_or(|set| set & SIGTRAP_BIT == 0) =>
            {
                let mask = thread.signal_mask()?;
                thread.set_signal_mask(mask | SIGTRAP_BIT)?;
                self.set_trap_action(thread, raw, action)
            }
            TrapAction::Known(_) => Ok(None),
            TrapAction::Unknown if forced_open => {
                self.warn_once(
                    "the program handles SIGTRAP, and had it blocked when a probe was hit: its handler has been reset"
                        .to_owned(),
                );
                self.trap_mask.action = TrapAction::Default;
                Ok(None)
            }
            TrapAction::Unknown => self.learn_trap_action(thread, raw),
        }
    }

    /// A thread has ended.
    pub(super) fn forget_trap_mask(&mut self, tid: i32) {
        self.trap_mask.by_breakpoint.retain(|(task, _), _| *task != tid);
    }

    /// A thread enters sigaction(2). If it is about SIGTRAP, the outcome is asked for at its return, which is made to stop;
    /// or taken from the arguments where a stop itself would undo it.
    pub(super) fn on_sigaction(&mut self, thread: &Stopped, raw: &RawRegs) -> Result<Option<WaitStatus>> {
        let (signal, action) = (raw.0.rdi, raw.0.rsi);
        if signal != SIGTRAP as u64 {
            return Ok(None);
        }
        if let Some(status) = self.yield_trap_action(thread)? {
            return Ok(Some(status));
        }
        if action == 0 {
            return Ok(None);
        }
        let handler = self.space.memory.read_u64(Addr(action));
        self.trap_mask.action = match handler {
            Some(0) => TrapAction::Default,
            Some(IGNORE) => TrapAction::Known([IGNORE, 0, 0, 0]),
            _ => TrapAction::Unknown,
        };
        let Some(return_addr) = self.space.memory.read_word_uncached(Addr(raw.0.rsp)) else { return Ok(None) };
        match self.space.ensure_return_site(Addr(return_addr), thread, raw)? {
            Ensured::Interrupted(status) => Ok(Some(status)),
            Ensured::Watched | Ensured::Impossible => Ok(None),
        }
    }

    /// At attach: what the program does with SIGTRAP so far.
    pub(super) fn note_trap_action(&mut self, tid: i32) {
        let has = |key| procfs::status_signals(tid, key).is_some_and(|set| set & SIGTRAP_BIT != 0);
        if has("SigIgn") {
            self.trap_mask.action = TrapAction::Known([IGNORE, 0, 0, 0]);
        } else if has("SigCgt") {
            self.trap_mask.action = TrapAction::Unknown;
        }
    }

    fn learn_trap_action(&mut self, thread: &Stopped, raw: &RawRegs) -> Result<Option<WaitStatus>> {
        let Some(mut caller) = self.space.caller(thread, raw.before_trap())? else { return Ok(None) };
        let scratch = caller.borrow_stack();
        let called = caller.exchange_signal_action(SIGTRAP, Addr(0), scratch.at)?;
        match called {
            RemoteCall::Ended(status) => return Ok(Some(status)),
            RemoteCall::Done(0) => {
                let mut action = [0; 4];
                for (at, word) in (0..).zip(&mut action) {
                    *word = caller.memory.read_word_uncached(scratch.at.add(8 * at)).unwrap_or(0);
                }
                self.trap_mask.action = if action[0] == 0 { TrapAction::Default } else { TrapAction::Known(action) };
            }
            RemoteCall::Done(_) => self.trap_mask.action = TrapAction::Default,
        }
        caller.return_stack(&scratch)?;
        Ok(None)
    }

    fn set_trap_action(&mut self, thread: &Stopped, raw: &RawRegs, action: KernelAction) -> Result<Option<WaitStatus>> {
        let Some(mut caller) = self.space.caller(thread, raw.before_trap())? else { return Ok(None) };
        let scratch = caller.borrow_stack();
        let bytes: Vec<u8> = action.iter().flat_map(|word| word.to_le_bytes()).collect();
        caller.memory.write_code(scratch.at, &bytes)?;
        match caller.exchange_signal_action(SIGTRAP, scratch.at, Addr(0))? {
            RemoteCall::Ended(status) => Ok(Some(status)),
            RemoteCall::Done(_) => {
                caller.return_stack(&scratch)?;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t07_only_a_mask_with_all_others_blocked_is_repaired() {
        assert!(looks_forced_open(!(SIGTRAP_BIT | bit(9) | bit(19))));
        assert!(looks_forced_open(!UNTOLD));
        assert!(!looks_forced_open(u64::MAX));
        assert!(!looks_forced_open(0));
        assert!(!looks_forced_open(!(SIGTRAP_BIT | bit(2))));
    }
}
