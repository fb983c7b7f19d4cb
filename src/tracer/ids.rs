//! What ids of processes and users mean to heaptrace, to the machine and to a container: pid and user namespaces.

use super::procfs::status_field;
use super::{Result, TracerError};
use std::path::Path;

/// Makes sure that ids under /proc mean the processes that system calls mean by them. In a pid namespace of its own,
/// with its parent's /proc, heaptrace would write to the memory of somebody else.
///
/// # Errors
/// [`TracerError::ForeignProc`]
pub fn require_own() -> Result<()> {
    match std::fs::read_link("/proc/self") {
        Ok(own) if own == Path::new(&std::process::id().to_string()) => Ok(()),
        found => Err(TracerError::ForeignProc { mounted: found.is_ok() || Path::new("/proc/version").exists() }),
    }
}

/// The id that process `pid` has in its own pid namespace. None if it is gone, or has no other than `pid`.
pub fn pid_inside(pid: i32) -> Option<i32> {
    let ids = status_field(pid, "NSpid")?;
    ids.split_whitespace().next_back()?.parse().ok().filter(|&inside| inside != pid)
}

/// The id of process `pid` in the pid namespace of task `tid`, which is ours or one below.
pub fn known_to(tid: i32, pid: i32) -> i32 {
    // NSpid has one id for each level, from ours inwards.
    let levels =
        |task| status_field(task, "NSpid").map(|ids| ids.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let known =
        levels(tid).zip(levels(pid)).and_then(|(tracer, ids)| ids.get(tracer.len().checked_sub(1)?)?.parse().ok());
    known.unwrap_or(pid)
}

/// The processes that have the id `inside` in a pid namespace of their own, below ours, and another one in ours.
pub fn known_inside_as(inside: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let processes = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<i32> = processes.filter(|&pid| pid_inside(pid) == Some(inside)).collect();
    found.sort_unstable();
    found
}

/// Identity of a namespace (`user`, `pid`, …) of task `tid`: namespaces(7). None if it may not be seen.
pub fn namespace(tid: i32, kind: &str) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{tid}/ns/{kind}")).ok()?;
    link.to_str()?.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

/// The pid namespace that the machine has begun with: PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h.
pub const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether heaptrace lives in the first pid namespace. True if that is not known.
pub fn is_in_first_pid_namespace() -> bool {
    namespace_of_ours("pid").is_none_or(|namespace| namespace == FIRST_PID_NAMESPACE)
}

/// The same as [`namespace`], of ourselves.
pub fn namespace_of_ours(kind: &str) -> Option<u64> {
    namespace(i32::try_from(std::process::id()).ok()?, kind)
}

/// What our user `uid` is called outside of our user namespace; `uid` itself if that is not known.
pub fn user_outside(uid: u32) -> u32 {
    let ranges = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let translated = ranges.lines().find_map(|line| {
        // as user_namespaces(7) has it: first id inside, first id outside, how many
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let index = uid.checked_sub(inside).filter(|&index| index < count)?;
        outside.checked_add(index)
    });
    translated.unwrap_or(uid)
}

/// What users are called that have no id in our user namespace: /proc/sys/kernel/overflowuid, unless somebody has
/// changed it.
pub const OVERFLOW_USER: u32 = 65534;

/// Real, effective, saved and file system user id of task `tid`, in this order. None of them if it is gone.
pub fn users(tid: i32) -> Vec<u32> {
    numbers(tid, "Uid")
}

/// The same of its group.
pub fn groups(tid: i32) -> Vec<u32> {
    numbers(tid, "Gid")
}

fn numbers(tid: i32, key: &str) -> Vec<u32> {
    let field = status_field(tid, key).unwrap_or_default();
    field.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Whether user ids mean something else to heaptrace than to the machine: it lives in a user namespace.
pub fn users_are_mapped() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let numbers: Vec<_> = map.split_whitespace().collect();
    !numbers.is_empty() && numbers != ["0", "0", "4294967295"]
}
