//! Whether one address is executable: PROCMAP_QUERY on /proc/PID/maps (Linux 6.11, <linux/fs.h>), which costs a
//! microsecond where to read the file costs one a line. Older kernels are asked by the file.

use super::procfs;
use crate::base::addr::Addr;
use crate::image::maps::MapIndex;
use nix::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// `struct procmap_query` of <linux/fs.h>. The caller fills in the first three; a size of zero asks for no name and no
/// build ID.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl = 0xc068_6611_u32 as libc::Ioctl;
/// `PROCMAP_QUERY_VMA_EXECUTABLE`.
const EXECUTABLE: u64 = 1 << 2;

/// The memory map of one address space, asked address by address.
#[derive(Debug, Default)]
pub struct MapQuery {
    /// Of /proc/TID/maps, once it could be opened: it belongs to the address space that the task had then.
    file: Option<File>,
    /// For kernels that answer no queries: the map as it was read last.
    read: MapIndex,
    /// When that was.
    read_at: Option<Instant>,
}

/// The map is not read again before that: a program may come to a word that is no code at each call.
const READ_AGAIN: Duration = Duration::from_millis(100);

impl MapQuery {
    /// Whether code at `addr` can be executed now. `task` is a live one of the address space. None if that is not
    /// known.
    pub fn is_executable(&mut self, task: i32, addr: Addr) -> Option<bool> {
        if self.file.is_none() {
            self.file = File::open(format!("/proc/{task}/maps")).ok();
        }
        match query(self.file.as_ref()?, addr) {
            Ok(executable) => Some(executable),
            Err(Errno::ESRCH) => None,
            // an older kernel, or something that keeps the request away
            Err(_) => self.by_the_file(task, addr),
        }
    }

    /// What was executable when the file was read last is taken to be so still: a runtime keeps the room for its code.
    fn by_the_file(&mut self, task: i32, addr: Addr) -> Option<bool> {
        let is_code = |map: &MapIndex| map.find(addr).is_some_and(|mapping| mapping.perms.execute);
        if !is_code(&self.read) {
            if self.read_at.is_some_and(|at| at.elapsed() < READ_AGAIN) {
                return None;
            }
            self.read = MapIndex::new(procfs::mappings(task).ok()?);
            self.read_at = Some(Instant::now());
        }
        Some(is_code(&self.read))
    }
}

fn query(file: &File, addr: Addr) -> Result<bool, Errno> {
    let mut query = Query { size: size_of::<Query>() as u64, addr: addr.0, ..Query::default() };
    // SAFETY: `query` is the structure that this request reads and writes; it names no further buffers.
    match Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) }) {
        Ok(_) => Ok(query.vma_flags & EXECUTABLE != 0),
        // nothing is mapped there
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_executable_and_data_is_not_whichever_way_the_kernel_is_asked() {
        let own = i32::try_from(std::process::id()).unwrap();
        let local = 0u64;
        let code = Addr(query as fn(&File, Addr) -> Result<bool, Errno> as usize as u64);
        for (addr, expected) in [(code, true), (Addr(&raw const local as u64), false), (Addr(0x10), false)] {
            assert_eq!(MapQuery::default().is_executable(own, addr), Some(expected), "{addr:?}");
            assert_eq!(MapQuery::default().by_the_file(own, addr), Some(expected), "{addr:?}");
        }
        assert_eq!(MapQuery::default().is_executable(i32::MAX, code), None);
    }
}
