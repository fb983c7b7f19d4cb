use super::*;
use crate::arch::step::StepOver;

fn add(table: &mut BreakpointTable, addr: u64, purpose: Purpose) {
    if !table.add(Addr(addr), purpose) {
        let planned = Planned { step: StepOver::Pad, len: 2 };
        table.insert(Addr(addr), Breakpoint::new(planned, None, purpose));
    }
}

#[test]
fn an_entry_vanishes_with_its_last_purpose() {
    let mut table = BreakpointTable::default();
    add(&mut table, 0x1000, Purpose::Entry(Probe::trap(FunctionId(7))));
    add(&mut table, 0x1000, Purpose::Return);
    assert!(table.remove_purpose(Addr(0x1000), Purpose::Entry(Probe::trap(FunctionId(8)))), "another function's");
    assert_eq!(table.get(Addr(0x1000)).unwrap().purposes.entry, Some(Probe::trap(FunctionId(7))));
    assert!(table.remove_purpose(Addr(0x1000), Purpose::Return));
    assert!(!table.get(Addr(0x1000)).unwrap().purposes.is_return());
    assert!(!table.remove_purpose(Addr(0x1000), Purpose::Entry(Probe::trap(FunctionId(7)))));
    assert_eq!(table.len(), 1, "not before its int3 was taken out");
    table.remove(Addr(0x1000));
    assert!(table.is_empty());
    assert!(table.remove_purpose(Addr(0x1000), Purpose::Return), "there is none");
}

#[test]
fn a_return_site_that_others_pass_is_to_be_demoted() {
    let mut table = BreakpointTable::default();
    add(&mut table, 0x1000, Purpose::Return);
    let site = table.get_mut(Addr(0x1000)).unwrap();
    assert!((0..10).all(|_| !site.count_return(true)));
    assert_eq!((1..1000).find(|_| site.count_return(false)), Some(88), "8 for each useful hit, and more");
    let mut useless = Breakpoint { useful: 0, spurious: 0, ..*site };
    assert_eq!((1..1000).find(|_| useless.count_return(false)), Some(65));
    useless.purposes.returns = false;
    assert!(!useless.count_return(false), "it is of one shot already");
}

#[test]
fn breakpoints_go_with_their_memory() {
    let mut table = BreakpointTable::default();
    for addr in [0xfff, 0x1000, 0x1fff, 0x2000] {
        add(&mut table, addr, Purpose::ReturnOnce);
    }
    table.forget(&(Addr(0x1000)..Addr(0x2000)));
    let mut left: Vec<Addr> = table.iter().map(|(addr, _)| addr).collect();
    left.sort_unstable();
    assert_eq!(left, [Addr(0xfff), Addr(0x2000)]);
}
