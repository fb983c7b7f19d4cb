//! Where a mapped file ends: the pages of its mapping behind that can't be read, by the program neither, and hold
//! nothing.

use super::procfs;
use crate::arch::PAGE_SIZE;
use crate::base::addr::Addr;
use crate::image::maps::Mapping;
use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The end of the file in one mapping.
#[derive(Clone, Debug, Default)]
pub(super) struct FileEnd {
    mapping: Option<Range<Addr>>,
    /// The first page behind its end; None: the file could not be asked.
    behind: Option<Addr>,
}

/// Where a page lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Behind the file's end.
    Behind,
    /// In the file, or in no mapping.
    Within,
    /// Nobody tells the file's size, which is mapped from here on.
    Unknown(Addr),
}

impl FileEnd {
    /// Where the page at `at` lies, in the memory of the live task `tid`.
    pub(super) fn place(&mut self, tid: i32, at: Addr) -> Place {
        if !self.mapping.as_ref().is_some_and(|mapping| mapping.contains(&at)) {
            let mappings = procfs::mappings(tid).unwrap_or_default();
            let Some(mapping) = mappings.iter().find(|mapping| mapping.contains(at)) else { return Place::Within };
            let size = size_of(tid, mapping).map(|size| size.next_multiple_of(PAGE_SIZE));
            self.behind = size.map(|size| mapping.start.add(size.saturating_sub(mapping.offset)));
            self.mapping = Some(mapping.range());
        }
        match (self.behind, &self.mapping) {
            (Some(behind), _) if at >= behind => Place::Behind,
            (None, Some(mapping)) => Place::Unknown(mapping.start),
            _ => Place::Within,
        }
    }
}

/// The size of the file in a mapping, in bytes. None if nobody tells.
fn size_of(tid: i32, mapping: &Mapping) -> Option<u64> {
    let by_addresses = format!("/proc/{tid}/map_files/{:x}-{:x}", mapping.start.0, mapping.end.0);
    let by_path = mapping.path.as_deref().filter(|_| !mapping.deleted).map(|path| {
        let below_root = path.strip_prefix("/").unwrap_or(path);
        PathBuf::from(format!("/proc/{tid}/root")).join(below_root)
    });
    // the kernel leads to the very file, if it lets us
    let path_tells = || known_size(&by_path?);
    known_size(Path::new(&by_addresses)).or_else(path_tells)
}

/// A file's size, as far as the kernel knows it: nobody who serves a file system is asked, who may be the one that
/// stands still.
fn known_size(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: `path` ends in a zero; `found` has room for what the kernel writes, and zeros are valid in it.
    let found = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
        let done = libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_SIZE, &raw mut found);
        (done == 0).then_some(found)
    };
    found.filter(|found| found.stx_mask & libc::STATX_SIZE != 0).map(|found| found.stx_size)
}
