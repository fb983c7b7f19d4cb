use super::*;
use crate::export::tests::check_profile;
use crate::profile::leaks::BaselineStatus;

fn points(list: &[(u64, u64, u64)]) -> Vec<TimelinePoint> {
    list.iter().map(|&(t_ns, live_bytes, allocations)| TimelinePoint { t_ns, live_bytes, allocations }).collect()
}

#[test]
fn timelines_add_up_without_what_was_inherited_and_without_the_dead() {
    let parent = OwnTimeline { points: points(&[(10, 100, 1), (40, 150, 2)]), inherited_bytes: 0, end_ns: None };
    let child = OwnTimeline { points: points(&[(20, 130, 1), (30, 90, 1)]), inherited_bytes: 100, end_ns: Some(35) };
    let sum = sum_of(&[parent, child]);
    assert_eq!(sum, points(&[(10, 100, 1), (20, 130, 2), (30, 100, 2), (35, 100, 2), (40, 150, 3)]));
}

/// Times count from each process's beginning; in the sum from the first one's.
#[test]
fn peaks_and_ends_are_shifted_to_where_their_processes_began() {
    let profile = |peak_at_ns, wall_ns| {
        let mut profile = crate::export::tests::empty_profile();
        (profile.totals.peak_bytes, profile.totals.peak_at_ns, profile.cost.wall_ns) = (100, peak_at_ns, wall_ns);
        profile.timeline = points(&[(peak_at_ns, 100, 1)]);
        profile.meta.duration_ns = wall_ns;
        profile
    };
    let origin = |start_ns| Origin { start_ns, ..Origin::default() };
    let mut merger = Merger::new(profile(50, 90), &origin(0));
    merger.add(profile(7, 10), &origin(60));
    // what was only inherited is nobody's peak
    let inherited = Amount { objects: 1, bytes: 100 };
    merger.add(profile(5, 9), &Origin { start_ns: 70, inherited_at_peak: inherited, ..Origin::default() });
    let all = merger.finish(Vec::new());
    assert_eq!((all.totals.peak_at_ns, all.meta.duration_ns), (67, 90));
    assert_eq!(all.timeline.iter().map(|point| point.t_ns).filter(|t| [50, 67, 75].contains(t)).count(), 3);
}

/// The first process may have allocated nothing: any that was on the jump engine is enough for it to be named.
#[test]
fn the_jump_engine_of_any_process_is_told() {
    let profile = |engine: &str| {
        let mut profile = crate::export::tests::empty_profile();
        engine.clone_into(&mut profile.meta.engine);
        profile.cost.conditions.jump = engine == "jump";
        profile
    };
    for (engines, all) in
        [(["trap", "jump", "trap"], "jump"), (["jump", "trap", "trap"], "jump"), (["trap"; 3], "trap")]
    {
        let mut merger = Merger::new(profile(engines[0]), &Origin::default());
        engines[1..].iter().for_each(|engine| merger.add(profile(engine), &Origin::default()));
        assert_eq!(merger.finish(Vec::new()).meta.engine, all);
    }
}

/// What several processes warn of stands once, with how many they are; few are named.
#[test]
fn common_warnings_stand_once() {
    let profile = |pid, warnings: &[&str]| {
        let mut profile = crate::export::tests::empty_profile();
        profile.meta.process.pid = pid;
        profile.warnings = warnings.iter().map(|warning| (*warning).to_owned()).collect();
        profile
    };
    let mut merger = Merger::new(profile(1, &["all"]), &Origin::default());
    for pid in 2..=5 {
        let warnings: &[&str] = match pid {
            2 => &["two", "one", "all"],
            3 => &["two", "all"],
            _ => &["all"],
        };
        merger.add(profile(pid, warnings), &Origin::default());
    }
    let row = ProcessRow {
        pid: 1,
        parent: None,
        program: String::new(),
        exit: None,
        seen: super::super::Seen::Recorded,
        totals: Totals::default(),
        inherited: Amount::default(),
        inherited_at_peak: Amount::default(),
        resident: None,
        verdict: None,
    };
    let all = merger.finish(vec![row; 5]);
    let told = ["all (5 of 5 processes)", "two (processes 2, 3)", "one (process 2)"];
    assert_eq!(all.warnings, told);
}

#[test]
fn a_long_timeline_keeps_its_highest_point_and_its_end() {
    let list: Vec<_> = (0..100_000).map(|n| (n, if n == 70_001 { 9_999 } else { n % 100 }, n)).collect();
    let thin = thin_out(points(&list));
    assert!(thin.len() <= POINTS, "{}", thin.len());
    assert_eq!(thin.iter().map(|point| point.live_bytes).max(), Some(9_999));
    assert_eq!(thin.last().map(|point| point.t_ns), Some(99_999));
    assert!(thin.is_sorted_by_key(|point| point.t_ns));
}

/// Two processes that did the same, at addresses of their own: each line stands once, with the sum.
#[test]
fn what_processes_have_in_common_stands_once_with_its_sum() {
    /// How much higher everything lies in the second process.
    const SHIFT: u64 = 0x1234_5000;
    let first = check_profile();
    let mut second = check_profile();
    for module in &mut second.modules {
        (module.start.0, module.end.0) = (module.start.0 + SHIFT, module.end.0 + SHIFT);
    }
    for location in second.locations.iter_mut().filter(|location| location.module.is_some()) {
        location.address.0 += SHIFT;
    }
    second.meta.complete = false;
    // in the second process only there is something for the second rule to hide
    second.leaks.as_mut().unwrap().sites[2].suppressed_by[3] = Some(1);
    second.leaks.as_mut().unwrap().sites[4].baseline[2] = Some(BaselineStatus::New);

    let alone = Merger::new(first.clone(), &Origin::default()).finish(Vec::new());
    let mut merger = Merger::new(first, &Origin::default());
    merger.add(second, &Origin::default());
    let both = merger.finish(Vec::new());

    let twice = |amount: Amount| Amount { objects: 2 * amount.objects, bytes: 2 * amount.bytes };
    assert_eq!((both.samples.len(), both.stacks.len()), (alone.samples.len(), alone.stacks.len()));
    for (sum, part) in both.samples.iter().zip(alone.samples.iter()) {
        assert_eq!(
            (sum.allocated, sum.live, sum.at_peak),
            (twice(part.allocated), twice(part.live), twice(part.at_peak))
        );
        assert_eq!((sum.freed, sum.deallocated), (twice(part.freed), twice(part.deallocated)));
        assert_eq!(sum.temporary, 2 * part.temporary);
    }
    assert_eq!(
        (both.totals.live_bytes, both.totals.peak_bytes),
        (2 * alone.totals.live_bytes, 2 * alone.totals.peak_bytes)
    );
    assert_eq!(both.locations.len(), alone.locations.len());
    for (found, expected) in both.locations.iter().zip(&alone.locations) {
        assert_eq!(
            (found.address, found.offset),
            (expected.address, expected.offset),
            "where the first process has it"
        );
    }
    let counts = |profile: &Profile| profile.findings.iter().map(|finding| finding.count).collect::<Vec<_>>();
    assert_eq!((counts(&alone), counts(&both)), (vec![3], vec![6]));
    let part = check_profile().histograms;
    for (sum, part) in [(&both.histograms.size, &part.size), (&both.histograms.lifetime, &part.lifetime)] {
        assert!(
            sum.iter().zip(part).all(|(sum, part)| *sum == 2 * part) && sum.len() == part.len(),
            "{sum:?} {part:?}"
        );
    }
    assert!(alone.meta.complete && !both.meta.complete);

    let hidden = |profile: &Profile| profile.suppressions.iter().map(|rule| rule.hidden).collect::<Vec<_>>();
    assert_eq!(hidden(&both), hidden(&alone).into_iter().map(twice).collect::<Vec<_>>());
    let (both, alone) = (both.leaks.unwrap(), alone.leaks.unwrap());
    assert_eq!(both.sites.len(), alone.sites.len());
    let of_stack = |stack: usize| both.sites.iter().find(|site| site.stack == stack).unwrap();
    for part in &alone.sites {
        let sum = of_stack(part.stack);
        assert_eq!((sum.amounts, sum.holds), (part.amounts.map(twice), twice(part.holds)));
    }
    assert_eq!(both.sites.iter().filter(|site| site.suppressed_by[3] == Some(1)).count(), 1);
    assert_eq!(both.sites.iter().filter(|site| site.baseline[2] == Some(BaselineStatus::New)).count(), 1);
    assert_eq!(both.stopped_ns, 2 * alone.stopped_ns);
}

/// What only a later process has called lies where the first one's modules are.
#[test]
fn addresses_are_those_of_the_first_process() {
    let first = check_profile();
    let mut second = check_profile();
    for module in &mut second.modules {
        (module.start.0, module.end.0) = (module.start.0 + 0x5000, module.end.0 + 0x5000);
    }
    for location in second.locations.iter_mut().filter(|location| location.module.is_some()) {
        (location.address.0, location.offset) = (location.address.0 + 0x5000 + 4, location.offset + 4);
    }
    let biases = |profile: &Profile| {
        let in_modules = profile.locations.iter().filter_map(|location| Some((location.module?, location)));
        let biases = in_modules.map(|(module, location)| (module, location.address.0.wrapping_sub(location.offset)));
        biases.collect::<std::collections::BTreeSet<_>>()
    };
    let alone = Merger::new(first.clone(), &Origin::default()).finish(Vec::new());
    let mut merger = Merger::new(first, &Origin::default());
    merger.add(second, &Origin::default());
    let both = merger.finish(Vec::new());
    assert!(both.locations.len() > alone.locations.len());
    assert_eq!(biases(&both), biases(&alone));
}
