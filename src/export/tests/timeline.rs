//! `.heaptimeline`.

use super::*;
use serde_json::Value;

struct Timeline(Value);

impl Timeline {
    fn of(profile: &Profile) -> Self {
        Self(serde_json::from_str(&exported_text(Format::HeapTimeline, profile)).expect("JSON"))
    }

    fn numbers(&self, name: &str) -> Vec<u64> {
        let numbers = self.0[name].as_array().expect(name);
        numbers.iter().map(|number| number.as_u64().expect("a number")).collect()
    }

    fn text(&self, number: u64) -> &str {
        self.0["strings"][number as usize].as_str().expect("a string")
    }

    /// The calls to a node of the tree, innermost first, and what was allocated there.
    fn stack_of(&self, wanted: u64) -> Option<(Vec<String>, u64, u64)> {
        fn find(tree: &Value, wanted: u64, above: &mut Vec<u64>) -> Option<(u64, u64)> {
            for node in tree.as_array()?.chunks(5) {
                above.push(node[1].as_u64()?);
                if node[0] == wanted {
                    return Some((node[2].as_u64()?, node[3].as_u64()?));
                }
                if let Some(found) = find(&node[4], wanted, above) {
                    return Some(found);
                }
                above.pop();
            }
            None
        }
        let mut path = Vec::new();
        let (count, bytes) = find(&self.0["trace_tree"], wanted, &mut path)?;
        let functions = self.numbers("trace_function_infos");
        let name = |function: &u64| {
            let of = &functions[*function as usize * 6..][..6];
            let file = self.text(of[2]);
            if file.is_empty() { self.text(of[1]).to_owned() } else { format!("{} {file}:{}", self.text(of[1]), of[4]) }
        };
        Some((path.iter().rev().map(name).collect(), count, bytes))
    }
}

#[test]
fn blocks_have_ids_by_their_births_and_stacks() {
    let profile = sample_profile();
    let timeline = Timeline::of(&profile);
    let nodes = timeline.numbers("nodes");
    let nodes: Vec<&[u64]> = nodes.chunks(7).collect();
    assert_eq!(nodes.iter().map(|node| node[2]).collect::<Vec<_>>(), [1, 3, 7, 13, 17, 183, 185, 235]);
    assert_eq!(nodes.iter().map(|node| node[3]).sum::<u64>(), profile.totals.live_bytes);
    assert_eq!(timeline.text(nodes[6][1]), "new_node (and 1 more)");
    assert_eq!(timeline.numbers("samples"), [0, 3, 4000, 17, 2_299_000, 235]);
    assert_eq!(timeline.0["snapshot"]["node_count"], 8);
    assert_eq!(
        timeline.numbers("edges").len() as u64,
        timeline.0["snapshot"]["edge_count"].as_u64().expect("edges") * 3
    );
    assert_eq!(
        timeline.stack_of(nodes[2][5]),
        Some((
            ["new_node src/node.c:9", "parse_document src/parse.c:120", "main src/main.c:30", "(root)"]
                .map(str::to_owned)
                .into(),
            10,
            10_240
        ))
    );
    assert_eq!(nodes[2][5], nodes[5][5]);
    let (_, count, bytes) = timeline.stack_of(nodes[3][5]).expect("a stack");
    assert_eq!((count, bytes), (4, 1_048_576));
    // what only frees allocates nowhere
    let functions = timeline.numbers("trace_function_infos").len() as u64 / 6;
    assert_eq!(timeline.0["snapshot"]["trace_function_count"], functions);
    assert!(!timeline.0["strings"].to_string().contains("clear"), "{}", timeline.0["strings"]);
}

/// More births than there are ids: then the places among the live ones are.
#[test]
fn ids_stay_in_32_bits() {
    let mut profile = sample_profile();
    let births = profile.course.births.as_mut().expect("births");
    (births.blocks[5].birth, births.moments[2].births) = (1 << 40, 1 << 40);
    let timeline = Timeline::of(&profile);
    let ids: Vec<u64> = timeline.numbers("nodes").chunks(7).map(|node| node[2]).collect();
    assert_eq!(ids, [1, 3, 5, 7, 9, 11, 13, 15]);
    assert_eq!(timeline.numbers("samples"), [0, 3, 4000, 9, 2_299_000, 15]);
}

/// Blocks from before the first allocation have ids of their own, before all samples.
#[test]
fn blocks_that_were_there_before_come_first() {
    let mut profile = sample_profile();
    let births = profile.course.births.as_mut().expect("births");
    births.existing = 10;
    (births.blocks[0].birth, births.blocks[1].birth) = (0, 0);
    let timeline = Timeline::of(&profile);
    let ids: Vec<u64> = timeline.numbers("nodes").chunks(7).map(|node| node[2]).collect();
    assert_eq!(ids, [1, 3, 5, 7, 37, 203, 205, 255]);
    assert_eq!(timeline.numbers("samples"), [0, 23, 4000, 37, 2_299_000, 255]);
}

#[test]
fn a_profile_without_blocks_is_refused() {
    let mut profile = sample_profile();
    profile.course = HeapHistory::default();
    let refusal = |profile: &Profile| {
        write(Format::HeapTimeline, profile, &ExportOptions::default(), &mut Vec::new())
            .expect_err("refused")
            .to_string()
    };
    assert!(refusal(&profile).contains("`heaptrace convert`"));
}
