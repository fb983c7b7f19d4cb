//! `/proc/PID/maps`, parsed; and the modules of a process derived from it. Pure.
//!
//! The format is that of proc_pid_maps(5) and of `show_map_vma` in the kernel's `fs/proc/task_mmu.c`: one line a
//! mapping, in the order of addresses, `start-end perms offset major:minor inode path`.

use crate::base::addr::Addr;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

mod index;
mod modules;

pub use index::MapIndex;
pub use modules::{MappedModule, modules};

/// What may be done with the bytes of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Perms {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub execute: bool,
    /// `s`: writes reach the file and other processes (`p`, private: they don't).
    pub shared: bool,
}

impl Perms {
    /// Whether there can only be code.
    pub const fn is_code(self) -> bool {
        self.execute && !self.write
    }
}

/// A device number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Device {
    /// Of the driver.
    pub major: u32,
    /// Of the device.
    pub minor: u32,
}

/// What a mapping is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A file; memory files (`/memfd:x`) and shared memory too.
    File,
    /// Memory without a file; also with a name given by prctl (`[anon:x]`), and of MAP_HUGETLB (`/anon_hugepage`).
    Anonymous,
    /// `[heap]`: the brk area.
    Heap,
    /// `[stack]`: the main thread's.
    Stack,
    /// `[vdso]`: the kernel's code in user space.
    Vdso,
    /// `[vvar]` and its siblings: the data of the vdso.
    Vvar,
    /// `[vsyscall]`: the legacy page above the user's address space.
    Vsyscall,
    /// Something else with a name, such as `[uprobes]`.
    Other,
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first byte.
    pub start: Addr,
    /// One past the last byte; above `start`.
    pub end: Addr,
    /// What may be done with it.
    pub perms: Perms,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// The file's device.
    pub dev: Device,
    /// The file's inode; 0 without a file.
    pub inode: u64,
    /// The file's path as the target sees it, or a name in brackets; None for anonymous memory.
    pub path: Option<PathBuf>,
    /// The file has no name any more: it was removed or replaced.
    pub deleted: bool,
    /// What it is made of.
    pub kind: Kind,
}

/// With this the name of the memory begins that the jump engine shares with a process.
pub const SHARED_WITH_HEAPTRACE: &str = "/memfd:heaptrace";

impl Mapping {
    /// Whether it is memory that a heaptrace shares, or has shared, with the process: the jump engine's.
    pub fn is_heaptrace_s(&self) -> bool {
        let name = self.path.as_ref().map(|path| path.as_os_str().as_encoded_bytes());
        name.is_some_and(|name| name.starts_with(SHARED_WITH_HEAPTRACE.as_bytes()))
    }

    /// Its addresses.
    pub const fn range(&self) -> Range<Addr> {
        self.start..self.end
    }

    /// Its size in bytes.
    pub const fn size(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether `addr` lies in it.
    pub fn contains(&self, addr: Addr) -> bool {
        self.range().contains(&addr)
    }
}

/// A line that is not as the kernel writes it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line} of the memory map: {reason}")]
pub struct MapsError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Parses the text of `/proc/PID/maps`. Bytes, as paths may hold any.
///
/// # Errors
/// The first line that can't be understood. Empty text (a process that is ending) is no error.
pub fn parse(text: &[u8]) -> Result<Vec<Mapping>, MapsError> {
    let mut mappings = Vec::new();
    for (i, line) in text.split(|&b| b == b'\n').enumerate() {
        if !line.is_empty() {
            mappings.push(parse_line(line).map_err(|reason| MapsError { line: i + 1, reason })?);
        }
    }
    Ok(mappings)
}

fn parse_line(line: &[u8]) -> Result<Mapping, &'static str> {
    let mut rest = line;
    let (start, end) = split_once(next_field(&mut rest), b'-').ok_or("the address range has no '-'")?;
    let start = hex(start).ok_or("the start address is not a hexadecimal number")?;
    let end = hex(end).ok_or("the end address is not a hexadecimal number")?;
    if start >= end {
        return Err("the end address is not above the start address");
    }
    let perms = perms(next_field(&mut rest)).ok_or("the permissions are not four letters")?;
    let offset = hex(next_field(&mut rest)).ok_or("the offset is not a hexadecimal number")?;
    let (major, minor) = split_once(next_field(&mut rest), b':').ok_or("the device has no ':'")?;
    let device_part = |digits| hex(digits).and_then(|n| u32::try_from(n).ok());
    let dev = Device {
        major: device_part(major).ok_or("the major device number is not a hexadecimal number")?,
        minor: device_part(minor).ok_or("the minor device number is not a hexadecimal number")?,
    };
    let inode = decimal(next_field(&mut rest)).ok_or("the inode is not a number")?;

    let name = rest.trim_ascii_start();
    let kind = kind_of(name, inode);
    let (name, deleted) = match name.strip_suffix(b" (deleted)") {
        Some(live) if kind == Kind::File => (live, true),
        _ => (name, false),
    };
    let path = (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&unescape(name))));
    Ok(Mapping { start: Addr(start), end: Addr(end), perms, offset, dev, inode, path, deleted, kind })
}

fn kind_of(name: &[u8], inode: u64) -> Kind {
    match name {
        b"" => Kind::Anonymous,
        b"[heap]" => Kind::Heap,
        b"[stack]" => Kind::Stack,
        b"[vdso]" => Kind::Vdso,
        b"[vsyscall]" => Kind::Vsyscall,
        _ if name.starts_with(b"[vvar") => Kind::Vvar,
        _ if name.starts_with(b"[anon:") => Kind::Anonymous,
        // With MAP_HUGETLB the kernel makes a file of its own for memory that has none.
        b"/anon_hugepage (deleted)" => Kind::Anonymous,
        // Kernels 3.4 to 4.4 marked other threads' stacks so.
        _ if name.starts_with(b"[stack:") => Kind::Anonymous,
        _ if name.starts_with(b"/") || inode != 0 => Kind::File,
        _ => Kind::Other,
    }
}

/// The next field of the line, up to a blank, which is taken too.
fn next_field<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let (field, tail) = split_once(rest, b' ').unwrap_or((rest, &[]));
    *rest = tail;
    field
}

fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&b| b == separator)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

fn hex(digits: &[u8]) -> Option<u64> {
    number(digits, 16)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    number(digits, 10)
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    // from_str_radix takes a sign too, which the kernel never writes.
    let text = std::str::from_utf8(digits).ok().filter(|t| !t.starts_with(['+', '-']))?;
    u64::from_str_radix(text, radix).ok()
}

fn perms(field: &[u8]) -> Option<Perms> {
    let flag = |byte: u8, letter: u8| match byte {
        b'-' => Some(false),
        _ if byte == letter => Some(true),
        _ => None,
    };
    let &[r, w, x, s] = field else { return None };
    let shared = match s {
        b's' => true,
        b'p' => false,
        _ => return None,
    };
    Some(Perms { read: flag(r, b'r')?, write: flag(w, b'w')?, execute: flag(x, b'x')?, shared })
}

/// The kernel escapes one byte only, the line feed, as `\012` (`seq_path` with "\n"); a backslash stands for
/// itself. A file whose name holds the four characters can't be told from one with a line feed.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests;
