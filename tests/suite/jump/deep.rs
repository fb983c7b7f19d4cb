//! More frames of different stacks than there is room for in the memory that the engine adds.

use super::order::assert_each_way;
use super::{assert_same, by};
use crate::support::fixtures;
use crate::support::program::Program;

/// 4,096 ways of 130 frames, on which malloc and free are called: some million frames of different stacks. What has no
/// room is found all the same: threads hand each stack over once, not at each call, and no stack gets another one's
/// calls.
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
    assert!(!told && !text.contains("that heaptrace copied"), "{text}");
}

/// Frames of all shapes, handlers, longjmp and another stack where a thread compares its outer frames with those of the
/// call before: the stacks are those of stops.
#[test]
fn stacks_of_all_shapes_beyond_the_room_are_the_same() {
    const CALLS: u64 = 2048 + 5 * (60 + 5);
    // with more optimization, left and right are one function
    for flags in [&["-O1", "-fomit-frame-pointer"][..], &["-O1", "-fno-omit-frame-pointer"]] {
        let program = Program::new(fixtures::program_with("beyond_the_nodes", flags));
        assert_same(&program, &[]);
        let traced = by("jump", &program, &[]);
        assert_eq!(traced.report.site_sum(&["allocate"], "/allocated/objects"), CALLS, "{flags:?}");
        traced.report.assert_no_anomaly();
    }
}

/// What heaptrace takes at most of memory, in KiB as the kernel counts it, for a run of so many different stacks of 16
/// frames; its report.
fn most_memory(stacks: u64) -> (u64, String) {
    // The most memory that heaptrace, or what it started, has had.
    let measure = "import os, resource, subprocess, sys\n\
                   os.environ.pop('HEAPTRACE_TEST_REPLAY', None)\n\
                   status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)\n\
                   print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let target = fixtures::program("distinct_stacks");
    let program = Program::new("python3").args(["-c", measure, env!("CARGO_BIN_EXE_heaptrace"), "run"]);
    let file = program.outside("measured.pb.gz");
    let program = program.args(["--engine", "jump", "-o", file.to_str().unwrap(), target.to_str().unwrap()]);
    let ended = program.args([stacks.to_string()]).plain().success();
    let output = ended.text();
    let (status, kib) = output.trim().split_once(' ').unwrap();
    assert_eq!(status, "0", "{}", ended.stderr);
    (kib.parse().unwrap(), ended.stderr)
}

/// The run, the profile, its file and the summary together take few bytes for each new stack, as their tables hold
/// numbers and nothing twice.
#[test]
fn a_new_stack_takes_few_bytes_to_the_end() {
    const FEW: u64 = 20_000;
    const MANY: u64 = 120_000;
    let ((few, _), (many, summary)) = (most_memory(FEW), most_memory(MANY));
    assert!(summary.contains("120,000 stacks"), "{summary}");
    let each = (many.saturating_sub(few) << 10) / (MANY - FEW);
    assert!(each < 700, "{each} bytes a stack: {few} KiB for {FEW}, {many} KiB for {MANY}");
}
