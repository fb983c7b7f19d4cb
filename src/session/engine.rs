//! What the rest of the session asks of the engines, whichever sees a probe's calls.

use super::process::Process;

impl Process {
    /// All that has happened until now is in the model from here on: what an engine has seen and not told yet is told to the
    /// observer, and what it can't tell any more is told as missed. It is asked before the process changes as a whole (fork, exec, the
    /// end of a thread, modules that come and go) and before its heap is looked at (a capture, a leak scan, a pause, a detach, the
    /// end). The trap engine tells all it sees at the stop itself: it has nothing to add.
    pub(super) fn settle(&mut self) {}
}
