//! A forked copy of a process: its memory at one moment, to be read while the process runs on.
//!
//! One of its threads makes it by clone(2) without CLONE_VM, so that no fork handler runs. The copy never runs the
//! program's code: it is traced from its beginning, and is killed if
//! heaptrace or the program ends. If heaptrace ends before it can see to it, the copy ends by itself: it has a stack of
//! its own, whose only word leads to `_exit`. It begins with the process's
//! table of open files, and exchanges it for an empty one at once ([`apart`]), so that no pipe, port or lock stays
//! taken for it. It has no exit signal: nobody hears of its end, and the program's
//! wait(2) does not see it (with `__WALL` it would). When it has been read, the process takes its status by a wait4(2)
//! of ours, so that no zombie is left.

mod apart;
mod possible;
mod watch;

use super::memory::TargetMemory;
use super::ptrace::{self, Stopped, Waited};
use super::rawregs::RawRegs;
use super::remote::function::{self, Filters, Function, RESTORER};
use super::standstill::{self, Standstill};
use super::status::{Event, WaitStatus};
use super::{Result, TracerError, control, ids, procfs};
use crate::base::addr::Addr;
use crate::image::maps::{Kind, Mapping};
pub use possible::{is_copied_whole, may_be_made};
use std::time::{Duration, Instant};
use watch::Watch;

/// `syscall; ret`: makes any system call, and touches no errno.
pub const SYSTEM_CALL: [u8; 3] = [0x0f, 0x05, 0xc3];

/// So much of a module is looked through for code.
const MAX_CODE: usize = 64 << 20;

/// So long the status of a copy is tried to be taken: others may trace the process for a moment.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

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
    /// As the code stands in the memory of a process: enough to have a status taken, with which no copy is made.
    fn in_memory(memory: &TargetMemory, mappings: &[Mapping]) -> Option<Self> {
        let executable = mappings.iter().filter(|mapping| mapping.perms.execute && mapping.kind == Kind::File);
        executable.into_iter().find_map(|mapping| {
            let mut code = vec![0; usize::try_from(mapping.end.0 - mapping.start.0).ok()?.min(MAX_CODE)];
            let read = memory.read_uncached(mapping.start, &mut code);
            let find = |wanted: &[u8]| {
                let at = code.get(..read)?.windows(wanted.len()).position(|bytes| bytes == wanted)?;
                Some(mapping.start.add(at as u64))
            };
            Some(Self { system_call: find(&SYSTEM_CALL)?, restorer: find(&RESTORER)?, exit: Addr(0) })
        })
    }

    /// Whether the code stands there.
    pub(super) fn are_there(&self, memory: &TargetMemory) -> bool {
        let stands = |at: Addr, code: &[u8]| {
            let mut found = vec![0; code.len()];
            memory.read_uncached(at, &mut found) == code.len() && found == code
        };
        stands(self.system_call, &SYSTEM_CALL) && stands(self.restorer, &RESTORER)
    }
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
    /// Whether its maker is still within the call that has made it: see [`Standstill::leave_out`].
    is_maker_within: bool,
    /// Whether its end was waited for already: its number is no longer ours to signal, and only its status is left to
    /// be taken.
    is_over: bool,
}

impl Forked {
    /// Has a stopped thread of process `pid`, for which [`can_make`] holds, make one; the thread then stands with the
    /// registers `resume`. `mappings`: those that the copy is to have. None if the kernel refuses: processes are
    /// limited.
    ///
    /// `left`: becomes the copy that was made before something else was reported of the thread. It is over, but for its
    /// status.
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
        let flags = libc::CLONE_FILES as u64;
        let call = Function {
            at: means.system_call,
            rax: libc::SYS_clone.cast_unsigned(),
            arguments: [flags, scratch.0, 0, 0, 0, 0],
            filters: Filters::Process,
        };
        let mut child = None;
        let called = function::call(thread, resume, &call, means.restorer, memory, &mut child);
        // what the stack held there, unless the call is still to be made
        let is_over = !matches!(called, Err(TracerError::Unresponsive { .. }));
        let called = if is_kept && is_over { called.and(memory.write_data(scratch, &before)) } else { called };
        let Some(child) = child else { return called.map(|()| None) };
        let known_as = ids::known_to(pid, child);
        let mut copy =
            Self { pid: child, known_as, of: pid, means, is_whole: false, is_maker_within: !is_over, is_over: false };
        if let Err(error @ TracerError::Overtaken { .. }) = called {
            // what was reported of the thread instead is for who serves it
            copy.end();
            *left = Some(Self { is_over: true, ..copy });
            return Err(error);
        }
        // From here on there is something to be taken away: no error goes past it.
        let free = Addr(scratch.0.wrapping_sub(32));
        let checked = called.and_then(|()| copy.check(mappings, free));
        copy.is_whole = checked.unwrap_or_else(|error| {
            tracing::debug!("the copy is not used: {error}");
            false
        });
        Ok(Some(copy))
    }

    /// Sees to it that it dies with us, and whether it has all that may be written to: parts may be exempt from being
    /// copied (madvise(2), MADV_DONTFORK).
    fn check(&mut self, mappings: &[Mapping], free: Addr) -> Result<bool> {
        match ptrace::wait_task(self.pid, ptrace::TIMEOUT)? {
            // killed by others, or as the system was short of memory: it stands at its end, where a signal no longer
            // wakes it
            Waited::Task(_, WaitStatus::Event(Event::Exit), Some(stopped)) => {
                stopped.resume(0)?;
                self.end();
                self.is_over = true;
                return Err(TracerError::Died { tid: self.pid });
            }
            Waited::Task(_, _, Some(stopped)) => {
                stopped.die_with_us()?;
                let apart = apart::set_apart(&stopped, self.means, free);
                let over = |status: &WaitStatus| matches!(status, WaitStatus::Exited(_) | WaitStatus::Signaled(_));
                self.is_over = matches!(&apart, Err(TracerError::Overtaken { status, .. }) if over(status));
                apart?;
            }
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

    /// Whether its maker is still within the call that has made it: nothing may be asked of that thread until it was
    /// resumed.
    pub const fn is_maker_within(&self) -> bool {
        self.is_maker_within
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

    /// The same, whose status a process takes that has executed another program since, by what that one's C library
    /// has.
    pub const fn after_exec(self, means: Means) -> Self {
        Self { means, ..self }
    }

    /// Kills it. Its maker learns of its end by a wait.
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

    /// Has a stopped thread of the process take the status of this copy, which is dead and whose end was waited for: no
    /// zombie is left then. The thread stands as before. False where it can't: the process has executed another program
    /// since.
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
            filters: Filters::Process,
        };
        function::call(stopped, &resume, &call, self.means.restorer, &mut memory, &mut None).map(|()| true)
    }
}

/// A copy of a process that nobody traces, made by the calling thread. It ends with this value.
#[derive(Debug)]
pub struct Copy {
    forked: Forked,
    /// None: it has been ended.
    watch: Option<Watch>,
}

impl Copy {
    /// Has the process that stands still make one. None where it can't be had: system calls are filtered, memory is
    /// short or promised in full, processes are limited. It is to be ended when the process has been let go, also where
    /// it is of no use, as its end was not the process's.
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
        // the number of one that is over may be another process's
        let begin = |forked: &Forked| if forked.is_over() { Watch::over() } else { Watch::begin(pid, forked.pid()) };
        let watched = |forked: Forked| Self { forked, watch: Some(begin(&forked)) };
        let made = Forked::make(thread, &resume, pid, means, mappings, memory, &mut left);
        match &made {
            Ok(Some(forked)) if forked.is_maker_within => {
                still.leave_out(&TracerError::Unresponsive { tid: thread.tid() });
            }
            Ok(_) => {}
            Err(error) => still.leave_out(error),
        }
        match made {
            Err(TracerError::Overtaken { .. }) => Ok(left.map(watched)),
            made => Ok(made?.map(watched)),
        }
    }

    /// Whether it can be read in place of the process.
    pub const fn is_whole(&self) -> bool {
        self.forked.is_whole()
    }

    /// Its memory.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn memory(&self) -> Result<TargetMemory> {
        self.forked.memory()
    }

    /// Whether the program has ended, and the copy with it: what was read is not whole.
    pub fn has_outlived_its_program(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::has_ended)
    }

    /// Ends it. All threads of the process stop for that for a moment. What is wrong if a zombie is left, in a
    /// sentence.
    pub fn end(mut self) -> Option<String> {
        self.take_away()
    }

    fn take_away(&mut self) -> Option<String> {
        // its number is its own until its end was waited for
        drop(self.watch.take()?);
        self.forked.end();
        let of = self.forked.of;
        let error = take_statuses(&self.forked).err()?;
        let lives = !matches!(procfs::state(of, of), None | Some(b'Z' | b'X'));
        let until = match error {
            TracerError::Filtered { .. } => "It disappears when the process ends",
            _ => "The next `heaptrace heap` or `leaks` of the process removes it, and so does the end of the process",
        };
        lives.then(|| {
            format!(
                "the copy of process {of} that heaptrace read stays as a zombie (process {}, which holds nothing but \
                 its process id), as process {of} could not collect its exit status: {error}. {until}",
                self.forked.pid
            )
        })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(left) = self.take_away() {
            tracing::debug!("{left}");
        }
    }
}

/// The copies of process `of` that are dead, and whose statuses its tracer is to have taken: those who had them made
/// could not, as the process was traced.
pub fn left_by_others(of: i32, memory: &TargetMemory) -> Vec<Forked> {
    let mut left = dead_copies(of).peekable();
    if left.peek().is_none() {
        return Vec::new();
    }
    let means = procfs::mappings(of).ok().and_then(|mappings| Means::in_memory(memory, &mappings));
    let Some(means) = means else { return Vec::new() };
    left.map(|pid| Forked {
        pid,
        known_as: ids::known_to(of, pid),
        of,
        means,
        is_whole: false,
        is_maker_within: false,
        is_over: true,
    })
    .collect()
}

/// The children of a process that are copies, and dead: of heaptraces that could not have their statuses taken.
fn dead_copies(of: i32) -> impl Iterator<Item = i32> {
    let is_dead = |child: &i32| procfs::state(*child, *child) == Some(b'Z') && procfs::comm(*child) == apart::NAME;
    procfs::children(of).into_iter().filter(is_dead)
}

/// Has the process take the status of its copy, which is dead, and those of earlier ones. It stands still for that for
/// a moment, so that no thread of it forbids the others system calls meanwhile.
fn take_statuses(copy: &Forked) -> Result<()> {
    let began = Instant::now();
    loop {
        let left = dead_copies(copy.of).filter(|child| *child != copy.pid);
        let left = left.map(|pid| Forked { pid, known_as: ids::known_to(copy.of, pid), ..*copy });
        let dead: Vec<Forked> = std::iter::once(*copy).chain(left).collect();
        let taken = standstill::stand_still(copy.of, |still| taken_in(still, &dead), |taken| taken);
        match taken.and_then(|(taken, _)| taken) {
            Err(error @ (TracerError::Filtered { .. } | TracerError::Died { .. })) => return Err(error),
            Err(_) if began.elapsed() < TIMEOUT => std::thread::sleep(PAUSE),
            taken => return taken,
        }
    }
}

/// The same while it stands.
fn taken_in(still: &Standstill, dead: &[Forked]) -> Result<()> {
    for copy in dead {
        let mut taken = Err(TracerError::Unresponsive { tid: copy.of });
        for thread in still.told_to_stop() {
            // another thread may have the room
            match copy.status_taken_by(thread) {
                Ok(true) => taken = Ok(()),
                Ok(false) => continue,
                Err(error) if error.is_out_of_reach() => {
                    still.leave_out(&error);
                    taken = Err(error);
                    continue;
                }
                Err(error) => taken = Err(error),
            }
            break;
        }
        taken?;
    }
    Ok(())
}
