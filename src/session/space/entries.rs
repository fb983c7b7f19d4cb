//! The entries of functions that may be patched with jumps: what leads into the midst of them, and which ways their
//! code has.

pub(super) mod ahead;
pub(super) mod inroads;

use crate::base::addr::{Addr, ModuleId};
use ahead::Ways;
use inroads::FileInroads;
use rustc_hash::FxHashMap;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct JumpEntries {
    /// What leads into the functions of a module that were to be patched last.
    pub(super) inroads: FxHashMap<ModuleId, FileInroads>,
    /// What the code of functions says that may be patched, by their entries.
    pub(super) ways: FxHashMap<Addr, Ways>,
    /// Whether that is to be looked up before the next probes are placed.
    looks_ahead: bool,
}

impl JumpEntries {
    /// Those of a forked child.
    pub(super) fn fork(&self) -> Self {
        Self { looks_ahead: false, ..self.clone() }
    }
}
