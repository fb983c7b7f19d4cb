//! Where the probes go: a pure decision from the allocator symbols of all modules.

use super::text::is_allocators_own;
use super::{AllocatorTable, Family, Function, Kind, MapFunction};
use crate::base::addr::{FunctionId, ModuleId, ObjAddr};

/// A symbol that a module *defines* (not imports) and whose type is a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocatorSymbol {
    /// Its name, with or without version.
    pub name: String,
    /// Where it begins.
    pub addr: ObjAddr,
    /// Its size in bytes.
    pub size: u64,
}

/// A module and its symbols. Symbols that are no allocator functions are allowed and passed over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleSymbols {
    /// The module.
    pub module: ModuleId,
    /// The basename of its file.
    pub file_name: String,
    /// Its DT_SONAME.
    pub soname: Option<String>,
    /// Whether the C library is in it.
    pub is_c_library: bool,
    /// Its function symbols, of `.dynsym` and `.symtab`, in any order, repeats allowed.
    pub symbols: Vec<AllocatorSymbol>,
}

/// Where an allocator function begins in a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryPoint {
    /// The module.
    pub module: ModuleId,
    /// The function's first instruction.
    pub addr: ObjAddr,
    /// The function's size in bytes; 0 if the user gave an offset only.
    pub size: u64,
    /// What is called there: of several names for one address the most canonical one.
    pub function: FunctionId,
    /// The family of a call to this address: None where the names at this address belong to several families (`free`
    /// and `operator delete` in tcmalloc). For [`Family::Malloc`] the caller may yet be a wrapper, see
    /// [`Providers::wrappers`].
    pub family: Option<Family>,
}

/// The decision.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Providers {
    /// Where probes go, in the order of the modules and of the addresses in each.
    pub probes: Vec<EntryPoint>,
    /// operator new and delete of modules that do not provide malloc themselves (libstdc++, libc++abi, overrides in the
    /// program): they get no probe, as they call a probed function. A return address inside one of them tells the
    /// call's family, and the frame is the allocator's rather than the program's.
    pub wrappers: Vec<EntryPoint>,
    /// Those of the wrappers that are told what is seen nowhere else. Aligned operator new: libstdc++ rounds the size
    /// up to the alignment, and few programs use it; and, if [`AllocatorTable::watch_deletes`] asked for them, sized
    /// and aligned operator delete. A probe there tells the arguments only: the call itself is seen where they pass it
    /// on.
    pub told: Vec<EntryPoint>,
}

impl AllocatorTable {
    /// Decides where probes go, for modules in link-map order.
    ///
    /// Every module that defines allocator functions gets probes, not only the first: a library opened with RTLD_LOCAL
    /// or RTLD_DEEPBIND, or one with an allocator linked in, calls its own. Names of one address are one function.
    pub fn select_providers(&self, modules: &[ModuleSymbols]) -> Providers {
        let mut providers = Providers::default();
        for module in modules {
            if is_dynamic_linker(module) {
                continue;
            }
            let mut found = self.find_functions(module);
            found.sort_by_key(|probe| (probe.addr, probe.function));
            let found = self.merge_aliases(&found);
            let provides_malloc = found.iter().any(|probe| self.get(probe.function).is_some_and(is_c_allocator));
            let is_text = |probe: &EntryPoint| self.get(probe.function).is_some_and(|function| function.text.is_some());
            let is_others = |probe: &EntryPoint| {
                probe.family == Some(Family::Malloc)
                    && is_text(probe)
                    && !self.is_declared(probe.function)
                    && !is_allocators_own(probe.addr, module, provides_malloc)
            };
            for probe in found.into_iter().filter(|probe| !is_others(probe)) {
                if self.is_wrapper_candidate(probe.function) && !provides_malloc {
                    if self.get(probe.function).is_some_and(|function| self.tells_more(function)) {
                        providers.told.push(probe);
                    }
                    providers.wrappers.push(probe);
                } else {
                    providers.probes.push(probe);
                }
            }
        }
        providers
    }

    /// Whether `addr` lies in the module's sbrk, if it has one.
    pub fn is_sbrk_at(&self, module: &ModuleSymbols, addr: ObjAddr) -> bool {
        let kind = |symbol: &AllocatorSymbol| self.lookup(&symbol.name).and_then(|id| self.get(id)).map(|f| f.kind);
        let mut around = module.symbols.iter().filter(|symbol| addr.0.wrapping_sub(symbol.addr.0) < symbol.size);
        around.any(|symbol| kind(symbol) == Some(Kind::Mapping(MapFunction::Sbrk)))
    }

    /// Whether a wrapper is told what the function that it calls is not.
    fn tells_more(&self, function: &Function) -> bool {
        match function.kind {
            Kind::Free { size, .. } => self.watches_deletes && (size.is_some() || function.align.is_some()),
            _ => function.align.is_some(),
        }
    }

    fn find_functions(&self, module: &ModuleSymbols) -> Vec<EntryPoint> {
        // A program may call a function of its own `brk`.
        let defines = |name: &str| {
            module.symbols.iter().any(|symbol| symbol.name.split('@').next() == Some(name) && symbol.size > 0)
        };
        let is_c_library = defines("mmap") && defines("munmap");
        // Assembly code often states no size: taken where the user has named it.
        let named = module.symbols.iter().filter_map(|symbol| {
            let function = self.lookup(&symbol.name)?;
            let is_taken = symbol.size > 0 && (is_c_library || !self.is_mapping(function));
            (is_taken || self.is_declared(function)).then_some((symbol.addr, symbol.size, function))
        });
        let placed = self
            .placed
            .iter()
            .filter(|placed| placed.module == module.file_name || Some(&placed.module) == module.soname.as_ref())
            .map(|placed| (placed.offset, 0, placed.function));
        named
            .chain(placed)
            .map(|(addr, size, function)| {
                let family = self.get(function).map(|function| function.family);
                EntryPoint { module: module.module, addr, size, function, family }
            })
            .collect()
    }

    /// One probe for each address of `sorted`, named by the user's declaration if there is one, else by the function of
    /// the lowest id.
    fn merge_aliases(&self, sorted: &[EntryPoint]) -> Vec<EntryPoint> {
        sorted
            .chunk_by(|a, b| a.addr == b.addr)
            .filter_map(|aliases| {
                let mut probe = *aliases.first()?;
                if let Some(declared) = aliases.iter().find(|alias| self.is_declared(alias.function)) {
                    return Some(*declared);
                }
                // An allocator's own name for a function (`mi_malloc`) says nothing about the family.
                let mut families = aliases.iter().filter_map(|alias| alias.family).filter(|f| *f != Family::Other);
                let first = families.next();
                probe.family = match first {
                    Some(family) if families.any(|other| other != family) => None,
                    Some(family) => Some(family),
                    None => Some(Family::Other),
                };
                Some(probe)
            })
            .collect()
    }
}

/// Whether a module is ld.so, which holds a small allocator of its own for the time before libc is there, whose blocks
/// are none of the program's.
/// (musl's linker is its libc, and is named `ld-musl-*`.)
pub fn is_dynamic_linker(module: &ModuleSymbols) -> bool {
    module.soname.as_deref().unwrap_or(&module.file_name).starts_with("ld-linux")
}

/// Whether a module that defines this function holds an allocator that its operators may use directly.
fn is_c_allocator(function: &Function) -> bool {
    function.family == Family::Malloc && function.text.is_none() && matches!(function.kind, Kind::Alloc { .. })
}

/// Whether a function of this name is the C++ runtime's machinery of exceptions (Itanium C++ ABI: Exception Handling),
/// which calls malloc and free for the exceptions' own objects. A library that holds an allocator may hold it, too.
pub fn is_exception_runtime_name(name: &str) -> bool {
    const PREFIXES: [&str; 5] = ["__cxa_allocate_", "__cxa_free_", "__cxa_get_globals", "__gxx_", "_Unwind_"];
    const NAMES: [&str; 2] = ["__cxa_end_catch", "__cxa_throw"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

/// Whether a function of this name is part of an allocator's inside. Asked where program and allocator share one module
/// (static linking), so that the module does not tell whether a call comes from the allocator itself.
pub fn is_internal_name(name: &str) -> bool {
    const PREFIXES: [&str; 12] = [
        "_int_",
        "_mid_memalign",
        "sysmalloc",
        "systrim",
        "tcache_",
        "malloc_",
        "ptmalloc_",
        "arena_",
        "je_",
        "_rjem_",
        "mi_",
        "_mi_",
    ];
    const NAMES: [&str; 4] = ["__malloc_arena_thread_freeres", "munmap_chunk", "mremap_chunk", "unlink_chunk"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}
