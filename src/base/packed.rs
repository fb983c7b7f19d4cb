//! A table of rows of numbers of which most are small or zero, as the figures of a million call sites are: a row takes
//! some 15 bytes, where its numbers take 150. Pure.
//!
//! A row begins with one bit for each of its numbers: whether it is not zero. Those that are not follow. Bits and
//! numbers are written as LEB128: seven bits a byte, the lowest first, with the top bit set in all bytes but the last.

use rustc_hash::FxHashMap;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// A row of `N` numbers.
pub trait Row<const N: usize>: Sized {
    /// Its numbers.
    fn numbers(&self) -> [u64; N];
    /// The row of these numbers, which [`Self::numbers`] gave.
    fn of_numbers(numbers: [u64; N]) -> Self;
}

/// The bytes of a piece of the table, which is allocated as a whole; and of the first one, as most tables are small.
const PIECE: usize = 1 << 16;
const FIRST_PIECE: usize = 1 << 12;

/// The place of each row whose number is a multiple of this is kept; the others are found from there.
const STRIDE: usize = 4;

/// How many bytes a number takes at most.
const LONGEST: usize = 10;

/// See the module's head.
#[derive(Clone)]
pub struct Packed<R, const N: usize> {
    /// No group of [`STRIDE`] rows lies in two.
    pieces: Vec<Vec<u8>>,
    /// Of the first row of each group: [`PIECE`] times the number of its piece, plus its place in that.
    groups: Vec<u64>,
    len: usize,
    rows: PhantomData<R>,
}

impl<R, const N: usize> Default for Packed<R, N> {
    fn default() -> Self {
        Self { pieces: Vec::new(), groups: Vec::new(), len: 0, rows: PhantomData }
    }
}

impl<R: Row<N> + fmt::Debug, const N: usize> fmt::Debug for Packed<R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<R: Row<N> + PartialEq, const N: usize> PartialEq for Packed<R, N> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<R: Row<N>, const N: usize> Packed<R, N> {
    /// How many rows there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Changes all rows, in order.
    pub fn change(&mut self, mut change: impl FnMut(&mut R)) {
        *self = std::mem::take(self)
            .into_rows()
            .map(|mut row| {
                change(&mut row);
                row
            })
            .collect();
    }

    /// Keeps only those rows.
    pub fn retain(&mut self, keep: impl Fn(&R) -> bool) {
        if !self.iter().all(|row| keep(&row)) {
            *self = std::mem::take(self).into_rows().filter(keep).collect();
        }
    }

    /// Changes them as a plain list.
    #[cfg(test)]
    pub fn edit<T>(&mut self, edit: impl FnOnce(&mut Vec<R>) -> T) -> T {
        let mut rows = self.iter().collect();
        let outcome = edit(&mut rows);
        *self = rows.into_iter().collect();
        outcome
    }

    /// The row with this number, which must be there.
    #[cfg(test)]
    pub fn row(&self, index: usize) -> R {
        self.get(index).expect("a row")
    }

    /// Adds a row at the end.
    pub fn push(&mut self, row: &R) {
        const { assert!(N <= 64, "a bit for each number") };
        if self.len.is_multiple_of(STRIDE) {
            // a clone's last piece has no room but what it takes anew
            let has_room = |piece: &Vec<u8>| piece.len() + STRIDE * (N + 1) * LONGEST <= piece.capacity().min(PIECE);
            if !self.pieces.last().is_some_and(has_room) {
                self.pieces.push(Vec::with_capacity(if self.pieces.is_empty() { FIRST_PIECE } else { PIECE }));
            }
            let within = self.pieces.last().map_or(0, Vec::len);
            self.groups.push(((self.pieces.len() - 1) * PIECE + within) as u64);
        }
        let numbers = row.numbers();
        let mut mask = (0..).zip(&numbers).fold(0, |mask, (bit, number)| mask | u64::from(*number != 0) << bit);
        if let Some(piece) = self.pieces.last_mut() {
            write(piece, mask);
            while mask != 0 {
                write(piece, numbers.get(mask.trailing_zeros() as usize).copied().unwrap_or_default());
                mask &= mask - 1;
            }
            self.len += 1;
        }
    }

    /// The row with this number.
    pub fn get(&self, index: usize) -> Option<R> {
        let start = *self.groups.get(index / STRIDE).filter(|_| index < self.len)? as usize;
        let mut bytes = self.pieces.get(start / PIECE)?.get(start % PIECE..)?;
        for _ in 0..index % STRIDE {
            let mask = read(&mut bytes);
            skip(&mut bytes, mask.count_ones());
        }
        Some(read_row(&mut bytes))
    }

    /// All rows, in order.
    pub fn iter(&self) -> Rows<'_, R, N> {
        Rows { pieces: self.pieces.iter(), bytes: &[], left: self.len, rows: PhantomData }
    }

    /// All rows, in order; the memory of those that were read is given back meanwhile.
    pub fn into_rows(self) -> impl ExactSizeIterator<Item = R> {
        let mut pieces = self.pieces.into_iter();
        let (mut piece, mut at) = (Vec::new(), 0);
        (0..self.len).map(move |_| {
            if at >= piece.len() {
                (piece, at) = (pieces.next().unwrap_or_default(), 0);
            }
            let mut bytes = piece.get(at..).unwrap_or_default();
            let row = read_row(&mut bytes);
            at = piece.len() - bytes.len();
            row
        })
    }
}

/// The rows of a table, in order.
#[derive(Debug)]
pub struct Rows<'a, R, const N: usize> {
    pieces: std::slice::Iter<'a, Vec<u8>>,
    /// The rest of the present piece.
    bytes: &'a [u8],
    left: usize,
    rows: PhantomData<R>,
}

impl<R: Row<N>, const N: usize> Iterator for Rows<'_, R, N> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        self.left = self.left.checked_sub(1)?;
        if self.bytes.is_empty() {
            self.bytes = self.pieces.next().map_or(&[], Vec::as_slice);
        }
        Some(read_row(&mut self.bytes))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<R: Row<N>, const N: usize> ExactSizeIterator for Rows<'_, R, N> {}

impl<'a, R: Row<N>, const N: usize> IntoIterator for &'a Packed<R, N> {
    type Item = R;
    type IntoIter = Rows<'a, R, N>;

    fn into_iter(self) -> Rows<'a, R, N> {
        self.iter()
    }
}

/// A table that is being made, of whose rows some are changed after they were added. Those lie apart until they are
/// many.
pub struct PackedBuilder<R, const N: usize> {
    rows: Packed<R, N>,
    changed: FxHashMap<u32, R>,
}

impl<R, const N: usize> fmt::Debug for PackedBuilder<R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedBuilder").field("len", &self.rows.len).finish_non_exhaustive()
    }
}

impl<R, const N: usize> Default for PackedBuilder<R, N> {
    fn default() -> Self {
        Self { rows: Packed::default(), changed: FxHashMap::default() }
    }
}

impl<R: Row<N> + Clone, const N: usize> PackedBuilder<R, N> {
    /// So many rows lie apart at least before they are packed, and this part of all.
    const APART: usize = 1 << 14;
    const PART: usize = 8;

    /// How many rows there are.
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Adds a row at the end.
    pub fn push(&mut self, row: &R) {
        self.rows.push(row);
    }

    /// The row with this number.
    pub fn get(&self, index: usize) -> Option<R> {
        self.changed.get(&(index as u32)).cloned().or_else(|| self.rows.get(index))
    }

    /// Changes the row with this number, if there is one.
    pub fn change(&mut self, index: usize, change: impl FnOnce(&mut R)) {
        if let Some(row) = self.changed.get_mut(&(index as u32)) {
            change(row);
        } else if let Some(mut row) = self.rows.get(index) {
            change(&mut row);
            self.changed.insert(index as u32, row);
            if self.changed.len() >= Self::APART.max(self.rows.len() / Self::PART) {
                self.pack();
            }
        }
    }

    fn pack(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        if !changed.is_empty() {
            let rows = (0..).zip(std::mem::take(&mut self.rows).into_rows());
            self.rows = rows.map(|(number, row)| changed.remove(&number).unwrap_or(row)).collect();
        }
    }

    /// The table.
    pub fn finish(mut self) -> Packed<R, N> {
        self.pack();
        self.rows
    }
}

impl<R: Row<N>, const N: usize> FromIterator<R> for Packed<R, N> {
    fn from_iter<I: IntoIterator<Item = R>>(rows: I) -> Self {
        let mut packed = Self::default();
        packed.extend(rows);
        packed
    }
}

impl<R: Row<N>, const N: usize> Extend<R> for Packed<R, N> {
    fn extend<I: IntoIterator<Item = R>>(&mut self, rows: I) {
        rows.into_iter().for_each(|row| self.push(&row));
    }
}

impl<R: Row<N> + Serialize, const N: usize> Serialize for Packed<R, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, R: Row<N> + Deserialize<'de>, const N: usize> Deserialize<'de> for Packed<R, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rows<R, const N: usize>(PhantomData<R>);
        impl<'de, R: Row<N> + Deserialize<'de>, const N: usize> Visitor<'de> for Rows<R, N> {
            type Value = Packed<R, N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence of rows")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<Self::Value, A::Error> {
                let mut packed = Packed::default();
                while let Some(row) = rows.next_element()? {
                    packed.push(&row);
                }
                Ok(packed)
            }
        }
        deserializer.deserialize_seq(Rows(PhantomData))
    }
}

#[inline]
fn read_row<R: Row<N>, const N: usize>(bytes: &mut &[u8]) -> R {
    let mut mask = read(bytes);
    let mut numbers = [0; N];
    while mask != 0 {
        if let Some(number) = numbers.get_mut(mask.trailing_zeros() as usize) {
            *number = read(bytes);
        }
        mask &= mask - 1;
    }
    R::of_numbers(numbers)
}

fn write(piece: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        piece.push(number as u8 | 0x80);
        number >>= 7;
    }
    piece.push(number as u8);
}

#[inline]
fn read(bytes: &mut &[u8]) -> u64 {
    if let Some((&byte, rest)) = bytes.split_first()
        && byte < 0x80
    {
        *bytes = rest;
        return byte.into();
    }
    read_long(bytes)
}

fn read_long(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 || shift > 63 {
            break;
        }
    }
    number
}

/// Passes over so many numbers, eight bytes at a time: each number ends with the byte whose top bit is not set.
fn skip(bytes: &mut &[u8], mut numbers: u32) {
    while numbers > 0
        && let Some((word, rest)) = bytes.split_first_chunk()
    {
        let mut ends = !u64::from_le_bytes(*word) & 0x8080_8080_8080_8080;
        let count = ends.count_ones();
        if count < numbers {
            numbers -= count;
            *bytes = rest;
            continue;
        }
        (1..numbers).for_each(|_| ends &= ends - 1);
        *bytes = bytes.get(ends.trailing_zeros() as usize / 8 + 1..).unwrap_or_default();
        return;
    }
    for _ in 0..numbers {
        let end = bytes.iter().position(|byte| byte & 0x80 == 0).map_or(bytes.len(), |last| last + 1);
        *bytes = bytes.get(end..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, PartialEq, Debug)]
    struct Three([u64; 3]);

    impl Row<3> for Three {
        fn numbers(&self) -> [u64; 3] {
            self.0
        }

        fn of_numbers(numbers: [u64; 3]) -> Self {
            Self(numbers)
        }
    }

    /// Numbers of all lengths.
    fn number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0u32..=64).prop_map(|(number, shift)| number.checked_shr(shift).unwrap_or_default())
    }

    proptest! {
        #[test]
        fn rows_come_back_as_a_plain_list_gives_them(rows in prop::collection::vec([number(), number(), number()], 0..9000)) {
            let rows: Vec<Three> = rows.into_iter().map(Three).collect();
            let packed: Packed<Three, 3> = rows.iter().cloned().collect();
            prop_assert_eq!(packed.len(), rows.len());
            prop_assert!(packed.iter().eq(rows.iter().cloned()));
            prop_assert!((0..=rows.len()).all(|at| packed.get(at).as_ref() == rows.get(at)));
            let mut longer = packed.clone();
            longer.extend(rows.iter().cloned());
            prop_assert!((0..2 * rows.len()).all(|at| longer.get(at).as_ref() == rows.get(at % rows.len())));
            prop_assert!(packed.into_rows().eq(rows));
        }
    }

    #[test]
    fn changes_are_packed_as_they_become_many() {
        let mut growing: PackedBuilder<Three, 3> = PackedBuilder::default();
        let mut plain = Vec::new();
        for n in 0..60_000_u64 {
            let row = Three([n, 0, 1]);
            growing.push(&row);
            plain.push(row);
            let at = (n * n % (n + 1)) as usize;
            growing.change(at, |row| row.0[1] += n);
            plain[at].0[1] += n;
            assert_eq!(growing.get(at).as_ref(), plain.get(at));
            assert!(growing.changed.len() < PackedBuilder::<Three, 3>::APART);
        }
        growing.change(60_000, |_| panic!("there is no such row"));
        assert_eq!((growing.len(), growing.get(60_000)), (plain.len(), None));
        assert!(growing.finish().iter().eq(plain));
    }

    #[test]
    fn small_numbers_take_a_byte_each() {
        let packed: Packed<Three, 3> = (0..100_000).map(|n| Three([n % 100 + 1, 0, 1])).collect();
        let bytes: usize = packed.pieces.iter().map(Vec::len).sum();
        assert_eq!(bytes, 300_000);
        assert_eq!(packed.pieces.len(), 6, "pieces are filled");
        assert_eq!(packed.groups.len(), 25_000);
    }
}
