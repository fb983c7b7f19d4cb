//! `heaptrace diff`: what has changed from one saved profile, or heap, to another.

use super::conclude::terminal_width;
use super::saved::load;
use super::{heap, owners, print, tell, use_color};
use crate::cli::DiffOptions;
use crate::export::diff::{self, Comparison, FORMATS};
use crate::export::escape::lines;
use crate::export::heap::diff::HeapComparison;
use crate::export::output::write_file;
use crate::export::report::require;
use crate::export::text::Paint;
use crate::export::{Format, FormatError};
use crate::heap::file::diff::compare;
use crate::profile::check::growth::GrowthLimit;
use crate::profile::diff::Diff;
use anyhow::{Context, bail};
use std::io::{self, Write};
use std::path::Path;

/// How many stacks are shown of each kind of change, unless the user says it.
const TOP: usize = 10;

/// What a difference of heaps can be written as.
const OF_HEAPS: [Format; 3] = [Format::Markdown, Format::Json, Format::Txt];

/// The exit status if something has grown by more than is allowed: that of `check` for findings.
const EXIT_GROWN: u8 = 23;

/// Carries out `options` and returns the exit status.
///
/// # Errors
/// A file is no profile, or has not the amounts that were asked for; an output can't be written.
pub fn execute(options: &DiffOptions) -> anyhow::Result<u8> {
    match [&options.before, &options.after].map(|path| heap::is_saved(path)) {
        [true, true] => return heaps(options),
        [false, false] => {}
        _ => bail!(
            "one of the two files is a heap (`heaptrace heap --save`), and the other is not: they can't be compared"
        ),
    }
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
        output(path, another_user, |out| comparison.write(*format, &how, out))?;
    }
    if options.json {
        output(Path::new("-"), another_user, |out| comparison.write(Format::Json, &how, out))?;
    } else if options.output.outputs.is_empty() {
        print(&comparison.text(&how))?;
    }
    let Diff { before, after, value, .. } = &comparison.diff;
    Ok(judge(options, [before.bytes, after.bytes], value.bytes_title()))
}

/// Writes to a file, or to standard output if that is what `path` says.
fn output(path: &Path, another_user: bool, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    if path.as_os_str() != "-" {
        write_file(path, owners(), another_user, fill).with_context(|| path.display().to_string())?;
        return Ok(());
    }
    let mut text = Vec::new();
    fill(&mut text)?;
    match io::stdout().write_all(&text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("could not write to standard output"))
        }
        _ => Ok(()),
    }
}

/// Compares two heaps.
fn heaps(options: &DiffOptions) -> anyhow::Result<u8> {
    if options.value.is_some() {
        bail!("--value is for profiles: heaps compare by what is live");
    }
    let formats = options.output.outputs.iter().map(|path| match options.output.format {
        Some(format) => Ok(format),
        None => Format::from_path(path),
    });
    let formats: Vec<Option<Format>> = formats.map(|format| format.ok().filter(|f| OF_HEAPS.contains(f))).collect();
    if let Some((path, _)) = options.output.outputs.iter().zip(&formats).find(|(_, format)| format.is_none()) {
        bail!("{}: heaptrace writes a difference of heaps as .md, .json or .txt", path.display());
    }
    let (before, after) = (heap::load(&options.before, 2)?, heap::load(&options.after, 2)?);
    let diff = compare(&before, &after)
        .context("the allocator of one of the heaps could not be walked: it has no blocks to compare")?;
    let names = [&options.before, &options.after].map(|path| path.display().to_string());
    let [first, second] = &names;
    let told = HeapComparison { before: (first, &before), after: (second, &after), diff: &diff };
    let top = options.top.unwrap_or(TOP);
    let text = |color: bool| lines(&told.text(top, Paint { color }), color);
    let another_user = before.identity.another_user || after.identity.another_user;
    for (path, format) in options.output.outputs.iter().zip(formats) {
        output(path, another_user, |out| match format {
            Some(Format::Markdown) => out.write_all(told.markdown(top).as_bytes()),
            Some(Format::Json) => out.write_all(told.json().as_bytes()),
            _ => out.write_all(text(false).as_bytes()),
        })?;
    }
    if options.json {
        print(&told.json())?;
    } else if options.output.outputs.is_empty() {
        print(&text(use_color(options.color, &io::stdout())))?;
    }
    Ok(judge(options, [diff.all.before.bytes, diff.all.after.bytes], "live bytes"))
}

/// Tells what has grown by more than it may; the exit status.
fn judge(options: &DiffOptions, bytes: [u64; 2], value: &str) -> u8 {
    let exceeded: Vec<String> = options.limits.iter().filter_map(|limit| exceeded(bytes, value, *limit)).collect();
    exceeded.iter().for_each(|text| tell(text));
    if exceeded.is_empty() { 0 } else { EXIT_GROWN }
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
    format!("heaptrace writes a difference as {}", names.join(" "))
}

/// What to tell if the sum has grown by more than `limit`.
fn exceeded([before, after]: [u64; 2], value: &str, limit: GrowthLimit) -> Option<String> {
    let growth = after.saturating_sub(before);
    limit
        .is_exceeded(before, after)
        .then(|| format!("grown by more than {limit}: {before} {value} before, {after} now ({growth} more)"))
}
