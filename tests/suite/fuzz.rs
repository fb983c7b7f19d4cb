//! Fuzzers: whatever the bytes of a file, of /proc or of a command line, nothing panics, hangs, or takes memory without
//! bound.
//!
//! Each takes a real input and changes it in a few places, mostly where it matters: in headers, tables and lengths.
//! `PROPTEST_CASES=100000 cargo test fuzz` looks for longer.

use crate::support::allocations::peak_of;
use crate::support::fixtures;
use heaptrace::internal::{
    Addr, AllocatorTable, Elf, LoadBias, MemoryImage, ModuleId, ModuleSource, ModuleSymbols, ObjAddr, Regs, Search,
    Section, Symbolize, Symbolizer, UnwindModule, Unwinder, cli, ctl, maps, maps::MapIndex,
};
use heaptrace::{Baseline, Suppressions};
use object::{Object, ObjectSection};
use proptest::prelude::*;
use proptest::sample::Index;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// No input of these sizes may take more of the processor's time.
const LONGEST: Duration = Duration::from_secs(10);
/// What any input may take besides what grows with its size.
const MEMORY: usize = 24 << 20;

/// So many cases, or as many as $PROPTEST_CASES says.
pub(super) fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig { cases: asked.unwrap_or_else(|| super::rounds(usual)), ..ProptestConfig::default() }
}

/// The processor's time that this thread has had.
fn own_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Runs a reader over an input of `size` bytes and holds it to time and memory.
pub(super) fn bounded(size: usize, read: impl FnOnce()) {
    let began = own_time();
    let peak = peak_of(read);
    let took = own_time() - began;
    assert!(took < LONGEST, "{took:?} for {size} bytes");
    assert!(peak < MEMORY + 200 * size, "{peak} bytes of memory for {size} bytes");
}

/// One change of an input.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    /// A byte becomes another one.
    Byte(u8),
    /// A bit is turned over.
    Bit(u8),
    /// Four or eight bytes become a number that is at some border.
    Number(u64, bool),
    /// Some bytes are repeated behind themselves.
    Repeat(u8),
    /// Some bytes are taken out.
    Remove(u8),
    /// The input ends here.
    End,
}

fn edit() -> impl Strategy<Value = Edit> {
    let borders = prop::sample::select(vec![
        0,
        1,
        7,
        8,
        0x7f,
        0xff,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_fff0,
        0xffff_ffff,
        1 << 40,
        i64::MAX.cast_unsigned(),
        1 << 63,
        u64::MAX - 7,
        u64::MAX,
    ]);
    prop_oneof![
        4 => any::<u8>().prop_map(Edit::Byte),
        4 => (0_u8..8).prop_map(Edit::Bit),
        6 => (borders, any::<bool>()).prop_map(|(value, wide)| Edit::Number(value, wide)),
        1 => any::<u8>().prop_map(Edit::Repeat),
        1 => any::<u8>().prop_map(Edit::Remove),
        1 => Just(Edit::End),
    ]
}

pub(super) type Edits = Vec<(Index, Index, bool, Edit)>;

/// A few changes; each with a place in all of the input, and one in a part that matters.
pub(super) fn edits() -> impl Strategy<Value = Edits> {
    prop::collection::vec((any::<Index>(), any::<Index>(), prop::bool::weighted(0.8), edit()), 1..12)
}

pub(super) fn change(input: &[u8], parts: &[Range<usize>], edits: &Edits) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for (place, part, in_part, edit) in edits {
        if bytes.is_empty() {
            break;
        }
        let at = match parts.get(part.index(parts.len().max(1))) {
            Some(part) if *in_part && !part.is_empty() => part.start + place.index(part.len()),
            _ => place.index(bytes.len()),
        };
        let at = at.min(bytes.len() - 1);
        match *edit {
            Edit::Byte(value) => bytes[at] = value,
            Edit::Bit(bit) => bytes[at] ^= 1 << bit,
            Edit::Number(value, wide) => {
                let width = if wide { 8 } else { 4 };
                let at = if *in_part { at / 4 * 4 } else { at };
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            Edit::Repeat(count) => {
                let end = (at + usize::from(count)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(end..end, piece);
            }
            Edit::Remove(count) => {
                let end = (at + usize::from(count)).min(bytes.len());
                bytes.drain(at..end);
            }
            Edit::End => bytes.truncate(at),
        }
    }
    bytes
}

/// A real file, and the ranges of its bytes that readers look at first.
struct Seed {
    bytes: Vec<u8>,
    parts: Vec<Range<usize>>,
}

impl Seed {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let mut parts = vec![0..64, 64..64 + 13 * 56];
        // the section headers stand at the end
        parts.push(bytes.len() - 64 * file.sections().count()..bytes.len());
        for section in file.sections() {
            let (offset, size) = section.file_range().unwrap_or_default();
            let kind = section.name().unwrap_or_default();
            if ["sym", "str", "note", "hash", "dynamic", "debug", "frame", "link"]
                .iter()
                .any(|word| kind.contains(word))
            {
                let start = usize::try_from(offset).unwrap();
                parts.push(start..start + usize::try_from(size).unwrap());
            }
        }
        drop(file);
        Self { bytes, parts }
    }

    fn changed(&self, edits: &Edits) -> Vec<u8> {
        change(&self.bytes, &self.parts, edits)
    }
}

/// Programs with all that is read of a file, in several forms.
fn seeds() -> &'static [Seed] {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let plain = fixtures::program_with("pool", &["-O2", "-g", "-Wl,--hash-style=both"]);
        let packed = fixtures::program_with("pool", &["-O2", "-g", "-gz=zlib", "-Wl,--hash-style=gnu", "-DPACKED"]);
        let section = packed.with_file_name("pool.xz-section");
        if !section.exists() {
            let packer = std::process::Command::new("xz").arg("-kc").arg(fixtures::source("pool")).output().unwrap();
            std::fs::write(&section, packer.stdout).unwrap();
        }
        let with_links = packed.with_file_name("pool.links");
        let status = std::process::Command::new("objcopy")
            .arg(format!("--add-section=.gnu_debugdata={}", section.display()))
            .arg(format!("--add-gnu-debuglink={}", plain.display()))
            .arg(format!("--add-section=.gnu_debugaltlink={}", section.display()))
            .args([&packed, &with_links])
            .status();
        assert!(status.unwrap().success());
        [plain, with_links].iter().map(|path| Seed::read(path)).collect()
    })
}

/// All that is asked of a file.
fn exercise(elf: &Elf<'_>) {
    let names = elf.all_symbols().chain(elf.global_labels()).fold(0, |sum, symbol| sum + symbol.name.len());
    let links = (elf.build_id_hex(), elf.debug_link(), elf.debug_alt_link(), elf.interpreter(), elf.soname());
    let sections = [".debug_info", ".debug_str", ".debug_info.dwo", ".text", ".symtab"];
    let sizes = sections.map(|name| elf.sections().data(name).ok().flatten().map(|data| data.len()));
    let joined = elf.sections().joined_data(".debug_info").map_or(0, |data| data.len());
    let unwinding = elf.unwind_sections();
    let slack = elf.executable_slack();
    let rest =
        (elf.needed(), elf.entry(), elf.is_static(), elf.tls_size(), elf.has_symtab(), elf.sections().has_debug_info());
    let mini = elf.mini_debug_info().ok().flatten().map(|bytes| Elf::parse(&bytes).is_ok());
    let bias = elf.load_bias(&maps::parse(MAPS.as_bytes()).unwrap());
    let found = elf.find_symbol("main");
    std::hint::black_box((names, links, sizes, joined, unwinding, slack, rest, mini, bias, found));
}

const MAPS: &str = "\
555555554000-555555558000 r--p 00000000 fe:00 1234   /usr/bin/cat
555555558000-55555555d000 r-xp 00004000 fe:00 1234   /usr/bin/cat
55555555d000-555555560000 r--p 00009000 fe:00 1234   /usr/bin/cat
555555560000-555555561000 rw-p 0000c000 fe:00 1234   /usr/bin/cat
555555561000-555555582000 rw-p 00000000 00:00 0      [heap]
7ffff7d8c000-7ffff7fc5000 r-xp 00026000 fe:00 99     /usr/lib/libc.so.6 (deleted)
7ffff7fc5000-7ffff7fc9000 r--p 00000000 00:00 0      [vvar]
7ffff7fc9000-7ffff7fcb000 r-xp 00000000 00:00 0      [vdso]
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0      [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn fuzz_maps(edits in edits(), near: u64, size in 0_u64..1 << 40) {
        let text = change(MAPS.as_bytes(), &[], &edits);
        bounded(text.len(), || {
            let Ok(mappings) = maps::parse(&text) else { return };
            let modules = maps::modules(&mappings);
            for module in &modules {
                std::hint::black_box((module.code(), module.start(), module.end(), module.is_vdso()));
            }
            for seed in seeds() {
                std::hint::black_box(Elf::parse(&seed.bytes).unwrap().load_bias(&mappings));
            }
            let index = MapIndex::new(mappings);
            std::hint::black_box((index.find(Addr(near)).is_some(), index.find_gap(Addr(near), size)));
        });
    }

    #[test]
    fn fuzz_elf_files(edits in edits(), which: Index) {
        let bytes = which.get(seeds()).changed(&edits);
        bounded(bytes.len(), || {
            for elf in [Elf::parse(&bytes), Elf::parse_debug(&bytes), Elf::parse_memory(&bytes, Addr(0x7f00_0000_0000))] {
                elf.iter().for_each(exercise);
            }
        });
    }

    #[test]
    fn fuzz_alloc_fn_specs(
        words in prop::collection::vec(prop::sample::select(vec![
            "pool_get", "ns::f", ":", "::", "size=", "arg1", "arg6", "arg7", "arg", "count=", "old=", "result=", "ret", "ptr=", ",", "=",
            "+0x", "lib.so", "ffff", "ffffffffffffffffff", "0", " ", "é", "\u{0}", "@", "GLIBC_2.2.5", "+", "x", "malloc", "",
        ]), 0..12),
        noise in ".{0,12}",
        offset: u64,
    ) {
        let spec = words.concat() + &noise;
        bounded(spec.len(), || {
            let mut table = AllocatorTable::new();
            for declaration in [AllocatorTable::parse_alloc_fn(&spec), AllocatorTable::parse_free_fn(&spec)] {
                match declaration {
                    Ok(declaration) => {
                        let id = table.declare(declaration);
                        assert!(table.is_declared(id) && !table.name(id).is_empty());
                    }
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
            let module = ModuleSymbols { module: ModuleId(0), file_name: "lib.so".into(), soname: None, is_c_library: false, symbols: vec![] };
            std::hint::black_box(table.select_providers(&[module]));
            std::hint::black_box(table.lookup(&noise).is_some() || offset == 0);
        });
    }

    #[test]
    fn fuzz_suppressions(edits in edits()) {
        const RULES: &str = "{\n  name\n  Memcheck:Leak\n  match-leak-kinds: definite,possible\n  fun:malloc\n  ...\n  \
                             obj:*/lib*.so\n  src:a.c:12\n}\n# comment\nleak:^std::*$\nleak:main\n";
        let text = change(RULES.as_bytes(), &[], &edits);
        bounded(text.len(), || drop(Suppressions::read(&text, "file")));
    }

    #[test]
    fn fuzz_baselines(edits in edits()) {
        const REPORT: &str = r#"{"version":2,"heaptrace_version":"0.1.0","mode":"check","frames":[{"function":"f"}],
            "sites":[{"stack":[0]}],"leaks":{"definite":{"blocks":1,"bytes":2}},"findings":[{"id":"03ea5287382f6bd8",
            "kind":"double_free","count":3,"direct":null,"indirect":null,"stack":[0]},{"id":"9692a82ec5cc1228","count":1,
            "kind":"leak_definite","direct":{"objects":1,"bytes":2},"indirect":{"objects":0,"bytes":0},"stack":[0]}]}"#;
        let text = change(REPORT.as_bytes(), &[], &edits);
        bounded(text.len(), || drop(Baseline::from_report(&text, "file")));
    }

    #[test]
    fn fuzz_messages(edits in edits()) {
        let look = ctl::TextStyle { top: Some(3), color: true, width: 80 };
        let command = ctl::Command::Leaks { increased: true, explain: Some(7), json: false };
        let mut wire = Vec::new();
        ctl::send(&ctl::Request { version: ctl::VERSION, pid: 1, command, look }, &mut wire, ctl::LONGEST_QUESTION).unwrap();
        let wire = change(&wire, &[], &edits);
        bounded(wire.len(), || {
            if let Ok(request) = ctl::receive_question(&mut wire.as_slice()) {
                std::hint::black_box(request.command.version());
            }
            std::hint::black_box(ctl::receive::<ctl::Response>(&mut wire.as_slice(), ctl::LONGEST_QUESTION).is_ok());
        });
    }

    #[test]
    fn fuzz_command_lines(words in prop::collection::vec(prop_oneof![
        prop::sample::select(vec![
            "run", "attach", "check", "leaks", "ctl", "doctor", "-o", "--format", "json", "--duration", "1s", "0", "--top", "--alloc-fn",
            "a:size=arg1", "--", "./program", "-p", "1", "--by-name", "x", "--max-depth", "-1", "--toggle-signal", "USR1", "--delay",
            "99999999999999999999", "--explain", "0xffffffffffffffff", "pause",
        ]).prop_map(OsString::from),
        prop::collection::vec(1_u8.., 0..10).prop_map(OsString::from_vec),
    ], 0..10)) {
        bounded(0, || drop(cli::parse([OsString::from("heaptrace")].into_iter().chain(words), false, |_| None)));
    }
}

/// The unwind tables of a program, and where its code lies.
struct Cfi {
    program: PathBuf,
    code: Range<u64>,
    eh_frame_hdr: Section,
    eh_frame: Section,
    debug_frame: Section,
}

fn cfi() -> &'static Cfi {
    static CFI: OnceLock<Cfi> = OnceLock::new();
    CFI.get_or_init(|| {
        let program = crate::support::stopped::build("cc", "frames", &["-O2", "-DBOTH_TABLES"]);
        let bytes = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let sections = elf.unwind_sections();
        let text = elf.sections().range(".text").unwrap();
        Cfi {
            program,
            code: text.start.0..text.end.0,
            eh_frame_hdr: sections.eh_frame_hdr.unwrap(),
            eh_frame: sections.eh_frame.unwrap(),
            debug_frame: sections.debug_frame.unwrap(),
        }
    })
}

const BIAS: u64 = 0x5555_5555_4000;
const STACK: u64 = 0x7fff_ffff_0000;

proptest! {
    #![proptest_config(cases(300))]

    /// Damaged tables, and a stack full of return addresses, saved stack pointers and rubbish.
    #[test]
    fn fuzz_cfi(
        edits in [edits(), edits(), edits()],
        which in 0_u8..8,
        words in prop::collection::vec((any::<Index>(), any::<u64>(), 0_u8..4), 16..400),
        start: Index,
        registers: [u16; 15],
    ) {
        let cfi = cfi();
        let changed = |section: &Section, edits: &Edits, present: bool| {
            let size = section.bytes.len();
            let bytes = change(&section.bytes, &[0..size.min(256), 0..size], edits);
            present.then(|| Section { addr: section.addr, bytes: Arc::from(bytes) })
        };
        let elf_bytes = std::fs::read(&cfi.program).unwrap();
        let mut sections = Elf::parse(&elf_bytes).unwrap().unwind_sections();
        sections.eh_frame_hdr = changed(&cfi.eh_frame_hdr, &edits[0], which & 1 == 0);
        sections.eh_frame = changed(&cfi.eh_frame, &edits[1], which & 2 == 0);
        sections.debug_frame = changed(&cfi.debug_frame, &edits[2], which & 4 == 0);
        let size = cfi.eh_frame.bytes.len() + cfi.debug_frame.bytes.len();
        let in_code = |at: &Index| BIAS + cfi.code.start + at.index(usize::try_from(cfi.code.end - cfi.code.start).unwrap()) as u64;
        let stack: Vec<u8> = words
            .iter()
            .flat_map(|(at, value, kind)| match kind {
                0 | 1 => in_code(at),
                2 => STACK + value % (8 * words.len() as u64),
                _ => *value,
            }.to_le_bytes())
            .collect();
        let mut memory = MemoryImage { start: Addr(STACK), bytes: stack };
        let mut regs = Regs { rip: in_code(&start), ..Regs::default() };
        for (register, value) in registers.iter().enumerate() {
            regs.gpr[register] = STACK + u64::from(*value);
        }
        regs.gpr[heaptrace::internal::reg::RSP] = STACK;
        bounded(size, || {
            let mut unwinder = Unwinder::new();
            let code = Addr(BIAS + cfi.code.start)..Addr(BIAS + cfi.code.end);
            unwinder.add_module(UnwindModule { id: ModuleId(0), code: vec![code], bias: LoadBias(BIAS), ..sections });
            for _ in 0..2 {
                assert!(unwinder.unwind_from(&regs, &mut memory, 512).depth <= 512);
                assert!(unwinder.unwind_at_entry(&regs, &mut memory, 512).depth <= 512);
            }
        });
    }

    /// Damaged DWARF: names and lines are wrong or missing, and that is all.
    #[test]
    fn fuzz_dwarf(edits in edits(), which: Index, addrs in prop::collection::vec(0_u64..0x3000, 1..20)) {
        let seed = which.get(seeds());
        let bytes = seed.changed(&edits);
        let mut addrs: Vec<ObjAddr> = addrs.into_iter().map(ObjAddr).collect();
        addrs.sort_unstable();
        let folder = crate::support::tempdir::TempDir::new();
        let path = folder.path().join("program");
        std::fs::write(&path, &bytes).unwrap();
        bounded(bytes.len(), || {
            let mut symbolizer = Symbolizer::new(Search { debug_dirs: vec![], ..Search::default() });
            symbolizer.add_module(ModuleId(0), ModuleSource { path, ..ModuleSource::default() });
            assert_eq!(symbolizer.resolve(ModuleId(0), &addrs).frames.len(), addrs.len());
            std::hint::black_box(symbolizer.variable(ModuleId(0), addrs[0]));
        });
    }
}
