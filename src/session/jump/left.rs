//! Regions that an earlier heaptrace has left in the process: threads that were in calls at its end return through them. They are given back once no
//! thread needs them any more, so that their number does not grow.

use super::standstill::Standing;
use crate::addr::Addr;
use crate::jump::layout::{CELL_FRAMES, CELLS, CODE_SIZE, FRAME_SIZE, FRAME_SLOT, FRAMES, cell_at};
use crate::memory::ReadMemory;
use crate::session::process::Process;
use crate::session::space::LeftRegion;
use crate::tracer::Result;
use crate::tracer::jump::region;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

impl Process {
    /// `thread` has stopped, and all threads are where `standing` says: gives back what nobody needs. `resume`: where the thread goes on.
    pub(super) fn give_back_left_regions(
        &mut self,
        thread: &Stopped,
        resume: RawRegs,
        standing: &[Standing],
    ) -> Result<()> {
        for left in self.space.left_regions(thread.tid())? {
            if self.is_needed(&left, standing) {
                continue;
            }
            if let Some(mut caller) = self.space.caller(thread, resume)? {
                region::give_back(&mut caller, left.code, left.shared)?;
            }
        }
        Ok(())
    }

    fn is_needed(&mut self, left: &LeftRegion, standing: &[Standing]) -> bool {
        let code = left.code.0..left.code.0 + CODE_SIZE;
        let ranges = std::slice::from_ref(&code);
        if standing.iter().any(|one| code.contains(&one.pc.0) || self.returns_to_any_of(one, ranges)) {
            return true;
        }
        // A handler on a stack of its own may have interrupted a call.
        let frames =
            (0..CELLS).flat_map(|cell| (0..FRAMES).map(move |frame| cell_at(cell) + CELL_FRAMES + frame * FRAME_SIZE));
        frames.into_iter().any(|frame| {
            let slot = self.space.memory.read_u64(left.shared.add(frame + FRAME_SLOT)).filter(|slot| *slot != 0);
            let returns_to = slot.and_then(|slot| self.space.memory.read_u64(Addr(slot)));
            returns_to.is_some_and(|to| code.contains(&to))
        })
    }
}
