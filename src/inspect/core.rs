//! A core file with the files that its process had mapped.

use super::modules::{self, Objects};
use crate::arch::PAGE_SIZE;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::base::paths::below;
use crate::image::corefile::{self, CoreFile, CoreFileError, CoreMemory, FilePart};
use crate::image::elf::{Elf, Segment, hex};
use crate::image::maps::{Kind, MappedModule, Mapping, Perms};
use crate::symbols::Bytes;
use crate::tracer::files::open_regular;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// So much from a module's beginning on is looked at for its build id, in bytes.
const HEAD: usize = 64 << 10;

/// Why a core can't be looked at.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum CoreError {
    #[error("{path}: can't be read: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: CoreFileError },
    #[error("{path} is not the program of this core: {why}")]
    OtherProgram { path: PathBuf, why: String },
}

/// Where files of the process are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreFiles<'a> {
    /// The program that was executed; None: where the core says.
    pub program: Option<&'a Path>,
    /// A folder with the file system of the machine that the core is from.
    pub sysroot: Option<&'a Path>,
}

impl CoreFiles<'_> {
    /// Where a file is that the process called `path`.
    fn place(&self, path: &Path) -> PathBuf {
        self.sysroot.map_or_else(|| path.to_owned(), |sysroot| below(sysroot, path))
    }
}

/// A core that was read.
#[derive(Debug)]
pub struct Core {
    bytes: Bytes,
    /// What it says.
    pub file: CoreFile,
    objects: Objects,
    pages: Vec<Range<Addr>>,
    /// What is missing, in sentences.
    pub warnings: Vec<String>,
}

impl Core {
    /// Reads a core, and opens the files that its process had mapped.
    ///
    /// # Errors
    /// It can't be read, or is no core; the program is not the one that the user names.
    pub fn open(path: &Path, files: &CoreFiles<'_>) -> Result<Self, CoreError> {
        let bytes = Bytes::open(path).map_err(|source| CoreError::Open { path: path.to_owned(), source })?;
        let file = corefile::parse(&bytes).map_err(|source| CoreError::File { path: path.to_owned(), source })?;
        let mut core = Self { bytes, file, objects: Objects::default(), pages: Vec::new(), warnings: Vec::new() };
        core.complete_permissions(files);
        core.open_modules(files)?;
        core.pages = core.file.pages_in_use(&core.bytes);
        Ok(core)
    }

    /// gdb leaves out mappings if it keeps no byte of them. The files say what access they allow.
    fn complete_permissions(&mut self, files: &CoreFiles<'_>) {
        let mut segments: BTreeMap<PathBuf, Option<Vec<Segment>>> = BTreeMap::new();
        // of a file that is not there: a module has data
        let written: BTreeSet<PathBuf> = self
            .file
            .mappings
            .iter()
            .filter(|mapping| mapping.perms.write)
            .filter_map(|mapping| mapping.path.clone())
            .collect();
        let unknown = |mapping: &&mut Mapping| mapping.kind == Kind::File && mapping.perms == Perms::default();
        for mapping in self.file.mappings.iter_mut().filter(unknown) {
            let Some(path) = &mapping.path else { continue };
            let of_file = segments.entry(path.clone()).or_insert_with(|| {
                let file = open_regular(&files.place(path)).and_then(|file| Bytes::of_file(&file));
                file.ok().map(|bytes| Elf::parse(&bytes).map_or_else(|_| Vec::new(), |elf| elf.segments().collect()))
            });
            let offset = mapping.offset;
            let covers = |segment: &&Segment| {
                let first = segment.offset / PAGE_SIZE * PAGE_SIZE;
                (first..segment.offset.saturating_add(segment.file_size)).contains(&offset)
            };
            // what the program could write to was kept
            let execute = match of_file {
                // where one ends and the next begins in the same page, a mapping of that page begins with the next
                Some(segments) => segments.iter().rfind(covers).is_some_and(|segment| segment.execute),
                None => written.contains(path),
            };
            mapping.perms = Perms { read: true, write: false, execute, shared: false };
        }
    }

    fn open_modules(&mut self, files: &CoreFiles<'_>) -> Result<(), CoreError> {
        let mut warnings = Vec::new();
        let mut refused = None;
        let entry = self.file.entry;
        let objects = modules::objects(&self.file.mappings, |mapped| {
            let is_program = entry.is_some_and(|entry| mapped.segments.iter().any(|segment| segment.contains(entry)));
            let named = files.program.filter(|_| is_program);
            let path = named.map_or_else(|| files.place(&mapped.path), Path::to_owned);
            let why = match self.open_module(&path, mapped) {
                Ok(found) => return Some(found),
                Err(why) => why,
            };
            if named.is_some() {
                refused = Some(CoreError::OtherProgram { path, why });
            } else {
                warnings.push(format!("{}: {why}: its symbols and constants are missing here", path.display()));
            }
            None
        });
        self.objects = objects;
        self.warnings = warnings;
        refused.map_or(Ok(()), Err)
    }

    /// Opens a file if it can be the one that was mapped.
    fn open_module(&self, place: &Path, mapped: &MappedModule) -> Result<(File, Bytes), String> {
        let file = open_regular(place).map_err(|error| error.to_string())?;
        let bytes = Bytes::of_file(&file).map_err(|error| error.to_string())?;
        if !modules::fits(&bytes, mapped) {
            return Err("it is not the file that was mapped (its segments differ)".to_owned());
        }
        let known = Elf::parse(&bytes).ok().and_then(|elf| elf.build_id_hex());
        match self.build_id(mapped) {
            Some(wanted) if known.as_ref() != Some(&wanted) => {
                Err(format!("it is not the file that was mapped (that had the build id {wanted})"))
            }
            _ => Ok((file, bytes)),
        }
    }

    /// The build id of a module, where its first page was kept.
    fn build_id(&self, mapped: &MappedModule) -> Option<String> {
        let mut head = vec![0; HEAD];
        let read = CoreMemory::new(&self.file, &self.bytes, &[]).read(mapped.start(), &mut head);
        head.truncate(read);
        Elf::parse_memory(&head, mapped.start()).ok()?.build_id().map(hex)
    }

    /// All mappings in the order of addresses.
    pub(super) fn mappings(&self) -> &[Mapping] {
        &self.file.mappings
    }

    /// The object files.
    pub(super) const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The pages of which the core has kept something.
    pub(super) fn pages(&self) -> Vec<Range<Addr>> {
        self.pages.clone()
    }

    /// What stands in for memory that was not kept.
    pub(super) fn file_parts(&self) -> Vec<FilePart<'_>> {
        let mut parts = Vec::new();
        for object in &self.objects.found {
            let of_object = |mapping: &&Mapping| {
                mapping.kind == Kind::File
                    && mapping.path.as_ref() == Some(&object.path)
                    && object.range.start <= mapping.start
                    && mapping.end <= object.range.end
            };
            parts.extend(self.file.mappings.iter().filter(of_object).map(|mapping| FilePart {
                range: mapping.range(),
                offset: mapping.offset,
                bytes: &object.bytes,
            }));
        }
        parts.sort_by_key(|part| part.range.start);
        parts
    }

    /// The memory that the process had; of what was not kept, that of `files`.
    pub(super) fn memory<'a>(&'a self, files: &'a [FilePart<'a>]) -> CoreMemory<'a> {
        CoreMemory::new(&self.file, &self.bytes, files)
    }

    /// How much memory was kept, in bytes.
    pub fn stored(&self) -> u64 {
        self.file.stored.iter().map(|part| part.range.end.0 - part.range.start.0).sum()
    }
}
