//! What the modules of a process declare, read before it stands still.

use super::core::Core;
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
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// Debug information was left unread.
const CUT: &str = "there is more debug information than is read: some types are missing";
/// It is not known which file the program is.
const NO_PROGRAM: &str = "the program's file was not found: its types are not known";
/// Split DWARF was not found.
const WITHOUT: &str = "files (split DWARF) are missing: so are the types that they have. Keep them where they were built, or put a package made by `dwp -e PROGRAM` beside the program as PROGRAM.dwp";

/// So long the thread that reads is waited for. Its own limit is less; beyond that are files that take long to open, to sum or to unpack, and those of servers that do not answer.
const PATIENCE: Duration = Duration::from_secs(45);
/// It was longer.
const SLOW: &str = "debug information takes too long to read: types are not known";
/// It has ended without a result.
const FAILED: &str = "reading debug information has failed: types are not known";

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
    /// Reads those of process `pid`, which runs on.
    pub(super) fn of_process(pid: i32) -> Self {
        Self::aside(PATIENCE, move || {
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
        Self::aside(PATIENCE, move || Self::read(core.objects(), Path::new("/")))
    }

    /// Has `read` done on a thread of its own, which is left alone if it takes too long: the files are somebody else's, and all but types can be told without.
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
            let has_thread_locals = object.program_tls().is_some();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_or_never_ends_leaves_no_types_and_says_so() {
        let known = || Declarations { warnings: vec!["known".to_owned()], ..Declarations::default() };
        assert_eq!(Declarations::aside(PATIENCE, known).warnings, ["known"]);
        let failing = || {
            if std::hint::black_box(true) {
                std::panic::resume_unwind(Box::new(()))
            }
            Declarations::default()
        };
        assert_eq!(Declarations::aside(PATIENCE, failing).warnings, [FAILED]);
        let (hold, held) = sync_channel::<()>(1);
        let hanging = move || {
            let _ = held.recv();
            Declarations::default()
        };
        assert_eq!(Declarations::aside(Duration::from_millis(1), hanging).warnings, [SLOW]);
        drop(hold);
    }
}
