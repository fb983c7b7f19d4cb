//! What the modules of a process declare, read before it stands still.

use super::modules::{self, Objects};
use crate::addr::LoadBias;
use crate::heapgraph::declared::{Declared, Variable};
use crate::symbols::Search;
use crate::symbols::declared::{Budget, DeclaredTypes, VariablePlace};
use crate::tracer::procfs;
use crate::tracer::root::TargetRoot;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The declarations of all modules.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    pub(super) all: Declared,
    /// Which module each of their variables' modules is.
    modules: Vec<(PathBuf, LoadBias)>,
    /// Whether debug information was left unread: there is too much of it.
    pub(super) is_cut: bool,
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
        let mut variables = Vec::new();
        for object in &objects.found {
            let found = types.read(&object.source(), &search, &mut budget);
            let module = declared.modules.len() as u32;
            declared.modules.push((object.path.clone(), object.bias));
            for variable in found.variables {
                let VariablePlace::Static(at) = variable.place else { continue };
                let (name, of) = (variable.name, variable.of);
                variables.push(Variable {
                    start: object.bias.to_process(at),
                    size: types.table.size(of),
                    name,
                    of,
                    module,
                });
            }
            let tables = found.tables.into_iter();
            declared.all.tables.extend(tables.map(|(at, of)| (object.bias.to_process(at), of)));
        }
        declared.is_cut = budget.is_over();
        declared.all.table = types.table;
        declared.all.by_name = types.by_name;
        declared.all.add_variables(variables);
        declared
    }

    /// Those of modules that are still where they were.
    pub(super) fn of(&self, objects: &Objects) -> Cow<'_, Declared> {
        let is_there = |(path, bias): &(PathBuf, LoadBias)| {
            objects.found.iter().any(|object| object.path == *path && object.bias == *bias)
        };
        if self.modules.iter().all(is_there) {
            return Cow::Borrowed(&self.all);
        }
        let mut left = self.all.clone();
        left.keep_modules(|module| self.modules.get(module as usize).is_some_and(is_there));
        Cow::Owned(left)
    }
}
