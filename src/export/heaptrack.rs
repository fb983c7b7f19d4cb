//! heaptrack's own format, version 3, as heaptrack_interpret writes it and heaptrack_print and the GUI read it: lines
//! of text, compressed with zstd.
//!
//! The format is a list of single events; a profile holds sums. So [`order`] makes up an order of events with exactly
//! these sums: blocks by stack and size, the peak, what is live at the end, how many were freed before anything else
//! happened. What it can't tell is which block came when: times are right for the peak and the end only, and else
//! follow the timeline as far as they can.
//!
//! Rules that are not obvious, each read in the source of heaptrack's reader:
//! * A free names no block but what was allocated: a size and a trace, by the number of its `a` line, from 0 on.
//! * A block counts as temporary if the line before its free is its allocation. Frees set what is remembered of that
//!   line to 0, so that number 0 would be told as temporary wrongly: no block has it. Its free, which changes nothing,
//!   parts an allocation from the free behind it where a block was not temporary.
//! * The peak is the first moment with the highest sum.

mod order;

use super::escape::printable;
use super::view::{UNKNOWN_STACK, View};
use crate::profile::{Location, Mode, Profile};
use order::{Blocks, Order};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufWriter, Write};

/// The version of heaptrack that this is written like, 1.4.0, and that of its file format.
const VERSION: &str = "v 10400 3";

/// What heaptrack counts resident memory in.
const PAGE: u64 = 4096;

/// The compression; higher levels hardly make files smaller, as most lines are alike.
const LEVEL: i32 = 3;

/// Writes the file.
pub(crate) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut encoder = zstd::Encoder::new(out, LEVEL)?;
    let mut text = BufWriter::with_capacity(1 << 16, &mut encoder);
    write_text(view, &mut text)?;
    text.flush()?;
    drop(text);
    encoder.finish()?;
    Ok(())
}

/// The text, uncompressed.
pub(super) fn write_text(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let profile = view.profile;
    let order = Order::of(view.samples.iter());
    head(profile, &order, out)?;
    let mut tables = Tables::new(view, out);
    // number 0, which no block may have
    let first = order.groups.first().map_or(0, |group| group.stack);
    let trace = tables.trace(first)?;
    writeln!(tables.out, "a 0 {trace:x}")?;
    let mut traces: FxHashMap<usize, u32> = FxHashMap::default();
    for group in &order.groups {
        if let Entry::Vacant(entry) = traces.entry(group.stack) {
            entry.insert(tables.trace(group.stack)?);
        }
    }
    let trace_of = |stack: usize| traces.get(&stack).copied().unwrap_or(0);
    Events::new(profile, out).write(&order, trace_of)
}

/// Version, command, system.
fn head(profile: &Profile, order: &Order, out: &mut dyn Write) -> io::Result<()> {
    let command = printable(&super::text::shell_words(&profile.meta.process.command));
    writeln!(out, "{VERSION}\n# heaptrace {}; the order of events is made up", env!("CARGO_PKG_VERSION"))?;
    if order.joined > 1 {
        writeln!(out, "# there are too many blocks for single events: up to {} stand as one", order.joined)?;
    }
    writeln!(out, "X {command}\nI {PAGE:x} 0")?;
    if profile.meta.mode == Mode::Attach {
        writeln!(out, "A")?;
    }
    Ok(())
}

/// What events refer to by number: strings, places in the code, traces. Numbers begin at 1; a line defines the next
/// one.
struct Tables<'a, 'o> {
    view: &'a View<'a>,
    out: &'o mut dyn Write,
    strings: FxHashMap<String, u32>,
    /// By the profile's location.
    places: FxHashMap<usize, u32>,
    places_written: u32,
    unknown: Option<u32>,
    /// By caller's trace and place.
    traces: FxHashMap<(u32, u32), u32>,
}

impl<'a, 'o> Tables<'a, 'o> {
    fn new(view: &'a View<'a>, out: &'o mut dyn Write) -> Self {
        Self {
            view,
            out,
            strings: FxHashMap::default(),
            places: FxHashMap::default(),
            places_written: 0,
            unknown: None,
            traces: FxHashMap::default(),
        }
    }

    /// The number of a stack's trace.
    fn trace(&mut self, stack: usize) -> io::Result<u32> {
        let view = self.view;
        let mut trace = 0;
        for location in view.locations(stack).rev() {
            let place = self.place(location)?;
            trace = self.node(trace, place)?;
        }
        if trace == 0 {
            let place = self.unknown()?;
            trace = self.node(0, place)?;
        }
        Ok(trace)
    }

    /// A trace that ends in `place`, called from `caller`; 0: from nowhere.
    fn node(&mut self, caller: u32, place: u32) -> io::Result<u32> {
        if let Some(trace) = self.traces.get(&(caller, place)) {
            return Ok(*trace);
        }
        let trace = next(self.traces.len());
        self.traces.insert((caller, place), trace);
        writeln!(self.out, "t {place:x} {caller:x}")?;
        Ok(trace)
    }

    fn place(&mut self, location: usize) -> io::Result<u32> {
        if let Some(place) = self.places.get(&location) {
            return Ok(*place);
        }
        let Some(Location { address, module, .. }) = self.view.profile.locations.get(location) else {
            return self.unknown();
        };
        let module = module.and_then(|module| self.view.profile.modules.get(module));
        let path = module.map(|module| module.path.to_string_lossy());
        let mut line = format!("i {:x} {:x}", address.0, self.string(&path.unwrap_or_default())?);
        // the innermost function first, then those that it is inlined in
        for frame in self.view.location_frames(location) {
            let (function, file) = (self.string(frame.name)?, self.string(frame.file.unwrap_or_default())?);
            line.push_str(&format!(" {function:x} {file:x} {:x}", frame.line));
        }
        let place = self.write_place(&line)?;
        self.places.insert(location, place);
        Ok(place)
    }

    /// The place that stands for an unknown stack.
    fn unknown(&mut self) -> io::Result<u32> {
        if let Some(place) = self.unknown {
            return Ok(place);
        }
        let name = self.string(UNKNOWN_STACK)?;
        let place = self.write_place(&format!("i 0 0 {name:x} 0 0"))?;
        self.unknown = Some(place);
        Ok(place)
    }

    fn write_place(&mut self, line: &str) -> io::Result<u32> {
        self.places_written = self.places_written.saturating_add(1);
        writeln!(self.out, "{line}")?;
        Ok(self.places_written)
    }

    /// The number of a text; 0 for none.
    fn string(&mut self, text: &str) -> io::Result<u32> {
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(string) = self.strings.get(text) {
            return Ok(*string);
        }
        let string = next(self.strings.len());
        self.strings.insert(text.to_owned(), string);
        let text = printable(text);
        writeln!(self.out, "s {:x} {text}", text.len())?;
        Ok(string)
    }
}

/// The number of what comes after `before` others.
fn next(before: usize) -> u32 {
    u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
}

/// Blocks of one size, of one `a` line.
#[derive(Clone, Copy)]
struct Run {
    number: u32,
    size: u64,
    blocks: u64,
}

/// When the live bytes, on their way up or down, are to have reached what: points of the timeline.
struct Pace<'a> {
    points: &'a mut dyn Iterator<Item = (u64, u64)>,
    next: Option<(u64, u64)>,
    up: bool,
}

impl<'a> Pace<'a> {
    fn new(up: bool, points: &'a mut dyn Iterator<Item = (u64, u64)>) -> Self {
        let next = points.next();
        Self { points, next, up }
    }

    /// The next point's time, if `live` bytes are as far as it is.
    fn passed(&mut self, live: u64) -> Option<u64> {
        let (time, level) = self.next?;
        if (self.up && live < level) || (!self.up && live > level) {
            return None;
        }
        self.next = self.points.next();
        Some(time)
    }
}

/// Writes the events.
struct Events<'a, 'o> {
    profile: &'a Profile,
    out: &'o mut dyn Write,
    live: u64,
    time: u64,
    /// Numbers of sizes and traces.
    numbers: FxHashMap<(u64, u32), u32>,
}

impl<'a, 'o> Events<'a, 'o> {
    fn new(profile: &'a Profile, out: &'o mut dyn Write) -> Self {
        Self { profile, out, live: 0, time: 0, numbers: FxHashMap::default() }
    }

    fn write(mut self, order: &Order, trace_of: impl Fn(usize) -> u32) -> io::Result<()> {
        // all `a` lines stand before the events
        for group in &order.groups {
            let trace = trace_of(group.stack);
            for blocks in [group.throughout, group.peak_only, group.live_only, group.rest] {
                for (size, _) in sizes(blocks) {
                    self.number(size, trace)?;
                }
            }
        }
        let profile = self.profile;
        let (peak_ms, end_ms) = (milliseconds(profile.totals.peak_at_ns), milliseconds(profile.meta.duration_ns));
        let points = || profile.timeline.iter().map(|point| (milliseconds(point.t_ns), point.live_bytes));
        let turn =
            points().filter(|(time, _)| *time > peak_ms).min_by_key(|(_, level)| *level).map_or(end_ms, |at| at.0);
        writeln!(self.out, "c 0")?;
        if order.rest_first {
            self.rest(order, &trace_of)?;
        }
        let mut before = points().filter(|(time, _)| *time < peak_ms);
        self.climb(order, &trace_of, Pace::new(true, &mut before), peak_ms)?;
        let mut down = points().filter(|(time, _)| *time > peak_ms && *time <= turn);
        self.descend(order, &trace_of, Pace::new(false, &mut down))?;
        self.at(turn)?;
        if !order.rest_first {
            self.rest(order, &trace_of)?;
        }
        let mut up = points().filter(|(time, _)| *time > turn);
        let mut pace = Pace::new(true, &mut up);
        for group in &order.groups {
            for run in self.runs(group.live_only, trace_of(group.stack)) {
                self.allocate(run, &mut pace)?;
            }
        }
        self.at(end_ms)?;
        if let Some(resident) = &profile.meta.process.resident {
            writeln!(self.out, "R {:x}", resident.peak_bytes / PAGE)?;
        }
        Ok(())
    }

    /// All that is live at the peak; the last block makes it.
    fn climb(
        &mut self,
        order: &Order,
        trace_of: &dyn Fn(usize) -> u32,
        mut pace: Pace<'_>,
        peak_ms: u64,
    ) -> io::Result<()> {
        let mut runs = Vec::new();
        let mut last = None;
        for (place, group) in order.groups.iter().enumerate() {
            let trace = trace_of(group.stack);
            runs.extend(self.runs(group.throughout, trace));
            let own = self.runs(group.peak_only, trace);
            if order.ends_peak == Some(place) {
                last = own.last().copied();
            }
            runs.extend(own);
        }
        // blocks of no bytes make no peak
        runs.sort_by_key(|run| (run.size > 0, last.is_some_and(|last| last.number == run.number)));
        let Some(mut end) = runs.pop() else { return Ok(()) };
        end.blocks = end.blocks.saturating_sub(1);
        for run in runs.into_iter().chain([end]) {
            self.allocate(run, &mut pace)?;
        }
        self.at(peak_ms)?;
        self.live = self.live.saturating_add(end.size);
        writeln!(self.out, "+ {:x}", end.number)?;
        if last.is_some() {
            // freed before anything else happens: temporary
            self.live = self.live.saturating_sub(end.size);
            return writeln!(self.out, "- {:x}", end.number);
        }
        writeln!(self.out, "- 0")
    }

    /// Frees what was live at the peak and is not at the end.
    fn descend(&mut self, order: &Order, trace_of: &dyn Fn(usize) -> u32, mut pace: Pace<'_>) -> io::Result<()> {
        for (place, group) in order.groups.iter().enumerate() {
            let mut runs = self.runs(group.peak_only, trace_of(group.stack));
            if order.ends_peak == Some(place)
                && let Some(run) = runs.last_mut()
            {
                run.blocks = run.blocks.saturating_sub(1);
            }
            for run in runs {
                for _ in 0..run.blocks {
                    self.live = self.live.saturating_sub(run.size);
                    writeln!(self.out, "- {:x}", run.number)?;
                    while let Some(time) = pace.passed(self.live) {
                        self.at(time)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The blocks that are neither live at the peak nor at the end, one after the other.
    fn rest(&mut self, order: &Order, trace_of: &dyn Fn(usize) -> u32) -> io::Result<()> {
        for group in &order.groups {
            let mut temporary = group.temporary;
            for Run { number, blocks, .. } in self.runs(group.rest, trace_of(group.stack)) {
                let passing = temporary.min(blocks);
                temporary -= passing;
                let event = format!("+ {number:x}\n- {number:x}\n");
                for _ in 0..passing {
                    self.out.write_all(event.as_bytes())?;
                }
                let event = format!("+ {number:x}\n- 0\n- {number:x}\n");
                for _ in passing..blocks {
                    self.out.write_all(event.as_bytes())?;
                }
            }
        }
        Ok(())
    }

    fn allocate(&mut self, run: Run, pace: &mut Pace<'_>) -> io::Result<()> {
        for _ in 0..run.blocks {
            self.live = self.live.saturating_add(run.size);
            writeln!(self.out, "+ {:x}", run.number)?;
            while let Some(time) = pace.passed(self.live) {
                self.at(time)?;
            }
        }
        Ok(())
    }

    /// A time stamp, in milliseconds since the beginning; time does not go back.
    fn at(&mut self, time: u64) -> io::Result<()> {
        if time <= self.time {
            return Ok(());
        }
        self.time = time;
        writeln!(self.out, "c {time:x}")
    }

    /// The number of a size on a trace, and its line if it is new.
    fn number(&mut self, size: u64, trace: u32) -> io::Result<u32> {
        if let Some(number) = self.numbers.get(&(size, trace)) {
            return Ok(*number);
        }
        let number = next(self.numbers.len());
        self.numbers.insert((size, trace), number);
        writeln!(self.out, "a {size:x} {trace:x}")?;
        Ok(number)
    }

    fn runs(&self, blocks: Blocks, trace: u32) -> Vec<Run> {
        let run = |(size, blocks)| Some(Run { number: *self.numbers.get(&(size, trace))?, size, blocks });
        sizes(blocks).filter_map(run).collect()
    }
}

/// Sizes and how many blocks have them, so that the sum is exact: two that differ by a byte where it can't be shared
/// evenly.
fn sizes(blocks: Blocks) -> impl Iterator<Item = (u64, u64)> {
    let Blocks { objects, bytes } = blocks;
    let (size, larger) = (bytes.checked_div(objects).unwrap_or(0), bytes.checked_rem(objects).unwrap_or(0));
    [(size, objects - larger), (size.saturating_add(1), larger)].into_iter().filter(|(_, blocks)| *blocks > 0)
}

fn milliseconds(ns: u64) -> u64 {
    ns / 1_000_000
}
