//! The heap at death: a program that is killed leaves its final profile, exact to the last call.

use crate::support::program::{Program, Traced};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const FIGURES: [&str; 4] = ["allocations", "bytes_allocated", "frees", "bytes_freed"];

/// Reads what the program had begun and what it had finished; each of heaptrace's totals lies between. They differ by
/// one call at most, the one in which it was killed.
fn assert_exact(program: &Program, traced: &Traced) {
    let words: Vec<u64> = std::fs::read(program.outside("ledger")).unwrap()[..64]
        .chunks(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    for (at, name) in FIGURES.into_iter().enumerate() {
        let (begun, finished, told) = (words[at], words[at + 4], traced.report.total(name));
        assert!((finished..=begun).contains(&told), "{name}: {told}, between {finished} and {begun} are right");
    }
    assert!(words[0] > 100 && words[0] - words[4] <= 1 && words[2] - words[6] <= 1, "{words:?}");
    let total = |name| traced.report.total(name);
    assert_eq!(total("live_blocks"), total("allocations") - total("frees"));
    assert_eq!(total("live_bytes"), total("bytes_allocated") - total("bytes_freed"));
    assert_eq!(traced.report.site_sum(&["grow"], "/live/bytes"), total("live_bytes"));
    assert_eq!(traced.report.0["exit"]["signal"], 9);
    assert_eq!(traced.ended.code(), 137);
    assert_eq!(traced.report.0["complete"], true);
    traced.report.assert_consistent();
}

#[test]
fn a_program_that_kills_itself_leaves_its_heap() {
    for count in ["150", "2000"] {
        let program = Program::fixture("dying").args(["suicide", count]);
        let traced = program.traced();
        assert_exact(&program, &traced);
        assert_eq!(traced.report.total("allocations").to_string(), count);
    }
}

#[test]
fn a_program_that_ran_into_a_limit_of_memory_leaves_its_heap() {
    let program = Program::fixture("dying").args(["limit"]).stays_on_trap("Cannot allocate memory");
    let traced = program.traced();
    assert_exact(&program, &traced);
    assert_eq!(traced.report.total("failed"), 1, "the allocation that found no memory");
}

/// The kernel kills it in the middle of a write to memory. Where no control group can be made the test above has to do.
#[test]
fn a_program_that_the_oom_killer_ends_leaves_its_heap() {
    let Some(group) = ControlGroup::of_memory(48 << 20) else {
        eprintln!("no control group of memory can be made here: not tested");
        return;
    };
    let program = Program::fixture("dying").args(["oom".as_ref(), group.0.join("cgroup.procs").as_os_str()]);
    let traced = program.traced();
    assert_exact(&program, &traced);
    let live = traced.report.total("live_bytes");
    assert!((30 << 20..48 << 20).contains(&live), "{live} bytes");
}

/// A control group with a limit of memory, empty at first; it vanishes with this value.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// None where none can be made: no such controller, or no right to.
    pub fn of_memory(limit: u64) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("heaptrace-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let limits = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        limits.into_iter().find_map(|(parent, file)| {
            if !Path::new(parent).join("cgroup.procs").exists() {
                return None;
            }
            let group = Self(Path::new(parent).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(file), limit.to_string()).ok()?;
            // swapping would only delay the end
            for (file, value) in [("memory.swap.max", "0"), ("memory.swappiness", "0")] {
                let _ = std::fs::write(group.0.join(file), value);
            }
            Some(group)
        })
    }
}

impl ControlGroup {
    /// The file that takes the processes which are to belong to it.
    pub fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
