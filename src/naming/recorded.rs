//! Names that a trace has brought along.

use super::{KnownModule, KnownNames};
use crate::base::addr::ObjAddr;
use crate::profile::symbolize::{FunctionName, SymFrame};
use crate::trace::metadata::{ModuleNames, Names};
use std::path::PathBuf;
use std::sync::Arc;

impl KnownNames {
    /// Takes the names of a trace, which are not looked up any more.
    pub fn learn(&mut self, names: Names) {
        for module in names.modules {
            let path = PathBuf::from(module.path.clone());
            self.packages.insert(path.clone(), module.package.clone());
            let known = self.modules.entry((path, module.build_id.clone())).or_default();
            known.learn(&module);
        }
        self.warnings.extend(names.warnings);
        self.recorded = true;
    }
}

impl KnownModule {
    fn learn(&mut self, names: &ModuleNames) {
        let functions: Vec<FunctionName> = names
            .functions
            .iter()
            .map(|function| {
                let name: Arc<str> = function.name.as_str().into();
                let system_name = if function.system_name == function.name {
                    Arc::clone(&name)
                } else {
                    function.system_name.as_str().into()
                };
                FunctionName { name, system_name }
            })
            .collect();
        let at = |index: Option<u32>| index.and_then(|index| usize::try_from(index).ok());
        for (&addr, frames) in &names.frames {
            let frames = frames.iter().map(|frame| SymFrame {
                function: at(frame.function).and_then(|index| functions.get(index)).cloned(),
                file: at(frame.file).and_then(|index| names.files.get(index)).cloned(),
                line: frame.line,
                start_line: frame.start_line,
            });
            self.frames.insert(ObjAddr(addr), frames.collect());
        }
        self.status = names.status;
    }
}
