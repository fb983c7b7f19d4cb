//! Events that the stream holds back until it has the blocks from before the attach.
//!
//! A copy of the process is walked while the process runs on. The blocks that are found come first in the stream, at
//! the time of the copy; what happened since follows in its order. Readers get both in short pieces, as the program may
//! wait.

use super::Observer;
use super::stream::Stream;
use crate::base::addr::Addr;
use crate::event::{EventKind, MapChange, range_of};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The clock is looked at after so many events.
const AT_A_TIME: usize = 64;

/// The most ranges that are kept apart of what the program has mapped meanwhile.
const MAX_RANGES: usize = 1 << 10;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Held {
    /// When the process was copied, ns.
    at_ns: u64,
    /// The blocks that readers still lack, with the usable size of each. None: they are not known yet.
    blocks: Option<std::vec::IntoIter<(Addr, u64)>>,
    events: VecDeque<(u64, EventKind)>,
    /// What the program has mapped by itself, as far as the events tell. What it has unmapped since is in it, too.
    mapped: Vec<Range<u64>>,
}

impl Held {
    pub(super) fn push(&mut self, time_ns: u64, kind: EventKind) {
        let new = match kind {
            EventKind::Mapping { change: MapChange::Mapped { start, bytes }, .. } => range_of(start, bytes),
            EventKind::Remapped { new, new_bytes, .. } => range_of(new, new_bytes.bytes()),
            _ => 0..0,
        };
        if !new.is_empty() {
            self.mapped.push(new);
        }
        if self.mapped.len() > MAX_RANGES {
            // each call that unmaps looks through them: from here on anything between may be the program's
            let start = self.mapped.iter().map(|range| range.start).min().unwrap_or(0);
            let end = self.mapped.iter().map(|range| range.end).max().unwrap_or(0);
            self.mapped.clear();
            self.mapped.push(start..end);
        }
        self.events.push_back((time_ns, kind));
    }

    /// Whether the program may have mapped any of this.
    pub(super) fn may_have_mapped(&self, start: Addr, bytes: u64) -> bool {
        let wanted = range_of(start, bytes);
        self.mapped.iter().any(|known| known.start < wanted.end && wanted.start < known.end)
    }

    /// The next event for the readers.
    fn next(&mut self) -> Option<(u64, EventKind)> {
        let block = self.blocks.as_mut()?.next();
        let existing = block.map(|(block, size)| (self.at_ns, EventKind::Existing { block, size }));
        existing.or_else(|| self.events.pop_front())
    }
}

impl Stream {
    /// Passes on what is held back, for at most this time. When all is passed on, nothing is held back any more.
    fn tell_held(&mut self, most: Duration) {
        let began = Instant::now();
        while let Some(mut held) = self.held.take() {
            for _ in 0..AT_A_TIME {
                match held.next() {
                    Some((time_ns, kind)) => self.take(time_ns, kind),
                    None if held.blocks.is_some() => return,
                    None => break,
                }
            }
            let waits = held.blocks.is_none();
            self.held = Some(held);
            if waits || began.elapsed() >= most {
                return;
            }
        }
    }
}

impl Observer {
    /// Holds back events from here on, until readers have the blocks that are there now.
    pub(in crate::session) fn hold_back(&mut self) {
        let at_ns = self.now_ns();
        self.stream.held = Some(Held { at_ns, blocks: None, events: VecDeque::new(), mapped: Vec::new() });
    }

    /// These are the blocks that were there when [`Self::hold_back`] was called.
    pub(in crate::session) fn take_existing(&mut self, blocks: Vec<(Addr, u64)>) {
        if let Some(held) = &mut self.stream.held {
            held.blocks = Some(blocks.into_iter());
        }
    }

    /// Tells what is held back, for so long at most.
    pub(in crate::session) fn tell_held(&mut self, most: Duration) {
        self.stream.tell_held(most);
        if self.stream.held.is_none() {
            self.show_progress();
        }
    }

    /// How many events are held back. None: the readers get each as it comes.
    pub(in crate::session) fn held(&self) -> Option<usize> {
        self.stream.held.as_ref().map(|held| held.events.len())
    }
}
