//! What interpreters keep of threads: a state for each thread in each interpreter that it has been in.

use super::layout::Layout;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use rustc_hash::FxHashMap;

/// A thread is looked for among so many, of all interpreters.
const MAX_THREADS: usize = 1 << 12;

/// A process has so many interpreters at most.
const MAX_INTERPRETERS: usize = 1 << 10;

/// A thread's state in an interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadState {
    /// Where it is.
    pub(super) at: Addr,
    /// Its interpreter.
    interpreter: Addr,
    /// Whether that is the first interpreter of the process. Later ones are put before it in their list.
    pub(super) is_of_first: bool,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    runtime: Addr,
    layout: Layout,
    /// The states of threads that were found, by the thread's pointer.
    known: FxHashMap<u64, Vec<ThreadState>>,
}

impl Threads {
    /// Those of the process whose runtime is there.
    pub(super) fn new(runtime: Addr, layout: Layout) -> Self {
        Self { runtime, layout, known: FxHashMap::default() }
    }

    /// The states with the thread pointer `id` that were found before, if all of them are still such; else those that
    /// there are now. None if there are none.
    pub(super) fn of<M: ReadMemory + ?Sized>(&mut self, memory: &mut M, id: u64) -> Option<Vec<ThreadState>> {
        if let Some(known) = self.known.get(&id) {
            if known.iter().all(|state| self.is_state_of(memory, *state, id)) {
                return Some(known.clone());
            }
            self.known.remove(&id);
        }
        self.find(memory, id)
    }

    /// The states with the thread pointer `id` that there are now, in any interpreter. None if there are none.
    pub(super) fn find<M: ReadMemory + ?Sized>(&mut self, memory: &mut M, id: u64) -> Option<Vec<ThreadState>> {
        let mut found = Vec::new();
        self.each(memory, |this, memory, state| {
            if memory.read_u64(state.at.add(this.layout.thread.id))? == id {
                // the list may be changed meanwhile by other threads
                this.is_state_of(memory, state, id).then(|| found.push(state))?;
            }
            Some(())
        })?;
        if found.is_empty() {
            return None;
        }
        self.known.insert(id, found.clone());
        Some(found)
    }

    /// All states in interpreters other than the first. Such a one may serve another thread than the one that it names.
    pub(super) fn of_later_interpreters<M: ReadMemory + ?Sized>(&self, memory: &mut M) -> Option<Vec<ThreadState>> {
        let mut found = Vec::new();
        self.each(memory, |_, _, state| {
            if !state.is_of_first {
                found.push(state);
            }
            Some(())
        })?;
        Some(found)
    }

    fn each<M>(&self, memory: &mut M, mut visit: impl FnMut(&Self, &mut M, ThreadState) -> Option<()>) -> Option<()>
    where
        M: ReadMemory + ?Sized,
    {
        let mut left = MAX_THREADS;
        let mut interpreter = memory.read_u64(self.runtime.add(self.layout.first_interpreter)).map(Addr)?;
        for _ in 0..MAX_INTERPRETERS {
            if interpreter.is_null() {
                return Some(());
            }
            let next = memory.read_u64(interpreter.add(self.layout.next_interpreter)).map(Addr)?;
            let mut at = memory.read_u64(interpreter.add(self.layout.first_thread)).map(Addr)?;
            while !at.is_null() {
                left = left.checked_sub(1)?;
                visit(self, memory, ThreadState { at, interpreter, is_of_first: next.is_null() })?;
                at = memory.read_u64(at.add(self.layout.thread.next)).map(Addr)?;
            }
            interpreter = next;
        }
        None
    }

    /// Whether a state says itself that it is the thread's, and stands in the list of its interpreter.
    fn is_state_of<M: ReadMemory + ?Sized>(&self, memory: &mut M, state: ThreadState, id: u64) -> bool {
        let of = &self.layout.thread;
        let says_so = memory.read_u64(state.at.add(of.id)) == Some(id)
            && memory.read_u64(state.at.add(of.interpreter)) == Some(state.interpreter.0);
        let link = match memory.read_u64(state.at.add(of.previous)) {
            Some(0) => memory.read_u64(state.interpreter.add(self.layout.first_thread)),
            Some(previous) => memory.read_u64(Addr(previous).add(of.next)),
            None => None,
        };
        says_so && link == Some(state.at.0)
    }
}
