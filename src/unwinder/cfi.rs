//! Deriving a rule: finding and reading the CFI row of one code address.
//!
//! Formats: the DWARF 5 standard, section 6.4; `.eh_frame` and `.eh_frame_hdr` as in the Linux Standard Base Core 5.0,
//! chapter 10.6. Rows are read by gimli. The search table of `.eh_frame_hdr` is read here, in the one encoding that
//! linkers write, since it has to be checked before it is trusted anyway.

use super::rule::{Base, CALLEE_SAVED, Cfa, Expression, Row, Rows, Rule, SAME, Source};
use super::{Section, UnwindModule};
use crate::arch::reg;
use crate::base::addr::ObjAddr;
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, DebugFrame, DebugFrameOffset, EhFrame, EhFrameOffset,
    EndianSlice, LittleEndian, Operation, RegisterRule, UnwindContext, UnwindOffset, UnwindSection,
};
use std::ops::Range;
use std::sync::Arc;

/// Functions of one module that are looked up, at most. Chromium has 600,000.
const MAX_FDES: usize = 1 << 22;

/// How often a section's bytes are read again as CIEs, at most: a linker's FDEs alternate between few and short ones.
const MAX_CIES: usize = 8;

/// Damaged CIEs that are tried, at most.
const MAX_DAMAGED: usize = 64;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

const ENCODING: gimli::Encoding = gimli::Encoding { format: gimli::Format::Dwarf32, version: 4, address_size: 8 };

/// FDEs, sorted by where their code starts.
#[derive(Clone, Debug)]
struct FdeIndex(Vec<FdeEntry>);

#[derive(Clone, Copy, Debug)]
struct FdeEntry {
    start: u64,
    offset: usize,
}

/// How the FDE of an address is found in `.eh_frame`.
#[derive(Clone, Debug)]
enum EhSearch {
    /// The table in `.eh_frame_hdr`, found to be sound: its number of entries.
    Header(usize),
    /// Our own, where the linker made none or a bad one.
    Index(FdeIndex),
}

impl EhSearch {
    fn new(module: &UnwindModule, eh_frame: &Section, bases: &BaseAddresses) -> Self {
        match module.eh_frame_hdr.as_ref().and_then(|header| check_header(header, eh_frame)) {
            Some(count) => Self::Header(count),
            None => {
                Self::Index(FdeIndex::build(&EhFrame::new(&eh_frame.bytes, LittleEndian), bases, eh_frame.bytes.len()))
            }
        }
    }
}

fn debug_frames(section: &Section) -> DebugFrame<Slice<'_>> {
    let mut frames = DebugFrame::new(&section.bytes, LittleEndian);
    frames.set_address_size(8);
    frames
}

/// The unwind tables of one module.
#[derive(Clone, Debug)]
pub struct ModuleCfi {
    module: UnwindModule,
    bases: BaseAddresses,
    /// Both are made when they are first needed: most libraries never call an allocator.
    eh_search: Option<EhSearch>,
    debug_index: Option<FdeIndex>,
}

impl ModuleCfi {
    /// Takes the sections; reads nothing yet.
    pub fn new(module: UnwindModule) -> Self {
        let mut bases = BaseAddresses::default();
        if let Some(section) = &module.eh_frame_hdr {
            bases = bases.set_eh_frame_hdr(section.addr.0);
        }
        if let Some(section) = &module.eh_frame {
            bases = bases.set_eh_frame(section.addr.0);
        }
        if let Some(text) = module.text {
            bases = bases.set_text(text.0);
        }
        if let Some(got) = module.got {
            bases = bases.set_got(got.0);
        }
        Self { module, bases, eh_search: None, debug_index: None }
    }

    /// The module as it was given.
    pub fn module(&self) -> &UnwindModule {
        &self.module
    }

    /// Whether `addr` lies in the few instructions behind the entry point: assembly that sets up the first call
    /// (`_start`, ld.so's `_dl_start_user`) and has no caller.
    pub fn is_start_code(&self, addr: ObjAddr) -> bool {
        const START_CODE: u64 = 128;
        self.module.entry.is_some_and(|entry| addr >= entry && addr.0 - entry.0 < START_CODE)
    }

    /// Whether there is any CFI at all.
    pub fn has_cfi(&self) -> bool {
        self.module.eh_frame.is_some() || self.module.debug_frame.is_some()
    }

    /// The rule for the code at `addr` (a look-up address: return addresses less one). None if no row covers it or the
    /// row can't be read.
    pub fn derive(&mut self, addr: ObjAddr, context: &mut UnwindContext<usize>, rows: &mut Rows) -> Option<Rule> {
        self.derive_from_eh_frame(addr, context, rows).or_else(|| self.derive_from_debug_frame(addr, context, rows))
    }

    /// Whether a function begins at `addr`, as the CFI says it.
    pub fn begins_function(&mut self, addr: ObjAddr) -> bool {
        let by_header = self.module.eh_frame.as_ref().is_some_and(|section| {
            let search = self.eh_search.get_or_insert_with(|| EhSearch::new(&self.module, section, &self.bases));
            match (search, &self.module.eh_frame_hdr) {
                (EhSearch::Header(count), Some(header)) => {
                    header_entry(header, *count, addr).is_some_and(|(start, _)| start == addr)
                }
                (EhSearch::Header(_), None) => false,
                (EhSearch::Index(index), _) => index.begins(addr.0),
            }
        });
        by_header || self.debug_index().is_some_and(|index| index.begins(addr.0))
    }

    /// Where the function at `addr` begins, as `.debug_frame` says it.
    pub fn start_by_debug_frame(&mut self, addr: ObjAddr) -> Option<ObjAddr> {
        self.described_by_debug_frame(addr).map(|code| code.start)
    }

    /// Where the handlers of exceptions of the function at `addr` are listed, if it has any: its language-specific data
    /// area, which C++ has in `.gcc_except_table`.
    pub fn handlers(&mut self, addr: ObjAddr) -> Option<ObjAddr> {
        let offset = self.eh_frame_offset(addr)?;
        let frames = EhFrame::new(&self.module.eh_frame.as_ref()?.bytes, LittleEndian);
        let fde = frames.fde_from_offset(&self.bases, EhFrameOffset(offset), EhFrame::cie_from_offset).ok()?;
        match fde.lsda().filter(|_| fde.contains(addr.0))? {
            gimli::Pointer::Direct(at) => Some(ObjAddr(at)),
            gimli::Pointer::Indirect(_) => None,
        }
    }

    /// The code that the CFI describes together with that at `addr`: a function, or a part of one that lies elsewhere.
    pub fn code_around(&mut self, addr: ObjAddr) -> Option<Range<ObjAddr>> {
        self.described_by_eh_frame(addr).or_else(|| self.described_by_debug_frame(addr))
    }

    fn described_by_eh_frame(&mut self, addr: ObjAddr) -> Option<Range<ObjAddr>> {
        let offset = self.eh_frame_offset(addr)?;
        let frames = EhFrame::new(&self.module.eh_frame.as_ref()?.bytes, LittleEndian);
        let fde = frames.fde_from_offset(&self.bases, EhFrameOffset(offset), EhFrame::cie_from_offset).ok()?;
        fde.contains(addr.0).then(|| ObjAddr(fde.initial_address())..ObjAddr(fde.end_address()))
    }

    fn described_by_debug_frame(&mut self, addr: ObjAddr) -> Option<Range<ObjAddr>> {
        let offset = DebugFrameOffset(self.debug_index()?.find(addr.0)?);
        let frames = debug_frames(self.module.debug_frame.as_ref()?);
        let fde = frames.fde_from_offset(&self.bases, offset, DebugFrame::cie_from_offset).ok()?;
        fde.contains(addr.0).then(|| ObjAddr(fde.initial_address())..ObjAddr(fde.end_address()))
    }

    /// Offset in `.eh_frame` of the last FDE that does not begin behind `addr`.
    fn eh_frame_offset(&mut self, addr: ObjAddr) -> Option<usize> {
        let section = self.module.eh_frame.as_ref()?;
        match self.eh_search.get_or_insert_with(|| EhSearch::new(&self.module, section, &self.bases)) {
            EhSearch::Header(count) => search_header(self.module.eh_frame_hdr.as_ref()?, *count, section, addr),
            EhSearch::Index(index) => index.find(addr.0),
        }
    }

    fn debug_index(&mut self) -> Option<&FdeIndex> {
        let section = self.module.debug_frame.as_ref()?;
        Some(
            self.debug_index
                .get_or_insert_with(|| FdeIndex::build(&debug_frames(section), &self.bases, section.bytes.len())),
        )
    }

    fn derive_from_eh_frame(
        &mut self,
        addr: ObjAddr,
        context: &mut UnwindContext<usize>,
        rows: &mut Rows,
    ) -> Option<Rule> {
        let offset = self.eh_frame_offset(addr)?;
        let frames = EhFrame::new(&self.module.eh_frame.as_ref()?.bytes, LittleEndian);
        row_at(&frames, EhFrameOffset(offset), addr, &self.bases, context)
            .and_then(|row| row.compile(&frames, self.module.bias.0, rows))
    }

    fn derive_from_debug_frame(
        &mut self,
        addr: ObjAddr,
        context: &mut UnwindContext<usize>,
        rows: &mut Rows,
    ) -> Option<Rule> {
        let offset = DebugFrameOffset(self.debug_index()?.find(addr.0)?);
        let frames = debug_frames(self.module.debug_frame.as_ref()?);
        row_at(&frames, offset, addr, &self.bases, context)
            .and_then(|row| row.compile(&frames, self.module.bias.0, rows))
    }
}

/// Bytes before the table: version, three encodings, pointer to `.eh_frame`, number of entries.
const HEADER: usize = 12;
/// Bytes of an entry: the function's start and its FDE, both from the header's own address.
const ENTRY: usize = 8;

/// The number of entries of a search table that can be trusted: in the encoding that linkers write, sorted, and
/// pointing into `.eh_frame`.
fn check_header(header: &Section, eh_frame: &Section) -> Option<usize> {
    // DW_EH_PE_udata4 count, DW_EH_PE_datarel | DW_EH_PE_sdata4 table; the pointer may be of any 4-byte encoding
    let [1, pointer, 0x03, 0x3b] = *header.bytes.first_chunk::<4>()? else { return None };
    if !matches!(pointer & 0x0f, 0x03 | 0x0b) {
        return None;
    }
    let count = header.bytes.get(8..HEADER)?.first_chunk().copied().map(u32::from_le_bytes)?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0)?;
    let table = header.bytes.get(HEADER..)?.get(..count.checked_mul(ENTRY)?)?;
    let mut last = i32::MIN;
    for entry in table.chunks_exact(ENTRY) {
        let (start, _) = read_entry(entry)?;
        if start < last {
            return None;
        }
        last = start;
    }
    let first_fde = fde_offset(header, eh_frame, read_entry(table)?.1)?;
    (first_fde < eh_frame.bytes.len()).then_some(count)
}

fn read_entry(bytes: &[u8]) -> Option<(i32, i32)> {
    let (start, rest) = bytes.split_first_chunk()?;
    Some((i32::from_le_bytes(*start), i32::from_le_bytes(*rest.first_chunk()?)))
}

fn fde_offset(header: &Section, eh_frame: &Section, relative: i32) -> Option<usize> {
    let addr = header.addr.0.wrapping_add_signed(i64::from(relative));
    usize::try_from(addr.wrapping_sub(eh_frame.addr.0)).ok()
}

/// Offset in `.eh_frame` of the last FDE that does not begin behind `addr`.
fn search_header(header: &Section, count: usize, eh_frame: &Section, addr: ObjAddr) -> Option<usize> {
    fde_offset(header, eh_frame, header_entry(header, count, addr)?.1)
}

/// The last entry of the search table that does not begin behind `addr`: where its function begins, and its FDE.
fn header_entry(header: &Section, count: usize, addr: ObjAddr) -> Option<(ObjAddr, i32)> {
    let table = header.bytes.get(HEADER..)?.get(..count * ENTRY)?;
    let (entries, _) = table.as_chunks::<ENTRY>();
    let wanted = addr.0.wrapping_sub(header.addr.0).cast_signed();
    let behind = entries.partition_point(|e| read_entry(e).is_some_and(|(start, _)| i64::from(start) <= wanted));
    let (start, fde) = read_entry(entries.get(behind.checked_sub(1)?)?)?;
    Some((ObjAddr(header.addr.0.wrapping_add_signed(i64::from(start))), fde))
}

impl FdeIndex {
    /// Reads all of a section of `size` bytes. What can't be parsed is left out, and what is behind more than a linker
    /// writes.
    fn build<'a, S>(frames: &S, bases: &BaseAddresses, size: usize) -> Self
    where
        S: UnwindSection<Slice<'a>>,
        S::Offset: UnwindOffset<usize>,
    {
        let mut index = Vec::new();
        let mut entries = frames.entries(bases);
        let mut last_cie: Option<(S::Offset, CommonInformationEntry<Slice<'a>>)> = None;
        // Each FDE names its CIE, which may be as long as the section: by turns two of them would be read for ever.
        let (mut of_cies, mut damaged) = (0, 0);
        while let Ok(Some(entry)) = entries.next() {
            if index.len() >= MAX_FDES || damaged > MAX_DAMAGED || of_cies > size.saturating_mul(MAX_CIES) {
                break;
            }
            let CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(|section, bases, offset| match &last_cie {
                Some((at, cie)) if *at == offset => Ok(cie.clone()),
                _ => {
                    let cie = section.cie_from_offset(bases, offset).inspect_err(|_| damaged += 1)?;
                    of_cies += cie.entry_len();
                    last_cie = Some((offset, cie.clone()));
                    Ok(cie)
                }
            });
            let Ok(fde) = fde else { continue };
            let (start, end) = (fde.initial_address(), fde.end_address());
            // a linker that drops a function may leave its FDE behind, at address 0
            if start != 0 && start < end {
                index.push(FdeEntry { start, offset: fde.offset() });
            }
        }
        index.sort_by_key(|entry| entry.start);
        Self(index)
    }

    fn begins(&self, addr: u64) -> bool {
        self.0.binary_search_by_key(&addr, |entry| entry.start).is_ok()
    }

    /// Offset of the last FDE that does not begin behind `addr`.
    fn find(&self, addr: u64) -> Option<usize> {
        let behind = self.0.partition_point(|entry| entry.start <= addr);
        Some(self.0.get(behind.checked_sub(1)?)?.offset)
    }
}

/// One row as gimli gives it, with what its CIE adds.
struct FoundRow<'ctx> {
    row: &'ctx gimli::UnwindTableRow<usize>,
    return_address: gimli::Register,
    signal: bool,
}

fn row_at<'a, 'ctx, S>(
    frames: &S,
    offset: S::Offset,
    addr: ObjAddr,
    bases: &BaseAddresses,
    context: &'ctx mut UnwindContext<usize>,
) -> Option<FoundRow<'ctx>>
where
    S: UnwindSection<Slice<'a>>,
{
    let fde = frames.fde_from_offset(bases, offset, S::cie_from_offset).ok()?;
    if !fde.contains(addr.0) {
        return None;
    }
    let (return_address, signal) = (fde.cie().return_address_register(), fde.is_signal_trampoline());
    let row = fde.unwind_info_for_address(frames, bases, context, addr.0).ok()?;
    Some(FoundRow { row, return_address, signal })
}

impl FoundRow<'_> {
    /// The rule of this row; None if it does not say where the return address is.
    fn compile<'a, S: UnwindSection<Slice<'a>>>(&self, section: &S, bias: u64, rows: &mut Rows) -> Option<Rule> {
        let cfa = match self.row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Cfa::Register(general_register(*register)?, *offset),
            CfaRule::Expression(expression) => {
                let bytes = expression.get(section).ok()?.0.slice();
                match register_plus_offset(bytes) {
                    Some((register, offset, true)) => Cfa::Load(register, offset),
                    Some((register, offset, false)) => Cfa::Register(register, offset),
                    None => Cfa::Expression(copy_expression(bytes, bias)),
                }
            }
        };
        let mut registers = Vec::new();
        for (register, rule) in self.row.registers() {
            let number = match register {
                r if *r == self.return_address => reg::RETURN_ADDRESS as u8,
                // vector, flag and segment registers do not matter to the walk
                r => match general_register(*r) {
                    Some(number) if usize::from(number) != reg::RETURN_ADDRESS => number,
                    _ => continue,
                },
            };
            if let Some(source) = source(rule, section, bias)? {
                registers.push((number, source));
            }
        }
        registers.sort_by_key(|(register, _)| *register);
        let (_, return_address) =
            registers.last().filter(|(register, _)| usize::from(*register) == reg::RETURN_ADDRESS)?;
        if *return_address == Source::Undefined {
            return Some(Rule::Outermost);
        }
        let row = Row { cfa, registers };
        if !self.signal
            && let Some(rule) = compact(&row)
        {
            return Some(rule);
        }
        Some(Rule::Row { row: rows.intern(row)?, signal: self.signal })
    }
}

/// The register's number, if it is one of those that the unwinder follows: 0–15 and 16, the instruction pointer.
fn general_register(register: gimli::Register) -> Option<u8> {
    u8::try_from(register.0).ok().filter(|&number| usize::from(number) <= reg::RETURN_ADDRESS)
}

/// Where `rule` finds its register: the outer None for what x86-64 does not have, the inner one for "unchanged".
#[allow(clippy::option_option, reason = "an error and the default are different answers")]
fn source<'a, S>(rule: &RegisterRule<usize>, section: &S, bias: u64) -> Option<Option<Source>>
where
    S: UnwindSection<Slice<'a>>,
{
    Some(Some(match rule {
        RegisterRule::SameValue => return Some(None),
        RegisterRule::Undefined => Source::Undefined,
        RegisterRule::Offset(offset) => Source::AtCfa(*offset),
        RegisterRule::ValOffset(offset) => Source::CfaPlus(*offset),
        RegisterRule::Register(register) => Source::Register(general_register(*register)?, 0),
        RegisterRule::Expression(expression) => {
            let bytes = expression.get(section).ok()?.0.slice();
            match register_plus_offset(bytes) {
                Some((register, offset, false)) => Source::Load(register, offset),
                _ => Source::LoadExpression(copy_expression(bytes, bias)),
            }
        }
        RegisterRule::ValExpression(expression) => {
            let bytes = expression.get(section).ok()?.0.slice();
            match register_plus_offset(bytes) {
                Some((register, offset, false)) => Source::Register(register, offset),
                Some((register, offset, true)) => Source::Load(register, offset),
                None => Source::Expression(copy_expression(bytes, bias)),
            }
        }
        RegisterRule::Constant(value) => Source::Constant(*value),
        _ => return None,
    }))
}

/// An expression that is only `DW_OP_bregN offset`, with or without a `DW_OP_deref` behind it: register, offset, and
/// whether the word there is meant.
fn register_plus_offset(bytes: &[u8]) -> Option<(u8, i64, bool)> {
    let mut operations = gimli::Expression(EndianSlice::new(bytes, LittleEndian)).operations(ENCODING);
    let Ok(Some(Operation::RegisterOffset { register, offset, .. })) = operations.next() else { return None };
    let register = general_register(register)?;
    match operations.next() {
        Ok(None) => Some((register, offset, false)),
        Ok(Some(Operation::Deref { size: 8, space: false, .. })) => {
            matches!(operations.next(), Ok(None)).then_some((register, offset, true))
        }
        _ => None,
    }
}

fn copy_expression(bytes: &[u8], bias: u64) -> Expression {
    let mut operations = gimli::Expression(EndianSlice::new(bytes, LittleEndian)).operations(ENCODING);
    let mut relocated = false;
    while let Ok(Some(operation)) = operations.next() {
        relocated |= matches!(operation, Operation::Address { .. });
    }
    Expression { bytes: Arc::from(bytes), bias: if relocated { bias } else { 0 } }
}

/// The compact form of a row, if it has one.
fn compact(row: &Row) -> Option<Rule> {
    let (base, offset) = match row.cfa {
        Cfa::Register(register, offset) if usize::from(register) == reg::RSP => (Base::Rsp, offset),
        Cfa::Register(register, offset) if usize::from(register) == reg::RBP => (Base::Rbp, offset),
        Cfa::Load(register, offset) if usize::from(register) == reg::RBP => (Base::LoadRbp, offset),
        _ => return None,
    };
    let offset = i32::try_from(offset).ok()?;
    let mut saved = [SAME; 6];
    let mut returns = false;
    for (register, source) in &row.registers {
        let register = usize::from(*register);
        if register == reg::RETURN_ADDRESS {
            returns = *source == Source::AtCfa(-8);
            continue;
        }
        let slot = CALLEE_SAVED.iter().position(|&r| r == register).and_then(|i| saved.get_mut(i));
        let bytes = match (source, base) {
            // a caller-saved register without a value: nothing that is looked at
            (Source::Undefined, _) => continue,
            (Source::AtCfa(bytes), Base::Rsp | Base::Rbp) => *bytes,
            (Source::Load(from, bytes), Base::LoadRbp) if usize::from(*from) == reg::RBP => *bytes,
            _ => return None,
        };
        if bytes % 8 != 0 {
            return None;
        }
        *slot? = i8::try_from(bytes / 8).ok().filter(|&words| words != SAME)?;
    }
    returns.then_some(Rule::Compact { base, offset, saved })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CIE whose augmentation is `long` signs of a signal frame, which are read one by one.
    fn cie(long: usize) -> Vec<u8> {
        let augmentation = [b"z".as_slice(), &vec![b'S'; long], b"\0"].concat();
        // id, version; code and data alignment, return address, length of the augmentation's data
        entry(&[b"\xff\xff\xff\xff\x01".as_slice(), &augmentation, b"\x01\x78\x10\x00"].concat())
    }

    fn fde(cie: u32, start: u64) -> Vec<u8> {
        entry(&[&cie.to_le_bytes()[..], &start.to_le_bytes(), &16u64.to_le_bytes(), b"\0"].concat())
    }

    fn entry(bytes: &[u8]) -> Vec<u8> {
        [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], bytes].concat()
    }

    fn index(long: usize, fdes: u32) -> FdeIndex {
        let mut bytes = cie(long);
        let second = u32::try_from(bytes.len()).unwrap();
        bytes.extend(cie(long));
        for number in 0..fdes {
            bytes.extend(fde(number % 2 * second, 0x1000 + u64::from(number) * 16));
        }
        let size = bytes.len();
        let section = Section { addr: ObjAddr(0), bytes: bytes.into() };
        FdeIndex::build(&debug_frames(&section), &BaseAddresses::default(), size)
    }

    /// 50,000 functions that name two CIEs of a megabyte by turns: fifty gigabytes, if they were read each time.
    #[test]
    fn an_index_takes_time_by_the_length_of_its_section() {
        let index = index(1 << 20, 50_000);
        assert!(index.begins(0x1000) && !index.begins(0x1000 + 1000 * 16));
    }

    #[test]
    fn short_entries_may_alternate() {
        assert_eq!(index(3, 50_000).0.len(), 50_000);
    }
}
