//! The target's memory through one descriptor of `/proc/TID/mem`.
//!
//! The descriptor belongs to the address space, not to the process: it stays good when the leader thread has ended
//! (whose own /proc files are then empty) and goes stale with an exec. Writes go through page protection (FOLL_FORCE),
//! byte by byte, into a private copy of the page; threads may run meanwhile. What a stopped thread's instruction or the
//! unwinder reads goes by process_vm_readv instead, which respects page protection and costs half.

use super::pagemap::PageMap;
use super::{Result, TracerError};
use crate::addr::Addr;
use crate::memory::ReadMemory;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::{File, OpenOptions};
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes fetched at once around the stack pointer: one page costs 2.4 µs, and holds a stack of 20 ordinary frames.
const WINDOW: usize = 4096;

/// The memory of one address space.
#[derive(Debug)]
pub struct TargetMemory {
    pid: i32,
    file: File,
    /// The task whose memory [`ReadMemory`] reads: the one that is stopped.
    reader: i32,
    window_start: u64,
    window: Vec<u8>,
    /// Which pages hold anything; opened at first use.
    pages: Option<PageMap>,
}

impl TargetMemory {
    /// Opens the memory of the address space that the live task `tid` of process `pid` has now.
    pub fn open(pid: i32, tid: i32) -> Result<Self> {
        let path = format!("/proc/{tid}/mem");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| TracerError::ProcFile { path, source })?;
        Ok(Self { pid, file, reader: tid, window_start: 0, window: Vec::with_capacity(WINDOW), pages: None })
    }

    /// Forgets what was cached: to be called at each stop, before the first read. `tid` is the stopped task.
    pub fn new_stop(&mut self, tid: i32) {
        self.reader = tid;
        self.window.clear();
    }

    /// Reads as the program itself could: pages without read permission fail. (Through /proc/TID/mem they do not.)
    fn read_as_program(&self, addr: Addr, buf: &mut [u8]) -> usize {
        let Ok(start) = usize::try_from(addr.0) else { return 0 };
        let remote = [RemoteIoVec { base: start, len: buf.len() }];
        match process_vm_readv(Pid::from_raw(self.reader), &mut [IoSliceMut::new(buf)], &remote) {
            Ok(n) => n,
            // A program may have made itself undumpable since; the descriptor was opened before.
            Err(Errno::EPERM) => self.read_uncached(addr, buf),
            Err(_) => 0,
        }
    }

    /// Writes `bytes` to code at `addr` and reads them back.
    ///
    /// # Errors
    /// [`TracerError::Write`] if the kernel refuses (Linux 6.12 and later can forbid such writes, see `heaptrace
    /// doctor`), [`TracerError::NotKept`] if something else stands there afterwards.
    pub fn write_code(&mut self, addr: Addr, bytes: &[u8]) -> Result<()> {
        self.window.clear();
        self.file.write_all_at(bytes, addr.0).map_err(|source| TracerError::Write { pid: self.pid, addr, source })?;
        let mut back = [0u8; 64];
        for (i, chunk) in bytes.chunks(back.len()).enumerate() {
            let at = addr.add((i * back.len()) as u64);
            let back = &mut back[..chunk.len()];
            if self.read_uncached(at, back) != chunk.len() || back != chunk {
                return Err(TracerError::NotKept { pid: self.pid, addr });
            }
        }
        Ok(())
    }

    /// Reads a word past the cache.
    pub fn read_word_uncached(&self, addr: Addr) -> Option<u64> {
        let mut word = [0; 8];
        (self.read_uncached(addr, &mut word) == 8).then(|| u64::from_le_bytes(word))
    }

    /// Reads past the cache.
    pub fn read_uncached(&self, addr: Addr, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], addr.0.wrapping_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        done
    }

    fn cached(&self, addr: Addr, buf: &mut [u8]) -> Option<usize> {
        let offset = usize::try_from(addr.0.checked_sub(self.window_start)?).ok()?;
        let rest = self.window.get(offset..)?;
        let bytes = rest.get(..buf.len())?;
        buf.copy_from_slice(bytes);
        Some(buf.len())
    }
}

impl ReadMemory for TargetMemory {
    /// Small reads fill a window of a page from `addr` on and serve later ones from it, until [`Self::new_stop`]. The stopped
    /// thread's stack can't change meanwhile.
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        if let Some(n) = self.cached(addr, buf) {
            return n;
        }
        if buf.len() > WINDOW || !self.window.is_empty() {
            return self.read_as_program(addr, buf);
        }
        let mut window = std::mem::take(&mut self.window);
        window.resize(WINDOW, 0);
        let n = self.read_as_program(addr, &mut window);
        window.truncate(n);
        self.window = window;
        self.window_start = addr.0;
        let n = n.min(buf.len());
        buf[..n].copy_from_slice(&self.window[..n]);
        n
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        if self.pages.is_none() {
            self.pages = PageMap::open(self.reader).ok();
        }
        match &mut self.pages {
            Some(pages) => pages.present(range),
            None => vec![range],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_our_own_memory_and_stops_at_a_hole() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut memory = TargetMemory::open(pid, pid).unwrap();
        let value = Box::new(0x1122_3344_5566_7788u64);
        let addr = Addr(&raw const *value as u64);
        assert_eq!(memory.read_u64(addr), Some(*value));
        memory.write_code(addr, &[0xcc]).unwrap();
        memory.new_stop(pid);
        assert_eq!(memory.read_u64(addr), Some(0x1122_3344_5566_77cc));
        assert_eq!(memory.read(Addr(0x10), &mut [0; 8]), 0);
    }
}
