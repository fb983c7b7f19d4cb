//! From an instruction to its line, by the tables of code objects.

use super::layout::LineFormat;

/// The line of the instruction at byte `at` of a function's code, that begins in the line `first`: `None` if the table
/// says that it has none. Before the first instruction a function stands in its first line.
pub(super) fn line_at(format: LineFormat, table: &[u8], first: u32, at: i64) -> Option<u32> {
    let Ok(at) = u64::try_from(at) else { return Some(first) };
    match format {
        LineFormat::Lnotab => Some(lnotab(table, first, at)),
        LineFormat::Ranges => ranges(table, first, at),
        LineFormat::Locations => locations(table, first, at),
    }
}

/// Pairs of bytes: so many bytes of code further, so many lines (signed).
fn lnotab(table: &[u8], first: u32, at: u64) -> u32 {
    let (mut line, mut code) = (first, 0u64);
    for pair in table.as_chunks::<2>().0 {
        code += u64::from(pair[0]);
        if code > at {
            break;
        }
        line = line.wrapping_add_signed(i32::from(pair[1].cast_signed()));
    }
    line
}

/// Says of a range that it has no line (3.10).
const NO_LINE: i8 = -128;

/// Pairs of bytes: a range of so many bytes of code, in a line so much further (signed) than the last one that had any.
fn ranges(table: &[u8], first: u32, at: u64) -> Option<u32> {
    let (mut line, mut code) = (first, 0u64);
    for pair in table.as_chunks::<2>().0 {
        let delta = pair[1].cast_signed();
        if delta != NO_LINE {
            line = line.wrapping_add_signed(i32::from(delta));
        }
        code += u64::from(pair[0]);
        if at < code {
            return (delta != NO_LINE).then_some(line);
        }
    }
    None
}

/// Entries of a byte with the highest bit set, which has a kind (4 bits) and a length in code units less one (3 bits),
/// and bytes without it, which the kind gives a meaning.
fn locations(table: &[u8], first: u32, at: u64) -> Option<u32> {
    let (mut line, mut code) = (first, 0u64);
    let mut rest = table.iter().copied();
    while let Some(head) = rest.next() {
        if head & 0x80 == 0 {
            // what belongs to an entry: passed over
            continue;
        }
        let kind = head >> 3 & 15;
        let delta = match kind {
            13 | 14 => signed(&mut rest),
            10..=12 => i32::from(kind) - 10,
            _ => 0,
        };
        line = line.wrapping_add_signed(delta);
        code += 2 * (u64::from(head & 7) + 1);
        if at < code {
            return (kind != 15).then_some(line);
        }
    }
    None
}

/// A number in pieces of six bits, the lowest first, of which the lowest bit is the sign.
fn signed(rest: &mut impl Iterator<Item = u8>) -> i32 {
    let (mut value, mut shift) = (0u32, 0);
    for byte in rest.by_ref() {
        value |= u32::from(byte & 63).checked_shl(shift).unwrap_or(0);
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    let amount = (value >> 1).cast_signed();
    if value & 1 == 1 { amount.wrapping_neg() } else { amount }
}
