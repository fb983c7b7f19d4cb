//! The same in words: for output that is no terminal, and what is left to read when the screen has gone.

use super::state::{State, per_second};
use crate::export::cost::Waiting;
use crate::export::text::{duration, grouped, human_bytes, plural, right, short_name};
use crate::top::ctl::{Change, TopAnswer, TopSite};

/// The widths of the columns, from left to right, without the site.
pub(super) const WIDTHS: [usize; 5] = [11, 12, 9, 13, 11];

/// So much of whose allocation it is is told in any case, in characters.
const NARROWEST_SITE: usize = 30;

/// `+1.20 MiB`, `-3 B`, `0 B`.
pub(super) fn signed_bytes(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", human_bytes(bytes.unsigned_abs()))
}

/// `7 s`, `1 min 02 s`, `2 h 03 min`: full seconds, which change once in each.
pub(super) fn seconds(ns: u64) -> String {
    match ns / 1_000_000_000 {
        few @ ..60 => format!("{few} s"),
        more => duration(more * 1_000_000_000),
    }
}

/// The names of the columns, without the site: live, grown, blocks, bytes per second, calls per second.
pub(super) const TITLES: [&str; 5] = ["live", "grown", "blocks", "bytes/s", "calls/s"];

/// The figures of a site, as they stand in the columns.
pub(super) fn figures(site: &TopSite, span_ns: u64) -> [String; 5] {
    let rate = |amount: u64| match span_ns {
        // between one answer and none there is no time
        0 => "-".to_owned(),
        _ => grouped(per_second(amount, span_ns)),
    };
    let bytes_per_second = match span_ns {
        0 => "-".to_owned(),
        _ => human_bytes(per_second(site.recent.bytes, span_ns)),
    };
    [
        human_bytes(site.live.bytes),
        signed_bytes(site.grown.bytes),
        grouped(site.live.objects),
        bytes_per_second,
        rate(site.recent.objects),
    ]
}

/// Whose allocation it is, in so many characters: `make_room (list.c:12) < insert < main`.
pub(super) fn whose(site: &TopSite, width: usize) -> String {
    if !site.name.is_empty() {
        return short_name(&site.name, width.max(12)).chars().take(width).collect();
    }
    let telling: Vec<_> = site.frames.iter().filter(|frame| !frame.dull).collect();
    let frames = if telling.is_empty() { site.frames.iter().collect() } else { telling };
    let mut text = String::new();
    for (at, frame) in frames.iter().enumerate() {
        let room = width.saturating_sub(text.chars().count());
        let part = if at == 0 {
            let place = frame.place.rsplit('/').next().unwrap_or_default();
            // A module's name is in the stack, and mostly the same for all.
            let place = if place.is_empty() || place.starts_with('[') { String::new() } else { format!(" ({place})") };
            let name = short_name(&frame.function, room.saturating_sub(place.chars().count()).max(12));
            format!("{name}{place}")
        } else {
            // a beginning of a name says little
            if room < 12 {
                break;
            }
            format!(" < {}", short_name(&frame.function, room - 3))
        };
        text.push_str(&part);
    }
    text.chars().take(width).collect()
}

/// How long a process is traced, ns, before it is said by how much that makes it slower.
const ENOUGH_NS: u64 = 1_000_000_000;

/// What the heap as a whole is like: two sentences.
pub(super) fn head(state: &State, answer: &TopAnswer) -> [String; 2] {
    let (wall_ns, range_ns) = (answer.elapsed_ns, answer.waited_range_ns);
    // of the first moments heaptrace has the most, whatever comes after them
    let waited_ns = answer.waited_ns.filter(|_| wall_ns >= ENOUGH_NS);
    let waiting = waited_ns.map(|about_ns| Waiting { wall_ns, about_ns, range_ns });
    let traced = format!(
        "{} (process {}), traced for {}, {} engine{}{}",
        answer.program,
        state.subject.pid,
        seconds(answer.elapsed_ns),
        answer.engine,
        waiting.map(|waiting| format!(", {}", waiting.slowness_or_share())).unwrap_or_default(),
        match answer.sample_interval {
            0 => String::new(),
            interval => format!(", sampled: one byte in {}", grouped(interval)),
        },
    );
    let resident = state.resident.map(|bytes| format!(", {} resident", human_bytes(bytes))).unwrap_or_default();
    let live = format!(
        "live {} in {}, peak {}{resident}",
        human_bytes(answer.live.bytes),
        plural(answer.live.objects, "block"),
        human_bytes(answer.peak_bytes)
    );
    [traced, live]
}

/// How it has grown, and how fast it allocates: two sentences.
pub(super) fn course(answer: &TopAnswer) -> [String; 2] {
    let grown = Change::between(answer.base.live, answer.live);
    let ago = seconds(answer.elapsed_ns.saturating_sub(answer.base.at_ns));
    let since = match &answer.base.mark {
        Some(mark) => format!("mark {mark}"),
        None => "this began".to_owned(),
    };
    let grown = format!("{} since {since}, {ago} ago", signed_bytes(grown.bytes));
    let rate = match answer.span_ns {
        0 => String::new(),
        span => format!(
            "allocates {}/s in {}/s",
            human_bytes(per_second(answer.recent.bytes, span)),
            plural(per_second(answer.recent.objects, span), "block")
        ),
    };
    [grown, rate]
}

/// The names of the columns in a line.
fn columns() -> String {
    let titles: String = TITLES.iter().zip(WIDTHS).map(|(title, width)| right(title, width)).collect();
    format!("{titles}  site\n")
}

/// The newest answer, with so many sites, in lines of so many characters; nothing before the first one.
pub fn answer(state: &State, sites: usize, width: usize) -> String {
    let Some(answer) = state.last() else { return String::new() };
    let [grown, rate] = course(answer);
    let rate = if rate.is_empty() { rate } else { format!("; {rate}") };
    let mut text = format!("{}\n{grown}{rate}\n{}", head(state, answer).join("\n"), columns());
    for site in state.sites().into_iter().take(sites) {
        let figures = figures(site, answer.span_ns);
        text.extend(figures.iter().zip(WIDTHS).map(|(figure, width)| right(figure, width)));
        text.push_str("  ");
        text.push_str(&whose(site, width.saturating_sub(WIDTHS.iter().sum::<usize>() + 2).max(NARROWEST_SITE)));
        text.push('\n');
    }
    text
}
