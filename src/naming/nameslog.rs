//! Names as they were looked up, kept for a trace: whoever reads it then needs no binaries.

use crate::base::addr::{ModuleId, ObjAddr};
use crate::profile::symbolize::{Resolution, SymFrame, Symbolize};
use crate::trace::metadata::{FilePath, FunctionName, ModuleNames, NamedFrame, Names};
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// All names of a session.
#[derive(Debug, Default)]
pub(super) struct NamesLog {
    modules: Vec<LoggedModule>,
    /// By path and build id; both are None for code without a module.
    by_identity: FxHashMap<Identity, usize>,
    warnings: Vec<String>,
}

/// A module's path and build id.
pub(super) type Identity = (Option<PathBuf>, Option<String>);

#[derive(Debug, Default)]
struct LoggedModule {
    names: ModuleNames,
    functions: FxHashMap<FunctionName, u32>,
    files: FxHashMap<String, u32>,
}

impl NamesLog {
    /// As it stands in a trace.
    pub(super) fn into_names(self) -> Names {
        Names { modules: self.modules.into_iter().map(|module| module.names).collect(), warnings: self.warnings }
    }

    fn module(&mut self, identity: &Identity) -> Option<&mut LoggedModule> {
        let index = match self.by_identity.get(identity) {
            Some(&index) => index,
            None => {
                let (path, build_id) = identity.clone();
                let path = path.as_deref().map(FilePath::from).unwrap_or_default();
                let names = ModuleNames { path, build_id, ..ModuleNames::default() };
                self.modules.push(LoggedModule { names, ..LoggedModule::default() });
                self.by_identity.insert(identity.clone(), self.modules.len() - 1);
                self.modules.len() - 1
            }
        };
        self.modules.get_mut(index)
    }
}

impl LoggedModule {
    fn add(&mut self, addrs: &[ObjAddr], resolution: &Resolution) {
        let status = &mut self.names.status;
        status.functions |= resolution.status.functions;
        status.files |= resolution.status.files;
        status.lines |= resolution.status.lines;
        status.inlines |= resolution.status.inlines;
        for (addr, frames) in addrs.iter().zip(&resolution.frames) {
            let frames = frames.iter().map(|frame| self.frame(frame)).collect();
            self.names.frames.insert(addr.0, frames);
        }
    }

    fn frame(&mut self, frame: &SymFrame) -> NamedFrame {
        let Self { names, functions, files } = self;
        let function = frame.function.as_ref().map(|function| {
            let name = FunctionName { name: function.name.to_string(), system_name: function.system_name.to_string() };
            index_of(name, functions, &mut names.functions)
        });
        let file = frame.file.as_ref().map(|file| index_of(file.clone(), files, &mut names.files));
        NamedFrame { function, file, line: frame.line, start_line: frame.start_line }
    }
}

fn index_of<T: Clone + Eq + std::hash::Hash>(value: T, indices: &mut FxHashMap<T, u32>, all: &mut Vec<T>) -> u32 {
    *indices.entry(value).or_insert_with_key(|value| {
        all.push(value.clone());
        u32::try_from(all.len() - 1).unwrap_or(u32::MAX)
    })
}

/// Looks names up by another one, and keeps what that says.
pub(super) struct Logging<'a> {
    pub(super) inner: Box<dyn Symbolize + 'a>,
    pub(super) log: &'a mut NamesLog,
    pub(super) modules: FxHashMap<ModuleId, Identity>,
}

impl Symbolize for Logging<'_> {
    fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
        let resolution = self.inner.resolve(module, addrs);
        let identity = self.modules.get(&module).cloned().unwrap_or_default();
        if let Some(module) = self.log.module(&identity) {
            module.add(addrs, &resolution);
        }
        resolution
    }

    fn variable(&mut self, module: ModuleId, addr: ObjAddr) -> Option<(String, u64)> {
        self.inner.variable(module, addr)
    }

    fn debug_packages(&mut self, files: &[PathBuf]) -> Vec<Option<String>> {
        let packages = self.inner.debug_packages(files);
        for (file, package) in files.iter().zip(&packages) {
            let known: Vec<Identity> =
                self.log.by_identity.keys().filter(|(path, _)| path.as_ref() == Some(file)).cloned().collect();
            for identity in known {
                if let Some(module) = self.log.module(&identity) {
                    module.names.package.clone_from(package);
                }
            }
        }
        packages
    }

    fn expect(&mut self, questions: &[(ModuleId, Vec<ObjAddr>)]) {
        self.inner.expect(questions);
    }

    fn expect_packages(&mut self, files: &[PathBuf]) {
        self.inner.expect_packages(files);
    }

    fn take_warnings(&mut self) -> Vec<String> {
        let warnings = self.inner.take_warnings();
        self.log.warnings.extend(warnings.iter().cloned());
        warnings
    }
}
