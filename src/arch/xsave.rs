//! The vector registers of a thread, in the layout of the XSAVE instruction (Intel SDM volume 1, chapter 13.4, standard
//! format), in which the kernel gives them to a tracer.

/// The register set by its number in core files and for PTRACE_GETREGSET (<elf.h>).
pub const NT_X86_XSTATE: i32 = 0x202;

/// Room for what is looked at, in words of eight bytes: all but the tiles of AMX, which hold no pointers.
pub const WORDS: usize = 2816 / 8;

/// Where xmm0 lies, in bytes; each has 16 of them.
const XMM: usize = 160;

/// Where the upper halves of ymm0 to ymm15 lie, in bytes, behind the header.
const YMM: usize = 576;

/// Where what AVX-512 adds begins at the earliest, in bytes: there the processors differ.
const ZMM: usize = 832;

/// Eight bytes of a vector register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VectorWord {
    /// The bytes.
    pub value: u64,
    /// The register's name: `xmm7`.
    pub name: &'static str,
}

const XMM_NAMES: [&str; 16] = [
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
    "xmm14", "xmm15",
];

const YMM_NAMES: [&str; 16] = [
    "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12", "ymm13",
    "ymm14", "ymm15",
];

/// The words of the vector registers in an XSAVE area that are not zero.
pub fn vector_words(area: &[u64]) -> Vec<VectorWord> {
    let words = area.iter().enumerate().filter(|(_, value)| **value != 0);
    words.filter_map(|(at, &value)| Some(VectorWord { value, name: register_at(at * 8)? })).collect()
}

/// The register that holds the byte at this offset.
fn register_at(offset: usize) -> Option<&'static str> {
    let numbered = |names: &[&'static str], start: usize| names.get(offset.checked_sub(start)? / 16).copied();
    match offset {
        ZMM.. => Some("zmm"),
        YMM.. => numbered(&YMM_NAMES, YMM),
        _ => numbered(&XMM_NAMES, XMM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_named_by_their_registers() {
        let mut area = [0; WORDS];
        // state of the x87 unit, the header, and words of registers
        for (offset, value) in
            [(0, 0x37f), (512, 7), (160, 1), (168, 2), (160 + 7 * 16, 3), (408, 4), (576, 5), (824, 6), (1664, 8)]
        {
            area[offset / 8] = value;
        }
        let found: Vec<_> = vector_words(&area).iter().map(|word| (word.value, word.name)).collect();
        let expected = [(1, "xmm0"), (2, "xmm0"), (3, "xmm7"), (4, "xmm15"), (5, "ymm0"), (6, "ymm15"), (8, "zmm")];
        assert_eq!(found, expected);
    }
}
