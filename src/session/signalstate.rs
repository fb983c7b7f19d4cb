//! What is known of a process's signals: the state that [`super::trapmask`], [`super::sigtrap_fallback`] and
//! [`super::vm_sharers`] work on.

use crate::base::addr::Addr;
use crate::tracer::remote::KernelAction;
use crate::tracer::sigtrap_fallback::{self, SigtrapFallback};
use crate::tracer::status::SIGTRAP;
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct SignalState {
    /// What the program wants of SIGTRAP, and which threads block it.
    pub(super) trap_mask: TrapMask,
    /// The SIGTRAP fallback.
    pub(super) fallback: FallbackState,
    /// It is to be installed at the next stop.
    pub(super) fallback_at_stop: bool,
    /// Threads for which it was taken out a moment ago.
    pub(super) yielded: HashSet<i32>,
    /// The same of children that share the memory.
    pub(super) sharers: SharersTraps,
}

impl SignalState {
    /// Whether the handler is to come back at the next stop of this thread, for which it was taken out.
    pub(super) fn awaits_stop_of(&self, tid: i32) -> bool {
        matches!(self.fallback, FallbackState::Unset) && self.yielded.contains(&tid)
    }
}

/// The bit of a signal in a set as the kernel has it.
pub(super) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// SIGTRAP, in a set of signals.
pub(super) const SIGTRAP_BIT: u64 = bit(SIGTRAP);

/// Whether the handler is installed in the current image.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum FallbackState {
    /// Not yet.
    #[default]
    Unset,
    /// It is, or was when it was looked at last; None: it may have been taken away since.
    Set(SigtrapFallback, Option<Instant>),
    /// It is not, and will not be.
    Never,
}

impl FallbackState {
    /// The handler, if it may be there.
    pub(super) const fn handler(self) -> Option<SigtrapFallback> {
        match self {
            Self::Set(handler, _) => Some(handler),
            Self::Unset | Self::Never => None,
        }
    }
}

/// There is no thread that could take the handler out.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoThreadAvailable;

/// The action of a program that ignores a signal.
pub(super) const IGNORING: KernelAction = [sigtrap_fallback::IGNORE, 0, 0, 0];

/// What the program wants to happen at a SIGTRAP, where that is not the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum TrapAction {
    /// The default action, which the kernel's reset leaves as it is.
    #[default]
    Default,
    /// Something else, that has to be asked for at a moment when it has not been reset yet.
    Unknown,
    /// This.
    Known(KernelAction),
}

/// Which breakpoints were hit with all signals blocked: the same ones will be again.
#[derive(Debug, Default)]
pub(super) struct TrapMask {
    pub(super) action: TrapAction,
    pub(super) by_breakpoint: FxHashMap<(i32, Addr), Seen>,
    /// The masks of threads that were seen with SIGTRAP blocked, by thread.
    pub(super) blocking: FxHashMap<i32, u64>,
    /// How often a handler, the program's or ours, was installed by us.
    pub(super) installed: u64,
    /// What `installed` was when a thread was last resumed at a breakpoint, by thread.
    pub(super) resumed: FxHashMap<i32, u64>,
    /// The same for threads that have not been at one yet.
    pub(super) installed_at_first: u64,
}

/// One thread at one breakpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Whether all signals were blocked.
    pub(super) blocked: bool,
    /// How often it has hit it.
    pub(super) hits: u32,
}

impl TrapMask {
    /// That of a process that the thread `parent` has forked, whose thread is `child`.
    pub(super) fn of_forked(&self, parent: i32, child: i32) -> Self {
        let blocking = self.blocking.get(&parent).map(|mask| (child, *mask)).into_iter().collect();
        Self { action: self.action, blocking, ..Self::default() }
    }

    /// That of the program which this one becomes by exec: to ignore the signal is inherited.
    pub(super) fn of_next_image(&self) -> Self {
        let action = match self.action {
            TrapAction::Known([sigtrap_fallback::IGNORE, ..]) => self.action,
            _ => TrapAction::Default,
        };
        Self { action, ..Self::default() }
    }
}

/// What is known of the children's actions for SIGTRAP, by thread.
#[derive(Debug, Default)]
pub(super) struct SharersTraps {
    /// When it was last looked at whether a thread has our handler.
    pub(super) looked: FxHashMap<i32, Instant>,
    /// The masks of those for which SIGTRAP was opened.
    pub(super) opened: FxHashMap<i32, u64>,
    /// Processes that have set an action themselves.
    pub(super) own: BTreeSet<i32>,
}
