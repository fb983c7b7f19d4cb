//! What lies on signal stacks below the frames of a handler that runs, and on those that no thread is on: what handlers
//! left that have returned.

use super::signalframes;
use super::{KernelHolder, RootKind, RootSources, RootWord, mapping_at};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use std::ops::Range;

/// What is known of the signal stacks of a process.
pub(super) struct SignalStacks {
    /// Those of which the kernel or a frame of a handler tells, by the threads' ids.
    stacks: Vec<(i32, Range<Addr>)>,
    /// Of how many threads nothing is known.
    pub(super) unknown: usize,
}

/// What the kernel has told, and where a thread was not asked, what the frame of a handler that it runs says.
pub(super) fn known(sources: &RootSources<'_>, memory: &mut dyn ReadMemory) -> SignalStacks {
    let mut known = SignalStacks { stacks: Vec::new(), unknown: 0 };
    for thread in sources.threads {
        let told = match sources.kernel.signal_stacks.get(&thread.tid) {
            Some(told) => Some(told.clone()),
            None => thread.sp.and_then(|sp| {
                let (_, mapping) = mapping_at(sources.mappings, sp)?;
                signalframes::registered_stack(Addr(sp)..mapping.end, memory)
            }),
        };
        match told {
            Some(stack) => known.stacks.extend(stack.map(|stack| (thread.tid, stack))),
            None => known.unknown += 1,
        }
    }
    known
}

impl SignalStacks {
    /// Where they begin, as roots: the kernel has these pointers.
    pub(super) fn words(&self) -> impl Iterator<Item = RootWord> {
        self.stacks.iter().map(|(tid, stack)| {
            let kind = RootKind::Kernel(KernelHolder::SignalStack { tid: *tid });
            RootWord { value: stack.start.0, kind }
        })
    }
}

/// The parts of signal stacks that hold nothing but old words.
///
/// A program may forget to take a stack back from the kernel and use its memory for something else. So one that lies
/// only in part in a block, or in what is in use of a thread's own stack, is left as it is.
pub(super) fn unused(sources: &RootSources<'_>, known: &SignalStacks) -> Vec<Range<Addr>> {
    if sources.threads.iter().any(|thread| thread.sp.is_none()) {
        // That one may be on any of them.
        return Vec::new();
    }
    let stacks = known.stacks.iter().map(|(_, stack)| stack).filter(|stack| stack.start < stack.end);
    let stacks = stacks.filter(|stack| !crosses_blocks(sources, stack) && !is_on_a_stack(sources, stack));
    stacks
        .filter_map(|stack| {
            let on_it = sources.threads.iter().filter(|thread| thread.sp.is_some_and(|sp| is_on(stack, sp)));
            let top = on_it.filter_map(super::ThreadState::stack_top).min().unwrap_or(stack.end);
            (stack.start < top).then_some(stack.start..top)
        })
        .collect()
}

/// Whether a stack pointer is on a signal stack, as the kernel has it: an empty stack's lies behind it
/// (include/linux/sched/signal.h, `__on_sig_stack`).
fn is_on(stack: &Range<Addr>, sp: u64) -> bool {
    sp > stack.start.0 && sp <= stack.end.0
}

/// Whether a block begins or ends inside of the stack.
fn crosses_blocks(sources: &RootSources<'_>, stack: &Range<Addr>) -> bool {
    let inside = |at: Addr| stack.start < at && at < stack.end;
    let first = sources.blocks.partition_point(|block| block.addr < stack.start);
    let before = first.checked_sub(1).and_then(|before| sources.blocks.get(before));
    let at_start = sources.blocks.get(first);
    let ends_inside = [before, at_start].into_iter().flatten().any(|block| inside(block.addr.add(block.size)));
    let begins_inside = [at_start, sources.blocks.get(first + 1)].into_iter().flatten().any(|block| inside(block.addr));
    ends_inside || begins_inside
}

/// Whether the stack lies in frames of a thread's own stack.
fn is_on_a_stack(sources: &RootSources<'_>, stack: &Range<Addr>) -> bool {
    sources.threads.iter().filter_map(|thread| thread.sp).filter(|sp| !is_on(stack, *sp)).any(|sp| {
        let own = mapping_at(sources.mappings, sp).map(|(_, mapping)| mapping);
        own.is_some_and(|own| own.contains(stack.start) && stack.end.0 > sp)
    })
}
