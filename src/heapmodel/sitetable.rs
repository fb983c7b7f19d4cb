//! The figures of all sites of a moment, packed: there may be a million.

use super::{SiteKey, SiteStats};
use crate::base::addr::{FunctionId, StackId};
use crate::base::figures::Amount;
use crate::base::packed::{Packed, Row};

/// Sites; the model gives them in the order of their keys: stack, thread, function, size, interval.
pub type SiteTable = Packed<SiteStats, 19>;

impl SiteStats {
    /// By what they are sorted in a [`SiteTable`].
    pub(super) const fn order(&self) -> (StackId, u32, FunctionId, u64, u64, bool) {
        let SiteKey { stack, task, function, size, interval } = self.key;
        (stack, task, function, size, interval, self.inherited)
    }
}

impl Row<19> for SiteStats {
    fn numbers(&self) -> [u64; 19] {
        let Self { key, allocated, freed, deallocated, live, at_peak, .. } = self;
        [
            u64::from(key.stack.0),
            u64::from(key.task),
            u64::from(key.function.0),
            key.size,
            key.interval,
            u64::from(self.inherited),
            allocated.objects,
            allocated.bytes,
            freed.objects,
            freed.bytes,
            deallocated.objects,
            deallocated.bytes,
            live.objects,
            live.bytes,
            at_peak.objects,
            at_peak.bytes,
            self.temporary,
            self.lifetime_ns,
            self.freed_elsewhere,
        ]
    }

    fn of_numbers(numbers: [u64; 19]) -> Self {
        let [stack, task, function, size, interval, inherited, rest @ ..] = numbers;
        let [a, a_bytes, f, f_bytes, d, d_bytes, l, l_bytes, p, p_bytes, temporary, lifetime_ns, freed_elsewhere] =
            rest;
        let amount = |objects, bytes| Amount { objects, bytes };
        Self {
            key: SiteKey {
                stack: StackId(stack as u32),
                task: task as u32,
                function: FunctionId(function as u16),
                size,
                interval,
            },
            inherited: inherited != 0,
            allocated: amount(a, a_bytes),
            freed: amount(f, f_bytes),
            deallocated: amount(d, d_bytes),
            live: amount(l, l_bytes),
            at_peak: amount(p, p_bytes),
            temporary,
            lifetime_ns,
            freed_elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_comes_back() {
        let numbers: [u64; 19] = std::array::from_fn(|n| if n == 5 { 1 } else { n as u64 + 1 });
        let site = SiteStats::of_numbers(numbers);
        assert_eq!(site.numbers(), numbers);
        assert_eq!((site.key.stack, site.key.function, site.inherited), (StackId(1), FunctionId(3), true));
        assert_eq!((site.at_peak.bytes, site.lifetime_ns, site.freed_elsewhere), (16, 18, 19));
    }
}
