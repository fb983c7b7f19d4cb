//! The report of `check` as a user sees it.

use super::*;
use crate::export::leakreport::{CheckReportOptions, check_report};
use crate::profile::check::verdict::{Completeness, Policy, judge};

fn report_of(profile: &Profile, explain: Option<&str>, color: bool) -> String {
    let options = CheckReportOptions { top: 20, color, width: 100, files: &[], explain };
    check_report(profile, &options)
}

/// The sample, judged.
fn judged(mut profile: Profile) -> Profile {
    judge(&mut profile, &Policy::default(), &Completeness::default());
    profile
}

#[test]
fn check_report_of_errors_and_leaks() {
    insta::assert_snapshot!(report_of(&judged(check_profile()), None, false));
}

#[test]
fn check_report_that_explains() {
    let mut profile = check_profile();
    profile.findings.clear();
    insta::assert_snapshot!(report_of(&judged(profile), Some("main"), false));
}

#[test]
fn check_report_of_a_clean_run() {
    let mut profile = check_profile();
    profile.findings.clear();
    profile.children = Children::default();
    if let Some(leaks) = &mut profile.leaks {
        leaks.sites.retain(|site| site.amounts[3] != Amount::default());
    }
    profile.suppressions.clear();
    let text = report_of(&judged(profile), None, false);
    assert!(text.ends_with("\nheaptrace: clean (exit status 0)\n"), "{text}");
    assert!(!text.contains("lost:\n") && !text.contains("Definitely lost"), "{text}");
}

/// Green is said in the same line as what was not looked at.
#[test]
fn the_verdict_is_the_last_line_and_names_unchecked_children() {
    let mut profile = check_profile();
    profile.findings.clear();
    profile.leaks.as_mut().expect("leaks").sites.clear();
    let text = report_of(&judged(profile), None, false);
    let last = text.lines().last().expect("a line");
    assert_eq!(last, "heaptrace: clean: 2 child processes (gzip) were not checked (exit status 0)");
}

#[test]
fn the_check_report_keeps_to_the_width_but_for_the_verdict() {
    let text = report_of(&judged(check_profile()), Some("main"), false);
    let lines: Vec<&str> = text.lines().collect();
    let wide: Vec<&&str> = lines[..lines.len() - 1].iter().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn the_target_can_t_write_to_the_terminal_through_the_check_report() {
    let mut profile = check_profile();
    for function in &mut profile.functions {
        function.name = format!("evil\x1b[2J{}", function.name);
    }
    profile.strings = vec!["evil\x1b[2J".to_owned(); 5];
    profile.meta.process.program = "evil\x1b[2J".to_owned();
    profile.findings[0].thread = "evil\x1b[2J".to_owned();
    profile.children.untraced_names = vec!["evil\x1b[2J".to_owned()];
    if let Some(path) = profile.leaks.iter_mut().flat_map(|leaks| &mut leaks.sites).find_map(|site| site.path.as_mut())
    {
        path.root = "evil\x1b[2J".to_owned();
    }
    assert!(!report_of(&judged(profile), Some("evil"), false).contains('\x1b'));
    assert!(report_of(&judged(check_profile()), None, true).contains("\x1b[1;31mDefinitely lost"));
}
