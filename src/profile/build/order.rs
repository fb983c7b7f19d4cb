//! The order of a profile's tables: by bytes, then by names, so that two runs of one program compare line by line.

use crate::profile::leaks::LeakSite;
use crate::profile::{Finding, Function, Line, Location, Profile, Stack};
use std::cmp::{Ordering, Reverse};

/// Sorts samples and findings, and numbers everything else in the order of its first use. What is not used is dropped.
pub fn normalize(profile: &mut Profile) {
    let ranks = stack_ranks(&profile.stacks, &location_ranks(&profile.functions, &profile.locations));
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
    for (stack, _) in &mut profile.growths {
        *stack = stacks.of(*stack);
    }
    profile.growths.sort_unstable_by_key(|(stack, _)| *stack);
    for (stack, _) in &mut profile.capacities {
        *stack = stacks.of(*stack);
    }
    profile.capacities.sort_unstable_by_key(|(stack, _)| *stack);
    for (stack, _) in &mut profile.stranded {
        *stack = stacks.of(*stack);
    }
    profile.stranded.sort_unstable_by_key(|(stack, stranded)| (*stack, stranded.arena, stranded.blocks));
    for (stack, _, _) in profile.course.heaps.iter_mut().flat_map(|heap| &mut heap.stacks) {
        *stack = stacks.of(*stack);
    }
    for born in profile.course.births.iter_mut().flat_map(|births| &mut births.blocks) {
        born.stack = stacks.of(born.stack);
    }
    for Finding { stack, alloc_stack, free_stack, .. } in &mut profile.findings {
        for index in [Some(stack), alloc_stack.as_mut(), free_stack.as_mut()].into_iter().flatten() {
            *index = stacks.of(*index);
        }
    }
    if let Some(tests) = &mut profile.tests {
        for live in tests.rows.iter_mut().map(|row| &mut row.live).chain([&mut tests.outside]) {
            live.iter_mut().for_each(|of| of.stack = stacks.of(of.stack));
            live.sort_unstable_by_key(|of| (of.stack, of.class as usize));
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
        *index = locations.of(*index as usize) as u32;
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

/// For each stack its place in the order of names, given that of each location.
fn stack_ranks(stacks: &[Stack], of_location: &[u32]) -> Vec<usize> {
    let rank = |&location: &u32| of_location.get(location as usize).copied();
    let locations = |stack: usize| {
        let list = stacks.get(stack).map(|s| &*s.locations).unwrap_or_default();
        list.iter().filter_map(rank)
    };
    // Most are told apart by their innermost frames, which are compared without a look elsewhere.
    let innermost = |stack: usize| {
        let mut ranks = locations(stack);
        (0..4).fold(0, |key, _| key << 32 | ranks.next().map_or(0, |rank| u128::from(rank) + 1))
    };
    let mut order: Vec<(u128, usize)> = (0..stacks.len()).map(|stack| (innermost(stack), stack)).collect();
    order.sort_by(|&(key_a, a), &(key_b, b)| key_a.cmp(&key_b).then_with(|| locations(a).cmp(locations(b))));
    let mut ranks = vec![0; order.len()];
    for (rank, (_, stack)) in order.into_iter().enumerate() {
        if let Some(slot) = ranks.get_mut(stack) {
            *slot = rank;
        }
    }
    ranks
}

/// For each location its place in the order of names; those that compare equal share one.
fn location_ranks(functions: &[Function], locations: &[Location]) -> Vec<u32> {
    // Names are compared once for each function: locations are many, and most names begin alike.
    let of_function =
        ranks_by(functions, |a, b| (a.name.as_str(), a.file.as_deref()).cmp(&(b.name.as_str(), b.file.as_deref())));
    let key = |line: &Line| of_function.get(line.function).map(|&function| (function, line.line));
    ranks_by(locations, |a, b| {
        let names = a.lines.iter().map(key).cmp(b.lines.iter().map(key));
        names.then_with(|| (a.module, a.offset, a.address).cmp(&(b.module, b.offset, b.address)))
    })
}

/// For each entry of a table its place in the order of `compare`; those that compare equal share one.
fn ranks_by<T>(table: &[T], compare: impl Fn(&T, &T) -> Ordering) -> Vec<u32> {
    let mut order: Vec<(usize, &T)> = table.iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| compare(a, b));
    let mut ranks = vec![0; order.len()];
    let (mut rank, mut before) = (0, None);
    for (index, entry) in order {
        if before.is_some_and(|before| compare(before, entry) != Ordering::Equal) {
            rank += 1;
        }
        before = Some(entry);
        if let Some(slot) = ranks.get_mut(index) {
            *slot = rank;
        }
    }
    ranks
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
        // Most were asked for before: one look suffices.
        let Some(new) = self.new.get_mut(old) else { return old };
        if *new == usize::MAX
            && let Some(entry) = self.old.get_mut(old).and_then(Option::take)
        {
            *new = self.kept.len();
            self.kept.push(entry);
        }
        *new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::unwinder::Quality;
    use proptest::prelude::*;

    /// Names of functions and files that are often the same, or nearly.
    fn functions() -> impl Strategy<Value = Vec<Function>> {
        let name = prop::sample::select(vec!["a", "aa", "ab", "b", ""]);
        let file = prop::option::of(prop::sample::select(vec!["x.c", "y.c", ""]));
        let function =
            (name.clone(), name, file, 0..2_u32).prop_map(|(name, system_name, file, start_line)| Function {
                name: name.to_owned(),
                system_name: system_name.to_owned(),
                file: file.map(str::to_owned),
                start_line,
            });
        prop::collection::vec(function, 1..8)
    }

    /// Locations with functions of a table, and with some that it does not have.
    fn locations() -> impl Strategy<Value = Vec<Location>> {
        let line = (0..9_usize, 0..3_u32, any::<bool>());
        let line = line.prop_map(|(function, line, inlined)| Line { function, line, inlined });
        let lines = prop::collection::vec(line, 0..4);
        let location = (prop::option::of(0..2_usize), 0..3_u64, 0..2_u64, lines)
            .prop_map(|(module, address, offset, lines)| Location { module, address: Addr(address), offset, lines });
        prop::collection::vec(location, 0..20)
    }

    /// What the order is: names, files and lines of all frames, then the place.
    fn plainly(functions: &[Function], a: &Location, b: &Location) -> Ordering {
        let names = |location: &Location| -> Vec<_> {
            let name = |line: &Line| functions.get(line.function).map(|f| (f.name.clone(), f.file.clone(), line.line));
            location.lines.iter().map(name).collect()
        };
        (names(a), a.module, a.offset, a.address).cmp(&(names(b), b.module, b.offset, b.address))
    }

    proptest! {
        /// Frame by frame, also where many of the innermost are the same.
        #[test]
        fn stacks_are_in_the_order_of_their_locations(
            lists in prop::collection::vec(prop::collection::vec(0..3_usize, 0..8), 0..30),
            of_location in prop::collection::vec(0..3_u32, 2..3),
        ) {
            let stack = |locations: &Vec<usize>| Stack::new(locations, Quality::Complete);
            let stacks: Vec<Stack> = lists.iter().map(stack).collect();
            let ranks = stack_ranks(&stacks, &of_location);
            let names: Vec<Vec<u32>> = lists
                .iter()
                .map(|list| list.iter().filter_map(|&location| of_location.get(location).copied()).collect())
                .collect();
            let mut expected: Vec<usize> = (0..lists.len()).collect();
            expected.sort_by_key(|&stack| &names[stack]);
            let mut found: Vec<usize> = (0..lists.len()).collect();
            found.sort_by_key(|&stack| ranks[stack]);
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn ranks_are_in_the_order_of_names(functions in functions(), locations in locations()) {
            let ranks = location_ranks(&functions, &locations);
            for (a, of_a) in locations.iter().zip(&ranks) {
                for (b, of_b) in locations.iter().zip(&ranks) {
                    prop_assert_eq!(of_a.cmp(of_b), plainly(&functions, a, b));
                }
            }
        }
    }
}
