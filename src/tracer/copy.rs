//! A forked copy of a process: its memory at one moment, to be read while the process runs on.
//!
//! One of its threads makes it by clone(2) without CLONE_VM, so that no fork handler runs. The copy never runs: it is traced from its beginning, and is killed if
//! heaptrace ends. If that ends before it can see to it, the copy ends by itself: it has a stack of its own, whose only word leads to `_exit`. It shares the table of
//! open files, so that no pipe stays open for it. It has no exit signal: nobody is told of its end, and the program's wait(2) does not see it (with `__WALL` it would).
//! When it has been read, the process takes its status by a wait4(2) of ours, so that no zombie is left.

use super::memory::TargetMemory;
use super::ptrace::{self, Stopped, Waited};
use super::remote::function::{self, Function};
use super::standstill::Standstill;
use super::status::WaitStatus;
use super::{Result, TracerError, limits, pressure, procfs};
use crate::addr::Addr;
use crate::maps::{Kind, Mapping};

/// `syscall; ret`: makes any system call, and touches no errno.
pub const SYSTEM_CALL: [u8; 3] = [0x0f, 0x05, 0xc3];

/// What of the C library a copy is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Means {
    /// Where [`SYSTEM_CALL`] stands.
    pub system_call: Addr,
    /// `_exit`.
    pub exit: Addr,
    /// Where [`function::RESTORER`] stands.
    pub restorer: Addr,
}

/// A copy, made by the calling thread. It ends with this value.
#[derive(Debug)]
pub struct Copy {
    pid: i32,
    /// Its id as the process sees it, which may live in a pid namespace of its own.
    known_as: i32,
    of: i32,
    means: Means,
    is_whole: bool,
}

impl Copy {
    /// Has the process that stands still make one. None where it can't be had: system calls are filtered, memory is short or promised in full, processes are
    /// limited. It is to be dropped when the process has been let go.
    ///
    /// # Errors
    /// Any failure of a request.
    pub fn make(
        still: &Standstill,
        pid: i32,
        means: Means,
        mappings: &[Mapping],
        memory: &mut TargetMemory,
    ) -> Result<Option<Self>> {
        let may_be_made = still.threads().iter().all(|thread| !procfs::has_seccomp(thread.tid)) && has_room(pid);
        let Some((thread, resume)) = still.callers().find(|(thread, resume)| {
            may_be_made && !procfs::has_shadow_stack(thread.tid()) && function::has_room(resume, mappings)
        }) else {
            return Ok(None);
        };
        memory.stands_still(Some(thread.tid()));
        let scratch = function::scratch(&resume);
        let mut before = [0; 8];
        let is_kept = memory.read_uncached(scratch, &mut before) == before.len();
        memory.write_data(scratch, &means.exit.0.to_le_bytes())?;
        let flags = (libc::CLONE_FILES | libc::CLONE_FS) as u64;
        let call = Function {
            at: means.system_call,
            rax: libc::SYS_clone.cast_unsigned(),
            arguments: [flags, scratch.0, 0, 0, 0, 0],
        };
        let mut child = None;
        let called = function::call(thread, &resume, &call, means.restorer, memory, &mut child);
        // what the stack held there, unless the call is still to be made
        let is_over = !matches!(called, Err(TracerError::Unresponsive { .. }));
        let called = if is_kept && is_over { called.and(memory.write_data(scratch, &before)) } else { called };
        let Some(child) = child else { return called.map(|()| None) };
        // From here on there is something to be taken away: no error goes past it.
        let mut copy = Self { pid: child, known_as: procfs::known_to(pid, child), of: pid, means, is_whole: false };
        let checked = called.and_then(|()| copy.check(mappings));
        copy.is_whole = checked.unwrap_or_else(|error| {
            tracing::debug!("the copy is not used: {error}");
            false
        });
        Ok(Some(copy))
    }

    /// Sees to it that it dies with us, and whether it has all that may be written to: parts may be exempt from being copied (madvise(2), MADV_DONTFORK).
    fn check(&self, mappings: &[Mapping]) -> Result<bool> {
        match ptrace::wait_task(self.pid, ptrace::PATIENCE)? {
            Waited::Task(_, _, Some(stopped)) => stopped.die_with_us()?,
            _ => return Err(TracerError::Died { tid: self.pid }),
        }
        let copied = procfs::mappings(self.pid)?;
        let mut written = mappings.iter().filter(|mapping| mapping.perms.write && mapping.kind != Kind::Stack);
        // both ascend
        let holder = |of: &Mapping| copied.get(copied.partition_point(|part| part.end <= of.start));
        Ok(written.all(|of| holder(of).is_some_and(|part| part.start <= of.start && of.end <= part.end)))
    }

    /// Whether it can be read in place of the process.
    pub const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Its memory.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn memory(&self) -> Result<TargetMemory> {
        Ok(TargetMemory::open(self.pid, self.pid)?.keeping_shared())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        ptrace::kill_child(self.pid);
        if let Err(error) = take_status(self) {
            tracing::debug!("a zombie is left: {error}");
        }
    }
}

/// Whether its memory may be there twice for a while: what the process writes to meanwhile is.
fn has_room(pid: i32) -> bool {
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|text| text.trim() == "2");
    let resident = pressure::resident(pid).unwrap_or(u64::MAX);
    let limit = pressure::memory_limit(pid).unwrap_or(0);
    let is_tight =
        limits::available_memory().is_some_and(|left| left < resident / 2) || limit < resident.saturating_mul(2);
    !strict && !is_tight
}

/// Has the process take the status of its copy, which is dead. One of its threads stops for that for a moment.
fn take_status(copy: &Copy) -> Result<()> {
    let own = procfs::tasks(copy.of)?;
    let mut last = Ok(());
    for tid in own {
        last = thread_takes_status(copy, tid);
        if last.is_ok() {
            break;
        }
    }
    last
}

fn thread_takes_status(copy: &Copy, tid: i32) -> Result<()> {
    // Without options its own children are none of our business.
    while !ptrace::seize_unless_interrupted(tid, libc::PTRACE_O_TRACESYSGOOD)? {}
    ptrace::interrupt(tid)?;
    loop {
        let (status, stopped) = match ptrace::wait_task(tid, ptrace::PATIENCE)? {
            Waited::Task(_, status, Some(stopped)) => (status, stopped),
            _ => return Err(TracerError::Died { tid }),
        };
        match status {
            WaitStatus::EventStop => {
                let taken = call_wait(copy, &stopped);
                if taken.is_err() {
                    stopped.restart_interrupted_call()?;
                }
                stopped.detach(0)?;
                return taken;
            }
            WaitStatus::Signal(signal) => {
                // it may have come in place of the stop that was asked for
                stopped.resume(signal)?;
                ptrace::interrupt(tid)?;
            }
            status => {
                stopped.detach(0)?;
                return Err(TracerError::Overtaken { tid, status });
            }
        }
    }
}

fn call_wait(copy: &Copy, stopped: &Stopped) -> Result<()> {
    let tid = stopped.tid();
    let raw = stopped.registers()?;
    let resume = raw.repeating_system_call().unwrap_or(raw);
    let mappings = procfs::mappings(tid)?;
    if !function::has_room(&resume, &mappings) {
        return Err(TracerError::Unresponsive { tid });
    }
    let mut memory = TargetMemory::open(copy.of, tid)?;
    memory.stands_still(Some(tid));
    let options = (libc::__WALL | libc::WNOHANG) as u64;
    let call = Function {
        at: copy.means.system_call,
        rax: libc::SYS_wait4.cast_unsigned(),
        arguments: [copy.known_as as u64, 0, options, 0, 0, 0],
    };
    function::call(stopped, &resume, &call, copy.means.restorer, &mut memory, &mut None)
}
