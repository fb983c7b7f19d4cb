//! Words of the target, read in pieces: chunk after chunk lies behind the other.

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;

/// So much is read at once.
const PIECE: usize = 64 << 10;

/// A piece of memory that was read last.
pub(super) struct Window<'a> {
    memory: &'a mut dyn ReadMemory,
    start: Addr,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(super) fn new(memory: &'a mut dyn ReadMemory) -> Self {
        Self { memory, start: Addr::NULL, bytes: Vec::new() }
    }

    /// The word at `at`; None if it can't be read.
    pub(super) fn word(&mut self, at: Addr) -> Option<u64> {
        if let Some(word) = self.held(at) {
            return Some(word);
        }
        self.fill(at, PIECE);
        self.held(at)
    }

    /// Reads so many bytes from `at` on in one go, if they are not held: words of them are then there.
    pub(super) fn see(&mut self, at: Addr, len: u64) {
        let last = at.0.saturating_add(len).saturating_sub(8);
        if self.held(at).is_none() || self.held(Addr(last)).is_none() {
            self.fill(at, usize::try_from(len).map_or(PIECE, |len| len.min(PIECE)));
        }
    }

    /// The word at `at`, where its neighbours are of no interest; None if it can't be read.
    pub(super) fn lone_word(&mut self, at: Addr) -> Option<u64> {
        self.held(at).or_else(|| self.memory.read_u64(at))
    }

    fn held(&self, at: Addr) -> Option<u64> {
        let offset = usize::try_from(at.0.checked_sub(self.start.0)?).ok()?;
        let word = self.bytes.get(offset..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*word))
    }

    fn fill(&mut self, at: Addr, len: usize) {
        self.bytes.resize(len, 0);
        self.start = at;
        let read = self.memory.read(at, &mut self.bytes);
        self.bytes.truncate(read);
    }
}
