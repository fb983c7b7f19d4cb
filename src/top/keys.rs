//! What the user presses, whatever terminal it comes from.

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

/// What each key does, for the help on the screen.
pub(super) const HELP: [(&str, &str); 13] = [
    ("l g b c", "sort by live bytes, growth, bytes allocated per second, calls per second"),
    ("< >", "sort by the column to the left, to the right (the arrow keys do it, too)"),
    ("/", "show only sites with this text in a function or a place; Esc shows all again"),
    ("up down", "choose a site (k and j, PgUp, PgDn, Home, End)"),
    ("Enter", "the whole stack of the chosen site"),
    ("m", "set a mark: growth is counted from here on, and"),
    ("", "`heaptrace snapshot PID --since top-1` tells what is left of the time since"),
    ("s", "write a snapshot to a file in this directory"),
    ("p", "hold the picture, or let it go on"),
    ("d", "detach: end the tracing, and let the program run on (asked twice)"),
    ("q", "leave: what is traced by another heaptrace stays traced,"),
    ("", "what this one has attached to is let go"),
    ("? h", "this help"),
];
