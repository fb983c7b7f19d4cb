//! What a file is, by its first bytes.

/// What a file may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An object of JSON.
    Json,
    /// It begins as pprof's message may.
    MaybePprof,
    /// Something else that is known: what, and the way out.
    Foreign(&'static str, &'static str),
    /// Nothing that is known.
    Nothing,
}

/// The first bytes of a frame of zstd (RFC 8878).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// So many bytes tell whether a file is a text.
const TEXT: usize = 512;

/// Other files, by their beginnings.
const FOREIGN: [(&[u8], &str, &str); 13] = [
    (&[0x10, 0x00, 0x04, 0x46, 0x78, 0x54, 0x16, 0x00], "a trace", "`heaptrace convert` makes profiles of traces"),
    (
        &ZSTD,
        "compressed with zstd",
        "of a trace (.fxt.zst) `heaptrace convert` makes a profile; unpack others with `zstd -d`",
    ),
    (b"\x7fELF", "a program", "to profile it: `heaptrace run PROGRAM`"),
    (b"heap profile:", "gperftools' text format", "make a pprof file of it: `pprof -proto PROGRAM FILE > FILE.pb.gz`"),
    (
        b"heap_v2/",
        "jemalloc's text format",
        "make a pprof file of it: `go tool pprof -proto PROGRAM FILE > FILE.pb.gz`",
    ),
    (b"v 1", "a file of heaptrack", "heaptrack_print shows it"),
    (b"desc:", "a file of Massif", "ms_print shows it"),
    (b"<?xml", "XML", "give the .pb.gz or .json of the same run"),
    (b"<svg", "a picture", "give the .pb.gz or .json of the same run"),
    (b"<!DOCTYPE", "a web page", "give the .pb.gz or .json of the same run"),
    (b"heaptrace:", "a text report", "give the .pb.gz or .json of the same run"),
    (b"PK\x03\x04", "a ZIP archive", "unpack it"),
    (&super::unpack::GZIP, "compressed twice", "unpack it once with `gunzip`"),
];

/// Looks at the first bytes.
pub(super) fn kind(content: &[u8]) -> Kind {
    if let Some((_, what, cure)) = FOREIGN.iter().find(|(begin, _, _)| content.starts_with(begin)) {
        return Kind::Foreign(what, cure);
    }
    let first = content.iter().find(|byte| !byte.is_ascii_whitespace());
    match (first, content.first()) {
        (Some(b'{'), _) => Kind::Json,
        (Some(b'['), _) => {
            Kind::Foreign("JSON, but not a report of heaptrace", "give the .json that `-o NAME.json` wrote")
        }
        _ if is_text(content) => Kind::Foreign(
            "text, not a profile",
            "give the .pb.gz or .json that `-o NAME.pb.gz` or `-o NAME.json` wrote",
        ),
        // The keys of the message's fields: numbers 1 to 15, a number or bytes.
        (_, Some(key)) if matches!(key & 7, 0 | 2) && (1..=15).contains(&(key >> 3)) => Kind::MaybePprof,
        _ => Kind::Nothing,
    }
}

/// Whether it begins as a text of some length does: messages of protocol buffers have bytes among their first that no
/// text has.
fn is_text(content: &[u8]) -> bool {
    let start = content.get(..TEXT).unwrap_or(content);
    // The last character may be cut.
    let is_utf8 = std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
    let is_control = |byte: &u8| byte.is_ascii_control() && !b"\t\r\n".contains(byte);
    start.len() >= 8 && is_utf8 && !start.iter().any(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_beginnings() {
        assert_eq!(kind(b"  {\"a\":1}"), Kind::Json);
        assert_eq!(kind(&[0x0a, 0x04, 8, 1, 16, 2]), Kind::MaybePprof);
        assert!(matches!(kind(b"heap profile: 1: 2 [3: 4] @ heap_v2/1"), Kind::Foreign(..)));
        assert_eq!(kind(b"what"), Kind::Nothing);
        assert!(matches!(kind("main;größe 12\nmain;f 3\n".as_bytes()), Kind::Foreign("text, not a profile", _)));
        assert!(matches!(kind(b"[1, 2, 3]"), Kind::Foreign("JSON, but not a report of heaptrace", _)));
        assert_eq!(kind(b"{\"version\": 3}"), Kind::Json);
        assert_eq!(kind(b""), Kind::Nothing);
    }
}
