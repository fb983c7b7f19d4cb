//! The module of the tests: functions whose frames have every shape, described by CFI that gimli's writer encodes.

use super::super::{Section, UnwindModule};
use crate::base::addr::{Addr, LoadBias, ModuleId, ObjAddr};
use gimli::write::{
    Address, CallFrameInstruction as Cfi, CommonInformationEntry, DebugFrame, EhFrame, EndianVec, Expression,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{CieOrFde, Encoding, Format, LittleEndian, Register, UnwindSection, X86_64};

pub const BIAS: u64 = 0x5555_0000_0000;
pub const STACK: u64 = 0x7fff_0000_0000;
pub const EH_FRAME: u64 = 0x10_0000;
pub const EH_FRAME_HDR: u64 = 0x20_0000;
pub const CODE_END: u64 = 0x9_0000;

// functions of the module, by object address
/// push rbp; mov rbp, rsp
pub const FRAMED: u64 = 0x1000;
/// No frame pointer; 0x1000 bytes of locals; rbx and r12 saved.
pub const LARGE: u64 = 0x2000;
/// Aligns its stack: CFA = [rbp − 8].
pub const REALIGNED: u64 = 0x3000;
/// Its return address is undefined.
pub const START: u64 = 0x4000;
/// The expression that linkers write for PLT entries.
pub const PLT: u64 = 0x5000;
/// A signal trampoline as glibc describes it. Its CFI begins one byte early, as glibc's does.
pub const TRAMPOLINE: u64 = 0x6000;
/// CFA = rbx + 16.
pub const BY_RBX: u64 = 0x7000;
/// CFA = rsp: a row that leads nowhere.
pub const STUCK: u64 = 0x7800;
/// Its rules are expressions of every kind.
pub const EXPRESSIONS: u64 = 0x7c00;
/// Has no CFI.
pub const BARE: u64 = 0x8000;

fn encoding() -> Encoding {
    Encoding { format: Format::Dwarf32, version: 1, address_size: 8 }
}

fn breg(register: Register, offset: i64) -> Expression {
    let mut e = Expression::new();
    e.op_breg(register, offset);
    e
}

fn deref(register: Register, offset: i64) -> Expression {
    let mut e = breg(register, offset);
    e.op_deref();
    e
}

/// rsp + 8 + ((rip & 15) >= 11) * 8
fn plt_expression() -> Expression {
    let mut e = breg(X86_64::RSP, 8);
    e.op_breg(X86_64::RA, 0);
    for op in [gimli::DW_OP_lit15, gimli::DW_OP_and, gimli::DW_OP_lit11, gimli::DW_OP_ge] {
        e.op(op);
    }
    e.op(gimli::DW_OP_lit3);
    e.op(gimli::DW_OP_shl);
    e.op(gimli::DW_OP_plus);
    e
}

/// rsp + 24, if DW_OP_addr is relocated.
fn relocated_expression() -> Expression {
    let mut e = Expression::new();
    e.op_addr(Address::Constant(EXPRESSIONS));
    e.op_constu(BIAS + EXPRESSIONS);
    e.op(gimli::DW_OP_minus);
    e.op_breg(X86_64::RSP, 24);
    e.op(gimli::DW_OP_plus);
    e
}

/// The CFA, which is on the stack at the beginning, less the byte at rsp.
fn cfa_less_byte_expression() -> Expression {
    let mut e = breg(X86_64::RSP, 0);
    e.op_deref_size(1);
    e.op(gimli::DW_OP_minus);
    e
}

/// The ucontext member of each register, as offsets from rsp in the trampoline.
const SIGFRAME: [(Register, i64); 16] = [
    (X86_64::R8, 40),
    (X86_64::R9, 48),
    (X86_64::R10, 56),
    (X86_64::R11, 64),
    (X86_64::R12, 72),
    (X86_64::R13, 80),
    (X86_64::R14, 88),
    (X86_64::R15, 96),
    (X86_64::RDI, 104),
    (X86_64::RSI, 112),
    (X86_64::RBP, 120),
    (X86_64::RBX, 128),
    (X86_64::RDX, 136),
    (X86_64::RAX, 144),
    (X86_64::RCX, 152),
    (X86_64::RA, 168),
];

fn table(version: u16) -> FrameTable {
    let mut table = FrameTable::default();
    let mut cie = CommonInformationEntry::new(Encoding { version, ..encoding() }, 1, -8, X86_64::RA);
    cie.add_instruction(Cfi::Cfa(X86_64::RSP, 8));
    cie.add_instruction(Cfi::Offset(X86_64::RA, -8));
    let plain = table.add_cie(cie.clone());
    cie.signal_trampoline = true;
    let signal = if version == 1 { table.add_cie(cie) } else { plain };

    let mut add = |cie, start: u64, rows: Vec<(u32, Cfi)>| {
        let mut fde = FrameDescriptionEntry::new(Address::Constant(start), 0x100);
        for (offset, row) in rows {
            fde.add_instruction(offset, row);
        }
        table.add_fde(cie, fde);
    };
    add(
        plain,
        FRAMED,
        vec![
            (1, Cfi::CfaOffset(16)),
            (1, Cfi::Offset(X86_64::RBP, -16)),
            (4, Cfi::CfaRegister(X86_64::RBP)),
            (0xff, Cfi::Cfa(X86_64::RSP, 8)),
        ],
    );
    add(
        plain,
        LARGE,
        vec![(0, Cfi::CfaOffset(0x1000 + 24)), (0, Cfi::Offset(X86_64::RBX, -16)), (0, Cfi::Offset(X86_64::R12, -24))],
    );
    add(
        plain,
        REALIGNED,
        vec![
            (0, Cfi::CfaExpression(deref(X86_64::RBP, -8))),
            (0, Cfi::Expression(X86_64::RBP, breg(X86_64::RBP, 0))),
            (0, Cfi::Expression(X86_64::RBX, breg(X86_64::RBP, -24))),
        ],
    );
    add(plain, START, vec![(0, Cfi::Undefined(X86_64::RA))]);
    add(plain, PLT, vec![(0, Cfi::CfaExpression(plt_expression()))]);
    let mut rows = vec![(0, Cfi::CfaExpression(deref(X86_64::RSP, 160)))];
    rows.extend(SIGFRAME.map(|(register, offset)| (0, Cfi::Expression(register, breg(X86_64::RSP, offset)))));
    add(signal, TRAMPOLINE - 1, rows);
    add(plain, BY_RBX, vec![(0, Cfi::Cfa(X86_64::RBX, 16))]);
    add(
        plain,
        EXPRESSIONS,
        vec![
            (0, Cfi::CfaExpression(relocated_expression())),
            (0, Cfi::Expression(X86_64::RA, cfa_less_byte_expression())),
            (0, Cfi::ValExpression(X86_64::RBX, cfa_less_byte_expression())),
        ],
    );
    add(plain, STUCK, vec![(0, Cfi::CfaOffset(0))]);
    table
}

pub fn section(addr: u64, bytes: Vec<u8>) -> Option<Section> {
    Some(Section { addr: ObjAddr(addr), bytes: bytes.into() })
}

/// `.eh_frame`. The writer gives absolute addresses only, so that is what is read here; pc-relative ones are in every
/// real binary.
fn eh_frame() -> Vec<u8> {
    let mut out = EhFrame(EndianVec::new(LittleEndian));
    table(1).write_eh_frame(&mut out).unwrap();
    out.0.into_vec()
}

pub fn debug_frame() -> Vec<u8> {
    let mut out = DebugFrame(EndianVec::new(LittleEndian));
    table(4).write_debug_frame(&mut out).unwrap();
    out.0.into_vec()
}

fn eh_frame_hdr(eh_frame: &[u8]) -> Vec<u8> {
    let frames = gimli::EhFrame::new(eh_frame, LittleEndian);
    let bases = gimli::BaseAddresses::default();
    let mut entries = frames.entries(&bases);
    let mut rows = Vec::new();
    while let Some(entry) = entries.next().unwrap() {
        if let CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(gimli::EhFrame::cie_from_offset).unwrap();
            rows.push((fde.initial_address(), EH_FRAME + fde.offset() as u64));
        }
    }
    rows.sort_unstable();
    let mut bytes = vec![1, 0x1b, 0x03, 0x3b];
    bytes.extend((EH_FRAME as u32).wrapping_sub(EH_FRAME_HDR as u32 + 4).to_le_bytes());
    bytes.extend((rows.len() as u32).to_le_bytes());
    for (start, fde) in rows {
        bytes.extend((start as u32).wrapping_sub(EH_FRAME_HDR as u32).to_le_bytes());
        bytes.extend((fde as u32).wrapping_sub(EH_FRAME_HDR as u32).to_le_bytes());
    }
    bytes
}

pub fn bare_module(id: u32, bias: u64) -> UnwindModule {
    UnwindModule {
        id: ModuleId(id),
        code: vec![Addr(bias + FRAMED)..Addr(bias + CODE_END)],
        bias: LoadBias(bias),
        eh_frame_hdr: None,
        eh_frame: None,
        debug_frame: None,
        text: None,
        got: None,
        entry: None,
    }
}

pub fn module(id: u32) -> UnwindModule {
    let eh_frame = eh_frame();
    UnwindModule {
        eh_frame_hdr: section(EH_FRAME_HDR, eh_frame_hdr(&eh_frame)),
        eh_frame: section(EH_FRAME, eh_frame),
        ..bare_module(id, BIAS)
    }
}
