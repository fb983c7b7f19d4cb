//! The target's memory as the program made it: without our breakpoints.

use super::AddressSpace;
use crate::addr::Addr;
use crate::breakpoints::BreakpointTable;
use crate::memory::ReadMemory;
use crate::tracer::memory::TargetMemory;
use std::ops::Range;

/// What the pure core reads a target by.
#[derive(Debug)]
pub struct OriginalMemory<'a> {
    /// What is there.
    pub memory: &'a mut TargetMemory,
    /// What of it is ours.
    pub breakpoints: &'a BreakpointTable,
}

impl ReadMemory for OriginalMemory<'_> {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let n = self.memory.read(addr, buf);
        if let Some(read) = buf.get_mut(..n) {
            self.breakpoints.mask(addr, read);
        }
        n
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        self.memory.touched(range)
    }
}

impl AddressSpace {
    /// The memory, to read meanwhile.
    pub const fn original_memory(&mut self) -> OriginalMemory<'_> {
        OriginalMemory { memory: &mut self.memory, breakpoints: &self.breakpoints }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Sleeper;
    use super::*;
    use crate::arch::INT3;
    use crate::breakpoints::{Purpose, Site};

    /// A child that never ran this code is read: its bytes are ours, but for what is written to it.
    #[test]
    fn breakpoints_never_show_but_the_program_s_own_int3s_do() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let mut space = AddressSpace::open(pid, pid, None, &Default::default()).unwrap();
        let at = space.mappings().first().map(|mapping| mapping.start);
        assert_eq!(at, None, "no maps are read yet");
        let stack = crate::tracer::procfs::initial_stack(pid).unwrap();
        let mut before = [0; 16];
        assert_eq!(space.original_memory().read(stack, &mut before), 16);
        let site = || {
            let planned = crate::arch::step::plan(&[0x55], stack).unwrap();
            Ok::<_, std::convert::Infallible>(Site {
                original: before[1],
                planned,
                module: crate::addr::ModuleId::NONE,
            })
        };
        let Ok(_) = space.breakpoints.add(stack.add(1), Purpose::Return, site);
        space.memory.write_code(stack.add(1), &[INT3]).unwrap();
        space.memory.write_code(stack.add(2), &[INT3]).unwrap();
        space.memory.new_stop(pid);
        let mut after = [0; 16];
        space.original_memory().read(stack, &mut after);
        let mut expected = before;
        expected[2] = INT3;
        assert_eq!(after, expected);
        // what the program writes over a breakpoint is the program's
        space.memory.write_code(stack.add(1), &[0x77]).unwrap();
        space.original_memory().read(stack, &mut after);
        assert_eq!(after[1], 0x77);
    }
}
