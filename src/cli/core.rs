//! A core file in the place of a process.

use clap::Args;
use std::path::PathBuf;

/// A core file, and where the files of its process are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreTarget {
    /// The core.
    pub core: PathBuf,
    /// The program that was executed; None: where the core says.
    pub program: Option<PathBuf>,
    /// A folder with the file system of the machine that the core is from.
    pub sysroot: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(super) struct CoreArguments {
    /// Read a core file instead of a process; PROGRAM is the executable, if it is not where the core says
    #[arg(long, value_name = "CORE", conflicts_with = "by_name")]
    core: Option<PathBuf>,

    /// The folder with the files that the core's process had mapped: a copy of that machine's file system
    #[arg(long, value_name = "DIR", requires = "core")]
    sysroot: Option<PathBuf>,
}

impl CoreArguments {
    /// The core, if one is named; `program` is what else the command line names.
    pub(super) fn target(self, program: Option<PathBuf>) -> Option<CoreTarget> {
        Some(CoreTarget { core: self.core?, program, sysroot: self.sysroot })
    }

    pub(super) const fn is_named(&self) -> bool {
        self.core.is_some()
    }
}
