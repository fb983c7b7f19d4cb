//! Moments that come from outside the process: pauses in collecting, and marks, whose heaps are kept.

use super::Observer;
use crate::allocators::{Kind, Text};
use crate::base::addr::{Addr, FunctionId};
use crate::event::calls::MapCall;
use crate::event::{EventKind, Generation, MarkName};
use crate::heapmodel::{HeapView, Snapshot};
use crate::session::interim::{births_at, known};
use std::time::{Duration, Instant};

/// So many marks have their heaps kept: what has changed since takes memory, in each of them.
pub(super) const MAX_MARKED: usize = 4;

/// Whether and for how long collecting has paused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    since: Option<Instant>,
    before: Duration,
}

impl Pause {
    /// That of a child which is forked now.
    pub(super) fn of_child(self) -> Self {
        Self { since: self.since.map(|_| Instant::now()), before: Duration::ZERO }
    }
}

impl Observer {
    /// Pauses collecting, or goes on. False if that was so already.
    pub(in crate::session) fn set_paused(&mut self, pause: bool) -> bool {
        if pause == self.is_paused() {
            return false;
        }
        self.pause = match self.pause.since {
            Some(_) => Pause { since: None, before: self.paused_for() },
            None => Pause { since: Some(Instant::now()), before: self.pause.before },
        };
        self.tell(EventKind::Paused(pause));
        true
    }

    /// Whether allocations are not reported at the moment.
    pub(in crate::session) const fn is_paused(&self) -> bool {
        self.pause.since.is_some()
    }

    /// The time spent in pauses so far.
    pub(in crate::session) fn paused_for(&self) -> Duration {
        self.pause.before + self.pause.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// During a pause a block that is known can end, or move.
    pub(super) fn is_of_interest_while_paused(&self, function: FunctionId, args: &[u64; 6]) -> bool {
        match self.shared.table.get(function).map(|function| function.kind) {
            Some(Kind::Free { .. }) => true,
            Some(Kind::GrowOut { .. }) => self.model().is_live(Addr(Text::OLD.of(args))),
            Some(Kind::Realloc { old, .. } | Kind::ResizeInPlace { old, .. }) => {
                self.model().is_live(Addr(old.of(args)))
            }
            Some(Kind::Mapping(function)) => MapCall::of(function, args).is_some_and(|call| {
                let concerns = call.concerns(|start, bytes| self.stream.has_mapped(start, bytes));
                concerns.unwrap_or_else(|| call.lowers_break())
            }),
            _ => false,
        }
    }

    /// Sets a mark, and keeps the heap of this moment. That of the latest mark called `wanted` is kept, too, however
    /// many follow.
    pub(in crate::session) fn mark(&mut self, name: MarkName, wanted: Option<MarkName>) {
        self.tell(EventKind::Mark(name));
        let latest = |wanted| self.marked.iter().rposition(|(known, _)| *known == wanted);
        let needed = wanted.filter(|wanted| *wanted != name).and_then(latest);
        if self.marked.len() >= MAX_MARKED + usize::from(needed.is_some()) {
            self.marked.remove(usize::from(needed == Some(0)));
        }
        let view = self.view(true);
        self.marked.push((name, view));
    }

    /// The heap when the latest mark of this name was set.
    ///
    /// # Errors
    /// It is not kept, in a sentence for people.
    pub(in crate::session) fn heap_at(&self, mark: &MarkName) -> Result<&HeapView, String> {
        let marked = self.marked.iter().rev().find(|(known, _)| known == mark);
        marked.map(|(_, view)| view).ok_or_else(|| {
            let kept: Vec<MarkName> = self.marked.iter().map(|(name, _)| *name).collect();
            format!(
                "the heap at the mark `{mark}` is not kept: heaptrace keeps it for the newest {MAX_MARKED} marks of a \
                 program since its exec; {}",
                known(&kept)
            )
        })
    }

    /// What of the heap is wanted at the end.
    ///
    /// # Errors
    /// A mark was not set, in a sentence for people.
    pub(in crate::session) fn wanted_snapshot(&mut self, wanted: Generation) -> Result<Snapshot, String> {
        let Generation { since, until } = wanted;
        let heap = match until {
            Some(mark) => self.heap_at(&mark)?.clone(),
            None if since.is_none() => return Ok(self.model().snapshot()),
            None => self.view(true),
        };
        let Some(since) = since else { return Ok(heap.snapshot()) };
        let births = births_at(&heap, &since).map_err(|error| error.to_string())?;
        Ok(heap.survivors(births).unwrap_or_default())
    }
}
