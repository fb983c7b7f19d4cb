//! What a process is about to leave, as its last thread stops for the last time. The kernel takes its memory apart
//! after that, for milliseconds, in which names can be looked up.

use super::modulerecord::ModuleRecord;
use crate::heapmodel::HeapView;
use crate::profile::build::{LoadedModule, questions};
use crate::profile::symbolize::Question;
use crate::tracer::root::TargetRoot;
use crate::unwinder::StackTable;
use std::sync::Arc;

/// So many stacks of sites and errors are looked through early at most.
const MAX_STACKS: usize = 1 << 18;

/// See the module's head. It shares its tables with the process that is traced.
#[derive(Debug)]
pub struct NearEnd {
    pub(super) heap: HeapView,
    pub(super) stacks: StackTable,
    /// All modules so far.
    pub modules: Vec<ModuleRecord>,
    /// The process's root folder, if it is not ours.
    pub root: Option<Arc<TargetRoot>>,
}

impl NearEnd {
    /// Which addresses a profile of the process will name, in which of `modules`. None are told where it takes long
    /// to find out, as it is found out once more when the profile is made.
    pub fn questions(&self, modules: &[LoadedModule]) -> Vec<Question> {
        let stacks = self.heap.stacks();
        if stacks.len() > MAX_STACKS { Vec::new() } else { questions(modules, &self.stacks, stacks) }
    }
}
