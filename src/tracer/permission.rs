//! Why a process can't be traced, and what would help: the kernel says only "not permitted".
//!
//! The rules are those of ptrace(2), "Ptrace access mode checking", and of the Yama module
//! (Documentation/admin-guide/LSM/Yama.rst). Reading the facts from /proc and judging them are kept apart, so that
//! every verdict can be tested with made-up facts.

use super::{TracerError, ids, procfs};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

mod by_name;
pub use by_name::{ByNameError, Instance, all_processes, find_by_name, instance};

/// Bit of CAP_SYS_PTRACE in a capability set (capabilities(7)).
const CAP_SYS_PTRACE: u32 = 19;

/// Bit of CAP_DAC_OVERRIDE.
const CAP_DAC_OVERRIDE: u32 = 1;

/// The request for a namespace's parent (ioctl_ns(2), <linux/nsfs.h>).
const NS_GET_PARENT: libc::Ioctl = 0xb702;

/// What a heaptrace is called.
const OWN_NAME: &str = env!("CARGO_PKG_NAME");

/// Whether a process of this name is one, as far as a name tells: that of the package, or what this one is called.
pub(super) fn is_own_name(name: &str) -> bool {
    name == OWN_NAME || i32::try_from(std::process::id()).is_ok_and(|pid| name == procfs::comm(pid))
}

/// PF_KTHREAD of the kernel's task flags (field 9 of /proc/PID/stat).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What is known about the process that was refused.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct TargetFacts {
    /// The thread's own name.
    name: String,
    /// State letter of proc(5).
    state: char,
    /// A thread of the kernel.
    kernel_thread: bool,
    /// The process that it belongs to.
    thread_group: i32,
    /// Who traces it, with that process's name.
    tracer: Option<(i32, String)>,
    /// Real, effective and saved user id.
    uids: Vec<u32>,
    /// Real, effective and saved group id.
    gids: Vec<u32>,
    /// Permitted capabilities.
    permitted: u64,
    /// Whether another program may look into it: the "dumpable" attribute of prctl(2). None if that is not known.
    dumpable: Option<bool>,
    /// Identity of its user namespace.
    user_namespace: Option<u64>,
    /// Whether that lies below ours. None if that is not known.
    namespace_below: Option<bool>,
    /// Whether its executable is a 64-bit one. None if that is not known.
    is_64_bit: Option<bool>,
}

/// What is known about ourselves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct OwnFacts {
    pid: i32,
    uid: u32,
    gid: u32,
    effective: u64,
    permitted: u64,
    user_namespace: Option<u64>,
    /// kernel.yama.ptrace_scope; None without Yama.
    yama: Option<u8>,
}

/// Whether /proc shows the process.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Visibility {
    Gone {
        /// The processes that have the id in a container.
        inside: Vec<i32>,
    },
    /// It exists, but /proc is mounted with `hidepid`.
    Hidden,
    Visible(TargetFacts),
}

/// Why a process can't be traced.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// There is no such process (any more).
    NoSuchProcess,
    /// The id is one that the process has in its container, and not ours for it.
    IdInside {
        /// Our ids of the processes that have it.
        outside: Vec<i32>,
    },
    /// It belongs to another user and /proc hides it.
    Hidden,
    /// It is heaptrace.
    Ourselves,
    /// The id is that of a thread other than the first.
    Thread {
        /// The process that it belongs to.
        of: i32,
    },
    /// It has ended and waits for its parent to notice.
    Zombie,
    /// It is a part of the kernel.
    KernelThread,
    /// Another process traces it.
    AlreadyTraced {
        /// That process.
        by: i32,
        /// Its name.
        name: String,
    },
    /// kernel.yama.ptrace_scope is 3.
    NobodyMayTrace,
    /// It runs as another user or group.
    OtherUser {
        /// Its effective user id.
        uid: u32,
    },
    /// kernel.yama.ptrace_scope is 1 or 2.
    Yama {
        /// The value.
        scope: u8,
    },
    /// It is not dumpable.
    NotDumpable,
    /// It has capabilities that we lack.
    MoreCapable,
    /// It lives in another user namespace.
    OtherUserNamespace,
    /// It is a 32-bit program.
    Not64Bit,
    /// It may be traced, but its memory can't be opened for writing: a file of another user.
    ForeignMemory {
        /// Its effective user id.
        uid: u32,
    },
    /// Nothing that /proc tells explains it.
    Unknown {
        /// What the kernel said.
        errno: i32,
    },
}

/// A refused attempt to trace a process: what was tried, why it was refused, and what would help.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("could not {operation} process {pid}: {}", describe(cause, pid, name))]
pub struct Refusal {
    /// What was tried, as an infinitive: "attach to".
    pub operation: &'static str,
    /// The process.
    pub pid: i32,
    /// Its name; empty if unknown.
    pub name: String,
    /// Why.
    pub cause: Cause,
}

/// Finds out why `operation` ("attach to") on process `pid` failed with `errno`.
pub fn explain(pid: i32, errno: i32, operation: &'static str) -> Refusal {
    let target = read_target(pid);
    let name = match &target {
        Visibility::Visible(facts) => facts.name.clone(),
        Visibility::Gone { .. } | Visibility::Hidden => String::new(),
    };
    Refusal { operation, pid, name, cause: judge(pid, errno, &target, &read_own()) }
}

/// Replaces an error that says no more than "not permitted" by the reason; leaves all others as they are.
pub fn explain_error(error: TracerError, pid: i32) -> Result<Refusal, TracerError> {
    match &error {
        TracerError::Died { .. } => Ok(explain(pid, libc::ESRCH, "attach to")),
        TracerError::Task { source, .. } | TracerError::ProcFile { source, .. } | TracerError::Write { source, .. } => {
            match source.raw_os_error() {
                Some(errno @ (libc::EPERM | libc::EACCES | libc::ESRCH | libc::ENOENT | libc::EINVAL | libc::EIO)) => {
                    Ok(explain(pid, errno, "attach to"))
                }
                _ => Err(error),
            }
        }
        _ => Err(error),
    }
}

/// The decision, from facts alone. The order matters: what no right could change comes first, then what explains a
/// refusal most often.
fn judge(pid: i32, errno: i32, target: &Visibility, own: &OwnFacts) -> Cause {
    let target = match target {
        Visibility::Gone { inside } if inside.is_empty() => return Cause::NoSuchProcess,
        Visibility::Gone { inside } => return Cause::IdInside { outside: inside.clone() },
        Visibility::Hidden => return Cause::Hidden,
        Visibility::Visible(facts) => facts,
    };
    if errno == libc::ESRCH || target.state == 'X' {
        return Cause::NoSuchProcess;
    }
    if target.thread_group == own.pid {
        return Cause::Ourselves;
    }
    if target.thread_group != pid {
        return Cause::Thread { of: target.thread_group };
    }
    if target.kernel_thread {
        return Cause::KernelThread;
    }
    if target.state == 'Z' {
        return Cause::Zombie;
    }
    if let Some((by, name)) = &target.tracer {
        return Cause::AlreadyTraced { by: *by, name: name.clone() };
    }
    if own.yama == Some(3) {
        return Cause::NobodyMayTrace;
    }
    let other_namespace = matches!((target.user_namespace, own.user_namespace), (Some(a), Some(b)) if a != b);
    let privileged = own.effective & (1 << CAP_SYS_PTRACE) != 0;
    // CAP_SYS_PTRACE overrides all of the following, but only in the namespace that it was given in, and those below.
    if !privileged || (other_namespace && target.namespace_below != Some(true)) {
        if !privileged
            && (target.uids.iter().any(|&uid| uid != own.uid) || target.gids.iter().any(|&gid| gid != own.gid))
        {
            return Cause::OtherUser { uid: target.uids.get(1).copied().unwrap_or_default() };
        }
        if let Some(scope @ 1..) = own.yama
            && !privileged
        {
            return Cause::Yama { scope };
        }
        if target.dumpable == Some(false) && !privileged {
            return Cause::NotDumpable;
        }
        if other_namespace {
            return Cause::OtherUserNamespace;
        }
        if target.permitted & !own.permitted != 0 {
            return Cause::MoreCapable;
        }
    }
    if target.is_64_bit == Some(false) {
        return Cause::Not64Bit;
    }
    let uid = target.uids.get(1).copied().unwrap_or_default();
    if errno == libc::EACCES && privileged && own.effective & (1 << CAP_DAC_OVERRIDE) == 0 && uid != own.uid {
        return Cause::ForeignMemory { uid };
    }
    Cause::Unknown { errno }
}

/// Cause and cure in one sentence or two.
fn describe(cause: &Cause, pid: &i32, name: &str) -> String {
    let named = if name.is_empty() { String::new() } else { format!(" ({name})") };
    match cause {
        Cause::NoSuchProcess => {
            "there is no such process, or it has just ended. List processes with `ps -e`".to_owned()
        }
        Cause::IdInside { outside } => format!(
            "there is no process {pid} here; {pid} is the id that process {0} has in its container. Attach to {0}",
            one_of(outside)
        ),
        Cause::Hidden => {
            "it belongs to another user and /proc hides it (hidepid). Run heaptrace as that user or as root".to_owned()
        }
        Cause::Ourselves => "it is heaptrace itself. Trace one heaptrace with another".to_owned(),
        Cause::Thread { of } => {
            format!("it is a thread{named} of process {of}. Attach to {of}: all its threads are traced")
        }
        Cause::Zombie => {
            format!("it{named} has already ended (a zombie, whose parent has not yet collected its exit status)")
        }
        Cause::KernelThread => format!("it{named} is a kernel thread, which has no heap of its own"),
        Cause::AlreadyTraced { by, name } if is_own_name(name) => format!(
            "another heaptrace (process {by}) already traces it, and a process can have only one tracer. `heaptrace \
             ctl {pid} detach` ends that"
        ),
        Cause::AlreadyTraced { by, name } => {
            let by_name = if name.is_empty() { String::new() } else { format!(" ({name})") };
            format!(
                "process {by}{by_name} already traces it, and a process can have only one tracer. End that one first"
            )
        }
        Cause::NobodyMayTrace => {
            "kernel.yama.ptrace_scope is 3: no process may trace until the next boot. Set it to 1 or 0 in \
             /etc/sysctl.d and reboot"
                .to_owned()
        }
        Cause::OtherUser { uid } => {
            format!("it{named} runs as another user (uid {uid}) or group. Run heaptrace with sudo, or as that user")
        }
        Cause::Yama { scope: 1 } => format!(
            "kernel.yama.ptrace_scope is 1: only its ancestors may trace it. Run `sudo heaptrace attach {pid}`, or \
             `sudo sysctl kernel.yama.ptrace_scope=0`, or start it with `heaptrace run`"
        ),
        Cause::Yama { scope } => format!(
            "kernel.yama.ptrace_scope is {scope}: only root may trace. Run `sudo heaptrace attach {pid}`, or `sudo sysctl \
             kernel.yama.ptrace_scope=0`"
        ),
        Cause::NotDumpable => format!(
            "it{named} is not dumpable, so other processes can't read its memory (it is a set-user-ID program, has \
             file capabilities, or chose so itself). Run heaptrace with sudo"
        ),
        Cause::MoreCapable => {
            format!("it{named} has capabilities that heaptrace lacks. Run heaptrace with sudo")
        }
        Cause::OtherUserNamespace => format!(
            "it{named} is in another user namespace (a container), where heaptrace has no rights. Run heaptrace as \
             root on the host, or inside that container"
        ),
        Cause::Not64Bit => format!("it{named} is a 32-bit program; heaptrace traces 64-bit x86-64 programs only"),
        Cause::ForeignMemory { uid } => format!(
            "it{named} runs as another user (uid {uid}): CAP_SYS_PTRACE alone does not allow heaptrace to open \
             /proc/{pid}/mem for writing. Run heaptrace as that user, or add CAP_DAC_OVERRIDE"
        ),
        Cause::Unknown { errno } => format!(
            "{}, and /proc does not show why: a seccomp filter or a security module (AppArmor, SELinux) may forbid it; \
             in Docker, start the container with --cap-add SYS_PTRACE. `heaptrace doctor` shows more",
            io::Error::from_raw_os_error(*errno)
        ),
    }
}

/// Process ids for a sentence.
pub(super) fn one_of(pids: &[i32]) -> String {
    pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" or ")
}

/// Reads what /proc tells about us.
fn read_own() -> OwnFacts {
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    OwnFacts {
        pid,
        // The kernel compares the filesystem ids of the caller, which follow the effective ones.
        uid: ids::users(pid).get(1).copied().unwrap_or_default(),
        gid: ids::groups(pid).get(1).copied().unwrap_or_default(),
        effective: capabilities(pid, "CapEff"),
        permitted: capabilities(pid, "CapPrm"),
        user_namespace: ids::namespace(pid, "user"),
        yama: yama_scope(),
    }
}

/// Reads what /proc tells about the target.
fn read_target(pid: i32) -> Visibility {
    let Ok(Some(thread_group)) = procfs::thread_group(pid) else {
        // SAFETY: signal 0 only asks whether the process exists and could be signalled.
        let result = unsafe { libc::kill(pid, 0) };
        let hidden = result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
        let inside = || ids::known_inside_as(pid);
        return if hidden { Visibility::Hidden } else { Visibility::Gone { inside: inside() } };
    };
    let tracer = procfs::tracer_of_process(pid).and_then(named_process);
    let mut uids = ids::users(pid);
    let mut gids = ids::groups(pid);
    let dumpable = uids.get(1).and_then(|&uid| dumpable(pid, uid));
    // Real, effective, saved; the fourth is the filesystem id, which the kernel's check does not look at.
    uids.truncate(3);
    gids.truncate(3);
    Visibility::Visible(TargetFacts {
        name: procfs::comm(pid),
        state: state_of_process(thread_group, pid),
        kernel_thread: procfs::task_flags(pid).is_some_and(|flags| flags & KERNEL_THREAD != 0),
        thread_group,
        tracer,
        uids,
        gids,
        permitted: capabilities(pid, "CapPrm"),
        dumpable,
        user_namespace: ids::namespace(pid, "user"),
        namespace_below: is_namespace_below(pid),
        is_64_bit: is_64_bit(pid),
    })
}

/// The state of task `tid`; if it has ended, that of a thread of its process `pid` that has not. A first thread that
/// has ended before the others is a zombie, and so is, for a moment, one whose place another takes by exec.
fn state_of_process(pid: i32, tid: i32) -> char {
    let state = |tid| procfs::state(pid, tid).map_or('?', char::from);
    let has_ended = |state: &char| matches!(state, 'Z' | 'X' | '?');
    let own = state(tid);
    if !has_ended(&own) {
        return own;
    }
    // the first thread comes last: it is another one by then where there was an exec
    let others = procfs::tasks(pid).unwrap_or_default().into_iter().filter(|other| *other != tid).chain([tid]);
    others.map(state).find(|state| !has_ended(state)).unwrap_or(own)
}

/// The process of thread `tracer`, 0 for none, and its name. TracerPid is the id of the tracing *thread*, which need
/// not be its process's first.
fn named_process(tracer: i32) -> Option<(i32, String)> {
    let process = procfs::thread_group(tracer).ok().flatten().unwrap_or(tracer);
    (tracer != 0).then(|| (process, procfs::comm(process)))
}

/// The process that traces heaptrace itself, and its name.
pub fn own_tracer() -> Option<(i32, String)> {
    procfs::tracer_of(super::control::thread_id()).and_then(named_process)
}

fn capabilities(pid: i32, key: &str) -> u64 {
    procfs::status_field(pid, key).and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or_default()
}

/// Whether `pid` holds CAP_SYS_PTRACE in effect.
pub fn has_ptrace_capability(pid: i32) -> bool {
    capabilities(pid, "CapEff") & (1 << CAP_SYS_PTRACE) != 0
}

/// kernel.yama.ptrace_scope; None if the kernel has no Yama.
pub fn yama_scope() -> Option<u8> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

/// The files of a process that is not dumpable belong to root (proc(5)). For a process of root itself that tells
/// nothing.
fn dumpable(pid: i32, effective_uid: u32) -> Option<bool> {
    let owner = std::fs::metadata(format!("/proc/{pid}/stat")).ok()?.uid();
    (effective_uid != 0).then_some(owner == effective_uid)
}

/// Whether the user namespace of `pid` lies below ours: then our capabilities hold in it (user_namespaces(7)).
fn is_namespace_below(pid: i32) -> Option<bool> {
    /// The kernel allows no more than 32 levels.
    const LEVELS: usize = 33;
    let own = std::fs::metadata("/proc/self/ns/user").ok()?.ino();
    let mut namespace = File::open(format!("/proc/{pid}/ns/user")).ok()?;
    for _ in 0..LEVELS {
        // SAFETY: the request takes no argument and returns a new descriptor or -1 (ioctl_ns(2)).
        let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
        if parent < 0 {
            // EPERM: the parent is none of ours, or there is none.
            return Some(false);
        }
        // SAFETY: the descriptor is new, and nobody else's.
        namespace = File::from(unsafe { OwnedFd::from_raw_fd(parent) });
        if namespace.metadata().ok()?.ino() == own {
            return Some(true);
        }
    }
    Some(false)
}

/// The class byte of the executable's ELF header: 2 is 64-bit. Other files (none are executed without one) tell
/// nothing.
fn is_64_bit(pid: i32) -> Option<bool> {
    use std::io::Read;
    let mut header = [0u8; 5];
    File::open(format!("/proc/{pid}/exe")).ok()?.read_exact(&mut header).ok()?;
    let [0x7f, b'E', b'L', b'F', class] = header else { return None };
    Some(class == 2)
}

#[cfg(test)]
mod tests;
