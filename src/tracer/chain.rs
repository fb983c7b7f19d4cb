//! The own chain of tracers: who traces heaptrace, who traces that one, and so on.
//!
//! A tracer that traces its own tracer waits for it, as that waits for the first. If both are killed, each waits in its
//! exit stop for the other, and not even SIGKILL ends them. The kernel allows it; so whoever stands in the chain is
//! refused before it is seized. Between the look at the chain and the seizure no other heaptrace may seize: two that
//! attach to each other in the same instant would both find nothing.

use super::{TracerError, guardian, procfs};
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};

/// What all heaptraces of a PID namespace can lock, whatever their binary, user and network: nothing is written there.
const LOCKED: &str = "/proc";

/// So long another heaptrace may take for its seizure. Then we go on: whoever holds the lock for ever must not keep us
/// from our work.
const TIMEOUT: Duration = Duration::from_secs(2);

/// So long the guardian waits, once for each thread.
const PATIENCE_OF_GUARDIAN: Duration = Duration::from_millis(5);

/// Pause between two tries to get the lock.
const PAUSE: Duration = Duration::from_millis(1);

/// No other heaptrace seizes anything while this is there.
#[derive(Debug)]
pub(super) struct Alone {
    _lock: Option<Flock<File>>,
}

impl Alone {
    /// Waits for others that seize, for `patience` at most. Where the lock can't be had, there is none.
    fn within(patience: Duration) -> Self {
        let began = Instant::now();
        let Ok(mut file) = File::open(LOCKED) else { return Self { _lock: None } };
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Self { _lock: Some(lock) },
                Err((back, nix::Error::EWOULDBLOCK | nix::Error::EINTR)) if began.elapsed() < patience => file = back,
                Err((_, error)) => {
                    tracing::debug!("no lock of {LOCKED}: {error}");
                    return Self { _lock: None };
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// What /proc tells of who traces whom.
trait Lineage {
    /// The threads of process `pid`; none if it is gone.
    fn threads(&self, pid: i32) -> Vec<i32>;

    /// The thread that traces thread `tid`.
    fn tracer(&self, tid: i32) -> Option<i32>;

    /// The process of thread `tid`.
    fn process(&self, tid: i32) -> Option<i32>;

    /// The process that `pid` is to rescue the targets of, if `pid` is a guardian.
    fn guarded_by(&self, pid: i32) -> Option<i32>;
}

/// The way from process `own` over its tracers to `target`, which is the last; None if `target` does not stand in the
/// chain. A
/// guardian stands where its heaptrace does. Each thread of a process may have a tracer of its own.
fn way(own: i32, target: i32, lineage: &impl Lineage) -> Option<Vec<i32>> {
    let mut traced_by_way_of = BTreeMap::from([(own, None)]);
    let mut ahead = vec![own];
    while let Some(process) = ahead.pop() {
        for tid in lineage.threads(process) {
            let Some(tracer) = lineage.tracer(tid).filter(|&tracer| tracer != 0) else { continue };
            let tracer = lineage.process(tracer).unwrap_or(tracer);
            if let std::collections::btree_map::Entry::Vacant(place) = traced_by_way_of.entry(tracer) {
                place.insert(Some(process));
                ahead.push(tracer);
            }
        }
    }
    let target = lineage.process(target).unwrap_or(target);
    let is_tracer = |pid: &i32| *pid != own && traced_by_way_of.contains_key(pid);
    let last = Some(target).filter(is_tracer).or_else(|| lineage.guarded_by(target).filter(is_tracer))?;
    let mut way = vec![last];
    while let Some(Some(traced)) = way.last().and_then(|process| traced_by_way_of.get(process)) {
        way.push(*traced);
    }
    way.pop();
    way.reverse();
    if target != last {
        way.push(target);
    }
    Some(way)
}

/// The running system.
struct Proc;

impl Lineage for Proc {
    fn threads(&self, pid: i32) -> Vec<i32> {
        procfs::tasks(pid).unwrap_or_default()
    }

    fn tracer(&self, tid: i32) -> Option<i32> {
        procfs::tracer_of(tid)
    }

    fn process(&self, tid: i32) -> Option<i32> {
        procfs::thread_group(tid).ok().flatten()
    }

    fn guarded_by(&self, pid: i32) -> Option<i32> {
        guardian::is_guardian(&procfs::command_line(pid)).then(|| procfs::status_number(pid, "PPid")).flatten()
    }
}

/// Refuses process `pid` if it traces heaptrace itself, at whatever distance. To be called before anything of it is
/// seized.
///
/// # Errors
/// [`TracerError::OwnTracer`].
pub fn require_outside(pid: i32) -> super::Result<()> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let named = |pid: i32| (pid, procfs::comm(pid));
    match way(own, pid, &Proc) {
        Some(way) => Err(TracerError::OwnTracer { pid, way: way.into_iter().map(named).collect() }),
        None => Ok(()),
    }
}

/// The same, and no other heaptrace seizes anything until the value is dropped, when the caller has seized a thread of
/// the process: others see by it who traces whom.
///
/// # Errors
/// [`TracerError::OwnTracer`].
pub(super) fn before_seizing(pid: i32) -> super::Result<Alone> {
    before_seizing_within(pid, TIMEOUT)
}

/// The same for the guardian, whose targets die if they are kept waiting: each of their threads may come to a
/// breakpoint meanwhile. A heaptrace that seizes needs the lock for less than a millisecond as a rule; whoever holds it
/// for longer, as anyone may, does not keep the guardian from its work.
///
/// # Errors
/// [`TracerError::OwnTracer`].
pub(super) fn before_rescuing(pid: i32) -> super::Result<Alone> {
    before_seizing_within(pid, PATIENCE_OF_GUARDIAN)
}

fn before_seizing_within(pid: i32, patience: Duration) -> super::Result<Alone> {
    let alone = Alone::within(patience);
    require_outside(pid)?;
    Ok(alone)
}

/// The refusal in words.
pub(super) fn describe(pid: i32, way: &[(i32, String)]) -> String {
    let named = |(pid, name): &(i32, String)| if name.is_empty() { pid.to_string() } else { format!("{pid} ({name})") };
    let chain: Vec<String> = way.iter().map(|process| format!("process {}", named(process))).collect();
    format!(
        "could not attach to process {pid}: it is in this heaptrace's own chain of tracers: heaptrace is traced by {}. \
         Two processes that trace each other stop for ever, and not even SIGKILL ends them. Start heaptrace outside \
         the processes that process {pid} traces",
        chain.join(", which is traced by ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes with their threads, each with its tracing thread or 0; and guardians, each with its parent.
    struct Made<'a> {
        processes: &'a [(i32, &'a [(i32, i32)])],
        guardians: &'a [(i32, i32)],
    }

    impl Lineage for Made<'_> {
        fn threads(&self, pid: i32) -> Vec<i32> {
            let found = self.processes.iter().find(|(process, _)| *process == pid);
            found.map(|(_, threads)| threads.iter().map(|(tid, _)| *tid).collect()).unwrap_or_default()
        }

        fn tracer(&self, tid: i32) -> Option<i32> {
            let mut threads = self.processes.iter().flat_map(|(_, threads)| threads.iter());
            threads.find(|(thread, _)| *thread == tid).map(|(_, tracer)| *tracer)
        }

        fn process(&self, tid: i32) -> Option<i32> {
            let has = |threads: &[(i32, i32)]| threads.iter().any(|(thread, _)| *thread == tid);
            self.processes.iter().find(|(_, threads)| has(threads)).map(|(process, _)| *process)
        }

        fn guarded_by(&self, pid: i32) -> Option<i32> {
            self.guardians.iter().find(|(guardian, _)| *guardian == pid).map(|(_, parent)| *parent)
        }
    }

    fn ways(processes: &[(i32, &[(i32, i32)])], guardians: &[(i32, i32)], targets: &[i32]) -> Vec<Option<Vec<i32>>> {
        targets.iter().map(|&target| way(10, target, &Made { processes, guardians })).collect()
    }

    #[test]
    fn who_is_traced_by_nobody_may_trace_all() {
        let processes: &[(i32, &[(i32, i32)])] = &[(10, &[(10, 0), (11, 0)]), (20, &[(20, 0)])];
        assert_eq!(ways(processes, &[(12, 10)], &[20, 99, 12]), [None, None, None]);
    }

    #[test]
    fn the_own_tracer_is_refused_by_whatever_thread_it_traces_and_is_named() {
        // thread 21 of process 20 traces, and only thread 12 of ours
        let processes: &[(i32, &[(i32, i32)])] =
            &[(10, &[(10, 0), (12, 21)]), (20, &[(20, 0), (21, 0)]), (30, &[(30, 21)])];
        // a stranger that has the same tracer may be traced, as far as this goes
        assert_eq!(ways(processes, &[], &[20, 21, 30]), [Some(vec![20]), Some(vec![20]), None]);
    }

    #[test]
    fn a_tracer_of_a_tracer_is_refused_at_any_distance() {
        // 10 by 20, thread 22 of that one by 30, which is traced by 41 of 40, and 22's own sibling by 50
        let processes: &[(i32, &[(i32, i32)])] = &[
            (10, &[(10, 20)]),
            (20, &[(20, 50), (22, 30)]),
            (30, &[(30, 41)]),
            (40, &[(40, 0), (41, 0)]),
            (50, &[(50, 0)]),
        ];
        assert_eq!(
            ways(processes, &[], &[30, 40, 50, 60]),
            [Some(vec![20, 30]), Some(vec![20, 30, 40]), Some(vec![20, 50]), None]
        );
    }

    #[test]
    fn a_guardian_stands_where_its_heaptrace_does() {
        let processes: &[(i32, &[(i32, i32)])] =
            &[(10, &[(10, 20)]), (20, &[(20, 0)]), (25, &[(25, 0)]), (30, &[(30, 0)]), (35, &[(35, 0)])];
        // 25 guards for 20, which traces us; 35 for another one; 12 is ours
        assert_eq!(ways(processes, &[(25, 20), (35, 30), (12, 10)], &[25, 35, 12]), [Some(vec![20, 25]), None, None]);
    }

    #[test]
    fn a_guardian_that_traces_us_while_it_rescues_is_a_tracer_like_others() {
        let processes: &[(i32, &[(i32, i32)])] = &[(10, &[(10, 25)]), (25, &[(25, 0)])];
        assert_eq!(ways(processes, &[(25, 1)], &[25]), [Some(vec![25])]);
    }

    #[test]
    fn a_chain_that_is_a_ring_already_ends() {
        let processes: &[(i32, &[(i32, i32)])] = &[(10, &[(10, 20)]), (20, &[(20, 30)]), (30, &[(30, 20)])];
        assert_eq!(ways(processes, &[], &[30, 40]), [Some(vec![20, 30]), None]);
    }

    #[test]
    fn what_proc_does_not_show_ends_the_chain() {
        // 20 is hidden: known by its id only
        let processes: &[(i32, &[(i32, i32)])] = &[(10, &[(10, 20)]), (40, &[(40, 0)])];
        assert_eq!(ways(processes, &[], &[20, 40]), [Some(vec![20]), None]);
    }

    #[test]
    fn one_seizes_at_a_time_and_none_for_ever() {
        let first = Alone::within(TIMEOUT);
        // unless a heaptrace of somebody else's holds it
        assert!(first._lock.is_some());
        assert!(Alone::within(Duration::ZERO)._lock.is_none());
        let began = Instant::now();
        assert!(Alone::within(20 * PAUSE)._lock.is_none());
        assert!(began.elapsed() >= 20 * PAUSE);
        let other = std::thread::spawn(|| Alone::within(TIMEOUT)._lock.is_some());
        drop(first);
        assert!(other.join().unwrap_or(false));
    }

    #[test]
    fn the_refusal_names_the_chain_and_the_way_out() {
        let text = describe(30, &[(20, "gdb".to_owned()), (30, String::new())]);
        assert!(
            text.contains("process 20 (gdb), which is traced by process 30.") && text.contains("outside"),
            "{text}"
        );
    }
}
