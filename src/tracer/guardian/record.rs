//! What the tracer tells the guardian: records of one size, one a packet.

use crate::base::addr::Addr;
use crate::breakpoints::patches::{LONGEST, Patch};
use crate::tracer::sigtrap_fallback::SigtrapFallback;

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Which address space it is about; numbered by the tracer.
    pub space: u32,
    /// What is the matter with it.
    pub what: What,
}

/// What happens to an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// It is to be guarded from now on. The descriptor of its memory comes with the record.
    Space {
        /// The process that it belongs to.
        pid: i32,
    },
    /// The same, and what is known of another one holds for it, too: it is a copy, made by a fork.
    Copy {
        /// The process that it belongs to.
        pid: i32,
        /// The number of the other one.
        of: u32,
    },
    /// A patch is about to be written at `addr`.
    Placed {
        /// Where.
        addr: Addr,
        /// What stands there, and what is written over it.
        patch: Patch,
    },
    /// The original bytes are back.
    Lifted {
        /// Where.
        addr: Addr,
    },
    /// Code of ours goes where zeros are.
    Code {
        /// Its first byte.
        start: Addr,
        /// Its length in bytes.
        len: u64,
    },
    /// The SIGTRAP fallback is installed.
    Fallback(SigtrapFallback),
    /// It is no longer.
    NoFallback,
    /// Children that share the memory may have it.
    OthersFallback(SigtrapFallback),
    /// What was known of these addresses holds no longer.
    Unmapped {
        /// The first.
        start: Addr,
        /// One past the last.
        end: Addr,
    },
    /// Nothing of ours is left in it, or it is gone.
    Forget,
}

/// Bytes of an encoded record: kind, space, two words; of a patch the original and the new bytes.
pub const SIZE: usize = 24 + 2 * LONGEST;

impl Record {
    /// The record as bytes.
    pub fn encode(self) -> [u8; SIZE] {
        let (kind, first, second): (u32, u64, u64) = match self.what {
            What::Space { pid } => (0, u64::from(pid.cast_unsigned()), 0),
            What::Placed { addr, patch } => (1, addr.0, patch.len() as u64),
            What::Lifted { addr } => (2, addr.0, 0),
            What::Code { start, len } => (3, start.0, len),
            What::Unmapped { start, end } => (4, start.0, end.0),
            What::Forget => (5, 0, 0),
            What::Fallback(fallback) => (6, fallback.at.0, fallback.call.0),
            What::NoFallback => (7, 0, 0),
            What::OthersFallback(fallback) => (9, fallback.at.0, fallback.call.0),
            What::Copy { pid, of } => (8, u64::from(pid.cast_unsigned()), u64::from(of)),
        };
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.space.to_le_bytes());
        bytes[8..16].copy_from_slice(&first.to_le_bytes());
        bytes[16..24].copy_from_slice(&second.to_le_bytes());
        if let What::Placed { patch, .. } = &self.what {
            bytes[24..24 + patch.len()].copy_from_slice(patch.original());
            bytes[24 + LONGEST..][..patch.len()].copy_from_slice(patch.replacement());
        }
        bytes
    }

    /// The record in `bytes`; None if there is none that this version knows.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk::<4>()?;
        let (space, rest) = rest.split_first_chunk::<4>()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (second, rest) = rest.split_first_chunk::<8>()?;
        let (original, rest) = rest.split_first_chunk::<LONGEST>()?;
        let (new, rest) = rest.split_first_chunk::<LONGEST>()?;
        let (first, second) = (u64::from_le_bytes(*first), u64::from_le_bytes(*second));
        let what = match u32::from_le_bytes(*kind) {
            0 => What::Space { pid: i32::try_from(first).ok()? },
            1 => {
                let len = usize::try_from(second).ok()?;
                What::Placed { addr: Addr(first), patch: Patch::new(original.get(..len)?, new.get(..len)?)? }
            }
            2 => What::Lifted { addr: Addr(first) },
            3 => What::Code { start: Addr(first), len: second },
            4 => What::Unmapped { start: Addr(first), end: Addr(second) },
            5 => What::Forget,
            6 => What::Fallback(SigtrapFallback { at: Addr(first), call: Addr(second) }),
            7 => What::NoFallback,
            9 => What::OthersFallback(SigtrapFallback { at: Addr(first), call: Addr(second) }),
            8 => What::Copy { pid: i32::try_from(first).ok()?, of: u32::try_from(second).ok()? },
            _ => return None,
        };
        rest.is_empty().then_some(Self { space: u32::from_le_bytes(*space), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_back_as_it_was() {
        let (addr, end) = (Addr(0x7fff_1234_5678), Addr(0x7fff_1234_6000));
        for what in [
            What::Space { pid: 4711 },
            What::Placed { addr, patch: Patch::int3(0xf3) },
            What::Placed { addr, patch: Patch::new(&[1, 2, 3, 4, 5], &[6, 7, 8, 9, 10]).unwrap() },
            What::Placed { addr, patch: Patch::new(&[1; LONGEST], &[2; LONGEST]).unwrap() },
            What::Lifted { addr },
            What::Code { start: addr, len: 17 },
            What::Unmapped { start: addr, end },
            What::Fallback(SigtrapFallback { at: addr, call: end }),
            What::NoFallback,
            What::OthersFallback(SigtrapFallback { at: addr, call: end }),
            What::Copy { pid: 4712, of: 3 },
            What::Forget,
        ] {
            let record = Record { space: 3, what };
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        assert_eq!(Record::decode(&[0; SIZE - 1]), None);
        let no_bytes = Record { space: 3, what: What::Code { start: addr, len: 0 } }.encode();
        let mut patch_of_none = no_bytes;
        patch_of_none[0] = 1;
        assert_eq!(Record::decode(&patch_of_none), None);
        assert_eq!(Record::decode(&[9; SIZE]), None);
    }
}
