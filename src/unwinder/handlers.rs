//! Where exceptions land in a function: the call-site table of its language-specific data area, as the unwinder's C++
//! personality reads it (Itanium C++
//! ABI, exception handling; LSB Core 5.0, `.gcc_except_table`).

/// DW_EH_PE_omit: the value is not there.
const OMIT: u8 = 0xff;
const ULEB128: u8 = 0x01;
const UDATA4: u8 = 0x03;

/// So many call sites are read, at most.
const MAX_CALL_SITES: usize = 1 << 16;

/// The distances from a function's first byte to its landing pads, by the bytes of its data area (more may follow).
/// None if these can't be read, or say that
/// the distances count from elsewhere.
pub fn landing_pads(area: &[u8]) -> Option<Vec<u64>> {
    let mut left = area;
    if byte(&mut left)? != OMIT {
        return None;
    }
    if byte(&mut left)? != OMIT {
        uleb128(&mut left)?;
    }
    let encoding = byte(&mut left)?;
    let size = usize::try_from(uleb128(&mut left)?).ok()?;
    let mut sites = left.get(..size)?;
    let mut found = Vec::new();
    while !sites.is_empty() && found.len() < MAX_CALL_SITES {
        let mut value = || match encoding {
            ULEB128 => uleb128(&mut sites),
            UDATA4 => {
                let (value, rest) = sites.split_first_chunk()?;
                sites = rest;
                Some(u32::from_le_bytes(*value).into())
            }
            _ => None,
        };
        let [_, _, pad] = [value()?, value()?, value()?];
        uleb128(&mut sites)?;
        // 0: none
        found.extend((pad > 0).then_some(pad));
    }
    Some(found)
}

fn byte(left: &mut &[u8]) -> Option<u8> {
    let (first, rest) = left.split_first()?;
    *left = rest;
    Some(*first)
}

fn uleb128(left: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let one = byte(left)?;
        value |= u64::from(one & 0x7f).checked_shl(shift)?;
        if one & 0x80 == 0 {
            return Some(value);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_are_read_in_both_encodings() {
        // no base, types at 0x15, uleb128: two calls, the first without a pad
        let area = [0xff, 0x9b, 0x15, 0x01, 8, 4, 5, 0, 0, 0x20, 5, 0x83, 0x01, 1, 9];
        assert_eq!(landing_pads(&area[..13]), None, "cut off");
        let area = [&area[..4], &[9], &area[5..14], &[9][..]].concat();
        assert_eq!(landing_pads(&area), Some(vec![0x83]));
        let wide = [&[0xff, 0xff, 0x03, 13][..], &[4, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 1]].concat();
        assert_eq!(landing_pads(&wide), Some(vec![3]));
        assert_eq!(landing_pads(&[0x1b, 0, 0, 0, 0, 0xff, 1, 0]), None, "from elsewhere");
        assert_eq!(landing_pads(&[0xff, 0xff, 1, 0]), Some(vec![]));
        assert_eq!(landing_pads(&[]), None);
    }
}
