//! The answer to a stop.

use crate::tracer::status::WaitStatus;

/// What to do with a stopped task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Let it run on, delivering this signal (0: none).
    Resume(i32),
    /// Leave it in its group stop.
    Listen,
    /// Let go of it.
    Detach,
    /// It is gone; there is nothing left to resume.
    Gone,
    /// It is in another stop meanwhile: that is to be answered.
    Instead(WaitStatus),
    /// It is a new process, whose parent has not told of it yet: it waits for that.
    Hold,
}

/// A stop that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving {
    pub(super) tid: i32,
    pub(super) status: WaitStatus,
    /// What was decided, once it was.
    pub(super) answer: Option<Action>,
}
