//! Functions that branch back to their own first instruction.

use crate::base::addr::Addr;
use crate::breakpoints::patches::own::{flows_to_entry, loops_to_entry};
use crate::session::space::image::Image;
use crate::session::space::modules::Modules;

/// So much of a function, and of each part of it that lies elsewhere, is looked at, in bytes.
const MAX_CODE: u64 = 1 << 16;

impl Modules {
    /// The same of a function that may have no probe yet, looked up in the code.
    pub(in crate::session::space) fn find_loop_to_entry(&mut self, image: &Image, at: Addr) -> bool {
        let size = self.module(at).map_or(0, |module| {
            let mut functions = module.entries.iter().chain(module.wrappers.iter().map(|(code, _)| code));
            functions.find(|code| code.start == at).map_or(0, |code| code.end.0 - code.start.0)
        });
        self.branches_to_entry(image, at, size)
    }

    /// The same. `size`: the function's in bytes, by its symbol. Where that states none, unwind
    /// tables do, or the branches that lead on from its beginning.
    pub(in crate::session::space) fn branches_to_entry(&mut self, image: &Image, at: Addr, size: u64) -> bool {
        let described = self.unwinder.code_around(at).filter(|code| code.start == at);
        let size = match described {
            Some(code) if size <= 1 => code.end.0 - code.start.0,
            None if size <= 1 => return flows_to_entry(at, &|at, to| image.read_original(at, to)),
            _ => size,
        };
        let code = image.original_bytes(at, bounded(size));
        loops_to_entry(&code, at, &mut |target| {
            let part = self.unwinder.code_around(target)?;
            Some((part.start, image.original_bytes(part.start, bounded(part.end.0 - part.start.0))))
        })
    }
}

fn bounded(size: u64) -> usize {
    usize::try_from(size.min(MAX_CODE)).unwrap_or(0)
}
