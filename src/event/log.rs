//! A stream kept in memory, to be read again.

use super::{Event, EventSink};
use crate::base::addr::ProcessId;
use std::cell::RefCell;
use std::rc::Rc;

/// The stream of one process; that of a forked child begins with its parent's until the fork. A clone is the same log.
#[derive(Clone, Debug, Default)]
pub struct EventLog(Rc<RefCell<Log>>);

#[derive(Debug, Default)]
struct Log {
    /// The parent's, and how many of its own events belong to the past of this one.
    past: Option<(EventLog, usize)>,
    events: Vec<Event>,
}

impl EventLog {
    /// The log of a child that is forked at this place of the stream.
    pub fn of_child(&self) -> Self {
        let past = Some((self.clone(), self.0.borrow().events.len()));
        Self(Rc::new(RefCell::new(Log { past, events: Vec::new() })))
    }

    /// Tells a reader all that was told until now, from the beginning on.
    pub fn replay(&self, reader: &mut dyn EventSink) {
        self.replay_first(usize::MAX, reader);
    }

    fn replay_first(&self, count: usize, reader: &mut dyn EventSink) {
        let log = self.0.borrow();
        if let Some((past, count)) = &log.past {
            past.replay_first(*count, reader);
        }
        log.events.iter().take(count).for_each(|event| reader.take(event));
    }
}

impl EventSink for EventLog {
    fn take(&mut self, event: &Event) {
        self.0.borrow_mut().events.push(*event);
    }

    /// None: whoever wants to read a child's log asks for it by [`Self::of_child`].
    fn fork(&self, _: ProcessId) -> Option<Box<dyn EventSink>> {
        None
    }
}
