//! What has changed from one heap to another, by type and by holder.
//!
//! Of one process, a block has *stayed* if one of its address and size was there before, and nothing says that it was
//! another object: both are of one exact type, or neither has one. What a block looks like, and who holds it, may
//! change meanwhile: it has *moved* then. Of two processes only sums can be compared.

use super::SavedHeap;
use crate::heap::graph::holders::LOST;
use crate::heap::graph::owners::Owner;
use crate::heap::graph::types::Certainty;
use crate::heap::graph::{Held, Sum};
use rustc_hash::FxHashMap;
use std::cmp::{Ordering, Reverse};

/// What is told of blocks that no one holder retains.
const SEVERAL: &str = "(held by several)";

/// The blocks of one type or holder, or all. What came, went and moved is zero unless both heaps are of one process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Row {
    /// Its name; empty: all blocks.
    pub name: String,
    /// Those that were there.
    pub before: Sum,
    /// Those that are.
    pub after: Sum,
    /// Those that were not there before.
    pub came: Sum,
    /// Those that are no more.
    pub went: Sum,
    /// Those that were there, and another type's or holder's.
    pub moved_in: Sum,
    /// Those that are there still, and another one's now.
    pub moved_out: Sum,
}

impl Row {
    /// Those that were there and are, under the same name.
    pub const fn stayed(&self) -> Sum {
        Sum {
            blocks: self.before.blocks.saturating_sub(self.went.blocks).saturating_sub(self.moved_out.blocks),
            bytes: self.before.bytes.saturating_sub(self.went.bytes).saturating_sub(self.moved_out.bytes),
        }
    }

    /// By how many bytes there are more.
    pub fn growth(&self) -> i128 {
        i128::from(self.after.bytes) - i128::from(self.before.bytes)
    }

    fn has_changed(&self) -> bool {
        let Self { name: _, before, after, came, went, moved_in, moved_out } = self;
        before != after || [came, went, moved_in, moved_out].iter().any(|sum| **sum != Sum::default())
    }
}

/// What has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapDiff {
    /// Whether both are of one process, so that blocks can be told from each other.
    pub same_process: bool,
    /// All blocks.
    pub all: Row,
    /// The types that have changed, those by most bytes first.
    pub types: Vec<Row>,
    /// The holders that have.
    pub holders: Vec<Row>,
}

/// Rows by their names.
#[derive(Default)]
struct Rows {
    all: Vec<Row>,
    known: FxHashMap<String, usize>,
}

impl Rows {
    fn number(&mut self, name: String) -> usize {
        let all = &mut self.all;
        *self.known.entry(name).or_insert_with_key(|name| {
            all.push(Row { name: name.clone(), ..Row::default() });
            all.len() - 1
        })
    }

    fn note(&mut self, row: usize, add: impl FnOnce(&mut Row)) {
        if let Some(row) = self.all.get_mut(row) {
            add(row);
        }
    }

    fn changed(self) -> Vec<Row> {
        let mut all: Vec<Row> = self.all.into_iter().filter(Row::has_changed).collect();
        all.sort_by(|a, b| {
            let key = |row: &Row| Reverse((row.growth().abs(), row.came.bytes, row.after.bytes));
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        all
    }
}

/// All that is told.
#[derive(Default)]
struct Tables {
    types: Rows,
    holders: Rows,
    all: Row,
}

impl Tables {
    /// A block of this type and holder.
    fn note(&mut self, (of, holder, sum): (usize, usize, Sum), part: fn(&mut Row) -> &mut Sum) {
        self.types.note(of, |row| part(row).join(sum));
        self.holders.note(holder, |row| part(row).join(sum));
        part(&mut self.all).join(sum);
    }
}

/// Where the blocks of one heap belong.
struct Side<'a> {
    held: &'a Held,
    /// Of each type its row.
    types: Vec<usize>,
    /// Of each block its holder's row.
    holders: Vec<usize>,
}

impl<'a> Side<'a> {
    fn new(held: &'a Held, tables: &mut Tables, by_process: bool) -> Self {
        let Tables { types, holders, .. } = tables;
        let holdings = &held.holdings;
        let blocks = holdings.graph.blocks().len();
        let several = holders.number(SEVERAL.to_owned());
        let lost = holders.number(LOST.to_owned());
        let called = |name: &str| if by_process { name.to_owned() } else { of_any_process(name) };
        let of_holder: Vec<usize> =
            holdings.holders.iter().map(|holder| holders.number(called(&holder.name))).collect();
        let row = |block: usize| match holdings.owner(block) {
            Owner::Several => several,
            Owner::Holder(holder) => of_holder.get(holder as usize).copied().unwrap_or(several),
            Owner::Lost => lost,
        };
        let types = held.types.all.iter().map(|of| types.number(of.told())).collect();
        Self { held, types, holders: (0..blocks).map(row).collect() }
    }

    /// The rows of a block, and what it adds to them.
    fn of(&self, block: usize) -> (usize, usize, Sum) {
        let of = self.held.types.of_block.get(block).and_then(|of| self.types.get(*of as usize));
        let bytes = self.held.holdings.graph.blocks().get(block).map_or(0, |block| block.size);
        let holder = self.holders.get(block).copied().unwrap_or(usize::MAX);
        (of.copied().unwrap_or(usize::MAX), holder, Sum { blocks: 1, bytes })
    }

    fn exact(&self, block: usize) -> Option<&str> {
        self.held.types.of(block).filter(|of| of.certainty == Certainty::Exact).map(|of| of.name.as_str())
    }
}

/// A holder's name without numbers of threads and addresses, which are others in each process.
fn of_any_process(name: &str) -> String {
    if name.starts_with("mapping ") {
        return name.rsplit_once(" at 0x").map_or(name, |(before, _)| before).to_owned();
    }
    let is_of_thread = !name.starts_with("global ") && !name.starts_with("data of ");
    match name.split_once(" of thread ") {
        Some((before, behind)) if is_of_thread => {
            format!("{before} of thread{}", behind.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        _ => name.to_owned(),
    }
}

/// Compares. None if one of the two has no blocks, as its allocator could not be walked.
pub fn compare(before: &SavedHeap, after: &SavedHeap) -> Option<HeapDiff> {
    let same_process = before.identity.is_same_process(&after.identity) && before.program == after.program;
    let mut tables = Tables::default();
    let a = Side::new(before.held.as_ref()?, &mut tables, same_process);
    let b = Side::new(after.held.as_ref()?, &mut tables, same_process);
    let (olds, news) = (a.held.holdings.graph.blocks(), b.held.holdings.graph.blocks());
    (0..olds.len()).for_each(|block| tables.note(a.of(block), |row| &mut row.before));
    (0..news.len()).for_each(|block| tables.note(b.of(block), |row| &mut row.after));
    if same_process {
        let (mut old, mut new) = (0, 0);
        loop {
            let place = |(addr, size): (u64, u64)| (addr, Reverse(size));
            let order = match (olds.get(old), news.get(new)) {
                (Some(old), Some(new)) => place((old.addr.0, old.size)).cmp(&place((new.addr.0, new.size))),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let is_other = order == Ordering::Equal && a.exact(old) != b.exact(new);
            if order == Ordering::Less || is_other {
                tables.note(a.of(old), |row| &mut row.went);
            }
            if order == Ordering::Greater || is_other {
                tables.note(b.of(new), |row| &mut row.came);
            }
            if order == Ordering::Equal && !is_other {
                let ((old_type, old_holder, sum), (new_type, new_holder, _)) = (a.of(old), b.of(new));
                for (rows, from, to) in
                    [(&mut tables.types, old_type, new_type), (&mut tables.holders, old_holder, new_holder)]
                {
                    if from != to {
                        rows.note(from, |row| row.moved_out.join(sum));
                        rows.note(to, |row| row.moved_in.join(sum));
                    }
                }
            }
            old += usize::from(order != Ordering::Greater);
            new += usize::from(order != Ordering::Less);
        }
    }
    let Tables { types, holders, all } = tables;
    Some(HeapDiff { same_process, all, types: types.changed(), holders: holders.changed() })
}
