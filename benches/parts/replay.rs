//! The stacks of real programs, in the order in which these call their allocators, walked by the routine.

use super::parts::basics::median;
use super::parts::workloads::{Workload, record_with, workloads};
use super::{Lab, STACK_END, heaptrace_bench_after_call, heaptrace_bench_calls};
use heaptrace::internal::jump::layout::{
    Active, CELL_HEAD, CELL_TAIL, FREE_STACKS, Form, RBP_SAME, RECORD_SIZE, RECORD_WHAT, REGION_SIZE, RING_LEAST,
    STATE_ACTIVE, cell_at, ring_at,
};
use heaptrace::internal::jump::{CallerRule, Nodes, STUB_SIZE, STUBS, Shared};
use heaptrace::internal::trace::{EventKind, StackNode};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Bytes of a frame on the made-up stacks.
const FRAME: u64 = 16;

/// What a program did: which stack each call had.
struct Calls {
    /// By number; None for the end of a walk, which is no frame.
    nodes: Vec<Option<(u32, u64)>>,
    /// The number of each call's outermost frame.
    stacks: Vec<u32>,
}

impl Calls {
    fn of(workload: &Workload) -> Option<Self> {
        let mut nodes = Vec::new();
        let mut parents = Vec::new();
        let events = record_with(workload, |id, node: StackNode| {
            let index = id.0 as usize;
            if nodes.len() <= index {
                nodes.resize(index + 1, None);
                parents.resize(index + 1, 0);
            }
            nodes[index] = node.frame().map(|frame| (node.parent.0, frame.addr.lookup().0 + 1));
            parents[index] = node.parent.0;
        })?;
        let called = events.iter().filter_map(|event| match event.kind {
            EventKind::Allocated { by, .. } | EventKind::Freed { by, .. } | EventKind::ReallocBegan { by, .. } => {
                Some(by.stack.0)
            }
            _ => None,
        });
        let outermost = |stack: u32| match nodes.get(stack as usize) {
            Some(None) => parents.get(stack as usize).copied().unwrap_or(0),
            _ => stack,
        };
        let stacks: Vec<u32> = called.map(outermost).filter(|stack| *stack != 0).collect();
        Some(Self { nodes, stacks })
    }

    /// The return addresses of a stack, innermost first.
    fn path(&self, stack: u32) -> Vec<u64> {
        let mut path = Vec::new();
        let mut at = stack;
        while let Some(Some((parent, ra))) = self.nodes.get(at as usize) {
            path.push(*ra);
            at = *parent;
        }
        path.reverse();
        path
    }
}

/// Prints a line for each program.
pub fn table() {
    println!("\n{:<10} {:>10} {:>10} {:>8} {:>12}   limit", "stacks of", "calls", "stacks", "frames", "ns a walk");
    for workload in workloads() {
        match Calls::of(&workload) {
            Some(calls) => walk(workload.name, &calls),
            None => println!("{:<10} could not be recorded", workload.name),
        }
    }
}

fn walk(name: &str, calls: &Calls) {
    let lab = Lab::new();
    let mut nodes = Nodes::new(&lab);
    // Behind the call, which is the same for all, numbers are one higher.
    let leaf = (&raw const heaptrace_bench_after_call) as u64;
    let on = CallerRule::Caller { form: Form::Rsp, offset: FRAME as i32, rbp: RBP_SAME };
    assert!(nodes.publish(&lab, 1, 0, leaf, on));
    let inner: HashSet<u32> = calls.nodes.iter().flatten().map(|(parent, _)| *parent).collect();
    for (number, node) in calls.nodes.iter().enumerate() {
        let Some((parent, ra)) = *node else { continue };
        let id = number as u32 + 1;
        let onward = if inner.contains(&(number as u32)) { on } else { CallerRule::End(id) };
        assert!(nodes.publish(&lab, id, parent + 1, ra, onward), "{name}: no room");
    }
    lab.write(STATE_ACTIVE, &(Active::Record as u32).to_le_bytes());
    lab.set_half(FREE_STACKS, 1);
    // Stacks that others go on from have no end of their own here.
    let stacks: Vec<u32> = calls.stacks.iter().copied().filter(|stack| !inner.contains(stack)).collect();
    assert!(
        stacks.len() * 10 > calls.stacks.len() * 9,
        "{name}: {} of {} calls are left",
        stacks.len(),
        calls.stacks.len()
    );
    let (known, frames) =
        (stacks.iter().collect::<HashSet<_>>().len(), stacks.iter().map(|s| calls.path(*s).len()).sum::<usize>());
    let each = median((0..3).map(|_| {
        let walked = replay(&lab, calls, &stacks);
        // what a call takes without a walk
        lab.set_half(FREE_STACKS, 0);
        let unwalked = replay(&lab, calls, &stacks);
        lab.set_half(FREE_STACKS, 1);
        walked.saturating_sub(unwalked).as_nanos() as f64 / stacks.len() as f64
    }));
    let limit = if name == "cc1" { "130" } else { "" };
    let depth = frames as f64 / stacks.len() as f64;
    println!("{name:<10} {:>10} {known:>10} {depth:>8.1} {each:>12.1}   {limit}", stacks.len());
}

/// The time that the calls take, some tens at a time: as many as have room for their stacks.
fn replay(lab: &Lab, calls: &Calls, stacks: &[u32]) -> Duration {
    let first = REGION_SIZE + 0x1000;
    let free = lab.at(STUBS + STUB_SIZE);
    let mut taken = Duration::ZERO;
    let mut left = stacks;
    while !left.is_empty() {
        let (mut at, mut pointers) = (first, Vec::new());
        for stack in left {
            let path = calls.path(*stack);
            // 0x100 for what the routine saves
            let size = 0x100 + FRAME * (path.len() as u64 + 1);
            if at + size > STACK_END - 0x100 {
                break;
            }
            let sp = at + 0x100;
            for (ra, frame) in path.into_iter().zip(1..) {
                lab.write(sp + FRAME * frame - 8, &ra.to_le_bytes());
            }
            pointers.push(lab.at(sp));
            at += size;
        }
        let (now, later) = left.split_at(pointers.len());
        lab.set_word(cell_at(0) + CELL_TAIL, lab.word(cell_at(0) + CELL_HEAD));
        let start = Instant::now();
        // SAFETY: a function that does nothing, on stacks of their own.
        unsafe { heaptrace_bench_calls(free, pointers.as_ptr(), pointers.len() as u64) };
        taken += start.elapsed();
        if lab.half(FREE_STACKS) != 0 {
            let head = lab.word(cell_at(0) + CELL_HEAD);
            let told = lab.word(ring_at(0) + (head - 1) % RING_LEAST * RECORD_SIZE + RECORD_WHAT) as u32;
            assert_eq!(Some(told), now.last().map(|stack| stack + 1), "another stack was recorded");
        }
        left = later;
    }
    taken
}
