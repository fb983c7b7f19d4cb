//! What breakpoints do to a program's handling of SIGTRAP, and what heaptrace does about it.
//!
//! | what | where |
//! |---|---|
//! | what is known of it | here |
//! | a thread's mask and the program's action, which a trap resets | `mask.rs` |
//! | the handler that the program has meanwhile, in case heaptrace is killed | `fallback.rs` |
//! | the same in children that share the memory | `sharers.rs` |

mod fallback;
mod mask;
mod sharers;

use crate::base::addr::Addr;
use crate::tracer::remote::KernelAction;
use crate::tracer::sigtrap_fallback::{self, SigtrapFallback};
use crate::tracer::status::SIGTRAP;
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct SigtrapGuard {
    /// What the program wants of SIGTRAP, and which threads block it.
    trap_mask: TrapMask,
    /// The SIGTRAP fallback.
    fallback: FallbackState,
    /// It is to be installed at the next stop.
    fallback_at_stop: bool,
    /// Threads for which it was taken out a moment ago.
    yielded: HashSet<i32>,
    /// The same of children that share the memory.
    sharers: SharersTraps,
}

impl SigtrapGuard {
    /// The process has become another program.
    pub(super) fn begin_image(&mut self) {
        self.trap_mask = self.trap_mask.of_next_image();
        self.fallback = FallbackState::default();
        self.yielded.clear();
    }

    /// The handler, if it may be there.
    pub(super) const fn handler(&self) -> Option<SigtrapFallback> {
        self.fallback.handler()
    }

    /// Whether the handler is installed at the next stop, and probes are placed only then.
    pub(super) const fn awaits_first_stop(&self) -> bool {
        self.fallback_at_stop
    }

    /// Whether the handler is to come back at the next stop of this thread, for which it was taken out.
    pub(super) fn awaits_stop_of(&self, tid: i32) -> bool {
        matches!(self.fallback, FallbackState::Unset) && self.yielded.contains(&tid)
    }
}

/// The bit of a signal in a set as the kernel has it.
const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// SIGTRAP, in a set of signals.
pub(super) const SIGTRAP_BIT: u64 = bit(SIGTRAP);

/// Whether the handler is installed in the current image.
#[derive(Clone, Copy, Debug, Default)]
enum FallbackState {
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
    const fn handler(self) -> Option<SigtrapFallback> {
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
const IGNORING: KernelAction = [sigtrap_fallback::IGNORE, 0, 0, 0];

/// What the program wants to happen at a SIGTRAP, where that is not the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum TrapAction {
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
struct TrapMask {
    action: TrapAction,
    by_breakpoint: FxHashMap<(i32, Addr), BreakpointHits>,
    /// The masks of threads that were seen with SIGTRAP blocked, by thread.
    blocking: FxHashMap<i32, u64>,
    /// How often a handler, the program's or ours, was installed by us.
    installed: u64,
    /// What `installed` was when a thread was last resumed at a breakpoint, by thread.
    resumed: FxHashMap<i32, u64>,
    /// The same for threads that have not been at one yet.
    installed_at_first: u64,
}

/// One thread at one breakpoint.
#[derive(Clone, Copy, Debug)]
struct BreakpointHits {
    /// Whether all signals were blocked.
    blocked: bool,
    /// How often it has hit it.
    hits: u32,
}

impl TrapMask {
    /// That of a process that the thread `parent` has forked, whose thread is `child`.
    fn of_forked(&self, parent: i32, child: i32) -> Self {
        let blocking = self.blocking.get(&parent).map(|mask| (child, *mask)).into_iter().collect();
        Self { action: self.action, blocking, ..Self::default() }
    }

    /// That of the program which this one becomes by exec: to ignore the signal is inherited.
    fn of_next_image(&self) -> Self {
        let action = match self.action {
            TrapAction::Known([sigtrap_fallback::IGNORE, ..]) => self.action,
            _ => TrapAction::Default,
        };
        Self { action, ..Self::default() }
    }
}

/// What is known of the children's actions for SIGTRAP, by thread.
#[derive(Debug, Default)]
struct SharersTraps {
    /// When it was last looked at whether a thread has our handler.
    looked: FxHashMap<i32, Instant>,
    /// The masks of those for which SIGTRAP was opened.
    opened: FxHashMap<i32, u64>,
    /// Processes that have set an action themselves.
    own: BTreeSet<i32>,
}
