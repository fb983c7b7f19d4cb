//! The root folder of a process, which may be another one than ours: it lives in a container, or has called chroot(2).

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A root folder that is not ours. It can be looked into as long as this value lives, also when the process has ended.
#[derive(Debug)]
pub struct TargetRoot {
    folder: File,
    /// Keeps what is mounted below the folder: a mount namespace ends with its last process, or descriptor.
    _mounts: Option<File>,
    /// What the kernel calls the folder when we ask; `/` if it lies outside of our own tree.
    seen_as: PathBuf,
}

impl TargetRoot {
    /// The root folder of the live task `tid`. None if it is ours, or can't be opened.
    pub fn of(tid: i32) -> Option<Self> {
        let link = format!("/proc/{tid}/root");
        let own_namespace = same_file(&format!("/proc/{tid}/ns/mnt"), "/proc/self/ns/mnt");
        // one folder, but perhaps other file systems mounted below it
        if own_namespace && same_file(&link, "/proc/self/root") {
            return None;
        }
        let seen_as = std::fs::read_link(&link).ok()?;
        let folder = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(&link).ok()?;
        let mounts = if own_namespace { None } else { File::open(format!("/proc/{tid}/ns/mnt")).ok() };
        Some(Self { folder, _mounts: mounts, seen_as })
    }

    /// The folder. It lasts as long as this value.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()))
    }

    /// What the process calls a file that /proc calls `path`: that names files from our own root on where it can.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        if self.seen_as == Path::new("/") {
            return None;
        }
        Some(Path::new("/").join(path.strip_prefix(&self.seen_as).ok()?))
    }
}

fn same_file(a: &str, b: &str) -> bool {
    let identity = |path: &str| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_root_is_no_other_one() {
        assert!(TargetRoot::of(i32::try_from(std::process::id()).unwrap()).is_none());
        assert!(TargetRoot::of(-1).is_none());
    }

    #[test]
    fn names_of_files_below_another_root() {
        let seen_as =
            |path: &str| TargetRoot { folder: File::open("/").unwrap(), _mounts: None, seen_as: PathBuf::from(path) };
        let jail = seen_as("/srv/jail");
        assert_eq!(jail.inside(Path::new("/srv/jail/lib/x.so")), Some(PathBuf::from("/lib/x.so")));
        assert_eq!(jail.inside(Path::new("/srv/jailer/x.so")), None);
        assert_eq!(seen_as("/").inside(Path::new("/lib/x.so")), None);
    }
}
