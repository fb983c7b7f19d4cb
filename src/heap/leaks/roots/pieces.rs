//! Disjoint ranges of memory with labels.

use crate::base::addr::Addr;
use crate::heap::leaks::{RootKind, RootRange};
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges by their start; none overlaps another.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: BTreeMap<Addr, (Addr, RootKind)>,
}

impl Pieces {
    /// Adds what of `range` is not there yet: earlier labels stay.
    pub(super) fn add(&mut self, range: &Range<Addr>, kind: RootKind) {
        let mut free = vec![range.clone()];
        for (&start, &(end, _)) in self.overlapping(range) {
            free = free.into_iter().flat_map(|part| without(&part, &(start..end))).collect();
        }
        for part in free {
            self.pieces.insert(part.start, (part.end, kind));
        }
    }

    /// Takes `range` away.
    pub(super) fn subtract(&mut self, range: &Range<Addr>) {
        self.change(range, |_| true, None);
    }

    /// Takes `range` away, except what is a module's data.
    pub(super) fn subtract_unless_data(&mut self, range: &Range<Addr>) {
        self.change(range, |kind| !matches!(kind, RootKind::Data { .. }), None);
    }

    /// Gives what is left of `range` another label, except a module's data.
    pub(super) fn label(&mut self, range: &Range<Addr>, kind: RootKind) {
        self.change(range, |kind| !matches!(kind, RootKind::Data { .. }), Some(&kind));
    }

    pub(super) fn into_ranges(self) -> Vec<RootRange> {
        let ranges = self.pieces.into_iter();
        ranges.map(|(start, (end, kind))| RootRange { start, end, kind }).collect()
    }

    fn change(&mut self, range: &Range<Addr>, concerns: impl Fn(&RootKind) -> bool, label: Option<&RootKind>) {
        let touched: Vec<_> =
            self.overlapping(range).filter(|(_, (_, kind))| concerns(kind)).map(|(&start, _)| start).collect();
        for start in touched {
            let Some((end, kind)) = self.pieces.remove(&start) else { continue };
            for part in without(&(start..end), range) {
                self.pieces.insert(part.start, (part.end, kind));
            }
            if let Some(label) = label {
                let (from, to) = (start.max(range.start), end.min(range.end));
                self.pieces.insert(from, (to, *label));
            }
        }
    }

    fn overlapping(&self, range: &Range<Addr>) -> impl Iterator<Item = (&Addr, &(Addr, RootKind))> {
        let (start, end) = (range.start, range.end.max(range.start));
        let before = self.pieces.range(..start).next_back().filter(move |(_, (piece_end, _))| *piece_end > start);
        before.into_iter().chain(self.pieces.range(start..end))
    }
}

/// What of `part` is not in `hole`.
pub(super) fn without(part: &Range<Addr>, hole: &Range<Addr>) -> impl Iterator<Item = Range<Addr>> + use<> {
    let below = part.start..part.end.min(hole.start);
    let above = part.start.max(hole.end)..part.end;
    [below, above].into_iter().filter(|rest| rest.start < rest.end)
}
