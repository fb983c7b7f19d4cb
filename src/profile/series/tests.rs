//! Sums that don't depend on order and grouping, checked against sums made by hand.

use super::*;
use crate::export::tests::sample_profile;
use crate::export::{ExportOptions, Format, write};
use crate::profile::saved::Holds;
use crate::saved::import::{self, Limits};
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};

fn bytes_of(profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(Format::Pprof, profile, &ExportOptions::default(), &mut bytes).expect("memory takes everything");
    bytes
}

/// Through a file, as merging sees it.
fn saved(profile: &Profile) -> Profile {
    import::read(&bytes_of(profile), "x", &Limits::default()).expect("our own file")
}

/// One file of a session: some of the sample profile's samples with these amounts.
#[derive(Clone, Debug)]
struct File {
    session: u8,
    part: u32,
    last: bool,
    /// For some stacks: live, allocated, deallocated, at the peak.
    amounts: Vec<(usize, u64, u64, u64, u64)>,
}

impl File {
    fn profile(&self) -> Profile {
        let mut profile = sample_profile();
        let base = profile.samples.row(0);
        let amount = |objects: u64| Amount { objects, bytes: objects * 16 };
        profile.samples = self
            .amounts
            .iter()
            .map(|(stack, live, allocated, deallocated, peak)| Sample {
                stack: *stack,
                size: 16,
                live: amount(*live),
                allocated: amount(*allocated),
                deallocated: amount(*deallocated),
                at_peak: amount(*peak),
                freed: Amount::default(),
                temporary: 0,
                ..base
            })
            .collect();
        let meta = &mut profile.meta;
        meta.session = format!("{:016x}", self.session);
        meta.part = self.part;
        meta.process.pid = 100 + i32::from(self.session);
        meta.process.program = format!("app{}", self.session % 2);
        meta.process.started_at =
            UNIX_EPOCH + Duration::from_secs(1000 + u64::from(self.session) * 10 + u64::from(self.part));
        // another place in memory for each process
        for module in &mut profile.modules {
            module.start.0 += u64::from(self.session) << 12;
            module.end.0 += u64::from(self.session) << 12;
        }
        for location in &mut profile.locations {
            location.address.0 += u64::from(self.session) << 12;
        }
        profile.saved = Some(Box::new(Saved { last: self.last, parts: vec![self.part], ..Saved::whole() }));
        saved(&profile)
    }
}

fn merged(profiles: &[Profile]) -> Result<Profile, SeriesError> {
    let heads: Vec<Head> =
        profiles.iter().enumerate().map(|(index, profile)| Head::of(profile, &format!("f{index}"))).collect();
    let plan = plan(&heads, &[], false)?;
    let mut series = Series::new(plan.single, false);
    for (profile, share) in profiles.iter().zip(&plan.shares) {
        series.add(profile, share);
    }
    Ok(saved(&series.finish(plan.open).expect("files")))
}

fn whole(session: u8, amounts: &[(usize, u64, u64, u64, u64)]) -> File {
    File { session, part: 1, last: true, amounts: amounts.to_vec() }
}

#[test]
fn different_sessions_add_up_and_the_peak_is_a_bound() {
    let (a, b) = (whole(1, &[(0, 1, 5, 4, 3)]), whole(2, &[(0, 2, 7, 5, 6), (1, 1, 1, 0, 1)]));
    let sum = merged(&[a.profile(), b.profile()]).expect("a sum");
    let totals = sum.totals;
    assert_eq!((totals.live_blocks, totals.allocations, totals.frees, totals.peak_blocks), (4, 13, 9, 10));
    let saved = sum.saved.expect("read");
    assert!(saved.peak_is_bound && saved.files == 2 && saved.last && saved.open.is_empty());
    assert!(sum.meta.session.is_empty());
    let programs: BTreeSet<_> = sum.samples.iter().map(|sample| &sum.strings[sample.program.expect("named")]).collect();
    assert_eq!(programs.len(), 2);
}

#[test]
fn parts_of_a_session_share_their_live_blocks() {
    let part =
        |part, last, amounts: (usize, u64, u64, u64, u64)| File { session: 7, part, last, amounts: vec![amounts] };
    let files = [part(1, false, (0, 4, 10, 6, 5)), part(2, false, (0, 9, 6, 1, 9)), part(3, true, (0, 2, 1, 8, 7))];
    let profiles: Vec<Profile> = files.iter().map(File::profile).collect();
    let sum = merged(&profiles).expect("a sum");
    let totals = sum.totals;
    assert_eq!((totals.live_blocks, totals.allocations, totals.frees, totals.peak_blocks), (2, 17, 15, 9));
    let saved = sum.saved.as_ref().expect("read");
    assert_eq!(
        (saved.parts.as_slice(), saved.last, saved.peak_part, saved.peak_is_bound),
        (&[1, 2, 3][..], true, 2, false)
    );
    assert_eq!(sum.meta.session, format!("{:016x}", 7));
    // what is live and what was freed are all that was allocated again
    assert!(saved.holds.freed && totals.allocations - totals.live_blocks == totals.frees);
    // a part that is missing is told
    let partial = merged(&[profiles[0].clone(), profiles[2].clone()]).expect("a sum").saved.expect("read");
    assert!(partial.is_partial() && !partial.holds.freed);
    let other = whole(8, &[(0, 1, 1, 0, 1)]).profile();
    let open = merged(&[profiles[0].clone(), other]).expect("a sum").saved.expect("read");
    assert_eq!(open.open.into_iter().collect::<Vec<_>>(), [(format!("{:016x}", 7), vec![1])]);
}

#[test]
fn sums_that_would_be_wrong_are_refused() {
    let one = whole(1, &[(0, 1, 1, 0, 1)]).profile();
    assert!(matches!(merged(&[one.clone(), one.clone()]), Err(SeriesError::SamePart { .. })));
    let mut sampled = whole(2, &[(0, 1, 1, 0, 1)]).profile();
    sampled.meta.sample_interval = 4096;
    assert!(matches!(merged(&[one.clone(), sampled]), Err(SeriesError::Intervals { .. })));
    let part = |part, last| File { session: 7, part, last, amounts: vec![(0, 1, 1, 0, 1)] }.profile();
    let mixed = merged(&[part(1, false), one]).expect("a sum");
    assert!(matches!(merged(&[mixed, part(2, true)]), Err(SeriesError::SplitSession { .. })));
}

/// Snapshots of a run, and its profile at the end, are of one session and have numbers, but each tells all until its
/// moment.
#[test]
fn what_is_no_part_of_a_series_is_not_added_to_its_session() {
    let file = |part, last| File { session: 7, part, last, amounts: vec![(0, 1, 2, 1, 2)] }.profile();
    for files in [[file(1, true), file(2, true)], [file(1, true), file(5, false)], [file(3, false), file(2, true)]] {
        assert!(matches!(merged(&files), Err(SeriesError::NotOneSeries { .. })));
    }
}

#[test]
fn partials_of_memory_sampler_count_without_what_is_live() {
    let sampler = |live: u64, dead: u64| {
        let mut profile = whole(1, &[(0, live, live + dead, dead, 0)]).profile();
        let saved = profile.saved.as_mut().expect("read");
        (saved.writer, saved.parts, saved.holds) =
            (Writer::MemorySampler, Vec::new(), Holds { peak: false, ..saved.holds });
        profile.meta.session.clear();
        profile
    };
    let profiles = [sampler(5, 3), sampler(7, 2), sampler(1, 8)];
    let heads: Vec<Head> =
        profiles.iter().zip(["a", "b", "c"]).map(|(profile, name)| Head::of(profile, name)).collect();
    assert!(matches!(plan(&heads, &[], false), Err(SeriesError::WhichIsFinal { .. })));
    assert!(matches!(plan(&heads, &["d".to_owned()], false), Err(SeriesError::NotFinal { .. })));
    let plan = plan(&heads, &["c".to_owned()], false).expect("a plan");
    let mut series = Series::new(plan.single, false);
    profiles.iter().zip(&plan.shares).for_each(|(profile, share)| series.add(profile, share));
    let totals = series.finish(plan.open).expect("files").totals;
    // 3 + 2 died, then 8 did, and 1 is left
    assert_eq!((totals.live_blocks, totals.allocations, totals.frees), (1, 14, 13));
}

/// A file of memory_sampler: one sample with these amounts.
fn raw(live: Amount, allocated: Amount, deallocated: Amount, interval: u64) -> Profile {
    let mut profile = whole(1, &[(0, 1, 1, 0, 0)]).profile();
    profile.samples.edit(|samples| {
        let [sample] = samples.as_mut_slice() else { panic!("one sample") };
        (sample.live, sample.allocated, sample.deallocated, sample.at_peak) =
            (live, allocated, deallocated, Amount::default());
    });
    let saved = profile.saved.as_mut().expect("read");
    (saved.writer, saved.parts, saved.holds) =
        (Writer::MemorySampler, Vec::new(), Holds { peak: false, ..saved.holds });
    profile.meta.session.clear();
    profile.meta.sample_interval = interval;
    profile
}

/// One large live block and many small dead ones at one stack: scaled by a mean size of all, both would be wrong.
#[test]
fn what_is_live_is_scaled_apart_from_what_is_dead() {
    let interval = 4096;
    let (large, small) = (Amount { objects: 1, bytes: 1 << 20 }, Amount { objects: 10, bytes: 160 });
    let estimate = |amount: Amount| amount.times(weight(amount.bytes / amount.objects, interval));
    for (is_final, allocations) in [(false, estimate(small)), (true, estimate(small).plus(estimate(large)))] {
        let profiles = [raw(large, large.plus(small), small, interval), raw(small, small, Amount::default(), interval)];
        let heads: Vec<Head> = profiles.iter().zip(["a", "b"]).map(|(profile, name)| Head::of(profile, name)).collect();
        let finals = if is_final { ["a", "b"].map(str::to_owned).to_vec() } else { vec!["b".to_owned()] };
        let plan = plan(&heads, &finals, true).expect("a plan");
        let mut series = Series::new(plan.single, true);
        profiles.iter().zip(&plan.shares).for_each(|(profile, share)| series.add(profile, share));
        let totals = series.finish(plan.open).expect("files").totals;
        let all = allocations.plus(estimate(small));
        assert_eq!((totals.allocations, totals.bytes_allocated), (all.objects, all.bytes), "{is_final}");
        assert_eq!(totals.frees, estimate(small).objects);
        let live = if is_final { estimate(large).plus(estimate(small)) } else { estimate(small) };
        assert_eq!((totals.live_blocks, totals.live_bytes), (live.objects, live.bytes));
    }
}

#[test]
fn raw_samples_are_not_added_to_estimates_unless_scaled() {
    let one = Amount { objects: 1, bytes: 64 };
    let mut ours = whole(2, &[(0, 1, 1, 0, 1)]).profile();
    for interval in [0, 4096] {
        ours.meta.sample_interval = interval;
        let raw = raw(one, one, Amount::default(), interval);
        let heads = [Head::of(&raw, "theirs"), Head::of(&ours, "ours")];
        let error = plan(&heads, &[], false).expect_err("refused").to_string();
        assert!(error.contains("theirs is memory_sampler's") && error.contains("--scale=BYTES"), "{error}");
        let scaled = plan(&heads, &[], true);
        match interval {
            0 => assert!(matches!(scaled, Err(SeriesError::UnknownInterval { file }) if file == "theirs")),
            _ => assert!(scaled.is_ok()),
        }
    }
}

fn amounts() -> impl Strategy<Value = Vec<(usize, u64, u64, u64, u64)>> {
    prop::collection::vec((0usize..6, 0u64..50, 50u64..1000, 0u64..100, 0u64..60), 0..5)
}

/// Sessions of some parts each, the last of which may be missing.
fn files() -> impl Strategy<Value = Vec<File>> {
    let session = (prop::collection::vec(amounts(), 1..4), any::<bool>());
    prop::collection::vec(session, 1..4).prop_map(|sessions| {
        let mut files = Vec::new();
        for (session, (parts, is_whole)) in (1u8..).zip(sessions) {
            let count = parts.len() as u32;
            for (part, amounts) in (1u32..).zip(parts) {
                files.push(File { session, part, last: is_whole && part == count, amounts });
            }
        }
        files
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any order and any grouping gives the same file, byte for byte; groupings that would tear a session apart are
    /// refused.
    #[test]
    fn order_and_grouping_make_no_difference(
        files in files(),
        keys in prop::collection::vec(any::<u32>(), 12),
        groups in prop::collection::vec(0usize..3, 12),
    ) {
        let profiles: Vec<Profile> = files.iter().map(File::profile).collect();
        let all = bytes_of(&merged(&profiles).expect("a sum"));
        let mut order: Vec<usize> = (0..profiles.len()).collect();
        order.sort_by_key(|at| keys[*at % keys.len()]);
        let shuffled: Vec<Profile> = order.iter().map(|at| profiles[*at].clone()).collect();
        prop_assert!(bytes_of(&merged(&shuffled).expect("a sum")) == all);

        let mut grouped: Vec<Vec<Profile>> = vec![Vec::new(); 3];
        for (at, profile) in order.iter().zip(&shuffled) {
            grouped[groups[*at % groups.len()]].push(profile.clone());
        }
        let sums: Vec<Profile> =
            grouped.iter().filter(|group| !group.is_empty()).map(|group| merged(group).expect("a sum")).collect();
        match merged(&sums) {
            Ok(sum) => prop_assert!(bytes_of(&sum) == all),
            Err(error) => {
                let is_split = matches!(error, SeriesError::SplitSession { .. } | SeriesError::SamePart { .. });
                prop_assert!(is_split, "{error}");
            }
        }
    }
}
