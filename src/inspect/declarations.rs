//! What the modules of a process declare, read before it stands still.

use super::core::Core;
use super::modules::{self, Object, Objects};
use super::threadlocals::{self, ThreadLocals};
use crate::base::addr::{Addr, LoadBias};
use crate::base::memory::ReadMemory;
use crate::heap::graph::declared::{Declared, Present, ThreadBlock, Variable};
use crate::symbols::Search;
use crate::symbols::declared::{Budget, DeclaredTypes, VariablePlace};
use crate::tracer::procfs;
use crate::tracer::root::TargetRoot;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// Debug information was left unread.
const CUT: &str = "there is more debug information than heaptrace reads: some types are missing";
/// It is not known which file the program is.
const NO_PROGRAM: &str = "the program's file was not found: its types are unknown";
/// Split DWARF was not found.
const WITHOUT: &str = "files (split DWARF) are missing, and their types with them. Keep the files where they were \
    built, or make a package by `dwp -e PROGRAM` and put it beside the program as PROGRAM.dwp";

/// So long the thread that reads is waited for. Its own limit is less; beyond that are files that take long to open, to
/// sum or to unpack, and those of servers that do not answer.
const TIMEOUT: Duration = Duration::from_secs(45);
/// It was longer.
const SLOW: &str = "debug information takes too long to read: types are unknown";
/// It has ended without a result.
const FAILED: &str = "reading debug information failed: types are unknown";

/// The declarations of all modules.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    pub(super) all: Declared,
    /// Which module each of their variables' modules is.
    modules: Vec<(PathBuf, LoadBias)>,
    /// Those that have thread-local variables.
    thread_locals: Vec<ThreadLocals>,
    /// What is missing, in sentences.
    pub(super) warnings: Vec<String>,
}

impl Declarations {
    /// Reads those of process `pid`, which runs on.
    pub(super) fn of_process(pid: i32) -> Self {
        Self::aside(TIMEOUT, move || {
            // who can't be read is told by those who look at it
            let Ok(mappings) = procfs::mappings(pid) else { return Self::default() };
            let objects = modules::open(pid, pid, &mappings);
            let root = TargetRoot::of(pid).map_or_else(|| PathBuf::from("/"), |root| root.path());
            Self::read(&objects, &root)
        })
    }

    /// Reads those of the modules of a core.
    pub(super) fn of_core(core: &Arc<Core>) -> Self {
        let core = Arc::clone(core);
        Self::aside(TIMEOUT, move || Self::read(core.objects(), Path::new("/")))
    }

    /// Has `read` done on a thread of its own, which is left alone if it takes too long: the files are somebody else's,
    /// and all but types can be told without.
    fn aside(patience: Duration, read: impl FnOnce() -> Self + Send + 'static) -> Self {
        let without = |why: &str| Self { warnings: vec![why.to_owned()], ..Self::default() };
        let (send, receive) = sync_channel(1);
        // nobody may be there any more to take it
        let work = move || drop(send.send(read()));
        if let Err(error) = Builder::new().name("types".to_owned()).spawn(work) {
            return without(&format!("{FAILED} (thread: {error})"));
        }
        receive.recv_timeout(patience).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => without(SLOW),
            RecvTimeoutError::Disconnected => without(FAILED),
        })
    }

    /// Reads those of these modules; `root` is their root folder.
    fn read(objects: &Objects, root: &Path) -> Self {
        let search = Search::new(&[], None, None, root.to_owned());
        let mut budget = Budget::default();
        let mut types = DeclaredTypes::default();
        let mut declared = Self::default();
        let (mut variables, mut thread_locals) = (Vec::new(), Vec::new());
        for object in &objects.found {
            let found = types.read(&object.source(), &search, &mut budget);
            let module = declared.modules.len() as u32;
            if let Some(why) = found.problem {
                declared.warnings.push(format!("{why}: types are missing"));
            }
            if found.missing > 0 {
                let (path, missing) = (object.path.display(), found.missing);
                declared.warnings.push(format!("{path}: {missing} .dwo {WITHOUT}"));
            }
            declared.modules.push((object.path.clone(), object.bias));
            let name = object.path.file_name().unwrap_or(object.path.as_os_str());
            declared.all.modules.push(name.to_string_lossy().into_owned());
            declared.thread_locals.extend(ThreadLocals::of(object, module));
            for variable in found.variables {
                let (name, of, size) = (variable.name, variable.of, types.table.size(variable.of));
                match variable.place {
                    VariablePlace::Static(at) => {
                        variables.push(Variable { start: object.bias.to_process(at), size, name, of, module });
                    }
                    VariablePlace::ThreadLocal(at) => {
                        thread_locals.push(Variable { start: Addr(at), size, name, of, module });
                    }
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

    /// Where the threads with these control blocks have thread-local variables.
    pub(super) fn thread_blocks(
        &self,
        objects: &Objects,
        threads: &[Addr],
        memory: &mut dyn ReadMemory,
    ) -> Vec<ThreadBlock> {
        threadlocals::blocks(&self.thread_locals, objects, threads, memory)
    }

    /// Those of modules that are still where they were; `blocks`: where threads have thread-local variables.
    pub(super) fn of(&self, objects: &Objects, blocks: &[ThreadBlock]) -> Present<'_> {
        let there = self
            .modules
            .iter()
            .map(|(path, bias)| objects.found.iter().any(|object| object.path == *path && object.bias == *bias));
        self.all.of_modules(there.collect(), blocks.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_or_never_ends_leaves_no_types_and_says_so() {
        let known = || Declarations { warnings: vec!["known".to_owned()], ..Declarations::default() };
        assert_eq!(Declarations::aside(TIMEOUT, known).warnings, ["known"]);
        let failing = || {
            if std::hint::black_box(true) {
                std::panic::resume_unwind(Box::new(()))
            }
            Declarations::default()
        };
        assert_eq!(Declarations::aside(TIMEOUT, failing).warnings, [FAILED]);
        let (hold, held) = sync_channel::<()>(1);
        let hanging = move || {
            let _ = held.recv();
            Declarations::default()
        };
        assert_eq!(Declarations::aside(Duration::from_millis(1), hanging).warnings, [SLOW]);
        drop(hold);
    }
}
