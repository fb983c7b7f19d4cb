//! Programs that lock all of their memory (mlockall(2)). The kernel would allocate the whole shared region then, and
//! count it against what the program may lock and against its control group's memory: the program would fail, or be
//! killed, for what is not its own.

use super::JumpEngine;
use super::fallback::Cause;
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::jump::layout::{COPY_AREA, SHARED_SIZE, STATE_FENCED, STATE_SHARED};
use crate::session::tracee::Tracee;
use crate::tracer::Result;
use crate::tracer::code::write::write_word;
use crate::tracer::jump::region;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;

impl JumpEngine {
    /// A thread stands at the entry of mlockall(2): all calls are seen at stops from here on, and all is unmapped but
    /// the cells, through which calls in progress return. Where there are other threads one may be in the routine just
    /// now: so that it does not write to what the program maps there later, the addresses stay taken by memory that
    /// nobody may access, which the kernel does not allocate. It faults there, which is met as other faults of the
    /// routine are.
    pub(in crate::session) fn make_way_for_locks(
        &mut self,
        tracee: &mut Tracee,
        thread: &Stopped,
        raw: &RawRegs,
    ) -> Result<()> {
        let Some(code) = self.on().map(|jump| jump.region.code) else { return Ok(()) };
        tracee.space.image.stop_routine()?;
        self.go_back_to_stops(tracee, Cause::Locked)?;
        let Some(shared) = tracee.space.image.memory.read_u64(code.add(STATE_SHARED)) else { return Ok(()) };
        let Some(mut caller) = tracee.space.image.caller(thread, raw.before_trap())? else { return Ok(()) };
        let (rest, size) = (Addr(shared).add(COPY_AREA), SHARED_SIZE - COPY_AREA);
        if tracee.tasks.len() == 1 {
            region::unmap(&mut caller, rest, size)?;
        } else if region::fence(&mut caller, rest, size)? {
            write_word(&mut tracee.space.image.memory, code.add(STATE_FENCED), 1)?;
        }
        Ok(())
    }
}
