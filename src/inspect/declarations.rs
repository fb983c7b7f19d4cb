//! What the modules of a process declare, read before it stands still.

use super::modules::{self, Object, Objects};
use crate::addr::{Addr, LoadBias};
use crate::elf::Tls;
use crate::heapgraph::declared::{Declared, Present, Variable};
use crate::symbols::Search;
use crate::symbols::declared::{Budget, DeclaredTypes, VariablePlace};
use crate::tracer::procfs;
use crate::tracer::root::TargetRoot;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Debug information was left unread.
const CUT: &str = "there is more debug information than is read: some types are missing";
/// The program has none.
const NONE: &str = "has no debug information: its types are not known";
/// Nor is it known which file it is.
const NO_PROGRAM: &str = "the program's file was not found: its types are not known";
/// Split DWARF was not found.
const WITHOUT: &str = "files (split DWARF) are missing: so are the types that they have. Keep them where they were built, or put a package made by `dwp -e PROGRAM` beside the program as PROGRAM.dwp";

/// The declarations of all modules.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    pub(super) all: Declared,
    /// Which module each of their variables' modules is.
    modules: Vec<(PathBuf, LoadBias)>,
    /// What is missing, in sentences.
    pub(super) warnings: Vec<String>,
}

impl Declarations {
    /// Reads those of process `pid`, which runs on. None if it can't be read.
    pub(super) fn of_process(pid: i32) -> Option<Self> {
        let mappings = procfs::mappings(pid).ok()?;
        let objects = modules::open(pid, pid, &mappings);
        let root = TargetRoot::of(pid).map_or_else(|| PathBuf::from("/"), |root| root.path());
        Some(Self::read(&objects, &root))
    }

    /// Reads those of these modules; `root` is their root folder.
    pub(super) fn read(objects: &Objects, root: &Path) -> Self {
        let search = Search::new(&[], None, None, root.to_owned());
        let mut budget = Budget::default();
        let mut types = DeclaredTypes::default();
        let mut declared = Self::default();
        let (mut variables, mut thread_locals) = (Vec::new(), Vec::new());
        for object in &objects.found {
            let has_thread_locals = object.program_tls().is_some();
            let found = types.read(&object.source(), &search, &mut budget);
            let module = declared.modules.len() as u32;
            if !found.is_known && object.is_program() {
                declared.warnings.push(format!("{} {NONE}", object.path.display()));
            }
            if found.missing > 0 {
                let (path, missing) = (object.path.display(), found.missing);
                declared.warnings.push(format!("{path}: {missing} .dwo {WITHOUT}"));
            }
            declared.modules.push((object.path.clone(), object.bias));
            for variable in found.variables {
                let (name, of, size) = (variable.name, variable.of, types.table.size(variable.of));
                match variable.place {
                    VariablePlace::Static(at) => {
                        variables.push(Variable { start: object.bias.to_process(at), size, name, of, module });
                    }
                    VariablePlace::ThreadLocal(at) if has_thread_locals => {
                        thread_locals.push(Variable { start: Addr(at), size, name, of, module });
                    }
                    // where libraries have theirs is known to the dynamic linker only
                    VariablePlace::ThreadLocal(_) => {}
                }
            }
            let tables = found.tables.into_iter();
            declared.all.tables.extend(tables.map(|(at, of)| (object.bias.to_process(at), (of, module))));
        }
        if variables.is_empty() && !objects.found.iter().any(Object::is_program) {
            declared.warnings.push(NO_PROGRAM.to_owned());
        }
        if budget.is_cut() {
            declared.warnings.push(CUT.to_owned());
        }
        declared.all.table = types.table;
        declared.all.by_name = types.by_name;
        declared.all.add_variables(variables);
        declared.all.add_thread_locals(thread_locals);
        declared
    }

    /// Those of modules that are still where they were; `threads`: where the control blocks of threads are.
    pub(super) fn of(&self, objects: &Objects, threads: &[Addr]) -> Present<'_> {
        let there = self
            .modules
            .iter()
            .map(|(path, bias)| objects.found.iter().any(|object| object.path == *path && object.bias == *bias));
        let mut programs = objects.found.iter().filter_map(Object::program_tls);
        let blocks = match (programs.next(), programs.next()) {
            (Some(tls), None) => threads.iter().filter_map(|tcb| block_of(&tls, *tcb)).collect(),
            _ => Vec::new(),
        };
        self.all.of_modules(there.collect(), blocks)
    }
}

/// Where the thread with this control block has the program's thread-local variables: right before it (x86-64 psABI, TLS variant II), as it is linked.
fn block_of(tls: &Tls, tcb: Addr) -> Option<Range<Addr>> {
    let size = tls.image.end.checked_sub(tls.image.start)?;
    // as linkers make it; else the block begins elsewhere
    let is_aligned = tls.image.start.checked_rem(tls.align)? == 0;
    let start = tcb.0.checked_sub(size.checked_next_multiple_of(tls.align)?).filter(|_| is_aligned)?;
    Some(Addr(start)..Addr(start + size))
}
