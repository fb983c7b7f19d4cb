//! Stacks of threads in mappings that also hold blocks: the kernel makes one mapping of two neighbours that are alike,
//! as musl's groups and the stacks of its threads are.

use super::{RootSources, THREAD_STRUCT, mapping_at};
use crate::arch::PAGE_SIZE;
use crate::base::addr::Addr;
use std::ops::Range;

/// What of the `owned` mappings threads use as stacks: each from its top up to the end of the thread's descriptor,
/// where that lies above it, and to the next block at most. With the ids of the threads.
pub(super) fn stacks(sources: &RootSources<'_>, owned: &[Range<Addr>]) -> Vec<(i32, Range<Addr>)> {
    let is_owned = |at: Addr| owned.iter().any(|range| range.contains(&at));
    let mut stacks = Vec::new();
    for thread in sources.threads {
        let tcb = thread.regs.map_or(Addr::NULL, |regs| Addr(regs.fs_base));
        let mut add = |from: Addr| {
            let Some((_, mapping)) = mapping_at(sources.mappings, from.0).filter(|_| is_owned(from)) else { return };
            let above = sources.blocks.partition_point(|block| block.addr <= from);
            if above
                .checked_sub(1)
                .and_then(|at| sources.blocks.get(at))
                .is_some_and(|block| from < block.addr.add(block.size))
            {
                return;
            }
            let next = sources.blocks.get(above).map_or(mapping.end, |block| block.addr);
            let is_of_thread = tcb >= from && mapping.contains(tcb);
            // what pthread_setspecific keeps lies behind musl's descriptor, up to the end of the page
            let descriptor = is_of_thread.then(|| Addr((tcb.0 + THREAD_STRUCT).next_multiple_of(PAGE_SIZE)));
            let end = descriptor.unwrap_or(mapping.end).min(mapping.end).min(next);
            if from < end {
                stacks.push((thread.tid, from..end));
            }
        };
        if let (Some(Addr(sp)), Some(top)) = (thread.sp.map(Addr), thread.stack_top()) {
            // a red zone may reach into the guard
            let start = mapping_at(sources.mappings, sp).map_or(top, |(_, mapping)| top.max(mapping.start));
            add(start);
        }
        // on another stack than its own, a thread has its thread-local variables there still, and frames that can't be
        // told
        let is_elsewhere = |start: Addr| thread.sp.is_some_and(|sp| Addr(sp) < start || Addr(sp) > tcb);
        if let Some((index, mapping)) = mapping_at(sources.mappings, tcb.0)
            && is_elsewhere(mapping.start)
            && super::has_guard(sources.mappings, index)
        {
            add(mapping.start);
        }
    }
    stacks
}
