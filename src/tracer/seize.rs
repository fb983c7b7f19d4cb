//! Attaching to all that runs in the memory of a process, without stopping anything.

mod makers;

use super::alarm::Alarm;
use super::{Result, TracerError, chain, ids, procfs, ptrace};
use crate::base::addr::Addr;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A task that was seized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seized {
    /// Its id.
    pub tid: i32,
    /// It came under trace by itself, as a seized task created it, which is still to be reported.
    pub unannounced: bool,
    /// We have interrupted it, and it will stop for that once more.
    pub interrupted: bool,
}

/// How often a seizure that is held up looks for what holds it up.
const LOOK_AROUND: Duration = Duration::from_millis(10);

/// How long an exec is waited for that holds a seizure up. Others can hold that up in turn: another process that traces
/// one of the threads, or an uninterruptible sleep.
const TIMEOUT: Duration = Duration::from_secs(4);

/// So many looks it must have had in that time: heaptrace may have been frozen, or had no processor.
const LOOKS: u32 = 40;

/// For how long a refusal must last to be believed, and how often it must come: while a thread takes its leader's place
/// by exec, the kernel knows neither for a moment, and refuses as it does for lack of rights. One that has just let the
/// process go still shows as its tracer for a moment. On a busy machine that moment may be all that passes between two
/// looks, however long.
const DOUBT: Duration = Duration::from_millis(200);
const DOUBTS: u32 = 20;

/// Refusals of one image: each image has a stack of its own, so there was an exec where that is another one.
#[derive(Debug, Default)]
struct Refusals {
    since: Option<(Instant, Option<Addr>)>,
    count: u32,
}

impl Refusals {
    /// Another one. Whether it is to be believed.
    fn are_believed(&mut self, now: Instant, image: Option<Addr>) -> bool {
        let since = match self.since {
            Some((since, doubted)) if doubted == image => since,
            _ => {
                self.count = 0;
                now
            }
        };
        self.since = Some((since, image));
        self.count += 1;
        self.count >= DOUBTS && now.saturating_duration_since(since) > DOUBT
    }
}

/// Seizes every thread of `pid` whose code is going to be changed, as [`seize_all`] does, and those that were being
/// made at that moment (see [`makers`]), which no list shows.
///
/// # Errors
/// Those of [`seize_all`].
pub fn seize_to_patch(pid: i32) -> Result<Vec<Seized>> {
    let began = Instant::now();
    let mut seized: BTreeMap<i32, Seized> = BTreeMap::new();
    let mut image = None;
    loop {
        // a thread that has got its leader's id by exec is another one
        let now = procfs::initial_stack(pid);
        if std::mem::replace(&mut image, now) != now {
            seized.clear();
        }
        let all = seize_all(pid)?.into_iter().map(|task| (task.tid, seized.get(&task.tid).copied().unwrap_or(task)));
        let all: BTreeMap<i32, Seized> = all.collect();
        // one that a seized thread has made was traced from its beginning on, as will be what it makes
        let new = all.values().filter(|task| !task.unannounced && !seized.contains_key(&task.tid));
        let new: Vec<i32> = new.map(|task| task.tid).collect();
        seized = all;
        if new.is_empty() || began.elapsed() > TIMEOUT {
            super::timedwait::prepare(seized.keys().copied());
            return Ok(seized.into_values().collect());
        }
        for tid in makers::await_all(pid, new.into_iter())? {
            if let Some(task) = seized.get_mut(&tid) {
                task.interrupted = true;
            }
        }
    }
}

/// Seizes every thread of `pid` that runs code of the program.
///
/// Threads created meanwhile by a seized thread are seized with it; those created by a thread that was not seized yet
/// are found by listing again, until two passes in a row find nothing new (gdb's rule). No breakpoint may be written
/// before this has returned: a thread that is not traced would die of it.
///
/// # Errors
/// What the kernel said of the leader, or, if it has ended, of all threads; or /proc is not ours; or the process stands
/// in the
/// [own chain of tracers](chain).
pub fn seize_all(pid: i32) -> Result<Vec<Seized>> {
    ids::require_own()?;
    let mut alone = Some(chain::before_seizing(pid)?);
    let mut seizure =
        Seizure { pid, own_tid: super::control::thread_id(), seized: BTreeMap::new(), began: Instant::now(), looks: 0 };
    // Without it, an exec at the wrong moment would hold us up for ever.
    let _alarm = Alarm::every(LOOK_AROUND)?;
    let mut quiet_passes = 0;
    let mut refusals = Refusals::default();
    loop {
        match seizure.pass() {
            Ok(Pass::FoundNew) => {
                drop(alone.take());
                (quiet_passes, refusals) = (0, Refusals::default());
            }
            Ok(Pass::CutShort) if !seizure.is_out_of_patience() => quiet_passes = 0,
            Ok(Pass::Quiet | Pass::CutShort) => quiet_passes += 1,
            Err(error) => {
                let is_believed = refusals.are_believed(Instant::now(), procfs::initial_stack(pid));
                if is_believed || seizure.is_out_of_patience() || !error.may_pass() {
                    return Err(error);
                }
                quiet_passes = 0;
                std::thread::sleep(LOOK_AROUND / 10);
            }
        }
        if quiet_passes >= 2 {
            if !seizure.drop_replaced() {
                break;
            }
            std::thread::sleep(LOOK_AROUND / 10);
        }
    }
    let seized = seizure.seized;
    if seized.is_empty() {
        return Err(TracerError::Died { tid: pid });
    }
    Ok(seized.into_iter().map(|(tid, unannounced)| Seized { tid, unannounced, interrupted: false }).collect())
}

/// What one look at the list of threads has brought.
enum Pass {
    /// There was one that had not been seized.
    FoundNew,
    /// None was found, but some may be missing in the list.
    CutShort,
    /// All were seized before.
    Quiet,
}

/// The threads of a process that were seized so far, and whether each came under trace by itself.
struct Seizure {
    pid: i32,
    /// TracerPid names the tracing *thread*.
    own_tid: i32,
    seized: BTreeMap<i32, bool>,
    began: Instant,
    /// At the list of threads, and at who holds a seizure up.
    looks: u32,
}

impl Seizure {
    fn is_out_of_patience(&self) -> bool {
        self.looks >= LOOKS && self.began.elapsed() > TIMEOUT
    }

    /// Seizes all threads that are to be seen now and were not before.
    ///
    /// # Errors
    /// The first refusal, when all others have been tried.
    fn pass(&mut self) -> Result<Pass> {
        self.looks += 1;
        let mut found_new = false;
        let mut refused = None;
        let listed = procfs::tasks(self.pid)?;
        // a list ends at a thread that ends while it is made
        let there = listed.iter().filter(|tid| procfs::state(self.pid, **tid).is_some()).count();
        let is_whole = procfs::thread_count(self.pid).is_none_or(|threads| there >= threads);
        for tid in listed {
            if self.seized.contains_key(&tid) || procfs::is_kernel_worker(self.pid, tid) {
                continue;
            }
            match self.seize(tid) {
                Ok(()) => {
                    self.seized.insert(tid, false);
                    found_new = true;
                }
                // A zombie leader can't be seized; a thread that ends meanwhile neither.
                Err(TracerError::Died { .. }) => {}
                // Ending: nothing will run in it any more.
                Err(_) if matches!(procfs::state(self.pid, tid), Some(b'Z' | b'X') | None) => {}
                Err(_) if self.is_ours(tid) => {
                    // A leader is announced by nobody: it has taken the place of the one that was, by exec.
                    self.seized.insert(tid, tid != self.pid);
                    found_new = true;
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(error) => Err(error),
            None if found_new => Ok(Pass::FoundNew),
            None if !is_whole => Ok(Pass::CutShort),
            None => Ok(Pass::Quiet),
        }
    }

    /// The kernel lets this wait for the end of an exec in another thread; and that waits for all threads to end, of
    /// which those that are seized do so only when they are let.
    fn seize(&mut self, tid: i32) -> Result<()> {
        while !ptrace::seize_unless_interrupted(tid, ptrace::OPTIONS)? {
            self.looks += 1;
            let others = procfs::tasks(self.pid).unwrap_or_default();
            let all: BTreeSet<i32> = self.seized.keys().copied().chain(others).collect();
            for other in all {
                if ptrace::let_end(other)? {
                    self.seized.remove(&other);
                }
            }
            if self.is_out_of_patience() {
                let source = std::io::ErrorKind::TimedOut.into();
                return Err(TracerError::Task { operation: "wait for the exec of", tid: self.pid, source });
            }
        }
        Ok(())
    }

    fn is_ours(&self, tid: i32) -> bool {
        procfs::tracer_of(tid) == Some(self.own_tid)
    }

    /// Forgets threads that are gone, or whose id another task has got by exec. Whether that task, the leader, is still
    /// to be seized.
    fn drop_replaced(&mut self) -> bool {
        let (own_tid, pid) = (self.own_tid, self.pid);
        self.seized.retain(|&tid, _| {
            procfs::state(pid, tid).is_some() && procfs::tracer_of(tid).is_none_or(|tracer| tracer == own_tid)
        });
        let is_left = !self.seized.contains_key(&pid) && !matches!(procfs::state(pid, pid), None | Some(b'Z' | b'X'));
        is_left && !self.is_out_of_patience()
    }
}

/// Seizes the tasks of other processes that share the memory of process `pid`, of which `live` is a task that has not
/// ended: children between vfork(2) or posix_spawn(3) and their exec, above all. An untraced one would die of a
/// breakpoint that its parent is given. To be called when all of `pid` is seized: what it starts from then on is seized
/// with it.
///
/// # Errors
/// If there is one that can't be traced, as another tracer has it.
pub fn seize_sharers(pid: i32, live: i32) -> Result<Vec<Seized>> {
    let mut seized = Vec::new();
    let mut processes = BTreeSet::new();
    let mut quiet_passes = 0;
    while quiet_passes < 2 {
        let mut found_new = false;
        for process in procfs::processes()? {
            if process == pid || processes.contains(&process) || !shares_memory(process, live) {
                continue;
            }
            match seize_to_patch(process) {
                Ok(tasks) => seized.extend(tasks),
                // It ended, or executed another program, which is what it is there for.
                Err(_) if !shares_memory(process, live) => continue,
                Err(error) => return Err(error),
            }
            processes.insert(process);
            found_new = true;
        }
        quiet_passes = if found_new { 0 } else { quiet_passes + 1 };
    }
    Ok(seized)
}

/// Whether a process shares the memory of another one's task.
fn shares_memory(process: i32, live: i32) -> bool {
    match procfs::same_memory(process, live) {
        Some(same) => same,
        // kcmp(2) is refused in some containers. To trace a copy of the process until it executes something does no
        // harm.
        None => procfs::forked_from(process)
            .is_some_and(|parent| parent == procfs::thread_group(live).ok().flatten().unwrap_or(live)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that stands still between two looks shows no more than one that does not.
    #[test]
    fn a_refusal_is_believed_that_lasts_and_comes_often() {
        let began = Instant::now();
        let after = |millis: u64| began + Duration::from_millis(millis);
        let (image, next) = (Some(Addr(0x7ffc_0000)), Some(Addr(0x7ffd_0000)));
        let mut rare = Refusals::default();
        assert!((0..19).all(|n| !rare.are_believed(after(n * 1000), image)));
        assert!(rare.are_believed(after(20_000), image));
        let mut short = Refusals::default();
        assert!((0..=200).all(|n| !short.are_believed(after(n), image)));
        assert!(short.are_believed(after(201), image));
        assert!(!short.are_believed(after(202), next), "another image is another matter");
        assert!((203..=402).all(|n| !short.are_believed(after(n), next)));
        assert!(short.are_believed(after(403), next));
    }
}
