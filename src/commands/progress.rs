//! The progress line: one line on stderr, redrawn in place and gone at the end.

use crate::base::progress::Reading;
use crate::cli::{ProfileOptions, Verbosity};
use crate::export::cost::Waiting;
use crate::export::text::{basename, grouped, human_bytes, plural, wrap};
use crate::tracer::terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// Over how much time the rate of events is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// How often a line is written where none can be redrawn.
const PLAIN_INTERVAL: Duration = Duration::from_secs(1);

/// Columns of a terminal that does not tell its width.
const DEFAULT_WIDTH: usize = 80;

/// Who else writes to the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Nobody (`attach`).
    Alone,
    /// The launched program, which inherits our descriptors (`run`).
    WithProgram,
}

/// Whether to draw a progress line. By default not where it could garble something: if stderr is no terminal, if the
/// program writes to the terminal too (a full-screen program would be unusable), or among diagnostics.
pub fn wanted(options: &ProfileOptions, sharing: Sharing) -> bool {
    let shared = sharing == Sharing::WithProgram && io::stdout().is_terminal();
    let auto = io::stderr().is_terminal() && !shared && options.verbosity == Verbosity::Normal;
    options.progress.resolve(auto) && options.verbosity != Verbosity::Quiet
}

/// The line. Dropping it clears it.
#[derive(Debug)]
pub struct ProgressLine {
    style: Style,
    recent: VecDeque<Reading>,
}

#[derive(Debug)]
enum Style {
    Off,
    Redrawn(ProgressBar),
    /// stderr is no terminal, but the line was asked for: a new line from time to time.
    Plain {
        next: Duration,
    },
}

impl ProgressLine {
    /// A line that is drawn if `on`.
    pub fn new(on: bool) -> Self {
        let style = match on {
            false => Style::Off,
            true if io::stderr().is_terminal() => {
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                // Cut off at the terminal's width: a line that wraps can't be redrawn in place.
                if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                    bar.set_style(style);
                }
                Style::Redrawn(bar)
            }
            true => Style::Plain { next: PLAIN_INTERVAL },
        };
        Self { style, recent: VecDeque::new() }
    }

    /// Shows the state `now`. To be called several times a second.
    pub fn tick(&mut self, now: Reading) {
        // Who else has the terminal now may draw over it, or over the whole screen.
        if matches!(self.style, Style::Off) || terminal::is_taken(&io::stderr()) {
            return;
        }
        let rate = self.rate(now);
        match &mut self.style {
            Style::Off => {}
            Style::Redrawn(bar) => {
                if bar.is_finished() {
                    // It was cleared meanwhile. Not done there, as it draws at once.
                    bar.reset();
                }
                bar.set_message(line(now, rate));
            }
            Style::Plain { next } => {
                if now.elapsed >= *next {
                    *next = now.elapsed + PLAIN_INTERVAL;
                    // A closed stderr is no reason to stop tracing.
                    let _ = writeln!(io::stderr(), "heaptrace: {}", line(now, rate));
                }
            }
        }
    }

    /// Events per second, lately.
    fn rate(&mut self, now: Reading) -> u64 {
        self.recent.push_back(now);
        while self.recent.get(1).is_some_and(|second| now.elapsed.saturating_sub(second.elapsed) >= RATE_WINDOW) {
            self.recent.pop_front();
        }
        let first = self.recent.front().copied().unwrap_or_default();
        let nanoseconds = now.elapsed.saturating_sub(first.elapsed).as_nanos();
        let events = u128::from(now.events.saturating_sub(first.events));
        (events * 1_000_000_000).checked_div(nanoseconds).and_then(|rate| u64::try_from(rate).ok()).unwrap_or_default()
    }

    /// Takes the line off the screen, for other output or for good. The next tick draws it again.
    pub fn clear(&mut self) {
        if let Style::Redrawn(bar) = &self.style {
            // dropping a bar draws, too
            if terminal::is_taken(&io::stderr()) {
                bar.set_draw_target(ProgressDrawTarget::hidden());
            }
            bar.finish_and_clear();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What is said on the terminal where the program writes to it, too, and no line is redrawn: that heaptrace is there,
/// and, if the program takes long, what it does and how to end it.
#[derive(Debug)]
pub struct Notice {
    hint_at: Option<Duration>,
}

impl Notice {
    /// After so long a user may wonder whether anything happens.
    const HINT: Duration = Duration::from_secs(5);

    /// Nothing will be said unless the program shares the terminal. `check` has no first line: a test suite has
    /// hundreds.
    pub fn new(options: &ProfileOptions, program: &str, check: bool) -> Self {
        let shared = io::stderr().is_terminal() && io::stdout().is_terminal();
        let on = shared && options.verbosity == Verbosity::Normal && options.progress.resolve(true);
        if on && !options.progress.resolve(false) && !check && !terminal::is_taken(&io::stderr()) {
            let name = basename(Path::new(program));
            super::tell(&format!("profiling {name}; a summary follows at its end"));
        }
        Self { hint_at: (on && !options.progress.resolve(false)).then_some(Self::HINT) }
    }

    /// Says the hint when it is time. To be called several times a second.
    pub fn tick(&mut self, now: Reading) {
        if self.hint_at.is_some_and(|at| now.elapsed >= at) && !terminal::is_taken(&io::stderr()) {
            self.hint_at = None;
            let (events, live) = (plural(now.events, "event"), human_bytes(now.live_bytes));
            let time = clock(now.elapsed);
            let hint = format!(
                "heaptrace: after {time} {events}, {live} live, {}; Ctrl-C goes to the program, a second one lets it \
                 run on without heaptrace; --progress always keeps this line up to date",
                slowdown(now)
            );
            let width = terminal::width(&io::stderr()).unwrap_or(DEFAULT_WIDTH);
            let _ = writeln!(io::stderr(), "{}", wrap(&hint, 2, width));
        }
    }
}

fn line(now: Reading, events_per_second: u64) -> String {
    format!(
        "{}  {} events/s  live {}  peak {}  {}",
        clock(now.elapsed),
        grouped(events_per_second),
        human_bytes(now.live_bytes),
        human_bytes(now.peak_bytes),
        slowdown(now)
    )
}

/// How much slower the program is under trace, or how much of the time it waits.
fn slowdown(now: Reading) -> String {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (least, most) = now.waited_range;
    Waiting { wall_ns: ns(now.elapsed), about_ns: ns(now.waited), range_ns: Some((ns(least), ns(most))) }
        .slowness_or_share()
}

/// `m:ss`, or `h:mm:ss`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours == 0 { format!("{minutes}:{seconds:02}") } else { format!("{hours}:{minutes:02}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(ms: u64, events: u64) -> Reading {
        Reading { elapsed: Duration::from_millis(ms), events, ..Reading::default() }
    }

    #[test]
    fn the_line_tells_time_rate_heap_and_cost() {
        let now = Reading {
            elapsed: Duration::from_secs(75),
            live_bytes: 12 * 1024 * 1024 + 400 * 1024,
            peak_bytes: 3 << 30,
            waited: Duration::from_secs(60),
            waited_range: (Duration::from_secs(59), Duration::from_secs(61)),
            ..Reading::default()
        };
        assert_eq!(line(now, 45_210), "1:15  45,210 events/s  live 12.39 MiB  peak 3.00 GiB  5 times slower");
        let unsure = Reading { waited_range: (Duration::from_secs(15), Duration::from_secs(60)), ..now };
        assert!(line(unsure, 0).ends_with("peak 3.00 GiB  waits 20.0 to 80.0 % of the time"));
        assert_eq!(line(Reading::default(), 0), "0:00  0 events/s  live 0 B  peak 0 B  hardly slower");
    }

    #[test]
    fn the_clock_shows_hours_only_when_there_are_some() {
        assert_eq!(clock(Duration::from_secs(59)), "0:59");
        assert_eq!(clock(Duration::from_secs(3 * 3600 + 62)), "3:01:02");
    }

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let mut progress = ProgressLine::new(false);
        assert_eq!(progress.rate(reading(0, 0)), 0);
        assert_eq!(progress.rate(reading(100, 500)), 5_000);
        for tenth in 2..=20 {
            progress.rate(reading(tenth * 100, 500));
        }
        assert_eq!(progress.rate(reading(2100, 500)), 0, "nothing has happened for two seconds");
        assert_eq!(progress.rate(reading(2200, 700)), 200);
        assert!(progress.recent.len() <= 12);
    }
}
