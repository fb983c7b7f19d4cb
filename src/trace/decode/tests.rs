use super::*;

/// A trace of words and streams.
#[derive(Default)]
struct Made(Vec<u8>);

impl Made {
    fn begun() -> Self {
        Self::default().word(MAGIC)
    }

    fn word(mut self, word: u64) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn stream(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }

    fn string(self, index: u64, text: &str) -> Self {
        let length = text.len() as u64;
        self.word(2 | (1 + length.div_ceil(8)) << 4 | index << 16 | length << 32).stream(text.as_bytes())
    }

    fn thread(self, index: u64, process: u64, thread: u64) -> Self {
        self.word(3 | 3 << 4 | index << 16).word(process).word(thread)
    }

    fn decoder(&self) -> Decoder<&[u8]> {
        Decoder::new(&self.0, false)
    }
}

/// All records, as text.
fn read(made: &Made) -> Result<Vec<String>, String> {
    let mut decoder = made.decoder();
    let mut records = Vec::new();
    while let Some(record) = decoder.next_record().map_err(|error| error.to_string())? {
        records.push(match record {
            Record::Segment => "segment".to_owned(),
            Record::Blob { name, payload } => format!("{name}: {}", String::from_utf8_lossy(payload)),
            Record::Event(event) => {
                let arguments: Vec<_> =
                    event.arguments().iter().map(|a| format!("{}={:?}", a.name.text, a.value)).collect();
                let of = (event.of.process, event.of.thread);
                format!("{} {}/{} {of:?} {}", event.time, event.category.text, event.name.text, arguments.join(" "))
            }
        });
    }
    Ok(records)
}

#[test]
fn strings_and_threads_are_found_by_index_or_inline() {
    let made = Made::begun()
        .string(1, "alloc")
        .string(2, "malloc")
        .string(0x7fff, "addr")
        .thread(255, 7 << 32 | 70, 1 << 32 | 71)
        // an event with two arguments: a pointer, and a number whose name is in the record
        .word(4 | 7 << 4 | 2 << 20 | 255 << 24 | 1 << 32 | 2 << 48)
        .word(1000)
        .word(7 | 2 << 4 | 0x7fff << 16)
        .word(0xdead_beef)
        .word(2 | 2 << 4 | 0x8004 << 16 | 24 << 32)
        .stream(b"size")
        .stream(&[])
        .word(0);
    let mut made = made;
    // the last word was none of the event's
    made.0.truncate(made.0.len() - 8);
    let header = made.0.len() - 6 * 8;
    made.0[header] = 4 | 6 << 4;
    let records = read(&made).unwrap();
    assert_eq!(
        records,
        ["segment", "1000 alloc/malloc (30064771142, 4294967367) addr=Unsigned(3735928559) size=Unsigned(24)"]
    );
}

#[test]
fn words_of_the_vocabulary_are_told_by_their_places() {
    let made = Made::begun()
        .string(9, "size")
        .thread(1, 1, 2)
        .word(4 | 3 << 4 | 1 << 20 | 1 << 24 | 0x8005 << 32)
        .word(5)
        .stream(b"other");
    let mut made = made.word(1 | 1 << 4 | 9 << 16 | 0xffff_fff0 << 32);
    let header = made.0.len() - 4 * 8;
    made.0[header] = 4 | 4 << 4;
    let mut decoder = made.decoder();
    decoder.next_record().unwrap();
    let Some(Record::Event(event)) = decoder.next_record().unwrap() else { panic!() };
    assert_eq!(event.category, Text { text: "other", word: None });
    assert_eq!(
        event.arguments(),
        [Argument { name: Text { text: "size", word: Some(Word::Size) }, value: Value::Signed(-16) }]
    );
}

#[test]
fn a_segment_forgets_strings_and_threads() {
    let event = |made: Made| made.word(4 | 2 << 4 | 1 << 24 | 1 << 32).word(5);
    let made = event(Made::begun().string(1, "alloc").thread(1, 1, 2));
    assert_eq!(read(&made).unwrap().len(), 2);
    let again = event(made.word(MAGIC).thread(1, 1, 2));
    assert_eq!(read(&again).unwrap_err(), "the trace is damaged: at byte 96, string 1, which nothing has registered");
    let again = event(Made::begun().string(1, "alloc"));
    assert_eq!(read(&again).unwrap_err(), "the trace is damaged: at byte 24, thread 1, which nothing has registered");
}

#[test]
fn what_is_not_known_is_skipped() {
    let made = Made::begun()
        // a log record, a blob of another type, a large record, metadata
        .word(9 | 2 << 4)
        .word(77)
        .word(5 | 2 << 4 | 0x8003 << 16 | 3 << 48)
        .stream(b"abc")
        .word(15 | 3 << 4)
        .word(1)
        .word(2)
        .word(9 << 16 | 1 << 4)
        .word(5 | 3 << 4 | 0x8003 << 16 | 4 << 32 | 1 << 48)
        .stream(b"abc")
        .stream(b"true");
    assert_eq!(read(&made).unwrap(), ["segment", "abc: true"]);
}

#[test]
fn the_clock_is_told_or_nanoseconds() {
    let made = Made::begun().word(1 | 2 << 4).word(1_000_000).thread(1, 1, 1).word(MAGIC);
    let mut decoder = made.decoder();
    decoder.next_record().unwrap();
    assert_eq!(decoder.ticks().get(), 1_000_000_000);
    decoder.next_record().unwrap();
    assert_eq!(decoder.next_record().unwrap(), None);
    assert_eq!(decoder.ticks().get(), 1_000_000_000, "of the second segment");
    let zero = Made::begun().word(1 | 2 << 4).word(0);
    assert!(read(&zero).unwrap_err().ends_with("zero ticks per second"));
}

#[test]
fn a_trace_reads_up_to_its_tear() {
    let whole = Made::begun().word(5 | 3 << 4 | 0x8001 << 16 | 1 << 32 | 1 << 48).stream(b"a").stream(b"1");
    let whole = whole.word(5 | 3 << 4 | 0x8001 << 16 | 1 << 32 | 1 << 48).stream(b"b").stream(b"2");
    for length in 8..=whole.0.len() {
        let torn = Made(whole.0[..length].to_vec());
        let mut decoder = torn.decoder();
        let mut records = 0;
        while decoder.next_record().unwrap().is_some() {
            records += 1;
        }
        let ends = [8, 32, 56];
        assert_eq!(records, ends.iter().filter(|end| **end <= length).count(), "{length}");
        let last = ends.iter().rfind(|end| **end <= length).copied().unwrap();
        let tear = (last != length).then_some(Tear { offset: last as u64 });
        assert_eq!(decoder.tear(), tear, "{length}");
    }
    // a power failure leaves zeros
    let mut zeros = Made(whole.0[..32].to_vec());
    zeros.0.resize(10_000, 0);
    let mut decoder = zeros.decoder();
    while decoder.next_record().unwrap().is_some() {}
    assert_eq!(decoder.tear(), Some(Tear { offset: 32 }));
    zeros.0[9_000] = 1;
    assert_eq!(read(&zeros).unwrap_err(), "the trace is damaged: at byte 32, a record of no length");
}

#[test]
fn other_files_are_told_from_traces() {
    assert_eq!(read(&Made::default()).unwrap_err(), "the file is empty");
    for foreign in [&b"\x7fELF"[..], b"{\"version\": 3, \"mode\": \"run\"}", &[0; 100]] {
        let error = read(&Made(foreign.to_vec())).unwrap_err();
        assert_eq!(error, "this is not a trace: it does not begin as a Fuchsia trace (.fxt) does");
    }
}

#[test]
fn lengths_that_lie_are_told() {
    for (damaged, what) in [
        // a string that is longer than its record
        (
            Made::begun().word(2 | 2 << 4 | 1 << 16 | 100 << 32).word(0),
            "a record that is too short for what it says to hold",
        ),
        (Made::begun().word(2 | 2 << 4 | 1 << 16 | 2 << 32).stream(b"\xff\xff"), "a string that is not UTF-8"),
        (
            Made::begun().thread(1, 1, 1).word(4 | 3 << 4 | 1 << 20 | 1 << 24).word(1).word(2),
            "an argument of no length",
        ),
        (
            Made::begun().thread(1, 1, 1).word(4 | 3 << 4 | 1 << 20 | 1 << 24).word(1).word(2 | 2 << 4),
            "a record that is too short for what it says to hold",
        ),
        (
            Made::begun().thread(1, 1, 1).word(4 | 1 << 4 | 1 << 24),
            "a record that is too short for what it says to hold",
        ),
    ] {
        let error = read(&damaged).unwrap_err();
        assert!(error.ends_with(what), "{error}");
    }
    let endless = (1..200).fold(Made::begun(), |made, index| made.string(index, &"x".repeat(31_000)));
    assert!(read(&endless).is_ok());
    let endless = (1..700).fold(Made::begun(), |made, index| made.string(index, &"x".repeat(31_000)));
    assert!(read(&endless).unwrap_err().ends_with("strings of more than 16 MiB"));
    let replaced = (1..2000).fold(Made::begun(), |made, index| made.string(index % 7 + 1, &"x".repeat(31_000)));
    assert!(read(&replaced).is_ok());
}
