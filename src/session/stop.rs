//! One stop of a task, and its answer.

use super::slots::Slot;
use crate::tracer::ptrace::Stopped;
use crate::tracer::status::WaitStatus;

/// A task that has stopped and is to be answered.
#[derive(Debug)]
pub(super) struct Stop {
    /// What was reported; while it is answered, another status may take its place
    /// ([`TracerError::Overtaken`](crate::tracer::TracerError::Overtaken)).
    pub(super) status: WaitStatus,
    /// By which the task is asked for things, and goes on.
    pub(super) stopped: Stopped,
    /// The process that it belongs to; None for a new task, until it is known whose it is.
    pub(super) slot: Option<Slot>,
}

impl Stop {
    /// The task.
    pub(super) const fn tid(&self) -> i32 {
        self.stopped.tid()
    }
}

/// What to do with a stopped task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Let it run on, delivering this signal (0: none).
    Resume(i32),
    /// Leave it in its group stop.
    Listen,
    /// Detach from it.
    Detach,
    /// It is gone; there is nothing left to resume.
    Gone,
    /// It is a new process, whose parent has not announced it yet: it waits for that.
    Hold,
}

/// The stop that is being answered: what is left of it if that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving {
    pub(super) tid: i32,
    pub(super) status: WaitStatus,
    /// What was decided, once it was.
    pub(super) answer: Option<Action>,
}
