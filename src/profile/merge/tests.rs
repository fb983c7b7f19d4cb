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

#[test]
fn a_long_timeline_keeps_its_highest_point_and_its_end() {
    let list: Vec<_> = (0..100_000).map(|n| (n, if n == 70_001 { 9_999 } else { n % 100 }, n)).collect();
    let thin = thin_out(points(&list));
    assert!(thin.len() <= POINTS, "{}", thin.len());
    assert_eq!(thin.iter().map(|point| point.live_bytes).max(), Some(9_999));
    assert_eq!(thin.last().map(|point| point.t_ns), Some(99_999));
    assert!(thin.is_sorted_by_key(|point| point.t_ns));
}
