//! OpenTelemetry's format of profiles, `profiles.v1development`: alpha, and written as `proto/otlp_profiles.proto` has
//! it.
//!
//! A profile has one kind of values there, so there is one for each of pprof's columns that Go has and for the peak,
//! which share a dictionary. The one to look at first comes first.

use super::escape::printable;
use super::proto::otlp::{
    AnyValue, ArrayValue, Function, InstrumentationScope, KeyValue, KeyValueAndUnit, Line, Link, Location, Mapping,
    Profile, ProfilesData, ProfilesDictionary, Resource, ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
    any_value,
};
use super::view::{Headline, UNKNOWN_STACK, View};
use super::{ExportOptions, pprof};
use crate::profile::Amount;
use prost::Message;
use rustc_hash::FxHashMap;
use std::io::{self, Write};
use std::time::UNIX_EPOCH;

/// What of a sample is one profile's value.
struct Kind {
    name: &'static str,
    unit: &'static str,
    value: fn(&Sums) -> u64,
}

/// All, the peak first.
const KINDS: [Kind; 6] = [
    Kind { name: "peak_space", unit: "bytes", value: |sums| sums.at_peak.bytes },
    Kind { name: "peak_objects", unit: "count", value: |sums| sums.at_peak.objects },
    Kind { name: "inuse_space", unit: "bytes", value: |sums| sums.live.bytes },
    Kind { name: "inuse_objects", unit: "count", value: |sums| sums.live.objects },
    Kind { name: "alloc_space", unit: "bytes", value: |sums| sums.allocated.bytes },
    Kind { name: "alloc_objects", unit: "count", value: |sums| sums.allocated.objects },
];

/// What one thread did on one stack.
#[derive(Default)]
struct Sums {
    stack: usize,
    thread: usize,
    allocated: Amount,
    live: Amount,
    at_peak: Amount,
}

/// Writes the message.
pub(crate) fn write(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&build(view, options).encode_to_vec())
}

fn build(view: &View<'_>, options: &ExportOptions) -> ProfilesData {
    let mut tables = Tables::new(view);
    let sums: Vec<(Sums, Sample)> = sums(view)
        .into_iter()
        .map(|sums| {
            let stack_index = tables.stack(sums.stack);
            let thread = text(view.string(sums.thread));
            let attribute_indices = match view.string(sums.thread) {
                "" => Vec::new(),
                _ => vec![tables.attribute("thread.name", thread)],
            };
            (sums, Sample { stack_index, attribute_indices, ..Sample::default() })
        })
        .collect();
    let comments = pprof::comments(view.profile, options).iter().map(|comment| text(comment)).collect();
    let comments = AnyValue { value: Some(any_value::Value::ArrayValue(ArrayValue { values: comments })) };
    let attribute_indices = vec![tables.attribute("pprof.profile.comment", comments)];
    let period_type = Some(tables.value_type("space", "bytes"));
    let meta = &view.profile.meta;
    let mut order: Vec<&Kind> = KINDS.iter().collect();
    if view.headline() == Headline::Live {
        order.rotate_left(2);
    }
    let profiles = order
        .into_iter()
        .map(|kind| {
            let value = |sums: &Sums| i64::try_from((kind.value)(sums)).unwrap_or(i64::MAX);
            let filled = sums.iter().map(|(sums, sample)| (value(sums), sample)).filter(|(value, _)| *value != 0);
            Profile {
                sample_type: Some(tables.value_type(kind.name, kind.unit)),
                samples: filled.map(|(value, sample)| Sample { values: vec![value], ..sample.clone() }).collect(),
                time_unix_nano: nanoseconds(view),
                duration_nano: meta.duration_ns,
                period_type,
                period: i64::try_from(meta.sample_interval.max(1)).unwrap_or(i64::MAX),
                profile_id: profile_id(&meta.session, options.number.unwrap_or(meta.part), kind.name),
                attribute_indices: attribute_indices.clone(),
            }
        })
        .collect();
    let scope = InstrumentationScope { name: "heaptrace".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let scope_profiles = vec![ScopeProfiles { scope: Some(scope), profiles }];
    ProfilesData {
        resource_profiles: vec![ResourceProfiles { resource: Some(resource(view)), scope_profiles }],
        dictionary: Some(tables.dictionary),
    }
}

/// The sums over functions and sizes, by stack and thread; without those that are all zero.
fn sums(view: &View<'_>) -> Vec<Sums> {
    let mut all: Vec<Sums> = Vec::new();
    let mut places: FxHashMap<(usize, usize), usize> = FxHashMap::default();
    for sample in view.samples.iter() {
        if [sample.allocated, sample.live, sample.at_peak].iter().all(|amount| *amount == Amount::default()) {
            continue;
        }
        let place = *places.entry((sample.stack, sample.thread)).or_insert(all.len());
        if place == all.len() {
            all.push(Sums { stack: sample.stack, thread: sample.thread, ..Sums::default() });
        }
        if let Some(sums) = all.get_mut(place) {
            sums.allocated = sums.allocated.plus(sample.allocated);
            sums.live = sums.live.plus(sample.live);
            sums.at_peak = sums.at_peak.plus(sample.at_peak);
        }
    }
    all
}

/// The process, by OpenTelemetry's names.
fn resource(view: &View<'_>) -> Resource {
    let process = &view.profile.meta.process;
    let words = process.command.iter().map(|word| text(word)).collect();
    let command = AnyValue { value: Some(any_value::Value::ArrayValue(ArrayValue { values: words })) };
    let attribute = |key: &str, value| KeyValue { key: key.to_owned(), value: Some(value) };
    let pid = AnyValue { value: Some(any_value::Value::IntValue(i64::from(process.pid))) };
    let attributes = vec![
        attribute("service.name", text(&process.program)),
        attribute("process.pid", pid),
        attribute("process.executable.name", text(&process.program)),
        attribute("process.command_args", command),
    ];
    Resource { attributes }
}

/// 16 bytes that differ between profiles: the session's random id, the number of the file, the kind of values.
fn profile_id(session: &str, number: u32, kind: &str) -> Vec<u8> {
    let mut id = u64::from_str_radix(session, 16).unwrap_or(0).to_be_bytes().to_vec();
    id.extend_from_slice(&number.to_be_bytes());
    let fnv = kind.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    id.extend_from_slice(&fnv.to_be_bytes());
    id
}

fn nanoseconds(view: &View<'_>) -> u64 {
    let since = view.profile.meta.process.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn text(text: &str) -> AnyValue {
    AnyValue { value: Some(any_value::Value::StringValue(printable(text))) }
}

/// The dictionary, filled as samples need it. Each table begins with its empty entry.
struct Tables<'a> {
    view: &'a View<'a>,
    dictionary: ProfilesDictionary,
    strings: FxHashMap<String, i32>,
    functions: FxHashMap<usize, i32>,
    locations: FxHashMap<usize, i32>,
    mappings: FxHashMap<usize, i32>,
    stacks: FxHashMap<Vec<i32>, i32>,
    /// By key and value, encoded.
    attributes: FxHashMap<(i32, Vec<u8>), i32>,
    unknown: Option<i32>,
}

impl<'a> Tables<'a> {
    fn new(view: &'a View<'a>) -> Self {
        let dictionary = ProfilesDictionary {
            mapping_table: vec![Mapping::default()],
            location_table: vec![Location::default()],
            function_table: vec![Function::default()],
            link_table: vec![Link::default()],
            string_table: vec![String::new()],
            attribute_table: vec![KeyValueAndUnit::default()],
            stack_table: vec![Stack::default()],
        };
        Self {
            view,
            dictionary,
            strings: FxHashMap::from_iter([(String::new(), 0)]),
            functions: FxHashMap::default(),
            locations: FxHashMap::default(),
            mappings: FxHashMap::default(),
            stacks: FxHashMap::default(),
            attributes: FxHashMap::default(),
            unknown: None,
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        let text = printable(text);
        if let Some(index) = self.strings.get(&text) {
            return *index;
        }
        self.dictionary.string_table.push(text.clone());
        let index = last(&self.dictionary.string_table);
        self.strings.insert(text, index);
        index
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { type_strindex: self.string(name), unit_strindex: self.string(unit) }
    }

    fn attribute(&mut self, key: &str, value: AnyValue) -> i32 {
        let key_strindex = self.string(key);
        let identity = (key_strindex, value.encode_to_vec());
        if let Some(index) = self.attributes.get(&identity) {
            return *index;
        }
        let value = Some(value);
        self.dictionary.attribute_table.push(KeyValueAndUnit { key_strindex, value, unit_strindex: 0 });
        let index = last(&self.dictionary.attribute_table);
        self.attributes.insert(identity, index);
        index
    }

    fn stack(&mut self, stack: usize) -> i32 {
        let view = self.view;
        let indices = view.locations(stack).filter_map(|location| self.location(location));
        let mut location_indices: Vec<i32> = indices.collect();
        if location_indices.is_empty() {
            location_indices.push(self.unknown());
        }
        if let Some(index) = self.stacks.get(&location_indices) {
            return *index;
        }
        self.dictionary.stack_table.push(Stack { location_indices: location_indices.clone() });
        let index = last(&self.dictionary.stack_table);
        self.stacks.insert(location_indices, index);
        index
    }

    fn location(&mut self, index: usize) -> Option<i32> {
        if let Some(known) = self.locations.get(&index) {
            return Some(*known);
        }
        let location = self.view.profile.locations.get(index)?;
        let lines = location.lines.iter().filter_map(|line| {
            Some(Line { function_index: self.function(line.function)?, line: i64::from(line.line) })
        });
        let lines = lines.collect();
        let mapping_index = location.module.map_or(0, |module| self.mapping(module));
        let attribute_indices = vec![self.attribute("profile.frame.type", text("native"))];
        let address = location.address.0;
        self.dictionary.location_table.push(Location { mapping_index, address, lines, attribute_indices });
        let known = last(&self.dictionary.location_table);
        self.locations.insert(index, known);
        Some(known)
    }

    fn function(&mut self, index: usize) -> Option<i32> {
        if let Some(known) = self.functions.get(&index) {
            return Some(*known);
        }
        let function = self.view.profile.functions.get(index)?;
        let function = Function {
            name_strindex: self.string(&function.name),
            system_name_strindex: self.string(&function.system_name),
            filename_strindex: self.string(function.file.as_deref().unwrap_or_default()),
            start_line: i64::from(function.start_line),
        };
        self.dictionary.function_table.push(function);
        let known = last(&self.dictionary.function_table);
        self.functions.insert(index, known);
        Some(known)
    }

    /// The location that stands for an unknown stack.
    fn unknown(&mut self) -> i32 {
        if let Some(known) = self.unknown {
            return known;
        }
        let name_strindex = self.string(UNKNOWN_STACK);
        self.dictionary.function_table.push(Function { name_strindex, ..Function::default() });
        let lines = vec![Line { function_index: last(&self.dictionary.function_table), line: 0 }];
        self.dictionary.location_table.push(Location { lines, ..Location::default() });
        let known = last(&self.dictionary.location_table);
        self.unknown = Some(known);
        known
    }

    /// The entry of a module; 0 if there is none.
    fn mapping(&mut self, index: usize) -> i32 {
        if let Some(known) = self.mappings.get(&index) {
            return *known;
        }
        let Some(module) = self.view.profile.modules.get(index) else { return 0 };
        let build_id = module.build_id.as_deref().map(|id| self.attribute("process.executable.build_id.gnu", text(id)));
        let found = [
            ("pprof.mapping.has_functions", module.symbols.functions),
            ("pprof.mapping.has_filenames", module.symbols.files),
            ("pprof.mapping.has_line_numbers", module.symbols.lines),
            ("pprof.mapping.has_inline_frames", module.symbols.inlines),
        ];
        let found = found.into_iter().filter(|(_, found)| *found);
        let yes = AnyValue { value: Some(any_value::Value::BoolValue(true)) };
        let found: Vec<i32> = found.map(|(key, _)| self.attribute(key, yes.clone())).collect();
        let mapping = Mapping {
            memory_start: module.start.0,
            memory_limit: module.end.0,
            file_offset: module.file_offset,
            filename_strindex: self.string(&module.path.to_string_lossy()),
            attribute_indices: build_id.into_iter().chain(found).collect(),
        };
        self.dictionary.mapping_table.push(mapping);
        let known = last(&self.dictionary.mapping_table);
        self.mappings.insert(index, known);
        known
    }
}

/// The index of the last entry.
fn last<T>(table: &[T]) -> i32 {
    i32::try_from(table.len().saturating_sub(1)).unwrap_or(i32::MAX)
}
