//! Where probes get room, and when they stand: also in programs that leave none, and that are attached to while no
//! thread comes to a probe.

use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use serde_json::Value;
use std::path::Path;

/// What it allocates, and frees, at one line.
const AT_A_LINE: u64 = 100;

/// The functions and files of a stack, innermost first, and how many blocks it has allocated.
type Site = (Vec<(String, String)>, u64);

fn start() -> (Running, i32) {
    let mut running = Program::fixture("full_pages").start();
    let pid = running.value("ready").parse().unwrap();
    (running, pid)
}

fn step(running: &mut Running) {
    running.send("go");
    assert_eq!(running.line(), "done");
}

/// Its allocator's functions need room for their first instructions elsewhere, and it sleeps at the attach. The first
/// call is seen like all others, and by both engines.
#[test]
fn an_attach_to_a_program_without_room_sees_all() {
    for options in [&["--engine", "trap"][..], &["--engine", "jump"], &["--existing"], &["-f"]] {
        let (mut running, pid) = start();
        let tracer = Program::new("/bin/true");
        let attached = tracer.start_attached(options, pid);
        procfs::wait_until_answered(pid);
        for _ in 0..3 {
            step(&mut running);
        }
        procfs::order(pid, "detach");
        let traced = tracer.collect(attached.wait().success());
        let seen = ["allocations", "frees"].map(|name| traced.report.total(name));
        assert_eq!(seen, [3 * AT_A_LINE; 2], "{options:?}: {}", traced.ended.stderr);
        procfs::assert_left_as_it_was(pid);
        step(&mut running);
        running.feed(b"");
        running.wait().success();
    }
}

/// The same where collecting begins in a program that runs.
#[test]
fn collecting_that_begins_later_sees_all() {
    let program = Program::fixture("full_pages");
    let mut running = program.start_traced(&["--start-paused"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running);
    procfs::order(pid, "resume");
    procfs::wait_until("a probe is written", || {
        procfs::text_differences(pid).iter().any(|(path, _)| path.ends_with("full_pages"))
    });
    step(&mut running);
    step(&mut running);
    running.feed(b"");
    let traced = program.collect(running.wait().success());
    assert_eq!(traced.report.total("allocations"), 2 * AT_A_LINE, "{}", traced.ended.stderr);
}

/// What a run of `moved_text` allocates after an attach, by the functions of its stacks and by the files of their code.
fn stacks_of(exe: &Path, args: &[&str], before: impl FnOnce()) -> Vec<Site> {
    let mut running = Program::new(exe).args(args).start();
    let pid = running.value("ready").parse().unwrap();
    before();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    step(&mut running);
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    step(&mut running);
    running.feed(b"");
    running.wait().success();
    stacks(&traced.report)
}

fn stacks(report: &Report) -> Vec<Site> {
    let of = |site: &Value| {
        let frames = site["stack"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let module = |frame: &Value| text(&frame["module"]).rsplit('/').next().unwrap_or_default().to_owned();
        let stack = frames.map(|frame| (text(&frame["function"]), module(frame))).collect();
        (stack, site["allocated"]["objects"].as_u64().unwrap())
    };
    let mut stacks: Vec<_> = report.sites().iter().map(of).collect();
    stacks.sort();
    stacks
}

/// How programs are linked: text in the first pages with the headers, or pieces that lie apart; at a fixed address, or
/// without a dynamic linker; in an object without a build id.
const LINKED: [&[&str]; 5] = [
    &["-Wl,-z,noseparate-code"],
    &["-Wl,-z,max-page-size=0x200000,-z,separate-code"],
    &["-no-pie", "-Wl,-z,noseparate-code,--build-id=none"],
    &["-static", "-Wl,-z,noseparate-code"],
    &["-fuse-ld=lld"],
];

const PARTS: [&str; 4] = ["first", "last", "all", "around"];

/// Text that was moved to anonymous memory is still its object's, wherever it lies in it and whatever of the file is
/// left mapped: stacks lead through it, and are those of a program that has moved nothing.
#[test]
fn stacks_lead_through_text_that_was_moved() {
    for flags in LINKED {
        let exe = fixtures::program_with("moved_text", flags);
        let expected = stacks_of(&exe, &["stay"], || ());
        let names: Vec<&str> = expected[0].0.iter().map(|(name, _)| name.as_str()).take(4).collect();
        assert_eq!(
            (names, expected[0].1),
            (vec!["work", "outer", "run", "main"], AT_A_LINE),
            "{flags:?}: {expected:?}"
        );
        for way in ["mremap", "copy"] {
            for part in PARTS {
                assert_eq!(stacks_of(&exe, &[way, part], || ()), expected, "{flags:?} {way} {part}");
            }
        }
    }
}

/// The same in a library.
#[test]
fn stacks_lead_through_text_of_a_library_that_was_moved() {
    for flags in [LINKED[0], LINKED[1], LINKED[4]] {
        let library = fixtures::library_with("moved_text", &[&["-DLIBRARY"], flags].concat());
        let found = format!("-Wl,-rpath,{}", library.parent().unwrap().display());
        let exe = fixtures::program_with("moved_text", &["-DCALLS_LIBRARY", library.to_str().unwrap(), &found]);
        let expected = stacks_of(&exe, &["stay"], || ());
        assert_eq!(expected[0].0[0], ("work".to_owned(), "moved_text.so".to_owned()), "{flags:?}: {expected:?}");
        for part in PARTS {
            assert_eq!(stacks_of(&exe, &["mremap", part], || ()), expected, "{flags:?} {part}");
        }
    }
}

/// Where the file is gone, the kernel still has it for the program.
#[test]
fn stacks_lead_through_moved_text_of_a_program_that_was_deleted() {
    let built = fixtures::program_with("moved_text", LINKED[0]);
    let stacks_of_deleted = |args: &[&str]| {
        let folder = TempDir::new();
        let exe = folder.path().join("moved_text");
        std::fs::copy(&built, &exe).unwrap();
        stacks_of(&exe, args, || std::fs::remove_file(&exe).unwrap())
    };
    let expected = stacks_of_deleted(&["stay"]);
    assert_eq!(expected[0].0[0].0, "work");
    assert_eq!(stacks_of_deleted(&["mremap", "all"]), expected);
}

/// Text that is moved while heaptrace traces the program has its breakpoints moved with it: the module stays the same,
/// also when the maps are read anew.
#[test]
fn text_that_is_moved_under_trace_stays_known() {
    for flags in LINKED {
        let exe = fixtures::program_with("moved_text", flags);
        let run = |way: &str, part: &str| {
            let program = Program::new(&exe).args([way, part, "later"]);
            let mut running = program.start_traced(&[]);
            running.value("ready");
            let steps = if flags.contains(&"-static") { 2 } else { 5 };
            for _ in 0..steps {
                step(&mut running);
            }
            running.feed(b"");
            let report = program.collect(running.wait().success()).report;
            let of_work = |(stack, _): &Site| stack[0].0 == "work";
            stacks(&report).into_iter().filter(of_work).collect::<Vec<_>>()
        };
        let expected = run("stay", "all");
        assert!(!expected.is_empty());
        for part in PARTS {
            // the line that moves allocates where nothing is moved
            let moved = run("mremap", part);
            let sum = |stacks: &[Site]| stacks.iter().map(|(_, blocks)| blocks).sum::<u64>();
            assert_eq!(sum(&expected) - sum(&moved), AT_A_LINE, "{flags:?} {part}: {moved:?}");
            let names = |stacks: &[Site]| stacks.iter().map(|(stack, _)| stack.clone()).collect::<Vec<_>>();
            assert_eq!(names(&moved), names(&expected), "{flags:?} {part}");
        }
    }
}

/// The kernel executes the dynamic linker; the program is what that loads, with its own name and its own part in the
/// allocator.
#[test]
fn a_program_that_the_linker_was_told_to_load_has_its_own_name() {
    let exe = fixtures::program("full_pages");
    let linker = "/lib64/ld-linux-x86-64.so.2";
    let program = Program::new(linker).args(["--inhibit-cache"]).args([&exe]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running);
    running.feed(b"");
    let traced = program.collect(running.wait().success());
    assert_eq!(traced.report.text("/program"), "full_pages");
    assert_eq!(traced.report.number("/pid"), u64::try_from(pid).unwrap());
    assert_eq!(traced.report.total("allocations"), AT_A_LINE, "{}", traced.ended.stderr);
    assert!(traced.ended.stderr.contains("full_pages"), "{}", traced.ended.stderr);
}

/// So has its first thread, which the kernel calls as the linker.
#[test]
fn the_thread_of_a_program_that_the_linker_was_told_to_load_has_the_program_s_name() {
    let exe = fixtures::program("sized_delete");
    let threads = |program: Program| -> Vec<String> {
        let report = program.checked(&[]).report;
        let errors = report.list("/findings").iter().filter(|finding| finding["kind"] == "sized_delete");
        errors.map(|finding| finding["thread"].as_str().unwrap().to_owned()).collect()
    };
    let direct = threads(Program::new(&exe));
    assert!(!direct.is_empty() && direct.iter().all(|thread| thread == "sized_delete"), "{direct:?}");
    assert_eq!(threads(Program::new("/lib64/ld-linux-x86-64.so.2").args([&exe])), direct);
    // as many bytes as the kernel keeps
    let long = TempDir::new();
    let long = long.path().join("a_name_that_is_too_long");
    std::fs::copy(&exe, &long).unwrap();
    assert_eq!(threads(Program::new("/lib64/ld-linux-x86-64.so.2").args([&long])), threads(Program::new(&long)));
}
