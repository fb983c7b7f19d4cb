//! The control socket: where another heaptrace asks the one that traces a process.
//!
//! It lies in a folder that its owner alone may enter, and each connection's user is checked besides: the same user and root
//! are answered. The one who asks finds the tracer by the traced process's TracerPid.

use super::{TracerError, procfs};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why the tracer of a process can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process.
        pid: i32,
    },
    /// Nobody traces it.
    #[error("process {pid} is not being traced: start it with `heaptrace run`, or `heaptrace attach {pid}` first")]
    NotTraced {
        /// The process.
        pid: i32,
    },
    /// Another program traces it.
    #[error("process {pid} is traced by {name} (process {tracer}), which is not a heaptrace that can be asked")]
    OtherTracer {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
        /// The tracer's name.
        name: String,
    },
    /// Its socket may not be used.
    #[error(
        "the heaptrace that traces process {pid} (process {tracer}) belongs to another user: only that user and root may ask it"
    )]
    NotPermitted {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
    },
}

/// A bound control socket. Its name vanishes when it is closed, at the latest with it.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    closed: AtomicBool,
}

impl ControlSocket {
    /// Binds the socket of this process, in the first folder of cli.md that can be used: /run/user/UID/heaptrace, then
    /// heaptrace-UID in the folder for temporary files.
    ///
    /// # Errors
    /// If none of them can be used.
    pub fn bind() -> super::Result<Self> {
        let user = effective_user();
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        let temporary = std::env::var_os("TMPDIR").map(PathBuf::from);
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for folder in folders(user, temporary) {
            match Self::bind_in(&folder, user, pid) {
                Ok(bound) => return Ok(bound),
                Err(error) => failure = error,
            }
        }
        Err(TracerError::Own { operation: "make a control socket", source: failure })
    }

    fn bind_in(folder: &Path, user: u32, pid: i32) -> io::Result<Self> {
        match std::fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        // In a folder that everybody may write to, somebody else can have been first.
        let found = std::fs::symlink_metadata(folder)?;
        if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        remove_abandoned(folder);
        let path = folder.join(socket_name(pid));
        // What lies there was left by a process that had this id before.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        Ok(Self { listener: UnixListener::bind(&path)?, path, closed: AtomicBool::new(false) })
    }

    /// Waits for somebody who may ask. Others are turned away without a word.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            match peer_user(&stream) {
                Ok(user) if user == effective_user() || user == 0 => return Ok(stream),
                _ => {}
            }
        }
    }

    /// Turns everybody away from now on: [`Self::accept`] fails, in whatever thread it waits.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            // The name may be that of our next socket by now.
            return;
        }
        let _ = std::fs::remove_file(&self.path);
        // SAFETY: shutdown takes numbers only.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Where it is bound.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Connects to the heaptrace that traces process `pid`.
///
/// # Errors
/// [`AskError`]: there is none, or it may not be asked.
pub fn connect_to_tracer_of(pid: i32) -> Result<UnixStream, AskError> {
    let thread = match procfs::tracer_of(pid) {
        None => return Err(AskError::NoProcess { pid }),
        Some(0) => return Err(AskError::NotTraced { pid }),
        Some(thread) => thread,
    };
    // The kernel names the tracing thread.
    let tracer = procfs::thread_group(thread).ok().flatten().unwrap_or(thread);
    let user = std::fs::metadata(format!("/proc/{tracer}")).map_or_else(|_| effective_user(), |found| found.uid());
    let mut failure = AskError::OtherTracer { pid, tracer, name: procfs::comm(tracer) };
    for folder in folders(user, temporary_folder_of(tracer)) {
        match UnixStream::connect(folder.join(socket_name(tracer))) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                failure = AskError::NotPermitted { pid, tracer };
            }
            Err(_) => {}
        }
    }
    Err(failure)
}

/// The folders that may hold the sockets of `user`, best first.
fn folders(user: u32, temporary: Option<PathBuf>) -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from(format!("/run/user/{user}/heaptrace"))];
    folders.extend(temporary.into_iter().chain(["/tmp".into()]).map(|folder| folder.join(format!("heaptrace-{user}"))));
    folders.dedup();
    folders
}

fn socket_name(pid: i32) -> String {
    format!("{pid}.sock")
}

/// The tracer's own folder for temporary files, which may differ from ours.
fn temporary_folder_of(pid: i32) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(b"TMPDIR="))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
}

/// Removes the sockets of processes that are gone: killed, they could not do it themselves.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse::<i32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.close();
    }
}

fn effective_user() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// The effective user of the other side when it connected (SO_PEERCRED, unix(7)).
fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` has `length` bytes for the kernel to write to.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        // SAFETY: zeroed above, filled by the kernel; all bit patterns are valid.
        Ok(unsafe { credentials.assume_init() }.uid)
    } else {
        Err(io::Error::last_os_error())
    }
}
