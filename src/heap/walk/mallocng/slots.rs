//! Slots, and the blocks in them.

use super::super::window::Window;
use super::super::{Chunk, Fault, Finding, State, Walk};
use super::groups::Group;
use super::{HEADER, UNIT, note};
use crate::base::addr::Addr;

/// The byte before the last two of a header: the slot's number below, how much of the slot is not used above. These
/// mark other things: nothing in use; a block that begins further on in its slot, as many units as the bytes behind
/// tell.
const NOT_IN_USE: u8 = 0xff;
const FURTHER_ON: u8 = 7 << 5;
const NUMBER: u8 = 31;
/// What the upper bits are of a slot that holds a group.
const HOLDS_GROUP: u8 = 6;
/// So much is told there; more is told in the last four bytes of the slot.
const MAX_TOLD: u64 = 5;
/// How far a block may be behind its slot's beginning is told but for multiples of this.
const UNITS_TOLD: u64 = 1 << 16;

/// What is in a slot that is not free.
enum Content {
    /// A block, and how much of it may be used.
    Block(Addr, u64),
    /// Nothing yet, or nothing any more: a thread is just about to take it or to give it back.
    Nothing,
    Wrong(Fault, Addr),
}

/// Adds what is in a group's slots. `first`: the chunk from which on they are of the same region.
pub(super) fn add(walk: &mut Walk, group: &Group, first: usize, window: &mut Window<'_>) {
    for number in 0..=group.entry.last {
        let bit = 1 << number;
        if group.holds & bit != 0 {
            continue;
        }
        let (begin, end) = group.entry.slot(number);
        let whole = |state| chunk(begin, end.0 - begin.0, state);
        if group.entry.free & bit != 0 {
            walk.chunks.push(whole(State::Free));
            continue;
        }
        match content(group, number, window) {
            Content::Nothing => walk.chunks.push(whole(State::Free)),
            Content::Block(at, usable) => {
                let chunk = chunk(at, usable, State::Live);
                if let Some(place) = overrun(at.add(usable), end, window) {
                    note(&mut walk.findings, Finding { at: place, what: Fault::Overrun, before: Some(chunk) });
                }
                walk.chunks.push(chunk);
            }
            Content::Wrong(what, at) => {
                let before = walk.chunks.get(first..).and_then(<[Chunk]>::last).copied();
                note(&mut walk.findings, Finding { at, what, before });
                walk.chunks.push(whole(State::Live));
            }
        }
    }
}

const fn chunk(block: Addr, usable: u64, state: State) -> Chunk {
    Chunk::new(block.sub(HEADER), HEADER + usable, state, HEADER as u8, 0)
}

/// What a slot that is not free holds (`get_meta` and `get_nominal_size`).
fn content(group: &Group, number: u8, window: &mut Window<'_>) -> Content {
    let (begin, end) = group.entry.slot(number);
    let Some([.., mark, low, high]) = header(begin, window) else { return Content::Wrong(Fault::Unreadable, begin) };
    if mark == NOT_IN_USE {
        return Content::Nothing;
    }
    let told = u64::from(u16::from_le_bytes([low, high]));
    if mark == 0 && told == 0 && number > 0 {
        return Content::Nothing;
    }
    if mark != FURTHER_ON {
        if mark >> 5 == HOLDS_GROUP {
            // which has no entry yet, or none any more
            return Content::Nothing;
        }
        return block(group, number, begin, window).unwrap_or(Content::Wrong(Fault::Header, begin));
    }
    // a slot of 4 GiB has no more
    let places =
        (0..1 << 12).map(|round| begin.add((told + UNITS_TOLD * round) * UNIT)).take_while(|place| *place < end);
    for place in places {
        if let Some(content) = block(group, number, place, window) {
            return content;
        }
    }
    Content::Wrong(Fault::Header, begin)
}

/// The block at `at` in a slot, if its header says so.
fn block(group: &Group, number: u8, at: Addr, window: &mut Window<'_>) -> Option<Content> {
    let (_, end) = group.entry.slot(number);
    let [a, b, c, d, is_far, mark, low, high] = header(at, window)?;
    if mark == NOT_IN_USE {
        return Some(Content::Nothing);
    }
    let near = u64::from(u16::from_le_bytes([low, high]));
    let far = u64::from(u32::from_le_bytes([a, b, c, d]));
    let offset = if is_far == 0 { near } else { far };
    let units = (at.0 - group.entry.mem.0 - UNIT) / UNIT;
    if mark & NUMBER != number || offset != units || is_far != 0 && near != 0 {
        return None;
    }
    let mut unused = u64::from(mark >> 5);
    if unused > MAX_TOLD {
        return None;
    }
    if unused == MAX_TOLD {
        unused = window.lone_word(end.sub(HEADER))? & u64::from(u32::MAX);
    }
    let room = end.0 - at.0;
    (unused <= room && (unused < MAX_TOLD || mark >> 5 == MAX_TOLD as u8)).then(|| Content::Block(at, room - unused))
}

/// The eight bytes before a block.
fn header(at: Addr, window: &mut Window<'_>) -> Option<[u8; 8]> {
    window.word(at.sub(8)).map(u64::to_le_bytes)
}

/// Where something was written behind a block that ends at `used`, of a slot that ends at `end`: a byte of zero is left
/// at both, if they are not the same.
fn overrun(used: Addr, end: Addr, window: &mut Window<'_>) -> Option<Addr> {
    let mut is_zero =
        |at: Addr| window.lone_word(Addr(at.0 & !7)).is_none_or(|word| word >> (8 * (at.0 & 7)) & 0xff == 0);
    [used, end].into_iter().find(|&at| !is_zero(at))
}
