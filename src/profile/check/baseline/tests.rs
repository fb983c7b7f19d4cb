//! Reports of ours as baselines of the next run, and files that are none.

use super::*;
use crate::export::tests::{check_profile, sample_profile};
use crate::export::{ExportOptions, Format, write};
use crate::profile::check::verdict::{Completeness, Policy, judge};
use crate::profile::leaks::{LeakSite, VerdictKind};
use proptest::prelude::*;

fn report(profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(Format::Json, profile, &ExportOptions::default(), &mut bytes).expect("memory takes everything");
    bytes
}

fn baseline(profile: &Profile) -> Baseline {
    Baseline::from_report(&report(profile), "old.json").expect("a baseline")
}

/// What a run is judged like against an earlier one.
fn judged(old: &Profile, mut new: Profile) -> (VerdictKind, Vec<Option<BaselineStatus>>) {
    baseline(old).apply(&mut new);
    judge(&mut new, &Policy::default(), &Completeness::default());
    let definite = new.leaks.iter().flat_map(|leaks| &leaks.sites).filter(|site| site.amounts[0].objects > 0);
    let statuses = definite.map(|site| site.baseline[0]).collect();
    (new.verdict.expect("a verdict").kind, statuses)
}

fn leaking() -> Profile {
    let mut profile = check_profile();
    for site in profile.leaks.iter_mut().flat_map(|leaks| &mut leaks.sites) {
        (site.suppressed_by, site.baseline) = ([None; 4], [None; 4]);
    }
    profile
}

#[test]
fn the_same_run_is_known_even_in_another_build() {
    use BaselineStatus::Known;
    let mut rebuilt = leaking();
    rebuilt.findings[0].count = 99;
    for location in &mut rebuilt.locations {
        location.address.0 += 0x1000;
        for line in &mut location.lines {
            line.line += 7;
        }
    }
    assert_eq!(judged(&leaking(), rebuilt), (VerdictKind::Clean, vec![Some(Known), Some(Known)]));
}

#[test]
fn one_byte_or_block_more_has_grown_and_less_is_known() {
    use BaselineStatus::{Grown, Known};
    let with = |change: fn(&mut LeakSite)| {
        let mut profile = leaking();
        change(&mut profile.leaks.as_mut().expect("leaks").sites[0]);
        judged(&leaking(), profile)
    };
    let grown = (VerdictKind::Leaks, vec![Some(Grown), Some(Known)]);
    assert_eq!(with(|site| site.amounts[0].bytes += 1), grown);
    assert_eq!(with(|site| site.amounts[0].objects += 1), grown);
    assert_eq!(with(|site| site.holds.bytes += 1), grown, "what hangs on it counts");
    let known = (VerdictKind::Clean, vec![Some(Known), Some(Known)]);
    assert_eq!(with(|site| site.amounts[0].bytes -= 1), known);
    assert_eq!(with(|site| site.amounts[0].objects -= 1), known);
}

#[test]
fn another_function_or_another_class_is_new() {
    use BaselineStatus::{Known, New};
    let mut renamed = leaking();
    renamed.functions[0].name = "newer_node".to_owned();
    assert_eq!(judged(&leaking(), renamed), (VerdictKind::Leaks, vec![Some(New), Some(Known)]));
    let mut possible = leaking();
    let leaks = possible.leaks.as_mut().expect("leaks");
    leaks.sites[4].amounts.swap(0, 2);
    assert_eq!(judged(&leaking(), possible), (VerdictKind::Leaks, vec![Some(Known), Some(Known), Some(New)]));
}

#[test]
fn sites_of_one_id_are_counted_together() {
    use BaselineStatus::{Grown, Known};
    let twice = |bytes| {
        let mut profile = leaking();
        let mut stack = profile.stacks.row(0);
        stack.locations[1] = 8; // main again, another line
        profile.stacks.push(stack);
        let leaks = profile.leaks.as_mut().expect("leaks");
        let mut site = leaks.sites[0].clone();
        (site.stack, site.amounts[0].bytes) = (profile.stacks.len() - 1, bytes);
        leaks.sites.insert(1, site);
        profile
    };
    assert_eq!(judged(&twice(500), twice(500)), (VerdictKind::Clean, vec![Some(Known); 3]));
    assert_eq!(judged(&twice(500), twice(501)), (VerdictKind::Leaks, vec![Some(Grown), Some(Grown), Some(Known)]));
    assert_eq!(judged(&twice(500), leaking()).0, VerdictKind::Clean);
}

#[test]
fn a_new_error_fails() {
    let mut old = leaking();
    old.findings.clear();
    assert_eq!(judged(&old, leaking()).0, VerdictKind::Errors);
}

/// A file that heaptrace has written before stacks were indices into a table.
#[test]
fn reports_of_version_1_are_read() {
    let baseline =
        Baseline::from_report(include_bytes!("../../../../tests/kept/profiles/made-up/report-1.json"), "old.json")
            .expect("a baseline");
    let mut known: Vec<_> = baseline.known.into_iter().map(|(id, amount)| (id, amount.objects, amount.bytes)).collect();
    known.sort_unstable();
    let expected = [
        (0x03ea_5287_382f_6bd8, 3, 0),
        (0x10dd_ee27_0983_eb9a, 1, 0),
        (0x2a37_1623_4ae9_7f2e, 2, 128),
        (0x9692_a82e_c5cc_1228, 1, 32),
        (0x9eb5_e401_fdd7_5466, 5, 3200),
        (0xbd63_ee0f_e745_6569, 1, 1024),
        (0xebfc_74ec_30c5_1e7c, 1, 262_144),
    ];
    assert_eq!(known, expected);
}

/// A file that heaptrace has written when abandoned calls were called dropped frames.
#[test]
fn reports_of_version_2_are_read() {
    let old =
        Baseline::from_report(include_bytes!("../../../../tests/kept/profiles/made-up/report-2.json"), "old.json")
            .expect("a baseline");
    let new = Baseline::from_report(&report(&check_profile()), "new.json").expect("a baseline");
    assert!(!old.known.is_empty());
    assert_eq!(old.known, new.known);
}

#[test]
fn other_files_are_refused_with_the_way_out() {
    let error = |bytes: &[u8]| Baseline::from_report(bytes, "old.json").expect_err("no baseline").to_string();
    let changed = |from: &str, to: &str| {
        let text = String::from_utf8(report(&check_profile())).expect("UTF-8");
        assert!(text.contains(from), "{from}");
        error(text.replacen(from, to, 1).as_bytes())
    };
    for (message, part) in [
        (error(b""), "not a report of heaptrace"),
        (error(b"{\"version\": 1}"), "`heaptrace_version`"),
        (error(b"[]"), "`heaptrace_version`"),
        (changed("\"version\":3,", "\"version\":4,"), "a report of version 4, this heaptrace reads versions 1 to 3"),
        (changed("\"version\":3,", ""), "no `version`"),
        (changed("\"findings\":", "\"foundlings\":"), "missing field `findings`"),
        (error(&report(&sample_profile())), "a report of `heaptrace run` without a leak check"),
    ] {
        assert!(message.starts_with("baseline old.json: ") && message.contains(part), "{message}");
    }
}

proptest! {
    /// No file makes us panic.
    #[test]
    fn any_bytes_are_a_baseline_or_an_error(at in 0usize..4000, bytes in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut report = report(&check_profile());
        let end = report.len().min(at + bytes.len());
        let start = at.min(end);
        report.splice(start..end, bytes);
        let _ = Baseline::from_report(&report, "f");
    }
}
