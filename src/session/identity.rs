//! Who a process is, and what it has become by exec.

use super::settings::Settings;
use super::tracee::Tracee;
use crate::event::{Definition, ProcessDefinition};
use crate::profile::{Amount, Image, Totals};
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

impl Identity {
    /// Notes name and command line of the current image of process `pid`, by its task `tid`.
    pub(super) fn describe(&mut self, pid: i32, tid: i32) {
        self.command = procfs::command_line(pid);
        self.program = procfs::program_name(pid, tid);
        self.owner.note(tid);
    }

    /// Decides whether the current image is one of those that are to be traced.
    pub(super) fn select(&mut self, settings: &Settings, tid: i32) {
        let executable = procfs::executable(tid).unwrap_or_default();
        self.selected = settings.selection.takes(&executable, &self.program);
    }

    /// What the readers of the process's events are to know of it now.
    pub(super) fn definition(&self) -> Definition<'_> {
        Definition::Process(ProcessDefinition {
            parent: self.parent,
            program: &self.program,
            command: &self.command,
            cwd: &self.cwd,
        })
    }

    /// Keeps the totals of the image that exec has just replaced.
    pub(super) fn end_image(&mut self, pid: i32, totals: Totals) {
        self.images.push(Image {
            pid,
            program: std::mem::take(&mut self.program),
            totals,
            gone_with_exec: Amount { objects: totals.live_blocks, bytes: totals.live_bytes },
        });
    }

    /// Looks once more at what a process can change: the names of its threads, and its user.
    pub(super) fn note_thread_names(&mut self, tracee: &Tracee) {
        self.owner.note(tracee.pid);
        for task in tracee.tasks.iter() {
            self.thread_names.entry(task.id.serial).or_insert_with(|| procfs::thread_name(task.id.tid));
        }
    }
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
