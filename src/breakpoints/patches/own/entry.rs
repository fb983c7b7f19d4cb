//! The first instructions of a function, moved out of the way of a jump that takes their place.
//!
//! The jump takes [`JUMP_LEN`] bytes. Where the first instruction is shorter, those behind it are moved, too: then no
//! thread may stand between them when the jump is written, and nothing in the function may jump there. The pad is that
//! of each instruction in a row, without the jumps back in between.

use super::{OwnCode, PcLocation, Piece, Resume, What};
use crate::arch::step::{StepError, build_pad};
use crate::base::addr::Addr;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use thiserror::Error;

/// Bytes of `jmp rel32`.
pub const JUMP_LEN: usize = 5;

/// The most bytes of a function whose instructions are moved: the last one may be as long as one can be, and begin in
/// the jump's last byte.
pub const LONGEST_MOVED: usize = JUMP_LEN - 1 + 15;

/// Why a function gets no jump.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Error)]
pub enum EntryError {
    /// The function is shorter than the jump, or its code can't be decoded.
    #[error("the code is shorter than a jump, or can't be decoded")]
    TooShort,
    /// Its own code jumps to one of the bytes that would be replaced.
    #[error("a branch leads into the first instructions, which a jump would replace")]
    JumpsBack,
    /// It branches back to its first instruction: the jump there would have each round recorded as a call.
    #[error("a branch leads back to the first instruction, which would count as another call")]
    LoopsToEntry,
    /// It has a jump whose target can't be told: a table of its own, a computed goto, a thunk.
    #[error("jumps to computed addresses may lead into the first instructions, which a jump would replace")]
    JumpsAnywhere,
    /// Something else in its module leads to one of the bytes that would be replaced.
    #[error(
        "something else in the module (a branch, an address, a symbol or an exception handler) leads into the first \
         instructions, which a jump would replace"
    )]
    LedInto,
    /// One of its first instructions can't be moved.
    #[error("the first instructions can't be moved to make room for a jump")]
    Immovable,
    /// What its first instructions refer to is out of reach from where they are moved to.
    #[error("the memory that heaptrace added is too far from what the first instructions refer to")]
    OutOfReach,
}

/// A pad that has a place, to be written before the jump is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedEntry {
    /// Where to write it.
    pub addr: Addr,
    /// What to write.
    pub bytes: Vec<u8>,
}

/// Where the instructions of such a pad begin, in bytes from its beginning, and what they stand for.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    /// The function's first instruction.
    at: Addr,
    boundaries: Vec<(u64, Addr)>,
    /// Behind all that was moved.
    end: Addr,
}

impl Moved {
    pub(super) fn locate(&self, offset: u64) -> PcLocation {
        let found = self.boundaries.iter().find(|(known, _)| *known == offset);
        match found {
            Some((_, addr)) if *addr == self.at || *addr >= self.end => PcLocation::Pad(Resume::at(*addr)),
            Some((_, addr)) => PcLocation::Moved(*addr),
            None => PcLocation::Own,
        }
    }
}

/// The instructions that begin in the first [`JUMP_LEN`] bytes of `code`, a whole function at `at`, with their lengths.
fn first_instructions(code: &[u8], at: Addr) -> Result<Vec<Instruction>, EntryError> {
    let mut first = Vec::new();
    let mut moved = 0;
    let decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
    for instruction in decoder {
        if instruction.is_invalid() {
            return Err(EntryError::TooShort);
        }
        if moved < JUMP_LEN {
            moved += instruction.len();
            first.push(instruction);
        }
        let inside = at.0 + 1..at.0 + moved.max(JUMP_LEN) as u64;
        if inside.contains(&instruction.near_branch_target()) {
            return Err(EntryError::JumpsBack);
        }
    }
    let (last, before) = first.split_last().ok_or(EntryError::TooShort)?;
    if moved < JUMP_LEN {
        return Err(EntryError::TooShort);
    }
    let goes_on = |i: &Instruction| matches!(i.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
    if !before.iter().all(goes_on) || matches!(last.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        return Err(EntryError::Immovable);
    }
    Ok(first)
}

impl OwnCode {
    /// Where the code goes on behind the first instructions of the function at `at`, which were moved.
    pub fn moved_end(&self, at: Addr) -> Option<Addr> {
        self.entries.iter().rev().find(|moved| moved.at == at).map(|moved| moved.end)
    }

    /// Moves the first instructions of the function at `at`, whose whole code is `code`, to `pad`, where `room` bytes
    /// are free. They stay there for good: a thread in a stub may come to them when nothing else of ours is left.
    ///
    /// # Errors
    /// Why that can't be done.
    pub fn place_entry(&mut self, code: &[u8], at: Addr, pad: Addr, room: u64) -> Result<PlacedEntry, EntryError> {
        let first = first_instructions(code, at)?;
        let (bytes, moved) = moved(&first, code, at, pad).map_err(|error| match error {
            StepError::OutOfReach { .. } => EntryError::OutOfReach,
            _ => EntryError::Immovable,
        })?;
        let len = bytes.len() as u64;
        if len > room {
            return Err(EntryError::Immovable);
        }
        self.pieces.insert(pad, Piece { len, what: What::Entry(self.entries.len()) });
        self.entries.push(moved);
        Ok(PlacedEntry { addr: pad, bytes })
    }
}

/// The pad at `pad` of the instructions `first`, and what its places stand for.
fn moved(first: &[Instruction], code: &[u8], at: Addr, pad: Addr) -> Result<(Vec<u8>, Moved), StepError> {
    let mut bytes = Vec::new();
    let mut boundaries = Vec::new();
    let mut end = at;
    for (number, instruction) in first.iter().enumerate() {
        let here = Addr(instruction.ip());
        let offset = (here.0 - at.0) as usize;
        let own = code.get(offset..offset + instruction.len()).ok_or(StepError::Undecodable { at: here })?;
        let one = build_pad(own, here, pad.add(bytes.len() as u64))?;
        boundaries.push((bytes.len() as u64, here));
        end = here.add(instruction.len() as u64);
        let is_last = number + 1 == first.len();
        let goes_on = matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        // each ends with a jump back to the instruction behind, which follows here anyway
        let kept = one.bytes.len() - if goes_on && !is_last { JUMP_LEN } else { 0 };
        bytes.extend(one.bytes.get(..kept).unwrap_or_default());
        if is_last && goes_on {
            boundaries.push(((bytes.len() - JUMP_LEN) as u64, end));
        }
    }
    Ok((bytes, Moved { at, boundaries, end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Addr = Addr(0x7f00_0000_1000);

    const PAD: Addr = Addr(0x7f00_0010_0000);

    fn place(code: &[u8]) -> Result<PlacedEntry, EntryError> {
        OwnCode::default().place_entry(code, AT, PAD, 64)
    }

    /// push r15; push r14; push r13; push r12; ret: what glibc's realloc begins with.
    const PUSHES: [u8; 9] = [0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0xc3];

    #[test]
    fn instructions_follow_each_other_and_jump_back_behind_the_last() {
        let mut own = OwnCode::default();
        let placed = own.place_entry(&PUSHES, AT, PAD, 64).unwrap();
        assert_eq!(own.moved_end(AT), Some(AT.add(6)));
        assert_eq!(placed.bytes[..6], PUSHES[..6]);
        let decoded: Vec<_> =
            Decoder::with_ip(64, &placed.bytes, placed.addr.0, DecoderOptions::NONE).into_iter().collect();
        assert_eq!(decoded.last().map(Instruction::near_branch_target), Some(AT.0 + 6));
        let at = |offset: u64| own.locate(placed.addr.add(offset));
        assert_eq!(at(0), Some(PcLocation::Pad(Resume::at(AT))));
        assert_eq!(at(2), Some(PcLocation::Moved(AT.add(2))));
        assert_eq!(at(4), Some(PcLocation::Moved(AT.add(4))));
        assert_eq!(at(6), Some(PcLocation::Pad(Resume::at(AT.add(6)))));
        assert_eq!((at(1), at(7)), (Some(PcLocation::Own), Some(PcLocation::Own)));
    }

    #[test]
    fn a_branch_among_them_goes_where_it_went() {
        // test rdi, rdi; je +0x20; ret: what glibc's free begins with
        let code = [0x48, 0x85, 0xff, 0x0f, 0x84, 0x20, 0, 0, 0, 0xc3];
        let placed = place(&code).unwrap();
        let decoded: Vec<_> =
            Decoder::with_ip(64, &placed.bytes, placed.addr.0, DecoderOptions::NONE).into_iter().collect();
        let targets: Vec<u64> = decoded.iter().map(Instruction::near_branch_target).filter(|t| *t != 0).collect();
        assert_eq!(targets, [AT.0 + 9 + 0x20, AT.0 + 9]);
        // one instruction that is long enough
        let long = [0x80, 0x3d, 1, 0, 0, 0, 0, 0xc3];
        assert!(place(&long).is_ok_and(|placed| placed.bytes.len() == 7 + JUMP_LEN));
    }

    #[test]
    fn what_can_t_be_moved_is_told() {
        assert_eq!(place(&[0x90, 0xc3]), Err(EntryError::TooShort));
        // push rbx; call; ret
        assert_eq!(place(&[0x53, 0xe8, 0, 0, 0, 0, 0xc3]), Err(EntryError::Immovable));
        // ret within the first bytes
        assert_eq!(place(&[0x53, 0xc3, 0x90, 0x90, 0x90, 0x90]), Err(EntryError::Immovable));
        // push r15; push r14; push r13; jmp to the second push
        assert_eq!(place(&[0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0xeb, 0xfa]), Err(EntryError::JumpsBack));
        // to the first one: it can be moved. Whether a jump may stand there is another question (`loops_to_entry`)
        assert!(place(&[0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0xeb, 0xf8]).is_ok());
        let place = |pad, room| OwnCode::default().place_entry(&PUSHES, AT, pad, room);
        assert_eq!(place(PAD, 10), Err(EntryError::Immovable), "11 bytes");
        assert_eq!(place(Addr(0x7f01_0000_0000), 64), Err(EntryError::OutOfReach));
        assert_eq!(OwnCode::default().ranges(None), []);
    }
}
