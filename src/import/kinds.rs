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

/// Other files, by their beginnings.
const FOREIGN: [(&[u8], &str, &str); 13] = [
    (&[0x10, 0x00, 0x04, 0x46, 0x78, 0x54, 0x16, 0x00], "a trace", "`heaptrace convert` makes profiles of traces"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "of a trace `heaptrace convert` makes a profile; unpack others with `zstd -d`"),
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
            Kind::Foreign("JSON, but no report of heaptrace", "give the .json that `-o NAME.json` wrote")
        }
        // The keys of the message's fields: numbers 1 to 15, a number or bytes.
        (_, Some(key)) if matches!(key & 7, 0 | 2) && (1..=15).contains(&(key >> 3)) => Kind::MaybePprof,
        _ => Kind::Nothing,
    }
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
        assert_eq!(kind(b""), Kind::Nothing);
    }
}
