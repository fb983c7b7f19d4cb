//! Marks divide the blocks into generations, by their birth.

use crate::event::MarkName;

/// So many marks are kept; the oldest ones are forgotten. A signal can set them without end.
const MAX_MARKS: usize = 10_000;

/// A mark that was set in the stream of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Its name. The latest of several with one name is meant by it.
    pub name: MarkName,
    /// When it was set, in nanoseconds since the stream began.
    pub time_ns: u64,
    /// How many blocks had been born by then: later ones have higher numbers.
    pub births: u64,
}

impl Mark {
    /// When it was set, and its name.
    pub fn named(&self) -> (u64, String) {
        (self.time_ns, self.name.as_str().to_owned())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    list: Vec<Mark>,
}

impl Marks {
    pub(super) fn set(&mut self, name: MarkName, time_ns: u64, births: u64) {
        if self.list.len() >= MAX_MARKS {
            self.list.remove(0);
        }
        self.list.push(Mark { name, time_ns, births });
    }

    pub(super) fn list(&self) -> &[Mark] {
        &self.list
    }
}
