//! Reading /proc: what the kernel tells of a task without stopping it.

use super::{Result, TracerError};
use crate::addr::Addr;
use std::path::PathBuf;

/// Reads `/proc/TID/FILE`.
pub fn read(tid: i32, file: &str) -> Result<Vec<u8>> {
    let path = format!("/proc/{tid}/{file}");
    std::fs::read(&path).map_err(|source| TracerError::ProcFile { path, source })
}

/// The ids of all threads of process `pid` at this moment.
pub fn tasks(pid: i32) -> Result<Vec<i32>> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&path).map_err(|source| TracerError::ProcFile { path, source })?;
    Ok(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// The value of `key` in `/proc/TID/status`, without white space around it. None if the task is gone.
pub fn status_field(tid: i32, key: &str) -> Option<String> {
    let text = read(tid, "status").ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
}

/// A number in `/proc/TID/status`.
pub fn status_number(tid: i32, key: &str) -> Option<i32> {
    status_field(tid, key)?.split_whitespace().next()?.parse().ok()
}

/// A signal set in `/proc/TID/status` ("SigCgt", "SigIgn", …): bit n−1 stands for signal n.
pub fn status_signals(tid: i32, key: &str) -> Option<u64> {
    u64::from_str_radix(&status_field(tid, key)?, 16).ok()
}

/// Whether a signal is queued for the task itself. (A trap's signal is: the kernel sends it to the thread.)
pub fn has_pending(tid: i32, signal: i32) -> bool {
    status_signals(tid, "SigPnd").is_some_and(|set| set & (1 << (signal - 1)) != 0)
}

/// The process that the task belongs to.
pub fn thread_group(tid: i32) -> Option<i32> {
    status_number(tid, "Tgid")
}

/// Which thread traces the task (a thread id, also if the field is called TracerPid); 0 for none.
pub fn tracer_of(tid: i32) -> Option<i32> {
    status_number(tid, "TracerPid")
}

/// The scheduling state letter of a task (proc(5): R, S, D, T, t, Z, X, …).
pub fn state(pid: i32, tid: i32) -> Option<u8> {
    let text = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    // The command name stands in parentheses and may itself hold any byte: search from the end.
    let close = text.iter().rposition(|&b| b == b')')?;
    text.get(close + 2).copied()
}

/// The stack pointer with which the program of task `tid` began: the field `startstack` of /proc/TID/stat (proc(5)), which
/// the kernel shows to who may trace it. None if it does not tell.
pub fn initial_stack(tid: i32) -> Option<Addr> {
    let text = read(tid, "stat").ok()?;
    let close = text.iter().rposition(|&b| b == b')')?;
    // the third field comes behind the command name; startstack is the 28th
    let field =
        text.get(close + 1..)?.split(|b| b.is_ascii_whitespace()).filter(|field| !field.is_empty()).nth(28 - 3)?;
    let sp = std::str::from_utf8(field).ok()?.parse().ok().filter(|&sp| sp != 0)?;
    Some(Addr(sp))
}

/// Where a task is, as far as can be told without stopping it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// It runs, or is about to.
    Running,
    /// It sleeps in the kernel; these are its user-space program counter and stack pointer.
    Blocked {
        /// Program counter.
        pc: Addr,
        /// Stack pointer.
        sp: Addr,
    },
    /// It is gone, or /proc does not tell.
    Unknown,
}

/// Reads `/proc/PID/task/TID/syscall` (proc(5)): a blocked task's line ends in its stack pointer and program counter.
pub fn whereabouts(pid: i32, tid: i32) -> Whereabouts {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")) else {
        return Whereabouts::Unknown;
    };
    if text.starts_with("running") {
        return Whereabouts::Running;
    }
    let mut last_first =
        text.split_whitespace().rev().map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
    match (last_first.next(), last_first.next()) {
        (Some(Ok(pc)), Some(Ok(sp))) => Whereabouts::Blocked { pc: Addr(pc), sp: Addr(sp) },
        _ => Whereabouts::Unknown,
    }
}

/// A thread's name (at most 15 bytes), or an empty one if it is gone.
pub fn comm(tid: i32) -> String {
    read(tid, "comm").map(|name| String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()).unwrap_or_default()
}

/// The command line of a process.
pub fn command_line(pid: i32) -> Vec<String> {
    let Ok(bytes) = read(pid, "cmdline") else { return Vec::new() };
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The executable of a process, as the process sees it; with " (deleted)" if it was.
pub fn executable(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The working directory of a process.
pub fn working_directory(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Whether a seccomp filter (or strict mode) is on for the task; true when it can't be told, as the careful answer.
pub fn has_seccomp(tid: i32) -> bool {
    status_number(tid, "Seccomp") != Some(0)
}

/// Whether two tasks share one address space (kcmp(2)). None if the kernel does not tell.
pub fn same_memory(a: i32, b: i32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: kcmp with KCMP_VM takes numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) };
    (order >= 0).then_some(order == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_of_ourselves() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(tasks(pid).unwrap().contains(&pid));
        assert_eq!(thread_group(pid), Some(pid));
        assert_eq!(tracer_of(pid), Some(0));
        assert!(!command_line(pid).is_empty());
        assert_eq!(executable(pid), std::env::current_exe().ok());
        assert_eq!(whereabouts(pid, -1), Whereabouts::Unknown);
        // the kernel puts the number of arguments there
        let argc = initial_stack(pid)
            .and_then(|at| super::super::memory::TargetMemory::open(pid, pid).ok()?.read_word_uncached(at));
        assert_eq!(argc, Some(std::env::args_os().count() as u64));
    }
}
