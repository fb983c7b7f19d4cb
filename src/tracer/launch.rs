//! Starting a program under trace, so that not one of its instructions is missed.
//!
//! The child waits on a pipe; the tracer thread seizes it and then writes the byte that lets it go on to exec, which
//! stops at PTRACE_EVENT_EXEC. No SIGSTOP ever exists. `std::process::Command` can't do this: its spawn blocks until
//! the exec that waits for us.

use super::affinity::CpuSet;
use super::control::{self, SignalMask};
use super::injection::{self, Call};
use super::{Result, TracerError, ids, orphans, procfs, ptrace};
use crate::image::elf::Elf;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// SIGPIPE's disposition as heaptrace inherited it: Rust's runtime sets it to "ignore" before `main`, and the launched
/// program must not notice.
static INHERITED_SIGPIPE: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

extern "C" fn note_inherited_sigpipe() {
    // SAFETY: runs before main with all signals untouched; only queries.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
        {
            INHERITED_SIGPIPE.store(libc::SIG_IGN, Ordering::Relaxed);
        }
    }
}

// SAFETY: the C library calls the functions of .init_array before main; this one fits their type and touches only an
// atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_INHERITED_SIGPIPE: extern "C" fn() = note_inherited_sigpipe;

/// What to start.
#[derive(Debug)]
pub struct Program {
    name: String,
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    /// Of an ELF file, its class (1: 32-bit, 2: 64-bit).
    elf_class: Option<u8>,
}

impl Program {
    /// Finds `name` as a shell would (a name without a slash in $PATH) and prepares its start.
    ///
    /// # Errors
    /// [`TracerError::NotFound`] or, if it exists but can't be executed, [`TracerError::Exec`].
    pub fn new(
        name: &OsStr,
        arguments: &[OsString],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self> {
        let shown = name.to_string_lossy().into_owned();
        let path = find(name)?;
        let c_string = |bytes: &[u8]| {
            CString::new(bytes).map_err(|_| TracerError::Exec {
                program: shown.clone(),
                source: io::Error::new(io::ErrorKind::InvalidInput, "an argument or variable holds a NUL byte"),
            })
        };
        let mut argv = vec![c_string(name.as_bytes())?];
        for argument in arguments {
            argv.push(c_string(argument.as_bytes())?);
        }
        let mut envp = Vec::new();
        for (key, value) in environment {
            envp.push(c_string(&[key.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
        let path = c_string(path.as_os_str().as_bytes())?;
        let elf_class = elf_class(Path::new(OsStr::from_bytes(path.to_bytes())));
        Ok(Self { name: shown, path, arguments: argv, environment: envp, elf_class })
    }

    /// The file to be executed.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// The program as the user named it.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn find(name: &OsStr) -> Result<PathBuf> {
    let shown = || name.to_string_lossy().into_owned();
    if name.is_empty() {
        return Err(TracerError::NotFound { program: shown() });
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(TracerError::NotFound { program: shown() }),
            Err(source) => Err(TracerError::Exec { program: shown(), source }),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refused = None;
    for folder in std::env::split_paths(&search) {
        let path = folder.join(name);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {}
            Err(source) => refused = refused.or(Some(source)),
        }
    }
    Err(match refused {
        Some(source) => TracerError::Exec { program: shown(), source },
        None => TracerError::NotFound { program: shown() },
    })
}

fn executable(path: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "permission denied: it is not marked executable (chmod +x)",
        ));
    }
    Ok(())
}

/// The class in the header of an ELF file; None if it is none or can't be read.
fn elf_class(path: &Path) -> Option<u8> {
    let mut header = [0; 5];
    File::open(path).and_then(|mut file| file.read_exact(&mut header)).ok()?;
    let [0x7f, b'E', b'L', b'F', class] = header else { return None };
    Some(class)
}

/// A child that has been seized and let go towards its exec. Dropping this before [`Launched::begins`] ends the child:
/// what could not be traced from its first instruction on is not run at all.
#[derive(Debug)]
pub struct Launched {
    /// Its process id.
    pub pid: i32,
    name: String,
    path: PathBuf,
    exec_error: OwnedFd,
    elf_class: Option<u8>,
    ours: bool,
}

impl Drop for Launched {
    fn drop(&mut self) {
        if self.ours {
            ptrace::kill_child(self.pid);
        }
    }
}

impl Launched {
    /// The child is about to execute the program's first instruction, or has ended: from now on it is left alone.
    pub fn begins(&mut self) {
        self.ours = false;
    }

    /// To be asked when the child has ended without PTRACE_EVENT_EXEC: why its exec failed, if that was the cause.
    pub fn exec_failure(&self) -> Option<TracerError> {
        let mut code = [0u8; 4];
        // SAFETY: reads at most 4 bytes into a buffer of 4; the descriptor is ours.
        let n = unsafe { libc::read(self.exec_error.as_raw_fd(), code.as_mut_ptr().cast(), code.len()) };
        (n == 4).then(|| TracerError::Exec {
            program: self.name.clone(),
            source: match i32::from_le_bytes(code) {
                libc::ENOEXEC if self.elf_class == Some(1) => {
                    io::Error::other("it is a 32-bit program, and this kernel can't run 32-bit programs")
                }
                code => explain_exec(&self.path, io::Error::from_raw_os_error(code)),
            },
        })
    }
}

/// What the kernel says of a file that it can't execute is often true of another one: the interpreter that a script
/// names in its first line, or the loader that a program asks for.
fn explain_exec(path: &Path, error: io::Error) -> io::Error {
    // Somebody has it open for writing: that is the file itself.
    if error.kind() == io::ErrorKind::ExecutableFileBusy {
        return error;
    }
    let Ok(bytes) = std::fs::read(path) else { return error };
    let script = bytes.strip_prefix(b"#!").map(|rest| {
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let words = line.trim_ascii_start().split(|&byte| byte == b' ' || byte == b'\t');
        ("interpreter, named in its first line,", words.map(<[u8]>::to_vec).next().unwrap_or_default())
    });
    let program = || Some(("dynamic loader", Elf::parse(&bytes).ok()?.interpreter()?.into_os_string().into_vec()));
    let Some((role, needed)) = script.or_else(program) else { return error };
    let help = if needed.ends_with(b"\r") {
        ": the line ends in a carriage return, as on Windows (dos2unix removes it)"
    } else if error.kind() == io::ErrorKind::NotFound && role.starts_with("dynamic") {
        ": the program was built for another system or C library"
    } else {
        ""
    };
    let needed = String::from_utf8_lossy(&needed).replace('\r', "\\r");
    io::Error::new(error.kind(), format!("its {role} {needed}: {error}{help}"))
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    injection::point(Call::Other).map_err(|source| TracerError::Own { operation: "make a pipe", source })?;
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors, which are new and ours if the call succeeds.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(TracerError::own("make a pipe"));
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// For so long another tracer may keep a new child before it lets it go.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Seizes a new child. Whoever traces heaptrace may have it first: a debugger or another heaptrace, whose option to
/// stop at forks attaches to the child, and which lets it go as soon as it has seen that stop.
fn seize_new(pid: i32, exit_kill: bool) -> Result<()> {
    let began = Instant::now();
    loop {
        match ptrace::seize(pid, exit_kill) {
            Err(TracerError::Task { source, .. })
                if source.raw_os_error() == Some(libc::EPERM)
                    && procfs::tracer_of(control::thread_id()).is_some_and(|tracer| tracer != 0)
                    && began.elapsed() < TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

/// Starts `program`, seized by the calling thread before its exec. `mask`: the signal mask it gets; `cpus`: where it
/// may run, if not everywhere; `exit_kill`: see [`ptrace::seize`].
pub fn launch(program: &Program, mask: &SignalMask, cpus: Option<&CpuSet>, exit_kill: bool) -> Result<Launched> {
    ids::require_own()?;
    let (gate_read, gate_write) = pipe()?;
    let (error_read, error_write) = pipe()?;
    let mut argv: Vec<*const libc::c_char> = program.arguments.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    let mut envp: Vec<*const libc::c_char> = program.environment.iter().map(|e| e.as_ptr()).collect();
    envp.push(std::ptr::null());
    // What execvp does with a script that has no "#!" line.
    let mut shell_argv = vec![c"/bin/sh".as_ptr(), program.path.as_ptr()];
    shell_argv.extend(argv.iter().skip(1));

    // SAFETY: between fork and exec the child makes only async-signal-safe calls, on memory prepared above.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(TracerError::own("fork"));
    }
    if pid == 0 {
        // SAFETY: as above; all pointers are to memory that lives in the child's copy.
        unsafe {
            if let Some(cpus) = cpus {
                let _ = cpus.apply(0);
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = INHERITED_SIGPIPE.load(Ordering::Relaxed);
            libc::sigaction(libc::SIGPIPE, &raw const action, std::ptr::null_mut());
            control::restore_file_size_signal();
            super::limits::restore();
            super::faults::restore_inherited();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut());
            // Without this the read below would never see the end of the pipe if heaptrace died now.
            libc::close(gate_write.as_raw_fd());
            let mut byte = 0u8;
            if libc::read(gate_read.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                libc::_exit(127);
            }
            libc::execve(program.path.as_ptr(), argv.as_ptr(), envp.as_ptr());
            if *libc::__errno_location() == libc::ENOEXEC && program.elf_class.is_none() {
                libc::execve(c"/bin/sh".as_ptr(), shell_argv.as_ptr(), envp.as_ptr());
            }
            let code = (*libc::__errno_location()).to_le_bytes();
            libc::write(error_write.as_raw_fd(), code.as_ptr().cast(), code.len());
            libc::_exit(127);
        }
    }
    orphans::note_own(pid);
    drop(gate_read);
    drop(error_write);
    if let Err(error) = seize_new(pid, exit_kill) {
        // The closed gate ends the child.
        drop(gate_write);
        ptrace::kill_child(pid);
        return Err(error);
    }
    let launched = Launched {
        pid,
        name: program.name.clone(),
        path: program.path().to_owned(),
        exec_error: error_read,
        elf_class: program.elf_class,
        ours: true,
    };
    injection::point(Call::Other).map_err(|source| TracerError::Own { operation: "let the program start", source })?;
    // SAFETY: one byte of a valid buffer to a descriptor of ours.
    if unsafe { libc::write(gate_write.as_raw_fd(), [1u8].as_ptr().cast(), 1) } != 1 {
        return Err(TracerError::own("let the program start"));
    }
    Ok(launched)
}

/// Whether our child `pid`, which is no longer traced, has ended, and how.
pub fn poll_child(pid: i32) -> Result<Option<super::status::WaitStatus>> {
    let mut status = 0;
    // SAFETY: `status` is a valid place; no rusage.
    let result = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    match result {
        0 => Ok(None),
        -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => Ok(None),
        -1 => Err(TracerError::last("wait for", pid)),
        _ => Ok(Some(super::status::WaitStatus::decode(status))),
    }
}
