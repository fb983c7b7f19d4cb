//! The files that the target has mapped, as the target sees them.
//!
//! A path from the maps means something in the target's mount namespace only, and the file may have been replaced or
//! deleted since. What is read here is the file that is mapped, or nothing.

use super::injection::{self, Call};
use crate::maps::MappedModule;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Opens the file behind `module` through the live task `tid` of process `pid`: by its path in the target's root; if
/// another file stands there now, through the kernel's own links to mapped files. None if neither gives it.
pub fn open_module(pid: i32, tid: i32, module: &MappedModule) -> Option<File> {
    candidates(pid, tid, module).into_iter().find_map(|path| {
        let file = injection::point(Call::Other).and_then(|()| File::open(path)).ok()?;
        let metadata = file.metadata().ok()?;
        // The device number of the maps is not that of stat on some file systems (overlayfs, btrfs): the inode decides.
        (metadata.ino() == module.inode && metadata.is_file()).then_some(file)
    })
}

/// Whether `module` is the main program of task `tid`.
pub fn is_program(tid: i32, module: &MappedModule) -> bool {
    std::fs::metadata(format!("/proc/{tid}/exe")).is_ok_and(|metadata| metadata.ino() == module.inode)
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
