//! The memory that the jump engine adds to a process: made there by remote calls, and mapped by us, too.

use crate::base::addr::Addr;
use crate::jump::layout::{COPY_AREA, MAGIC, REGION_SIZE, SHARED_SIZE, STATE, STATE_SIZE};
#[cfg(test)]
use crate::jump::layout::{RING_AREA, RING_SIZE};
use crate::jump::shared::{Shared, lies_inside};
use crate::tracer::code::write::write;
use crate::tracer::remote::Caller;
use crate::tracer::{Result, TracerError, procfs};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The name under which the shared region shows in /proc/PID/maps.
const NAME: &[u8] = b"heaptrace\0";
/// Where it is put for the call that needs it: where the routine will be.
const NAME_AT: u64 = 64;

/// The two mappings in a process.
#[derive(Debug)]
pub struct Region {
    /// The process address of the code region.
    pub code: Addr,
    /// Our own mapping of the shared region.
    pub mapping: SharedMapping,
}

/// Why a process gets none: in words, and with the kernel's answer.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// A remote call was refused.
    #[error("the program's system call {call} for it fails: {source}")]
    Refused {
        /// Which.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The call could not be made, or something else of the tracer's has failed.
    #[error(transparent)]
    Tracer(#[from] TracerError),
}

impl SetUpError {
    /// Whether the thread can still take back what was made. One that is ending, or has stopped for something else,
    /// can't: of that the error tells, and that of a further call would take its place.
    const fn leaves_a_caller(&self) -> bool {
        !matches!(self, Self::Tracer(error) if error.is_out_of_reach())
    }
}

impl Region {
    /// Makes both mappings by a stopped thread: the code region at `code`, the shared one at `shared`, where nothing is
    /// mapped. What was made is taken back if something fails.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn set_up(caller: &mut Caller<'_>, code: Addr, shared: Addr) -> std::result::Result<Self, SetUpError> {
        let pid = caller.thread.tid();
        let exact = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        call(caller, "mmap", libc::SYS_mmap, [code.0, REGION_SIZE, executable as u64, exact as u64, u64::MAX, 0])?;
        let made = Self::set_up_rest(caller, pid, code, shared);
        if made.as_ref().is_err_and(SetUpError::leaves_a_caller) {
            call(caller, "munmap", libc::SYS_munmap, [code.0, REGION_SIZE, 0, 0, 0, 0])?;
        }
        made
    }

    fn set_up_rest(
        caller: &mut Caller<'_>,
        pid: i32,
        code: Addr,
        shared: Addr,
    ) -> std::result::Result<Self, SetUpError> {
        let state = code.add(STATE);
        let both = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        call(caller, "mprotect", libc::SYS_mprotect, [state.0, STATE_SIZE, both, 0, 0, 0])?;
        let wipe = libc::MADV_WIPEONFORK as u64;
        call(caller, "madvise", libc::SYS_madvise, [state.0, STATE_SIZE, wipe, 0, 0, 0])?;
        write(caller.memory, code.add(NAME_AT), NAME)?;
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let fd = call(caller, "memfd_create", libc::SYS_memfd_create, [code.0 + NAME_AT, flags, 0, 0, 0, 0])?;
        let mapped = Self::map(caller, pid, fd, code, shared);
        if mapped.as_ref().map_or_else(SetUpError::leaves_a_caller, |_| true) {
            call(caller, "close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        }
        mapped
    }

    fn map(
        caller: &mut Caller<'_>,
        pid: i32,
        fd: u64,
        code: Addr,
        shared: Addr,
    ) -> std::result::Result<Self, SetUpError> {
        let mapping = SharedMapping::open(pid, fd)?;
        let (start, size) = (shared.0, SHARED_SIZE);
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64;
        // A process that locks what it maps (mlockall(2), MCL_FUTURE) would have all of it allocated at once, but for
        // memory that nobody may access.
        let locks = procfs::status_number(pid, "VmLck").is_some_and(|kib| kib > 0);
        let at_first = if locks { libc::PROT_NONE as u64 } else { access };
        call(caller, "mmap", libc::SYS_mmap, [start, size, at_first, flags, fd, 0])?;
        let mut prepare = || {
            if locks {
                call(caller, "munlock", libc::SYS_munlock, [start, size, 0, 0, 0, 0])?;
                call(caller, "mprotect", libc::SYS_mprotect, [start, size, access, 0, 0, 0])?;
            }
            call(caller, "madvise", libc::SYS_madvise, [start, size, libc::MADV_DONTFORK as u64, 0, 0, 0])
        };
        if let Err(error) = prepare() {
            if error.leaves_a_caller() {
                call(caller, "munmap", libc::SYS_munmap, [start, size, 0, 0, 0, 0])?;
            }
            return Err(error);
        }
        mapping.set_word(0, MAGIC);
        Ok(Self { code, mapping })
    }
}

/// Lets the thread unmap the two regions that begin at these addresses, of the shared one so many bytes: nobody needs
/// them any more. Returns how many bytes stay, as the kernel
/// refuses to unmap them.
///
/// # Errors
/// Those of [`Caller::call`].
pub fn give_back(caller: &mut Caller<'_>, code: Addr, shared: Addr, shared_size: u64) -> Result<u64> {
    // in this order: who is killed in between leaves what the next one finds, and so does a refusal
    if shared_size > 0 && !unmap(caller, shared, shared_size)? {
        return Ok(REGION_SIZE + shared_size);
    }
    Ok(if unmap(caller, code, REGION_SIZE)? { 0 } else { REGION_SIZE })
}

/// Lets the thread unmap a part of what a heaptrace has mapped. Returns whether it is gone: the kernel may refuse.
///
/// # Errors
/// Those of [`Caller::call`].
pub fn unmap(caller: &mut Caller<'_>, addr: Addr, size: u64) -> Result<bool> {
    let is_gone = caller.call(libc::SYS_munmap, [addr.0, size, 0, 0, 0, 0])? == 0;
    if !is_gone {
        tracing::debug!("what heaptrace has mapped at {addr} stays");
    }
    Ok(is_gone)
}

/// Lets the thread put memory that nobody may access in the place of a part of what a heaptrace has mapped. Returns
/// whether it is there: the kernel may refuse, and what was mapped stays.
///
/// # Errors
/// Those of [`Caller::call`].
pub fn fence(caller: &mut Caller<'_>, addr: Addr, size: u64) -> Result<bool> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED) as u64;
    let is_there = caller.call(libc::SYS_mmap, [addr.0, size, libc::PROT_NONE as u64, flags, u64::MAX, 0])? >= 0;
    if !is_there {
        tracing::debug!("what heaptrace has mapped at {addr} stays");
    }
    Ok(is_there)
}

/// Tries in our own process whether such memory can be had here.
///
/// # Errors
/// What the kernel says.
pub fn try_shared_memory() -> Result<()> {
    let operation = "make memory to share with a target";
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr().cast(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(TracerError::Own { operation, source: io::Error::last_os_error() });
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.set_len(SHARED_SIZE).map_err(|source| TracerError::Own { operation, source })
}

fn call(
    caller: &mut Caller<'_>,
    name: &'static str,
    number: i64,
    arguments: [u64; 6],
) -> std::result::Result<u64, SetUpError> {
    match caller.call(number, arguments)? {
        result @ -4095..=-1 => {
            Err(SetUpError::Refused { call: name, source: io::Error::from_raw_os_error(-result as i32) })
        }
        result => Ok(result.cast_unsigned()),
    }
}

/// The shared region in our own memory.
#[derive(Debug)]
pub struct SharedMapping {
    start: *mut u8,
    file: OwnedFd,
}

// SAFETY: the mapping is only read and written by atomic operations and volatile copies, from whatever thread.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Gives the memfd that process `pid` has under descriptor `fd` its size, for good, and maps it.
    fn open(pid: i32, fd: u64) -> Result<Self> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path);
        let file =
            file.map_err(|source| TracerError::Own { operation: "open the memory shared with the target", source })?;
        let sized = file.set_len(SHARED_SIZE);
        sized.map_err(|source| TracerError::Own {
            operation: "give the memory shared with the target its size",
            source,
        })?;
        // Else the program could cut it off under our feet.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is ours, and the call touches no memory.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(TracerError::own("seal the memory shared with the target"));
        }
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let len = SHARED_SIZE as usize;
        // SAFETY: a new mapping of a file, at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, both, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(TracerError::own("map the memory shared with the target"));
        }
        Ok(Self { start: start.cast(), file: file.into() })
    }

    /// Gives the memory of copies, rings and the trie back to the kernel: it reads as zeros from here on, in the
    /// process, too. The cells stay: threads may
    /// be in calls that began before.
    pub fn discard(&self) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (start, len) = (COPY_AREA.cast_signed(), (SHARED_SIZE - COPY_AREA).cast_signed());
        // SAFETY: the descriptor is ours; the mapping stays, and its words are only read as such.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start, len) };
    }

    /// Has the kernel allocate what is not there yet of these bytes, for us: who touches a page first has it counted to
    /// the memory of its control group, and that of the process may have a limit. Where there is no memory for it, the
    /// process tries when it comes there.
    pub fn allocate(&self, offset: u64, len: u64) {
        if !lies_inside(offset, len) {
            return;
        }
        // SAFETY: the descriptor is ours. The size stays, and words that are there stay as they are.
        if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, offset.cast_signed(), len.cast_signed()) } != 0 {
            tracing::debug!("{}", TracerError::own("allocate memory shared with the target"));
        }
    }

    #[inline(always)]
    fn at<T>(&self, offset: u64) -> Option<*const T> {
        let size = size_of::<T>() as u64;
        let is_inside = lies_inside(offset, size) && offset.is_multiple_of(size);
        // SAFETY: the offset lies in the mapping.
        is_inside.then(|| unsafe { self.start.add(offset as usize) }.cast_const().cast())
    }

    #[inline(always)]
    fn word_at(&self, offset: u64) -> Option<&AtomicU64> {
        // SAFETY: aligned, inside the mapping, which lives as long as we do, and accessed by atomic operations alone.
        self.at::<AtomicU64>(offset).map(|word| unsafe { &*word })
    }

    fn half_at(&self, offset: u64) -> Option<&AtomicU32> {
        // SAFETY: as above.
        self.at::<AtomicU32>(offset).map(|half| unsafe { &*half })
    }
}

impl Shared for SharedMapping {
    #[inline(always)]
    fn word(&self, offset: u64) -> u64 {
        self.word_at(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn half(&self, offset: u64) -> u32 {
        self.half_at(offset).map_or(0, |half| half.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn set_word(&self, offset: u64, value: u64) {
        if let Some(word) = self.word_at(offset) {
            word.store(value, Ordering::Release);
        }
    }

    fn set_half(&self, offset: u64, value: u32) {
        if let Some(half) = self.half_at(offset) {
            half.store(value, Ordering::Release);
        }
    }

    fn replace_word(&self, offset: u64, old: u64, new: u64) -> bool {
        self.word_at(offset)
            .is_some_and(|word| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok())
    }

    #[inline(always)]
    fn prefetch(&self, offset: u64) {
        if let Some(word) = self.at::<u64>(offset) {
            // SAFETY: it reads nothing that we see, and the address lies in the mapping.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
        }
    }

    #[inline(always)]
    fn copy_words(&self, offset: u64, to: &mut [u64; 8]) -> bool {
        let is_inside = lies_inside(offset, size_of_val(to) as u64) && offset.is_multiple_of(8);
        if is_inside {
            let first = self.start.wrapping_add(offset as usize).cast_const().cast::<AtomicU64>();
            for (at, word) in to.iter_mut().enumerate() {
                // SAFETY: aligned and inside the mapping, as was just asked, and accessed by atomic operations alone.
                *word = unsafe { (*first.add(at)).load(Ordering::Acquire) };
            }
        }
        is_inside
    }

    fn copy_out(&self, offset: u64, to: &mut [u8]) -> bool {
        let is_inside = lies_inside(offset, to.len() as u64);
        if is_inside {
            // SAFETY: both lie where they are said to, and apart. The program may write meanwhile: whatever is copied
            // is looked at as bytes of a stranger.
            unsafe { std::ptr::copy(self.start.add(offset as usize).cast_const(), to.as_mut_ptr(), to.len()) };
        }
        is_inside
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), SHARED_SIZE as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Pages that were allocated of it.
    fn pages(mapping: &SharedMapping) -> u64 {
        let file = std::fs::File::from(mapping.file.try_clone().unwrap());
        file.metadata().unwrap().blocks() / 8
    }

    #[test]
    fn what_is_allocated_is_there_and_zero_and_nothing_else() {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr().cast(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        let own = i32::try_from(std::process::id()).unwrap();
        let mapping = SharedMapping::open(own, fd.try_into().unwrap()).unwrap();
        assert_eq!(pages(&mapping), 0);
        mapping.set_word(RING_AREA, 7);
        mapping.allocate(RING_AREA, RING_SIZE);
        assert_eq!(pages(&mapping), RING_SIZE / 4096);
        assert_eq!((mapping.word(RING_AREA), mapping.word(RING_AREA + RING_SIZE - 8)), (7, 0));
        mapping.allocate(SHARED_SIZE, 1);
        mapping.allocate(u64::MAX, u64::MAX);
        assert_eq!(pages(&mapping), RING_SIZE / 4096);
    }
}
