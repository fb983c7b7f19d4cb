//! A module of a program, as it is remembered after the program has ended.

use crate::base::addr::{Addr, FunctionId, LoadBias, ModuleId};
use crate::event::ModuleDefinition;
use crate::symbols::{FileVersion, ModuleMemory};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// A module that was loaded at some time.
#[derive(Clone, Debug)]
pub struct ModuleRecord {
    /// Identity: stacks refer to it.
    pub id: ModuleId,
    /// The path as the target sees it, or `[vdso]`.
    pub path: PathBuf,
    /// The build id, lower-case hex.
    pub build_id: Option<String>,
    /// First process address of the executable segment.
    pub start: Addr,
    /// One past its last process address.
    pub end: Addr,
    /// File offset that `start` maps.
    pub file_offset: u64,
    /// From object to process addresses.
    pub bias: LoadBias,
    /// The file, opened while it was certain to be the one that is mapped.
    pub file: Option<Arc<File>>,
    /// What it was then.
    pub version: Option<FileVersion>,
    /// The bytes in memory, where no file holds them: the vdso, a deleted library.
    pub memory: Option<ModuleMemory>,
    /// Whether it is the main program.
    pub is_program: bool,
    /// The allocator functions probed in it.
    pub probed: Vec<FunctionId>,
}

impl ModuleRecord {
    /// What readers of events get of it.
    pub(super) fn definition(&self) -> ModuleDefinition<'_> {
        ModuleDefinition {
            id: self.id,
            path: &self.path,
            build_id: self.build_id.as_deref(),
            start: self.start,
            end: self.end,
            file_offset: self.file_offset,
            bias: self.bias,
            is_program: self.is_program,
            probed: &self.probed,
        }
    }
}
