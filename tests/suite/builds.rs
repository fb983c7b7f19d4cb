//! Programs built, linked, stripped and split in every way: the same counts, stacks and lines come out.

use super::counts::assert_sites;
use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use crate::support::report::{functions_of, plain};
use crate::support::tempdir::TempDir;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How much of the source a run can know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// Functions, inlined calls, and their lines.
    All,
    /// Addresses only.
    Nothing,
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn tool(name: &str, arguments: &[&str]) {
    run(Command::new(name).args(arguments));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A copy of a built fixture in a folder of its own, to be changed.
struct Copied {
    folder: TempDir,
    program: PathBuf,
}

impl Copied {
    fn of(built: &Path) -> Self {
        let folder = TempDir::new();
        let program = folder.path().join("layers");
        crate::support::copy_file(built, &program).unwrap();
        Self { folder, program }
    }

    /// `layers` with flags.
    fn built(flags: &[&str]) -> Self {
        Self::of(&fixtures::program_with("layers", flags))
    }

    fn join(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Moves all that is not needed to run into `to`.
    fn separate(&self, to: &Path) {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        tool("objcopy", &["--only-keep-debug", text(&self.program), text(to)]);
        tool("strip", &["--strip-all", text(&self.program)]);
    }

    fn traced(&self, options: &[&str], known: Known) -> Traced {
        let program = Program::new(&self.program);
        let traced = program.traced_with(options);
        assert_layers(&program, &traced, known, &format!("{} {options:?}", self.program.display()));
        traced
    }
}

/// The sites of `layers` have the ledger's figures and the source's stacks.
fn assert_layers(program: &Program, traced: &Traced, known: Known, what: &str) {
    assert_eq!(traced.ended.text(), "done\n", "{what}: {}", traced.ended.stderr);
    let (report, ledger) = (&traced.report, program.ledger());
    report.assert_no_anomaly();
    report.assert_consistent();
    if known == Known::Nothing {
        assert!(report.total("allocations") >= ledger.total("allocations"), "{what}");
        assert_eq!(report.total("frees"), ledger.total("frees"), "{what}");
        return;
    }
    assert_sites(report, &ledger);
    let mut seen = 0;
    for site in report.sites_at(&["allocate"]) {
        let functions: Vec<_> = functions_of(site).iter().map(|name| plain(name).to_owned()).collect();
        if functions.iter().any(|name| name == "work") {
            continue;
        }
        let expected = ["allocate", "middle", "outer", "outer", "outer", "outer", "main"];
        assert_eq!(functions[..expected.len()], expected, "{what}");
        assert!(functions.last().is_some_and(|name| name == "_start"), "{what}: {functions:?}");
        let lines: Vec<u64> = (0..7).map(|i| site["stack"][i]["line"].as_u64().unwrap()).collect();
        let at = |site: &str| fixtures::site_line("layers", site);
        let rest = [at("inlined"), at("outer"), at("outer"), at("outer"), at("main")];
        assert_eq!(lines[0], at("allocate"), "{what}");
        assert!(lines[1] == at("middle") || lines[1] == at("second"), "{what}: {lines:?}");
        assert_eq!(lines[2..], rest, "{what}");
        seen += 1;
    }
    // sites are told apart by their functions, not by their lines
    assert_eq!(seen, 1, "{what}");
}

/// No search table for `.eh_frame`; no `.eh_frame` of the program's own at all; code at odd addresses; other linkers.
#[test]
fn every_way_of_linking() {
    for flags in [
        &["-Wl,--no-eh-frame-hdr"][..],
        &["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"],
        &["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wl,--no-eh-frame-hdr", "-gz=zlib"],
        &["-static-pie", "-Wl,--no-eh-frame-hdr"],
        &["-Wl,-z,noseparate-code"],
        &["-Wl,-z,separate-code", "-Wl,-z,max-page-size=0x200000"],
        &["-no-pie", "-Wl,-Ttext-segment=0x40000000"],
        &["-ffunction-sections", "-Wl,--section-start=.text.outer=0x900000", "-no-pie"],
        &["-flto", "-ffat-lto-objects"],
        &["-fuse-ld=gold"],
        &["-fuse-ld=lld", "-Wl,--no-rosegment"],
        &["-fuse-ld=lld", "-static"],
        &["-gsplit-dwarf"],
        &["-gsplit-dwarf", "-gdwarf-4", "-Wl,--gdb-index", "-fuse-ld=gold"],
        &["-g3", "-Wl,--compress-debug-sections=zlib-gnu"],
    ] {
        let program = Program::new(fixtures::program_with("layers", flags));
        let traced = program.traced();
        assert_layers(&program, &traced, Known::All, &format!("{flags:?}"));
    }
}

/// No section headers at all, as sstrip leaves a file: the program headers lead to all that unwinding needs.
#[test]
fn no_section_headers() {
    for flags in [&[][..], &["-no-pie"]] {
        let copied = Copied::built(flags);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&copied.program).unwrap();
        // e_shoff at 40, e_shnum and e_shstrndx at 60
        file.write_all_at(&[0; 8], 40).unwrap();
        file.write_all_at(&[0; 4], 60).unwrap();
        drop(file);
        copied.traced(&[], Known::Nothing);
    }
}

/// Two hundred threads at once.
#[test]
fn two_hundred_threads() {
    let program = Program::fixture("layers").args(["200"]);
    let traced = program.traced();
    assert_layers(&program, &traced, Known::All, "200 threads");
    let in_threads = traced.report.sites_at(&["allocate", "middle", "outer", "outer", "outer", "work"]);
    let blocks: u64 = in_threads.map(|site| site["allocated"]["objects"].as_u64().unwrap()).sum();
    assert_eq!(blocks, 200 * 5 * 2);
}

/// Each way in which a debug file is found from the command line and the environment.
#[test]
fn debug_files_are_found() {
    const ID: &str = "-Wl,--build-id=0xabcdef0177";
    const PLACE: &str = ".build-id/ab/cdef0177.debug";
    // by build id, in --debug-dir, then in $HEAPTRACE_DEBUG_PATH
    let copied = Copied::built(&[ID]);
    let tree = copied.join("tree");
    copied.separate(&tree.join(PLACE));
    copied.traced(&[], Known::Nothing);
    copied.traced(&["--debug-dir", text(&tree)], Known::All);
    let program = Program::new(&copied.program).env("HEAPTRACE_DEBUG_PATH", format!("/nowhere:{}", text(&tree)));
    assert_layers(&program, &program.traced(), Known::All, "HEAPTRACE_DEBUG_PATH");

    // below --sysroot, as it would be installed there
    let sysroot = copied.join("sysroot");
    let installed = sysroot.join("usr/lib/debug").join(PLACE);
    std::fs::create_dir_all(installed.parent().unwrap()).unwrap();
    std::fs::rename(tree.join(PLACE), &installed).unwrap();
    copied.traced(&["--sysroot", text(&sysroot)], Known::All);

    // by debug link, beside the program
    let copied = Copied::built(&["-Wl,--build-id=none"]);
    let debug = copied.join("layers.debug");
    copied.separate(&debug);
    let link = format!("--add-gnu-debuglink={}", text(&debug));
    tool("objcopy", &[&link, text(&copied.program)]);
    copied.traced(&[], Known::All);
    // a debug file of another build is refused, and the user is told
    crate::support::copy_file(fixtures::program_with("layers", &["-O1"]), &debug).unwrap();
    let traced = copied.traced(&[], Known::Nothing);
    assert!(traced.ended.stderr.contains("checksum"), "{}", traced.ended.stderr);
}

/// Code without `.eh_frame` has its unwind tables in `.debug_frame`, which strip moves to the debug file.
#[test]
fn debug_frame_in_a_debug_file() {
    let flags = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"];
    for more in [&["-Wl,--build-id=0xabcdef0199"][..], &["-Wl,--build-id=0xabcdef0199", "-gz=zlib", "-no-pie"]] {
        let copied = Copied::built(&[&flags, more].concat());
        let tree = copied.join("tree");
        copied.separate(&tree.join(".build-id/ab/cdef0199.debug"));
        copied.traced(&["--debug-dir", text(&tree)], Known::All);
        let without = Program::new(&copied.program).traced();
        let whole = without.report.sites().iter().filter(|site| site["quality"] == "complete").count();
        assert_eq!(whole, 0, "the tables are in the debug file only: {:?}", without.report.sites());
    }
}

/// A stripped static program: its allocator is found by the symbols of its debug file, and by those that are packed in
/// it.
#[test]
fn stripped_static_programs_with_symbols_elsewhere() {
    let copied = Copied::built(&["-static", "-Wl,--build-id=0xabcdef01aa"]);
    let tree = copied.join("tree");
    let debug = tree.join(".build-id/ab/cdef01aa.debug");
    copied.separate(&debug);
    copied.traced(&["--debug-dir", text(&tree)], Known::All);

    let mini = copied.join("mini");
    crate::support::copy_file(&debug, &mini).unwrap();
    tool("strip", &["--strip-debug", text(&mini)]);
    tool("xz", &[text(&mini)]);
    let section = format!("--add-section=.gnu_debugdata={}", text(&copied.join("mini.xz")));
    tool("objcopy", &[&section, text(&copied.program)]);
    let program = Program::new(&copied.program);
    let traced = program.traced();
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();
    let stack = functions_of(traced.report.sites_at(&["allocate"]).next().unwrap());
    assert_eq!(stack[..6], ["allocate", "outer", "outer", "outer", "outer", "main"]);
}

/// Without any symbol nothing can be seen: this is said, with the way out, which is to name the functions by their
/// addresses.
#[test]
fn stripped_static_programs_without_symbols() {
    let copied = Copied::built(&["-static"]);
    let named = Program::new(&copied.program).traced().report;
    let symbols = Command::new("nm").arg(&copied.program).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let place = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
        format!("layers+0x{}", line.split(' ').next().unwrap())
    };
    tool("strip", &[text(&copied.program)]);
    let program = Program::new(&copied.program);

    let unseen = program.traced();
    assert_eq!((unseen.ended.code(), unseen.report.total("allocations")), (0, 0));
    for part in ["no allocator function", "layers", "--alloc-fn", "module+0xoffset", "--debug-dir"] {
        assert!(unseen.report.list("/warnings").iter().any(|w| w.as_str().unwrap().contains(part)), "{part}");
    }
    let checked = program.checked(&[]);
    assert_eq!(checked.ended.code(), 125, "nothing was seen: {}", checked.ended.stderr);

    let mut options = vec!["--free-fn".to_owned(), place("free")];
    for (name, arguments) in [("malloc", ""), ("calloc", ":count=arg1,size=arg2"), ("realloc", ":old=arg1,size=arg2")] {
        options.extend(["--alloc-fn".to_owned(), place(name) + arguments]);
    }
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let placed = program.traced_with(&options);
    assert_eq!(placed.ended.code(), 0, "{}", placed.ended.stderr);
    for total in ["allocations", "frees", "reallocations", "bytes_allocated", "bytes_freed", "live_bytes", "peak_bytes"]
    {
        assert_eq!(placed.report.total(total), named.total(total), "{total}");
    }
    placed.report.assert_no_anomaly();
}

/// A debug file of 600 MB is mapped, and only what is needed of it comes into memory.
#[test]
fn a_huge_debug_file_is_mapped() {
    const SIZE: u64 = 600 << 20;
    let copied = Copied::built(&["-Wl,--build-id=0xabcdef0188"]);
    let debug = copied.join("tree/.build-id/ab/cdef0188.debug");
    copied.separate(&debug);
    stretch(&debug, ".debug_str", SIZE);
    let tree = copied.join("tree");
    copied.traced(&["--debug-dir", text(&tree)], Known::All);

    // The most memory that heaptrace, or what it started, has had.
    let measure = "import resource, subprocess, sys\n\
                   status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)\n\
                   print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let program = Program::new("python3").args(["-c", measure, env!("CARGO_BIN_EXE_heaptrace"), "run", "-o"]);
    let report = program.outside("measured.json");
    let program = program.args([text(&report), "--debug-dir", text(&tree), text(&copied.program)]);
    let ended = program.plain().success();
    let output = ended.text();
    let (status, kib) = output.trim().split_once(' ').unwrap();
    assert_eq!(status, "0", "{}", ended.stderr);
    assert!(kib.parse::<u64>().unwrap() < 100 << 10, "{kib} KiB for a file of {} KiB", SIZE >> 10);
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains("\"middle\""), "the inlined function has its name");
}

/// Moves a section to the end of its file and makes it `size` bytes long, without writing them.
fn stretch(path: &Path, section: &str, size: u64) {
    use object::{Object, ObjectSection};
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(section).unwrap();
    let (data, index) = (section.data().unwrap(), section.index().0);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // e_shoff at 40; a section header has 64 bytes, sh_offset at 24, sh_size at 32
    let header = word(40) + 64 * index as u64;
    let end = (bytes.len() as u64).next_multiple_of(4096);
    let out = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    out.set_len(end + size).unwrap();
    out.write_all_at(data, end).unwrap();
    out.write_all_at(&end.to_le_bytes(), header + 24).unwrap();
    out.write_all_at(&size.to_le_bytes(), header + 32).unwrap();
}
