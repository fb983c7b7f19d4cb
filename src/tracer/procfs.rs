//! Reading /proc: what the kernel tells of a task without stopping it.

use super::injection::{self, Call};
use super::{Result, TracerError};
use crate::addr::Addr;
use std::path::PathBuf;

/// Reads `/proc/TID/FILE`.
pub fn read(tid: i32, file: &str) -> Result<Vec<u8>> {
    let path = format!("/proc/{tid}/{file}");
    injection::point(Call::Other)
        .and_then(|()| std::fs::read(&path))
        .map_err(|source| TracerError::ProcFile { path, source })
}

/// Whether a file under /proc could not be read because its task is gone, not because something else was missing.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// As [`status_field`], but tells a task that is gone (None) from a file that can't be read.
fn status_field_if_alive(tid: i32, key: &str) -> Result<Option<String>> {
    match read(tid, "status") {
        Ok(text) => Ok(field_of(&text, key)),
        Err(TracerError::ProcFile { source, .. }) if is_gone(&source) => Ok(None),
        Err(error) => Err(error),
    }
}

fn field_of(status: &[u8], key: &str) -> Option<String> {
    let text = String::from_utf8_lossy(status);
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
}

/// The ids of all threads of process `pid` at this moment.
pub fn tasks(pid: i32) -> Result<Vec<i32>> {
    let path = format!("/proc/{pid}/task");
    let entries = injection::point(Call::Other)
        .and_then(|()| std::fs::read_dir(&path))
        .map_err(|source| TracerError::ProcFile { path, source })?;
    Ok(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// The value of `key` in `/proc/TID/status`, without white space around it. None if the task is gone.
pub fn status_field(tid: i32, key: &str) -> Option<String> {
    field_of(&read(tid, "status").ok()?, key)
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
///
/// # Errors
/// If the task lives and its file can't be read.
pub fn has_pending(tid: i32, signal: i32) -> Result<bool> {
    let set = status_field_if_alive(tid, "SigPnd")?.and_then(|set| u64::from_str_radix(&set, 16).ok());
    Ok(set.is_some_and(|set| set & (1 << (signal - 1)) != 0))
}

/// The process that the task belongs to; None if it is gone.
///
/// # Errors
/// If the task lives and its file can't be read.
pub fn thread_group(tid: i32) -> Result<Option<i32>> {
    Ok(status_field_if_alive(tid, "Tgid")?.and_then(|group| group.parse().ok()))
}

/// Which thread traces the task (a thread id, also if the field is called TracerPid); 0 for none.
pub fn tracer_of(tid: i32) -> Option<i32> {
    status_number(tid, "TracerPid")
}

/// The scheduling state letter of a task (proc(5): R, S, D, T, t, Z, X, …). None if it is gone; `?` if it can't be told.
pub fn state(pid: i32, tid: i32) -> Option<u8> {
    let path = format!("/proc/{pid}/task/{tid}/stat");
    let text = match injection::point(Call::Other).and_then(|()| std::fs::read(path)) {
        Ok(text) => text,
        Err(error) if is_gone(&error) => return None,
        Err(_) => return Some(b'?'),
    };
    // The command name stands in parentheses and may itself hold any byte: search from the end.
    let close = text.iter().rposition(|&b| b == b')')?;
    text.get(close + 2).copied()
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
    let path = format!("/proc/{pid}/task/{tid}/syscall");
    let Ok(text) = injection::point(Call::Other).and_then(|()| std::fs::read_to_string(path)) else {
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
    injection::point(Call::Other).ok()?;
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
        assert_eq!(thread_group(pid).unwrap(), Some(pid));
        assert_eq!(tracer_of(pid), Some(0));
        assert!(!command_line(pid).is_empty());
        assert_eq!(executable(pid), std::env::current_exe().ok());
        assert_eq!(whereabouts(pid, -1), Whereabouts::Unknown);
    }
}
