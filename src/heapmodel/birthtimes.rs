//! When blocks were born. A block knows which allocation of the process it was, and no time: here are the times of some
//! allocations, from which that of each follows nearly.
//!
//! Times of young blocks are known finely, of old ones coarsely: each level keeps the first allocation in each of the
//! latest steps of time in which there was one, and its steps are four times as long as those of the level before. So
//! what is wrong with an age is less than the finest step, or than a sixtieth of the age.

/// So many steps each level remembers. A power of two.
const STEPS: usize = 256;

/// The finest step is 2^12 ns, about 4 µs.
const FIRST_SHIFT: u32 = 12;

/// The steps of the last level are 2^50 ns: with these it reaches back for nine years.
const LEVELS: usize = 20;

/// An allocation, and when it was.
#[derive(Clone, Copy, Debug, Default)]
struct Birth {
    number: u64,
    time_ns: u64,
}

/// The first allocations in the latest steps, as a ring.
#[derive(Clone, Debug, Default)]
struct Level {
    births: Vec<Birth>,
    /// Where the oldest one is, once the ring is full.
    oldest: usize,
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct BirthTimes {
    levels: Vec<Level>,
    /// The latest allocation.
    newest: Birth,
    /// The first allocation in the finest step of the latest one.
    step: Birth,
    /// What was found last: from this allocation on, and before that one, they were then.
    found: (u64, u64, u64),
}

impl BirthTimes {
    /// The allocation of this number, one more than the one before, is now.
    #[inline(always)]
    pub(super) fn note(&mut self, number: u64, now_ns: u64) {
        self.newest = Birth { number, time_ns: now_ns };
        if self.levels.is_empty() || now_ns >> FIRST_SHIFT != self.step.time_ns >> FIRST_SHIFT {
            self.begin_step();
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_step(&mut self) {
        let (before, newest) = (self.step, self.newest);
        let is_first = self.levels.is_empty();
        self.step = newest;
        if is_first {
            self.levels.resize_with(LEVELS, Level::default);
        }
        for (level, shift) in self.levels.iter_mut().zip((FIRST_SHIFT..).step_by(2)) {
            if !is_first && before.time_ns >> shift == newest.time_ns >> shift {
                break;
            }
            level.push(newest);
        }
    }

    /// For how long the block has lived now that was this allocation, in nanoseconds. Allocations from before the first
    /// that was noted count from that one on.
    #[inline(always)]
    pub(super) fn age(&mut self, number: u64, now_ns: u64) -> u64 {
        let born = if number >= self.newest.number {
            self.newest.time_ns
        } else if number >= self.step.number {
            self.step.time_ns
        } else if (self.found.0..self.found.1).contains(&number) {
            self.found.2
        } else {
            self.look_up(number)
        };
        now_ns.saturating_sub(born)
    }

    #[inline(never)]
    fn look_up(&mut self, number: u64) -> u64 {
        let reaches_back = |level: &&Level| level.at(0).is_some_and(|oldest| oldest.number <= number);
        let Some(level) = self.levels.iter().find(reaches_back) else {
            let oldest = self.levels.last().and_then(|level| level.at(0));
            return oldest.map_or(0, |oldest| oldest.time_ns);
        };
        let after = level.first_after(number);
        let Some(born) = after.checked_sub(1).and_then(|at| level.at(at)) else { return 0 };
        if let Some(next) = level.at(after) {
            self.found = (born.number, next.number, born.time_ns);
        }
        born.time_ns
    }
}

impl Level {
    fn push(&mut self, birth: Birth) {
        if self.births.len() < STEPS {
            self.births.push(birth);
        } else if let Some(oldest) = self.births.get_mut(self.oldest) {
            *oldest = birth;
            self.oldest = (self.oldest + 1) % STEPS;
        }
    }

    /// The one before which there are so many older ones.
    fn at(&self, older: usize) -> Option<Birth> {
        (older < self.births.len()).then(|| self.births.get((self.oldest + older) % STEPS).copied())?
    }

    /// How many are not later than this allocation. Nobody can guess where it lies, so that the search has no branch
    /// that depends on it: [`slice::partition_point`] in one of the two runs that the ring consists of.
    fn first_after(&self, number: u64) -> usize {
        let (newer, older) = self.births.split_at_checked(self.oldest).unwrap_or_default();
        let among = |births: &[Birth]| births.partition_point(|birth| birth.number <= number);
        let is_newer = newer.first().is_some_and(|birth| birth.number <= number);
        if is_newer { older.len() + among(newer) } else { among(older) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of the times of all allocations, whatever lies between them.
        #[test]
        fn ages_are_known_to_a_step_or_a_sixtieth(
            pauses in prop::collection::vec((0u64..1 << 12, 0u32..24), 1..3000),
            asked in prop::collection::vec(any::<prop::sample::Index>(), 64),
        ) {
            let mut births = BirthTimes::default();
            let (mut times, mut now) = (Vec::new(), 0u64);
            for (at, (length, scale)) in pauses.iter().enumerate() {
                // most follow each other soon
                now += if scale % 3 == 0 { length << scale } else { *length };
                times.push(now);
                births.note(times.len() as u64, now);
                for index in asked.iter().take(if at % 100 == 99 || at + 1 == pauses.len() { 64 } else { 1 }) {
                    let number = index.index(times.len());
                    let age = now + 5 - times[number];
                    let told = births.age(number as u64 + 1, now + 5);
                    prop_assert!(told >= age && told - age <= (age / 60).max(1 << FIRST_SHIFT), "{told} of {age}");
                }
            }
            prop_assert_eq!(births.age(times.len() as u64, now + 7), 7);
        }
    }

    #[test]
    fn it_takes_little_memory_however_long_it_lasts() {
        let mut births = BirthTimes::default();
        for number in 1..2_000_000u64 {
            births.note(number, number << 20);
        }
        let size: usize = births.levels.iter().map(|level| level.births.capacity() * size_of::<Birth>()).sum();
        assert!(size <= LEVELS * STEPS * size_of::<Birth>(), "{size}");
    }
}
