//! The tasks under trace, by thread id.

use crate::addr::{Addr, TaskId};
use rustc_hash::FxHashMap;

/// What a task is to the traced process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A thread of the traced process.
    Thread,
    /// A process of its own that borrows the traced one's memory (vfork, posix_spawn, clone with CLONE_VM): its
    /// allocations are made on the traced heap. Let go when it calls exec.
    Borrower,
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
    /// A signal met the task at the start of a pad and sent it back to the breakpoint: the hit at this address with
    /// this stack pointer has been counted already.
    pub skip: Option<(Addr, u64)>,
}

/// All tasks under trace.
#[derive(Debug, Default)]
pub struct Tasks {
    by_tid: FxHashMap<i32, Task>,
    last_serial: u32,
    threads: u64,
}

impl Tasks {
    /// Adds a task with a new serial number; an older one with the same thread id is forgotten.
    pub fn add(&mut self, tid: i32, role: Role) -> TaskId {
        self.last_serial += 1;
        self.threads += u64::from(role == Role::Thread);
        let id = TaskId { tid, serial: self.last_serial };
        self.by_tid.insert(tid, Task { id, role, listening: false, skip: None });
        id
    }

    /// The task with this thread id.
    pub fn get(&self, tid: i32) -> Option<&Task> {
        self.by_tid.get(&tid)
    }

    /// The task with this thread id, to change.
    pub fn get_mut(&mut self, tid: i32) -> Option<&mut Task> {
        self.by_tid.get_mut(&tid)
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

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.by_tid.len()
    }

    /// Whether no task is left.
    pub fn is_empty(&self) -> bool {
        self.by_tid.is_empty()
    }
}
