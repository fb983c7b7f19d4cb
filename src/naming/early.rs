//! Names that are looked up while the process ends: the kernel takes its memory apart meanwhile, for some
//! milliseconds, and the profile needs no more than what the last stop has told.

use super::{Identity, NamingOptions, identity, loaded_module, root_folder, symbolizer};
use crate::base::addr::ModuleId;
use crate::session::{ModuleRecord, NearEnd};
use crate::symbols::Symbolizer;
use rustc_hash::FxHashSet;

/// A symbolizer that looks at the modules of a process that ends.
#[derive(Debug)]
pub struct EarlyNames {
    symbolizer: Symbolizer,
    modules: Vec<ModuleId>,
}

impl EarlyNames {
    /// Begins to look up, on other threads, what a profile of the process will ask.
    pub fn begin(near_end: &NearEnd, wanted: NamingOptions<'_>) -> Self {
        let root = root_folder(near_end.root.as_deref());
        let mut modules = near_end.modules.clone();
        modules.sort_by_key(|module| !module.is_program);
        let loaded: Vec<_> = modules.iter().map(loaded_module).collect();
        let mut questions = near_end.questions(&loaded);
        // Of several modules that are the same file, all but the first are asked for what that was not.
        let mut seen: FxHashSet<Identity> = FxHashSet::default();
        let record_of = |id: ModuleId| modules.iter().find(|module| module.id == id);
        questions.retain(|(id, _)| {
            let known = record_of(*id).and_then(|module| identity(module, false));
            known.is_none_or(|(_, identity)| seen.insert(identity))
        });
        let mut symbolizer = symbolizer(&modules, wanted, root);
        symbolizer.begin(&questions);
        tracing::debug!("the names of {} modules are looked up while the program ends", questions.len());
        Self { symbolizer, modules: modules.iter().map(|module| module.id).collect() }
    }

    /// The symbolizer, if it knows just these modules.
    pub(super) fn of(self, modules: &[ModuleRecord]) -> Option<Symbolizer> {
        if modules.iter().map(|module| module.id).eq(self.modules) {
            return Some(self.symbolizer);
        }
        tracing::debug!("other modules than were looked up early are asked for");
        None
    }
}
