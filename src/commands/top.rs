//! `heaptrace top`: the terminal, the conversation with the heaptrace that traces the process, and where there is none,
//! the tracing.

mod asking;
mod screen;

use super::attach::{find, process_of, require_every_block};
use super::settings::settings;
use super::supervise::{Schedule, SessionOutputs, Signals, supervise, take_signals};
use super::{attach, hook, print, print_for_reader, tell, use_color};
use crate::base::progress::Progress;
use crate::cli::{EXIT_OWN_FAILURE, TopOptions};
use crate::session::{Target, Traced};
use crate::top::{Action, State, Subject, answer};
use crate::tracer::socket::{self, AskError, TracerOf};
use crate::tracer::{control, terminal};
use anyhow::{anyhow, bail};
use asking::{Asker, TopEvent};
use screen::Screen;
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often is looked whether there is news, or it is over.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How often a heaptrace that is about to trace is tried to be asked.
const TRY: Duration = Duration::from_millis(20);

/// For how long our own session may be without a socket while it begins.
const FOR_SOCKET: Duration = Duration::from_secs(5);

/// So many sites are asked for.
const SITES: usize = 300;

/// The width of lines where there is no terminal that has one.
const WIDTH: usize = 200;

/// So many are still there to read when the screen has gone.
const LAST_SITES: usize = 5;

/// Watches the process. The exit status is 0 if it could be.
///
/// # Errors
/// There is no terminal to draw on; the process can be neither asked about nor traced.
pub fn execute(options: &TopOptions) -> anyhow::Result<u8> {
    if !options.batch {
        let missing = [("input", io::stdin().is_terminal()), ("output", io::stdout().is_terminal())];
        if let Some((name, _)) = missing.into_iter().find(|(_, there)| !there) {
            bail!(
                "top draws on a terminal, and standard {name} is not one: `heaptrace top --batch -n 1 PID` prints the \
                 same once, `heaptrace snapshot PID --format json -o -` is for scripts"
            );
        }
        if terminal::is_anothers(&io::stdin()) {
            bail!(
                "another job has the terminal: `fg` gives it to top, and `heaptrace top --batch PID` prints without one"
            );
        }
    }
    let pid = find(&options.target)?;
    match socket::connect_to_tracer_of(pid) {
        Ok(tracer) => {
            control::block_own_signals()?;
            let view = View { options, subject: Subject { pid, attached: false }, over: &AtomicBool::new(false) };
            let seen = view.watch(tracer)?;
            seen.say_goodbye(options.batch)?;
            Ok(0)
        }
        Err(AskError::NotTraced { .. }) => attach_to(pid, options),
        Err(error) => Err(error.into()),
    }
}

/// Attaches, watches, and lets go.
fn attach_to(pid: i32, options: &TopOptions) -> anyhow::Result<u8> {
    let profile = &options.profile;
    process_of(pid, "top")?;
    let mut settings = settings(profile, false)?;
    settings.existing = options.existing;
    settings.copy = if options.existing { crate::inspect::means(pid) } else { None };
    require_every_block(options.existing, profile)?;
    take_signals(profile)?;
    control::block_terminal_stops()?;
    let progress = Arc::new(Progress::default());
    let passers = hook::Passers::default();
    let over = AtomicBool::new(false);
    let view = View { options, subject: Subject { pid, attached: true }, over: &over };
    let (seen, traced) = std::thread::scope(|scope| {
        let watcher = std::thread::Builder::new()
            .name("top".to_owned())
            .spawn_scoped(scope, || view.wait_for_tracer()?.map(|tracer| view.watch(tracer)).transpose());
        let watcher = match watcher {
            Ok(watcher) => watcher,
            Err(error) => return (Err(error.into()), Err(anyhow!("nothing was traced"))),
        };
        let wanted = SessionOutputs { profile, series: None, passers: &passers };
        let enough = || if watcher.is_finished() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let schedule = Schedule::of(profile);
        let target = Target::Attach { pid };
        let traced = supervise(target, settings, schedule, Signals::ForUs, &wanted, &progress, enough);
        over.store(true, Ordering::Release);
        let seen = watcher.join().unwrap_or_else(|_| Err(anyhow!("internal error: the thread that draws panicked")));
        (seen, traced)
    });
    control::unblock_terminal_stops()?;
    let traced = traced.map_err(|error| attach::explain(error, pid))?;
    if let Some(seen) = seen? {
        seen.say_goodbye(options.batch)?;
    }
    Ok(if conclude(pid, &traced) { 0 } else { EXIT_OWN_FAILURE })
}

/// Says what has become of the process, and whether all went well.
fn conclude(pid: i32, traced: &Traced) -> bool {
    let first = &traced.first;
    if let Some(broken) = &first.broken_off {
        tell(&broken.to_string());
    }
    for warning in &first.facts.warnings {
        tell(warning);
    }
    let end = if first.facts.detached { "was let go, and runs on" } else { "has ended" };
    tell(&format!("process {pid} {end}"));
    traced.went_well()
}

/// How wide lines may be.
fn width() -> usize {
    terminal::width(&io::stdout()).unwrap_or(WIDTH)
}

/// What was seen last, and why there is no more.
struct LastView {
    state: State,
    end: Option<String>,
}

impl LastView {
    /// When the screen has gone, what it has shown stays.
    fn say_goodbye(&self, batch: bool) -> anyhow::Result<()> {
        if !batch {
            print(&answer(&self.state, LAST_SITES, width()))?;
        }
        if let Some(end) = &self.end {
            tell(end);
        }
        Ok(())
    }
}

/// The watching, whoever traces.
#[derive(Clone, Copy)]
struct View<'a> {
    options: &'a TopOptions,
    subject: Subject,
    /// Set when nobody is traced any more.
    over: &'a AtomicBool,
}

impl View<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || control::waiting_request_to_end().is_some()
    }

    /// Our own session, as soon as it can be asked. None if it could not begin.
    ///
    /// # Errors
    /// It is there and has no socket.
    fn wait_for_tracer(&self) -> anyhow::Result<Option<TracerOf>> {
        let mut traced_since = None;
        while !self.is_over() {
            match socket::connect_to_tracer_of(self.subject.pid) {
                Ok(tracer) => return Ok(Some(tracer)),
                Err(AskError::NotTraced { .. } | AskError::NoProcess { .. }) => {}
                Err(error) if traced_since.get_or_insert_with(Instant::now).elapsed() > FOR_SOCKET => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
            std::thread::sleep(TRY);
        }
        Ok(None)
    }

    fn watch(&self, tracer: TracerOf) -> anyhow::Result<LastView> {
        let color = use_color(self.options.profile.color, &io::stdout());
        let state = State::new(self.subject, self.options.order, color);
        let asker = Asker::start(self.subject.pid, tracer)?;
        if self.options.batch { self.print(asker, state) } else { self.draw(asker, state) }
    }

    /// Prints one answer after the other.
    fn print(&self, mut asker: Asker, mut state: State) -> anyhow::Result<LastView> {
        let mut seen = 0;
        // what has just begun knows of nothing yet
        let is_new = self.subject.attached && !self.options.existing;
        let mut due = Instant::now() + if is_new { self.options.every } else { Duration::ZERO };
        while !self.is_over() {
            if !asker.is_waiting() && Instant::now() >= due {
                due = Instant::now() + self.options.every;
                asker.ask(state.question(SITES, None));
            }
            match asker.news(POLL_INTERVAL) {
                Some(TopEvent::Answer { answer: new, resident, .. }) => {
                    state.update(*new, resident);
                    let gap = if seen == 0 { "" } else { "\n" };
                    let is_read = print_for_reader(&format!("{gap}{}", answer(&state, self.options.rows, width())))?;
                    seen += 1;
                    if !is_read || self.options.samples.is_some_and(|samples| seen >= samples) {
                        return Ok(LastView { state, end: None });
                    }
                }
                Some(TopEvent::Over(end)) => return self.ended(state, end, seen),
                Some(TopEvent::Refused(reason) | TopEvent::Broken(reason)) => bail!("{reason}"),
                Some(TopEvent::Told(_)) | None => {}
            }
        }
        Ok(LastView { state, end: None })
    }

    /// Draws one answer after the other, and does what keys say.
    fn draw(&self, mut asker: Asker, mut state: State) -> anyhow::Result<LastView> {
        // An error of the first answer is shown on the screen that there is.
        asker.ask(state.question(SITES, None));
        let mut seen = 0;
        let mut due = Instant::now() + self.options.every;
        let mut screen: Option<Screen> = None;
        let mut mark = None;
        let mut changed = true;
        while !self.is_over() {
            if !asker.is_waiting() && (Instant::now() >= due || mark.is_some()) {
                due = Instant::now() + self.options.every;
                asker.ask(state.question(SITES, mark.take()));
            }
            while let Some(news) = asker.news(if screen.is_some() { Duration::ZERO } else { POLL_INTERVAL }) {
                changed = true;
                match news {
                    TopEvent::Answer { answer: new, resident, mark } => {
                        if let Some(mark) = mark {
                            state.marked(&mark);
                        }
                        state.update(*new, resident);
                        seen += 1;
                        if self.options.samples.is_some_and(|samples| seen >= samples) {
                            return Ok(LastView { state, end: None });
                        }
                        if screen.is_none() {
                            screen = Some(Screen::open()?);
                        }
                    }
                    TopEvent::Told(text) => state.tell(&text),
                    TopEvent::Refused(reason) if screen.is_some() => state.tell(&reason),
                    TopEvent::Refused(reason) | TopEvent::Broken(reason) => bail!("{reason}"),
                    TopEvent::Over(end) => return self.ended(state, end, seen),
                }
            }
            let Some(screen) = &mut screen else { continue };
            if std::mem::take(&mut changed) {
                screen.draw(&state)?;
            }
            let keys = screen.keys(POLL_INTERVAL)?;
            changed = screen.has_new_size() || !keys.is_empty();
            for key in keys {
                match state.press(key) {
                    Some(Action::Quit) => return Ok(LastView { state, end: None }),
                    Some(Action::Ask) => due = Instant::now(),
                    Some(Action::Mark(name)) => mark = Some(name),
                    Some(Action::Snapshot) => asker.take_snapshot(),
                    // ours is let go when we leave
                    Some(Action::Detach) if self.subject.attached => return Ok(LastView { state, end: None }),
                    Some(Action::Detach) => asker.detach(),
                    None => {}
                }
            }
        }
        Ok(LastView { state, end: None })
    }

    /// The conversation is over. The tracer of an attached process tells what becomes of it.
    fn ended(&self, state: State, end: String, seen: u64) -> anyhow::Result<LastView> {
        if seen == 0 && !self.subject.attached {
            bail!("{end}");
        }
        Ok(LastView { state, end: (!self.subject.attached).then_some(end) })
    }
}
