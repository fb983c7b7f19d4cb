//! Pages and the blocks in them.

use super::super::{Fault, Finding, State, Walk};
use super::MAX_CHUNKS;
use super::blocks::{Blocks, chunk};
use super::segments::{Page, Segment, Span};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use rustc_hash::FxHashSet;

/// How far behind a page's beginning its first block is, where the page does not tell
/// (`_mi_segment_page_start_from_slice`).
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
        lists.filter(|(page, list)| blocks_of(page, rule.start(page)).number(*list).is_some()).count()
    };
    let [first, ..] = RULES;
    RULES.into_iter().rev().max_by_key(|rule| fits(*rule)).unwrap_or(first)
}

/// The blocks of a page, whose first one is at `start`.
const fn blocks_of(page: &Page, start: Addr) -> Blocks {
    Blocks { start, size: page.block_size, capacity: page.capacity, lists: page.lists }
}

/// Adds what is in a segment. `delayed`: blocks that are free, and in no page's list. From where on it was not
/// understood.
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
                let Some(blocks) = blocks.filter(|_| page.is_possible() && walk.chunks.len() < MAX_CHUNKS) else {
                    walk.findings.push(Finding { at: page.at, what: Fault::Entry, before: None });
                    broken_at = broken_at.or(Some(page.at));
                    continue;
                };
                let of_page = blocks_of(page, start);
                let free = of_page.free(&mut walk.findings, memory).blocks;
                for (at, is_free) in of_page.places().zip(free) {
                    let state = if is_free || delayed.contains(&at) { State::Free } else { State::Live };
                    walk.chunks.push(chunk(at, page.block_size, state));
                }
                if blocks < room {
                    walk.chunks.push(chunk(start.add(blocks), room - blocks, State::Top));
                }
            }
        }
    }
    broken_at
}
