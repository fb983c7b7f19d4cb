//! Variables and types as debug information declares them: which variable lies where, of which type, and how types are made.
//!
//! DWARF 5, chapters 4 and 5. What is damaged is left out; references in circles end, as each entry is read once, and chains of names are followed a few steps only. A huge file is
//! read until time or room is over, and that is told.

mod containers;
mod resolve;
mod walk;

use super::dwarf::DwarfData;
use super::dwarfsections::Slice;
use super::files::Bytes;
use super::split::{Owner, SplitFiles, SplitLoader, SplitSections};
use super::{ModuleSource, Search, load_dwarf, module_file, parse, unhex};
use crate::addr::ObjAddr;
use crate::elf::Elf;
use crate::heaptypes::{TypeId, TypeTable};
use gimli::Dwarf;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// So long debug information is read, for all modules together.
const LONGEST: Duration = Duration::from_secs(30);
/// So many entries that define types are remembered of one module.
const MOST_DEFINITIONS: usize = 2 << 20;
/// So many types are read, of all modules together.
const MOST_TYPES: usize = 400_000;
/// So many members they have.
const MOST_FIELDS: usize = 3_000_000;
/// So many variables.
const MOST_VARIABLES: usize = 1 << 20;

/// Where a variable lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VariablePlace {
    /// At this address.
    Static(ObjAddr),
    /// So far behind the start of the module's thread-local data, in each thread.
    ThreadLocal(u64),
}

/// A variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredVariable {
    /// Where it lies.
    pub place: VariablePlace,
    /// Its name, with namespaces.
    pub name: String,
    /// Its type.
    pub of: TypeId,
}

/// What one module declares.
#[derive(Clone, Debug, Default)]
pub struct Declarations {
    /// Its variables.
    pub variables: Vec<DeclaredVariable>,
    /// Tables of functions of Rust `dyn` pointers: where, and the type of the value.
    pub tables: Vec<(ObjAddr, TypeId)>,
}

/// What may still be read.
#[derive(Debug)]
pub struct Budget {
    until: Instant,
    types: usize,
    fields: usize,
    variables: usize,
    /// Whether something was left out.
    is_over: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self::lasting(LONGEST)
    }
}

impl Budget {
    /// One that is over after so long.
    pub fn lasting(time: Duration) -> Self {
        Self {
            until: Instant::now() + time,
            types: MOST_TYPES,
            fields: MOST_FIELDS,
            variables: MOST_VARIABLES,
            is_over: false,
        }
    }

    /// Whether something had to be left out.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    fn has_time(&mut self) -> bool {
        let has = Instant::now() < self.until;
        self.is_over |= !has;
        has
    }

    fn take(of: &mut usize, is_over: &mut bool, number: usize) -> bool {
        match of.checked_sub(number) {
            Some(left) => *of = left,
            None => *is_over = true,
        }
        !*is_over
    }
}

/// Types of all modules, with what finds them.
#[derive(Debug, Default)]
pub struct DeclaredTypes {
    /// All types.
    pub table: TypeTable,
    /// Classes and structures by their names' [`crate::heaptypes::name_hash`].
    pub by_name: FxHashMap<u64, TypeId>,
}

impl DeclaredTypes {
    /// Reads what a module declares. What is wrong with its files is told by those who look up its functions.
    pub fn read(&mut self, source: &ModuleSource, search: &Search, budget: &mut Budget) -> Declarations {
        let mut silent = |_| {};
        let file = module_file(source, search, &mut silent);
        let own = file.as_ref().and_then(|(_, bytes)| Elf::parse(bytes).ok());
        let debug_file = match own {
            Some(elf) if elf.has_debug_info() => None,
            _ => {
                let build_id = source.build_id.as_deref().and_then(unhex);
                search.debug_file(&source.path, build_id.as_deref(), own.as_ref(), &mut silent)
            }
        };
        let debug = debug_file.as_ref().and_then(|(place, bytes)| parse(place, bytes, &mut silent));
        let place = debug_file.as_ref().or(file.as_ref()).map(|(place, _)| place.as_path());
        let Some((place, elf)) = place.zip(debug.or(own)) else { return Declarations::default() };
        let Some(data) = load_dwarf(place, &elf, &mut silent) else { return Declarations::default() };
        let alt_bytes: Option<Bytes> = search.alt_file(place, &elf, &mut silent);
        let alt_elf = alt_bytes.as_ref().and_then(|bytes| Elf::parse_debug(bytes).ok());
        let alt = alt_elf.as_ref().and_then(|elf| load_dwarf(place, elf, &mut silent));
        let split_files = SplitFiles::default();
        let split_sections = SplitSections::default();
        let split = SplitLoader::new(search, Owner { module: &source.path, place }, &split_files, &split_sections);
        self.read_dwarf(&data, alt.as_ref(), Some(split), budget)
    }

    fn read_dwarf<'a>(
        &mut self,
        data: &'a DwarfData<'_>,
        alt: Option<&'a DwarfData<'_>>,
        split: Option<SplitLoader<'a, '_>>,
        budget: &mut Budget,
    ) -> Declarations {
        let mut dwarf: Dwarf<Slice<'a>> = data.borrow();
        if let Some(alt) = alt {
            dwarf.set_sup(alt.borrow());
        }
        let files = walk::Files::open(dwarf, alt.map(DwarfData::borrow), split, budget);
        let index = walk::index(&files, budget);
        resolve::resolve(self, &files, &index, budget)
    }
}
