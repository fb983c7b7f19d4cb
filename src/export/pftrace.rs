//! Perfetto's trace format: a heap profile at the end and one at the peak, and the live bytes as a counter over time.
//!
//! Rules that are not obvious, each read in the source of Perfetto's trace processor:
//! * The times of heap profiles are those of the clock MONOTONIC_COARSE. Without a snapshot of the clocks they can't be
//!   placed, and the profile is left out; so all clocks are said to show the time of day.
//! * What is live is told as the difference of what was allocated and what was freed, since the sequence of packets began.
//!   The heap at the peak therefore has a sequence, and a name, of its own.
//! * Counts of blocks at the peak count only where `orig_sampling_interval_bytes` is set.
//! * A frame is one function: inlined calls are frames of the same address.

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
use std::io::{self, Write};
use std::time::UNIX_EPOCH;

/// What the heap is called in which `malloc` and its kin allocate; Perfetto shows native heaps under this name.
const HEAP: &str = "libc.malloc";

/// The heap as it was at the peak.
const HEAP_AT_PEAK: &str = "libc.malloc at its peak";

/// The clocks of a snapshot: REALTIME, MONOTONIC, MONOTONIC_COARSE and BOOTTIME.
const CLOCKS: [u32; 4] = [1, 3, 4, 6];

/// Numbers of the sequences of packets: counters, the heap at the end, the heap at the peak.
const COUNTERS: u32 = 1;
const AT_END: u32 = 2;
const AT_PEAK: u32 = 3;

/// Tracks: the process, its live bytes, its resident memory.
const PROCESS: u64 = 1;
const LIVE_BYTES: u64 = 2;
const RESIDENT: u64 = 3;

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
    Dump { sequence: AT_PEAK, heap: HEAP_AT_PEAK, time, sample: Site::at_peak }.write(view, clock, &sites, &mut out)?;
    let time = clock.at(view.profile.meta.duration_ns);
    Dump { sequence: AT_END, heap: HEAP, time, sample: Site::at_end }.write(view, clock, &sites, &mut out)
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
        out.packet(&describe(counter(RESIDENT, "most memory resident (RSS)")))?;
        out.packet(&value(RESIDENT, end, resident.peak_bytes))?;
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

impl Site {
    /// What was allocated on it, and freed again. Blocks that a fork has brought are live though nothing was allocated, and a part
    /// of a series holds live blocks from before: they count as allocated here, so that the difference is what is live.
    fn at_end(&self) -> Option<profile_packet::HeapSample> {
        let objects = self.allocated.objects.max(self.live.objects);
        let bytes = self.allocated.bytes.max(self.live.bytes);
        (objects > 0).then(|| profile_packet::HeapSample {
            self_allocated: bytes,
            self_freed: bytes - self.live.bytes,
            alloc_count: objects,
            free_count: objects - self.live.objects,
            ..profile_packet::HeapSample::default()
        })
    }

    fn at_peak(&self) -> Option<profile_packet::HeapSample> {
        (self.at_peak.objects > 0).then(|| profile_packet::HeapSample {
            self_max: Some(self.at_peak.bytes),
            self_max_count: self.at_peak.objects,
            ..profile_packet::HeapSample::default()
        })
    }
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

/// A heap at one moment.
struct Dump {
    sequence: u32,
    heap: &'static str,
    time: u64,
    /// What to tell of a site; None: nothing.
    sample: fn(&Site) -> Option<profile_packet::HeapSample>,
}

impl Dump {
    /// Writes it in packets of [`STACKS`] stacks, each with what is new in it of functions, frames and stacks; at least one packet.
    fn write(&self, view: &View<'_>, clock: Clock, sites: &[Site], out: &mut Packets<'_>) -> io::Result<()> {
        let mut tables = Tables::new(view);
        let told: Vec<(usize, profile_packet::HeapSample)> =
            sites.iter().filter_map(|site| Some((site.stack, (self.sample)(site)?))).collect();
        let packets = told.len().div_ceil(STACKS).max(1);
        for index in 0..packets {
            let chunk = told.chunks(STACKS).nth(index).unwrap_or_default();
            let samples = chunk
                .iter()
                .map(|(stack, sample)| profile_packet::HeapSample { callstack_id: tables.callstack(*stack), ..*sample })
                .collect();
            let interval = view.profile.meta.sample_interval.max(1);
            let dump = profile_packet::ProcessHeapSamples {
                pid: u64::try_from(view.profile.meta.process.pid).unwrap_or(0),
                samples,
                from_startup: !view.profile.meta.mode.is_attached(),
                timestamp: self.time,
                heap_name: self.heap.to_owned(),
                sampling_interval_bytes: interval,
                orig_sampling_interval_bytes: interval,
                start_timestamp: clock.start,
            };
            out.packet(&TracePacket {
                timestamp: self.time,
                trusted_packet_sequence_id: self.sequence,
                sequence_flags: if index == 0 { BEGINS | CONTINUES } else { CONTINUES },
                interned_data: Some(std::mem::take(&mut tables.new)),
                profile_packet: Some(ProfilePacket {
                    process_dumps: vec![dump],
                    continued: index + 1 < packets,
                    index: index as u64,
                }),
                ..TracePacket::default()
            })?;
        }
        Ok(())
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
    frame_count: u64,
    stack_count: u64,
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
            frame_count: 0,
            stack_count: 0,
            unknown: None,
        }
    }

    /// Adds a stack, and gives its id.
    fn callstack(&mut self, stack: usize) -> u64 {
        let view = self.view;
        let mut frame_ids = Vec::new();
        for location in view.locations(stack).iter().rev() {
            frame_ids.extend_from_slice(self.location(*location));
        }
        if frame_ids.is_empty() {
            frame_ids.push(self.unknown());
        }
        self.stack_count += 1;
        self.new.callstacks.push(Callstack { iid: self.stack_count, frame_ids });
        self.stack_count
    }

    fn location(&mut self, location: usize) -> &[u64] {
        if !self.frames.contains_key(&location) {
            let mut frames: Vec<u64> = Vec::new();
            for frame in self.view.location_frames(location) {
                let (mapping_id, rel_pc) = match frame.location.zip(frame.location.and_then(|place| place.module)) {
                    Some((place, module)) => (self.mapping(module), place.offset),
                    None => (0, 0),
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
        self.frame_count += 1;
        self.new.frames.push(Frame { iid: self.frame_count, ..frame });
        self.frame_count
    }

    fn unknown(&mut self) -> u64 {
        if let Some(id) = self.unknown {
            return id;
        }
        let function_name_id = intern(&mut self.functions, &mut self.new.function_names, UNKNOWN_STACK);
        let id = self.frame(Frame { function_name_id, ..Frame::default() });
        self.unknown = Some(id);
        id
    }

    /// The id of a module; 0 if there is none.
    fn mapping(&mut self, module: usize) -> u64 {
        if let Some(id) = self.mappings.get(&module) {
            return *id;
        }
        let Some(info) = self.view.profile.modules.get(module) else { return 0 };
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
