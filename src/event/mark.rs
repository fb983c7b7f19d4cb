//! The names of marks, as events hold them.

use std::fmt;

/// The name of a mark: 1 to 47 bytes of UTF-8 without control characters. It lies in the event itself, so that a stream
/// needs no table of names.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkName {
    len: u8,
    bytes: [u8; Self::LONGEST],
}

impl MarkName {
    /// The longest name, in bytes.
    pub const LONGEST: usize = 47;

    /// The name, if it can be one.
    pub fn new(name: &str) -> Option<Self> {
        let fits = (1..=Self::LONGEST).contains(&name.len()) && !name.chars().any(char::is_control);
        let mut bytes = [0; Self::LONGEST];
        bytes.get_mut(..name.len()).filter(|_| fits)?.copy_from_slice(name.as_bytes());
        Some(Self { len: u8::try_from(name.len()).ok()?, bytes })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// The blocks between two marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Generation {
    /// They were allocated since this mark; None: whenever.
    pub since: Option<MarkName>,
    /// They were live when this mark was set; None: at the end, or now.
    pub until: Option<MarkName>,
}

impl Generation {
    /// A sentence about figures that are of these blocks; None if all are meant.
    pub fn in_words(&self) -> Option<String> {
        match (self.since, self.until) {
            (None, None) => None,
            (Some(since), None) => {
                Some(format!("only blocks are in here that were allocated since the mark `{since}`"))
            }
            (None, Some(until)) => Some(format!("this is how the heap was when the mark `{until}` was set")),
            (Some(since), Some(until)) => Some(format!(
                "only blocks are in here that were allocated since the mark `{since}` and live when the mark `{until}` was set"
            )),
        }
    }
}

impl fmt::Debug for MarkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for MarkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind};

    #[test]
    fn a_name_is_kept_whole_or_refused() {
        for name in ["a", "after warm-up", "größer", &"x".repeat(47)] {
            assert_eq!(MarkName::new(name).unwrap().as_str(), name);
        }
        for name in ["", "two\nlines", &"x".repeat(48), &"ö".repeat(24)] {
            assert_eq!(MarkName::new(name), None);
        }
    }

    /// The name lies where the largest other event has its fields.
    #[test]
    fn no_event_is_larger_for_it() {
        assert!(size_of::<Event>() <= 88, "{}", size_of::<Event>());
        assert!(size_of::<EventKind>() <= 72, "{}", size_of::<EventKind>());
    }
}
