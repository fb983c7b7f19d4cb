use std::collections::HashMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

fn site(original: u8) -> Site {
    Site { original, planned: Planned { step: crate::arch::step::StepOver::Pad, len: 2 }, module: ModuleId(1) }
}

fn add(table: &mut BreakpointTable, addr: u64, purpose: Purpose, original: u8) -> Added {
    table.add(Addr(addr), purpose, || Ok::<_, Infallible>(site(original))).unwrap()
}

#[test]
fn an_entry_vanishes_with_its_last_purpose() {
    let mut table = BreakpointTable::default();
    assert_eq!(add(&mut table, 0x1000, Purpose::Entry(FunctionId(7)), 0x55), Added::Write);
    assert_eq!(add(&mut table, 0x1000, Purpose::Return, 0), Added::Present);
    assert_eq!(table.remove(Addr(0x1000), Purpose::Entry(FunctionId(8))), Removed::Kept);
    assert_eq!(table.get(Addr(0x1000)).unwrap().purposes.entry, Some(FunctionId(7)));
    assert_eq!(table.remove(Addr(0x1000), Purpose::Return), Removed::Kept);
    assert!(!table.was_removed(Addr(0x1000)));
    assert_eq!(table.remove(Addr(0x1000), Purpose::Entry(FunctionId(7))), Removed::Restore(0x55));
    assert!(table.is_empty());
    assert!(table.was_removed(Addr(0x1000)));
    assert_eq!(table.remove(Addr(0x1000), Purpose::Return), Removed::Absent);
}

#[test]
fn a_site_of_one_shot_goes_at_once() {
    let mut table = BreakpointTable::default();
    assert_eq!(add(&mut table, 0x1000, Purpose::ReturnOnce, 0x90), Added::Write);
    assert_eq!(add(&mut table, 0x1000, Purpose::ReturnOnce, 0), Added::Present);
    assert!(table.get(Addr(0x1000)).unwrap().purposes.is_return());
    assert_eq!(table.remove(Addr(0x1000), Purpose::ReturnOnce), Removed::Restore(0x90));
    assert_eq!(table.removed_original(Addr(0x1000)), Some(0x90));
}

#[test]
fn a_return_site_that_others_pass_is_to_be_demoted() {
    let mut table = BreakpointTable::default();
    assert_eq!(add(&mut table, 0x1000, Purpose::Return, 0x90), Added::Write);
    let site = table.get_mut(Addr(0x1000)).unwrap();
    assert!((0..10).all(|_| !site.count_return(true)));
    assert_eq!((1..1000).find(|_| site.count_return(false)), Some(88), "8 for each useful hit, and more");
    let mut useless = Breakpoint { useful: 0, spurious: 0, ..*site };
    assert_eq!((1..1000).find(|_| useless.count_return(false)), Some(65));
    useless.purposes.returns = false;
    assert!(!useless.count_return(false), "it is of one shot already");
}

#[test]
fn a_site_that_fails_leaves_no_breakpoint() {
    let mut table = BreakpointTable::default();
    assert_eq!(table.add(Addr(0x1000), Purpose::Return, || Err("unreadable")), Err("unreadable"));
    assert!(table.is_empty() && !table.was_removed(Addr(0x1000)));
}

#[test]
fn a_new_module_at_an_old_range_starts_clean() {
    let mut table = BreakpointTable::default();
    for addr in [0xfff, 0x1000, 0x1fff, 0x2000] {
        assert_eq!(add(&mut table, addr, Purpose::Return, 0x90), Added::Write);
    }
    assert_eq!(table.remove_range(Addr(0x1000), Addr(0x2000)), 2);
    assert!(table.was_removed(Addr(0x1000)) && table.was_removed(Addr(0x1fff)));
    assert_eq!(table.originals().map(|(addr, _)| addr.0).collect::<Vec<_>>(), [0xfff, 0x2000]);
    table.forget_removed(Addr(0x1000), Addr(0x1fff));
    assert!(!table.was_removed(Addr(0x1000)) && table.was_removed(Addr(0x1fff)));
    assert_eq!(add(&mut table, 0x1fff, Purpose::Return, 0x90), Added::Write);
    assert!(!table.was_removed(Addr(0x1fff)));
}

#[test]
fn a_range_at_the_end_of_the_address_space_is_no_panic() {
    let mut table = BreakpointTable::default();
    assert_eq!(add(&mut table, u64::MAX - 1, Purpose::Return, 0x90), Added::Write);
    let mut bytes = [INT3; 16];
    table.mask(Addr(u64::MAX - 3), &mut bytes);
    assert_eq!(bytes[..4], [INT3, INT3, 0x90, INT3]);
    assert_eq!(table.remove_range(Addr(9), Addr(3)), 0);
}

const INT3: u8 = crate::arch::INT3;

proptest! {
    /// Against memory in which the int3s are really written.
    #[test]
    fn masking_gives_the_original_back(
        code in prop::collection::vec(any::<u8>(), 1..300),
        operations in prop::collection::vec((0_usize..300, any::<bool>()), 0..80),
        window in (0_usize..300, 0_usize..300),
    ) {
        let base = 0x7000_u64;
        let (mut table, mut memory) = (BreakpointTable::default(), code.clone());
        let mut model: HashMap<u64, u8> = HashMap::new();
        for (offset, adds) in operations {
            let (offset, addr) = (offset % code.len(), base + (offset % code.len()) as u64);
            if adds {
                if add(&mut table, addr, Purpose::Return, memory[offset]) == Added::Write {
                    memory[offset] = INT3;
                }
                model.insert(addr, code[offset]);
            } else {
                match table.remove(Addr(addr), Purpose::Return) {
                    Removed::Restore(byte) => memory[offset] = byte,
                    Removed::Kept | Removed::Absent => {}
                }
                model.remove(&addr);
            }
        }
        prop_assert_eq!(table.len(), model.len());
        prop_assert!(table.originals().is_sorted());
        for (addr, original) in table.originals() {
            prop_assert_eq!(model.get(&addr.0), Some(&original));
        }
        let (from, to) = (window.0.min(code.len()), (window.0 + window.1).min(code.len()));
        let mut bytes = memory[from..to].to_vec();
        table.mask(Addr(base + from as u64), &mut bytes);
        prop_assert_eq!(&bytes, &code[from..to]);
    }
}
