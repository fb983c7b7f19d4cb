//! `heaptrace diff`: what has changed from one saved profile to another.

use super::conclude::terminal_width;
use super::saved::load;
use super::{owners, print, tell, use_color};
use crate::cli::{DiffOptions, GrowthLimit};
use crate::export::diff::{self, Comparison, FORMATS};
use crate::export::output::write_file;
use crate::export::report::require;
use crate::export::{Format, FormatError};
use crate::profile::diff::Diff;
use anyhow::Context;
use std::io::{self, Write};
use std::path::Path;

/// How many stacks are shown of each kind of change, unless the user says it.
const TOP: usize = 10;

/// The exit status if something has grown by more than is allowed: that of `check` for findings.
const EXIT_GROWN: u8 = 23;

/// Carries out `options` and returns the exit status.
///
/// # Errors
/// A file is no profile, or has not the amounts that were asked for; an output can't be written.
pub fn execute(options: &DiffOptions) -> anyhow::Result<u8> {
    let formats = options.output.outputs.iter().map(|path| format_of(path, options.output.format));
    let formats = formats.collect::<anyhow::Result<Vec<Format>>>()?;
    let (before, after) = (load(&options.before)?, load(&options.after)?);
    for (profile, path) in [(&before, &options.before), (&after, &options.after)] {
        require(profile, options.value).with_context(|| path.display().to_string())?;
    }
    let names = [&options.before, &options.after].map(|path| path.display().to_string());
    let [first, second] = &names;
    let comparison = Comparison::new((first, &before), (second, &after), options.value);
    let how = diff::DiffOptions {
        top: options.top.unwrap_or(TOP),
        color: use_color(options.color, &io::stdout()),
        width: terminal_width(&io::stdout()).unwrap_or(100),
    };
    let another_user = before.meta.process.of_another_user || after.meta.process.of_another_user;
    for (path, format) in options.output.outputs.iter().zip(&formats) {
        if path.as_os_str() == "-" {
            let mut text = Vec::new();
            comparison.write(*format, &how, &mut text)?;
            match io::stdout().write_all(&text) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(anyhow::Error::new(error).context("could not write to standard output"));
                }
                _ => {}
            }
        } else {
            write_file(path, owners(), another_user, |out| comparison.write(*format, &how, out))
                .with_context(|| path.display().to_string())?;
        }
    }
    if options.output.outputs.is_empty() {
        print(&comparison.text(&how))?;
    }
    let exceeded: Vec<String> = options.limits.iter().filter_map(|limit| exceeded(&comparison.diff, *limit)).collect();
    exceeded.iter().for_each(|text| tell(text));
    Ok(if exceeded.is_empty() { 0 } else { EXIT_GROWN })
}

/// The format of an output, which has to be one of those that can hold a difference.
fn format_of(path: &Path, format: Option<Format>) -> anyhow::Result<Format> {
    let format = match format {
        Some(format) => format,
        None => Format::from_path(path).map_err(|error| match error {
            FormatError::UnknownSuffix { .. } => anyhow::anyhow!("{}: {}", path.display(), can_be()),
            other => other.into(),
        })?,
    };
    if FORMATS.contains(&format) { Ok(format) } else { Err(anyhow::anyhow!("{}: {}", path.display(), can_be())) }
}

fn can_be() -> String {
    let names: Vec<String> = FORMATS.iter().map(|format| format!(".{format}")).collect();
    format!("a difference can be written as {}", names.join(" "))
}

/// What to tell if the sum has grown by more than `limit`.
fn exceeded(diff: &Diff, limit: GrowthLimit) -> Option<String> {
    let growth = diff.growth()?;
    let (is_exceeded, limit) = match limit {
        GrowthLimit::Bytes(bytes) => (growth > bytes, format!("{bytes} bytes")),
        GrowthLimit::Percent(percent) => {
            (growth as f64 > diff.before.bytes as f64 * percent / 100.0, format!("{percent} %"))
        }
    };
    let value = diff.value.bytes_title();
    let (before, after) = (diff.before.bytes, diff.after.bytes);
    is_exceeded.then(|| format!("grown by more than {limit}: {before} {value} before, {after} now ({growth} more)"))
}
