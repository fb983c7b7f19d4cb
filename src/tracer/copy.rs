//! A forked copy of a process: its memory at one moment, to be read while the process runs on.
//!
//! One of its threads makes it by clone(2) without CLONE_VM, so that no fork handler runs. The copy never runs: it is traced from its beginning, and is killed if
//! heaptrace ends. If that ends before it can see to it, the copy ends by itself: it has a stack of its own, whose only word leads to `_exit`. It shares the table of
//! open files, so that no pipe stays open for it. It has no exit signal: nobody is told of its end, and the program's wait(2) does not see it (with `__WALL` it would).
//! When it has been read, the process takes its status by a wait4(2) of ours, so that no zombie is left.

use super::memory::TargetMemory;
use super::ptrace::{self, Stopped, Waited};
use super::rawregs::RawRegs;
use super::remote::function::{self, Function, RESTORER};
use super::standstill::Standstill;
use super::status::{Event, WaitStatus};
use super::{Result, TracerError, control, ids, limits, pressure, procfs};
use crate::addr::Addr;
use crate::maps::{Kind, Mapping, SHARED_WITH_HEAPTRACE};

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

impl Means {
    /// Whether the code stands there.
    fn are_there(&self, memory: &TargetMemory) -> bool {
        let stands = |at: Addr, code: &[u8]| {
            let mut found = vec![0; code.len()];
            memory.read_uncached(at, &mut found) == code.len() && found == code
        };
        stands(self.system_call, &SYSTEM_CALL) && stands(self.restorer, &RESTORER)
    }
}

/// Whether a copy of a process has all that the process can write to, as far as the flags of its mappings tell (`VmFlags` of proc_pid_smaps(5)): none is exempt from being copied ("dc",
/// MADV_DONTFORK) or empty in the copy ("wf", MADV_WIPEONFORK), and no fault of any is another process's to serve, which would have to serve the fork, too (userfaultfd(2): "um", "uw", "ui").
/// Reading this takes about a hundredth of a second for each GiB.
pub fn is_copied_whole(pid: i32) -> bool {
    procfs::read(pid, "smaps").is_ok_and(|text| !has_exceptions(&String::from_utf8_lossy(&text)))
}

fn has_exceptions(smaps: &str) -> bool {
    let has_region = smaps.contains(SHARED_WITH_HEAPTRACE);
    let mut code_ends = "";
    let mut is_ours = false;
    smaps.lines().any(|line| {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |wanted: &[&str]| flags.split_ascii_whitespace().any(|flag| wanted.contains(&flag));
            return !is_ours && has(&["wr"]) && has(&["dc", "wf", "um", "uw", "ui"]);
        }
        let mut words = line.split_ascii_whitespace();
        if let (Some((start, end)), Some(access)) = (words.next().and_then(|range| range.split_once('-')), words.next())
        {
            // What the jump engine shares with us, and its state, which lies behind its code: no copy has, or needs, either.
            is_ours = line.contains(SHARED_WITH_HEAPTRACE) || has_region && start == code_ends;
            code_ends = if access == "r-xp" && words.nth(2) == Some("0") && words.next().is_none() { end } else { "" };
        }
        false
    })
}

/// Whether process `pid`, which has these threads, may be copied: none where system calls are filtered, and where memory is short or promised in full.
pub fn may_be_made(pid: i32, threads: impl IntoIterator<Item = i32>) -> bool {
    threads.into_iter().all(|tid| !procfs::has_seccomp(tid)) && has_room(pid)
}

/// Whether a stopped thread, which goes on with the registers `resume`, can make a copy.
pub fn can_make(thread: &Stopped, resume: &RawRegs, mappings: &[Mapping]) -> bool {
    !procfs::has_shadow_stack(thread.tid()) && function::has_room(resume, mappings)
}

/// A copy, made by the calling thread, which is to see to its end: [`Self::kill`], then [`Self::status_taken_by`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forked {
    pid: i32,
    /// Its id as the process sees it, which may live in a pid namespace of its own.
    known_as: i32,
    of: i32,
    means: Means,
    is_whole: bool,
    /// Whether its end was waited for already: its number is no longer ours to signal, and only its status is left to be taken.
    is_over: bool,
}

impl Forked {
    /// Has a stopped thread of process `pid`, for which [`can_make`] holds, make one; the thread then stands with the registers `resume`. `mappings`: those that the copy is to
    /// have. None if the kernel refuses: processes are limited.
    ///
    /// `left`: becomes the copy that was made before something else was reported of the thread. It is over, but for its status.
    ///
    /// # Errors
    /// Any failure of a request.
    pub fn make(
        thread: &Stopped,
        resume: &RawRegs,
        pid: i32,
        means: Means,
        mappings: &[Mapping],
        memory: &mut TargetMemory,
        left: &mut Option<Self>,
    ) -> Result<Option<Self>> {
        if !means.are_there(memory) {
            return Ok(None);
        }
        memory.stands_still(Some(thread.tid()));
        let scratch = function::scratch(resume);
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
        let called = function::call(thread, resume, &call, means.restorer, memory, &mut child);
        // what the stack held there, unless the call is still to be made
        let is_over = !matches!(called, Err(TracerError::Unresponsive { .. }));
        let called = if is_kept && is_over { called.and(memory.write_data(scratch, &before)) } else { called };
        let Some(child) = child else { return called.map(|()| None) };
        let known_as = ids::known_to(pid, child);
        let mut copy = Self { pid: child, known_as, of: pid, means, is_whole: false, is_over: false };
        if let Err(error @ TracerError::Overtaken { .. }) = called {
            // what was reported of the thread instead is for who serves it
            copy.end();
            *left = Some(Self { is_over: true, ..copy });
            return Err(error);
        }
        // From here on there is something to be taken away: no error goes past it.
        let checked = called.and_then(|()| copy.check(mappings));
        copy.is_whole = checked.unwrap_or_else(|error| {
            tracing::debug!("the copy is not used: {error}");
            false
        });
        Ok(Some(copy))
    }

    /// Sees to it that it dies with us, and whether it has all that may be written to: parts may be exempt from being copied (madvise(2), MADV_DONTFORK).
    fn check(&mut self, mappings: &[Mapping]) -> Result<bool> {
        match ptrace::wait_task(self.pid, ptrace::PATIENCE)? {
            // killed by others, or as the system was short of memory: it stands at its end, where a signal no longer wakes it
            Waited::Task(_, WaitStatus::Event(Event::Exit), Some(stopped)) => {
                stopped.resume(0)?;
                self.end();
                self.is_over = true;
                return Err(TracerError::Died { tid: self.pid });
            }
            Waited::Task(_, _, Some(stopped)) => stopped.die_with_us()?,
            waited => {
                self.is_over = matches!(waited, Waited::Task(..) | Waited::NoTasks);
                return Err(TracerError::Died { tid: self.pid });
            }
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

    /// Whether it has ended, and that was waited for: only its status is left to be taken.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Its id.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Its memory.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn memory(&self) -> Result<TargetMemory> {
        Ok(TargetMemory::open(self.pid, self.pid)?.keeping_shared())
    }

    /// The same, whose status a process takes that has executed another program since, by what that one's C library has.
    pub const fn after_exec(self, means: Means) -> Self {
        Self { means, ..self }
    }

    /// Kills it. Its maker is told of its end by a wait.
    pub fn kill(&self) {
        if self.is_over {
            return;
        }
        // What has ended already, as the system was short of memory, is still its maker's to wait for.
        if let Err(error) = control::send(self.pid, control::KILL) {
            tracing::debug!("{error}");
        }
    }

    /// Kills it, and waits for its end.
    pub fn end(&self) {
        if !self.is_over {
            ptrace::kill_child(self.pid);
        }
    }

    /// Has a stopped thread of the process take the status of this copy, which is dead and whose end was waited for: no zombie is left then. The thread stands as before. False
    /// where it can't: the process has executed another program since.
    ///
    /// # Errors
    /// Any failure of a request.
    pub fn status_taken_by(&self, stopped: &Stopped) -> Result<bool> {
        let tid = stopped.tid();
        let raw = stopped.registers()?;
        let resume = raw.repeating_system_call().unwrap_or(raw);
        let mappings = procfs::mappings(tid)?;
        if !function::has_room(&resume, &mappings) {
            return Ok(false);
        }
        let mut memory = TargetMemory::open(self.of, tid)?;
        if !self.means.are_there(&memory) {
            return Ok(false);
        }
        memory.stands_still(Some(tid));
        let options = (libc::__WALL | libc::WNOHANG) as u64;
        let call = Function {
            at: self.means.system_call,
            rax: libc::SYS_wait4.cast_unsigned(),
            arguments: [self.known_as as u64, 0, options, 0, 0, 0],
        };
        function::call(stopped, &resume, &call, self.means.restorer, &mut memory, &mut None).map(|()| true)
    }
}

/// A copy of a process that nobody traces, made by the calling thread. It ends with this value.
#[derive(Debug)]
pub struct Copy(Forked);

impl Copy {
    /// Has the process that stands still make one. None where it can't be had: system calls are filtered, memory is short or promised in full, processes are
    /// limited. It is to be dropped when the process has been let go, also where it is of no use, as its end was not the process's.
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
        if !may_be_made(pid, still.threads().iter().map(|thread| thread.tid)) {
            return Ok(None);
        }
        let maker = still.callers().find(|(thread, resume)| can_make(thread, resume, mappings));
        let Some((thread, resume)) = maker else { return Ok(None) };
        let mut left = None;
        match Forked::make(thread, &resume, pid, means, mappings, memory, &mut left) {
            Err(TracerError::Overtaken { tid, status }) => {
                still.overtake(tid, status);
                Ok(left.map(Self))
            }
            made => Ok(made?.map(Self)),
        }
    }

    /// Whether it can be read in place of the process.
    pub const fn is_whole(&self) -> bool {
        self.0.is_whole()
    }

    /// Its memory.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn memory(&self) -> Result<TargetMemory> {
        self.0.memory()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.0.end();
        if let Err(error) = take_status(&self.0) {
            tracing::debug!("a zombie is left: {error}");
        }
    }
}

/// Whether its memory may be there twice for a while: what the process writes to meanwhile is.
fn has_room(pid: i32) -> bool {
    Room {
        overcommit: std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default(),
        resident: pressure::resident(pid).unwrap_or(u64::MAX),
        limit: pressure::memory_limit(pid).unwrap_or(0),
        available: limits::available_memory(),
    }
    .is_enough()
}

/// What there is of memory, in bytes.
#[derive(Clone, Debug)]
struct Room {
    /// What vm.overcommit_memory says.
    overcommit: String,
    /// What the process has.
    resident: u64,
    /// What it may have.
    limit: u64,
    /// What heaptrace may have besides. None: that is not known.
    available: Option<u64>,
}

impl Room {
    fn is_enough(&self) -> bool {
        // the kernel promises no more than it has: a copy of all that may be written to may be too much, or keep the program from getting more
        let is_strict = self.overcommit.trim() == "2";
        let is_tight =
            self.available.is_some_and(|left| left < self.resident / 2) || self.limit < self.resident.saturating_mul(2);
        !is_strict && !is_tight
    }
}

/// Has the process take the status of its copy, which is dead. One of its threads stops for that for a moment.
fn take_status(copy: &Forked) -> Result<()> {
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

fn thread_takes_status(copy: &Forked, tid: i32) -> Result<()> {
    // Without options its own children are none of our business.
    while !ptrace::seize_unless_interrupted(tid, libc::PTRACE_O_TRACESYSGOOD)? {}
    ptrace::interrupt(tid)?;
    loop {
        let (status, stopped) = match ptrace::wait_task(tid, ptrace::PATIENCE)? {
            Waited::Task(_, status, Some(stopped)) => (status, stopped),
            _ => return Err(TracerError::Died { tid }),
        };
        match status {
            // one of a process that was told to stop goes back into that stop
            WaitStatus::EventStop | WaitStatus::GroupStop(_) => {
                let taken = copy.status_taken_by(&stopped);
                // another thread may have the room
                let taken = taken.and_then(|taken| if taken { Ok(()) } else { Err(TracerError::Unresponsive { tid }) });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_copy_is_made_where_memory_is_short_or_promised_in_full() {
        let room = Room { overcommit: "0\n".to_owned(), resident: 1 << 30, limit: 8 << 30, available: Some(4 << 30) };
        assert!(room.is_enough());
        assert!(Room { overcommit: "1\n".to_owned(), available: None, ..room.clone() }.is_enough());
        assert!(Room { limit: 2 << 30, available: Some(1 << 29), ..room.clone() }.is_enough());
        assert!(!Room { overcommit: "2\n".to_owned(), ..room.clone() }.is_enough());
        assert!(!Room { limit: (2 << 30) - 1, ..room.clone() }.is_enough());
        assert!(!Room { available: Some((1 << 29) - 1), ..room.clone() }.is_enough());
        assert!(!Room { resident: u64::MAX, ..room }.is_enough());
    }

    #[test]
    fn mappings_that_a_copy_would_lack_are_told_by_their_flags() {
        let smaps = |flags: &str| {
            format!("7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: rd wr mr mw me ac {flags}\n")
        };
        assert!(!has_exceptions(&smaps("sd")));
        for flag in ["dc", "wf", "um", "uw", "ui"] {
            assert!(has_exceptions(&(smaps("sd") + &smaps(flag))), "{flag}");
        }
        assert!(!has_exceptions("VmFlags: rd mr pf io de dc dd sd \n"), "nothing is written there");
        let ours = smaps("dc").replace("00:00 0 ", "00:01 7 /memfd:heaptrace (deleted)");
        assert!(!has_exceptions(&ours), "{ours}");
        assert!(has_exceptions(&format!("{ours}{}", smaps("wf"))));
        let code = "7effffff0000-7f0000000000 r-xp 00000000 00:00 0 \nVmFlags: rd ex mr mw me\n";
        assert!(!has_exceptions(&format!("{ours}{code}{}", smaps("wf"))));
        assert!(has_exceptions(&format!("{code}{}", smaps("wf"))), "none of ours is there");
    }
}
