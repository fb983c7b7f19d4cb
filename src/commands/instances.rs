//! Waiting for processes of a name (`attach --by-name NAME --wait`).

use crate::tracer::control;
use crate::tracer::execevents::{ExecEvents, Wakeup};
use crate::tracer::permission::{self, ByNameError, Instance};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How often all processes are looked at: they may also change their name, or be let go by another tracer.
const SWEEP: Duration = Duration::from_secs(1);

/// How often new processes are looked for where the kernel does not tell of them.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// For how long a process counts as new then: most execute their program at once.
const YOUNG: Duration = Duration::from_secs(2);

/// The instances of a program, one after the other.
#[derive(Debug)]
pub struct Instances {
    name: String,
    events: Option<ExecEvents>,
    /// Those that were taken already.
    taken: HashSet<Instance>,
    /// When each process was seen first, where the kernel does not tell.
    seen: HashMap<i32, Instant>,
    next_sweep: Instant,
}

impl Instances {
    /// Those of the program `name`, see [`permission::instance`].
    pub fn of(name: &str) -> Self {
        let events = ExecEvents::subscribe();
        if events.is_none() {
            tracing::info!(
                "the kernel does not report new processes: heaptrace looks for them every {POLL_INTERVAL:?}"
            );
        }
        Self { name: name.to_owned(), events, taken: HashSet::new(), seen: HashMap::new(), next_sweep: Instant::now() }
    }

    /// The oldest instance that was not taken before, as soon as there is one. None if the user has had enough, as
    /// `enough` or a signal says.
    ///
    /// # Errors
    /// If /proc can't be read.
    pub fn next(&mut self, enough: impl Fn() -> bool) -> Result<Option<Instance>, ByNameError> {
        self.next_sweep = Instant::now();
        let mut suspects = self.suspects()?;
        loop {
            let found = suspects.into_iter().filter_map(|pid| permission::instance(&self.name, pid));
            if let Some(instance) = found.filter(|instance| !self.taken.contains(instance)).min() {
                self.taken.insert(instance);
                return Ok(Some(instance));
            }
            let news = self.events.as_ref().map(|events| events.wait(SWEEP));
            let pause = if news.is_some() { Duration::ZERO } else { POLL_INTERVAL };
            if control::next_signal(pause).is_some_and(control::is_request_to_end) || enough() {
                return Ok(None);
            }
            suspects = self.suspects_after(news)?;
        }
    }

    /// The processes to look at after what the kernel has told; None where it does not tell.
    fn suspects_after(&mut self, news: Option<Wakeup>) -> Result<Vec<i32>, ByNameError> {
        match news {
            // Where something is executed all the time there is news all the time.
            Some(Wakeup::Executed(processes)) if Instant::now() < self.next_sweep => return Ok(processes),
            Some(_) => self.next_sweep = Instant::now(),
            None => {}
        }
        self.suspects()
    }

    /// The processes to look at: all from time to time, else those that are new.
    fn suspects(&mut self) -> Result<Vec<i32>, ByNameError> {
        let all = permission::all_processes()?;
        let now = Instant::now();
        let before = std::mem::take(&mut self.seen);
        self.seen = all.iter().map(|&pid| (pid, before.get(&pid).copied().unwrap_or(now))).collect();
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            self.taken.retain(Instance::lives);
            return Ok(all);
        }
        Ok(all.into_iter().filter(|pid| self.seen.get(pid).is_some_and(|&since| now < since + YOUNG)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A process that waits until it is dropped.
    struct Waiter(Child);

    impl Waiter {
        fn start() -> Self {
            Self(Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.0.id()).unwrap()
        }
    }

    impl Drop for Waiter {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn those_that_were_executed_are_looked_at_and_else_all() {
        let waiter = Waiter::start();
        let mut instances = Instances::of("none");
        let executed = || Some(Wakeup::Executed(vec![5, 7]));
        let far = Duration::from_secs(3600);
        instances.next_sweep = Instant::now() + far;
        assert_eq!(instances.suspects_after(executed()).unwrap(), [5, 7]);
        instances.suspects().unwrap();
        let long_ago = Instant::now().checked_sub(far).unwrap();
        for news in [Wakeup::Missed, Wakeup::Nothing] {
            instances.next_sweep = Instant::now() + far;
            instances.seen.values_mut().for_each(|since| *since = long_ago);
            let all = instances.suspects_after(Some(news)).unwrap();
            assert!(all.contains(&1) && all.contains(&waiter.pid()));
        }
        instances.next_sweep = Instant::now();
        let all = instances.suspects_after(executed()).unwrap();
        assert!(all.contains(&1), "however much is executed");
    }

    #[test]
    fn without_news_the_young_are_looked_at_and_sometimes_all() {
        let mut instances = Instances { events: None, ..Instances::of("none") };
        let far = Duration::from_secs(3600);
        assert!(instances.suspects().unwrap().contains(&1), "at first all");
        // init has been seen for long
        let long_ago = Instant::now().checked_sub(far).unwrap();
        instances.seen.values_mut().for_each(|since| *since = long_ago);
        instances.next_sweep = Instant::now() + far;
        let waiter = Waiter::start();
        let young = instances.suspects_after(None).unwrap();
        assert!(young.contains(&waiter.pid()) && !young.contains(&1), "{young:?}");
        instances.next_sweep = Instant::now();
        assert!(instances.suspects().unwrap().contains(&1), "from time to time all");
        assert!(instances.next_sweep > Instant::now());
    }
}
