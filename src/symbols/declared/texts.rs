//! Names in debug information. The end of one is looked for no further than the longest may be: in a damaged file it
//! may be as far as the section reaches, for each name again.

use crate::symbols::demangle::LONGEST_NAME;
use crate::symbols::dwarfsections::Slice;
use gimli::{AttributeValue, Dwarf, Section, Unit};

/// Reading so many bytes of a name takes as long as reading an attribute.
pub(super) const BYTES: usize = 64;

/// The text of an attribute. None: it has none, or one that is too long.
pub(super) fn text<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    unit: &Unit<Slice<'a>>,
    value: AttributeValue<Slice<'a>>,
) -> Option<&'a [u8]> {
    let (section, offset) = match value {
        AttributeValue::String(text) => return Some(text.slice()).filter(|text| text.len() <= LONGEST_NAME),
        AttributeValue::DebugStrRef(offset) => (dwarf.debug_str.reader(), offset.0),
        AttributeValue::DebugStrRefSup(offset) => (dwarf.sup()?.debug_str.reader(), offset.0),
        AttributeValue::DebugLineStrRef(offset) => (dwarf.debug_line_str.reader(), offset.0),
        AttributeValue::DebugStrOffsetsIndex(index) => {
            (dwarf.debug_str.reader(), dwarf.string_offset(unit, index).ok()?.0)
        }
        _ => return None,
    };
    ended(section.slice(), offset)
}

/// The text at a place, which ends before a zero.
fn ended(section: &[u8], offset: usize) -> Option<&[u8]> {
    let rest = section.get(offset..)?;
    let within = rest.get(..=LONGEST_NAME).unwrap_or(rest);
    within.get(..within.iter().position(|&byte| byte == 0)?)
}

/// How much reading a value takes besides its attribute: texts may stand in the entries themselves.
pub(super) fn steps(value: &AttributeValue<Slice<'_>>) -> usize {
    match value {
        AttributeValue::String(text) => text.slice().len() / BYTES,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_a_zero_that_is_near() {
        let mut section = vec![b'n'; 3 * LONGEST_NAME];
        assert_eq!(ended(&section, 0), None);
        section[LONGEST_NAME] = 0;
        assert_eq!(ended(&section, 0).map(<[u8]>::len), Some(LONGEST_NAME));
        assert_eq!(ended(&section, LONGEST_NAME), Some(&[][..]));
        section[LONGEST_NAME] = b'n';
        section[LONGEST_NAME + 1] = 0;
        assert_eq!(ended(&section, 0), None);
        assert_eq!(ended(&section, 1).map(<[u8]>::len), Some(LONGEST_NAME));
        assert_eq!(ended(&section, section.len()), None);
        assert_eq!(ended(&section, section.len() + 1), None);
    }
}
