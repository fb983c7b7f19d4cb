//! What is not ours to choose (names, paths, messages) as each kind of output can hold it: one function for each.
//!
//! A program's name or a function's can hold any character. Some do something where they are shown: they move the
//! cursor, change the colours or the title of a terminal, turn the direction of the text around so that it reads as
//! something else, end a line or an element. None of them gets out as it is.

use super::paint::Paint;
use std::io::{self, Write};

/// Stands for a character that can't be shown.
const SUBSTITUTE: char = '?';

/// Whether a character does something instead of being seen: the controls of ASCII, DEL and C1, the separators of lines
/// and paragraphs, marks and overrides of direction (UAX #9), and what is no character at all.
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}')
}

/// For a line that people read: in a terminal, a text report, a message, a table of strings.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_active(c) { SUBSTITUTE } else { c }).collect()
}

/// For a text of several lines. Of the escapes of a terminal, those of heaptrace's own colours stay if `color` says so.
pub fn lines(text: &str, color: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(code) = Paint::code_at(rest).filter(|_| color) {
            escaped.push_str(code);
            rest = rest.get(code.len()..).unwrap_or_default();
            continue;
        }
        escaped.push(if c != '\n' && is_active(c) { SUBSTITUTE } else { c });
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    escaped
}

/// For texts and attributes of XML 1.0, which can't hold most control characters, not even escaped.
pub(super) fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            c if is_active(c) => escaped.push(SUBSTITUTE),
            c => escaped.push(c),
        }
    }
    escaped
}

/// For the text of a workflow command of GitHub Actions, in which only the end of the line and the sign of escapes have
/// a meaning.
pub(super) fn github_data(text: &str) -> String {
    lines(text, false).replace('%', "%25").replace('\n', "%0A")
}

/// For a property of one, which colons and commas would end, too.
pub(super) fn github_property(text: &str) -> String {
    github_data(text).replace(':', "%3A").replace(',', "%2C")
}

/// For Markdown: prose in which nothing is markup.
pub(super) fn markdown(text: &str) -> String {
    let mut escaped = String::new();
    for c in printable(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '|' | '~' | '&') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// For a code span of Markdown.
pub(super) fn markdown_code(text: &str) -> String {
    format!("`{}`", printable(text).replace('`', "'"))
}

/// For HTML within Markdown.
pub(super) fn markdown_html(text: &str) -> String {
    printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('`', "&#96;")
}

/// For the name of a frame in folded stacks: `;` parts frames, the end of a line ends the stack.
pub(super) fn folded(name: &str) -> String {
    let plain = |c| match c {
        ';' => ':',
        c if is_active(c) => ' ',
        c => c,
    };
    let cleaned: String = name.chars().map(plain).collect();
    match cleaned.trim() {
        "" => "[unknown]".to_owned(),
        name => name.to_owned(),
    }
}

/// For JSON: passes on what a serializer writes, with the characters escaped that JSON allows in its strings and that
/// do something where the file is shown. Outside of strings there are none. To be written to by the serializer itself,
/// which never cuts a character in two.
#[derive(Debug)]
pub struct Json<W>(pub W);

impl<W: Write> Write for Json<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // all such characters begin with DEL or are not ASCII
        if bytes.iter().all(|&byte| byte < 0x7f) {
            self.0.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let text = std::str::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let mut written = 0;
        for (at, active) in text.match_indices(|c| is_active(c) && c >= '\x7f') {
            self.0.write_all(text.get(written..at).unwrap_or_default().as_bytes())?;
            for unit in active.encode_utf16() {
                write!(self.0, "\\u{unit:04x}")?;
            }
            written = at + active.len();
        }
        self.0.write_all(text.get(written..).unwrap_or_default().as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_colours_pass() {
        let own = format!("{}\n{}", Paint { color: true }.red("bad"), Paint { color: true }.bold("Files"));
        assert_eq!(lines(&own, true), own);
        assert_eq!(lines(&own, false), "?[1;31mbad?[0m\n?[1mFiles?[0m");
        let foreign = "\x1b]0;title\x07\x1b[8mhidden\x1b[31mred\x1b[1\x1b[";
        assert_eq!(lines(foreign, true), "?]0;title??[8mhidden?[31mred?[1?[");
    }

    #[test]
    fn json_is_the_same_value_without_active_characters() {
        let value = serde_json::json!({ "a\u{7f}": "\u{9b}31m\u{202e}\u{feff}\u{fffe} \u{e9}\u{1f600}\n" });
        let mut escaped = Vec::new();
        serde_json::to_writer_pretty(Json(&mut escaped), &value).unwrap();
        let text = String::from_utf8(escaped).unwrap();
        assert!(text.contains("\\u009b31m\\u202e\\ufeff\\ufffe \u{e9}\u{1f600}\\n"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
