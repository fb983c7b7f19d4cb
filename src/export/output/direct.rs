//! Outputs that are no regular files: pipes, terminals, devices. They are written directly, and may keep the writer
//! waiting: a named pipe until somebody reads it, a full one until its reader goes on. How long, and what ends the
//! wait, is the caller's affair.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Why an output takes nothing at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// A named pipe that no process has opened for reading.
    NoReader,
    /// Its reader, or the device, does not take more yet.
    Full,
}

/// Opens outputs that may keep the writer waiting, and waits for them.
pub trait DirectOutputs {
    /// Opens `path` for appending such that neither this nor a write ever blocks: those that would fail with
    /// [`io::ErrorKind::WouldBlock`]. None: it is a pipe that has no reader yet.
    ///
    /// # Errors
    /// What the kernel said.
    fn open(&mut self, path: &Path) -> io::Result<Option<File>>;

    /// Waits for a moment, after which the output is tried again.
    ///
    /// # Errors
    /// If it is to be given up.
    fn wait(&mut self, path: &Path, pause: Pause) -> io::Result<()>;
}

/// An open output.
pub(super) struct Direct<'a> {
    path: &'a Path,
    file: File,
    outputs: &'a mut dyn DirectOutputs,
}

impl<'a> Direct<'a> {
    /// Opens `path` as soon as that is possible.
    pub fn open(path: &'a Path, outputs: &'a mut dyn DirectOutputs) -> io::Result<Self> {
        loop {
            match outputs.open(path)? {
                Some(file) => return Ok(Self { path, file, outputs }),
                None => outputs.wait(path, Pause::NoReader)?,
            }
        }
    }

    /// What was opened.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Write for Direct<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.outputs.wait(self.path, Pause::Full)?,
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
