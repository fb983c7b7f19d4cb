//! Debuggers that a program starts on itself when it crashes: they can't attach while heaptrace traces it, and what
//! they would have told is missing.

use crate::base::progress::Progress;
use crate::tracer::procfs;
use std::time::{Duration, Instant};

/// So long after a fault that the program handles a debugger is looked for: it takes a moment to start.
const SOON: Duration = Duration::from_secs(5);

/// How often. A debugger that may not attach ends after some tenths of a second.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// So often in all: some runtimes handle faults all the time, and mean no crash.
const MAX_LOOKS: u32 = 500;

/// How names of debuggers begin, and of what asks them for stacks.
const NAMES: [&str; 5] = ["gdb", "lldb", "gstack", "pstack", "eu-stack"];

/// A debugger may be started by a shell, and that by another one.
const DEPTH: u32 = 4;

/// Looks for debuggers among what the program has started.
#[derive(Debug, Default)]
pub struct Debuggers {
    faults: u64,
    latest: Option<Instant>,
    looks: u32,
    found: Option<String>,
}

impl Debuggers {
    /// Whether one is looked for at this moment.
    pub fn is_awaited(&self) -> bool {
        self.found.is_none() && self.looks < MAX_LOOKS && self.latest.is_some_and(|latest| latest.elapsed() < SOON)
    }

    /// To be called again and again.
    pub fn look(&mut self, progress: &Progress) {
        let faults = progress.faults();
        if faults != self.faults {
            (self.faults, self.latest) = (faults, Some(Instant::now()));
        }
        if self.is_awaited() {
            self.looks += 1;
            self.found = progress.processes().into_iter().find_map(|pid| among_children(pid, pid, DEPTH));
        }
    }

    /// What the summary says.
    pub fn told(self) -> Option<String> {
        self.found.map(|debugger| {
            format!(
                "the program started {debugger} on itself after a fault: it could not attach, as heaptrace traces the \
                 program, and a process can have only one tracer. Its report is missing; run the program without \
                 heaptrace to get it"
            )
        })
    }
}

/// A debugger for process `target` that process `pid` or its children have started, by its name.
fn among_children(pid: i32, target: i32, depth: u32) -> Option<String> {
    procfs::children(pid).into_iter().find_map(|child| {
        let name = procfs::comm(child);
        let is_debugger = NAMES.iter().any(|known| name.starts_with(known));
        if is_debugger && is_for(&procfs::command_line(child), target) {
            return Some(name);
        }
        if depth > 1 { among_children(child, target, depth - 1) } else { None }
    })
}

/// Whether a command line names a process.
fn is_for(command_line: &[String], target: i32) -> bool {
    let target = target.to_string();
    command_line.iter().skip(1).any(|word| {
        let number = word.rsplit_once('=').map_or(word.as_str(), |(_, value)| value);
        number == target || number.strip_prefix("-p") == Some(&target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debugger_names_its_target_in_many_ways() {
        let is_for_12 = |line: &str| is_for(&line.split(' ').map(str::to_owned).collect::<Vec<_>>(), 12);
        for line in ["gdb -p 12", "gdb ./program 12", "gdb --pid=12 -batch", "lldb -p12", "eu-stack --pid 12"] {
            assert!(is_for_12(line), "{line}");
        }
        for line in ["gdb ./program", "gdb -p 123", "gdb -p 1 -ex 2", "12"] {
            assert!(!is_for_12(line), "{line}");
        }
    }
}
