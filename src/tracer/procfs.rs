//! Reading /proc: what the kernel tells of a task without stopping it.

use super::injection::{self, Call};
use super::loadedby::{is_linker, loaded_program};
use super::{Result, TracerError};
use crate::base::addr::Addr;
use crate::image::maps::{self, Mapping};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Reads `/proc/TID/FILE`.
///
/// # Errors
/// [`TracerError::Died`] if the task is gone (or the kernel has no such file: it says the same of both),
/// [`TracerError::ProcFile`] if the file can't be read for another reason.
pub fn read(tid: i32, file: &str) -> Result<Vec<u8>> {
    let path = format!("/proc/{tid}/{file}");
    injection::point(Call::Other).and_then(|()| read_unsized(&path)).map_err(|source| unreadable(tid, path, source))
}

/// What a file under /proc holds, by four calls of the kernel, as some are read again and again beside programs that
/// need the processor. [`std::fs::read`] makes nine: it asks for the file's size, which is 0 there, and begins with a
/// few bytes; of what was taken from a file it asks for no size.
fn read_unsized(path: impl AsRef<Path>) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(4096);
    File::open(path)?.take(u64::MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// The error of a file of task `tid` under /proc that could not be opened or read.
pub(super) fn unreadable(tid: i32, path: String, source: std::io::Error) -> TracerError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => TracerError::Died { tid },
        _ => TracerError::ProcFile { path, source },
    }
}

/// The text of /proc/TID/maps of the live task `tid`. Its process's own files under /proc are empty once the first
/// thread has ended.
///
/// # Errors
/// It can't be read. [`TracerError::Died`] also if the task has ended and nobody has taken its status yet: the kernel
/// then shows an empty file (`m_start` of fs/proc/task_mmu.c). That does not say that the process has no memory. The
/// same is shown once where the task executes another program between opening and reading: the file is of the memory
/// that it had.
pub fn maps(tid: i32) -> Result<Vec<u8>> {
    for _ in 0..LOOKS {
        let text = read(tid, "maps")?;
        if !text.is_empty() {
            return Ok(text);
        }
    }
    Err(TracerError::Died { tid })
}

/// So often is looked at a task that seems to have ended: one that lives has executed another program meanwhile.
const LOOKS: u32 = 3;

/// The mappings of the live task `tid`; there is at least one.
///
/// # Errors
/// Those of [`maps`].
pub fn mappings(tid: i32) -> Result<Vec<Mapping>> {
    maps::parse(&maps(tid)?).map_err(|error| TracerError::Own {
        operation: "read the memory map of the process",
        source: std::io::Error::other(error),
    })
}

/// The kernel's name for this start of the machine: ids of processes and their times are of one (proc_sys_kernel(5)).
/// Empty if it does not tell.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

/// The user that heaptrace acts as.
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// As [`status_field`], but tells a task that is gone (None) from a file that can't be read.
fn status_field_if_alive(tid: i32, key: &str) -> Result<Option<String>> {
    match read(tid, "status") {
        Ok(text) => Ok(field_of(&text, key)),
        Err(TracerError::Died { .. }) => Ok(None),
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
        .map_err(|source| unreadable(pid, path, source))?;
    Ok(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// What `look` sees of the memory of process `pid` through one of its tasks `tids`: the first that lives until `look`
/// is done. The leader is tried first, as it outlives the others in most programs; a thread may end at any moment, and
/// shows nothing then.
///
/// # Errors
/// That of the first look that fails for another reason than the end of its task; [`TracerError::Died`] if none lives.
pub fn through_any<T>(
    pid: i32,
    tids: impl IntoIterator<Item = i32>,
    mut look: impl FnMut(i32) -> Result<T>,
) -> Result<T> {
    let mut tids: Vec<i32> = tids.into_iter().collect();
    tids.sort_by_key(|tid| *tid != pid);
    for tid in tids {
        let lives = || !matches!(state(pid, tid), None | Some(b'Z' | b'X'));
        if !lives() {
            continue;
        }
        for left in (0..LOOKS).rev() {
            match look(tid) {
                Err(error) if error.is_out_of_reach() && left > 0 && lives() => {
                    tracing::debug!("heaptrace reads task {tid} once more: {error}");
                }
                Err(error) if error.is_out_of_reach() || !lives() => {
                    tracing::debug!("task {tid} has ended: {error}");
                    break;
                }
                seen => return seen,
            }
        }
    }
    Err(TracerError::Died { tid: pid })
}

/// The ids of all processes that can be seen.
pub fn processes() -> Result<Vec<i32>> {
    let path = "/proc".to_owned();
    let entries = injection::point(Call::Other)
        .and_then(|()| std::fs::read_dir(&path))
        .map_err(|source| TracerError::ProcFile { path, source })?;
    Ok(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// The child processes of `pid` at this moment; none where the kernel does not tell (CONFIG_PROC_CHILDREN).
pub fn children(pid: i32) -> Vec<i32> {
    let of_thread = |tid: i32| read(pid, &format!("task/{tid}/children")).unwrap_or_default();
    let threads = tasks(pid).unwrap_or_default();
    let text: Vec<String> =
        threads.into_iter().map(|tid| String::from_utf8_lossy(&of_thread(tid)).into_owned()).collect();
    text.iter().flat_map(|line| line.split_whitespace()).filter_map(|word| word.parse().ok()).collect()
}

/// Processes that share the memory of process `pid`: its children, and theirs.
pub fn sharers(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            if same_memory(child, pid) == Some(true) && !found.contains(&child) {
                found.push(child);
                parents.push(child);
            }
        }
    }
    found
}

/// Whether the kernel tells which processes share the memory of process `pid`: [`children`] (CONFIG_PROC_CHILDREN) and
/// kcmp(2), for which a tracer's rights are needed.
pub fn can_tell_sharers(pid: i32) -> bool {
    read(pid, &format!("task/{pid}/children")).is_ok() && same_memory(pid, pid) == Some(true)
}

/// The value of `key` in `/proc/TID/status`, without white space around it. None if the task is gone.
pub fn status_field(tid: i32, key: &str) -> Option<String> {
    field_of(&read(tid, "status").ok()?, key)
}

/// A number in `/proc/TID/status`.
pub fn status_number(tid: i32, key: &str) -> Option<i32> {
    status_field(tid, key)?.split_whitespace().next()?.parse().ok()
}

/// How many threads a process has, among them a first one that has ended.
pub fn thread_count(pid: i32) -> Option<usize> {
    status_number(pid, "Threads").and_then(|threads| usize::try_from(threads).ok())
}

/// The most memory that a task's process has had resident since its program began, in bytes: `VmHWM` of proc(5), which
/// begins anew at an exec and at a fork with what is resident then. None if its memory is gone, as that of a zombie.
pub fn peak_resident(tid: i32) -> Option<u64> {
    status_bytes(tid, "VmHWM")
}

/// The memory that a task's process has resident, in bytes, by the counters that the kernel keeps (`VmRSS` of proc(5)).
/// To have its pages counted (smaps_rollup) takes 90 ms for 4 GiB. Since Linux 6.17 the counters are exact; before,
/// each processor may have some tens of pages that are not added yet.
pub fn resident(tid: i32) -> Option<u64> {
    status_bytes(tid, "VmRSS")
}

fn status_bytes(tid: i32, key: &str) -> Option<u64> {
    let field = status_field(tid, key)?;
    field.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
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

/// Which thread traces the process: the tracer of any of its threads, as the first one may have ended; 0 for none. None
/// if the process is gone.
pub fn tracer_of_process(pid: i32) -> Option<i32> {
    let of_first = tracer_of(pid)?;
    let of_others = || tasks(pid).ok()?.into_iter().filter_map(tracer_of).find(|&tracer| tracer != 0);
    Some(if of_first == 0 { of_others().unwrap_or(0) } else { of_first })
}

/// The scheduling state letter of a task (proc(5): R, S, D, T, t, Z, X, …). None if it is gone; `?` if it can't be
/// told.
pub fn state(pid: i32, tid: i32) -> Option<u8> {
    match read(pid, &format!("task/{tid}/stat")) {
        Ok(text) => state_in(&text),
        Err(TracerError::Died { .. }) => None,
        Err(_) => Some(b'?'),
    }
}

/// In which states the threads of a process are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct States {
    /// All that were looked at.
    pub all: usize,
    /// Those that run or are ready to.
    pub running: u32,
    /// Those that stand still for a tracer.
    pub traced: u32,
}

/// Looks at up to `most` threads of process `pid`; at none if it is gone. For figures only: what fails is left out.
pub fn states(pid: i32, most: usize) -> States {
    let mut states = States::default();
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return states };
    for entry in entries.flatten().take(most) {
        let Ok(text) = read_unsized(entry.path().join("stat")) else { continue };
        let state = state_in(&text);
        states.all += usize::from(!matches!(state, None | Some(b'Z' | b'X')));
        match state {
            Some(b'R') => states.running += 1,
            Some(b't') => states.traced += 1,
            _ => {}
        }
    }
    states
}

/// How many times process `pid` has read or written, and how many page faults it had that needed no disk: calls of the
/// kernel that are counted. None if that can't be read.
pub fn counted_kernel_calls(pid: i32) -> Option<(u64, u64)> {
    let text = String::from_utf8(read_unsized(format!("/proc/{pid}/io")).ok()?).ok()?;
    let calls = text.lines().filter_map(|line| line.strip_prefix("syscr: ").or(line.strip_prefix("syscw: ")));
    let calls = calls.filter_map(|count| count.parse::<u64>().ok()).fold(0, u64::saturating_add);
    Some((calls, stat_number(pid, 10)?))
}

/// The state letter in the text of a `stat` file.
fn state_in(text: &[u8]) -> Option<u8> {
    // The command name stands in parentheses and may itself hold any byte: search from the end.
    let close = text.iter().rposition(|&b| b == b')')?;
    text.get(close + 2).copied()
}

/// A number in /proc/TID/stat, by its place in proc(5): 3 is the state, which is none. None if the task is gone.
pub fn stat_number(tid: i32, field: usize) -> Option<u64> {
    stat_field(&format!("/proc/{tid}/stat"), field)
}

fn stat_field(path: &str, field: usize) -> Option<u64> {
    let text = injection::point(Call::Other).and_then(|()| read_unsized(path)).ok()?;
    // The command name stands in parentheses and may itself hold any byte: search from the end.
    let close = text.iter().rposition(|&b| b == b')')?;
    let mut fields = text.get(close + 1..)?.split(|b| b.is_ascii_whitespace()).filter(|field| !field.is_empty());
    // the third field comes behind the command name
    std::str::from_utf8(fields.nth(field.checked_sub(3)?)?).ok()?.parse().ok()
}

/// The stack pointer with which the program of task `tid` began: the field `startstack` of /proc/TID/stat (proc(5)),
/// which the kernel shows to who may trace it. None if it does not tell.
pub fn initial_stack(tid: i32) -> Option<Addr> {
    stat_number(tid, 28).filter(|&sp| sp != 0).map(Addr)
}

/// Where the program break of task `tid` began: the field `start_brk` of /proc/TID/stat (proc(5)). None if the kernel
/// does not tell.
pub fn first_break(tid: i32) -> Option<Addr> {
    stat_number(tid, 47).filter(|&at| at != 0).map(Addr)
}

/// When a process began, in clock ticks since the machine did. With its id, this names it for ever.
pub fn start_time(pid: i32) -> Option<u64> {
    stat_number(pid, 22)
}

/// The kernel's flags of a task, `PF_…` of linux/sched.h.
pub fn task_flags(tid: i32) -> Option<u64> {
    stat_number(tid, FLAGS)
}

/// `PF_IO_WORKER`: a worker that io_uring has made in the process.
const IO_WORKER: u64 = 0x10;

/// `PF_USER_WORKER`: a worker of any kind that the kernel has made in the process, such as vhost's.
const USER_WORKER: u64 = 0x4000;

/// Since which kernels these bits mean that. Before, they told of other things, in threads of programs, too.
const WORKERS_SINCE: [((u32, u32), u64); 2] = [((5, 12), IO_WORKER), ((6, 4), USER_WORKER)];

/// Whether task `tid` of process `pid` is a thread of the kernel's that works in the process's name: it can be traced,
/// and reports stops, but it never returns to the program's code. Threads that it makes are none of the program's.
pub fn is_kernel_worker(pid: i32, tid: i32) -> bool {
    static BITS: OnceLock<u64> = OnceLock::new();
    let bits = *BITS.get_or_init(|| {
        let mut numbers = kernel_release();
        numbers.retain(|char| char == '.' || char.is_ascii_digit());
        let mut numbers = numbers.split('.').map_while(|number| number.parse::<u32>().ok());
        let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        WORKERS_SINCE.iter().filter(|(since, _)| release >= *since).fold(0, |bits, (_, bit)| bits | bit)
    });
    stat_field(&format!("/proc/{pid}/task/{tid}/stat"), FLAGS).is_some_and(|flags| flags & bits != 0)
}

/// The field of /proc/PID/stat with the kernel's flags.
const FLAGS: usize = 9;

/// `PF_FORKNOEXEC`: the process runs its parent's program since it was forked.
const FORKED_WITHOUT_EXEC: u64 = 0x40;

/// The parent of a process that has not executed a program of its own since it was forked.
pub fn forked_from(pid: i32) -> Option<i32> {
    if task_flags(pid)? & FORKED_WITHOUT_EXEC == 0 {
        return None;
    }
    stat_number(pid, 4)?.try_into().ok()
}

/// Where a task is, as far as /proc shows without a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
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
pub fn position(pid: i32, tid: i32) -> Position {
    let path = format!("/proc/{pid}/task/{tid}/syscall");
    let Ok(text) = injection::point(Call::Other).and_then(|()| read_unsized(path)) else {
        return Position::Unknown;
    };
    let text = String::from_utf8_lossy(&text);
    if text.starts_with("running") {
        return Position::Running;
    }
    let mut last_first =
        text.split_whitespace().rev().map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
    match (last_first.next(), last_first.next()) {
        (Some(Ok(pc)), Some(Ok(sp))) => Position::Blocked { pc: Addr(pc), sp: Addr(sp) },
        _ => Position::Unknown,
    }
}

/// The line of `/proc/PID/task/TID/syscall` (proc(5)): what a task sleeps in, or that it runs. None if it is gone.
pub(super) fn system_call_line(pid: i32, tid: i32) -> Option<String> {
    String::from_utf8(read_unsized(format!("/proc/{pid}/task/{tid}/syscall")).ok()?).ok()
}

/// The number of the system call that a task sleeps in. None if it runs, or sleeps outside of system calls.
pub fn system_call(pid: i32, tid: i32) -> Option<i64> {
    let text = system_call_line(pid, tid)?;
    text.split_whitespace().next()?.parse().ok().filter(|number| *number >= 0)
}

/// Whether a signal waits that the task will get as soon as it looks.
pub fn has_deliverable_signal(tid: i32) -> bool {
    let of = |key| status_signals(tid, key).unwrap_or(u64::MAX);
    (of("SigPnd") | of("ShdPnd")) & !of("SigBlk") != 0
}

/// A thread's name (at most 15 bytes), or an empty one if it is gone.
pub fn comm(tid: i32) -> String {
    read(tid, "comm").map(|name| String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()).unwrap_or_default()
}

/// A thread's name: as [`comm`], but where the kernel executed the dynamic linker and named the thread after that, the
/// name of the program that it has loaded, with as many bytes as the kernel would have kept of it.
pub fn thread_name(tid: i32) -> String {
    const MAX_NAME: usize = 15;
    let name = comm(tid);
    if !is_linker(Path::new(&name)) {
        return name;
    }
    let command = command_line(tid);
    let loaded = executable(tid).and_then(|executable| {
        let program = loaded_program(&executable, &command)?.file_name()?.as_encoded_bytes();
        Some(String::from_utf8_lossy(program.get(..MAX_NAME).unwrap_or(program)).into_owned())
    });
    loaded.unwrap_or(name)
}

/// The command line of a process.
pub fn command_line(pid: i32) -> Vec<String> {
    let Ok(bytes) = read(pid, "cmdline") else { return Vec::new() };
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut words: Vec<String> =
        bytes.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    // A server that has rewritten its title (in one word) fills the rest of the place with zeros.
    if words.first().is_some_and(|title| title.contains(' ')) {
        while words.last().is_some_and(String::is_empty) {
            words.pop();
        }
    }
    words
}

/// The executable of a process, as the process sees it; with " (deleted)" if it was.
pub fn executable(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The name under which the program of process `pid`, to be read through its live task `tid`, was started: the basename
/// of the link in argv[0] if it leads to the executable (redis-server is a link to redis-check-rdb), else that of what
/// the dynamic linker was told to load if that is the executable, else that of the executable, else what the thread
/// calls itself.
pub fn program_name(pid: i32, tid: i32) -> String {
    let Some(executable) = executable(pid).or_else(|| executable(tid)) else { return comm(tid) };
    let file_name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let command = command_line(pid);
    if let Some(loaded) = loaded_program(&executable, &command).and_then(file_name) {
        return loaded;
    }
    let invoked = command.into_iter().next().and_then(|word| {
        // A server may rewrite its title: "redis-server *:6379", in one word.
        let title = word.split_whitespace().next()?;
        [word.as_str(), title]
            .map(Path::new)
            .into_iter()
            .find(|path| is_executable_of(tid, path, &executable))
            .and_then(file_name)
    });
    invoked.or_else(|| Some(file_name(&executable)?.trim_end_matches(" (deleted)").to_owned())).unwrap_or_default()
}

/// Whether `path`, or a name that was looked up in $PATH, leads to what task `tid` executes.
fn is_executable_of(tid: i32, path: &Path, executable: &Path) -> bool {
    let root = PathBuf::from(format!("/proc/{tid}/root"));
    let in_root = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    let Some(running) = identity(Path::new(&format!("/proc/{tid}/exe"))) else { return false };
    let is_running = |candidate: &Path| identity(candidate) == Some(running);
    if path.is_absolute() {
        return is_running(&in_root(path));
    }
    let beside = executable.parent().map(Path::to_owned);
    if path.components().count() > 1 {
        // one that has become a daemon has another working directory since
        let name = path.file_name().map(Path::new);
        return is_running(&PathBuf::from(format!("/proc/{tid}/cwd")).join(path))
            || beside.zip(name).is_some_and(|(folder, name)| is_running(&in_root(&folder.join(name))));
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search).chain(beside).any(|folder| is_running(&in_root(&folder.join(path))))
}

/// The working directory of a process.
pub fn working_directory(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Whether a seccomp filter (or strict mode) is on for the task; true when that is not known, as the careful answer.
pub fn has_seccomp(tid: i32) -> bool {
    status_number(tid, "Seccomp") != Some(0)
}

/// Whether a process has a descriptor by which faults in its memory are served (userfaultfd(2)).
pub fn serves_faults(pid: i32) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut files = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    files.any(|file| file.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Whether the task has a shadow stack (user_shstk): return addresses on its stack can't be exchanged.
pub fn has_shadow_stack(tid: i32) -> bool {
    status_field_if_alive(tid, "x86_Thread_features").ok().flatten().is_some_and(|features| features.contains("shstk"))
}

/// The kernel's release, as uname(2) has it; empty if that fails.
pub fn kernel_release() -> String {
    // SAFETY: `names` has room for what the kernel writes; zeros are valid, and its strings end in zeros.
    let release = unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        libc::uname(&raw mut names);
        names.release
    };
    let bytes: Vec<u8> = release.iter().take_while(|&&byte| byte != 0).map(|byte| byte.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether two tasks share one address space (kcmp(2)). None if the kernel does not tell.
pub fn same_memory(a: i32, b: i32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    same(a, b, KCMP_VM)
}

/// Whether two tasks share their signal actions (CLONE_SIGHAND). None if the kernel does not tell.
pub fn same_signal_actions(a: i32, b: i32) -> Option<bool> {
    const KCMP_SIGHAND: i32 = 4;
    same(a, b, KCMP_SIGHAND)
}

fn same(a: i32, b: i32, what: i32) -> Option<bool> {
    injection::point(Call::Other).ok()?;
    // SAFETY: kcmp takes numbers only where it compares what tasks have but one of.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a, b, what, 0, 0) };
    (order >= 0).then_some(order == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link names the program that is started by it; a title that is no file does not.
    #[test]
    fn a_program_is_called_by_the_link_that_started_it() {
        use std::io::{Read, Write};
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        let folder = std::env::temp_dir().join(format!("heaptrace-program-name-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let link = folder.join("a-link");
        std::os::unix::fs::symlink("/bin/cat", &link).unwrap();
        let link = link.to_str().unwrap();
        let name_of = |argv0: &str, started: &str| {
            let mut command = Command::new(started);
            let mut child = command.arg0(argv0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // spawn returns a moment before the new command line is there
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let pid = i32::try_from(child.id()).unwrap();
            let name = program_name(pid, pid);
            drop(child.stdin.take());
            child.wait().unwrap();
            name
        };
        assert_eq!(name_of(link, link), "a-link");
        assert_eq!(name_of(&format!("{link} *:6379"), link), "a-link");
        assert_eq!(name_of("cat", "/bin/cat"), "cat");
        for title in ["-cat", "/bin/true", "postgres: writer", "", "a-link"] {
            assert_eq!(name_of(title, link), "cat", "{title}");
        }
        // started by a relative path in a folder that it has left since
        let (real, server) = (folder.join("real"), folder.join("server"));
        std::fs::copy("/bin/cat", &real).unwrap();
        std::os::unix::fs::symlink("real", &server).unwrap();
        for (title, name) in [("./server", "server"), ("bin/server *:6379", "server"), ("./other", "real")] {
            assert_eq!(name_of(title, server.to_str().unwrap()), name, "{title}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(program_name(-1, -1), "");
    }

    /// A process that was killed and waits for its parent has no maps, and later no files: heaptrace calls this its
    /// end, not
    /// as a failure to read.
    #[test]
    fn maps_of_the_dead_are_gone() {
        let mut child = std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!mappings(pid).unwrap().is_empty());
        child.kill().unwrap();
        let begun = std::time::Instant::now();
        while state(pid, pid) != Some(b'Z') {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it does not end");
            std::thread::yield_now();
        }
        let of_zombie = mappings(pid);
        child.wait().unwrap();
        assert!(of_zombie.as_ref().is_err_and(TracerError::is_out_of_reach), "{of_zombie:?}");
        let after_the_end = mappings(pid);
        assert!(after_the_end.as_ref().is_err_and(TracerError::is_out_of_reach), "{after_the_end:?}");
    }

    /// A thread that has ended since it was listed says nothing of the process: the next one is asked.
    #[test]
    fn any_task_that_lives_is_looked_through_the_leader_first() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = super::super::control::thread_id();
        let died = |tid| Err(TracerError::Died { tid });
        let tids = || [own, pid, i32::MAX];
        assert_eq!(through_any(pid, tids(), Ok).unwrap(), pid);
        assert_eq!(through_any(pid, tids(), |tid| if tid == pid { died(tid) } else { Ok(tid) }).unwrap(), own);
        assert!(matches!(through_any(pid, tids(), died), Err(TracerError::Died { tid }) if tid == pid));
        assert!(matches!(through_any(pid, [i32::MAX], Ok), Err(TracerError::Died { tid }) if tid == pid));
        let refused = |tid| -> Result<i32> {
            let source = std::io::Error::from_raw_os_error(libc::EACCES);
            Err(TracerError::Task { operation: "look at", tid, source })
        };
        assert!(matches!(through_any(pid, tids(), refused), Err(TracerError::Task { tid, .. }) if tid == pid));
        // one that executes another program meanwhile seems to have ended once
        let mut left = LOOKS;
        let executes = |tid| {
            left -= 1;
            if left > 0 { died(tid) } else { Ok(tid) }
        };
        assert_eq!(through_any(pid, [pid], executes).unwrap(), pid);
    }

    #[test]
    fn tells_of_ourselves() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(tasks(pid).unwrap().contains(&pid));
        assert_eq!(thread_group(pid).unwrap(), Some(pid));
        assert_eq!(tracer_of(pid), Some(0));
        assert!(!command_line(pid).is_empty());
        assert_eq!(executable(pid), std::env::current_exe().ok());
        assert!(peak_resident(pid).is_some_and(|bytes| bytes > 0 && bytes % 1024 == 0));
        assert_eq!(peak_resident(-1), None);
        assert_eq!(position(pid, -1), Position::Unknown);
        // the kernel puts the number of arguments there
        let argc = initial_stack(pid)
            .and_then(|at| super::super::memory::TargetMemory::open(pid, pid).ok()?.read_word_uncached(at));
        assert_eq!(argc, Some(std::env::args_os().count() as u64));
    }
}
