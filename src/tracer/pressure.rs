//! How much memory processes have, how much they may have, and how short it is: /proc and cgroups(7), both versions.

use super::procfs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted (file-hierarchy(7), cgroups(7)).
const GROUPS: &str = "/sys/fs/cgroup";

/// Above this a limit of version 1 is none: LONG_MAX, rounded down to pages.
const NO_LIMIT: u64 = 1 << 62;

/// The resident memory of a process in bytes (`VmRSS` of proc(5)). None if it is gone.
pub fn resident(pid: i32) -> Option<u64> {
    let field = procfs::status_field(pid, "VmRSS")?;
    field.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// How much memory a process may have: the least limit of its control group and those around it, else the memory of the
/// machine.
pub fn memory_limit(pid: i32) -> Option<u64> {
    let groups = groups_of(pid);
    let limits = groups.iter().flat_map(|group| {
        group.folder.ancestors().take_while(|at| at.starts_with(&group.root)).map(move |at| at.join(group.limit))
    });
    let least = limits.filter_map(|file| number(&file)).filter(|limit| *limit < NO_LIMIT).min();
    least.or_else(machine_memory)
}

/// The pressure of memory that a process's control group is under, or the machine: the share of the last 10 seconds in
/// which some task waited for memory, in percent. None where the kernel does not tell.
pub fn memory_pressure(pid: i32) -> Option<f64> {
    let own =
        groups_of(pid).into_iter().filter(|group| group.is_unified).map(|group| group.folder.join("memory.pressure"));
    own.chain([PathBuf::from("/proc/pressure/memory")])
        .find_map(|file| some_avg10(&std::fs::read_to_string(file).ok()?))
}

struct Group {
    root: PathBuf,
    folder: PathBuf,
    limit: &'static str,
    is_unified: bool,
}

/// The control groups of a process that can limit its memory.
fn groups_of(pid: i32) -> Vec<Group> {
    let Ok(text) = procfs::read(pid, "cgroup") else { return Vec::new() };
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().filter_map(group).collect()
}

/// Reads a line of /proc/PID/cgroup: `0::/path` of version 2, `4:memory:/path` of version 1.
fn group(line: &str) -> Option<Group> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_unified = controllers.is_empty();
    if !is_unified && !controllers.split(',').any(|controller| controller == "memory") {
        return None;
    }
    let roots: &[&str] = if is_unified { &["", "unified"] } else { &["memory"] };
    let inside = path.trim_start_matches('/');
    // In another cgroup namespace the path leads out of what is mounted here: then the root is the nearest that can be
    // seen.
    let inside = if inside.split('/').any(|part| part == "..") { "" } else { inside };
    let limit = if is_unified { "memory.max" } else { "memory.limit_in_bytes" };
    let root = roots.iter().map(|root| Path::new(GROUPS).join(root)).find(|root| root.join(inside).is_dir())?;
    Some(Group { folder: root.join(inside), root, limit, is_unified })
}

/// `max` is no number, and no limit.
fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The field of the kernel's Documentation/accounting/psi.rst.
fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_whitespace().find_map(|field| field.strip_prefix("avg10=")).and_then(|value| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pressure_is_that_of_some_tasks_in_ten_seconds() {
        let text =
            "some avg10=12.34 avg60=1.00 avg300=0.00 total=123\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(some_avg10(text), Some(12.34));
        assert_eq!(some_avg10(""), None);
    }

    #[test]
    fn other_controllers_are_no_matter() {
        assert!(group("5:cpu,cpuacct:/a").is_none() && group("nonsense").is_none());
    }

    #[test]
    fn we_have_memory_and_a_limit() {
        let own = i32::try_from(std::process::id()).unwrap();
        let (resident, limit) = (resident(own).unwrap(), memory_limit(own).unwrap());
        assert!(resident > 1 << 20 && resident < limit, "{resident} of {limit}");
        assert_eq!(super::resident(999_999_999), None);
    }
}
