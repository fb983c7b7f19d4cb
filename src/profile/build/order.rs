//! The order of a profile's tables: by bytes, then by names, so that two runs of one program compare line by line.

use crate::profile::leaks::LeakSite;
use crate::profile::stacks::permute;
use crate::profile::{Finding, Function, Line, Location, Profile, Sample, Samples, Stacks};
use std::cmp::{Ordering, Reverse};

/// Sorts samples and findings, and numbers everything else in the order of its first use. What is not used is dropped.
pub fn normalize(profile: &mut Profile) {
    let ranks = stack_ranks(&profile.stacks, &location_ranks(&profile.functions, &profile.locations));
    let rank = |stack: usize| ranks.get(stack).copied().unwrap_or(u32::MAX);
    let strings = std::mem::take(&mut profile.strings);
    let string = |index: usize| strings.get(index).map_or("", String::as_str);
    let compare = |a: &Sample, b: &Sample| {
        string(a.thread)
            .cmp(string(b.thread))
            .then_with(|| string(a.alloc_fn).cmp(string(b.alloc_fn)))
            .then_with(|| (a.size, a.inherited).cmp(&(b.size, b.inherited)))
            .then_with(|| a.program.map(string).cmp(&b.program.map(string)))
    };
    let mut order = in_order_of_stacks(&profile.samples, &ranks);
    let samples = &profile.samples;
    order.sort_unstable_by(|(bytes_a, freed_a, rank_a, a), (bytes_b, freed_b, rank_b, b)| {
        let sample = |index: u32| samples.get(index as usize);
        let rest = || sample(*a).zip(sample(*b)).map_or(Ordering::Equal, |(a, b)| compare(&a, &b));
        (bytes_a, freed_a, rank_a).cmp(&(bytes_b, freed_b, rank_b)).then_with(rest).then(a.cmp(b))
    });
    profile
        .findings
        .sort_by_key(|f| (f.kind, Reverse(f.count), rank(f.stack), f.alloc_stack.map(rank), f.free_stack.map(rank)));

    if let Some(leaks) = &mut profile.leaks {
        // The order of their bytes is there already; ties are broken by names.
        leaks.sites.sort_by_cached_key(|site| (leaks_order(site), rank(site.stack)));
    }

    let mut stacks = Renumbering::of(profile.stacks.len());
    let mut texts = Renumbering::of(strings.len());
    let mut samples = Samples::default();
    for sample in order.iter().filter_map(|(.., index)| profile.samples.get(*index as usize)) {
        samples.push(&Sample {
            stack: stacks.number(sample.stack),
            thread: texts.number(sample.thread),
            alloc_fn: texts.number(sample.alloc_fn),
            program: sample.program.map(|program| texts.number(program)),
            ..sample
        });
    }
    drop(order);
    profile.samples = samples;
    for (stack, _) in &mut profile.growths {
        *stack = stacks.number(*stack);
    }
    profile.growths.sort_unstable_by_key(|(stack, _)| *stack);
    for (stack, _) in &mut profile.capacities {
        *stack = stacks.number(*stack);
    }
    profile.capacities.sort_unstable_by_key(|(stack, _)| *stack);
    for (stack, _) in &mut profile.stranded {
        *stack = stacks.number(*stack);
    }
    profile.stranded.sort_unstable_by_key(|(stack, stranded)| (*stack, stranded.arena, stranded.blocks));
    for (stack, _, _) in profile.course.heaps.iter_mut().flat_map(|heap| &mut heap.stacks) {
        *stack = stacks.number(*stack);
    }
    for born in profile.course.births.iter_mut().flat_map(|births| &mut births.blocks) {
        born.stack = stacks.number(born.stack);
    }
    for Finding { stack, alloc_stack, free_stack, .. } in &mut profile.findings {
        for index in [Some(stack), alloc_stack.as_mut(), free_stack.as_mut()].into_iter().flatten() {
            *index = stacks.number(*index);
        }
    }
    if let Some(tests) = &mut profile.tests {
        for live in tests.rows.iter_mut().map(|row| &mut row.live).chain([&mut tests.outside]) {
            live.iter_mut().for_each(|of| of.stack = stacks.number(of.stack));
            live.sort_unstable_by_key(|of| (of.stack, of.class as usize));
        }
    }
    for site in profile.leaks.iter_mut().flat_map(|leaks| &mut leaks.sites) {
        site.stack = stacks.number(site.stack);
        site.thread = texts.number(site.thread);
        site.alloc_fn = texts.number(site.alloc_fn);
        for step in site.path.iter_mut().flat_map(|path| &mut path.steps) {
            step.stack = stacks.number(step.stack);
        }
    }
    profile.strings = strings;
    texts.apply(&mut profile.strings);
    let (numbers, used) = stacks.into_numbers();
    profile.stacks.renumber(numbers, used);

    let mut locations = Renumbering::of(profile.locations.len());
    profile.stacks.change_locations(|location| locations.number(location as usize) as u32);
    locations.apply(&mut profile.locations);
    let mut functions = Renumbering::of(profile.functions.len());
    for line in profile.locations.iter_mut().flat_map(|l| &mut l.lines) {
        line.function = functions.number(line.function);
    }
    functions.apply(&mut profile.functions);
}

/// What samples are sorted by first: bytes allocated, bytes freed, the rank of the stack, and the sample's own number.
type Key = (Reverse<u64>, Reverse<u64>, u32, u32);

/// The keys of all samples in the order of their stacks: where most samples have the same bytes, little is left to be
/// sorted.
fn in_order_of_stacks(samples: &Samples, ranks: &[u32]) -> Vec<Key> {
    let rank = |sample: &Sample| ranks.get(sample.stack).copied().unwrap_or(u32::MAX);
    let bucket = |rank: u32| (rank as usize).min(ranks.len());
    // where the samples of each rank begin
    let mut places = vec![0_u32; ranks.len() + 2];
    for sample in samples.iter() {
        places.get_mut(bucket(rank(&sample)) + 1).into_iter().for_each(|count| *count += 1);
    }
    let mut before = 0;
    for place in &mut places {
        before += *place;
        *place = before;
    }
    let mut order = vec![(Reverse(0), Reverse(0), 0, 0); samples.len()];
    for (index, sample) in (0..).zip(samples.iter()) {
        let rank = rank(&sample);
        let place = places.get_mut(bucket(rank)).map(|place| std::mem::replace(place, *place + 1));
        if let Some(slot) = place.and_then(|place| order.get_mut(place as usize)) {
            *slot = (Reverse(sample.allocated.bytes), Reverse(sample.deallocated.bytes), rank, index);
        }
    }
    order
}

/// The most leaked bytes first, with what hangs on them; then by each class.
fn leaks_order(site: &LeakSite) -> impl Ord + use<> {
    let [definite, _, _, _] = site.amounts;
    (Reverse(definite.plus(site.holds).bytes), site.amounts.map(|amount| Reverse(amount.bytes)))
}

/// For each stack its place in the order of names, given that of each location.
fn stack_ranks(stacks: &Stacks, of_location: &[u32]) -> Vec<u32> {
    let rank = |location: u32| of_location.get(location as usize).copied();
    let locations = |stack: u32| stacks.locations(stack as usize).filter_map(rank);
    // Most are told apart by their innermost frames, which are compared without a look elsewhere: as many as there are
    // bits for.
    let bits = u32::BITS - (of_location.iter().max().copied().unwrap_or(0).saturating_add(1)).leading_zeros();
    let [first, second] = [u64::BITS, u32::BITS].map(|room| room / bits);
    let frames = first + second;
    let key = |stack: u32| -> [u64; 2] {
        let mut ranks = locations(stack);
        let mut innermost = |frames: u32| {
            let next = |key: u64, _| key << bits | ranks.next().map_or(0, |rank| u64::from(rank.saturating_add(1)));
            (0..frames).fold(0, next)
        };
        [innermost(first), innermost(second) << 32 | u64::from(stack)]
    };
    let mut order: Vec<[u64; 2]> = (0..stacks.len() as u32).map(key).collect();
    let number = |key: [u64; 2]| key[1] as u32;
    let compare = |a: &[u64; 2], b: &[u64; 2]| {
        let rest = || locations(number(*a)).skip(frames as usize).cmp(locations(number(*b)).skip(frames as usize));
        (a[0], a[1] >> 32).cmp(&(b[0], b[1] >> 32)).then_with(rest).then(number(*a).cmp(&number(*b)))
    };
    order.sort_unstable_by(compare);
    let mut ranks = vec![0; stacks.len()];
    for (rank, key) in (0..).zip(order) {
        if let Some(slot) = ranks.get_mut(number(key) as usize) {
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
struct Renumbering {
    /// By the old number; [`UNUSED`]: not asked for yet.
    new: Vec<u32>,
    /// How many have new numbers.
    used: u32,
}

const UNUSED: u32 = u32::MAX;

impl Renumbering {
    /// For a table of so many entries.
    fn of(entries: usize) -> Self {
        Self { new: vec![UNUSED; entries], used: 0 }
    }

    /// The new number of entry `old`, which must be one of the table.
    fn number(&mut self, old: usize) -> usize {
        let Some(new) = self.new.get_mut(old) else { return old };
        if *new == UNUSED {
            *new = self.used;
            self.used += 1;
        }
        *new as usize
    }

    /// Each entry's new number, and how many were asked for: those have the first ones.
    fn into_numbers(self) -> (Vec<u32>, usize) {
        let Self { mut new, used } = self;
        let unused = new.iter_mut().filter(|new| **new == UNUSED);
        for (place, new) in (used..).zip(unused) {
            *new = place;
        }
        (new, used as usize)
    }

    /// Brings the table into the new order. What was not asked for is dropped.
    fn apply<T>(self, table: &mut Vec<T>) {
        let (new, used) = self.into_numbers();
        permute(table, new);
        table.truncate(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::Addr;
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
            let stack = |locations: &Vec<usize>| crate::profile::Stack::new(locations, Quality::Complete);
            let stacks: Stacks = lists.iter().map(stack).collect();
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

        /// A table in the order in which its entries are asked for, without those that are not.
        #[test]
        fn entries_are_numbered_as_they_are_asked_for(asked in prop::collection::vec(0..12_usize, 0..30)) {
            let mut table: Vec<String> = (0..12).map(|entry: usize| entry.to_string()).collect();
            let mut numbers = Renumbering::of(table.len());
            let mut kept: Vec<String> = Vec::new();
            for entry in asked {
                let text = entry.to_string();
                let place = kept.iter().position(|known| *known == text).unwrap_or_else(|| {
                    kept.push(text);
                    kept.len() - 1
                });
                prop_assert_eq!(numbers.number(entry), place);
            }
            numbers.apply(&mut table);
            prop_assert_eq!(table, kept);
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
