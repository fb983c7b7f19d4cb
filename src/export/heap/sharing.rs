//! Blocks that hold the same, as advice: what would be free if one block stood for all that are equal, with its proof.

use super::held::owner_name;
use crate::export::text::{grouped, human_bytes, percent};
use crate::heap::graph::Held;
use crate::heap::graph::duplicates::{Duplicate, are_worth_a_word};
use crate::heap::graph::owners::Owner;
use crate::heap::graph::types::Certainty;
use serde_json::{Value, json};

/// Columns that a name may take.
const NAME: usize = 80;

/// Something that could be shared.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Advice {
    /// `duplicates`: all of them; `copies`: those that hold the same as one block does.
    pub kind: &'static str,
    /// The figures that it follows from.
    pub figures: Value,
    /// A sentence, without its full stop.
    pub text: String,
}

/// All that is worth a word: the sum first, then what makes most of it.
pub(super) fn advice(held: &Held) -> Vec<Advice> {
    let found = &held.duplicates;
    let live = held.holdings.reachable.bytes.saturating_add(held.holdings.lost.bytes);
    if !are_worth_a_word(found.wasted, live) {
        return Vec::new();
    }
    let sum = Advice {
        kind: "duplicates",
        figures: json!({ "wasted": found.wasted, "wasted_text": found.wasted_text, "live_bytes": live }),
        text: format!(
            "{} of the {} in live blocks, {}, are copies of what another block of the same size holds, {} of it text: one block for all that are equal (interning) would spare them",
            human_bytes(found.wasted),
            human_bytes(live),
            percent(found.wasted, live),
            human_bytes(found.wasted_text),
        ),
    };
    let worth = found.most.iter().zip(&held.samples).filter(|(one, _)| are_worth_a_word(one.wasted(), live));
    std::iter::once(sum).chain(worth.filter_map(|(one, sample)| copies(held, one, sample.as_deref()))).collect()
}

/// The blocks that hold the same as one does. `sample`: how their text begins, if it is to be told.
fn copies(held: &Held, one: &Duplicate, sample: Option<&str>) -> Option<Advice> {
    let number = one.block as usize;
    let block = held.holdings.graph.blocks().get(number)?;
    let owner = held.holdings.owner(number);
    let holder = owner_name(&held.holdings, owner);
    let held_by = match owner {
        Owner::Holder(_) => format!("held by {}", short(holder)),
        Owner::Several => "held by several".to_owned(),
        Owner::Lost => "and lost".to_owned(),
    };
    let found = held.types.of(number);
    let of = found.map(|of| of.name.as_str());
    let what = match (sample, one.text) {
        (Some(sample), _) => format!("the same text, which begins with {sample:?}"),
        (None, true) => "the same text".to_owned(),
        (None, false) => "the same".to_owned(),
    };
    let known = found.filter(|of| of.certainty != Certainty::Unknown);
    let first = known.map_or_else(String::new, |of| format!("{} ", short(&of.name)));
    Some(Advice {
        kind: "copies",
        figures: json!({
            "count": one.count,
            "size": one.size,
            "wasted": one.wasted(),
            "address": block.addr.to_string(),
            "type": of,
            "holder": holder,
        }),
        text: format!(
            "{} blocks of {} bytes hold {what}: one for all would spare {}; the first is {first}at {}, {held_by}",
            grouped(one.count),
            grouped(one.size),
            human_bytes(one.wasted()),
            block.addr,
        ),
    })
}

/// A name that fits into a sentence.
fn short(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let kept: String = name.chars().take(NAME - 1).collect();
    format!("{kept}…")
}
