//! The part of the target's stack that a walk has copied: one read serves most walks.

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;

/// The least and most that the first read of a walk takes.
const FIRST_READ: std::ops::RangeInclusive<usize> = 2048..=16 * 1024;
/// What each further read takes.
const NEXT_READ: usize = 4096;
/// A gap up to this size is read through, a larger one is skipped.
const MAX_GAP: u64 = 16 * 1024;
/// The window never holds more.
const MAX_WINDOW: usize = 256 * 1024;
/// Where a window is set anew it begins that much below the wanted word: callee-saved registers lie below the
/// return address that is read first.
const BELOW: u64 = 128;

/// What outlives a walk: the buffer, and how much of it the last walks needed.
#[derive(Clone, Debug)]
pub struct StackBuffer {
    bytes: Vec<u8>,
    first_read: usize,
}

impl Default for StackBuffer {
    fn default() -> Self {
        Self { bytes: Vec::new(), first_read: 4096 }
    }
}

/// Reads words of one stopped thread's stack.
#[derive(Debug)]
pub struct StackWindow<'a, M: ReadMemory + ?Sized> {
    memory: &'a mut M,
    buffer: &'a mut StackBuffer,
    /// The walk begins in memory of our own, so that it says nothing of what others need.
    is_near: bool,
    /// Address of the buffer's first byte.
    start: u64,
    /// Valid bytes in the buffer.
    len: usize,
    /// The last read ended at an unreadable page.
    ended: bool,
    /// Where the walk began, and the highest word read from the window that began there.
    sp: u64,
    used: u64,
}

impl<'a, M: ReadMemory + ?Sized> StackWindow<'a, M> {
    /// Begins a walk at the stack pointer `sp`.
    pub fn new(buffer: &'a mut StackBuffer, memory: &'a mut M, sp: u64) -> Self {
        let first = buffer.first_read;
        let is_near = memory.near_word(Addr(sp)).is_some();
        let mut window = Self { memory, buffer, is_near, start: sp, len: 0, ended: false, sp, used: 0 };
        if !is_near {
            window.append(first);
        }
        window
    }

    /// The word at `addr`, None if it can't be read.
    #[inline]
    pub fn word(&mut self, addr: u64) -> Option<u64> {
        match self.cached(addr) {
            Some(word) => Some(word),
            None => self.fetch(addr),
        }
    }

    /// Bytes of code or data that are no part of the stack.
    pub fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        self.memory.read(addr, buf)
    }

    /// Whether the byte at `addr` can be executed. None where that is not known.
    pub fn is_executable(&mut self, addr: Addr) -> Option<bool> {
        self.memory.is_executable(addr)
    }

    #[inline]
    fn cached(&self, addr: u64) -> Option<u64> {
        let offset = usize::try_from(addr.wrapping_sub(self.start)).ok()?;
        let bytes = self.buffer.bytes.get(..self.len)?.get(offset..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }

    #[inline]
    fn fetch(&mut self, addr: u64) -> Option<u64> {
        match self.memory.near_word(Addr(addr)) {
            Some(word) => Some(word),
            None => self.fetch_many(addr),
        }
    }

    #[cold]
    fn fetch_many(&mut self, addr: u64) -> Option<u64> {
        let end = self.start.wrapping_add(self.len as u64);
        let beyond = addr.wrapping_add(8).wrapping_sub(end);
        let room = MAX_WINDOW - self.len;
        if addr >= self.start && beyond <= MAX_GAP && beyond as usize + NEXT_READ <= room && !self.ended {
            self.append(beyond as usize + NEXT_READ);
        } else if addr >= end || addr.saturating_add(NEXT_READ as u64) < self.start {
            // a large frame, or a signal handler's way back to the stack that was interrupted
            self.start = addr.saturating_sub(BELOW);
            self.len = 0;
            self.ended = false;
            self.append(NEXT_READ);
        }
        self.cached(addr).or_else(|| self.memory.read_u64(Addr(addr)))
    }

    fn append(&mut self, bytes: usize) {
        let from = self.len;
        if self.buffer.bytes.len() < from + bytes {
            self.buffer.bytes.resize(from + bytes, 0);
        }
        let addr = Addr(self.start).add(from as u64);
        if let Some(space) = self.buffer.bytes.get_mut(from..from + bytes) {
            let n = self.memory.read(addr, space).min(bytes);
            self.ended = n < bytes;
            self.len += n;
        }
    }

    /// Tells how far the walk came on the stack that it began on.
    pub fn reached(&mut self, sp: u64) {
        let used = sp.wrapping_sub(self.sp);
        if self.start == self.sp && used <= self.len as u64 {
            self.used = self.used.max(used);
        }
    }
}

impl<M: ReadMemory + ?Sized> Drop for StackWindow<'_, M> {
    /// The next walk reads at once what this one needed; a deep walk is forgotten slowly.
    fn drop(&mut self) {
        if self.is_near {
            return;
        }
        let used = usize::try_from(self.used).unwrap_or(usize::MAX).saturating_add(256);
        let slowly = self.buffer.first_read - self.buffer.first_read / 8;
        self.buffer.first_read = used.max(slowly).clamp(*FIRST_READ.start(), *FIRST_READ.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory whose word at each address is the address; readable in two ranges.
    struct Echo {
        ranges: [std::ops::Range<u64>; 2],
        reads: usize,
    }

    impl ReadMemory for Echo {
        fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
            self.reads += 1;
            let Some(range) = self.ranges.iter().find(|r| r.contains(&addr.0)) else { return 0 };
            let n = buf.len().min((range.end - addr.0) as usize);
            for (i, byte) in buf[..n].iter_mut().enumerate() {
                let at = addr.0 + i as u64;
                *byte = (at & !7).to_le_bytes()[(at & 7) as usize];
            }
            n
        }
    }

    fn echo() -> Echo {
        Echo { ranges: [0x10000..0x20000, 0x7f_0000..0x80_0000], reads: 0 }
    }

    #[test]
    fn one_read_serves_a_shallow_walk() {
        let mut memory = echo();
        let mut buffer = StackBuffer::default();
        let mut window = StackWindow::new(&mut buffer, &mut memory, 0x10008);
        for addr in (0x10008..0x10800).step_by(8) {
            assert_eq!(window.word(addr), Some(addr));
        }
        drop(window);
        assert_eq!(memory.reads, 1);
    }

    #[test]
    fn every_word_is_right_wherever_it_lies() {
        let mut memory = echo();
        let mut buffer = StackBuffer::default();
        let mut window = StackWindow::new(&mut buffer, &mut memory, 0x18000);
        let far = [0x7f_f000, 0x18010, 0x7f_0000, 0x17ff8, 0x10000, 0x1fff8, 0x7f_fff8, 0x1c000];
        for addr in (0x18000..0x20000).step_by(8).chain(far) {
            assert_eq!(window.word(addr), Some(addr), "{addr:#x}");
        }
        for addr in [0x20000, 0x1fffc, 0xfff8, 0, u64::MAX, u64::MAX - 7, 0x80_0000] {
            assert_eq!(window.word(addr), None, "{addr:#x}");
        }
        assert_eq!(window.word(0x18000), Some(0x18000));
    }

    /// As [`Echo`], and words of the first range are near.
    struct Near(Echo);

    impl ReadMemory for Near {
        fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
            self.0.read(addr, buf)
        }

        fn near_word(&mut self, addr: Addr) -> Option<u64> {
            let [near, _] = &self.0.ranges;
            (near.contains(&addr.0) && addr.0.is_multiple_of(8)).then_some(addr.0)
        }
    }

    #[test]
    fn near_words_are_read_where_they_lie() {
        let mut memory = Near(echo());
        let mut buffer = StackBuffer::default();
        let mut window = StackWindow::new(&mut buffer, &mut memory, 0x18000);
        for addr in [0x18000, 0x1fff8, 0x10000, 0x7f_1000, 0x18010] {
            assert_eq!(window.word(addr), Some(addr), "{addr:#x}");
        }
        drop(window);
        assert_eq!(memory.0.reads, 1, "the far word's");
        assert_eq!(buffer.first_read, StackBuffer::default().first_read);
    }

    #[test]
    fn the_first_read_follows_the_depth_of_the_last_walks() {
        let mut memory = echo();
        let mut buffer = StackBuffer::default();
        for _ in 0..2 {
            memory.reads = 0;
            let mut window = StackWindow::new(&mut buffer, &mut memory, 0x10000);
            for addr in (0x10000..0x13000).step_by(64) {
                assert!(window.word(addr).is_some());
                window.reached(addr);
            }
        }
        assert_eq!(memory.reads, 1);
        for _ in 0..30 {
            StackWindow::new(&mut buffer, &mut memory, 0x10000).reached(0x10100);
        }
        assert_eq!(buffer.first_read, *FIRST_READ.start());
    }
}
