//! All threads of a process are made to stand still, and what is known of them then: their registers, and where those
//! sleep that can't be stopped.

use super::Tracee;
use crate::heap::leaks::roots::ThreadState;
use crate::session::stops::Stops;
use crate::session::tasks::Role;
use crate::tracer::Result;
use crate::tracer::procfs::{self, Position};
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long threads are waited for that heaptrace has interrupted.
const TIMEOUT: Duration = Duration::from_secs(2);

/// After so long those in an uninterruptible sleep, as in a vfork, are no longer waited for.
const PATIENCE_WITH_SLEEPERS: Duration = Duration::from_millis(100);

/// Pause between two looks at threads that have not stopped yet.
const PAUSE: Duration = Duration::from_micros(200);

impl Tracee {
    /// Makes all threads of the program stop, but `present`, which stands still already. Their stops are served later,
    /// in turn with all others.
    pub(in crate::session) fn stop_all_threads(
        &mut self,
        present: Option<i32>,
        stops: &mut Stops,
    ) -> Result<Vec<ThreadState>> {
        let mut asked = BTreeSet::new();
        let began = Instant::now();
        loop {
            stops.collect()?;
            let stopped: BTreeSet<i32> = stops.waiting.iter().map(|(tid, ..)| *tid).collect();
            let mut missing =
                !stops.expected.iter().all(|tid| stopped.contains(tid)) || !stops.announced_are_in(&stopped);
            for tid in self.tasks.tids() {
                let Some(task) = self.tasks.get(tid).filter(|task| task.role == Role::Thread && !task.ending) else {
                    continue;
                };
                let tid = task.id.tid;
                let passed_over = || match procfs::state(self.pid, tid) {
                    None | Some(b'Z' | b'X') => true,
                    Some(b'D') => began.elapsed() > PATIENCE_WITH_SLEEPERS,
                    Some(_) => false,
                };
                if present == Some(tid) || stopped.contains(&tid) || passed_over() {
                    continue;
                }
                missing = true;
                if asked.insert(tid) {
                    self.interrupt(tid)?;
                }
            }
            if !missing || began.elapsed() > TIMEOUT {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(self.thread_states(present, stops))
    }

    /// A thread that stands still. One in a system call holds nothing in its vector registers: the C library's
    /// functions need not keep them, and what is there is left from what ran before.
    pub(in crate::session) fn stopped_thread(&mut self, thread: &Stopped, raw: &RawRegs) -> ThreadState {
        let vectors = if raw.is_in_system_call() { Vec::new() } else { thread.vector_registers().unwrap_or_default() };
        let mut state = ThreadState::stopped(thread.tid(), raw.regs(), vectors);
        if thread.tid() == self.pid {
            state.start_frames = self.space.modules.start_frames(&mut self.space.image, &raw.regs(), false);
        }
        state
    }

    /// The registers of all threads but `except`.
    fn thread_states(&mut self, except: Option<i32>, stops: &Stops) -> Vec<ThreadState> {
        let mut states = Vec::new();
        for (tid, _, stopped) in &stops.waiting {
            let known = self.tasks.get(*tid).map(|task| task.role == Role::Thread && !task.ending);
            // A thread that is newer than its record: its first stop waits to be served.
            if known.unwrap_or_else(|| matches!(procfs::thread_group(*tid), Ok(Some(group)) if group == self.pid))
                && let Ok(raw) = stopped.registers()
            {
                states.push(self.stopped_thread(stopped, &raw));
            }
        }
        for task in self.tasks.iter().filter(|task| task.role == Role::Thread && !task.ending) {
            let tid = task.id.tid;
            if Some(tid) == except || states.iter().any(|state| state.tid == tid) {
                continue;
            }
            if let Position::Blocked { sp, .. } = procfs::position(self.pid, tid) {
                states.push(ThreadState::elsewhere(tid, Some(sp.0)));
            } else if procfs::state(self.pid, tid).is_some_and(|state| !matches!(state, b'Z' | b'X')) {
                states.push(ThreadState::elsewhere(tid, None));
            }
        }
        states
    }
}
