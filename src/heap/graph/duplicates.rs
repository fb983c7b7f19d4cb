//! Blocks that hold the same.

use super::contents::{ContentKind, Contents};
use crate::heapmodel::LiveBlock;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Blocks of one size that hold the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Duplicate {
    /// The first of them.
    pub block: u32,
    /// How many there are.
    pub count: u64,
    /// What each has, in bytes.
    pub size: u64,
    /// Whether it is text.
    pub text: bool,
}

impl Duplicate {
    /// What one of them would do without, in bytes.
    pub const fn wasted(&self) -> u64 {
        (self.count - 1) * self.size
    }
}

/// All of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Duplicates {
    /// What could be done without, in bytes.
    pub wasted: u64,
    /// Of that in text.
    pub wasted_text: u64,
    /// Those that waste most first; not all.
    pub most: Vec<Duplicate>,
}

/// So many bytes of copies are worth a word, ...
const MIN_COPIES: u64 = 64 << 10;

/// ... if they are one part in so many of all that is live.
const PARTS: u64 = 100;

/// Whether so many bytes of copies are worth a word in a heap with so many live bytes.
pub const fn are_worth_a_word(wasted: u64, live_bytes: u64) -> bool {
    wasted >= MIN_COPIES && wasted >= live_bytes / PARTS
}

/// Text with these in it is taken for a secret, whatever its case.
const SECRET: [&str; 17] = [
    "secret",
    "credential",
    "passw",
    "passp",
    "pass=",
    "pwd",
    "session",
    "sid=",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "private",
    "bearer",
    "authorization",
    "cookie",
    "-----begin",
];

/// Words of so many characters, with digits and letters of both cases, or of upper case only, or in hex, are taken for
/// keys.
const KEY_LENGTH: usize = 16;

/// Whether text looks like a secret, which is not to be shown: it says so itself, or has a word in it that looks like a
/// key.
pub fn looks_secret(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    SECRET.iter().any(|secret| lower.contains(secret))
        || text.split(|c: char| !(c.is_ascii_alphanumeric() || "+-_".contains(c))).any(is_key)
}

fn is_key(word: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| word.bytes().filter(kind).count() >= 2;
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (upper, lower) = (has(u8::is_ascii_uppercase), has(u8::is_ascii_lowercase));
    let is_digits = word.bytes().all(|byte| byte.is_ascii_digit());
    word.len() >= KEY_LENGTH
        && !is_digits
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && (upper || is_hex && lower)
}

/// So many bits are kept for a block, to tell early which has no equal.
const BITS: usize = 4;

/// A set of small numbers.
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn get(&self, bit: usize) -> bool {
        self.0.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Adds one; whether it was there before.
    fn set(&mut self, bit: usize) -> bool {
        let was_there = self.get(bit);
        if let Some(word) = self.0.get_mut(bit / 64) {
            *word |= 1 << (bit % 64);
        }
        was_there
    }
}

/// Finds them, and tells at most so many. Blocks with nothing but zeros may not have been used yet: they are left out,
/// as are those that were not read whole.
pub fn find(blocks: &[LiveBlock], contents: &Contents, most: usize) -> Duplicates {
    let counts = |number: usize| contents.looks.get(number) != Some(&ContentKind::Zeros);
    let numbered =
        || blocks.iter().zip(&contents.hashes).enumerate().filter(|(number, (_, hash))| **hash != 0 && counts(*number));
    let key = |block: &LiveBlock, hash: u64| hash ^ block.size.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // those whose lower bits come once are of one block
    let mask = blocks.len().next_power_of_two().saturating_mul(BITS) - 1;
    let (mut once, mut again) = (Bits::new(mask + 1), Bits::new(mask + 1));
    for (_, (block, hash)) in numbered() {
        let bit = key(block, *hash) as usize & mask;
        if once.set(bit) {
            again.set(bit);
        }
    }
    drop(once);
    let keys = numbered().map(|(_, (block, hash))| key(block, *hash));
    let mut keys: Vec<u64> = keys.filter(|key| again.get(*key as usize & mask)).collect();
    drop(again);
    keys.sort_unstable();
    let mut known: FxHashMap<u64, Duplicate> = FxHashMap::default();
    for run in keys.chunk_by(|a, b| a == b).filter(|run| run.len() > 1) {
        let Some(&key) = run.first() else { continue };
        known.insert(key, Duplicate { block: u32::MAX, count: run.len() as u64, size: 0, text: false });
    }
    drop(keys);
    for (number, (block, hash)) in numbered() {
        if let Some(duplicate) = known.get_mut(&key(block, *hash))
            && duplicate.block == u32::MAX
        {
            duplicate.block = number as u32;
            duplicate.size = block.size;
            duplicate.text = contents.looks.get(number) == Some(&ContentKind::Text);
        }
    }
    let mut all: Vec<Duplicate> = known.into_values().collect();
    all.sort_unstable_by_key(|duplicate| (Reverse(duplicate.wasted()), duplicate.block));
    let wasted = all.iter().map(Duplicate::wasted).sum();
    let wasted_text = all.iter().filter(|duplicate| duplicate.text).map(Duplicate::wasted).sum();
    all.truncate(most);
    Duplicates { wasted, wasted_text, most: all }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::Addr;
    use crate::heapmodel::SiteId;

    #[test]
    fn what_looks_like_a_secret_is_known() {
        for secret in [
            "password=hunter2",
            "DB_PASSWD",
            "Authorization: Basic dXNlcjpwYXNz",
            "-----BEGIN RSA PRIVATE KEY-----",
            "user=joe token=abc",
            "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9",
            "id 9f86d081884c7d659a2feaa0c55ad015",
            "id=9f86d081884c7d659a2feaa0c55ad015",
            "(9f86d081884c7d659a2feaa0c55ad015)",
            "pwd=hunter2",
            "passphrase: x",
            "AKIAIOSFODNN7EXAMPLE",
        ] {
            assert!(looks_secret(secret), "{secret}");
        }
        for text in [
            "the same text in many blocks, 2000 times",
            "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            "dependency-name-of-a-crate 1.0.228",
            "2026-11-26T20:01:51 INFO started",
            "std::vector<std::string>::push_back",
        ] {
            assert!(!looks_secret(text), "{text}");
        }
    }

    #[test]
    fn copies_are_worth_a_word_where_they_are_many_and_much_of_all() {
        assert!(are_worth_a_word(64 << 10, 100 * (64 << 10)));
        assert!(!are_worth_a_word((64 << 10) - 1, 1 << 10));
        assert!(!are_worth_a_word(64 << 10, 101 * (64 << 10)));
    }

    #[test]
    fn equal_contents_of_one_size_are_counted() {
        let block = |at: u64, size: u64| LiveBlock { addr: Addr(at), size, site: SiteId(0), inherited: false };
        let blocks = [block(16, 24), block(64, 24), block(128, 40), block(256, 24), block(512, 24), block(600, 24)];
        let contents = Contents {
            looks: vec![
                ContentKind::Text,
                ContentKind::Unknown,
                ContentKind::Unknown,
                ContentKind::Text,
                ContentKind::Text,
                ContentKind::Zeros,
            ],
            hashes: vec![7, 8, 7, 7, 7, 9],
            tables: Vec::new(),
        };
        let found = find(&blocks, &contents, 10);
        assert_eq!(found.most, [Duplicate { block: 0, count: 3, size: 24, text: true }]);
        assert_eq!((found.wasted, found.wasted_text), (48, 48));
    }
}
