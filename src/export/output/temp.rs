//! A new file beside the one that it will replace.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// O_NONBLOCK on Linux x86-64: what has come to a file's place may be a pipe that nobody reads.
pub(super) const NONBLOCK: i32 = 0o4000;

/// O_NOFOLLOW: it may be a link.
pub(super) const NOFOLLOW: i32 = 0o400_000;

/// O_PATH and O_DIRECTORY: a folder that need not be readable.
const FOLDER: i32 = 0o10_000_000 | 0o200_000;

/// An open folder. Whoever may write to a folder on the way to it can put a link there, but not into this one's place.
#[derive(Debug)]
struct Folder {
    /// Keeps it open.
    _file: Option<File>,
    /// By what it is reached.
    path: PathBuf,
}

impl Folder {
    /// Opens the folder at `path`, an absolute one without links, if it is still without.
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(FOLDER | NOFOLLOW).open(path)?;
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        match fs::read_link(&opened) {
            Ok(found) if found == path => Ok(Self { _file: Some(file), path: opened }),
            Ok(_) => Err(io::Error::other("another folder has come to this place meanwhile")),
            // Not told in a program with capabilities of its own, or without /proc.
            Err(_) => Ok(Self { _file: None, path: path.to_owned() }),
        }
    }
}

/// A file under a name of its own, removed unless it is renamed.
#[derive(Debug)]
pub(super) struct TempFile {
    folder: Folder,
    path: PathBuf,
    pub(super) file: File,
}

impl TempFile {
    /// Creates one in a directory (an absolute path without links), with what the umask leaves of `mode`.
    pub(super) fn beside(directory: &Path, mode: u32) -> io::Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let folder = Folder::open(directory)?;
        loop {
            // short, as the final name may be as long as the file system allows
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let path = folder.path.join(format!(".heaptrace-{}-{serial}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
                Ok(file) => return Ok(Self { folder, path, file }),
                // left behind by a killed process that had our pid
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && serial < u32::MAX => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives it its name in the directory, in place of any older file.
    pub(super) fn rename(mut self, name: &OsStr) -> io::Result<()> {
        fs::rename(&self.path, self.folder.path.join(name))?;
        // nothing to remove any more
        self.path.clear();
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // nothing better can be done with an error here than to leave the file
            let _ = fs::remove_file(&self.path);
        }
    }
}
