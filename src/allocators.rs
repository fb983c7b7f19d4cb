//! The table of allocator functions: names, argument positions, families; what the user declares with `--alloc-fn`
//! and `--free-fn`; and the decision which of a process's modules get probes where.

mod builtin;
pub mod frameworks;
pub mod select;
pub mod spec;
mod text;

pub use select::ModuleSymbols;
pub use spec::{Declaration, SpecError, Target};
pub use text::Text;

use crate::base::addr::{FunctionId, ObjAddr};
use rustc_hash::FxHashMap;

/// Where a value is found at a function's entry: the index of an integer argument, 0 (rdi) to 5 (r9).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arg(pub u8);

impl Arg {
    /// The argument's value among the six register arguments; 0 if the index is out of range.
    pub fn of(self, args: &[u64; 6]) -> u64 {
        args.get(usize::from(self.0)).copied().unwrap_or(0)
    }
}

/// What a function does with the heap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Returns a block of `size` bytes in rax, or null.
    Alloc {
        /// The size.
        size: Arg,
        /// The number of elements that multiplies it, if any.
        count: Option<Arg>,
    },
    /// Writes the block's address to `*out`, if it succeeds.
    AllocOut {
        /// The pointer to the result.
        out: Arg,
        /// The size.
        size: Arg,
        /// What it returns then.
        success: Success,
    },
    /// Has a block at `*out`, or null, and its size in bytes at `*size`. Where it is too small it is resized, and both
    /// are written back, whatever the function returns: POSIX's getline. At the entry [`Text::OLD`] and [`Text::SIZE`]
    /// stand for what is there.
    GrowOut {
        /// The pointer to the block's address.
        out: Arg,
        /// The pointer to its size.
        size: Arg,
    },
    /// Resizes `old` to `size` bytes; null `old` is an allocation.
    Realloc {
        /// The block.
        old: Arg,
        /// The new size.
        size: Arg,
        /// The number of elements that multiplies it, if any.
        count: Option<Arg>,
    },
    /// Resizes `old` to `size` bytes where it is, or leaves it as it is. It has succeeded if the result is at least
    /// `size`: jemalloc's xallocx returns the block's real size, mimalloc's mi_expand the block's address (which
    /// exceeds any size) or null.
    ResizeInPlace {
        /// The block.
        old: Arg,
        /// The new size.
        size: Arg,
    },
    /// Frees `ptr`; null is without effect.
    Free {
        /// The block.
        ptr: Arg,
        /// The size with which it must have been requested, for functions that are told it exactly.
        size: Option<Arg>,
    },
    /// Changes what the process has mapped.
    Mapping(MapFunction),
}

/// What a function returns that has written a block's address somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Success {
    /// 0, else an error number.
    Zero,
    /// A length, which is an int; a negative one if it has failed.
    Length,
}

/// A function of the C library that changes what is mapped; their arguments are POSIX's and Linux's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapFunction {
    /// mmap(2).
    Mmap,
    /// munmap(2).
    Munmap,
    /// mremap(2).
    Mremap,
    /// brk(2), as the C library has it.
    Brk,
    /// sbrk(3).
    Sbrk,
}

/// Which deallocation functions may free a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// malloc and its kin.
    Malloc,
    /// operator new / delete.
    New,
    /// operator new[] / delete[].
    NewArray,
    /// Declared by the user, or an allocator's own entries: not judged.
    Other,
    /// mmap and its kin, called by the program itself.
    Mapping,
}

impl Success {
    /// Whether the result says so. It is an int: the upper half of rax is undefined (System V ABI).
    pub const fn is_told_by(self, result: u64) -> bool {
        match self {
            Self::Zero => result as u32 == 0,
            Self::Length => (result as u32).cast_signed() >= 0,
        }
    }
}

impl Family {
    /// Whether a block of this family must not be freed by a function of `other`.
    pub fn mismatches(self, other: Self) -> bool {
        self != other && self != Self::Other && other != Self::Other
    }

    /// The operator that gives a block of this family back, by its name: with the size or without is up to the
    /// compiler's options.
    pub const fn deletes(self) -> Option<&'static str> {
        match self {
            Self::New => Some("operator delete(void*)"),
            Self::NewArray => Some("operator delete[](void*)"),
            Self::Malloc | Self::Other | Self::Mapping => None,
        }
    }

    /// Whether this is one of C++'s operators: candidates for wrappers, which only call another allocator function.
    pub fn is_operator(self) -> bool {
        matches!(self, Self::New | Self::NewArray)
    }
}

/// One allocator function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// The symbol (mangled for C++).
    pub symbol: String,
    /// The name for people (demangled).
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// Its family.
    pub family: Family,
    /// Where one of C++'s operators is told an alignment.
    pub align: Option<Arg>,
    /// The text that the block is for, where no argument tells its size: then [`Text::SIZE`] stands for that.
    pub text: Option<Text>,
}

/// A function that the user declared by module and offset, as there is no symbol for it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Placed {
    module: String,
    offset: ObjAddr,
    function: FunctionId,
}

/// All known allocator functions: the built-in ones and, behind them, the user's.
///
/// Built once at the start; ids stay valid for the table's life.
#[derive(Clone, Debug)]
pub struct AllocatorTable {
    functions: Vec<Function>,
    builtin: usize,
    by_symbol: FxHashMap<String, FunctionId>,
    placed: Vec<Placed>,
    watches_deletes: bool,
}

impl Default for AllocatorTable {
    fn default() -> Self {
        Self::new()
    }
}

impl AllocatorTable {
    /// The table of the built-in functions.
    pub fn new() -> Self {
        let functions = builtin::functions();
        let builtin = functions.len();
        let mut table = Self {
            functions: Vec::new(),
            builtin,
            by_symbol: FxHashMap::default(),
            placed: Vec::new(),
            watches_deletes: false,
        };
        for function in functions {
            table.push(function);
        }
        table
    }

    /// The same table with mmap and its kin. Asked for before anything is declared.
    #[must_use]
    pub fn with_mappings(mut self) -> Self {
        for (symbol, function) in builtin::MAPPINGS {
            let (symbol, kind) = ((*symbol).to_owned(), Kind::Mapping(*function));
            self.push(Function {
                name: symbol.clone(),
                symbol,
                kind,
                family: Family::Mapping,
                align: None,
                text: None,
            });
        }
        self.builtin = self.functions.len();
        self
    }

    /// Whether the function is mmap or one of its kin.
    pub fn is_mapping(&self, id: FunctionId) -> bool {
        self.get(id).is_some_and(|function| function.family == Family::Mapping)
    }

    /// A table that can do nothing but tell names: of functions that another heaptrace knew, by the ids that they had
    /// there.
    pub fn of_names<'a>(names: impl IntoIterator<Item = (FunctionId, &'a str)>) -> Self {
        let unknown = Function {
            symbol: String::new(),
            name: "?".to_owned(),
            kind: Kind::Free { ptr: Arg(0), size: None },
            family: Family::Other,
            align: None,
            text: None,
        };
        let mut functions = Vec::new();
        for (id, name) in names {
            let at = usize::from(id.0);
            if functions.len() <= at {
                functions.resize(at + 1, unknown.clone());
            }
            if let Some(function) = functions.get_mut(at) {
                function.name = name.to_owned();
            }
        }
        let builtin = functions.len();
        Self { functions, builtin, by_symbol: FxHashMap::default(), placed: Vec::new(), watches_deletes: false }
    }

    /// Asks for probes on sized and aligned operator delete even where it only calls another function that has one
    /// ([`Providers::told`]): what it is told is seen nowhere else. Each such call costs one stop more.
    pub fn watch_deletes(&mut self) {
        self.watches_deletes = true;
    }

    /// Whether [`AllocatorTable::watch_deletes`] has asked for that.
    pub fn watches_deletes(&self) -> bool {
        self.watches_deletes
    }

    /// Adds what the user declared with `--alloc-fn` or `--free-fn` (see [`AllocatorTable::parse_alloc_fn`]). A symbol
    /// that the table has already is redefined.
    pub fn declare(&mut self, declaration: Declaration) -> FunctionId {
        let (symbol, place) = match declaration.target {
            Target::Symbol(symbol) => (symbol, None),
            Target::Offset { module, offset } => (format!("{module}+{:#x}", offset.0), Some((module, offset))),
        };
        let name = symbol.clone();
        let id = self.push(Function {
            symbol,
            name,
            kind: declaration.kind,
            family: Family::Other,
            align: None,
            text: None,
        });
        if let Some((module, offset)) = place {
            self.placed.push(Placed { module, offset, function: id });
        }
        id
    }

    /// Parses the argument of `--alloc-fn`: `SYMBOL` or `MODULE+0xOFFSET`, then optionally `:KEY=VALUE,…` with the keys
    /// `size` (default arg1), `count` (multiplies the size), `old` (makes it a realloc of that argument) and `result`
    /// (`ret`, the default, or `argN`: the block's address is written to where argN points). Arguments are `arg1` to
    /// `arg6`.
    pub fn parse_alloc_fn(spec: &str) -> Result<Declaration, SpecError> {
        spec::parse_alloc_fn(spec)
    }

    /// Parses the argument of `--free-fn`: like [`AllocatorTable::parse_alloc_fn`] with the key `ptr` (default arg1).
    pub fn parse_free_fn(spec: &str) -> Result<Declaration, SpecError> {
        spec::parse_free_fn(spec)
    }

    /// The function of this symbol, if it is an allocator function. A version (`malloc@@GLIBC_2.2.5`) is ignored.
    pub fn lookup(&self, symbol: &str) -> Option<FunctionId> {
        let symbol = symbol.split_once('@').map_or(symbol, |(name, _)| name);
        self.lookup_base(symbol)
    }

    /// The same of a name without a version.
    pub fn lookup_base(&self, symbol: &str) -> Option<FunctionId> {
        self.by_symbol.get(symbol).copied()
    }

    /// The function of this id, which must come from this table; None for a foreign id.
    pub fn get(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(usize::from(id.0))
    }

    /// The name of the function for people; `?` for an id that is not of this table.
    pub fn name(&self, id: FunctionId) -> &str {
        self.get(id).map_or("?", |function| &function.name)
    }

    /// Whether the user declared the function.
    pub fn is_declared(&self, id: FunctionId) -> bool {
        usize::from(id.0) >= self.builtin
    }

    /// The symbols that the user has declared; not what was declared by module and offset.
    pub fn declared_symbols(&self) -> impl Iterator<Item = &str> {
        let declared = self.iter().filter(|(id, _)| self.is_declared(*id));
        let named = declared.filter(|(id, _)| !self.placed.iter().any(|placed| placed.function == *id));
        named.map(|(_, function)| function.symbol.as_str())
    }

    /// Whether the function is one of operator new / delete, which in a module that does not provide malloc itself only
    /// call the real allocator.
    pub fn is_wrapper_candidate(&self, id: FunctionId) -> bool {
        !self.is_declared(id) && self.get(id).is_some_and(|function| function.family.is_operator())
    }

    /// All functions with their ids, the most canonical name of each purpose first.
    pub fn iter(&self) -> impl Iterator<Item = (FunctionId, &Function)> {
        (0..=u16::MAX).map(FunctionId).zip(&self.functions)
    }

    fn push(&mut self, function: Function) -> FunctionId {
        // The table is a few hundred long and a command line can't hold 65 000 declarations more.
        let id = FunctionId(u16::try_from(self.functions.len()).unwrap_or(u16::MAX));
        self.by_symbol.insert(function.symbol.clone(), id);
        self.functions.push(function);
        id
    }
}

#[cfg(test)]
mod tests;
