//! Which group lies where: beside the others, or in a slot of a larger one.

use super::super::window::Window;
use super::super::{Fault, Finding};
use super::tables::Entry;
use super::{PAGE, note};
use crate::base::addr::Addr;
use crate::image::maps::Mapping;
use std::cmp::Reverse;

/// So many mappings may a group lie in: the program can change a part of one.
const MAX_PARTS: usize = 8;

/// A group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) entry: Entry,
    /// A bit for each slot that holds another group.
    pub(super) holds: u32,
    /// Whether it lies in a slot of the last one before that does not.
    pub(super) is_inside: bool,
}

/// Sorts them by their places: each is followed by those inside. What overlaps another one, or one of the `tables`
/// (ascending), is none.
pub(super) fn arrange(
    mut entries: Vec<Entry>,
    tables: &[Addr],
    mappings: &[Mapping],
    findings: &mut Vec<Finding>,
    window: &mut Window<'_>,
) -> Vec<Group> {
    entries.sort_unstable_by_key(|entry| (entry.mem, Reverse(entry.range().end)));
    let mut groups: Vec<Group> = Vec::with_capacity(entries.len());
    // those that the place of the next one may be in, the innermost last
    let mut open: Vec<usize> = Vec::new();
    for entry in entries {
        while open.pop_if(|last| groups.get(*last).is_none_or(|group| group.entry.range().end <= entry.mem)).is_some() {
        }
        let outer = open.last().and_then(|&last| groups.get_mut(last));
        let is_inside = outer.is_some();
        let fits = match outer {
            Some(outer) => take_slot(outer, &entry),
            None => (entry.pages > 0 || !entry.is_freeable) && is_apart(&entry, tables) && is_mapped(&entry, mappings),
        };
        if !fits {
            if entry.is_listed {
                note(findings, Finding { at: entry.at, what: Fault::Entry, before: None });
            }
            continue;
        }
        if window.lone_word(entry.mem) != Some(entry.at.0) {
            note(findings, Finding { at: entry.mem, what: Fault::Group, before: None });
        }
        open.push(groups.len());
        groups.push(Group { entry, holds: 0, is_inside });
    }
    groups
}

/// Notes that a slot of `outer` holds a group, if it can.
fn take_slot(outer: &mut Group, inner: &Entry) -> bool {
    let range = inner.range();
    let found = (0..=outer.entry.last).find(|&number| {
        let (begin, end) = outer.entry.slot(number);
        begin <= range.start && range.start < end
    });
    let Some(number) = found.filter(|_| inner.pages == 0 && inner.is_freeable) else { return false };
    let bit = 1 << number;
    // the last header inside is the slot's own
    let fits = range.end <= outer.entry.slot(number).1.add(super::HEADER);
    let is_taken = (outer.entry.free | outer.holds) & bit != 0;
    if fits && !is_taken {
        outer.holds |= bit;
    }
    fits && !is_taken
}

fn is_apart(entry: &Entry, tables: &[Addr]) -> bool {
    let range = entry.range();
    let next = tables.partition_point(|table| table.add(PAGE) <= range.start);
    tables.get(next).is_none_or(|table| range.end <= *table)
}

fn is_mapped(entry: &Entry, mappings: &[Mapping]) -> bool {
    let range = entry.range();
    let next = mappings.partition_point(|mapping| mapping.end <= range.start);
    let mut at = range.start;
    for mapping in mappings.iter().skip(next).take(MAX_PARTS) {
        if mapping.start > at || !mapping.perms.read {
            return false;
        }
        at = mapping.end;
        if at >= range.end {
            return true;
        }
    }
    false
}
