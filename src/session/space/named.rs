//! What the symbols of an object tell that has probes: those of its own file, or of its companion if they were
//! stripped.

use crate::allocators::AllocatorTable;
use crate::allocators::select::{AllocatorSymbol, is_exception_runtime_name, is_internal_name};
use crate::base::addr::{FunctionId, ObjAddr};
use crate::image::elf::{Elf, PlainSymbols, Symbol, SymbolKind, base_name};
use std::ops::Range;

/// The names of the function that ends the process. In glibc they are one; musl's `_exit` calls `_Exit`.
const EXIT_FUNCTIONS: [&str; 2] = ["_exit", "_Exit"];

/// The functions that end the process in order, after the exit handlers.
const NORMAL_EXITS: [&str; 2] = ["exit", "quick_exit"];

/// The functions that lead from a program's entry point to main(): glibc's, of which only the first is in a stripped
/// libc, and musl's (csu/libc-start.c and sysdeps/nptl/libc_start_call_main.h; src/env/__libc_start_main.c and
/// crt/crt1.c).
const START_FUNCTIONS: [&str; 5] =
    ["__libc_start_main", "__libc_start_main_impl", "__libc_start_call_main", "libc_start_main_stage2", "_start_c"];

/// How the arguments of a function of the C library name the file that it executes.
#[derive(Clone, Copy, Debug)]
pub enum ExecCall {
    /// By a path.
    Path,
    /// By a descriptor (AT_FDCWD, which is negative: the working folder) and a path.
    PathFrom,
    /// By a descriptor.
    Open,
}

/// The functions through which programs become other programs, without those that call one of them.
pub(super) const EXEC_CALLS: [(&str, ExecCall); 3] =
    [("execve", ExecCall::Path), ("execveat", ExecCall::PathFrom), ("fexecve", ExecCall::Open)];

/// What a program tells LeakSanitizer by calling one of its [`ANNOTATIONS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Annotation {
    /// `__lsan_ignore_object(p)`: the block is not to count as leaked, nor what hangs on it.
    IgnoreObject,
    /// `__lsan_disable()`: nor what this thread allocates from now on. Calls nest.
    Disable,
    /// `__lsan_enable()`: ends that.
    Enable,
    /// `__lsan_register_root_region(p, size)`: pointers in this memory count.
    RegisterRegion,
    /// `__lsan_unregister_root_region(p, size)`: ends that.
    UnregisterRegion,
    /// `__lsan_do_leak_check()`: leaks are looked for now, and not at the end.
    CheckNow,
}

/// The functions by which programs tell LeakSanitizer of their memory.
const ANNOTATIONS: [(&str, Annotation); 6] = [
    ("__lsan_ignore_object", Annotation::IgnoreObject),
    ("__lsan_disable", Annotation::Disable),
    ("__lsan_enable", Annotation::Enable),
    ("__lsan_register_root_region", Annotation::RegisterRegion),
    ("__lsan_unregister_root_region", Annotation::UnregisterRegion),
    ("__lsan_do_leak_check", Annotation::CheckNow),
];

/// The functions of an unwinder that look at the stack of whoever calls them (Itanium C++ ABI, "Exception Handling"):
/// each begins to throw an exception, or lists return addresses. What goes on with one, `_Unwind_Resume`, comes after
/// these.
const UNWINDER: [&str; 4] =
    ["_Unwind_RaiseException", "_Unwind_Resume_or_Rethrow", "_Unwind_ForcedUnwind", "_Unwind_Backtrace"];

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// The allocator's functions.
    pub(super) allocator: Vec<AllocatorSymbol>,
    /// Functions that return the address of one of the allocator's (IFUNC).
    pub(super) resolvers: Vec<(ObjAddr, FunctionId)>,
    /// All functions by name, where a program holds resolvers: they choose among these.
    pub(super) choices: Vec<(Box<str>, Range<ObjAddr>)>,
    /// Functions of an allocator's inside, where the program holds its own allocator.
    pub(super) internal_code: Vec<Range<ObjAddr>>,
    /// The machinery of exceptions, where a library holds it and an allocator.
    pub(super) exception_runtime: Vec<Range<ObjAddr>>,
    /// The C library's sigaction(2).
    pub(super) sigaction: Option<ObjAddr>,
    /// Where the C library executes programs.
    pub(super) exec_calls: Vec<(ObjAddr, ExecCall)>,
    /// The C library's ptrace(2).
    pub(super) ptrace: Option<ObjAddr>,
    /// The C library's mlockall(2).
    pub(super) mlockall: Option<ObjAddr>,
    /// Where the C library ends the process.
    pub(super) exits: Vec<ObjAddr>,
    /// The code of `exit` and its kin, where the C library has them.
    pub(super) normal_exits: Vec<Range<ObjAddr>>,
    /// The code that calls main(), where the C library has it.
    pub(super) start_code: Vec<Range<ObjAddr>>,
    /// The functions by which programs tell LeakSanitizer of their memory.
    pub(super) annotations: Vec<(ObjAddr, Annotation)>,
    /// The functions of an unwinder that look at stacks.
    pub(super) unwinder: Vec<Range<ObjAddr>>,
}

impl Named {
    /// By the symbols of `elf`, of which `plain` are looked through first. `known` are allocator functions of the same
    /// object that another file has told.
    pub(super) fn of(
        elf: &Elf<'_>,
        plain: &PlainSymbols<'_>,
        known: Vec<AllocatorSymbol>,
        is_program: bool,
        table: &AllocatorTable,
    ) -> Self {
        let mut allocator = known;
        allocator.extend(allocator_symbols(elf, plain, table));
        let function_at = |symbol: Option<Symbol<'_>>| symbol.filter(Symbol::is_function).map(|symbol| symbol.addr);
        let [sigaction, ptrace, mlockall, exit, other_exit] =
            plain.find(["sigaction", "ptrace", "mlockall", EXIT_FUNCTIONS[0], EXIT_FUNCTIONS[1]]).map(function_at);
        let execs = plain.find(EXEC_CALLS.map(|(name, _)| name)).map(function_at);
        let exec_calls = execs.into_iter().zip(EXEC_CALLS).filter_map(|(addr, (_, call))| Some((addr?, call)));
        let annotations = plain.find(ANNOTATIONS.map(|(name, _)| name)).map(function_at);
        let annotations = annotations.into_iter().zip(ANNOTATIONS).filter_map(|(addr, (_, told))| Some((addr?, told)));
        let mut exits: Vec<ObjAddr> = [exit, other_exit].into_iter().flatten().collect();
        exits.sort_unstable();
        exits.dedup();
        let (internal_code, exception_runtime) = match (allocator.is_empty(), is_program) {
            (true, _) => (Vec::new(), Vec::new()),
            (false, true) => {
                let is_inside = |name: &str| is_internal_name(name) || is_part_of_allocator(name, table);
                (functions_named(plain, is_inside), Vec::new())
            }
            (false, false) => (Vec::new(), functions_named(plain, is_exception_runtime_name)),
        };
        let resolvers = resolvers(plain, table);
        let choices = if is_program && !resolvers.is_empty() { all_functions(plain) } else { Vec::new() };
        Self {
            internal_code,
            exception_runtime,
            resolvers,
            choices,
            allocator,
            // posix_spawn, system and popen end in execve, too.
            exec_calls: if sigaction.is_some() { exec_calls.collect() } else { Vec::new() },
            ptrace: ptrace.filter(|_| sigaction.is_some()),
            mlockall: mlockall.filter(|_| sigaction.is_some()),
            sigaction,
            // A program may call a function of its own `exit`.
            normal_exits: if exits.is_empty() { Vec::new() } else { code_of(plain, NORMAL_EXITS) },
            start_code: if exits.is_empty() && !is_program { Vec::new() } else { code_of(plain, START_FUNCTIONS) },
            exits,
            annotations: annotations.collect(),
            unwinder: code_of(plain, UNWINDER),
        }
    }
}

/// The allocator functions among an object's symbols. The built-in ones are plain; those that the user declares may be
/// any.
fn allocator_symbols(elf: &Elf<'_>, plain: &PlainSymbols<'_>, table: &AllocatorTable) -> Vec<AllocatorSymbol> {
    let function_of = |symbol: &Symbol<'_>| {
        let name = base_name(&symbol.name);
        let function = table.lookup_base(name)?;
        let is_function = match symbol.kind {
            SymbolKind::Function => true,
            // a label of assembly code
            SymbolKind::Untyped => elf.is_code_label(symbol) && !table.is_mapping(function),
            SymbolKind::IndirectFunction | SymbolKind::Object => false,
        };
        is_function.then(|| AllocatorSymbol { name: name.to_owned(), addr: symbol.addr, size: symbol.size })
    };
    let mut found: Vec<AllocatorSymbol> = if table.declared_symbols().all(PlainSymbols::may_have) {
        plain.iter().filter_map(function_of).collect()
    } else {
        elf.all_symbols().filter_map(|symbol| function_of(&symbol)).collect()
    };
    for symbol in found.iter_mut().filter(|symbol| symbol.size == 0) {
        symbol.size = size_up_to_next(elf, plain, symbol.addr);
    }
    found
}

/// The size of a function that does not state it, as assembly code often does not: it ends where the next one begins,
/// or its segment
/// does.
fn size_up_to_next(elf: &Elf<'_>, plain: &PlainSymbols<'_>, addr: ObjAddr) -> u64 {
    let Some(segment) = elf.segments().find(|segment| segment.execute && segment.contains(addr)) else { return 0 };
    let next = plain.iter().map(|symbol| symbol.addr).filter(|next| *next > addr).min();
    next.map_or(segment.end(), |next| next.min(segment.end())).0 - addr.0
}

/// Where the resolvers of allocator functions begin.
fn resolvers(plain: &PlainSymbols<'_>, table: &AllocatorTable) -> Vec<(ObjAddr, FunctionId)> {
    let indirect = plain.iter().filter(|symbol| symbol.kind == SymbolKind::IndirectFunction);
    let named = indirect.filter_map(|symbol| Some((symbol.addr, table.lookup(&symbol.name)?)));
    let mut resolvers: Vec<_> = named.filter(|(_, function)| !table.is_mapping(*function)).collect();
    resolvers.sort_unstable();
    resolvers.dedup();
    resolvers
}

/// All functions whose sizes are known.
fn all_functions(plain: &PlainSymbols<'_>) -> Vec<(Box<str>, Range<ObjAddr>)> {
    plain.iter().filter_map(|symbol| Some((base_name(&symbol.name).into(), function_code(symbol)?))).collect()
}

/// Whether a function of this name is a part of an allocator function that the compiler has put elsewhere.
fn is_part_of_allocator(name: &str, table: &AllocatorTable) -> bool {
    name.split_once('.').is_some_and(|(whole, part)| is_part_name(part) && table.lookup_base(whole).is_some())
}

/// Whether GCC or Clang names parts and copies of functions so, behind the function's name and a dot.
pub(super) fn is_part_name(part: &str) -> bool {
    ["part.", "cold", "constprop.", "isra.", "lto_priv."].iter().any(|prefix| part.starts_with(prefix))
}

/// The code of the functions whose names `is_wanted`.
fn functions_named(plain: &PlainSymbols<'_>, is_wanted: impl Fn(&str) -> bool) -> Vec<Range<ObjAddr>> {
    let wanted = plain.iter().filter(|symbol| symbol.is_function() && is_wanted(base_name(&symbol.name)));
    wanted.filter_map(function_code).collect()
}

/// The code of the functions with these names.
pub(super) fn code_of<const N: usize>(plain: &PlainSymbols<'_>, names: [&str; N]) -> Vec<Range<ObjAddr>> {
    plain.find(names).iter().flatten().filter_map(function_code).collect()
}

/// The code of a function whose symbol tells its size.
fn function_code(symbol: &Symbol<'_>) -> Option<Range<ObjAddr>> {
    (symbol.is_function() && symbol.size > 0).then(|| extent(symbol))
}

/// What a symbol covers.
pub(super) fn extent(symbol: &Symbol<'_>) -> Range<ObjAddr> {
    symbol.addr..ObjAddr(symbol.addr.0.saturating_add(symbol.size))
}
