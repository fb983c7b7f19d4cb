//! The formats of other tools, as far as that can be said without the tools.

use super::*;
use crate::export::proto::{otlp, perfetto};
use prost::Message;

fn pftrace(profile: &Profile) -> perfetto::Trace {
    perfetto::Trace::decode(exported(Format::Perfetto, profile).as_slice()).expect("a trace")
}

/// Calls `each` with all texts of a trace, or of OpenTelemetry's profiles.
pub(super) fn texts(format: Format, profile: &Profile, mut each: impl FnMut(&str)) {
    if format == Format::Otlp {
        let data = otlp::ProfilesData::decode(exported(format, profile).as_slice()).expect("profiles");
        let dictionary = data.dictionary.expect("a dictionary");
        dictionary.string_table.iter().for_each(|text| each(text));
        let resources = data.resource_profiles.into_iter().filter_map(|profiles| profiles.resource);
        let of_resources = resources.flat_map(|resource| resource.attributes).filter_map(|attribute| attribute.value);
        let values = dictionary.attribute_table.into_iter().filter_map(|attribute| attribute.value).chain(of_resources);
        return values.for_each(|value| texts_of_value(value, &mut each));
    }
    for packet in pftrace(profile).packet {
        let interned = packet.interned_data.unwrap_or_default();
        for text in [interned.function_names, interned.mapping_paths, interned.source_paths].concat() {
            each(std::str::from_utf8(&text.str).expect("UTF-8"));
        }
        let track = packet.track_descriptor.unwrap_or_default();
        each(&track.name);
        let process = track.process.unwrap_or_default();
        process.cmdline.iter().for_each(|word| each(word));
        each(&process.process_name);
    }
}

fn texts_of_value(value: otlp::AnyValue, each: &mut dyn FnMut(&str)) {
    match value.value {
        Some(otlp::any_value::Value::StringValue(text)) => each(&text),
        Some(otlp::any_value::Value::ArrayValue(array)) => {
            array.values.into_iter().for_each(|value| texts_of_value(value, each));
        }
        _ => {}
    }
}

/// The text of heaptrack's format.
pub(super) fn heaptrack(profile: &Profile) -> String {
    let bytes = zstd::decode_all(exported(Format::Heaptrack, profile).as_slice()).expect("zstd");
    String::from_utf8(bytes).expect("UTF-8").replace(env!("CARGO_PKG_VERSION"), "[version]")
}

/// 100,000 stacks of different depths, and a location of an inlined call in each.
pub(super) fn many_stacks() -> Profile {
    let mut profile = sample_profile();
    let sample = profile.samples.row(0);
    profile.stacks = (0..100_000)
        .map(|i: usize| Stack {
            locations: (0..17).map(|bit| if i >> bit & 1 == 1 { 0 } else { 1 }).chain([5]).collect(),
            quality: Quality::Complete,
            leak: None,
            object: None,
        })
        .collect();
    profile.samples = (0..profile.stacks.len()).map(|stack| Sample { stack, ..sample }).collect();
    profile
}

/// Perfetto drops stacks with a frame whose mapping it does not know: those of code in no module and of unknown stacks
/// must have one.
#[test]
fn each_frame_has_a_mapping_in_pftrace() {
    let mut profile = sample_profile();
    for location in &mut profile.locations {
        location.module = None;
    }
    let unknown = Stack { locations: Vec::new(), ..profile.stacks.row(0) };
    profile.stacks.replace(1, unknown);
    for profile in [profile, sample_profile()] {
        let (mut mappings, mut frames) = (std::collections::BTreeSet::new(), 0);
        for packet in pftrace(&profile).packet {
            let sequence = packet.trusted_packet_sequence_id;
            if let Some(interned) = packet.interned_data {
                mappings.extend(interned.mappings.iter().map(|mapping| (sequence, mapping.iid)));
                frames += interned.frames.len();
                for frame in interned.frames {
                    assert!(mappings.contains(&(sequence, frame.mapping_id)), "{frame:?}");
                }
            }
        }
        assert!(frames > 5, "{frames}");
    }
}

#[test]
fn a_large_dump_is_told_in_parts() {
    let trace = pftrace(&many_stacks());
    let (mut samples, mut open) = (0, 0);
    for packet in &trace.packet {
        if let Some(profile) = packet.profile_packet.as_ref().filter(|_| packet.trusted_packet_sequence_id == 2) {
            samples += profile.process_dumps.iter().map(|dump| dump.samples.len()).sum::<usize>();
            open += usize::from(profile.continued);
        }
        assert!(packet.encoded_len() < 1 << 20, "{}", packet.encoded_len());
    }
    assert_eq!((samples, open), (100_000, 99));
}

#[test]
fn blocks_from_before_are_live_in_pftrace() {
    let mut profile = sample_profile();
    profile.samples.edit(|samples| (samples[0].allocated, samples[0].freed) = (amount(1, 24), amount(0, 0)));
    let dumps = pftrace(&profile).packet.into_iter().filter_map(|packet| packet.profile_packet);
    let end =
        dumps.flat_map(|packet| packet.process_dumps).find(|dump| dump.heap_name == "libc.malloc").expect("a dump");
    let sample = end.samples.first().expect("a sample");
    assert_eq!([sample.self_allocated, sample.self_freed, sample.alloc_count, sample.free_count], [4096, 0, 4, 0]);
}

#[test]
fn heaptrack_of_the_sample_profile() {
    let mut profile = sample_profile();
    profile.samples.edit(|samples| {
        samples[2].allocated = amount(3, 193);
        samples[2].freed = amount(3, 193);
        samples[2].at_peak = amount(2, 128);
        samples[2].temporary = 1;
    });
    insta::assert_snapshot!(heaptrack(&profile));
}

#[test]
fn heaptrack_takes_many_stacks() {
    let text = heaptrack(&many_stacks());
    assert_eq!(text.lines().filter(|line| line.starts_with("+ ")).count(), 1_000_000);
}

/// In builds for tests; a release build is about ten times as fast.
#[test]
fn more_blocks_than_can_be_told_singly_keep_their_bytes() {
    let mut profile = sample_profile();
    profile.samples.edit(|samples| {
        samples.truncate(1);
        samples[0].allocated = amount(1 << 40, 1 << 50);
        samples[0].freed = amount((1 << 40) - 4, (1 << 50) - 4096);
    });
    let text = heaptrack(&profile);
    let events = text.lines().filter(|line| line.starts_with("+ ")).count();
    assert!((1 << 20..=(1 << 20) + 4).contains(&events), "{events}");
    assert!(text.contains("# there are too many blocks for single events: up to 1048576 stand as one"), "{text:.300}");
}

#[test]
fn otlp_takes_many_stacks() {
    let data = otlp::ProfilesData::decode(exported(Format::Otlp, &many_stacks()).as_slice()).expect("profiles");
    assert_eq!(data.dictionary.expect("a dictionary").stack_table.len(), 100_001);
    let profiles = &data.resource_profiles[0].scope_profiles[0].profiles;
    assert!(profiles.iter().all(|profile| profile.samples.len() == 100_000));
}
