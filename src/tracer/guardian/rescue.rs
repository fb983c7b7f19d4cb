//! The guardian's own side: it listens until heaptrace is gone, then gives each address space its code back.

use super::NAME;
use super::record::{Record, SIZE, What};
use super::stopped::StopWatcher;
use crate::base::addr::Addr;
use crate::breakpoints::patches::{LONGEST, Patches, PcLocation};
use crate::tracer::affinity::CpuSet;
use crate::tracer::alarm::Alarm;
use crate::tracer::code::write;
use crate::tracer::disturbance::disturbance;
use crate::tracer::memory::TargetMemory;
use crate::tracer::procfs::{self, Position};
use crate::tracer::ptrace::{self, Stopped, Waited};
use crate::tracer::remote::Caller;
use crate::tracer::sigtrap_fallback::SigtrapFallback;
use crate::tracer::status::{SIGTRAP, WaitStatus};
use crate::tracer::{Result, TracerError, chain, control};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the threads of a process are looked at until each was seen outside our code.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// What the guardian does, from its start to its end. Standard input is the socket to heaptrace.
///
/// If heaptrace has `pinned` the target to one CPU, it gets those of the guardian, who has them from the same parent.
///
/// # Errors
/// If standard input is no such socket.
pub fn stand_by(pinned: bool) -> Result<()> {
    let _ = nix::sys::prctl::set_name(&std::ffi::CString::new(NAME).unwrap_or_default());
    let mut spaces = BTreeMap::<u32, Space>::new();
    let stdin = std::io::stdin();
    let mut watcher = StopWatcher::of(stdin.as_fd());
    loop {
        watcher.wait(stdin.as_fd(), || spaces.values().map(|space| space.pid));
        let Some((record, held)) = receive(stdin.as_fd())? else { break };
        note(&mut spaces, record, held);
    }
    // First the code of all: threads may be in front of our breakpoints at this moment.
    for space in spaces.values_mut() {
        space.restore();
    }
    let mut known: BTreeSet<i32> = spaces.values().map(|space| space.pid).collect();
    for space in spaces.values_mut() {
        space.rescue(&mut known);
    }
    if pinned {
        let cpus = CpuSet::of(0)?;
        known.into_iter().for_each(|pid| unpin(pid, &cpus));
    }
    Ok(())
}

/// Gives threads that are left on the one CPU that heaptrace has chosen all of `cpus`.
fn unpin(pid: i32, cpus: &CpuSet) {
    let Some(single) = cpus.single() else { return };
    for tid in procfs::tasks(pid).unwrap_or_default() {
        if CpuSet::of(tid).is_ok_and(|current| current == single) {
            // It may be gone.
            let _ = cpus.apply(tid);
        }
    }
}

/// What comes with the first record of an address space.
#[derive(Debug, Default)]
struct Held {
    memory: Option<OwnedFd>,
    /// Of the [claim](super::claim) on its process.
    claim: Option<OwnedFd>,
}

/// The next record and what came with it. None at the end.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Record, Held)>> {
    loop {
        let mut bytes = [0; SIZE];
        let mut descriptors = nix::cmsg_space!([i32; 2]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received =
            match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut descriptors), MsgFlags::MSG_CMSG_CLOEXEC) {
                Err(nix::Error::EINTR) => continue,
                Err(error) => return Err(TracerError::Own { operation: "listen to heaptrace", source: error.into() }),
                Ok(received) => received,
            };
        let mut all = Vec::new();
        for message in received.cmsgs().into_iter().flatten() {
            if let ControlMessageOwned::ScmRights(new) = message {
                for descriptor in new {
                    // SAFETY: the kernel has just made this descriptor for us.
                    all.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
                }
            }
        }
        let count = received.bytes;
        if count == 0 {
            return Ok(None);
        }
        if let Some(record) = bytes.get(..count).and_then(Record::decode) {
            let mut all = all.into_iter();
            return Ok(Some((record, Held { memory: all.next(), claim: all.next() })));
        }
    }
}

fn note(spaces: &mut BTreeMap<u32, Space>, record: Record, held: Held) {
    match (record.what, held.memory) {
        (What::Space { pid }, Some(memory)) => {
            let memory = TargetMemory::from_descriptor(pid, memory);
            spaces.insert(record.space, Space { pid, memory, written: Written::default(), _claim: held.claim });
        }
        (What::Copy { pid, of }, Some(memory)) => {
            let memory = TargetMemory::from_descriptor(pid, memory);
            let written = spaces.get(&of).map(|original| original.written.clone()).unwrap_or_default();
            spaces.insert(record.space, Space { pid, memory, written, _claim: held.claim });
        }
        (What::Forget, _) => {
            spaces.remove(&record.space);
        }
        (what, _) => {
            if let Some(space) = spaces.get_mut(&record.space) {
                space.written.note(what);
            }
        }
    }
}

/// An address space, the process that it belongs to, and what was written to it.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) pid: i32,
    pub(super) memory: TargetMemory,
    pub(super) written: Written,
    /// Nobody else attaches to the process as long as this is open.
    pub(super) _claim: Option<OwnedFd>,
}

/// What was written to one address space.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    pub(super) patches: Patches,
    /// The SIGTRAP fallback, if it is installed.
    pub(super) fallback: Option<SigtrapFallback>,
    /// The one that children which share the memory may have.
    pub(super) others_fallback: Option<SigtrapFallback>,
}

impl Written {
    fn note(&mut self, what: What) {
        match what {
            What::Placed { addr, patch } => self.patches.insert(addr, patch),
            What::Lifted { addr } => self.patches.remove(addr),
            What::Code { start, len } => self.patches.own.note(start, len),
            What::Fallback(fallback) => (self.fallback, self.others_fallback) = (Some(fallback), Some(fallback)),
            What::OthersFallback(fallback) => self.others_fallback = Some(fallback),
            What::NoFallback => self.fallback = None,
            What::Unmapped { start, end } => self.patches.forget(&(start..end)),
            What::Space { .. } | What::Copy { .. } | What::Forget => {}
        }
    }

    /// Whether a thread with this program counter needs nothing of ours any more.
    fn is_clear(&self, pc: Addr) -> bool {
        self.patches.locate(pc) == PcLocation::Program
    }
}

/// What a look at a thread has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ThreadCheck {
    /// It is outside our code, or gone.
    Clear,
    /// It has to be looked at again.
    Again,
    /// It may not be looked at.
    Refused,
}

impl Space {
    /// Writes the original bytes back, while threads run.
    pub(super) fn restore(&mut self) {
        for _ in 0..2 {
            if write::write_originals(&mut self.memory, self.written.patches.iter(), write::Threads::OfAll(self.pid))
                .is_ok()
            {
                return;
            }
            // Kernels that let only a tracer write (PROC_MEM_FORCE_PTRACE) let one of its threads' tracer.
            let deadline = Instant::now() + TIMEOUT;
            while Instant::now() < deadline {
                match self.seize(self.pid) {
                    Ok(()) => break,
                    Err(TracerError::Died { .. }) => return,
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        }
    }

    /// Takes all that is ours out, once its code is restored. `known` are the processes that are dealt with.
    pub(super) fn rescue(&mut self, known: &mut BTreeSet<i32>) {
        // It has ended, or is another program by now.
        if self.memory.is_gone() {
            return;
        }
        let mut copies = self.copies(known);
        let all_outside = self.await_threads_outside();
        // A fork that was under way is over now, and those are all.
        copies.extend(self.copies(known));
        for mut copy in copies {
            copy.rescue(known);
        }
        if all_outside && self.remove_fallback() & self.remove_fallback_of_sharers() {
            // The memory may be gone.
            let _ = write::clear_own(&mut self.memory, &self.written.patches, None);
        }
    }

    /// Children that were forked at the last moment, and that heaptrace has not announced, hold a copy of our
    /// breakpoints: they get their code back at once.
    fn copies(&self, known: &mut BTreeSet<i32>) -> Vec<Self> {
        let mut copies = Vec::new();
        for pid in procfs::children(self.pid) {
            if known.contains(&pid) || procfs::same_memory(pid, self.pid) != Some(false) {
                continue;
            }
            let Ok(memory) = TargetMemory::open(pid, pid) else { continue };
            let mut copy = Self { pid, memory, written: self.written.clone(), _claim: None };
            if copy.is_copy() {
                known.insert(pid);
                copy.restore();
                copies.push(copy);
            }
        }
        copies
    }

    /// Whether a child has our patches where its parent has them, or is rid of them. Another program has something else
    /// there.
    fn is_copy(&self) -> bool {
        self.written.patches.iter().all(|(addr, patch)| {
            let mut found = [0; LONGEST];
            let n = self.memory.read_uncached(addr, &mut found);
            found.get(..patch.len().min(n)).is_some_and(|found| patch.is_known(found))
        })
    }

    /// Waits until every thread was seen outside our code, into which no way leads any more. False if that can't be
    /// told.
    fn await_threads_outside(&self) -> bool {
        let mut clear = BTreeSet::new();
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            let Ok(mut threads) = procfs::tasks(self.pid) else { return false };
            // A list is cut short where a thread ends meanwhile.
            let mut again =
                procfs::status_number(self.pid, "Threads").is_some_and(|count| threads.len() < count as usize);
            threads
                .extend(procfs::sharers(self.pid).into_iter().flat_map(|pid| procfs::tasks(pid).unwrap_or_default()));
            for tid in threads {
                if clear.contains(&tid) || procfs::is_kernel_worker(self.pid, tid) {
                    continue;
                }
                match self.look_at(tid, deadline) {
                    ThreadCheck::Clear => {
                        clear.insert(tid);
                    }
                    ThreadCheck::Again => again = true,
                    ThreadCheck::Refused => return false,
                }
            }
            // A thread that has come since was made by one that was clear already.
            if !again {
                return true;
            }
            self.let_strays_go();
            std::thread::sleep(PAUSE);
        }
        false
    }

    /// Looks where a thread is: without touching it if it sleeps.
    fn look_at(&self, tid: i32, deadline: Instant) -> ThreadCheck {
        let Ok(Some(process)) = procfs::thread_group(tid) else { return ThreadCheck::Clear };
        if matches!(procfs::state(process, tid), None | Some(b'Z' | b'X')) {
            return ThreadCheck::Clear;
        }
        // The kernel has not finished with heaptrace yet: the thread may be about to get the signal of a trap that it
        // has been moved past.
        if procfs::tracer_of(tid).is_some_and(|tracer| tracer != 0 && tracer != control::thread_id()) {
            return ThreadCheck::Again;
        }
        if let Position::Blocked { pc, .. } = procfs::position(process, tid)
            && self.written.is_clear(pc)
            // One that sleeps elsewhere, as for a page of its stack, may be about to enter the handler.
            && procfs::system_call(process, tid).is_some()
        {
            return ThreadCheck::Clear;
        }
        match self.seize(tid) {
            Ok(()) => {}
            Err(TracerError::Died { .. }) => return ThreadCheck::Clear,
            // An exec is under way, which holds tracers off; the other threads may still be there.
            Err(TracerError::Unresponsive { .. }) => return ThreadCheck::Again,
            Err(_) => return ThreadCheck::Refused,
        }
        match self.stop_and_look(tid, deadline) {
            Ok(look) => look,
            Err(TracerError::Died { .. }) => ThreadCheck::Clear,
            Err(_) => ThreadCheck::Again,
        }
    }

    fn stop_and_look(&self, tid: i32, deadline: Instant) -> Result<ThreadCheck> {
        ptrace::interrupt(tid)?;
        loop {
            match ptrace::poll_task(tid)? {
                Waited::Task(_, status, Some(thread)) => return self.look_at_stopped(status, thread),
                Waited::Task(_, _, None) | Waited::NoTasks => return Ok(ThreadCheck::Clear),
                Waited::Nothing | Waited::Interrupted if Instant::now() < deadline => std::thread::yield_now(),
                Waited::Nothing | Waited::Interrupted => return Ok(ThreadCheck::Again),
            }
        }
    }

    /// Lets a thread go from its first stop, behind a breakpoint that it has hit back to it.
    fn look_at_stopped(&self, status: WaitStatus, thread: Stopped) -> Result<ThreadCheck> {
        let pc = Addr(thread.registers()?.0.rip);
        if status == WaitStatus::Signal(SIGTRAP)
            && let PcLocation::BehindTrap(trap) = self.written.patches.locate(pc)
            && thread.is_breakpoint_trap()?
        {
            thread.set_instruction_pointer(trap.0)?;
            thread.detach(0)?;
            return Ok(ThreadCheck::Clear);
        }
        let signal = if let WaitStatus::Signal(signal) = status { signal } else { 0 };
        let look = if self.written.is_clear(pc) { ThreadCheck::Clear } else { ThreadCheck::Again };
        if status == WaitStatus::EventStop {
            // It was we who ended its epoll_wait(2).
            thread.restart_interrupted_call()?;
        }
        thread.detach(signal)?;
        Ok(look)
    }

    /// Attaches to a thread, if it is not attached to already: for the right to write.
    fn seize(&self, tid: i32) -> Result<()> {
        self.seize_alone(tid).or_else(|error| match procfs::tracer_of(tid) {
            Some(tracer) if tracer == control::thread_id() => Ok(()),
            // The old tracer may have gone in between.
            Some(0) => self.seize_alone(tid),
            _ => Err(error),
        })
    }

    /// The kernel lets this wait for the end of an exec, which may wait for threads that have to end, and are ours.
    fn seize_alone(&self, tid: i32) -> Result<()> {
        let _alone = chain::before_rescuing(self.pid)?;
        let _alarm = Alarm::every(10 * PAUSE)?;
        let began = Instant::now();
        while !ptrace::seize_unless_interrupted(tid, 0)? {
            self.let_strays_go();
            if began.elapsed() > ptrace::TIMEOUT {
                return Err(TracerError::Unresponsive { tid });
            }
        }
        Ok(())
    }

    /// Lets threads go that have stopped after they were no longer waited for: those that came too late, and one that
    /// has got its leader's id by exec. Takes the ends of those that have ended.
    fn let_strays_go(&self) {
        while let Ok(Waited::Task(_, status, stopped)) = ptrace::wait(false) {
            // It may have been killed.
            let _ = stopped.map(|stopped| self.look_at_stopped(status, stopped));
        }
    }

    /// Lets a thread take the handler for SIGTRAP out, which none needs any more. False if it may be there still.
    fn remove_fallback(&mut self) -> bool {
        self.written.fallback.is_none_or(|fallback| self.remove_fallback_of(self.pid, fallback))
    }

    /// The same for those who share the memory: their actions for signals are their own, copied when they were made.
    fn remove_fallback_of_sharers(&mut self) -> bool {
        let sharers = procfs::sharers(self.pid);
        match self.written.others_fallback {
            Some(fallback) => sharers.into_iter().fold(true, |all, pid| all & self.remove_fallback_of(pid, fallback)),
            None => true,
        }
    }

    fn remove_fallback_of(&mut self, pid: i32, fallback: SigtrapFallback) -> bool {
        if !catches_trap(pid) {
            return true;
        }
        // A filter may kill the program for a system call that it would never make itself.
        if procfs::has_seccomp(pid) {
            return false;
        }
        let deadline = Instant::now() + TIMEOUT;
        let mut tried = BTreeSet::new();
        while Instant::now() < deadline {
            let Ok(threads) = procfs::tasks(pid) else { return true };
            let best = threads
                .into_iter()
                .filter(|&tid| {
                    !tried.contains(&tid) && !procfs::is_kernel_worker(pid, tid) && !procfs::has_seccomp(tid)
                })
                .filter_map(|tid| Some((disturbance(pid, tid)?, tid)))
                .min();
            let Some((_, tid)) = best else {
                tried.clear();
                self.let_strays_go();
                std::thread::sleep(PAUSE);
                continue;
            };
            tried.insert(tid);
            if matches!(self.remove_fallback_by(tid, fallback, deadline), Ok(true)) {
                return true;
            }
        }
        false
    }

    fn remove_fallback_by(&mut self, tid: i32, fallback: SigtrapFallback, deadline: Instant) -> Result<bool> {
        self.seize(tid)?;
        ptrace::interrupt(tid)?;
        loop {
            match ptrace::poll_task(tid)? {
                Waited::Task(_, WaitStatus::EventStop | WaitStatus::GroupStop(_), Some(thread)) => {
                    let (resume, code) = (thread.registers()?, fallback.call);
                    self.memory.stands_still(Some(tid));
                    let called =
                        fallback.remove(&mut Caller { thread: &thread, resume, code, memory: &mut self.memory });
                    self.memory.stands_still(None);
                    if !matches!(called, Ok(_) | Err(TracerError::Overtaken { .. })) {
                        return called.map(|_| false);
                    }
                    thread.restart_interrupted_call()?;
                    thread.detach(0)?;
                    return Ok(matches!(called, Ok(0)));
                }
                Waited::Task(_, status, Some(thread)) => {
                    self.look_at_stopped(status, thread)?;
                    return Ok(false);
                }
                Waited::Task(_, _, None) | Waited::NoTasks => return Ok(false),
                Waited::Nothing | Waited::Interrupted if Instant::now() < deadline => std::thread::yield_now(),
                Waited::Nothing | Waited::Interrupted => return Ok(false),
            }
        }
    }
}

/// Whether a process has a handler for SIGTRAP, ours or its own.
fn catches_trap(pid: i32) -> bool {
    procfs::status_signals(pid, "SigCgt").is_some_and(|set| set & (1 << (SIGTRAP - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::INT3;
    use crate::breakpoints::patches::Patch;
    use crate::tracer::code::TargetCode;
    use crate::tracer::guardian::{Guardian, testing};
    use crate::tracer::testing::Sleeper;

    #[test]
    fn a_thread_is_clear_outside_of_pads_and_behind_no_breakpoint() {
        let mut written = Written::default();
        written.note(What::Placed { addr: Addr(0x1000), patch: Patch::int3(0x55) });
        written.note(What::Placed { addr: Addr(0x2000), patch: Patch::int3(0x56) });
        written.note(What::Lifted { addr: Addr(0x2000) });
        written.note(What::Code { start: Addr(0x3000), len: 16 });
        for pc in [0x1001, 0x2001, 0x3000, 0x300f] {
            assert!(!written.is_clear(Addr(pc)), "{pc:x}");
        }
        for pc in [0x1000, 0x1002, 0x2000, 0x2fff, 0x3010] {
            assert!(written.is_clear(Addr(pc)), "{pc:x}");
        }
        written.note(What::Unmapped { start: Addr(0x1000), end: Addr(0x4000) });
        assert!([0x1001, 0x2001, 0x3000].into_iter().all(|pc| written.is_clear(Addr(pc))));
    }

    /// What a guardian hears of one address space, until heaptrace is gone.
    fn heard(socket: BorrowedFd<'_>) -> BTreeMap<u32, Space> {
        let mut spaces = BTreeMap::new();
        while let Some((record, held)) = receive(socket).unwrap() {
            note(&mut spaces, record, held);
        }
        spaces
    }

    /// heaptrace is killed before, in the midst of, and after writing a patch of five bytes.
    #[test]
    fn the_guardian_undoes_a_patch_of_several_bytes() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let mut memory = TargetMemory::open(pid, pid).unwrap();
        let at = procfs::initial_stack(pid).unwrap();
        let read = |memory: &TargetMemory| {
            let mut found = [0; 16];
            assert_eq!(memory.read_uncached(at, &mut found), 16);
            found
        };
        let original = read(&memory);
        let patch = Patch::new(&original[3..8], &[0xe9, 0xa1, 0xa2, 0xa3, 0xa4]).unwrap();
        for written in [&[][..], &[INT3], &[INT3, 0xa1, 0xa2], &[INT3, 0xa1, 0xa2, 0xa3, 0xa4], patch.replacement()] {
            let (ours, theirs) = testing::socket_pair();
            let mut code = TargetCode::new(Some(Guardian::new(ours).guard(pid, &memory)));
            code.place(&mut memory, at.add(1), Patch::int3(original[1])).unwrap();
            code.place(&mut memory, at.add(3), patch).unwrap();
            assert_eq!(read(&memory)[3..8], *patch.replacement());
            // as if we had not come further than that
            write::write(&mut memory, at.add(3), patch.original()).unwrap();
            write::write(&mut memory, at.add(3), written).unwrap();
            drop(code);
            let mut spaces = heard(theirs.as_fd());
            let space = spaces.get_mut(&0).unwrap();
            assert_eq!(space.written.patches.get(at.add(3)), Some(&patch));
            let waited = write::SYNCHRONIZED.get();
            space.restore();
            assert_eq!(read(&memory), original, "{written:x?}");
            // threads that block SIGTRAP die at the int3 that stands there meanwhile
            assert_eq!(write::SYNCHRONIZED.get(), waited, "it waits for processors on which nobody runs");
        }
        // what the program has written over it since is the program's
        let (ours, theirs) = testing::socket_pair();
        let mut code = TargetCode::new(Some(Guardian::new(ours).guard(pid, &memory)));
        code.place(&mut memory, at.add(3), patch).unwrap();
        write::write(&mut memory, at.add(4), &[0x77]).unwrap();
        drop(code);
        heard(theirs.as_fd()).get_mut(&0).unwrap().restore();
        assert_eq!(read(&memory)[3..8], [0xe9, 0x77, 0xa2, 0xa3, 0xa4]);
    }
}
