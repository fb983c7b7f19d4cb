//! What turns addresses into names, as the profile's builder sees it.

use super::SymbolStatus;
use crate::base::addr::{ModuleId, ObjAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// A function's name. Many addresses share it, and it may be long.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FunctionName {
    /// For people: demangled, with C++ parameters, without hashes, versions and clone suffixes.
    pub name: Arc<str>,
    /// As in the symbol table.
    pub system_name: Arc<str>,
}

/// One function at an address.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SymFrame {
    /// Its name; None if only the line is known.
    pub function: Option<FunctionName>,
    /// The source file of the address, or of the call for a frame into which others are inlined.
    pub file: Option<String>,
    /// The line in that file; 0 if unknown.
    pub line: u32,
    /// The line of the function's declaration; 0 if unknown.
    pub start_line: u32,
}

/// The lines of scripts in the stacks of a session, by their numbers ([`crate::base::addr::Addr::script`]).
pub type ScriptNames = Arc<Vec<SymFrame>>;

/// What is known about addresses of a module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolution {
    /// For each address, in the order of the question: its frames, innermost first; all but the last are inlined. Empty
    /// if nothing is known.
    pub frames: Vec<Vec<SymFrame>>,
    /// The kinds of information that were found.
    pub status: SymbolStatus,
}

/// Addresses of a module, in ascending order, whose names are wanted.
pub type Question = (ModuleId, Vec<ObjAddr>);

/// Knows the names of addresses.
pub trait Symbolize {
    /// Resolves `addrs` (ascending look-up addresses: return addresses less one) of `module`. The answer has one entry
    /// for each. [`ModuleId::NONE`]: code that was made at run time, by its address in the process.
    fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution;

    /// The variable of `module` that `addr` lies in, demangled, and how many bytes behind its start.
    fn variable(&mut self, module: ModuleId, addr: ObjAddr) -> Option<(String, u64)> {
        let _ = (module, addr);
        None
    }

    /// For each of these files, as the process calls them, the package that would bring its debug information.
    fn debug_packages(&mut self, files: &[PathBuf]) -> Vec<Option<String>> {
        vec![None; files.len()]
    }

    /// Says what [`Self::resolve`] will be asked next, with exactly these addresses: a look may begin.
    fn expect(&mut self, questions: &[Question]) {
        let _ = questions;
    }

    /// Says that [`Self::debug_packages`] will be asked for some of these files: a look may begin.
    fn expect_packages(&mut self, files: &[PathBuf]) {
        let _ = files;
    }

    /// Sentences about what went wrong since the last call.
    fn take_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Knows nothing: for `--no-symbolize`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Symbolize for NoSymbols {
    fn resolve(&mut self, _: ModuleId, addrs: &[ObjAddr]) -> Resolution {
        Resolution { frames: vec![Vec::new(); addrs.len()], status: SymbolStatus::default() }
    }
}
