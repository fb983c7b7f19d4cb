//! The control socket: where another heaptrace asks the one that traces a process.
//!
//! It lies in a folder that its owner alone may enter, and each connection's user is checked besides: the same user and
//! root are answered. The one who asks finds the tracer by the traced process's TracerPid.
//!
//! The two may live in different namespaces: ids mean something else to the other side then, and the folder lies in
//! another file tree. Sockets are named as the tracer sees itself; and by its pid namespace, where folders may be
//! shared with others.

use super::root::TargetRoot;
use super::{TracerError, ids, permission, planted, procfs};
use crate::base::paths::below;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why the tracer of a process can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process.
        pid: i32,
    },
    /// The id is one that the process has in its container, and not ours for it.
    #[error(
        "there is no process {pid} here; {pid} is the id that process {} has in its container",
        permission::one_of(outside)
    )]
    IdInside {
        /// The id.
        pid: i32,
        /// Our ids of the processes that have it.
        outside: Vec<i32>,
    },
    /// Nobody traces it.
    #[error(
        "process {pid} is not being traced: start it with `heaptrace run`, or `heaptrace attach {pid}` first{}",
        if *contained { ". (If it is traced from outside this container, ask there.)" } else { "" }
    )]
    NotTraced {
        /// The process.
        pid: i32,
        /// Whether a tracer outside could not be seen from here.
        contained: bool,
    },
    /// Ids under /proc are not those of system calls.
    #[error(transparent)]
    Proc(#[from] TracerError),
    /// Another program traces it.
    #[error("process {pid} is traced by {name} (process {tracer}), which is not a heaptrace that answers requests")]
    OtherTracer {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
        /// The tracer's name.
        name: String,
    },
    /// There is no socket, as another user has taken the name of its folder.
    #[error("the heaptrace that traces process {pid} (process {tracer}) can't be asked: {}", planted(folder, *owner))]
    Planted {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
        /// The folder.
        folder: PathBuf,
        /// Whom it belongs to.
        owner: u32,
    },
    /// Its socket has no room.
    #[error(
        "the heaptrace that traces process {pid} (process {tracer}) has too many requests at the moment: try again"
    )]
    Busy {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
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

/// A connection with a moment at which all waiting for the other side ends, however little it sends each time.
#[derive(Debug)]
pub struct Conversation {
    stream: UnixStream,
    ends: Instant,
    on_idle: Option<IdleCallback>,
}

/// How often it it is called while the other side says nothing.
const IDLE: Duration = Duration::from_millis(50);

/// What is done while the other side says nothing; an error ends the waiting.
struct IdleCallback(Box<dyn FnMut() -> io::Result<()> + Send>);

impl std::fmt::Debug for IdleCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdleCallback")
    }
}

/// Ends a connection from another thread.
#[derive(Debug)]
pub struct HangUp(UnixStream);

impl HangUp {
    /// Both sides read the end of the connection from now on.
    pub fn now(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl Conversation {
    fn new(stream: UnixStream) -> Self {
        Self { stream, ends: Instant::now(), on_idle: None }
    }

    /// Calls `look` from time to time while the other side says nothing; its error is that of the reading.
    pub fn look_out(&mut self, look: impl FnMut() -> io::Result<()> + Send + 'static) {
        self.on_idle = Some(IdleCallback(Box::new(look)));
    }

    /// The means to end the connection from another thread.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn hang_up(&self) -> io::Result<HangUp> {
        self.stream.try_clone().map(HangUp)
    }

    /// Whether the other side has gone, so that nobody would read an answer.
    pub fn is_gone(&self) -> bool {
        let mut events = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        let found = poll(&mut events, PollTimeout::ZERO).is_ok_and(|found| found > 0);
        let [event] = events;
        found && event.revents().is_some_and(|flags| flags.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    }

    /// From now on, reading and writing end after `patience` with [`io::ErrorKind::TimedOut`].
    pub fn wait_at_most(&mut self, patience: Duration) {
        let now = Instant::now();
        self.ends = now.checked_add(patience).unwrap_or(now);
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.ends.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// What the kernel calls a timeout of a socket (SO_RCVTIMEO, socket(7)).
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for Conversation {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.left()?;
            let slice = self.on_idle.as_ref().map_or(left, |_| left.min(IDLE));
            self.stream.set_read_timeout(Some(slice))?;
            match self.stream.read(bytes).map_err(timed_out) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => match &mut self.on_idle {
                    Some(IdleCallback(look)) => look()?,
                    None => return Err(error),
                },
                read => return read,
            }
        }
    }
}

impl Write for Conversation {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The heaptrace that traces a process, to be asked.
#[derive(Debug)]
pub struct TracerOf {
    /// The connection.
    pub conversation: Conversation,
    /// What that heaptrace calls the process.
    pub known_as: i32,
    pid: i32,
    /// The tracer's thread, as the kernel names it.
    thread: i32,
}

impl TracerOf {
    /// Whether it still traces a thread of the process.
    pub fn still_traces(&self) -> bool {
        procfs::tasks(self.pid).unwrap_or_default().into_iter().any(|task| procfs::tracer_of(task) == Some(self.thread))
    }
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
        let user = procfs::effective_user();
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        let temporary = std::env::var_os("TMPDIR").map(PathBuf::from);
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        let folders = folders(ids::user_outside(user), temporary);
        for folder in &folders {
            match Self::bind_in(folder, user, pid) {
                Ok(bound) => return Ok(bound),
                Err(error) => failure = error,
            }
        }
        Err(match taken(Path::new("/"), &folders, user) {
            Some((folder, owner)) => TracerError::PlantedFolder { folder, owner },
            None => TracerError::Own { operation: "make a control socket", source: failure },
        })
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
        let path = folder.join(socket_name(pid, ids::namespace_of_ours("pid")));
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
    /// If the socket fails, or is closed.
    pub fn accept(&self) -> io::Result<Conversation> {
        /// What passes when others give back descriptors or memory (accept(2)).
        const PASSING: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::ECONNABORTED];
        loop {
            let (stream, _) = match self.listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error().is_some_and(|code| PASSING.contains(&code)) => {
                    if self.closed.load(Ordering::Acquire) {
                        return Err(error);
                    }
                    std::thread::sleep(IDLE);
                    continue;
                }
                other => other?,
            };
            if peer(&stream).is_ok_and(|peer| may_ask(&peer)) {
                return Ok(Conversation::new(stream));
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
pub fn connect_to_tracer_of(pid: i32) -> Result<TracerOf, AskError> {
    ids::require_own()?;
    let thread = match procfs::tracer_of_process(pid) {
        None => {
            let outside = ids::known_inside_as(pid);
            return Err(if outside.is_empty() {
                AskError::NoProcess { pid }
            } else {
                AskError::IdInside { pid, outside }
            });
        }
        Some(0) => return Err(AskError::NotTraced { pid, contained: !ids::is_in_first_pid_namespace() }),
        Some(thread) => thread,
    };
    // The kernel names the tracing thread.
    let tracer = procfs::thread_group(thread).ok().flatten().unwrap_or(thread);
    let user =
        std::fs::metadata(format!("/proc/{tracer}")).map_or_else(|_| procfs::effective_user(), |found| found.uid());
    let mut failure = AskError::OtherTracer { pid, tracer, name: procfs::comm(tracer) };
    let root = TargetRoot::of(tracer);
    let root = root.as_ref().map_or_else(|| PathBuf::from("/"), TargetRoot::path);
    let name = socket_name(ids::pid_inside(tracer).unwrap_or(tracer), ids::namespace(tracer, "pid"));
    let folders = folders(user, temporary_folder_of(tracer));
    for folder in &folders {
        match connect(&below(&root, folder).join(&name)) {
            // A name may lead anywhere: it is the kernel that says who listens.
            Ok(stream) if peer(&stream).is_ok_and(|peer| peer.pid == tracer) => {
                let known_as = ids::known_to(tracer, pid);
                return Ok(TracerOf { conversation: Conversation::new(stream), known_as, pid, thread });
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                failure = AskError::NotPermitted { pid, tracer };
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => failure = AskError::Busy { pid, tracer },
            Ok(_) | Err(_) => {}
        }
    }
    if permission::is_own_name(&procfs::comm(tracer))
        && let Some((folder, owner)) = taken(&root, &folders, user)
    {
        failure = AskError::Planted { pid, tracer, folder, owner };
    }
    Err(failure)
}

/// How long others may take up all room in the queue of those who ask.
const FOR_ROOM: Duration = Duration::from_secs(5);

/// Connects without waiting, but for a moment where many others do the same: a tracer that can be asked has room for
/// who asks.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let address = UnixAddr::new(path)?;
    let since = Instant::now();
    loop {
        match nix::sys::socket::connect(socket.as_raw_fd(), &address) {
            Err(nix::errno::Errno::EAGAIN) if since.elapsed() < FOR_ROOM => std::thread::sleep(IDLE),
            connected => break connected?,
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The first of `folders`, as they lie below `root`, that is there and belongs to neither `user` nor root.
fn taken(root: &Path, folders: &[PathBuf], user: u32) -> Option<(PathBuf, u32)> {
    folders.iter().find_map(|folder| {
        let owner = std::fs::symlink_metadata(below(root, folder)).ok()?.uid();
        (owner != user && owner != 0).then(|| (folder.clone(), owner))
    })
}

/// The folders that may hold the sockets of `user`, best first. A user of a container goes by the id outside: the
/// folder of somebody else with the id inside may be in sight.
fn folders(user: u32, temporary: Option<PathBuf>) -> Vec<PathBuf> {
    let name = format!("heaptrace-{user}");
    let mut folders = vec![PathBuf::from(format!("/run/user/{user}/heaptrace"))];
    folders.extend(temporary.into_iter().chain(["/tmp".into()]).map(|folder| folder.join(&name)));
    folders.dedup();
    folders
}

/// The name of the socket of process `pid` of a pid namespace.
fn socket_name(pid: i32, namespace: Option<u64>) -> String {
    match namespace {
        Some(namespace) if namespace != ids::FIRST_PID_NAMESPACE => format!("{pid}-{namespace}.sock"),
        _ => format!("{pid}.sock"),
    }
}

/// The tracer's own folder for temporary files, which may differ from ours.
fn temporary_folder_of(pid: i32) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(b"TMPDIR="))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
}

/// Removes the sockets of processes that are gone: killed, they could not do it themselves. Whether somebody listens
/// tells it: an id may be that of a process in another pid namespace, which we don't see.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".sock"));
        let Some(owner) = name.and_then(|name| name.split('-').next()?.parse::<i32>().ok()) else { continue };
        // who is about to listen is not taken for one who has ended
        let lives = Path::new(&format!("/proc/{owner}")).exists();
        if !lives && UnixStream::connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.close();
    }
}

/// The other side when it connected (SO_PEERCRED, unix(7)).
fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
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
        Ok(unsafe { credentials.assume_init() })
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Our own user and root may ask. Seen from a container, users outside have one id in common, the "overflow" one, and
/// processes outside none: who has come through our folder nevertheless is root there.
fn may_ask(peer: &libc::ucred) -> bool {
    let is_outside = peer.uid == ids::OVERFLOW_USER && peer.pid == 0 && ids::users_are_mapped();
    peer.uid == procfs::effective_user() || peer.uid == 0 || is_outside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Conversation, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut conversation = Conversation::new(ours);
        conversation.wait_at_most(Duration::from_millis(100));
        (conversation, theirs)
    }

    /// One who says nothing, one who says a little each time, and one who does not listen.
    #[test]
    fn nobody_is_waited_for_longer_than_was_said() {
        let (mut silent, _theirs) = pair();
        assert_eq!(silent.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);

        let (mut dripping, mut theirs) = pair();
        let drips = std::thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(io::copy(&mut dripping, &mut io::sink()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(dripping);
        drips.join().unwrap();

        let (mut deaf, _theirs) = pair();
        assert_eq!(deaf.write_all(&vec![b'x'; 16 << 20]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(deaf.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
