//! The numbers of the page: lists of varints (seven bits a byte, the lowest first, the highest bit says that more
//! follow), each with its length before it.
//!
//! In this order: of each frame its function, file and module (indices into the strings; 0 is none) and its line (0 is
//! none); of each node of the call tree its depth and its frame; of each site its node (as the distance from the one
//! before, zigzag), the distance of the frame that tells whose it is from its innermost one, how certain its stack is
//! (0 whole, 1 guessed, 2 cut off), the type of its objects (an index into the strings; 0 is none); then for each
//! column the blocks and the bytes of each site; if `lifetimes` of the words says so, for how long its freed blocks
//! have lived, the sum in microseconds. At last the moments, in nanoseconds, of which heaps are known, the end among
//! them; and for each of them what has changed since the one before: nodes (distances), and by how much (zigzag) the
//! blocks and bytes that were allocated there by then, and the blocks and bytes live there.

use super::super::json::frames::FrameTable;
use super::super::telling::telling;
use super::super::text::printable;
use super::super::view::{NamedFrame, View};
use super::tree::CallTree;
use super::{Column, leaked};
use crate::profile::Amount;
use crate::unwinder::Quality;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// So many amounts of single stacks at moments on the way are written about; of more some moments are left out.
const MAX_ENTRIES: usize = 400_000;

/// For each node what had been allocated there by some moment, and what was live.
type Sums = BTreeMap<u32, (Amount, Amount)>;

/// A number with a sign as one without: 0, -1, 1, -2, 2, …
const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

/// See the module.
#[derive(Debug)]
pub(super) struct Numbers {
    /// The lists.
    pub bytes: Vec<u8>,
    /// Names of functions, files and modules, then of types. The first one is empty.
    pub strings: Vec<String>,
    types: FxHashMap<String, u64>,
}

impl Numbers {
    /// Begins with the frames.
    pub fn new(table: &FrameTable<'_>) -> Self {
        let mut known: FxHashMap<Cow<'_, str>, u64> = FxHashMap::default();
        let mut strings = vec![String::new()];
        let mut number = |text: Option<Cow<'_, str>>| {
            let Some(text) = text else { return 0 };
            let next = strings.len() as u64;
            if let Some(known) = known.get(&*text) {
                return *known;
            }
            strings.push(printable(&text));
            known.insert(Cow::Owned(text.into_owned()), next);
            next
        };
        let frames = table.frames();
        let functions: Vec<u64> = frames.iter().map(|frame| number(Some(Cow::Borrowed(frame.function)))).collect();
        let files: Vec<u64> = frames.iter().map(|frame| number(frame.file.map(Cow::Borrowed))).collect();
        let modules: Vec<u64> = frames.iter().map(|frame| number(frame.module.clone())).collect();
        let lines = frames.iter().map(|frame| u64::from(frame.line.unwrap_or_default()));
        let mut numbers = Self { bytes: Vec::new(), strings, types: FxHashMap::default() };
        numbers.list(functions.into_iter());
        numbers.list(files.into_iter());
        numbers.list(modules.into_iter());
        numbers.list(lines);
        numbers
    }

    /// Adds the nodes.
    pub fn tree(&mut self, tree: &CallTree) {
        self.list(tree.depths.iter().copied().map(u64::from));
        self.list(tree.frames.iter().copied().map(u64::from));
    }

    /// Adds the sites.
    pub fn sites(&mut self, view: &View<'_>, tree: &CallTree, columns: &[Column]) {
        let sites = view.sites();
        let mut before = 0;
        self.list(tree.of_site.iter().map(|node| {
            let step = i64::from(*node) - before;
            before = i64::from(*node);
            zigzag(step)
        }));
        let mut frames: Vec<NamedFrame<'_>> = Vec::new();
        self.list(sites.iter().map(|site| {
            frames.clear();
            frames.extend(view.frames(site.stack));
            telling(&frames).first().map_or(0, |at| *at as u64)
        }));
        self.list(sites.iter().map(|site| match site.quality {
            Quality::Complete => 0,
            Quality::Guessed => 1,
            Quality::Truncated => 2,
        }));
        let types: Vec<u64> = sites.iter().map(|site| self.type_name(view.type_name_of_site(&site))).collect();
        self.list(types.into_iter());
        let leaked = leaked(view.profile);
        for column in columns {
            let amounts: Vec<Amount> = sites.iter().map(|site| column.of(&site, view, &leaked)).collect();
            self.list(amounts.iter().map(|amount| amount.objects));
            self.list(amounts.iter().map(|amount| amount.bytes));
        }
    }

    /// The number of a type's name; 0 for an empty one.
    fn type_name(&mut self, name: String) -> u64 {
        if name.is_empty() {
            return 0;
        }
        let strings = &mut self.strings;
        *self.types.entry(name).or_insert_with_key(|name| {
            strings.push(printable(name));
            strings.len() as u64 - 1
        })
    }

    /// Adds for how long the freed blocks of each site have lived.
    pub fn lifetimes(&mut self, view: &View<'_>) {
        self.list(view.sites().iter().map(|site| site.lifetime_ns / 1000));
    }

    /// Adds the heaps of moments on the way, as far as there is room, and that of the end.
    pub fn heaps(&mut self, view: &View<'_>, tree: &CallTree) {
        let heaps = &view.profile.course.heaps;
        let entries: usize = heaps.iter().map(|heap| heap.stacks.len()).sum();
        let stride = entries.div_ceil(MAX_ENTRIES).max(1);
        let mut moments: Vec<(u64, Sums)> = Vec::new();
        for heap in heaps.iter().step_by(stride) {
            let mut sums = Sums::new();
            for (stack, allocated, live) in &heap.stacks {
                let node = tree.of_stack.get(stack).copied().unwrap_or_default();
                let sum = sums.entry(node).or_default();
                *sum = (sum.0.plus(*allocated), sum.1.plus(*live));
            }
            moments.push((heap.t_ns, sums));
        }
        if let Some((last_ns, _)) = moments.last() {
            let end_ns = view.profile.meta.duration_ns.max(*last_ns + 1);
            let sums = view.sites().iter().zip(&tree.of_site).map(|(site, node)| (*node, (site.allocated, site.live)));
            moments.push((end_ns, sums.collect()));
        }
        self.list(moments.iter().map(|(t_ns, _)| *t_ns));
        let mut before = Sums::new();
        for (_, now) in moments {
            self.changes(&before, &now);
            before = now;
        }
    }

    fn changes(&mut self, before: &Sums, now: &Sums) {
        let get = |sums: &Sums, node: u32| sums.get(&node).copied().unwrap_or_default();
        let nodes: BTreeSet<u32> = before.keys().chain(now.keys()).copied().collect();
        let changed: Vec<u32> = nodes.into_iter().filter(|node| get(before, *node) != get(now, *node)).collect();
        let mut last = 0;
        self.list(changed.iter().map(|node| u64::from(node - std::mem::replace(&mut last, *node))));
        let figures =
            |(allocated, live): (Amount, Amount)| [allocated.objects, allocated.bytes, live.objects, live.bytes];
        for at in 0..4 {
            let figure = |sums: &Sums, node| figures(get(sums, node)).get(at).copied().unwrap_or_default();
            let difference = |node| figure(now, node).wrapping_sub(figure(before, node)).cast_signed();
            self.list(changed.iter().map(|node| zigzag(difference(*node))));
        }
    }

    fn list(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.varint(numbers.len() as u64);
        numbers.for_each(|number| self.varint(number));
    }

    fn varint(&mut self, mut number: u64) {
        while number > 127 {
            self.bytes.push(number as u8 | 128);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}
