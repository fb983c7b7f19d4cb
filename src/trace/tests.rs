//! Made-up streams through the writer, and what stands in the bytes.

use super::fxt;
use super::metadata::Function;
use super::recorder::Recorder;
use super::testing::{Memory, session};
use super::vocabulary::Word;
use super::writer::TraceWriter;
use super::*;
use crate::base::addr::{Addr, FunctionId, ImageId, ModuleId, StackId};
use crate::event::{Call, Definition, Event, EventKind, EventSink, Preexisting};
use crate::unwinder::StackNode;
use std::sync::Arc;

fn recorder(output: &Memory, mode: TraceMode) -> Recorder {
    let functions = ["malloc", "free", "realloc"].iter().zip(0..);
    let functions = functions.map(|(name, id)| Function { id, name: (*name).to_owned(), symbol: (*name).to_owned() });
    let writer = TraceWriter::new(Box::new(output.clone()), session(mode), functions.collect(), 1024);
    Recorder::new(writer, mode == TraceMode::Circular, true, Arc::default())
}

const TASK: TaskId = TaskId { tid: 77, serial: 1 };

fn call(function: u16, stack: u32) -> Call {
    Call { function: FunctionId(function), task: TASK, stack: StackId(stack), family: None, align: None, interval: 0 }
}

/// The records of a segment: headers and their words.
fn records(bytes: &[u8]) -> Vec<Vec<u64>> {
    assert_eq!(bytes.len() % 8, 0);
    let words: Vec<u64> = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let mut records = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let size = fxt::record_words(words[at]);
        assert!(size > 0 && at + size <= words.len(), "a record of {size} words at {at}");
        records.push(words[at..at + size].to_vec());
        at += size;
    }
    records
}

fn of_type(records: &[Vec<u64>], kind: u64) -> Vec<&Vec<u64>> {
    records.iter().filter(|record| fxt::record_type(record[0]) == kind).collect()
}

fn tell(reader: &mut dyn EventSink, seq: &mut u64, kind: EventKind) {
    reader.take(&Event { seq: *seq, time_ns: *seq * TICK_NS, kind });
    *seq += 1;
}

fn pairs(reader: &mut dyn EventSink, seq: &mut u64, count: u64) {
    for n in 0..count {
        let block = Addr(0x5555_0000 + n * 32);
        let (size, by) = (24, call(0, 2));
        tell(reader, seq, EventKind::Allocated { block, size, by });
        let (internal, given_size) = (false, None);
        tell(reader, seq, EventKind::Freed { block, internal, given_size, by: call(1, 1) });
    }
}

fn stacks(reader: &mut dyn EventSink) {
    for (id, parent) in [(1, 0), (2, 1), (3, 2)] {
        let node = StackNode { parent: StackId(parent), word: 0x1000 + u64::from(id), module: ModuleId(0) };
        reader.define(&Definition::Stack { id: StackId(id), node });
    }
}

/// The words of each event, taken from the format's description by hand.
#[test]
fn a_segment_begins_with_what_it_is_and_events_are_short() {
    let output = Memory::default();
    let recorder = recorder(&output, TraceMode::Streaming);
    let mut reader = recorder.reader(ProcessId { pid: 5, number: 0 });
    let mut seq = 0;
    let (preexisting, free_stacks) = (Preexisting::None, true);
    tell(&mut *reader, &mut seq, EventKind::Began { image: ImageId(0), preexisting, free_stacks, sample_interval: 0 });
    stacks(&mut *reader);
    pairs(&mut *reader, &mut seq, 1);
    let (old, new) = (Addr(0x5000), Addr(0x6000));
    tell(&mut *reader, &mut seq, EventKind::ReallocBegan { old, by: call(2, 3) });
    tell(&mut *reader, &mut seq, EventKind::ReallocEnded { old, new, size: 1 << 40, by: call(2, 3) });
    assert_eq!(recorder.flush().events, 5);
    let segments = output.segments.lock().unwrap();
    let records = records(&segments[0]);
    assert_eq!(records[0], [fxt::MAGIC]);
    assert_eq!(records[3], [0x21, 1_000_000]);
    let events = of_type(&records, fxt::record::EVENT);
    let sizes: Vec<_> = events.iter().map(|event| event.len() * 8).collect();
    assert_eq!(sizes, [48, 56, 48, 48, 64], "began, malloc, free, realloc_begin, realloc with a size of 64 bits");
    // The header: event, 7 words, an instant, 4 arguments, thread 2 (1 is the process itself).
    assert_eq!((events[1][0] & 0xffff_ffff, events[1][1]), (0x0240_0074, 1));
    assert_eq!(events[1][2] & 0xffff, 0x27, "a pointer of two words");
    assert_eq!(events[1][3], 0x5555_0000);
    assert_eq!((events[1][4] & 0xffff, events[1][4] >> 32), (0x12, 24), "a u32");
    assert_eq!((events[1][5] >> 32, events[1][6] >> 32), (2, 0));
    assert_eq!(of_type(&records, fxt::record::THREAD), [&vec![0x1_0033, 5, 5], &vec![0x2_0033, 5, 1 << 32 | 77]]);
    let strings = of_type(&records, fxt::record::STRING).len();
    assert!(strings < 40, "each is entered once: {strings}");
    let blobs = of_type(&records, fxt::record::BLOB);
    let table = blobs.iter().find(|blob| blob.len() == 1 + 1 + 3 * 3).unwrap();
    assert_eq!(
        table[1..5],
        [3 << 32, 1, 0x1001, 0],
        "image 0, three nodes; the first one's id, parent, word and module"
    );
    assert_eq!(table[5..7], [2 | 1 << 32, 0x1002]);
}

/// What was overwritten does not matter to a segment: it tells the process and the stacks that its events need again.
#[test]
fn each_segment_of_a_circular_trace_can_be_read_by_itself() {
    let output = Memory { segment: Some(4096), ..Memory::default() };
    let recorder = recorder(&output, TraceMode::Circular);
    let mut reader = recorder.reader(ProcessId { pid: 5, number: 0 });
    let mut seq = 0;
    let (preexisting, free_stacks) = (Preexisting::None, true);
    tell(&mut *reader, &mut seq, EventKind::Began { image: ImageId(0), preexisting, free_stacks, sample_interval: 0 });
    let (command, cwd) = (["app".to_owned()], std::path::Path::new("/"));
    let process = crate::event::ProcessDefinition { parent: None, program: "app", command: &command, cwd };
    reader.define(&Definition::Process(process));
    stacks(&mut *reader);
    pairs(&mut *reader, &mut seq, 500);
    assert_eq!(recorder.flush().events, 1001);
    let segments = output.segments.lock().unwrap();
    assert!(segments.len() > 5, "{}", segments.len());
    let mut events = 0;
    for (number, segment) in segments.iter().enumerate() {
        let records = records(segment);
        assert_eq!(records[0], [fxt::MAGIC]);
        let text = String::from_utf8_lossy(segment);
        assert!(text.contains(&format!("\"segment\":{number},")), "{text}");
        let of_segment = of_type(&records, fxt::record::EVENT).len();
        if of_segment == 0 {
            continue;
        }
        assert!(text.contains(&format!("\"next_seq\":{}", if number == 0 { 1 } else { events })), "{number}: {text}");
        events += of_segment;
        let blobs = of_type(&records, fxt::record::BLOB);
        let tables = blobs.iter().filter(|blob| blob.len() as u64 == 2 + 3 * (blob[1] >> 32));
        let nodes: Vec<u64> = tables.flat_map(|blob| blob[2..].chunks(3).map(|node| node[0] & 0xffff_ffff)).collect();
        assert_eq!(nodes, [1, 2], "what the events need, the third one is not needed");
        assert_eq!(of_type(&records, fxt::record::KERNEL_OBJECT).len(), 1);
    }
    assert_eq!(events, 1001);
}

/// Ends and names come last, and are no reason to overwrite events; a counter comes once a millisecond, whatever begins
/// meanwhile.
#[test]
fn the_end_begins_no_segment() {
    let output = Memory { segment: Some(4096), ..Memory::default() };
    let recorder = recorder(&output, TraceMode::Circular);
    let mut reader = recorder.reader(ProcessId { pid: 5, number: 0 });
    let by = call(0, 0);
    for n in 0..2000 {
        let time_ns = n * 100 * TICK_NS;
        reader.take(&Event { seq: n, time_ns, kind: EventKind::Allocated { block: Addr(16 * (n + 1)), size: 1, by } });
        reader.note_live(time_ns, n);
    }
    recorder.begin_end();
    recorder.flush();
    let before = output.segments.lock().unwrap().len();
    let names = metadata::Names { warnings: vec!["x".repeat(100_000)], ..metadata::Names::default() };
    recorder.names(&names);
    recorder.flush();
    let segments = output.segments.lock().unwrap();
    assert_eq!(segments.len(), before);
    let all: Vec<Vec<u64>> = segments.iter().flat_map(|segment| records(segment)).collect();
    let counters = of_type(&all, fxt::record::EVENT).into_iter().filter(|event| fxt::bits(event[0], 16, 19) == 1);
    let times: Vec<u64> = counters.map(|event| event[1]).collect();
    assert!(segments.len() > 20 && times.len() == 200, "{} {}", segments.len(), times.len());
    assert!(times.is_sorted_by(|a, b| a + 1000 <= *b), "{times:?}");
}

/// The thread table has 255 places.
#[test]
fn threads_are_entered_anew_when_the_table_is_full() {
    let output = Memory::default();
    let recorder = recorder(&output, TraceMode::Streaming);
    let mut reader = recorder.reader(ProcessId { pid: 5, number: 0 });
    let mut seq = 0;
    for n in 0..600u32 {
        let task = TaskId { tid: 100 + n.cast_signed(), serial: n + 1 };
        let by = Call { task, ..call(0, 0) };
        tell(&mut *reader, &mut seq, EventKind::Allocated { block: Addr(16 * u64::from(n + 1)), size: 1, by });
    }
    recorder.flush();
    let segments = output.segments.lock().unwrap();
    let mut table = [0; 256];
    let mut seen = Vec::new();
    for record in records(&segments[0]) {
        match fxt::record_type(record[0]) {
            fxt::record::THREAD => table[fxt::bits(record[0], 16, 23) as usize] = record[2],
            fxt::record::EVENT => seen.push(table[fxt::bits(record[0], 24, 31) as usize] >> 32),
            _ => {}
        }
    }
    assert!(seen.into_iter().eq(1..=600), "each event is its own thread's");
}

#[test]
fn what_has_no_room_is_counted_and_the_end_is_still_told() {
    let output = Memory { full: Some(4096), ..Memory::default() };
    let recorder = recorder(&output, TraceMode::Oneshot);
    let mut reader = recorder.reader(ProcessId { pid: 5, number: 0 });
    pairs(&mut *reader, &mut 0, 500);
    recorder.names(&metadata::Names { warnings: vec!["x".repeat(100_000)], ..metadata::Names::default() });
    let written = recorder.flush();
    assert!(written.events > 40 && written.events + written.dropped == 1000, "{written:?}");
    let segments = output.segments.lock().unwrap();
    let records = records(&segments[0]);
    assert_eq!(of_type(&records, fxt::record::EVENT).len() as u64, written.events);
    let parts = of_type(&records, fxt::record::BLOB).len();
    assert_eq!(parts, 2 + 4, "session, functions, and a blob of 100,000 bytes in parts");
    let text = String::from_utf8_lossy(&segments[0]);
    assert_eq!(text.matches(&format!("{}+", Word::NamesBlob.text())).count(), 3);
}

#[test]
fn processes_and_threads_come_back_from_their_ids() {
    for (number, id) in [(0, 1), (1, 4_194_304), (u32::MAX, i32::MAX)] {
        let process = ProcessId { number, pid: id };
        assert_eq!(process_of(process_koid(process)), process);
        let task = TaskId { serial: number, tid: id };
        assert_eq!(task_of(thread_koid(task)), task);
    }
    assert_eq!(process_koid(ProcessId { number: 3, pid: 0x1234 }), 0x3_0000_1234);
}
