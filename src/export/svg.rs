//! A flame graph, callers above: the folded stacks drawn by inferno, interactive in a browser. What has less than 0.1 %
//! is left out (inferno's default).

use super::ExportOptions;
use super::escape::{self, printable, xml};
use super::folded;
use super::text::human_bytes;
use super::view::View;
use crate::profile::ModuleInfo;
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, TextTruncateDirection};
use rustc_hash::FxHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
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
    // programs begin at one place: that is where one looks first, and the names of what lies below begin at its left
    settings.direction = Direction::Inverted;
    settings.text_truncate_direction = TextTruncateDirection::Right;
    settings.bgcolors = Some(BackgroundColor::Flat(Color { r: 250, g: 250, b: 250 }));
    let mut colors = colors(view);
    settings.palette_map = Some(&mut colors);
    // Our order keeps the stacks of one caller together, whatever the names hold; inferno's own order of whole lines
    // does not (a space sorts before the semicolon). It keeps an order only in this mode, for which it reverses the
    // lines.
    settings.flame_chart = true;
    flamegraph::from_lines(&mut settings, folded.lines.iter().rev().map(String::as_str), out)
}

/// So many hues are told apart at a glance.
const HUES: u64 = 12;

/// The colours of all functions: those of one module have one hue. It comes from the name of the module's file, which
/// is the same on another machine; of two modules that would have the same, one has the next.
fn colors(view: &View<'_>) -> PaletteMap {
    let file = |module: &ModuleInfo| module.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let files: BTreeSet<String> = view.profile.modules.iter().map(file).collect();
    let mut hues: BTreeMap<String, u64> = BTreeMap::new();
    for file in files {
        let first = hash(&file) % HUES;
        let free = (first..first + HUES).map(|hue| hue % HUES).find(|hue| !hues.values().any(|taken| taken == hue));
        hues.insert(file, free.unwrap_or(first));
    }
    let mut colors = PaletteMap::default();
    // the root, which the picture calls "all"
    colors.insert("", color(None, ""));
    for frame in (0..view.profile.locations.len()).flat_map(|location| view.location_frames(location)) {
        let name = escape::folded(&frame.name_in_picture());
        if colors.get(&name).is_none() {
            let hue = frame.module.and_then(|module| hues.get(&file(module))).copied();
            colors.insert(&name, color(hue, &name));
        }
    }
    colors
}

fn hash(text: &str) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish() >> 32
}

/// The colour of a function: one of the hues, a little lighter or darker by its name; grey if its module is not known.
fn color(hue: Option<u64>, name: &str) -> Color {
    let lightness = 0.66 + (hash(name) % 5) as f32 * 0.03;
    // what is lighter has less room for colour (the usual conversion of HSL to RGB)
    let chroma = if hue.is_some() { (1.0 - (2.0 * lightness - 1.0).abs()) * 0.6 } else { 0.0 };
    let hue = hue.unwrap_or(0) as f32 * 6.0 / HUES as f32;
    let part = |distance: f32| {
        let near = (2.0 - (hue - distance).rem_euclid(6.0).min((distance - hue).rem_euclid(6.0))).clamp(0.0, 1.0);
        ((lightness + chroma * (near - 0.5)) * 255.0) as u8
    };
    Color { r: part(0.0), g: part(2.0), b: part(4.0) }
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
