//! `.firefox.json`: the Firefox Profiler's own format, "processed profile", version 55, as `src/types/profile.ts` of
//! firefox-devtools/profiler describes it; later versions of the profiler bring it up to date when they load it.
//!
//! The crate `fxprof-processed-profile` (0.8.1) writes this format, too, but neither source files nor lines nor inlined
//! calls, so that the tables are written here; a test holds their shape against what the crate writes.
//!
//! The format has single allocations and frees, and a profile has sums. What can be told by the profiler's ways to sum
//! them up is exact: what was allocated, what is retained, what was freed, each by the stack that allocated or freed.
//! Addresses are numbers that tie a free to its allocation; which free gave back what is not known. All events have one
//! of three times: the start, the peak, the end.

use self::tables::{Libraries, Tables};
use super::escape::{Json, printable};
use super::gzip;
use super::sections::is_held;
use super::text::{grouped, shell_words};
use super::view::View;
use crate::profile::value::Value as Amounts;
use crate::profile::{Profile, Sample};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::UNIX_EPOCH;

mod tables;

/// The version of the format.
const VERSION: u32 = 55;

/// So many threads have a track each: those that have allocated most.
const MAX_THREADS: usize = 100;

/// The track of what was live at the peak.
const AT_PEAK: &str = "Live at the peak";

/// The types of markers.
const MARK: &str = "Mark";
const PEAK: &str = "Peak";

/// Writes the file, on one line.
///
/// # Errors
/// What `out` says.
pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(Json(&mut *out), &build(view))?;
    out.write_all(b"\n")
}

/// The same, compressed.
///
/// # Errors
/// What `out` says.
pub(super) fn write_gz(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    write(view, &mut bytes)?;
    gzip::write(&bytes, out)
}

#[derive(Serialize)]
struct Whole {
    meta: Value,
    libs: Vec<tables::Lib>,
    threads: Vec<Thread>,
    pages: [u8; 0],
    #[serde(rename = "profilerOverhead")]
    overhead: [u8; 0],
    counters: Vec<Value>,
}

/// A track. The first one has all threads of the program, the second one the heap at its peak; those of single threads
/// follow.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    name: String,
    is_main_thread: bool,
    process_name: String,
    process_type: &'static str,
    process_startup_time: f64,
    process_shutdown_time: Option<f64>,
    register_time: f64,
    unregister_time: Option<f64>,
    paused_ranges: [u8; 0],
    show_markers_in_timeline: bool,
    pid: String,
    tid: String,
    samples: Value,
    native_allocations: Allocations,
    markers: Markers,
    #[serde(flatten)]
    tables: Tables,
}

/// Events, the earliest first.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Allocations {
    /// Milliseconds since recording began.
    time: Vec<f64>,
    /// Bytes; negative for frees.
    weight: Vec<i64>,
    weight_type: &'static str,
    stack: Vec<Option<usize>>,
    /// What an allocation and its free have in common, and no address.
    memory_address: Vec<u64>,
    thread_id: Vec<u8>,
    length: usize,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Markers {
    length: usize,
    category: Vec<u8>,
    data: Vec<Value>,
    name: Vec<usize>,
    /// 0: a moment.
    phase: Vec<u8>,
    start_time: Vec<f64>,
    end_time: Vec<Option<f64>>,
}

fn build(view: &View<'_>) -> Whole {
    let profile = view.profile;
    let mut libraries = Libraries::default();
    let all = sums(view, |_| true);
    let mut main = track(view, &mut libraries, &profile.meta.process.program, &all, events);
    main.is_main_thread = true;
    for (time, name, data) in marks(profile) {
        main.markers.add(main.tables.string(&name), time, data);
    }
    let mut threads = vec![main];
    if is_held(profile, Amounts::Peak) {
        threads.push(track(view, &mut libraries, AT_PEAK, &all, at_peak));
    }
    let names = threads_of(view);
    for (name, key) in names.iter().filter(|_| names.len() > 1) {
        let own = sums(view, |sample| (sample.program, sample.thread) == *key);
        threads.push(track(view, &mut libraries, name, &own, events));
    }
    for (number, thread) in threads.iter_mut().enumerate() {
        thread.tid = match number {
            0 => thread.pid.clone(),
            _ => format!("{}.{number}", thread.pid),
        };
    }
    Whole {
        meta: meta(profile, threads.len()),
        libs: libraries.into_list(),
        threads,
        pages: [],
        overhead: [],
        counters: vec![live_bytes(profile)],
    }
}

fn meta(profile: &Profile, threads: usize) -> Value {
    let process = &profile.meta.process;
    let start = process.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0;
    let interval = match profile.meta.sample_interval {
        0 => "each allocation".to_owned(),
        bytes => format!("about one in {} bytes, scaled up", grouped(bytes)),
    };
    let entry = |label: &str, value: &str| json!({ "label": label, "format": "string", "value": printable(value) });
    let mut entries = vec![entry("Engine", &profile.meta.engine), entry("Recorded", &interval)];
    let missing = profile.saved.as_ref().map(|saved| saved.holds.missing().join(", ")).unwrap_or_default();
    if !missing.is_empty() {
        entries.push(entry("Unknown to the file that this was made of", &missing));
    }
    json!({
        "product": printable(&process.program),
        "importedFrom": format!("heaptrace {}", env!("CARGO_PKG_VERSION")),
        "arguments": printable(&shell_words(&process.command)),
        "preprocessedProfileVersion": VERSION,
        // of Firefox's own profiles; not looked at where there is the one above
        "version": 24,
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        "interval": 1.0,
        "startTime": start,
        "symbolicated": true,
        "pausedRanges": [],
        "oscpu": "Linux x86_64",
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns" },
        "categories": tables::categories(),
        "markerSchema": [
            schema(MARK, &[]),
            schema(PEAK, &[json!({ "key": "live", "label": "Live", "format": "bytes" })]),
        ],
        "extra": [{
            "label": "heaptrace",
            "entries": entries,
        }],
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "keepProfileThreadOrder": true,
        "initialVisibleThreads": (0..threads).collect::<Vec<_>>(),
        "initialSelectedThreads": [0],
    })
}

fn schema(name: &str, fields: &[Value]) -> Value {
    json!({
        "name": name,
        "display": ["marker-chart", "marker-table", "timeline-overview", "timeline-memory"],
        "fields": fields,
    })
}

/// The live bytes as the profiler's memory track has them: differences, and the number of allocations between. The
/// track draws a
/// slope from one sample to the next, and live bytes are steps: what was live stands once more right before each
/// change.
fn live_bytes(profile: &Profile) -> Value {
    let (mut times, mut counts, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    let last = (profile.meta.duration_ns, profile.totals.live_bytes, profile.totals.allocations);
    let points = profile.timeline.iter().map(|point| (point.t_ns, point.live_bytes, point.allocations));
    let mut before = (0, 0, 0);
    for (t_ns, live, allocations) in points.chain([last]) {
        let t_ns = t_ns.max(before.0);
        if live != before.1 && t_ns - before.0 > 1 {
            times.push(milliseconds(t_ns - 1 - before.0));
            counts.push(0);
            numbers.push(0);
            before.0 = t_ns - 1;
        }
        times.push(milliseconds(t_ns - before.0));
        counts.push(signed(live) - signed(before.1));
        numbers.push(allocations.saturating_sub(before.2));
        before = (t_ns, live, allocations);
    }
    json!({
        "name": "malloc",
        "category": "Memory",
        "description": "Live bytes",
        "mainThreadIndex": 0,
        "pid": profile.meta.process.pid.to_string(),
        "samples": { "length": times.len(), "timeDeltas": times, "count": counts, "number": numbers },
    })
}

/// What is marked on the first track: time, name, data.
fn marks(profile: &Profile) -> Vec<(f64, String, Value)> {
    let totals = &profile.totals;
    let peak = (totals.peak_at_ns, "peak".to_owned(), json!({ "type": PEAK, "live": totals.peak_bytes }));
    let marks = profile.course.marks.iter().map(|(t_ns, name)| (*t_ns, printable(name), json!({ "type": MARK })));
    let peak = is_held(profile, Amounts::Peak).then_some(peak);
    let mut all: Vec<(u64, String, Value)> = marks.chain(peak).collect();
    all.sort_by_key(|(t_ns, ..)| *t_ns);
    all.into_iter().map(|(t_ns, name, data)| (milliseconds(t_ns), name, data)).collect()
}

impl Markers {
    fn add(&mut self, name: usize, time: f64, data: Value) {
        self.length += 1;
        self.category.push(tables::OTHER);
        self.data.push(data);
        self.name.push(name);
        self.phase.push(0);
        self.start_time.push(time);
        self.end_time.push(None);
    }
}

/// What happened on one stack, in bytes.
#[derive(Default)]
struct Sums {
    stack: usize,
    allocated: u64,
    live: u64,
    at_peak: u64,
    /// Freed on this stack, wherever allocated.
    deallocated: u64,
}

/// The sums of the samples that are `wanted`, by stack.
fn sums(view: &View<'_>, wanted: impl Fn(&Sample) -> bool) -> Vec<Sums> {
    let mut all: Vec<Sums> = Vec::new();
    let mut places: FxHashMap<usize, usize> = FxHashMap::default();
    for sample in view.samples.iter().filter(|sample| wanted(sample)) {
        let place = *places.entry(sample.stack).or_insert(all.len());
        if place == all.len() {
            all.push(Sums { stack: sample.stack, ..Sums::default() });
        }
        if let Some(sums) = all.get_mut(place) {
            for (sum, amount) in [
                (&mut sums.allocated, sample.allocated),
                (&mut sums.live, sample.live),
                (&mut sums.at_peak, sample.at_peak),
                (&mut sums.deallocated, sample.deallocated),
            ] {
                *sum = sum.saturating_add(amount.bytes);
            }
        }
    }
    all
}

/// A thread's program and name, by their numbers.
type ThreadKey = (Option<usize>, usize);

/// The threads that have a track of their own, what they are called, and what their samples have: those that allocated
/// most come first.
fn threads_of(view: &View<'_>) -> Vec<(String, ThreadKey)> {
    let mut bytes: FxHashMap<ThreadKey, u64> = FxHashMap::default();
    for sample in view.samples.iter() {
        let sum = bytes.entry((sample.program, sample.thread)).or_default();
        *sum = sum.saturating_add(sample.allocated.bytes.max(sample.live.bytes));
    }
    let mut all: Vec<(ThreadKey, u64)> = bytes.into_iter().collect();
    all.sort_by_key(|(key, bytes)| (std::cmp::Reverse(*bytes), *key));
    let named = all.into_iter().take(MAX_THREADS).map(|((program, thread), _)| {
        let name = view.string(thread);
        let name = match program {
            Some(program) => format!("{}: {name}", view.string(program)),
            None => name.to_owned(),
        };
        (name, (program, thread))
    });
    named.collect()
}

/// A track of what `sums` say, as `fill` tells it.
fn track(
    view: &View<'_>,
    libraries: &mut Libraries,
    name: &str,
    sums: &[Sums],
    fill: impl Fn(&Profile, &[Sums], &mut Events),
) -> Thread {
    let (meta, mut tables) = (&view.profile.meta, Tables::default());
    let mut events = Events::default();
    fill(view.profile, sums, &mut events);
    let end = meta.process.exit.map(|_| milliseconds(meta.duration_ns));
    let mut allocations = Allocations { weight_type: "bytes", ..Allocations::default() };
    // the profiler looks for a part of the time by halving: the sort keeps an allocation before its free
    events.list.sort_by_key(|event| event.t_ns);
    for event in events.list {
        allocations.time.push(milliseconds(event.t_ns));
        allocations.weight.push(event.bytes);
        allocations.stack.push(event.stack.map(|stack| tables.stack(view, libraries, stack)));
        allocations.memory_address.push(event.address);
        allocations.thread_id.push(0);
    }
    allocations.length = allocations.time.len();
    Thread {
        name: printable(name),
        is_main_thread: false,
        process_name: printable(&meta.process.program),
        process_type: "default",
        process_startup_time: 0.0,
        process_shutdown_time: end,
        register_time: 0.0,
        unregister_time: end,
        paused_ranges: [],
        show_markers_in_timeline: true,
        pid: meta.process.pid.to_string(),
        tid: String::new(),
        samples: json!({ "length": 0, "weightType": "samples", "weight": [], "stack": [], "timeDeltas": [] }),
        native_allocations: allocations,
        markers: Markers::default(),
        tables,
    }
}

/// An allocation, or a free.
struct Event {
    t_ns: u64,
    stack: Option<usize>,
    /// Negative for a free.
    bytes: i64,
    address: u64,
}

#[derive(Default)]
struct Events {
    list: Vec<Event>,
    addresses: u64,
}

impl Events {
    /// An address that nothing had before.
    fn next(&mut self) -> u64 {
        self.addresses += 1;
        self.addresses
    }

    fn allocate(&mut self, t_ns: u64, stack: usize, bytes: u64) -> u64 {
        let address = self.next();
        if bytes > 0 {
            self.list.push(Event { t_ns, stack: Some(stack), bytes: signed(bytes), address });
        }
        address
    }

    fn free(&mut self, t_ns: u64, stack: Option<usize>, bytes: u64, address: u64) {
        self.list.push(Event { t_ns, stack, bytes: -signed(bytes), address });
    }
}

/// The heap at the peak.
fn at_peak(profile: &Profile, sums: &[Sums], events: &mut Events) {
    for site in sums {
        events.allocate(profile.totals.peak_at_ns, site.stack, site.at_peak);
    }
}

/// All that was allocated and freed: at the start what is live at the peak, and what is gone again by then; at the end
/// what has changed since the peak.
fn events(profile: &Profile, sums: &[Sums], events: &mut Events) {
    let end = profile.meta.duration_ns;
    let mut freed: Vec<(u64, usize, u64)> = Vec::new();
    for site in sums {
        let kept = site.at_peak.min(site.live);
        let (gone, late) = (site.at_peak - kept, site.live - kept);
        // what came over a fork, or was there before, was not allocated here, and counts as if it was
        let passing = site.allocated.saturating_sub(site.at_peak).saturating_sub(late);
        events.allocate(0, site.stack, kept);
        events.allocate(end, site.stack, late);
        freed.extend([(0, site.stack, passing), (end, site.stack, gone)]);
    }
    let mut frees = sums.iter().filter(|site| site.deallocated > 0).map(|site| (site.stack, site.deallocated));
    let mut free = frees.next();
    for (t_ns, stack, mut bytes) in freed {
        while bytes > 0 {
            // as much as this stack has freed; where that is not known, the rest
            let part = free.map_or(bytes, |(_, most)| most.min(bytes));
            let address = events.allocate(0, stack, part);
            events.free(t_ns, free.map(|(stack, _)| stack), part, address);
            bytes -= part;
            free = match free {
                Some((stack, most)) if most > part => Some((stack, most - part)),
                _ => frees.next(),
            };
        }
    }
    // of blocks that are not known, or other threads' ones
    for (stack, bytes) in free.into_iter().chain(frees) {
        let address = events.next();
        events.free(end, Some(stack), bytes, address);
    }
}

/// Nanoseconds as the format has them.
fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
