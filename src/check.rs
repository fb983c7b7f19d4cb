//! What `check` makes of a profile: suppressions and a baseline mark what does not count, the verdict judges the rest.
//!
//! Pure.

pub mod baseline;
pub mod suppressions;
pub mod verdict;

use crate::profile::Profile;
use baseline::Baseline;
use suppressions::Suppressions;
use verdict::{Circumstances, Policy};

/// What a check judges by.
#[derive(Clone, Debug, Default)]
pub struct CheckRules {
    /// What fails the check.
    pub policy: Policy,
    /// What does not count.
    pub suppressions: Suppressions,
    /// What an earlier report knew already.
    pub baseline: Option<Baseline>,
}

impl CheckRules {
    /// Marks in the profile what is suppressed and what was known before, then sets [`Profile::verdict`] and [`Profile::budgets`].
    pub(crate) fn judge(&self, profile: &mut Profile, circumstances: &Circumstances) {
        if !self.suppressions.is_empty() {
            self.suppressions.apply(profile);
        }
        if let Some(baseline) = &self.baseline {
            baseline.apply(profile);
        }
        verdict::judge(profile, &self.policy, circumstances);
    }
}
