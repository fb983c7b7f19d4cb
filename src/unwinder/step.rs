//! One frame of a walk: the rule of its address, and what that rule says of its caller.

use super::rule::{Cpu, Rule, Step};
use super::window::StackWindow;
use super::{FrameAddr, MAX_SIGNAL_FRAMES, Unwinder, ends, epilogue};
use crate::arch::{Regs, reg};
use crate::base::addr::{Addr, ModuleId};
use crate::base::memory::ReadMemory;

/// Where a walk stands.
pub(super) struct Cursor {
    pub(super) cpu: Cpu,
    /// How many more signal frames may be passed.
    signal_frames: u32,
}

/// What follows a frame.
pub(super) enum Next {
    /// Its caller, whose registers the [`Cursor`] now holds.
    Caller {
        addr: FrameAddr,
        guessed: bool,
    },
    Outermost,
    /// Taken for the outermost frame, without CFI that says so.
    GuessedOutermost,
    /// The walk can't go on.
    Lost,
}

impl Unwinder {
    /// The rule and module of a frame, from the cache or the module's CFI.
    pub(super) fn rule<M>(&mut self, addr: FrameAddr, stack: &mut StackWindow<'_, M>) -> (Rule, ModuleId)
    where
        M: ReadMemory + ?Sized,
    {
        let lookup = addr.lookup();
        if let Some(&known) = self.rules.get(&lookup) {
            return known;
        }
        if let Some(planted) = self.planted(addr, stack) {
            return planted;
        }
        // code may be mapped anywhere later on, so what has no module is not remembered
        let Some(id) = self.module_of(lookup) else {
            let rule = if ends::may_be_called(addr, stack) { Rule::NoModule } else { Rule::Stray };
            return (rule, ModuleId::NONE);
        };
        let Some(module) = self.modules.get_mut(&id) else { return (Rule::NoModule, ModuleId::NONE) };
        let object = module.module().bias.to_object(lookup);
        let derived = module.derive(object, &mut self.context, &mut self.rows);
        let rule = derived.map(|rule| rule.trusted(addr, module, stack)).unwrap_or_else(|| {
            if module.module().debug_frame.is_none() && self.told_uncovered.insert(id) {
                self.uncovered.push(id);
            }
            if ends::is_sigreturn_at(addr.raw(), stack) {
                Rule::SignalFrame
            } else if module.is_start_code(object) {
                Rule::Outermost
            } else if module.has_cfi() && ends::is_no_return(addr, stack) {
                Rule::Planted { described: false }
            } else {
                let is_called = module.has_cfi() && matches!(addr, FrameAddr::Return(_));
                let told = is_called.then(|| epilogue::rule(addr.raw(), stack)).flatten();
                told.unwrap_or(Rule::NoCfi { object_file: module.has_cfi() })
            }
        });
        self.rules.insert(lookup, (rule, id));
        (rule, id)
    }

    /// Goes from a frame to its caller.
    #[inline]
    pub(super) fn next<M>(&mut self, rule: Rule, cursor: &mut Cursor, stack: &mut StackWindow<'_, M>) -> Next
    where
        M: ReadMemory + ?Sized,
    {
        let cpu = &mut cursor.cpu;
        let sp = cpu.sp();
        match rule.execute(&self.rows, cpu, stack) {
            Step::Caller => {}
            Step::Outermost => return Next::Outermost,
            Step::GuessedOutermost => return Next::GuessedOutermost,
            Step::NoCfi => return self.by_frame_pointer(rule, cpu, stack),
            Step::Failed => return Next::Lost,
        }
        if cpu.pc == 0 {
            return Next::Outermost;
        }
        if rule.is_signal_frame() {
            // interrupted, not calling; and the handler may have run on a stack of its own
            let Some(left) = cursor.signal_frames.checked_sub(1) else { return Next::Lost };
            cursor.signal_frames = left;
            return Next::Caller { addr: FrameAddr::Instruction(Addr(cpu.pc)), guessed: false };
        }
        if cpu.sp() <= sp {
            return Next::Lost;
        }
        Next::Caller { addr: FrameAddr::Return(Addr(cpu.pc)), guessed: false }
    }
}

impl Cursor {
    pub(super) fn new(regs: &Regs) -> Self {
        Self { cpu: Cpu::from(regs), signal_frames: MAX_SIGNAL_FRAMES }
    }

    /// The frame that a walk begins with; None if not even the return address can be read.
    pub(super) fn first_frame<M>(&mut self, at_entry: bool, stack: &mut StackWindow<'_, M>) -> Option<FrameAddr>
    where
        M: ReadMemory + ?Sized,
    {
        let cpu = &mut self.cpu;
        if !at_entry {
            return Some(FrameAddr::Instruction(Addr(cpu.pc)));
        }
        cpu.pc = stack.word(cpu.sp())?;
        cpu.gpr[reg::RSP] = cpu.sp().wrapping_add(8);
        (cpu.pc != 0).then_some(FrameAddr::Return(Addr(cpu.pc)))
    }
}
