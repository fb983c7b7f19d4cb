//! Whole runs of real programs of 0.1 to 2 s, start and end of the tool included: alone and under each tool, in turn.
//! What heaptrack does afterwards, its analysis, is a step of its own and does not count.

use super::limits::Sampled;
use super::measured::{Cost, PLACES, Page, Part, Place, SAMPLING, Sharing, Tool, tools};
use super::turns::{self, Counting};
use super::workloads::{Workload, long};

/// What all runs have shown.
#[derive(Default)]
pub struct Runs {
    /// What the tools add that record each call.
    pub parts: Vec<Part>,
    /// What samples add, on two processors.
    pub sampled: Vec<Sampled>,
}

/// Writes a table for each place, in Markdown.
pub fn tables(page: &mut Page) -> Runs {
    let mut runs = Runs::default();
    let (tools, workloads) = (tools(), long());
    for place in PLACES {
        let _others = place.share();
        page.line(&format!("\n### {}\n", place.name));
        let names: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
        let with_heaptrack = names.contains(&"heaptrack");
        let ratios = |heads: &[&str]| if with_heaptrack { format!(" {} |", heads.join(" | ")) } else { String::new() };
        page.line(&format!(
            "| seconds: wall / CPU | alone | {} |{}",
            names.join(" | "),
            ratios(&["`auto` added, of heaptrack's", "`--no-free-stacks`"])
        ));
        page.line(&format!("|---|{}{}", "--:|".repeat(tools.len() + 1), if with_heaptrack { "--:|--:|" } else { "" }));
        for workload in &workloads {
            row(page, &place, workload, &tools, &mut runs);
        }
    }
    runs
}

fn row(page: &mut Page, place: &Place, workload: &Workload, tools: &[Tool], runs: &mut Runs) {
    let turns =
        turns::take(Counting::on(place.sharing), tools, |words| place.cost(words, &workload.words), |cost| cost.wall);
    let medians: Vec<Cost> = std::iter::once(turns.alone().copied().collect())
        .chain((0..tools.len()).map(|tool| turns.of(tool).copied().collect()))
        .map(|costs: Vec<Cost>| Cost::median(&costs))
        .collect();
    let cells: Vec<String> = medians.iter().map(|cost| format!("{:.2} / {:.2}", cost.wall, cost.cpu)).collect();
    let mut text = format!("| {}{} | {} |", workload.name, turns.mark(), cells.join(" | "));
    if let Some(heaptrack) = tools.iter().position(|tool| tool.name == "heaptrack") {
        for tool in [0, 1] {
            let of_heaptrack = turns.part(tool, heaptrack, |cost| *cost);
            text += &format!(" {:.2} / {:.2} |", of_heaptrack.wall, of_heaptrack.cpu);
            let (sharing, workload, tool) = (place.sharing, workload.name, tools[tool].name);
            runs.parts.push(Part { sharing, workload, tool, of_heaptrack, is_disturbed: turns.is_disturbed });
        }
    }
    page.line(&text);
    let sampling = tools.iter().position(|tool| tool.name == SAMPLING).filter(|_| place.sharing == Sharing::Alone);
    runs.sampled.extend(sampling.map(|tool| Sampled {
        workload: workload.name,
        alone: medians[0].wall,
        sampled: medians[tool + 1].wall,
    }));
}
