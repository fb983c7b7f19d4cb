//! Lines of scripts, which have their names from the interpreter that ran them.

use crate::base::addr::{Addr, ModuleId, ObjAddr};
use crate::profile::symbolize::{Resolution, ScriptNames, Symbolize};
use std::path::PathBuf;

/// Knows the lines of scripts in the stacks of a session; another one knows the rest.
pub(super) struct Scripted<'a> {
    pub(super) inner: Box<dyn Symbolize + 'a>,
    pub(super) names: ScriptNames,
}

impl Symbolize for Scripted<'_> {
    fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
        if module != ModuleId::NONE || self.names.is_empty() {
            return self.inner.resolve(module, addrs);
        }
        let name_of = |addr: &ObjAddr| self.names.get(usize::try_from(Addr(addr.0).script()?).ok()?);
        let names: Vec<_> = addrs.iter().map(|addr| name_of(addr).cloned()).collect();
        let others: Vec<ObjAddr> =
            addrs.iter().zip(&names).filter(|(_, name)| name.is_none()).map(|(addr, _)| *addr).collect();
        let Resolution { frames, status } = match others.is_empty() {
            true => Resolution::default(),
            false => self.inner.resolve(module, &others),
        };
        let mut frames = frames.into_iter();
        let frames = names.into_iter().map(|name| match name {
            Some(name) => vec![name],
            None => frames.next().unwrap_or_default(),
        });
        Resolution { frames: frames.collect(), status }
    }

    fn variable(&mut self, module: ModuleId, addr: ObjAddr) -> Option<(String, u64)> {
        self.inner.variable(module, addr)
    }

    fn debug_packages(&mut self, files: &[PathBuf]) -> Vec<Option<String>> {
        self.inner.debug_packages(files)
    }

    fn expect(&mut self, questions: &[(ModuleId, Vec<ObjAddr>)]) {
        self.inner.expect(questions);
    }

    fn expect_packages(&mut self, files: &[PathBuf]) {
        self.inner.expect_packages(files);
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.inner.take_warnings()
    }
}
