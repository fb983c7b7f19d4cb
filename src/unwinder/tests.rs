//! Hand-made stacks and CFI: what the walk must find follows from how the stack was laid out. Real programs are in the
//! integration tests.

mod module;

use super::told::LatestWalk;
use super::*;
use crate::arch::reg;
use crate::base::memory::MemoryImage;
use module::{
    BARE, BIAS, BY_RBX, CODE_END, EH_FRAME, EH_FRAME_HDR, EXPRESSIONS, FRAMED, LARGE, PLT, REALIGNED, STACK, START,
    STUCK, TRAMPOLINE, bare_module, debug_frame, module, section,
};

fn unwinder() -> Unwinder {
    let mut unwinder = Unwinder::new();
    unwinder.add_module(module(0));
    unwinder
}

/// A stack under construction: zeroes, into which words are put at distances from its lowest address.
struct Stack(MemoryImage);

impl Stack {
    fn new() -> Self {
        Self(MemoryImage { start: Addr(STACK), bytes: vec![0; 0x8000] })
    }

    fn put(&mut self, at: u64, word: u64) -> &mut Self {
        self.0.bytes[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
        self
    }
}

fn code(function: u64, offset: u64) -> u64 {
    BIAS + function + offset
}

/// Registers of a thread at `pc` with these distances of rsp and rbp in the stack.
fn regs(pc: u64, sp: u64, bp: u64) -> Regs {
    let mut regs = Regs { rip: pc, ..Regs::default() };
    regs.gpr[reg::RSP] = STACK + sp;
    regs.gpr[reg::RBP] = bp;
    regs
}

fn raw(unwinder: &Unwinder, found: Unwound) -> Vec<FrameAddr> {
    unwinder.stacks().frames(found.stack).iter().map(|frame| frame.addr).collect()
}

fn ret(function: u64, offset: u64) -> FrameAddr {
    FrameAddr::Return(Addr(code(function, offset)))
}

/// A frame that stands at an instruction which no call led to.
fn begins(function: u64, offset: u64) -> FrameAddr {
    FrameAddr::Instruction(Addr(code(function, offset)))
}

/// All ways of asking agree: the walk, a second unwinding (by the cache) and the interned foreign walk.
fn check(unwinder: &mut Unwinder, regs: &Regs, stack: &mut Stack, at_entry: bool) -> Unwound {
    let found = unwinder.unwind(regs, &mut stack.0, at_entry, 100);
    assert_eq!(unwinder.unwind(regs, &mut stack.0, at_entry, 100), found, "with a warm cache");
    let mut seen = Vec::new();
    unwinder.walk(regs, &mut stack.0, at_entry, &mut |frame| {
        seen.push(Frame { addr: frame.addr, module: frame.module });
        ControlFlow::Continue(())
    });
    assert_eq!(unwinder.stacks().frames(found.stack), seen);
    assert_eq!(found.depth as usize, seen.len());
    if found.quality == Quality::Complete {
        let addrs: Vec<_> = seen.iter().map(|frame| frame.addr).collect();
        assert_eq!(unwinder.intern(&addrs, false), found);
    }
    found
}

/// malloc's entry, called by FRAMED, called by LARGE (which saved rbx), called by BY_RBX, called by REALIGNED, called
/// by START.
fn long_stack() -> (Regs, Stack) {
    let mut stack = Stack::new();
    // FRAMED's frame: rbp at 0x40, return address above
    stack.put(0x10, code(FRAMED, 0x20));
    stack.put(0x40, STACK + 0x3000).put(0x48, code(LARGE, 0x50));
    // LARGE: CFA = sp + 0x1018; saved registers below the return address
    let cfa = 0x50 + 0x1018;
    stack.put(cfa - 24, 0x1212).put(cfa - 16, STACK + 0x2000).put(cfa - 8, code(BY_RBX, 0x30));
    // BY_RBX: CFA = rbx + 16
    stack.put(0x2008, code(REALIGNED, 0x40));
    // REALIGNED: rbp = 0x3000, [rbp − 8] = CFA
    stack.put(0x3000 - 8, STACK + 0x3100).put(0x3000 - 24, 0xb).put(0x3000, 0xbb).put(0x30f8, code(START, 0x10));
    (regs(0, 0x10, STACK + 0x40), stack)
}

#[test]
fn a_walk_passes_every_compact_form() {
    let (regs, mut stack) = long_stack();
    let mut unwinder = unwinder();
    let found = check(&mut unwinder, &regs, &mut stack, true);
    let expected = [ret(FRAMED, 0x20), ret(LARGE, 0x50), ret(BY_RBX, 0x30), ret(REALIGNED, 0x40), ret(START, 0x10)];
    assert_eq!(raw(&unwinder, found), expected);
    assert_eq!(found.quality, Quality::Complete);
    assert!(unwinder.stacks().frames(found.stack).iter().all(|frame| frame.module == ModuleId(0)));
}

#[test]
fn rows_compile_to_the_forms_that_the_fast_path_knows() {
    let mut unwinder = unwinder();
    let (_, mut stack) = long_stack();
    let mut buffer = StackBuffer::default();
    let mut window = StackWindow::new(&mut buffer, &mut stack.0, STACK);
    let mut rule = |function: u64, offset: u64| unwinder.rule(ret(function, offset + 1), &mut window).0;
    use rule::{Base, SAME};
    let compact = |base, offset, saved| Rule::Compact { base, offset, saved };
    assert_eq!(rule(FRAMED, 0), compact(Base::Rsp, 8, [SAME; 6]));
    assert_eq!(rule(FRAMED, 1), compact(Base::Rsp, 16, [SAME, -2, SAME, SAME, SAME, SAME]));
    assert_eq!(rule(FRAMED, 4), compact(Base::Rbp, 16, [SAME, -2, SAME, SAME, SAME, SAME]));
    assert_eq!(rule(LARGE, 9), compact(Base::Rsp, 0x1018, [-2, SAME, -3, SAME, SAME, SAME]));
    assert_eq!(rule(REALIGNED, 9), compact(Base::LoadRbp, -8, [-3, 0, SAME, SAME, SAME, SAME]));
    assert_eq!(rule(START, 9), Rule::Outermost);
    assert!(matches!(rule(PLT, 0), Rule::Row { signal: false, .. }));
    assert!(matches!(rule(TRAMPOLINE, 0), Rule::Row { signal: true, .. }));
    assert_eq!(rule(FRAMED, 0x100), Rule::NoCfi { object_file: true });
    assert_eq!(rule(CODE_END, 0), Rule::NoModule);
}

#[test]
fn the_row_before_a_return_address_counts() {
    // the call is the last instruction of a function that never returns: the return address lies behind it
    let mut stack = Stack::new();
    stack.put(0, code(FRAMED, 0x100)).put(8, code(START, 8));
    let mut unwinder = unwinder();
    let found = check(&mut unwinder, &regs(0, 0, 0), &mut stack, true);
    assert_eq!(raw(&unwinder, found), [ret(FRAMED, 0x100), ret(START, 8)]);
    assert_eq!(found.quality, Quality::Complete);
}

#[test]
fn plt_entries_are_passed_at_every_instruction() {
    for (offset, pushed) in [(0x10, 0), (0x16, 0), (0x1b, 8), (0x1f, 8)] {
        let mut stack = Stack::new();
        stack.put(pushed, code(START, 8));
        let mut unwinder = unwinder();
        let found = check(&mut unwinder, &regs(code(PLT, offset), 0, 0), &mut stack, false);
        let expected = [FrameAddr::Instruction(Addr(code(PLT, offset))), ret(START, 8)];
        assert_eq!((raw(&unwinder, found), found.quality), (expected.to_vec(), Quality::Complete), "{offset:#x}");
    }
}

#[test]
fn expressions_have_the_cfa_the_load_address_and_loads_of_every_size() {
    let mut stack = Stack::new();
    // the byte at rsp is 16: so the return address is at CFA − 16 = 8, and rbx = 8
    stack.put(0, 0xffff_ff10).put(8, code(BY_RBX, 8)).put(16, code(START, 8));
    let mut unwinder = unwinder();
    let found = check(&mut unwinder, &regs(code(EXPRESSIONS, 4), 0, 0), &mut stack, false);
    let frames = [FrameAddr::Instruction(Addr(code(EXPRESSIONS, 4))), ret(BY_RBX, 8)];
    // CFA of BY_RBX = rbx + 16 = 24, which does not grow: the walk has to end there
    assert_eq!((raw(&unwinder, found), found.quality), (frames.to_vec(), Quality::Truncated));
    stack.put(0, 0xffff_ff08).put(16, code(BY_RBX, 8)).put(24, code(START, 8));
    let found = check(&mut unwinder, &regs(code(EXPRESSIONS, 4), 0, 0), &mut stack, false);
    let expected = [frames[0], frames[1], ret(START, 8)];
    assert_eq!((raw(&unwinder, found), found.quality), (expected.to_vec(), Quality::Complete));
}

#[test]
fn edges_that_share_a_slot_are_told_apart() {
    let mut unwinder = unwinder();
    unwinder.edges.resize(1, NO_EDGE);
    // FRAMED calls itself from one place, to different depths; its row there is CFA = rsp + 8
    for depth in [1, 5, 3, 5, 1] {
        let mut stack = Stack::new();
        for i in 0..depth {
            stack.put(8 * i, code(FRAMED, 1));
        }
        stack.put(8 * depth, code(START, 8));
        let found = check(&mut unwinder, &regs(0, 0, 0), &mut stack, true);
        assert_eq!((u64::from(found.depth), found.quality), (depth + 1, Quality::Complete));
    }
    // an interrupted instruction and a return address at the same place
    let mut stack = Stack::new();
    stack.put(0, code(START, 8));
    let interrupted = check(&mut unwinder, &regs(code(START, 8), 0, 0), &mut stack, false);
    let called = check(&mut unwinder, &regs(0, 0, 0), &mut stack, true);
    assert_ne!(interrupted.stack, called.stack);
}

/// A handler's stack at `at`: return address to the trampoline, then the frame of a thread that the signal interrupted
/// at the first instruction of FRAMED, whose return address is at 0x4000.
fn interrupted(at: u64) -> Stack {
    let mut stack = Stack::new();
    stack.put(at, code(TRAMPOLINE, 0));
    let frame = at + 8;
    stack.put(frame + 40 + 15 * 8, STACK + 0x4000).put(frame + 40 + 16 * 8, code(FRAMED, 0));
    stack.put(0x4000, code(START, 8));
    stack
}

#[test]
fn a_signal_frame_leads_to_the_interrupted_instruction() {
    let expected = [begins(TRAMPOLINE, 0), begins(FRAMED, 0), ret(START, 8)];
    // on the same stack, and on an alternate one that lies above it
    for at in [0x3000, 0x6000] {
        let mut unwinder = unwinder();
        let found = check(&mut unwinder, &regs(0, at, 0), &mut interrupted(at), true);
        assert_eq!((raw(&unwinder, found), found.quality), (expected.to_vec(), Quality::Complete), "{at:#x}");
    }
}

/// A stack, and some bytes of code.
struct WithCode {
    stack: MemoryImage,
    code: MemoryImage,
}

impl ReadMemory for WithCode {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        match self.stack.read(addr, buf) {
            0 => self.code.read(addr, buf),
            n => n,
        }
    }
}

/// musl describes neither its restorer nor its start code.
#[test]
fn a_signal_trampoline_without_cfi_is_known_by_its_code() {
    let start = code(BARE, 0x40);
    let mut stack = interrupted(0x3000);
    stack.put(0x3000, start);
    let bytes = vec![0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    let mut memory = WithCode { stack: stack.0, code: MemoryImage { start: Addr(start), bytes } };
    let mut unwinder = unwinder();
    let found = unwinder.unwind_at_entry(&regs(0, 0x3000, 0), &mut memory, 100);
    let expected = [begins(BARE, 0x40), begins(FRAMED, 0), ret(START, 8)];
    assert_eq!((raw(&unwinder, found), found.quality), (expected.to_vec(), Quality::Complete));
    let mut signal_frames = Vec::new();
    unwinder.walk(&regs(0, 0x3000, 0), &mut memory, true, &mut |frame| {
        signal_frames.push((frame.is_signal_frame, frame.sp.0 - STACK, frame.cfa.map(|cfa| cfa.0 - STACK)));
        ControlFlow::Continue(())
    });
    assert_eq!(signal_frames, [(true, 0x3008, Some(0x4000)), (false, 0x4000, Some(0x4008)), (false, 0x4008, None)]);
}

/// makecontext() and other switchers of contexts put the address of a function on a new stack: no call stands before
/// it.
#[test]
fn a_function_that_was_put_on_the_stack_is_the_outermost_frame() {
    const CALL: [u8; 8] = [0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4];
    for (at, before, expected, quality) in [
        (code(LARGE, 0), [0x90; 8], begins(LARGE, 0), Quality::Complete),
        // a function that does not return was called by the one before it, which has no CFI
        (code(LARGE, 0), CALL, ret(LARGE, 0), Quality::Truncated),
        (code(BARE, 0x40), [0x90; 8], begins(BARE, 0x40), Quality::Guessed),
        (code(BARE, 0x40), CALL, ret(BARE, 0x40), Quality::Truncated),
        // in the middle of a function CFI is to be believed
        (code(START, 8), [0x90; 8], ret(START, 8), Quality::Complete),
    ] {
        let mut stack = Stack::new();
        stack.put(0x10, code(FRAMED, 0x20)).put(0x40, 0x1234).put(0x48, at);
        let code = MemoryImage { start: Addr(at - 8), bytes: before.to_vec() };
        let mut memory = WithCode { stack: stack.0, code };
        let mut unwinder = unwinder();
        let mut regs = regs(0, 0x10, STACK + 0x40);
        regs.gpr[reg::RBX] = 1;
        for _ in 0..2 {
            let found = unwinder.unwind_at_entry(&regs, &mut memory, 100);
            assert_eq!(raw(&unwinder, found), [ret(FRAMED, 0x20), expected], "{at:#x} {before:02x?}");
            assert_eq!(found.quality, quality, "{at:#x} {before:02x?}");
        }
    }
}

/// Start code without CFI below the initial stack pointer, which uses rbp for something else.
#[test]
fn return_addresses_of_start_code_are_found_below_the_initial_stack_pointer() {
    let mut start = module(0);
    start.entry = Some(ObjAddr(BARE + 0x80));
    let mut with_entry = Unwinder::new();
    with_entry.add_module(start);
    let mut stack = Stack::new();
    stack.put(0x10, code(FRAMED, 0x20)).put(0x40, 0x1234).put(0x48, code(BARE, 0x20));
    stack.put(0x60, code(BARE, 0x50)).put(0x68, 77).put(0x78, code(BARE, 0x90)).put(0x80, 1);
    let regs = regs(0, 0x10, STACK + 0x40);
    let inner = vec![ret(FRAMED, 0x20), ret(BARE, 0x20)];

    let cut = with_entry.unwind_at_entry(&regs, &mut stack.0, 100);
    assert_eq!((raw(&with_entry, cut), cut.quality), (inner.clone(), Quality::Truncated));
    with_entry.set_initial_stack(Addr(STACK + 0x80));
    let found = check(&mut with_entry, &regs, &mut stack, true);
    let whole = [&inner[..], &[ret(BARE, 0x50), ret(BARE, 0x90)]].concat();
    assert_eq!((raw(&with_entry, found), found.quality), (whole, Quality::Guessed));

    // a function with CFI between them: something other than start code calls
    stack.put(0x68, code(FRAMED, 0x20));
    let cut = with_entry.unwind_at_entry(&regs, &mut stack.0, 100);
    assert_eq!((raw(&with_entry, cut), cut.quality), (inner, Quality::Truncated));
}

#[test]
fn code_without_cfi_is_passed_by_its_frame_pointer_and_marked() {
    let mut stack = Stack::new();
    stack.put(0, code(BARE, 0x10)).put(0x100, 0x77).put(0x108, code(START, 8));
    let mut unwinder = unwinder();
    let found = check(&mut unwinder, &regs(0, 0, STACK + 0x100), &mut stack, true);
    assert_eq!((raw(&unwinder, found), found.quality), (vec![ret(BARE, 0x10), ret(START, 8)], Quality::Guessed));
}

#[test]
fn an_implausible_frame_pointer_ends_the_stack_as_truncated() {
    let mut stack = Stack::new();
    stack.put(0x10, code(BARE, 0x10)).put(0x100, 0x77).put(0x108, 0x1234).put(0, code(START, 8));
    stack.put(0x200, 0).put(0x208, code(START, 8));
    let bad = [
        ("below the stack pointer", STACK - 8 + 0x10),
        ("not aligned", STACK + 0x201),
        ("no return address there", STACK + 0x100),
        ("beyond the stack", STACK + 0x8000),
        ("far away", STACK + 0x4000_0000),
    ];
    for (why, frame_pointer) in bad {
        let mut unwinder = unwinder();
        let found = check(&mut unwinder, &regs(0, 0x10, frame_pointer), &mut stack, true);
        assert_eq!((raw(&unwinder, found), found.quality), (vec![ret(BARE, 0x10)], Quality::Truncated), "{why}");
    }
}

#[test]
fn a_null_frame_pointer_ends_the_stack_of_a_c_library_without_cfi_but_not_that_of_jit_code() {
    let mut stack = Stack::new();
    stack.put(0, code(BARE, 0x10));
    let mut unwinder = unwinder();
    let found = check(&mut unwinder, &regs(0, 0, 0), &mut stack, true);
    assert_eq!((raw(&unwinder, found), found.quality), (vec![ret(BARE, 0x10)], Quality::Guessed));
    let mut unwinder = Unwinder::new();
    unwinder.add_module(bare_module(5, BIAS));
    let found = check(&mut unwinder, &regs(0, 0, 0), &mut stack, true);
    assert_eq!((raw(&unwinder, found), found.quality), (vec![ret(BARE, 0x10)], Quality::Truncated));
}

#[test]
fn start_code_without_cfi_is_the_outermost_frame() {
    // the frame pointer leads on, but nothing called the entry point
    let mut stack = Stack::new();
    stack.put(0, code(BARE, 0x25)).put(0x100, 0x77).put(0x108, code(START, 8));
    for (entry, quality, depth) in [(BARE, Quality::Complete, 1), (BARE + 0x30, Quality::Guessed, 2)] {
        let mut unwinder = Unwinder::new();
        unwinder.add_module(UnwindModule { entry: Some(ObjAddr(entry)), ..module(0) });
        let found = check(&mut unwinder, &regs(0, 0, STACK + 0x100), &mut stack, true);
        assert_eq!((found.quality, found.depth), (quality, depth), "{entry:#x}");
    }
}

#[test]
fn code_outside_every_module_ends_the_stack_as_truncated() {
    let jit = 0x7f00_1234_5678;
    let mut stack = Stack::new();
    stack.put(0, code(FRAMED, 1)).put(8, jit).put(16, code(START, 8));
    let mut unwinder = unwinder();
    let found = check(&mut unwinder, &regs(0, 0, STACK + 8), &mut stack, true);
    assert_eq!(found.quality, Quality::Truncated);
    let frames = unwinder.stacks().frames(found.stack);
    assert_eq!(frames[1], Frame { addr: FrameAddr::Return(Addr(jit)), module: ModuleId::NONE });
    assert_eq!(frames.len(), 2);
    // once the region is known, its frame pointer is tried
    let region = UnwindModule { code: vec![Addr(jit - 0x100)..Addr(jit + 0x100)], ..bare_module(9, 0) };
    unwinder.add_module(region);
    stack.put(0x40, 0).put(0x48, code(START, 8));
    let found = check(&mut unwinder, &regs(0, 0, STACK + 0x40), &mut stack, true);
    assert_eq!((found.quality, found.depth), (Quality::Guessed, 3));
}

#[test]
fn walks_that_lead_nowhere_end() {
    let mut stack = Stack::new();
    let mut unwinder = unwinder();
    // a CFA that does not grow
    stack.put(0, code(STUCK, 8));
    let found = check(&mut unwinder, &regs(0, 8, 0), stack.put(8, code(STUCK, 8)), true);
    assert_eq!((found.quality, found.depth), (Quality::Truncated, 1));
    // a signal frame that returns to itself
    let mut stack = interrupted(0x3000);
    stack.put(0x3008 + 160, STACK + 0x3008).put(0x3008 + 168, code(TRAMPOLINE, 0));
    let found = check(&mut unwinder, &regs(0, 0x3000, 0), &mut stack, true);
    assert_eq!((found.quality, found.depth), (Quality::Truncated, MAX_SIGNAL_FRAMES + 1));
    // nothing to read at all
    let found = unwinder.unwind_at_entry(&regs(0, 0x9000, 0), &mut stack.0, 100);
    assert_eq!(found, Unwound { stack: StackId::EMPTY, depth: 0, quality: Quality::Truncated });
    // a return address that no code can have
    let mut stack = Stack::new();
    stack.put(0, code(FRAMED, 1)).put(8, 0xdead_beef_dead_beef);
    let found = check(&mut unwinder, &regs(0, 0, 0), &mut stack, true);
    assert_eq!((raw(&unwinder, found), found.quality), (vec![ret(FRAMED, 1)], Quality::Truncated));
    // a null return address is the end that context switchers make
    let mut stack = Stack::new();
    let found = check(&mut unwinder, &regs(0, 0, 0), stack.put(0, code(FRAMED, 1)), true);
    assert_eq!((raw(&unwinder, found), found.quality), (vec![ret(FRAMED, 1)], Quality::Complete));
}

#[test]
fn the_depth_limit_cuts_only_what_goes_on() {
    let (regs, mut stack) = long_stack();
    let mut unwinder = unwinder();
    let whole = unwinder.unwind_at_entry(&regs, &mut stack.0, 5);
    assert_eq!((whole.depth, whole.quality), (5, Quality::Complete));
    let cut = unwinder.unwind_at_entry(&regs, &mut stack.0, 4);
    assert_eq!((cut.depth, cut.quality), (4, Quality::Truncated));
    assert_eq!(raw(&unwinder, cut), raw(&unwinder, whole)[..4]);
    let none = unwinder.unwind_at_entry(&regs, &mut stack.0, 0);
    assert_eq!((none.stack, none.depth), (StackId::EMPTY, 0));
}

#[test]
fn a_library_loaded_where_another_was_has_its_own_rules_and_stacks() {
    let (regs, mut stack) = long_stack();
    let mut unwinder = unwinder();
    let before = check(&mut unwinder, &regs, &mut stack, true);
    unwinder.remove_module(ModuleId(0));
    assert_eq!(unwinder.module_of(Addr(code(FRAMED, 0))), None);
    let gone = check(&mut unwinder, &regs, &mut stack, true);
    assert_eq!((gone.depth, gone.quality), (1, Quality::Truncated));
    unwinder.add_module(module(7));
    let after = check(&mut unwinder, &regs, &mut stack, true);
    assert_ne!(after.stack, before.stack);
    assert_eq!(raw(&unwinder, after), raw(&unwinder, before));
    let modules = |found: Unwound| unwinder.stacks().frames(found.stack).iter().map(|f| f.module.0).collect::<Vec<_>>();
    assert_eq!((modules(before), modules(after)), (vec![0; 5], vec![7; 5]));
    // the same addresses with other CFI: nothing of the old rules is left
    unwinder.add_module(bare_module(7, BIAS));
    let bare = check(&mut unwinder, &regs, &mut stack, true);
    assert_eq!(bare.quality, Quality::Truncated);
    unwinder.remove_module(ModuleId(7));
    assert_eq!(check(&mut unwinder, &regs, &mut stack, true).depth, 1);
    assert_eq!(unwinder.stacks().depth(before.stack), 5, "stacks outlive their modules");
}

#[test]
fn every_kind_of_table_gives_the_same_stack() {
    let (regs, mut stack) = long_stack();
    let expected = {
        let mut unwinder = unwinder();
        let found = unwinder.unwind_at_entry(&regs, &mut stack.0, 100);
        raw(&unwinder, found)
    };
    let whole = module(0);
    let header = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.eh_frame_hdr.as_ref().unwrap().bytes.to_vec();
        change(&mut bytes);
        UnwindModule { eh_frame_hdr: section(EH_FRAME_HDR, bytes), ..whole.clone() }
    };
    let variants = [
        ("no header", UnwindModule { eh_frame_hdr: None, ..whole.clone() }),
        ("unsorted header", header(&|bytes| bytes[12..28].rotate_left(8))),
        ("header of another version", header(&|bytes| bytes[0] = 2)),
        ("header with too large a count", header(&|bytes| bytes[8..12].fill(0xff))),
        ("header that points elsewhere", header(&|bytes| bytes[16..20].fill(0x7f))),
        ("empty header", header(&|bytes| bytes.clear())),
        ("debug_frame only", UnwindModule { debug_frame: section(0, debug_frame()), ..bare_module(0, BIAS) }),
        (
            "eh_frame that covers nothing, and debug_frame",
            UnwindModule {
                eh_frame: section(EH_FRAME, vec![0; 4]),
                eh_frame_hdr: None,
                debug_frame: section(0, debug_frame()),
                ..whole.clone()
            },
        ),
    ];
    for (what, module) in variants {
        let mut unwinder = Unwinder::new();
        unwinder.add_module(module);
        let found = check(&mut unwinder, &regs, &mut stack, true);
        assert_eq!((raw(&unwinder, found), found.quality), (expected.clone(), Quality::Complete), "{what}");
    }
}

#[test]
fn mangled_tables_and_stacks_never_panic_or_hang() {
    let (regs, stack) = long_stack();
    let whole = module(0);
    let [eh_frame, header, debug] = [
        whole.eh_frame.as_ref().unwrap().bytes.to_vec(),
        whole.eh_frame_hdr.as_ref().unwrap().bytes.to_vec(),
        debug_frame(),
    ];
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let functions = [FRAMED, LARGE, REALIGNED, START, PLT, TRAMPOLINE, BY_RBX, STUCK, BARE];
    for round in 0..20_000 {
        let mut tables = [eh_frame.clone(), header.clone(), debug.clone()];
        for table in &mut tables {
            for _ in 0..random(6) {
                let at = random(table.len());
                table[at] = random(256) as u8;
            }
            if round % 16 == 0 {
                table.truncate(random(table.len()));
            }
        }
        let [eh_frame, header, debug] = tables;
        let mut unwinder = Unwinder::new();
        unwinder.edges.resize(64, NO_EDGE);
        unwinder.add_module(UnwindModule {
            eh_frame: section(EH_FRAME, eh_frame),
            eh_frame_hdr: (round % 3 != 0).then(|| section(EH_FRAME_HDR, header)).flatten(),
            debug_frame: section(0, debug),
            ..whole.clone()
        });
        let mut stack = stack.0.clone();
        for _ in 0..random(4) {
            let at = random(stack.bytes.len());
            stack.bytes[at] = random(256) as u8;
        }
        let found = unwinder.unwind_at_entry(&regs, &mut stack, 100);
        assert!(found.depth <= 100);
        for function in functions {
            let mut regs = regs;
            regs.rip = code(function, random(0x100) as u64);
            unwinder.unwind_from(&regs, &mut stack, 100);
        }
    }
}

/// Callers that another walk has found by the rules make the stack that an unwinding makes, from any of its frames on;
/// not beyond one that takes more than its rule.
#[test]
fn listed_callers_make_the_stack_that_is_unwound() {
    let (regs, mut stack) = long_stack();
    let mut unwinder = unwinder();
    let found = unwinder.unwind(&regs, &mut stack.0, true, 100);
    let frames = unwinder.stacks().frames(found.stack);
    let callers: Vec<u64> = frames.iter().map(|frame| frame.addr.raw().0).collect();
    let is_plain = |frame: &&Frame| matches!(unwinder.known_rule(frame.addr), Some(Rule::Compact { .. }));
    let plain = frames.iter().take_while(is_plain).count();
    assert!((2..frames.len()).contains(&plain), "{plain} of {}", frames.len());
    let mut parts = vec![found.stack];
    while let Some(parent) = parts.last().and_then(|part| unwinder.stacks().parent(*part)) {
        parts.push(parent);
    }
    parts.reverse();
    for (taken, part) in parts.iter().enumerate().take(plain) {
        let mut shown = Vec::new();
        let mut visit = |parent, child, frame: Frame, _| shown.push((parent, child, frame));
        let made = unwinder.extend(*part, &callers[taken..plain], 100, &mut LatestWalk::default(), &mut visit);
        assert_eq!(made.map(|made| (made.stack, made.depth)), Some((parts[plain], plain as u32)));
        let expected: Vec<_> = (taken..plain).map(|at| (parts[at], parts[at + 1], frames[at])).collect();
        assert_eq!(shown, expected);
    }
    let cut = unwinder.unwind(&regs, &mut stack.0, true, 1);
    let extend = |unwinder: &mut Unwinder, parent, callers: &[u64], depth| {
        unwinder.extend(parent, callers, depth, &mut LatestWalk::default(), &mut |_, _, _, _| {})
    };
    assert_eq!(extend(&mut unwinder, StackId::EMPTY, &callers, 1), Some(cut));
    assert_eq!(cut.quality, Quality::Truncated);
    let has_more = frames[plain..]
        .iter()
        .any(|frame| !matches!(unwinder.known_rule(frame.addr), Some(Rule::Compact { .. } | Rule::Outermost)));
    assert_eq!(extend(&mut unwinder, StackId::EMPTY, &callers, 100).is_none(), has_more);
    let unknown = StackId(1 << 20);
    assert_eq!(extend(&mut unwinder, unknown, &callers[..1], 100), None, "no stack");
    assert_eq!(extend(&mut unwinder, StackId::EMPTY, &[0x1234], 100), None, "no rule");
}

/// Whoever knows what was found last finds the same, and is shown new frames only; not after rules were forgotten.
#[test]
fn what_was_listed_last_is_not_looked_up_again() {
    let (regs, mut stack) = long_stack();
    let mut unwinder = unwinder();
    let found = unwinder.unwind(&regs, &mut stack.0, true, 100);
    let frames = unwinder.stacks().frames(found.stack);
    let ends = |rule: Option<Rule>| rule == Some(Rule::Outermost);
    let of_rule = |is_wanted: &dyn Fn(Option<Rule>) -> bool| -> Vec<u64> {
        let wanted = frames.iter().filter(|frame| is_wanted(unwinder.known_rule(frame.addr)));
        wanted.map(|frame| frame.addr.raw().0).collect()
    };
    let plain = of_rule(&|rule| matches!(rule, Some(Rule::Compact { .. })));
    let mut callers: Vec<u64> = plain.iter().copied().take(3).collect();
    callers.extend(of_rule(&ends));
    // one that nothing is known of
    callers.push(0x1234);
    let mut latest = LatestWalk::default();
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut list: Vec<u64> = Vec::new();
    let (mut parents, mut known) = (vec![StackId::EMPTY], 0);
    for round in 0..20_000 {
        list.truncate(random(9));
        list.extend((0..random(4)).map(|_| callers[if random(8) == 0 { random(callers.len()) } else { random(2) }]));
        let parent = parents[random(parents.len())];
        let max_depth = 7;
        let (mut shown, mut all) = (Vec::new(), Vec::new());
        let mut nothing = LatestWalk::default();
        let made = unwinder
            .extend(parent, &list, max_depth, &mut latest, &mut |_, child, frame, _| shown.push((child, frame)));
        let anew =
            unwinder.extend(parent, &list, max_depth, &mut nothing, &mut |_, child, frame, _| all.push((child, frame)));
        assert_eq!(
            (made, latest.stack(), latest.depth()),
            (anew, nothing.stack(), nothing.depth()),
            "{round}: {list:x?}"
        );
        assert!(all.ends_with(&shown));
        known += all.len() - shown.len();
        if parents.len() < 40 {
            parents.extend(all.iter().map(|(stack, _)| *stack));
        }
    }
    assert!(known > 1_000, "{known} frames");
    let one = &plain[..1];
    let mut extend = |unwinder: &mut Unwinder| {
        unwinder.extend(StackId::EMPTY, one, 100, &mut latest, &mut |_, _, _, _| {}).is_some()
    };
    assert!(extend(&mut unwinder));
    unwinder.add_module(module(0));
    assert!(!extend(&mut unwinder), "its rule may be another one now");
}

/// Walks of two kinds take turns, and each finds its own frames known.
#[test]
fn walks_that_take_turns_are_each_found_again() {
    let (regs, mut stack) = long_stack();
    let mut unwinder = unwinder();
    let found = unwinder.unwind(&regs, &mut stack.0, true, 100);
    let frames = unwinder.stacks().frames(found.stack);
    let is_plain = |frame: &&Frame| matches!(unwinder.known_rule(frame.addr), Some(Rule::Compact { .. }));
    let plain: Vec<u64> = frames.iter().filter(is_plain).map(|frame| frame.addr.raw().0).take(2).collect();
    let [one, other] = plain[..] else { panic!("{plain:x?}") };
    let (mut walks, mut shown) = (LatestWalks::default(), 0);
    for round in 1..=20 {
        for inner in [[one, one, other], [other, one, one]] {
            // each round has an outermost frame more
            let list: Vec<u64> = inner.into_iter().chain(std::iter::repeat_n(one, round)).collect();
            let walk = walks.nearest(StackId::EMPTY, &list);
            let made = unwinder.extend(StackId::EMPTY, &list, 100, walk, &mut |_, _, _, _| shown += 1);
            let frames = made.map(|made| unwinder.stacks().frames(made.stack)).unwrap_or_default();
            assert_eq!(frames.iter().map(|frame| frame.addr.raw().0).collect::<Vec<_>>(), list);
        }
    }
    assert_eq!(shown, 2 * (3 + 20), "frames were looked up again");
}
