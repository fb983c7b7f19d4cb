//! `cargo bench --bench trace`: events a second through the writer of event traces, bytes an event, and events a second
//! through the reader and the heap model, as `heaptrace convert` has them.
//!
//! The stream is made up: a heap of 10,000 blocks that grows and shrinks at random, 2,000 stacks, four threads, about
//! as many frees, a tenth reallocs. Real programs repeat themselves more.

#![allow(clippy::expect_used, clippy::panic, reason = "a benchmark that can't measure must not go on")]

use heaptrace::internal::heap::HeapModel;
use heaptrace::internal::trace::metadata::{Function, Session};
use heaptrace::internal::trace::reader::Reader;
use heaptrace::internal::trace::recorder::Recorder;
use heaptrace::internal::trace::writer::{PIECE, Room, TraceOutput, TraceWriter};
use heaptrace::internal::trace::{
    Call, Definition, Ending, Event, EventKind, FORMAT, Family, FunctionId, ImageId, Preexisting, ProcessId, Replay,
    ReplayOptions, StackId, StackNode, TICK_NS, TaskId, TraceMode,
};
use heaptrace::internal::{Addr, ModuleId};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use zstd::stream::write::Encoder;

const EVENTS: u64 = 4_000_000;
const STACKS: u32 = 2_000;
const ALLOCATIONS: u64 = 10_000_000;

/// Counts bytes, as they are or as zstd leaves them.
enum Output {
    Plain(Count),
    Packed(Encoder<'static, Count>),
    Kept(Arc<Mutex<Vec<u8>>>),
}

/// Where bytes end.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU64>);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Output")
    }
}

impl TraceOutput for Output {
    fn take(&mut self, bytes: &mut Vec<u8>) -> Room {
        match self {
            Self::Plain(count) => count.write_all(bytes),
            Self::Packed(packer) => packer.write_all(bytes),
            Self::Kept(kept) => kept.lock().expect("nobody else writes").write_all(bytes),
        }
        .expect("nothing can fail");
        bytes.clear();
        Room::Enough
    }

    fn begin_segment(&mut self, _: u64) {}
}

/// Numbers without a pattern (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn stream() -> Vec<Event> {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut live: Vec<Addr> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS as usize + 2);
    let mut time_ns = 0;
    let began =
        EventKind::Began { image: ImageId(0), preexisting: Preexisting::None, free_stacks: true, sample_interval: 0 };
    let mut tell = |kind, time_ns| events.push(Event { seq: events.len() as u64, time_ns, kind });
    tell(began, 0);
    let mut told = 0;
    while told < EVENTS {
        time_ns += TICK_NS * (10 + random.below(20));
        let serial = 1 + random.below(4) as u32;
        let task = TaskId { tid: 1000 + serial.cast_signed(), serial };
        let stack = StackId(1 + random.below(u64::from(STACKS)) as u32);
        let by = |function| Call {
            function: FunctionId(function),
            task,
            stack,
            family: Some(Family::Malloc),
            align: None,
            interval: 0,
        };
        let size = 8 << random.below(8);
        let new = Addr(0x5555_5555_0000 + 16 * random.below(1 << 22));
        let old = random.below(1 + live.len() as u64) as usize;
        match (random.below(10), old < live.len()) {
            (0, true) => {
                tell(EventKind::ReallocBegan { old: live[old], by: by(3) }, time_ns);
                tell(EventKind::ReallocEnded { old: live[old], new, size, by: by(3) }, time_ns + TICK_NS * 9);
                live[old] = new;
                told += 2;
            }
            (1..5, true) | (_, true) if live.len() > 10_000 || old.is_multiple_of(3) => {
                let block = live.swap_remove(old);
                tell(EventKind::Freed { block, internal: false, given_size: None, by: by(1) }, time_ns);
                told += 1;
            }
            _ => {
                live.push(new);
                tell(EventKind::Allocated { block: new, size, by: by(0) }, time_ns);
                told += 1;
            }
        }
    }
    events
}

fn session() -> Session {
    Session {
        format: FORMAT,
        heaptrace: "0.1.0".to_owned(),
        session: "0123456789abcdef".to_owned(),
        started_at_unix_ns: 0,
        trace_mode: TraceMode::Streaming,
        segment: 0,
        attached: false,
        engine: "trap".to_owned(),
    }
}

/// Seconds, and bytes at the end.
fn write(events: &[Event], level: Option<i32>) -> (f64, u64) {
    let count = Count::default();
    let output = match level {
        None => Output::Plain(count.clone()),
        Some(level) => Output::Packed(Encoder::new(count.clone(), level).expect("zstd")),
    };
    (write_to(output, events), count.0.load(Ordering::Relaxed))
}

/// The bytes of a trace read again; seconds. `packed`: they are zstd's.
fn read(trace: &[u8], packed: bool, count: usize) -> f64 {
    let begin = Instant::now();
    let input: Box<dyn std::io::Read> = match packed {
        false => Box::new(trace),
        true => Box::new(zstd::stream::read::Decoder::new(trace).expect("zstd")),
    };
    let mut reader = Reader::new(std::io::BufReader::with_capacity(1 << 18, input), packed);
    let mut replay = Replay::new(ReplayOptions::default());
    while let Some(item) = reader.next_item().expect("our own trace") {
        replay.take(item);
    }
    let gaps = reader.gaps();
    let outcome = replay.finish(gaps, Ending::Whole).expect("a process");
    let seconds = begin.elapsed().as_secs_f64();
    let told = outcome.traced.first.snapshot.totals;
    assert!(gaps == Default::default() && told.allocations > count as u64 / 3, "{told:?}");
    seconds
}

/// Seconds.
fn write_to(output: Output, events: &[Event]) -> f64 {
    let names = ["malloc", "free", "calloc", "realloc"].into_iter().zip(0..);
    let functions = names.map(|(name, id)| Function { id, name: name.to_owned(), symbol: name.to_owned() }).collect();
    let begin = Instant::now();
    let writer = TraceWriter::new(Box::new(output), session(), functions, PIECE);
    let recorder = Recorder::new(writer, false, true, Arc::default());
    let mut reader = recorder.reader(ProcessId { pid: 1000, number: 0 });
    for id in 1..=STACKS {
        let parent = StackId(if id % 20 == 1 { 0 } else { id - 1 });
        let node = StackNode { parent, word: 0x40_0000 + 16 * u64::from(id), module: ModuleId(0) };
        reader.define(&Definition::Stack { id: StackId(id), node });
    }
    for event in events {
        reader.take(event);
        reader.note_live(event.time_ns, 1 << 20);
    }
    let written = recorder.flush();
    assert_eq!(written.events, events.len() as u64);
    begin.elapsed().as_secs_f64()
}

/// The tracer's memory depends on live blocks and stacks, not on how many events there were: model and writer after a
/// tenth of ten million allocations and frees, and after all.
fn memory() -> (u64, u64) {
    let packer = Encoder::new(Count::default(), 3).expect("zstd");
    let writer = TraceWriter::new(Box::new(Output::Packed(packer)), session(), Vec::new(), PIECE);
    let mut reader = Recorder::new(writer, false, true, Arc::default()).reader(ProcessId { pid: 1000, number: 0 });
    let mut model = HeapModel::default();
    let mut random = Random(0x1234_5678_9abc_def1);
    let (mut seq, mut first) = (0, 0);
    let mut blocks = [Addr(0); 10_000];
    for n in 0..ALLOCATIONS {
        let task = TaskId { tid: 1000, serial: 1 };
        let stack = StackId(1 + random.below(u64::from(STACKS)) as u32);
        let by = Call { function: FunctionId(0), task, stack, family: None, align: None, interval: 0 };
        let slot = random.below(blocks.len() as u64) as usize;
        let new = Addr(0x5555_5555_0000 + 16 * n);
        let free = EventKind::Freed { block: blocks[slot], internal: false, given_size: None, by };
        let allocation = EventKind::Allocated { block: new, size: 8 << random.below(8), by };
        for kind in [Some(free).filter(|_| blocks[slot] != Addr(0)), Some(allocation)].into_iter().flatten() {
            let event = Event { seq, time_ns: seq * TICK_NS * 10, kind };
            seq += 1;
            model.apply(&event);
            reader.take(&event);
            reader.note_live(event.time_ns, model.live_bytes());
        }
        blocks[slot] = new;
        if n == ALLOCATIONS / 10 {
            first = resident();
        }
    }
    (first, resident())
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc(5)");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

fn main() {
    let (first, last) = memory();
    println!(
        "resident after 1,000,000 allocations {:.1} MiB, after 10,000,000 {:.1} MiB   at most 2 MiB more",
        first as f64 / 1048576.0,
        last as f64 / 1048576.0
    );
    // The tables of blocks find their largest size one after the other: 0.4 MiB in the second million, 0.02 in the
    // tenth.
    assert!(last < first + (2 << 20), "memory grows with the number of events");
    let events = stream();
    let count = events.len() as f64;
    println!("{:<24} {:>14} {:>12}   limit", "event trace", "events/s", "B/event");
    for (name, level) in [(".fxt", None), (".fxt.zst, level 1", Some(1)), (".fxt.zst, level 3", Some(3))] {
        let runs: Vec<(f64, u64)> = (0..3).map(|_| write(&events, level)).collect();
        let best = runs.iter().map(|(seconds, _)| *seconds).fold(f64::INFINITY, f64::min);
        let bytes = runs[0].1 as f64 / count;
        println!("{name:<24} {:>14.0} {bytes:>12.1}   at least 2,000,000 events/s", count / best);
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    write_to(Output::Kept(Arc::clone(&kept)), &events);
    let plain = std::mem::take(&mut *kept.lock().expect("nobody else writes"));
    let packed = zstd::encode_all(&plain[..], 3).expect("zstd");
    println!("{:<24} {:>14}   goal", "convert", "events/s");
    for (name, trace, is_packed) in [(".fxt", &plain, false), (".fxt.zst", &packed, true)] {
        let best = (0..3).map(|_| read(trace, is_packed, events.len())).fold(f64::INFINITY, f64::min);
        println!("{name:<24} {:>14.0}   2,000,000 events/s", count / best);
    }
}
