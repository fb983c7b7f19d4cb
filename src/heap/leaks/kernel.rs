//! Pointers that the kernel holds for a program and hands back to it: meanwhile they may lie in no memory of the
//! program's.

use super::{RootKind, RootWord};
use crate::base::addr::Addr;
use std::collections::BTreeMap;
use std::ops::Range;

/// What the kernel has got a pointer by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KernelHolder {
    /// sigaltstack(2).
    SignalStack {
        /// The thread.
        tid: i32,
    },
    /// The value of a timer's signal (timer_create(2)).
    Timer,
    /// The data of a watched descriptor (epoll_ctl(2)).
    Epoll,
}

impl KernelHolder {
    /// What it is called; `thread` names a thread.
    pub fn name(self, thread: impl Fn(i32) -> String) -> String {
        match self {
            Self::SignalStack { tid } => format!("signal stack of {}, registered in the kernel", thread(tid)),
            Self::Timer => "value of a timer's signal, which the kernel holds".to_owned(),
            Self::Epoll => "data of a descriptor that epoll watches, which the kernel holds".to_owned(),
        }
    }
}

/// What the kernel may hold pointers in that it tells nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unavailable {
    /// Requests of io_submit(2).
    Aio,
    /// Requests of io_uring(7).
    IoUring,
    /// Timers: this kernel does not list them, or there is only a core.
    Timers,
    /// What epoll watches: there are too many descriptors to look at each, or there is only a core.
    Epoll,
    /// Signal stacks of threads that could not be asked.
    SignalStacks,
}

impl Unavailable {
    /// Its short name, in words and in report.json.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aio => "aio",
            Self::IoUring => "io_uring",
            Self::Timers => "timers",
            Self::Epoll => "epoll",
            Self::SignalStacks => "sigaltstack",
        }
    }
}

/// What is known of all this for one process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelHeld {
    /// Values, and what holds them.
    pub values: Vec<(KernelHolder, u64)>,
    /// Where the signal stacks of the threads lie that could be asked, by their ids; None: that one has none.
    pub signal_stacks: BTreeMap<i32, Option<Range<Addr>>>,
    /// What could not be asked.
    pub untold: Vec<Unavailable>,
}

impl KernelHeld {
    /// What the kernel has told of timers and of what epoll watches (None where it has not), and whether there are
    /// requests that it never tells.
    pub fn new(timers: Option<Vec<u64>>, epoll: Option<Vec<u64>>, has_aio: bool, has_io_uring: bool) -> Self {
        let untold = [
            (has_aio, Unavailable::Aio),
            (has_io_uring, Unavailable::IoUring),
            (timers.is_none(), Unavailable::Timers),
            (epoll.is_none(), Unavailable::Epoll),
        ];
        let values =
            |holder, values: Option<Vec<u64>>| values.unwrap_or_default().into_iter().map(move |v| (holder, v));
        Self {
            values: values(KernelHolder::Timer, timers).chain(values(KernelHolder::Epoll, epoll)).collect(),
            signal_stacks: BTreeMap::new(),
            untold: untold.into_iter().filter(|(is_so, _)| *is_so).map(|(_, untold)| untold).collect(),
        }
    }

    /// The values as roots. They count as pointers to what they point to.
    pub(super) fn words(&self) -> impl Iterator<Item = RootWord> {
        self.values.iter().map(|&(holder, value)| RootWord { value, kind: RootKind::Kernel(holder) })
    }
}
