//! What of the brk area is not malloc's: the program has taken it by sbrk(3) itself.

use super::{ChunkLinks, Sources, Walk, Window, arenas, brk_heap, main_regions, parameters, walk_region};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use std::ops::Range;

/// The parts of the brk area that are in none of malloc's chunks, in the order of addresses. What can't be understood
/// is taken for malloc's.
pub fn foreign(sources: &Sources<'_>, memory: &mut dyn ReadMemory) -> Vec<Range<Addr>> {
    let Some(heap) = brk_heap(sources.mappings) else { return Vec::new() };
    let Some(found) = arenas::find(sources.data, memory) else { return Vec::new() };
    let Some(main) = found.arenas.first() else { return Vec::new() };
    // The usual case: all of it came from the kernel at malloc's request.
    if main.system_bytes == heap.end.0 - heap.start.0 {
        return Vec::new();
    }
    let parameters = parameters::find(&found.data, Some(&heap), memory);
    let mut window = Window::new(memory);
    let regions = main_regions(&found, Some(&heap), parameters.as_ref(), sources.mappings, &mut window);
    let Some((books, range)) = regions.into_iter().find(|(_, range)| heap.contains(&range.start)) else {
        return Vec::new();
    };
    let mut walk = Walk::default();
    let first = range.start;
    walk_region(&mut walk, Some(0), books, range, main.top, &mut ChunkLinks::default(), &mut window);
    let mut parts = vec![heap.start..first];
    let mut end = first;
    for chunk in &walk.chunks {
        parts.push(end..chunk.at);
        end = chunk.at.add(chunk.size());
    }
    if walk.regions.iter().all(|region| region.broken_at.is_none()) {
        parts.push(end..heap.end);
    }
    parts.retain(|part| part.start < part.end);
    parts
}
