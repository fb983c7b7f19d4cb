//! The Fuchsia trace format: records of little-endian 64-bit words, each with a header that holds its type and size.
//!
//! From <https://fuchsia.dev/fuchsia-src/reference/tracing/trace-format>. Bits are counted from the least significant
//! one. What is here serves the writer and the reader; nothing of it knows of heaps.

/// The first word of a trace: the magic number record.
pub const MAGIC: u64 = 0x0016_5478_4604_0010;

/// The largest index of a string in the table; 0 is the empty string.
pub const MAX_STRING_INDEX: u16 = 0x7fff;

/// The most bytes that a string may have: the format's limit, though its length fields have 15 bits.
pub const MAX_STRING_BYTES: usize = 32_000;

/// In a string reference: the string follows in the record, the other bits say its length.
pub const INLINE_STRING: u16 = 0x8000;

/// The largest index of a thread in the table; 0 says that process and thread follow in the record.
pub const MAX_THREAD_INDEX: u8 = 0xff;

/// The largest record, in words, its header included.
pub const MAX_RECORD_WORDS: usize = 0xfff;

/// The most bytes that we put into one blob. Their number has 15 bits, and the record must not grow beyond
/// [`MAX_RECORD_WORDS`] with the name in it.
pub const MAX_BLOB_BYTES: usize = 32_000;

const _: () = assert!(words_of(MAX_BLOB_BYTES) + 2 <= MAX_RECORD_WORDS);

/// The types of records, bits 0 to 3 of a header.
#[allow(missing_docs, reason = "the format's own names")]
pub mod record {
    pub const METADATA: u64 = 0;
    pub const INITIALIZATION: u64 = 1;
    pub const STRING: u64 = 2;
    pub const THREAD: u64 = 3;
    pub const EVENT: u64 = 4;
    pub const BLOB: u64 = 5;
    pub const USERSPACE_OBJECT: u64 = 6;
    pub const KERNEL_OBJECT: u64 = 7;
    pub const SCHEDULING: u64 = 8;
    pub const LOG: u64 = 9;
    pub const LARGE_BLOB: u64 = 15;
}

/// The types of metadata records, bits 16 to 19.
#[allow(missing_docs, reason = "the format's own names")]
pub mod metadata_type {
    pub const PROVIDER_INFO: u64 = 1;
    pub const PROVIDER_SECTION: u64 = 2;
    pub const PROVIDER_EVENT: u64 = 3;
    pub const TRACE_INFO: u64 = 4;
}

/// The types of events, bits 16 to 19.
#[allow(missing_docs, reason = "the format's own names")]
pub mod event_type {
    pub const INSTANT: u64 = 0;
    pub const COUNTER: u64 = 1;
    pub const DURATION_BEGIN: u64 = 2;
    pub const DURATION_END: u64 = 3;
    pub const DURATION_COMPLETE: u64 = 4;
}

/// The types of arguments, bits 0 to 3 of theirs.
#[allow(missing_docs, reason = "the format's own names")]
pub mod argument {
    pub const NULL: u64 = 0;
    pub const I32: u64 = 1;
    pub const U32: u64 = 2;
    pub const I64: u64 = 3;
    pub const U64: u64 = 4;
    pub const DOUBLE: u64 = 5;
    pub const STRING: u64 = 6;
    pub const POINTER: u64 = 7;
    pub const KOID: u64 = 8;
    pub const BOOL: u64 = 9;
}

/// The kinds of kernel objects that have names (`ZX_OBJ_TYPE_…`).
#[allow(missing_docs, reason = "the format's own names")]
pub mod object_type {
    pub const PROCESS: u64 = 1;
    pub const THREAD: u64 = 2;
}

/// The type of a blob that holds data of its writer's.
pub const BLOB_DATA: u64 = 1;

/// The bits `low` to `high`, both included, of a header.
pub const fn bits(word: u64, low: u32, high: u32) -> u64 {
    word >> low & (u64::MAX >> (63 - (high - low)))
}

/// How many words so many bytes fill, the last one padded.
pub const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// The type of a record, by its header.
pub const fn record_type(header: u64) -> u64 {
    bits(header, 0, 3)
}

/// The size of a record in words, by its header; a large blob has 32 bits for it.
pub const fn record_words(header: u64) -> usize {
    if record_type(header) == record::LARGE_BLOB { bits(header, 4, 35) as usize } else { bits(header, 4, 15) as usize }
}

/// A header with nothing but type and size.
pub const fn header(kind: u64, words: usize) -> u64 {
    kind | (words as u64) << 4
}

/// Header of the provider info record; the name follows, padded.
pub const fn provider_info(id: u32, name_bytes: usize) -> u64 {
    header(record::METADATA, 1 + words_of(name_bytes))
        | metadata_type::PROVIDER_INFO << 16
        | (id as u64) << 20
        | (name_bytes as u64) << 52
}

/// The provider section record.
pub const fn provider_section(id: u32) -> u64 {
    header(record::METADATA, 1) | metadata_type::PROVIDER_SECTION << 16 | (id as u64) << 20
}

/// Header of the initialization record; the ticks per second follow.
pub const fn initialization() -> u64 {
    header(record::INITIALIZATION, 2)
}

/// Header of a string record; the bytes follow, padded.
pub const fn string(index: u16, bytes: usize) -> u64 {
    header(record::STRING, 1 + words_of(bytes)) | (index as u64) << 16 | (bytes as u64) << 32
}

/// Header of a thread record; the ids of process and thread follow.
pub const fn thread(index: u8) -> u64 {
    header(record::THREAD, 3) | (index as u64) << 16
}

/// Header of an event of `words` words in all.
pub const fn event(kind: u64, words: usize, arguments: usize, thread: u8, category: u16, name: u16) -> u64 {
    header(record::EVENT, words)
        | kind << 16
        | (arguments as u64) << 20
        | (thread as u64) << 24
        | (category as u64) << 32
        | (name as u64) << 48
}

/// Header of a blob of our own data; the bytes follow, padded.
pub const fn blob(name: u16, bytes: usize) -> u64 {
    header(record::BLOB, 1 + words_of(bytes)) | (name as u64) << 16 | (bytes as u64) << 32 | BLOB_DATA << 48
}

/// Header of a kernel object record of `words` words; the id follows, then the arguments.
pub const fn kernel_object(kind: u64, words: usize, name: u16, arguments: usize) -> u64 {
    header(record::KERNEL_OBJECT, words) | kind << 16 | (name as u64) << 24 | (arguments as u64) << 40
}

/// An argument of one word: type, name and 32 bits of value.
pub const fn small_argument(kind: u64, name: u16, value: u32) -> u64 {
    header(kind, 1) | (name as u64) << 16 | (value as u64) << 32
}

/// Header of an argument of two words; the value follows.
pub const fn wide_argument(kind: u64, name: u16) -> u64 {
    header(kind, 2) | (name as u64) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures taken from the format's description by hand.
    #[test]
    fn headers_have_their_fields_where_the_format_has_them() {
        assert_eq!(MAGIC, header(record::METADATA, 1) | metadata_type::TRACE_INFO << 16 | 0x1654_7846 << 24);
        assert_eq!(provider_info(1, 9), 0x0090_0000_0011_0030);
        assert_eq!(provider_section(1), 0x0012_0010);
        assert_eq!(initialization(), 0x21);
        assert_eq!(string(7, 5), 0x0000_0005_0007_0022);
        assert_eq!(thread(255), 0x00ff_0033);
        assert_eq!(event(event_type::COUNTER, 5, 1, 3, 0x12, 0x7fff), 0x7fff_0012_0311_0054);
        assert_eq!(blob(2, 17), 0x0001_0011_0002_0045);
        assert_eq!(kernel_object(object_type::THREAD, 4, 9, 1), 0x0000_0100_0902_0047);
        assert_eq!(small_argument(argument::U32, 4, 0xdead_beef), 0xdead_beef_0004_0012);
        assert_eq!(wide_argument(argument::POINTER, 4), 0x0004_0027);
    }

    #[test]
    fn sizes_and_types_are_read_back() {
        let event = event(event_type::INSTANT, 7, 4, 1, 2, 3);
        assert_eq!((record_type(event), record_words(event)), (record::EVENT, 7));
        assert_eq!((bits(event, 20, 23), bits(event, 24, 31), bits(event, 48, 63)), (4, 1, 3));
        assert_eq!(bits(u64::MAX, 0, 63), u64::MAX);
        assert_eq!(record_words(0xffff_ff5f), 0xfff_fff5);
    }
}
