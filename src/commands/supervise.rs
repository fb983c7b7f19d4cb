//! What `run` and `attach` share: a tracer thread that traces, and this thread, the control thread, that keeps the
//! time, takes the user's signals and draws the progress line.

use super::debuggers::{self, Debuggers};
use super::hook::{HookRunner, Passers};
use super::notes::TimelineNotes;
use super::occasions::{self, Watcher};
use super::series::Series;
use super::service::Service;
use super::slowdown::Slowdown;
use crate::base::progress::Progress;
use crate::cli::ProfileOptions;
use crate::session::{self, Endings, Settings, Target, Traced};
use crate::tracer::control::{self, Control, SignalMask, UserSignal};
use crate::tracer::guardian::GuardianProcess;
use crate::tracer::orphans;
use anyhow::{Context, anyhow};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the control thread looks around.
const TICK: Duration = Duration::from_millis(100);

/// How often is looked whether the program sleeps while its last events wait in the trace's buffer.
const TRACE_LOOK: Duration = Duration::from_secs(1);

/// How often an order is repeated until the tracer thread has taken it.
const REPEAT: Duration = Duration::from_millis(10);

/// How long a program that was passed a SIGTERM or SIGHUP may take to end before its profile is written without its
/// end.
const GRACE: Duration = Duration::from_secs(5);

/// How long the tracer thread may sleep on when it is to end. What it waits for itself has deadlines; the kernel may
/// still hold it up, as in the memory of a process that hangs in an uninterruptible sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(4);

/// Who the signals that heaptrace gets are meant for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signals {
    /// `run`: the terminal gives Ctrl-C to the program as well, so the first is not ours; a second one detaches.
    /// SIGTERM and SIGHUP are passed on.
    ForTheProgram,
    /// `attach`: each of them ends the tracing.
    ForUs,
}

/// When collecting begins, when tracing ends, and when the program has to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    delay: Option<Duration>,
    duration: Option<Duration>,
    toggle: Option<UserSignal>,
    timeout: Option<Duration>,
}

impl Schedule {
    /// What the options say.
    pub const fn of(options: &ProfileOptions) -> Self {
        Self { delay: options.delay, duration: options.duration, toggle: options.toggle_signal, timeout: None }
    }

    /// The same, but the program is asked to end after `timeout`, by SIGTERM, and killed [`GRACE`] later.
    #[must_use]
    pub const fn with_timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }
}

/// What is made of what the session finds while it lasts.
#[derive(Clone, Copy, Debug)]
pub struct SessionOutputs<'a> {
    /// What the user asks for.
    pub profile: &'a ProfileOptions,
    /// The series of profiles, if one is written.
    pub series: Option<&'a Arc<Series>>,
    /// Who waits for `--on-profile` when the files of the end are written.
    pub passers: &'a Passers,
}

/// Makes heaptrace take its own signals from now on, the user's among them. Returns the mask from before.
///
/// # Errors
/// One signal is to mean two things; the kernel refuses.
pub fn take_signals(options: &ProfileOptions) -> anyhow::Result<SignalMask> {
    occasions::take_signals(options)?;
    Ok(control::block_own_signals()?)
}

/// Traces `target` to its end, or until its time has passed, or until the user has had enough. `tick` is called on this
/// thread several times a second, and can end the tracing, too.
///
/// # Errors
/// If tracing could not begin, or broke off: see [`session::trace`].
pub fn supervise(
    target: Target,
    mut settings: Settings,
    schedule: Schedule,
    signals: Signals,
    wanted: &SessionOutputs<'_>,
    progress: &Arc<Progress>,
    mut tick: impl FnMut() -> ControlFlow<()>,
) -> anyhow::Result<Traced> {
    let trace = settings.trace.clone();
    let launches = matches!(target, Target::Launch { .. });
    control::ignore_file_size_signal();
    let control = Arc::new(Control::new(settings.start_paused));
    let passer =
        HookRunner::start(wanted.profile).context("could not start the thread for --on-profile")?.map(Arc::new);
    let notes = TimelineNotes::wanted(wanted.profile);
    let mut watcher =
        Watcher::start(wanted.profile, &control, &settings.requests, progress, passer.as_ref(), notes.as_ref())?;
    let _service = Service::start(&control, &settings.requests, progress, wanted.profile);
    // On this thread: the tracer thread's waits must not find another child.
    let mut guardian = match GuardianProcess::start(settings.pin) {
        Ok((process, guardian)) => {
            settings.guardian = Some(guardian);
            Some(process)
        }
        Err(error) => {
            tracing::warn!("{error}: if heaptrace is killed, the target may die, too");
            None
        }
    };
    let mut series = None;
    if let Some(wanted) = wanted.series {
        let (endings, ended) = Endings::new();
        settings.endings = Some(endings);
        let (requests, passer, notes) = (&settings.requests, passer.as_ref(), notes.as_ref());
        series = Some(wanted.start(&control, requests, progress, passer, notes, ended)?);
    }
    let tracer = std::thread::Builder::new()
        .name("tracer".to_owned())
        .spawn({
            let (control, progress) = (Arc::clone(&control), Arc::clone(progress));
            move || {
                let _finish = Finish(&control);
                session::trace(target, settings, &control, progress)
            }
        })
        .context("could not start the tracer thread (limited memory, `ulimit -v`, or processes, `ulimit -u`?)")?;
    if let Err(error) = control.register_waiter() {
        tracing::warn!("{error}: heaptrace will notice the end a little later");
    }
    let mut slowdown = Slowdown::new(launches);
    let mut debuggers = Debuggers::default();
    let mut scheduled = false;
    let mut begins = None;
    let mut deadline = None;
    let mut timeout = None;
    let mut kill_at = None;
    let mut grace_ends = None;
    let mut interrupts = 0u32;
    let mut dismissed = false;
    let mut out_of_time = false;
    let mut asleep_since = None;
    let mut trace_looked = Instant::now();
    while !control.is_finished() {
        let now = Instant::now();
        // The time counts from the first probe on.
        if !scheduled && control.is_started() {
            scheduled = true;
            let delay = schedule.delay.unwrap_or_default();
            begins = schedule.delay.and_then(|delay| now.checked_add(delay));
            deadline = schedule.duration.and_then(|duration| now.checked_add(delay)?.checked_add(duration));
            timeout = schedule.timeout.and_then(|timeout| now.checked_add(timeout));
        }
        if timeout.take_if(|timeout| now >= *timeout).is_some() {
            kill_at = now.checked_add(GRACE);
            control.note_timeout();
            control.request_forward(control::TERMINATE);
        }
        if kill_at.is_some_and(|kill_at| now >= kill_at) {
            kill_at = now.checked_add(GRACE);
            control.request_end();
        }
        if begins.take_if(|begins| now >= *begins).is_some() {
            control.request_pause(false);
        }
        if [deadline, grace_ends].into_iter().flatten().any(|end| now >= end) && !control.detach_requested() {
            control.request_detach();
        }
        if control.is_started() {
            watcher.look();
            if let Some(notes) = &notes {
                notes.resident(progress);
            }
        }
        let is_pending = control.is_pending() || watcher.is_pending();
        let pause = if is_pending || !control.is_started() { REPEAT } else { TICK.min(slowdown.interval()) };
        let pause = watcher.rest().map_or(pause, |rest| pause.min(rest));
        let pause = if debuggers.is_awaited() { pause.min(debuggers::POLL_INTERVAL) } else { pause };
        let next_end =
            [begins, deadline, grace_ends, timeout, kill_at].into_iter().flatten().filter(|&end| end > now).min();
        let pause = next_end.map_or(pause, |end| pause.min(end - now));
        match control.next_signal_or_end(pause) {
            None => {}
            Some(control::JOB_STOP) => control::stop_with_job()?,
            Some(signal) if schedule.toggle.is_some_and(|toggle| toggle.number() == signal) => {
                control.request_pause(!control.is_paused());
            }
            Some(signal) if watcher.on_signal(signal) => {}
            Some(control::CPU_TIME) => {
                out_of_time = true;
                control.request_detach();
            }
            Some(signal) if signals == Signals::ForUs => {
                interrupts += u32::from(signal == control::INTERRUPT);
                dismissed = true;
                control.request_detach();
            }
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
        orphans::reap();
        debuggers.look(progress);
        match guardian.as_mut().map(GuardianProcess::look_after) {
            Some(Ok(true)) => {
                tracing::warn!("the guardian process was lost; heaptrace has started another one");
                control.request_guard();
            }
            Some(Err(error)) => {
                tracing::warn!(
                    "the guardian process is lost; {error}: if heaptrace is killed, the target may die, too"
                );
            }
            None | Some(Ok(false)) => {}
        }
        if let Some(trace) = trace.as_ref().filter(|_| control.detach_requested() || kill_at.is_some()) {
            trace.hurry();
        }
        if let Some(trace) = trace.as_ref().filter(|_| trace_looked.elapsed() >= TRACE_LOOK) {
            trace_looked = Instant::now();
            trace.look();
        }
        if control.is_pending() || watcher.is_pending() {
            control.wake();
        }
        match control.held_up_by().filter(|_| control.detach_requested()) {
            None => asleep_since = None,
            Some(cause) if asleep_since.get_or_insert_with(Instant::now).elapsed() > LONGEST_SLEEP => {
                // The guardian sees the end of this process, and does its work.
                return Err(anyhow!(
                    "the kernel blocks heaptrace ({cause}): it ends without a profile, and the guardian process \
                     restores the target's code"
                ));
            }
            Some(_) => {}
        }
        slowdown.look(progress);
        if tick().is_break() && !control.detach_requested() {
            control.request_detach();
        }
    }
    // Where the thread itself broke down the guardian is not dismissed: it sees its socket closed, and does its work.
    let traced = tracer.join().map_err(|_| anyhow!("the tracer thread panicked"));
    if let Some(guardian) = guardian.filter(|_| traced.is_ok()) {
        guardian.dismiss();
    }
    if let Some(series) = series {
        series.end();
    }
    let problems = watcher.finish();
    if let Some(passer) = passer {
        wanted.passers.close(passer);
    }
    let mut traced = traced??;
    if let Some(notes) = notes {
        let marks = std::mem::take(&mut traced.first.course.marks);
        traced.first.course = notes.take(&traced, wanted.profile);
        traced.first.course.marks = marks;
    }
    traced.unsaved |= problems.missing;
    traced.first.facts.warnings.extend(problems.told);
    traced.first.facts.warnings.extend(debuggers.told());
    slowdown.conclude(&mut traced);
    traced.first.interrupted = interrupts > 0;
    traced.first.dismissed = dismissed || out_of_time;
    if out_of_time {
        traced.first.facts.warnings.push(
            "tracing ended early, as heaptrace had nearly reached its own limit of CPU time (`ulimit -t`)".to_owned(),
        );
    }
    Ok(traced)
}

/// Tells the control thread that the tracer thread has finished, however it did.
struct Finish<'a>(&'a Control);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}
