//! More frames of different stacks than there is room for in the memory that the engine adds.

use super::by;
use super::order::assert_each_way;
use crate::support::fixtures;
use crate::support::program::Program;

/// 4,096 ways of 130 frames, on which malloc and free are called: some million frames of different stacks. What has no room is found all the same: threads
/// hand each stack over once, not at each call, and no stack gets another one's calls.
#[test]
fn stacks_beyond_the_room_are_handed_over_once() {
    const LEVELS: u32 = 12;
    const ROUNDS: u64 = 8;
    let calls = 4 * ROUNDS;
    let program = Program::new(fixtures::program_with("many_stacks", &["-DLEVELS=12", "-DDEEP=100", "-DROUNDS=8"]));
    let traced = by("jump", &program, &["-vv"]);
    assert_each_way(&traced, LEVELS, calls);
    traced.report.assert_no_anomaly();
    let text = &traced.ended.stderr;
    let (before, _) = text.split_once(" stacks were copied").expect("what the routine has counted");
    let handed_over: u64 = before.rsplit(' ').next().unwrap().parse().unwrap();
    // of malloc and of free, and what several threads come to at once
    let stacks = 2 << LEVELS;
    assert!(handed_over < 2 * stacks, "{handed_over} of {} calls, {stacks} stacks", (2 * calls) << LEVELS);
    let told = traced.report.list("/warnings").iter().any(|warning| warning.to_string().contains("different stacks"));
    assert!(!told && !text.contains("that were copied"), "{text}");
}
