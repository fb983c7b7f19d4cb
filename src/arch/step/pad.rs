//! Pads: a copy of one instruction that works elsewhere, followed by a jump back behind the original.
//!
//! The copy keeps the original's bytes, only distances change: an encoder could choose another form. A pad never
//! uses a register or the flags. Shapes, with the original at `at`, `len` bytes long:
//!
//! ```text
//! anything          INSTRUCTION            jmp at+len
//! jmp, ret          INSTRUCTION
//! jcc target        jcc target             jmp at+len
//! loop target       loop 1f                jmp at+len      1: jmp target
//! call target       push [2f]              jmp target      2: .quad at+len
//! call r/m          push [2f]              jmp r/m         2: .quad at+len      (r/m for the lower rsp)
//! ```
//!
//! The program must never see that a thread is in a pad: whoever hands out a pc (a signal frame, an unwinder, detach)
//! translates it by [`Pad::resume`] first.

use iced_x86::{FlowControl, Register};

use super::{Decoded, Relocation, Resume, StepError};
use crate::base::addr::Addr;

/// The longest pad in bytes: an indirect call.
const MAX_PAD_LEN: usize = PUSH_LEN + super::MAX_INSTRUCTION_LEN + 4 + 8;

/// `push qword [rip+disp32]`
const PUSH: [u8; 2] = [0xff, 0x35];
const PUSH_LEN: usize = 6;
/// `jmp rel32`
const JUMP: u8 = 0xe9;
const JUMP_LEN: usize = 5;

/// The relocated copy of one instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pad {
    /// What to write at the pad's address.
    pub bytes: Vec<u8>,
    /// Where each of its instructions begins, and what that place is in the original code.
    pub resume: ResumePoints,
}

/// The instruction boundaries of a pad, at most three.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResumePoints([Option<(u8, Resume)>; 3]);

impl ResumePoints {
    /// How a thread whose pc is `offset` bytes into the pad goes on in the original code; None if no instruction
    /// begins there.
    pub fn get(&self, offset: u64) -> Option<Resume> {
        self.0.iter().flatten().find(|(o, _)| u64::from(*o) == offset).map(|(_, resume)| *resume)
    }
}

/// Builds the pad at `pad` for the instruction at `at`; `code` as for [`super::plan`].
///
/// # Errors
/// [`StepError::OutOfReach`]: try another place. The others: as [`super::plan`] says, there is no pad.
pub fn build_pad(code: &[u8], at: Addr, pad: Addr) -> Result<Pad, StepError> {
    let decoded = Decoded::new(code, at)?;
    let not_relocatable = StepError::NotRelocatable { at };
    let next = at.add(decoded.bytes.len() as u64);
    let mut build = Builder { at, pad, bytes: Vec::with_capacity(MAX_PAD_LEN), resume: ResumePoints::default() };
    build.boundary(Resume::at(at));
    match decoded.relocation() {
        Relocation::Copy | Relocation::Displacement => {
            build.instruction(&decoded)?;
            if !leaves(decoded.instruction.flow_control()) {
                build.boundary(Resume::at(next));
                build.jump(next)?;
            }
        }
        Relocation::Jump(target) => build.jump(target)?,
        Relocation::JumpIf(condition, target) => {
            build.bytes.extend([0x0f, 0x80 | condition]);
            build.distance_to(target)?;
            build.boundary(Resume::at(next));
            build.jump(next)?;
        }
        Relocation::ShortBranch(target) => {
            let (_, opcode) = decoded.bytes.split_last().ok_or(StepError::Undecodable { at })?;
            build.bytes.extend(opcode);
            build.bytes.push(JUMP_LEN as u8);
            build.boundary(Resume::at(next));
            build.jump(next)?;
            build.boundary(Resume::at(target));
            build.jump(target)?;
        }
        Relocation::Call(target) => {
            build.push_behind(JUMP_LEN);
            build.boundary(Resume::at(target));
            build.jump(target)?;
            build.bytes.extend(next.0.to_le_bytes());
        }
        Relocation::IndirectCall => {
            // the distance from the push to what it pushes is known when the jump is there
            build.push_behind(0);
            build.boundary(Resume { pc: at, drop: 8 });
            build.jump_indirect(&decoded)?;
            let skipped = build.bytes.len() - PUSH_LEN;
            build
                .bytes
                .get_mut(PUSH.len()..PUSH_LEN)
                .ok_or(not_relocatable)?
                .copy_from_slice(&(skipped as u32).to_le_bytes());
            build.bytes.extend(next.0.to_le_bytes());
        }
        Relocation::Impossible => return Err(not_relocatable),
    }
    Ok(Pad { bytes: build.bytes, resume: build.resume })
}

/// Whether the instruction never goes on to the next.
const fn leaves(flow: FlowControl) -> bool {
    matches!(flow, FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return)
}

struct Builder {
    at: Addr,
    pad: Addr,
    bytes: Vec<u8>,
    resume: ResumePoints,
}

impl Builder {
    /// The address of the next byte.
    fn here(&self) -> Addr {
        self.pad.add(self.bytes.len() as u64)
    }

    /// An instruction begins here that stands for `resume`.
    fn boundary(&mut self, resume: Resume) {
        if let Some(free) = self.resume.0.iter_mut().find(|point| point.is_none()) {
            *free = Some((self.bytes.len() as u8, resume));
        }
    }

    /// The four bytes that end an instruction and say how far it is to `target`.
    fn distance_to(&mut self, target: Addr) -> Result<(), StepError> {
        let distance = target.0.wrapping_sub(self.here().add(4).0).cast_signed();
        self.bytes.extend(self.in_reach(distance)?);
        Ok(())
    }

    fn jump(&mut self, target: Addr) -> Result<(), StepError> {
        self.bytes.push(JUMP);
        self.distance_to(target)
    }

    /// Pushes the eight bytes that will stand `skipped` bytes behind this push.
    fn push_behind(&mut self, skipped: usize) {
        self.bytes.extend(PUSH);
        self.bytes.extend((skipped as u32).to_le_bytes());
    }

    /// A jump to where the indirect call goes, for the state after the push.
    fn jump_indirect(&mut self, decoded: &Decoded<'_>) -> Result<(), StepError> {
        let not_relocatable = StepError::NotRelocatable { at: self.at };
        let opcode = self.bytes.len() + decoded.prefixes().len();
        self.instruction(decoded)?;
        // FF /2 becomes FF /4
        let modrm = self.bytes.get_mut(opcode + 1).ok_or(not_relocatable)?;
        *modrm ^= (2 ^ 4) << 3;
        if decoded.instruction.memory_base() == Register::RSP {
            // this base always comes with a SIB byte, behind which the displacement gets its longest form
            *modrm = *modrm & 0x3f | 0x80;
            self.bytes.truncate(opcode + 3);
            self.bytes.extend(decoded.displacement_after_push().ok_or(not_relocatable)?.to_le_bytes());
        }
        Ok(())
    }

    /// The original's bytes, with the displacement adapted if it is relative to the instruction pointer.
    fn instruction(&mut self, decoded: &Decoded<'_>) -> Result<(), StepError> {
        let (here, start) = (self.here(), self.bytes.len());
        self.bytes.extend(decoded.bytes);
        if decoded.instruction.is_ip_rel_memory_operand() {
            let not_relocatable = StepError::NotRelocatable { at: self.at };
            let offset = start + decoded.displacement.ok_or(not_relocatable)?;
            let target = decoded.instruction.ip_rel_memory_address();
            let distance = target.wrapping_sub(here.0).wrapping_sub(decoded.bytes.len() as u64).cast_signed();
            let distance = self.in_reach(distance)?;
            self.bytes.get_mut(offset..offset + 4).ok_or(not_relocatable)?.copy_from_slice(&distance);
        }
        Ok(())
    }

    fn in_reach(&self, distance: i64) -> Result<[u8; 4], StepError> {
        i32::try_from(distance).map(i32::to_le_bytes).map_err(|_| StepError::OutOfReach { at: self.at, pad: self.pad })
    }
}
