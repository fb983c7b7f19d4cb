//! The frames of a stack for people, one by one.

use super::text::{place, printable, telling};
use super::view::{NamedFrame, View};
use crate::profile::Profile;

/// The innermost `most` frames of a stack, innermost first: the function, its file and line or its module in brackets, and whether it
/// tells nothing of whose allocation it is.
pub fn told_frames(profile: &Profile, stack: usize, most: usize) -> Vec<(String, String, bool)> {
    let frames: Vec<NamedFrame<'_>> = View::new(profile).frames(stack).collect();
    let telling = telling(&frames);
    let told = |(at, frame): (usize, &NamedFrame<'_>)| {
        (printable(frame.name), place(frame, usize::MAX), telling.binary_search(&at).is_err())
    };
    frames.iter().enumerate().take(most).map(told).collect()
}
