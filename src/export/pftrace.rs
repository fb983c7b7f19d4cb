//! Perfetto's trace format: a heap profile at the end and one at the peak, and the live bytes as a counter over time.
//!
//! Rules that are not obvious, each read in the source of Perfetto's trace processor:
//! * The times of heap profiles are those of the clock MONOTONIC_COARSE. Without a snapshot of the clocks they can't be
//!   placed, and the profile is left out; so all clocks are said to show the time of day.
//! * What is live is told as the difference of what was allocated and what was freed, since the sequence of packets
//!   began. The heap at the peak therefore has a sequence, and a name, of its own.
//! * Counts of blocks at the peak count only where `orig_sampling_interval_bytes` is set.
//! * A frame is one function: inlined calls are frames of the same address.
//! * A frame whose mapping is not interned makes its whole stack vanish: those of no module have a mapping of their
//!   own.
//! * Packets of heaps are numbered through in their sequence. A stack's figures are sums since the sequence began: one
//!   that is less than before is left out. Stacks of equal frames (module, address, function) are one stack.

use super::escape::printable;
use super::proto::perfetto::{
    Callstack, ClockSnapshot, CounterDescriptor, Frame, InternedData, InternedString, Mapping, ProcessDescriptor,
    ProfilePacket, TracePacket, TrackDescriptor, TrackEvent, clock_snapshot, counter_descriptor, profile_packet,
    track_event,
};
use super::view::{UNKNOWN_STACK, View};
use crate::profile::{Amount, ModuleInfo, Profile};
use prost::Message;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::UNIX_EPOCH;

/// What the heap is called in which `malloc` and its kin allocate; Perfetto shows native heaps under this name.
const HEAP: &str = "libc.malloc";

/// The heap as it was at the peak.
const HEAP_AT_PEAK: &str = "libc.malloc at its peak";

/// The clocks of a snapshot: REALTIME, MONOTONIC, MONOTONIC_COARSE and BOOTTIME.
const CLOCKS: [u32; 4] = [1, 3, 4, 6];

/// Numbers of the sequences of packets: counters, the heaps at snapshots and at the end, the heap at the peak.
const COUNTERS: u32 = 1;
const HEAPS: u32 = 2;
const AT_PEAK: u32 = 3;

/// Tracks: the process, its live bytes, the most memory that was resident, its resident memory.
const PROCESS: u64 = 1;
const LIVE_BYTES: u64 = 2;
const MAX_RESIDENT: u64 = 3;
const RESIDENT: u64 = 4;

/// The module of frames that lie in none.
const NO_MODULE: &str = "[no module]";

/// Bits of `sequence_flags`.
const BEGINS: u32 = 1;
const CONTINUES: u32 = 2;

/// What stands before the length of each packet: field 1 of `Trace`, of a length of its own.
const PACKET: u8 = 1 << 3 | 2;

/// How many stacks one packet holds at most.
const STACKS: usize = 1000;

/// Writes the trace, packet by packet.
pub(crate) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut out = Packets(out);
    let clock = Clock::of(view.profile);
    out.packet(&TracePacket {
        timestamp: clock.start,
        trusted_packet_sequence_id: COUNTERS,
        sequence_flags: BEGINS,
        clock_snapshot: Some(ClockSnapshot {
            clocks: CLOCKS.map(|clock_id| clock_snapshot::Clock { clock_id, timestamp: clock.start }).into(),
        }),
        ..TracePacket::default()
    })?;
    write_counters(view.profile, clock, &mut out)?;
    let sites = sites(view);
    let time = clock.at(view.profile.totals.peak_at_ns);
    let at_peak: Vec<_> = sites.iter().map(|site| (site.stack, site.at_peak)).collect();
    Heaps::new(AT_PEAK, HEAP_AT_PEAK, view, clock).at_peak(time, &at_peak, &mut out)?;
    let mut heaps = Heaps::new(HEAPS, HEAP, view, clock);
    let end_ns = view.profile.meta.duration_ns;
    for heap in view.profile.course.heaps.iter().filter(|heap| heap.t_ns < end_ns) {
        heaps.at(clock.at(heap.t_ns), &heap.stacks, &mut out)?;
    }
    let at_end: Vec<_> = sites.iter().map(|site| (site.stack, site.allocated, site.live)).collect();
    heaps.at(clock.at(end_ns), &at_end, &mut out)
}

/// Writes packets one after the other: a file is a message that consists of nothing else.
struct Packets<'a>(&'a mut dyn Write);

impl Packets<'_> {
    fn packet(&mut self, packet: &TracePacket) -> io::Result<()> {
        self.0.write_all(&[PACKET])?;
        self.0.write_all(&packet.encode_length_delimited_to_vec())
    }
}

/// The time of day, in nanoseconds since 1970, at which recording began.
#[derive(Clone, Copy)]
struct Clock {
    start: u64,
}

impl Clock {
    fn of(profile: &Profile) -> Self {
        let since = profile.meta.process.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: u64::try_from(since.as_nanos()).unwrap_or(0) }
    }

    /// The time of day of a moment. Times are signed 64-bit numbers to readers.
    fn at(self, since_start_ns: u64) -> u64 {
        self.start.saturating_add(since_start_ns).min(i64::MAX as u64)
    }
}

/// The process, and its counters over time.
fn write_counters(profile: &Profile, clock: Clock, out: &mut Packets<'_>) -> io::Result<()> {
    let process = &profile.meta.process;
    let sequence = TracePacket {
        timestamp: clock.start,
        trusted_packet_sequence_id: COUNTERS,
        sequence_flags: CONTINUES,
        ..TracePacket::default()
    };
    let describe = |descriptor| TracePacket { track_descriptor: Some(descriptor), ..sequence.clone() };
    out.packet(&describe(TrackDescriptor {
        uuid: PROCESS,
        process: Some(ProcessDescriptor {
            pid: process.pid,
            cmdline: process.command.iter().map(|word| printable(word)).collect(),
            process_name: printable(&process.program),
        }),
        ..TrackDescriptor::default()
    }))?;
    let counter = |uuid, name: &str| TrackDescriptor {
        uuid,
        name: name.to_owned(),
        parent_uuid: PROCESS,
        counter: Some(CounterDescriptor { unit: counter_descriptor::Unit::SizeBytes.into() }),
        ..TrackDescriptor::default()
    };
    let value = |track_uuid, time, bytes: u64| TracePacket {
        timestamp: time,
        track_event: Some(TrackEvent {
            r#type: track_event::Type::Counter.into(),
            track_uuid,
            counter_value_field: Some(track_event::CounterValueField::CounterValue(
                i64::try_from(bytes).unwrap_or(i64::MAX),
            )),
        }),
        ..sequence.clone()
    };
    out.packet(&describe(counter(LIVE_BYTES, "live bytes")))?;
    for point in &profile.timeline {
        out.packet(&value(LIVE_BYTES, clock.at(point.t_ns), point.live_bytes))?;
    }
    let end = clock.at(profile.meta.duration_ns);
    out.packet(&value(LIVE_BYTES, end, profile.totals.live_bytes))?;
    if let Some(resident) = &process.resident {
        out.packet(&describe(counter(MAX_RESIDENT, "most memory resident (RSS)")))?;
        out.packet(&value(MAX_RESIDENT, end, resident.peak_bytes))?;
    }
    if !profile.course.resident.is_empty() {
        out.packet(&describe(counter(RESIDENT, "resident memory (RSS)")))?;
    }
    for (t_ns, bytes) in &profile.course.resident {
        out.packet(&value(RESIDENT, clock.at(*t_ns).min(end), *bytes))?;
    }
    Ok(())
}

/// What happened on one stack.
#[derive(Clone, Copy, Default)]
struct Site {
    stack: usize,
    allocated: Amount,
    live: Amount,
    at_peak: Amount,
}

/// The sums over threads, functions and sizes, by stack.
fn sites(view: &View<'_>) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    let mut places: FxHashMap<usize, usize> = FxHashMap::default();
    for sample in view.samples.iter() {
        let place = *places.entry(sample.stack).or_insert(sites.len());
        if place == sites.len() {
            sites.push(Site { stack: sample.stack, ..Site::default() });
        }
        if let Some(site) = sites.get_mut(place) {
            site.allocated = site.allocated.plus(sample.allocated);
            site.live = site.live.plus(sample.live);
            site.at_peak = site.at_peak.plus(sample.at_peak);
        }
    }
    sites
}

/// Heaps of one name, one after the other. Readers take the differences from one to the next, for each stack, and leave
/// out whatever is less than before; and number packets through all of them.
struct Heaps<'a> {
    sequence: u32,
    name: &'static str,
    clock: Clock,
    tables: Tables<'a>,
    /// Whether a packet was written.
    begun: bool,
    /// The number of the next packet with a heap.
    index: u64,
    /// By the id of a stack: what it had in all, and what was freed of that, when it was told the last time.
    told: FxHashMap<u64, (Amount, Amount)>,
}

impl<'a> Heaps<'a> {
    fn new(sequence: u32, name: &'static str, view: &'a View<'a>, clock: Clock) -> Self {
        Self { sequence, name, clock, tables: Tables::new(view), begun: false, index: 0, told: FxHashMap::default() }
    }

    /// Writes the heap of one moment: stacks with what was allocated by then, and what was live.
    fn at(&mut self, time: u64, sites: &[(usize, Amount, Amount)], out: &mut Packets<'_>) -> io::Result<()> {
        let mut sums: BTreeMap<u64, (Amount, Amount)> = BTreeMap::new();
        for (stack, allocated, live) in sites {
            let sum = sums.entry(self.tables.callstack(*stack)).or_default();
            *sum = (sum.0.plus(*allocated), sum.1.plus(*live));
        }
        let samples = sums.into_iter().map(|(callstack_id, (allocated, live))| {
            let last = self.told.entry(callstack_id).or_default();
            let all = |allocated: u64, live: u64, last: u64, last_freed: u64| {
                allocated.max(live).max(last).max(last_freed.saturating_add(live))
            };
            let objects = all(allocated.objects, live.objects, last.0.objects, last.1.objects);
            let bytes = all(allocated.bytes, live.bytes, last.0.bytes, last.1.bytes);
            let freed = Amount { objects: objects - live.objects, bytes: bytes - live.bytes };
            *last = (Amount { objects, bytes }, freed);
            profile_packet::HeapSample {
                callstack_id,
                self_allocated: bytes,
                self_freed: freed.bytes,
                alloc_count: objects,
                free_count: freed.objects,
                ..profile_packet::HeapSample::default()
            }
        });
        let samples: Vec<_> = samples.filter(|sample| sample.alloc_count > 0).collect();
        self.write(time, samples, out)
    }

    /// Writes the heap at the peak: stacks with what was live then.
    fn at_peak(&mut self, time: u64, sites: &[(usize, Amount)], out: &mut Packets<'_>) -> io::Result<()> {
        let mut sums: BTreeMap<u64, Amount> = BTreeMap::new();
        for (stack, live) in sites.iter().filter(|(_, live)| live.objects > 0) {
            let sum = sums.entry(self.tables.callstack(*stack)).or_default();
            *sum = sum.plus(*live);
        }
        let samples = sums.into_iter().map(|(callstack_id, live)| profile_packet::HeapSample {
            callstack_id,
            self_max: Some(live.bytes),
            self_max_count: live.objects,
            ..profile_packet::HeapSample::default()
        });
        let samples = samples.collect();
        self.write(time, samples, out)
    }

    /// Writes what is new of functions, frames and stacks, then packets of [`STACKS`] stacks each, at least one.
    fn write(&mut self, time: u64, samples: Vec<profile_packet::HeapSample>, out: &mut Packets<'_>) -> io::Result<()> {
        for new in self.tables.take_new() {
            out.packet(&TracePacket { interned_data: Some(new), ..self.packet(time) })?;
        }
        let meta = &self.tables.view.profile.meta;
        let packets = samples.len().div_ceil(STACKS).max(1);
        for place in 0..packets {
            let interval = meta.sample_interval.max(1);
            let dump = profile_packet::ProcessHeapSamples {
                pid: u64::try_from(meta.process.pid).unwrap_or(0),
                samples: samples.chunks(STACKS).nth(place).unwrap_or_default().to_vec(),
                from_startup: !meta.mode.is_attached(),
                timestamp: time,
                heap_name: self.name.to_owned(),
                sampling_interval_bytes: interval,
                orig_sampling_interval_bytes: interval,
                start_timestamp: self.clock.start,
            };
            let profile_packet =
                ProfilePacket { process_dumps: vec![dump], continued: place + 1 < packets, index: self.index };
            out.packet(&TracePacket { profile_packet: Some(profile_packet), ..self.packet(time) })?;
            self.index += 1;
        }
        Ok(())
    }

    /// The next packet of the sequence, empty.
    fn packet(&mut self, time: u64) -> TracePacket {
        let sequence_flags = if std::mem::replace(&mut self.begun, true) { CONTINUES } else { BEGINS | CONTINUES };
        let trusted_packet_sequence_id = self.sequence;
        TracePacket { timestamp: time, trusted_packet_sequence_id, sequence_flags, ..TracePacket::default() }
    }
}

/// The tables of one sequence, filled as stacks need them. Ids are places plus one.
struct Tables<'a> {
    view: &'a View<'a>,
    /// What was added since the last packet.
    new: InternedData,
    functions: FxHashMap<String, u64>,
    sources: FxHashMap<String, u64>,
    paths: FxHashMap<String, u64>,
    build_ids: FxHashMap<String, u64>,
    mappings: FxHashMap<usize, u64>,
    /// By the profile's location: the frames, outermost first.
    frames: FxHashMap<usize, Vec<u64>>,
    /// By mapping, address and function.
    known_frames: FxHashMap<(u64, u64, u64), u64>,
    /// By the profile's stack.
    stacks: FxHashMap<usize, u64>,
    /// By frames.
    callstacks: FxHashMap<Vec<u64>, u64>,
    unknown: Option<u64>,
}

impl<'a> Tables<'a> {
    fn new(view: &'a View<'a>) -> Self {
        Self {
            view,
            new: InternedData::default(),
            functions: FxHashMap::default(),
            sources: FxHashMap::default(),
            paths: FxHashMap::default(),
            build_ids: FxHashMap::default(),
            mappings: FxHashMap::default(),
            frames: FxHashMap::default(),
            known_frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
            callstacks: FxHashMap::default(),
            unknown: None,
        }
    }

    /// What was added since the last time, in pieces that fit into a packet each.
    fn take_new(&mut self) -> Vec<InternedData> {
        let new = std::mem::take(&mut self.new);
        let (mut function_names, mut source_paths) = (new.function_names.into_iter(), new.source_paths.into_iter());
        let (mut mapping_paths, mut build_ids) = (new.mapping_paths.into_iter(), new.build_ids.into_iter());
        let (mut mappings, mut frames) = (new.mappings.into_iter(), new.frames.into_iter());
        let mut callstacks = new.callstacks.into_iter();
        let mut pieces = Vec::new();
        loop {
            let piece = InternedData {
                function_names: first(&mut function_names),
                source_paths: first(&mut source_paths),
                mapping_paths: first(&mut mapping_paths),
                build_ids: first(&mut build_ids),
                mappings: first(&mut mappings),
                frames: first(&mut frames),
                callstacks: first(&mut callstacks),
            };
            if piece == InternedData::default() {
                return pieces;
            }
            pieces.push(piece);
        }
    }

    /// The id of a stack, which is added if it is new.
    fn callstack(&mut self, stack: usize) -> u64 {
        if let Some(id) = self.stacks.get(&stack) {
            return *id;
        }
        let view = self.view;
        let mut frame_ids = Vec::new();
        for location in view.locations(stack).rev() {
            frame_ids.extend_from_slice(self.location(location));
        }
        if frame_ids.is_empty() {
            frame_ids.push(self.unknown());
        }
        let next = self.callstacks.len() as u64 + 1;
        let iid = *self.callstacks.entry(frame_ids.clone()).or_insert(next);
        if iid == next {
            self.new.callstacks.push(Callstack { iid, frame_ids });
        }
        self.stacks.insert(stack, iid);
        iid
    }

    fn location(&mut self, location: usize) -> &[u64] {
        if !self.frames.contains_key(&location) {
            let mut frames: Vec<u64> = Vec::new();
            for frame in self.view.location_frames(location) {
                let (mapping_id, rel_pc) = match frame.location.zip(frame.location.and_then(|place| place.module)) {
                    Some((place, module)) => (self.mapping(module), place.offset),
                    None => (self.no_module(), 0),
                };
                let function_name_id = intern(&mut self.functions, &mut self.new.function_names, frame.name);
                let source_path_iid =
                    frame.file.map_or(0, |file| intern(&mut self.sources, &mut self.new.source_paths, file));
                let line_number = if source_path_iid == 0 { 0 } else { frame.line };
                frames.push(self.frame(Frame {
                    function_name_id,
                    mapping_id,
                    rel_pc,
                    source_path_iid,
                    line_number,
                    ..Frame::default()
                }));
            }
            frames.reverse();
            self.frames.insert(location, frames);
        }
        self.frames.get(&location).map_or(&[], Vec::as_slice)
    }

    fn frame(&mut self, frame: Frame) -> u64 {
        let next = self.known_frames.len() as u64 + 1;
        let identity = (frame.mapping_id, frame.rel_pc, frame.function_name_id);
        let iid = *self.known_frames.entry(identity).or_insert(next);
        if iid == next {
            self.new.frames.push(Frame { iid, ..frame });
        }
        iid
    }

    fn unknown(&mut self) -> u64 {
        if let Some(id) = self.unknown {
            return id;
        }
        let function_name_id = intern(&mut self.functions, &mut self.new.function_names, UNKNOWN_STACK);
        let mapping_id = self.no_module();
        let id = self.frame(Frame { function_name_id, mapping_id, ..Frame::default() });
        self.unknown = Some(id);
        id
    }

    /// The id of the mapping of frames that lie in no module.
    fn no_module(&mut self) -> u64 {
        let next = self.mappings.len() as u64 + 1;
        let iid = *self.mappings.entry(usize::MAX).or_insert(next);
        if iid == next {
            let path_string_ids = vec![intern(&mut self.paths, &mut self.new.mapping_paths, NO_MODULE)];
            self.new.mappings.push(Mapping { iid, path_string_ids, ..Mapping::default() });
        }
        iid
    }

    /// The id of a module's mapping.
    fn mapping(&mut self, module: usize) -> u64 {
        if let Some(id) = self.mappings.get(&module) {
            return *id;
        }
        let Some(info) = self.view.profile.modules.get(module) else { return self.no_module() };
        let iid = self.mappings.len() as u64 + 1;
        let path = info.path.to_string_lossy();
        let parts = path.split('/').filter(|part| !part.is_empty());
        let mapping = Mapping {
            iid,
            build_id: self.build_id(info),
            start: info.start.0,
            end: info.end.0,
            path_string_ids: parts.map(|part| intern(&mut self.paths, &mut self.new.mapping_paths, part)).collect(),
            exact_offset: info.file_offset,
        };
        self.new.mappings.push(mapping);
        self.mappings.insert(module, iid);
        iid
    }

    fn build_id(&mut self, module: &ModuleInfo) -> u64 {
        let Some(hex) = &module.build_id else { return 0 };
        let next = self.build_ids.len() as u64 + 1;
        let iid = *self.build_ids.entry(hex.clone()).or_insert(next);
        if iid == next {
            self.new.build_ids.push(InternedString { iid, str: bytes_of(hex) });
        }
        iid
    }
}

/// Takes as many entries from the front as one packet gets.
fn first<T>(list: &mut impl Iterator<Item = T>) -> Vec<T> {
    list.take(STACKS).collect()
}

/// The id of a text, which is added to `new` if it is.
fn intern(known: &mut FxHashMap<String, u64>, new: &mut Vec<InternedString>, text: &str) -> u64 {
    if let Some(id) = known.get(text) {
        return *id;
    }
    let iid = known.len() as u64 + 1;
    known.insert(text.to_owned(), iid);
    new.push(InternedString { iid, str: printable(text).into_bytes() });
    iid
}

/// The bytes that hexadecimal digits stand for; what is no digit counts as 0.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().map(|c| c.to_digit(16).unwrap_or(0) as u8).collect();
    digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
}
