//! Variables and types as debug information declares them: which variable lies where, of which type, and how types are
//! made.
//!
//! DWARF 5, chapters 4 and 5. What is damaged is left out; references in circles end, as each entry is read once, and
//! chains of names are followed a few steps only. A huge file is read until time or room is over, and that is told.

mod containers;
mod files;
mod resolve;
mod texts;
mod walk;

use super::dwarf::DwarfData;
use super::dwarfsections::{is_wanted, unpacked_size};
use super::files::Bytes;
use super::split::{Owner, SplitFiles, SplitLoader, SplitSections};
use super::{ModuleSource, Search, load_dwarf, module_file, parse, unhex};
use crate::base::addr::ObjAddr;
use crate::heap::types::{TypeId, TypeTable};
use crate::image::elf::Elf;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// So long debug information is read, for all modules together: what is begun by then is ended.
const LONGEST: Duration = Duration::from_secs(30);
/// Reading the units of a module's files, going through its entries and making its types takes one part in so many of
/// what is left, each. So the next ones have their share.
const TIME_DIVISOR: u32 = 3;
/// The clock is looked at after so many steps: entries and attributes.
const BETWEEN: usize = 4096;
/// So many entries that define types are remembered of one module.
const MAX_DEFINITIONS: usize = 2 << 20;
/// So many variables.
const MAX_VARIABLES: usize = 1 << 20;
/// Of all modules together.
const MAX_OF_ALL_MODULES: [(Of, usize); 7] = [
    (Of::Types, 400_000),
    (Of::Fields, 3_000_000),
    (Of::Variables, MAX_VARIABLES),
    (Of::Text, 256 << 20),
    (Of::Abbreviations, MAX_ABBREVIATIONS),
    (Of::Units, MAX_UNITS),
    (Of::Unpacked, MAX_UNPACKED),
];
/// Of each module, as they are forgotten with it.
const MAX_ABBREVIATIONS: usize = 32 << 20;
/// The same, of all its files.
const MAX_UNITS: usize = 1 << 18;
/// What is compressed in a module's files may take so many bytes unpacked: some seconds of unpacking.
const MAX_UNPACKED: usize = 2 << 30;

/// What there is a limit of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    Types,
    /// Members of structures.
    Fields,
    Variables,
    /// Names that are kept, in bytes.
    Text,
    /// Tables of abbreviations, in bytes of the file.
    Abbreviations,
    Units,
    /// Compressed sections, in bytes of what comes out.
    Unpacked,
}

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
    /// So many files of split DWARF were not found.
    pub missing: usize,
    /// Why debug information that is there could not be read, in a sentence.
    pub problem: Option<String>,
}

/// What may still be read. Where one limit is reached something is left out, and all else is read on.
#[derive(Debug)]
pub struct Budget {
    /// All has to be read by then.
    until: Instant,
    /// What is being read has to be by then.
    stage: Instant,
    /// Whether that is over.
    is_late: bool,
    /// Since the clock was looked at.
    steps: usize,
    left: [(Of, usize); 7],
    /// So many bytes each module's compressed sections may take.
    most_unpacked: usize,
    /// Whether something was left out.
    is_cut: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self::lasting(LONGEST)
    }
}

impl Budget {
    /// One that is over after so long.
    pub fn lasting(time: Duration) -> Self {
        let until = Instant::now() + time;
        Self {
            until,
            stage: until,
            is_late: false,
            steps: 0,
            left: MAX_OF_ALL_MODULES,
            most_unpacked: MAX_UNPACKED,
            is_cut: false,
        }
    }

    /// Whether something had to be left out.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    const fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Forgets what was taken that goes with a module.
    fn refill(&mut self) {
        for (of, left) in &mut self.left {
            match of {
                Of::Abbreviations => *left = MAX_ABBREVIATIONS,
                Of::Units => *left = MAX_UNITS,
                Of::Unpacked => *left = self.most_unpacked,
                Of::Types | Of::Fields | Of::Variables | Of::Text => {}
            }
        }
    }

    /// Whether all time is over.
    fn is_over(&mut self) -> bool {
        let is_over = Instant::now() >= self.until;
        self.is_cut |= is_over;
        is_over
    }

    /// Begins to read something, which takes a part of the time that is left.
    fn begin(&mut self) {
        let now = Instant::now();
        self.stage = now + self.until.saturating_duration_since(now) / TIME_DIVISOR;
        self.is_late = false;
        self.has_time();
    }

    /// Looks at the clock. Whether time is left for what is being read.
    fn has_time(&mut self) -> bool {
        self.steps = 0;
        self.is_late = self.is_late || Instant::now() >= self.stage;
        self.is_cut |= self.is_late;
        !self.is_late
    }

    /// Counts what is done. Whether time is left for more.
    fn tick(&mut self, steps: usize) -> bool {
        self.steps = self.steps.saturating_add(steps);
        if self.steps >= BETWEEN { self.has_time() } else { !self.is_late }
    }

    /// How much is left.
    fn left(&self, what: Of) -> usize {
        self.left.iter().find(|(of, _)| *of == what).map_or(0, |(_, left)| *left)
    }

    /// Whether what is compressed in a file may be unpacked.
    fn unpacks(&mut self, elf: &Elf<'_>) -> bool {
        let size = unpacked_size(elf, |id| is_wanted(id, true), |id| Some(id.name()));
        self.take(Of::Unpacked, usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// Whether there is so much left, which is taken then.
    fn take(&mut self, what: Of, number: usize) -> bool {
        let left = self.left.iter_mut().find(|(of, _)| *of == what);
        let taken = left.and_then(|(_, left)| {
            *left = left.checked_sub(number)?;
            Some(())
        });
        self.is_cut |= taken.is_none();
        taken.is_some()
    }
}

/// What belongs to a module's DWARF besides its own sections.
#[derive(Debug, Default)]
struct Parts<'a, 'f> {
    /// What it shares with other modules.
    alt: Option<&'a DwarfData<'a>>,
    split: Option<SplitLoader<'a, 'f>>,
    /// Where the first values of its thread-local variables are, and room for those without.
    tls: Range<u64>,
}

/// Types of all modules, with what finds them.
#[derive(Debug, Default)]
pub struct DeclaredTypes {
    /// All types.
    pub table: TypeTable,
    /// Classes and structures by their names' [`crate::heap::types::name_hash`].
    pub by_name: FxHashMap<u64, TypeId>,
}

impl DeclaredTypes {
    /// Reads what a module declares. What is wrong with its files is told by those who look up its functions.
    pub fn read(&mut self, source: &ModuleSource, search: &Search, budget: &mut Budget) -> Declarations {
        if budget.is_over() {
            return Declarations::default();
        }
        budget.refill();
        let mut silent = |_| {};
        let file = module_file(source, search, &mut silent);
        let own = file.as_ref().and_then(|(_, bytes)| Elf::parse(bytes).ok());
        let debug_file = match own {
            Some(elf) if elf.sections().has_debug_info() => None,
            _ => {
                let build_id = source.build_id.as_deref().and_then(unhex);
                search.debug_file(&source.path, build_id.as_deref(), own.as_ref(), &mut silent)
            }
        };
        let debug = debug_file.as_ref().and_then(|(place, bytes)| parse(place, bytes, &mut silent));
        let place = debug_file.as_ref().or(file.as_ref()).map(|(place, _)| place.as_path());
        let Some((place, elf)) = place.zip(debug.or(own)) else { return Declarations::default() };
        if !elf.sections().has_debug_info() {
            return Declarations::default();
        }
        // a file without a build id was summed
        if budget.is_over() || !budget.unpacks(&elf) {
            return Declarations::default();
        }
        let mut problem = None;
        let Some(data) = load_dwarf(place, &elf, true, &mut |why| problem = Some(why)) else {
            return Declarations { problem, ..Declarations::default() };
        };
        let alt_bytes: Option<Bytes> = search.alt_file(place, &elf, &mut silent);
        let alt_elf = alt_bytes.as_ref().and_then(|bytes| Elf::parse_debug(bytes).ok());
        let alt_elf = alt_elf.filter(|elf| !budget.is_over() && budget.unpacks(elf));
        let alt = alt_elf.as_ref().and_then(|elf| load_dwarf(place, elf, true, &mut |why| problem = Some(why)));
        if budget.is_over() {
            return Declarations::default();
        }
        let split_files = SplitFiles::default();
        let split_sections = SplitSections::default();
        let split = SplitLoader::new(search, Owner { module: &source.path, place }, &split_files, &split_sections);
        let tls = own.unwrap_or(elf).tls().map(|tls| tls.image).unwrap_or_default();
        let split = split.with_types(budget.left(Of::Unpacked) as u64);
        let found = self.read_dwarf(&data, Parts { alt: alt.as_ref(), split: Some(split), tls }, budget);
        Declarations { problem, ..found }
    }

    fn read_dwarf<'a>(&mut self, data: &'a DwarfData<'_>, parts: Parts<'a, '_>, budget: &mut Budget) -> Declarations {
        budget.begin();
        let files = files::Files::open(data.borrow(), parts, budget);
        budget.begin();
        let index = walk::index(&files, budget);
        budget.begin();
        let found = resolve::resolve(self, &files, &index, budget);
        Declarations { missing: files.missing, ..found }
    }
}

#[cfg(test)]
mod tests;
