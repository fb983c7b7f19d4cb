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
        Some(waited) => {
            let waited = waited.min(cost.wall_ns);
            let between = cost.waited_range_ns.and_then(|range| slowness_between(cost.wall_ns, range));
            let least = if cost.is_at_least() { "at least " } else { "" };
            let slowness = between.unwrap_or_else(|| format!("{least}{}", slowness(cost.wall_ns, waited)));
            let (share, waited) = (percent(waited, cost.wall_ns), duration(waited));
            format!(
                "{wall} wall time, of which the program waited for heaptrace for about {waited} ({share}): {slowness} than without"
            )
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
            "{events}, of which {recorded} were recorded without a stop{each} (engine {engine}); {stops} took heaptrace \
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
                "{who} went over from the trap engine to the jump engine after {after}, as stops took {share} of its time"
            )
        }
        // It began with its first call.
        None if attempts == 0 => return,
        None => format!(
            "the jump engine has seen its calls from {after} on only: there was no earlier moment at which its code could be changed"
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

/// By how much a program is slower that has waited `waited` ns of its `wall` ns: `hardly slower`, `2.4 times slower`, `310 times slower`.
pub(crate) fn slowness(wall_ns: u64, waited_ns: u64) -> String {
    match times(wall_ns, waited_ns) {
        ..HARDLY => "hardly slower".to_owned(),
        times @ ..MOST => format!("{} times slower", two_digits(times)),
        _ => format!("more than {} times slower", grouped(MOST as u64)),
    }
}

/// The same where it lies between two bounds that are far apart: `1.5 to 4 times slower`, `up to 3 times slower`, `at least 8 times slower`. None where they are not.
pub(crate) fn slowness_between(wall_ns: u64, waited_ns: (u64, u64)) -> Option<String> {
    /// By what the upper bound is more, for both to be told.
    const APART: f64 = 1.3;
    let (least, most) = (times(wall_ns, waited_ns.0).min(MOST), times(wall_ns, waited_ns.1).min(MOST));
    if most <= least * APART {
        return None;
    }
    Some(match (two_digits(least), two_digits(most)) {
        (_, most) if least < HARDLY => format!("up to {most} times slower"),
        (least, _) if most >= MOST => format!("at least {least} times slower"),
        (least, most) => format!("{least} to {most} times slower"),
    })
}

/// Less is not told as slower.
const HARDLY: f64 = 1.05;

/// Nothing larger is told of slowness.
const MOST: f64 = 10_000.0;

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
