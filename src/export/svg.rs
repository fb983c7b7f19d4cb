//! A flame graph: the folded stacks drawn by inferno, interactive in a browser.

use super::ExportOptions;
use super::escape::{printable, xml};
use super::folded;
use super::text::human_bytes;
use super::view::View;
use inferno::flamegraph::{self, Palette, color::BasicPalette};
use std::io::{self, Write};

/// Draws the graph. Without any bytes it is a picture that says so.
pub(crate) fn write(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let value = view.value(options.value);
    let folded = folded::lines(view, value);
    let program = &view.profile.meta.process.program;
    let column = value.bytes_title();
    let title = options.title.clone().unwrap_or_else(|| format!("{program}: {column}"));
    if folded.lines.is_empty() {
        return write_message(&title, "Nothing to draw: no bytes in this column.", out);
    }
    // inferno adds up without a check; such sums come from an `--alloc-fn` whose size is none
    if folded.bytes > u64::MAX / 2 {
        return write_message(&title, "Not drawn: the bytes of this column are too many to be true.", out);
    }
    let mut settings = flamegraph::Options::default();
    // inferno escapes what is markup, but no control characters
    settings.title = printable(&title);
    let (bytes, stacks) = (human_bytes(folded.bytes), folded.lines.len());
    settings.subtitle = Some(format!("{bytes} in {stacks} stacks, pid {}", view.profile.meta.process.pid));
    settings.count_name = "bytes".to_owned();
    settings.name_type = "Function:".to_owned();
    settings.colors = Palette::Basic(BasicPalette::Mem);
    // colours by name: the same function looks the same in every picture
    settings.deterministic = true;
    // Our order keeps the stacks of one caller together, whatever the names hold; inferno's own order of whole lines does not
    // (a space sorts before the semicolon). It keeps an order only in this mode, for which it reverses the lines.
    settings.flame_chart = true;
    flamegraph::from_lines(&mut settings, folded.lines.iter().rev().map(String::as_str), out)
}

fn write_message(title: &str, message: &str, out: &mut dyn Write) -> io::Result<()> {
    let title = xml(title);
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(
        out,
        "<svg version=\"1.1\" width=\"1200\" height=\"80\" viewBox=\"0 0 1200 80\" xmlns=\"http://www.w3.org/2000/svg\">"
    )?;
    writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#eeffee\"/>")?;
    writeln!(out, "<g font-family=\"monospace\" text-anchor=\"middle\">")?;
    writeln!(out, "<text x=\"600\" y=\"30\" font-size=\"17\">{title}</text>")?;
    writeln!(out, "<text x=\"600\" y=\"58\" font-size=\"12\">{message}</text>")?;
    writeln!(out, "</g>\n</svg>")
}
