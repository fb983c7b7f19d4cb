//! The bytes that are written to code, and how: patches over the program's, and code of ours. Whoever has to restore
//! them if we are killed hears of it before, by [`super::TargetCode`].

use super::passing::{all_pass, all_pass_with_sharers};
use crate::arch::{INT3, PAGE_SIZE};
use crate::base::addr::Addr;
use crate::breakpoints::patches::{LONGEST, Patch, Patches};
use crate::tracer::Result;
use crate::tracer::memory::TargetMemory;
use std::ops::Range;

/// Bytes that are read at once where many are compared.
const PIECE: usize = PAGE_SIZE as usize;

/// What the threads may do whose code is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// They run. Some may be of processes of their own that share the memory.
    Run,
    /// They run, and all of them are this process's.
    OfOne(i32),
    /// They run. They are this process's, and those of processes that share its memory.
    OfAll(i32),
    /// None runs.
    Stand,
}

/// Writes the original bytes wherever something of `patches`, in ascending order of address, stands. First where a byte
/// of ours says that code of ours is to do nothing more; then over the int3s, of which some threads die when heaptrace
/// is gone; last over the jumps, of which no thread may see half: that takes up to 50 ms where threads run.
///
/// # Errors
/// The first; what can be written is.
pub fn write_originals<'p>(
    memory: &mut TargetMemory,
    patches: impl Iterator<Item = (Addr, &'p Patch)>,
    threads: Threads,
) -> Result<()> {
    let mut written = Vec::new();
    for_each_found(memory, patches, |_, addr, patch, found| {
        if patch.is_written(found) {
            written.push((addr, *patch));
        }
        Ok(())
    })?;
    let mut result = Ok(());
    for (addr, patch) in written.iter().filter(|(_, patch)| patch.is_switch()) {
        result = result.and(exchange(memory, *addr, patch.original()));
    }
    for (addr, patch) in written.iter().filter(|(_, patch)| patch.len() == 1 && !patch.is_switch()) {
        result = result.and(exchange(memory, *addr, patch.original()));
    }
    let jumps: Vec<_> =
        written.iter().filter(|(_, patch)| patch.len() > 1).map(|(addr, patch)| (*addr, patch.original())).collect();
    result.and(exchange_all(memory, &jumps, threads))
}

/// Writes the bytes of several patches, or what was under them, while threads may run through them. Between the steps
/// all threads fetch their instructions anew: see [`all_pass`] and [`synchronize`].
///
/// # Errors
/// The first; what can be written is.
pub fn exchange_all(memory: &mut TargetMemory, all: &[(Addr, &[u8])], threads: Threads) -> Result<()> {
    let synchronize = || match threads {
        Threads::Stand => {}
        Threads::OfOne(pid) if all_pass(pid) => {}
        Threads::OfAll(pid) if all_pass_with_sharers(pid) => {}
        Threads::OfOne(_) | Threads::OfAll(_) | Threads::Run => synchronize(),
    };
    let mut result = Ok(());
    if all.is_empty() {
        return result;
    }
    for (addr, _) in all {
        result = result.and(write(memory, *addr, &[INT3]));
    }
    synchronize();
    for (addr, bytes) in all {
        if let Some((_, rest)) = bytes.split_first() {
            result = result.and(write(memory, addr.add(1), rest));
        }
    }
    synchronize();
    for (addr, bytes) in all {
        result = result.and(write(memory, *addr, bytes.get(..1).unwrap_or_default()));
    }
    synchronize();
    result
}

#[cfg(test)]
thread_local! {
    /// How often this thread has waited for all CPUs.
    pub(in crate::tracer) static SYNCHRONIZED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Waits until each CPU has gone through the kernel, and so fetches instructions anew: membarrier(2),
/// MEMBARRIER_CMD_GLOBAL. Where the kernel has none, 20 ms, which is several of its ticks.
fn synchronize() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    #[cfg(test)]
    SYNCHRONIZED.set(SYNCHRONIZED.get() + 1);
    // SAFETY: the call touches no memory of ours.
    if unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } != 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Gives a copy of an address space with `patches` its original bytes back: the memory of a forked child that is
/// stopped and has no other thread. It may have been made before some of them were taken out.
///
/// # Errors
/// The first; what can be written is.
pub fn restore_copy(copy: &mut TargetMemory, patches: &Patches) -> Result<()> {
    write_originals(copy, patches.ever().into_iter(), Threads::Stand)
}

/// Zeroes all code of ours, but for the piece that begins at `kept`. Only when no thread can be in it.
///
/// # Errors
/// The first; what can be written is.
pub fn clear_own(memory: &mut TargetMemory, patches: &Patches, kept: Option<Addr>) -> Result<()> {
    let mut result = Ok(());
    for range in patches.own.ranges(kept) {
        let zeros = vec![0; usize::try_from(range.end.0 - range.start.0).unwrap_or(0)];
        result = result.and(write(memory, range.start, &zeros));
    }
    result
}

/// Whether anything of a patch stands at `addr`.
pub fn stands(memory: &TargetMemory, addr: Addr, patch: &Patch) -> bool {
    let mut found = [0; LONGEST];
    let Some(found) = found.get_mut(..patch.len()) else { return false };
    memory.read_uncached(addr, found) == patch.len() && patch.is_written(found)
}

/// Writes to code of ours that the guardian knows of already, and reads it back.
///
/// # Errors
/// Those of [`TargetMemory`]'s writes.
pub fn write(memory: &mut TargetMemory, addr: Addr, bytes: &[u8]) -> Result<()> {
    memory.write_code(addr, bytes)
}

/// Writes a word that is no code: a return address that goes back to a thread's stack, or what the thread was about to
/// push there.
///
/// # Errors
/// Those of [`TargetMemory`]'s writes.
pub fn write_word(memory: &mut TargetMemory, addr: Addr, word: u64) -> Result<()> {
    memory.write_data(addr, &word.to_le_bytes())
}

/// Writes one side of a patch over the other.
pub(super) fn exchange(memory: &mut TargetMemory, addr: Addr, bytes: &[u8]) -> Result<()> {
    match bytes.split_first() {
        Some((first, rest)) if !rest.is_empty() => {
            write(memory, addr, &[INT3])?;
            write(memory, addr.add(1), rest)?;
            write(memory, addr, &[*first])
        }
        _ => write(memory, addr, bytes),
    }
}

pub(super) fn undo(memory: &mut TargetMemory, addr: Addr, patch: &Patch) -> Result<()> {
    if stands(memory, addr, patch) { exchange(memory, addr, patch.original()) } else { Ok(()) }
}

/// Calls `visit` with what stands where each of `patches`, in ascending order, belongs. Reads page by page.
pub(super) fn for_each_found<'p>(
    memory: &mut TargetMemory,
    patches: impl Iterator<Item = (Addr, &'p Patch)>,
    mut visit: impl FnMut(&mut TargetMemory, Addr, &Patch, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut result = Ok(());
    let (mut start, mut piece) = (Addr(0), Vec::new());
    for (addr, patch) in patches {
        let is_read = addr >= start && addr.0 - start.0 + patch.len() as u64 <= piece.len() as u64;
        if !is_read {
            piece.resize(PIECE, 0);
            let n = memory.read_uncached(addr, &mut piece);
            piece.truncate(n);
            start = addr;
        }
        let offset = usize::try_from(addr.0 - start.0).unwrap_or(usize::MAX);
        if let Some(found) = piece.get(offset..).and_then(|rest| rest.get(..patch.len())) {
            result = result.and(visit(memory, addr, patch, found));
        }
    }
    result
}

/// Makes the bytes of `range` in `memory` the same as in `theirs`.
pub(super) fn copy(memory: &mut TargetMemory, theirs: &TargetMemory, range: &Range<Addr>) -> Result<()> {
    let (mut wanted, mut found) = ([0; PIECE], [0; PIECE]);
    for start in (range.start.0..range.end.0).step_by(PIECE).map(Addr) {
        let size = PIECE.min(usize::try_from(range.end.0 - start.0).unwrap_or(PIECE));
        let (Some(wanted), Some(found)) = (wanted.get_mut(..size), found.get_mut(..size)) else { continue };
        let is_read = theirs.read_uncached(start, wanted) == size && memory.read_uncached(start, found) == size;
        if is_read && wanted != found {
            write(memory, start, wanted)?;
        }
    }
    Ok(())
}
