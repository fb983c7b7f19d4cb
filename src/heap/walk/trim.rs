//! What glibc's `malloc_trim(0)` would give back to the kernel, and what it would not (`mtrim` and `systrim` in
//! malloc/malloc.c).
//!
//! It merges the small chunks in fast bins, gives back the whole pages inside free chunks, and those at the end of the
//! main arena. It neither touches what threads keep in their caches nor the ends of other arenas.

use super::census::Pages;
use super::{Chunk, Region, State, Walk};
use crate::base::addr::Addr;
use std::ops::Range;

const PAGE: u64 = 4096;
/// `sizeof (struct malloc_chunk)`: what of a free chunk must stay.
const LINKS: u64 = 48;
/// `MINSIZE`: what of the top must stay, and a byte.
const MIN_TOP: u64 = 32;

/// What would be given back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trim {
    /// Resident bytes inside of free chunks.
    pub inside: u64,
    /// Resident bytes at the end of the main arena.
    pub end: u64,
}

impl Trim {
    /// All of it, in bytes.
    pub const fn bytes(&self) -> u64 {
        self.inside + self.end
    }
}

/// Estimates it. `brk`: where the brk area ends, None if that is not known.
pub fn estimate(walk: &Walk, brk: Option<Addr>, pages: &Pages) -> Trim {
    let mut trim = Trim::default();
    for region in walk.regions.iter().filter(|region| region.arena.is_some()) {
        for merged in merged(walk, region) {
            match merged.state {
                State::Top if region.arena == Some(0) && Some(merged.end()) == brk => {
                    let kept = merged.size().saturating_sub(MIN_TOP + 1) / PAGE * PAGE;
                    let range = merged.end().sub(kept)..merged.end();
                    trim.end += pages.of(&range).resident;
                }
                State::Free => trim.inside += pages.of(&given_back(&merged)).resident,
                _ => {}
            }
        }
    }
    trim
}

/// The whole pages of a free chunk behind its links.
fn given_back(chunk: &Chunk) -> Range<Addr> {
    let begin = Addr((chunk.at.0 + LINKS).next_multiple_of(PAGE));
    let end = Addr((chunk.end().0.saturating_sub(begin.0)) / PAGE * PAGE + begin.0);
    begin..end.max(begin)
}

/// The free chunks of a region and its top, as they are once those in fast bins are merged with what lies beside them.
fn merged<'a>(walk: &'a Walk, region: &'a Region) -> impl Iterator<Item = Chunk> + 'a {
    let mut chunks = walk.of(region).iter().peekable();
    std::iter::from_fn(move || {
        let first = chunks.find(|chunk| is_merged(chunk))?;
        let (mut size, mut state) = (first.size(), if first.state == State::Top { State::Top } else { State::Free });
        while let Some(next) = chunks.next_if(|next| is_merged(next) && next.at == first.at.add(size)) {
            size += next.size();
            if next.state == State::Top {
                state = State::Top;
            }
        }
        Some(Chunk::new(first.at, size, state, first.lead, first.tail))
    })
}

const fn is_merged(chunk: &Chunk) -> bool {
    matches!(chunk.state, State::Fast | State::Free | State::Top)
}

#[cfg(test)]
mod tests;
