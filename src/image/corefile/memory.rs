//! The memory that a core has kept, and that of files that were mapped.

use super::{CoreFile, Stored};
use crate::arch::PAGE_SIZE;
use crate::base::addr::Addr;
use crate::base::memory::{ReadAgain, ReadMemory};
use std::ops::Range;

/// A part of a file that was mapped.
#[derive(Clone, Debug)]
pub struct FilePart<'a> {
    /// Where the process had it.
    pub range: Range<Addr>,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// The whole file.
    pub bytes: &'a [u8],
}

/// Reads the memory that the process had.
#[derive(Clone, Copy, Debug)]
pub struct CoreMemory<'a> {
    stored: &'a [Stored],
    data: &'a [u8],
    files: &'a [FilePart<'a>],
}

impl<'a> CoreMemory<'a> {
    /// Of a core with these bytes; what it has not kept is read of `files`, which are in the order of addresses.
    pub const fn new(core: &'a CoreFile, data: &'a [u8], files: &'a [FilePart<'a>]) -> Self {
        Self { stored: core.stored.as_slice(), data, files }
    }

    /// The bytes from `addr` on that lie side by side, in the core or in a file.
    fn at(&self, addr: Addr) -> Option<&'a [u8]> {
        let in_core = self.stored.partition_point(|part| part.range.end <= addr);
        if let Some(part) = self.stored.get(in_core).filter(|part| part.range.contains(&addr)) {
            return slice(self.data, part.offset, &part.range, addr);
        }
        let in_file = self.files.partition_point(|part| part.range.end <= addr);
        let part = self.files.get(in_file).filter(|part| part.range.contains(&addr))?;
        // from where the core has it, it may have been written to
        let end = self.stored.get(in_core).map_or(part.range.end, |next| next.range.start.min(part.range.end));
        slice(part.bytes, part.offset, &(part.range.start..end), addr)
    }
}

/// What stands at `addr` in a file that has the bytes of `range` from `offset` on.
fn slice<'a>(file: &'a [u8], offset: u64, range: &Range<Addr>, addr: Addr) -> Option<&'a [u8]> {
    let start = usize::try_from(offset.checked_add(addr.0 - range.start.0)?).ok()?;
    let rest = file.get(start..)?;
    let length = usize::try_from(range.end.0 - addr.0).unwrap_or(usize::MAX).min(rest.len());
    rest.get(..length)
}

impl ReadMemory for CoreMemory<'_> {
    fn read(&mut self, mut addr: Addr, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty())
            && let Some(bytes) = self.at(addr).filter(|bytes| !bytes.is_empty())
        {
            let length = rest.len().min(bytes.len());
            if let (Some(to), Some(from)) = (rest.get_mut(..length), bytes.get(..length)) {
                to.copy_from_slice(from);
            }
            done += length;
            addr = Addr(addr.0.saturating_add(length as u64));
        }
        done
    }
}

impl ReadAgain for CoreMemory<'_> {
    fn again(&self) -> Option<Self> {
        Some(*self)
    }
}

/// So many bytes, or none.
pub(super) fn read_exact(memory: &mut CoreMemory<'_>, addr: Addr, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    (memory.read(addr, &mut bytes) == bytes.len()).then_some(bytes)
}

impl CoreFile {
    /// The pages of which the core, with these bytes, has any that is not zero: ascending, joined where they touch. The
    /// kernel keeps a page that was never touched as zeros.
    pub fn pages_in_use(&self, data: &[u8]) -> Vec<Range<Addr>> {
        const ZEROS: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];
        let mut pages: Vec<Range<Addr>> = Vec::new();
        for part in &self.stored {
            let Some(bytes) = slice(data, part.offset, &part.range, part.range.start) else { continue };
            let mut at = part.range.start;
            for page in bytes.chunks(ZEROS.len()) {
                let end = at.add(PAGE_SIZE);
                if ZEROS.get(..page.len()).is_some_and(|zeros| zeros != page) {
                    match pages.last_mut() {
                        Some(last) if last.end == at => last.end = end,
                        _ => pages.push(at..end),
                    }
                }
                at = end;
            }
        }
        pages
    }
}
