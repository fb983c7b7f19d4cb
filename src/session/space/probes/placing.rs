//! Single breakpoints: placed, with the purposes that they have, and taken away.

use crate::allocators::AllocatorTable;
use crate::arch::step::{MAX_INSTRUCTION_LEN, StepOver, plan};
use crate::base::addr::Addr;
use crate::breakpoints::patches::Patch;
use crate::breakpoints::{Breakpoint, Purpose, Purposes};
use crate::session::space::breakpoints::{Helper, Placed};
use crate::session::space::entries::JumpEntries;
use crate::session::space::image::Image;
use crate::session::space::jumps::Candidate;
use crate::session::space::modules::Modules;
use crate::session::space::probes::Probes;
use crate::tracer::Result;
use crate::tracer::code::write::Threads;

impl Probes {
    /// Places a breakpoint, or adds a purpose to the one that is there.
    pub(in crate::session::space) fn place(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        addr: Addr,
        purpose: Purpose,
        helper: Option<&Helper<'_>>,
    ) -> Result<Placed> {
        if self.breakpoints.add(addr, purpose) {
            return Ok(Placed::Done(()));
        }
        if !image.may_patch(modules, addr, helper)? {
            return Ok(Placed::Impossible);
        }
        let code = image.original_bytes(addr, MAX_INSTRUCTION_LEN);
        let Some(&original) = code.first() else { return Ok(Placed::Impossible) };
        let planned = match plan(&code, addr) {
            Ok(planned) => planned,
            Err(error) => {
                tracing::debug!("{error}");
                return Ok(Placed::Impossible);
            }
        };
        let pad = match planned.step {
            StepOver::Emulate(_) => None,
            StepOver::Pad => match image.write_pad(modules, addr, helper)? {
                Placed::Done(pad) => Some(pad),
                Placed::Impossible => return Ok(Placed::Impossible),
                Placed::NoRoom => return Ok(Placed::NoRoom),
            },
        };
        // Without it, nobody could tell later that the breakpoint is ours: see `guardian::orphan`.
        image.code.remote_call(&mut image.memory)?;
        image.code.place(&mut image.memory, addr, Patch::int3(original))?;
        self.breakpoints.insert(addr, Breakpoint::new(planned, pad, purpose));
        Ok(Placed::Done(()))
    }

    /// Takes one purpose from a breakpoint, and the breakpoint away with its last.
    pub(in crate::session::space) fn take_away(
        &mut self,
        image: &mut Image,
        addr: Addr,
        which: impl Fn(&Purposes) -> Option<Purpose>,
    ) -> Result<()> {
        let purpose = self.breakpoints.get(addr).and_then(|breakpoint| which(&breakpoint.purposes));
        if purpose.is_some_and(|purpose| !self.breakpoints.remove_purpose(addr, purpose)) {
            return self.lift(image, addr);
        }
        Ok(())
    }

    /// Takes one breakpoint away for good.
    pub fn lift(&mut self, image: &mut Image, addr: Addr) -> Result<()> {
        image.code.lift(&mut image.memory, addr)?;
        // Not before: what fails here must be known to whoever tries again.
        self.breakpoints.remove(addr);
        Ok(())
    }

    /// The functions that could be wrapped.
    pub fn jump_candidates(&self, modules: &Modules, table: &AllocatorTable) -> Vec<Candidate> {
        let mut functions = modules.allocator_functions(table);
        functions.retain(|one| self.breakpoints.get(one.addr).is_some_and(|at| at.purposes.entry.is_some()));
        functions
    }

    pub(in crate::session::space) fn lift_jumps(&mut self, image: &mut Image, threads: Threads) -> Result<()> {
        for addr in image.code.lift_jumps(&mut image.memory, threads)? {
            self.breakpoints.remove(addr);
        }
        Ok(())
    }

    /// Whether the allocator function at `at`, which has a probe, branches back to its first instruction. The answer is
    /// kept with the probe.
    pub fn loops_to_entry(&mut self, image: &Image, modules: &mut Modules, entries: &JumpEntries, at: Addr) -> bool {
        let known = self.breakpoints.get(at).and_then(|breakpoint| breakpoint.loops_to_entry);
        known.unwrap_or_else(|| {
            let ahead = entries.ways.get(&at).map(|ways| ways.loops_to_entry);
            let loops = ahead.unwrap_or_else(|| modules.find_loop_to_entry(image, at));
            if let Some(breakpoint) = self.breakpoints.get_mut(at) {
                breakpoint.loops_to_entry = Some(loops);
            }
            loops
        })
    }
}
