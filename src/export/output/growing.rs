//! An output that grows while the program runs: it bears another name until it is whole, and what is there of it stays
//! if heaptrace is killed.

use super::place::{Owners, Place, parent, resolve};
use super::temp::{NOFOLLOW, NONBLOCK};
use super::{BY_UMASK, NamedFile, OutputError, PRIVATE, check, directory_error};
use crate::profile::ProcessInfo;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What the name has behind it while the file grows.
const PART: &str = ".part";

/// The number of a file that belongs to no series.
const FIRST: u32 = 1;

/// See the module's head; checked, not yet there.
#[derive(Debug)]
pub struct GrowingFile {
    file: NamedFile,
    owners: Owners,
    /// Where the file really lies: behind a link in its place.
    directory: PathBuf,
    /// The pipe or device that it is.
    direct: Option<PathBuf>,
}

impl GrowingFile {
    /// Checks whether there can be such a file, and leaves none behind.
    ///
    /// # Errors
    /// It can't be written.
    pub fn prepare(path: &Path, owners: Owners) -> Result<Self, OutputError> {
        if path.as_os_str() == "-" {
            return Err(OutputError::StdoutRefused);
        }
        let (file, identity) = check(path, owners)?;
        let direct = match (&identity, file.name.fixed()) {
            (None, Some(name)) => Some(file.directory.join(name)),
            _ => None,
        };
        let directory = identity.as_deref().map_or(file.directory.as_path(), parent).to_owned();
        Ok(Self { file, owners, directory, direct })
    }

    /// The pipe or device that it is, if it is one: it is opened and written as it is.
    pub fn direct(&self) -> Option<&Path> {
        self.direct.as_deref()
    }

    /// As the user calls it.
    pub fn shown(&self) -> PathBuf {
        self.file.shown.join(self.file.name.source())
    }

    /// The file as it is called while it grows; `piece`: one of several in a row.
    pub fn part(&self, piece: Option<u64>) -> PathBuf {
        self.directory.join(self.part_name(piece))
    }

    /// The same as the user calls it.
    pub fn part_shown(&self, piece: Option<u64>) -> PathBuf {
        let is_here = self.directory == self.file.directory;
        let shown = if is_here { &self.file.shown } else { &self.directory };
        shown.join(self.part_name(piece))
    }

    fn part_name(&self, piece: Option<u64>) -> OsString {
        let mut name = self.file.name.source();
        name.push(PART);
        if let Some(piece) = piece {
            name.push(format!(".{piece:06}"));
        }
        name
    }

    /// Creates a part anew; only its owner may read it. One that an earlier heaptrace has left there is replaced.
    ///
    /// # Errors
    /// It can't be created.
    pub fn create(&self, piece: Option<u64>) -> Result<File, OutputError> {
        let path = self.part(piece);
        let error = |source| OutputError::NotWritable { path: self.part_shown(piece), source };
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error(source)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(PRIVATE).custom_flags(NOFOLLOW | NONBLOCK);
        options.open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => directory_error(parent(&path), source),
            _ => error(source),
        })
    }

    /// Gives the whole file its name, which `process` fills where it has patterns. All may read it whom the umask lets,
    /// unless it is of `another_user`. How the user calls it then.
    ///
    /// # Errors
    /// What has come to its place meanwhile can't be replaced.
    pub fn finish(&self, file: &File, process: &ProcessInfo, another_user: bool) -> Result<PathBuf, OutputError> {
        file.sync_all()?;
        if !another_user {
            file.set_permissions(fs::Permissions::from_mode(BY_UMASK & !umask()))?;
        }
        let name = self.file.name.expand(&process.program, process.pid, FIRST);
        let to = match resolve(&self.file.directory.join(&name), self.owners)? {
            Place::Beside(path) | Place::Planted { path, .. } => path,
            Place::Direct(path) | Place::Open(path) => {
                let source = io::Error::other("this is not a regular file");
                return Err(OutputError::NotWritable { path, source });
            }
        };
        fs::rename(self.part(None), to)?;
        Ok(self.file.shown.join(name))
    }
}

/// The permissions that new files do not get; those of others if it is not told.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    told.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o077)
}
