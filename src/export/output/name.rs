//! Patterns in the names of output files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A file name with places to fill.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern(Vec<Piece>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(Vec<u8>),
    Program,
    Pid,
    Number,
}

impl Pattern {
    /// Reads `%p`, `%n`, `%i` and `%%`.
    ///
    /// # Errors
    /// A percent sign with anything else behind it, returned.
    pub fn parse(name: &OsStr) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut text = Vec::new();
        let mut bytes = name.as_bytes().iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                text.push(byte);
                continue;
            }
            let piece = match bytes.next() {
                Some(b'%') => {
                    text.push(b'%');
                    continue;
                }
                Some(b'n') => Piece::Program,
                Some(b'p') => Piece::Pid,
                Some(b'i') => Piece::Number,
                Some(other) => return Err(String::from_utf8_lossy(&[b'%', other]).into_owned()),
                None => return Err("%".to_owned()),
            };
            pieces.push(Piece::Text(std::mem::take(&mut text)));
            pieces.push(piece);
        }
        pieces.push(Piece::Text(text));
        Ok(Self(pieces))
    }

    /// Whether there is a `%p`.
    pub fn has_pid(&self) -> bool {
        self.0.contains(&Piece::Pid)
    }

    /// Whether there is a `%i`.
    pub fn has_number(&self) -> bool {
        self.0.contains(&Piece::Number)
    }

    /// Whether two processes of the same program get different names.
    pub fn tells_processes_apart(&self) -> bool {
        self.has_number() || self.has_pid()
    }

    /// The pattern as it was written.
    pub fn source(&self) -> OsString {
        let mut text = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(bytes) => {
                    for &byte in bytes {
                        text.extend_from_slice(if byte == b'%' { b"%%" } else { std::slice::from_ref(&byte) });
                    }
                }
                Piece::Program => text.extend_from_slice(b"%n"),
                Piece::Pid => text.extend_from_slice(b"%p"),
                Piece::Number => text.extend_from_slice(b"%i"),
            }
        }
        OsString::from_vec(text)
    }

    /// The name, if it has no place to fill.
    pub fn fixed(&self) -> Option<OsString> {
        match self.0.as_slice() {
            [Piece::Text(text)] => Some(OsString::from_vec(text.clone())),
            _ => None,
        }
    }

    /// The name with all places filled. A program's name can't lead into another directory.
    pub fn expand(&self, program: &str, pid: i32, number: u32) -> OsString {
        let mut name = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => name.extend_from_slice(text),
                Piece::Program => {
                    name.extend(program.bytes().map(|byte| if b"/\0".contains(&byte) { b'_' } else { byte }))
                }
                Piece::Pid => name.extend_from_slice(pid.to_string().as_bytes()),
                Piece::Number => name.extend_from_slice(format!("{number:06}").as_bytes()),
            }
        }
        // `%n` alone, of a program called so
        if name == b"." || name == b".." {
            name.insert(0, b'_');
        }
        OsString::from_vec(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(pattern: &str) -> Result<String, String> {
        let name = Pattern::parse(OsStr::new(pattern))?.expand("a/b", 42, 7);
        Ok(name.into_string().expect("UTF-8"))
    }

    #[test]
    fn patterns_are_replaced() {
        assert_eq!(expand("heaptrace.%n.%p.pb.gz"), Ok("heaptrace.a_b.42.pb.gz".to_owned()));
        assert_eq!(expand("%i-100%%.svg"), Ok("000007-100%.svg".to_owned()));
    }

    #[test]
    fn unknown_patterns_are_refused() {
        assert_eq!(expand("a%x.svg"), Err("%x".to_owned()));
        assert_eq!(expand("a%"), Err("%".to_owned()));
    }

    #[test]
    fn names_without_a_place_are_fixed() {
        let fixed = |name: &str| Pattern::parse(OsStr::new(name)).expect("valid").fixed();
        assert_eq!(fixed("50%%.svg"), Some(OsString::from("50%.svg")));
        assert_eq!(fixed("%n.svg"), None);
    }

    #[test]
    fn only_pid_and_number_tell_processes_apart() {
        let apart = |name: &str| Pattern::parse(OsStr::new(name)).expect("valid").tells_processes_apart();
        assert_eq!(["a", "%n%%p", "%%i", "%p", "a.%i.svg"].map(apart), [false, false, false, true, true]);
    }

    #[test]
    fn a_pattern_can_be_written_again() {
        for name in ["heaptrace.%n.%p.pb.gz", "%i-100%%.svg", "plain"] {
            assert_eq!(Pattern::parse(OsStr::new(name)).expect("valid").source(), name);
        }
    }
}
