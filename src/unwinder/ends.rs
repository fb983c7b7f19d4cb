//! How a walk goes on, or ends, where no CFI tells it: by frame pointers, at the code that starts a program, and at
//! return addresses that no call has left behind.

use super::cfi::ModuleCfi;
use super::rule::Cpu;
use super::rule::{self, Base, Rule};
use super::step::Next;
use super::switching::has_switched;
use super::window::StackWindow;
use super::{FrameAddr, Unwinder};
use crate::arch::{INT3, reg};
use crate::base::addr::{Addr, ModuleId};
use crate::base::memory::ReadMemory;

/// A frame pointer further than this from the stack pointer is not believed, in bytes: the usual limit of a stack.
const MAX_FRAME: u64 = 8 << 20;
/// The frames of a C library's start code, from the entry point to the call of main(), take no more than this, in
/// bytes.
const MAX_START_FRAMES: u64 = 512;
/// The longest indirect call: REX, opcode, ModRM, SIB, 32-bit displacement; and one prefix (bnd, notrack).
const MAX_CALL: usize = 8;

impl Unwinder {
    /// The caller by the chain of frame pointers, if the chain looks like one: rbp points into the stack above rsp,
    /// to a saved rbp and a return address into known code.
    #[cold]
    pub(super) fn by_frame_pointer<M>(&mut self, rule: Rule, cpu: &mut Cpu, stack: &mut StackWindow<'_, M>) -> Next
    where
        M: ReadMemory + ?Sized,
    {
        let Rule::NoCfi { object_file } = rule else { return Next::Lost };
        let frame_pointer = cpu.gpr[reg::RBP];
        // the System V ABI (3.4.1): the outermost frame is marked by a null frame pointer; start code does so
        if frame_pointer == 0 && object_file {
            return Next::GuessedOutermost;
        }
        if let Some((pc, sp)) = self.caller_in_start_code(cpu.sp(), stack) {
            cpu.gpr[reg::RSP] = sp;
            cpu.pc = pc;
            return Next::Caller { addr: FrameAddr::Return(Addr(pc)), guessed: true };
        }
        let plausible = frame_pointer.is_multiple_of(8)
            && frame_pointer.checked_sub(cpu.sp()).is_some_and(|above| above <= MAX_FRAME);
        if !plausible {
            return Next::Lost;
        }
        let (Some(saved), Some(pc)) = (stack.word(frame_pointer), stack.word(frame_pointer.wrapping_add(8))) else {
            return Next::Lost;
        };
        if self.module_of(FrameAddr::Return(Addr(pc)).lookup()).is_none() {
            return Next::Lost;
        }
        cpu.gpr[reg::RBP] = saved;
        cpu.gpr[reg::RSP] = frame_pointer.wrapping_add(16);
        cpu.pc = pc;
        Next::Caller { addr: FrameAddr::Return(Addr(pc)), guessed: true }
    }

    /// The return address and stack pointer of the caller, for a frame without CFI right below the program's initial
    /// stack pointer: the next return address on the stack, if all up to that of the entry point are in code without
    /// CFI too.
    ///
    /// musl has no CFI for its start code, and uses the frame pointer there for other things.
    fn caller_in_start_code<M>(&mut self, sp: u64, stack: &mut StackWindow<'_, M>) -> Option<(u64, u64)>
    where
        M: ReadMemory + ?Sized,
    {
        let Addr(top) = self.initial_sp?;
        if top.checked_sub(sp)? > MAX_START_FRAMES {
            return None;
        }
        let mut caller = None;
        for at in (sp..top).step_by(8) {
            let pc = stack.word(at)?;
            let addr = FrameAddr::Return(Addr(pc));
            if self.module_of(addr.lookup()).is_none() || is_no_return(addr, stack) {
                continue;
            }
            let found = *caller.get_or_insert((pc, at.wrapping_add(8)));
            match self.rule(addr, stack).0 {
                Rule::Outermost => return Some(found),
                Rule::NoCfi { .. } => {}
                _ => return None,
            }
        }
        None
    }

    /// The rule of a return address at the first instruction of a function, if no call stands before it: somebody has
    /// put it on the stack by hand. Such is the function that a new context returns to (makecontext's
    /// `__start_context`), and a signal trampoline. What CFI covers the byte before it is another function's.
    pub(super) fn planted<M>(&mut self, addr: FrameAddr, stack: &mut StackWindow<'_, M>) -> Option<(Rule, ModuleId)>
    where
        M: ReadMemory + ?Sized,
    {
        let FrameAddr::Return(raw) = addr else { return None };
        let id = self.module_of(raw)?;
        let module = self.modules.get_mut(&id)?;
        if !module.begins_function(module.module().bias.to_object(raw)) || !is_no_return(addr, stack) {
            return None;
        }
        let rule = if is_sigreturn_at(raw, stack) { Rule::SignalFrame } else { Rule::Planted { described: true } };
        Some((rule, id))
    }
}

/// Whether the code at `addr` is a signal handler's way back to the kernel.
pub(super) fn is_sigreturn_at<M: ReadMemory + ?Sized>(addr: Addr, stack: &mut StackWindow<'_, M>) -> bool {
    let mut code = [0; 9];
    let n = stack.read(addr, &mut code);
    code.get(..n).is_some_and(rule::is_sigreturn)
}

/// Below this no code is mapped: the least that Linux lets programs map by default (vm.mmap_min_addr).
const LOWEST: Addr = Addr(1 << 16);

/// Whether a call may return to `addr`, which belongs to no module that is known: it is executable, and a call stands
/// before it. A word of data that was taken for a return address leads elsewhere, mostly to other data; the bytes
/// before it look like a call one time in 40. What can't be told is taken for code.
pub(super) fn may_be_called<M: ReadMemory + ?Sized>(addr: FrameAddr, stack: &mut StackWindow<'_, M>) -> bool {
    addr.raw() >= LOWEST && !is_no_return(addr, stack) && stack.is_executable(addr.lookup()) != Some(false)
}

impl Rule {
    /// The rule that CFI gives for the frame at `addr` of `module`, or what is to be said instead: no call returns
    /// there, or its function goes on
    /// on another stack.
    #[cold]
    pub(super) fn trusted<M>(self, addr: FrameAddr, module: &mut ModuleCfi, stack: &mut StackWindow<'_, M>) -> Self
    where
        M: ReadMemory + ?Sized,
    {
        let bias = module.module().bias;
        if self.is_signal_frame() || self == Self::Outermost {
            return self;
        }
        if is_no_return(addr, stack) {
            // one byte behind a function's beginning is what goroutines return to at their end: their first frame, made
            // by hand
            let is_made = module.begins_function(bias.to_object(addr.lookup()));
            return if is_made { Self::Planted { described: true } } else { Self::Stray };
        }
        let by_stack_pointer = matches!(self, Self::Compact { base: Base::Rsp, .. } | Self::Row { .. });
        let start = if by_stack_pointer { module.start_by_debug_frame(bias.to_object(addr.lookup())) } else { None };
        match start {
            Some(start) if has_switched(bias.to_process(start), addr.lookup(), stack) => Self::OtherStack,
            _ => self,
        }
    }
}

/// Whether it is certain that no call returns to `addr`. Unreadable code may hold one, and so may a breakpoint.
pub(super) fn is_no_return<M: ReadMemory + ?Sized>(addr: FrameAddr, stack: &mut StackWindow<'_, M>) -> bool {
    let FrameAddr::Return(raw) = addr else { return false };
    let mut code = [0; MAX_CALL];
    let n = stack.read(raw.sub(MAX_CALL as u64), &mut code);
    n == code.len() && !may_end_in_call(&code)
}

/// Whether the last bytes can be a call instruction: `call rel32` (E8), or `call r/m64` (FF /2).
fn may_end_in_call(code: &[u8; MAX_CALL]) -> bool {
    let from_end = |back: usize| code.len().checked_sub(back).and_then(|at| code.get(at..)).unwrap_or_default();
    if code.contains(&INT3) || from_end(5).first() == Some(&0xe8) {
        return true;
    }
    (2..=7).any(|length| match from_end(length) {
        [0xff, modrm, rest @ ..] if modrm >> 3 & 7 == 2 => {
            let (mode, base) = (modrm >> 6, modrm & 7);
            let sib = usize::from(mode != 3 && base == 4);
            let displacement = match (mode, base, rest.first()) {
                (1, ..) => 1,
                (2, ..) | (0, 5, _) => 4,
                (0, 4, Some(sib)) if sib & 7 == 5 => 4,
                _ => 0,
            };
            rest.len() == sib + displacement
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that GNU as gives for the instructions named.
    #[test]
    fn calls_are_told_by_their_last_bytes() {
        let ends_in = |bytes: &[u8]| {
            let mut code = [0x90; MAX_CALL];
            code[MAX_CALL - bytes.len()..].copy_from_slice(bytes);
            may_end_in_call(&code)
        };
        for call in [
            &[0xe8, 0xc0, 0xdb, 0xfc, 0xff][..],               // call rel32
            &[0xff, 0xd0],                                     // call *%rax
            &[0x41, 0xff, 0xd4],                               // call *%r12
            &[0xff, 0x10],                                     // call *(%rax)
            &[0xff, 0x50, 0x18],                               // call *0x18(%rax)
            &[0xff, 0x90, 0x00, 0x01, 0x00, 0x00],             // call *0x100(%rax)
            &[0xff, 0x15, 0x3f, 0xdc, 0xea, 0x00],             // call *0xeadc3f(%rip)
            &[0xff, 0x54, 0x24, 0x08],                         // call *8(%rsp)
            &[0x41, 0xff, 0x14, 0xc4],                         // call *(%r12,%rax,8)
            &[0xff, 0x14, 0xc5, 0x00, 0x00, 0x00, 0x00],       // call *0(,%rax,8)
            &[0x41, 0xff, 0x94, 0xc4, 0x00, 0x01, 0x00, 0x00], // call *0x100(%r12,%rax,8)
            &[0xcc, 0xd0],                                     // our int3 in the place of the first byte
        ] {
            assert!(ends_in(call), "{call:02x?}");
        }
        for other in [
            &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00][..], // nopl 0(%rax)
            &[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00],
            &[0xc3],                               // ret
            &[0xff, 0xe0],                         // jmp *%rax
            &[0xff, 0x25, 0x3f, 0xdc, 0xea, 0x00], // jmp *0xeadc3f(%rip)
            &[0xe9, 0xa6, 0xfe, 0xff, 0xff],       // jmp rel32
        ] {
            assert!(!ends_in(other), "{other:02x?}");
        }
    }
}
