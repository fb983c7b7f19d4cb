//! Samples, packed: there may be a million.

use super::{Amount, Sample};
use crate::base::packed::{Packed, Row};

/// Samples by their numbers, from 0 on.
pub type Samples = Packed<Sample, SAMPLE>;

/// How many numbers a sample has.
pub(super) const SAMPLE: usize = 20;

impl Row<SAMPLE> for Sample {
    fn numbers(&self) -> [u64; SAMPLE] {
        let Self { allocated, freed, deallocated, live, at_peak, .. } = self;
        [
            self.stack as u64,
            self.thread as u64,
            self.alloc_fn as u64,
            self.program.map_or(0, |program| program as u64 + 1),
            u64::from(self.inherited),
            self.size,
            self.interval,
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

    fn of_numbers(numbers: [u64; SAMPLE]) -> Self {
        let [stack, thread, alloc_fn, program, inherited, size, interval, rest @ ..] = numbers;
        let [a, a_bytes, f, f_bytes, d, d_bytes, l, l_bytes, p, p_bytes, temporary, lifetime_ns, freed_elsewhere] =
            rest;
        let amount = |objects, bytes| Amount { objects, bytes };
        Self {
            stack: stack as usize,
            thread: thread as usize,
            alloc_fn: alloc_fn as usize,
            program: program.checked_sub(1).map(|program| program as usize),
            inherited: inherited != 0,
            size,
            interval,
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
        let numbers: [u64; SAMPLE] = std::array::from_fn(|n| if n == 4 { 1 } else { n as u64 + 1 });
        assert_eq!(Sample::of_numbers(numbers).numbers(), numbers);
        let sample = Sample::of_numbers(numbers);
        assert_eq!((sample.stack, sample.program, sample.inherited, sample.freed_elsewhere), (1, Some(3), true, 20));
        assert_eq!((sample.at_peak.objects, sample.lifetime_ns), (16, 19));
    }
}
