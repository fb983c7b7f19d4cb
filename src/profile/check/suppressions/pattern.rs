//! How the patterns of the two kinds of rules match.

use super::RuleFrame;
use crate::base::glob::Glob;

/// A pattern of LeakSanitizer (documented with its `suppressions` option, the same for all sanitizers): a substring in
/// which `*` stands for anything; `^` at its beginning and `$` at its end bind it to those of the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Template {
    /// What must be found in this order. Never empty; the first and last may be empty texts.
    parts: Vec<String>,
    at_start: bool,
    at_end: bool,
}

impl Template {
    pub fn new(text: &str) -> Self {
        let (at_start, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        // what follows a `$` can't match any more
        let (text, at_end) = text.split_once('$').map_or((text, false), |(text, _)| (text, true));
        Self { parts: text.split('*').map(str::to_owned).collect(), at_start, at_end }
    }

    pub fn matches(&self, name: &str) -> bool {
        if name.is_empty() {
            return false;
        }
        let Some((last, before)) = self.parts.split_last() else { return true };
        let mut rest = name;
        for (index, part) in before.iter().enumerate() {
            let found = if index == 0 && self.at_start { rest.strip_prefix(part.as_str()) } else { behind(rest, part) };
            match found {
                Some(behind) => rest = behind,
                None => return false,
            }
        }
        let starts_here = before.is_empty() && self.at_start;
        match (starts_here, self.at_end) {
            (true, true) => rest == last,
            (true, false) => rest.starts_with(last.as_str()),
            (false, true) => rest.ends_with(last.as_str()),
            (false, false) => rest.contains(last.as_str()),
        }
    }
}

/// What follows the first occurrence of a part.
fn behind<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    text.find(part).and_then(|at| text.get(at + part.len()..))
}

/// A line of a Valgrind suppression's stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// `fun:`
    Function(Glob),
    /// `obj:`
    Object(Glob),
    /// `src:`, with a line number or without.
    Source(Glob, Option<u32>),
    /// `fun:` with a function between Rust's code and malloc, which our stacks leave out: there if it is there.
    Shim(Glob),
    /// `...`: any number of frames, or none.
    Any,
}

impl Entry {
    fn matches(&self, frame: &RuleFrame<'_>) -> bool {
        let any = |glob: &Glob, names: &[&str]| names.iter().any(|name| glob.matches(name));
        match self {
            Self::Function(glob) | Self::Shim(glob) => any(glob, &frame.functions),
            Self::Object(glob) => any(glob, &frame.objects),
            Self::Source(glob, line) => {
                // Valgrind's name for what has no line number information
                let unknown = frame.sources.is_empty() && glob.matches(super::UNKNOWN);
                (unknown || any(glob, &frame.sources)) && line.is_none_or(|line| line == frame.line)
            }
            Self::Any => true,
        }
    }
}

/// Whether a stack begins as the entries say; what follows does not matter.
pub(super) fn stack_matches(entries: &[Entry], frames: &[RuleFrame<'_>]) -> bool {
    // after each entry: which numbers of frames the entries so far can have matched
    let mut reached = vec![false; frames.len() + 1];
    if let Some(start) = reached.first_mut() {
        *start = true;
    }
    for entry in entries {
        let mut next = vec![false; frames.len() + 1];
        match entry {
            Entry::Any => {
                let mut open = false;
                for (to, from) in next.iter_mut().zip(&reached) {
                    open |= *from;
                    *to = open;
                }
            }
            _ => {
                let ends = next.iter_mut().skip(1);
                for ((to, from), frame) in ends.zip(&reached).zip(frames) {
                    *to = *from && entry.matches(frame);
                }
                if matches!(entry, Entry::Shim(_)) {
                    for (to, from) in next.iter_mut().zip(&reached) {
                        *to |= *from;
                    }
                }
            }
        }
        if !next.contains(&true) {
            return false;
        }
        reached = next;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_sanitizer_pattern_is_a_substring_with_anchors() {
        let matches = |pattern: &str, name: &str| Template::new(pattern).matches(name);
        for (pattern, name) in [
            ("bar", "foobarbaz"),
            ("*bar*", "bar"),
            ("^foo", "foobar"),
            ("bar$", "foobar"),
            ("^foo*baz$", "foobarbaz"),
            ("f*b*z", "foobarbaz"),
            ("^foo$", "foo"),
            ("foo$", "foofoo"),
            ("^*bar", "foobar"),
            ("foo*$", "foobar"),
            ("*", "x"),
            ("ä*ü", "xäyüz"),
        ] {
            assert!(matches(pattern, name), "{pattern} on {name}");
        }
        for (pattern, name) in [
            ("Bar", "foobar"),
            ("^bar", "foobar"),
            ("foo$", "foobar"),
            ("^foo$", "foofoo"),
            ("foo*foo", "foo"),
            ("^foo*oo$", "foo"),
            ("*", ""),
            ("b?r", "bar"),
        ] {
            assert!(!matches(pattern, name), "{pattern} on {name}");
        }
    }

    fn frame(name: &'static str) -> RuleFrame<'static> {
        RuleFrame { functions: vec![name], ..RuleFrame::default() }
    }

    #[test]
    fn dots_stand_for_any_number_of_frames() {
        let frames = ["malloc", "a", "b", "a", "c", "main"].map(frame);
        let function = |name: &str| Entry::Function(Glob::new(name));
        let matches = |entries: &[Entry]| stack_matches(entries, &frames);
        assert!(matches(&[function("malloc"), function("a")]));
        assert!(!matches(&[function("a")]), "from the innermost frame on");
        assert!(matches(&[Entry::Any, function("a"), function("c")]), "not the first `a`");
        assert!(matches(&[function("malloc"), Entry::Any, function("a")]), "no frame between");
        assert!(matches(&[Entry::Any, function("main"), Entry::Any]));
        assert!(!matches(&[Entry::Any, function("main"), function("*")]));
        assert!(!matches(&[function("malloc"), Entry::Any, function("z")]));
        let shim = Entry::Shim(Glob::new("__rdl_alloc"));
        assert!(matches(&[function("malloc"), shim, function("a")]));
    }
}
