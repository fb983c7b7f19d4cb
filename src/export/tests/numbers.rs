//! What the formats say in figures: sums, samples, sites.

use super::*;
use crate::export::view::{StackTotals, View};

#[test]
fn the_sums_of_the_sites_are_the_totals() {
    let profile = sample_profile();
    let view = View::new(&profile);
    let sites = view.sites();
    let sum = |of: fn(&StackTotals) -> Amount| {
        sites.iter().map(|site| of(&site)).fold((0, 0), |sum, amount| (sum.0 + amount.objects, sum.1 + amount.bytes))
    };
    assert_eq!(sum(|site| site.allocated), (116, 1_065_248));
    assert_eq!(sum(|site| site.live), (7, 266_272));
    assert_eq!(sum(|site| site.at_peak), (64, 1_060_000));
    assert_eq!(sum(|site| site.freed), (109, 798_976));
}

#[test]
fn a_site_is_told_by_its_function_names_alone() {
    let profile = sample_profile();
    let id = profile.site_id(0);
    let mut rebuilt = sample_profile();
    rebuilt.locations[0].address = Addr(0x1234);
    rebuilt.locations[0].lines[0].line = 77;
    assert_eq!(rebuilt.site_id(0), id);
    rebuilt.functions[1].name = "parse_other".to_owned();
    assert_ne!(rebuilt.site_id(0), id);
    // FNV-1a of "new_node\0parse_document\0main\0", computed apart from this code
    assert_eq!(format!("{id:016x}"), "b95d246ce6dfa244");
}

#[test]
fn stacks_with_equal_names_are_one_site() {
    let mut profile = sample_profile();
    profile.stacks.replace(3, Stack::new(&[0, 8], Quality::Guessed));
    let view = View::new(&profile);
    let sites = view.sites();
    let merged = sites.iter().find(|site| site.stack == 0).expect("the first of the two names the site");
    assert_eq!(merged.allocated, amount(11, 10_272));
    assert_eq!(merged.quality, Quality::Guessed, "the worse of both");
    assert_eq!(sites.len(), 4);
}

/// A stack is not that of its outer frames, whatever its innermost function's place in the tables.
#[test]
fn a_stack_and_a_part_of_it_are_two_sites() {
    let mut profile = sample_profile();
    let sites = View::new(&profile).sites().len();
    profile.functions.iter_mut().enumerate().for_each(|(number, function)| function.name = format!("f{number}"));
    for stack in 0..profile.stacks.len() {
        let outer = profile.stacks.locations(stack).skip(1).collect();
        profile.stacks.push(Stack { locations: outer, quality: Quality::Complete, leak: None, object: None });
    }
    let own = profile.samples.clone();
    let count = profile.stacks.len() / 2;
    profile.samples.extend(own.into_rows().map(|sample| Sample { stack: sample.stack + count, ..sample }));
    let count = profile.functions.len();
    for first in 0..count {
        let mut turned = profile.clone();
        turned.functions.rotate_left(first);
        let lines = turned.locations.iter_mut().flat_map(|location| &mut location.lines);
        lines.for_each(|line| line.function = (line.function + count - first) % count);
        let names = |stack: usize| turned.functions_of(stack).map(|f| f.name.as_str()).collect::<Vec<_>>();
        let told: Vec<Vec<&str>> = View::new(&turned).sites().iter().map(|site| names(site.stack)).collect();
        let counted = turned.samples.iter().filter(|sample| sample.allocated.objects + sample.freed.objects > 0);
        let distinct: std::collections::BTreeSet<Vec<&str>> = counted.map(|sample| names(sample.stack)).collect();
        assert!(told.len() >= sites && told.len() == distinct.len(), "{first}: {told:?} of {distinct:?}");
    }
}

fn sampled(profile: &mut Profile, interval: u64) {
    profile.meta.sample_interval = interval;
    profile.samples.change(|sample| sample.interval = interval);
}

#[test]
fn sampled_blocks_count_as_often_as_they_stand_for() {
    let mut profile = sample_profile();
    sampled(&mut profile, 1024);
    let view = View::new(&profile);
    assert_eq!(view.samples.row(0).allocated, amount(16, 16_199));
    assert_eq!(view.samples.row(1).allocated, amount(4, 1_048_576), "large blocks are always caught");
    // each with its own interval
    profile.samples.edit(|samples| samples[0].interval = 4096);
    let view = View::new(&profile);
    assert_eq!(view.samples.row(0).allocated, amount(45, 46_293), "10 / (1 - e^-0.25)");
}

#[test]
fn the_standard_error_is_that_of_the_binomial_estimate() {
    let mut profile = sample_profile();
    profile.samples.edit(|samples| samples.truncate(1));
    sampled(&mut profile, 1024);
    let report: serde_json::Value = serde_json::from_slice(&exported(Format::Json, &profile)).expect("JSON");
    // sqrt(10 · 1024² · (1−p)/p²) with p = 1 − 1/e
    assert_eq!(report["sampling"]["standard_error"], 3107);
    sampled(&mut profile, 0);
    let report: serde_json::Value = serde_json::from_slice(&exported(Format::Json, &profile)).expect("JSON");
    assert_eq!(report["sampling"]["standard_error"], 0);
}

/// What is resident is never all of the allocator's: no share is claimed where none can be known.
#[test]
fn the_share_of_the_resident_memory_is_told_as_far_as_it_is_known() {
    let told = |peak_bytes, all_blocks_known, mut profile: Profile| {
        profile.meta.process.resident = Some(Resident { peak_bytes, all_blocks_known });
        let text = exported_text(Format::Txt, &profile);
        text.lines().find(|line| line.trim_start().starts_with("resident")).expect("the row").trim().to_owned()
    };
    let row = told(4_240_000, true, sample_profile());
    assert!(row.ends_with("4.04 MiB  4,240,000  at most; the peak of live blocks is 25.0 % of it"), "{row}");
    let row = told(100_000, true, sample_profile());
    assert!(row.ends_with("at most, less than the peak of live blocks: some were never touched"), "{row}");
    let row = told(4_240_000, false, attach_profile());
    assert!(row.ends_with("at most, the time before tracing began included"), "{row}");
    let row = told(4_240_000, false, sample_profile());
    assert!(row.ends_with("at most"), "{row}");
    let mut unknown = check_profile();
    unknown.meta.process.resident = None;
    for format in [Format::Txt, Format::Markdown, Format::Pprof] {
        let text = String::from_utf8_lossy(&exported(format, &unknown)).to_lowercase();
        assert!(!text.contains("resident:") && !text.contains("resident  "), "{text}");
        let text = String::from_utf8_lossy(&exported(format, &check_profile())).to_lowercase();
        assert!(text.contains("resident:") || text.contains("resident  "), "{text}");
    }
}

/// What the program has mapped by itself is told apart from its blocks, wherever the figures are.
#[test]
fn mappings_have_a_share_of_their_own() {
    const RESIDENT: u64 = 4_240_000;
    let mut profile = sample_profile();
    profile.meta.process.resident = Some(Resident { peak_bytes: RESIDENT, all_blocks_known: true });
    let (mmap, peak) = (profile.strings.len(), profile.totals.peak_bytes);
    profile.strings.push("mmap".to_owned());
    let Amount { objects, bytes } = profile.samples.edit(|samples| {
        let largest = samples.iter_mut().max_by_key(|sample| sample.at_peak.bytes).expect("a sample");
        largest.alloc_fn = mmap;
        largest.at_peak
    });
    assert!((1..peak).contains(&bytes), "{bytes} of {peak}");
    let text = exported_text(Format::Txt, &profile).split_whitespace().collect::<Vec<_>>().join(" ");
    let percent = |bytes: u64| format!("{:.1} %", bytes as f64 / RESIDENT as f64 * 100.0);
    let told = format!(
        "blocks were {} of it, and what the program itself had mapped {}, touched or not",
        percent(peak - bytes),
        percent(bytes)
    );
    assert!(text.contains(&told), "{told}: {text}");
    let report: serde_json::Value = serde_json::from_slice(&exported(Format::Json, &profile)).expect("JSON");
    assert_eq!(report["mapped"]["at_peak"], serde_json::json!({ "objects": objects, "bytes": bytes }));
    let plain: serde_json::Value = serde_json::from_slice(&exported(Format::Json, &sample_profile())).expect("JSON");
    assert!(plain.get("mapped").is_none());
    profile.meta.sample_interval = 4096;
    let text = exported_text(Format::Txt, &profile).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("blocks were about "), "{text}");
}
