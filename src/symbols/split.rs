//! Split DWARF: the part of the debug information that compilers leave in `.dwo` files beside the objects
//! (`-gsplit-dwarf`), or that `dwp` has gathered into one package beside the program.
//!
//! DWARF 5, section 7.3.2 and appendix F; for DWARF 4 GCC's DebugFission. A file is taken only if it has the id that
//! the program asks for.

use super::dwarfsections::{SectionBytes, Slice, is_wanted, unpacked_size};
use super::files::{Bytes, Search, open_if_there};
use crate::image::elf::{Elf, ElfError};
use addr2line::{LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, DwarfPackageSections, DwarfSections, EndianSlice, LittleEndian, Section, SectionId};
use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Keeps values until all are dropped; each stays where it is.
#[derive(Debug)]
struct Arena<T> {
    /// Chunk n has room for 2^n values.
    chunks: [OnceCell<Vec<OnceCell<T>>>; usize::BITS as usize],
    used: Cell<usize>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { chunks: [const { OnceCell::new() }; usize::BITS as usize], used: Cell::new(0) }
    }
}

impl<T> Arena<T> {
    fn keep(&self, value: T) -> Option<&T> {
        let number = self.used.get().checked_add(1)?;
        self.used.set(number);
        let chunk = number.ilog2();
        let slots = self.chunks.get(chunk as usize)?;
        let slots = slots.get_or_init(|| (0..1_usize << chunk).map(|_| OnceCell::new()).collect());
        Some(slots.get(number - (1 << chunk))?.get_or_init(|| value))
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().filter_map(OnceCell::get).flatten().filter_map(OnceCell::get)
    }
}

/// The bytes of the files that one module's split DWARF is read from.
#[derive(Debug, Default)]
pub(super) struct SplitFiles(Arena<(PathBuf, Bytes)>);

impl SplitFiles {
    /// The files that were found to have been shortened while they were looked at.
    pub(super) fn cut(&self) -> impl Iterator<Item = &Path> {
        self.0.all().filter(|(_, bytes)| bytes.is_cut()).map(|(place, _)| place.as_path())
    }
}

/// The sections of those files.
#[derive(Debug, Default)]
pub(super) struct SplitSections<'f> {
    units: Arena<DwarfSections<SectionBytes<'f>>>,
    packages: Arena<DwarfPackageSections<SectionBytes<'f>>>,
}

/// Where the program that is being named lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner<'a> {
    /// The module's path as the target sees it.
    pub(super) module: &'a Path,
    /// The file with its DWARF: its own, or the separate debug file.
    pub(super) place: &'a Path,
}

/// Finds the split part of units when they are first looked into.
pub(super) struct SplitLoader<'a, 'f> {
    search: &'a Search,
    owner: Owner<'a>,
    files: &'f SplitFiles,
    sections: &'a SplitSections<'f>,
    /// Looked for when a unit first needs it.
    packages: Option<Vec<DwarfPackage<Slice<'a>>>>,
    missing: usize,
    first_missing: Option<PathBuf>,
    warnings: Vec<String>,
    /// Whether units of types are wanted, too.
    with_types: bool,
    /// So many bytes may still be unpacked; None: any number.
    room: Option<u64>,
    /// So many files were left out, as there was no room for them.
    left_out: usize,
}

impl std::fmt::Debug for SplitLoader<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SplitLoader")
            .field("owner", &self.owner)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

impl<'a, 'f> SplitLoader<'a, 'f> {
    pub(super) fn new(
        search: &'a Search,
        owner: Owner<'a>,
        files: &'f SplitFiles,
        sections: &'a SplitSections<'f>,
    ) -> Self {
        Self {
            search,
            owner,
            files,
            sections,
            packages: None,
            missing: 0,
            first_missing: None,
            warnings: Vec::new(),
            with_types: false,
            room: None,
            left_out: 0,
        }
    }

    /// Gives units of types, too, which stand before the unit that is asked for. What is compressed is unpacked up to
    /// `room` bytes in all.
    pub(super) fn with_types(self, room: u64) -> Self {
        Self { with_types: true, room: Some(room), ..self }
    }

    /// How many files were left out, as there was no room to unpack them.
    pub(super) const fn left_out(&self) -> usize {
        self.left_out
    }

    /// Takes the room that unpacking these sections needs. Whether there is so much.
    fn takes_room(&mut self, bytes: &[u8], is_wanted: impl Fn(SectionId) -> bool) -> bool {
        let Some(room) = self.room else { return true };
        let needed = Elf::parse_debug(bytes).map_or(0, |elf| unpacked_size(&elf, is_wanted, SectionId::dwo_name));
        match room.checked_sub(needed) {
            Some(left) => self.room = Some(left),
            None => self.left_out += 1,
        }
        needed <= room
    }

    /// Goes through with a look-up, and loads what it asks for.
    pub(super) fn complete<L>(&mut self, mut result: LookupResult<L>) -> L::Output
    where
        L: LookupContinuation<Buf = Slice<'a>>,
    {
        loop {
            result = match result {
                LookupResult::Output(output) => return output,
                LookupResult::Load { load, continuation } => continuation.resume(self.load(&load)),
            };
        }
    }

    /// What went wrong.
    pub(super) fn into_warnings(self) -> Vec<String> {
        let mut warnings = self.warnings;
        if let Some(first) = self.first_missing {
            let more = if self.missing > 1 { format!(" and {} more", self.missing - 1) } else { String::new() };
            warnings.push(format!(
                "{} needs {}{more} (split DWARF), which {} missing: inlined calls will not show. Keep the .dwo files \
                 where they were built, or make a package by `dwp -e PROGRAM` and put it beside the program as \
                 PROGRAM.dwp",
                self.owner.module.display(),
                first.display(),
                if self.missing > 1 { "are" } else { "is" },
            ));
        }
        warnings
    }

    /// The units of types of packages, each for itself, as many as `most`, and whether those are all.
    pub(super) fn type_units(
        &mut self,
        parent: &Arc<Dwarf<Slice<'a>>>,
        most: usize,
    ) -> (Vec<Arc<Dwarf<Slice<'a>>>>, bool) {
        let rows = self.packages.iter().flatten().flat_map(|package| {
            (1..=package.tu_index.unit_count()).map(move |row| package.tu_sections(row, parent).ok())
        });
        let mut rows = rows.fuse();
        let taken: Vec<_> = rows.by_ref().take(most).collect();
        let are_all = rows.next().is_none() && taken.iter().all(Option::is_some);
        (taken.into_iter().flatten().map(Arc::new).collect(), are_all)
    }

    /// What a unit asks for.
    pub(super) fn load(&mut self, load: &SplitDwarfLoad<Slice<'a>>) -> Option<Arc<Dwarf<Slice<'a>>>> {
        if let Some(found) = self.packaged(load) {
            return Some(Arc::new(found));
        }
        let name = Path::new(OsStr::from_bytes(load.path?.slice()));
        let folder = load.comp_dir.map(|folder| Path::new(OsStr::from_bytes(folder.slice())));
        let recorded = folder.map_or_else(|| name.to_owned(), |folder| folder.join(name));
        for place in self.search.split_unit_places(self.owner.module, self.owner.place, &recorded) {
            let warnings = &mut self.warnings;
            let Some(bytes) = open_if_there(&place, &mut |warning| warnings.push(warning)) else { continue };
            let Some((_, bytes)) = self.files.0.keep((place.clone(), bytes)) else { continue };
            let with_types = self.with_types;
            if !self.takes_room(bytes, |id| is_wanted(id, with_types)) {
                return None;
            }
            match self.unit(bytes, load) {
                Ok(Some(dwarf)) => return Some(Arc::new(dwarf)),
                Ok(None) => self.warn(format!(
                    "{} is not the file that {} was built with (its id differs): ignored",
                    place.display(),
                    self.owner.module.display()
                )),
                Err(error) => self.warn(format!("{}: {error}", place.display())),
            }
        }
        self.missing += 1;
        self.first_missing.get_or_insert(recorded);
        None
    }

    fn packaged(&mut self, load: &SplitDwarfLoad<Slice<'a>>) -> Option<Dwarf<Slice<'a>>> {
        if self.packages.is_none() {
            self.packages = Some(self.open_packages());
        }
        let mut damage = None;
        for package in self.packages.iter().flatten() {
            match package.find_cu(load.dwo_id, &load.parent) {
                Ok(Some(found)) => return Some(found),
                Ok(None) => {}
                Err(error) => damage = Some(error),
            }
        }
        if let Some(error) = damage {
            self.warn(format!("damaged package of split DWARF of {}: {error}", self.owner.module.display()));
        }
        None
    }

    fn open_packages(&mut self) -> Vec<DwarfPackage<Slice<'a>>> {
        let mut packages = Vec::new();
        for place in self.search.package_places(self.owner.module, self.owner.place) {
            let warnings = &mut self.warnings;
            let Some(bytes) = open_if_there(&place, &mut |warning| warnings.push(warning)) else { continue };
            let Some((_, bytes)) = self.files.0.keep((place.clone(), bytes)) else { continue };
            if !self.takes_room(bytes, |_| true) {
                continue;
            }
            match self.package(bytes) {
                Ok(package) => packages.extend(package),
                Err(error) => self.warn(format!("{}: {error}", place.display())),
            }
        }
        packages
    }

    fn package(&self, bytes: &'f [u8]) -> Result<Option<DwarfPackage<Slice<'a>>>, SplitError> {
        let elf = Elf::parse_debug(bytes)?;
        // All: the index gives each unit its part of every section.
        let sections = DwarfPackageSections::load(|id| section(&elf, id))?;
        let Some(sections) = self.sections.packages.keep(sections) else { return Ok(None) };
        Ok(Some(sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian), EndianSlice::new(&[], LittleEndian))?))
    }

    /// The DWARF of a `.dwo` file; None if it is another one than the program was built with.
    fn unit(&self, bytes: &'f [u8], load: &SplitDwarfLoad<Slice<'a>>) -> Result<Option<Dwarf<Slice<'a>>>, SplitError> {
        let elf = Elf::parse_debug(bytes)?;
        let wanted = |id| if is_wanted(id, self.with_types) { section(&elf, id) } else { Ok(Cow::Borrowed(&[][..])) };
        let sections = DwarfSections::load(wanted)?;
        let Some(sections) = self.sections.units.keep(sections) else { return Ok(None) };
        let mut dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian));
        dwarf.make_dwo(&load.parent);
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            if dwarf.unit(header)?.dwo_id != Some(load.dwo_id) {
                continue;
            }
            // Who looks into it takes the first unit, but units of types may stand before it.
            if let Some(offset) = header.debug_info_offset().filter(|_| !self.with_types) {
                let from_it = dwarf.debug_info.reader().slice().get(offset.0..).unwrap_or_default();
                dwarf.debug_info = gimli::DebugInfo::new(from_it, LittleEndian);
            }
            return Ok(Some(dwarf));
        }
        Ok(None)
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// Why a file of split DWARF can't be used.
#[derive(Debug, thiserror::Error)]
enum SplitError {
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error("damaged debug information: {0}")]
    Dwarf(#[from] gimli::Error),
}

fn section<'f>(elf: &Elf<'f>, id: SectionId) -> Result<SectionBytes<'f>, SplitError> {
    let Some(name) = id.dwo_name() else { return Ok(Cow::Borrowed(&[])) };
    // Each unit of types stands in a section of its own.
    if matches!(id, SectionId::DebugInfo | SectionId::DebugTypes) {
        Ok(elf.sections().joined_data(name)?)
    } else {
        Ok(elf.sections().data(name)?.unwrap_or_default())
    }
}
