//! The order of a profile's tables: by bytes, then by names, so that two runs of one program compare line by line.

use crate::profile::leaks::LeakSite;
use crate::profile::{Finding, Line, Location, Profile};
use std::cmp::{Ordering, Reverse};

/// Sorts samples and findings, and numbers everything else in the order of its first use. What is not used is dropped.
pub fn normalize(profile: &mut Profile) {
    let ranks = stack_ranks(profile);
    let rank = |stack: usize| ranks.get(stack).copied().unwrap_or(usize::MAX);
    let strings = std::mem::take(&mut profile.strings);
    let string = |index: usize| strings.get(index).map_or("", String::as_str);
    profile.samples.sort_by(|a, b| {
        let bytes = |s: &crate::profile::Sample| (Reverse(s.allocated.bytes), Reverse(s.deallocated.bytes));
        bytes(a)
            .cmp(&bytes(b))
            .then_with(|| rank(a.stack).cmp(&rank(b.stack)))
            .then_with(|| string(a.thread).cmp(string(b.thread)))
            .then_with(|| string(a.alloc_fn).cmp(string(b.alloc_fn)))
            .then_with(|| (a.size, a.inherited).cmp(&(b.size, b.inherited)))
            .then_with(|| a.program.map(string).cmp(&b.program.map(string)))
    });
    profile
        .findings
        .sort_by_key(|f| (f.kind, Reverse(f.count), rank(f.stack), f.alloc_stack.map(rank), f.free_stack.map(rank)));

    if let Some(leaks) = &mut profile.leaks {
        // The order of their bytes is there already; ties are broken by names.
        leaks.sites.sort_by_cached_key(|site| (leaks_order(site), rank(site.stack)));
    }

    let mut stacks = Renumbering::new(std::mem::take(&mut profile.stacks));
    let mut texts = Renumbering::new(strings);
    for sample in &mut profile.samples {
        sample.stack = stacks.of(sample.stack);
        sample.thread = texts.of(sample.thread);
        sample.alloc_fn = texts.of(sample.alloc_fn);
        sample.program = sample.program.map(|program| texts.of(program));
    }
    for (stack, _, _) in profile.course.heaps.iter_mut().flat_map(|heap| &mut heap.stacks) {
        *stack = stacks.of(*stack);
    }
    for Finding { stack, alloc_stack, free_stack, .. } in &mut profile.findings {
        for index in [Some(stack), alloc_stack.as_mut(), free_stack.as_mut()].into_iter().flatten() {
            *index = stacks.of(*index);
        }
    }
    for site in profile.leaks.iter_mut().flat_map(|leaks| &mut leaks.sites) {
        site.stack = stacks.of(site.stack);
        site.thread = texts.of(site.thread);
        site.alloc_fn = texts.of(site.alloc_fn);
        for step in site.path.iter_mut().flat_map(|path| &mut path.steps) {
            step.stack = stacks.of(step.stack);
        }
    }
    profile.strings = texts.kept;
    profile.stacks = stacks.kept;

    let mut locations = Renumbering::new(std::mem::take(&mut profile.locations));
    for index in profile.stacks.iter_mut().flat_map(|s| &mut s.locations) {
        *index = locations.of(*index);
    }
    profile.locations = locations.kept;
    let mut functions = Renumbering::new(std::mem::take(&mut profile.functions));
    for line in profile.locations.iter_mut().flat_map(|l| &mut l.lines) {
        line.function = functions.of(line.function);
    }
    profile.functions = functions.kept;
}

/// The most leaked bytes first, with what hangs on them; then by each class.
fn leaks_order(site: &LeakSite) -> impl Ord + use<> {
    let [definite, _, _, _] = site.amounts;
    (Reverse(definite.plus(site.holds).bytes), site.amounts.map(|amount| Reverse(amount.bytes)))
}

/// For each stack its place in the order of names.
fn stack_ranks(profile: &Profile) -> Vec<usize> {
    let of_location = location_ranks(profile);
    let rank = |&location: &usize| of_location.get(location).copied();
    let locations = |stack: usize| {
        let list = profile.stacks.get(stack).map(|s| s.locations.as_slice()).unwrap_or_default();
        list.iter().filter_map(rank)
    };
    let mut order: Vec<usize> = (0..profile.stacks.len()).collect();
    order.sort_by(|&a, &b| locations(a).cmp(locations(b)));
    let mut ranks = vec![0; order.len()];
    for (rank, stack) in order.into_iter().enumerate() {
        if let Some(slot) = ranks.get_mut(stack) {
            *slot = rank;
        }
    }
    ranks
}

/// For each location its place in the order of names; those that compare equal share one.
fn location_ranks(profile: &Profile) -> Vec<u32> {
    let mut order: Vec<(usize, &Location)> = profile.locations.iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| compare(profile, a, b));
    let mut ranks = vec![0; order.len()];
    let (mut rank, mut before) = (0, None);
    for (index, location) in order {
        if before.is_some_and(|before| compare(profile, before, location) != Ordering::Equal) {
            rank += 1;
        }
        before = Some(location);
        if let Some(slot) = ranks.get_mut(index) {
            *slot = rank;
        }
    }
    ranks
}

fn compare(profile: &Profile, a: &Location, b: &Location) -> Ordering {
    let key =
        |line: &Line| profile.functions.get(line.function).map(|f| (f.name.as_str(), f.file.as_deref(), line.line));
    let names = a.lines.iter().map(key).cmp(b.lines.iter().map(key));
    names.then_with(|| (a.module, a.offset, a.address).cmp(&(b.module, b.offset, b.address)))
}

/// Gives the entries of a table new numbers in the order in which they are asked for.
struct Renumbering<T> {
    old: Vec<Option<T>>,
    new: Vec<usize>,
    kept: Vec<T>,
}

impl<T> Renumbering<T> {
    fn new(table: Vec<T>) -> Self {
        let new = vec![usize::MAX; table.len()];
        Self { old: table.into_iter().map(Some).collect(), new, kept: Vec::new() }
    }

    /// The new number of entry `old`, which must be one of the table.
    fn of(&mut self, old: usize) -> usize {
        if let Some((entry, new)) = self.old.get_mut(old).zip(self.new.get_mut(old)) {
            if let Some(entry) = entry.take() {
                *new = self.kept.len();
                self.kept.push(entry);
            }
            return *new;
        }
        old
    }
}
