//! What the user presses, read from the bytes that a terminal sends for it (ECMA-48, and xterm's control sequences).
//!
//! A sequence may come in pieces, or never to an end: nothing here waits for the rest.

/// A key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A character that is no control character.
    Char(char),
    /// Ctrl-C or Ctrl-D.
    Interrupt,
    /// Return.
    Enter,
    /// Esc.
    Escape,
    /// The character before the cursor goes.
    Backspace,
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One column to the left.
    Left,
    /// One column to the right.
    Right,
    /// A screen up.
    PageUp,
    /// A screen down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
}

/// The longest sequence that is looked at, in bytes.
const LONGEST: usize = 32;

const ESC: u8 = 0x1b;

/// Makes keys of bytes.
#[derive(Clone, Debug, Default)]
pub struct KeyReader {
    /// What has begun and is not at its end: a sequence after Esc, or a character of several bytes.
    begun: Vec<u8>,
}

impl KeyReader {
    /// The keys in what has come. What means nothing here is left out.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for byte in bytes {
            self.take_byte(*byte, &mut keys);
        }
        keys
    }

    /// Nothing has come for a moment: a lone Esc was the key itself, and nobody waits for the rest of anything else.
    pub fn pause(&mut self) -> Option<Key> {
        let is_escape = self.begun == [ESC];
        self.begun.clear();
        is_escape.then_some(Key::Escape)
    }

    fn take_byte(&mut self, byte: u8, keys: &mut Vec<Key>) {
        match self.begun.as_slice() {
            [] => self.begin(byte, keys),
            [ESC] => match byte {
                b'[' | b'O' => self.begun.push(byte),
                ESC => keys.push(Key::Escape),
                // with Alt
                _ => self.begun.clear(),
            },
            [ESC, _, parameters @ ..] => match byte {
                0x20..=0x3f if self.begun.len() < LONGEST => self.begun.push(byte),
                _ => {
                    keys.extend(of_sequence(parameters, byte));
                    self.begun.clear();
                }
            },
            _ => self.go_on(byte, keys),
        }
    }

    fn begin(&mut self, byte: u8, keys: &mut Vec<Key>) {
        match byte {
            // a sequence, or a character of two to four bytes
            ESC | 0xc2..=0xf4 => self.begun.push(byte),
            b'\r' | b'\n' => keys.push(Key::Enter),
            0x03 | 0x04 => keys.push(Key::Interrupt),
            0x08 | 0x7f => keys.push(Key::Backspace),
            b' '..=b'~' => keys.push(Key::Char(char::from(byte))),
            _ => {}
        }
    }

    /// One more byte of a character in UTF-8.
    fn go_on(&mut self, byte: u8, keys: &mut Vec<Key>) {
        if !(0x80..0xc0).contains(&byte) {
            self.begun.clear();
            return self.begin(byte, keys);
        }
        self.begun.push(byte);
        match std::str::from_utf8(&self.begun) {
            Ok(text) => {
                keys.extend(text.chars().filter(|c| !c.is_control()).map(Key::Char));
                self.begun.clear();
            }
            // not whole yet
            Err(error) if error.error_len().is_none() => {}
            Err(_) => self.begun.clear(),
        }
    }
}

/// The key of a sequence: its parameters, and the byte that ends it.
fn of_sequence(parameters: &[u8], last: u8) -> Option<Key> {
    let number = parameters.split(|byte| *byte == b';').next().unwrap_or_default();
    Some(match (last, number) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'M', _) => Key::Enter,
        _ => return None,
    })
}

/// What each key does, for the help on the screen.
pub(super) const HELP: [(&str, &str); 15] = [
    ("l g b c", "sort by live bytes, growth, bytes allocated per second, calls per second"),
    ("< >", "sort by the column to the left, to the right (the arrow keys do it, too)"),
    ("/", "show only sites with this text in a function or a place; Esc shows all again"),
    ("f", "rows are functions, modules, or sites again"),
    ("up down", "choose a site (k and j, PgUp, PgDn, Home, End)"),
    ("Enter", "the innermost functions of the chosen site's stack, which"),
    ("J K", "scroll by a line (PgUp and PgDn by ten)"),
    ("m", "set a mark: growth is counted from here on, and"),
    ("", "`heaptrace snapshot PID --since top-1` shows what is left of the time since"),
    ("s", "write a snapshot to a file in this directory"),
    ("p", "hold the picture, or let it go on"),
    ("d", "detach: end the tracing, and let the program run on (asked twice)"),
    ("q", "leave: a process that another heaptrace traces stays traced,"),
    ("", "one that this heaptrace has attached to runs on untraced"),
    ("? h", "this help"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pieces: &[&[u8]]) -> Vec<Key> {
        let mut reader = KeyReader::default();
        let mut keys: Vec<Key> = pieces.iter().flat_map(|piece| reader.take(piece)).collect();
        keys.extend(reader.pause());
        keys
    }

    #[test]
    fn sequences_are_keys_also_in_pieces() {
        assert_eq!(
            keys(&[b"q/a \r\x7f\x03"]),
            [
                Key::Char('q'),
                Key::Char('/'),
                Key::Char('a'),
                Key::Char(' '),
                Key::Enter,
                Key::Backspace,
                Key::Interrupt
            ]
        );
        let moves = [Key::Up, Key::Down, Key::Right, Key::Left, Key::Home, Key::End, Key::PageUp, Key::PageDown];
        assert_eq!(keys(&[b"\x1b[A\x1b[B\x1b[C\x1b[D\x1b[H\x1b[F\x1b[5~\x1b[6~"]), moves);
        assert_eq!(keys(&[b"\x1bOA\x1bOB\x1bOC\x1bOD\x1bOH\x1bOF\x1b[5;2~\x1b[6~"]), moves);
        assert_eq!(keys(&[b"\x1b", b"[", b"1;5", b"Aq"]), [Key::Up, Key::Char('q')]);
        assert_eq!(keys(&["gr\u{f6}\u{20ac}".as_bytes()]), ['g', 'r', '\u{f6}', '\u{20ac}'].map(Key::Char));
        assert_eq!(keys(&[b"\xe2\x82", b"\xac"]), [Key::Char('\u{20ac}')]);
    }

    #[test]
    fn what_comes_to_no_end_is_no_key_and_holds_nothing_up() {
        assert_eq!(keys(&[b"\x1b"]), [Key::Escape]);
        assert_eq!(keys(&[b"\x1b\x1b"]), [Key::Escape, Key::Escape]);
        for never in [&b"\x1b["[..], b"\x1bO", b"\x1b[1;", b"\xc3", b"\xf0\x9f"] {
            assert_eq!(keys(&[never]), [], "{never:?}");
            let mut reader = KeyReader::default();
            assert_eq!(reader.take(never), []);
            assert_eq!(reader.pause(), None);
            assert_eq!(reader.take(b"q"), [Key::Char('q')], "{never:?}");
        }
        // with Alt, in Latin-1, a sequence that is not known, one that is too long
        assert_eq!(keys(&[b"\x1bxq"]), [Key::Char('q')]);
        assert_eq!(keys(&[b"\xe9q"]), [Key::Char('q')]);
        assert_eq!(keys(&[b"\x1b[99uq"]), [Key::Char('q')]);
        assert!(keys(&[&[b"\x1b[".as_slice(), &[b'1'; 5000]].concat()]).len() <= 5000);
    }
}
