//! Executing a rule: from a frame's registers to its caller's.
//!
//! A [`Rule`] says for one code address where the caller's registers are. Nearly all are of the compact form: the CFA
//! (the stack pointer's value before the call) is a register plus an offset, the return address lies right below it,
//! and some callee-saved registers in words near it. What does not fit has a row in a side table ([`Rows`]).
//!
//! ```text
//!            | caller's frame |
//!     CFA -> +----------------+
//!     CFA-8  | return address |
//!     CFA-16 | saved rbp      |   saved[RBP] = -2
//!     CFA-24 | saved rbx      |   saved[RBX] = -3
//!            | locals         |
//!     rsp -> +----------------+
//! ```

use super::window::StackWindow;
use crate::arch::{Regs, reg};
use crate::base::addr::FrameAddr;
use crate::base::memory::ReadMemory;
use gimli::{EndianSlice, EvaluationResult, LittleEndian, Location, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// The most operations that an expression may execute: bad input must not hang a stopped thread.
const MAX_OPERATIONS: u32 = 1000;

/// The integer registers of one frame, in DWARF order, and where it executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// General-purpose registers, as in [`Regs::gpr`].
    pub gpr: [u64; 16],
    /// The instruction pointer or return address.
    pub pc: u64,
}

impl Cpu {
    /// The stack pointer: in a caller's frame the CFA of the frame that it called.
    pub const fn sp(&self) -> u64 {
        self.gpr[reg::RSP]
    }

    fn get(&self, register: u8) -> u64 {
        self.gpr.get(usize::from(register)).copied().unwrap_or(self.pc)
    }
}

impl From<&Regs> for Cpu {
    fn from(regs: &Regs) -> Self {
        Self { gpr: regs.gpr, pc: regs.rip }
    }
}

/// What a compact rule counts its offset from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Base {
    /// CFA = rsp + offset.
    Rsp,
    /// CFA = rbp + offset.
    Rbp,
    /// CFA = the word at rbp + offset: functions that align their stack. Registers are saved around rbp, not the CFA.
    LoadRbp,
}

/// Where a compact rule finds the callee-saved registers rbx, rbp, r12, r13, r14, r15 (in this order): in words (8
/// bytes) from the CFA, for [`Base::LoadRbp`] from rbp. [`SAME`]: the register still holds the caller's value.
pub type Saved = [i8; 6];

/// In [`Saved`]: the callee has not changed the register.
pub const SAME: i8 = i8::MIN;

/// The registers of [`Saved`].
pub const CALLEE_SAVED: [usize; 6] = [reg::RBX, reg::RBP, reg::R12, reg::R13, reg::R14, reg::R15];

/// How to get from a frame at one code address to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// The common case. The return address lies at CFA − 8.
    Compact {
        /// What `offset` counts from.
        base: Base,
        /// Bytes from the base.
        offset: i32,
        /// Where callee-saved registers are.
        saved: Saved,
    },
    /// Anything else that CFI can say.
    Row {
        /// Index into [`Rows`].
        row: u32,
        /// The frame is a signal trampoline: its "caller" was interrupted, and may be on another stack.
        signal: bool,
    },
    /// A signal trampoline without CFI, known by its code: registers are in the kernel's rt_sigframe.
    SignalFrame,
    /// The outermost frame: its return address is undefined.
    Outermost,
    /// The outermost frame of a stack that was made by hand: its function was never called, its address was put on the
    /// stack for another one to return to.
    Planted {
        /// CFI says that a function begins there, so that this is no guess.
        described: bool,
    },
    /// Code of a module without CFI: only the frame pointer may help.
    NoCfi {
        /// The module has CFI for other code, so this is a C library's assembly rather than JIT code.
        object_file: bool,
    },
    /// No known code.
    NoModule,
    /// Code that goes on on another stack than the one it was called on, and does not tell where that is.
    OtherStack,
    /// No caller: an address that no call returns to.
    Stray,
}

const _: () = assert!(size_of::<Rule>() <= 16);

impl Rule {
    /// Whether the frame is a signal trampoline.
    pub const fn is_signal_frame(self) -> bool {
        matches!(self, Self::SignalFrame | Self::Row { signal: true, .. })
    }

    /// Where a frame that was reached at `addr` stands: frames that nobody has called stand at their first instruction,
    /// which has nothing to do with the one before it.
    pub const fn seen_at(self, addr: FrameAddr) -> FrameAddr {
        match self {
            Self::SignalFrame | Self::Row { signal: true, .. } | Self::Planted { .. } => {
                FrameAddr::Instruction(addr.raw())
            }
            _ => addr,
        }
    }
}

/// What executing a rule gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The registers are now the caller's.
    Caller,
    /// There is no caller.
    Outermost,
    /// There is no caller, as far as can be told.
    GuessedOutermost,
    /// The rule says nothing: no CFI.
    NoCfi,
    /// Memory that the rule needs can't be read, or an expression is malformed.
    Failed,
}

/// A DWARF expression with what it needs to be evaluated.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Expression {
    /// The operations.
    pub bytes: Arc<[u8]>,
    /// What relocates a DW_OP_addr operand; 0 in expressions without one, so that equal rows are shared.
    pub bias: u64,
}

/// Where a general row finds the CFA.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Cfa {
    /// A register plus an offset.
    Register(u8, i64),
    /// The word at a register plus an offset.
    Load(u8, i64),
    /// The value of an expression.
    Expression(Expression),
}

/// Where a general row finds a register of the caller.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// Nowhere; whatever the callee holds is left standing.
    Undefined,
    /// In the word at CFA + offset.
    AtCfa(i64),
    /// It is CFA + offset.
    CfaPlus(i64),
    /// In the word at a register plus an offset.
    Load(u8, i64),
    /// It is a register plus an offset.
    Register(u8, i64),
    /// In the word at the address that an expression gives; the CFA is on its stack.
    LoadExpression(Expression),
    /// It is the value of an expression; the CFA is on its stack.
    Expression(Expression),
    /// It is a constant.
    Constant(u64),
}

/// A row of the unwind table that has no compact form.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    /// Where the CFA is.
    pub cfa: Cfa,
    /// The registers that differ from the callee's, by DWARF number (16: return address), ascending.
    pub registers: Vec<(u8, Source)>,
}

/// The side table of general rows. Equal rows are kept once, so a library loaded again and again adds nothing.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    rows: Vec<Arc<Row>>,
    index: HashMap<Arc<Row>, u32>,
}

impl Rows {
    /// The index of `row`, added if it is new. None when four billion rows are full.
    pub fn intern(&mut self, row: Row) -> Option<u32> {
        if let Some(&index) = self.index.get(&row) {
            return Some(index);
        }
        let index = u32::try_from(self.rows.len()).ok()?;
        let row = Arc::new(row);
        self.rows.push(Arc::clone(&row));
        self.index.insert(row, index);
        Some(index)
    }

    /// The row that a [`Rule::Row`] refers to.
    pub fn get(&self, index: u32) -> Option<&Row> {
        self.rows.get(index as usize).map(Arc::as_ref)
    }
}

impl Rule {
    /// Turns `cpu` into the caller's registers. On anything but [`Step::Caller`] it is not to be used further.
    #[inline]
    pub fn execute<M>(self, rows: &Rows, cpu: &mut Cpu, stack: &mut StackWindow<'_, M>) -> Step
    where
        M: ReadMemory + ?Sized,
    {
        let stepped = match self {
            Self::Compact { base, offset, saved } => compact(base, offset, saved, cpu, stack),
            Self::Row { row, .. } => match rows.get(row) {
                Some(row) => general(row, cpu, stack),
                None => None,
            },
            Self::SignalFrame => rt_sigframe(cpu, stack),
            Self::Outermost | Self::Planted { described: true } => return Step::Outermost,
            Self::Planted { described: false } => return Step::GuessedOutermost,
            Self::NoCfi { .. } | Self::NoModule => return Step::NoCfi,
            Self::OtherStack | Self::Stray => return Step::Failed,
        };
        if stepped.is_some() { Step::Caller } else { Step::Failed }
    }
}

#[inline]
fn compact<M: ReadMemory + ?Sized>(
    base: Base,
    offset: i32,
    saved: Saved,
    cpu: &mut Cpu,
    stack: &mut StackWindow<'_, M>,
) -> Option<()> {
    let offset = i64::from(offset).cast_unsigned();
    let frame_pointer = cpu.gpr[reg::RBP];
    let (cfa, near) = match base {
        Base::Rsp => {
            let cfa = cpu.sp().wrapping_add(offset);
            (cfa, cfa)
        }
        Base::Rbp => {
            let cfa = frame_pointer.wrapping_add(offset);
            (cfa, cfa)
        }
        Base::LoadRbp => (stack.word(frame_pointer.wrapping_add(offset))?, frame_pointer),
    };
    cpu.pc = stack.word(cfa.wrapping_sub(8))?;
    for (register, words) in CALLEE_SAVED.into_iter().zip(saved) {
        if words != SAME {
            cpu.gpr[register] = stack.word(near.wrapping_add((i64::from(words) * 8).cast_unsigned()))?;
        }
    }
    cpu.gpr[reg::RSP] = cfa;
    Some(())
}

#[cold]
fn general<M: ReadMemory + ?Sized>(row: &Row, cpu: &mut Cpu, stack: &mut StackWindow<'_, M>) -> Option<()> {
    let old = *cpu;
    let cfa = match &row.cfa {
        Cfa::Register(register, offset) => old.get(*register).wrapping_add_signed(*offset),
        Cfa::Load(register, offset) => stack.word(old.get(*register).wrapping_add_signed(*offset))?,
        Cfa::Expression(expression) => evaluate(expression, &old, None, stack)?,
    };
    cpu.gpr[reg::RSP] = cfa;
    let mut returns = false;
    for (register, source) in &row.registers {
        let value = match source {
            Source::Undefined => continue,
            Source::AtCfa(offset) => stack.word(cfa.wrapping_add_signed(*offset))?,
            Source::CfaPlus(offset) => cfa.wrapping_add_signed(*offset),
            Source::Load(from, offset) => stack.word(old.get(*from).wrapping_add_signed(*offset))?,
            Source::Register(from, offset) => old.get(*from).wrapping_add_signed(*offset),
            Source::LoadExpression(expression) => {
                let at = evaluate(expression, &old, Some(cfa), stack)?;
                stack.word(at)?
            }
            Source::Expression(expression) => evaluate(expression, &old, Some(cfa), stack)?,
            Source::Constant(value) => *value,
        };
        match cpu.gpr.get_mut(usize::from(*register)) {
            Some(slot) => *slot = value,
            None => {
                cpu.pc = value;
                returns = true;
            }
        }
    }
    returns.then_some(())
}

/// The value of a DWARF expression over the registers of the frame. `initial` is on the stack when it begins.
fn evaluate<M: ReadMemory + ?Sized>(
    expression: &Expression,
    cpu: &Cpu,
    initial: Option<u64>,
    stack: &mut StackWindow<'_, M>,
) -> Option<u64> {
    let encoding = gimli::Encoding { format: gimli::Format::Dwarf32, version: 4, address_size: 8 };
    let mut evaluation = gimli::Evaluation::new(EndianSlice::new(&expression.bytes, LittleEndian), encoding);
    evaluation.set_max_iterations(MAX_OPERATIONS);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let mut state = evaluation.evaluate().ok()?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = stack.word(address)?;
                let bits = u32::from(size.min(8)) * 8;
                let value = if bits < 64 { word & ((1 << bits) - 1) } else { word };
                evaluation.resume_with_memory(Value::Generic(value))
            }
            EvaluationResult::RequiresRegister { register, .. } if register.0 <= 16 => {
                evaluation.resume_with_register(Value::Generic(cpu.get(register.0 as u8)))
            }
            EvaluationResult::RequiresRelocatedAddress(address) => {
                evaluation.resume_with_relocated_address(address.wrapping_add(expression.bias))
            }
            EvaluationResult::RequiresCallFrameCfa => evaluation.resume_with_call_frame_cfa(initial?),
            _ => return None,
        }
        .ok()?;
    }
    match evaluation.as_result() {
        [piece] => match piece.location {
            Location::Address { address } => Some(address),
            Location::Value { value } => value.to_u64(u64::MAX).ok(),
            _ => None,
        },
        _ => None,
    }
}

/// Restores the registers that a signal interrupted. The handler has returned to the trampoline, so rsp points behind
/// the return address that the kernel pushed, at the ucontext: flags, link and sigaltstack (40 bytes), then struct
/// sigcontext_64 (arch/x86/include/uapi/asm/sigcontext.h): r8–r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
#[cold]
fn rt_sigframe<M: ReadMemory + ?Sized>(cpu: &mut Cpu, stack: &mut StackWindow<'_, M>) -> Option<()> {
    const MCONTEXT: u64 = 40;
    const ORDER: [usize; 16] = [
        reg::R8,
        reg::R9,
        reg::R10,
        reg::R11,
        reg::R12,
        reg::R13,
        reg::R14,
        reg::R15,
        reg::RDI,
        reg::RSI,
        reg::RBP,
        reg::RBX,
        reg::RDX,
        reg::RAX,
        reg::RCX,
        reg::RSP,
    ];
    let mut at = cpu.sp().wrapping_add(MCONTEXT);
    for register in ORDER {
        cpu.gpr[register] = stack.word(at)?;
        at = at.wrapping_add(8);
    }
    cpu.pc = stack.word(at)?;
    Some(())
}

/// Whether `code` begins with `mov $SYS_rt_sigreturn, %rax; syscall` in one of its two encodings: what a signal handler
/// returns to, in every C library (the kernel demands a restorer on x86-64).
pub fn is_sigreturn(code: &[u8]) -> bool {
    code.starts_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        || code.starts_with(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
}
