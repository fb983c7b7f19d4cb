use super::*;

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

/// What several processes warn of stands once, with how many they are; few are named.
#[test]
fn common_warnings_stand_once() {
    let profile = |pid, warnings: &[&str]| {
        let mut profile = crate::export::tests::empty_profile();
        profile.meta.pid = pid;
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
