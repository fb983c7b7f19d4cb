//! Collecting can pause: the program then runs at full speed, or nearly.
//!
//! While it pauses, allocations are not recorded. If blocks are known that live, the probes of functions that free or
//! move blocks stay, so that what is live remains true; if none are known (`--start-paused`), no probe stays. Return
//! breakpoints are taken away as they are hit.

use super::process::Process;

impl Process {
    /// Pauses, or goes on. False if that was so already.
    pub(super) fn set_paused(&mut self, pause: bool) -> bool {
        self.settle_heap();
        if !self.observer.set_paused(pause) {
            return false;
        }
        // blocks that come meanwhile are not known
        self.existing.forget();
        tracing::info!("collecting {}", if pause { "pauses" } else { "goes on" });
        self.tracee.apply_probing(&self.observer, self.identity.selected);
        if let Err(error) = self.awaited.call_for_a_thread(&mut self.tracee) {
            self.tracee.warn_once(error.to_string());
        }
        true
    }
}
