//! The unwinder against what C fixtures say of themselves (glibc's backtrace()) and against libunwind.

use super::counts::assert_sites;
use crate::support::program::Program;
use crate::support::stopped::{Stopped, build};
use crate::support::tempdir::TempDir;
use crate::support::{copy_file, fixtures};
use heaptrace::internal::{
    Addr, FrameAddr, Libunwind, MemoryImage, ModuleId, ObjAddr, Quality, Regs, Section, UnwindModule, Unwinder, Unwound,
};
use object::{Object, ObjectSection, ObjectSymbol};
use std::ops::Range;
use std::path::Path;

const MAX_DEPTH: u32 = 1000;
/// How often frames.c stops: 13 times in main(), 3 in the first thread, 4 in the second.
const STOPS_OF_FRAMES: u32 = 20;

fn unwinder(modules: &[(String, UnwindModule)]) -> Unwinder {
    let mut unwinder = Unwinder::new();
    for (_, module) in modules {
        unwinder.add_module(module.clone());
    }
    unwinder
}

fn raw(unwinder: &Unwinder, found: Unwound) -> Vec<u64> {
    unwinder.stacks().frames(found.stack).iter().map(|frame| frame.addr.raw().0).collect()
}

/// The instruction pointers that libunwind finds from the fixture's stop on, the thread's own first. Fails if it is not
/// installed.
fn by_libunwind(libunwind: &Libunwind, fixture: &Stopped, regs: &Regs) -> Vec<u64> {
    let callers = libunwind.walk(fixture.task.as_raw(), MAX_DEPTH).unwrap();
    assert!(!callers.truncated, "{:x}: libunwind has lost its way: {callers:?}", regs.rip);
    [regs.rip].into_iter().chain(callers.frames.iter().map(|frame| frame.raw().0)).collect()
}

/// Runs a fixture that calls `stop_here`, and compares at each stop. `change` may take sections from the fixture's
/// own module.
fn compare_stops(program: &Path, change: impl Fn(&mut UnwindModule)) -> Compared {
    let mut fixture = Stopped::start(program);
    let mut compared = Compared { stops: 0, deepest: 0, worst: Quality::Complete };
    let mut stop = fixture.wait();
    let mut modules = fixture.modules();
    let (_, module) = modules.iter_mut().find(|(path, _)| Path::new(path) == program).unwrap();
    change(module);
    let mut unwinder = unwinder(&modules);
    let libunwind = Libunwind::open().unwrap_or_else(|error| panic!("{error}"));
    // libunwind 1.6 finds no tables in static programs
    let is_static = !modules.iter().any(|(path, _)| path.contains("libc.so"));
    while let Some(regs) = stop {
        let expected = fixture.line();
        let what = format!("{} stop {}", program.display(), compared.stops);
        let mut memory = fixture.memory();

        let found = unwinder.unwind_at_entry(&regs, &mut memory, MAX_DEPTH);
        let seen = raw(&unwinder, found);
        // the first address lies in stop_here: backtrace() returns there in one, stop_entry in the other
        assert_eq!(hex(&seen[1..]), hex(&expected[1..]), "{what}");
        assert!(seen[0].abs_diff(expected[0]) < 0x1000, "{what}: {:x} {:x}", seen[0], expected[0]);
        assert_eq!(found.depth as usize, expected.len(), "{what}");
        compared.worst = compared.worst.max(found.quality);

        let quality = found.quality;
        let found = unwinder.unwind_from(&regs, &mut memory, MAX_DEPTH);
        let from_here = raw(&unwinder, found);
        assert_eq!(from_here[0], regs.rip);
        assert_eq!((hex(&from_here[1..]), found.quality), (hex(&seen), quality), "{what}");
        if !is_static {
            assert_eq!(hex(&from_here), hex(&by_libunwind(&libunwind, &fixture, &regs)), "{what}: libunwind");
        }
        compared.stops += 1;
        compared.deepest = compared.deepest.max(seen.len());
        stop = fixture.go_on();
    }
    compared
}

/// What [`compare_stops`] saw.
struct Compared {
    stops: u32,
    deepest: usize,
    worst: Quality,
}

fn hex(addresses: &[u64]) -> Vec<String> {
    addresses.iter().map(|addr| format!("{addr:x}")).collect()
}

/// Flags under which compilers lay out frames differently.
const VARIANTS: [&[&str]; 9] = [
    &["-O0"],
    &["-O2", "-fomit-frame-pointer"],
    &["-O3", "-fno-omit-frame-pointer", "-no-pie"],
    &["-Os"],
    &["-O2", "-mavx2", "-mstackrealign"],
    &["-O2", "-mno-red-zone", "-maccumulate-outgoing-args"],
    &["-O2", "-static"],
    &["-O2", "-static-pie"],
    &["-O2", "-fsanitize=undefined", "-fcf-protection=none"],
];

#[test]
fn t44_frames_of_every_shape_equal_backtrace() {
    for flags in VARIANTS {
        let all = compare_stops(&build("cc", "frames", flags), |_| ());
        assert_eq!((all.stops, all.worst), (STOPS_OF_FRAMES, Quality::Complete), "{flags:?}");
        assert!(all.deepest > 300, "{flags:?}: {} frames", all.deepest);
    }
}

#[test]
fn t44_clang_lays_out_frames_as_well() {
    for flags in [&["-O2"][..], &["-O0"], &["-O2", "-mavx2", "-mstackrealign"]] {
        let all = compare_stops(&build("clang", "frames", flags), |_| ());
        assert_eq!((all.stops, all.worst), (STOPS_OF_FRAMES, Quality::Complete), "{flags:?}");
    }
}

/// Without the linker's search table, and with `.debug_frame` alone: each fixture has both tables, so that backtrace()
/// still finds its way.
#[test]
fn t44_every_kind_of_table_gives_the_same_stacks() {
    for name in ["frames", "signal_handlers"] {
        let program = build("cc", name, &["-O2", "-DBOTH_TABLES"]);
        let all = compare_stops(&program, |module| module.eh_frame_hdr = None);
        assert_eq!(all.worst, Quality::Complete);
        let again = compare_stops(&program, |module| {
            assert!(module.debug_frame.is_some(), "{name} has a .debug_frame");
            module.eh_frame = None;
        });
        // libc's _start is described in .eh_frame only; now it is known by the entry point
        assert_eq!((again.stops, again.worst), (all.stops, Quality::Complete));
        let guessing = compare_stops(&program, |module| {
            module.eh_frame = None;
            module.entry = None;
        });
        // that it is the outermost frame is now a guess
        assert_eq!((guessing.stops, guessing.worst), (all.stops, Quality::Guessed));
    }
}

#[test]
fn t45_handlers_lead_to_what_they_interrupted() {
    for flags in VARIANTS {
        let all = compare_stops(&build("cc", "signal_handlers", flags), |_| ());
        assert_eq!((all.stops, all.worst), (6, Quality::Complete), "{flags:?}");
    }
}

#[test]
fn t45_the_trampoline_and_the_interrupted_frame_are_instructions() {
    let mut fixture = Stopped::start(&build("cc", "signal_handlers", &["-O2"]));
    let mut stop = fixture.wait();
    let mut unwinder = unwinder(&fixture.modules());
    let mut interrupted = 0;
    while let Some(regs) = stop {
        let found = unwinder.unwind_at_entry(&regs, &mut fixture.memory(), MAX_DEPTH);
        let frames = unwinder.stacks().frames(found.stack);
        let instructions: Vec<_> =
            frames.iter().filter(|frame| matches!(frame.addr, FrameAddr::Instruction(_))).collect();
        let mut signal_frames = 0;
        unwinder.walk(&regs, &mut fixture.memory(), true, &mut |frame| {
            signal_frames += u32::from(frame.is_signal_frame);
            std::ops::ControlFlow::Continue(())
        });
        // SIGUSR1's handler; SIGUSR2's inside it; SIGSEGV's
        assert_eq!(signal_frames, [1, 2, 1][interrupted % 3]);
        assert_eq!(instructions.len(), 2 * signal_frames as usize);
        interrupted += 1;
        stop = fixture.go_on();
    }
    assert_eq!(interrupted, 6);
}

fn no_cfi_stops(change: impl Fn(&mut Vec<(String, UnwindModule)>, u64)) -> Vec<(Quality, Vec<u64>, u64)> {
    let mut fixture = Stopped::start(&build("cc", "no_cfi", &["-O2"]));
    let mut stop = fixture.wait();
    let mut stops = Vec::new();
    while let Some(regs) = stop {
        let inner = fixture.line()[0];
        let mut modules = fixture.modules();
        change(&mut modules, inner);
        let mut unwinder = unwinder(&modules);
        let found = unwinder.unwind_at_entry(&regs, &mut fixture.memory(), MAX_DEPTH);
        stops.push((found.quality, raw(&unwinder, found), inner));
        stop = fixture.go_on();
    }
    assert_eq!(stops.len(), 3);
    stops
}

#[test]
fn t46_code_without_cfi_is_guessed_or_truncated_and_says_so() {
    let stops = no_cfi_stops(|_, _| {});
    let [(framed, framed_stack, after_framed), (bare, bare_stack, after_bare), (jit, jit_stack, after_jit)] =
        &stops[..]
    else {
        panic!("three stops")
    };
    assert_eq!((framed, framed_stack[1]), (&Quality::Guessed, *after_framed));
    // stop_plainly, the assembly, main, two of libc, _start
    assert_eq!(framed_stack.len(), 6, "{}", hex(framed_stack).join(" "));
    assert_eq!((bare, &bare_stack[1..]), (&Quality::Truncated, &[*after_bare][..]));
    assert_eq!((jit, &jit_stack[1..]), (&Quality::Truncated, &[*after_jit][..]));
}

#[test]
fn t46_a_known_region_of_jit_code_is_passed_by_its_frame_pointer() {
    let stops = no_cfi_stops(|modules, inner| {
        let page = inner & !0xfff;
        let region = module_without_sections(ModuleId(99), Addr(page)..Addr(page + 0x1000));
        if !modules.iter().any(|(_, module)| module.code.iter().any(|range| range.contains(&Addr(inner)))) {
            modules.push((String::new(), region));
        }
    });
    let (quality, stack, after_jit) = &stops[2];
    assert_eq!((quality, stack[1], stack.len()), (&Quality::Guessed, *after_jit, 6));
}

/// Every single instruction between two stops of main(): whatever is called there, main and its callers must be found
/// below it. Passes lazy PLT entries, the dynamic linker's resolver and the vdso.
#[test]
fn every_instruction_of_a_call_leads_back_to_main() {
    let program = build("cc", "steps", &["-O1", "-Wl,-z,lazy", "-fcf-protection=none"]);
    let mut fixture = Stopped::start(&program);
    let mut regs = fixture.wait().unwrap();
    fixture.line();
    let modules = fixture.modules();
    let mut unwinder = unwinder(&modules);
    let libunwind = Libunwind::open().unwrap_or_else(|error| panic!("{error}"));
    let find = |name: &str| modules.iter().find(|(path, _)| path.contains(name)).map(|(_, m)| m.id).unwrap();
    let (vdso, loader) = (find("[vdso]"), find("ld-linux"));
    let [plt, main] = plt_and_main(&program, &modules);

    let stop = regs.rip;
    let found = unwinder.unwind_at_entry(&regs, &mut fixture.memory(), MAX_DEPTH);
    // without stop_here and main
    let callers = raw(&unwinder, found).split_off(2);

    let (mut steps, mut in_plt, mut in_vdso, mut in_loader, mut failures) = (0, 0, 0, 0, Vec::new());
    loop {
        regs = fixture.step().expect("the fixture stops again before it ends");
        if regs.rip == stop {
            break;
        }
        let found = unwinder.unwind_from(&regs, &mut fixture.memory(), MAX_DEPTH);
        let seen = raw(&unwinder, found);
        steps += 1;
        in_plt += u32::from(plt.contains(&regs.rip));
        match unwinder.module_of(Addr(regs.rip)) {
            Some(id) if id == vdso => in_vdso += 1,
            Some(id) if id == loader => in_loader += 1,
            _ => {}
        }
        let below_callers = seen.strip_suffix(&callers[..]).and_then(|rest| rest.last());
        if found.quality != Quality::Complete || !below_callers.is_some_and(|addr| main.contains(addr)) {
            failures.push(format!("{:x}: {:?} {}", regs.rip, found.quality, hex(&seen).join(" ")));
        } else if steps % 16 == 0
            // libunwind 1.6 knows no vdso, and guesses from there
            && unwinder.module_of(Addr(regs.rip)) != Some(vdso)
            && let theirs = by_libunwind(&libunwind, &fixture, &regs)
            && theirs != seen
        {
            failures.push(format!("{:x}: libunwind {} we {}", regs.rip, hex(&theirs).join(" "), hex(&seen).join(" ")));
        }
    }
    assert!(failures.is_empty(), "{} of {steps}:\n{}", failures.len(), failures[..failures.len().min(20)].join("\n"));
    assert!(in_plt > 10 && in_vdso > 10 && in_loader > 1000, "{steps} steps: {in_plt} {in_vdso} {in_loader}");
}

/// Where a program's `.plt` and its main() are in the process.
fn plt_and_main(program: &Path, modules: &[(String, UnwindModule)]) -> [Range<u64>; 2] {
    let bytes = std::fs::read(program).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let (_, module) = modules.iter().find(|(path, _)| Path::new(path) == program).unwrap();
    let place = |addr, size| {
        let start = module.bias.to_process(ObjAddr(addr)).0;
        start..start + size
    };
    let plt = elf.section_by_name(".plt").unwrap();
    let main = elf.symbol_by_name("main").unwrap();
    [place(plt.address(), plt.size()), place(main.address(), main.size())]
}

/// A compiler's own tables (with personality routines and LSDA pointers, unlike the unit tests' ones), mangled.
#[test]
fn mangled_tables_of_a_real_program_never_panic() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let section = elf.section_by_name(".eh_frame").unwrap();
    let text = elf.section_by_name(".text").unwrap();
    let whole = &section.data().unwrap()[..8192];
    let mut state = 0x0123_4567_89ab_cdefu64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let mut stack =
        MemoryImage { start: Addr(0x7fff_0000_0000), bytes: (text.address() + 0x40).to_le_bytes().repeat(512) };
    let mut passed = 0;
    for round in 0..400 {
        let mut table = whole.to_vec();
        for _ in 0..round % 50 {
            let at = random(table.len() as u64) as usize;
            table[at] = random(256) as u8;
        }
        let mut unwinder = Unwinder::new();
        let code = Addr(text.address())..Addr(text.address() + text.size());
        unwinder.add_module(UnwindModule {
            eh_frame: Some(Section { addr: ObjAddr(section.address()), bytes: table.into() }),
            ..module_without_sections(ModuleId(0), code.clone())
        });
        for _ in 0..500 {
            let mut regs = Regs { rip: code.start.0 + random(0x2_0000), ..Regs::default() };
            regs.gpr = [stack.start.0 + 64; 16];
            let found = unwinder.unwind_from(&regs, &mut stack, 50);
            passed += u32::from(found.depth > 1);
        }
    }
    assert!(passed > 1000, "{passed} walks found a row for their first frame");
}

fn module_without_sections(id: ModuleId, code: Range<Addr>) -> UnwindModule {
    UnwindModule {
        id,
        code: vec![code],
        bias: Default::default(),
        eh_frame_hdr: None,
        eh_frame: None,
        debug_frame: None,
        text: None,
        got: None,
        entry: None,
    }
}

/// Why the jump engine leaves all calls to stops.
const NEEDS_STOPS: &str = "--unwinder libunwind needs a stop at each call";

/// `--unwinder libunwind`: the same sites, stack for stack, as with our own: through inlined calls, recursion and
/// operator new.
#[test]
fn unwinder_option_gives_the_same_stacks() {
    for name in ["sites", "peak", "operators"] {
        let stacks = |unwinder: &str| {
            let program = Program::fixture(name).stays_on_trap(NEEDS_STOPS);
            let traced = program.traced_with(&["--unwinder", unwinder]);
            traced.report.assert_no_anomaly();
            let describe = |site: &serde_json::Value| {
                let frames = site["stack"].as_array().unwrap().iter();
                let frames: Vec<_> =
                    frames.map(|frame| format!("{} {}:{}", frame["function"], frame["file"], frame["line"])).collect();
                format!("{} {}", frames.join(" < "), site["allocated"])
            };
            let mut all: Vec<_> = traced.report.sites().iter().map(describe).collect();
            all.sort();
            all
        };
        let (ours, theirs) = (stacks("own"), stacks("libunwind"));
        assert!(!ours.is_empty());
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn with_libunwind_each_call_stops_whatever_the_engine() {
    let program = Program::fixture("threads").args(["4", "1000"]).stays_on_trap(NEEDS_STOPS);
    let options = ["--unwinder", "libunwind", "--engine", "jump"];
    for (engine, options) in [("trap", &options[..]), ("auto", &options[..2])] {
        let traced = program.clone().env("HEAPTRACE_ENGINE", engine).traced_with(options);
        assert_eq!(traced.report.text("/engine"), "trap", "{}", traced.ended.stderr);
        let warnings = traced.report.list("/warnings").iter().filter_map(|warning| warning.as_str());
        assert!(warnings.clone().any(|warning| warning.contains(NEEDS_STOPS)), "{:?}", warnings.collect::<Vec<_>>());
        assert_sites(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    }
}

/// A libunwind that can't be opened, or lacks what is needed, is told of with the way out, and the program is not
/// started.
#[test]
fn a_libunwind_that_can_t_be_used_is_refused_before_the_program_starts() {
    const UNWINDER: &str = "libunwind-x86_64.so.8";
    const READER: &str = "libunwind-ptrace.so.0";
    let no_library = "a text, which no dynamic linker takes for a library of any kind".repeat(2);
    let lacks_all = fixtures::library("lacks_all");
    for (name, is_library, said) in [
        (UNWINDER, false, "libunwind-x86_64.so.8: invalid ELF header"),
        (UNWINDER, true, "libunwind-x86_64.so.8 has no _Ux86_64_create_addr_space"),
        (READER, false, "libunwind-ptrace.so.0: invalid ELF header"),
        (READER, true, "libunwind-ptrace.so.0 has no _UPT_create"),
        ("of_another_name.so", true, ""),
    ] {
        let folder = TempDir::new();
        let file = folder.path().join(name);
        if is_library { copy_file(&lacks_all, &file) } else { std::fs::write(&file, &no_library) }.unwrap();
        let program = Program::new("/bin/touch").args(["started"]).env("LD_LIBRARY_PATH", folder.path());
        let ended = program.start_traced(&["--unwinder", "libunwind"]).wait();
        let is_refused = !said.is_empty();
        assert_eq!(ended.code(), if is_refused { 125 } else { 0 }, "{name} {said}: {}", ended.stderr);
        assert_eq!(program.folder().join("started").exists(), !is_refused, "{name} {said}");
        if is_refused {
            let told = ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
            let way_out = "Install it, or reinstall it if it is there (Debian's package is libunwind8), or omit \
                --unwinder libunwind";
            assert!(told.contains(said) && told.ends_with(way_out), "{told}");
        }
    }
}
