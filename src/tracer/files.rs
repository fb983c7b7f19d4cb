//! Files that std alone can't open: those that the target has mapped, and outputs that must not block.
//!
//! A path from the maps means something in the target's mount namespace only, and the file may have been replaced or
//! deleted since. What is read here is the file that is mapped, or nothing.

use super::injection::{self, Call};
use crate::maps::MappedModule;
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens a pipe or device for appending so that writes fail where they would block. None: it is a named pipe without a
/// reader, which open(2) calls ENXIO.
///
/// # Errors
/// What the kernel said.
pub fn open_without_blocking(path: &Path) -> io::Result<Option<File>> {
    // O_NOCTTY: to write to a terminal is not to take it over
    match OpenOptions::new().append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_pipe(path) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Opens the file behind `module` through the live task `tid` of process `pid`: by its path in the target's root; if
/// another file stands there now, through the kernel's own links to mapped files. None if neither gives it. `accepts` has the
/// last word on a file that can be the one, by its contents: inodes are used again.
pub fn open_module(pid: i32, tid: i32, module: &MappedModule, accepts: &mut dyn FnMut(&File) -> bool) -> Option<File> {
    candidates(pid, tid, module).into_iter().find_map(|path| {
        let file = injection::point(Call::Other).and_then(|()| File::open(path)).ok()?;
        let metadata = file.metadata().ok()?;
        // The device number of the maps is not that of stat on some file systems (overlayfs, btrfs): the inode decides.
        (metadata.ino() == module.inode && metadata.is_file() && accepts(&file)).then_some(file)
    })
}

/// Whether `module` is the main program of task `tid`.
pub fn is_program(tid: i32, module: &MappedModule) -> bool {
    std::fs::metadata(format!("/proc/{tid}/exe")).is_ok_and(|metadata| metadata.ino() == module.inode)
}

/// Whether `path`, executed by task `tid`, would give it other rights than it has: set-user-ID, set-group-ID, or
/// capabilities of the file. False too if it can't be executed, as far as its mode tells.
pub fn changes_rights(tid: i32, path: &[u8]) -> bool {
    let path = OsStr::from_bytes(path);
    let mut seen = PathBuf::from(format!("/proc/{tid}"));
    match Path::new(path).strip_prefix("/") {
        Ok(rest) => seen.extend([Path::new("root"), rest]),
        Err(_) => seen.extend([Path::new("cwd"), Path::new(path)]),
    }
    let (Ok(file), Ok(task)) = (std::fs::metadata(&seen), std::fs::metadata(format!("/proc/{tid}"))) else {
        return false;
    };
    let sets_user = file.mode() & libc::S_ISUID != 0 && file.uid() != task.uid();
    let sets_group = file.mode() & libc::S_ISGID != 0 && file.gid() != task.gid();
    let executable = file.is_file() && file.mode() & 0o111 != 0 && may_execute(&seen);
    executable && (sets_user || sets_group || has_capabilities(&seen))
}

/// Whether heaptrace itself could execute the file, which is asked for lack of a way to ask for another process.
fn may_execute(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a valid string.
    unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
}

/// Whether the file has capabilities of its own (capabilities(7)).
fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are valid; no value is asked for, only its size.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn candidates(pid: i32, tid: i32, module: &MappedModule) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if !module.deleted {
        let mut path = PathBuf::from(format!("/proc/{tid}/root"));
        path.push(module.path.strip_prefix("/").unwrap_or(&module.path));
        paths.push(path);
    }
    // The link to the main program outlives its name; the others need CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    paths.push(PathBuf::from(format!("/proc/{tid}/exe")));
    if let Some(first) = module.segments.first() {
        paths.push(PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", first.start.0, first.end.0)));
    }
    paths
}
