//! What `check` makes of a profile: suppressions and a baseline mark what does not count, the verdict judges the rest.
//!
//! Pure.

pub mod baseline;
pub mod growth;
mod known;
pub mod suppressions;
pub mod verdict;

use crate::profile::Profile;
use baseline::Baseline;
use growth::GrowthLimit;
use suppressions::Suppressions;
use verdict::{Completeness, Policy};

/// What a check judges by.
#[derive(Clone, Debug, Default)]
pub struct CheckRules {
    /// What fails the check.
    pub policy: Policy,
    /// What does not count.
    pub suppressions: Suppressions,
    /// Whether leaks of libraries that are known don't count either.
    pub known_leaks: bool,
    /// What an earlier report knew already.
    pub baseline: Option<Baseline>,
    /// By how much each test may have grown since then; empty: by any.
    pub growth: Vec<GrowthLimit>,
}

impl CheckRules {
    /// Adds the suppressions that `module` of the program has in itself, by its `function`; None as `text`: it has some
    /// that can't be read
    /// without running its code. Returns a warning if they could not be used.
    pub(crate) fn add_own_suppressions(&mut self, module: &str, function: &str, text: Option<&[u8]>) -> Option<String> {
        let file = format!("{function} of {module}");
        match text.map(|text| Suppressions::read(text, &file)) {
            Some(Ok(own)) => {
                self.suppressions.extend(own);
                None
            }
            Some(Err(error)) => Some(format!("{error}; these suppressions were not used")),
            None => Some(format!(
                "{file} could not be read without running it, and was not used: give its rules with --suppressions"
            )),
        }
    }

    /// Marks in the profile what is suppressed and what was known before, then sets [`Profile::verdict`] and
    /// [`Profile::budgets`].
    pub(crate) fn judge(&self, profile: &mut Profile, circumstances: &Completeness) {
        let mut suppressions = self.suppressions.clone();
        if let Some(module) = &circumstances.turned_off_by {
            let all = Suppressions::read(b"leak:*\n", &format!("__lsan_is_turned_off of {module}"));
            suppressions.extend(all.unwrap_or_default());
        }
        if self.known_leaks {
            suppressions = suppressions.with_known_leaks();
        }
        if !suppressions.is_empty() {
            suppressions.apply(profile);
        }
        if let Some(baseline) = &self.baseline {
            baseline.apply(profile);
            baseline.mark_grown(profile, &self.growth);
        }
        verdict::judge(profile, &self.policy, circumstances);
    }
}
