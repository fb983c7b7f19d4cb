//! Functions, lines and inlined calls from DWARF.

use super::beside::each;
use super::demangle::{LONGEST_NAME, function_name};
use super::dwarfsections::{SectionBytes, Slice, is_wanted};
use super::generics::{is_legacy_rust, with_arguments};
use super::narrow::{Choice, LARGEST, narrowed};
use super::scopes::{ScopedNames, known_or_scoped};
use super::split::SplitLoader;
use crate::base::addr::ObjAddr;
use crate::image::elf::{Elf, ElfError};
use crate::profile::symbolize::{FunctionName, SymFrame};
use addr2line::{Context, Frame};
use gimli::{AttributeValue, DwarfSections, EndianSlice, LittleEndian, SectionId};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::path::Path;

/// How often a function's DIE may refer to another before its declaration is given up (a damaged file may go in
/// circles).
const LONGEST_CHAIN: usize = 8;

/// The parameters of a generic function, at most.
const MAX_PARAMS: usize = 256;

/// The DWARF sections of a file, uncompressed.
#[derive(Debug)]
pub struct DwarfData<'d> {
    sections: DwarfSections<SectionBytes<'d>>,
    /// If of `.debug_info` only the beginning was uncompressed.
    beginning: Option<Beginning<'d>>,
}

/// The beginning of a `.debug_info` section, with the units of some addresses.
#[derive(Debug)]
struct Beginning<'d> {
    elf: Elf<'d>,
    /// Other units in it are passed over: see [`Choice::mark`].
    part: Vec<u8>,
    /// The whole section, once it has been needed, or why it can't be had.
    whole: OnceCell<Result<SectionBytes<'d>, ElfError>>,
}

impl Beginning<'_> {
    fn whole(&self) -> Result<&[u8], &ElfError> {
        let load = || self.elf.sections().data(SectionId::DebugInfo.name()).map(Option::unwrap_or_default);
        self.whole.get_or_init(load).as_ref().map(|bytes| &**bytes)
    }
}

impl<'d> DwarfData<'d> {
    /// Loads the sections that names and lines need, or types, too.
    ///
    /// # Errors
    /// A section is damaged.
    pub fn load(elf: &Elf<'d>, with_types: bool) -> Result<Self, ElfError> {
        let read = read(with_types, |id| elf.sections().data(id.name()))?;
        Ok(Self { sections: assembled(read)?, beginning: None })
    }

    /// Loads the sections that names and lines of these addresses need. Of a compressed `.debug_info` it uncompresses
    /// the beginning that has their units; the rest once it is needed.
    ///
    /// # Errors
    /// A section is damaged.
    pub fn load_for(elf: &Elf<'d>, addrs: &[ObjAddr]) -> Result<Self, ElfError> {
        let Some((choice, end)) = enough_of_info(elf, addrs) else { return Self::load(elf, false) };
        let mut read = read(false, |id| match id {
            SectionId::DebugInfo => Ok(elf.sections().beginning(id.name(), end)?.map(Cow::Owned)),
            _ => elf.sections().data(id.name()),
        })?;
        let part = read.insert(SectionId::DebugInfo, Ok(None)).and_then(Result::ok).flatten();
        let marked = part.map(Cow::into_owned).and_then(|mut part| choice.mark(&mut part).map(|()| part));
        let Some(part) = marked else { return Self::load(elf, false) };
        let beginning = Beginning { elf: *elf, part, whole: OnceCell::new() };
        Ok(Self { sections: assembled(read)?, beginning: Some(beginning) })
    }

    /// Those of tests.
    #[cfg(test)]
    pub(super) fn of_sections(mut section: impl FnMut(SectionId) -> Vec<u8>) -> Self {
        let loaded = DwarfSections::load(|id| Ok::<_, std::convert::Infallible>(Cow::Owned(section(id))));
        let Ok(sections) = loaded;
        Self { sections, beginning: None }
    }

    /// How many bytes of `.debug_info` were uncompressed at first; None: all.
    #[cfg(test)]
    pub(super) fn beginning(&self) -> Option<usize> {
        self.beginning.as_ref().map(|beginning| beginning.part.len())
    }

    /// The part of them that may tell of these addresses, which it was loaded for if it was loaded for some, where
    /// reading that takes less than reading all.
    pub(super) fn narrowed(&self, addrs: &[ObjAddr]) -> Option<Narrowed<'_>> {
        match &self.beginning {
            Some(beginning) => Some(Narrowed(Cow::Borrowed(&beginning.part))),
            None => narrowed(&self.borrow(), addrs).map(|info| Narrowed(Cow::Owned(info))),
        }
    }

    /// Why `.debug_info` can't be uncompressed, where the whole of it was needed behind a beginning that could be.
    fn damage(&self) -> Option<&ElfError> {
        self.beginning.as_ref()?.whole.get()?.as_ref().err()
    }

    /// What reads them. Without `.debug_info` where that turns out to be damaged.
    pub(super) fn borrow(&self) -> gimli::Dwarf<Slice<'_>> {
        let dwarf = self.borrow_all_but_info();
        match &self.beginning {
            Some(beginning) => {
                let whole = beginning.whole().unwrap_or_default();
                gimli::Dwarf { debug_info: gimli::DebugInfo::new(whole, LittleEndian), ..dwarf }
            }
            None => dwarf,
        }
    }

    /// The same, where only the beginning of `.debug_info` is uncompressed without that.
    fn borrow_all_but_info(&self) -> gimli::Dwarf<Slice<'_>> {
        self.sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian))
    }
}

/// The sections that were read, or why they were not.
type ReadSections<'d> = FxHashMap<SectionId, Result<Option<SectionBytes<'d>>, ElfError>>;

/// Reads the sections that names and lines need, or types, too.
fn read<'d>(
    with_types: bool,
    section: impl Fn(SectionId) -> Result<Option<SectionBytes<'d>>, ElfError> + Sync,
) -> Result<ReadSections<'d>, ElfError> {
    let mut wanted = Vec::new();
    DwarfSections::load(|id| {
        wanted.extend(is_wanted(id, with_types).then_some(id));
        Ok::<_, ElfError>(())
    })?;
    let read = each(&wanted, |id| section(*id));
    Ok(wanted.into_iter().zip(read).collect())
}

fn assembled<'d>(mut read: ReadSections<'d>) -> Result<DwarfSections<SectionBytes<'d>>, ElfError> {
    let none = Cow::Borrowed(&[][..]);
    DwarfSections::load(|id| read.remove(&id).map_or(Ok(None), |data| data).map(|data| data.unwrap_or(none.clone())))
}

/// Which units of a compressed `.debug_info` have these addresses, and how many of its bytes have all of those units.
/// None: it is not compressed with zlib, or all is needed.
fn enough_of_info(elf: &Elf<'_>, addrs: &[ObjAddr]) -> Option<(Choice, usize)> {
    let size = elf.sections().size_of_inflated(SectionId::DebugInfo.name()).filter(|size| *size <= LARGEST)?;
    let aranges = elf.sections().data(SectionId::DebugAranges.name()).ok().flatten()?;
    let choice = Choice::of(&gimli::DebugAranges::new(&aranges, LittleEndian), addrs)?;
    let end = choice.end().filter(|end| *end < size)?;
    Some((choice, end))
}

/// A `.debug_info` section with which others of the same file are read in part: see [`narrowed`].
#[derive(Debug)]
pub struct Narrowed<'a>(Cow<'a, [u8]>);

impl Narrowed<'_> {
    /// What reads it.
    pub(super) fn info(&self) -> gimli::DebugInfo<Slice<'_>> {
        gimli::DebugInfo::new(&self.0, LittleEndian)
    }
}

/// Looks up addresses in one file's DWARF.
pub struct DwarfLookup<'a, 'f> {
    data: &'a DwarfData<'a>,
    supplement: Option<&'a DwarfData<'a>>,
    /// Of a part of the units. What it does not know all of is looked up in all.
    narrow: Option<Context<Slice<'a>>>,
    /// Of all units, once it has been needed; None in it: they are damaged.
    whole: OnceCell<Option<Context<Slice<'a>>>>,
    split: SplitLoader<'a, 'f>,
    names: Names,
}

/// Names that have been made: many frames are of few functions.
#[derive(Default)]
struct Names {
    by_symbol: FxHashMap<Vec<u8>, FunctionName>,
    scoped: ScopedNames,
}

impl std::fmt::Debug for DwarfLookup<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DwarfLookup").field("names", &self.names.by_symbol.len()).finish_non_exhaustive()
    }
}

/// What DWARF says about an address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DwarfFrames {
    /// Innermost first.
    pub frames: Vec<SymFrame>,
    /// Whether a function was found, so that inlined calls would have shown.
    pub has_function: bool,
}

impl DwarfFrames {
    /// Whether other units could tell no more: names of functions may be in them.
    fn is_complete(&self) -> bool {
        let has_names = self.frames.iter().all(|frame| frame.function.is_some());
        !self.frames.is_empty() && (has_names || !self.has_function)
    }
}

impl<'a, 'f> DwarfLookup<'a, 'f> {
    /// Prepares look-ups; `supplement` is what a debug alt link leads to, `split` finds what compilers left elsewhere,
    /// `narrowed` is of the addresses that will be asked for.
    ///
    /// # Errors
    /// The headers of the DWARF units are damaged.
    pub(super) fn new(
        data: &'a DwarfData<'a>,
        supplement: Option<&'a DwarfData<'a>>,
        split: SplitLoader<'a, 'f>,
        narrowed: Option<&'a Narrowed<'a>>,
    ) -> Result<Self, gimli::Error> {
        let mut lookup =
            Self { data, supplement, narrow: None, whole: OnceCell::new(), split, names: Names::default() };
        lookup.narrow = narrowed.and_then(|narrowed| {
            let dwarf = gimli::Dwarf { debug_info: narrowed.info(), ..data.borrow_all_but_info() };
            Context::from_dwarf(with_supplement(dwarf, supplement)).ok()
        });
        if lookup.narrow.is_none() {
            lookup.whole = OnceCell::from(Some(Context::from_dwarf(sections(data, supplement))?));
        }
        Ok(lookup)
    }

    /// The frames at `addr`. What can't be read counts as unknown.
    pub fn find(&mut self, addr: ObjAddr) -> DwarfFrames {
        let (split, names) = (&mut self.split, &mut self.names);
        let in_part = self.narrow.as_ref().and_then(|context| frames(context, split, names, addr));
        if let Some(found) = in_part.as_ref().filter(|found| found.is_complete()) {
            return found.clone();
        }
        let whole = self.whole.get_or_init(|| Context::from_dwarf(sections(self.data, self.supplement)).ok());
        let Some(context) = whole.as_ref().filter(|_| self.data.damage().is_none()) else {
            return in_part.unwrap_or_default();
        };
        frames(context, &mut self.split, &mut self.names, addr).unwrap_or_else(|| line_only(context, addr))
    }

    /// Ends the look-ups: what went wrong with split DWARF, and with `.debug_info` behind a beginning that was read.
    pub(super) fn into_warnings(self, place: &Path) -> Vec<String> {
        let damage = self.data.damage().map(|error| format!("{}: {error}", place.display()));
        damage.into_iter().chain(self.split.into_warnings()).collect()
    }
}

fn sections<'a>(data: &'a DwarfData<'_>, supplement: Option<&'a DwarfData<'_>>) -> gimli::Dwarf<Slice<'a>> {
    with_supplement(data.borrow(), supplement)
}

fn with_supplement<'a>(
    mut dwarf: gimli::Dwarf<Slice<'a>>,
    supplement: Option<&'a DwarfData<'_>>,
) -> gimli::Dwarf<Slice<'a>> {
    if let Some(supplement) = supplement {
        dwarf.set_sup(supplement.borrow());
    }
    dwarf
}

/// The frames at `addr`. None: they can't be read.
fn frames<'a>(
    context: &Context<Slice<'a>>,
    split: &mut SplitLoader<'a, '_>,
    names: &mut Names,
    addr: ObjAddr,
) -> Option<DwarfFrames> {
    let mut found = DwarfFrames::default();
    let mut frames = split.complete(context.find_frames(addr.0)).ok()?;
    let mut raw: Vec<Frame<'_, Slice<'a>>> = Vec::new();
    loop {
        match frames.next() {
            Ok(Some(frame)) => raw.push(frame),
            Ok(None) => break,
            Err(_) => return None,
        }
    }
    let unit = split.complete(context.find_dwarf_and_unit(addr.0));
    for frame in raw {
        let (file, line) = frame.location.map_or((None, None), |l| (l.file.map(str::to_owned), l.line));
        let start_line = unit.zip(frame.dw_die_offset).and_then(|(u, offset)| declaration_line(u, offset));
        let function = frame.function.map(|f| {
            let raw = f.name.slice();
            let raw = raw.get(..LONGEST_NAME).unwrap_or(raw);
            // Names without a scope are not those of one function only.
            let bare = unit.zip(frame.dw_die_offset).filter(|_| !raw.starts_with(b"_Z") && !raw.starts_with(b"_R"));
            if let Some(name) = bare.and_then(|(unit, offset)| known_or_scoped(&mut names.scoped, unit, offset, raw)) {
                return name;
            }
            if let Some(known) = names.by_symbol.get(raw) {
                return known.clone();
            }
            let mut name = function_name(&String::from_utf8_lossy(raw));
            if is_legacy_rust(raw)
                && let Some((unit, offset)) = unit.zip(frame.dw_die_offset)
                && let Some((params, own_name)) = type_params(unit, offset)
                && let Some(full) = with_arguments(&name.name, &params, &own_name)
            {
                name.name = full.into();
            }
            names.by_symbol.insert(raw.to_vec(), name.clone());
            name
        });
        found.has_function |= frame.dw_die_offset.is_some();
        found.frames.push(SymFrame { function, file, line: line.unwrap_or(0), start_line: start_line.unwrap_or(0) });
    }
    Some(found)
}

fn line_only(context: &Context<Slice<'_>>, addr: ObjAddr) -> DwarfFrames {
    let frames = match context.find_location(addr.0) {
        Ok(Some(l)) => {
            let file = l.file.map(str::to_owned);
            vec![SymFrame { function: None, file, line: l.line.unwrap_or(0), start_line: 0 }]
        }
        _ => Vec::new(),
    };
    DwarfFrames { frames, has_function: false }
}

/// The name of a function's DIE, with the names of its template's parameters.
fn type_params(unit: gimli::UnitRef<'_, Slice<'_>>, offset: gimli::UnitOffset<usize>) -> Option<(Vec<String>, String)> {
    let mut offset = offset;
    for _ in 0..LONGEST_CHAIN {
        let mut tree = unit.entries_tree(Some(offset)).ok()?;
        let root = tree.root().ok()?;
        // Strings may be as long as their section.
        let text = |value| {
            let text = unit.attr_string(value).ok().filter(|text| text.len() <= LONGEST_NAME)?;
            Some(text.to_string_lossy().into_owned())
        };
        let own_name = root.entry().attr_value(gimli::DW_AT_name).and_then(text);
        let further = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
        let further = further.into_iter().find_map(|attribute| root.entry().attr_value(attribute));
        let mut params = Vec::new();
        let mut children = root.children();
        while let Some(child) = children.next().ok()? {
            if child.entry().tag() == gimli::DW_TAG_template_type_parameter {
                if params.len() >= MAX_PARAMS {
                    return None;
                }
                params.push(child.entry().attr_value(gimli::DW_AT_name).and_then(text)?);
            }
        }
        match (own_name, further) {
            (Some(own_name), _) if !params.is_empty() => return Some((params, own_name)),
            (_, Some(AttributeValue::UnitRef(next))) => offset = next,
            _ => return None,
        }
    }
    None
}

/// DW_AT_decl_line of a function's DIE, or of the one that it refers to within its unit.
fn declaration_line(unit: gimli::UnitRef<'_, Slice<'_>>, offset: gimli::UnitOffset<usize>) -> Option<u32> {
    let mut offset = offset;
    for _ in 0..LONGEST_CHAIN {
        let entry = unit.entry(offset).ok()?;
        if let Some(line) = entry.attr_value(gimli::DW_AT_decl_line).and_then(|v| v.udata_value()) {
            return u32::try_from(line).ok();
        }
        let origin = entry.attr_value(gimli::DW_AT_abstract_origin);
        match origin.or_else(|| entry.attr_value(gimli::DW_AT_specification))? {
            AttributeValue::UnitRef(next) => offset = next,
            _ => return None,
        }
    }
    None
}
