//! The frames of a stack for people, one by one.

use super::text::{place, printable, telling};
use super::view::{NamedFrame, View};
use crate::profile::Profile;

/// So many characters of a name are told: some programs have names of 64 KiB.
const LONGEST_NAME: usize = 1000;

/// The innermost `most` frames of a stack, innermost first: the function, its file and line or its module in brackets, and whether it
/// tells nothing of whose allocation it is.
pub fn told_frames(profile: &Profile, stack: usize, most: usize) -> Vec<(String, String, bool)> {
    let frames: Vec<NamedFrame<'_>> = View::new(profile).frames(stack).collect();
    let telling = telling(&frames);
    let told = |(at, frame): (usize, &NamedFrame<'_>)| {
        (cut(printable(frame.name)), cut(place(frame, usize::MAX)), telling.binary_search(&at).is_err())
    };
    frames.iter().enumerate().take(most).map(told).collect()
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
