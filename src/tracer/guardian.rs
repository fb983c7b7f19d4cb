//! The guardian: a process of ours that undoes what heaptrace has written to the target's code, should heaptrace be
//! killed.
//!
//! It is heaptrace's own executable, started anew before the first byte is written, and reads from a socket what the
//! tracer thread is about to write where. Each record is in the kernel's hands before the byte that it tells of is, so
//! that none is lost, however late the guardian reads it. The end of the socket without a dismissal means that
//! heaptrace is gone.
//!
//! If the guardian itself is killed, another one takes its place ([`GuardianProcess::look_after`]), and hears all
//! that stands in the target by then.
//!
//! It also has a heaptrace go on that was stopped while a thread of the target stands for it ([`stopped`]).
//!
//! It lives in a session of its own, where no terminal reaches it, and holds none of heaptrace's descriptors: whoever
//! reads the other end of one must see its end when heaptrace does.

mod claim;
pub mod orphan;
mod record;
mod rescue;
mod stopped;

use super::memory::TargetMemory;
use super::orphans;
use super::ptrace;
use super::sigtrap_fallback::SigtrapFallback;
use super::{Result, TracerError};
use crate::base::addr::Addr;
use crate::breakpoints::patches::Patch;
use claim::Claim;
pub use claim::await_others;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, setsockopt, socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use record::{Record, What};
pub use rescue::stand_by;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The hidden subcommand by which heaptrace becomes a guardian.
pub const COMMAND: &str = "stand-guard";

/// The option of that subcommand for a target that shares a CPU with heaptrace (`--pin`).
pub const PINNED: &str = "pinned";

/// What the process is called in lists of processes. Not heaptrace: whoever kills all heaptraces by that name must not
/// take the guardian with them.
const NAME: &str = "guardian";

/// Whether a process with this command line is one.
pub(super) fn is_guardian(command_line: &[String]) -> bool {
    matches!(command_line, [name, command, ..] if name == NAME && command == COMMAND)
}

/// How long the tracer waits for a guardian that does not read, in seconds, before it goes on without.
const TIMEOUT_SECONDS: i64 = 2;

/// How often is looked whether a guardian that was killed has ended.
const LOOK_AROUND: Duration = Duration::from_micros(200);

/// The pause between two attempts to replace a guardian that has gone.
const REPLACEMENT_PAUSE: Duration = Duration::from_secs(1);

/// The running guardian, as its parent sees it. If it is dropped without [`GuardianProcess::dismiss`], it acts as soon
/// as all [`Guardian`]s are dropped, too.
#[derive(Debug)]
pub struct GuardianProcess {
    child: Child,
    pinned: bool,
    /// When it was last replaced, or could not be.
    replaced: Option<Instant>,
    /// The session that tells the guardian ends before the guardian is dismissed.
    link: Arc<Link>,
}

impl GuardianProcess {
    /// Starts the guardian. To be called on another thread than the tracer thread, whose waits would report its end. If
    /// the target is going to be `pinned`: by a thread that may run on all CPUs on which the target may.
    ///
    /// # Errors
    /// If the process can't be started.
    pub fn start(pinned: bool) -> Result<(Self, Guardian)> {
        let (child, socket) = start_process(pinned)?;
        let guardian = Guardian::new(socket);
        Ok((Self { child, pinned, replaced: None, link: Arc::clone(&guardian.link) }, guardian))
    }

    /// Whether a new guardian has just been started, as the one from before was killed or does not listen: the tracer
    /// thread must [take it over](Guardian::take_over) and tell it everything. To be called now and then, where
    /// [`Self::start`] was.
    ///
    /// # Errors
    /// If the guardian is lost and another one can't be started. It is tried again later.
    pub fn look_after(&mut self) -> Result<bool> {
        let has_ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if !has_ended && !self.link.lost.load(Ordering::Relaxed)
            || self.replaced.is_some_and(|replaced| replaced.elapsed() < REPLACEMENT_PAUSE)
        {
            return Ok(false);
        }
        self.replaced = Some(Instant::now());
        let (child, socket) = start_process(self.pinned)?;
        let mut old = std::mem::replace(&mut self.child, child);
        // One that does not listen would act on what it knows when its socket is closed.
        let _ = old.kill();
        await_end(&mut old);
        *self.link.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        Ok(true)
    }

    /// Ends the guardian: nothing of ours is in the target any more.
    pub fn dismiss(mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        await_end(&mut self.child);
    }
}

/// Takes the end of a guardian that was killed. One that is frozen (cgroup freezer) ends when it is thawed, and does
/// nothing more.
fn await_end(child: &mut Child) {
    let deadline = Instant::now() + ptrace::TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(LOOK_AROUND);
    }
}

/// Starts a guardian process. Returns our end of the socket that it listens to, too.
fn start_process(pinned: bool) -> Result<(Child, OwnedFd)> {
    let own = |error: nix::Error| TracerError::Own { operation: "make a socket", source: error.into() };
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).map_err(own)?;
    setsockopt(&ours, sockopt::SendTimeout, &TimeVal::seconds(TIMEOUT_SECONDS)).map_err(own)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).arg(COMMAND).current_dir("/");
    if pinned {
        command.arg(format!("--{PINNED}"));
    }
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec the closure makes two system calls, which allocate nothing and take no lock.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 {
                return Err(std::io::Error::last_os_error());
            }
            // What heaptrace inherited is not for the guardian. Older kernels can't, and keep it.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    let child =
        command.spawn().map_err(|source| TracerError::Own { operation: "start the guardian process", source })?;
    orphans::note_own(child.id().cast_signed());
    Ok((child, ours))
}

/// The tracer's end of the socket to the guardian.
#[derive(Clone, Debug)]
pub struct Guardian {
    link: Arc<Link>,
    spaces: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Link {
    socket: Mutex<OwnedFd>,
    /// The one to a new guardian, which the tracer thread has not taken over yet.
    next: Mutex<Option<OwnedFd>>,
    lost: AtomicBool,
}

impl Link {
    /// A guardian that was killed, or stopped, must not hinder the tracing.
    fn send(&self, record: Record, held: &[RawFd]) {
        if self.lost.load(Ordering::Relaxed) {
            return;
        }
        let bytes = record.encode();
        let rights: Vec<_> = (!held.is_empty()).then_some(ControlMessage::ScmRights(held)).into_iter().collect();
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = loop {
            match sendmsg::<()>(
                socket.as_fd().as_raw_fd(),
                &[IoSlice::new(&bytes)],
                &rights,
                MsgFlags::MSG_NOSIGNAL,
                None,
            ) {
                Err(nix::Error::EINTR) => {}
                other => break other,
            }
        };
        if let Err(error) = sent {
            self.lost.store(true, Ordering::Relaxed);
            tracing::warn!(
                "the guardian process is lost ({error}): if heaptrace is killed before it has a new one, the target \
                 may die, too"
            );
        }
    }
}

impl Guardian {
    /// Speaks to the guardian that listens to the other end of `socket`.
    fn new(socket: OwnedFd) -> Self {
        let link = Link { socket: Mutex::new(socket), next: Mutex::new(None), lost: AtomicBool::new(false) };
        Self { link: Arc::new(link), spaces: Arc::default() }
    }

    /// Speaks to the guardian that was started last from now on, if it has not been spoken to yet: then everything is
    /// to be sent anew, by [`Guarded::begin_anew`] and what follows.
    pub fn take_over(&self) -> bool {
        let Some(socket) = self.link.next.lock().unwrap_or_else(PoisonError::into_inner).take() else { return false };
        *self.link.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket;
        self.link.lost.store(false, Ordering::Relaxed);
        true
    }

    /// Begins to guard an address space of process `pid`.
    pub fn guard(&self, pid: i32, memory: &TargetMemory) -> Guarded {
        let space = self.spaces.fetch_add(1, Ordering::Relaxed);
        let guarded = Guarded { link: Arc::clone(&self.link), space, claim: Claim::on(pid) };
        guarded.introduce(What::Space { pid }, memory);
        guarded
    }

    /// The same for a copy of a guarded address space, made by a fork, which has all in it that `original` has.
    pub fn guard_copy(&self, pid: i32, memory: &TargetMemory, original: &Guarded) -> Guarded {
        let space = self.spaces.fetch_add(1, Ordering::Relaxed);
        let guarded = Guarded { link: Arc::clone(&self.link), space, claim: Claim::on(pid) };
        guarded.introduce(What::Copy { pid, of: original.space }, memory);
        guarded
    }
}

/// One guarded address space.
#[derive(Debug)]
pub struct Guarded {
    link: Arc<Link>,
    space: u32,
    claim: Claim,
}

impl Guarded {
    fn tell(&self, what: What) {
        self.link.send(Record { space: self.space, what }, &[]);
    }

    /// The first record of the address space: its memory goes with it, and the claim on its process.
    fn introduce(&self, what: What, memory: &TargetMemory) {
        let held: Vec<_> = [Some(memory.descriptor()), self.claim.descriptor()].into_iter().flatten().collect();
        let held: Vec<_> = held.iter().map(AsRawFd::as_raw_fd).collect();
        self.link.send(Record { space: self.space, what }, &held);
    }

    /// A new guardian has to hear of this address space, of process `pid`; it knows nothing of it yet.
    pub fn begin_anew(&self, pid: i32, memory: &TargetMemory) {
        self.introduce(What::Space { pid }, memory);
    }

    /// A patch is about to be written.
    pub fn place(&self, addr: Addr, patch: &Patch) {
        self.tell(What::Placed { addr, patch: *patch });
    }

    /// Its original bytes have been written back.
    pub fn lifted(&self, addr: Addr) {
        self.tell(What::Lifted { addr });
    }

    /// Code of ours is about to be written where zeros were.
    pub fn code(&self, start: Addr, len: u64) {
        self.tell(What::Code { start, len });
    }

    /// Whether the SIGTRAP fallback is installed now.
    pub fn sigtrap_fallback(&self, installed: Option<SigtrapFallback>) {
        self.tell(installed.map_or(What::NoFallback, What::Fallback));
    }

    /// Children that share the memory may have it.
    pub fn sigtrap_fallback_of_others(&self, fallback: SigtrapFallback) {
        self.tell(What::OthersFallback(fallback));
    }

    /// The memory is gone, or somebody else's by now.
    pub fn unmapped(&self, start: Addr, end: Addr) {
        self.tell(What::Unmapped { start, end });
    }

    /// Nothing of ours is in it any more, or it is gone.
    pub fn forget(self) {
        self.tell(What::Forget);
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    /// The tracer's end, and the guardian's.
    pub(super) fn socket_pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }
}
