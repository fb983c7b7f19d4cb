//! Addresses to functions, lines and inlined frames: ELF symbol tables, DWARF, separate debug files. After the run,
//! never in the stop loop.
//!
//! A few modules are open at a time at most. Nothing here fails: what can't be read is told as a warning, and its
//! addresses stay without names.

use crate::base::addr::{Addr, ModuleId, ObjAddr};
use crate::image::elf::{Elf, Symbol, hex};
use crate::profile::SymbolStatus;
use crate::profile::symbolize::{FunctionName, Question, Resolution, SymFrame, Symbolize};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod ahead;
mod beside;
mod companions;
pub mod declared;
mod demangle;
mod dlang;
mod dwarf;
mod dwarfsections;
mod files;
mod generics;
mod narrow;
mod packages;
mod perfmap;
mod scopes;
mod similar;
mod split;
mod table;
mod variables;

pub use companions::Leads;
pub use demangle::function_name;
pub use files::{Bytes, DebugServers, FileVersion, Search};
pub use perfmap::PerfMap;
pub use similar::Similar;

use ahead::Prefetch;
use beside::both;
use dwarf::{DwarfData, DwarfFrames, DwarfLookup};
use split::{Owner, SplitFiles, SplitLoader, SplitSections};
use table::FunctionTable;
use variables::Variables;

/// What the symbolizer needs to know about a module.
#[derive(Debug, Default)]
pub struct ModuleSource {
    /// The path as the target sees it, or `[vdso]`.
    pub path: PathBuf,
    /// The build id in lower-case hex, read from the target's memory. A file with another one is not used.
    pub build_id: Option<String>,
    /// The file, if it was opened while it was certain to be the right one.
    pub file: Option<Arc<File>>,
    /// What it was then, to know it again at its path.
    pub version: Option<FileVersion>,
    /// The module's bytes as they are in memory: for the vdso and for files that are gone.
    pub memory: Option<ModuleMemory>,
}

impl ModuleSource {
    /// Whether the file at `place` may be the module's, as far as can be told without its build id.
    fn may_be_at(&self, place: &Path) -> bool {
        match self.version {
            Some(version) => FileVersion::at(place) == Some(version),
            // Where memory stands in for the file, the file was not there.
            None => self.memory.is_none(),
        }
    }
}

/// A module's bytes in memory, see [`Elf::parse_memory`].
#[derive(Clone, Debug)]
pub struct ModuleMemory {
    /// Where the first byte is.
    pub start: Addr,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// Resolves addresses of the modules of one process.
#[derive(Debug, Default)]
pub struct Symbolizer {
    modules: FxHashMap<ModuleId, Arc<ModuleSource>>,
    search: Search,
    perf_map: Option<PerfMap>,
    warnings: Vec<String>,
    variables: FxHashMap<ModuleId, Variables>,
    ahead: Prefetch,
}

impl Symbolizer {
    /// A symbolizer that looks for files as `search` says.
    pub fn new(search: Search) -> Self {
        Self { search, ..Self::default() }
    }

    /// Makes it name code outside of modules, too.
    #[must_use]
    pub fn with_perf_map(self, perf_map: PerfMap) -> Self {
        Self { perf_map: Some(perf_map), ..self }
    }

    /// Makes a module known.
    pub fn add_module(&mut self, id: ModuleId, source: ModuleSource) {
        self.modules.insert(id, Arc::new(source));
    }

    /// Begins to look at all of these modules on other threads, long before [`Symbolize::resolve`] is asked for exactly
    /// these addresses. Nothing is begun where debug servers may be asked: those are asked one after the other.
    pub fn begin(&mut self, questions: &[Question]) {
        self.begin_on_threads(questions, 1);
    }

    fn begin_on_threads(&mut self, questions: &[Question], least: usize) {
        if self.search.servers.is_some() {
            return;
        }
        let known = |(module, addrs): &Question| Some((*module, Arc::clone(self.modules.get(module)?), addrs.clone()));
        self.ahead.begin(&self.search, questions.iter().filter_map(known).collect(), least);
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

impl Symbolize for Symbolizer {
    fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
        let unknown = || Resolution { frames: vec![Vec::new(); addrs.len()], status: SymbolStatus::default() };
        if let Some(perf_map) = self.perf_map.as_ref().filter(|_| module == ModuleId::NONE) {
            return perf_map.resolve(addrs);
        }
        let Some(source) = self.modules.get(&module) else { return unknown() };
        let (resolution, warnings) =
            self.ahead.take(module, addrs).unwrap_or_else(|| ahead::look(source, &self.search, addrs));
        for warning in warnings {
            self.warn(warning);
        }
        resolution
    }

    fn variable(&mut self, module: ModuleId, addr: ObjAddr) -> Option<(String, u64)> {
        if !self.variables.contains_key(&module) {
            let source = self.modules.get(&module)?;
            // What is wrong with the files was told when functions were looked up.
            let variables = Variables::of(source, &self.search, &mut |_| {});
            self.variables.insert(module, variables);
        }
        self.variables.get(&module)?.find(addr)
    }

    fn debug_packages(&mut self, files: &[PathBuf]) -> Vec<Option<String>> {
        self.ahead.take_packages(files).unwrap_or_else(|| packages::debug_packages(&self.search.root, files))
    }

    /// Looks at several modules side by side. One is not worth a thread, as its asker waits.
    fn expect(&mut self, questions: &[Question]) {
        self.begin_on_threads(questions, 2);
    }

    fn expect_packages(&mut self, files: &[PathBuf]) {
        self.ahead.begin_packages(&self.search, files);
    }

    fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }
}

fn resolve_module(
    source: &ModuleSource,
    search: &Search,
    addrs: &[ObjAddr],
    warn: &mut dyn FnMut(String),
) -> Resolution {
    let file = module_file(source, search, warn);
    let own = file.as_ref().and_then(|(_, bytes)| Elf::parse(bytes).ok());
    // The memory has the dynamic symbols only: it stands in for the file.
    let memory = source.memory.as_ref().filter(|_| own.is_none());
    let image = memory.and_then(|m| match Elf::parse_memory(&m.bytes, m.start) {
        Ok(elf) => Some(elf),
        Err(error) => {
            warn(format!("{}: {error}", source.path.display()));
            None
        }
    });

    let known = own.or(image);
    let build_id = match &source.build_id {
        Some(id) => unhex(id),
        None => known.and_then(|elf| elf.build_id().map(<[u8]>::to_vec)),
    };
    let is_whole = own.is_some_and(|elf| elf.sections().has_debug_info());
    let debug_file = if is_whole || image.is_some_and(|_| source.path.starts_with("[vdso]")) {
        None
    } else {
        search.debug_file(&source.path, build_id.as_deref(), known.as_ref(), warn)
    };
    let objects = Objects { own, image, file: file.as_ref(), debug_file: debug_file.as_ref() };
    if debug_file.is_some() {
        files::linger();
    }
    let resolution = resolve_by(&objects, source, search, addrs, warn);
    for (place, _) in file.iter().chain(&debug_file).filter(|(_, bytes)| bytes.is_cut()) {
        warn(shortened(place));
    }
    resolution
}

fn shortened(place: &Path) -> String {
    format!("{} became shorter while heaptrace read it: names are incomplete", place.display())
}

/// What was found of a module.
struct Objects<'d> {
    /// The object in its file.
    own: Option<Elf<'d>>,
    /// The object in memory, where there is no file.
    image: Option<Elf<'d>>,
    file: Option<&'d (PathBuf, Bytes)>,
    debug_file: Option<&'d (PathBuf, Bytes)>,
}

fn resolve_by(
    found: &Objects<'_>,
    source: &ModuleSource,
    search: &Search,
    addrs: &[ObjAddr],
    warn: &mut dyn FnMut(String),
) -> Resolution {
    let &Objects { own, image, file, debug_file } = found;
    let debug = debug_file.and_then(|(place, bytes)| parse(place, bytes, warn));
    let packed = packed_symbols([own, debug], &source.path, warn);
    let mini = packed.as_ref().and_then(|bytes| parse(&source.path, bytes, warn));

    let objects: Vec<Elf<'_>> = [own, image, debug, mini].into_iter().flatten().collect();
    let place_of_dwarf = debug_file.or(file).map(|(place, _)| place.as_path());
    let with_dwarf = place_of_dwarf.zip(debug.or(own));
    let is_cut = || file.into_iter().chain(debug_file).any(|(_, bytes)| bytes.is_cut());
    let load =
        || with_dwarf.and_then(|(place, elf)| Some((place, elf, load_names(place, &elf, addrs, &is_cut, warn)?)));
    let (functions, loaded) = both(|| FunctionTable::new(&objects, addrs), load);
    let Some((place, elf, data)) = loaded else { return resolve_all(addrs, &functions, None) };
    let alt_bytes = search.alt_file(place, &elf, warn);
    let alt_elf = alt_bytes.as_ref().and_then(|bytes| {
        let parsed = Elf::parse_debug(bytes);
        parsed.map_err(|error| warn(format!("the shared debug information of {}: {error}", place.display()))).ok()
    });
    let alt = alt_elf.as_ref().and_then(|elf| load_dwarf(place, elf, false, warn));
    let split_files = SplitFiles::default();
    let split_sections = SplitSections::default();
    let split = SplitLoader::new(search, Owner { module: &source.path, place }, &split_files, &split_sections);
    let narrowed = data.narrowed(addrs);
    match DwarfLookup::new(&data, alt.as_ref(), split, narrowed.as_ref()) {
        Ok(mut lookup) => {
            let resolution = resolve_all(addrs, &functions, Some(&mut lookup));
            lookup.into_warnings(place).into_iter().for_each(&mut *warn);
            split_files.cut().for_each(|place| warn(shortened(place)));
            if alt_bytes.as_ref().is_some_and(Bytes::is_cut) {
                warn(format!("the shared debug information of {}", shortened(place)));
            }
            resolution
        }
        Err(error) => {
            warn(format!("{}: damaged debug information: {error}", place.display()));
            resolve_all(addrs, &functions, None)
        }
    }
}

/// The module's own file, where it is certain to be the one that was mapped.
fn module_file(source: &ModuleSource, search: &Search, warn: &mut dyn FnMut(String)) -> Option<(PathBuf, Bytes)> {
    let opened = source.file.as_ref().map(|file| {
        // it may have been written to since
        let is_proven = source.build_id.is_some() || source.version.is_none_or(|v| FileVersion::of(file) == Some(v));
        (source.path.clone(), Bytes::of_file(file), is_proven)
    });
    let places = if source.path.is_absolute() { search.places(&source.path) } else { Vec::new() };
    let found = places.into_iter().map(|place| {
        let bytes = Bytes::open(&place);
        let is_proven = source.build_id.is_some() || search.is_in_sysroot(&place) || source.may_be_at(&place);
        (place, bytes, is_proven)
    });
    for (place, bytes, is_proven) in opened.into_iter().chain(found) {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                // Where memory stands in for the file, it was told that there is none.
                if source.memory.is_none() {
                    warn(format!("{}: {error}", place.display()));
                }
                continue;
            }
        };
        let Some(elf) = parse(&place, &bytes, warn) else { continue };
        let why = match &source.build_id {
            _ if !is_proven => "it has changed since, and has no build id",
            Some(wanted) if elf.build_id().map(hex).as_ref() != Some(wanted) => "build id differs",
            _ => return Some((place, bytes)),
        };
        if source.memory.is_none() || search.is_in_sysroot(&place) {
            warn(format!("{} is not the file that the program has mapped ({why}): ignored", place.display()));
        }
    }
    None
}

fn parse<'d>(place: &Path, bytes: &'d [u8], warn: &mut dyn FnMut(String)) -> Option<Elf<'d>> {
    Elf::parse(bytes).map_err(|error| warn(format!("{}: {error}", place.display()))).ok()
}

/// The file's packed symbol table (`.gnu_debugdata`), where nothing better is there.
fn packed_symbols(objects: [Option<Elf<'_>>; 2], path: &Path, warn: &mut dyn FnMut(String)) -> Option<Vec<u8>> {
    if objects.iter().flatten().any(Elf::has_symtab) {
        return None;
    }
    let packed = objects.into_iter().flatten().next()?.mini_debug_info();
    packed.unwrap_or_else(|error| {
        warn(format!("{}: {error}", path.display()));
        None
    })
}

fn load_dwarf<'d>(
    place: &Path,
    elf: &Elf<'d>,
    with_types: bool,
    warn: &mut dyn FnMut(String),
) -> Option<DwarfData<'d>> {
    if !elf.sections().has_debug_info() {
        return None;
    }
    DwarfData::load(elf, with_types).map_err(|error| warn(format!("{}: {error}", place.display()))).ok()
}

/// What names and lines of these addresses need. `is_cut` tells whether the file has been shortened meanwhile: the
/// zeros in place of what is gone may be uncompressed to anything, which only the checksum at the end of a section
/// shows.
fn load_names<'d>(
    place: &Path,
    elf: &Elf<'d>,
    addrs: &[ObjAddr],
    is_cut: &dyn Fn() -> bool,
    warn: &mut dyn FnMut(String),
) -> Option<DwarfData<'d>> {
    if !elf.sections().has_debug_info() {
        return None;
    }
    let loaded = DwarfData::load_for(elf, addrs);
    let loaded = if is_cut() { DwarfData::load(elf, false) } else { loaded };
    loaded.map_err(|error| warn(format!("{}: {error}", place.display()))).ok()
}

fn resolve_all(
    addrs: &[ObjAddr],
    functions: &FunctionTable<'_>,
    mut dwarf: Option<&mut DwarfLookup<'_, '_>>,
) -> Resolution {
    let mut status = SymbolStatus::default();
    let mut frames = Vec::with_capacity(addrs.len());
    let mut known = KnownSymbol::default();
    for &addr in addrs {
        let found = dwarf.as_mut().map(|lookup| lookup.find(addr)).unwrap_or_default();
        status.inlines |= found.has_function;
        let resolved = with_symbol(found, functions.find(addr), &mut known);
        status.functions |= resolved.iter().any(|f| f.function.is_some());
        status.files |= resolved.iter().any(|f| f.file.is_some());
        status.lines |= resolved.iter().any(|f| f.line != 0);
        frames.push(resolved);
    }
    Resolution { frames, status }
}

/// The symbol that was named last: addresses come in their order, many of one function.
#[derive(Default)]
struct KnownSymbol<'s>(Option<(&'s str, FunctionName)>);

impl<'s> KnownSymbol<'s> {
    fn name(&mut self, symbol: &'s Symbol<'_>) -> FunctionName {
        match &self.0 {
            Some((raw, name)) if *raw == symbol.name => name.clone(),
            _ => {
                let name = function_name(&symbol.name);
                self.0 = Some((&symbol.name, name.clone()));
                name
            }
        }
    }
}

/// Completes what DWARF says by the symbol table: where DWARF names no function, and where its name for the outermost
/// one is the bare identifier of a function whose symbol is mangled (`clang -gline-tables-only`).
fn with_symbol<'s>(found: DwarfFrames, symbol: Option<&'s Symbol<'_>>, known: &mut KnownSymbol<'s>) -> Vec<SymFrame> {
    let mut frames = found.frames;
    let outermost = frames.last().and_then(|f| f.function.as_ref());
    let Some(symbol) = symbol else { return frames };
    if outermost.is_none_or(|f| !demangle::is_mangled(&f.system_name) && demangle::is_mangled(&symbol.name)) {
        let name = known.name(symbol);
        match frames.last_mut() {
            Some(frame) => frame.function = Some(name),
            None => frames.push(SymFrame { function: Some(name), ..SymFrame::default() }),
        }
    }
    frames
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits.filter(|d| !d.is_empty() && d.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

#[cfg(test)]
mod tests;
