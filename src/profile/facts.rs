//! What is known of the run of one process besides its heap: the same facts in a recording, in a trace's end of the
//! process, and in what is read from a trace.

use super::merge::Origin;
use super::{Children, Cost, Image};
use serde::{Deserialize, Serialize};

/// See the module's head. A trace holds them as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunFacts {
    /// The process that made it, where others are followed; None for the first.
    pub parent: Option<i32>,
    /// What it shares with the others of a session.
    pub origin: Origin,
    /// Whether the last image was one of those to be traced (`--only`, `--skip`).
    pub selected: bool,
    /// Whether it was detached from before it became a program with other rights, or was traced by another process.
    pub detached_early: bool,
    /// Whether it ran before it was traced.
    pub attached: bool,
    /// Whether the process was detached from while it lived.
    pub detached: bool,
    /// Whether it was detached from without having got all its code back.
    pub harmed: bool,
    /// Its effective user, if that is known.
    pub user: Option<u32>,
    /// What tracing it has cost.
    pub cost: Cost,
    /// Its children.
    pub children: Children,
    /// The images that it had before the last one.
    pub images: Vec<Image>,
    /// Sentences for the user.
    pub warnings: Vec<String>,
    /// What could not be watched, in words: reasons not to judge the program.
    pub blind_spots: Vec<String>,
    /// Functions that the user has declared and no module has, in words.
    pub unknown_functions: Vec<String>,
    /// Whether the program's time was up (`--timeout`).
    pub timed_out: bool,
}
