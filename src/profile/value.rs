//! The amounts that a view of a profile can be about.

use super::{Amount, Sample};

/// What of each stack is shown, or compared (`--value`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Value {
    /// What is live at the end.
    Live,
    /// What was live at the peak.
    Peak,
    /// All that was allocated.
    Allocated,
    /// What was allocated there and freed since.
    Freed,
    /// What was freed before its thread's next allocation. The bytes are those of blocks of mean size.
    Temporary,
}

impl Value {
    /// All, in the order in which an empty one gives way to the next.
    pub const ALL: [Self; 5] = [Self::Peak, Self::Live, Self::Allocated, Self::Freed, Self::Temporary];

    /// The word of the option.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Peak => "peak",
            Self::Allocated => "allocated",
            Self::Freed => "freed",
            Self::Temporary => "temporary",
        }
    }

    /// `bytes` with what makes them this value.
    pub const fn bytes_title(self) -> &'static str {
        match self {
            Self::Live => "bytes live",
            Self::Peak => "bytes live at the peak",
            Self::Allocated => "bytes allocated",
            Self::Freed => "bytes freed",
            Self::Temporary => "bytes of temporary blocks, about",
        }
    }

    /// The title of a table.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Live => "Live",
            Self::Peak => "Live at the peak",
            Self::Allocated => "Allocated in all",
            Self::Freed => "Freed, by where it was allocated",
            Self::Temporary => "Temporary, about",
        }
    }

    /// Of these amounts, the one that is meant.
    pub fn choose(self, live: Amount, peak: Amount, allocated: Amount, freed: Amount, temporary: u64) -> Amount {
        match self {
            Self::Live => live,
            Self::Peak => peak,
            Self::Allocated => allocated,
            Self::Freed => freed,
            Self::Temporary => {
                let mean = u128::from(allocated.bytes) * u128::from(temporary);
                let bytes = mean.checked_div(u128::from(allocated.objects)).unwrap_or_default();
                Amount { objects: temporary, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) }
            }
        }
    }

    /// What a sample has of it.
    pub fn of(self, sample: &Sample) -> Amount {
        self.choose(sample.live, sample.at_peak, sample.allocated, sample.freed, sample.temporary)
    }
}
