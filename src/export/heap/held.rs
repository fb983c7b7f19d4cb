//! What the blocks are, who holds them and who keeps free memory, in words.

use super::sharing;
use crate::export::text::{self, Paint};
use crate::heap::graph::holders::{Holdings, LOST};
use crate::heap::graph::owners::Owner;
use crate::heap::graph::pins::Remedy;
use crate::heap::graph::tree::{self, Branch};
use crate::heap::graph::{Held, Sum};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::fmt::Write;

/// Rows of a table.
const ROWS: usize = 10;
/// Levels of a tree, and nodes below each of its nodes.
const LEVELS: usize = 4;
const BELOW: usize = 6;
/// Columns that a name may take.
const WIDTH: usize = 72;

/// All of it.
pub(super) fn text(out: &mut String, held: &Held, paint: Paint) {
    holders(out, &held.holdings, paint);
    types(out, held, paint);
    pins(out, held, paint);
    duplicates(out, held, paint);
    largest(out, held, paint);
}

fn short(name: &str) -> String {
    if name.chars().count() <= WIDTH {
        return name.to_owned();
    }
    let kept: String = name.chars().take(WIDTH - 1).collect();
    format!("{kept}…")
}

fn row(out: &mut String, sum: Sum, what: &str) {
    let blocks = text::grouped(sum.blocks);
    let _ = writeln!(out, "  {:>12} {blocks:>12}  {}", text::human_bytes(sum.bytes), short(what));
}

fn holders(out: &mut String, holdings: &Holdings, paint: Paint) {
    let head = format!("  {:>12} {:>12}  Holder: what would be free without it", "retained", "blocks");
    let _ = writeln!(out, "\n{}", paint.dim(&head));
    let order = holdings.by_retained();
    let all = order.iter().filter_map(|&number| holdings.holders.get(number));
    let told: Vec<_> = all.filter(|holder| holder.retained.blocks > 0).collect();
    for holder in told.iter().take(ROWS) {
        row(out, holder.retained, &holder.name);
    }
    let mut rest = Sum::default();
    told.iter().skip(ROWS).for_each(|holder| rest.join(holder.retained));
    for (sum, what) in [
        (rest, text::plural(told.len().saturating_sub(ROWS) as u64, "other")),
        (holdings.shared, "(held by several of them)".to_owned()),
        (holdings.lost, format!("{LOST}: no pointer leads to them")),
    ] {
        if sum.blocks > 0 {
            row(out, sum, &what);
        }
    }
}

fn types(out: &mut String, held: &Held, paint: Paint) {
    let head = format!("  {:>12} {:>12}  Type", "bytes", "blocks");
    let _ = writeln!(out, "\n{}", paint.dim(&head));
    let sums = held.types.sums(&held.holdings.graph);
    for (of, sum) in sums.iter().take(ROWS) {
        row(out, *sum, &of.told());
    }
    let mut rest = Sum::default();
    sums.iter().skip(ROWS).for_each(|(_, sum)| rest.join(*sum));
    if rest.blocks > 0 {
        row(out, rest, &text::plural(sums.len().saturating_sub(ROWS) as u64, "other type"));
    }
}

/// Who keeps free memory: bytes pinned with the number of live blocks that do it, by type and holder.
pub(super) fn pinned_by(held: &Held) -> Vec<(String, String, Sum)> {
    let mut sums: FxHashMap<(u32, Owner), Sum> = FxHashMap::default();
    for (block, bytes) in &held.pinned.by_block {
        let of = held.types.of_block.get(*block as usize).copied().unwrap_or(u32::MAX);
        sums.entry((of, held.holdings.owner(*block as usize))).or_default().add(*bytes);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(key, sum)| (Reverse(sum.bytes), *key));
    let name = |(of, owner): (u32, Owner)| {
        let of = held.types.all.get(of as usize).map_or("unknown", |of| of.name.as_str());
        (of.to_owned(), owner_name(&held.holdings, owner).to_owned())
    };
    sums.into_iter().map(|(key, sum)| (name(key).0, name(key).1, sum)).collect()
}

/// What is said of blocks that no one holder has alone.
pub(super) const HELD_BY_SEVERAL: &str = "(held by several)";

/// What the owner of a block is called.
pub(super) fn owner_name(holdings: &Holdings, owner: Owner) -> &str {
    match owner {
        Owner::Holder(number) => holdings.holders.get(number as usize).map_or(HELD_BY_SEVERAL, |holder| &holder.name),
        Owner::Several => HELD_BY_SEVERAL,
        Owner::Lost => LOST,
    }
}

/// What a node that is no block is called.
pub(super) fn node_holder(holdings: &Holdings, node: usize) -> &str {
    match holdings.holder_of(node) {
        Some(holder) => &holder.name,
        None if node == holdings.lost_node() => LOST,
        None => HELD_BY_SEVERAL,
    }
}

/// What helps against free memory that stays.
pub(super) const fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::FewerArenas => "fewer arenas, which share what is free: MALLOC_ARENA_MAX=2, or mallopt(M_ARENA_MAX, 2)",
        Remedy::MapLarge => {
            "large blocks in mappings of their own, which go back when they are freed: MALLOC_MMAP_THRESHOLD_=131072, or mallopt(M_MMAP_THRESHOLD, 131072)"
        }
        Remedy::TrimEarlier => {
            "the end of the main arena goes back earlier: MALLOC_TRIM_THRESHOLD_=131072, or mallopt(M_TRIM_THRESHOLD, 131072)"
        }
        Remedy::OtherAllocator => {
            "an allocator that keeps blocks of one size together and gives pages back by itself (jemalloc, mimalloc)"
        }
    }
}

fn pins(out: &mut String, held: &Held, paint: Paint) {
    if let Some((remedy, bytes)) = held.remedy {
        let _ = writeln!(out, "\n{}", paint.bold("What would keep free memory from staying"));
        let line = format!("{} by {}.", text::human_bytes(bytes), advice(remedy));
        let _ = writeln!(out, "  {}", text::wrap(&line, 2, 100));
    }
    if held.pinned.bytes == 0 {
        return;
    }
    let head = format!(
        "  {:>12} {:>12}  Live blocks that keep free memory in their pages, by type and holder",
        "pinned", "blocks"
    );
    let _ = writeln!(out, "\n{}", paint.dim(&head));
    let all = pinned_by(held);
    for (of, by, sum) in all.iter().take(ROWS / 2) {
        row(out, *sum, &format!("{of}, {by}"));
    }
    let mut rest = Sum::default();
    all.iter().skip(ROWS / 2).for_each(|(_, _, sum)| rest.join(*sum));
    if rest.blocks > 0 {
        row(out, rest, "others");
    }
}

fn duplicates(out: &mut String, held: &Held, paint: Paint) {
    let found = &held.duplicates;
    if found.wasted == 0 {
        return;
    }
    let _ = writeln!(
        out,
        "\n{}\n  One block in place of all that are equal would spare {}, {} of it in text",
        paint.bold("Duplicates"),
        text::human_bytes(found.wasted),
        text::human_bytes(found.wasted_text)
    );
    for (one, sample) in found.most.iter().zip(&held.samples).take(ROWS / 2) {
        let what = match sample {
            Some(sample) => format!("{sample:?}"),
            None => held.types.of(one.block as usize).map_or("unknown", |of| of.name.as_str()).to_owned(),
        };
        let _ = writeln!(
            out,
            "  {:>12} {:>12}  of {} each: {}",
            text::human_bytes(one.wasted()),
            text::grouped(one.count),
            text::grouped(one.size),
            short(&what)
        );
    }
    for advice in sharing::advice(held) {
        let _ = writeln!(out, "  {}", text::wrap(&format!("{}.", advice.text), 2, 100));
    }
}

fn largest(out: &mut String, held: &Held, paint: Paint) {
    let holdings = &held.holdings;
    let head = format!("  {:>12} {:>12}  The largest blocks", "bytes", "retained");
    let _ = writeln!(out, "\n{}", paint.dim(&head));
    for &(number, retained) in holdings.largest().iter().take(ROWS / 2) {
        let number = number as usize;
        let Some(block) = holdings.graph.blocks().get(number) else { continue };
        let by = owner_name(holdings, holdings.owner(number));
        let of = held.types.of(number).map_or("unknown", |of| of.name.as_str());
        let _ = writeln!(
            out,
            "  {:>12} {:>12}  {}",
            text::human_bytes(block.size),
            text::human_bytes(retained),
            short(&format!("{} {of}, {by}", block.addr))
        );
    }
}

/// What a node is called.
fn node_name(held: &Held, node: usize) -> String {
    match held.holdings.graph.blocks().get(node) {
        Some(block) => {
            let of = held.types.of(node).map_or("unknown", |of| of.name.as_str());
            format!("{of} at {}, {} bytes", block.addr, text::grouped(block.size))
        }
        None => node_holder(&held.holdings, node).to_owned(),
    }
}

/// What one node retains, as a tree.
pub fn tree(held: &Held, node: usize, paint: Paint) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "\n{}", paint.bold("What would be free without it"));
    let tree = tree::of(&held.holdings, node, LEVELS, BELOW);
    branch(&mut out, held, &tree, None, 0);
    if let Some(by) = (node < held.holdings.graph.blocks().len()).then(|| held.holdings.retention().retainer(node)) {
        let by = by.map_or_else(|| "several holders".to_owned(), |by| node_name(held, by));
        let _ = writeln!(out, "  It would be free without {by}.");
    }
    out
}

/// The member of `parent` in which a pointer to a node lies, if one does and has a name.
fn member(held: &Held, parent: usize, node: usize) -> Option<String> {
    let holdings = &held.holdings;
    let blocks = holdings.graph.blocks().len();
    let block = u32::try_from(node).ok()?;
    match parent.checked_sub(blocks) {
        Some(holder) => holdings.member(holder, block).map(str::to_owned),
        None => {
            let mut pointers = holdings.graph.pointers(u32::try_from(parent).ok()?);
            let pointer = pointers.find(|pointer| pointer.target == block)?;
            held.types.field(parent, pointer.at?)
        }
    }
}

fn branch(out: &mut String, held: &Held, of: &Branch, parent: Option<usize>, depth: usize) {
    let indent = depth * 2;
    let mut name = node_name(held, of.node);
    if let Some(member) = parent.and_then(|parent| member(held, parent, of.node)) {
        name = format!("{member}: {name}");
    }
    let _ = writeln!(out, "  {:>12} {:indent$} {}", text::human_bytes(of.retained), "", short(&name));
    // no deeper than LEVELS
    of.below.iter().for_each(|below| branch(out, held, below, Some(of.node), depth + 1));
    let (others, bytes) = of.others;
    if others > 0 {
        let _ = writeln!(out, "  {:>12} {:indent$}   {}", text::human_bytes(bytes), "", text::plural(others, "other"));
    }
}
