//! Collecting can pause: the program then runs at full speed, or nearly.
//!
//! While it pauses, allocations are not recorded. If blocks are known that live, the probes of functions that free or move
//! blocks stay, so that what is live remains true; if none are known (`--start-paused`), no probe stays. Return
//! breakpoints are taken away as they are hit.

use super::process::Process;
use crate::addr::{Addr, FunctionId};
use crate::allocators::Kind;
use crate::arch::Regs;
use crate::session::space::Probing;
use std::time::{Duration, Instant};

/// Whether and for how long collecting has paused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    since: Option<Instant>,
    before: Duration,
}

impl Pause {
    /// At the start of a session.
    pub(super) fn new(paused: bool) -> Self {
        Self { since: paused.then(Instant::now), before: Duration::ZERO }
    }

    /// The time spent in pauses so far.
    pub(super) fn total(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Process {
    /// Whether nothing is being recorded at the moment.
    pub(super) const fn is_paused(&self) -> bool {
        self.pause.since.is_some()
    }

    /// Pauses, or goes on.
    pub(super) fn set_paused(&mut self, pause: bool) {
        if pause == self.is_paused() {
            return;
        }
        self.pause = match self.pause.since {
            Some(_) => Pause { since: None, before: self.pause.total() },
            None => Pause { since: Some(Instant::now()), before: self.pause.before },
        };
        tracing::info!("collecting {}", if pause { "pauses" } else { "goes on" });
        self.model.set_blind(pause);
        self.apply_probing();
    }

    /// Gives the current address space the probes that are wanted now.
    pub(super) fn apply_probing(&mut self) {
        let probing = match (self.is_paused(), self.model.totals().live_blocks) {
            _ if !self.identity.selected => Probing::None,
            (false, _) => Probing::All,
            (true, 0) => Probing::None,
            (true, _) => Probing::Ends,
        };
        match self.space.set_probing(probing, &self.settings.table) {
            Ok(()) => {}
            Err(error) if error.is_out_of_reach() => {}
            Err(error) => self.warn_once(error.to_string()),
        }
    }

    /// A new model is blind, too, while collecting pauses.
    pub(super) fn forget_paused_blocks(&mut self) {
        if self.is_paused() {
            self.model.set_blind(true);
        }
    }

    /// During a pause a block that is known can end, or move.
    pub(super) fn is_of_interest_while_paused(&self, function: FunctionId, regs: &Regs) -> bool {
        match self.settings.table.get(function).map(|function| function.kind) {
            Some(Kind::Free { .. }) => true,
            Some(Kind::Realloc { old, .. } | Kind::ResizeInPlace { old, .. }) => {
                self.model.is_live(Addr(old.of(&regs.arguments())))
            }
            _ => false,
        }
    }

    /// A return breakpoint was hit that no call waits for any more.
    pub(super) fn end_watch_while_paused(&mut self, site: Addr) {
        if self.is_paused()
            && !self.calls.any_pending()
            && let Err(error) = self.space.unwatch_return(site)
            && !error.is_out_of_reach()
        {
            self.warn_once(error.to_string());
        }
    }
}
