//! `--save-binaries`: keeps the program and its libraries beside the profile, so that names can still be found when
//! they have been replaced, or on another machine.
//!
//! Two layouts in one folder. `.build-id/ab/cdef….debug` is gdb's, which `--debug-dir` and recent versions of pprof
//! read (with `PPROF_BINARY_PATH=DIR/.build-id`). `BUILD-ID/NAME`, a link to the former, is what every pprof looks for
//! first with `PPROF_BINARY_PATH=DIR` (google/pprof, internal/driver/fetch.go, locateBinaries). The pprof inside Go
//! looks there, too, but refuses what it finds, as it can't read build ids (cmd/pprof/pprof.go).

use super::owners;
use crate::export::output::{OutputError, write_file};
use crate::image::elf::Elf;
use crate::session::ModuleRecord;
use crate::symbols::Bytes;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Why binaries can't be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// A folder can't be created or written to.
    #[error("{}: can't save binaries in this directory: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("{} could not be saved: {source}", path.display())]
    Read {
        /// The module, as the target calls it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A copy could not be written.
    #[error("{} could not be saved: {source}", path.display())]
    Write {
        /// The module, as the target calls it.
        path: PathBuf,
        /// Why.
        source: OutputError,
    },
}

/// What became of the binaries.
#[derive(Debug, Default)]
pub struct Saved {
    /// Number of modules that are in the tree now, those that were there before included.
    pub present: usize,
    /// Sentences for the user: modules that can't be saved by their nature.
    pub warnings: Vec<String>,
    /// Modules that should have been saved.
    pub failures: Vec<SaveError>,
}

/// A folder that takes binaries.
#[derive(Debug)]
pub struct BinaryStore {
    folder: PathBuf,
}

impl BinaryStore {
    /// Creates the folder, if need be, and tries whether it can be written to.
    ///
    /// # Errors
    /// If not.
    pub fn prepare(folder: &Path) -> Result<Self, SaveError> {
        let error = |source| SaveError::Folder { path: folder.to_owned(), source };
        let tree = folder.join(".build-id");
        std::fs::create_dir_all(&tree).map_err(error)?;
        // The path must stay right whatever becomes of the working directory.
        let folder = std::fs::canonicalize(folder).map_err(error)?;
        let probe = tree.join(format!(".heaptrace-{}.tmp", std::process::id()));
        std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe)).map_err(error)?;
        Ok(Self { folder })
    }

    /// Copies the modules' files. A file that is there already is left, if it is the same, or the same module with
    /// debug information, of which the copy has none. Those of the process of `another_user`, who may have kept them to
    /// himself, are for the one alone who makes the copies.
    pub fn save(&self, modules: &[ModuleRecord], another_user: bool) -> Saved {
        let mut saved = Saved::default();
        let mut seen = BTreeSet::new();
        for module in modules {
            let Some(file) = &module.file else {
                // The vdso is the kernel's, and needs no file.
                if module.path.is_absolute() && seen.insert(module.path.display().to_string()) {
                    let path = module.path.display();
                    saved.warnings.push(format!("{path} was not saved: it was replaced or deleted (--save-binaries)"));
                }
                continue;
            };
            let id = module.build_id.as_deref().and_then(|id| Some((id, id.split_at_checked(2)?)));
            let Some((id, _)) = id.filter(|(_, (_, rest))| !rest.is_empty()) else {
                if seen.insert(module.path.display().to_string()) {
                    let path = module.path.display();
                    saved.warnings.push(format!(
                        "{path} was not saved: it has no build id by which to find it; link it with -Wl,--build-id \
                         (--save-binaries)"
                    ));
                }
                continue;
            };
            let name = module.path.file_name().unwrap_or(OsStr::new("module"));
            if !seen.insert(format!("{id}/{}", name.display())) {
                continue;
            }
            let done = Bytes::of_file(file)
                .map_err(|source| SaveError::Read { path: module.path.clone(), source })
                .and_then(|bytes| self.save_one(&module.path, &bytes, id, name, another_user));
            match done {
                Ok(true) => saved.present += 1,
                Ok(false) => {
                    let path = module.path.display();
                    saved.warnings.push(format!("{path} was not saved: it was rewritten meanwhile (--save-binaries)"));
                }
                Err(error) => saved.failures.push(error),
            }
        }
        saved
    }

    /// False if `bytes` are not those of build id `id` any more.
    fn save_one(
        &self,
        path: &Path,
        bytes: &[u8],
        id: &str,
        name: &OsStr,
        another_user: bool,
    ) -> Result<bool, SaveError> {
        if build_id(bytes).as_deref() != Some(id) {
            return Ok(false);
        }
        let Some((first, rest)) = id.split_at_checked(2) else { return Ok(false) };
        let in_tree = Path::new(".build-id").join(first).join(format!("{rest}.debug"));
        let place = self.folder.join(&in_tree);
        if !is_as_good(&place, bytes, id) {
            create_parent(&place)?;
            let write = |out: &mut dyn io::Write| out.write_all(bytes);
            write_file(&place, owners(), another_user, write)
                .map_err(|source| SaveError::Write { path: path.to_owned(), source })?;
        }
        let link = self.folder.join(id).join(name);
        // Follows the link: one that leads nowhere is made anew.
        if std::fs::metadata(&link).is_err() {
            create_parent(&link)?;
            let write = |source| SaveError::Write { path: path.to_owned(), source: OutputError::from(source) };
            let _ = std::fs::remove_file(&link);
            match symlink(Path::new("..").join(in_tree), &link) {
                // Another heaptrace was quicker.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(write)?,
            }
        }
        Ok(true)
    }
}

fn create_parent(path: &Path) -> Result<(), SaveError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|source| SaveError::Folder { path: folder.to_owned(), source })
}

/// Whether the file at `place` makes a copy of `bytes` there needless.
fn is_as_good(place: &Path, bytes: &[u8], id: &str) -> bool {
    let Ok(present) = Bytes::open(place) else { return false };
    if *present == *bytes {
        return true;
    }
    let Ok(elf) = Elf::parse(&present) else { return false };
    let own_has_debug_info = Elf::parse(bytes).is_ok_and(|elf| elf.sections().has_debug_info());
    elf.build_id_hex().as_deref() == Some(id) && elf.sections().has_debug_info() && !own_has_debug_info
}

fn build_id(bytes: &[u8]) -> Option<String> {
    Elf::parse(bytes).ok()?.build_id_hex()
}
