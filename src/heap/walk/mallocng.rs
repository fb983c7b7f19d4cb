//! musl's malloc from 1.2.1 on (mallocng), walked from outside (src/malloc/mallocng: meta.h, malloc.c, free.c,
//! donate.c, aligned_alloc.c).
//!
//! Blocks lie in groups of up to 32 slots of one size. What is free is told by masks that stand in tables apart from
//! them; so a damaged block breaks no other. A table begins with a secret that its context knows, too: by that the
//! context is found, with no symbol. A group leads back to its entry. A slot may hold a group of smaller slots.
//!
//! The four bytes before a block tell its slot, how far behind the group's beginning it is, and how much of the slot it
//! may not use; what the slots before have left is a byte of zero.

mod groups;
mod slots;
mod tables;

use super::window::Window;
use super::{Allocator, Arena, Finding, Region, Sources, Walk};
use crate::base::memory::ReadMemory;

/// Blocks begin at multiples of this, and slots are as many (`UNIT`).
const UNIT: u64 = 16;
/// A header, of which each slot has the last bytes of the one before (`IB`).
const HEADER: u64 = 4;
/// Tables and groups are in pages of this size.
const PAGE: u64 = 4096;
/// So much wrong is told.
const MAX_FINDINGS: usize = 1 << 12;

/// Walks the heap. None if there is none of musl's.
pub fn walk(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Option<Walk> {
    let context = tables::find(sources, memory)?;
    let mut walk = Walk { allocator: Allocator::Musl, ..Walk::default() };
    let mut tables = tables::read(&context, &mut walk.findings, memory);
    tables.at.sort_unstable();
    let mut window = Window::new(memory);
    let groups = groups::arrange(tables.entries, &tables.at, sources.mappings, &mut walk.findings, &mut window);
    let mut system_bytes = 0;
    for table in tables.at {
        system_bytes += PAGE;
        let end = table.add(PAGE);
        let chunks = walk.chunks.len()..walk.chunks.len();
        walk.regions.push(Region { range: end..end, books: table..end, arena: Some(0), chunks, broken_at: None });
    }
    for family in groups.chunk_by(|_, next| next.is_inside) {
        let Some(outer) = family.first() else { continue };
        let first = walk.chunks.len();
        for group in family {
            slots::add(&mut walk, group, first, &mut window);
        }
        if let Some(chunks) = walk.chunks.get_mut(first..) {
            chunks.sort_unstable_by_key(|chunk| chunk.at);
        }
        if outer.entry.pages > 0 {
            system_bytes += outer.entry.range().end.0 - outer.entry.mem.0;
        }
        let begin = outer.entry.slot(0).0.sub(HEADER);
        walk.regions.push(Region {
            range: begin..outer.entry.range().end,
            books: outer.entry.mem..begin,
            arena: (!outer.entry.is_alone()).then_some(0),
            chunks: first..walk.chunks.len(),
            broken_at: None,
        });
    }
    walk.regions.sort_unstable_by_key(|region| region.range.start);
    walk.arenas.push(Arena { at: context.at, is_main: true, system_bytes, threads: None });
    Some(walk)
}

/// Keeps what is wrong, as long as it is not too much.
fn note(findings: &mut Vec<Finding>, finding: Finding) {
    if findings.len() < MAX_FINDINGS {
        findings.push(finding);
    }
}

#[cfg(test)]
mod tests;
