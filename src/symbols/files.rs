//! Finding and opening objects and their separate debug files.
//!
//! Debug files are looked for as gdb does it (gdb manual, "Separate Debug Files"): by build id, then by debug link.

use crate::base::mapped::{self, Registered};
use crate::base::paths::below;
use crate::image::elf::{DebugLink, Elf, hex};
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Files up to this size are read, larger ones are mapped. What is read does not change any more, and takes 0.7 ms a
/// MiB: most of that are page faults of fresh memory.
const LARGEST_READ: u64 = 256 << 10;

/// The same where a mapped file that is shortened would end the process.
const LARGEST_READ_UNGUARDED: u64 = 8 << 20;

/// Files up to this size are read if no more can be mapped.
const LARGEST_READ_INSTEAD: u64 = 32 << 20;

/// The checksum of a file up to this size is computed: files without a build id, by which larger ones are told.
const LARGEST_SUMMED: u64 = 8 << 30;

/// So much of a file is summed at a time, in bytes.
const SUMMED_AT_ONCE: usize = 1 << 20;

/// O_NONBLOCK on Linux x86-64: opening a FIFO that has taken a file's place must not wait for a writer.
pub(super) const NONBLOCK: i32 = 0o4000;

/// O_NOFOLLOW on Linux x86-64: a link may be anybody's, and lead anywhere.
pub(super) const NOFOLLOW: i32 = 0o400_000;

/// Where debug files are by default.
const DEFAULT_DEBUG_DIR: &str = "/usr/lib/debug";

/// Where debug files may be fetched from if they are not on this machine.
pub trait DebugServers: std::fmt::Debug + Send + Sync {
    /// The debug file of the object with this build id (lower-case hex), now on this machine; None if nobody has it.
    ///
    /// # Errors
    /// A sentence about what went wrong: to be told, not a reason to stop.
    fn fetch(&self, build_id: &str) -> Result<Option<PathBuf>, String>;

    /// Whether a Ctrl-C that has just come is meant for them: they are being asked, or were until it came.
    fn takes_interrupt(&self) -> bool {
        false
    }

    /// Ends what is being asked: nobody waits for the answer any more.
    fn give_up(&self) {}
}

/// Where files are looked for.
#[derive(Clone, Debug)]
pub struct Search {
    /// Folders with separate debug files and `.build-id` trees, best first.
    pub debug_dirs: Vec<PathBuf>,
    /// A copy of the target's file system (`--sysroot`).
    pub sysroot: Option<PathBuf>,
    /// The target's root folder as heaptrace sees it; `/` if they share it.
    pub root: PathBuf,
    /// Who is asked for debug files that are not found (`--debuginfod`).
    pub servers: Option<Arc<dyn DebugServers>>,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            debug_dirs: vec![PathBuf::from(DEFAULT_DEBUG_DIR)],
            sysroot: None,
            root: PathBuf::from("/"),
            servers: None,
        }
    }
}

impl Search {
    /// From the command line's `--debug-dir`s and the value of `$HEAPTRACE_DEBUG_PATH` (folders separated by colons);
    /// then `/usr/lib/debug`.
    pub fn new(debug_dirs: &[PathBuf], environment: Option<&OsStr>, sysroot: Option<PathBuf>, root: PathBuf) -> Self {
        let from_environment = environment.map(std::env::split_paths).into_iter().flatten();
        let default = PathBuf::from(DEFAULT_DEBUG_DIR);
        let mut all = Vec::new();
        for dir in debug_dirs.iter().cloned().chain(from_environment).chain([default]) {
            if !dir.as_os_str().is_empty() && !all.contains(&dir) {
                all.push(dir);
            }
        }
        Self { debug_dirs: all, sysroot, root, servers: None }
    }

    /// Where a file that the target calls `path` may be, best first.
    pub fn places(&self, path: &Path) -> Vec<PathBuf> {
        let mut places: Vec<PathBuf> = Vec::new();
        for root in self.sysroot.iter().chain([&self.root]) {
            let place = below(root, path);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Whether a place is in the folder that the user gave for the target's file system.
    pub(super) fn is_in_sysroot(&self, place: &Path) -> bool {
        self.sysroot.as_ref().is_some_and(|sysroot| place.starts_with(sysroot))
    }

    /// Where a file of the debug folders may be that is called `name` in them: in the target's file system, then in
    /// ours.
    fn debug_places(&self, name: &Path) -> Vec<PathBuf> {
        let relative = name.strip_prefix("/").unwrap_or(name);
        let mut all = Vec::new();
        for dir in &self.debug_dirs {
            let place = dir.join(relative);
            for place in self.places(&place).into_iter().chain([place]) {
                if !all.contains(&place) {
                    all.push(place);
                }
            }
        }
        all
    }

    /// Where a copy of the object with this id may be that the target calls `path`, in the layout of google/pprof
    /// (`PPROF_BINARY_PATH`): BUILD-ID/NAME.
    fn copy_places(&self, path: &Path, build_id: &[u8]) -> Vec<PathBuf> {
        let name = path.file_name().map(|name| Path::new(&hex(build_id)).join(name));
        name.map(|name| self.debug_places(&name)).unwrap_or_default()
    }

    /// The places of a build-id tree for this id.
    fn build_id_places(&self, build_id: &[u8]) -> Vec<PathBuf> {
        let id = hex(build_id);
        let Some((first, rest)) = id.split_at_checked(2).filter(|(_, rest)| !rest.is_empty()) else {
            return Vec::new();
        };
        self.debug_places(Path::new(&format!(".build-id/{first}/{rest}.debug")))
    }

    /// The separate debug file of an object: by `build_id`, then by the debug link of `elf`, which the target calls
    /// `path`. What was found but does not match is told by `warn`. A build-id tree may also hold copies of programs
    /// (`--save-binaries`): one without debug information serves if there is nothing better.
    pub fn debug_file(
        &self,
        path: &Path,
        build_id: Option<&[u8]>,
        elf: Option<&Elf<'_>>,
        warn: &mut dyn FnMut(String),
    ) -> Option<(PathBuf, Bytes)> {
        self.debug_file_by(path, build_id, elf.and_then(Elf::debug_link).as_ref(), warn)
    }

    /// The same by the debug link itself.
    pub(super) fn debug_file_by(
        &self,
        path: &Path,
        build_id: Option<&[u8]>,
        link: Option<&DebugLink<'_>>,
        warn: &mut dyn FnMut(String),
    ) -> Option<(PathBuf, Bytes)> {
        let mut copy = None;
        let by_id = |id| self.build_id_places(id).into_iter().chain(self.copy_places(path, id));
        for place in build_id.into_iter().flat_map(by_id) {
            if let Some(bytes) = open_if_there(&place, warn) {
                if id_of(&bytes).as_deref() == build_id {
                    if Elf::parse(&bytes).is_ok_and(|elf| elf.sections().has_debug_info()) {
                        return Some((place, bytes));
                    }
                    copy = copy.or(Some((place, bytes)));
                    continue;
                }
                warn(format!("{} is not the debug file that its name indicates: ignored", place.display()));
            }
        }
        self.linked_file(path, build_id, link, warn).or_else(|| self.fetched_file(build_id?, warn)).or(copy)
    }

    fn fetched_file(&self, build_id: &[u8], warn: &mut dyn FnMut(String)) -> Option<(PathBuf, Bytes)> {
        let place = self.servers.as_ref()?.fetch(&hex(build_id)).unwrap_or_else(|error| {
            warn(error);
            None
        })?;
        let bytes = open_if_there(&place, warn)?;
        if id_of(&bytes).as_deref() != Some(build_id) {
            warn(format!("{} is not the requested debug file: ignored", place.display()));
            return None;
        }
        Some((place, bytes))
    }

    fn linked_file(
        &self,
        path: &Path,
        build_id: Option<&[u8]>,
        link: Option<&DebugLink<'_>>,
        warn: &mut dyn FnMut(String),
    ) -> Option<(PathBuf, Bytes)> {
        let link = link?;
        for place in self.link_places(path, link.name) {
            let Some(bytes) = open_if_there(&place, warn) else { continue };
            let same = match (build_id, id_of(&bytes)) {
                (Some(wanted), Some(found)) => Ok(wanted == found),
                _ => has_checksum(&bytes, link.crc),
            };
            match same {
                Ok(true) => return Some((place, bytes)),
                Ok(false) => warn(format!(
                    "{} does not belong to {} (checksum or build id differ): ignored",
                    place.display(),
                    path.display()
                )),
                Err(error) => warn(format!("{}: {error}: ignored", place.display())),
            }
        }
        None
    }

    fn link_places(&self, path: &Path, name: &[u8]) -> Vec<PathBuf> {
        // Only a file name, by the format; anything else would lead out of the folders.
        let name = Path::new(OsStr::from_bytes(name));
        let Some(name) = name.file_name() else { return Vec::new() };
        let folder = path.parent().unwrap_or_else(|| Path::new("/"));
        let beside = folder.join(name);
        let mut places = if beside == path { Vec::new() } else { self.places(&beside) };
        places.extend(self.places(&folder.join(".debug").join(name)));
        places.extend(self.debug_places(&folder.join(name)));
        places
    }

    /// Where the package of split DWARF (`.dwp`) of the program may be that the target calls `module` and whose DWARF
    /// is in the file at `place`.
    pub fn package_places(&self, module: &Path, place: &Path) -> Vec<PathBuf> {
        let package_of = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".dwp");
            PathBuf::from(name)
        };
        let mut places = vec![package_of(place), place.with_extension("dwp")];
        places.extend(self.places(&package_of(module)));
        places.extend(self.debug_places(&package_of(module)));
        without_repeats(places)
    }

    /// Where the `.dwo` file may be that the compiler wrote to `recorded`: there, beside the program, or below a debug
    /// folder.
    pub fn split_unit_places(&self, module: &Path, place: &Path, recorded: &Path) -> Vec<PathBuf> {
        let mut places = if recorded.is_absolute() { self.places(recorded) } else { Vec::new() };
        if let Some(name) = recorded.file_name() {
            places.extend(place.parent().map(|folder| folder.join(name)));
            places.extend(module.parent().into_iter().flat_map(|folder| self.places(&folder.join(name))));
        }
        places.extend(self.debug_places(recorded));
        without_repeats(places)
    }

    /// The file of shared DWARF that `elf`, found at `place`, links to.
    pub fn alt_file(&self, place: &Path, elf: &Elf<'_>, warn: &mut dyn FnMut(String)) -> Option<Bytes> {
        let link = elf.debug_alt_link()?;
        let target = Path::new(OsStr::from_bytes(link.path));
        // Relative links count from where the file really is, not from a link in a build-id tree. (In the target's file
        // system no links are left, and the kernel would name the file as we could not open it.)
        let in_target = self.root != Path::new("/") && place.starts_with(&self.root);
        let real = place.canonicalize().ok().filter(|_| !in_target).unwrap_or_else(|| place.to_owned());
        let beside = real.parent().map(|folder| folder.join(target));
        let by_name = if target.is_absolute() { self.places(target) } else { Vec::new() };
        let dwz = target.file_name().map(|n| Path::new(".dwz").join(n));
        let in_dwz = dwz.iter().flat_map(|name| self.debug_places(name));
        for place in by_name.into_iter().chain(beside).chain(self.build_id_places(link.build_id)).chain(in_dwz) {
            if let Some(bytes) = open_if_there(&place, warn)
                && id_of(&bytes).as_deref() == Some(link.build_id)
            {
                return Some(bytes);
            }
        }
        warn(format!("{} needs {}, which is missing: names will be incomplete", place.display(), target.display()));
        None
    }
}

fn without_repeats(mut places: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen = std::collections::HashSet::new();
    places.retain(|place| seen.insert(place.clone()));
    places
}

fn id_of(bytes: &[u8]) -> Option<Vec<u8>> {
    Elf::parse_debug(bytes).ok()?.build_id().map(<[u8]>::to_vec)
}

/// The sums of large files, which take seconds: each is looked at when names are, for each process again.
static SUMS: Mutex<Vec<(FileVersion, u32)>> = Mutex::new(Vec::new());

/// So many are remembered.
const MAX_SUMS: usize = 64;

/// Whether these bytes are an object and have this checksum. A mapped file is summed by reading: the holes of a sparse
/// one would become memory where they are looked at.
fn has_checksum(bytes: &Bytes, wanted: u32) -> std::io::Result<bool> {
    if Elf::parse_debug(bytes).is_err() {
        return Ok(false);
    }
    let mut crc = flate2::Crc::new();
    let mapped = match bytes {
        Bytes::Read(bytes) => {
            crc.update(bytes);
            return Ok(crc.sum() == wanted);
        }
        Bytes::Mapped(mapped) => mapped,
    };
    if bytes.len() as u64 > LARGEST_SUMMED {
        return Err(std::io::Error::other(format!(
            "at {} GiB it is too large for a checksum, and it has no build id",
            bytes.len() >> 30
        )));
    }
    let version = FileVersion::of(&mapped.file);
    let sums = || SUMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, sum)) = sums().iter().find(|(known, _)| Some(*known) == version) {
        return Ok(*sum == wanted);
    }
    let mut part = vec![0; SUMMED_AT_ONCE];
    let mut at = 0;
    while at < LARGEST_SUMMED {
        match mapped.file.read_at(&mut part, at)? {
            0 => break,
            n => {
                crc.update(part.get(..n).unwrap_or_default());
                at += n as u64;
            }
        }
    }
    if let Some(version) = version.filter(|_| FileVersion::of(&mapped.file) == version) {
        let mut sums = sums();
        if sums.len() >= MAX_SUMS {
            sums.remove(0);
        }
        sums.push((version, crc.sum()));
    }
    Ok(crc.sum() == wanted)
}

pub(super) fn open_if_there(place: &Path, warn: &mut dyn FnMut(String)) -> Option<Bytes> {
    match Bytes::open(place) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let absent = matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory);
            if !absent {
                warn(format!("{}: {error}", place.display()));
            }
            None
        }
    }
}

/// What tells a file from others that come to its path, and from what is written to it later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileVersion {
    /// That of no file.
    pub const UNKNOWN: Self = Self { device: 0, inode: 0, size: u64::MAX, modified: (i64::MIN, 0) };

    /// That of an open file; None if the kernel does not tell.
    pub fn of(file: &File) -> Option<Self> {
        file.metadata().ok().map(|metadata| Self::from(&metadata))
    }

    /// That of the file at `place`.
    pub(super) fn at(place: &Path) -> Option<Self> {
        std::fs::metadata(place).ok().map(|metadata| Self::from(&metadata))
    }
}

impl From<&Metadata> for FileVersion {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// The bytes of a file.
#[derive(Debug)]
pub enum Bytes {
    /// In our memory.
    Read(Vec<u8>),
    /// In the page cache.
    Mapped(Mapped),
}

/// Reads a file from its start. Its own position stays: several threads may read it at once.
struct FromStart<'f> {
    file: &'f File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The bytes of a mapped file. If it is shortened meanwhile, they become zeros.
#[derive(Debug)]
pub struct Mapped {
    /// Before the mapping, as it must end first.
    registered: Registered,
    map: memmap2::Mmap,
    /// The file itself: another one may have come to its path.
    file: File,
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Mapped(mapped) => &mapped.map,
        }
    }
}

impl Bytes {
    /// Opens a regular file.
    ///
    /// # Errors
    /// Those of opening and reading; also for what is no regular file.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Self::of_file(&OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?)
    }

    /// The bytes of an open file, from its beginning.
    ///
    /// # Errors
    /// Those of reading; also for what is no regular file.
    pub fn of_file(file: &File) -> std::io::Result<Self> {
        use std::io::{Error, ErrorKind};
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        let read = || {
            let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
            FromStart { file, at: 0 }.take(LARGEST_READ_INSTEAD).read_to_end(&mut bytes)?;
            Ok(Self::Read(bytes))
        };
        let largest_read = if mapped::is_survived() { LARGEST_READ } else { LARGEST_READ_UNGUARDED };
        if metadata.len() <= largest_read {
            return read();
        }
        match Self::map(file) {
            Ok(Some(mapped)) => Ok(Self::Mapped(mapped)),
            // as on a file system that maps nothing, or beside a limit of memory or descriptors
            Ok(None) | Err(_) if metadata.len() <= LARGEST_READ_INSTEAD => read(),
            Ok(None) => Err(Error::other("too many large files are open")),
            Err(error) => Err(error),
        }
    }

    /// Maps a file. None: too many are mapped.
    fn map(file: &File) -> std::io::Result<Option<Mapped>> {
        let file = file.try_clone()?;
        // SAFETY: the mapping is private and read-only, and lives as long as the borrows of it. Another process may
        // still change the file's bytes meanwhile: all of them are read as plain integers and checked, like any input.
        // One who shortens the file takes pages away: the handler of SIGBUS puts zeros there, which a private mapping
        // may hold.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        let registered = mapped::register(&map);
        if registered.is_some() {
            linger();
        }
        Ok(registered.map(|registered| Mapped { registered, map, file }))
    }

    /// Whether the file was found to have been shortened while it was looked at.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Mapped(mapped) if mapped.registered.is_cut())
    }
}

/// Waits for as many milliseconds as HEAPTRACE_TEST_LINGER says, so that tests can change a mapped file before it is
/// read, and again before what it holds is. In builds with debug assertions only.
pub(super) fn linger() {
    if cfg!(debug_assertions)
        && let Some(time) = std::env::var("HEAPTRACE_TEST_LINGER").ok().and_then(|time| time.parse().ok())
    {
        std::thread::sleep(std::time::Duration::from_millis(time));
    }
}

#[cfg(test)]
mod tests;
