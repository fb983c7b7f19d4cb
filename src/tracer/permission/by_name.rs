//! Finding a process by its name (`--by-name`).

use crate::tracer::loadedby::loaded_program;
use crate::tracer::{ids, procfs};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

/// Characters of a command line that a list shows.
const SHOWN_LENGTH: usize = 100;

/// Why a name does not lead to one process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ByNameError {
    /// No process has it.
    #[error(
        "no process is named {name}: heaptrace compares the basenames of the executable and of argv[0]. (Only root can \
         see the executables of other users' processes.)"
    )]
    NotFound {
        /// The name.
        name: String,
    },
    /// More than one has it.
    #[error("{} processes are named {name}; choose one by its id:{}", matches.len(), list(matches))]
    Several {
        /// The name.
        name: String,
        /// Process ids and command lines, by id.
        matches: Vec<(i32, String)>,
    },
    /// /proc can't be read.
    #[error("could not list the processes: {0}")]
    Proc(String),
}

fn list(matches: &[(i32, String)]) -> String {
    matches.iter().fold(String::new(), |mut text, (pid, command)| {
        // Writing to a String can't fail.
        let _ = write!(text, "\n  {pid:>7}  {command}");
        text
    })
}

/// A process as far as its name goes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Candidate {
    pid: i32,
    /// The path of its executable, if it may be seen.
    executable: Option<String>,
    command_line: Vec<String>,
}

/// A process that was started as a program of a certain name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Instance {
    /// When it began, in clock ticks since the machine did; it tells processes with the same id apart, and comes first
    /// as older ones do.
    started: u64,
    /// Its id.
    pub pid: i32,
}

impl Instance {
    /// Whether it has not ended, or not been reaped yet.
    pub fn lives(&self) -> bool {
        procfs::start_time(self.pid) == Some(self.started)
    }
}

/// The process whose executable's basename, or whose argv\[0\]'s basename, is `name`. Not by the kernel's short name,
/// which ends after 15 characters and which threads change at will.
///
/// # Errors
/// [`ByNameError`] unless exactly one process other than ourselves matches.
pub fn find_by_name(name: &str) -> Result<i32, ByNameError> {
    select(name, all_processes()?.into_iter().map(Candidate::read))
}

/// The ids of all processes but our own.
///
/// # Errors
/// If /proc can't be read.
pub fn all_processes() -> Result<Vec<i32>, ByNameError> {
    ids::require_own().map_err(|error| ByNameError::Proc(error.to_string()))?;
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut pids = procfs::processes().map_err(|error| ByNameError::Proc(error.to_string()))?;
    pids.retain(|&pid| pid != own);
    Ok(pids)
}

/// Process `pid`, if it is an instance of the program `name` that nobody traces. The copy of itself that an instance
/// makes by fork is none: a worker belongs to the one that it was forked from while that lives, and most copies are
/// about to become another program.
pub fn instance(name: &str, pid: i32) -> Option<Instance> {
    let is_named = |pid| Candidate::read(pid).is_named(name);
    let instance = Instance { started: procfs::start_time(pid)?, pid };
    // In this order: a copy may become another program between two looks at it.
    let is_copy = procfs::forked_from(pid).is_some_and(is_named);
    // A tracer lets the threads go one after the other; some may end meanwhile.
    let is_free = |tid| procfs::tracer_of(tid).is_none_or(|tracer| tracer == 0);
    let is_untraced = || procfs::tasks(pid).is_ok_and(|tids| tids.into_iter().all(is_free));
    (!is_copy && is_named(pid) && is_untraced()).then_some(instance)
}

fn select(name: &str, candidates: impl Iterator<Item = Candidate>) -> Result<i32, ByNameError> {
    let mut matches: Vec<(i32, String)> = candidates
        .filter(|candidate| candidate.is_named(name))
        .map(|candidate| (candidate.pid, candidate.shown()))
        .collect();
    matches.sort();
    match matches.as_slice() {
        [] => Err(ByNameError::NotFound { name: name.to_owned() }),
        [(pid, _)] => Ok(*pid),
        _ => Err(ByNameError::Several { name: name.to_owned(), matches }),
    }
}

impl Candidate {
    fn read(pid: i32) -> Self {
        Self {
            pid,
            executable: procfs::executable(pid).map(|path| path.to_string_lossy().into_owned()),
            command_line: procfs::command_line(pid),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        let basename_is = |path: &str| Path::new(path).file_name() == Some(OsStr::new(name));
        // The kernel says so behind the path of a file that is gone.
        let executable = self.executable.as_deref().map(|path| path.strip_suffix(" (deleted)").unwrap_or(path));
        // A server may rewrite its title: redis-server's is "redis-server *:6379", in one word.
        let title = self.command_line.first().and_then(|word| word.split_whitespace().next());
        let whole = self.command_line.first().map(String::as_str);
        let loaded = executable.and_then(|path| loaded_program(Path::new(path), &self.command_line));
        let loaded = loaded.and_then(Path::to_str);
        [executable, whole, title, loaded].into_iter().flatten().any(basename_is)
    }

    /// The command line, or at least the executable; cut off where the end tells no one anything.
    fn shown(&self) -> String {
        let whole = if self.command_line.is_empty() {
            self.executable.clone().unwrap_or_default()
        } else {
            self.command_line.join(" ")
        };
        match whole.char_indices().nth(SHOWN_LENGTH) {
            Some((end, _)) => format!("{}…", &whole[..end]),
            None => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pid: i32, executable: &str, command_line: &str) -> Candidate {
        Candidate {
            pid,
            executable: (!executable.is_empty()).then(|| executable.to_owned()),
            command_line: command_line.split_whitespace().map(str::to_owned).collect(),
        }
    }

    fn find(name: &str, candidates: &[Candidate]) -> Result<i32, ByNameError> {
        select(name, candidates.iter().cloned())
    }

    #[test]
    fn the_basename_of_executable_or_of_argv0_counts() {
        let all = [
            candidate(10, "/usr/bin/redis-check-rdb", "/usr/bin/redis-server 127.0.0.1:6379"),
            candidate(11, "/opt/a-name-of-more-than-15-characters", "a-name"),
            candidate(12, "/usr/bin/app (deleted)", ""),
            candidate(13, "", "/sbin/init splash"),
            candidate(14, "", ""),
            candidate(15, "/usr/lib/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2 --preload a.so ./wrapped x"),
        ];
        assert_eq!(find("redis-server", &all), Ok(10));
        assert_eq!(find("redis-check-rdb", &all), Ok(10));
        assert_eq!(find("a-name-of-more-than-15-characters", &all), Ok(11));
        assert_eq!(find("app", &all), Ok(12));
        assert_eq!(find("init", &all), Ok(13));
        assert_eq!(find("wrapped", &all), Ok(15));
        for name in ["a-name-of-more-", "redis", "/usr/bin/app", "splash", ""] {
            assert_eq!(find(name, &all), Err(ByNameError::NotFound { name: name.to_owned() }));
        }
    }

    #[test]
    fn several_matches_are_listed_with_their_command_lines() {
        let all = [candidate(200, "/bin/app", "app --two"), candidate(31, "/bin/app", "app --one")];
        let error = find("app", &all).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 processes are named app; choose one by its id:\n       31  app --one\n      200  app --two"
        );
    }

    #[test]
    fn long_command_lines_are_cut_between_characters() {
        let long = candidate(1, "/bin/app", &"ä".repeat(101));
        assert_eq!(long.shown(), format!("{}…", "ä".repeat(100)));
        assert_eq!(candidate(1, "/bin/app", "").shown(), "/bin/app");
    }

    /// A real process under a name of its own; the kernel's name for it would be the same 15 characters for both.
    #[test]
    fn finds_a_real_process_and_never_ourselves() {
        use std::process::{Command, Stdio};
        let folder = std::env::temp_dir().join(format!("heaptrace-by-name-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let name = format!("heaptrace-by-name-{}-sleeper", std::process::id());
        let path = folder.join(&name);
        std::fs::copy("/bin/cat", &path).unwrap();
        let mut child = Command::new(&path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let found = find_by_name(&name);
        drop(child.stdin.take());
        child.wait().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Ok(i32::try_from(child.id()).unwrap()));
        assert_eq!(find_by_name(&name), Err(ByNameError::NotFound { name }));

        let own = std::env::current_exe().unwrap();
        let own_name = own.file_name().unwrap().to_str().unwrap();
        assert_ne!(find_by_name(own_name), Ok(i32::try_from(std::process::id()).unwrap()));
    }

    /// A copy that a process makes of itself counts only when it is alone; what was executed counts at once.
    #[test]
    fn copies_are_no_instances_while_their_original_lives() {
        use std::io::Read;
        use std::process::{Command, Stdio};
        let folder = std::env::temp_dir().join(format!("heaptrace-instances-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let name = format!("heaptrace-instance-{}", std::process::id());
        let path = folder.join(&name);
        std::fs::copy("/bin/sh", &path).unwrap();
        // The subshell is a copy, as it must live on to say its second word. Its standard input is the parent's second
        // one.
        let script = "exec 3<&0; (echo x; read line <&3; echo y) & exec 0<&-; read line <&4; exit 0";
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = Command::new(&path);
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        give_as(&mut command, reader, 4);
        let mut parent = command.spawn().unwrap();
        let mut said = [0; 2];
        let mut stdout = parent.stdout.take().unwrap();
        stdout.read_exact(&mut said).unwrap();
        let pid = i32::try_from(parent.id()).unwrap();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let copy: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
        let found = instance(&name, pid).unwrap();
        assert_eq!(found.pid, pid);
        assert!(found.lives());
        assert_eq!(instance(&name, copy), None);
        assert_eq!(instance("another-name", pid), None);
        // wait() would close it
        let stdin = parent.stdin.take();
        drop(writer);
        parent.wait().unwrap();
        assert!(!found.lives());
        assert_eq!(instance(&name, copy).map(|found| found.pid), Some(copy));
        drop(stdin);
        stdout.read_to_end(&mut Vec::new()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Gives a command a descriptor under a number of its own.
    fn give_as(command: &mut std::process::Command, descriptor: impl Into<std::os::fd::OwnedFd>, number: i32) {
        use std::os::fd::AsRawFd;
        use std::os::unix::process::CommandExt;
        let descriptor = descriptor.into();
        // SAFETY: dup2 and fcntl are async-signal-safe; the descriptor lives in the closure.
        unsafe {
            command.pre_exec(move || {
                // One that has the number already would be closed on exec.
                let given = match descriptor.as_raw_fd() {
                    same if same == number => libc::fcntl(number, libc::F_SETFD, 0),
                    other => libc::dup2(other, number),
                };
                if given == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
    }
}
