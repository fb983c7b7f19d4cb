//! The units of a file's debug information that may tell something of given addresses.
//!
//! Who looks addresses up reads the head of each unit first, with its table of abbreviations: of a C library those are
//! 1,800 units, for the lines of some dozen functions. `.debug_aranges` tells which units they are in.

use super::dwarfsections::Slice;
use crate::base::addr::ObjAddr;
use gimli::{DebugAranges, DebugInfo, Dwarf, LittleEndian, Section, UnitType};
use rustc_hash::FxHashMap;

/// Fewer units are read as fast as chosen from.
const MIN_UNITS: usize = 64;

/// A larger section is not copied, in bytes: it would have to be in memory.
pub(super) const LARGEST: usize = 64 << 20;

/// The version of DWARF from which on units tell their type (DWARF 5, section 7.5.1).
const TYPED: u16 = 5;

/// Bytes between a unit's length and its type: its version.
const BEFORE_TYPE: usize = 2;

/// A unit of fewer bytes stays as it is: the head of one of types is longer, by a signature and an offset (DWARF 5,
/// section 7.5.1.3).
const SHORTEST: usize = 64;

/// Which units have some of given addresses, as `.debug_aranges` says.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// By the offset of each unit of which it says something.
    holds: FxHashMap<usize, bool>,
    /// Whether each of the addresses is in one of them.
    has_all: bool,
}

impl Choice {
    /// What that section says of these addresses. None: it is damaged.
    pub(super) fn of(aranges: &DebugAranges<Slice<'_>>, addrs: &[ObjAddr]) -> Option<Self> {
        let mut wanted: Vec<u64> = addrs.iter().map(|addr| addr.0).collect();
        wanted.sort_unstable();
        // of how many ranges more each address is than the one before it, modulo 2^64: ranges may be many, and wide
        let mut more = vec![0_u64; wanted.len() + 1];
        let mut holds: FxHashMap<usize, bool> = FxHashMap::default();
        let mut sets = aranges.headers();
        while let Some(set) = sets.next().ok()? {
            let holds = holds.entry(set.debug_info_offset().0).or_default();
            let mut ranges = set.entries();
            loop {
                let range = match ranges.next() {
                    Ok(Some(range)) => range.range(),
                    Ok(None) => break,
                    // of a damaged set nothing is known: rustc 1.89 writes some
                    Err(_) => {
                        *holds = true;
                        break;
                    }
                };
                let place = |addr: u64| wanted.partition_point(|&wanted| wanted < addr);
                let (first, behind) = (place(range.begin), place(range.end));
                if first < behind {
                    *holds = true;
                    if let Some(more) = more.get_mut(first) {
                        *more = more.wrapping_add(1);
                    }
                    if let Some(more) = more.get_mut(behind) {
                        *more = more.wrapping_sub(1);
                    }
                }
            }
        }
        more.truncate(wanted.len());
        let ranges = more.into_iter().scan(0_u64, |ranges, more| {
            *ranges = ranges.wrapping_add(more);
            Some(*ranges)
        });
        Some(Self { holds, has_all: ranges.min() > Some(0) })
    }

    /// How many bytes of `.debug_info` have all units of these addresses. None: all may be needed.
    pub(super) fn end(&self) -> Option<usize> {
        let places = |wanted: bool| self.holds.iter().filter(move |(_, holds)| **holds == wanted).map(|(at, _)| *at);
        let last = places(true).max().filter(|_| self.has_all)?;
        places(false).filter(|&at| at > last).min()
    }

    /// Where the types of those units stand that have none of the addresses, and how many units there are. Units of
    /// which nothing is known are not among the first. None: the section is damaged.
    fn unwanted(&self, info: &DebugInfo<Slice<'_>>) -> Option<(Vec<usize>, usize)> {
        let (mut count, mut unwanted) = (0, Vec::new());
        let mut units = info.units();
        while let Some(unit) = units.next().ok()? {
            count += 1;
            let Some(offset) = unit.debug_info_offset() else { continue };
            let is_plain = unit.version() >= TYPED && unit.type_() == UnitType::Compilation;
            if is_plain && self.holds.get(&offset.0) == Some(&false) && unit.length_including_self() >= SHORTEST {
                unwanted.push(offset.0 + usize::from(unit.format().initial_length_size()) + BEFORE_TYPE);
            }
        }
        Some((unwanted, count))
    }

    /// Marks the units of a `.debug_info` section, or of its beginning, that have none of the addresses as units of
    /// types, which are passed over. None: it is damaged.
    pub(super) fn mark(&self, info: &mut [u8]) -> Option<()> {
        let (unwanted, _) = self.unwanted(&DebugInfo::new(info, LittleEndian))?;
        mark(info, unwanted)
    }
}

fn mark(info: &mut [u8], unwanted: Vec<usize>) -> Option<()> {
    unwanted.into_iter().try_for_each(|at| {
        *info.get_mut(at)? = gimli::DW_UT_type.0;
        Some(())
    })
}

/// A copy of the `.debug_info` section in which the units that have none of these addresses are marked as units of
/// types, which are passed over. Units of which `.debug_aranges` says nothing stay as they are. None: it is not worth
/// it, or damaged.
pub(super) fn narrowed(dwarf: &Dwarf<Slice<'_>>, addrs: &[ObjAddr]) -> Option<Vec<u8>> {
    let whole = dwarf.debug_info.reader().slice();
    if whole.len() > LARGEST {
        return None;
    }
    let (unwanted, count) = Choice::of(&dwarf.debug_aranges, addrs)?.unwanted(&dwarf.debug_info)?;
    if unwanted.len() < MIN_UNITS || unwanted.len() < count / 2 {
        return None;
    }
    let mut info = Vec::new();
    info.try_reserve_exact(whole.len()).ok()?;
    info.extend_from_slice(whole);
    mark(&mut info, unwanted)?;
    Some(info)
}
