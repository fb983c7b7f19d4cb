//! pprof's format, with all columns that its consumers look for.
//!
//! Rules that are not obvious, each learnt from `go tool pprof` or another consumer:
//! * `-base` refuses profiles whose columns or period type differ, so both are the same in every mode.
//! * `-inuse_space` and `-alloc_space` mean the columns of that very name, so Go's columns are there beside the others.
//! * A function whose name equals its system name is taken for not yet demangled, and loses its arguments.
//! * `doc_url` stays unset: Perfetto's detection of the format refuses fields that it does not know.

mod comments;
mod drop;

pub(super) use comments::comments;

use super::escape::printable;
use super::gzip;
use super::proto;
use super::view::{Headline, View};
use super::{ExportOptions, PprofColumns};
use crate::profile::build::{UNKNOWN_STACK, shim_names};
use crate::profile::identity::without_arguments;
use crate::profile::mapped;
use crate::profile::{Amount, Profile, Sample};
use crate::unwinder::Quality;
use prost::Message;
use rustc_hash::FxHashMap;
use std::io::{self, Write};
use std::thread;
use std::time::UNIX_EPOCH;

/// Writes the profile compressed, as the format wants it on disk.
pub(crate) fn write_gz(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    gzip::write(&encode(view, options), out)
}

/// Writes the profile uncompressed.
pub(crate) fn write(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&encode(view, options))
}

/// So many samples are worth a thread.
const SHARE: usize = 4096;

/// So many samples are held before they are encoded: one takes some 600 bytes, and its encoding a fifth of that.
const HELD: usize = 16 * SHARE;

/// The bytes of a profile: those of `encode_to_vec`. The samples, which are most, are encoded on all processors, part
/// by part.
fn encode(view: &View<'_>, options: &ExportOptions) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut held = Vec::new();
    let mut profile = build_with(view, options, &mut |sample| {
        held.push(sample);
        if held.len() == HELD {
            encode_samples(&held, &mut bytes);
            held.clear();
        }
    });
    encode_samples(&held, &mut bytes);
    drop(held);
    let head = proto::Profile { sample_type: std::mem::take(&mut profile.sample_type), ..Default::default() };
    bytes.splice(0..0, head.encode_to_vec());
    bytes.extend(profile.encode_to_vec());
    bytes
}

fn encode_samples(samples: &[proto::Sample], bytes: &mut Vec<u8>) {
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let shares = samples.chunks(samples.len().div_ceil(processors).max(SHARE));
    let mut encoded: Vec<Vec<u8>> = shares.clone().map(|_| Vec::new()).collect();
    thread::scope(|scope| {
        for (share, place) in shares.clone().zip(&mut encoded).skip(1) {
            // A thread that can't be had leaves its place empty: see below.
            let work = move || *place = encoded_samples(share);
            let _ = thread::Builder::new().name("pprof".to_owned()).spawn_scoped(scope, work);
        }
        bytes.extend(shares.clone().next().map(encoded_samples).unwrap_or_default());
    });
    for (share, part) in shares.zip(encoded).skip(1) {
        bytes.extend(if part.is_empty() { encoded_samples(share) } else { part });
    }
}

fn encoded_samples(samples: &[proto::Sample]) -> Vec<u8> {
    const SAMPLE: u32 = 2;
    let mut bytes = Vec::new();
    prost::encoding::message::encode_repeated(SAMPLE, samples, &mut bytes);
    bytes
}

/// One column: its name, its unit, and what of a sample it holds.
struct Column {
    name: &'static str,
    unit: &'static str,
    amount: fn(&Sample) -> Amount,
}

impl Column {
    const fn objects(name: &'static str, amount: fn(&Sample) -> Amount) -> Self {
        Self { name, unit: "count", amount }
    }

    const fn space(name: &'static str, amount: fn(&Sample) -> Amount) -> Self {
        Self { name, unit: "bytes", amount }
    }

    fn value(&self, sample: &Sample) -> i64 {
        let amount = (self.amount)(sample);
        signed(if self.unit == "bytes" { amount.bytes } else { amount.objects })
    }
}

/// The columns, always in this order. Consumers that ignore the default type show the last one.
const COLUMNS: [Column; 12] = [
    Column::objects("residual_allocated_objects", |sample| sample.live),
    Column::space("residual_allocated_space", |sample| sample.live),
    Column::objects("allocated_objects", |sample| sample.allocated),
    Column::space("allocated_space", |sample| sample.allocated),
    Column::objects("deallocated_objects", |sample| sample.deallocated),
    Column::space("deallocated_space", |sample| sample.deallocated),
    Column::objects("peak_objects", |sample| sample.at_peak),
    Column::space("peak_space", |sample| sample.at_peak),
    Column::objects("alloc_objects", |sample| sample.allocated),
    Column::space("alloc_space", |sample| sample.allocated),
    Column::objects("inuse_objects", |sample| sample.live),
    Column::space("inuse_space", |sample| sample.live),
];

/// The selected columns, and the name of the one to show first.
fn columns(selection: PprofColumns, headline: Headline) -> (&'static [Column], &'static str) {
    let (sampler, rest) = COLUMNS.split_at(6);
    let (_, go) = rest.split_at(2);
    match (selection, headline) {
        (PprofColumns::All, Headline::Peak) => (&COLUMNS, "peak_space"),
        (PprofColumns::All, Headline::Live) => (&COLUMNS, "inuse_space"),
        (PprofColumns::Sampler, _) => (sampler, "residual_allocated_space"),
        (PprofColumns::Go, _) => (go, "inuse_space"),
    }
}

pub(super) fn build(view: &View<'_>, options: &ExportOptions) -> proto::Profile {
    let mut samples = Vec::new();
    let profile = build_with(view, options, &mut |sample| samples.push(sample));
    proto::Profile { sample: samples, ..profile }
}

/// The profile without its samples, which are handed over one by one.
fn build_with(view: &View<'_>, options: &ExportOptions, take: &mut dyn FnMut(proto::Sample)) -> proto::Profile {
    let profile = view.profile;
    let (columns, default) = columns(options.pprof_columns, view.headline());
    let mut tables = Tables::new(view);
    let mut value_type =
        |name: &str, unit: &str| proto::ValueType { r#type: tables.string(name), unit: tables.string(unit) };
    let sample_type = columns.iter().map(|column| value_type(column.name, column.unit)).collect();
    let period_type = Some(value_type("space", "bytes"));
    let mapping = mappings(&mut tables, profile);
    let pid = i64::from(profile.meta.process.pid);
    for sample in view.samples.iter() {
        let value: Vec<i64> = columns.iter().map(|column| column.value(sample)).collect();
        if value.iter().any(|value| *value != 0) {
            let location_id = tables.stack(sample.stack);
            take(proto::Sample { location_id, value, label: labels(&mut tables, sample, pid) });
        }
    }
    let comment = comments(profile, options).iter().map(|comment| tables.string(comment)).collect();
    proto::Profile {
        sample_type,
        sample: Vec::new(),
        mapping,
        drop_frames: tables.string(&drop_frames(profile)),
        keep_frames: 0,
        time_nanos: nanos_since_epoch(profile),
        duration_nanos: signed(profile.meta.duration_ns),
        period_type,
        period: signed(profile.meta.sample_interval.max(1)),
        comment,
        default_sample_type: tables.string(default),
        location: tables.locations,
        function: tables.functions,
        string_table: tables.strings,
    }
}

/// The format's tables, filled as the samples need them, so that nothing unused is written.
struct Tables<'a> {
    view: &'a View<'a>,
    strings: Vec<String>,
    string_ids: FxHashMap<String, i64>,
    functions: Vec<proto::Function>,
    /// Ids by the profile's index; 0: not written yet.
    function_ids: Vec<u64>,
    locations: Vec<proto::Location>,
    /// Ids by the profile's index; 0: not written yet.
    location_ids: Vec<u64>,
    /// Id of the location that stands for an unknown stack.
    unknown: Option<u64>,
}

impl<'a> Tables<'a> {
    fn new(view: &'a View<'a>) -> Self {
        Self {
            view,
            strings: vec![String::new()],
            string_ids: FxHashMap::from_iter([(String::new(), 0)]),
            functions: Vec::new(),
            function_ids: vec![0; view.profile.functions.len()],
            locations: Vec::new(),
            location_ids: vec![0; view.profile.locations.len()],
            unknown: None,
        }
    }

    /// The index of a text. `go tool pprof` prints names as they are: they have no control characters.
    fn string(&mut self, text: &str) -> i64 {
        if let Some(id) = self.string_ids.get(text) {
            return *id;
        }
        let id = self.strings.len() as i64;
        self.strings.push(printable(text));
        self.string_ids.insert(text.to_owned(), id);
        id
    }

    /// The location ids of a stack, innermost first; never empty.
    fn stack(&mut self, stack: usize) -> Vec<u64> {
        let indices = self.view.locations(stack);
        let ids: Vec<u64> = indices.filter_map(|index| self.location(index)).collect();
        if ids.is_empty() { vec![self.unknown_location()] } else { ids }
    }

    fn location(&mut self, index: usize) -> Option<u64> {
        if let Some(id) = self.location_ids.get(index).copied().filter(|id| *id != 0) {
            return Some(id);
        }
        let location = self.view.profile.locations.get(index)?;
        let line = location
            .lines
            .iter()
            .filter_map(|line| {
                Some(proto::Line { function_id: self.function(line.function)?, line: i64::from(line.line) })
            })
            .collect();
        let id = self.locations.len() as u64 + 1;
        self.locations.push(proto::Location {
            id,
            mapping_id: location.module.map_or(0, |module| module as u64 + 1),
            address: location.address.0,
            line,
            is_folded: false,
        });
        *self.location_ids.get_mut(index)? = id;
        Some(id)
    }

    fn function(&mut self, index: usize) -> Option<u64> {
        if let Some(id) = self.function_ids.get(index).copied().filter(|id| *id != 0) {
            return Some(id);
        }
        let function = self.view.profile.functions.get(index)?;
        // pprof takes equal names for not demangled and strips what looks like arguments; "unknown" prevents that
        let looks_demangled = function.name.contains(['<', '(', ' ']);
        let system_name =
            if function.system_name == function.name && looks_demangled { "" } else { &function.system_name };
        let id = self.functions.len() as u64 + 1;
        let function = proto::Function {
            id,
            name: self.string(&function.name),
            system_name: self.string(system_name),
            filename: self.string(function.file.as_deref().unwrap_or_default()),
            start_line: i64::from(function.start_line),
        };
        self.functions.push(function);
        *self.function_ids.get_mut(index)? = id;
        Some(id)
    }

    fn unknown_location(&mut self) -> u64 {
        if let Some(id) = self.unknown {
            return id;
        }
        let name = self.string(UNKNOWN_STACK);
        let function_id = self.functions.len() as u64 + 1;
        self.functions.push(proto::Function { id: function_id, name, system_name: name, filename: 0, start_line: 0 });
        let id = self.locations.len() as u64 + 1;
        let line = vec![proto::Line { function_id, line: 0 }];
        self.locations.push(proto::Location { id, mapping_id: 0, address: 0, line, is_folded: false });
        self.unknown = Some(id);
        id
    }
}

/// One mapping per module, in the profile's order: the main program first.
fn mappings(tables: &mut Tables<'_>, profile: &Profile) -> Vec<proto::Mapping> {
    let mut id = 0;
    let mut mapping = |module: &crate::profile::ModuleInfo| {
        id += 1;
        proto::Mapping {
            id,
            memory_start: module.start.0,
            memory_limit: module.end.0,
            file_offset: module.file_offset,
            filename: tables.string(&module.path.to_string_lossy()),
            build_id: tables.string(module.build_id.as_deref().unwrap_or_default()),
            has_functions: module.symbols.functions,
            has_filenames: module.symbols.files,
            has_line_numbers: module.symbols.lines,
            has_inline_frames: module.symbols.inlines,
        }
    };
    profile.modules.iter().map(&mut mapping).collect()
}

/// What `-tagfocus`, `-tagshow` and `-tagroot` select by.
fn labels(tables: &mut Tables<'_>, sample: &Sample, pid: i64) -> Vec<proto::Label> {
    let view = tables.view;
    let unit = tables.string("bytes");
    let mut labels = Vec::new();
    if view.profile.saved.as_ref().is_none_or(|saved| saved.sized) {
        labels.push(proto::Label { key: tables.string("bytes"), str: 0, num: signed(sample.size), num_unit: unit });
    }
    if sample.program.is_none() && pid != 0 {
        labels.push(proto::Label { key: tables.string("pid"), str: 0, num: pid, num_unit: 0 });
    }
    let quality = match view.quality(sample.stack) {
        Quality::Complete => "",
        Quality::Guessed => "guessed",
        Quality::Truncated => "truncated",
    };
    let leak = if sample.live.objects > 0 { view.leak_label(sample.stack) } else { "" };
    let object = view.object_type(sample.stack);
    let texts = [
        ("thread", view.string(sample.thread)),
        ("alloc_fn", view.alloc_fn(sample)),
        ("stack", quality),
        ("leak", leak),
        ("program", sample.program.map_or("", |program| view.string(program))),
        ("family", if view.profile.is_mapped(sample) { mapped::FAMILY } else { "" }),
        ("type", object.map_or("", |object| &object.name)),
        ("type_certainty", object.map_or("", |object| object.certainty.name())),
        ("origin", if sample.inherited { "inherited" } else { "" }),
    ];
    for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        labels.push(proto::Label { key: tables.string(key), str: tables.string(text), num: 0, num_unit: 0 });
    }
    labels
}

/// A regular expression of the functions that pprof leaves out with all that they called: the allocator's entry points,
/// and who only hands memory on (see [`drop`]). The stacks in the file are whole.
fn drop_frames(profile: &Profile) -> String {
    let probed = profile.allocators.iter().flat_map(|allocator| &allocator.functions);
    let probed = probed.map(|name| without_arguments(name)).filter(|name| !name.starts_with("_Z"));
    let mut frames: Vec<String> = probed.map(escape).collect();
    frames.extend(shim_names().map(escape));
    frames.extend(drop::patterns().map(str::to_owned));
    if let Some(saved) = &profile.saved {
        frames.extend(saved.drop_frames.iter().cloned());
    }
    frames.sort_unstable();
    frames.dedup();
    frames.join("|")
}

/// Escapes what regular expressions give a meaning to.
fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_ascii_punctuation() && c != '_' && c != ':' {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn nanos_since_epoch(profile: &Profile) -> i64 {
    let since = profile.meta.process.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The format's numbers are signed; what does not fit stops at the largest.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
