//! What each test did, in report.json.

use crate::profile::pertest::{Grown, Judge, TestRow};
use crate::profile::{Amount, Profile};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct ReportTests<'a> {
    rows: Vec<ReportTest<'a>>,
    outside_leaked: Amount,
    unassigned: Amount,
}

#[derive(Serialize)]
struct ReportTest<'a> {
    name: &'a str,
    runs: u64,
    duration_ns: u64,
    allocated: Amount,
    peak_bytes: u64,
    kept: Amount,
    leaked: Amount,
    leaks: Vec<String>,
    grown: &'a [Grown],
}

pub(super) fn tests(profile: &Profile) -> Option<ReportTests<'_>> {
    let tests = profile.tests.as_ref()?;
    let judge = Judge::of(profile);
    let row = |row| report_test(profile, &judge, row);
    let rows = tests.rows.iter().map(row).collect();
    Some(ReportTests { rows, outside_leaked: tests.outside_leaked, unassigned: tests.unassigned })
}

fn report_test<'a>(profile: &Profile, judge: &Judge<'_>, row: &'a TestRow) -> ReportTest<'a> {
    let leaking = judge.leaking_stacks(&row.live).into_iter();
    let mut leaks: Vec<String> =
        leaking.map(|(stack, class, _)| format!("{:016x}", profile.leak_id(class, stack))).collect();
    let mut known = std::collections::BTreeSet::new();
    leaks.retain(|id| known.insert(id.clone()));
    ReportTest {
        name: &row.name,
        runs: row.runs,
        duration_ns: row.duration_ns,
        allocated: row.allocated,
        peak_bytes: row.peak_bytes,
        kept: row.kept,
        leaked: row.leaked,
        leaks,
        grown: &row.grown,
    }
}
