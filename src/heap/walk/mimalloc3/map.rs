//! The map (`_mi_page_map`) that leads from each slice to its page.

use super::super::Sources;
use super::super::words::{end_of_data, is_ours, words_in};
use super::records::{Layout, Page};
use super::{KERNEL_PAGE, SLICE};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::image::maps::Mapping;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// A part of the map is for so many slices (`MI_PAGE_MAP_SUB_COUNT`): 512 MiB.
const WORDS: u64 = 1 << 13;
/// What a part has.
const PART: u64 = 8 * WORDS;
/// What the words that lead to the parts have, for addresses of 38 to 48 bits: behind them lies the first part, which
/// the first word leads to.
const ROOTS: Range<u64> = KERNEL_PAGE..(4 << 20) + 1;
/// The user's part of the address space.
const ADDRESSES: Range<u64> = KERNEL_PAGE..1 << 47;
/// So much of a module's data is looked through.
const MAX_DATA: u64 = 64 << 20;
/// So many words are taken for a map's address, and tried.
const MAX_TRIED: usize = 1 << 14;
/// A map is judged by so many pages.
const SAMPLE: usize = 64;
/// A map of so many pages is judged before all of it is read: most of what is tried is none.
const EARLY: usize = 1 << 12;
/// More pages are not read. They have 64 KiB at least.
const MAX_PAGES: usize = 1 << 22;
/// So many words are looked at until a map is found and read: whatever a process has in its memory, that comes to an
/// end.
pub(super) const BUDGET: u64 = 1 << 25;
/// So many bytes that are read count as a word that is looked at.
const READ_AS_WORD: u64 = 64;

/// What a map leads to.
#[derive(Debug)]
pub(super) struct Map {
    /// How records say where blocks begin.
    pub(super) layout: Layout,
    /// The record of each page, and its first slice: ascending.
    pub(super) pages: Vec<(Addr, Addr)>,
    /// Where it is.
    pub(super) at: Addr,
    /// Whether it may lead to more pages, which were not read.
    pub(super) is_cut: bool,
}

/// How many words may still be looked at.
#[derive(Debug)]
struct Budget(u64);

impl Budget {
    /// A word is looked at. False: it was the last one.
    fn take_word(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        !self.is_spent()
    }

    /// So many bytes are read.
    fn take_bytes(&mut self, bytes: u64) {
        self.0 = self.0.saturating_sub(bytes / READ_AS_WORD);
    }

    const fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// Finds the map, and reads it; looks at so many words at most ([`BUDGET`]). None if there is none.
pub(super) fn find(sources: &Sources<'_>, budget: u64, memory: &mut dyn ReadMemory) -> Option<Map> {
    let mut last = Addr::NULL;
    let mut budget = Budget(budget);
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    sources.data.iter().find_map(|data| {
        if data.end <= last || budget.is_spent() {
            return None;
        }
        last = end_of_data(data, sources.mappings);
        let data = data.start..last.min(data.start.add(MAX_DATA));
        let mut found = None;
        let mut tried = 0;
        words_in(&data, memory, &mut |_, word, memory| {
            let is_possible = ADDRESSES.contains(&word) && word.is_multiple_of(KERNEL_PAGE);
            // many words may lead to one place
            if is_possible && holds(word, KERNEL_PAGE, sources.mappings) && seen.insert(word) {
                tried += 1;
                found = map_at(word, sources.mappings, &mut budget, memory);
            }
            found.is_none() && tried < MAX_TRIED && !budget.is_spent()
        });
        found
    })
}

/// Whether there is memory of the process's own.
fn holds(at: u64, size: u64, mappings: &[Mapping]) -> bool {
    let Some(end) = at.checked_add(size) else { return false };
    let mut reached = at;
    let first = mappings.partition_point(|mapping| mapping.end.0 <= at);
    for mapping in mappings.iter().skip(first) {
        if mapping.start.0 > reached || !is_ours(mapping) || reached >= end {
            break;
        }
        reached = mapping.end.0;
    }
    reached >= end
}

/// The map whose words begin at `at`, if there is one.
fn map_at(at: u64, mappings: &[Mapping], budget: &mut Budget, memory: &mut dyn ReadMemory) -> Option<Map> {
    budget.take_bytes(KERNEL_PAGE);
    let first = memory.read_u64(Addr(at))?;
    let size = first.checked_sub(at)?;
    if !size.is_power_of_two() || !ROOTS.contains(&size) || !holds(first, PART, mappings) {
        return None;
    }
    budget.take_bytes(size);
    let mut parts: Vec<(u64, u64)> = Vec::new();
    let mut places: BTreeSet<u64> = BTreeSet::new();
    words_in(&(Addr(at)..Addr(first)), memory, &mut |place, part, _| {
        // two that share memory would be one
        let is_alone = places.range(part.saturating_sub(PART - 1)..part.saturating_add(PART)).next().is_none();
        if is_alone && part.is_multiple_of(8) && holds(part, PART, mappings) {
            places.insert(part);
            parts.push(((place.0 - at) / 8, part));
        }
        budget.take_word()
    });
    let mut known: FxHashSet<Addr> = FxHashSet::default();
    let mut pages: Vec<(Addr, Addr)> = Vec::new();
    let mut is_judged = false;
    for (number, part) in parts {
        if budget.is_spent() || pages.len() >= MAX_PAGES {
            break;
        }
        budget.take_bytes(PART);
        words_in(&(Addr(part)..Addr(part + PART)), memory, &mut |place, word, _| {
            let slice = Addr((number * WORDS + (place.0 - part) / 8) * SLICE);
            if known.insert(Addr(word)) {
                pages.push((Addr(word), slice));
            }
            budget.take_word() && pages.len() < MAX_PAGES
        });
        if !is_judged && pages.len() >= EARLY {
            judge(&pages, memory)?;
            is_judged = true;
        }
    }
    let layout = judge(&pages, memory)?;
    let is_cut = budget.is_spent() || pages.len() >= MAX_PAGES;
    Some(Map { layout, pages, at: Addr(at), is_cut })
}

/// How records are, if most that the map leads to are such.
fn judge(pages: &[(Addr, Addr)], memory: &mut dyn ReadMemory) -> Option<Layout> {
    let step = (pages.len() / SAMPLE).max(1);
    let sample: Vec<&(Addr, Addr)> = pages.iter().step_by(step).collect();
    let mut fits = |layout: Layout| {
        let is_page = |(record, slice): &&&(Addr, Addr)| {
            Page::read(*record, *slice, layout, memory).is_some_and(|page| page.is_possible())
        };
        (sample.iter().filter(is_page).count(), layout)
    };
    let (count, layout) = Layout::ALL.into_iter().map(&mut fits).max_by_key(|(count, _)| *count)?;
    (count > 0 && count * 2 >= sample.len()).then_some(layout)
}
