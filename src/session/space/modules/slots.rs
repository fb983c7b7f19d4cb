//! What the program calls by an allocator function's name: the dynamic linker has written it to slots, whichever way it
//! came to it (interposition, versions, DT_SYMBOLIC, a namespace of its own, the resolver of an IFUNC). heaptrace
//! probes what it finds there like a function of that name; where that can't be, calls go unseen, and it says so.

use crate::allocators::AllocatorTable;
use crate::allocators::select::{AllocatorSymbol, is_dynamic_linker};
use crate::base::addr::{Addr, FunctionId, ModuleId};
use crate::session::space::image::Image;
use crate::session::space::image::calls::Called;
use crate::session::space::modules::{Module, Modules};
use crate::session::space::named::is_part_name;
use std::ops::Range;

/// The size of a function that neither a symbol nor the CFI tells.
const UNKNOWN_SIZE: u64 = 1;

impl Modules {
    /// Looks at the slots of modules that have been linked since: what is called by an allocator function's name counts
    /// as such a function of its module from now on. Whether there was one that had not.
    pub(in crate::session::space) fn find_called_functions(&mut self, image: &Image, table: &AllocatorTable) -> bool {
        let mut found = Vec::new();
        let mut settled = Vec::new();
        for module in self.loaded.iter().filter(|module| !module.is_linked && !is_dynamic_linker(&module.symbols)) {
            let mut is_linked = true;
            for &(slot, function) in &module.slots {
                match image.called_through(slot) {
                    Called::Function(at) => found.extend(module.may_lead_to(at, function).then_some((at, function))),
                    Called::Later => {}
                    Called::Nothing => is_linked = false,
                }
            }
            if is_linked {
                settled.push(module.id);
            }
        }
        for id in settled {
            if let Some(module) = self.loaded.get_mut(id) {
                module.is_linked = true;
            }
        }
        found.retain(|&(at, function)| !self.is_seen(at, function, table));
        let mut is_new = false;
        for (at, function) in found {
            is_new |= self.note_function(at, function, table);
        }
        is_new
    }

    /// Whether a call of `function` that goes to `at` is seen.
    pub(in crate::session::space) fn is_seen(&self, at: Addr, function: FunctionId, table: &AllocatorTable) -> bool {
        let Some(module) = self.module(at) else { return false };
        is_dynamic_linker(&module.symbols)
            || module.entry_families.contains_key(&at)
            || module.wrappers.iter().any(|(range, _)| range.contains(&at))
            || module.has_function(at)
            // it calls the allocator, which is probed
            || table.is_wrapper_candidate(function) && module.entries.is_empty()
    }

    /// From now on `at` is a function of its module by this name. False if it can't be: it is in no module.
    pub(in crate::session::space) fn note_function(
        &mut self,
        at: Addr,
        function: FunctionId,
        table: &AllocatorTable,
    ) -> bool {
        let Some(name) = table.get(function).map(|function| function.symbol.clone()) else { return false };
        let described = if self.unwinder.begins_function(at) { self.unwinder.code_around(at) } else { None };
        let id = self.module_at(at);
        if let Some(module) = self.loaded.get_mut(id).filter(|_| id != ModuleId::NONE)
            && !module.has_function(at)
        {
            let code = module.note_choice(at).or(described).or_else(|| module.up_to_next_choice(at));
            let size = code.map_or(UNKNOWN_SIZE, |code| code.end.0 - code.start.0);
            let addr = module.bias.to_object(at);
            module.symbols.symbols.push(AllocatorSymbol { name, addr, size });
            return true;
        }
        false
    }

    /// Notes what was called through slots and has no probe. Whether there is such: calls were missed.
    pub fn judge_slots(&mut self, image: &Image, table: &AllocatorTable) -> bool {
        let mut unseen = Vec::new();
        for module in self.loaded.iter().filter(|module| !is_dynamic_linker(&module.symbols)) {
            for &(slot, function) in &module.slots {
                if let Called::Function(at) = image.called_through(slot)
                    && module.may_lead_to(at, function)
                    && !self.is_seen(at, function, table)
                {
                    let (name, caller, place) = (table.name(function), module.name(), self.place_in_module(at));
                    unseen.push(format!(
                        "calls of {name} by {caller} go to {place}, which has no probe: heaptrace misses what they \
                         allocate or free"
                    ));
                }
            }
        }
        let is_blind = !unseen.is_empty();
        for what in unseen {
            self.findings.note_blind_spot(what);
        }
        is_blind
    }
}

impl Module {
    /// Whether a symbol says that an allocator's function begins there, or something else was found to.
    fn has_function(&self, at: Addr) -> bool {
        let at = self.bias.to_object(at);
        self.symbols.symbols.iter().any(|symbol| symbol.addr == at && symbol.size > 0)
    }

    /// Notes that the allocator has the function at `at`, which a resolver has chosen, with all parts of it that the
    /// compiler has put elsewhere. The function's own code, if a symbol tells it.
    fn note_choice(&mut self, at: Addr) -> Option<Range<Addr>> {
        let (name, code) = self.choices.iter().find(|(_, code)| code.start == at)?;
        let is_part = |other: &str| {
            let rest = other.strip_prefix(&**name).and_then(|rest| rest.strip_prefix('.'));
            rest.is_some_and(is_part_name)
        };
        let parts = self.choices.iter().filter(|(other, _)| is_part(other)).map(|(_, code)| code.clone());
        self.internal_code.extend(parts);
        Some(code.clone())
    }

    /// The code from `at` to the next function that symbols tell.
    fn up_to_next_choice(&self, at: Addr) -> Option<Range<Addr>> {
        let next = self.choices.iter().map(|(_, code)| code.start).filter(|start| *start > at).min()?;
        let code = self.mapped.code().into_iter().find(|code| code.contains(&at))?;
        Some(at..next.min(code.end))
    }

    /// Whether what one of its slots for `function` leads to can be that. In its own code it is one that a resolver has
    /// chosen: others have symbols there,
    /// and what has none is a stub of the PLT that asks the dynamic linker in a way that is not known.
    fn may_lead_to(&self, at: Addr, function: FunctionId) -> bool {
        let is_own = self.mapped.code().iter().any(|code| code.contains(&at));
        !is_own || self.resolvers.values().any(|resolved| *resolved == function)
    }
}
