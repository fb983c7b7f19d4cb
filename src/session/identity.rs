//! Who a process is, and what it has become by exec.

use crate::profile::Image;
use crate::tracer::{ids, procfs};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

/// See the module's head.
#[derive(Debug)]
pub(super) struct Identity {
    /// The process that made it; None if tracing began with this one.
    pub(super) parent: Option<i32>,
    /// Its place in the order of all.
    pub(super) number: u64,
    /// Whether it ran before it was traced.
    pub(super) attached: bool,
    /// When the session began.
    pub(super) began: Instant,
    /// When this process did, as far as we know it.
    pub(super) started_at: SystemTime,
    /// The same, by the clock that events are timed with.
    pub(super) born: Instant,
    /// The name of the program that it executes.
    pub(super) program: String,
    /// Its command line.
    pub(super) command: Vec<String>,
    /// The working directory that it began with.
    pub(super) cwd: PathBuf,
    /// Whose it is.
    pub(super) owner: Owner,
    /// Whether its current image is one of those that are to be traced.
    pub(super) selected: bool,
    /// The images that it had before, oldest first.
    pub(super) images: Vec<Image>,
    /// Names of its threads, by [`crate::base::addr::TaskId::serial`].
    pub(super) thread_names: HashMap<u32, String>,
}

/// The user whom a process belongs to. It may change its user at any time: what it was is not forgotten.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// The effective user, when it was looked at last.
    pub user: Option<u32>,
    /// The user ids other than heaptrace's that it has ever had.
    pub others: BTreeSet<u32>,
}

impl Owner {
    /// Looks at it, while task `tid` of it is there.
    pub(super) fn note(&mut self, tid: i32) {
        let users = ids::users(tid);
        self.user = users.get(1).copied().or(self.user);
        self.others.extend(users.into_iter().filter(|&user| user != procfs::effective_user()));
    }

    /// Whether it has ever had another user id than heaptrace's.
    pub(super) fn is_another(&self) -> bool {
        !self.others.is_empty()
    }
}
