//! The target's memory through one descriptor of `/proc/TID/mem`.
//!
//! The descriptor belongs to the address space, not to the process: it stays good when the leader thread has ended
//! (whose own /proc files are then empty) and goes stale with an exec. Writes go through page protection (FOLL_FORCE),
//! byte by byte, into a private copy of the page; threads may run meanwhile. What a stopped thread's instruction or the
//! unwinder reads goes by process_vm_readv instead, which respects page protection and costs half.

use super::fileend::{FileEnd, Place};
use super::injection::{self, Call};
use super::mapquery::MapQuery;
use super::pagemap::PageMap;
use super::servedfiles::ServedFiles;
use super::{Result, TracerError};
use crate::base::addr::Addr;
use crate::base::memory::{ReadAgain, ReadMemory};
use crate::image::maps::Mapping;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::{File, OpenOptions};
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes fetched at once around the stack pointer: one page costs 2.4 µs, and holds a stack of 20 ordinary frames.
const WINDOW: usize = 4096;

/// The memory of one address space.
#[derive(Debug)]
pub struct TargetMemory {
    pid: i32,
    file: File,
    /// The task whose memory [`ReadMemory`] reads: the one that is stopped.
    reader: i32,
    /// A task of this address space that is stopped for us now.
    stopped: Option<i32>,
    /// A thread that was to make a system call for us and did not come back in time: it still needs the code of that
    /// call.
    pub(super) late_caller: Option<i32>,
    /// Whether the kernel has refused a write, so that a stopped task is needed for it.
    refused: bool,
    window_start: u64,
    window: Vec<u8>,
    /// Which pages hold anything; opened at first use.
    pages: Option<PageMap>,
    /// What may be executed.
    map: MapQuery,
    /// Whether [`ReadMemory`] reads through the descriptor, too.
    keeps_shared: bool,
    /// Whether it reads pages without read permission, too.
    looks_behind_protection: bool,
    /// Where the mapped file ends at whose mapping nothing could be read last.
    file_end: FileEnd,
    /// Whether nobody lives there any more, where [`ReadMemory`] reads through the descriptor: it then reads nothing,
    /// and
    /// asks the kernel no more. Whoever looks through millions of blocks is done with it at once.
    has_gone: AtomicBool,
    /// Where [`ReadMemory`] reads only what is there.
    served: Option<ServedFiles>,
}

impl TargetMemory {
    /// Opens the memory of the address space that the live task `tid` of process `pid` has now.
    ///
    /// # Errors
    /// [`TracerError::Died`] if the task has ended, whose memory could be opened until it is waited for, and would read
    /// as nothing; [`TracerError::ProcFile`] if it can't be opened.
    pub fn open(pid: i32, tid: i32) -> Result<Self> {
        let path = format!("/proc/{tid}/mem");
        let file = injection::point(Call::Other)
            .and_then(|()| OpenOptions::new().read(true).write(true).open(&path))
            .map_err(|source| super::procfs::unreadable(tid, path, source))?;
        let memory = Self::new(pid, tid, file);
        if memory.is_gone() { Err(TracerError::Died { tid }) } else { Ok(memory) }
    }

    /// The memory that a descriptor of `/proc/TID/mem` leads to, where `pid` is its process.
    pub fn from_descriptor(pid: i32, descriptor: OwnedFd) -> Self {
        Self::new(pid, pid, descriptor.into())
    }

    fn new(pid: i32, tid: i32, file: File) -> Self {
        Self {
            pid,
            file,
            reader: tid,
            stopped: None,
            late_caller: None,
            refused: false,
            window_start: 0,
            window: Vec::with_capacity(WINDOW),
            pages: None,
            map: MapQuery::default(),
            keeps_shared: false,
            looks_behind_protection: false,
            file_end: FileEnd::default(),
            has_gone: AtomicBool::new(false),
            served: None,
        }
    }

    /// Of files that a server brings, among these mappings, only what is in memory is read from now on: the server may
    /// stand still, or never answer. `tid`: a task of the process that lives; of a copy it is one of the original's.
    pub fn wait_for_no_servers(&mut self, tid: i32, mappings: &[Mapping]) {
        self.served = ServedFiles::of(tid, mappings, self.reader);
    }

    /// All is read again.
    pub fn wait_for_servers(&mut self) {
        self.served = None;
    }

    /// Leaves shared what this address space shares with those that it was forked from or that were forked from it:
    /// process_vm_readv pins pages, and the kernel first copies what is pinned (Linux 5.19 and later,
    /// `gup_must_unshare`), which makes all that is read private. Page protection is not respected then.
    #[must_use]
    pub const fn keeping_shared(mut self) -> Self {
        self.keeps_shared = true;
        self
    }

    /// Reads through the descriptor from now on, or no longer. Memory whose faults another process serves
    /// (userfaultfd(2)), and which nobody has touched, can't be read so, where process_vm_readv would wait for that
    /// process.
    pub const fn wait_for_no_faults(&mut self, so: bool) {
        self.keeps_shared = so;
    }

    /// The descriptor of `/proc/TID/mem`, which leads to this memory in any process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Forgets what was cached: to be called at each stop, before the first read. `tid` is the stopped task.
    pub fn new_stop(&mut self, tid: i32) {
        self.reader = tid;
        self.window.clear();
        self.file_end = FileEnd::default();
    }

    /// The task of the last [`Self::new_stop`].
    pub const fn reader(&self) -> i32 {
        self.reader
    }

    /// Tells which task of this address space is stopped for the calling thread, if one is: where the kernel refuses
    /// writes to /proc/PID/mem (Linux 6.12 and later, `proc_mem.force_override=never`), they are made through it.
    pub const fn stands_still(&mut self, task: Option<i32>) {
        self.stopped = task;
    }

    /// Whether no task is stopped now, and the kernel has refused a write in such a moment.
    pub const fn is_refused(&self) -> bool {
        self.refused && self.stopped.is_none()
    }

    /// Whether nobody lives in this address space any more: those who did have ended, or have another one by exec. The
    /// kernel then reads nothing, and says so by no error.
    pub fn is_gone(&self) -> bool {
        matches!(self.file.read_at(&mut [0], 0), Ok(0))
    }

    /// Also reads pages without read permission from now on, or no longer: what the program has protected is still
    /// there.
    pub const fn look_behind_protection(&mut self, so: bool) {
        self.looks_behind_protection = so;
    }

    /// Reads as the program itself could: pages without read permission fail. (Through /proc/TID/mem they do not.)
    fn read_as_program(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        if self.has_gone() {
            return 0;
        }
        let readable = self.served.as_mut().map_or(buf.len(), |served| served.readable(addr, buf.len()));
        let buf = buf.get_mut(..readable).unwrap_or_default();
        if buf.is_empty() {
            return 0;
        }
        if self.keeps_shared {
            let read = self.read_uncached(addr, buf);
            if read == 0 && self.is_gone() {
                self.has_gone.store(true, Ordering::Relaxed);
            }
            return read;
        }
        let Ok(start) = usize::try_from(addr.0) else { return 0 };
        if injection::point(Call::Other).is_err() {
            return 0;
        }
        let remote = [RemoteIoVec { base: start, len: buf.len() }];
        match process_vm_readv(Pid::from_raw(self.reader), &mut [IoSliceMut::new(buf)], &remote) {
            Ok(n) => n,
            // A program may have made itself undumpable since; the descriptor was opened before.
            Err(Errno::EPERM) => self.read_uncached(addr, buf),
            Err(Errno::EFAULT) if self.looks_behind_protection => {
                // No more than this page: nobody has asked what the next one is.
                let left = WINDOW - start % WINDOW;
                let length = left.min(buf.len());
                self.read_uncached(addr, buf.get_mut(..length).unwrap_or_default())
            }
            Err(_) => 0,
        }
    }

    /// Writes `bytes` to code at `addr` and reads them back. For [`super::code`] only.
    ///
    /// # Errors
    /// [`TracerError::Write`] if the kernel refuses (Linux 6.12 and later can forbid such writes, see `heaptrace
    /// doctor`), [`TracerError::NotKept`] if something else stands there afterwards, [`TracerError::Died`] if the task
    /// that was stopped is being killed, or all tasks are gone, with which its memory goes.
    pub(super) fn write_code(&mut self, addr: Addr, bytes: &[u8]) -> Result<()> {
        self.try_to_write_code(addr, bytes).map_err(|error| match self.stopped {
            Some(tid) if super::ptrace::Stopped::regained(tid).is_being_killed() => TracerError::Died { tid },
            // also between the writing and the reading back
            _ if self.is_gone() => TracerError::Died { tid: self.pid },
            _ => error,
        })
    }

    /// The same for room on its stack that a thread has lent.
    ///
    /// # Errors
    /// As for [`Self::write_code`].
    pub(super) fn write_data(&mut self, addr: Addr, bytes: &[u8]) -> Result<()> {
        self.write_code(addr, bytes)
    }

    /// Writes `byte` to each byte of a part of a block that the program has not been handed yet.
    ///
    /// # Errors
    /// [`TracerError::Write`] if the kernel refuses.
    pub fn write_fill(&mut self, part: Range<Addr>, byte: u8) -> Result<()> {
        const PIECE: u64 = 1 << 16;
        self.window.clear();
        let mut at = part.start;
        while at < part.end {
            let length = PIECE.min(part.end.0 - at.0);
            let piece = vec![byte; usize::try_from(length).unwrap_or(0)];
            injection::point(Call::Other)
                .and_then(|()| self.file.write_all_at(&piece, at.0))
                .map_err(|source| TracerError::Write { pid: self.pid, addr: at, source })?;
            at = at.add(length);
        }
        Ok(())
    }

    fn try_to_write_code(&mut self, addr: Addr, bytes: &[u8]) -> Result<()> {
        self.window.clear();
        let written = injection::point(Call::Write).and_then(|()| self.file.write_all_at(bytes, addr.0));
        if let Err(source) = written {
            if self.is_gone() {
                return Err(TracerError::Died { tid: self.pid });
            }
            match self.stopped {
                Some(task) => self.poke(task, addr, bytes)?,
                None => {
                    self.refused = true;
                    return Err(TracerError::Write { pid: self.pid, addr, source });
                }
            }
        }
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

    /// Writes through a stopped task (PTRACE_POKEDATA): by aligned words, each in one piece, as other threads may run.
    fn poke(&self, task: i32, addr: Addr, bytes: &[u8]) -> Result<()> {
        const WORD: u64 = size_of::<u64>() as u64;
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let at = addr.add(done as u64);
            let offset = at.0 % WORD;
            let word_at = at.sub(offset);
            let source = || std::io::Error::from_raw_os_error(libc::EIO);
            let word = self.read_word_uncached(word_at).ok_or_else(|| TracerError::Write {
                pid: self.pid,
                addr,
                source: source(),
            })?;
            let mut word = word.to_le_bytes();
            let mut copied = 0;
            for (to, from) in word.iter_mut().skip(offset as usize).zip(rest) {
                *to = *from;
                copied += 1;
            }
            super::ptrace::poke(task, word_at, u64::from_le_bytes(word))?;
            done += copied;
        }
        Ok(())
    }

    /// Reads a word past the cache.
    pub fn read_word_uncached(&self, addr: Addr) -> Option<u64> {
        let mut word = [0; 8];
        (self.read_uncached(addr, &mut word) == 8).then(|| u64::from_le_bytes(word))
    }

    /// Reads a path or another string of at most PATH_MAX bytes, without its NUL. None if it does not end there.
    pub fn read_c_string(&self, addr: Addr) -> Option<Vec<u8>> {
        const LONGEST: usize = 4096;
        let mut text = vec![0; LONGEST];
        // What follows the string may not be mapped.
        let mut n = 0;
        while n < LONGEST {
            let at = addr.0.wrapping_add(n as u64);
            let to_page_end = WINDOW - at as usize % WINDOW;
            let piece = text.get_mut(n..LONGEST.min(n + to_page_end))?;
            let read = self.read_uncached(Addr(at), piece);
            if let Some(end) = piece.get(..read)?.iter().position(|&byte| byte == 0) {
                text.truncate(n + end);
                return Some(text);
            }
            if read == 0 {
                return None;
            }
            n += read;
        }
        None
    }

    /// Reads past the cache. What can't be read is asked for twice: whether an int3 is taken out again depends on this,
    /// and the kernel may just have been short of memory.
    pub fn read_uncached(&self, addr: Addr, buf: &mut [u8]) -> usize {
        let mut done = 0;
        let mut failed = false;
        while done < buf.len() {
            let read = injection::point(Call::Other)
                .and_then(|()| self.file.read_at(&mut buf[done..], addr.0.wrapping_add(done as u64)));
            match read {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) if failed => break,
                Err(_) => failed = true,
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

impl ReadAgain for TargetMemory {
    fn again(&self) -> Option<Self> {
        // there may be too many descriptors
        let another = Self::new(self.pid, self.reader, self.file.try_clone().ok()?);
        let served = match &self.served {
            Some(served) => Some(served.again()?),
            None => None,
        };
        Some(Self { keeps_shared: self.keeps_shared, served, ..another })
    }
}

impl ReadMemory for TargetMemory {
    /// Small reads fill a window of a page from `addr` on and serve later ones from it, until [`Self::new_stop`]. The
    /// stopped thread's stack can't change meanwhile.
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
            // pages of these that are not in memory may hold something
            _ if self.served.as_ref().is_some_and(|served| served.are_shared_in(&range)) => vec![range],
            Some(pages) => pages.present(range),
            None => vec![range],
        }
    }

    fn holds_nothing(&mut self, at: Addr, is_file: bool) -> bool {
        if self.has_gone() {
            return false;
        }
        if self.pages.is_none() {
            self.pages = PageMap::open(self.reader).ok();
        }
        if self.pages.as_ref().is_some_and(|pages| pages.is_guard(at)) {
            return true;
        }
        if self.served.as_mut().is_some_and(|served| served.readable(at, 1) == 0) {
            return self.served.as_ref().is_some_and(|served| served.holds_nothing(at));
        }
        is_file
            && match self.file_end.place(self.reader, at) {
                Place::Behind => true,
                Place::Within => false,
                // what begins as a file, and then can't be read, has ended; of what nobody can read the beginning can't
                // be read either
                Place::Unknown(start) => self.read_as_program(start, &mut [0]) == 1,
            }
    }

    fn is_executable(&mut self, addr: Addr) -> Option<bool> {
        self.map.is_executable(self.reader, addr)
    }

    fn has_gone(&self) -> bool {
        self.has_gone.load(Ordering::Relaxed)
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
