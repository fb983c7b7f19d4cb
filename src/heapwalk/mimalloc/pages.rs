//! Pages and the blocks in them.

use super::super::{Chunk, Fault, Finding, State, Walk};
use super::segments::{Page, Segment, Span};
use super::{MOST_CHUNKS, SLICE};
use crate::addr::Addr;
use crate::memory::ReadMemory;
use rustc_hash::FxHashSet;

/// Lists of blocks that are larger are read word by word.
const LARGE: u64 = 4096;
/// What a page of smaller blocks has at most, in bytes.
const LARGEST_PAGE: u64 = 8 * SLICE;

/// How far behind a page's beginning its first block is, where the page does not tell (`_mi_segment_page_start_from_slice`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// So many bytes, if its blocks are not larger than 1024.
    Fixed(u64),
    /// One block or three, so that each block lies at a multiple of its size.
    Blocks,
}

const RULES: [Rule; 3] = [Rule::Fixed(384), Rule::Fixed(128), Rule::Blocks];

impl Rule {
    fn offset(self, page: &Page) -> u64 {
        let size = page.block_size;
        match self {
            Self::Fixed(offset) if (8..=1024).contains(&size) => offset,
            Self::Fixed(_) => 0,
            Self::Blocks => {
                let aligned = if (1..=128).contains(&size) { (size - page.at.0 % size) % size } else { 0 };
                let blocks = match size {
                    8..=64 => 3 * size,
                    65..=512 => size,
                    _ => 0,
                };
                (aligned + blocks).next_multiple_of(16)
            }
        }
    }

    fn start(self, page: &Page) -> Addr {
        page.start.unwrap_or_else(|| page.at.add(self.offset(page)))
    }
}

/// The rule by which most lists begin at a block.
pub(super) fn rule(segments: &[Segment]) -> Rule {
    let fits = |rule: Rule| {
        let pages = segments.iter().flat_map(Segment::pages);
        let lists = pages.flat_map(|page| page.lists.iter().map(move |list| (page, *list)));
        lists.filter(|(page, list)| number(page, rule.start(page), *list).is_some()).count()
    };
    let [first, ..] = RULES;
    RULES.into_iter().rev().max_by_key(|rule| fits(*rule)).unwrap_or(first)
}

/// Which block of a page begins at `at`.
fn number(page: &Page, start: Addr, at: Addr) -> Option<usize> {
    let offset = at.0.checked_sub(start.0)?;
    let number = offset.checked_div(page.block_size)?;
    (offset.is_multiple_of(page.block_size) && number < page.capacity).then_some(usize::try_from(number).ok()?)
}

/// Adds what is in a segment. `delayed`: blocks that are free, and in no page's list. From where on it was not understood.
pub(super) fn add(
    walk: &mut Walk,
    segment: &Segment,
    rule: Rule,
    delayed: &FxHashSet<Addr>,
    memory: &mut dyn ReadMemory,
) -> Option<Addr> {
    let mut broken_at = None;
    for span in &segment.spans {
        match span {
            Span::Free(at, size) => walk.chunks.push(chunk(*at, *size, State::Top)),
            Span::Page(page) => {
                let start = rule.start(page);
                let room = page.end().0.saturating_sub(start.0);
                let blocks = page.capacity.checked_mul(page.block_size).filter(|blocks| *blocks <= room);
                let Some(blocks) = blocks.filter(|_| page.is_possible() && walk.chunks.len() < MOST_CHUNKS) else {
                    walk.findings.push(Finding { at: page.at, what: Fault::Entry, before: None });
                    broken_at = broken_at.or(Some(page.at));
                    continue;
                };
                let free = free(page, start, delayed, &mut walk.findings, memory);
                for (at, is_free) in
                    (start.0..).step_by(usize::try_from(page.block_size).unwrap_or(usize::MAX)).zip(free)
                {
                    let state = if is_free { State::Free } else { State::Live };
                    walk.chunks.push(chunk(Addr(at), page.block_size, state));
                }
                if blocks < room {
                    walk.chunks.push(chunk(start.add(blocks), room - blocks, State::Top));
                }
            }
        }
    }
    broken_at
}

const fn chunk(at: Addr, size: u64, state: State) -> Chunk {
    Chunk::new(at, size, state, 0, 0)
}

/// For each block that was ever handed out whether it is free.
fn free(
    page: &Page,
    start: Addr,
    delayed: &FxHashSet<Addr>,
    findings: &mut Vec<Finding>,
    memory: &mut dyn ReadMemory,
) -> Vec<bool> {
    let mut free = vec![false; usize::try_from(page.capacity).unwrap_or(0)];
    let is_small = page.block_size < LARGE && page.lists.iter().any(|list| !list.is_null());
    let mut bytes = vec![0; if is_small { (page.capacity * page.block_size).min(LARGEST_PAGE) as usize } else { 0 }];
    let read = memory.read(start, &mut bytes);
    bytes.truncate(read);
    for list in page.lists {
        let mut at = list;
        let mut before = None;
        let mut passed = 0;
        while !at.is_null() {
            passed += 1;
            let what = match number(page, start, at) {
                _ if passed > page.capacity => Some(Fault::Circle),
                None => Some(Fault::List),
                Some(number) => {
                    if let Some(free) = free.get_mut(number) {
                        *free = true;
                    }
                    None
                }
            };
            let next = || {
                let offset = usize::try_from(at.0 - start.0).ok()?;
                Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk::<8>()?))
            };
            let next = match what {
                Some(_) => None,
                None => next().or_else(|| memory.read_u64(at)),
            };
            let Some(next) = next else {
                findings.push(Finding { at, what: what.unwrap_or(Fault::Unreadable), before });
                break;
            };
            before = Some(chunk(at, page.block_size, State::Free));
            at = Addr(next);
        }
    }
    if !delayed.is_empty() {
        for (at, is_free) in (start.0..).step_by(usize::try_from(page.block_size).unwrap_or(usize::MAX)).zip(&mut free)
        {
            *is_free |= delayed.contains(&Addr(at));
        }
    }
    free
}
