//! The radix tree (`rtree_t`) that leads from each page to its extent.

use super::super::Sources;
use super::super::words::{end_of_data, is_ours, words_in};
use super::base::Heads;
use super::{CACHE_LINE, PAGE, page_of};
use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use crate::image::maps::Mapping;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::ops::Range;

/// The root and each leaf have so many words (`RTREE_NSB` is 36, in two levels, where addresses have 48 bits): a word
/// of the root is for 1 GiB, one of a leaf for a page.
const WORDS: u64 = 1 << 18;
const NODE: u64 = 8 * WORDS;
/// What a word of the root is for.
const LEAF_REACH: u64 = WORDS * PAGE;
/// The user's part of the address space.
const ADDRESSES: Range<u64> = PAGE..1 << 47;
/// Extents lie at multiples of this at least; the bits below say more of them (`RTREE_LEAF_STATE_SHIFT` and what stands
/// beside).
const EXTENT_BITS: u64 = 0x0000_ffff_ffff_ffc0;
/// A leaf is judged by so many of its entries.
const SAMPLE: usize = 32;
/// What has so many entries that lead to no extent is none.
const MIN_WRONG: usize = 4;
/// So many leaves are tried in a module's data.
const MAX_TRIED: usize = 1 << 14;
/// More entries are not read.
pub(super) const MAX_ENTRIES: usize = 1 << 25;

/// What a leaf says of a page, and of those behind that are the same extent's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Where the extent's structure is.
    pub(super) extent: Addr,
    /// The page.
    pub(super) page: Addr,
    /// The number of a size class.
    pub(super) class: u8,
    /// Whether it is a slab.
    pub(super) is_slab: bool,
}

/// The tree of a process.
#[derive(Debug)]
pub(super) struct Tree {
    /// In the order of pages.
    pub(super) entries: Vec<Entry>,
    /// Where its leaves are.
    pub(super) leaves: Vec<Addr>,
    /// The data of its module, and where in that the root is.
    pub(super) data: Range<Addr>,
    pub(super) root: Range<Addr>,
}

/// Finds the tree, and reads it. None if there is none.
pub(super) fn find(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Tree> {
    let mut last = Addr::NULL;
    let mut heads = Heads::default();
    let mut numbers: FxHashMap<u64, Option<u64>> = FxHashMap::default();
    sources.data.iter().find_map(|data| {
        let data = data.start..end_of_data(data, sources.mappings);
        if data.end <= last || data.end.0 - data.start.0 < NODE {
            return None;
        }
        last = data.end;
        let mut root = None;
        let mut tried = 0;
        words_in(&data, memory, &mut |at, word, memory| {
            let is_possible = ADDRESSES.contains(&word) && word.is_multiple_of(CACHE_LINE);
            if is_possible && heads.holds(word, memory) && is_place(word, sources.mappings) {
                // many words may lead to one place
                let number = *numbers.entry(word).or_insert_with(|| {
                    tried += 1;
                    number_of(word, memory)
                });
                root = number.and_then(|number| root_at(at, number, &data));
            }
            root.is_none() && tried < MAX_TRIED
        });
        read(root?, data, sources.mappings, memory)
    })
}

/// Whether a leaf may be at an address.
fn is_place(leaf: u64, mappings: &[Mapping]) -> bool {
    if !ADDRESSES.contains(&leaf) {
        return false;
    }
    let mut reached = Addr(leaf);
    let first = mappings.partition_point(|mapping| mapping.end <= reached);
    for mapping in mappings.iter().skip(first) {
        if mapping.start > reached || !is_ours(mapping) || reached.0 >= leaf + NODE {
            break;
        }
        reached = mapping.end;
    }
    reached.0 >= leaf + NODE
}

/// Where the root is, if its word of this number stands at `at`, and all of it lies in a module's data.
fn root_at(at: Addr, number: u64, data: &Range<Addr>) -> Option<Range<Addr>> {
    let root = Addr(at.0.checked_sub(8 * number)?);
    let end = root.add(NODE);
    (data.start <= root && root < end && end <= data.end).then_some(root..end)
}

/// For which word of the root the leaf at `leaf` is: extents tell their addresses, and so that. None if there is no
/// leaf.
fn number_of(leaf: u64, memory: &mut dyn ReadMemory) -> Option<u64> {
    let mut last = Addr::NULL;
    let mut sampled = 0;
    let mut found: Vec<u64> = Vec::new();
    words_in(&(Addr(leaf)..Addr(leaf + NODE)), memory, &mut |at, word, memory| {
        let extent = Addr(word & EXTENT_BITS);
        // what has gone leaves an entry without an extent
        if !extent.is_null() && extent != last {
            last = extent;
            sampled += 1;
            found.extend(word_of_root((at.0 - leaf) / 8, extent, memory));
        }
        // most of what is tried is no leaf
        sampled < SAMPLE && (found.len() * 2 >= sampled || sampled < MIN_WRONG)
    });
    let first = *found.first()?;
    let agree = found.iter().filter(|word| **word == first).count();
    (first < WORDS && agree >= 2 && agree * 4 >= sampled * 3).then_some(first)
}

/// For which word of the root a leaf is, one of whose words leads to an extent.
fn word_of_root(number: u64, extent: Addr, memory: &mut dyn ReadMemory) -> Option<u64> {
    let (begin, size) = pages_of(extent, memory)?;
    let last = begin.0.checked_add(size - 1)?;
    [begin.0 / LEAF_REACH, last / LEAF_REACH]
        .into_iter()
        .find(|word| (begin.0..=last).contains(&(word * LEAF_REACH + number * PAGE)))
}

/// The pages of an extent, by its structure: where they begin, and how many bytes they have.
fn pages_of(extent: Addr, memory: &mut dyn ReadMemory) -> Option<(Addr, u64)> {
    let mut bytes = [0; 24];
    if !ADDRESSES.contains(&extent.0) || memory.read(extent, &mut bytes) < bytes.len() {
        return None;
    }
    let (begin, size) = (page_of(Addr(word(&bytes, 8)?)), word(&bytes, 16)? & !(PAGE - 1));
    (ADDRESSES.contains(&begin.0) && (1..1 << 47).contains(&size)).then_some((begin, size))
}

/// Reads all leaves.
fn read(root: Range<Addr>, data: Range<Addr>, mappings: &[Mapping], memory: &mut dyn ReadMemory) -> Option<Tree> {
    let mut leaves: Vec<(u64, u64)> = Vec::new();
    words_in(&root, memory, &mut |at, leaf, _| {
        leaves.push(((at.0 - root.start.0) / 8, leaf));
        true
    });
    let mut places: BTreeSet<u64> = BTreeSet::new();
    let mut tree = Tree { entries: Vec::new(), leaves: Vec::new(), data, root };
    for (number, leaf) in leaves {
        // two that share memory would be one
        let is_alone = places.range(leaf.saturating_sub(NODE - 1)..leaf.saturating_add(NODE)).next().is_none();
        if !is_alone || !is_place(leaf, mappings) {
            continue;
        }
        places.insert(leaf);
        tree.leaves.push(Addr(leaf));
        let entries = &mut tree.entries;
        words_in(&(Addr(leaf)..Addr(leaf + NODE)), memory, &mut |at, word, _| {
            let page = Addr(number * LEAF_REACH + (at.0 - leaf) / 8 * PAGE);
            let entry =
                Entry { extent: Addr(word & EXTENT_BITS), page, class: (word >> 48) as u8, is_slab: word & 1 != 0 };
            if !entry.extent.is_null() && entries.last().is_none_or(|last| last.extent != entry.extent) {
                entries.push(entry);
            }
            entries.len() < MAX_ENTRIES
        });
    }
    (!tree.entries.is_empty()).then_some(tree)
}
