//! Folded stacks: `outermost;…;innermost BYTES`, one line per stack, sorted. The input of flame graph tools.
//!
//! The bytes are those of the value that was asked for, else those live at the peak for a run that ended, or those live
//! now.

use super::ExportOptions;
use super::escape::folded;
use super::view::View;
use crate::profile::value::Value;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Between frames while sorting: smaller than all that occurs in a name, so that the stacks of one caller stay together
/// (with `;`, the caller `f-x` would come between `f` and `f;g`).
pub(super) const SORT_SEPARATOR: &str = "\u{1}";

/// Writes the lines.
pub(crate) fn write(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    for line in lines(view, view.value(options.value)).lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The lines, and what they add up to.
pub(crate) struct Folded {
    /// Sorted; equal stacks are one line.
    pub lines: Vec<String>,
    /// The sum of their bytes.
    pub bytes: u64,
}

/// Folds the stacks that have bytes.
pub(crate) fn lines(view: &View<'_>, value: Value) -> Folded {
    let mut by_stack = vec![0u64; view.profile.stacks.len()];
    for sample in view.samples.iter() {
        if let Some(sum) = by_stack.get_mut(sample.stack) {
            *sum = sum.saturating_add(value.of(&sample).bytes);
        }
    }
    let mut sums = BTreeMap::new();
    let mut total = 0u64;
    for (stack, bytes) in by_stack.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
        let sum = sums.entry(sort_key(view, stack)).or_insert(0u64);
        *sum = sum.saturating_add(bytes);
        total = total.saturating_add(bytes);
    }
    let line = |(key, bytes): (String, u64)| format!("{} {bytes}", key.replace(SORT_SEPARATOR, ";"));
    Folded { lines: sums.into_iter().map(line).collect(), bytes: total }
}

/// A stack, outermost frame first.
pub(super) fn sort_key(view: &View<'_>, stack: usize) -> String {
    let mut names: Vec<String> = view.frames(stack).map(|frame| folded(&frame.name_in_picture())).collect();
    if let Some(innermost) = names.first_mut() {
        protect_number(innermost);
    }
    names.reverse();
    names.join(SORT_SEPARATOR)
}

/// Flame graph tools take a second number at the end of a line for the other side of a difference; a name that ends
/// in a space and a number must not look like one.
fn protect_number(name: &mut String) {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if let Some(at) = name.rfind(' ')
        && name.get(at + 1..).is_some_and(number)
    {
        name.replace_range(at..=at, "_");
    }
}
