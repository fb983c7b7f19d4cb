//! The Firefox Profiler's format, beside what the crate writes that its developers have made for it.

use super::*;
use fxprof_processed_profile as theirs;
use serde_json::Value;
use std::collections::BTreeMap;

fn ours(profile: &Profile) -> Value {
    serde_json::from_slice(&exported(Format::Firefox, profile)).expect("JSON")
}

/// A profile of the crate's, in which each table has an entry.
fn crates_own() -> Value {
    use theirs::{Frame, FrameFlags, FrameInfo, GraphColor, LibraryInfo, MarkerTiming, Timestamp};
    let start = theirs::ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let mut profile = theirs::Profile::new("app", start, theirs::SamplingInterval::from_millis(1));
    profile.set_os_name("Linux");
    let process = profile.add_process("app", 1, Timestamp::from_nanos_since_reference(0));
    profile.set_process_end_time(process, Timestamp::from_nanos_since_reference(9));
    let thread = profile.add_thread(process, 1, Timestamp::from_nanos_since_reference(0), true);
    profile.set_thread_end_time(thread, Timestamp::from_nanos_since_reference(9));
    let lib = profile.add_lib(LibraryInfo {
        name: "app".to_owned(),
        debug_name: "app".to_owned(),
        path: "/app".to_owned(),
        debug_path: "/app".to_owned(),
        debug_id: theirs::debugid::DebugId::nil(),
        code_id: Some("aa".to_owned()),
        arch: Some("x86_64".to_owned()),
        symbol_table: None,
    });
    let frame =
        |frame| FrameInfo { frame, category_pair: theirs::CategoryHandle::OTHER.into(), flags: FrameFlags::empty() };
    let label = profile.intern_string("main");
    let frames = [Frame::Label(label), Frame::RelativeAddressFromInstructionPointer(lib, 16)];
    let stack = profile.intern_stack_frames(thread, frames.map(frame).into_iter());
    profile.add_allocation_sample(thread, Timestamp::from_nanos_since_reference(1), stack, 1, 10);
    profile.add_sample(thread, Timestamp::from_nanos_since_reference(1), stack, theirs::CpuDelta::ZERO, 1);
    let counter = profile.add_counter(process, "malloc", "Memory", "Live bytes");
    profile.set_counter_color(counter, GraphColor::Blue);
    profile.add_counter_sample(counter, Timestamp::from_nanos_since_reference(1), 1.0, 1);
    profile.add_marker(thread, MarkerTiming::Instant(Timestamp::from_nanos_since_reference(1)), Mark(label));
    profile.set_symbolicated(true);
    profile.add_initial_visible_thread(thread);
    profile.add_initial_selected_thread(thread);
    serde_json::to_value(&profile).expect("a value")
}

struct Mark(theirs::StringHandle);

impl theirs::StaticSchemaMarker for Mark {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Mark";
    const FIELDS: &'static [theirs::StaticSchemaMarkerField] = &[theirs::StaticSchemaMarkerField {
        key: "live",
        label: "Live",
        format: theirs::MarkerFieldFormat::Bytes,
        flags: theirs::MarkerFieldFlags::empty(),
    }];

    fn name(&self, _: &mut theirs::Profile) -> theirs::StringHandle {
        self.0
    }

    fn category(&self, _: &mut theirs::Profile) -> theirs::CategoryHandle {
        theirs::CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> theirs::StringHandle {
        self.0
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}

/// What kinds of values stand at each path of keys; `[]` is any entry of a list.
fn shape(value: &Value) -> BTreeMap<String, Vec<&'static str>> {
    let mut shapes = BTreeMap::new();
    visit(value, String::new(), &mut shapes);
    shapes
}

fn visit(value: &Value, path: String, shapes: &mut BTreeMap<String, Vec<&'static str>>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    let kinds = shapes.entry(path.clone()).or_default();
    if !kinds.contains(&kind) {
        kinds.push(kind);
    }
    match value {
        Value::Array(entries) => entries.iter().for_each(|entry| visit(entry, format!("{path}[]"), shapes)),
        Value::Object(fields) => fields.iter().for_each(|(key, field)| visit(field, format!("{path}.{key}"), shapes)),
        _ => {}
    }
}

/// What profiles may lack, which the crate writes.
const MAY_LACK: [&str; 2] = [".counters[].color", ".threads[].samples."];

#[test]
fn it_has_the_shape_of_what_the_crate_writes() {
    let (ours, theirs) = (ours(&sample_profile()), crates_own());
    assert_eq!(ours["meta"]["preprocessedProfileVersion"], theirs["meta"]["preprocessedProfileVersion"]);
    let (ours, theirs) = (shape(&ours), shape(&theirs));
    for (path, kinds) in &theirs {
        let lacks = MAY_LACK.iter().any(|known| path.starts_with(known));
        match ours.get(path) {
            Some(own) => {
                // files and lines, which the crate does not know; and that a moment has no end, for which it has zero
                let more = kinds == &["null"] || path == ".threads[].markers.endTime[]";
                let is_like = own.iter().any(|kind| kinds.contains(kind));
                assert!(is_like || more, "{path}: {own:?}, not {kinds:?}");
            }
            None => assert!(lacks, "no {path}"),
        }
    }
    // nothing that the format does not have, besides what `ProfileMeta` of its types has, too
    let more: Vec<&String> = ours.keys().filter(|path| !theirs.contains_key(*path)).collect();
    let known = |path: &str| {
        [".meta.importedFrom", ".meta.arguments", ".meta.stackwalk", ".meta.extra", ".meta.keepProfileThreadOrder"]
            .iter()
            .any(|known| path.starts_with(known))
    };
    assert!(more.iter().all(|path| known(path)), "{more:?}");
}

#[test]
fn ids_of_modules_are_those_of_the_crate() {
    use theirs::debugid::DebugId;
    for id in ["0123456789abcdef0123456789abcdef01234567", "00112233445566778899aabbccddeeff", "aabb", ""] {
        let byte = |at: usize| u8::from_str_radix(id.get(at * 2..at * 2 + 2).unwrap_or("0"), 16).expect("digits");
        let guid: Vec<u8> = (0..16).map(byte).collect();
        let expected = DebugId::from_guid_age(&guid, 0).expect("16 bytes").breakpad().to_string();
        let mut profile = sample_profile();
        profile.modules.iter_mut().for_each(|module| module.build_id = Some(id.to_owned()));
        assert_eq!(ours(&profile)["libs"][0]["breakpadId"], expected.as_str(), "{id}");
    }
}

/// Frees have the stacks that freed, whatever they freed: of this profile more than is known to have been allocated.
#[test]
fn what_is_freed_is_told_once() {
    let mut profile = sample_profile();
    profile.samples.change(|sample| (sample.freed, sample.deallocated) = (amount(0, 0), sample.deallocated));
    let sum = |profile: &Profile, of: fn(&Sample) -> u64| profile.samples.iter().map(|sample| of(&sample)).sum::<u64>();
    let read = ours(&profile);
    let table = &read["threads"][0]["nativeAllocations"];
    let column = |name: &str| table[name].as_array().expect("a column").clone();
    let freed: i64 = column("weight").iter().filter_map(Value::as_i64).filter(|bytes| *bytes < 0).sum();
    assert!(freed.unsigned_abs() >= sum(&profile, |sample| sample.deallocated.bytes), "{freed}");
    let of_stacks: i64 = column("weight")
        .iter()
        .zip(column("stack"))
        .filter(|(bytes, stack)| bytes.as_i64() < Some(0) && !stack.is_null())
        .filter_map(|(bytes, _)| bytes.as_i64())
        .sum();
    assert_eq!(of_stacks.unsigned_abs(), sum(&profile, |sample| sample.deallocated.bytes));
}

#[test]
fn it_takes_many_stacks() {
    let read = ours(&foreign::many_stacks());
    let table = &read["threads"][1]["nativeAllocations"];
    assert_eq!(table["length"], 100_000);
}
