//! What a change to the jump engine asks of the code of functions, looked up while the process runs: at the change
//! itself a thread stands still, and who waits for it waits for the answers.

use crate::allocators::AllocatorTable;
use crate::base::addr::Addr;
use crate::breakpoints::patches::own::{first_has_room, jumps_anywhere};
use crate::session::space::entries::JumpEntries;
use crate::session::space::image::Image;
use crate::session::space::jumps::{Candidate, MAX_CODE};
use crate::session::space::modules::Modules;

/// What the code of a function says of the ways through it.
#[derive(Clone, Debug)]
pub(in crate::session::space) struct Ways {
    /// The code that was looked at: the answers hold as long as it is the same.
    code: Vec<u8>,
    /// See [`JumpEntries::jumps_anywhere`].
    jumps_anywhere: bool,
    /// See [`Probes::loops_to_entry`](crate::session::space::probes::Probes::loops_to_entry).
    pub(in crate::session::space) loops_to_entry: bool,
}

impl JumpEntries {
    /// Looks at all functions that the jump engine may patch before the next probes are placed, after which threads
    /// stop. For processes that run already: one that is started waits for it in either case.
    pub fn look_ahead_at_entries(&mut self) {
        self.looks_ahead = true;
    }

    /// Does so, if it is wanted and was not done yet. A test counts its instructions.
    #[inline(never)]
    pub(in crate::session::space) fn look_ahead(
        &mut self,
        image: &Image,
        modules: &mut Modules,
        table: &AllocatorTable,
    ) {
        if !std::mem::take(&mut self.looks_ahead) {
            return;
        }
        let (guards, mut all) = (modules.guards_to_be(), modules.allocator_functions(table));
        for candidate in &all {
            let loops_to_entry = modules.find_loop_to_entry(image, candidate.addr);
            self.note_ways(image, candidate, loops_to_entry);
        }
        for candidate in &guards {
            self.note_ways(image, candidate, false);
        }
        all.extend(guards);
        // the answers are kept
        self.led_into(image, modules, &all);
    }

    pub(in crate::session::space) fn note_ways(&mut self, image: &Image, candidate: &Candidate, loops_to_entry: bool) {
        let size = usize::try_from(candidate.size).unwrap_or(usize::MAX);
        let code = image.original_bytes(candidate.addr, size.min(MAX_CODE));
        let jumps_anywhere = self.find_jumps_anywhere(image, &code, candidate.addr);
        self.ways.insert(candidate.addr, Ways { code, jumps_anywhere, loops_to_entry });
    }

    /// Whether the function at `at`, all of whose code is `code`, may jump to where nobody can tell, behind its first
    /// byte included. Not asked of one whose first instruction has room for a jump.
    pub(in crate::session::space) fn jumps_anywhere(&self, image: &Image, code: &[u8], at: Addr) -> bool {
        match self.ways.get(&at) {
            Some(known) if known.code == code => known.jumps_anywhere,
            _ => self.find_jumps_anywhere(image, code, at),
        }
    }

    pub(in crate::session::space) fn find_jumps_anywhere(&self, image: &Image, code: &[u8], at: Addr) -> bool {
        !first_has_room(code) && jumps_anywhere(code, at, &|at, to| image.read_original(at, to))
    }
}
