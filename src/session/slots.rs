//! The table of the processes under trace: each has a slot, by which its tasks know it.

use rustc_hash::FxHashMap;

/// The place of a process among all of them. It is given to another one when the process has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Slot(usize);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Option<Box<T>>>,
    free: Vec<Slot>,
    by_pid: FxHashMap<i32, Slot>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), by_pid: FxHashMap::default() }
    }
}

impl<T> Slots<T> {
    /// Adds the process with this id.
    pub(super) fn insert(&mut self, pid: i32, process: T) -> Slot {
        let process = Some(Box::new(process));
        let slot = match self.free.pop() {
            Some(slot) => {
                if let Some(place) = self.slots.get_mut(slot.0) {
                    *place = process;
                }
                slot
            }
            None => {
                self.slots.push(process);
                Slot(self.slots.len() - 1)
            }
        };
        self.by_pid.insert(pid, slot);
        slot
    }

    /// Takes a process out.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Box<T>> {
        let process = self.slots.get_mut(slot.0)?.take()?;
        self.by_pid.retain(|_, known| *known != slot);
        self.free.push(slot);
        Some(process)
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        self.slots.get(slot.0)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.slots.get_mut(slot.0)?.as_deref_mut()
    }

    /// The place of the process with this id.
    pub(super) fn find(&self, pid: i32) -> Option<Slot> {
        self.by_pid.get(&pid).copied()
    }

    /// The places of all processes.
    pub(super) fn slots(&self) -> Vec<Slot> {
        (0..self.slots.len()).map(Slot).filter(|slot| self.get(*slot).is_some()).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|process| process.as_deref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|process| process.as_deref_mut())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_pid.is_empty()
    }
}
