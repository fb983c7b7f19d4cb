//! What one root or block retains, as a tree: below each node those that it retains at once.

use super::holders::Holdings;
use std::cmp::Reverse;

/// A node with what it retains.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Branch {
    /// Its number in [`Holdings`].
    pub node: usize,
    /// What it retains, itself included, in bytes.
    pub retained: u64,
    /// Those below it that retain most.
    pub below: Vec<Branch>,
    /// How many others there are below it, and what they retain, in bytes.
    pub others: (u64, u64),
}

/// The tree of a node: so many levels, so many nodes below each.
pub fn of(holdings: &Holdings, node: usize, levels: usize, most: usize) -> Branch {
    let retention = holdings.retention();
    let mut root = Branch { node, retained: retention.retained(node), ..Branch::default() };
    for _ in 0..levels {
        let mut ends = Vec::new();
        gather(&mut root, &mut ends);
        if ends.is_empty() {
            break;
        }
        ends.sort_unstable_by_key(|branch| branch.node);
        let mut found: Vec<Vec<(u64, usize)>> = vec![Vec::new(); ends.len()];
        for below in 0..holdings.nodes() {
            let Some(by) = retention.retainer(below) else { continue };
            if let Ok(at) = ends.binary_search_by_key(&by, |branch| branch.node)
                && let Some(list) = found.get_mut(at)
            {
                list.push((retention.retained(below), below));
            }
        }
        for (branch, mut list) in ends.into_iter().zip(found) {
            list.sort_unstable_by_key(|(retained, node)| (Reverse(*retained), *node));
            let others = list.get(most..).unwrap_or(&[]);
            branch.others = (others.len() as u64, others.iter().map(|(retained, _)| retained).sum());
            let told = list.into_iter().take(most);
            branch.below = told.map(|(retained, node)| Branch { node, retained, ..Branch::default() }).collect();
        }
    }
    root
}

/// The branches that have nothing below them yet.
fn gather<'a>(branch: &'a mut Branch, ends: &mut Vec<&'a mut Branch>) {
    // no deeper than `levels`
    if branch.below.is_empty() {
        ends.push(branch);
    } else {
        branch.below.iter_mut().for_each(|below| gather(below, ends));
    }
}
