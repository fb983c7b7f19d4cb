//! `heaptrace report`: a saved profile, shown or written in other formats.

use super::conclude::terminal_width;
use super::saved::{Destinations, load};
use super::{print, use_color};
use crate::cli::ReportOptions;
use crate::export::leakreport::{CheckReportOptions, check_report};
use crate::export::report::{QueryOptions, query, require};
use crate::export::summary::{SummaryOptions, summary};
use crate::export::{ExportOptions, Format, write};
use crate::profile::Profile;
use std::io;

/// How many rows and branches a view shows, unless the user says it.
const TOP: usize = 20;

/// How many rows an answer in JSON has: all, within reason.
const TOP_OF_JSON: usize = 100_000;

/// Carries out `options` and returns the exit status.
///
/// # Errors
/// The file is no profile, has not what was asked for, or something can't be written.
pub fn execute(options: &ReportOptions) -> anyhow::Result<u8> {
    let destinations = Destinations::prepare(&options.files)?;
    let profile = load(&options.file)?;
    require(&profile, options.value)?;
    let defaults = ExportOptions::default();
    let export = ExportOptions {
        pprof_columns: options.files.pprof_columns,
        source: options.files.source,
        top: options.top.unwrap_or(defaults.top),
        value: options.value,
        ..defaults
    };
    if !options.files.outputs.is_empty() {
        destinations.write(&profile, &export)?;
        return Ok(0);
    }
    print(&shown(&profile, options, &export)?)?;
    Ok(0)
}

fn shown(profile: &Profile, options: &ReportOptions, export: &ExportOptions) -> anyhow::Result<String> {
    let color = use_color(options.color, &io::stdout());
    let defaults = SummaryOptions::default();
    let width = terminal_width(&io::stdout()).unwrap_or(defaults.width);
    if let Some(asked) = &options.query {
        let top = options.top.unwrap_or(if options.json { TOP_OF_JSON } else { TOP });
        let how = QueryOptions { value: options.value, top, json: options.json, color, width };
        return Ok(query(profile, asked, &how)?);
    }
    if options.json {
        let mut report = Vec::new();
        write(Format::Json, profile, export, &mut report)?;
        return Ok(String::from_utf8_lossy(&report).into_owned());
    }
    let top = options.top.unwrap_or(defaults.top);
    Ok(match (&profile.verdict, options.value) {
        (Some(_), None) => check_report(profile, &CheckReportOptions { top, color, width, files: &[], explain: None }),
        (_, value) => summary(profile, &SummaryOptions { top, color, width, value, files: &[] }),
    })
}
