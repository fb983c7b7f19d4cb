//! What calls tell of their blocks besides the size: the family of the function, and the alignment.

use crate::allocators::Family;
use crate::event::Call;

/// What is known of the block of a call, or of all blocks of a site: in a form that is compared fast, as it is at each
/// call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Traits {
    /// None: not known, or not the same for all.
    pub(super) family: Option<Family>,
    /// 0 for no alignment, else its binary logarithm and one; [`UNKNOWN`], [`NO_POWER`].
    align: u8,
}

/// Not known, or not the same for all.
const UNKNOWN: u8 = u8::MAX;

/// An alignment that is no power of two: only wrong calls have one.
const NO_POWER: u8 = UNKNOWN - 1;

impl Traits {
    pub(super) const UNKNOWN: Self = Self { family: None, align: UNKNOWN };

    #[inline(always)]
    pub(super) fn of(by: &Call) -> Self {
        let code = match by.align {
            None => UNKNOWN,
            Some(align) if align & align.wrapping_sub(1) == 0 => (u64::BITS - align.leading_zeros()) as u8,
            Some(_) => NO_POWER,
        };
        Self { family: by.family, align: code }
    }

    /// The alignment in bytes, 0 for none, if it is known.
    pub(super) fn align(self) -> Option<u64> {
        match self.align {
            0 => Some(0),
            // out of range for those that are none
            code => 1u64.checked_shl(u32::from(code) - 1),
        }
    }

    /// Whether something is known of both and differs. Without branches: programs mix functions.
    #[inline(always)]
    pub(super) fn contradict(self, other: Self) -> bool {
        let families = self.family.is_some() & other.family.is_some() & (self.family != other.family);
        let aligns = (self.align != UNKNOWN) & (other.align != UNKNOWN) & (self.align != other.align);
        families | aligns
    }

    /// What both say.
    #[inline(never)]
    pub(super) fn common(self, other: Self) -> Self {
        Self {
            family: self.family.filter(|_| self.family == other.family),
            align: if self.align == other.align { self.align } else { UNKNOWN },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::{FunctionId, StackId, TaskId};

    #[test]
    fn traits_contradict_where_both_are_known() {
        let task = TaskId { tid: 1, serial: 1 };
        let call = Call { function: FunctionId(0), task, stack: StackId(1), family: None, align: None, interval: 0 };
        let traits = |family, align| Traits::of(&Call { family, align, ..call });
        let [malloc, new] = [Some(Family::Malloc), Some(Family::New)];
        assert!(traits(malloc, None).contradict(traits(new, None)));
        assert!(!traits(malloc, None).contradict(traits(None, Some(16))));
        assert!(traits(new, Some(0)).contradict(traits(new, Some(16))));
        assert!(traits(new, Some(32)).contradict(traits(new, Some(24))), "no power of two is another one");
        for align in [None, Some(0), Some(1), Some(16), Some(1 << 63)] {
            assert_eq!(traits(new, align).align(), align);
        }
    }
}
