//! What `run` and `attach` share: a tracer thread that traces, and this thread, the control thread, that keeps the time,
//! takes the user's signals and draws the progress line.

use crate::progress::Progress;
use crate::session::{self, Recording, Settings, Target};
use crate::tracer::control::{self, Control};
use anyhow::{Context, anyhow};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the control thread looks around.
const TICK: Duration = Duration::from_millis(100);

/// How often an order is repeated until the tracer thread has taken it.
const REPEAT: Duration = Duration::from_millis(10);

/// How long a program that was passed a SIGTERM or SIGHUP may take to end before its profile is written without its end.
const GRACE: Duration = Duration::from_secs(5);

/// Who the signals that heaptrace gets are meant for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signals {
    /// `run`: the terminal gives Ctrl-C to the program as well, so the first is not ours; a second one detaches. SIGTERM
    /// and SIGHUP are passed on.
    ForTheProgram,
    /// `attach`: each of them ends the tracing.
    ForUs,
}

/// Traces `target` to its end, or until `duration` has passed, or until the user has had enough. `tick` is called on this
/// thread several times a second.
///
/// # Errors
/// If tracing could not begin, or broke off: see [`session::trace`].
pub fn supervise(
    target: Target,
    settings: Settings,
    duration: Option<Duration>,
    signals: Signals,
    progress: &Arc<Progress>,
    mut tick: impl FnMut(),
) -> anyhow::Result<Recording> {
    control::ignore_file_size_signal();
    let control = Arc::new(Control::default());
    let tracer = std::thread::Builder::new()
        .name("tracer".to_owned())
        .spawn({
            let (control, progress) = (Arc::clone(&control), Arc::clone(progress));
            move || {
                let _finish = Finish(&control);
                session::trace(target, settings, &control, progress)
            }
        })
        .context("could not start the tracer thread")?;
    let mut deadline = None;
    let mut grace_ends = None;
    let mut interrupts = 0;
    while !control.is_finished() {
        let now = Instant::now();
        // The time counts from the first probe on.
        if deadline.is_none() && control.is_started() {
            deadline = duration.and_then(|duration| now.checked_add(duration));
        }
        if [deadline, grace_ends].into_iter().flatten().any(|end| now >= end) && !control.detach_requested() {
            control.request_detach();
        }
        let pause = if control.is_pending() || !control.is_started() { REPEAT } else { TICK };
        let next_end = [deadline, grace_ends].into_iter().flatten().filter(|&end| end > now).min();
        let pause = next_end.map_or(pause, |end| pause.min(end - now));
        match control::next_signal(pause) {
            None => {}
            Some(_) if signals == Signals::ForUs => control.request_detach(),
            Some(control::INTERRUPT | control::QUIT) => {
                interrupts += 1;
                if interrupts >= 2 {
                    control.request_detach();
                }
            }
            Some(signal) => {
                control.request_forward(signal);
                grace_ends = grace_ends.or_else(|| Instant::now().checked_add(GRACE));
            }
        }
        if control.is_pending() {
            control.wake();
        }
        tick();
    }
    Ok(tracer.join().map_err(|_| anyhow!("the tracer thread broke down"))??)
}

/// Tells the control thread that the tracer thread has finished, however it did.
struct Finish<'a>(&'a Control);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}
