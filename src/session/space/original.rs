//! The target's memory as the program made it: without our patches.

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::breakpoints::patches::Patches;
use crate::tracer::memory::TargetMemory;
use std::ops::Range;

/// What the pure core reads a target by.
#[derive(Debug)]
pub struct OriginalMemory<'a> {
    /// What is there.
    pub memory: &'a mut TargetMemory,
    /// What of it is ours.
    pub patches: &'a Patches,
}

impl ReadMemory for OriginalMemory<'_> {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let n = self.memory.read(addr, buf);
        if let Some(read) = buf.get_mut(..n) {
            self.patches.mask(addr, read);
        }
        n
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        self.memory.touched(range)
    }

    fn holds_nothing(&mut self, at: Addr, is_file: bool) -> bool {
        self.memory.holds_nothing(at, is_file)
    }

    fn is_executable(&mut self, addr: Addr) -> Option<bool> {
        self.memory.is_executable(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::INT3;
    use crate::breakpoints::patches::Patch;
    use crate::session::space::AddressSpace;
    use crate::tracer::testing::Sleeper;

    #[test]
    fn patches_never_show_but_the_program_s_own_int3s_do() {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let mut space = AddressSpace::open(pid, pid, None, &Default::default()).unwrap();
        let at = space.image.mappings().first().map(|mapping| mapping.start);
        assert_eq!(at, None, "no maps are read yet");
        let stack = crate::tracer::procfs::initial_stack(pid).unwrap();
        let mut before = [0; 32];
        assert_eq!(space.image.original_memory().read(stack, &mut before), 32);
        let jump = Patch::new(&before[8..13], &[0xe9, 1, 2, 3, 4]).unwrap();
        space.image.code.place(&mut space.image.memory, stack.add(1), Patch::int3(before[1])).unwrap();
        space.image.code.place(&mut space.image.memory, stack.add(8), jump).unwrap();
        crate::tracer::code::write::write(&mut space.image.memory, stack.add(2), &[INT3]).unwrap();
        space.image.memory.new_stop(pid);
        let mut after = [0; 32];
        assert_eq!(space.image.memory.read(stack, &mut after), 32);
        assert_eq!(after[8..13], [0xe9, 1, 2, 3, 4]);
        space.image.original_memory().read(stack, &mut after);
        let mut expected = before;
        expected[2] = INT3;
        assert_eq!(after, expected);
        // what the program writes over a patch is the program's
        crate::tracer::code::write::write(&mut space.image.memory, stack.add(1), &[0x77]).unwrap();
        space.image.original_memory().read(stack, &mut after);
        assert_eq!(after[1], 0x77);
    }
}
