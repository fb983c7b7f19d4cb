//! The frames of one stack after the other: ids ascend from a stack to those that it is the beginning of, so that what
//! two of them have in common is found at once, and only the rest is read.

use super::StackTable;
use crate::base::addr::StackId;

/// The stack that was looked at last.
#[derive(Debug, Default)]
pub struct StackPath {
    /// Its nodes, the innermost first: they ascend.
    nodes: Vec<u32>,
    /// The numbers of their frames.
    numbers: Vec<u32>,
    /// How many of them the stack before had, too.
    kept: usize,
    /// Room for those that are new: the first and the last of each run of nodes that stand right behind each other.
    new: Vec<(u32, u32)>,
}

impl StackPath {
    /// The numbers of the stack's frames, as [`StackTable::add_frame_numbers`] adds them.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// How many of those the stack before began with, too.
    pub const fn kept(&self) -> usize {
        self.kept
    }

    /// A stack of these frames, of which nothing else is known.
    #[cfg(test)]
    pub fn of(numbers: Vec<u32>) -> Self {
        Self { numbers, ..Self::default() }
    }
}

impl StackTable {
    /// Makes `path` that of another stack.
    pub fn follow(&self, stack: StackId, path: &mut StackPath) {
        let StackPath { nodes, numbers, kept, new } = path;
        let mut at = stack.0;
        let is_there = |at: u32| at != 0 && (at as usize) < self.nodes.len();
        while is_there(at) {
            while nodes.last().is_some_and(|last| *last > at) {
                nodes.pop();
            }
            let begin = self.nodes.begin_of_run(at);
            if let Some(&last) = nodes.last().filter(|last| **last >= begin) {
                if last < at {
                    new.push((last + 1, at));
                }
                at = last;
                break;
            }
            new.push((begin, at));
            at = self.nodes.parent(begin);
        }
        if !is_there(at) {
            nodes.clear();
        }
        numbers.truncate(nodes.len());
        *kept = numbers.len();
        for (first, last) in new.drain(..).rev() {
            nodes.extend(first..=last);
            numbers.extend_from_slice(self.nodes.frames_of_run(first..=last));
        }
    }
}
