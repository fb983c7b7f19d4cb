use super::*;
use crate::base::addr::ModuleId;
use proptest::prelude::*;

const BASE: u64 = 0x7000;

fn jump(original: &[u8]) -> Patch {
    let mut new = vec![0x90; original.len()];
    new[0] = 0xe9;
    Patch::new(original, &new).unwrap()
}

#[test]
fn a_patch_has_1_to_16_bytes() {
    assert_eq!(Patch::new(&[], &[]), None);
    assert_eq!(Patch::new(&[1, 2], &[3]), None);
    assert_eq!(Patch::new(&[1; 17], &[2; 17]), None);
    let longest = Patch::new(&[1; 16], &[2; 16]).unwrap();
    assert_eq!((longest.len(), longest.original(), longest.replacement()), (16, &[1; 16][..], &[2; 16][..]));
    assert_eq!(Patch::int3(0x55), Patch::new(&[0x55], &[INT3]).unwrap());
}

/// Whatever the moment at which its writer was killed.
#[test]
fn a_patch_is_known_at_each_step_of_its_writing() {
    let patch = Patch::new(&[1, 2, 3, 4, 5], &[0xe9, 7, 8, 9, 10]).unwrap();
    assert!(patch.is_known(&[1, 2, 3, 4, 5]) && !patch.is_written(&[1, 2, 3, 4, 5]));
    for found in [[INT3, 2, 3, 4, 5], [INT3, 7, 8, 4, 5], [INT3, 7, 8, 9, 10], [0xe9, 7, 8, 9, 10], [INT3, 2, 3, 4, 5]]
    {
        assert!(patch.is_written(&found), "{found:x?}");
    }
    for other in [&[0x77, 2, 3, 4, 5][..], &[1, 2, INT3, 4, 5], &[1, 2, 3, 4], &[]] {
        assert!(!patch.is_known(other) && !patch.is_written(other), "{other:x?}");
    }
}

#[test]
fn a_program_counter_is_found_in_what_is_ours() {
    let mut patches = Patches::default();
    patches.insert(Addr(0x1000), Patch::int3(0x55));
    patches.insert(Addr(0x2000), jump(&[0x41, 0x54, 0x55, 0x53, 0x90]));
    patches.remove(Addr(0x2000));
    patches.own.add_region(Addr(0x3000), 0x400, None);
    let pad = patches.own.allocate(&[0x41, 0x54], Addr(0x1000), ModuleId(1)).unwrap();
    let call = patches.own.reserve(144, OwnKind::RemoteCall).unwrap();
    let fallback = patches.own.reserve(100, OwnKind::SigtrapFallback).unwrap();
    patches.own.note(Addr(0x5000), 16);
    assert_eq!((patches.own.remote_call(), patches.own.sigtrap_fallback()), (Some(call), Some(fallback)));
    let resume = |pc: u64| PcLocation::Pad(Resume { pc: Addr(pc), drop: 0 });
    for (pc, expected) in [
        (Addr(0x1000), PcLocation::Program),
        (Addr(0x1001), PcLocation::BehindTrap(Addr(0x1000))),
        (Addr(0x1002), PcLocation::Program),
        (Addr(0x2001), PcLocation::BehindTrap(Addr(0x2000))),
        (pad.addr, resume(0x1000)),
        (pad.addr.add(1), PcLocation::Own),
        (pad.addr.add(2), resume(0x1002)),
        (pad.addr.add(pad.bytes.len() as u64), PcLocation::Program),
        (call, PcLocation::RemoteCall),
        (call.add(143), PcLocation::RemoteCall),
        (call.add(144), PcLocation::Own),
        (fallback.add(99), PcLocation::Own),
        (fallback.add(100), PcLocation::Program),
        (Addr(0x500f), PcLocation::Own),
        (Addr(0x5010), PcLocation::Program),
    ] {
        assert_eq!(patches.locate(pc), expected, "{pc}");
    }
    patches.forget(&(Addr(0x1000)..Addr(0x6000)));
    for pc in [0x1001, 0x2001, 0x3000, 0x5000, call.0, fallback.0] {
        assert_eq!(patches.locate(Addr(pc)), PcLocation::Program, "{pc:x}");
    }
    assert_eq!((patches.own.remote_call(), patches.own.sigtrap_fallback()), (None, None));
}

#[test]
fn what_was_removed_is_remembered_until_its_memory_is_another_s() {
    let mut patches = Patches::default();
    for addr in [0xfff, 0x1000, 0x1fff, 0x2000] {
        patches.insert(Addr(addr), Patch::int3(0x90));
    }
    patches.remove(Addr(0x1000));
    patches.remove(Addr(0x2000));
    assert!(patches.get(Addr(0x1000)).is_none() && patches.is_or_was_at(Addr(0x1000)));
    assert_eq!(patches.removed_from(Addr(0x1000)), Some(&Patch::int3(0x90)));
    assert_eq!(patches.ever().into_keys().collect::<Vec<_>>(), [0xfff, 0x1000, 0x1fff, 0x2000].map(Addr));
    patches.insert(Addr(0x2000), Patch::int3(0x91));
    assert_eq!(patches.removed_from(Addr(0x2000)), None);
    patches.forget(&(Addr(0x1000)..Addr(0x2000)));
    assert_eq!(patches.ever().into_keys().collect::<Vec<_>>(), [Addr(0xfff), Addr(0x2000)]);
}

#[test]
fn a_range_at_either_end_of_the_address_space_is_no_panic() {
    let mut patches = Patches::default();
    patches.insert(Addr(u64::MAX - 1), Patch::int3(0x90));
    patches.insert(Addr(0), Patch::int3(0x55));
    let mut bytes = [INT3; 16];
    patches.mask(Addr(u64::MAX - 3), &mut bytes);
    assert_eq!(bytes[..4], [INT3, INT3, 0x90, INT3]);
    let mut bytes = [INT3; 2];
    patches.mask(Addr(0), &mut bytes);
    assert_eq!(bytes, [0x55, INT3]);
    patches.mask(Addr(5), &mut []);
}

proptest! {
    /// Against memory in which patches of all lengths are really written, wholly or only begun; read through windows
    /// that cut them anywhere.
    #[test]
    fn masking_gives_the_original_back(
        code in prop::collection::vec(any::<u8>(), 1..300),
        operations in prop::collection::vec((0_usize..300, prop::sample::select(vec![1_usize, 2, 5, 16]), 0_usize..4), 0..60),
        window in (0_usize..300, 0_usize..300),
    ) {
        let (mut patches, mut memory) = (Patches::default(), code.clone());
        let mut free = vec![true; code.len()];
        for (at, len, how) in operations {
            let Some(original) = code.get(at..at + len) else { continue };
            let addr = Addr(BASE + at as u64);
            if how == 0 {
                if let Some(patch) = patches.get(addr).copied() {
                    patches.remove(addr);
                    memory[at..at + patch.len()].copy_from_slice(patch.original());
                    free[at..at + patch.len()].fill(true);
                }
            } else if free[at..at + len].iter().all(|free| *free) {
                let patch = if len == 1 { Patch::int3(original[0]) } else { jump(original) };
                patches.insert(addr, patch);
                let written = if how == 1 { 1 } else { len };
                memory[at..at + written].copy_from_slice(&patch.replacement()[..written]);
                if how < 3 {
                    memory[at] = INT3;
                }
                free[at..at + len].fill(false);
            }
        }
        let (from, to) = (window.0.min(code.len()), (window.0 + window.1).min(code.len()));
        let mut bytes = memory[from..to].to_vec();
        patches.mask(Addr(BASE + from as u64), &mut bytes);
        prop_assert_eq!(&bytes[..], &code[from..to]);
    }

    /// What the program has written over a patch is the program's.
    #[test]
    fn what_the_program_has_written_over_a_patch_stays(at in 0_usize..16, len in 1_usize..=16, byte in 1_u8..0x80) {
        let original = [0; 16];
        let patch = Patch::new(&original[..len], &[0xff; 16][..len]).unwrap();
        let mut patches = Patches::default();
        patches.insert(Addr(BASE), patch);
        let mut memory = patch.replacement().to_vec();
        if let Some(written) = memory.get_mut(at) {
            *written = byte;
        }
        let before = memory.clone();
        patches.mask(Addr(BASE), &mut memory);
        prop_assert_eq!(memory, if at < len { before } else { original[..len].to_vec() });
    }
}
