//! The units of a file's debug information that may tell something of given addresses.
//!
//! Who looks addresses up reads the head of each unit first, with its table of abbreviations: of a C library those are 1,800 units,
//! for the lines of some dozen functions. `.debug_aranges` tells which units they are in.

use super::dwarfsections::Slice;
use crate::addr::ObjAddr;
use gimli::{Dwarf, Section, UnitType};
use rustc_hash::FxHashMap;

/// Fewer units are read as fast as chosen from.
const FEW: usize = 64;

/// A larger section is not copied, in bytes: it would have to be in memory.
const LARGEST: usize = 64 << 20;

/// The version of DWARF from which on units tell their type (DWARF 5, section 7.5.1).
const TYPED: u16 = 5;

/// Bytes between a unit's length and its type: its version.
const BEFORE_TYPE: usize = 2;

/// A unit of fewer bytes stays as it is: the head of one of types is longer, by a signature and an offset (DWARF 5, section 7.5.1.3).
const SHORTEST: usize = 64;

/// A copy of the `.debug_info` section in which the units that have none of these addresses are marked as units of types, which are
/// passed over. Units of which `.debug_aranges` says nothing stay as they are. None: it is not worth it, or damaged.
pub(super) fn narrowed(dwarf: &Dwarf<Slice<'_>>, addrs: &[ObjAddr]) -> Option<Vec<u8>> {
    let whole = dwarf.debug_info.reader().slice();
    if whole.len() > LARGEST {
        return None;
    }
    let mut wanted: Vec<u64> = addrs.iter().map(|addr| addr.0).collect();
    wanted.sort_unstable();
    let mut holds: FxHashMap<usize, bool> = FxHashMap::default();
    let mut sets = dwarf.debug_aranges.headers();
    while let Some(set) = sets.next().ok()? {
        let holds = holds.entry(set.debug_info_offset().0).or_default();
        let mut ranges = set.entries();
        // of a damaged set nothing is known: rustc 1.89 writes some
        while !*holds && let Some(range) = ranges.next().transpose() {
            let wants = |range: gimli::Range| {
                let first = wanted.get(wanted.partition_point(|&addr| addr < range.begin));
                first.is_some_and(|&addr| addr < range.end)
            };
            *holds = range.map_or(true, |range| wants(range.range()));
        }
    }
    let (mut count, mut unwanted) = (0, Vec::new());
    let mut units = dwarf.units();
    while let Some(unit) = units.next().ok()? {
        count += 1;
        let Some(offset) = unit.debug_info_offset() else { continue };
        let is_plain = unit.version() >= TYPED && unit.type_() == UnitType::Compilation;
        if is_plain && holds.get(&offset.0) == Some(&false) && unit.length_including_self() >= SHORTEST {
            unwanted.push(offset.0 + usize::from(unit.format().initial_length_size()) + BEFORE_TYPE);
        }
    }
    if unwanted.len() < FEW || unwanted.len() < count / 2 {
        return None;
    }
    let mut info = Vec::new();
    info.try_reserve_exact(whole.len()).ok()?;
    info.extend_from_slice(whole);
    for at in unwanted {
        *info.get_mut(at)? = gimli::DW_UT_type.0;
    }
    Some(info)
}
