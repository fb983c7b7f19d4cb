//! `heaptrace doctor`: what this machine allows, and what to change.
//!
//! [`facts`] reads the machine, [`judge`] makes findings of what was read; only the first knows the machine, so that
//! the second can be tested with machines made up.

mod facts;
mod judge;

use crate::cli::DoctorOptions;
use crate::session::prospect_of;
use judge::{Finding, Level};
use std::fmt::Write;

/// The exit status if programs can't be profiled here.
const EXIT_NOT_POSSIBLE: u8 = 1;

/// Looks the machine over and prints what it found. The exit status is 0 if programs can be profiled here.
///
/// # Errors
/// If stdout can't be written.
pub fn execute(options: &DoctorOptions) -> anyhow::Result<u8> {
    let mut findings = judge::findings(&facts::gather(&options.debug_dirs));
    if let Some(pid) = options.pid {
        let is_settled = facts::is_settled(pid);
        findings.push(judge::engine_of(pid, &prospect_of(pid).map_err(|error| error.to_string())));
        findings.push(judge::leftovers(pid, &facts::leftovers(pid), is_settled));
    }
    let color = super::use_color(options.color, &std::io::stdout());
    super::print(&render(&findings, color))?;
    Ok(if possible(&findings) { 0 } else { EXIT_NOT_POSSIBLE })
}

fn possible(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.level != Level::Fail)
}

/// One line a finding, with its cure below.
fn render(findings: &[Finding], color: bool) -> String {
    let width = findings.iter().map(|finding| finding.title.len()).max().unwrap_or_default();
    let mut text = String::new();
    for finding in findings {
        let (word, code) = match finding.level {
            Level::Ok => ("ok  ", 32),
            Level::Warn => ("warn", 33),
            Level::Fail => ("FAIL", 31),
        };
        let word = if color { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
        // Writing to a String can't fail.
        let _ = writeln!(text, "{word}  {:width$}  {}", finding.title, finding.text);
        if let Some(cure) = &finding.cure {
            let _ = writeln!(text, "{:4}  {:width$}  -> {cure}", "", "");
        }
    }
    text.push_str(if possible(findings) {
        "\nPrograms can be profiled here.\n"
    } else {
        "\nPrograms can't be profiled here at the moment; the lines marked FAIL say why.\n"
    });
    text
}

#[cfg(test)]
mod tests;
