//! What a detach leaves of the jump engine's memory: nothing, where no thread can return through it; and what a process
//! that has some is told.

use crate::support::procfs;
use crate::support::program::Program;
use std::process::Command;

/// Mappings that are, or may be, the jump engine's: its shared memory, and anonymous code.
pub fn added(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let is_added = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        line.contains("/memfd:heaptrace") || words.len() == 5 && words[1] == "r-xp" && words[4] == "0"
    };
    maps.lines().filter(is_added).map(str::to_owned).collect()
}

/// A thread sleeps in a call whose return address is ours. The detach puts its own back, and unmaps what it would have
/// returned through.
#[test]
fn a_call_in_progress_returns_when_all_is_unmapped() {
    let program = Program::fixture("held_call");
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let before = added(pid);
    for _ in 0..3 {
        let tracer = Program::new("/bin/true").env("HEAPTRACE_ENGINE", "jump");
        let attached = tracer.start_attached(&[], pid);
        procfs::wait_until_answered(pid);
        target.send("go");
        assert_eq!(target.line(), "held");
        assert_ne!(added(pid), before, "the jump engine was to be there");
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        assert_eq!(traced.report.text("/engine"), "jump", "{}", traced.ended.stderr);
        assert_eq!(added(pid), before, "{}", traced.ended.stderr);
        procfs::assert_text_intact(pid);
        target.send("");
        assert_eq!(target.line(), "back");
    }
    target.feed(b"");
    target.wait().success();
}

/// Such memory is named by `doctor` and `heap`; nobody reads it, which would make it resident.
#[test]
fn what_was_left_is_named_and_not_read() {
    let program = Program::fixture("added_memory");
    let mut target = program.start();
    let pid: i32 = target.value("ready").parse().unwrap();
    let resident = || procfs::status_field(pid, "RssShmem").unwrap().trim_end_matches(" kB").parse::<u64>().unwrap();
    // of 65,536: some pages at its ends may be touched with what lies beside
    let few = 16;
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        let output = command.args(arguments).arg(pid.to_string()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(resident(), 4);
    ask(&["leaks"]);
    assert!(resident() <= few, "{} KiB", resident());
    let heap: serde_json::Value = serde_json::from_str(&ask(&["heap", "--json"])).unwrap();
    assert!(resident() <= few, "{} KiB", resident());
    assert_eq!(heap["uses"]["heaptrace"]["resident"], resident() * 1024, "{heap}");
    assert_eq!(heap["uses"]["shared"]["resident"].as_u64().unwrap_or(0), 0, "{heap}");
    let told = ask(&["doctor"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("has left 65536 KiB of memory mapped"), "{told}");
    target.feed(b"");
    target.wait().success();
}
