//! Advice: what a program could do to allocate less, as far as its figures prove it.
//!
//! Pure rules over the figures of sites, each of which names the figures that it follows from. What they don't prove is
//! not advised; `docs/guide/advice.md` tells the limits.

use crate::base::figures::{Amount, Arena, Capacity, CrossThreadFreed, Growth};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// From this share of the peak on, in tenths of a percent, it is one site's.
const MAX_OF_PEAK: u64 = 500;

/// A peak of less than so many bytes is not worth a word.
const MIN_PEAK: u64 = 1 << 20;

/// A place is in a loop if it has made so many blocks.
const MIN_BLOCKS: u64 = 1000;

/// From this share on, in tenths of a percent, what a site does concerns nearly all of its blocks.
const NEARLY_ALL: u64 = 900;

/// From this share of all allocations, frees or bytes on, in tenths of a percent, something is worth a word.
const WORTH: u64 = 50;

/// So many copies of so many bytes in all are worth a word, ...
const MIN_COPIES: u64 = 8;
const MIN_COPIED: u64 = 64 << 10;

/// ... if buffers have grown so many times on average: pairs of sizes that fit by chance make no series, ...
const MIN_SERIES: u64 = 3;

/// ... and if that is this share of all bytes allocated, or the largest of them has this share of the peak, in tenths
/// of a percent.
const COPIED_WORTH: u64 = 10;
const GROWN_WORTH: u64 = WORTH;

/// Blocks of so many bytes that are rounded up to the next class of sizes are worth a word, ...
const MIN_ROUNDED: u64 = 64 << 10;

/// ... and this share of the peak, in tenths of a percent.
const ROUNDED_WORTH: u64 = 10;

/// glibc's chunks are multiples of so many bytes, ...
const CHUNK_STEP: u64 = 16;

/// ... with so many for their size, ...
const CHUNK_HEAD: u64 = 8;

/// ... and blocks of up to so many bytes are in the smallest of them.
const SMALLEST_BLOCK: u64 = 24;

/// A block that has at most so many bytes more than a chunk would hold misses it narrowly.
const NARROWLY: u64 = 3;

/// So many bytes that were never written are worth a word, ...
const MIN_UNWRITTEN: u64 = 64 << 10;

/// ... if they are this share of what was asked for, and of all that was allocated, in tenths of a percent.
const UNWRITTEN_OF_SITE: u64 = 250;
const UNWRITTEN_OF_ALL: u64 = 10;

/// What is known of a site.
#[derive(Clone, Debug, Default)]
pub struct SiteFigures {
    /// Sites of the same place are one to people: the same call, reached on different ways. None: nobody knows where it
    /// is.
    pub place: Option<usize>,
    /// All that was allocated there.
    pub allocated: Amount,
    /// What was freed of it.
    pub freed: Amount,
    /// What was live at the peak.
    pub at_peak: Amount,
    /// How many blocks were freed before their thread's next allocation.
    pub temporary: u64,
    /// How many blocks were freed by another thread than the one that had allocated them.
    pub freed_elsewhere: u64,
    /// For how long the blocks lived that were freed, in all, if that is known; in nanoseconds.
    pub lifetime_ns: Option<u64>,
    /// How its buffers have grown.
    pub growth: Growth,
    /// How much of its blocks was never written, if that was looked at.
    pub capacity: Capacity,
    /// Which arenas the blocks lay in that other threads have freed, if that is known.
    pub stranded: Vec<CrossThreadFreed>,
    /// Sizes of blocks that were live at the peak, with their numbers: only such sizes as are exact.
    pub sizes_at_peak: Vec<(u64, u64)>,
}

impl SiteFigures {
    fn add(&mut self, other: &Self) {
        self.allocated = self.allocated.plus(other.allocated);
        self.freed = self.freed.plus(other.freed);
        self.at_peak = self.at_peak.plus(other.at_peak);
        self.temporary = self.temporary.saturating_add(other.temporary);
        self.freed_elsewhere = self.freed_elsewhere.saturating_add(other.freed_elsewhere);
        self.lifetime_ns = self.lifetime_ns.zip(other.lifetime_ns).map(|(one, two)| one.saturating_add(two));
        self.growth = self.growth.plus(other.growth);
        self.capacity = self.capacity.plus(other.capacity);
        self.stranded.extend(&other.stranded);
        self.sizes_at_peak.extend(&other.sizes_at_peak);
    }
}

/// What is known of the whole.
#[derive(Clone, Copy, Debug)]
pub struct WholeFigures {
    /// All that was allocated.
    pub allocated: Amount,
    /// How many blocks were freed.
    pub frees: u64,
    /// The bytes of the peak.
    pub peak_bytes: u64,
    /// For how long it was watched, in nanoseconds.
    pub duration_ns: u64,
    /// Whether the allocator is glibc's.
    pub is_glibc: bool,
}

/// The figures that advice follows from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "kind", content = "figures", rename_all = "snake_case")]
#[allow(missing_docs, reason = "docs/report.schema.json says what the fields are")]
pub enum Proof {
    /// One site has most of the peak.
    LargestAtPeak { blocks: u64, bytes: u64, peak_bytes: u64 },
    /// Blocks that are freed at once, again and again.
    Temporaries {
        temporary: u64,
        allocations: u64,
        all_allocations: u64,
        per_second: u64,
        mean_lifetime_ns: Option<u64>,
    },
    /// Buffers that grow without being reserved.
    Growth { buffers: u64, growths: u64, copies: u64, copied_bytes: u64, largest_bytes: u64 },
    /// Blocks with a few bytes more than the next smaller chunk would hold.
    SizeClass { size: u64, excess: u64, blocks: u64, bytes: u64 },
    /// Blocks that other threads free, and the arena that most of them lay in.
    FreedElsewhere {
        freed_elsewhere: u64,
        freed: u64,
        bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        arena: Option<CrossThreadFreed>,
    },
    /// Blocks whose ends are never written.
    NeverWritten { never_written_bytes: u64, blocks: u64, bytes: u64 },
}

/// Something to do, and at which of the sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Index of the site; of those of one place the one that has most of it.
    pub site: usize,
    /// Why: the figures of all sites of the place that it concerns.
    pub proof: Proof,
    /// Which part it is of what it is about, in tenths of a percent: the order.
    pub permille: u64,
}

/// A reason for advice.
struct Rule {
    /// How much of it a site has; None: the site does not do it.
    amount: fn(&SiteFigures) -> Option<u64>,
    /// What is told of all sites of a place that do it, if that is worth a word.
    told: fn(&SiteFigures, &WholeFigures) -> Told,
}

const RULES: [Rule; 6] = [
    Rule { amount: |site| Some(site.at_peak.bytes), told: largest_at_peak },
    Rule { amount: |site| is_loop(site).then_some(site.temporary), told: temporaries },
    Rule { amount: |site| is_series(&site.growth).then_some(site.growth.copied_bytes), told: growth },
    Rule { amount: |site| narrowest(site).map(|(_, blocks)| blocks), told: size_class },
    Rule { amount: |site| hands_over(site).then_some(site.freed_elsewhere), told: freed_elsewhere },
    Rule { amount: |site| leaves_room(site).then_some(site.capacity.never_written_bytes), told: never_written },
];

/// So many tenths of a percent of `whole` are `part`.
fn permille(part: u64, whole: u64) -> u64 {
    let share = (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Whether so many blocks are worth a word that other threads have freed, of so many that were.
pub fn is_handed_over(freed_elsewhere: u64, frees: u64) -> bool {
    freed_elsewhere >= MIN_BLOCKS && permille(freed_elsewhere, frees) >= WORTH
}

/// All that is to be said, what concerns most first. The figures of each site are taken one by one, in the order of the
/// sites' indices: there may be a million.
pub fn advise(sites: impl IntoIterator<Item = SiteFigures>, whole: &WholeFigures) -> Vec<Advice> {
    let mut places = RULES.each_ref().map(|_| Places::new());
    for (at, site) in sites.into_iter().enumerate() {
        for (rule, places) in RULES.iter().zip(&mut places) {
            add_site(rule, places, at, &site);
        }
    }
    let told = |(rule, places): (&Rule, &Places)| -> Vec<Advice> {
        let told = |(figures, site, _): &(SiteFigures, usize, u64)| {
            (rule.told)(figures, whole).map(|(proof, permille)| Advice { site: *site, proof, permille })
        };
        places.values().filter_map(told).collect()
    };
    let mut all: Vec<Advice> = RULES.iter().zip(&places).flat_map(told).collect();
    all.sort_by_key(|advice| (Reverse(advice.permille), advice.site));
    all
}

/// The figures of each place of which a rule may tell, and of which site most of it is, with its amount. The key is the
/// place, or
/// where that is not known the site.
type Places = BTreeMap<(Option<usize>, usize), (SiteFigures, usize, u64)>;

fn add_site(rule: &Rule, places: &mut Places, at: usize, site: &SiteFigures) {
    let Some(amount) = (rule.amount)(site) else { return };
    let key = (site.place, if site.place.is_none() { at } else { 0 });
    match places.get_mut(&key) {
        None => {
            places.insert(key, (site.clone(), at, amount));
        }
        Some((figures, most_at, most)) => {
            figures.add(site);
            if amount > *most {
                (*most_at, *most) = (at, amount);
            }
        }
    }
}

type Told = Option<(Proof, u64)>;

/// Whether it makes blocks again and again that are freed at once.
fn is_loop(site: &SiteFigures) -> bool {
    // A buffer that is freed because a larger one has taken its place is told as such.
    let is_growth = site.growth.growths.saturating_add(site.growth.outgrown) > site.temporary / 2;
    site.temporary > 0 && permille(site.temporary, site.allocated.objects) >= NEARLY_ALL && !is_growth
}

/// Whether its buffers grow step by step.
fn is_series(growth: &Growth) -> bool {
    growth.growths > 0 && growth.growths >= growth.buffers.saturating_mul(MIN_SERIES)
}

/// Whether other threads free nearly all of its blocks.
fn hands_over(site: &SiteFigures) -> bool {
    site.freed_elsewhere > 0 && permille(site.freed_elsewhere, site.freed.objects) >= NEARLY_ALL
}

/// Whether much of what it asks for is never written.
fn leaves_room(site: &SiteFigures) -> bool {
    let Capacity { bytes, never_written_bytes, .. } = site.capacity;
    never_written_bytes > 0 && permille(never_written_bytes, bytes) >= UNWRITTEN_OF_SITE
}

fn largest_at_peak(site: &SiteFigures, whole: &WholeFigures) -> Told {
    let (Amount { objects: blocks, bytes }, peak_bytes) = (site.at_peak, whole.peak_bytes);
    let share = permille(bytes, peak_bytes);
    (peak_bytes >= MIN_PEAK && share >= MAX_OF_PEAK)
        .then_some((Proof::LargestAtPeak { blocks, bytes, peak_bytes }, share))
}

fn temporaries(site: &SiteFigures, whole: &WholeFigures) -> Told {
    let temporary = site.temporary;
    let (allocations, all_allocations) = (site.allocated.objects, whole.allocated.objects);
    let share = permille(temporary, all_allocations);
    let per_second = u128::from(temporary) * 1_000_000_000 / u128::from(whole.duration_ns.max(1));
    let per_second = u64::try_from(per_second).unwrap_or(u64::MAX);
    // Of blocks that were not temporary one alone may have lived for longer than all others together.
    let is_of_all = site.freed.objects == temporary;
    let mean_lifetime_ns = site.lifetime_ns.filter(|_| is_of_all).and_then(|sum| sum.checked_div(temporary));
    let proof = Proof::Temporaries { temporary, allocations, all_allocations, per_second, mean_lifetime_ns };
    (temporary >= MIN_BLOCKS && share >= WORTH).then_some((proof, share))
}

fn growth(site: &SiteFigures, whole: &WholeFigures) -> Told {
    let Growth { buffers, growths, copies, copied_bytes, largest_bytes, .. } = site.growth;
    let proof = Proof::Growth { buffers, growths, copies, copied_bytes, largest_bytes };
    let share = permille(copied_bytes, whole.allocated.bytes);
    let is_much = copies >= MIN_COPIES && copied_bytes >= MIN_COPIED;
    let is_worth_it = share >= COPIED_WORTH || permille(largest_bytes, whole.peak_bytes) >= GROWN_WORTH;
    (is_much && is_worth_it).then_some((proof, share))
}

/// By how many bytes a block misses a smaller chunk of glibc's.
const fn excess_of(size: u64) -> u64 {
    if size > SMALLEST_BLOCK { size.saturating_add(CHUNK_HEAD) % CHUNK_STEP } else { 0 }
}

/// Of which size that misses a smaller chunk narrowly there are most blocks, and how many.
fn narrowest(site: &SiteFigures) -> Option<(u64, u64)> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (size, blocks) in site.sizes_at_peak.iter().filter(|(size, _)| (1..=NARROWLY).contains(&excess_of(*size))) {
        let sum = sizes.entry(*size).or_default();
        *sum = sum.saturating_add(*blocks);
    }
    sizes.into_iter().max_by_key(|(_, blocks)| *blocks)
}

fn size_class(site: &SiteFigures, whole: &WholeFigures) -> Told {
    if !whole.is_glibc {
        return None;
    }
    let (size, blocks) = narrowest(site)?;
    let bytes = blocks.saturating_mul(CHUNK_STEP);
    let share = permille(bytes, whole.peak_bytes);
    let proof = Proof::SizeClass { size, excess: excess_of(size), blocks, bytes };
    (bytes >= MIN_ROUNDED && share >= ROUNDED_WORTH).then_some((proof, share))
}

fn freed_elsewhere(site: &SiteFigures, whole: &WholeFigures) -> Told {
    let (freed_elsewhere, freed) = (site.freed_elsewhere, site.freed.objects);
    let share = permille(freed_elsewhere, whole.frees);
    let mean = u128::from(site.freed.bytes) * u128::from(freed_elsewhere) / u128::from(freed.max(1));
    let bytes = u64::try_from(mean).unwrap_or(u64::MAX);
    let arena = most_stranded(&site.stranded);
    is_handed_over(freed_elsewhere, whole.frees)
        .then_some((Proof::FreedElsewhere { freed_elsewhere, freed, bytes, arena }, share))
}

/// The arena that most of the blocks lay in.
fn most_stranded(list: &[CrossThreadFreed]) -> Option<CrossThreadFreed> {
    let mut arenas: BTreeMap<Arena, u64> = BTreeMap::new();
    for stranded in list {
        let sum = arenas.entry(stranded.arena).or_default();
        *sum = sum.saturating_add(stranded.blocks);
    }
    let sums = arenas.into_iter().map(|(arena, blocks)| CrossThreadFreed { blocks, arena });
    sums.max_by_key(|stranded| (stranded.blocks, Reverse(stranded.arena)))
}

fn never_written(site: &SiteFigures, whole: &WholeFigures) -> Told {
    let Capacity { blocks, bytes, never_written_bytes } = site.capacity;
    let share = permille(never_written_bytes, whole.allocated.bytes);
    (never_written_bytes >= MIN_UNWRITTEN && share >= UNWRITTEN_OF_ALL)
        .then_some((Proof::NeverWritten { never_written_bytes, blocks, bytes }, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ALL: WholeFigures = WholeFigures {
        allocated: Amount { objects: 10_000, bytes: 8 << 20 },
        frees: 9_000,
        peak_bytes: 2 << 20,
        duration_ns: 2_000_000_000,
        is_glibc: true,
    };

    fn amount(objects: u64, bytes: u64) -> Amount {
        Amount { objects, bytes }
    }

    fn told(site: SiteFigures, whole: &WholeFigures) -> Vec<Proof> {
        advise([site], whole).into_iter().map(|advice| advice.proof).collect()
    }

    #[test]
    fn one_site_has_most_of_a_peak_from_its_half_on() {
        let site = |bytes| SiteFigures { at_peak: amount(3, bytes), ..SiteFigures::default() };
        let proof = Proof::LargestAtPeak { blocks: 3, bytes: 1 << 20, peak_bytes: 2 << 20 };
        assert_eq!(told(site(1 << 20), &OF_ALL), [proof]);
        assert_eq!(told(site((1 << 20) - 4096), &OF_ALL), []);
        assert_eq!(told(site(1000), &WholeFigures { peak_bytes: 1000, ..OF_ALL }), [], "a small peak");
    }

    #[test]
    fn temporary_blocks_count_where_nearly_all_are_and_they_are_many() {
        let site = |temporary, allocations| SiteFigures {
            allocated: amount(allocations, 16 * allocations),
            freed: amount(allocations, 16 * allocations),
            temporary,
            lifetime_ns: Some(7 * allocations),
            ..SiteFigures::default()
        };
        let proof = Proof::Temporaries {
            temporary: 1900,
            allocations: 2000,
            all_allocations: 10_000,
            per_second: 950,
            mean_lifetime_ns: None,
        };
        assert_eq!(told(site(1900, 2000), &OF_ALL), [proof], "how long the others lived says nothing of these");
        let [Proof::Temporaries { mean_lifetime_ns, .. }] = told(site(2000, 2000), &OF_ALL)[..] else { panic!() };
        assert_eq!(mean_lifetime_ns, Some(7));
        assert_eq!(told(site(1790, 2000), &OF_ALL), [], "others of its blocks live on");
        assert_eq!(told(site(999, 999), &OF_ALL), [], "few");
        let more = WholeFigures { allocated: amount(40_000, 1 << 20), ..OF_ALL };
        assert_eq!(told(site(1900, 2000), &more), [], "few of all");
        let growth = Growth { growths: 1000, buffers: 900, ..Growth::default() };
        assert_eq!(told(SiteFigures { growth, ..site(1900, 2000) }, &OF_ALL), [], "freed as they grow");
    }

    #[test]
    fn growth_counts_as_a_series_that_copies_much() {
        let growth =
            Growth { buffers: 4, growths: 12, copies: 8, copied_bytes: 64 << 10, largest_bytes: 9000, outgrown: 0 };
        let site = |growth| SiteFigures { growth, ..SiteFigures::default() };
        let proof = Proof::Growth { buffers: 4, growths: 12, copies: 8, copied_bytes: 64 << 10, largest_bytes: 9000 };
        let little = WholeFigures { allocated: amount(10_000, 6 << 20), ..OF_ALL };
        assert_eq!(told(site(growth), &little), [proof]);
        for less in [
            Growth { buffers: 5, ..growth },
            Growth { copies: 7, ..growth },
            Growth { copied_bytes: (64 << 10) - 1, ..growth },
        ] {
            assert_eq!(told(site(less), &little), []);
        }
    }

    #[test]
    fn growth_counts_where_much_of_all_is_copied_or_a_buffer_is_much_of_the_peak() {
        let growth = Growth { buffers: 4, growths: 12, copies: 12, largest_bytes: 32 << 10, ..Growth::default() };
        let is_told = |copied_bytes, largest_bytes| {
            let growth = Growth { copied_bytes, largest_bytes, ..growth };
            !told(SiteFigures { growth, ..SiteFigures::default() }, &OF_ALL).is_empty()
        };
        // of 8 MiB that were allocated, and of 2 MiB at the peak
        assert!(is_told((8 << 20) / 100 + 1, 32 << 10));
        assert!(!is_told((8 << 20) / 100 - 8192, 32 << 10), "little of all");
        assert!(is_told(64 << 10, (2 << 20) / 20 + 1), "a large buffer");
        assert!(!is_told(64 << 10, (2 << 20) / 20 - 4096), "a small one");
    }

    /// Against glibc's own rule: a request gets the smallest multiple of 16 that holds it and 8 bytes more, and at
    /// least 32.
    #[test]
    fn a_block_misses_a_smaller_chunk_by_what_it_has_more_than_that_would_hold() {
        let chunk = |size: u64| (size + 8).next_multiple_of(16).max(32);
        for size in 0..2000 {
            let site = SiteFigures { sizes_at_peak: vec![(size, 10_000)], ..SiteFigures::default() };
            let missed = (1..=3).find(|less| size >= *less && chunk(size - less) < chunk(size));
            let expected = missed.map(|excess| Proof::SizeClass { size, excess, blocks: 10_000, bytes: 160_000 });
            assert_eq!(told(site, &OF_ALL), Vec::from_iter(expected), "{size}");
        }
        let site = SiteFigures { sizes_at_peak: vec![(25, 10_000)], ..SiteFigures::default() };
        assert_eq!(told(site.clone(), &WholeFigures { is_glibc: false, ..OF_ALL }), []);
        assert_eq!(told(site, &WholeFigures { peak_bytes: 1 << 30, ..OF_ALL }), []);
    }

    #[test]
    fn what_other_threads_free_counts_where_they_free_nearly_all() {
        let site =
            |freed_elsewhere| SiteFigures { freed: amount(4000, 400_000), freed_elsewhere, ..SiteFigures::default() };
        let proof = Proof::FreedElsewhere { freed_elsewhere: 3600, freed: 4000, bytes: 360_000, arena: None };
        assert_eq!(told(site(3600), &OF_ALL), [proof]);
        assert_eq!(told(site(3590), &OF_ALL), []);
        assert_eq!(told(site(3600), &WholeFigures { frees: 100_000, ..OF_ALL }), []);
    }

    #[test]
    fn the_arena_is_told_that_most_of_the_freed_blocks_lay_in() {
        let arena = |address| Arena { address, is_main: false, system_bytes: 9000, live_bytes: 1000, free_bytes: 7000 };
        let site = |stranded: &[(u64, u64)]| SiteFigures {
            place: Some(1),
            freed: amount(2000, 200_000),
            freed_elsewhere: 2000,
            stranded: stranded
                .iter()
                .map(|&(address, blocks)| CrossThreadFreed { blocks, arena: arena(address) })
                .collect(),
            ..SiteFigures::default()
        };
        let sites = [site(&[(16, 1200), (32, 800)]), site(&[(32, 700), (48, 1300)])];
        let proof = Proof::FreedElsewhere {
            freed_elsewhere: 4000,
            freed: 4000,
            bytes: 400_000,
            arena: Some(CrossThreadFreed { blocks: 1500, arena: arena(32) }),
        };
        assert_eq!(advise(sites.clone(), &OF_ALL).iter().map(|advice| advice.proof).collect::<Vec<_>>(), [proof]);
    }

    #[test]
    fn capacity_counts_where_much_of_it_is_never_written() {
        let site = |never_written_bytes, bytes| SiteFigures {
            capacity: Capacity { blocks: 10, bytes, never_written_bytes },
            ..SiteFigures::default()
        };
        let proof = Proof::NeverWritten { never_written_bytes: 90 << 10, blocks: 10, bytes: 300 << 10 };
        assert_eq!(told(site(90 << 10, 300 << 10), &OF_ALL), [proof]);
        assert_eq!(told(site((64 << 10) - 1, 100 << 10), &OF_ALL), [], "little");
        assert_eq!(told(site(90 << 10, 361 << 10), &OF_ALL), [], "most of it is written");
        let more = WholeFigures { allocated: amount(10_000, 10 << 20), ..OF_ALL };
        assert_eq!(told(site(90 << 10, 300 << 10), &more), [], "little of all");
    }

    /// What is little on each way to a call may be much in all; ways on which it is not done don't count.
    #[test]
    fn sites_of_one_place_are_told_together() {
        let site = |place, temporary, allocations| SiteFigures {
            place,
            allocated: amount(allocations, 16 * allocations),
            freed: amount(allocations, 16 * allocations),
            temporary,
            lifetime_ns: Some(3 * allocations),
            ..SiteFigures::default()
        };
        let sites = [
            site(Some(1), 400, 400),
            site(Some(1), 500, 500),
            site(Some(1), 50, 1000),
            site(Some(1), 300, 300),
            site(Some(2), 900, 900),
            site(None, 900, 900),
            site(None, 900, 900),
        ];
        let proof = Proof::Temporaries {
            temporary: 1200,
            allocations: 1200,
            all_allocations: 10_000,
            per_second: 600,
            mean_lifetime_ns: Some(3),
        };
        assert_eq!(advise(sites.clone(), &OF_ALL), [Advice { site: 1, proof, permille: 120 }]);
        let narrow = |place| SiteFigures { place, sizes_at_peak: vec![(25, 5000), (41, 10)], ..SiteFigures::default() };
        let proof = Proof::SizeClass { size: 25, excess: 1, blocks: 10_000, bytes: 160_000 };
        let told = advise([narrow(Some(0)), narrow(Some(0))], &OF_ALL);
        assert_eq!(told.iter().map(|advice| advice.proof).collect::<Vec<_>>(), [proof]);
    }

    #[test]
    fn what_concerns_most_comes_first() {
        let at_peak = |bytes| SiteFigures { at_peak: amount(1, bytes), ..SiteFigures::default() };
        let growth =
            Growth { buffers: 1, growths: 12, copies: 12, copied_bytes: 1 << 20, largest_bytes: 1 << 20, outgrown: 0 };
        let grown = SiteFigures { growth, ..SiteFigures::default() };
        let order: Vec<usize> = advise([grown, at_peak(1 << 20)], &OF_ALL).iter().map(|advice| advice.site).collect();
        assert_eq!(order, [1, 0]);
    }
}
