//! Random instructions and processor states, reproducible from a seed.

use heaptrace::internal::{Regs, reg};

use super::machine::{CODE, DATA_HIGH, DATA_LEN, DATA_LOW};

/// splitmix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    /// The same numbers in each run, or others: `HEAPTRACE_TEST_SEED` shifts the seed.
    pub fn new(seed: u64) -> Self {
        let shift = std::env::var("HEAPTRACE_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0u64);
        Self(seed.wrapping_add(shift << 32))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// An address well inside the data, or (rarely) at the edge of what is mapped.
    pub fn pointer(&mut self) -> u64 {
        let start = *self.pick(&[DATA_LOW, DATA_HIGH]);
        match self.below(20) {
            0 => DATA_LOW + self.below(16),
            1 => DATA_HIGH + DATA_LEN - self.below(16),
            _ => start + 1024 + self.below(DATA_LEN - 2048),
        }
    }

    /// A value at which arithmetic is likely to go wrong, or any.
    fn value(&mut self) -> u64 {
        const EDGES: [u64; 12] =
            [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, 1 << 63];
        match self.below(4) {
            0 => *self.pick(&EDGES),
            1 => self.pick(&EDGES).wrapping_neg(),
            2 => self.below(64),
            _ => self.next(),
        }
    }

    pub fn regs(&mut self) -> Regs {
        let mut regs = Regs { rip: CODE, fs_base: DATA_LOW + 512, gs_base: DATA_HIGH + 1024, ..Regs::default() };
        for gpr in &mut regs.gpr {
            *gpr = if self.chance(60) { self.pointer() } else { self.value() };
        }
        if self.chance(90) {
            regs.gpr[reg::RSP] = self.pointer() & !7;
        }
        regs.rflags = 0x202 | self.next() & heaptrace::internal::ARITHMETIC;
        regs
    }

    /// Data memory: a mixture of pointers, code addresses and noise.
    pub fn data(&mut self) -> Vec<u8> {
        (0..DATA_LEN / 4)
            .flat_map(|_| {
                let word = match self.below(3) {
                    0 => self.pointer(),
                    1 => CODE + self.below(64),
                    _ => self.value(),
                };
                word.to_le_bytes()
            })
            .collect()
    }

    /// A ModRM byte with what follows it, `reg` in its middle field if given.
    fn modrm(&mut self, reg: Option<u8>) -> Vec<u8> {
        let middle = reg.unwrap_or(self.below(8) as u8) << 3;
        let (mode, rm) = (self.below(4) as u8, self.below(8) as u8);
        let mut bytes = vec![mode << 6 | middle | rm];
        if mode == 3 {
            return bytes;
        }
        let mut wide = mode == 2 || (mode == 0 && rm == 5);
        if rm == 4 {
            let sib = self.next() as u8;
            bytes.push(sib);
            wide |= mode == 0 && sib & 7 == 5;
        }
        if mode == 1 {
            bytes.push(self.next() as u8);
        } else if wide {
            let disp = match self.below(8) {
                0 => self.next() as i32,
                _ if rm == 5 && mode == 0 => {
                    // relative to rip: aim at the data
                    let back = self.chance(50);
                    let distance = 8300 + self.below(3000) as i32;
                    if back { 4096 - distance } else { distance }
                }
                _ => self.below(512) as i32 - 256,
            };
            bytes.extend(disp.to_le_bytes());
        }
        bytes
    }

    /// Prefixes, an opcode out of `opcodes`, operands, and noise for the immediate.
    pub fn instruction(&mut self, opcodes: &[&[u8]], prefixes: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !prefixes.is_empty() && self.chance(25) {
            bytes.push(*self.pick(prefixes));
        }
        if self.chance(60) {
            bytes.push(0x40 | self.below(16) as u8);
        }
        bytes.extend(*self.pick(opcodes));
        bytes.extend(self.modrm(None));
        for _ in 0..8 {
            bytes.push(if self.chance(40) { *self.pick(&[0, 1, 0x7f, 0x80, 0xff]) } else { self.next() as u8 });
        }
        bytes.truncate(15);
        bytes
    }
}
