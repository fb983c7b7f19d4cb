//! Collecting can pause: the program then runs at full speed, or nearly.
//!
//! While it pauses, allocations are not recorded. If blocks are known that live, the probes of functions that free or
//! move blocks stay, so that what is live remains true; if none are known (`--start-paused`), no probe stays. Return
//! breakpoints are taken away as they are hit.

use super::process::Process;
use crate::base::addr::Addr;
use crate::session::space::Probing;

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
        self.apply_probing();
        if let Err(error) = self.awaited.call_for_a_thread(&mut self.tracee) {
            self.tracee.warn_once(error.to_string());
        }
        true
    }

    /// Gives the current address space the probes that are wanted now.
    pub(super) fn apply_probing(&mut self) {
        let probing = match (self.observer.is_paused(), self.observer.model().totals().live_blocks) {
            _ if !self.identity.selected => Probing::None,
            (false, _) => Probing::All,
            (true, 0) => Probing::None,
            (true, _) => Probing::Ends,
        };
        match self.tracee.space.set_probing(probing, &self.tracee.settings.table) {
            Ok(()) => {}
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => self.tracee.warn_once(error.to_string()),
        }
    }

    /// A return breakpoint was hit that no call waits for any more.
    pub(super) fn end_watch_while_paused(&mut self, site: Addr) {
        if self.observer.is_paused()
            && !self.observer.has_pending_calls()
            && let Err(error) = self.tracee.space.unwatch_return(site)
            && !error.is_out_of_reach()
        {
            self.tracee.warn_once(error.to_string());
        }
    }
}
