//! The output files: checked before the target starts, written at the end, whole or not at all.
//!
//! A regular or new file is written under another name in the same directory and then renamed, so that a reader never
//! sees half of it and an older file survives a failure. Pipes and devices are written directly, and last, as they may
//! keep us waiting. One output failing does not keep the others from being written.
//!
//! In a folder that others may write to, the name can be taken by then: their links, pipes and devices are not used
//! ([`Owners`]). The heap of another user's process is nobody's else: such files are for their owner alone.

mod direct;
mod error;
mod growing;
mod name;
mod place;
mod temp;

pub use direct::{DirectOutputs, Pause};
pub use error::OutputError;
pub use growing::GrowingFile;
pub use place::Owners;

use super::{ExportOptions, Format, FormatError, Source, write};
use crate::profile::Profile;
use direct::Direct;
use name::Pattern;
use place::{Place, parent, real_folder, resolve};
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use temp::{NOFOLLOW, NONBLOCK, TempFile};

/// Where `run` and `attach` write without `-o`.
pub const DEFAULT_OUTPUT: &str = "heaptrace.%n.%p.pb.gz";

/// Who may read a new file: all that the umask lets.
const BY_UMASK: u32 = 0o666;

/// Only its owner.
const PRIVATE: u32 = 0o600;

/// Which files to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All.
    All,
    /// Of several processes, the files of one: names with `%p`.
    Process,
    /// Of several processes, the files of all together: names without.
    Tree,
}

/// What became of one output.
#[derive(Debug)]
pub struct Outcome {
    /// The file, patterns replaced.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// Bytes that were allocated as the profile in it says.
    pub allocated_bytes: u64,
    /// The number of bytes written, or why there is no (new) file.
    pub result: Result<u64, OutputError>,
}

/// What files are named after.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The program's name.
    pub program: &'a str,
    /// The process.
    pub pid: i32,
    /// The number in a series.
    pub number: u32,
    /// Whether the process belongs to another user: then only the owner of the files may read them.
    pub of_another_user: bool,
    /// Bytes that were allocated as the files say.
    pub allocated_bytes: u64,
}

impl<'a> Subject<'a> {
    fn of(profile: &'a Profile, number: Option<u32>) -> Self {
        let meta = &profile.meta;
        Self {
            program: &meta.process.program,
            pid: meta.process.pid,
            number: number.unwrap_or(meta.part),
            of_another_user: meta.process.of_another_user,
            allocated_bytes: profile.totals.bytes_allocated,
        }
    }
}

/// All outputs of a command, checked.
#[derive(Clone, Debug)]
pub struct Outputs {
    outputs: Vec<Output>,
    owners: Owners,
}

#[derive(Clone, Debug)]
struct Output {
    format: Format,
    file: NamedFile,
}

#[derive(Clone, Debug)]
struct NamedFile {
    /// Absolute: the path stays right whatever becomes of the working directory.
    directory: PathBuf,
    /// The directory as the user wrote it, for messages; may be empty.
    shown: PathBuf,
    name: Pattern,
}

impl Outputs {
    /// Checks the outputs as far as that is possible before anything is known about the target: formats, patterns,
    /// directories, files that must not be replaced, names given twice. `format` is what `--format` asks for; it
    /// overrides the names. Leaves no file behind.
    ///
    /// # Errors
    /// The first output that could not be written.
    pub fn prepare(paths: &[PathBuf], format: Option<Format>, owners: Owners) -> Result<Self, OutputError> {
        let mut outputs = Vec::with_capacity(paths.len());
        let mut taken = Vec::new();
        for path in paths {
            if path.as_os_str() == "-" {
                return Err(OutputError::StdoutRefused);
            }
            let (file, identity) = check(path, owners)?;
            let format = match (format, Format::from_path(path)) {
                (Some(format), _) | (None, Ok(format)) => format,
                (None, Err(FormatError::UnknownSuffix { .. })) if identity.is_none() => {
                    return Err(OutputError::DirectFormat { path: path.clone() });
                }
                (None, Err(error)) => return Err(error.into()),
            };
            if let Some(identity) = identity {
                if taken.contains(&identity) {
                    return Err(OutputError::Duplicate { path: path.clone() });
                }
                taken.push(identity);
            }
            outputs.push(Output { format, file });
        }
        Ok(Self { outputs, owners })
    }

    /// Refuses the formats that hold what profiles from there lack.
    ///
    /// # Errors
    /// The first output of such a format.
    pub fn filled_from(self, source: Source) -> Result<Self, OutputError> {
        self.outputs.iter().try_for_each(|output| output.format.can_hold(source))?;
        Ok(self)
    }

    /// Refuses names that are the same for different processes.
    ///
    /// # Errors
    /// The first such output.
    pub fn one_for_each_process(self) -> Result<Self, OutputError> {
        match self.outputs.iter().find(|output| !output.file.name.tells_processes_apart()) {
            Some(Output { file, .. }) => Err(OutputError::SameForEach { path: file.shown.join(file.name.source()) }),
            None => Ok(self),
        }
    }

    /// Refuses names that are the same for different snapshots, or different processes if `several` are traced.
    ///
    /// # Errors
    /// The first such output.
    pub fn one_for_each_snapshot(self, several: bool) -> Result<Self, OutputError> {
        let lacks = |name: &Pattern| !name.has_number() || several && !name.has_pid();
        match self.outputs.iter().find(|output| lacks(&output.file.name)) {
            Some(Output { file, .. }) => {
                let path = file.shown.join(file.name.source());
                Err(OutputError::SameForEachSnapshot { path, needs: if several { "%i and %p" } else { "%i" } })
            }
            None => Ok(self),
        }
    }

    /// Refuses names that are the same for different processes.
    ///
    /// # Errors
    /// The first such output.
    pub fn one_series_for_each_process(self) -> Result<Self, OutputError> {
        match self.outputs.iter().find(|output| !output.file.name.has_pid()) {
            Some(Output { file, .. }) => {
                Err(OutputError::SameForEachSeries { path: file.shown.join(file.name.source()) })
            }
            None => Ok(self),
        }
    }

    /// Whether some name has a `%i`, that is, takes the parts of a series.
    pub fn takes_parts(&self) -> bool {
        self.outputs.iter().any(|output| output.file.name.has_number())
    }

    /// The outputs of the whole time, whose names have no `%i`, and those of the parts of a series.
    pub fn split_parts(self) -> (Self, Self) {
        let (parts, whole) = self.outputs.into_iter().partition(|output| output.file.name.has_number());
        (Self { outputs: whole, owners: self.owners }, Self { outputs: parts, owners: self.owners })
    }

    /// Whether some name has a `%p`, that is, takes the single processes of several.
    pub fn takes_processes(&self) -> bool {
        self.outputs.iter().any(|output| output.file.name.has_pid())
    }

    /// The format of each output.
    pub fn formats(&self) -> impl Iterator<Item = Format> {
        self.outputs.iter().map(|output| output.format)
    }

    /// Writes contents that are there already, one for each output in their order.
    pub fn write_contents(
        &self,
        subject: &Subject<'_>,
        contents: &[Vec<u8>],
        direct: &mut dyn DirectOutputs,
    ) -> Vec<Outcome> {
        let fill = |output: usize, _: Format, out: &mut dyn Write| match contents.get(output) {
            Some(bytes) => out.write_all(bytes),
            None => Err(io::Error::other("there is nothing to write")),
        };
        self.write_with(Scope::All, subject, &fill, direct)
    }

    /// Writes the profile to all outputs that `scope` selects; the patterns are replaced by what the profile says.
    /// Pipes and devices come last, whatever their place in the answer: what has to be waited for must not delay or
    /// lose the others.
    pub fn write(
        &self,
        scope: Scope,
        profile: &Profile,
        options: &ExportOptions,
        direct: &mut dyn DirectOutputs,
    ) -> Vec<Outcome> {
        let fill = |_: usize, format: Format, out: &mut dyn Write| write(format, profile, options, out);
        self.write_with(scope, &Subject::of(profile, options.number), &fill, direct)
    }

    fn write_with(
        &self,
        scope: Scope,
        subject: &Subject<'_>,
        fill: &dyn Fn(usize, Format, &mut dyn Write) -> io::Result<()>,
        direct: &mut dyn DirectOutputs,
    ) -> Vec<Outcome> {
        let mut written: Vec<PathBuf> = Vec::new();
        let selected = self.outputs.iter().enumerate().filter(|(_, output)| match scope {
            Scope::All => true,
            Scope::Process => output.file.name.has_pid(),
            Scope::Tree => !output.file.name.has_pid(),
        });
        let mut order: Vec<(usize, &Output, PathBuf, PathBuf)> = selected
            .map(|(place, output)| {
                let (path, shown) = output.file.paths(subject);
                (place, output, path, shown)
            })
            .collect();
        let owners = self.owners;
        order.sort_by_key(|(_, _, path, _)| matches!(resolve(path, owners), Ok(Place::Direct(_) | Place::Open(_))));
        let mode = mode_of(subject.of_another_user);
        let mut outcomes: Vec<(usize, Outcome)> = order
            .into_iter()
            .map(|(place, output, path, shown)| {
                let (format, allocated_bytes) = (output.format, subject.allocated_bytes);
                let fill = |out: &mut dyn Write| fill(place, format, out);
                let result = match written.contains(&path) {
                    true => Err(OutputError::Duplicate { path: shown.clone() }),
                    false => write_anywhere(&path, owners, mode, fill, direct),
                };
                written.push(path);
                (place, Outcome { path: shown, format, allocated_bytes, result })
            })
            .collect();
        outcomes.sort_by_key(|(place, _)| *place);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

impl NamedFile {
    /// Where to write, and how to call it.
    fn paths(&self, subject: &Subject<'_>) -> (PathBuf, PathBuf) {
        let name = self.name.expand(subject.program, subject.pid, subject.number);
        (self.directory.join(&name), self.shown.join(&name))
    }
}

/// Checks a path, and says which file it is (None: a pipe or device, which may be given twice).
fn check(path: &Path, owners: Owners) -> Result<(NamedFile, Option<PathBuf>), OutputError> {
    let no_file = || match path.is_dir() {
        true => OutputError::IsDirectory { path: path.to_owned() },
        false => OutputError::NoFile { path: path.to_owned() },
    };
    // `dir/` and `dir/.` have a file name for Path, but name a directory
    let text = path.as_os_str().as_encoded_bytes();
    if text.ends_with(b"/") || text.ends_with(b"/.") {
        return Err(no_file());
    }
    let file_name = path.file_name().ok_or_else(no_file)?;
    let pattern = Pattern::parse(file_name).map_err(|found| OutputError::Pattern { path: path.to_owned(), found })?;
    let shown = path.parent().unwrap_or(Path::new("")).to_owned();
    let given = if shown.as_os_str().is_empty() { Path::new(".") } else { shown.as_path() };
    let directory = real_folder(given, owners)?;
    let identity = match pattern.fixed() {
        Some(name) => match resolve(&directory.join(name), owners)? {
            Place::Planted { path, what, owner } => return Err(OutputError::Planted { path, what, owner }),
            Place::Direct(file) | Place::Open(file) => {
                check_direct(&file)?;
                None
            }
            Place::Beside(file) => {
                check_file(&file)?;
                Some(file)
            }
        },
        None => {
            TempFile::beside(&directory, PRIVATE).map_err(|source| directory_error(given, source))?;
            Some(directory.join(file_name))
        }
    };
    Ok((NamedFile { directory, shown, name: pattern }, identity))
}

/// Whether a pipe or device can be written, as far as that can be told without disturbing it.
fn check_direct(path: &Path) -> Result<(), OutputError> {
    let error = |source| OutputError::NotWritable { path: path.to_owned(), source };
    let kind = fs::metadata(path).map_err(error)?.file_type();
    if kind.is_socket() {
        return Err(OutputError::Socket { path: path.to_owned() });
    }
    // Opening a pipe waits for a reader, and closing it again would be the end of the file for one.
    if !kind.is_fifo() {
        OpenOptions::new().append(true).open(path).map_err(error)?;
    }
    Ok(())
}

/// Whether the file can be replaced or created, tried out.
fn check_file(file: &Path) -> Result<(), OutputError> {
    // renaming over a write-protected file would succeed, but is not what its owner wants
    match OpenOptions::new().write(true).custom_flags(NOFOLLOW | NONBLOCK).open(file) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(OutputError::NotWritable { path: file.to_owned(), source });
        }
        _ => {}
    }
    let directory = parent(file);
    TempFile::beside(directory, PRIVATE).map_err(|source| directory_error(directory, source))?;
    Ok(())
}

fn directory_error(path: &Path, source: io::Error) -> OutputError {
    let text = path.as_os_str().as_encoded_bytes();
    let has_pattern = text.windows(2).any(|pair| matches!(pair, b"%p" | b"%n" | b"%i"));
    let hint = match source.kind() {
        _ if has_pattern => " (patterns are replaced in the file's own name only)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "; choose another place with -o",
        _ => "",
    };
    OutputError::Directory { path: path.to_owned(), source, hint }
}

/// Writes to a path, whatever is there, with what `fill` writes. Returns the number of bytes.
fn write_anywhere(
    path: &Path,
    owners: Owners,
    mode: u32,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    direct: &mut dyn DirectOutputs,
) -> Result<u64, OutputError> {
    match resolve(path, owners)? {
        Place::Direct(path) => {
            let out = Direct::open(&path, direct)?;
            owners.check_opened(&path, out.file())?;
            Ok(write_counted(out, fill)?)
        }
        // appending: what is open elsewhere, too, must not lose what is in it
        Place::Open(path) => Ok(write_counted(Direct::open(&path, direct)?, fill)?),
        // What was put there since the check would cost the profile, if it were refused: the name gets the file
        // instead.
        Place::Beside(path) | Place::Planted { path, .. } => replace(&path, mode, fill),
    }
}

/// Who may read what is written about a process, or copied from it.
const fn mode_of(another_user: bool) -> u32 {
    if another_user { PRIVATE } else { BY_UMASK }
}

/// Writes a regular file, whole or not at all, with what `fill` writes. New files get the permissions that the umask
/// leaves; only their owner may read what comes from the process of `another_user`. Returns the number of bytes.
///
/// # Errors
/// The path can't be written, or `fill` failed; an older file is then as it was.
pub fn write_file(
    path: &Path,
    owners: Owners,
    another_user: bool,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<u64, OutputError> {
    match resolve(path, owners)? {
        Place::Direct(path) | Place::Open(path) => {
            Err(OutputError::NotWritable { path, source: io::Error::other("this is not a regular file") })
        }
        Place::Beside(path) | Place::Planted { path, .. } => replace(&path, mode_of(another_user), fill),
    }
}

/// Puts a new file in the place of `file`, whatever is there: rename(2) follows no link.
fn replace(file: &Path, mode: u32, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<u64, OutputError> {
    let name = file.file_name().ok_or_else(|| OutputError::NoFile { path: file.to_owned() })?;
    let temp = TempFile::beside(parent(file), mode).map_err(|source| directory_error(parent(file), source))?;
    let bytes = write_counted(&temp.file, fill)?;
    // some file systems report a full disk only now
    temp.file.sync_all()?;
    temp.rename(name)?;
    Ok(bytes)
}

/// Writes through a buffer, and counts.
fn write_counted<W: Write>(out: W, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    let mut counted = Counted { out: BufWriter::with_capacity(1 << 16, out), bytes: 0 };
    fill(&mut counted)?;
    counted.flush()?;
    Ok(counted.bytes)
}

struct Counted<W: Write> {
    out: BufWriter<W>,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
