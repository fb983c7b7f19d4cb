//! Files that std alone can't open: those that the target has mapped, and outputs that must not block.
//!
//! A path from the maps means something in the target's mount namespace only, and the file may have been replaced or
//! deleted since. What is read here is the file that is mapped, or nothing.

use super::injection::{self, Call};
use super::loadedby::loaded_file;
use super::procfs;
use super::root::TargetRoot;
use crate::base::paths::below;
use crate::image::maps::{Device, MappedModule};
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

/// Opens the file behind `module` through the live task `tid` of process `pid`, whose root folder is `root` if it is
/// not ours: by its path in there; if another file stands there now, through the kernel's own links to mapped files.
/// None if neither gives it. `accepts` says whether a file's contents are those that are mapped. Its second argument
/// says whether
/// device and inode are: alone they prove nothing, as inodes are used again and some file systems (overlayfs, btrfs)
/// show others in the maps.
pub fn open_module(
    pid: i32,
    tid: i32,
    root: Option<&TargetRoot>,
    module: &MappedModule,
    accepts: &mut dyn FnMut(&File, bool) -> bool,
) -> Option<File> {
    let mut open = |path: &Path| {
        let file = injection::point(Call::Other).and_then(|()| open_regular(path)).ok()?;
        let metadata = file.metadata().ok()?;
        let same = metadata.ino() == module.inode && device(metadata.dev()) == module.dev;
        accepts(&file, same).then_some(file)
    };
    let found = candidates(pid, tid, root, module).iter().find_map(|path| open(path));
    found.or_else(|| held_open(tid, module).iter().find_map(|path| open(path)))
}

/// Opens a regular file for reading. The folders may belong to somebody who puts a pipe there, or a device that does
/// something when it is opened.
///
/// # Errors
/// What the kernel said; it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// From the device number that stat(2) tells.
pub const fn device(number: u64) -> Device {
    Device { major: libc::major(number), minor: libc::minor(number) }
}

/// Whether `module`, a module of task `tid`, is its main program.
pub fn is_program(tid: i32, root: Option<&TargetRoot>, module: &MappedModule) -> bool {
    // By name: the kernel writes it in the same way here and in the maps, while the inodes of some file systems differ.
    let Ok(link) = std::fs::read_link(format!("/proc/{tid}/exe")) else { return false };
    let link = match link.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(name) if module.deleted => PathBuf::from(OsStr::from_bytes(name)),
        _ => link,
    };
    if let Some(loaded) = loaded_file(tid, &link, &procfs::command_line(tid)) {
        return loaded == module.path;
    }
    root.and_then(|root| root.inside(&link)).unwrap_or(link) == module.path
}

/// The file that a call of execve(2), execveat(2) or fexecve(3) names.
#[derive(Debug)]
pub struct Executed {
    /// The descriptor that `path` starts from, or that is meant itself if there is no path. None: the working folder.
    pub start: Option<i32>,
    /// The path as the task gave it.
    pub path: Vec<u8>,
}

impl Executed {
    /// Where heaptrace finds it, if task `tid` is to execute it.
    fn seen_from(&self, tid: i32) -> PathBuf {
        let path = Path::new(OsStr::from_bytes(&self.path));
        let start = match self.start {
            _ if path.is_absolute() => return below(Path::new(&format!("/proc/{tid}/root")), path),
            Some(descriptor) => format!("/proc/{tid}/fd/{descriptor}"),
            None => format!("/proc/{tid}/cwd"),
        };
        // `join` would add a slash, which only a folder may have.
        if self.path.is_empty() { start.into() } else { Path::new(&start).join(path) }
    }

    /// The last part of its path, for people.
    pub fn name(&self, tid: i32) -> String {
        let seen = self.seen_from(tid);
        let path = if self.path.is_empty() { std::fs::read_link(&seen).unwrap_or(seen) } else { seen };
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Whether `executed`, executed by task `tid`, would give it other rights than it has: set-user-ID, set-group-ID, or
/// capabilities of the file. False too if it can't be executed, as far as its mode tells.
pub fn changes_rights(tid: i32, executed: &Executed) -> bool {
    let seen = executed.seen_from(tid);
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

fn candidates(pid: i32, tid: i32, root: Option<&TargetRoot>, module: &MappedModule) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if !module.deleted {
        paths.extend(root.map(|root| below(&root.path(), &module.path)));
        // Ours, too: what was mapped before a chroot(2) lies outside of the new root.
        paths.push(module.path.clone());
    }
    // The link to the main program outlives its name; the others need CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    paths.push(PathBuf::from(format!("/proc/{tid}/exe")));
    if let Some(first) = module.segments.first() {
        paths.push(PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", first.start.0, first.end.0)));
    }
    paths
}

/// The files that the process holds open and that can be `module`'s: what it has loaded from a memory file
/// (memfd_create(2)) is nowhere else.
fn held_open(tid: i32, module: &MappedModule) -> Vec<PathBuf> {
    /// Some processes have a million descriptors.
    const MAX_DESCRIPTORS: usize = 4096;
    let Ok(entries) = std::fs::read_dir(format!("/proc/{tid}/fd")) else { return Vec::new() };
    let links = entries.take(MAX_DESCRIPTORS).flatten().map(|entry| entry.path());
    links.filter(|link| std::fs::metadata(link).is_ok_and(|file| file.ino() == module.inode)).collect()
}
