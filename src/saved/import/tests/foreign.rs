//! Profiles of other tools.

use super::*;
use crate::export::proto;
use prost::Message;

/// A profile with these columns, one location of a known function for each sample's id.
fn foreign(columns: &[(&str, &str)], samples: &[(u64, &[i64])], named: bool) -> proto::Profile {
    let mut strings =
        vec![String::new(), "space".to_owned(), "bytes".to_owned(), "work".to_owned(), "/bin/tool".to_owned()];
    let mut string = |text: &str| {
        strings.push(text.to_owned());
        strings.len() as i64 - 1
    };
    let sample_type =
        columns.iter().map(|(name, unit)| proto::ValueType { r#type: string(name), unit: string(unit) }).collect();
    let line = if named { vec![proto::Line { function_id: 77, line: 3 }] } else { Vec::new() };
    let location = |id: u64| proto::Location { id, mapping_id: 5, address: id, line: line.clone(), is_folded: false };
    proto::Profile {
        sample_type,
        sample: samples
            .iter()
            .map(|(id, values)| proto::Sample { location_id: vec![*id], value: values.to_vec(), label: Vec::new() })
            .collect(),
        mapping: vec![proto::Mapping {
            id: 5,
            memory_start: 0x1000,
            memory_limit: 0x9000,
            file_offset: 0x200,
            filename: 4,
            ..proto::Mapping::default()
        }],
        location: samples.iter().map(|(id, _)| location(*id)).collect(),
        function: vec![proto::Function { id: 77, name: 3, ..proto::Function::default() }],
        period_type: Some(proto::ValueType { r#type: 1, unit: 2 }),
        period: 524_288,
        string_table: strings,
        ..proto::Profile::default()
    }
}

const GO: [(&str, &str); 4] =
    [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")];

#[test]
fn go_s_heap_profiles() {
    let profile = read_back(&foreign(&GO, &[(0x1500, &[10, 1000, 4, 400])], true).encode_to_vec());
    assert_eq!(profile.samples.len(), 1, "{:?}", profile.samples);
    let sample = profile.samples.row(0);
    assert_eq!((sample.allocated.bytes, sample.live.objects, sample.freed.bytes), (1000, 4, 600));
    let saved = profile.saved.expect("read");
    assert_eq!((saved.writer, saved.about_peak), (Writer::Other, false));
    assert_eq!(saved.holds.missing(), ["deallocated", "peak", "temporary"]);
    assert_eq!((profile.meta.sample_interval, profile.meta.process.program.as_str()), (524_288, "tool"));
    assert_eq!(profile.functions[0].name, "work");
}

/// memory_sampler has addresses as ids, one sample for each block, no names, and no type of its period.
#[test]
fn memory_sampler_s_profiles() {
    let columns = [
        ("residual_allocated_objects", "count"),
        ("residual_allocated_space", "bytes"),
        ("allocated_objects", "count"),
        ("allocated_space", "bytes"),
        ("deallocated_objects", "count"),
        ("deallocated_space", "bytes"),
    ];
    let samples: [(u64, &[i64]); 4] = [
        (0x1500, &[1, 10, 1, 10, 0, 0]),
        (0x1500, &[1, 30, 1, 30, 0, 0]),
        (0x1600, &[0, 0, 1, 5, 0, 0]),
        (0x1700, &[0, 0, 0, 0, 1, 5]),
    ];
    let mut message = foreign(&columns, &samples, false);
    message.location.dedup_by_key(|location| location.id);
    (message.period_type, message.period, message.default_sample_type) = (None, 0, 3);
    let profile = read_back(&message.encode_to_vec());
    assert_eq!(profile.samples.len(), 3, "samples of one stack are one");
    assert_eq!((profile.totals.live_bytes, profile.totals.bytes_allocated, profile.totals.bytes_freed), (40, 45, 5));
    let saved = profile.saved.as_ref().expect("read");
    assert_eq!(saved.writer, Writer::MemorySampler);
    let name = |sample: &Sample| profile.functions_of(sample.stack).map(|f| f.name.clone()).collect::<Vec<_>>();
    assert_eq!(name(&profile.samples.row(0)), ["tool+0x700"], "the place in the file");
}

#[test]
fn legacy_heap_profiles_that_pprof_converted() {
    let columns = [("objects", "count"), ("space", "bytes")];
    let profile = read_back(&foreign(&columns, &[(0x1500, &[2, 64])], true).encode_to_vec());
    assert_eq!((profile.totals.live_blocks, profile.totals.live_bytes, profile.totals.allocations), (2, 64, 0));
}

#[test]
fn profiles_of_something_else_and_damaged_ones() {
    let cpu = foreign(&[("samples", "count"), ("cpu", "nanoseconds")], &[(0x1500, &[1, 10])], true);
    assert!(refused(&cpu.encode_to_vec()).contains("it counts samples, cpu"));
    let negative = foreign(&GO, &[(0x1500, &[-1, -10, 0, 0])], true);
    assert!(refused(&negative.encode_to_vec()).contains("negative"));
    let short = foreign(&GO, &[(0x1500, &[1])], true);
    assert!(refused(&short.encode_to_vec()).contains("a sample of 1 values in a profile of 4 columns"));
    let mut lost = foreign(&GO, &[(0x1500, &[1, 1, 1, 1])], true);
    lost.location.clear();
    assert!(refused(&lost.encode_to_vec()).contains("unknown location"));
    let mut nameless = foreign(&GO, &[(0x1500, &[1, 1, 1, 1])], true);
    nameless.function.clear();
    assert!(refused(&nameless.encode_to_vec()).contains("unknown function"));
}
