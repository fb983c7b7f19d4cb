//! The verdict of `check`: what counts, against which limits, and with which exit status.
//!
//! Leaks count as found only where all memory was read: pointers to the blocks may lie in the rest.
//!
//! The order of what weighs most: a program that did not end in time (124); its own failure (its status); a run of
//! which events were lost, or which was killed before memory could be read (125); errors, leaks, budgets (all
//! `leak_exit_code`); anything else that was not seen (125). What was found is certain although more may have been
//! missed, so it goes before that last one.

use crate::base::figures::{grouped, plural};
use crate::profile::leaks::{BaselineStatus, Budget, LeakClass, Leaks, Verdict, VerdictKind};
use crate::profile::pertest::Judge;
use crate::profile::{Amount, Exit, Profile, signal_text};

/// The exit status of `check` when the program did not end in time, that of timeout(1).
pub const TIMED_OUT: u8 = 124;

/// The exit status of `check` when it could not judge.
pub const INCONCLUSIVE: u8 = 125;

/// The exit status of `check` for leaks, errors and exceeded budgets, unless another is chosen.
pub const LEAK_EXIT_CODE: u8 = 23;

/// The option whose limit takes the place of the rule that no leak is allowed.
const MAX_LEAKED_BYTES: &str = "max-leaked-bytes";

/// Which classes count unless others are chosen: definite and indirect.
pub const DEFAULT_LEAK_KINDS: [bool; 4] = [true, true, false, false];

/// Which signal can't be caught, so that the process ends before its memory can be read.
const SIGKILL: i32 = 9;

/// What `check` fails on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Which classes of leaks count, indexed by `LeakClass as usize`.
    pub leak_kinds: [bool; 4],
    /// Whether errors in the use of the heap count.
    pub errors: bool,
    /// The exit status for leaks, errors and exceeded budgets.
    pub leak_exit_code: u8,
    /// Budgets.
    pub limits: Limits,
    /// Whether children that ran untraced make the run inconclusive.
    pub require_all: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            leak_kinds: DEFAULT_LEAK_KINDS,
            errors: true,
            leak_exit_code: LEAK_EXIT_CODE,
            limits: Limits::default(),
            require_all: false,
        }
    }
}

/// Budgets; None: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Bytes leaked in the classes that count. Leaks within it are no failure.
    pub max_leaked_bytes: Option<u64>,
    /// Bytes live at the peak.
    pub max_peak: Option<u64>,
    /// Number of allocations.
    pub max_allocations: Option<u64>,
    /// Bytes live at the end.
    pub max_live: Option<u64>,
}

/// What the profile itself does not say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Completeness {
    /// Whether the program was ended because its time was up.
    pub timed_out: bool,
    /// Why memory was not read, if it was not; or why what was read can't be judged.
    pub not_scanned: Option<String>,
    /// Why nothing is known of its tests, if that was wanted.
    pub no_tests: Option<String>,
    /// Whether it is a child of the program. How a child ends is its parent's affair.
    pub is_child: bool,
    /// The module by whose `__lsan_is_turned_off` the process has turned its own leak check off.
    pub turned_off_by: Option<String>,
}

/// Sets [`Profile::verdict`] and [`Profile::budgets`]. Suppressions and the baseline must have been applied before.
pub fn judge(profile: &mut Profile, policy: &Policy, circumstances: &Completeness) {
    let leaked = profile.leaks.as_ref().map_or(Amount::default(), |leaks| {
        leaks
            .sum(|site, class| site.counts(&policy.leak_kinds, class))
            .into_iter()
            .fold(Amount::default(), Amount::plus)
    });
    profile.budgets = budgets(profile, &policy.limits, leaked);
    let over_budgets = profile.budgets.iter().filter(|budget| !budget.ok()).map(over_budget);
    let found = Found {
        unreliable: unreliable(profile),
        unobserved: unobserved(profile, policy, circumstances),
        errors: if policy.errors { errors(profile) } else { None },
        leaks: if policy.limits.max_leaked_bytes.is_some() { None } else { leaks(profile, policy, leaked) },
        unreadable: unreadable(profile),
        budgets: over_budgets.chain(grown_tests(profile)).collect(),
    };
    profile.verdict = Some(found.verdict(profile, policy, circumstances));
    judge_tests(profile);
}

/// Says of each test what of its blocks counts as leaked.
fn judge_tests(profile: &mut Profile) {
    let Some(mut tests) = profile.tests.take() else { return };
    let judge = Judge::of(profile);
    for row in &mut tests.rows {
        row.leaked = judge.leaked(&row.live);
    }
    tests.outside_leaked = judge.leaked(&tests.outside);
    profile.tests = Some(tests);
}

/// So many tests are named; of more it is told how many they are.
const NAMED_TESTS: usize = 3;

/// Which tests have grown by more than they may.
fn grown_tests(profile: &Profile) -> Option<String> {
    let rows = profile.tests.iter().flat_map(|tests| &tests.rows);
    let grown: Vec<&str> = rows.filter(|row| !row.grown.is_empty()).map(|row| row.name.as_str()).collect();
    let all = match grown.len() {
        0 => return None,
        1 => "1 test has".to_owned(),
        all => format!("{all} tests have"),
    };
    let more = if grown.len() > NAMED_TESTS { ", …" } else { "" };
    let named = grown.get(..NAMED_TESTS).unwrap_or(&grown).join(", ");
    Some(format!("{all} grown since the baseline by more than --fail-if-grown allows: {named}{more}"))
}

/// How many processes the reasons of a verdict on several name.
const NAMED: usize = 10;

/// Sets the verdict on several processes from those on each: the first one's own failure, else the worst. What was
/// found in one is certain, although another may not have been seen.
pub fn of_all(profile: &mut Profile) {
    let severity = |verdict: &Verdict| match verdict.kind {
        VerdictKind::ProgramFailed => 0,
        VerdictKind::Errors => 1,
        VerdictKind::Leaks => 2,
        VerdictKind::OverBudget => 3,
        VerdictKind::Inconclusive => 4,
        VerdictKind::Clean => 5,
    };
    let judged = profile.processes.iter().filter_map(|process| Some((process, process.verdict.as_ref()?)));
    let Some((_, worst)) = judged.clone().min_by_key(|(_, verdict)| severity(verdict)) else { return };
    let against: Vec<_> = judged.filter(|(_, verdict)| !verdict.reasons.is_empty()).collect();
    let mut reasons: Vec<String> = against
        .iter()
        .take(NAMED)
        .map(|(process, verdict)| format!("{} (pid {}): {}", process.program, process.pid, verdict.reasons.join("; ")))
        .collect();
    if against.len() > NAMED {
        reasons.push(format!("and {} more processes", against.len() - NAMED));
    }
    profile.verdict = Some(Verdict { reasons, ..worst.clone() });
}

/// All that speaks against the program or against the judgement, as sentences without a full stop.
struct Found {
    unreliable: Vec<String>,
    unobserved: Vec<String>,
    errors: Option<String>,
    leaks: Option<String>,
    /// What of memory was not read. It can make leaks of blocks that are none, and hides none.
    unreadable: Option<String>,
    budgets: Vec<String>,
}

impl Found {
    fn verdict(self, profile: &Profile, policy: &Policy, circumstances: &Completeness) -> Verdict {
        let exit = profile.meta.process.exit;
        let killed = exit == Some(Exit::Signal(SIGKILL)) && profile.leaks.is_none();
        let failure = failure(exit).filter(|_| killed || !circumstances.is_child);
        let (kind, exit_status) = match failure {
            _ if circumstances.timed_out => (VerdictKind::ProgramFailed, TIMED_OUT),
            // by whom and why nobody knows: that is no answer of the program
            Some(_) if killed => (VerdictKind::Inconclusive, INCONCLUSIVE),
            Some((status, _)) => (VerdictKind::ProgramFailed, status),
            None if !self.unreliable.is_empty() => (VerdictKind::Inconclusive, INCONCLUSIVE),
            None if self.errors.is_some() => (VerdictKind::Errors, policy.leak_exit_code),
            None if self.leaks.is_some() && self.unreadable.is_some() => (VerdictKind::Inconclusive, INCONCLUSIVE),
            None if self.leaks.is_some() => (VerdictKind::Leaks, policy.leak_exit_code),
            None if !self.budgets.is_empty() => (VerdictKind::OverBudget, policy.leak_exit_code),
            None if !self.unobserved.is_empty() => (VerdictKind::Inconclusive, INCONCLUSIVE),
            None => (VerdictKind::Clean, 0),
        };
        let mut reasons = Vec::new();
        if circumstances.timed_out {
            reasons.push("the program did not end in time".to_owned());
        } else if let Some((_, sentence)) = failure {
            reasons.push(sentence);
        }
        reasons.extend(self.unreliable);
        reasons.extend(self.errors);
        if self.leaks.is_some() {
            reasons.extend(self.unreadable);
        }
        reasons.extend(self.leaks);
        reasons.extend(self.budgets);
        reasons.extend(self.unobserved);
        let within = profile.budgets.iter().any(|budget| budget.name == MAX_LEAKED_BYTES && budget.ok());
        let leak_kinds = if within { [false; 4] } else { policy.leak_kinds };
        Verdict { kind, reasons, exit_status, leak_kinds, errors: policy.errors }
    }
}

/// The program's own failure: the status to exit with, as a shell would, and a sentence.
fn failure(exit: Option<Exit>) -> Option<(u8, String)> {
    match exit? {
        Exit::Code(0) => None,
        // exit() keeps eight bits only; what does not fit must at least not become a success
        Exit::Code(code) => {
            let status = u8::try_from(code).unwrap_or(u8::MAX);
            Some((status, format!("the program failed with exit status {code}")))
        }
        Exit::Signal(signal) => {
            let status = u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128));
            Some((status, format!("the program was killed by {}", signal_text(signal))))
        }
    }
}

/// Why not even what was found is certain.
fn unreliable(profile: &Profile) -> Vec<String> {
    let mut reasons = Vec::new();
    let lost = profile.anomalies.lost;
    if lost > 0 {
        let were = if lost == 1 { "was" } else { "were" };
        let events = plural(lost, "allocator event");
        reasons.push(format!("{events} {were} missed: blocks may have been freed, or allocated, unseen"));
    }
    if profile.meta.sample_interval > 0 {
        reasons.push("allocations were sampled: most blocks were not seen".to_owned());
    }
    reasons
}

/// Why more may be wrong than was found.
fn unobserved(profile: &Profile, policy: &Policy, circumstances: &Completeness) -> Vec<String> {
    let mut reasons = Vec::new();
    if profile.allocators.iter().all(|allocator| allocator.functions.is_empty()) {
        reasons.push("heaptrace found no allocator function in the program, so it saw no allocation".to_owned());
    }
    match (&circumstances.not_scanned, &profile.leaks) {
        (Some(cause), _) => reasons.push(format!("the memory could not be checked: {cause}")),
        (None, None) => reasons.push("the memory could not be checked".to_owned()),
        (None, Some(_)) => {}
    }
    reasons.extend(circumstances.no_tests.clone());
    if !profile.meta.complete && !circumstances.timed_out {
        reasons.push("heaptrace did not watch the program to its end".to_owned());
    }
    if policy.require_all && profile.children.untraced > 0 {
        reasons.push(unchecked_children(profile));
    }
    reasons
}

/// What of memory could not be read, as a sentence without a full stop.
pub fn unreadable(profile: &Profile) -> Option<String> {
    let leaks = profile.leaks.as_ref().filter(|leaks| leaks.unreadable_bytes > 0)?;
    let bytes = plural(leaks.unreadable_bytes, "byte");
    let names = in_brackets(&leaks.unreadable_names);
    Some(format!(
        "{bytes} of the program's memory could not be read{names}: blocks that only pointers there lead to look lost"
    ))
}

/// Names as ` (a, b)`; nothing where there are none.
pub fn in_brackets(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

/// Which children ran unseen, as a sentence without a full stop.
pub fn unchecked_children(profile: &Profile) -> String {
    let children = &profile.children;
    let names = in_brackets(&children.untraced_names);
    let who = if children.untraced == 1 { "child process" } else { "child processes" };
    let were = if children.untraced == 1 { "was" } else { "were" };
    format!("{} {who}{names} {were} not checked", grouped(children.untraced))
}

fn errors(profile: &Profile) -> Option<String> {
    let new = profile.findings.iter().filter(|finding| finding.baseline != Some(BaselineStatus::Known));
    let count = new.count() as u64;
    (count > 0).then(|| format!("{} in the use of the heap", plural(count, "error")))
}

fn leaks(profile: &Profile, policy: &Policy, leaked: Amount) -> Option<String> {
    let leaks: &Leaks = profile.leaks.as_ref()?;
    if leaked == Amount::default() {
        return None;
    }
    let parts = leaks.sum(|site, class| site.counts(&policy.leak_kinds, class));
    let classes: Vec<&str> = LeakClass::ALL
        .into_iter()
        .zip(parts)
        .filter(|(_, part)| *part != Amount::default())
        .map(|(class, _)| class.name())
        .collect();
    let Amount { objects, bytes } = leaked;
    let (bytes, blocks) = (plural(bytes, "byte"), plural(objects, "block"));
    let all = if leaks.compared() { " that the baseline does not know" } else { "" };
    Some(format!("{bytes} in {blocks} leaked{all} ({})", classes.join(", ")))
}

fn budgets(profile: &Profile, limits: &Limits, leaked: Amount) -> Vec<Budget> {
    let totals = &profile.totals;
    let all = [
        (MAX_LEAKED_BYTES, limits.max_leaked_bytes, leaked.bytes),
        ("max-peak", limits.max_peak, totals.peak_bytes),
        ("max-allocations", limits.max_allocations, totals.allocations),
        ("max-live", limits.max_live, totals.live_bytes),
    ];
    all.into_iter().filter_map(|(name, limit, actual)| Some(Budget { name, limit: limit?, actual })).collect()
}

fn over_budget(budget: &Budget) -> String {
    format!("--{} is exceeded: {}", budget.name, budget.comparison())
}

#[cfg(test)]
mod tests;
