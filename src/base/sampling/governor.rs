//! Chooses the interval of sampling by what it costs (`--max-overhead`). Pure.

/// A decision is made when the program has had so much CPU time since the one before, ns.
const SPAN_NS: u64 = 50_000_000;

/// The interval falls when the cost is below the limit divided by this: the next smaller one costs twice as much at
/// most.
const LOW: u64 = 3;

/// See the module's head. Intervals have numbers from 1 on, each is twice the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Governor {
    /// The cost that is allowed, in thousandths of the program's CPU time.
    most_permille: u32,
    /// The number of the largest interval.
    last: u32,
    /// The one in use.
    number: u32,
    /// What was told at the last decision.
    seen: Spent,
}

/// What was spent so far, ns of CPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// On recording blocks that were picked: half of it with the next interval.
    pub picked: u64,
    /// On counting calls that were not: the same with each interval.
    pub counted: u64,
    /// By the program, that included.
    pub all: u64,
}

impl Governor {
    /// Begins with the smallest interval.
    pub const fn new(most_permille: u32, last: u32) -> Self {
        Self { most_permille, last, number: 1, seen: Spent { picked: 0, counted: 0, all: 0 } }
    }

    /// Returns the number of the interval to be used from here on, if that is another one. Where counting takes nearly
    /// all that is allowed, or more, picked blocks may take a quarter of that besides: without them there is nothing to
    /// be seen.
    pub fn next(&mut self, spent: Spent) -> Option<u32> {
        let all = spent.all.saturating_sub(self.seen.all);
        if all < SPAN_NS {
            return None;
        }
        let cost = u128::from(spent.picked.saturating_sub(self.seen.picked));
        let counted = u128::from(spent.counted.saturating_sub(self.seen.counted));
        self.seen = spent;
        let allowed = u128::from(all) * u128::from(self.most_permille) / 1000;
        let allowed = allowed.saturating_sub(counted).max(allowed / 4).max(1);
        let number = if cost > allowed {
            // each step halves it, as far as it comes from the blocks that are picked
            let steps = (cost.div_ceil(allowed)).next_power_of_two().ilog2().max(1);
            self.number.saturating_add(steps).min(self.last)
        } else if cost * u128::from(LOW) < allowed {
            self.number.saturating_sub(1).max(1)
        } else {
            self.number
        };
        let changed = number != self.number;
        self.number = number;
        changed.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that allocates `picked_at_first` blocks a second with the first interval, each of which costs a
    /// microsecond.
    fn settle(governor: &mut Governor, picked_at_first: u64, from: &mut Spent, spans: u32) -> u32 {
        let mut number = governor.number;
        for _ in 0..spans {
            from.picked += (picked_at_first * 1000 / 20) >> (number - 1);
            from.all += SPAN_NS;
            number = governor.next(*from).unwrap_or(number);
        }
        number
    }

    #[test]
    fn the_interval_follows_the_cost_up_and_down() {
        let (mut governor, mut at) = (Governor::new(30, 14), Spent::default());
        // 3 % are 30,000 blocks a second
        assert_eq!(settle(&mut governor, 9_000, &mut at, 20), 1);
        assert_eq!(settle(&mut governor, 1_000_000, &mut at, 3), 7, "15,625 a second");
        assert_eq!(settle(&mut governor, 1_000_000, &mut at, 50), 7, "and it stays there");
        assert_eq!(
            settle(&mut governor, 30_000, &mut at, 50),
            2,
            "15,000; 30,000 with the first would be near the limit"
        );
        assert_eq!(settle(&mut governor, 0, &mut at, 50), 1);
        assert_eq!(settle(&mut governor, u64::MAX >> 12, &mut at, 50), 14);
    }

    #[test]
    fn nothing_is_decided_upon_too_little() {
        let mut governor = Governor::new(30, 14);
        let spent = |picked, all| Spent { picked, counted: 0, all };
        assert_eq!(governor.next(spent(SPAN_NS - 1, SPAN_NS - 1)), None);
        assert_eq!(governor.next(spent(SPAN_NS, SPAN_NS)), Some(7), "33 times too much");
        assert_eq!(governor.next(spent(SPAN_NS, SPAN_NS)), None);
        assert_eq!(governor.next(spent(0, 0)), None, "and nothing breaks where figures fall");
    }

    #[test]
    fn counting_leaves_something_for_what_is_picked() {
        let allowed = SPAN_NS * 30 / 1000;
        let next = |picked, counted| Governor::new(30, 14).next(Spent { picked, counted, all: SPAN_NS });
        assert_eq!((next(allowed, 0), next(allowed, allowed / 2)), (None, Some(2)));
        assert_eq!((next(allowed / 4, allowed * 9), next(allowed / 3, allowed * 9)), (None, Some(2)));
    }
}
