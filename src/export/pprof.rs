//! pprof's format, with all columns that its consumers look for.
//!
//! Rules that are not obvious, each learnt from `go tool pprof` or another consumer:
//! * `-base` refuses profiles whose columns or period type differ, so both are the same in every mode.
//! * `-inuse_space` and `-alloc_space` mean the columns of that very name, so Go's columns are there beside the others.
//! * A function whose name equals its system name is taken for not yet demangled, and loses its arguments.
//! * `doc_url` stays unset: Perfetto's detection of the format refuses fields that it does not know.

mod comments;
mod drop;
mod encode;

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
use std::time::UNIX_EPOCH;

/// Writes the profile compressed, as the format wants it on disk.
pub(crate) fn write_gz(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let mut packed = gzip::Writer::new(out);
    write(view, options, &mut packed)?;
    packed.finish()
}

/// So many bytes are written at a time.
const PART: usize = 1 << 16;

/// Writes the profile uncompressed: the bytes of `encode_to_vec`, of which no more than a part is held.
pub(crate) fn write(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    const SAMPLE: u64 = 2;
    let (mut bytes, mut samples) = (Vec::new(), encode::Samples::default());
    let mut written = Ok(());
    let profile = build_with(view, options, &mut |part| {
        match part {
            Part::Types(sample_type) => {
                let head = proto::Profile { sample_type, ..Default::default() };
                bytes.extend(head.encode_to_vec());
            }
            Part::Sample(sample) => samples.write(SAMPLE, sample, &mut bytes),
        }
        if bytes.len() >= PART && written.is_ok() {
            written = out.write_all(&bytes);
            bytes.clear();
        }
        written.is_ok()
    });
    written?;
    bytes.extend(profile.encode_to_vec());
    out.write_all(&bytes)
}

/// What of a profile is handed over while it is built: the types first, then each sample.
enum Part<'a> {
    Types(Vec<proto::ValueType>),
    Sample(&'a proto::Sample),
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
    let (mut sample_type, mut sample) = (Vec::new(), Vec::new());
    let profile = build_with(view, options, &mut |part| {
        match part {
            Part::Types(types) => sample_type = types,
            Part::Sample(one) => sample.push(one.clone()),
        }
        true
    });
    proto::Profile { sample_type, sample, ..profile }
}

/// The profile without its types and samples, which are handed over one by one, as long as `take` wants more.
fn build_with(view: &View<'_>, options: &ExportOptions, take: &mut dyn FnMut(Part<'_>) -> bool) -> proto::Profile {
    let profile = view.profile;
    let (columns, default) = columns(options.pprof_columns, view.headline());
    let mut tables = Tables::new(view);
    let mut value_type =
        |name: &str, unit: &str| proto::ValueType { r#type: tables.string(name), unit: tables.string(unit) };
    let sample_type = columns.iter().map(|column| value_type(column.name, column.unit)).collect();
    let period_type = Some(value_type("space", "bytes"));
    let mapping = mappings(&mut tables, profile);
    let pid = i64::from(profile.meta.process.pid);
    let mut wants_more = take(Part::Types(sample_type));
    // one for all, so that a million samples take no memory of their own
    let mut made = proto::Sample::default();
    for sample in view.samples.iter() {
        made.value.clear();
        made.value.extend(columns.iter().map(|column| column.value(&sample)));
        if wants_more && made.value.iter().any(|value| *value != 0) {
            tables.stack(sample.stack, &mut made.location_id);
            labels(&mut tables, &sample, pid, &mut made.label);
            wants_more = take(Part::Sample(&made));
        }
    }
    let comment = comments(profile, options).iter().map(|comment| tables.string(comment)).collect();
    proto::Profile {
        sample_type: Vec::new(),
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
    /// Ids of the keys of labels, by their order in [`labels`]; 0: not written yet.
    keys: [i64; KEYS],
    /// Ids of texts by the profile's index; 0: not written yet.
    text_ids: Vec<i64>,
}

/// How many keys of labels there are.
const KEYS: usize = 11;

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
            keys: [0; KEYS],
            text_ids: vec![0; view.profile.strings.len()],
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

    /// The index of the key of labels number `number`, which is always the same.
    fn key(&mut self, number: usize, key: &str) -> i64 {
        let known = self.keys.get(number).copied().filter(|id| *id != 0);
        known.unwrap_or_else(|| {
            let id = self.string(key);
            self.keys.get_mut(number).into_iter().for_each(|known| *known = id);
            id
        })
    }

    /// The index of a text of the profile.
    fn text(&mut self, index: usize) -> i64 {
        let known = self.text_ids.get(index).copied().filter(|id| *id != 0);
        known.unwrap_or_else(|| {
            let id = self.string(self.view.string(index));
            self.text_ids.get_mut(index).into_iter().for_each(|known| *known = id);
            id
        })
    }

    /// Puts the location ids of a stack into `ids`, innermost first; never none.
    fn stack(&mut self, stack: usize, ids: &mut Vec<u64>) {
        ids.clear();
        ids.extend(self.view.locations(stack).filter_map(|index| self.location(index)));
        if ids.is_empty() {
            ids.push(self.unknown_location());
        }
    }

    #[inline]
    fn location(&mut self, index: usize) -> Option<u64> {
        match self.location_ids.get(index) {
            Some(id) if *id != 0 => Some(*id),
            _ => self.new_location(index),
        }
    }

    #[cold]
    fn new_location(&mut self, index: usize) -> Option<u64> {
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
fn labels(tables: &mut Tables<'_>, sample: &Sample, pid: i64, labels: &mut Vec<proto::Label>) {
    let view = tables.view;
    labels.clear();
    let unit = tables.key(0, "bytes");
    if view.profile.saved.as_ref().is_none_or(|saved| saved.sized) {
        labels.push(proto::Label { key: unit, str: 0, num: signed(sample.size), num_unit: unit });
    }
    if sample.program.is_none() && pid != 0 {
        labels.push(proto::Label { key: tables.key(1, "pid"), str: 0, num: pid, num_unit: 0 });
    }
    let quality = match view.quality(sample.stack) {
        Quality::Complete => "",
        Quality::Guessed => "guessed",
        Quality::Truncated => "truncated",
    };
    let leak = if sample.live.objects > 0 { view.leak_label(sample.stack) } else { "" };
    let object = view.object_type(sample.stack);
    let texts = [
        ("thread", LabelText::Of(sample.thread)),
        ("alloc_fn", LabelText::Of(sample.alloc_fn)),
        ("stack", LabelText::Is(quality)),
        ("leak", LabelText::Is(leak)),
        ("program", sample.program.map_or(LabelText::Is(""), LabelText::Of)),
        ("family", LabelText::Is(if view.profile.is_mapped(sample) { mapped::FAMILY } else { "" })),
        ("type", LabelText::Is(object.map_or("", |object| &object.name))),
        ("type_certainty", LabelText::Is(object.map_or("", |object| object.certainty.name()))),
        ("origin", LabelText::Is(if sample.inherited { "inherited" } else { "" })),
    ];
    const _: () = assert!(KEYS == 2 + 9);
    for (number, (key, text)) in (2..).zip(texts) {
        let is_empty = match text {
            LabelText::Of(index) => view.string(index).is_empty(),
            LabelText::Is(text) => text.is_empty(),
        };
        if is_empty {
            continue;
        }
        let key = tables.key(number, key);
        let str = match text {
            LabelText::Of(index) => tables.text(index),
            LabelText::Is(text) => tables.string(text),
        };
        labels.push(proto::Label { key, str, num: 0, num_unit: 0 });
    }
}

/// The text of a label.
#[derive(Clone, Copy)]
enum LabelText<'a> {
    /// That of the profile with this index.
    Of(usize),
    Is(&'a str),
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
