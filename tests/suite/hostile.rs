//! Debug files are what somebody else has put there: too large, made to fill the memory, shortened while they are read.
//! The program and its profile come through all the same.

use crate::support::fixtures;
use crate::support::procfs::wait_until;
use crate::support::program::Program;
use crate::support::report::{Report, functions_of};
use crate::support::tempdir::TempDir;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use nix::sys::signal::Signal;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn tool(name: &str, arguments: &[&str]) {
    let output = Command::new(name).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// `layers` built with `flags`, its debug file apart.
struct Apart {
    _folder: TempDir,
    program: PathBuf,
    debug: PathBuf,
}

fn apart(flags: &[&str]) -> Apart {
    let folder = TempDir::new();
    let (program, debug) = (folder.path().join("layers"), folder.path().join("layers.debug"));
    crate::support::copy_file(fixtures::program_with("layers", flags), &program).unwrap();
    tool("objcopy", &["--only-keep-debug", program.to_str().unwrap(), debug.to_str().unwrap()]);
    let link = format!("--add-gnu-debuglink={}", debug.to_str().unwrap());
    tool("objcopy", &["--strip-all", &link, program.to_str().unwrap()]);
    Apart { _folder: folder, program, debug }
}

fn warnings(report: &Report) -> String {
    report.list("/warnings").iter().filter_map(|warning| warning.as_str()).collect::<Vec<_>>().join("\n")
}

fn has_names(report: &Report) -> bool {
    report.sites().iter().any(|site| functions_of(site).first().is_some_and(|name| name == "allocate"))
}

/// `size` zeros, as SHF_COMPRESSED sections hold them: an Elf64_Chdr (type 1 is zlib), then the stream.
fn packed_zeros(size: u64) -> Vec<u8> {
    let header = [1u64, size, 1].map(u64::to_le_bytes).concat();
    let mut encoder = ZlibEncoder::new(header, Compression::fast());
    let piece = vec![0; 1 << 20];
    for _ in 0..size >> 20 {
        encoder.write_all(&piece).unwrap();
    }
    encoder.finish().unwrap()
}

/// Makes `section` of `file` what [`packed_zeros`] has made.
fn arm(file: &Path, section: &str, packed: &[u8]) {
    // SHF_COMPRESSED
    point_to(file, section, packed.len() as u64, 0x800, |out, end| out.write_all_at(packed, end).unwrap());
}

/// Moves `section` of `file` to its end, where `write` puts the `size` bytes of it.
fn point_to(file: &Path, section: &str, size: u64, flags: u64, write: impl FnOnce(&std::fs::File, u64)) {
    use object::{Object, ObjectSection};
    let bytes = std::fs::read(file).unwrap();
    let index = object::File::parse(&*bytes).unwrap().section_by_name(section).unwrap().index().0;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // e_shoff at 40; a section header has 64 bytes, sh_flags at 8, sh_offset at 24, sh_size at 32
    let header = word(40) + 64 * index as u64;
    let end = (bytes.len() as u64).next_multiple_of(16);
    let out = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    write(&out, end);
    for (offset, value) in [(8, flags), (24, end), (32, size)] {
        out.write_all_at(&u64::to_le_bytes(value), header + offset).unwrap();
    }
}

/// A section of 2 MB that unpacks to 2 GB is left alone: of the program's own file while it is traced, and of its debug
/// file when names are looked up.
#[test]
fn what_unpacks_to_gigabytes_is_left_alone() {
    let loaded = packed_zeros(2 << 30);
    let no_frames = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"];
    let folder = TempDir::new();
    let frames = folder.path().join("frames");
    crate::support::copy_file(fixtures::program_with("layers", &no_frames), &frames).unwrap();
    arm(&frames, ".debug_frame", &loaded);
    let info = apart(&["-Wl,--build-id=none"]);
    arm(&info.debug, ".debug_info", &loaded);
    let link = format!("--add-gnu-debuglink={}", info.debug.to_str().unwrap());
    tool("objcopy", &["--remove-section=.gnu_debuglink", info.program.to_str().unwrap()]);
    tool("objcopy", &[&link, info.program.to_str().unwrap()]);

    let report = in_little_memory(&frames);
    let inner = |site: &&serde_json::Value| functions_of(site).first().is_some_and(|name| name == "allocate");
    let stacks: Vec<_> = report.sites().iter().filter(inner).collect();
    assert!(!stacks.is_empty() && stacks.iter().all(|site| site["quality"] == "guessed"), "{stacks:#?}");
    let report = in_little_memory(&info.program);
    assert!(warnings(&report).contains("ignores a compressed section"), "{}", warnings(&report));
}

/// The report of a run in which heaptrace took no more memory than for any program.
fn in_little_memory(target: &Path) -> Report {
    // The most memory that heaptrace, or what it started, has had.
    let measure = "import resource, subprocess, sys\n\
                   status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)\n\
                   print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let program = Program::new("python3").args(["-c", measure, env!("CARGO_BIN_EXE_heaptrace"), "run", "-q", "-o"]);
    let path = program.outside("measured.json");
    let program = program.args([path.to_str().unwrap(), target.to_str().unwrap()]);
    let ended = program.plain().success();
    let output = ended.text();
    let (status, kib) = output.trim().split_once(' ').unwrap();
    assert_eq!(status, "0", "{}", ended.stderr);
    assert!(kib.parse::<u64>().unwrap() < 200 << 10, "{target:?}: {kib} KiB");
    Report::read(&path, &ended)
}

/// A symbol of 24 KB, each of whose 6,000 parameters is a pack of 12,000.
#[test]
fn a_name_does_not_multiply_in_memory() {
    let folder = TempDir::new();
    let (source, program) = (folder.path().join("name.c"), folder.path().join("name"));
    let name = format!("_Z1fIJ{}EEv{}", "i".repeat(12_000), "T_".repeat(6_000));
    let text = format!(
        "#include <stdlib.h>\nvoid *volatile kept;\nvoid named(void) __asm__(\"{name}\");\n\
         __attribute__((noinline)) void named(void) {{ kept = malloc(10); free(kept); }}\n\
         int main(void) {{ named(); named(); return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    tool("cc", &["-O1", "-o", program.to_str().unwrap(), source.to_str().unwrap()]);
    let report = in_little_memory(&program);
    assert_eq!(report.site_sum(&[&name], "/allocated/objects"), 2, "{:.2000}", report.0);
}

/// A packed symbol table of a gigabyte, which is a hole in the file of a stripped static program; and unwind tables
/// that are.
#[test]
fn holes_in_a_program_s_file_are_not_copied() {
    for (section, flags, is_seen) in
        [(".gnu_debugdata", &["-static", "-s"][..], false), (".debug_frame", &["-s"], true)]
    {
        let folder = TempDir::new();
        let (program, piece) = (folder.path().join("holes"), folder.path().join("piece"));
        crate::support::copy_file(fixtures::program_with("layers", flags), &program).unwrap();
        std::fs::write(&piece, "piece").unwrap();
        let added = format!("{section}={}", piece.to_str().unwrap());
        tool("objcopy", &["--add-section", &added, program.to_str().unwrap()]);
        point_to(&program, section, 1 << 30, 0, |file, at| file.set_len(at + (1 << 30)).unwrap());
        assert_eq!(in_little_memory(&program).total("allocations") > 0, is_seen, "{section}");
    }
}

/// A sparse file of 30 GB, which a debug link names and which begins as a debug file does, is not summed.
#[test]
fn what_is_too_large_for_a_checksum_is_not_summed() {
    let apart = apart(&["-Wl,--build-id=none"]);
    let program = Program::new(&apart.program);
    assert!(has_names(&program.traced().report), "the debug file is found");
    std::fs::OpenOptions::new().write(true).open(&apart.debug).unwrap().set_len(30 << 30).unwrap();
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 0);
    assert!(warnings(&traced.report).contains("too large for a checksum"), "{}", warnings(&traced.report));
    assert!(!has_names(&traced.report));
}

/// A debug file that is shortened while heaptrace has it mapped: each run ends as the program does, with its profile.
#[test]
fn a_debug_file_may_shrink_while_it_is_read() {
    let apart = apart(&["-Wl,--build-id=0xabcdef01cc"]);
    shrinks_while_it_is_read(&apart.program, &apart.debug);
}

/// The same of a package of split DWARF.
#[test]
fn a_package_of_split_dwarf_may_shrink_while_it_is_read() {
    let folder = TempDir::new();
    let program = folder.path().join("layers");
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/layers.c");
    // binutils' dwp of Debian 12 knows version 4 only
    tool("cc", &["-g", "-gdwarf-4", "-gsplit-dwarf", "-O2", "-pthread", "-o", program.to_str().unwrap(), fixtures]);
    let package = folder.path().join("layers.dwp");
    tool("dwp", &["-e", program.to_str().unwrap(), "-o", package.to_str().unwrap()]);
    shrinks_while_it_is_read(&program, &package);
}

fn shrinks_while_it_is_read(program: &Path, debug: &Path) {
    let whole = std::fs::read(debug).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(debug).unwrap();
    let mut told = 0;
    for run in 0..20 {
        // as large as what is mapped
        file.set_len(300 << 20).unwrap();
        file.write_all_at(&whole, 0).unwrap();
        // heaptrace waits for 5 ms before it reads, and before it reads on
        let program = Program::new(program).env("HEAPTRACE_TEST_LINGER", "5");
        let mut running = program.start_traced(&[]);
        // names are looked up behind the end
        assert_eq!(running.line(), "done");
        let maps = PathBuf::from(format!("/proc/{}/maps", running.pid()));
        let is_mapped = || std::fs::read_to_string(&maps).is_ok_and(|text| text.contains(debug.to_str().unwrap()));
        while running.is_alive() && !is_mapped() {}
        // At another moment of the reading each time, beginning with its start.
        std::thread::sleep(Duration::from_micros(750) * run);
        file.set_len(4096).unwrap();
        let traced = program.collect(running.wait());
        assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
        assert!(traced.report.total("allocations") > 0);
        told += u32::from(warnings(&traced.report).contains("became shorter"));
    }
    assert!(told > 0, "none of 20 runs was looking at what was cut off");
    eprintln!("{told} of 20 runs were looking at what was cut off");
}

/// Looking up names that takes for ever is told, and a signal ends it: the profile is there, with addresses, and says
/// so; and what was asked is asked no longer.
#[test]
fn a_signal_ends_the_looking_up_of_names() {
    let apart = apart(&["-Wl,--build-id=0xabcdef01dd"]);
    std::fs::remove_file(&apart.debug).unwrap();
    // A client that has asked a server and waits for its answer.
    let folder = TempDir::new();
    let (client, asked) = (folder.path().join("debuginfod-find"), folder.path().join("asked"));
    std::fs::write(&client, format!("#!/bin/sh\necho $$ > {}\nexec sleep 1000\n", asked.to_str().unwrap())).unwrap();
    std::fs::set_permissions(&client, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().to_str().unwrap(), std::env::var("PATH").unwrap());
    for signals in [&[Signal::SIGTERM][..], &[Signal::SIGINT, Signal::SIGINT]] {
        let _ = std::fs::remove_file(&asked);
        let program = Program::new(&apart.program).env("PATH", &path).env("DEBUGINFOD_URLS", "http://localhost:1");
        let running = program.start_traced(&["--debuginfod"]);
        wait_until("the server is asked", || std::fs::read(&asked).is_ok_and(|pid| pid.ends_with(b"\n")));
        let (&last, first) = signals.split_last().unwrap();
        for &signal in first {
            running.signal(signal);
            // It is taken, as the one that is meant for the client; and nothing has changed.
            let pending = || crate::support::procfs::status_field(running.pid(), "ShdPnd").unwrap();
            wait_until("the signal is taken", || u64::from_str_radix(&pending(), 16).unwrap() == 0);
            assert!(running.is_alive());
        }
        running.signal(last);
        let traced = program.collect(running.wait());
        assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
        let said = warnings(&traced.report);
        assert!(said.contains("ended the search for names"), "{said}");
        assert!(
            traced.ended.stderr.contains("heaptrace writes the profile without the missing names"),
            "{}",
            traced.ended.stderr
        );
        assert!(!has_names(&traced.report) && traced.report.total("allocations") > 0);
        let pid = std::fs::read_to_string(&asked).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "the client has ended");
    }
}

/// What stands where a container's package lists should be: a pipe that nobody writes to, a device, a sparse file; and
/// lists that are called what no package is. The profile is written, and the right list is found all the same.
#[test]
fn a_container_s_package_lists_hold_nobody_up() {
    let root = TempDir::new();
    let lists = root.path().join("var/lib/dpkg/info");
    std::fs::create_dir_all(&lists).unwrap();
    crate::support::copy_file(fixtures::program_with("layers", &["-static", "-Wl,-S"]), root.path().join("layers"))
        .unwrap();
    tool("mkfifo", &[lists.join("pipe.list").to_str().unwrap()]);
    std::os::unix::fs::symlink("/dev/zero", lists.join("zero.list")).unwrap();
    std::fs::File::create(lists.join("sparse.list")).unwrap().set_len(1 << 40).unwrap();
    for name in ["esc\x1b[31m", "app;reboot", "app\nreboot"] {
        std::fs::write(lists.join(format!("{name}.list")), "/layers\n").unwrap();
    }
    let program = Program::new("env").args(["-u", "LEDGER", "chroot", root.path().to_str().unwrap(), "/layers"]);
    let ended = program.traced().ended;
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("no line numbers: build it with -g"), "{}", ended.stderr);
    assert!(!ended.stderr.contains('\x1b') && !ended.stderr.contains("reboot"), "{}", ended.stderr);
    std::fs::write(lists.join("app.list"), "/layers\n").unwrap();
    let ended = program.traced().ended;
    assert!(ended.stderr.contains("app-dbgsym"), "{}", ended.stderr);
}

/// The path of a program whose names take long is told as text.
#[test]
fn a_program_s_name_does_nothing_to_the_terminal() {
    let folder = TempDir::new();
    let target = folder.path().join("q\x1b[31mz\u{202e}");
    crate::support::copy_file(fixtures::program_with("layers", &["-Wl,--build-id=0xabcdef01ee", "-s"]), &target)
        .unwrap();
    let client = folder.path().join("debuginfod-find");
    std::fs::write(&client, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&client, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().to_str().unwrap(), std::env::var("PATH").unwrap());
    let program = Program::new(&target).env("PATH", &path).env("DEBUGINFOD_URLS", "http://localhost:1");
    let running = program.start_traced(&["--debuginfod"]);
    wait_until("the user is told", || running.stderr_so_far().contains("looking up the names of "));
    running.signal(Signal::SIGTERM);
    let said = program.collect(running.wait()).ended.stderr;
    assert!(said.contains("q?[31mz?"), "{said}");
    assert!(!said.contains(['\x1b', '\u{202e}']), "{said}");
}
