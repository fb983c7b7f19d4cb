//! The way round a whole session, and the way out of it: whatever breaks in here, an error or a panic, the process gets
//! its code back and lives on, and the user hears what became of it.

use super::Session;
use super::aftermath::{TargetState, TracingAborted};
use super::endings::Ending;
use super::error::SessionError;
use super::settings::{Settings, Target};
use super::traced::Traced;
use crate::base::progress::Progress;
use crate::tracer::control::Control;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Traces `target` to its end, or until `control` asks for a detach. Returns what was found out of it, and of the
/// others if they are followed. What was recorded until it broke off is a recording, too:
/// [`super::Recording::broken_off`] tells. To be called on a thread of its own, which must end afterwards: with it ends
/// what is left of the tracing.
///
/// # Errors
/// If tracing could not begin, or if nothing is left of what it has found: [`SessionError::BrokenOff`] tells what
/// became of the process.
pub fn trace(
    target: Target,
    settings: Settings,
    control: &Arc<Control>,
    progress: Arc<Progress>,
) -> Result<Traced, SessionError> {
    let launches = matches!(target, Target::Launch { .. });
    let start = || Session::start(target, settings, Arc::clone(control), progress);
    let mut session = match catch_unwind(AssertUnwindSafe(start)) {
        Ok(started) => started?,
        Err(panic) => {
            let aftermath = if launches { TargetState::NotStarted } else { TargetState::Untouched };
            return Err(TracingAborted { cause: words_of(&*panic), aftermath, child: None }.into());
        }
    };
    let traced = catch_unwind(AssertUnwindSafe(|| {
        session.begin()?;
        control.start();
        session.run()
    }));
    let cause = match traced {
        Ok(Ok(())) => {
            let (aftermath, child) = session.fate();
            let broken = |cause| SessionError::from(TracingAborted { cause, aftermath, child });
            return match catch_unwind(AssertUnwindSafe(|| session.finish(None))) {
                Ok(Some(traced)) => Ok(traced),
                Ok(None) => Err(broken("the state of the process is unknown".to_owned())),
                Err(panic) => Err(broken(words_of(&*panic))),
            };
        }
        Ok(Err(error)) => error.to_string(),
        Err(panic) => words_of(&*panic),
    };
    let (aftermath, child) = session.break_off();
    let broken = TracingAborted { cause, aftermath, child };
    if !control.is_started() {
        return Err(broken.into());
    }
    match catch_unwind(AssertUnwindSafe(|| session.finish(Some(&broken)))) {
        Ok(Some(traced)) => Ok(traced),
        Ok(None) | Err(_) => Err(broken.into()),
    }
}

/// What a panic said, which has been printed with its place already.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("of an unknown kind"))
}

impl Session {
    /// Restores the target's code and detaches from its tasks, as far as that can be done. Returns [`Self::fate`].
    fn break_off(&mut self) -> (TargetState, Option<i32>) {
        if self.unstarted.take().is_some() {
            return (TargetState::NotStarted, None);
        }
        // What breaks off the first attempt was perhaps what broke the session, too.
        for _ in 0..2 {
            match catch_unwind(AssertUnwindSafe(|| self.detach())) {
                Ok(Ok(())) => break,
                Ok(Err(error)) => tracing::warn!("{error}"),
                Err(panic) => tracing::warn!("{}", words_of(&*panic)),
            }
        }
        self.fate()
    }

    /// What has become of the target, and the program that was started if it runs on. A panic here would be the end of
    /// what was recorded: the second look is at what the first one has broken at.
    fn fate(&self) -> (TargetState, Option<i32>) {
        let look = || catch_unwind(AssertUnwindSafe(|| (self.aftermath(), self.child_that_lives_on())));
        look().or_else(|_| look()).unwrap_or((TargetState::Ended, None))
    }

    /// What has become of the target when nothing of ours is to be done any more: of several processes, of the one that
    /// it is worst for.
    fn aftermath(&self) -> TargetState {
        let mut all = self.processes.iter().map(|process| process.teardown.aftermath(&process.tracee));
        let first = all.next().unwrap_or(TargetState::Ended);
        all.fold(first, |worst, next| if next.severity() > worst.severity() { next } else { worst })
    }

    /// The program that was started, if it runs on.
    fn child_that_lives_on(&self) -> Option<i32> {
        let first = self.processes.find(self.first_pid).and_then(|slot| self.processes.get(slot))?;
        (!self.common.attached && first.teardown.aftermath(&first.tracee).survivor().is_some())
            .then_some(first.tracee.pid)
    }

    /// Ends the session: what it has found out, until it was broken off if it was.
    fn finish(mut self, broken_off: Option<&TracingAborted>) -> Option<Traced> {
        let (mut archive, mut others) = (std::mem::take(&mut self.archive), std::mem::take(&mut self.finished));
        let mut left = Vec::new();
        for slot in self.processes.slots() {
            left.extend(self.processes.remove(slot).map(|process| process.finish(broken_off)));
        }
        left.sort_by_key(|recording| std::cmp::Reverse(recording.number));
        let first = left.pop_if(|last| others.iter().all(|other| last.number < other.rest().number));
        for recording in left {
            if let Some(endings) = &self.common.settings.endings {
                endings.tell_at_once(Ending::Process(Box::new(recording.since(None))));
            }
            others.push(archive.add(recording));
        }
        others.sort_by_key(|other| std::cmp::Reverse(other.rest().number));
        let is_renumbered = first.is_none();
        let first = first.or_else(|| others.pop().map(|first| archive.take(first)))?;
        others.reverse();
        Some(Traced { first, is_renumbered, others, archive, unsaved: false })
    }
}
