//! By how much a figure may grow from one run to the next.

use crate::base::figures::plural;
use crate::profile::pertest::{Figure, Grown, TestRow};
use std::fmt;

/// By how much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum GrowthLimit {
    /// By so many bytes.
    Bytes(u64),
    /// By so many percent of what it was.
    Percent(f64),
}

// None is NaN.
impl Eq for GrowthLimit {}

impl GrowthLimit {
    /// Whether something has grown by more.
    pub fn is_exceeded(self, before: u64, after: u64) -> bool {
        let growth = after.saturating_sub(before);
        growth > 0
            && match self {
                Self::Bytes(bytes) => growth > bytes,
                Self::Percent(percent) => growth as f64 > before as f64 * percent / 100.0,
            }
    }
}

impl fmt::Display for GrowthLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&plural(*bytes, "byte")),
            Self::Percent(percent) => write!(f, "{percent} %"),
        }
    }
}

/// What is compared of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TestBefore {
    /// Its allocations.
    pub allocations: u64,
    /// Its peak in bytes.
    pub peak_bytes: u64,
    /// Bytes that it kept.
    pub kept_bytes: u64,
    /// How often it ran.
    pub runs: u64,
}

/// What of a test has grown by more than one of the limits allows. Limits in bytes say nothing of numbers of
/// allocations; sums are compared for one run.
pub fn grown(row: &TestRow, before: &TestBefore, limits: &[GrowthLimit]) -> Vec<Grown> {
    let (runs_before, runs) = (before.runs.max(1), row.runs.max(1));
    let figures = [
        (Figure::Allocations, before.allocations / runs_before, row.allocated.objects / runs),
        (Figure::Peak, before.peak_bytes, row.peak_bytes),
        (Figure::Kept, before.kept_bytes / runs_before, row.kept.bytes / runs),
    ];
    let exceeds = |what: Figure, before, after| {
        let says = |limit: &&GrowthLimit| what.is_bytes() || matches!(limit, GrowthLimit::Percent(_));
        limits.iter().filter(says).any(|limit| limit.is_exceeded(before, after))
    };
    let grown = figures.into_iter().filter(|(what, before, after)| exceeds(*what, *before, *after));
    grown.map(|(what, before, after)| Grown { what, before, after }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Amount;

    #[test]
    fn growth_counts_from_behind_the_limit_on() {
        let by = |limit: GrowthLimit| limit.is_exceeded(100, 105);
        assert!(!by(GrowthLimit::Percent(5.0)) && by(GrowthLimit::Percent(4.9)));
        assert!(!by(GrowthLimit::Bytes(5)) && by(GrowthLimit::Bytes(4)));
        assert!(GrowthLimit::Percent(1000.0).is_exceeded(0, 1), "of nothing any growth is more than each share");
        assert!(!GrowthLimit::Bytes(0).is_exceeded(7, 7) && !GrowthLimit::Bytes(0).is_exceeded(7, 3));
    }

    #[test]
    fn a_test_grows_by_allocations_peak_and_what_it_keeps() {
        let amount = |objects, bytes| Amount { objects, bytes };
        let row = TestRow {
            name: "a".to_owned(),
            runs: 2,
            duration_ns: 0,
            allocated: amount(220, 0),
            peak_bytes: 1000,
            kept: amount(0, 40),
            live: Vec::new(),
            leaked: Amount::default(),
            grown: Vec::new(),
        };
        let before = TestBefore { allocations: 100, peak_bytes: 900, kept_bytes: 20, runs: 1 };
        let what =
            |limit| grown(&row, &before, &[limit]).iter().map(|g| (g.what, g.before, g.after)).collect::<Vec<_>>();
        let both = [(Figure::Allocations, 100, 110), (Figure::Peak, 900, 1000)];
        assert_eq!(what(GrowthLimit::Percent(5.0)), both);
        assert_eq!(what(GrowthLimit::Bytes(10)), both[1..]);
        assert_eq!(what(GrowthLimit::Percent(12.0)), []);
    }
}
