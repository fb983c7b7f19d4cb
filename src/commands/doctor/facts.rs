//! Reading the machine. Whatever can't be read is left unknown.

use crate::image::elf::Elf;
use crate::tracer::guardian;
use crate::tracer::guardian::orphan::{self, Looked, Orphan};
use crate::tracer::jump::region;
use crate::tracer::probe::{self, CodeAccess, StopCost, TraceCheck};
use crate::tracer::{ids, permission, procfs};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

/// Where distributions put separate debug files.
pub(super) const DEBUG_ROOT: &str = "/usr/lib/debug";

/// What was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    /// The kernel's release, as uname(2) has it.
    pub(super) kernel: String,
    /// What is wrong with /proc, if something is.
    pub(super) proc: Option<String>,
    /// Whether /proc shows the kernel's settings (not with its option `subset=pid`).
    pub(super) settings: bool,
    /// Whether we live in a user namespace, beyond which our rights do not reach.
    pub(super) contained: bool,
    /// kernel.yama.ptrace_scope; None without Yama.
    pub(super) yama: Option<u8>,
    /// Whether we have CAP_SYS_PTRACE.
    pub(super) privileged: bool,
    /// The mode in /proc/PID/status: 0 off, 1 strict, 2 filter. None if the kernel does not say.
    pub(super) seccomp: Option<i32>,
    /// The trial of tracing.
    pub(super) trial: Trial,
    /// Why the jump engine's memory can't be had, if so.
    pub(super) no_shared_memory: Option<String>,
    /// CPUs that we may run on.
    pub(super) cpus: usize,
    /// Whether the CPU says that it is a virtual one.
    pub(super) virtual_machine: bool,
    /// Whether programs can have a shadow stack here (the CPU flag user_shstk).
    pub(super) shadow_stack: bool,
    /// The option `hidepid` of /proc, unless it is off.
    pub(super) hidepid: Option<String>,
    /// Whether the distribution is Debian or made from it.
    pub(super) debian: bool,
    /// Our C library, or that of our parent if we are linked statically.
    pub(super) libc: Option<Libc>,
    /// Folders of $HEAPTRACE_DEBUG_PATH, and whether each is there.
    pub(super) debug_path: Vec<(PathBuf, bool)>,
    /// Whether $DEBUGINFOD_URLS is set.
    pub(super) debuginfod: bool,
}

/// What became of the trial of tracing; errors as texts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Trial {
    /// It would have been made on another process than the child, as /proc is another namespace's.
    NotMade,
    /// A child could not be traced.
    NoTrace(String),
    /// No breakpoint could be written into its code.
    NoBreakpoint(String),
    /// Both worked.
    Done {
        /// Whether code could be written while the child ran.
        code: CodeAccess,
        /// The cost of a stop, CPUs left to the scheduler.
        stop: Option<StopCost>,
        /// The same on one CPU.
        pinned: Option<StopCost>,
    },
}

/// A C library and its debug file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Libc {
    /// The library.
    pub(super) path: PathBuf,
    /// Its build id, lower-case hex.
    pub(super) build_id: Option<String>,
    /// The debug file that belongs to it.
    pub(super) debug_file: Option<PathBuf>,
}

/// Reads everything; takes as long as the trial, over a second.
pub(super) fn gather(debug_dirs: &[PathBuf]) -> Facts {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let flag = |name: &str| {
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        flags.split_whitespace().any(|flag| flag == name)
    };
    Facts {
        kernel: procfs::kernel_release(),
        proc: ids::require_own().err().map(|error| error.to_string()),
        settings: Path::new("/proc/sys/kernel").exists(),
        contained: ids::users_are_mapped(),
        yama: permission::yama_scope(),
        privileged: permission::has_ptrace_capability(own),
        seccomp: procfs::status_number(own, "Seccomp"),
        trial: trial(),
        no_shared_memory: region::try_shared_memory().err().map(|error| error.to_string()),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        virtual_machine: flag("hypervisor"),
        shadow_stack: flag("user_shstk"),
        hidepid: hidepid(&read("/proc/self/mounts")),
        debian: is_debian(&read("/etc/os-release")),
        libc: libc_path(&read("/proc/self/maps")).or_else(libc_of_parent).map(|path| libc(path, debug_dirs)),
        debug_path: debug_dirs.iter().map(|dir| (dir.clone(), dir.is_dir())).collect(),
        debuginfod: std::env::var_os("DEBUGINFOD_URLS").is_some_and(|urls| !urls.is_empty()),
    }
}

/// What a heaptrace that is gone has left in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Leftovers {
    /// Nothing.
    None,
    /// Somebody traces it: its breakpoints are theirs.
    Traced {
        /// The tracer: a process, or a thread of one.
        by: i32,
    },
    /// Nothing but memory of the jump engine, so many bytes.
    Memory(u64),
    /// These.
    Some {
        /// Breakpoints of ours.
        breakpoints: usize,
        /// Changed bytes of code that may be the program's own.
        unproved: usize,
    },
    /// It could not be looked at: why.
    Unknown(String),
}

/// Waits until no guardian takes anything away from process `pid` any more, twelve seconds at most. False if it may
/// still do so.
pub(super) fn is_settled(pid: i32) -> bool {
    guardian::await_others(pid)
}

/// Looks at process `pid`, without touching it.
pub(super) fn leftovers(pid: i32) -> Leftovers {
    match Orphan::find(pid) {
        Ok(Looked::Clean) => match orphan::added_memory(pid) {
            Ok(0) => Leftovers::None,
            Ok(bytes) => Leftovers::Memory(bytes),
            Err(error) => Leftovers::Unknown(error.to_string()),
        },
        Ok(Looked::Traced(by)) => Leftovers::Traced { by },
        Ok(Looked::Orphan(orphan)) => {
            Leftovers::Some { breakpoints: orphan.breakpoints(), unproved: orphan.unproved() }
        }
        Err(error) => Leftovers::Unknown(error.to_string()),
    }
}

fn trial() -> Trial {
    if ids::require_own().is_err() {
        return Trial::NotMade;
    }
    match probe::try_trace() {
        Err(error) | Ok(TraceCheck { seize: Err(error), .. }) => Trial::NoTrace(error.to_string()),
        Ok(TraceCheck { write_code: Err(error), .. }) => Trial::NoBreakpoint(error.to_string()),
        Ok(TraceCheck { write_code: Ok(code), stop, stop_pinned, .. }) => {
            Trial::Done { code, stop, pinned: stop_pinned }
        }
    }
}

/// The value of `hidepid` (proc(5)) in the line of /proc; None if it hides nothing.
fn hidepid(mounts: &str) -> Option<String> {
    // Device, place, type, options; the last line for a place is the one that counts.
    let proc = mounts.lines().rfind(|line| line.split_whitespace().nth(1) == Some("/proc"))?;
    let value = proc.split_whitespace().nth(3)?.split(',').find_map(|option| option.strip_prefix("hidepid="))?;
    (!matches!(value, "0" | "off")).then(|| value.to_owned())
}

/// By os-release(5).
fn is_debian(os_release: &str) -> bool {
    let values = os_release.lines().filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")));
    values.flat_map(|value| value.trim_matches('"').split_whitespace()).any(|id| id == "debian")
}

/// The C library in the text of /proc/PID/maps.
fn libc_path(maps: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').and_then(|start| line.get(start..)));
    paths.map(Path::new).find(|path| path.file_name().is_some_and(|name| name == "libc.so.6")).map(Path::to_owned)
}

/// That of the program that has started us: we may be linked statically.
fn libc_of_parent() -> Option<PathBuf> {
    // the parent may have another root folder
    libc_path(&std::fs::read_to_string(format!("/proc/{}/maps", parent_id())).ok()?).filter(|path| path.exists())
}

fn libc(path: PathBuf, debug_dirs: &[PathBuf]) -> Libc {
    let build_id = std::fs::read(&path).ok().and_then(|bytes| Elf::parse(&bytes).ok()?.build_id_hex());
    let debug_file = build_id.as_deref().and_then(|id| {
        let relative = PathBuf::from(".build-id").join(id.get(..2)?).join(format!("{}.debug", id.get(2..)?));
        let dirs = debug_dirs.iter().map(PathBuf::as_path).chain([Path::new(DEBUG_ROOT)]);
        dirs.map(|dir| dir.join(&relative)).find(|file| file.is_file())
    });
    Libc { path, build_id, debug_file }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidepid_is_read_from_the_last_mount_of_proc() {
        assert_eq!(hidepid("proc /proc proc rw,nosuid 0 0\n"), None);
        assert_eq!(hidepid("proc /proc proc rw,hidepid=invisible,gid=4 0 0\n"), Some("invisible".into()));
        assert_eq!(hidepid("proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw,hidepid=off 0 0\n"), None);
        assert_eq!(hidepid("proc /elsewhere proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n"), None);
        assert_eq!(hidepid(""), None);
    }

    #[test]
    fn debian_is_known_by_its_own_id_and_by_its_children() {
        assert!(is_debian("NAME=\"Debian GNU/Linux\"\nID=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nHOME_URL=\"https://debian.example/\"\n"));
    }

    /// The oracle is binutils.
    #[test]
    fn the_c_library_of_this_process_and_its_build_id_are_found() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = libc(libc_path(&maps).unwrap(), &[]);
        let output = std::process::Command::new("readelf").arg("-n").arg(&libc.path).output().unwrap();
        let notes = String::from_utf8(output.stdout).unwrap();
        assert!(notes.contains(&format!("Build ID: {}", libc.build_id.unwrap())), "{notes}");
    }

    #[test]
    fn a_debug_file_is_found_by_build_id_in_the_users_folders_first() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = libc_path(&maps).unwrap();
        let id = libc(path.clone(), &[]).build_id.unwrap();
        let folder = std::env::temp_dir().join(format!("heaptrace-doctor-{}", std::process::id()));
        let file = folder.join(".build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        let found = libc(path, std::slice::from_ref(&folder)).debug_file;
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Some(file));
    }
}
