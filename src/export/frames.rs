//! The frames of a stack for people, one by one.

use super::telling::telling;
use super::text::{basename, printable};
use super::view::{NamedFrame, View};
use crate::profile::Profile;
use std::fmt;

/// So many characters of a name are told: some programs have names of 64 KiB.
const LONGEST_NAME: usize = 1000;

/// The innermost `most` frames of a stack, innermost first: the function, its file and line or its module in brackets,
/// and whether it tells nothing of whose allocation it is.
pub fn told_frames(profile: &Profile, stack: usize, most: usize) -> Vec<(String, String, bool)> {
    let frames: Vec<NamedFrame<'_>> = View::new(profile).frames(stack).collect();
    let telling = telling(&frames);
    let told = |(at, frame): (usize, &NamedFrame<'_>)| {
        (cut(printable(frame.name)), cut(frame.place(usize::MAX)), telling.binary_search(&at).is_err())
    };
    frames.iter().enumerate().take(most).map(told).collect()
}

/// What a frame without a module is in.
const NO_MODULE: &str = "(no module)";

/// What tells of the stacks of a profile whose allocations they are, and which of them have a text.
pub struct Stacks<'a> {
    view: View<'a>,
    /// In small letters; empty: all have it.
    text: String,
    /// For each location whether it has the text, if it was looked at.
    locations: Vec<Option<bool>>,
}

impl fmt::Debug for Stacks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stacks").field("text", &self.text).finish_non_exhaustive()
    }
}

impl<'a> Stacks<'a> {
    /// Those of `profile`, and this text.
    pub fn new(profile: &'a Profile, text: &str) -> Self {
        Self { view: View::new(profile), text: text.to_lowercase(), locations: vec![None; profile.locations.len()] }
    }

    /// The function and the module of the innermost frame that tells whose allocation it is. Of a script's function its
    /// file belongs to its name, and is its module.
    pub fn owner(&self, stack: usize) -> (String, String) {
        let frames: Vec<NamedFrame<'_>> = self.view.frames(stack).collect();
        let owner = telling(&frames).first().and_then(|at| frames.get(*at));
        let Some(owner) = owner else { return (String::new(), NO_MODULE.to_owned()) };
        let (name, script) = owner.key();
        let module = owner.module.map(|module| basename(&module.path));
        let function = match script {
            Some(file) => format!("{} ({})", printable(name), printable(file)),
            None => printable(name),
        };
        let module = module.or_else(|| script.map(printable)).unwrap_or_else(|| NO_MODULE.to_owned());
        (cut(function), cut(module))
    }

    /// Whether the text is in a function or a place of any frame.
    pub fn have_text(&mut self, stack: usize) -> bool {
        if self.text.is_empty() {
            return true;
        }
        let Self { view, text, locations } = self;
        let has = |frame: &NamedFrame<'_>| {
            frame.name.to_lowercase().contains(text.as_str())
                || frame.place(usize::MAX).to_lowercase().contains(text.as_str())
        };
        let mut known = view.locations(stack);
        if known.len() == 0 {
            return view.frames(stack).any(|frame| has(&frame));
        }
        known.any(|index| match locations.get_mut(index) {
            Some(known) => *known.get_or_insert_with(|| view.location_frames(index).any(|frame| has(&frame))),
            None => false,
        })
    }
}

fn cut(mut name: String) -> String {
    if let Some((end, _)) = name.char_indices().nth(LONGEST_NAME) {
        name.truncate(end);
        name.push('…');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = cut("\u{e9}".repeat(LONGEST_NAME + 1));
        assert_eq!((long.chars().count(), long.ends_with("\u{e9}\u{2026}")), (LONGEST_NAME + 1, true));
        let whole = "\u{e9}".repeat(LONGEST_NAME);
        assert_eq!(cut(whole.clone()), whole);
    }
}
