//! The functions of modules that have probes, or may have some.

use crate::allocators::select::EntryPoint;
use crate::allocators::{AllocatorTable, Family};
use crate::base::addr::{Addr, ModuleId};
use crate::session::space::jumps::{Candidate, tells_jemalloc_to_profile};
use crate::session::space::modules::Modules;
use crate::session::space::probes::EntryProbe;
use crate::session::space::probes::guards::NO_FUNCTION;

impl Modules {
    pub(in crate::session::space) fn unwinder_functions(&self) -> Vec<Addr> {
        self.loaded.iter().flat_map(|module| &module.unwinder).map(|function| function.start).collect()
    }

    /// The same of those that are not placed yet, too.
    pub(in crate::session::space) fn guards_to_be(&self) -> Vec<Candidate> {
        let all = self.loaded.iter().flat_map(|module| module.unwinder.iter().map(move |function| (module, function)));
        let candidates = all.map(|(module, function)| Candidate {
            addr: function.start,
            size: function.end.0 - function.start.0,
            function: NO_FUNCTION,
            module: module.id,
            is_told: false,
        });
        candidates.collect()
    }

    /// Whether the allocator at `at` walks the stacks of its callers, as sanitizers and heap profilers do: it would
    /// meet our return address there. jemalloc does so if the process `pid` has told it to.
    pub fn walks_stacks_of_callers(&self, pid: i32, at: Addr) -> bool {
        let Some(module) = self.module(at) else { return false };
        if !module.has_jemalloc {
            return module.walks_stacks;
        }
        tells_jemalloc_to_profile(pid)
    }

    /// The functions that could be wrapped if they had probes.
    pub(in crate::session::space) fn allocator_functions(&self, table: &AllocatorTable) -> Vec<Candidate> {
        let symbols: Vec<_> = self.loaded.iter().map(|module| module.symbols.clone()).collect();
        let providers = table.select_providers(&symbols);
        let probes = providers.probes.into_iter().map(|probe| (probe, false));
        let told = providers.told.into_iter().map(|probe| (probe, true));
        let candidates = probes.chain(told).filter_map(|(probe, is_told)| {
            let module = self.loaded.get(probe.module)?;
            let addr = module.bias.to_process(probe.addr);
            // calls of those are few
            if table.is_mapping(probe.function) {
                return None;
            }
            Some(Candidate { addr, size: probe.size, function: probe.function, module: module.id, is_told })
        });
        candidates.collect()
    }

    /// A probe stands: only now its function counts as probed.
    pub(in crate::session::space) fn note_placed(&mut self, addr: Addr, entry: EntryProbe) {
        if let Some(module) = self.loaded.get_mut(entry.module) {
            module.entry_families.insert(addr, entry.family);
            if entry.family != Some(Family::Mapping) {
                module.note_allocator_code(addr, entry.size);
                let code = addr..addr.add(entry.size.max(1));
                if !module.entries.contains(&code) {
                    module.entries.push(code);
                }
            }
        }
        if let Some(record) = self.loaded.record_mut(entry.module)
            && !record.probed.contains(&entry.function)
        {
            record.probed.push(entry.function);
        }
    }

    pub(in crate::session::space) fn process_address(&self, probe: &EntryPoint) -> Option<(Addr, ModuleId)> {
        let module = self.loaded.get(probe.module)?;
        Some((module.bias.to_process(probe.addr), module.id))
    }
}
