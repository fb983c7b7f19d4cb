use super::*;
use crate::arch::emulate::Outcome;
use crate::base::memory::MemoryImage;

const AT: Addr = Addr(0x5555_0000_1000);

fn planned(code: &[u8]) -> StepOver {
    let planned = plan(code, AT).unwrap();
    assert_eq!(usize::from(planned.len), code.len());
    planned.step
}

#[test]
fn what_writes_memory_or_needs_the_processor_goes_to_a_pad() {
    let codes: &[&[u8]] = &[
        &[0x41, 0x54],                                  // push r12
        &[0x48, 0x89, 0x44, 0x24, 0x08],                // mov [rsp+8], rax
        &[0x48, 0x83, 0x00, 0x01],                      // add qword [rax], 1
        &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], // mov rax, fs:[0x28]
        &[0x67, 0x8b, 0x00],                            // mov eax, [eax]
        &[0x67, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0],       // mov eax, [0x28], address size 32
        &[0x48, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8],          // mov rax, [imm64]
        &[0x66, 0x0f, 0x6f, 0x05, 0, 0, 0, 0],          // movdqa xmm0, [rip]
        &[0xf3, 0x49, 0x90],                            // pause in name
        &[0x66, 0x63, 0xc8],                            // movsxd cx, ax
        &[0x8c, 0xd8],                                  // mov eax, ds
        &[0xff, 0x25, 0, 0, 0, 0],                      // jmp [rip]
    ];
    for code in codes {
        assert_eq!(planned(code), StepOver::Pad, "{code:02x?}");
    }
}

#[test]
fn what_depends_on_its_place_stays_there() {
    let codes: &[&[u8]] = &[
        &[0x66, 0xe9, 0, 0, 0, 0],       // jmp, of which processors disagree
        &[0xff, 0xd4],                   // call rsp
        &[0xff, 0x54, 0x24, 0xf8],       // call [rsp-8], where its return address goes
        &[0xc7, 0xf8, 0, 1, 0, 0],       // xbegin
        &[0x67, 0x8b, 0x05, 0, 0, 0, 0], // mov eax, [eip]
        &[0xff, 0x1f],                   // call far [rdi]
    ];
    for code in codes {
        let error = StepError::NotRelocatable { at: AT };
        assert_eq!(plan(code, AT), Err(error), "{code:02x?}");
        assert_eq!(build_pad(code, AT, AT.add(0x1000)), Err(error), "{code:02x?}");
    }
}

#[test]
fn no_breakpoint_where_there_is_no_instruction() {
    let undecodable = Err(StepError::Undecodable { at: AT });
    assert_eq!(plan(&[], AT), undecodable);
    assert_eq!(plan(&[0xe9, 0, 0], AT), undecodable);
    assert_eq!(plan(&[0x06], AT), undecodable);
    assert_eq!(plan(&[INT3, 0x90], AT), Err(StepError::OwnBreakpoint { at: AT }));
}

#[test]
fn a_pad_out_of_reach_is_refused() {
    let load = [0x48, 0x8b, 0x05, 0, 0, 0, 0x80]; // mov rax, [rip-0x80000000]
    let out_of_reach = |pad| Err(StepError::OutOfReach { at: AT, pad });
    assert!(build_pad(&load, AT, AT.sub(0x1000)).is_ok());
    assert_eq!(build_pad(&load, AT, AT.add(1)), out_of_reach(AT.add(1)));
    // the jump back: from the end of a pad of nine bytes to the end of the original
    let store = [0x48, 0x89, 0x04, 0x24]; // mov [rsp], rax
    let farthest = AT.add(0x8000_0000 - 5);
    assert!(build_pad(&store, AT, farthest).is_ok());
    assert_eq!(build_pad(&store, AT, farthest.add(1)), out_of_reach(farthest.add(1)));
}

#[test]
fn a_load_that_may_fault_changes_nothing() {
    let StepOver::Emulate(load) = planned(&[0x48, 0x8b, 0x00]) else { panic!("mov rax, [rax]") };
    let mut memory = MemoryImage { start: Addr(0x1000), bytes: vec![7; 16] };
    let at = |rax: u64, rflags: u64| {
        let mut regs = Regs { rip: AT.0, rflags, ..Regs::default() };
        regs.gpr[reg::RAX] = rax;
        regs
    };
    // past the end by one byte; and with alignment checks on
    for before in [at(0x1009, 0x202), at(0x1001, 0x4_0202)] {
        let mut regs = before;
        assert_eq!(load.run(&mut regs, &mut memory), Outcome::NeedsPad);
        assert_eq!(regs, before);
    }
    let mut regs = at(0x1008, 0x202);
    assert_eq!(load.run(&mut regs, &mut memory), Outcome::Done);
    assert_eq!((regs.gpr[reg::RAX], regs.rip), (0x0707_0707_0707_0707, AT.0 + 3));
}

#[test]
fn a_call_is_seen_from_behind() {
    for call in
        [&[0xe8, 1, 2, 3, 4][..], &[0xff, 0xd0], &[0x41, 0xff, 0xd4], &[0xff, 0x15, 1, 2, 3, 4], &[0xff, 0x50, 0x18]]
    {
        let code = [&[0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90], call].concat();
        assert!(ends_in_call(&code), "{call:x?}");
    }
    for other in [&[0xff, 0xe0][..], &[0xe9, 1, 2, 3, 4], &[0x90, 0x90], &[]] {
        assert!(!ends_in_call(other), "{other:x?}");
    }
}
