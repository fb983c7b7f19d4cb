//! JUnit's XML, for Jenkins, GitLab and their like: one suite for the program; a test case each for its end, for
//! whether everything was seen, for errors, leaks and budgets; one for each process, if there are several; one for each
//! test of `check --per-test`; and one for each leak and each error, by which those are followed from run to run. Only
//! the first failure of a test case is shown by Jenkins, so that none has two.
//!
//! There is no schema of JUnit itself. The elements and attributes here are those that the de-facto schema of Jenkins'
//! xUnit plugin and GitLab's documentation have.

use super::escape::xml;
use super::pertest::growth;
use super::problems::{Problem, ProblemKind, best_line, problems, stack_text};
use super::text::plural;
use super::view::View;
use crate::profile::leaks::{BaselineStatus, LeakClass, Verdict, VerdictKind};
use crate::profile::pertest::{Judge, TestRow};
use crate::profile::{Amount, ProcessRow, Profile};
use std::fmt::Write as _;
use std::io::{self, Write};

/// So many stacks of a test are told.
const STACKS: usize = 10;

/// Writes the file.
pub(crate) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let profile = view.profile;
    let cases = cases(view);
    let count = |is: fn(&Outcome) -> bool| cases.iter().filter(|case| is(&case.outcome)).count();
    let tests = cases.len();
    let failures = count(|outcome| matches!(outcome, Outcome::Failed { .. }));
    let errors = count(|outcome| matches!(outcome, Outcome::Broken { .. }));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped { .. }));
    let seconds = profile.meta.duration_ns as f64 / 1e9;
    let suite = xml(&profile.meta.process.program);
    let stamp = humantime::format_rfc3339_seconds(profile.meta.process.started_at).to_string();
    let stamp = stamp.trim_end_matches('Z');
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let totals = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" time=\"{seconds:.3}\"");
    let _ = writeln!(text, "<testsuites name=\"heaptrace\" {totals}>");
    let _ = writeln!(text, "  <testsuite name=\"{suite}\" {totals} skipped=\"{skipped}\" timestamp=\"{stamp}\">");
    if let Some(resident) = profile.meta.process.resident {
        let property = format!("<property name=\"resident.peak_bytes\" value=\"{}\"/>", resident.peak_bytes);
        let _ = writeln!(text, "    <properties>{property}</properties>");
    }
    for case in &cases {
        case.write(&mut text, &suite);
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    out.write_all(text.as_bytes())
}

struct Case {
    name: String,
    /// Of a test of the program: for how long it ran, ns.
    test_ns: Option<u64>,
    source: Option<(String, u32)>,
    outcome: Outcome,
}

enum Outcome {
    Passed,
    Skipped {
        message: String,
    },
    Failed {
        kind: &'static str,
        message: String,
        text: String,
    },
    /// The test itself could not be made.
    Broken {
        message: String,
    },
}

impl Case {
    fn new(name: String, outcome: Outcome) -> Self {
        Self { name, test_ns: None, source: None, outcome }
    }

    fn write(&self, text: &mut String, suite: &str) {
        let source = self.source.as_ref();
        let file = source.map(|(file, line)| format!(" file=\"{}\" line=\"{line}\"", xml(file))).unwrap_or_default();
        let (class, time) = match self.test_ns {
            Some(ns) => (".tests", format!(" time=\"{:.3}\"", ns as f64 / 1e9)),
            None => ("", String::new()),
        };
        let name = xml(&self.name);
        let _ = write!(text, "    <testcase name=\"{name}\" classname=\"heaptrace.{suite}{class}\"{time}{file}");
        match &self.outcome {
            Outcome::Passed => text.push_str("/>\n"),
            Outcome::Skipped { message } => {
                let _ = writeln!(text, "><skipped message=\"{}\"/></testcase>", xml(message));
            }
            Outcome::Failed { kind, message, text: body } => {
                let (message, body) = (xml(message), xml(body));
                let _ = writeln!(text, "><failure type=\"{kind}\" message=\"{message}\">{body}</failure></testcase>");
            }
            Outcome::Broken { message } => {
                let _ = writeln!(text, "><error type=\"inconclusive\" message=\"{}\"/></testcase>", xml(message));
            }
        }
    }
}

fn cases(view: &View<'_>) -> Vec<Case> {
    let profile = view.profile;
    let problems = problems(view);
    let mut cases = vec![program(profile), seen(profile)];
    let processes = (1..).zip(&profile.processes);
    cases.extend(processes.filter_map(|(number, row)| Some(process(number, row, row.verdict.as_ref()?))));
    let failing = |is: fn(&ProblemKind) -> bool| problems.iter().any(|problem| problem.fails && is(&problem.rule));
    for (name, fails) in [
        ("no errors in the use of the heap", failing(|rule| matches!(rule, ProblemKind::Error(_)))),
        ("no leaks", failing(|rule| matches!(rule, ProblemKind::Leak(_)))),
    ] {
        // what fails has test cases of its own
        if !fails {
            cases.push(Case::new(name.to_owned(), Outcome::Passed));
        }
    }
    for budget in &profile.budgets {
        let message = budget.comparison();
        let outcome = if budget.ok() {
            Outcome::Passed
        } else {
            Outcome::Failed { kind: "over_budget", text: message.clone(), message }
        };
        cases.push(Case::new(format!("--{}", budget.name), outcome));
    }
    cases.extend(profile.tests.iter().flat_map(|tests| &tests.rows).map(|row| test(view, row)));
    cases.extend(problems.iter().map(|problem| case(view, problem)));
    cases
}

fn case(view: &View<'_>, problem: &Problem) -> Case {
    let source = problem.stacks.first().and_then(|(_, stack)| best_line(view, *stack));
    let message = problem.sentence.clone();
    let outcome = if problem.fails {
        let stacks: String = problem.stacks.iter().map(|(title, stack)| stack_text(view, title, *stack)).collect();
        Outcome::Failed { kind: problem.rule.name(), text: format!("{message}\n{stacks}"), message }
    } else if let Some(rule) = &problem.suppressed_by {
        Outcome::Skipped { message: format!("{message}; suppressed by {rule}") }
    } else if problem.baseline == Some(BaselineStatus::Known) {
        Outcome::Skipped { message: format!("{message}; known from the baseline") }
    } else {
        Outcome::Skipped { message: format!("{message}; does not count") }
    };
    Case {
        name: format!("{} [{:016x}]", problem.name(), problem.id),
        test_ns: None,
        source: source.map(|s| (s.path, s.line)),
        outcome,
    }
}

/// One of the program's tests.
fn test(view: &View<'_>, row: &TestRow) -> Case {
    let Amount { objects, bytes } = row.leaked;
    let mut messages = Vec::new();
    if objects > 0 {
        messages.push(format!("{} in {} leaked", plural(bytes, "byte"), plural(objects, "block")));
    }
    if !row.grown.is_empty() {
        messages.push(format!("grown: {}", growth(row)));
    }
    let outcome = if messages.is_empty() {
        Outcome::Passed
    } else {
        let message = messages.join("; ");
        let stacks = Judge::of(view.profile).leaking_stacks(&row.live).into_iter();
        let title = |class: LeakClass, amount: Amount| format!("{}, {}", class.name(), plural(amount.bytes, "byte"));
        let stacks: String =
            stacks.take(STACKS).map(|(stack, class, amount)| stack_text(view, &title(class, amount), stack)).collect();
        let kind = if objects > 0 { "leaks" } else { "grown" };
        Outcome::Failed { kind, text: format!("{message}\n{stacks}"), message }
    };
    Case { test_ns: Some(row.duration_ns), ..Case::new(row.name.clone(), outcome) }
}

/// Whether the program itself succeeded.
fn program(profile: &Profile) -> Case {
    let failed = profile.verdict.as_ref().filter(|verdict| verdict.kind == VerdictKind::ProgramFailed);
    let outcome = match failed {
        Some(verdict) => {
            let message = verdict.reasons.first().cloned().unwrap_or_default();
            Outcome::Failed { kind: "program_failed", text: message.clone(), message }
        }
        None => Outcome::Passed,
    };
    Case::new("the program succeeds".to_owned(), outcome)
}

/// One of several processes. Its number is the same in the next run, its process id is not.
fn process(number: u64, row: &ProcessRow, verdict: &Verdict) -> Case {
    let message = || format!("pid {}: {}", row.pid, verdict.reasons.join("; "));
    let outcome = match verdict.kind {
        VerdictKind::Clean => Outcome::Passed,
        VerdictKind::Inconclusive => Outcome::Broken { message: message() },
        kind => Outcome::Failed { kind: kind.name(), text: message(), message: message() },
    };
    Case::new(format!("process {number}: {}", row.program), outcome)
}

/// Whether the check could judge.
fn seen(profile: &Profile) -> Case {
    let outcome = match &profile.verdict {
        Some(verdict) if verdict.kind == VerdictKind::Inconclusive => {
            Outcome::Broken { message: verdict.reasons.join("; ") }
        }
        Some(_) => Outcome::Passed,
        None => Outcome::Broken { message: "nothing was judged".to_owned() },
    };
    Case::new("the check sees everything".to_owned(), outcome)
}
