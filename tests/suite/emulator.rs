//! The way past a replaced instruction, compared with what the processor does with it: the emulator, and pads, over
//! random instructions and over those that stand at function entries and return sites of real binaries.
//!
//! A child is single-stepped through the original; the same state then goes through the emulator or the pad.

use std::collections::BTreeMap;

use heaptrace::internal::{
    ARITHMETIC, Addr, Emulated, Outcome, Pad, Planned, Regs, StepError, StepOver, build_pad, plan,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

mod corpus;
mod machine;
mod random;

use machine::{CODE, DATA_HIGH, DATA_LEN, DATA_LOW, Machine, PAD_FAR, PAD_NEAR, State, Stop};
use random::Random;

const AT: Addr = Addr(CODE + 1024);

fn decode(code: &[u8]) -> Instruction {
    Decoder::with_ip(64, code, AT.0, DecoderOptions::NONE).decode()
}

/// Flags that an instruction of the tests may change, without those that the kernel and single-stepping own.
fn visible(mut regs: Regs) -> Regs {
    const DIRECTION: u64 = 1 << 10;
    regs.rflags &= ARITHMETIC | DIRECTION;
    regs
}

fn describe(code: &[u8], regs: &Regs) -> String {
    format!("{:?} {:02x?} with {regs:#x?}", decode(code).code(), &code[..decode(code).len()])
}

fn set_up(machine: &mut Machine, code: &[u8], data: &[u8], regs: &Regs) {
    machine.write(AT.0, code);
    let (low, high) = data.split_at(DATA_LEN as usize);
    machine.write(DATA_LOW, low);
    machine.write(DATA_HIGH, high);
    machine.set_regs(&Regs { rip: AT.0, ..*regs });
}

/// Compares the emulator with the processor on one instruction; whether it did emulate.
fn check_emulator(machine: &mut Machine, emulated: &Emulated, code: &[u8], regs: &Regs) -> bool {
    let before = Regs { rip: AT.0, ..*regs };
    machine.write(AT.0, code);
    machine.set_regs(&before);
    let mut ours = before;
    let outcome = emulated.run(&mut ours, machine);
    let stop = machine.step();
    if outcome == Outcome::NeedsPad {
        assert_eq!(ours, before, "changed registers without emulating {}", describe(code, &before));
        // whether a jump to the kernel's half faults before or after it is left to the processor
        let native = machine.regs();
        let faults = stop != Stop::STEPPED || native.rip >> 47 != 0;
        assert!(faults, "gave up on {}; natively: {native:x?}", describe(code, &before));
        return false;
    }
    assert_eq!(stop, Stop::STEPPED, "no fault seen: {}", describe(code, &before));
    let native = machine.regs();
    assert_eq!(visible(ours), visible(native), "{}", describe(code, &before));
    true
}

/// All one-byte opcodes that have an emulated form, and some beside; likewise of the two-byte map.
const EMULATOR_OPCODES: &[&[u8]] = &[
    &[0x00],
    &[0x01],
    &[0x02],
    &[0x03],
    &[0x04],
    &[0x05],
    &[0x08],
    &[0x09],
    &[0x0a],
    &[0x0b],
    &[0x0c],
    &[0x0d],
    &[0x20],
    &[0x21],
    &[0x22],
    &[0x23],
    &[0x24],
    &[0x25],
    &[0x28],
    &[0x29],
    &[0x2a],
    &[0x2b],
    &[0x2c],
    &[0x2d],
    &[0x30],
    &[0x31],
    &[0x32],
    &[0x33],
    &[0x34],
    &[0x35],
    &[0x38],
    &[0x39],
    &[0x3a],
    &[0x3b],
    &[0x3c],
    &[0x3d],
    &[0x63],
    &[0x70],
    &[0x71],
    &[0x72],
    &[0x73],
    &[0x74],
    &[0x75],
    &[0x76],
    &[0x77],
    &[0x78],
    &[0x79],
    &[0x7a],
    &[0x7b],
    &[0x7c],
    &[0x7d],
    &[0x7e],
    &[0x7f],
    &[0x80],
    &[0x81],
    &[0x83],
    &[0x84],
    &[0x85],
    &[0x88],
    &[0x89],
    &[0x8a],
    &[0x8b],
    &[0x8d],
    &[0x90],
    &[0x98],
    &[0xa8],
    &[0xa9],
    &[0xb0],
    &[0xb4],
    &[0xb8],
    &[0xbf],
    &[0xc2],
    &[0xc3],
    &[0xc6],
    &[0xc7],
    &[0xe9],
    &[0xeb],
    &[0xf6],
    &[0xf7],
    &[0x0f, 0x1f],
    &[0x0f, 0x84],
    &[0x0f, 0x8d],
    &[0x0f, 0xb6],
    &[0x0f, 0xb7],
    &[0x0f, 0xbe],
    &[0x0f, 0xbf],
];

#[test]
fn t15_emulated_instructions_do_what_the_processor_does() {
    let mut random = Random::new(1);
    let mut machine = Machine::start();
    let data = random.data();
    set_up(&mut machine, &[0x90], &data, &random.regs());
    let mut seen: BTreeMap<Mnemonic, u32> = BTreeMap::new();
    for _ in 0..60_000 {
        let code = random.instruction(EMULATOR_OPCODES, &[0x66, 0x66, 0x64, 0x67, 0xf3, 0xf2, 0x2e]);
        let Ok(Planned { step: StepOver::Emulate(emulated), len }) = plan(&code, AT) else { continue };
        assert_eq!(usize::from(len), decode(&code).len());
        if check_emulator(&mut machine, &emulated, &code, &random.regs()) {
            *seen.entry(decode(&code).mnemonic()).or_default() += 1;
        }
    }
    let wanted = [
        Mnemonic::Nop,
        Mnemonic::Mov,
        Mnemonic::Movzx,
        Mnemonic::Movsx,
        Mnemonic::Movsxd,
        Mnemonic::Cbw,
        Mnemonic::Cwde,
        Mnemonic::Cdqe,
        Mnemonic::Lea,
        Mnemonic::Add,
        Mnemonic::Sub,
        Mnemonic::Cmp,
        Mnemonic::And,
        Mnemonic::Test,
        Mnemonic::Or,
        Mnemonic::Xor,
        Mnemonic::Jmp,
        Mnemonic::Ret,
        Mnemonic::Jo,
        Mnemonic::Jno,
        Mnemonic::Jb,
        Mnemonic::Jae,
        Mnemonic::Je,
        Mnemonic::Jne,
        Mnemonic::Jbe,
        Mnemonic::Ja,
        Mnemonic::Js,
        Mnemonic::Jns,
        Mnemonic::Jp,
        Mnemonic::Jnp,
        Mnemonic::Jl,
        Mnemonic::Jge,
        Mnemonic::Jle,
        Mnemonic::Jg,
    ];
    for mnemonic in wanted {
        let count = seen.get(&mnemonic).copied().unwrap_or_default();
        assert!(count >= 10, "{mnemonic:?} was tried {count} times only");
    }
}

#[test]
fn emulates_what_stands_at_the_entries_of_allocators() {
    // hazards of the trade: the first instructions of glibc, jemalloc, tcmalloc, mimalloc, libstdc++ and ld.so
    let entries: &[&[u8]] = &[
        &[0xf3, 0x0f, 0x1e, 0xfa],                               // endbr64
        &[0x48, 0x85, 0xff],                                     // test rdi,rdi
        &[0x48, 0x81, 0xff, 0x00, 0x10, 0x00, 0x00],             // cmp rdi,0x1000
        &[0x80, 0x3d, 0x00, 0x24, 0x00, 0x00, 0x00],             // cmp byte [rip+0x2400],0
        &[0x48, 0x8b, 0x05, 0x00, 0x24, 0x00, 0x00],             // mov rax,[rip+0x2400]
        &[0x48, 0x8d, 0x46, 0xff],                               // lea rax,[rsi-1]
        &[0x48, 0x83, 0xec, 0x08],                               // sub rsp,8
        &[0x31, 0xf6],                                           // xor esi,esi
        &[0x41, 0xb8, 0x01, 0x00, 0x00, 0x00],                   // mov r8d,1
        &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 0x88],                // mov rax,imm64
        &[0xe9, 0x00, 0x01, 0x00, 0x00],                         // jmp rel32
        &[0xc3],                                                 // ret
        &[0xf3, 0xc3],                                           // rep ret
        &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0, 0], // nopw
    ];
    let mut random = Random::new(2);
    let mut machine = Machine::start();
    let data = random.data();
    for code in entries {
        let Ok(Planned { step: StepOver::Emulate(emulated), .. }) = plan(code, AT) else {
            panic!("not emulated: {code:02x?}");
        };
        let mut done = 0;
        for _ in 0..50 {
            let regs = random.regs();
            set_up(&mut machine, code, &data, &regs);
            done += u32::from(check_emulator(&mut machine, &emulated, code, &regs));
        }
        assert!(done > 0, "never emulated: {code:02x?}");
    }
}

/// Runs one instruction at its place, as often as it repeats itself.
fn run_in_place(machine: &mut Machine, repeats: bool) -> (Stop, State) {
    for _ in 0..64 {
        let stop = machine.step();
        if !repeats || stop != Stop::STEPPED || machine.regs().rip != AT.0 {
            return (stop, machine.state());
        }
    }
    (Stop::STEPPED, machine.state())
}

/// Runs the pad to its end and compares with the original. On the way, wherever a signal could stop it, checks that
/// the thread can be put back into the original code.
fn check_pad(machine: &mut Machine, pad: &Pad, at_pad: u64, code: &[u8], data: &[u8], regs: &Regs) {
    let before = Regs { rip: AT.0, ..*regs };
    let instruction = decode(code);
    let what = || describe(code, &before);
    let repeats = instruction.is_string_instruction();
    let set_up_both = |machine: &mut Machine| {
        // stray stores may have gone to the code, too
        machine.write(CODE, &[0; 4096]);
        machine.write(PAD_NEAR, &[0; 4096]);
        machine.write(at_pad, &pad.bytes);
        machine.reset_float();
        set_up(machine, code, data, regs);
    };
    set_up_both(machine);
    let (stop, native) = run_in_place(machine, repeats);

    set_up_both(machine);
    machine.set_regs(&Regs { rip: at_pad, ..*regs });
    let in_pad = |pc: u64| (at_pad..at_pad + pad.bytes.len() as u64).contains(&pc);
    let mut ours = Stop::STEPPED;
    let mut pushed = false;
    for steps in 0..200 {
        ours = machine.step();
        let mut now = machine.regs();
        if !in_pad(now.rip) {
            break;
        }
        let offset = now.rip - at_pad;
        let resume =
            pad.resume.get(offset).unwrap_or_else(|| panic!("stopped {offset} bytes into the pad of {}", what()));
        resume.apply(&mut now);
        if ours != Stop::STEPPED || repeats && offset == 0 && steps == 63 {
            // the kernel gives the pc as the address of an illegal instruction: it has to be translated as well
            ours.fault = if ours.fault == at_pad { AT.0 } else { ours.fault };
            machine.set_regs(&now);
            break;
        }
        if offset == 0 {
            assert!(repeats, "back at the pad's start: {}", what());
            continue;
        }
        pushed = resume.drop != 0;
        let expected = if pushed { &before } else { &native.regs };
        assert_eq!(visible(now), visible(*expected), "halfway through the pad of {}", what());
    }
    let state = machine.state();
    if instruction.flow_control() == FlowControl::IndirectCall && stop != Stop::STEPPED {
        // the pad pushes before it loads the target: if both fault, the other comes first; if only the load does, the
        // bytes below the stack pointer, where nothing lives, have changed
        assert!(ours != Stop::STEPPED);
        assert!(!pushed || ours == stop, "{}", what());
        assert_eq!(visible(state.regs), visible(before), "{}", what());
        return;
    }
    assert_eq!(ours, stop, "{}", what());
    assert_eq!(visible(state.regs), visible(native.regs), "{}", what());
    assert!(state.data == native.data, "memory differs after {}", what());
    assert!(state.float == native.float, "floating-point state differs after {}", what());
}

/// What can't be compared: system calls, what reads a clock, what changes segments, modes or the single-step flag.
fn comparable(code: &[u8]) -> bool {
    use Mnemonic as M;
    let instruction = decode(code);
    let segments = (0..instruction.op_count()).any(|n| instruction.op_register(n).is_segment_register());
    let unfit = matches!(
        instruction.mnemonic(),
        M::Syscall | M::Sysenter | M::Sysexit | M::Int | M::Int1 | M::Int3 | M::Into | M::Popfq | M::Popf | M::Iretq
            | M::Iretd | M::Iret | M::Retf | M::Rdtsc | M::Rdtscp | M::Rdrand | M::Rdseed | M::Cpuid | M::Rdpmc
            | M::Rdpru | M::Rdpid | M::Wrfsbase | M::Wrgsbase | M::Rdfsbase | M::Rdgsbase | M::Lfs | M::Lgs | M::Lss
            | M::Xbegin | M::Monitor | M::Monitorx | M::Mwait | M::Mwaitx | M::Xrstor | M::Xrstor64 | M::Xrstors
            | M::Xrstors64 | M::Fxrstor | M::Fxrstor64 | M::Ud0 | M::Wrpkru | M::Fldenv | M::Frstor
            // where the processor refuses these the kernel emulates them, and a single step goes one further
            | M::Sgdt | M::Sidt | M::Sldt | M::Smsw | M::Str
            // these show the address of the instruction itself, as x87 state
            | M::Fnstenv | M::Fnsave | M::Fxsave | M::Fxsave64 | M::Xsave | M::Xsave64 | M::Xsavec | M::Xsavec64
            | M::Xsaveopt | M::Xsaveopt64 | M::Xsaves | M::Xsaves64
    );
    !segments && !unfit && !instruction.is_jmp_far() && !instruction.is_jmp_far_indirect()
}

/// Builds the pad at the place that the seed says, or nearer.
fn pad_for(random: &mut Random, code: &[u8]) -> Result<(u64, Pad), StepError> {
    let near = (PAD_NEAR, build_pad(code, AT, Addr(PAD_NEAR))?);
    if random.chance(50)
        && let Ok(far) = build_pad(code, AT, Addr(PAD_FAR))
    {
        return Ok((PAD_FAR, far));
    }
    Ok(near)
}

#[test]
fn t15_pads_do_what_the_original_does() {
    let one: Vec<[u8; 1]> = (0..=255).filter(|b| !matches!(b, 0x0f | 0xcc)).map(|b| [b]).collect();
    let two: Vec<[u8; 2]> = (0..=255).map(|b| [0x0f, b]).collect();
    let three: Vec<[u8; 3]> = [0x38, 0x3a].iter().flat_map(|m| (0..=255).map(move |b| [0x0f, *m, b])).collect();
    let mut opcodes: Vec<&[u8]> = one.iter().map(|o| o.as_slice()).collect();
    opcodes.extend(two.iter().map(|o| o.as_slice()));
    opcodes.extend(three.iter().map(|o| o.as_slice()));
    // loop, loope, loopne, jrcxz, call, and what FF leads
    opcodes.extend(
        [[0xe0], [0xe1], [0xe2], [0xe3], [0xe8], [0xff], [0xff], [0xff], [0xff], [0xc3], [0xe9]]
            .iter()
            .map(|o| o.as_slice())
            .cycle()
            .take(150),
    );

    let mut random = Random::new(3);
    let mut machine = Machine::start();
    let data = random.data();
    let mut seen: BTreeMap<Mnemonic, u32> = BTreeMap::new();
    for _ in 0..12_000 {
        let code = random.instruction(&opcodes, &[0x66, 0x64, 0x67, 0xf3, 0xf2, 0xf0]);
        if !comparable(&code) {
            continue;
        }
        let planned = plan(&code, AT);
        let built = pad_for(&mut random, &code);
        let cannot_move = matches!(built, Err(StepError::NotRelocatable { .. }));
        assert_eq!(matches!(planned, Err(StepError::NotRelocatable { .. })), cannot_move, "{code:02x?}: {built:?}");
        let Ok((at_pad, pad)) = built else { continue };
        let mut regs = random.regs();
        if random.chance(30) {
            regs.gpr[heaptrace::internal::reg::RCX] = random.below(3);
        }
        check_pad(&mut machine, &pad, at_pad, &code, &data, &regs);
        *seen.entry(decode(&code).mnemonic()).or_default() += 1;
    }
    for mnemonic in [
        Mnemonic::Loop,
        Mnemonic::Loope,
        Mnemonic::Loopne,
        Mnemonic::Jrcxz,
        Mnemonic::Call,
        Mnemonic::Ret,
        Mnemonic::Push,
        Mnemonic::Jmp,
    ] {
        let count = seen.get(&mnemonic).copied().unwrap_or_default();
        assert!(count >= 5, "{mnemonic:?} was tried {count} times only");
    }
    assert!(seen.len() > 300, "{} kinds of instructions only", seen.len());
}

#[test]
fn t15_calls_in_pads_push_the_original_return_address() {
    let calls: &[&[u8]] = &[
        &[0xe8, 0x00, 0x01, 0x00, 0x00],                   // call rel32
        &[0xff, 0xd0],                                     // call rax
        &[0x41, 0xff, 0x14, 0x24],                         // call [r12]
        &[0xff, 0x15, 0x00, 0x24, 0x00, 0x00],             // call [rip+0x2400]
        &[0xff, 0x14, 0x24],                               // call [rsp]
        &[0xff, 0x54, 0x24, 0x10],                         // call [rsp+0x10]
        &[0xff, 0x54, 0x24, 0x7f],                         // call [rsp+0x7f]
        &[0x42, 0xff, 0x94, 0xcc, 0x00, 0x01, 0x00, 0x00], // call [rsp+r9*8+0x100]
    ];
    let mut random = Random::new(5);
    let mut machine = Machine::start();
    let data = random.data();
    for code in calls {
        assert_eq!(plan(code, AT), Ok(Planned { step: StepOver::Pad, len: code.len() as u8 }));
        for _ in 0..50 {
            let (at_pad, pad) = pad_for(&mut random, code).unwrap();
            let mut regs = random.regs();
            if random.chance(50) {
                regs.gpr[heaptrace::internal::reg::R9] = random.below(16);
            }
            check_pad(&mut machine, &pad, at_pad, code, &data, &regs);
        }
    }
}

#[derive(Default, Debug)]
struct Shares {
    emulated: u32,
    pad: u32,
    not_relocatable: u32,
    own_breakpoint: u32,
    undecodable: u32,
}

impl Shares {
    fn of(sites: &[Vec<u8>]) -> Self {
        let mut shares = Self::default();
        for code in sites {
            match plan(code, AT) {
                Ok(Planned { step: StepOver::Emulate(_), .. }) => shares.emulated += 1,
                Ok(Planned { step: StepOver::Pad, .. }) => shares.pad += 1,
                Err(StepError::NotRelocatable { .. }) => shares.not_relocatable += 1,
                Err(StepError::OwnBreakpoint { .. }) => shares.own_breakpoint += 1,
                Err(_) => shares.undecodable += 1,
            }
        }
        shares
    }
}

#[test]
fn instructions_of_real_binaries_have_a_way_past() {
    let corpora = corpus::files();
    assert!(!corpora.is_empty());
    let mut random = Random::new(4);
    let mut machine = Machine::start();
    let data = random.data();
    for corpus in &corpora {
        for (kind, sites) in [("entries", &corpus.entries), ("return sites", &corpus.return_sites)] {
            let shares = Shares::of(sites);
            println!("{} {kind}: {} {shares:?}", corpus.path, sites.len());
            // behind a call that never returns anything may stand
            assert!(shares.undecodable as usize * 1000 <= sites.len(), "{}: {shares:?}", corpus.path);
            assert!(shares.not_relocatable as usize * 100 < sites.len().max(100), "{}: {shares:?}", corpus.path);

            let mut unique: Vec<&Vec<u8>> = sites.iter().collect();
            unique.sort();
            unique.dedup();
            for _ in 0..1500.min(unique.len()) {
                let mut code = random.pick(&unique).to_vec();
                let instruction = decode(&code);
                if instruction.is_invalid() || !comparable(&code) {
                    continue;
                }
                code.truncate(instruction.len());
                let regs = random.regs();
                match plan(&code, AT) {
                    Ok(Planned { step: StepOver::Emulate(emulated), .. }) => {
                        set_up(&mut machine, &code, &data, &regs);
                        check_emulator(&mut machine, &emulated, &code, &regs);
                    }
                    Err(_) => continue,
                    Ok(_) => {}
                }
                match pad_for(&mut random, &code) {
                    Ok((at_pad, pad)) => check_pad(&mut machine, &pad, at_pad, &code, &data, &regs),
                    Err(error) => assert!(matches!(error, StepError::OutOfReach { .. }), "{error}"),
                }
            }
        }
    }
}
