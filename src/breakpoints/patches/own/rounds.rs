//! Functions that branch back to their own first instruction: a loop that tries again, or a tail call of itself. A
//! probe there is hit once more in the same call.

use super::reach::Flow;
use crate::base::addr::Addr;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use std::collections::BTreeSet;

/// So many places outside of a function that it branches to are looked at, at most.
const MAX_PARTS: usize = 32;

/// Whether `code`, a whole function at `at`, may branch to its own first instruction, by a direct branch in it or in
/// code that it branches to: a part that the compiler has put elsewhere (`NAME.cold`). A call of itself is none.
///
/// `part` gives the code around an address outside of the function, and where that begins; None if nobody knows how far
/// it reaches.
pub fn loops_to_entry(code: &[u8], at: Addr, part: &mut dyn FnMut(Addr) -> Option<(Addr, Vec<u8>)>) -> bool {
    let body = at.0..at.0.saturating_add(code.len() as u64);
    let own = branches(code, at);
    if own.contains(&at.0) {
        return true;
    }
    let mut seen = BTreeSet::new();
    own.into_iter().filter(|target| !body.contains(target)).take(MAX_PARTS).any(|target| {
        let Some((start, code)) = part(Addr(target)) else { return false };
        seen.insert(start) && branches(&code, start).contains(&at.0)
    })
}

/// The same of a function of which nobody knows how long it is: as far as direct branches lead from its beginning.
/// `read` reads its code.
pub fn flows_to_entry(at: Addr, read: &dyn Fn(Addr, &mut [u8]) -> usize) -> bool {
    let flow = Flow::elsewhere(at.0, &(at.0..at.0), read);
    flow.code.values().any(|one| is_branch(one) && one.near_branch_target() == at.0)
}

/// Where the direct branches in `code`, which lies at `at`, lead to; calls are none.
fn branches(code: &[u8], at: Addr) -> BTreeSet<u64> {
    let decoded = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
    decoded.into_iter().filter(is_branch).map(|one| one.near_branch_target()).filter(|target| *target != 0).collect()
}

fn is_branch(one: &Instruction) -> bool {
    matches!(
        one.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::XbeginXabortXend
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Addr = Addr(0x7f00_0000_1000);

    fn loops(code: &[u8]) -> bool {
        loops_to_entry(code, AT, &mut |_| None)
    }

    #[test]
    fn each_kind_of_direct_branch_to_the_first_byte_is_one() {
        // nop; then jmp, jne, loop, jrcxz to the nop; ret
        for opcode in [0xeb, 0x75, 0xe2, 0xe3] {
            assert!(loops(&[0x90, opcode, 0xfd, 0xc3]), "{opcode:#x}");
            // to itself
            assert!(!loops(&[0x90, opcode, 0xfe, 0xc3]), "{opcode:#x}");
        }
        // with four bytes of distance; xbegin, whose target is where an abort goes on
        assert!(loops(&[0x90, 0x0f, 0x84, 0xf9, 0xff, 0xff, 0xff, 0xc3]));
        assert!(loops(&[0x90, 0xc7, 0xf8, 0xf9, 0xff, 0xff, 0xff, 0xc3]));
        // a call of itself is another call
        assert!(!loops(&[0x90, 0xe8, 0xfa, 0xff, 0xff, 0xff, 0xc3]));
        // the bytes of a branch within another instruction: mov eax, 0xfceb; ret
        assert!(!loops(&[0xb8, 0xeb, 0xfe, 0x00, 0x00, 0xc3]));
        assert!(!loops(&[]));
    }

    #[test]
    fn without_a_length_it_is_what_branches_lead_to() {
        // test rdi, rdi; je +1; ret; pause; then jmp to the beginning
        let code = [0x48, 0x85, 0xff, 0x74, 0x01, 0xc3, 0xf3, 0x90, 0xeb, 0xf6];
        let flows = |code: Vec<u8>| {
            flows_to_entry(AT, &move |at, to| {
                let rest = code.get((at.0 - AT.0) as usize..).unwrap_or_default();
                let n = rest.len().min(to.len());
                to[..n].copy_from_slice(&rest[..n]);
                n
            })
        };
        assert!(flows(code.to_vec()));
        // what stands behind its end is another function
        assert!(!flows([&code[..3], &[0xc3], &code[4..]].concat()));
        assert!(!flows(Vec::new()));
    }

    #[test]
    fn a_part_that_lies_elsewhere_may_branch_back() {
        let cold = AT.add(0x100);
        // je to the cold part's second instruction; ret
        let code = [0x0f, 0x84, 0xfb, 0, 0, 0, 0xc3];
        let back = |distance: i32| [&[0x90, 0xe9][..], &distance.to_le_bytes()].concat();
        let known = |bytes: Vec<u8>| move |addr: Addr| (addr == cold.add(1)).then(|| (cold, bytes.clone()));
        assert!(loops_to_entry(&code, AT, &mut known(back(-0x106))));
        assert!(!loops_to_entry(&code, AT, &mut known(back(-0x105))), "behind the first byte");
        assert!(!loops(&code), "nobody knows how far it reaches");
    }
}
