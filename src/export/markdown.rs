//! A summary in Markdown, for a comment to a pull request or a job's page.

use super::advice;
use super::escape::{markdown, markdown_code, markdown_html};
use super::pertest;
use super::problems::{Problem, best_line, problems, stack_text};
use super::sections::resident_sentence;
use super::text::grouped;
use super::view::View;
use crate::profile::check::verdict::unchecked_children;
use crate::profile::leaks::{BaselineStatus, VerdictKind};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Writes the file; `top` problems at most.
pub(crate) fn write(view: &View<'_>, top: usize, out: &mut dyn Write) -> io::Result<()> {
    let profile = view.profile;
    let mut text = String::new();
    let result = match profile.verdict.as_ref().map(|verdict| verdict.kind) {
        Some(VerdictKind::Clean) => "clean",
        Some(VerdictKind::Leaks) => "leaks",
        Some(VerdictKind::Errors) => "errors",
        Some(VerdictKind::OverBudget) => "over budget",
        Some(VerdictKind::Inconclusive) => "inconclusive",
        Some(VerdictKind::ProgramFailed) => "the program failed",
        None => "not judged",
    };
    let _ = writeln!(text, "### heaptrace: {} – {result}\n", markdown_code(&profile.meta.process.program));
    for reason in profile.verdict.iter().flat_map(|verdict| &verdict.reasons) {
        let _ = writeln!(text, "- {}", markdown(reason));
    }
    if profile.children.untraced > 0
        && profile.verdict.as_ref().is_none_or(|v| !v.reasons.contains(&unchecked_children(profile)))
    {
        let _ = writeln!(text, "- {}", markdown(&unchecked_children(profile)));
    }
    if let Some(resident) = resident_sentence(profile) {
        let _ = writeln!(text, "- {}", markdown(&resident));
    }
    if let Some(leaks) = &profile.leaks {
        let [definite, indirect, possible, reachable] = leaks.totals();
        let _ = writeln!(text, "\n| at exit | blocks | bytes |\n|---|--:|--:|");
        let rows = [("definite", definite), ("indirect", indirect), ("possible", possible), ("reachable", reachable)];
        let [suppressed, known] = leaks.suppressed_and_known(&profile.suppressions);
        let known = (known.objects > 0).then_some(("known", known));
        for (name, amount) in rows.into_iter().chain([("suppressed", suppressed)]).chain(known) {
            let _ = writeln!(text, "| {name} | {} | {} |", grouped(amount.objects), grouped(amount.bytes));
        }
    }
    if !profile.budgets.is_empty() {
        let _ = writeln!(text, "\n| budget | limit | actual | |\n|---|--:|--:|---|");
        for budget in &profile.budgets {
            let state = if budget.ok() { "kept" } else { "**exceeded**" };
            let (limit, actual) = (grouped(budget.limit), grouped(budget.actual));
            let _ = writeln!(text, "| `--{}` | {limit} | {actual} | {state} |", budget.name);
        }
    }
    advice::markdown(&mut text, view);
    pertest::markdown(&mut text, profile, top);
    let problems: Vec<Problem> = problems(view).into_iter().filter(|problem| problem.suppressed_by.is_none()).collect();
    let (failing, others): (Vec<&Problem>, Vec<&Problem>) = problems.iter().partition(|problem| problem.fails);
    for (title, list) in [("Failing", failing), ("Not counted", others)] {
        if list.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n#### {title}\n");
        for problem in list.iter().take(top) {
            details(&mut text, view, problem);
        }
        if list.len() > top {
            let _ = writeln!(text, "\nand {} more", grouped((list.len() - top) as u64));
        }
    }
    out.write_all(text.as_bytes())
}

/// One problem: a line to read, its stacks to unfold.
fn details(text: &mut String, view: &View<'_>, problem: &Problem) {
    let line = problem.stacks.first().and_then(|(_, stack)| best_line(view, *stack));
    let at = line.map(|line| format!(" at {}:{}", markdown_html(&line.path), line.line)).unwrap_or_default();
    let news = match problem.baseline {
        Some(BaselineStatus::New) => " – new",
        Some(BaselineStatus::Grown) => " – grown",
        Some(BaselineStatus::Known) => " – known from the baseline",
        None => "",
    };
    let (sentence, function) = (markdown_html(&problem.sentence), markdown_html(&problem.function));
    let _ = writeln!(text, "<details><summary>{sentence} in <code>{function}</code>{at}{news}</summary>\n");
    let _ = writeln!(text, "```text");
    for (title, stack) in &problem.stacks {
        // three backticks in a name would end the block
        text.push_str(&stack_text(view, title, *stack).replace("```", "'''"));
    }
    let _ = writeln!(text, "```\n\n</details>");
}
