//! What ends while the session goes on goes at once to the writer of a series' parts: an image that an exec replaces,
//! and a process of which others are left. Afterwards nothing would be left of the one, and only totals of the other's
//! stacks as they were.

use super::interim::LiveSnapshot;
use super::recording::Recording;
use super::requests::Requests;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// So many may wait to be written before the tracer thread waits, and the program with it.
const MAX_WAITING: usize = 16;

/// How often it looks again, and how many times at most.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const LOOKS: u32 = 200;

/// What has ended.
#[derive(Debug)]
pub enum Ending {
    /// An image of a process, by exec.
    Image(Box<LiveSnapshot>),
    /// A process.
    Process(Box<Recording>),
}

impl Ending {
    /// Whether the process has ended, and not only an image of it.
    pub const fn is_process(&self) -> bool {
        matches!(self, Self::Process(_))
    }

    /// What was found out by then.
    pub fn into_recording(self) -> Recording {
        match self {
            Self::Image(interim) => interim.into_recording(),
            Self::Process(recording) => *recording,
        }
    }
}

/// The tracer thread's side.
#[derive(Clone, Debug)]
pub struct Endings {
    sender: Sender<Ending>,
    waiting: Arc<AtomicUsize>,
}

/// The side of who writes.
#[derive(Debug)]
pub struct Ended {
    receiver: Receiver<Ending>,
    waiting: Arc<AtomicUsize>,
}

impl Endings {
    /// Both sides.
    pub fn new() -> (Self, Ended) {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Self { sender, waiting: Arc::clone(&waiting) }, Ended { receiver, waiting })
    }

    /// Waits until there is room for it, but not while somebody waits for the tracer thread: it may be who writes.
    pub(super) fn tell(&self, ending: Ending, requests: &Requests) {
        for _ in 0..LOOKS {
            if self.waiting.load(Ordering::Relaxed) < MAX_WAITING || requests.is_waiting() {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.tell_at_once(ending);
    }

    /// The same without waiting.
    pub(super) fn tell_at_once(&self, ending: Ending) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Nobody may be left who writes.
        let _ = self.sender.send(ending);
    }
}

impl Ended {
    /// The next one, if there is one by now.
    pub fn take(&self) -> Option<Ending> {
        let next = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(next)
    }
}
