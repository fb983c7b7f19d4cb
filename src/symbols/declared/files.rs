//! The files that hold a module's DWARF, and their units: headers, bases of tables, abbreviations. Lines are not read.

use super::texts::text;
use super::{Budget, Of, Parts};
use crate::symbols::dwarf::DwarfData;
use crate::symbols::dwarfsections::Slice;
use crate::symbols::split::SplitLoader;
use addr2line::SplitDwarfLoad;
use gimli::{
    AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugAddrBase, DebugInfoOffset, DebugLocListsBase,
    DebugRngListsBase, DebugStrOffsetsBase, Dwarf, EndianSlice, LittleEndian, Section, Unit, UnitHeader, UnitOffset,
    UnitType,
};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

/// Split files that are opened.
const MAX_SPLIT: usize = 4096;
/// An entry: which file it is in, and how far behind the start of its section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Die {
    pub(super) file: u32,
    pub(super) offset: usize,
}

/// A unit, and where it begins and ends in its section.
pub(super) type Placed<'a> = (usize, usize, Unit<Slice<'a>>);

/// A section of DWARF with its units, in the order of their places: `.debug_info`, or `.debug_types`.
pub(super) struct Source<'a> {
    pub(super) dwarf: Arc<Dwarf<Slice<'a>>>,
    pub(super) units: Vec<Placed<'a>>,
    /// The number of the `.debug_info` that goes with it.
    info: u32,
}

/// All files that hold a module's DWARF: its own, what it shares with others, and those of split units.
pub(super) struct Files<'a> {
    pub(super) all: Vec<Source<'a>>,
    /// Split files that were not found.
    pub(super) missing: usize,
    /// Where the first values of thread-local variables are.
    pub(super) tls: Range<u64>,
    /// Units of types by their signature.
    signatures: FxHashMap<u64, Die>,
}

/// The number of the file that [`AttributeValue::DebugInfoRefSup`] is about.
const SUPPLEMENT: u32 = 1;

impl<'a> Files<'a> {
    pub(super) fn open(
        mut dwarf: Dwarf<Slice<'a>>,
        Parts { alt, split, tls }: Parts<'a, '_>,
        budget: &mut Budget,
    ) -> Self {
        if let Some(alt) = alt {
            dwarf.set_sup(alt.borrow());
        }
        let (dwarf, supplement) = (Arc::new(dwarf), Arc::new(alt.map(DwarfData::borrow).unwrap_or_default()));
        let mut files = Self { all: Vec::new(), missing: 0, tls, signatures: FxHashMap::default() };
        files.add_info(&dwarf, None, budget);
        files.add_info(&supplement, None, budget);
        files.add_types(&dwarf, 0, None, budget);
        files.add_types(&supplement, SUPPLEMENT, None, budget);
        if let Some(split) = split {
            files.open_split(&dwarf, split, budget);
        }
        files.find_signatures();
        files
    }

    /// Adds a file's `.debug_info`; `skeleton`: the unit that it is the other part of.
    fn add_info(&mut self, dwarf: &Arc<Dwarf<Slice<'a>>>, skeleton: Option<&Unit<Slice<'a>>>, budget: &mut Budget) {
        let mut headers = dwarf.units();
        let units = units(dwarf, &mut || headers.next().ok().flatten(), skeleton, budget);
        let info = self.all.len() as u32;
        self.all.push(Source { dwarf: Arc::clone(dwarf), units, info });
    }

    /// Adds its `.debug_types`, if it has one (DWARF 4).
    fn add_types(
        &mut self,
        dwarf: &Arc<Dwarf<Slice<'a>>>,
        info: u32,
        skeleton: Option<&Unit<Slice<'a>>>,
        budget: &mut Budget,
    ) {
        let mut headers = dwarf.type_units();
        let units = units(dwarf, &mut || headers.next().ok().flatten(), skeleton, budget);
        if !units.is_empty() {
            self.all.push(Source { dwarf: Arc::clone(dwarf), units, info });
        }
    }

    fn open_split(&mut self, parent: &Arc<Dwarf<Slice<'a>>>, mut split: SplitLoader<'a, '_>, budget: &mut Budget) {
        let skeletons: Vec<_> = self.all.first_mut().map(|own| std::mem::take(&mut own.units)).unwrap_or_default();
        let mut opened = 0;
        for (_, _, skeleton) in &skeletons {
            let Some(dwo_id) = skeleton.dwo_id else { continue };
            if opened >= MAX_SPLIT || !budget.has_time() {
                budget.cut();
                break;
            }
            let name = skeleton.dwo_name().ok().flatten();
            let path = name.and_then(|name| reader(parent, skeleton, name));
            let load = SplitDwarfLoad { dwo_id, comp_dir: skeleton.comp_dir, path, parent: Arc::clone(parent) };
            let left_out = split.left_out();
            let Some(dwarf) = split.load(&load) else {
                self.missing += usize::from(split.left_out() == left_out);
                continue;
            };
            opened += 1;
            let info = self.all.len() as u32;
            self.add_info(&dwarf, Some(skeleton), budget);
            self.add_types(&dwarf, info, Some(skeleton), budget);
        }
        let (units_of_types, are_all) = split.type_units(parent, MAX_SPLIT);
        if !are_all || split.left_out() > 0 {
            budget.cut();
        }
        for dwarf in units_of_types {
            if !budget.has_time() {
                break;
            }
            let info = self.all.len() as u32;
            self.add_info(&dwarf, None, budget);
            self.add_types(&dwarf, info, None, budget);
        }
        if let Some(own) = self.all.first_mut() {
            own.units = skeletons;
        }
    }

    fn find_signatures(&mut self) {
        for (file, source) in (0..).zip(&self.all) {
            for (start, _, unit) in &source.units {
                if let UnitType::Type { type_signature, type_offset }
                | UnitType::SplitType { type_signature, type_offset } = unit.header.type_()
                {
                    let offset = start.saturating_add(type_offset.0);
                    self.signatures.entry(type_signature.0).or_insert(Die { file, offset });
                }
            }
        }
    }

    /// The unit that an entry is in.
    pub(super) fn unit(&self, die: Die) -> Option<(&Source<'a>, &Unit<Slice<'a>>, UnitOffset)> {
        let source = self.all.get(die.file as usize)?;
        let behind = source.units.partition_point(|(start, ..)| *start <= die.offset);
        let (start, end, unit) = source.units.get(behind.checked_sub(1)?)?;
        (die.offset < *end).then_some((source, unit, UnitOffset(die.offset - start)))
    }

    /// What a reference in a unit of `file`, which begins at `start`, leads to.
    pub(super) fn target(&self, file: u32, start: usize, value: AttributeValue<Slice<'a>>) -> Option<Die> {
        match value {
            AttributeValue::UnitRef(UnitOffset(offset)) => Some(Die { file, offset: start.checked_add(offset)? }),
            AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => {
                Some(Die { file: self.all.get(file as usize)?.info, offset })
            }
            AttributeValue::DebugInfoRefSup(DebugInfoOffset(offset)) => Some(Die { file: SUPPLEMENT, offset }),
            AttributeValue::DebugTypesRef(signature) => self.signatures.get(&signature.0).copied(),
            _ => None,
        }
    }
}

/// The units that `next` gives headers of.
fn units<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    next: &mut dyn FnMut() -> Option<UnitHeader<Slice<'a>>>,
    skeleton: Option<&Unit<Slice<'a>>>,
    budget: &mut Budget,
) -> Vec<Placed<'a>> {
    let mut headers = Vec::new();
    while let Some(header) = next() {
        if !budget.take(Of::Units, 1) || !budget.tick(1) {
            break;
        }
        headers.push(header);
    }
    let tables = abbreviations(dwarf, &headers, budget);
    let mut found = Vec::new();
    for header in headers {
        let start = header.offset().0;
        let end = start.saturating_add(header.length_including_self());
        let Some(table) = tables.get(&header.debug_abbrev_offset().0) else { continue };
        if !budget.tick(1) {
            break;
        }
        if let Some(mut unit) = open(dwarf, header, Arc::clone(table)) {
            if let Some(skeleton) = skeleton {
                unit.copy_relocated_attributes(skeleton);
            }
            found.push((start, end, unit));
        }
    }
    found
}

/// Reads the tables of abbreviations, each once. None reaches into the next one: damaged files may have as many as
/// there are bytes.
fn abbreviations(
    dwarf: &Dwarf<Slice<'_>>,
    headers: &[UnitHeader<Slice<'_>>],
    budget: &mut Budget,
) -> FxHashMap<usize, Arc<gimli::Abbreviations>> {
    let section = dwarf.debug_abbrev.reader().slice();
    let mut starts: Vec<usize> = headers.iter().map(|header| header.debug_abbrev_offset().0).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut found = FxHashMap::default();
    let ends = starts.iter().skip(1).copied().chain([section.len()]);
    for (start, end) in starts.iter().copied().zip(ends) {
        let Some(table) = section.get(start..end) else { continue };
        let read = DebugAbbrev::new(table, LittleEndian).abbreviations(DebugAbbrevOffset(0));
        let Ok(read) = read else { continue };
        // the last table of a damaged file may be all that is left of it
        if !budget.tick(table.len() / 8) || !budget.take(Of::Abbreviations, table.len()) {
            break;
        }
        found.insert(start, Arc::new(read));
    }
    found
}

/// Reads what a unit says of its tables (DWARF 5, 3.1).
fn open<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    header: UnitHeader<Slice<'a>>,
    abbreviations: Arc<gimli::Abbreviations>,
) -> Option<Unit<Slice<'a>>> {
    let (encoding, file) = (header.encoding(), dwarf.file_type);
    let dwo_id = match header.type_() {
        UnitType::Skeleton(id) | UnitType::SplitCompilation(id) => Some(id),
        _ => None,
    };
    let mut unit = Unit {
        header,
        abbreviations,
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, file),
        addr_base: DebugAddrBase(0),
        loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, file),
        rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, file),
        line_program: None,
        dwo_id,
    };
    let root = unit.entry(unit.header.root_offset()).ok()?;
    let mut folder = None;
    for attribute in root.attrs() {
        match (attribute.name(), attribute.value()) {
            (gimli::DW_AT_comp_dir, value) => folder = Some(value),
            (_, AttributeValue::DebugStrOffsetsBase(base)) => unit.str_offsets_base = base,
            (_, AttributeValue::DebugAddrBase(base)) => unit.addr_base = base,
            (_, AttributeValue::DwoId(id)) => unit.dwo_id = unit.dwo_id.or(Some(id)),
            _ => {}
        }
    }
    unit.comp_dir = folder.and_then(|folder| reader(dwarf, &unit, folder));
    Some(unit)
}

/// A text, as others want to read it.
fn reader<'a>(dwarf: &Dwarf<Slice<'a>>, unit: &Unit<Slice<'a>>, value: AttributeValue<Slice<'a>>) -> Option<Slice<'a>> {
    Some(EndianSlice::new(text(dwarf, unit, value)?, LittleEndian))
}
