//! How the lines of texts are laid out.

use super::text::{Paint, printable, wrap};
use std::fmt::Write;

/// How text is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Colours.
    pub paint: Paint,
    /// Columns.
    pub width: usize,
}

impl Layout {
    /// A layout for so many columns, within reason.
    pub fn new(paint: Paint, width: usize) -> Self {
        Self { paint, width: width.clamp(60, 160) }
    }
}

/// An empty line and a title.
pub(crate) fn heading(out: &mut String, layout: Layout, title: &str) {
    let _ = writeln!(out, "\n{}", layout.paint.bold(&wrap(title, 2, layout.width)));
}

/// A line of prose, wrapped behind two spaces.
pub(crate) fn prose(out: &mut String, layout: Layout, sentence: &str) {
    let _ = writeln!(out, "  {}", wrap(&printable(sentence), 2, layout.width));
}
