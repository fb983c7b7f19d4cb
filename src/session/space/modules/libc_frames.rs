//! Which frames of a stack are the C library's own, and hold no pointers of the program's: those that lead from the
//! entry point to main(), and those that `exit` calls. Words of dead frames lie in their gaps: of constructors, which
//! run where the start frames lie later, and of main's frame.

use crate::arch::Regs;
use crate::base::addr::{Addr, LoadBias, ModuleId, ObjAddr};
use crate::image::maps::Mapping;
use crate::session::space::OriginalMemory;
use crate::session::space::facts::in_process;
use crate::session::space::image::Image;
use crate::session::space::modules::Modules;
use crate::session::space::named::Named;
use crate::unwinder::FrameInfo;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

/// As many frames lie at most between the entry point and main, or between the entry point and `_exit` where main has
/// returned. glibc 2.36: `_start`, `__libc_start_main_impl`, `__libc_start_call_main`; `exit`, `__run_exit_handlers`.
const MAX_FRAMES: usize = 8;

/// The code of those functions, in process addresses.
#[derive(Clone, Default, Debug)]
pub(in crate::session::space) struct LibcFrames {
    /// `exit` and its kin.
    exits: Vec<Range<Addr>>,
    /// What calls main, as far as symbols tell.
    start: Vec<Range<Addr>>,
}

impl LibcFrames {
    /// Those of a module.
    pub(in crate::session::space) fn of(named: &Named, bias: LoadBias) -> Self {
        let here = |code: &[Range<ObjAddr>]| code.iter().map(|code| in_process(code, bias)).collect();
        Self { exits: here(&named.normal_exits), start: here(&named.start_code) }
    }
}

/// Where the frames that lead to main lie, by the outermost frames of a stack, innermost first; the last one is the
/// entry point's.
///
/// In a stripped libc only the outermost of its functions has a name. The others are those that follow in the same
/// module: main is not in libc, unless the program is static, and then symbols name them all or none.
fn start_frames(outermost: &VecDeque<OuterFrame>, is_start: impl Fn(Addr) -> bool) -> Option<Range<Addr>> {
    let mut inwards = outermost.iter().rev();
    let entry = inwards.next()?;
    let mut libc = ModuleId::NONE;
    let mut start = None;
    for frame in inwards {
        let is_in_libc = libc != ModuleId::NONE && frame.module == libc && libc != entry.module;
        if !is_start(frame.code) && !is_in_libc {
            break;
        }
        libc = frame.module;
        start = Some(frame.sp);
    }
    start.map(|start| start..entry.sp).filter(|frames| frames.start < frames.end)
}

/// What is looked at of a frame.
#[derive(Clone, Copy, Debug)]
struct OuterFrame {
    /// Inside the call that it is in the midst of.
    code: Addr,
    module: ModuleId,
    /// Its lowest address.
    sp: Addr,
}

impl From<&FrameInfo> for OuterFrame {
    fn from(frame: &FrameInfo) -> Self {
        Self { code: frame.addr.lookup(), module: frame.module, sp: frame.sp }
    }
}

impl Modules {
    /// Whether all frames of a thread at a function's entry lie in `stack`, the mapping of its stack pointer. Those
    /// below a signal handler on an alternate stack do not.
    pub fn stays_on_stack(&mut self, image: &mut Image, at_entry: &Regs, stack: &Mapping) -> bool {
        let (start, end) = (stack.start, stack.end);
        let mut stays = true;
        let mut memory = OriginalMemory { memory: &mut image.memory, patches: image.code.patches() };
        self.unwinder.walk(at_entry, &mut memory, true, &mut |frame| {
            stays = frame.cfa.is_none_or(|cfa| start < cfa && cfa <= end);
            if stays { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        stays
    }

    /// Of a thread at the entry of libc's `_exit`: the registers of the function that has called `exit`, if `_exit` is
    /// called by that, or by the one function in between that runs glibc's exit handlers. What lies below its stack
    /// pointer are frames of the C library, in whose gaps words of main's old frame are left.
    pub fn caller_of_exit(&mut self, image: &mut Image, at_entry: &Regs) -> Option<Regs> {
        let mut memory = OriginalMemory { memory: &mut image.memory, patches: image.code.patches() };
        let modules = &self.loaded;
        let is_exit =
            |addr: Addr| modules.iter().any(|module| module.libc_frames.exits.iter().any(|code| code.contains(&addr)));
        let mut frames = 0;
        let mut found = false;
        let caller = self.unwinder.walk(at_entry, &mut memory, true, &mut |frame| {
            frames += 1;
            found = is_exit(frame.addr.lookup());
            if found || frames == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        caller.filter(|_| found)
    }

    /// Of a process's first thread: where the frames lie that lead from the program's entry point to main, if the stack
    /// can be walked up to there. `at_entry`: the thread stands at the first instruction of a function.
    pub fn start_frames(&mut self, image: &mut Image, regs: &Regs, at_entry: bool) -> Option<Range<Addr>> {
        let mut memory = OriginalMemory { memory: &mut image.memory, patches: image.code.patches() };
        let mut outermost = VecDeque::with_capacity(MAX_FRAMES);
        let mut has_caller = true;
        self.unwinder.walk(regs, &mut memory, at_entry, &mut |frame| {
            if outermost.len() == MAX_FRAMES {
                outermost.pop_front();
            }
            outermost.push_back(OuterFrame::from(frame));
            has_caller = frame.cfa.is_some();
            ControlFlow::Continue(())
        });
        // Otherwise the walk was cut short.
        let is_entry = outermost.back().is_some_and(|frame| self.unwinder.is_initial_stack(frame.sp));
        let is_start = |addr: Addr| {
            self.loaded.iter().any(|module| module.libc_frames.start.iter().any(|code| code.contains(&addr)))
        };
        (!has_caller && is_entry).then(|| start_frames(&outermost, is_start)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: ModuleId = ModuleId(0);
    const LIBC: ModuleId = ModuleId(1);

    /// The frames from the innermost on, each 0x10 bytes large; `__libc_start_main` is at 0x100..0x110.
    fn start_frames(frames: &[(u64, ModuleId)]) -> Option<Range<Addr>> {
        let start = Addr(0x100)..Addr(0x110);
        let frames =
            (1..).zip(frames).map(|(i, &(code, module))| OuterFrame { code: Addr(code), module, sp: Addr(i << 4) });
        super::start_frames(&frames.collect(), |addr| start.contains(&addr))
    }

    #[test]
    fn the_start_frames_end_at_main() {
        let main = (0x10, PROGRAM);
        let entry = (0x20, PROGRAM);
        let unnamed = (0x180, LIBC);
        let named = (0x108, LIBC);
        assert_eq!(start_frames(&[main, unnamed, named, entry]), Some(Addr(0x20)..Addr(0x40)));
        assert_eq!(start_frames(&[main, named, entry]), Some(Addr(0x20)..Addr(0x30)));
        assert_eq!(start_frames(&[unnamed, main, unnamed, named, entry]), Some(Addr(0x30)..Addr(0x50)));
        assert_eq!(start_frames(&[unnamed, unnamed, named, entry]), Some(Addr(0x10)..Addr(0x40)), "main has returned");
    }

    #[test]
    fn a_static_programs_functions_are_known_by_name_only() {
        let (main, entry, named) = ((0x10, PROGRAM), (0x20, PROGRAM), (0x108, PROGRAM));
        assert_eq!(start_frames(&[main, named, entry]), Some(Addr(0x20)..Addr(0x30)));
        assert_eq!(start_frames(&[main, main, entry]), None);
    }

    #[test]
    fn frames_that_do_not_lead_to_main_are_the_programs() {
        let entry = (0x20, PROGRAM);
        assert_eq!(start_frames(&[(0x10, PROGRAM), (0x180, LIBC), entry]), None, "an entry point of the program's own");
        assert_eq!(start_frames(&[entry]), None);
        assert_eq!(start_frames(&[]), None);
    }
}
