//! The tasks under trace, by thread id.

use crate::base::addr::{Addr, TaskId};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a task is to the traced process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A thread of the traced process.
    Thread,
    /// A process of its own that shares the traced one's memory (vfork, posix_spawn, clone with CLONE_VM): its
    /// allocations are made on the traced heap. At its exec it becomes a process of its own
    /// if children are followed; else it is detached from.
    VmSharer,
}

/// One task.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Identity in events.
    pub id: TaskId,
    /// What it is.
    pub role: Role,
    /// Left in a group stop by PTRACE_LISTEN.
    pub listening: bool,
    /// It has reported its end.
    pub ending: bool,
    /// heaptrace has interrupted it, and it has not stopped since.
    pub interrupted: bool,
    /// Hits that have been counted already.
    pub counted: CountedHits,
}

/// Hits after which a signal met the task at the start of the pad, and sent it back to the breakpoint: it will hit that
/// once more, when the handler has returned. Handlers are interrupted, too: hence a stack, innermost last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CountedHits {
    hits: [(Addr, u64); CountedHits::ROOM],
    len: usize,
}

impl CountedHits {
    /// Signals that interrupt each other, each at a pad: the outermost is forgotten beyond this.
    const ROOM: usize = 8;

    /// How far above a hit the stack pointer may be on the same stack.
    const SAME_STACK: u64 = 1 << 20;

    /// The hit at `at` with the stack pointer `sp` has been counted, and will be repeated.
    pub fn push(&mut self, at: Addr, sp: u64) {
        if self.len == Self::ROOM {
            self.hits.rotate_left(1);
            self.len -= 1;
        }
        if let Some(slot) = self.hits.get_mut(self.len) {
            *slot = (at, sp);
            self.len += 1;
        }
    }

    /// No hit at `at` will be repeated: there is no breakpoint any more.
    fn forget(&mut self, at: Addr) {
        let known = self.hits;
        let kept = known.iter().take(self.len).filter(|hit| hit.0 != at);
        self.len = self.hits.iter_mut().zip(kept).map(|(place, hit)| *place = *hit).count();
    }

    /// Whether no hit will be repeated.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a hit is the repetition of one that was counted; it is forgotten then, with those inside it.
    pub fn take(&mut self, at: Addr, sp: u64) -> bool {
        let known = self.hits.get(..self.len).unwrap_or_default();
        if let Some(found) = known.iter().rposition(|hit| *hit == (at, sp)) {
            self.len = found;
            return true;
        }
        // A handler has left by longjmp, or returned into a program that went elsewhere.
        let is_dead = |(_, counted): &(Addr, u64)| sp > *counted && sp - counted < Self::SAME_STACK;
        self.len -= known.iter().rev().take_while(|hit| is_dead(hit)).count();
        false
    }
}

/// The tasks of one process.
#[derive(Debug)]
pub struct Tasks {
    by_tid: FxHashMap<i32, Task>,
    /// The latest serial number that was given, in the whole session.
    serials: Arc<AtomicU32>,
    threads: u64,
}

impl Tasks {
    /// None yet. `serials` counts those of all processes of the session.
    pub fn new(serials: &Arc<AtomicU32>) -> Self {
        Self { by_tid: FxHashMap::default(), serials: Arc::clone(serials), threads: 0 }
    }

    /// Adds a task with a new serial number; an older one with the same thread id is forgotten.
    pub fn add(&mut self, tid: i32, role: Role) -> TaskId {
        self.threads += u64::from(role == Role::Thread);
        let id = TaskId { tid, serial: self.serials.fetch_add(1, Ordering::Relaxed).wrapping_add(1) };
        let counted = CountedHits::default();
        self.by_tid.insert(tid, Task { id, role, listening: false, ending: false, interrupted: false, counted });
        id
    }

    /// The tasks of a process whose one thread came to be as a copy of `parent`, which is one of these.
    pub fn fork(&self, parent: i32, child: i32) -> Self {
        let mut tasks = Self::new(&self.serials);
        tasks.add(child, Role::Thread);
        if let (Some(original), Some(copy)) = (self.get(parent), tasks.get_mut(child)) {
            copy.counted = original.counted;
        }
        tasks
    }

    /// The task with this thread id.
    pub fn get(&self, tid: i32) -> Option<&Task> {
        self.by_tid.get(&tid)
    }

    /// The task with this thread id, to change.
    pub fn get_mut(&mut self, tid: i32) -> Option<&mut Task> {
        self.by_tid.get_mut(&tid)
    }

    /// The breakpoint at `at` is gone: no task that was sent back there will hit it once more.
    pub fn forget_counted(&mut self, at: Addr) {
        self.by_tid.values_mut().for_each(|task| task.counted.forget(at));
    }

    /// There were no breakpoints for a while: who was to repeat a hit has gone on without, unless it stands still.
    pub fn forget_counted_in_gap(&mut self) {
        for task in self.by_tid.values_mut().filter(|task| !task.listening) {
            task.counted = CountedHits::default();
        }
    }

    /// Forgets a task.
    pub fn remove(&mut self, tid: i32) -> Option<Task> {
        self.by_tid.remove(&tid)
    }

    /// The thread ids of all tasks.
    pub fn tids(&self) -> Vec<i32> {
        self.by_tid.keys().copied().collect()
    }

    /// All tasks.
    pub fn iter(&self) -> impl Iterator<Item = &Task> {
        self.by_tid.values()
    }

    /// How many threads the process has had since the last [`Self::begin_image`].
    pub fn threads_ever(&self) -> u64 {
        self.threads
    }

    /// Begins to count threads anew, for another image.
    pub fn begin_image(&mut self) {
        self.threads = 0;
    }

    /// Whether a task is a thread of the process itself.
    pub fn is_own_thread(&self, tid: i32) -> bool {
        self.get(tid).is_some_and(|task| task.role == Role::Thread)
    }

    /// Whether there are processes of their own that share the memory.
    pub fn has_sharers(&self) -> bool {
        self.by_tid.values().any(|task| task.role == Role::VmSharer)
    }

    /// Whether the process has more than one thread.
    pub fn has_several_threads(&self) -> bool {
        self.by_tid.values().filter(|task| task.role == Role::Thread).count() > 1
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.by_tid.len()
    }

    /// Whether no task is left.
    pub fn is_empty(&self) -> bool {
        self.by_tid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTER: (Addr, u64) = (Addr(0x1000), 0x7f00_2000);
    const INNER: (Addr, u64) = (Addr(0x1800), 0x7f00_1000);

    #[test]
    fn nested_signals_repeat_each_their_own_hit_once() {
        let mut counted = CountedHits::default();
        counted.push(OUTER.0, OUTER.1);
        // the handler itself is interrupted at a pad
        assert!(!counted.take(INNER.0, INNER.1));
        counted.push(INNER.0, INNER.1);
        assert!(counted.take(INNER.0, INNER.1));
        assert!(!counted.take(INNER.0, INNER.1), "the handler's next hit at the same place is a new one");
        assert!(counted.take(OUTER.0, OUTER.1));
        assert!(!counted.take(OUTER.0, OUTER.1));
    }

    #[test]
    fn what_a_longjmp_left_behind_is_forgotten() {
        let mut counted = CountedHits::default();
        counted.push(OUTER.0, OUTER.1);
        counted.push(INNER.0, INNER.1);
        assert!(!counted.take(Addr(0x3000), OUTER.1 + 0x100));
        assert!(!counted.take(OUTER.0, OUTER.1) && !counted.take(INNER.0, INNER.1));
        // a return into the outer handler proves the inner one dead
        counted.push(OUTER.0, OUTER.1);
        counted.push(INNER.0, INNER.1);
        assert!(counted.take(OUTER.0, OUTER.1));
        assert!(!counted.take(INNER.0, INNER.1));
    }

    /// What is placed there anew is another breakpoint: a hit of that is no repetition.
    #[test]
    fn hits_of_a_breakpoint_that_is_gone_are_not_repeated() {
        let mut counted = CountedHits::default();
        for (at, sp) in [OUTER, INNER, OUTER] {
            counted.push(at, sp);
        }
        counted.forget(OUTER.0);
        assert!(!counted.take(OUTER.0, OUTER.1));
        counted.push(INNER.0, INNER.1);
        counted.forget(Addr(0x9999));
        assert!(counted.take(INNER.0, INNER.1));
    }

    #[test]
    fn too_many_forget_the_outermost() {
        let mut counted = CountedHits::default();
        let hits = || (0..20u64).map(|n| (Addr(n), 0x7f00_0000 - n * 0x100));
        hits().for_each(|(at, sp)| counted.push(at, sp));
        let repeated = hits().collect::<Vec<_>>().into_iter().rev().filter(|(at, sp)| counted.take(*at, *sp)).count();
        assert_eq!(repeated, CountedHits::ROOM);
    }
}
