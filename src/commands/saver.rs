//! Snapshots of processes that are traced on: the tracer thread gives a view, and this thread names it and writes it.

use super::conclude::wanted;
use crate::cli::ProfileOptions;
use crate::event::MarkName;
use crate::naming::{self, KnownNames, Wanted};
use crate::profile::Profile;
use crate::session::{Answer, Interim, Requests, Wish};
use crate::tracer::control::Control;
use std::sync::Arc;

/// Whom to ask for snapshots, and how to name them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshots<'a> {
    pub(super) requests: &'a Requests,
    pub(super) control: &'a Arc<Control>,
    pub(super) options: &'a ProfileOptions,
}

impl Snapshots<'_> {
    /// A view of what was found out of process `pid` so far. The process runs on: its tracer is kept for microseconds. `with_blocks`: with
    /// the single blocks.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn view(&self, pid: i32, with_blocks: bool) -> Result<Interim, String> {
        let wish = Wish::View { blocks: with_blocks };
        match self.requests.ask(self.control, pid, wish).ok_or("tracing has just ended")?? {
            Answer::Viewed(interim) => Ok(*interim),
            other => Err(format!("internal error: a view was wanted, and the answer is {other:?}")),
        }
    }

    /// The profile of what is live in process `pid` now; with `since`, only of what was allocated behind that mark.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn take(
        &mut self,
        pid: i32,
        since: Option<MarkName>,
        known: &mut KnownNames,
    ) -> Result<Profile, String> {
        let interim = self.view(pid, since.is_some())?;
        let recording = match since {
            None => interim.into_recording(),
            Some(mark) => interim.into_recording_since(&mark).map_err(|error| error.to_string())?,
        };
        Ok(naming::build_profile(recording, Wanted { snapshot: true, ..wanted(self.options) }, known))
    }
}
