//! What tracing cost the program, in words.

use super::sections::{Layout, heading, prose};
use super::text::{duration, grouped, percent, plural, printable, wrap};
use super::view::View;
use crate::profile::PromotedAt;
use std::fmt::Write;

/// Above this share of time waited, in percent, the report says what would help.
const WAITED_PERCENT: u64 = 20;

/// From this wall time on, in nanoseconds, there is a part of the run that could be traced instead of all of it.
const LONG_RUN_NS: u64 = 30_000_000_000;

/// What tracing cost the program.
pub(crate) fn cost(out: &mut String, layout: Layout, view: &View<'_>) {
    let cost = &view.profile.cost;
    if cost.stops == 0 && view.profile.saved.is_some() {
        return;
    }
    heading(out, layout, "Cost");
    let engine = printable(&view.profile.meta.engine);
    let wall = duration(cost.wall_ns);
    if cost.stops == 0 {
        prose(out, layout, &format!("{wall} wall time; no stops (engine {engine})"));
        promotion(out, layout, view);
        return;
    }
    let line = match cost.waited_ns {
        Some(about_ns) => {
            let waiting = Waiting { wall_ns: cost.wall_ns, about_ns, range_ns: cost.waited_range_ns };
            let (long, slowness) =
                if cost.is_at_least() { (waiting.at_least(), None) } else { (waiting.how_long(), waiting.slowness()) };
            let slowness = slowness.map(|slowness| format!(": {slowness} than without")).unwrap_or_default();
            format!("{wall} wall time; the program waited for heaptrace for {long}{slowness}")
        }
        None => format!("{wall} wall time"),
    };
    prose(out, layout, &line);
    let (events, stops) = (plural(cost.events, "event"), plural(cost.stops, "stop"));
    let (each, max) = (duration(cost.stopped_ns / cost.stops), duration(cost.stopped_max_ns));
    let line = match cost.events_without_stop {
        0 => format!(
            "{events} in {stops}; heaptrace worked on a stop for {each} on average, {max} at most (engine {engine})"
        ),
        recorded => format!(
            "{events}; {recorded} were recorded without a stop{each} (engine {engine}); {stops} took heaptrace \
             {all} in all, {max} at most",
            recorded = grouped(recorded),
            each = match cost.recording_ns / recorded {
                0 => String::new(),
                _ if view.profile.totals.counted_allocations > 0 => {
                    let all = duration(cost.recording_ns);
                    format!(", which took the program, with the counting of all others, about {all} in all")
                }
                ns => format!(", which took the program about {} each", duration(ns)),
            },
            all = duration(cost.stopped_ns)
        ),
    };
    prose(out, layout, &line);
    promotion(out, layout, view);
    let waited = cost.waited_ns.unwrap_or(cost.stopped_ns);
    if u128::from(waited) * 100 > u128::from(cost.wall_ns) * u128::from(WAITED_PERCENT) {
        let help = cheaper(view).join(" ");
        if !help.is_empty() {
            let _ = writeln!(out, "  {}", layout.paint.yellow(&wrap(&help, 2, layout.width)));
        }
    }
}

/// When and why the process went over to the jump engine.
fn promotion(out: &mut String, layout: Layout, view: &View<'_>) {
    let Some(PromotedAt { after_ns, stops_permille, attempts }) = view.profile.cost.promotion else { return };
    let after = duration(after_ns);
    let line = match stops_permille {
        Some(permille) => {
            let who = if view.profile.processes.is_empty() { "it" } else { "one of the processes" };
            let share = percent(permille.into(), 1000);
            format!(
                "{who} changed from the trap engine to the jump engine after {after}, as stops took {share} of its time"
            )
        }
        // It began with its first call.
        None if attempts == 0 => return,
        None => format!(
            "the jump engine recorded its calls only from {after} on: there was no earlier moment at which heaptrace \
             could change its code"
        ),
    };
    prose(out, layout, &line);
}

/// What would make tracing cost less.
fn cheaper(view: &View<'_>) -> Vec<&'static str> {
    let (meta, cost) = (&view.profile.meta, &view.profile.cost);
    let conditions = cost.conditions;
    let run = !meta.mode.is_attached();
    let mut help = Vec::new();
    if run && conditions.threads == 1 && !conditions.pinned && !conditions.jump {
        help.push("--pin would let the program share a processor with heaptrace, which makes each stop shorter.");
    }
    if run && cost.wall_ns >= LONG_RUN_NS {
        help.push("Tracing a part of the run costs less: heaptrace attach --duration 10s PID.");
    }
    let totals = &view.profile.totals;
    let frees_much = totals.frees > totals.allocations / 4;
    if conditions.free_stacks && frees_much && !help.iter().any(|advice| advice.starts_with("--pin")) {
        help.push("--no-free-stacks would spare the walk over the stack at each free.");
    }
    if meta.mode.is_attached() {
        help.push(
            "`heaptrace ctl PID pause` and `resume` let the process run freely while nothing of interest happens.",
        );
    }
    help
}

/// How long a program has waited for heaptrace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// The time that it was traced, ns.
    pub(crate) wall_ns: u64,
    /// The estimate, ns.
    pub(crate) about_ns: u64,
    /// The bounds of the estimate, ns, if they are known.
    pub(crate) range_ns: Option<(u64, u64)>,
}

impl Waiting {
    /// By how much the program is slower: `hardly slower`, `2.4 times slower`, `1.5 to 2.8 times slower`. None where
    /// that is not known within a
    /// factor of two.
    pub(crate) fn slowness(self) -> Option<String> {
        let about = times(self.wall_ns, self.about_ns);
        let (least, most) = match self.range_ns {
            Some((least, most)) => (times(self.wall_ns, least), times(self.wall_ns, most)),
            None => (about, about),
        };
        if most > least * KNOWN_WITHIN {
            return None;
        }
        if most <= least * APART {
            return Some(match about {
                ..HARDLY => "hardly slower".to_owned(),
                about @ ..MAX_SLOWDOWN => format!("{} times slower", two_digits(about)),
                _ => format!("more than {} times slower", grouped(MAX_SLOWDOWN as u64)),
            });
        }
        Some(match (two_digits(least), two_digits(most)) {
            (_, most) if least < HARDLY => format!("up to {most} times slower"),
            (least, most) => format!("{least} to {most} times slower"),
        })
    }

    /// The same, or where it is not known the share of the time that the program waits: `waits 98 to 99.9 % of the
    /// time`.
    pub(crate) fn slowness_or_share(self) -> String {
        self.slowness().unwrap_or_else(|| format!("waits {} of the time", self.shares()))
    }

    /// `about 1.2 s (60 %)`, or where the bounds are apart `0.4 to 1.2 s (20 to 60 %)`.
    fn how_long(self) -> String {
        let about = duration(self.about_ns.min(self.wall_ns));
        match self.far_bounds() {
            None => format!("about {about} ({})", self.shares()),
            Some((least, most)) => format!("{} to {} ({})", duration(least), duration(most), self.shares()),
        }
    }

    fn at_least(self) -> String {
        let least = self.about_ns.min(self.wall_ns);
        format!("at least {} ({})", duration(least), percent(least, self.wall_ns))
    }

    fn shares(self) -> String {
        match self.far_bounds() {
            None => percent(self.about_ns.min(self.wall_ns), self.wall_ns),
            Some((least, most)) => {
                let least = percent(least, self.wall_ns);
                format!("{} to {}", least.trim_end_matches(" %"), percent(most, self.wall_ns))
            }
        }
    }

    /// The bounds, where one is by far more than the other.
    fn far_bounds(self) -> Option<(u64, u64)> {
        let (least, most) = self.range_ns?;
        let (least, most) = (least.min(self.wall_ns), most.min(self.wall_ns));
        (most as f64 > least as f64 * APART && times(self.wall_ns, most) >= HARDLY).then_some((least, most))
    }
}

/// Less is not told as slower.
const HARDLY: f64 = 1.05;

/// Nothing larger is told of slowness.
const MAX_SLOWDOWN: f64 = 10_000.0;

/// Where the upper bound is more than this times the lower one, both are told.
const APART: f64 = 1.3;

/// Where the upper bound of the slowness is more than this times the lower one, it is not known.
const KNOWN_WITHIN: f64 = 2.0;

fn times(wall_ns: u64, waited_ns: u64) -> f64 {
    if wall_ns == 0 { 1.0 } else { wall_ns as f64 / wall_ns.saturating_sub(waited_ns).max(1) as f64 }
}

/// An estimate deserves no more.
fn two_digits(times: f64) -> String {
    match times {
        ..9.95 => format!("{times:.1}").trim_end_matches(".0").to_owned(),
        ..99.5 => format!("{times:.0}"),
        ..995.0 => format!("{:.0}", (times / 10.0).round() * 10.0),
        _ => grouped((times / 100.0).round() as u64 * 100),
    }
}
