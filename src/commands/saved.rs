//! Saved profiles: the one place that reads them, and what the offline commands write.

use super::direct::Waiter;
use super::{convert, owners, tell};
use crate::cli::{SavedFiles, Verbosity};
use crate::export::output::{Outputs, Scope};
use crate::export::{ExportOptions, Format, Source, write};
use crate::profile::Profile;
use crate::saved::import::{self, Limits};
use crate::tracer::limits;
use anyhow::Context;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The part of the free memory that one profile may take.
const PART: u64 = 2;

/// With less memory than this left besides, in bytes, no further file is added to a sum.
const MIN_MEMORY: u64 = 64 << 20;

/// How much a file that is read may take, by the memory that is free: one of `shares` parts of what all may.
pub fn memory_limits(shares: u64) -> Limits {
    let all = Limits::default();
    let free = limits::available_memory().map_or(u64::MAX, |free| free / PART);
    let memory = all.memory.min(free) / shares.max(1);
    Limits { unpacked: all.unpacked.min(memory), memory }
}

/// Whether there is memory for a sum that needs so many bytes more before it is written.
pub fn is_memory_left(needs: u64) -> bool {
    let least = needs.saturating_add(MIN_MEMORY);
    !limits::is_memory_short() && limits::available_memory().is_none_or(|left| left >= least)
}

/// Reads a saved profile, or a trace; `-` is standard input, and no trace.
///
/// # Errors
/// The file can't be read, or is no profile: the error names it.
pub fn load(path: &Path) -> anyhow::Result<Profile> {
    let is_file = path.as_os_str() != "-" && std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    if is_file && let Ok(true) = File::open(path).and_then(convert::begins_as_trace) {
        return convert::load(path);
    }
    load_within(path, &memory_limits(1))
}

/// The same within limits.
///
/// # Errors
/// As those of [`load`].
pub fn load_within(path: &Path, limits: &Limits) -> anyhow::Result<Profile> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    // Who may have put names of files there.
    let mut writer = None;
    // One byte more, so that what is too large shows.
    let most = limits.unpacked.saturating_add(1);
    let read = if path.as_os_str() == "-" {
        io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| {
            // Of a file, no more room than it needs.
            let about = file.metadata()?;
            writer = Some(about.uid());
            let length = about.len().min(most);
            bytes.reserve_exact(usize::try_from(length).unwrap_or(0));
            file.take(most).read_to_end(&mut bytes)
        })
    };
    read.with_context(|| format!("{name}: can't be read"))?;
    let mut profile = import::read(&bytes, &name, limits)?;
    profile.meta.process.users.extend(writer);
    Ok(profile)
}

/// Where an offline command writes to, checked before it reads anything.
#[derive(Debug)]
pub struct Destinations {
    outputs: Outputs,
    stdout: Option<Format>,
}

impl Destinations {
    /// Checks the outputs.
    ///
    /// # Errors
    /// One can't be written.
    pub fn prepare(files: &SavedFiles) -> anyhow::Result<Self> {
        let (stdout, files_only): (Vec<PathBuf>, Vec<PathBuf>) =
            files.outputs.iter().cloned().partition(|path| path.as_os_str() == "-");
        let outputs = Outputs::prepare(&files_only, files.format, owners())?.filled_from(Source::Run)?;
        let stdout = files.format.filter(|_| !stdout.is_empty());
        stdout.map_or(Ok(()), |format| format.can_hold(Source::Run))?;
        Ok(Self { outputs, stdout })
    }

    /// Writes the profile to all of them.
    ///
    /// # Errors
    /// Some could not be written; the others are.
    pub fn write(&self, profile: &Profile, options: &ExportOptions) -> anyhow::Result<()> {
        let outcomes = self.outputs.write(Scope::All, profile, options, &mut Waiter::new(Verbosity::Normal));
        let mut failed = 0;
        for outcome in &outcomes {
            if let Err(error) = &outcome.result {
                tell(&format!("{}: {error}", outcome.path.display()));
                failed += 1;
            }
        }
        if let Some(format) = self.stdout {
            let mut stdout = io::stdout().lock();
            match write(format, profile, options, &mut stdout).and_then(|()| stdout.flush()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(anyhow::Error::new(error).context("could not write to standard output"));
                }
                _ => {}
            }
        }
        if failed > 0 { Err(anyhow::anyhow!("not all files could be written")) } else { Ok(()) }
    }
}
