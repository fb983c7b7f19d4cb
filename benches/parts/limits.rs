//! The limits that the project sets itself beside heaptrack, and what was measured: which of them are held.

use super::measured::{Cost, Page, Part, Sharing};
use super::slopes::{FEW_LIVE, MANY_LIVE, ONE_BLOCK};
use super::turns::DISTURBED;

/// What a tool may add to a workload, as a part of what heaptrack adds.
struct Limit {
    workload: &'static str,
    tool: &'static str,
    /// On two processors: of wall and CPU time.
    alone: Cost,
}

/// Of wall time on one processor, for each workload.
const ON_ONE: f64 = 0.35;

/// Of wall time beside busy loops, for each workload.
const BESIDE_LOOPS: f64 = 0.45;

const fn limit(workload: &'static str, tool: &'static str, wall: f64, cpu: f64) -> Limit {
    Limit { workload, tool, alone: Cost { wall, cpu } }
}

const LIMITS: [Limit; 12] = [
    limit(FEW_LIVE, "auto", 0.25, 0.35),
    limit(MANY_LIVE, "auto", 0.25, 0.35),
    limit(ONE_BLOCK, "auto", 0.25, 0.35),
    limit(FEW_LIVE, "--no-free-stacks", 0.2, 0.3),
    limit(MANY_LIVE, "--no-free-stacks", 0.2, 0.3),
    limit(ONE_BLOCK, "--no-free-stacks", 0.2, 0.3),
    limit("jq", "auto", 0.25, 0.35),
    limit("sqlite3", "auto", 0.25, 0.35),
    limit("xmllint", "auto", 0.25, 0.35),
    limit("python3", "auto", 0.25, 0.35),
    limit("perl", "auto", 0.25, 0.35),
    limit("objects.cc", "auto", 0.3, 0.4),
];

/// The wall time of a whole run, alone and with samples taken, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    pub workload: &'static str,
    pub alone: f64,
    pub sampled: f64,
}

/// What samples may add once, in seconds, and beside that as a part of the run.
const SAMPLING_ONCE: f64 = 0.06;
const SAMPLING_PART: f64 = 0.02;

/// A figure that is one for all.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    pub name: &'static str,
    pub unit: &'static str,
    pub measured: f64,
    pub limit: Bound,
}

/// What a figure is to be.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn holds(self, measured: f64) -> bool {
        match self {
            Self::AtMost(limit) => measured <= limit,
            Self::AtLeast(limit) => measured >= limit,
        }
    }
}

/// Writes the tables.
pub fn tables(page: &mut Page, parts: &[Part], sampled: &[Sampled], singles: &[Single]) {
    page.line("| added, of what heaptrack adds | tool | two processors: wall / CPU | limit | one processor: wall | limit | beside busy loops: wall | limit |");
    page.line("|---|---|--:|--:|--:|--:|--:|--:|");
    for limit in &LIMITS {
        row(page, limit, parts);
    }
    page.line("\n| `--sample-interval 512k`: wall time added | ms | limit |");
    page.line("|---|--:|--:|");
    for run in sampled {
        let (added, most) = (run.sampled - run.alone, SAMPLING_ONCE + SAMPLING_PART * run.alone);
        page.line(&format!("| {} | {} | {:.0} |", run.workload, shown(added * 1e3, most * 1e3, 0), most * 1e3));
    }
    page.line("\n| | measured | limit |");
    page.line("|---|--:|--:|");
    for Single { name, unit, measured, limit } in singles {
        let mark = if limit.holds(*measured) { "" } else { "**" };
        let (words, limit) = match limit {
            Bound::AtMost(limit) => ("at most", limit),
            Bound::AtLeast(limit) => ("at least", limit),
        };
        page.line(&format!("| {name} | {mark}{measured:.1} {unit}{mark} | {words} {limit:.0} {unit} |"));
    }
}

fn row(page: &mut Page, limit: &Limit, parts: &[Part]) {
    let at = |sharing: Sharing| {
        let is_it = |part: &&Part| (part.sharing, part.workload, part.tool) == (sharing, limit.workload, limit.tool);
        parts.iter().find(is_it)
    };
    let cell = |sharing, figures: &dyn Fn(Cost) -> String| match at(sharing) {
        Some(part) => figures(part.of_heaptrack) + if part.is_disturbed { DISTURBED } else { "" },
        None => "not measured".to_owned(),
    };
    let wall = |sharing, most| cell(sharing, &|part| shown(part.wall, most, 2));
    let both =
        |part: Cost| format!("{} / {}", shown(part.wall, limit.alone.wall, 2), shown(part.cpu, limit.alone.cpu, 2));
    page.line(&format!(
        "| {} | {} | {} | {:.2} / {:.2} | {} | {ON_ONE:.2} | {} | {BESIDE_LOOPS:.2} |",
        limit.workload,
        limit.tool,
        cell(Sharing::Alone, &both),
        limit.alone.wall,
        limit.alone.cpu,
        wall(Sharing::OneProcessor, ON_ONE),
        wall(Sharing::BusyLoops, BESIDE_LOOPS)
    ));
}

/// A figure, in bold where it is above its limit. What is shown is compared, so that nobody sees 0.25 above 0.25.
fn shown(figure: f64, most: f64, digits: usize) -> String {
    let text = format!("{figure:.digits$}");
    let is_above = text.parse::<f64>().is_ok_and(|figure| figure > most + 1e-9);
    if is_above { format!("**{text}**") } else { text }
}
