//! Workflow commands of GitHub Actions: lines in the log that become annotations of a pull request (`--github`).

use super::escape::{github_data, github_property};
use super::problems::{best_line, problems};
use super::view::View;
use crate::profile::Profile;
use crate::profile::leaks::VerdictKind;
use std::fmt::Write;

/// The lines for standard error: the verdict if it is not clean, then each error and each leak that fails the check as an error,
/// others that are not suppressed as warnings. GitHub shows the first ten of each kind only, so the worst come first.
pub fn annotations(profile: &Profile) -> String {
    let view = View::new(profile);
    let mut text = String::new();
    if let Some(verdict) = profile.verdict.as_ref().filter(|verdict| verdict.kind != VerdictKind::Clean) {
        let title = format!("heaptrace: {}", profile.meta.program);
        let _ =
            writeln!(text, "::error title={}::{}", github_property(&title), github_data(&verdict.reasons.join("; ")));
    }
    let mut problems = problems(&view);
    problems.retain(|problem| problem.suppressed_by.is_none());
    problems.sort_by_key(|problem| !problem.fails);
    for problem in &problems {
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
