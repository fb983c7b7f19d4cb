//! What lies at the path of an output, and whether it may be used.
//!
//! fs.protected_symlinks (proc_sys_fs(5)) can't help: where a new file is renamed over what a link leads to, the link
//! is read, not followed by the kernel. The same rule is applied here to the folders of a path; for its last part,
//! whose name is what others can foresee, a stricter one.

use super::{OutputError, directory_error};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// How many symbolic links a path may lead through; the kernel's own limit.
const MAX_LINKS: usize = 40;

const ROOT: u32 = 0;

/// That everybody may write to a folder, or its group (inode(7)).
const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;

/// Whose links, pipes and devices are used: the user's own and root's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owners {
    /// The effective user.
    pub user: u32,
    /// Whom devices of the machine, and links in its own folders, belong to in a user namespace in which its root has
    /// no id.
    pub outside: Option<u32>,
}

impl Owners {
    fn trust(self, owner: u32) -> bool {
        owner == self.user || owner == ROOT
    }

    /// Only root can make devices.
    fn trust_special(self, found: &Metadata) -> bool {
        let is_device = found.file_type().is_char_device() || found.file_type().is_block_device();
        self.trust(found.uid()) || is_device && self.outside == Some(found.uid())
    }

    /// The machine's own links, too, such as /dev/stdout: where its root has no id, all who have none look the same, so
    /// the folder must be one into which nobody else can put a link.
    fn trust_last_link(self, link: &Metadata, folder: &Path) -> bool {
        let is_outside = |found: &Metadata| self.outside == Some(found.uid());
        let is_closed = |folder: &Metadata| folder.mode() & (WRITABLE_BY_ALL | WRITABLE_BY_GROUP) == 0;
        self.trust(link.uid())
            || is_outside(link)
                && fs::symlink_metadata(folder).is_ok_and(|found| is_outside(&found) && is_closed(&found))
    }

    /// The kernel's rule for links in folders (fs.protected_symlinks), sticky or not.
    fn trust_link(self, link: &Metadata, folder: &Metadata) -> bool {
        folder.mode() & WRITABLE_BY_ALL == 0 || self.trust(link.uid()) || link.uid() == folder.uid()
    }

    /// Makes sure that `file`, opened at `path`, is what was found there before.
    ///
    /// # Errors
    /// It is something else by now.
    pub(super) fn check_opened(self, path: &Path, file: &File) -> Result<(), OutputError> {
        let found = file.metadata()?;
        let (what, is_special) = kind(&found);
        if is_special && self.trust_special(&found) {
            return Ok(());
        }
        Err(OutputError::Planted { path: path.to_owned(), what, owner: found.uid() })
    }
}

/// How to write a path.
#[derive(Debug)]
pub(super) enum Place {
    /// A pipe or device.
    Direct(PathBuf),
    /// An open file under another name (`/dev/stdout`).
    Open(PathBuf),
    /// A regular file, or none yet: at this path, behind all links.
    Beside(PathBuf),
    /// A link, pipe or device of another user.
    Planted {
        /// Where it lies.
        path: PathBuf,
        /// Which of them it is.
        what: &'static str,
        /// Whom it belongs to.
        owner: u32,
    },
}

/// Follows the links of a path's last part that may be followed: the file behind them is replaced, not the link.
pub(super) fn resolve(path: &Path, owners: Owners) -> Result<Place, OutputError> {
    let mut file = path.to_owned();
    for _ in 0..MAX_LINKS {
        let directory = real_folder(parent(&file), owners)?;
        // /dev/stdout and /dev/fd/3 lead there; another file in the place of an open one would go unnoticed
        if directory.starts_with("/proc") {
            return Ok(Place::Open(path.to_owned()));
        }
        let Some(name) = file.file_name().map(OsStr::to_owned) else {
            return Err(OutputError::NoFile { path: path.to_owned() });
        };
        file = directory.join(name);
        let found = match fs::symlink_metadata(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Place::Beside(file)),
            found => found.map_err(|source| OutputError::NotWritable { path: file.clone(), source })?,
        };
        let (what, is_special) = kind(&found);
        let planted = |path| Place::Planted { path, what, owner: found.uid() };
        match found.file_type() {
            kind if kind.is_symlink() && !owners.trust_last_link(&found, &directory) => return Ok(planted(file)),
            kind if kind.is_symlink() => {
                let link =
                    fs::read_link(&file).map_err(|source| OutputError::NotWritable { path: file.clone(), source })?;
                file = directory.join(link);
            }
            kind if kind.is_dir() => return Err(OutputError::IsDirectory { path: path.to_owned() }),
            _ if is_special && !owners.trust_special(&found) => return Ok(planted(file)),
            _ if is_special => return Ok(Place::Direct(file)),
            _ => return Ok(Place::Beside(file)),
        }
    }
    Err(OutputError::NotWritable { path: path.to_owned(), source: too_many_links() })
}

/// The folder that a path means, without links in its name. Links that another user may have put into it are not
/// followed.
pub(super) fn real_folder(path: &Path, owners: Owners) -> Result<PathBuf, OutputError> {
    let error = |source| directory_error(path, source);
    let mut folder = if path.is_absolute() { PathBuf::from("/") } else { std::env::current_dir().map_err(error)? };
    let mut rest: Vec<OsString> = names(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            folder.pop();
            continue;
        }
        let next = folder.join(&name);
        let found = fs::symlink_metadata(&next).map_err(error)?;
        if !found.is_symlink() {
            if !found.is_dir() {
                return Err(error(io::ErrorKind::NotADirectory.into()));
            }
            folder = next;
            continue;
        }
        if !owners.trust_link(&found, &fs::symlink_metadata(&folder).map_err(error)?) {
            return Err(OutputError::Planted { path: next, what: kind(&found).0, owner: found.uid() });
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(error(too_many_links()));
        }
        let link = fs::read_link(&next).map_err(error)?;
        if link.is_absolute() {
            folder = PathBuf::from("/");
        }
        rest.extend(names(&link));
    }
    Ok(folder)
}

/// The names in a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// The folder of a file.
pub(super) fn parent(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What to call it, and whether it is a pipe, a device or a socket.
fn kind(found: &Metadata) -> (&'static str, bool) {
    match found.file_type() {
        kind if kind.is_symlink() => ("link", false),
        kind if kind.is_fifo() => ("pipe", true),
        kind if kind.is_socket() => ("socket", true),
        kind if kind.is_char_device() || kind.is_block_device() => ("device", true),
        _ => ("file", false),
    }
}

fn too_many_links() -> io::Error {
    io::Error::other("too many levels of symbolic links")
}
