//! What takes most of a process's memory, and whether it can be had back.

use super::census::{Census, Use};
use super::trim::Trim;

/// One answer to "where did the memory go?".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Mostly blocks that were freed, and most of those pages would be given back if the allocator were asked to.
    Retention,
    /// Mostly blocks that were freed, and most of those pages could not be given back: live blocks lie in them, or
    /// their arena has no way to.
    Pinning,
    /// Much is in blocks that no pointer leads to.
    Leak,
    /// Mostly blocks in use.
    Live,
    /// Mostly memory that the program has mapped itself.
    Mappings,
    /// Mostly stacks.
    Stacks,
    /// Mostly files: code, and data that was read by mapping it.
    Files,
    /// Mostly memory that it shares.
    Shared,
    /// Hardly anything is in memory.
    Nothing,
}

/// Freed memory is told first where it is so much of what is resident (one part in so many), whatever else is more: it
/// is what nobody has a use for.
const NOTABLE: u64 = 4;

/// Judges. `lost`: bytes of blocks that no pointer leads to.
pub fn of(census: &Census, trim: Option<&Trim>, lost: u64) -> Verdict {
    let total = census.total().resident;
    let free = census.free().resident;
    let amount = |of: Use| census.of(of).resident;
    let live = amount(Use::Live) + amount(Use::Headers) + amount(Use::Books) + amount(Use::Unknown);
    let candidates = [
        (live, Verdict::Live),
        (amount(Use::Mappings), Verdict::Mappings),
        (amount(Use::Stacks), Verdict::Stacks),
        (amount(Use::Files), Verdict::Files),
        (amount(Use::Shared), Verdict::Shared),
    ];
    if total == 0 {
        return Verdict::Nothing;
    }
    if lost.min(live) * NOTABLE >= total && lost >= free {
        return Verdict::Leak;
    }
    if free * NOTABLE >= total {
        let given_back = trim.map_or(0, Trim::bytes);
        return if given_back * 2 >= free { Verdict::Retention } else { Verdict::Pinning };
    }
    candidates.into_iter().max_by_key(|(bytes, _)| *bytes).map_or(Verdict::Nothing, |(_, verdict)| verdict)
}

#[cfg(test)]
mod tests {
    use super::super::census::Amount;
    use super::*;

    fn census(uses: &[(Use, u64)]) -> Census {
        let mut census = Census::default();
        for (of, resident) in uses {
            census.uses.insert(*of, Amount { reserved: *resident, resident: *resident, swapped: 0 });
        }
        census
    }

    #[test]
    fn what_was_freed_is_told_first_where_it_is_much() {
        let freed = census(&[(Use::Live, 60), (Use::Bins, 30), (Use::Files, 10)]);
        assert_eq!(of(&freed, Some(&Trim { inside: 20, end: 0 }), 0), Verdict::Retention);
        assert_eq!(of(&freed, Some(&Trim { inside: 10, end: 4 }), 0), Verdict::Pinning);
        assert_eq!(of(&census(&[(Use::Live, 60), (Use::Bins, 10), (Use::Files, 30)]), None, 0), Verdict::Live);
        assert_eq!(of(&census(&[(Use::Stacks, 60), (Use::Live, 59)]), None, 0), Verdict::Stacks);
        assert_eq!(of(&freed, None, 29), Verdict::Pinning);
        assert_eq!(of(&freed, None, 31), Verdict::Leak);
        assert_eq!(of(&Census::default(), None, 0), Verdict::Nothing);
    }
}
