//! Work that may take long, on a thread of its own: a stopped thread of the target waits for the tracer thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

/// What a helper thread is still at.
#[derive(Debug)]
pub(super) struct Pending<T>(Receiver<T>);

/// What has become of work after a while.
#[derive(Debug)]
pub(super) enum Poll<T> {
    /// It is done.
    Done(T),
    /// It goes on.
    Pending(Pending<T>),
    /// The thread could not be started, or broke down.
    Failed,
}

/// For how long a session waits for helpers altogether. One slow folder of debug files concerns all modules.
const SESSIONS_PATIENCE: Duration = Duration::from_secs(3);

/// Waits shorter than this are not counted: they come with every module.
const SHORT: Duration = Duration::from_millis(50);

/// How much longer a session will wait.
#[derive(Debug)]
pub(super) struct WaitBudget(Duration);

impl Default for WaitBudget {
    fn default() -> Self {
        Self(SESSIONS_PATIENCE)
    }
}

impl WaitBudget {
    /// Does `work` on a thread of its own and waits for it up to `most`, and not longer than the session will. The
    /// thread goes on afterwards; it ends with heaptrace.
    pub(super) fn wait<T: Send + 'static>(
        &mut self,
        most: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Poll<T> {
        let began = Instant::now();
        let outcome = soon(most.min(self.0.max(SHORT)), work);
        let took = began.elapsed();
        if took > SHORT {
            self.0 = self.0.saturating_sub(took);
        }
        outcome
    }
}

fn soon<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Poll<T> {
    let (send, receive) = channel();
    // Nobody takes the answer of one that comes too late.
    let started = std::thread::Builder::new().name("debug files".to_owned()).spawn(move || drop(send.send(work())));
    if let Err(error) = started {
        tracing::warn!("a thread to read debug files could not be started: {error}");
        return Poll::Failed;
    }
    match receive.recv_timeout(patience) {
        Ok(done) => Poll::Done(done),
        Err(RecvTimeoutError::Timeout) => Poll::Pending(Pending(receive)),
        Err(RecvTimeoutError::Disconnected) => Poll::Failed,
    }
}

impl<T> Pending<T> {
    /// What has become of it now.
    pub(super) fn look(self) -> Poll<T> {
        match self.0.try_recv() {
            Ok(done) => Poll::Done(done),
            Err(TryRecvError::Empty) => Poll::Pending(self),
            Err(TryRecvError::Disconnected) => Poll::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_long_keeps_nobody_waiting() {
        let (go, wait) = channel();
        let Poll::Pending(late) = soon(Duration::from_millis(1), move || wait.recv().is_ok()) else {
            panic!("not late")
        };
        let Poll::Pending(mut late) = late.look() else { panic!("done before it could") };
        go.send(()).unwrap();
        loop {
            match late.look() {
                Poll::Done(done) => return assert!(done),
                Poll::Pending(still) => late = still,
                Poll::Failed => panic!("failed"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn many_slow_files_keep_nobody_waiting_for_long() {
        let mut patience = WaitBudget(Duration::from_millis(120));
        let began = Instant::now();
        let mut blocked = Vec::new();
        for _ in 0..5 {
            let (end, wait) = channel::<()>();
            assert!(matches!(patience.wait(Duration::from_secs(60), move || wait.recv()), Poll::Pending(_)));
            blocked.push(end);
        }
        assert_eq!(patience.0, Duration::ZERO);
        assert!(began.elapsed() < Duration::from_secs(30), "each waits SHORT at most from then on");
        assert!(matches!(patience.wait(Duration::from_secs(60), || 7), Poll::Done(7) | Poll::Pending(_)));
    }

    #[test]
    fn what_breaks_down_has_no_answer() {
        let broken = soon(Duration::from_secs(60), || {
            if std::hint::black_box(true) {
                std::panic::resume_unwind(Box::new(()))
            }
        });
        assert!(matches!(broken, Poll::Failed));
        assert!(matches!(soon(Duration::from_secs(60), || 7), Poll::Done(7)));
    }
}
