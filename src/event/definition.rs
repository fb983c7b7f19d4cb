//! What events name by a number: told to the readers of a stream before the first event that does.

use crate::base::addr::{Addr, FunctionId, LoadBias, ModuleId, StackId, TestId};
use crate::unwinder::StackNode;
use std::path::Path;

/// Something that events refer to. All is of the image that the stream is in.
#[derive(Clone, Copy, Debug)]
pub enum Definition<'a> {
    /// What the process is now: at its beginning, and after an exec.
    Process(ProcessDefinition<'a>),
    /// An object file has come to the process's memory.
    Module(ModuleDefinition<'a>),
    /// A stack; its parent was told before. A forked child has those of its parent.
    Stack {
        /// Its id.
        id: StackId,
        /// What it consists of.
        node: StackNode,
    },
    /// A test of the program. A forked child has those of its parent.
    Test {
        /// Its id.
        id: TestId,
        /// Its name, as its framework has it.
        name: &'a str,
    },
}

/// See [`Definition::Process`].
#[derive(Clone, Copy, Debug)]
pub struct ProcessDefinition<'a> {
    /// The process that made it, if others are followed.
    pub parent: Option<i32>,
    /// The name of the program that it executes.
    pub program: &'a str,
    /// Its command line.
    pub command: &'a [String],
    /// The working directory that it began with.
    pub cwd: &'a Path,
}

/// See [`Definition::Module`].
#[derive(Clone, Copy, Debug)]
pub struct ModuleDefinition<'a> {
    /// Its id.
    pub id: ModuleId,
    /// The path as the process sees it.
    pub path: &'a Path,
    /// The build id, lower-case hex.
    pub build_id: Option<&'a str>,
    /// First address of the executable segment.
    pub start: Addr,
    /// One past its last address.
    pub end: Addr,
    /// The file's offset that `start` maps.
    pub file_offset: u64,
    /// From object to process addresses.
    pub bias: LoadBias,
    /// Whether it is the main program.
    pub is_program: bool,
    /// The allocator functions that are probed in it, as far as that is known.
    pub probed: &'a [FunctionId],
}
