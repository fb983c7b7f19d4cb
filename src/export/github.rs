//! Workflow commands of GitHub Actions: lines in the log that become annotations of a pull request (`--github`).

use super::escape::{github_data, github_property};
use super::problems::{ProblemKind, best_line, problems};
use super::view::View;
use crate::profile::Profile;
use crate::profile::leaks::VerdictKind;
use std::fmt::Write;

/// The lines for standard error: the verdict if it is not clean, then each error and each leak that fails the check as
/// an error, others that are not suppressed as warnings. GitHub shows the first ten of each kind only, so the worst
/// come first.
pub fn annotations(profile: &Profile) -> String {
    let view = View::new(profile);
    let mut text = String::new();
    if let Some(verdict) = profile.verdict.as_ref().filter(|verdict| verdict.kind != VerdictKind::Clean) {
        let title = format!("heaptrace: {}", profile.meta.process.program);
        let _ =
            writeln!(text, "::error title={}::{}", github_property(&title), github_data(&verdict.reasons.join("; ")));
    }
    let mut problems = problems(&view);
    problems.retain(|problem| problem.suppressed_by.is_none());
    let rules: Vec<ProblemKind> = problems.iter().map(|problem| problem.rule).collect();
    let mut order: Vec<usize> = (0..problems.len()).collect();
    // one of each kind before repeats of one
    let is_repeat = |index: usize| rules.iter().position(|rule| Some(rule) == rules.get(index)) != Some(index);
    order.sort_by_key(|index| (problems.get(*index).is_none_or(|problem| !problem.fails), is_repeat(*index)));
    for problem in order.into_iter().filter_map(|index| problems.get(index)) {
        let command = if problem.fails { "error" } else { "warning" };
        let place = problem.stacks.first().and_then(|(_, stack)| best_line(&view, *stack));
        let place = place
            .map(|place| format!("file={},line={},", github_property(&place.path), place.line))
            .unwrap_or_default();
        let title = github_property(&format!("{} (heaptrace)", problem.name()));
        let _ = writeln!(text, "::{command} {place}title={title}::{}", github_data(&problem.sentence));
    }
    text
}
