//! The stub of a wrapped function: what the patch over its first instruction jumps to. See the head of
//! `tracer/jump/routine.s`.

use super::layout::{CODE_SIZE, STATE_ACTIVE, StubKind};
use super::sampling::SizeOf;
use super::undo::Code;
use crate::base::addr::Addr;

/// Bytes from one stub to the next.
pub const STUB_SIZE: u64 = 64;
/// Where the stubs begin in the code region: behind the routine.
pub const STUBS: u64 = 0x1c00;
/// How many there can be.
pub const MAX_STUBS: u64 = (ENTRIES - STUBS) / STUB_SIZE;
/// Where the wrapped functions' first instructions are moved to: [`ENTRY_SIZE`] bytes for each stub.
pub const ENTRIES: u64 = 0x3200;
/// Bytes for the moved instructions of one function.
pub const ENTRY_SIZE: u64 = 64;

/// In a stub: behind `push rax`.
pub const PUSHED: u64 = 14;
/// In a stub: the number that is put into eax, before the call of the routine.
pub const EAX: u64 = PUSHED + 1;
/// In a stub: behind `call enter`, or of the part that comes before it where blocks are sampled.
pub const ENTERED: u64 = 24;
/// In a stub: behind `pop rax`.
pub const POPPED: u64 = 25;
/// In a stub with a frame: behind `jc pass`.
pub const DECIDED: u64 = 31;
/// In a stub with a frame: behind `lea rsp, [rsp+8]`.
pub const RAISED: u64 = 36;
/// In a stub with a frame: where the function returns to.
pub const BACK: u64 = 41;
/// In a stub with a frame: behind `lea rsp, [rsp-8]`.
pub const LOWERED: u64 = 46;
/// In a stub with a frame: behind the second `push rax`.
pub const PUSHED_RESULT: u64 = 47;
/// In a stub with a frame: behind `call leave`.
pub const LEFT: u64 = 52;
/// In a stub with a frame: behind the second `pop rax`.
pub const POPPED_RESULT: u64 = 53;
/// In a stub with a frame: the jump to the original where a call is passed through.
pub const PASS: u64 = 54;

/// One function's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stub {
    /// The number of the function in records.
    pub function: u16,
    /// How the routine goes about it.
    pub way: StubKind,
    /// How many bytes it is asked for.
    pub size: SizeOf,
    /// The function's first instruction.
    pub entry: Addr,
    /// Where its first instructions were moved to.
    pub original: Addr,
    /// Whether blocks are sampled, so that most calls are only counted.
    pub is_sampled: bool,
}

impl Stub {
    /// Whether the function is an operator that passes its call on, and whose size and alignment go into the record of
    /// the function that it calls.
    pub const fn is_told(&self) -> bool {
        self.size.0 & SizeOf::TOLD != 0
    }

    /// The part of the routine that it calls before the function runs.
    fn enter(&self, code: &Code) -> u64 {
        match (self.is_sampled, self.way) {
            (true, StubKind::Free) => code.fast_free,
            (true, StubKind::Alloc) if self.size == SizeOf(SizeOf::SIMPLE) => code.fast_malloc,
            _ => code.enter,
        }
    }
}

/// The stub with number `number` of the code region at `region`. None if the original is out of reach, or there is no
/// room.
pub fn assemble(stub: &Stub, region: Addr, number: u64, code: &Code) -> Option<Vec<u8>> {
    if number >= MAX_STUBS {
        return None;
    }
    let at = STUBS + number * STUB_SIZE;
    let mut bytes = Vec::with_capacity(STUB_SIZE as usize);
    // what an instruction that ends behind `len` more bytes refers to, from there
    let relative = |target: u64, bytes: &[u8], len: u64| -> Option<[u8; 4]> {
        let next = region.0 + at + bytes.len() as u64 + len;
        let distance = target.wrapping_sub(next).cast_signed();
        Some(i32::try_from(distance).ok()?.to_le_bytes())
    };
    let has_frame = stub.way.has_frame();
    let pass = region.0 + at + if has_frame { PASS } else { POPPED };
    bytes.extend([0x83, 0x3d]); // cmp dword ptr [rip+active], 0
    bytes.extend(relative(region.0 + STATE_ACTIVE, &bytes, 5)?);
    bytes.push(0);
    bytes.extend([0x0f, 0x84]); // je pass
    bytes.extend(relative(pass, &bytes, 4)?);
    bytes.push(0x50); // push rax
    bytes.push(0xb8); // mov eax, imm32
    bytes.extend((u32::from(stub.function) | u32::from(stub.size.0) << 16 | (stub.way as u32) << 24).to_le_bytes());
    bytes.push(0xe8); // call enter
    bytes.extend(relative(region.0 + stub.enter(code), &bytes, 4)?);
    bytes.push(0x58); // pop rax
    if has_frame {
        bytes.extend([0x0f, 0x82]); // jc pass
        bytes.extend(relative(pass, &bytes, 4)?);
        bytes.extend([0x48, 0x8d, 0x64, 0x24, 0x08]); // lea rsp, [rsp+8]
        bytes.push(0xe8); // call original
        bytes.extend(relative(stub.original.0, &bytes, 4)?);
        bytes.extend([0x48, 0x8d, 0x64, 0x24, 0xf8]); // lea rsp, [rsp-8]
        bytes.push(0x50); // push rax
        bytes.push(0xe8); // call leave
        bytes.extend(relative(region.0 + code.leave, &bytes, 4)?);
        bytes.push(0x58); // pop rax
        bytes.push(0xc3); // ret
    }
    bytes.push(0xe9); // jmp original
    bytes.extend(relative(stub.original.0, &bytes, 4)?);
    bytes.resize(STUB_SIZE as usize, 0xcc);
    Some(bytes)
}

const _: () = assert!(ENTRIES + MAX_STUBS * ENTRY_SIZE <= CODE_SIZE);

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Code as Instruction, Decoder, DecoderOptions};

    /// As another decoder reads it: each instruction ends where undo believes.
    #[test]
    fn the_offsets_are_those_of_the_instructions() {
        let code = Code { enter: 0x100, fast_malloc: 0x180, fast_free: 0x200, leave: 0x300, ..Code::default() };
        let region = Addr(0x7f00_0000_0000);
        let stub = Stub {
            function: 7,
            way: StubKind::Alloc,
            size: SizeOf(0),
            entry: Addr(0),
            original: region.add(0x4000_0000),
            is_sampled: false,
        };
        let bytes = assemble(&stub, region, 3, &code).unwrap();
        let at = region.0 + STUBS + 3 * STUB_SIZE;
        let decoded: Vec<_> = Decoder::with_ip(64, &bytes[..59], at, DecoderOptions::NONE).into_iter().collect();
        let ends: Vec<u64> = decoded.iter().map(|i| i.next_ip() - at).collect();
        let expected = [
            7,
            13,
            PUSHED,
            19,
            ENTERED,
            POPPED,
            DECIDED,
            RAISED,
            BACK,
            LOWERED,
            PUSHED_RESULT,
            LEFT,
            POPPED_RESULT,
            PASS,
            59,
        ];
        assert_eq!(ends, expected);
        let targets: Vec<u64> =
            decoded.iter().filter(|i| i.near_branch_target() != 0).map(|i| i.near_branch_target()).collect();
        let original = stub.original.0;
        let (enter, leave) = (region.0 + 0x100, region.0 + 0x300);
        assert_eq!(targets, [at + PASS, enter, at + PASS, original, leave, original]);
        assert_eq!(decoded[0].memory_displacement64(), region.0 + STATE_ACTIVE);
        let eax = [7, 0, 0, StubKind::Alloc as u8];
        assert_eq!((decoded[3].code(), &bytes[EAX as usize..][..4]), (Instruction::Mov_r32_imm32, &eax[..]));
        assert_eq!(decoded[7].code(), Instruction::Lea_r64_m);
        let free = Stub { way: StubKind::Free, ..stub };
        let bytes = assemble(&free, region, 4, &code).unwrap();
        let at = region.0 + STUBS + 4 * STUB_SIZE;
        let decoded: Vec<_> = Decoder::with_ip(64, &bytes[..30], at, DecoderOptions::NONE).into_iter().collect();
        assert_eq!(decoded[1].near_branch_target(), at + POPPED);
        assert_eq!(decoded.last().map(|i| (i.ip() - at, i.near_branch_target())), Some((POPPED, original)));
        let called = |stub: Stub| {
            let bytes = assemble(&stub, region, 3, &code).unwrap();
            let distance = i32::from_le_bytes(bytes[ENTERED as usize - 4..ENTERED as usize].try_into().unwrap());
            (STUBS + 3 * STUB_SIZE + ENTERED).wrapping_add_signed(distance.into())
        };
        let sampled = Stub { is_sampled: true, ..stub };
        let simple = SizeOf(SizeOf::SIMPLE);
        assert_eq!(called(Stub { size: simple, ..stub }), 0x100);
        assert_eq!(called(Stub { size: simple, ..sampled }), 0x180);
        assert_eq!(called(Stub { size: SizeOf(SizeOf::SIMPLE | 1), ..sampled }), 0x100);
        assert_eq!(called(Stub { way: StubKind::Free, ..sampled }), 0x200);
        assert_eq!(called(Stub { way: StubKind::Realloc, ..sampled }), 0x100);
        assert_eq!(assemble(&Stub { original: Addr(0x1000), ..stub }, region, 3, &code), None, "out of reach");
        assert_eq!(assemble(&stub, region, MAX_STUBS, &code), None);
    }
}
