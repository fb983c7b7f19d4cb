//! Whole runs of real programs of 0.1 to 2 s, start and end of the tool included: alone and under each tool, in turn.
//! What heaptrack does afterwards, its analysis, is a step of its own and does not count.

use super::basics::median;
use super::limits::Sampled;
use super::measured::{Cost, PLACES, Page, Part, Place, SAMPLING, Sharing, Tool, tools};
use super::workloads::{Workload, long};

/// Runs of each.
const ROUNDS: usize = 3;

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
    let mut all: Vec<Vec<Cost>> = vec![Vec::new(); tools.len() + 1];
    for _ in 0..ROUNDS {
        let none: &[String] = &[];
        for (words, costs) in std::iter::once(none).chain(tools.iter().map(|tool| &tool.words[..])).zip(&mut all) {
            costs.push(place.cost(words, &workload.words));
        }
    }
    let cells: Vec<String> =
        all.iter().map(|costs| Cost::median(costs)).map(|cost| format!("{:.2} / {:.2}", cost.wall, cost.cpu)).collect();
    let mut text = format!("| {} | {} |", workload.name, cells.join(" | "));
    if let Some(heaptrack) = tools.iter().position(|tool| tool.name == "heaptrack") {
        for tool in [0, 1] {
            let part = |of: fn(&Cost) -> f64| {
                // each turn is a pair of its own: the machine was the same
                let turns = all[0].iter().zip(&all[tool + 1]).zip(&all[heaptrack + 1]);
                median(turns.map(|((alone, ours), theirs)| (of(ours) - of(alone)) / (of(theirs) - of(alone))))
            };
            let of_heaptrack = Cost { wall: part(|cost| cost.wall), cpu: part(|cost| cost.cpu) };
            text += &format!(" {:.2} / {:.2} |", of_heaptrack.wall, of_heaptrack.cpu);
            let (sharing, workload, tool) = (place.sharing, workload.name, tools[tool].name);
            runs.parts.push(Part { sharing, workload, tool, of_heaptrack });
        }
    }
    page.line(&text);
    let sampling = tools.iter().position(|tool| tool.name == SAMPLING).filter(|_| place.sharing == Sharing::Alone);
    runs.sampled.extend(sampling.map(|tool| Sampled {
        workload: workload.name,
        alone: Cost::median(&all[0]).wall,
        sampled: Cost::median(&all[tool + 1]).wall,
    }));
}
