//! What a pair of malloc and free costs under each tool: the slope between two counts of pairs, so that what a tool
//! does once, at its start and end, is a figure of its own. The counts are the same for all that are compared. All take
//! turns, so that a machine whose speed changes is as slow for each.

use super::basics::installed;
use super::measured::{Cost, PLACES, Page, Part, Place, Sharing, Tool, tools};
use super::programs::{STOPPING, fixture, heaptrace};
use super::turns::{self, Counting};
use std::path::Path;

/// So many pairs, the same for each tool.
const COUNTS: [u64; 2] = [1_000_000, 4_000_000];

/// Frames on the stack at each call.
const DEPTH: u32 = 16;

/// What the pairs are.
struct Workload {
    name: &'static str,
    /// Whether it is measured at one place only.
    is_extra: bool,
    /// LIVE, SIZES, DEPTHS and RANDOM of the program.
    arguments: [u32; 4],
}

pub const ONE_BLOCK: &str = "one block, one size";
pub const FEW_LIVE: &str = "1,024 live, 500 sizes, 4 depths, at random";
pub const MANY_LIVE: &str = "100,000 live, 500 sizes, 4 depths, at random";

const WORKLOADS: [Workload; 4] = [
    Workload { name: ONE_BLOCK, is_extra: false, arguments: [1, 1, 1, 0] },
    Workload { name: "one block, 500 sizes", is_extra: true, arguments: [1, 500, 1, 0] },
    Workload { name: FEW_LIVE, is_extra: false, arguments: [1024, 500, 4, 1] },
    Workload { name: MANY_LIVE, is_extra: false, arguments: [100_000, 500, 4, 1] },
];

/// What a program takes: seconds a pair, and seconds once.
#[derive(Clone, Copy)]
struct Line {
    pair: Cost,
    once: Cost,
    /// Wall time of the run with more pairs.
    wall: f64,
}

impl Line {
    /// Through the costs of the two counts.
    fn through([few, many]: [Cost; 2], counts: [u64; 2]) -> Self {
        let [least, most] = counts.map(|count| count as f64);
        let slope = |few: f64, many: f64| (many - few) / (most - least);
        let pair = Cost { wall: slope(few.wall, many.wall), cpu: slope(few.cpu, many.cpu) };
        let once = Cost { wall: few.wall - pair.wall * least, cpu: few.cpu - pair.cpu * least };
        Self { pair, once, wall: many.wall }
    }

    /// The middle ones of what a pair takes, and of what is taken once.
    fn medians<'a>(lines: impl Iterator<Item = &'a Self>) -> [Cost; 2] {
        let (pair, once): (Vec<Cost>, Vec<Cost>) = lines.map(|line| (line.pair, line.once)).unzip();
        [Cost::median(&pair), Cost::median(&once)]
    }
}

/// Writes a table for each place, in Markdown. Returns what each tool adds.
pub fn tables(page: &mut Page) -> Vec<Part> {
    let mut parts = Vec::new();
    let program = fixture("mixed");
    let tools = tools();
    for place in PLACES {
        let _others = place.share();
        page.line(&format!("\n### {}\n", place.name));
        page.line("| pairs | tool | added a pair, ns: wall / CPU | of heaptrack's | once, ms: wall / CPU |");
        page.line("|---|---|--:|--:|--:|");
        for workload in WORKLOADS.iter().filter(|workload| !workload.is_extra || place.sharing == Sharing::Alone) {
            parts.extend(rows(page, &program, &place, workload, &tools, (COUNTS, Counting::on(place.sharing))));
        }
    }
    page.line("\n### Tools that stop the program at each call\n");
    page.line("| pairs | tool | added a pair, ns: wall / CPU | of heaptrack's | once, ms: wall / CPU |");
    page.line("|---|---|--:|--:|--:|");
    let mut stopping = vec![Tool { name: "--engine trap", words: heaptrace(&["--engine", "trap"]) }];
    if installed("ltrace") {
        let words = ["ltrace", "-e", "malloc+free", "-o", "/dev/null"].map(str::to_owned);
        stopping.push(Tool { name: "ltrace", words: words.to_vec() });
    }
    rows(page, &program, &PLACES[0], &WORKLOADS[0], &stopping, (STOPPING, Counting::Each));
    parts
}

fn rows(
    page: &mut Page,
    program: &Path,
    place: &Place,
    workload: &Workload,
    tools: &[Tool],
    (counts, counting): ([u64; 2], Counting),
) -> Vec<Part> {
    let measure = |words: &[String]| {
        let costs = counts.map(|pairs| {
            let mut command = vec![program.display().to_string(), pairs.to_string(), DEPTH.to_string()];
            command.extend(workload.arguments.iter().map(u32::to_string));
            place.cost(words, &command)
        });
        Line::through(costs, counts)
    };
    let turns = turns::take(counting, tools, measure, |line| line.wall);
    let [plain, plain_once] = Line::medians(turns.alone());
    // a difference that is none has no sign
    let rounded = |seconds: f64, unit: f64| (seconds / unit).round() + 0.0;
    let nanoseconds = |cost: Cost| format!("{} / {}", rounded(cost.wall, 1e-9), rounded(cost.cpu, 1e-9));
    page.line(&format!("| {}{} | alone | {} | | |", workload.name, turns.mark(), nanoseconds(plain)));
    let of = tools.iter().position(|tool| tool.name == "heaptrack");
    let mut parts = Vec::new();
    for (number, tool) in tools.iter().enumerate() {
        let [pair, once] = Line::medians(turns.of(number));
        let added = pair.beyond(plain);
        let part = of.map(|of| turns.part(number, of, |line| line.pair));
        parts.extend(part.map(|of_heaptrack| Part {
            sharing: place.sharing,
            workload: workload.name,
            tool: tool.name,
            of_heaptrack,
            is_disturbed: turns.is_disturbed,
        }));
        let part = part.map_or(String::new(), |part| format!("{:.2} / {:.2}", part.wall, part.cpu));
        let once = once.beyond(plain_once);
        page.line(&format!(
            "| | {} | {} | {part} | {} / {} |",
            tool.name,
            nanoseconds(added),
            rounded(once.wall, 1e-3),
            rounded(once.cpu, 1e-3)
        ));
    }
    parts
}
