//! A vector in pieces.

use crate::base::chunk::Chunk;
use std::ops::Range;

/// Entries of a piece.
const CHUNK: usize = 1 << 11;

/// A vector that grows by a chunk at a time, moves what it holds only where a view has it, too, and shares it by
/// chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunked<T> {
    chunks: Vec<Chunk<Box<[T]>>>,
    len: usize,
}

impl<T> Chunked<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

impl<T: Copy + Default> Chunked<T> {
    pub(super) fn get(&self, index: usize) -> Option<T> {
        if index >= self.len {
            return None;
        }
        self.chunks.get(index / CHUNK)?.get().get(index % CHUNK).copied()
    }

    /// These entries, which lie in one piece; none if they do not.
    pub(super) fn part(&self, range: Range<usize>) -> &[T] {
        let within = range.start % CHUNK..range.start % CHUNK + range.len();
        let chunk = self.chunks.get(range.start / CHUNK).filter(|_| range.end <= self.len);
        chunk.and_then(|chunk| chunk.get().get(within)).unwrap_or_default()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.chunks.get_mut(index / CHUNK)?.get_mut().get_mut(index % CHUNK)
    }

    pub(super) fn view(&mut self) -> Self {
        Self { chunks: self.chunks.iter_mut().map(Chunk::share).collect(), len: self.len }
    }

    pub(super) fn push(&mut self, value: T) {
        let index = self.len;
        if index / CHUNK == self.chunks.len() {
            self.chunks.push(Chunk::Own(vec![T::default(); CHUNK].into_boxed_slice()));
        }
        if let Some(slot) = self.get_mut(index) {
            *slot = value;
            self.len += 1;
        }
    }

    /// Adds an entry if there is room in the last piece, which no view has.
    #[inline]
    pub(super) fn push_within(&mut self, value: T) -> bool {
        let place = self.len % CHUNK;
        let is_begun = place != 0;
        match self.chunks.last_mut() {
            Some(Chunk::Own(chunk)) if is_begun => match chunk.get_mut(place) {
                Some(slot) => {
                    *slot = value;
                    self.len += 1;
                    true
                }
                None => false,
            },
            _ => false,
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| size_of_val(&**chunk.get())).sum::<usize>()
            + self.chunks.capacity() * size_of::<Chunk<Box<[T]>>>()
    }
}
