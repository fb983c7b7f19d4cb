//! What others ask of a session while it traces: a queue between the thread that talks to them and the tracer thread.

use super::heapcapture::HeapCapture;
use super::interim::LiveSnapshot;
use crate::event::MarkName;
use crate::tracer::control::Control;
use crate::tracer::copy::Means;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the tracer thread is woken until it has taken the request.
const REPEAT: Duration = Duration::from_millis(10);

/// In place of a process: what is wanted is about all of them.
pub(super) const ANY: i32 = 0;

/// A request, with the way back for its answer.
#[derive(Debug)]
pub struct Request {
    /// The process that it is about, or [`ANY`].
    pub pid: i32,
    /// What is wanted.
    pub wish: RequestKind,
    /// Where the answer goes. Nobody may be left there.
    pub reply: Sender<Reply>,
}

/// What is wanted of the tracer thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// To let the process go.
    Detach,
    /// To record nothing for a while (true), or to go on (false).
    Pause(bool),
    /// To read the heap; or, with the means for that, a copy of it, if there can be one.
    Capture(Option<Means>),
    /// To end this copy, which has been read.
    EndCopy(i32),
    /// To give a view of what was found out so far; with the single blocks, if so.
    View {
        /// Whether single blocks are wanted.
        blocks: bool,
        /// As it was at this mark, instead of now.
        at: Option<MarkName>,
    },
    /// To set a mark in the streams of all processes.
    Mark(MarkName),
}

/// The tracer thread's answer; an error is a sentence for people.
pub type Reply = Result<Answer, String>;

/// What the tracer thread has done.
#[derive(Debug)]
pub enum Answer {
    /// The detach begins.
    Detaching,
    /// Whether it was already as it was wanted to be.
    Paused {
        /// Nothing has changed.
        already: bool,
    },
    /// The heap as it was.
    Captured(Box<HeapCapture>),
    /// What was found out by then.
    Viewed(Box<LiveSnapshot>),
    /// The mark is set.
    Marked,
    /// The copy is about to end, or was not there.
    CopyEnds,
}

/// The queue. The tracer thread looks at it between two stops, which must cost nothing while it is empty.
#[derive(Debug, Default)]
pub struct Requests {
    waiting: AtomicBool,
    queue: Mutex<VecDeque<Request>>,
}

impl Requests {
    /// Asks the tracer thread, and waits for its answer. None if it has finished without one.
    pub fn ask(&self, control: &Arc<Control>, pid: i32, wish: RequestKind) -> Option<Reply> {
        let (reply, answer) = mpsc::channel();
        self.lock().push_back(Request { pid, wish, reply });
        self.waiting.store(true, Ordering::Release);
        loop {
            // Also when it was taken: it may need a thread that can't do what is wanted yet.
            control.wake();
            match answer.recv_timeout(REPEAT) {
                Ok(reply) => return Some(reply),
                Err(RecvTimeoutError::Disconnected) => return None,
                // A session that has ended takes nothing any more.
                Err(RecvTimeoutError::Timeout) if control.is_finished() => return answer.try_recv().ok(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Tells the tracer thread to do something, whatever it answers. It is to be woken as long as [`Self::is_waiting`].
    pub fn order(&self, control: &Control, wish: RequestKind) {
        self.order_about(ANY, control, wish);
    }

    /// The same about a process.
    pub(super) fn order_about(&self, pid: i32, control: &Control, wish: RequestKind) {
        let (reply, _) = mpsc::channel();
        self.lock().push_back(Request { pid, wish, reply });
        self.waiting.store(true, Ordering::Release);
        control.wake();
    }

    /// Whether the tracer thread has not taken a request yet.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// The next request, if there is one. For the tracer thread.
    pub(super) fn take(&self) -> Option<Request> {
        if !self.waiting.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.lock();
        let next = queue.pop_front();
        self.waiting.store(!queue.is_empty(), Ordering::Release);
        next
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Request>> {
        // A queue is whole whatever its holder died of.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
