//! Baselines: an earlier report.json says which leaks and errors are known already. Findings match by their ids, which
//! are made of function names: the same in another build, at other addresses and lines.

use super::growth::{GrowthLimit, TestBefore, grown};
use crate::profile::leaks::{BaselineStatus, LeakClass};
use crate::profile::{Amount, Profile};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::ops::RangeInclusive;

/// The versions of report.json that are understood: what a baseline needs is the same in all of them.
const VERSIONS: RangeInclusive<u64> = 1..=3;

/// Why a file can't be a baseline.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// Not JSON, or not a report.
    #[error("baseline {file}: not a report of heaptrace ({reason}); make one with `heaptrace check -o NAME.json`")]
    NoReport {
        /// The file, as it was named.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A report in another format.
    #[error(
        "baseline {file}: a report of version {version}, this heaptrace reads versions {} to {}; make it anew",
        VERSIONS.start(),
        VERSIONS.end()
    )]
    Version {
        /// The file, as it was named.
        file: String,
        /// Its version.
        version: u64,
    },
    /// A report without a leak scan: everything would look new.
    #[error(
        "baseline {file}: a report of `heaptrace {mode}` without a leak check; make one with `heaptrace check -o NAME.json`"
    )]
    NoLeaks {
        /// The file, as it was named.
        file: String,
        /// The command that wrote it.
        mode: String,
    },
}

/// What is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Baseline {
    /// Leaks by id, with all that hangs on them; errors with their counts as objects.
    known: FxHashMap<u64, Amount>,
    /// What each test did, by name, if the report says it.
    tests: Option<FxHashMap<String, TestBefore>>,
}

/// What tells a report, of whatever version.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Head {
    version: Option<u64>,
    heaptrace_version: Option<IgnoredAny>,
}

/// As much of report.json as a baseline needs. The rest, which may be large, is skipped as it is read.
#[derive(Deserialize)]
struct Report {
    mode: String,
    leaks: Option<IgnoredAny>,
    findings: Vec<KnownFinding>,
    #[serde(default)]
    tests: Option<KnownTests>,
}

#[derive(Deserialize)]
struct KnownTests {
    rows: Vec<KnownTest>,
}

#[derive(Deserialize)]
struct KnownTest {
    name: String,
    runs: u64,
    allocated: KnownAmount,
    peak_bytes: u64,
    kept: KnownAmount,
}

#[derive(Deserialize)]
struct KnownFinding {
    id: String,
    count: u64,
    direct: Option<KnownAmount>,
    indirect: Option<KnownAmount>,
}

#[derive(Deserialize, Default)]
struct KnownAmount {
    objects: u64,
    bytes: u64,
}

impl From<KnownAmount> for Amount {
    fn from(amount: KnownAmount) -> Self {
        Self { objects: amount.objects, bytes: amount.bytes }
    }
}

impl Baseline {
    /// Reads a report.json of `check`; `file` is its name for messages.
    ///
    /// # Errors
    /// It is no such report, or of another version.
    pub fn from_report(bytes: &[u8], file: &str) -> Result<Self, BaselineError> {
        let no_report = |reason: String| BaselineError::NoReport { file: file.to_owned(), reason };
        let not_read = |error: serde_json::Error| no_report(error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(not_read)?;
        // other tools' reports have versions too
        if head.heaptrace_version.is_none() {
            return Err(no_report("it has no `heaptrace_version`".to_owned()));
        }
        match head.version {
            Some(version) if VERSIONS.contains(&version) => {}
            Some(version) => return Err(BaselineError::Version { file: file.to_owned(), version }),
            None => return Err(no_report("it has no `version`".to_owned())),
        }
        let report: Report = serde_json::from_slice(bytes).map_err(not_read)?;
        if report.leaks.is_none() {
            return Err(BaselineError::NoLeaks { file: file.to_owned(), mode: report.mode });
        }
        let mut known: FxHashMap<u64, Amount> = FxHashMap::default();
        for finding in report.findings {
            let id = u64::from_str_radix(&finding.id, 16).map_err(|_| no_report(format!("the id `{}`", finding.id)))?;
            let amount = match finding.direct {
                Some(direct) => Amount::from(direct).plus(finding.indirect.unwrap_or_default().into()),
                None => Amount { objects: finding.count, bytes: 0 },
            };
            let sum = known.entry(id).or_default();
            *sum = sum.plus(amount);
        }
        let of_test = |test: KnownTest| {
            let KnownTest { name, runs, allocated, peak_bytes, kept } = test;
            (name, TestBefore { allocations: allocated.objects, peak_bytes, kept_bytes: kept.bytes, runs })
        };
        let tests = report.tests.map(|tests| tests.rows.into_iter().map(of_test).collect());
        Ok(Self { known, tests })
    }

    /// Whether it says what single tests did.
    pub const fn knows_tests(&self) -> bool {
        self.tests.is_some()
    }

    /// Says of each test in `profile` what has grown by more than a limit allows. Tests that the baseline does not
    /// have, have not.
    pub fn mark_grown(&self, profile: &mut Profile, limits: &[GrowthLimit]) {
        let (Some(known), Some(tests)) = (&self.tests, &mut profile.tests) else { return };
        for row in &mut tests.rows {
            row.grown = known.get(&row.name).map(|before| grown(row, before, limits)).unwrap_or_default();
        }
    }

    /// Says of each error and of each class of each leaking site in `profile` whether the baseline knows it. A leak has
    /// grown if it has more bytes or more blocks, with what hangs on it; sites whose functions have equal names are
    /// counted together. An error is known however often it happens.
    pub fn apply(&self, profile: &mut Profile) {
        let mut findings = std::mem::take(&mut profile.findings);
        for finding in &mut findings {
            let known = self.known.contains_key(&profile.finding_id(finding));
            finding.baseline = Some(if known { BaselineStatus::Known } else { BaselineStatus::New });
        }
        profile.findings = findings;

        let Some(mut leaks) = profile.leaks.take() else { return };
        let mut now: FxHashMap<u64, Amount> = FxHashMap::default();
        for site in &leaks.sites {
            for class in LeakClass::ALL {
                let sum = now.entry(profile.leak_id(class, site.stack)).or_default();
                *sum = sum.plus(site.lost(class));
            }
        }
        for site in &mut leaks.sites {
            let amounts = site.amounts;
            for ((class, status), amount) in LeakClass::ALL.into_iter().zip(&mut site.baseline).zip(amounts) {
                let id = profile.leak_id(class, site.stack);
                let current = now.get(&id).copied().unwrap_or_default();
                *status = (amount.objects > 0).then(|| self.compare(id, current));
            }
        }
        profile.leaks = Some(leaks);
    }

    fn compare(&self, id: u64, current: Amount) -> BaselineStatus {
        match self.known.get(&id) {
            None => BaselineStatus::New,
            Some(old) if current.bytes > old.bytes || current.objects > old.objects => BaselineStatus::Grown,
            Some(_) => BaselineStatus::Known,
        }
    }
}

#[cfg(test)]
mod tests;
