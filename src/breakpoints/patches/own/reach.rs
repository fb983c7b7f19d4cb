//! What may lead a thread to the bytes behind a function's first instruction, where a jump is to take their place.
//! Branches of the function
//! itself are seen where it is decoded (`entry.rs`); here are the others: jumps to addresses that it computes
//! ([`jumps_anywhere`]), and what else the
//! module's file holds that is the address of such a byte ([`Replaced`]).

use super::JUMP_LEN;
use crate::base::addr::Addr;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// So many instructions of code outside of a function are looked at, at most: of a part of it that lies elsewhere, or
/// of a function that it ends in.
const MAX_ELSEWHERE: usize = 1024;

/// So much code is read at once there, in bytes.
const PIECE: usize = 256;

/// Bytes before a function whose short branches may lead into it, with room for a decoder to find where instructions
/// begin.
const BEFORE: u64 = 512;

/// What a short branch reaches behind its own end, in bytes, with that end.
const SHORT: u64 = 130;

/// Whether `code`, a whole function at `at`, may jump to an address that nobody can tell, by an instruction of its own
/// or in what it jumps to: a part of
/// it that lies elsewhere, or a thunk that jumps for it. A jump to what was read from memory as a whole address is
/// none: [`Replaced`] finds those. `read` reads
/// code elsewhere.
pub fn jumps_anywhere(code: &[u8], at: Addr, read: &dyn Fn(Addr, &mut [u8]) -> usize) -> bool {
    let body = at.0..at.0 + code.len() as u64;
    let own = Flow::of(Decoder::with_ip(64, code, at.0, DecoderOptions::NONE).into_iter().collect(), at.0);
    if own.jumps_unknown(true) || own.code.values().any(|one| calls_into(one, &body)) {
        return true;
    }
    own.leaves(&body).into_iter().any(|target| {
        let part = Flow::elsewhere(target, &body, read);
        let comes_back = part.code.values().any(|one| is_behind_first(one.near_branch_target(), &body));
        let is_retpoline = || part.code.get(&target).is_some_and(|first| calls_retpoline(first, read));
        let is_thunk = || is_retpoline() || part.jumps_by_what_it_was_given();
        comes_back && part.jumps_unknown(false) || is_thunk()
    })
}

/// Whether the first instruction of `code` is as long as a jump, so that nothing but itself is replaced.
pub fn first_has_room(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    decoder.can_decode() && decoder.decode().len() >= JUMP_LEN
}

/// A call of a function into itself, but for its beginning, leaves an address behind that it jumps to in place of a
/// return.
fn calls_into(one: &Instruction, body: &Range<u64>) -> bool {
    one.flow_control() == FlowControl::Call && is_behind_first(one.near_branch_target(), body)
}

/// So many instructions of what a retpoline calls lead to its return.
const OF_RETPOLINE: usize = 4;

/// Whether an instruction calls code that puts another address in the place of its own return address, and returns to
/// that.
fn calls_retpoline(one: &Instruction, read: &dyn Fn(Addr, &mut [u8]) -> usize) -> bool {
    if one.flow_control() != FlowControl::Call {
        return false;
    }
    let (target, mut piece) = (one.near_branch_target(), [0; 64]);
    let n = read(Addr(target), &mut piece);
    let decoded = Decoder::with_ip(64, piece.get(..n).unwrap_or_default(), target, DecoderOptions::NONE);
    let mut left = Vec::new();
    for one in decoded.into_iter().take(OF_RETPOLINE) {
        left.push(one);
        if one.flow_control() != FlowControl::Next {
            break;
        }
    }
    Flow::of(left, target).jumps_unknown(true)
}

fn is_behind_first(target: u64, body: &Range<u64>) -> bool {
    body.start < target && target < body.end
}

/// Instructions by their addresses, and which lead to each.
pub(super) struct Flow {
    pub(super) code: BTreeMap<u64, Instruction>,
    before: FxHashMap<u64, Vec<u64>>,
    entry: u64,
}

impl Flow {
    fn of(all: Vec<Instruction>, entry: u64) -> Self {
        let mut before: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
        for one in &all {
            for next in next_of(one).into_iter().flatten() {
                before.entry(next).or_default().push(one.ip());
            }
        }
        Self { code: all.into_iter().map(|one| (one.ip(), one)).collect(), before, entry }
    }

    /// What is executed from `entry` on, outside of `body`, as far as direct branches lead.
    pub(super) fn elsewhere(entry: u64, body: &Range<u64>, read: &dyn Fn(Addr, &mut [u8]) -> usize) -> Self {
        let (mut known, mut wanted) = (BTreeMap::new(), vec![entry]);
        while let Some(start) = wanted.pop() {
            let mut piece = [0; PIECE];
            let n = read(Addr(start), &mut piece);
            for one in Decoder::with_ip(64, piece.get(..n).unwrap_or_default(), start, DecoderOptions::NONE) {
                if one.is_invalid() {
                    // cut off by the piece's end
                    if one.ip() > start && known.len() < MAX_ELSEWHERE {
                        wanted.push(one.ip());
                    }
                    break;
                }
                if known.len() >= MAX_ELSEWHERE || known.contains_key(&one.ip()) {
                    break;
                }
                known.insert(one.ip(), one);
                let [next, target] = next_of(&one);
                wanted.extend(target.filter(|target| !body.contains(target)));
                if next.is_none() {
                    break;
                }
            }
        }
        Self::of(known.into_values().collect(), entry)
    }

    /// Where it goes on outside of `body`.
    fn leaves(&self, body: &Range<u64>) -> BTreeSet<u64> {
        let all = self.code.values().flat_map(next_of).flatten();
        all.filter(|target| !body.contains(target)).collect()
    }

    /// Whether one of its jumps may lead anywhere. `is_whole`: what a register holds at its beginning is its caller's.
    fn jumps_unknown(&self, is_whole: bool) -> bool {
        self.code.values().any(|one| match one.flow_control() {
            FlowControl::IndirectBranch => !self.is_loaded(one, is_whole),
            FlowControl::Return => self.returns_elsewhere(one),
            _ => false,
        })
    }

    /// Whether it jumps to an address that whoever jumped here has put into a register.
    fn jumps_by_what_it_was_given(&self) -> bool {
        self.code.values().any(|one| {
            one.flow_control() == FlowControl::IndirectBranch
                && self.is_loaded(one, true)
                && !self.is_loaded(one, false)
        })
    }

    /// Whether an indirect jump goes to an address that was read from memory as such.
    fn is_loaded(&self, jump: &Instruction, is_whole: bool) -> bool {
        match jump.op0_kind() {
            OpKind::Memory => !is_on_stack(jump),
            OpKind::Register => {
                self.holds_loaded(jump.ip(), jump.op0_register().full_register(), is_whole, &mut FxHashSet::default())
            }
            _ => false,
        }
    }

    /// Whether `register` holds an address that was read from memory as such wherever the instruction at `ip` is come
    /// to.
    fn holds_loaded(&self, ip: u64, register: Register, is_whole: bool, seen: &mut FxHashSet<(u64, Register)>) -> bool {
        let mut wanted = vec![(ip, register)];
        let mut infos = InstructionInfoFactory::new();
        while let Some((ip, register)) = wanted.pop() {
            let before = self.before.get(&ip).map(Vec::as_slice).unwrap_or_default();
            if ip == self.entry && !is_whole || before.is_empty() && ip != self.entry {
                return false;
            }
            for from in before.iter().filter_map(|ip| self.code.get(ip)) {
                if !seen.insert((from.ip(), register)) {
                    continue;
                }
                let is_call = matches!(from.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
                if is_call && !is_kept_by_calls(register) {
                    return false;
                }
                let writes = infos.info(from).used_registers().iter().any(|used| {
                    let is_written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
                    is_written && used.register().full_register() == register
                });
                let is_move = matches!(from.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64);
                match (writes, is_move, from.op1_kind()) {
                    (false, ..) => wanted.push((from.ip(), register)),
                    (true, true, OpKind::Memory) if !is_on_stack(from) => {}
                    // as a return does
                    _ if from.mnemonic() == Mnemonic::Pop && !self.returns_elsewhere(from) => {}
                    (true, true, OpKind::Register) => wanted.push((from.ip(), from.op1_register().full_register())),
                    _ => return false,
                }
            }
        }
        true
    }

    /// Whether a return, or the pop in its place, finds an address that was put on the stack just before, as retpolines
    /// do.
    fn returns_elsewhere(&self, ret: &Instruction) -> bool {
        let before = self.before.get(&ret.ip()).map(Vec::as_slice).unwrap_or_default();
        before.iter().filter_map(|ip| self.code.get(ip)).any(|one| {
            one.mnemonic() == Mnemonic::Push
                || one.op0_kind() == OpKind::Memory
                    && one.memory_base() == Register::RSP
                    && one.memory_displacement64() == 0
                    && one.mnemonic() != Mnemonic::Cmp
        })
    }
}

/// Where a thread goes on behind an instruction: at the next one, at the target of its branch.
fn next_of(one: &Instruction) -> [Option<u64>; 2] {
    let target = Some(one.near_branch_target()).filter(|target| *target != 0);
    match one.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => {
            [Some(one.next_ip()), None]
        }
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => [Some(one.next_ip()), target],
        FlowControl::UnconditionalBranch => [None, target],
        FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Exception => [None, None],
    }
}

/// Whether an instruction reads or writes what may be a variable of the function itself, which may have been computed.
fn is_on_stack(one: &Instruction) -> bool {
    matches!(one.memory_base(), Register::RSP | Register::RBP)
}

/// As the psABI has it.
fn is_kept_by_calls(register: Register) -> bool {
    use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
    matches!(register, RBX | RBP | RSP | R12 | R13 | R14 | R15)
}

/// So many bytes of an instruction's opcode are looked at before its distance.
const OPCODES: usize = 3;

/// So many bytes are looked through at once for distances into a range: small enough for the looks at the four
/// alignments to find them in the processor's first cache.
const BLOCK: usize = 1 << 12;

/// The bytes of some functions that jumps are to replace, but for each one's first: nothing may lead there. All
/// addresses are of the same kind, the
/// object's or the process's.
#[derive(Clone, Debug)]
pub struct Replaced {
    /// Where the functions begin, in ascending order.
    entries: Vec<u64>,
    /// From the first replaced byte to the last.
    all: Range<u64>,
}

impl Replaced {
    /// Of the functions that begin at `entries`.
    pub fn of(entries: impl IntoIterator<Item = u64>) -> Self {
        let entries: Vec<u64> = entries.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let first = entries.first().map_or(u64::MAX, |first| first.saturating_add(1));
        let end = entries.last().map_or(0, |last| last.saturating_add(JUMP_LEN as u64));
        Self { entries, all: first..end }
    }

    /// Whether `target` is one of them.
    pub fn holds(&self, target: u64) -> bool {
        self.find(target).is_some()
    }

    /// The function whose replaced bytes hold `target`.
    #[inline]
    fn find(&self, target: u64) -> Option<u64> {
        if !self.all.contains(&target) {
            return None;
        }
        let behind = self.entries.partition_point(|entry| *entry < target);
        let entry = *self.entries.get(behind.checked_sub(1)?)?;
        (target - entry < JUMP_LEN as u64).then_some(entry)
    }

    /// Functions that whole addresses in `bytes`, which lie at `at`, lead into: pointers, the addends of relocations,
    /// values of symbols. They are aligned.
    pub fn led_into_by_words(&self, bytes: &[u8], at: u64) -> BTreeSet<u64> {
        let skipped = usize::try_from(at.next_multiple_of(8) - at).unwrap_or(0);
        let (words, _) = bytes.get(skipped..).unwrap_or_default().as_chunks::<8>();
        words.iter().filter_map(|word| self.find(u64::from_le_bytes(*word))).collect()
    }

    /// The same by halves of addresses, as code and tables that are not moved have them: anywhere.
    pub fn led_into_by_halves(&self, bytes: &[u8]) -> BTreeSet<u64> {
        if self.all.start > u64::from(u32::MAX) {
            return BTreeSet::new();
        }
        let halves = bytes.windows(4).filter_map(|half| half.first_chunk());
        halves.filter_map(|half| self.find(u32::from_le_bytes(*half).into())).collect()
    }

    /// Functions that branches in the code `bytes` at `at`, or addresses that it forms, lead into, wherever an
    /// instruction may begin: branches and calls with
    /// four bytes of distance, and lea.
    pub fn led_into_by_code(&self, bytes: &[u8], at: u64) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for start in (0..bytes.len()).step_by(BLOCK) {
            // The last window that begins in a block ends behind it.
            let block = bytes.get(start..bytes.len().min(start + BLOCK + OPCODES + 3)).unwrap_or_default();
            let at = at.wrapping_add(start as u64);
            if self.may_be_led_into_by(block, at) {
                self.look_at_code(block, at, &mut found);
            }
        }
        found
    }

    /// Whether a distance of four bytes in the code `bytes` at `at` may lead to the replaced bytes. Of the addresses
    /// only the lower halves are looked at, four alignments one after the other: compilers make vector code of that.
    fn may_be_led_into_by(&self, bytes: &[u8], at: u64) -> bool {
        let (first, size) = (self.all.start as u32, self.all.end.saturating_sub(self.all.start));
        let Ok(size) = u32::try_from(size) else { return true };
        (0..4).any(|alignment| {
            let distances = bytes.get(OPCODES + alignment..).unwrap_or_default().as_chunks::<4>().0;
            let mut from_first = (at as u32).wrapping_add((OPCODES + alignment + 4) as u32).wrapping_sub(first);
            let mut any = false;
            for distance in distances {
                any |= from_first.wrapping_add(u32::from_le_bytes(*distance)) < size;
                from_first = from_first.wrapping_add(4);
            }
            any
        })
    }

    fn look_at_code(&self, bytes: &[u8], at: u64, found: &mut BTreeSet<u64>) {
        for (offset, window) in bytes.windows(OPCODES + 4).enumerate() {
            let Some(&[a, b, c, ref distance @ ..]) = window.first_chunk::<{ OPCODES + 4 }>() else { break };
            let next = at.wrapping_add((offset + window.len()) as u64);
            let target = next.wrapping_add_signed(i32::from_le_bytes(*distance).into());
            if let Some(entry) = self.find(target)
                && (matches!(c, 0xe8 | 0xe9)
                    || b == 0x0f && c & 0xf0 == 0x80
                    || a & 0xf0 == 0x40 && b == 0x8d && c & 0xc7 == 0x05
                    || a == 0xc7 && b == 0xf8)
            {
                found.insert(entry);
            }
        }
    }

    /// Functions that short branches around them lead into, in the code `bytes` at `at`, `ends` being where each
    /// function ends. Code is decoded from some way before, so that the decoder
    /// has found where instructions begin.
    pub fn led_into_by_neighbours(&self, bytes: &[u8], at: u64, ends: &BTreeMap<u64, u64>) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for (&entry, &end) in ends {
            for around in [entry.saturating_sub(BEFORE)..entry, end..end.saturating_add(SHORT)] {
                let start = around.start.max(at);
                let offset = |addr: u64| usize::try_from(addr.saturating_sub(at)).unwrap_or(usize::MAX);
                let range = offset(start)..offset(around.end).min(bytes.len());
                let code = bytes.get(range).unwrap_or_default();
                let decoded = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
                found.extend(decoded.into_iter().filter_map(|one| self.find(one.near_branch_target())));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
