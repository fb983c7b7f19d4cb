//! What glibc's arenas have kept at the end of a program whose threads free much of what others have allocated: such
//! memory goes back to the arena that it came from, whoever needs some.
//!
//! glibc's own structures tell where the parts of the arenas are, and the heap model what lives in them. No chunk is
//! looked at: the program waits for some milliseconds, and 20 for each million of live blocks.

use super::observer::Observer;
use super::tracee::Tracee;
use crate::base::advice;
use crate::event::EventKind;
use crate::heap::walk::glibc::{self, Part};
use crate::heap::walk::{self, Sources};
use crate::heapmodel::LiveBlock;

/// The data of glibc, and of a small program that has it in itself, has fewer bytes than this. More is not read: the
/// program waits.
const MAX_DATA: u64 = 8 << 20;

/// Tells what each part of each arena holds, if that is of interest, while thread `tid` stands still: the program
/// is about to end, or its profile is of now. All that has happened must be in the
/// model.
pub(super) fn tell(tracee: &mut Tracee, observer: &mut Observer, tid: i32) {
    let model = observer.model();
    let (freed_elsewhere, frees) = model.freed_elsewhere();
    if !advice::is_handed_over(freed_elsewhere, frees) || model.may_have_unknown_blocks() {
        return;
    }
    if let Err(error) = tracee.space.refresh_maps(tid) {
        tracing::debug!("{error}");
        return;
    }
    tracee.space.image.memory.new_stop(tid);
    let mappings = tracee.space.image.mappings().to_vec();
    let mut data = walk::data_of(&mappings);
    data.retain(|range| range.end.0.saturating_sub(range.start.0) <= MAX_DATA);
    let sources = Sources { mappings: &mappings, data: &data };
    let parts = glibc::parts(&sources, &mut tracee.space.image.original_memory());
    let live = live_in(&parts, observer.model().live_blocks());
    for (part, live) in parts.iter().zip(live) {
        let bytes = part.range.end.0 - part.range.start.0;
        let free = bytes.saturating_sub(part.books).saturating_sub(live);
        let (arena, is_main, start) = (part.arena, part.is_main, part.range.start);
        observer.tell(EventKind::ArenaPart { arena, is_main, start, bytes, live, free });
    }
}

/// The bytes of the chunks of live blocks in each part; parts are in the order of addresses.
fn live_in(parts: &[Part], blocks: impl Iterator<Item = LiveBlock>) -> Vec<u64> {
    let mut sums = vec![0u64; parts.len()];
    for block in blocks {
        let behind = parts.partition_point(|part| part.range.start <= block.addr);
        let Some(number) = behind.checked_sub(1) else { continue };
        if let (Some(part), Some(sum)) = (parts.get(number), sums.get_mut(number))
            && part.range.contains(&block.addr)
        {
            *sum = sum.saturating_add(glibc::chunk_of(block.size));
        }
    }
    sums
}
