use proptest::prelude::*;

use super::*;
use crate::arch::step::Resume;

const MODULE: ModuleId = ModuleId(3);
/// push r12
const PUSH_R12: &[u8] = &[0x41, 0x54];
/// mov rax, [rip+0x10]
const LOAD: &[u8] = &[0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
/// mov qword [rsp+0x100], 1: its pad takes more than one slot
const STORE: &[u8] = &[0x48, 0xc7, 0x84, 0x24, 0, 1, 0, 0, 1, 0, 0, 0];

fn allocate(pads: &mut OwnCode, code: &[u8], at: u64) -> Result<PlacedPad, PadError> {
    pads.allocate(code, Addr(at), MODULE)
}

#[test]
fn takes_the_nearest_region_with_room() {
    let mut pads = OwnCode::default();
    pads.add_region(Addr(0x9_0000), 0x100, None);
    pads.add_region(Addr(0x1_1f01), 0x2f, Some(MODULE)); // two slots after alignment
    let places: Vec<u64> = (0..3).map(|i| allocate(&mut pads, PUSH_R12, 0x1_0000 + i).unwrap().addr.0).collect();
    assert_eq!(places, [0x1_1f10, 0x1_1f20, 0x9_0000]);
    // a pad of push r12 takes 7 bytes
    assert_eq!(pads.ranges(None), [Addr(0x1_1f10)..Addr(0x1_1f27), Addr(0x9_0000)..Addr(0x9_0007)]);
    assert_eq!(pads.ranges(Some(Addr(0x1_1f10))), [Addr(0x1_1f20)..Addr(0x1_1f27), Addr(0x9_0000)..Addr(0x9_0007)]);
}

#[test]
fn slack_of_another_module_is_not_used() {
    let mut pads = OwnCode::default();
    pads.add_region(Addr(0x2_0000), 0x100, Some(ModuleId(4)));
    assert_eq!(allocate(&mut pads, PUSH_R12, 0x1_0000), Err(PadError::NoRoom { at: Addr(0x1_0000) }));
}

#[test]
fn space_is_taken_once() {
    let mut pads = OwnCode::default();
    pads.add_region(Addr(0x2_0000), 0x20, None);
    pads.add_region(Addr(0x1_fff0), 0x40, None);
    pads.add_region(Addr(u64::MAX - 3), 0x40, None);
    assert!(allocate(&mut pads, PUSH_R12, 0x1_0000).is_ok());
    assert!(allocate(&mut pads, PUSH_R12, 0x1_0001).is_ok());
    assert_eq!(allocate(&mut pads, PUSH_R12, 0x1_0002), Err(PadError::NoRoom { at: Addr(0x1_0002) }));
}

#[test]
fn what_cannot_be_moved_is_told_from_want_of_room() {
    let mut pads = OwnCode::default();
    let call: &[u8] = &[0xe8, 0, 0, 0, 0];
    let far_call: &[u8] = &[0xff, 0x1f];
    let denied = allocate(&mut pads, far_call, 0x1000);
    assert_eq!(denied, Err(PadError::Step(StepError::NotRelocatable { at: Addr(0x1000) })));
    assert_eq!(allocate(&mut pads, call, 0x1000), Err(PadError::NoRoom { at: Addr(0x1000) }));
}

#[test]
fn a_region_out_of_reach_is_passed_over() {
    let mut pads = OwnCode::default();
    pads.add_region(Addr(0x7f00_0000_0000), 0x100, None);
    pads.add_region(Addr(0x7eff_0000_0000), 0x100, None);
    assert_eq!(allocate(&mut pads, LOAD, 0x7eff_7000_0000).unwrap().addr, Addr(0x7eff_0000_0000));
    assert_eq!(allocate(&mut pads, LOAD, 0x7efe_7000_0000), Err(PadError::NoRoom { at: Addr(0x7efe_7000_0000) }));
}

#[test]
fn pads_vanish_with_their_region_only() {
    let mut pads = OwnCode::default();
    pads.add_region(Addr(0x2_0000), 0x100, None);
    pads.add_region(Addr(0x3_0000), 0x100, Some(MODULE));
    let near = allocate(&mut pads, PUSH_R12, 0x3_1000).unwrap().addr;
    let far = allocate(&mut pads, PUSH_R12, 0x1_0000).unwrap().addr;
    assert_eq!((near, far), (Addr(0x3_0000), Addr(0x2_0000)));
    pads.forget(&(Addr(0x3_0000)..Addr(0x4_0000)));
    assert_eq!(pads.locate(near), None);
    assert!(pads.locate(far).is_some());
}

proptest! {
    #[test]
    fn pads_are_disjoint_and_found_again(
        regions in prop::collection::vec((0x1000_u64..0x8000, 0_u64..200), 1..6),
        sites in prop::collection::vec((0x1_0000_u64..0x2_0000, prop::sample::select(vec![PUSH_R12, LOAD, STORE])), 1..40),
    ) {
        let mut pads = OwnCode::default();
        for (start, len) in regions {
            pads.add_region(Addr(start), len, None);
        }
        let mut placed: Vec<(Addr, u64, u64)> = Vec::new();
        for (at, code) in sites {
            // a breakpoint that comes back finds its pad again
            if placed.iter().any(|(_, _, known)| *known == at) {
                continue;
            }
            let Ok(pad) = allocate(&mut pads, code, at) else { continue };
            prop_assert_eq!(pad.addr.0 % ALIGNMENT, 0);
            let len = pad.bytes.len() as u64;
            // A site that comes up again keeps its pad.
            if placed.contains(&(pad.addr, len, at)) {
                continue;
            }
            for &(other, other_len, _) in &placed {
                prop_assert!(other.0 + other_len <= pad.addr.0 || pad.addr.0 + len <= other.0);
            }
            prop_assert!(pads.ranges(None).iter().any(|used| used.start <= pad.addr && pad.addr.0 + len <= used.end.0));
            placed.push((pad.addr, len, at));
            // before the instruction, and before the jump back
            for (offset, expected) in [(0, at), (code.len() as u64, at + code.len() as u64)] {
                let resume = Resume { pc: Addr(expected), drop: 0 };
                prop_assert_eq!(pads.locate(pad.addr.add(offset)), Some(PcLocation::Pad(resume)));
            }
            prop_assert_eq!(pads.locate(pad.addr.add(1)), Some(PcLocation::Own));
            prop_assert_eq!(pads.locate(pad.addr.add(len)), None);
        }
    }
}
