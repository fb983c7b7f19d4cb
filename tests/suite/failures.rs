//! What goes wrong is named, with its cause; the program is never harmed; the profile is saved where possible.

use super::attach::{assert_victim_well, start_victim};
use super::counts::assert_sites;
use super::guardian::guardian_of;
use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Ended;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

/// The jump engine leaves programs with a filter alone.
const FILTERS: &str = "it filters its system calls (seccomp)";

fn heaptrace(args: &[&str]) -> Ended {
    Program::new("/bin/true").start_heaptrace(args).wait()
}

/// Fails unless heaptrace ended with the status and one message that contains all the words.
fn assert_refused(ended: &Ended, status: i32, words: &[&str]) {
    assert_eq!(ended.code(), status, "{}", ended.stderr);
    assert!(ended.stderr.contains("heaptrace: "), "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.to_lowercase().contains(&word.to_lowercase()), "no {word:?} in: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert_eq!(ended.text(), "", "nothing on standard output");
}

/// T02: a program that does not exist is 127, as in a shell.
#[test]
fn t02_missing_program() {
    assert_refused(&heaptrace(&["run", "--", "/nonexistent/program"]), 127, &["/nonexistent/program"]);
    assert_refused(&heaptrace(&["run", "--", "no-such-program-anywhere"]), 127, &["no-such-program-anywhere"]);
}

/// T02: a file that can't be executed is 126.
#[test]
fn t02_not_executable() {
    let program = Program::new("/bin/true");
    let file = program.folder().join("data");
    std::fs::write(&file, "just text").unwrap();
    let ended = program.start_heaptrace(["run".as_ref(), "--".as_ref(), file.as_os_str()]).wait();
    assert_refused(&ended, 126, &["data"]);
    let ended = program.start_heaptrace(["run".as_ref(), "--".as_ref(), program.folder().as_os_str()]).wait();
    assert_eq!(ended.code(), 126, "{}", ended.stderr);
}

/// T02: the kernel's "no such file" is not about the script but about its interpreter, which the message names; so with
/// a program and its loader.
#[test]
fn t02_missing_interpreter() {
    let program = Program::new("/bin/true");
    let file = program.folder().join("script");
    let run = |text: &[u8]| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        program.start_heaptrace(["run".as_ref(), "--".as_ref(), file.as_os_str()]).wait()
    };
    let words = ["script: its interpreter", "/no/such/interpreter", "No such file"];
    assert_refused(&run(b"#! /no/such/interpreter -x\n"), 126, &words);
    assert_refused(&run(b"#!/bin/sh\r\necho\r\n"), 126, &["/bin/sh\\r", "carriage return"]);
    assert_refused(&run(b"#!/etc/passwd\n"), 126, &["its interpreter", "/etc/passwd", "denied"]);
    let mut elf = std::fs::read(fixtures::program("basic")).unwrap();
    let loader = b"/lib64/ld-linux-x86-64.so.2";
    let at = elf.windows(loader.len()).position(|window| window == loader).expect("an interpreter");
    elf[at + 5] = b'X';
    let words = ["its dynamic loader /lib6X/ld-linux-x86-64.so.2", "No such file", "another system or C library"];
    assert_refused(&run(&elf), 126, &words);
}

/// A file that is cut off in the middle: the kernel kills what it can't load.
#[test]
fn damaged_program() {
    let program = Program::new("/bin/true");
    let file = program.folder().join("damaged");
    // the kernel still finds all headers, but not what they lead to
    let whole = std::fs::read(fixtures::program_with("basic", &["-static"])).unwrap();
    std::fs::write(&file, &whole[..4096]).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ended = program.start_heaptrace(["run".as_ref(), "--".as_ref(), file.as_os_str()]).wait();
    assert!(ended.code() == 125 || ended.code() == 139, "{}: {}", ended.status, ended.stderr);
    assert!(ended.stderr.contains("signal 11 (SIGSEGV)"), "{}", ended.stderr);
}

/// A heaptrace attaches to each new process of its own, and lets it go at once where it was not asked to follow it: the
/// heaptrace within waits for that.
#[test]
fn traced_by_a_heaptrace_that_lets_new_processes_go() {
    for _ in 0..5 {
        let program = Program::new(env!("CARGO_BIN_EXE_heaptrace"));
        let file = program.outside("outer.pb.gz");
        let outer = ["run", "--no-symbolize", "-o", file.to_str().unwrap(), "--", env!("CARGO_BIN_EXE_heaptrace")];
        let ended = program.start_heaptrace(outer.into_iter().chain(["run", "/bin/true"])).wait();
        assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
        assert_eq!(ended.stderr.matches("exit status 0").count(), 2, "{}", ended.stderr);
    }
}

/// A tracer that follows forks has our child before us: it is named.
#[test]
fn traced_by_another_tracer_with_its_children() {
    let program = Program::new("ltrace");
    let program = program.args(["-f", "-e", "no_such_function", "-o", "/dev/null", env!("CARGO_BIN_EXE_heaptrace")]);
    let ended = program.args(["run", "/bin/true"]).plain();
    assert!(ended.stderr.contains("(ltrace) traces heaptrace and its children"), "{}", ended.stderr);
}

/// T02: `run` and `check` refuse a 32-bit program, and a script for one, before its first instruction, and leave no
/// file; where the kernel can't run it, that is said. `attach` refuses it, and leaves it alone.
#[test]
fn t02_program_for_32_bits() {
    let Some(ends) = Programs32::new() else { return };
    let script = ends.add("script32", format!("#!{}\n", ends.exits.display()).as_bytes());
    for program in [&ends.exits, &script] {
        for command in ["run", "check"] {
            let empty = Program::new("/bin/true");
            let ended = empty.start_heaptrace([command.as_ref(), "--".as_ref(), program.as_os_str()]).wait();
            let name = program.file_name().unwrap().to_str().unwrap();
            assert_refused(&ended, 125, &[name, "is a 32-bit program", "64-bit x86-64 programs only"]);
            assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
            assert_eq!(std::fs::read_dir(empty.folder()).unwrap().count(), 0, "no file");
        }
    }
    let waiting = Program::new(&ends.waits).start();
    procfs::wait_until("it is itself", || {
        std::fs::read_link(format!("/proc/{}/exe", waiting.pid())).is_ok_and(|exe| exe.ends_with("waits32"))
    });
    let ended = heaptrace(&["attach", &waiting.pid().to_string()]);
    assert_refused(&ended, 125, &["32-bit program", &waiting.pid().to_string()]);
    assert_eq!(procfs::tracer_of(waiting.pid()), 0);
    assert!(waiting.is_alive());
    waiting.signal(Signal::SIGKILL);
    waiting.wait();
}

/// T02: a program that becomes a 32-bit one runs on untraced; what is told is what it did until then, with one warning.
#[test]
fn exec_of_a_program_for_32_bits() {
    let Some(programs) = Programs32::new() else { return };
    let exits = programs.exits.display();
    let one_warning = |stderr: &str| {
        let flat = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(flat.matches("32-bit program").count(), 1, "{stderr}");
        assert!(flat.contains("runs untraced, as it is a 32-bit program"), "{stderr}");
        assert!(!flat.contains("heaptrace found no allocator function"), "{stderr}");
    };
    for options in [&[][..], &["-f"]] {
        let traced = Program::new("/bin/sh").args(["-c", &format!("exec {exits}")]).traced_with(options);
        assert_eq!(traced.ended.code(), 42, "{}", traced.ended.stderr);
        one_warning(&traced.ended.stderr);
        assert!(traced.report.number("/totals/allocations") > 0, "{}", traced.ended.stderr);
        assert!(traced.report.number("/totals/live_bytes") > 0, "{}", traced.ended.stderr);
    }
    // a child of a shell, of vfork and of fork: the shell's own profile is whole
    for child in [format!("{exits}; exit 3"), format!("(:; exec {exits}); exit 3")] {
        let traced = Program::new("/bin/sh").args(["-c", &child]).traced_with(&["-f"]);
        assert_eq!(traced.ended.code(), 3, "{}", traced.ended.stderr);
        one_warning(&traced.ended.stderr);
        assert_eq!(traced.report.number("/exit/code"), 3, "{}", traced.ended.stderr);
    }
    // a check can't judge, and says why; the program's own failure comes first
    let checked = Program::new("/bin/sh").args(["-c", &format!("exec {exits}")]).checked(&[]);
    assert_eq!(checked.ended.code(), 42, "{}", checked.ended.stderr);
    let reasons = checked.report.0["verdict"]["reasons"].to_string();
    assert!(reasons.contains("32-bit program") && !reasons.contains("no allocator function"), "{reasons}");
}

/// A name can't pass for a message of heaptrace, or do anything to a terminal.
#[test]
fn names_in_messages_are_only_text() {
    const BAD: &str = "/nonexistent/a\nheaptrace: clean\x1b]0;title\x07\u{9b}2J\u{202e}\r\tz";
    let cases: [&[&str]; 11] = [
        &["run", "--", BAD],
        &["run", "-o", BAD, "--", "/bin/true"],
        &["run", "--alloc-fn", BAD, "--", "/bin/true"],
        &["attach", "--by-name", BAD],
        &["attach", BAD],
        &["leaks", "--by-name", BAD],
        &["ctl", BAD, "detach"],
        &["check", "--suppressions", BAD, "--", "/bin/true"],
        &["check", "--baseline", BAD, "--", "/bin/true"],
        &["run", "--no-such-option\nheaptrace: clean\x1b[2J", "--", "/bin/true"],
        &[BAD],
    ];
    for arguments in cases {
        let ended = heaptrace(arguments);
        assert_ne!(ended.code(), 0, "{arguments:?}: {}", ended.stderr);
        let is_active = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!ended.stderr.contains(is_active), "{arguments:?}: {:?}", ended.stderr);
        let claimed = ended.stderr.lines().filter(|line| line.starts_with("heaptrace: clean")).count();
        assert_eq!(claimed, 0, "{arguments:?}: {}", ended.stderr);
    }
}

/// Programs for i386, in a folder of their own.
struct Programs32 {
    folder: Program,
    /// Exits with 42.
    exits: PathBuf,
    /// Waits for ever.
    waits: PathBuf,
}

impl Programs32 {
    /// None if the kernel runs no such programs, which heaptrace then says.
    fn new() -> Option<Self> {
        let folder = Program::new("/bin/true");
        let mut programs = Self { folder, exits: PathBuf::new(), waits: PathBuf::new() };
        programs.exits = programs.add("exits32", &elf32(&EXIT_42));
        programs.waits = programs.add("waits32", &elf32(&PAUSE_FOR_EVER));
        if std::process::Command::new(&programs.exits).status().is_ok_and(|status| status.code() == Some(42)) {
            return Some(programs);
        }
        let ended = Program::new(&programs.exits).start_traced(&[]).wait();
        assert_refused(&ended, 126, &["it is a 32-bit program, and this kernel can't run 32-bit programs"]);
        None
    }

    fn add(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let file = self.folder.folder().join(name);
        std::fs::write(&file, bytes).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file
    }
}

/// A process that does not exist, is no number, or is ourselves.
#[test]
fn attach_to_nothing() {
    assert_refused(&heaptrace(&["attach", "2147483646"]), 125, &["2147483646"]);
    assert_refused(&heaptrace(&["attach", "--by-name", "no-such-name-anywhere"]), 125, &["no-such-name-anywhere"]);
    assert_eq!(heaptrace(&["attach", "notapid"]).code(), 125);
    assert_eq!(heaptrace(&["attach"]).code(), 125);
    // a kernel thread
    assert_eq!(heaptrace(&["attach", "2"]).code(), 125);
}

/// T38: a process that is already traced: the message says by whom, and the first tracer goes on.
#[test]
fn t38_already_traced() {
    let program = Program::fixture("victim").args(["2"]);
    let (victim, pid) = start_victim(&program);
    let first = Program::new("/bin/true");
    let attached = first.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    let ended = heaptrace(&["attach", &pid.to_string()]);
    let advice = format!("heaptrace ctl {pid} detach");
    assert_refused(&ended, 125, &["another heaptrace", &attached.pid().to_string(), &advice]);
    // the advice does what it says
    let obeyed = heaptrace(&advice.split(' ').skip(1).collect::<Vec<_>>());
    assert_eq!(obeyed.code(), 0, "{}", obeyed.stderr);
    assert_eq!(first.collect(attached.wait()).ended.code(), 0);
    assert_victim_well(victim, pid);
}

/// A static program without symbols: no allocator can be found. It runs to its end, and the user is told.
#[test]
fn stripped_static_program() {
    let program = Program::new(fixtures::program_with("basic", &["-static", "-s"]));
    let ended = program.start_traced(&[]).wait();
    assert_eq!(ended.code(), 7, "the program's own status");
    assert_eq!(ended.text(), "done\n");
    assert!(ended.stderr.contains("symbol"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("go tool pprof"), "there is nothing to see: {}", ended.stderr);
}

/// Outputs are checked before the program starts: it must not run at all.
#[test]
fn outputs_are_checked_first() {
    let program = Program::new("/bin/true");
    let mark = program.folder().join("mark");
    let touch = |outputs: &[&str]| {
        let mut args = vec!["run".to_owned()];
        args.extend(outputs.iter().flat_map(|output| ["-o".to_owned(), (*output).to_owned()]));
        args.extend(["--".to_owned(), "/usr/bin/touch".to_owned(), mark.display().to_string()]);
        let ended = program.start_heaptrace(&args).wait();
        assert!(!mark.exists(), "the program has run: {outputs:?}");
        ended
    };
    assert_refused(&touch(&["/nonexistent/folder/heap.pb.gz"]), 125, &["/nonexistent/folder"]);
    assert_refused(&touch(&["heap.unknown"]), 125, &["heap.unknown", ".pb.gz", ".json", ".folded", ".svg", ".txt"]);
    assert_refused(&touch(&["-"]), 125, &[]);
    // named by the contract, but not there yet
    assert_eq!(touch(&["heap.sarif"]).code(), 125);
}

/// A device without room: that output fails and says so, the other one is whole, the status tells.
#[test]
fn full_disk_loses_only_its_own_output() {
    let program = Program::fixture("peak");
    let full = program.folder().join("full.json");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let ended = program.start_traced(&["-o", full.to_str().unwrap()]).wait();
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("full.json") && ended.stderr.contains("space"), "{}", ended.stderr);
    let traced = program.collect(ended);
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
}

/// The program's own failure ranks above a failed output.
#[test]
fn failed_output_does_not_hide_the_status() {
    let program = Program::fixture("ends").args(["return"]);
    let full = program.folder().join("full.json");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let ended = program.start_traced(&["-o", full.to_str().unwrap()]).wait();
    assert_eq!(ended.code(), 31, "{}", ended.stderr);
}

/// T11: SIGKILL hits a busy target at many different moments: no hang, the profile is there.
#[test]
fn t11_killed_at_random_moments() {
    for round in 0..crate::suite::rounds(12) {
        let program = Program::fixture("forever").args(["4"]);
        let mut running = program.start_traced(&[]);
        let pid: i32 = running.value("ready").parse().unwrap();
        // a moment that differs from round to round, counted in looks at /proc
        for _ in 0..round * 37 % 400 {
            std::hint::black_box(procfs::state(pid));
        }
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let ended = running.wait();
        assert_eq!(ended.code(), 137);
        let traced = program.collect(ended);
        assert_eq!(traced.report.0["exit"]["signal"], 9);
        assert_eq!(traced.report.site_sum(&["main"], "/live/bytes"), 4321);
        // most threads were in the middle of a call, of which nothing is missing
        assert_eq!(traced.report.anomaly("abandoned_calls"), 0);
    }
}

/// T11: SIGKILL hits the program while it is being started, or while heaptrace attaches: no hang, an end that is told,
/// and no process left.
#[test]
fn t11_killed_while_tracing_begins() {
    for round in 0..crate::suite::rounds(12) {
        let looks = round * 53 % 600;
        let program = Program::fixture("forever").args(["3"]);
        let running = program.start_traced(&[]);
        let guardian = guardian_of(running.pid());
        let mut child = None;
        procfs::wait_until("the child is there", || {
            child = procfs::children(running.pid()).into_iter().find(|&child| child != guardian);
            child.is_some()
        });
        kill_after(child.unwrap(), looks);
        let ended = running.wait();
        assert!([125, 137].contains(&ended.code()), "{looks}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{looks}: {}", ended.stderr);

        let mut target = program.start();
        let pid: i32 = target.value("ready").parse().unwrap();
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(&[], pid);
        kill_after(pid, looks);
        let ended = attached.wait();
        assert!([0, 125].contains(&ended.code()), "{looks}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{looks}: {}", ended.stderr);
        if ended.code() == 0 {
            // a process that had ended before it was seized tells its end to its parent only
            let exit = &tracer.collect(ended).report.0["exit"];
            assert!(exit.is_null() || exit["signal"] == 9, "{looks}: {exit}");
        }
        assert_eq!(target.wait().status.signal(), Some(9));
    }
}

/// Kills a process after so many looks at /proc.
fn kill_after(pid: i32, looks: u32) {
    for _ in 0..looks {
        std::hint::black_box(procfs::state(pid));
    }
    // it may not have come so far that there is a process
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// T38: a filter that ends the program if it makes memory executable. heaptrace has it do no such thing, neither where
/// there is room for displaced instructions nor where there is none; what it could not see then, it says.
#[test]
fn t38_a_filter_that_kills_for_executable_memory() {
    let program = Program::fixture("seccomp").stays_on_trap(FILTERS);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    traced.report.assert_no_anomaly();

    let program = Program::fixture("seccomp").args(["many"]).stays_on_trap(FILTERS);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    let ledger = program.ledger();
    for name in ["allocations", "bytes_allocated"] {
        assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
    }
    let lost = traced.report.anomaly("lost");
    assert!(lost > 0 && lost < 1000, "{lost}");
    for anomaly in ["double_frees", "unknown_frees", "abandoned_calls"] {
        assert_eq!(traced.report.anomaly(anomaly), 0, "{anomaly}");
    }
    traced.report.assert_consistent();
}

/// T38: the same when the filter is there before heaptrace.
#[test]
fn t38_attach_below_a_filter() {
    let program = Program::fixture("seccomp").args(["wait"]);
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true").stays_on_trap(FILTERS);
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    for _ in 0..3 {
        running.send("allocate");
        assert_eq!(running.line(), "done");
    }
    attached.signal(Signal::SIGINT);
    let traced = tracer.collect(attached.wait().success());
    assert_eq!(traced.report.site_sum(&["one_allocate"], "/allocated/objects"), 600, "{}", traced.ended.stderr);
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
}

/// Options that are wrong are refused with 125, before anything starts.
#[test]
fn wrong_usage() {
    assert_eq!(heaptrace(&["run"]).code(), 125);
    assert_eq!(heaptrace(&["run", "--no-such-option", "--", "/bin/true"]).code(), 125);
    assert_refused(&heaptrace(&["run", "--engine", "warp", "--", "/bin/true"]), 125, &["warp"]);
    assert_eq!(heaptrace(&["attach", "1", "--duration", "soon"]).code(), 125);
    assert_refused(&heaptrace(&["run", "--alloc-fn", "f:size=bogus", "--", "/bin/true"]), 125, &["f:size=bogus"]);
}

/// A declared function that no module has is not passed over in silence.
#[test]
fn declared_function_that_does_not_exist() {
    let traced = Program::new("/bin/true").traced_with(&["--alloc-fn", "no_such_function"]);
    let warnings = traced.report.list("/warnings");
    assert!(
        warnings.iter().any(|warning| warning.as_str().is_some_and(|text| text.contains("no_such_function"))),
        "{warnings:?}"
    );
}

/// A program in place of a command: the user is told what was meant.
#[test]
fn program_without_a_command() {
    let ended = heaptrace(&["/bin/true"]);
    assert_ne!(ended.code(), 0);
    assert!(ended.stderr.contains("heaptrace run /bin/true"), "{}", ended.stderr);
}

/// `mov $1,%eax; mov $42,%ebx; int $0x80`: exit(42) for i386.
const EXIT_42: [u8; 12] = [0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80];

/// `mov $29,%eax; int $0x80; jmp .-7`: pause() again and again.
const PAUSE_FOR_EVER: [u8; 9] = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];

/// Bytes of an ELF file for i386 that consists of its headers and this code.
fn elf32(code: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend([0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    // ET_EXEC, EM_386
    half(&mut file, 2);
    half(&mut file, 3);
    for value in [1, 0x0804_8054, 52, 0, 0] {
        word(&mut file, value);
    }
    for value in [52, 32, 1, 0, 0, 0] {
        half(&mut file, value);
    }
    let size = 84 + u32::try_from(code.len()).unwrap();
    // PT_LOAD of the whole file, r-x
    for value in [1, 0, 0x0804_8000, 0x0804_8000, size, size, 5, 0x1000] {
        word(&mut file, value);
    }
    file.extend(code);
    file
}
