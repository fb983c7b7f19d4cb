//! `heaptrace leaks` of a process that nobody traces, held against what the program itself knows of its blocks.

use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::{Program, installed};
use crate::support::python;
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

fn ask(pid: i32, options: &[&str]) -> Output {
    Command::new(HEAPTRACE).arg("leaks").args(options).arg(pid.to_string()).output().unwrap()
}

fn leaks(pid: i32, options: &[&str]) -> Value {
    let output = ask(pid, &[&["--json"], options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the program says of its blocks: kind, size, count; the block to ask for; its id.
struct Told {
    blocks: Vec<(String, u64, u64)>,
    asked: String,
    pid: i32,
}

fn start(program: &Program) -> (Running, Told) {
    let mut running = program.start();
    let mut blocks = Vec::new();
    loop {
        let line = running.line();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["asked", address] => {
                let asked = address.to_owned();
                let pid = running.value("ready").parse().unwrap();
                return (running, Told { blocks, asked, pid });
            }
            [kind, size, count] => blocks.push((kind.to_owned(), size.parse().unwrap(), count.parse().unwrap())),
            _ => panic!("{line}"),
        }
    }
}

fn end(mut running: Running, pid: i32) {
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
}

/// How many blocks of a kind and size are reported.
fn count(answer: &Value, kind: &str, size: u64) -> u64 {
    let mut rows = answer["sizes"].as_array().unwrap().iter();
    let row = rows.find(|row| row["kind"] == kind && row["size"] == size);
    row.map_or(0, |row| row["direct"]["blocks"].as_u64().unwrap())
}

/// Each block has the class that the program made it for, in dynamic and static programs; no freed one is reported.
#[test]
fn blocks_have_the_classes_that_the_program_made_them_for() {
    for flags in [&[][..], &["-static"], &["-static-pie"]] {
        let program = Program::new(fixtures::program_with("lost_blocks", flags));
        // The heap of a static program lies below 4 GiB, at another place each time: any number of 32 bits may look
        // like a pointer there.
        let most = if flags == ["-static"] { 3 } else { 1 };
        let found: Vec<String> = (0..most).map_while(|_| wrong_classes(&program)).collect();
        assert!(found.len() < most, "{flags:?}: {found:?}");
    }
}

/// Which classes are not those that the program made blocks for; None if all are.
fn wrong_classes(program: &Program) -> Option<String> {
    let (running, account) = start(program);
    let answer = leaks(account.pid, &[]);
    end(running, account.pid);
    assert_eq!(answer["stacks_known"], false);
    let sum = |of: &str| account.blocks.iter().filter(|row| row.0 == of).map(|row| row.2).sum::<u64>();
    let heads = answer["sizes"].as_array().unwrap().iter().find(|row| row["size"] == 520).unwrap();
    let leaks = &answer["leaks"];
    let is_right = account.blocks.iter().all(|(kind, size, blocks)| count(&answer, kind, *size) == *blocks)
        && heads["indirect"]["blocks"] == 50
        // one with a mapping of its own, too
        && leaks["definite"]["blocks"] == sum("leak_definite") + 1
        && leaks["indirect"]["blocks"] == sum("leak_indirect")
        && leaks["possible"]["blocks"] == sum("leak_possible")
        && leaks["unreadable_bytes"] == 0;
    (!is_right).then(|| format!("{:?}, reported: {answer}", account.blocks))
}

/// The same with another allocator, which rounds sizes up in its own way.
#[test]
fn blocks_of_other_allocators_have_their_classes() {
    let debians = ["libmimalloc.so.2", "libjemalloc.so.2"]
        .map(|library| installed(&Path::new("/usr/lib/x86_64-linux-gnu").join(library)));
    for library in debians.into_iter().chain(python::MIMALLOCS.map(python::mimalloc)) {
        let (running, account) = start(&Program::fixture("lost_blocks").env("LD_PRELOAD", &library));
        let answer = leaks(account.pid, &[]);
        for (kind, size, blocks) in &account.blocks {
            let rounded = (size / 8 * 9).next_multiple_of(1024).max(size + 128);
            let found: u64 = (*size..=rounded).map(|size| count(&answer, kind, size)).sum();
            assert!(found >= *blocks, "{kind} {size}: {found} of {blocks}: {answer}");
        }
        let sum = |of: &str| account.blocks.iter().filter(|row| row.0 == of).map(|row| row.2).sum::<u64>();
        for (class, kind, more) in
            [("definite", "leak_definite", 1), ("indirect", "leak_indirect", 0), ("possible", "leak_possible", 0)]
        {
            assert_eq!(answer["leaks"][class]["blocks"], sum(kind) + more, "{}: {answer}", library.display());
        }
        end(running, account.pid);
    }
}

/// A block that a thread is just freeing, merging or handing out is not lost: the program loses none at any instruction
/// of these calls.
#[test]
fn a_block_on_its_way_through_the_allocator_is_not_lost() {
    for (kind, stride) in [("tcache", 7), ("fast", 9), ("merged", 17), ("stashed", 23), ("consolidated", 227)] {
        let mut running = Program::fixture("in_allocator").args([kind, &stride.to_string()]).start();
        let mut looks = 0;
        while let Some(pid) = running.line().strip_prefix("look ") {
            let answer = leaks(pid.parse().unwrap(), &[]);
            for class in ["definite", "indirect", "possible"] {
                assert_eq!(answer["leaks"][class]["blocks"], 0, "{kind}, look {looks}: {answer}");
            }
            assert_eq!(answer["in_motion"], false, "{answer}");
            looks += 1;
            running.send("");
        }
        assert!(looks > 8, "{kind}: {looks} looks");
        running.wait().success();
    }
}

/// Threads that allocate and free all the time lose nothing through any allocator, whichever moment a look is of; what
/// is lost is reported at each.
#[test]
fn blocks_that_threads_just_allocate_and_free_are_not_lost() {
    const LOST: u64 = 3;
    let debians = ["libmimalloc.so.2", "libjemalloc.so.2"]
        .map(|library| installed(&Path::new("/usr/lib/x86_64-linux-gnu").join(library)));
    let fixture = || Program::fixture("hand_to_hand");
    let mut programs = vec![
        ("glibc", fixture()),
        ("musl", Program::new(fixtures::musl_program("hand_to_hand", &["-O2", "-static", "-pthread"]))),
    ];
    programs
        .extend(["mimalloc", "jemalloc"].into_iter().zip(debians.map(|library| fixture().env("LD_PRELOAD", library))));
    for (name, program) in programs {
        for lost in [0, LOST] {
            let mut running = program.clone().args([lost.to_string()]).start();
            let pid: i32 = running.value("ready").parse().unwrap();
            for look in 0..super::rounds(4) {
                let answer = leaks(pid, &[]);
                let leaks = &answer["leaks"];
                let reported =
                    ["definite", "indirect", "possible"].map(|class| leaks[class]["blocks"].as_u64().unwrap());
                assert_eq!(reported, [lost, 0, 0], "{name}, look {look}: {answer}");
            }
            end(running, pid);
        }
    }
}

/// The way to a block that can be reached is shown from the variable on.
#[test]
fn the_way_to_a_block_begins_at_a_variable() {
    let program = Program::fixture("lost_blocks");
    let (running, account) = start(&program);
    let answer = leaks(account.pid, &["--explain", &account.asked]);
    let path = answer["explained"]["path"].as_array().unwrap();
    assert_eq!(path[0]["root"], "global `g_held` +56 in lost_blocks", "{answer}");
    assert_eq!(path[1]["size"], 2008, "{answer}");
    assert_eq!(path[1]["next_offset"], 16, "{answer}");
    assert_eq!(path[2]["address"], account.asked.as_str(), "{answer}");
    let text = String::from_utf8(ask(account.pid, &["--explain", &account.asked]).stdout).unwrap();
    assert!(text.contains("still reachable") && text.contains("global `g_held` +56"), "{text}");
    let text = String::from_utf8(ask(account.pid, &[]).stdout).unwrap();
    assert!(text.contains("51,000 bytes") || text.contains("50,000 bytes in 50 blocks are definitely lost"), "{text}");
    assert!(text.contains("The allocation sites are unknown"), "{text}");
    end(running, account.pid);
}

/// What can't be known is refused with its cause.
#[test]
fn what_cant_be_known_is_refused() {
    let program = Program::fixture("lost_blocks");
    let (running, account) = start(&program);
    let refused = ask(account.pid, &["--increased"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no earlier scan"), "{refused:?}");
    end(running, account.pid);
    let tcmalloc = installed(Path::new("/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"));
    let program = Program::fixture("victim").args(["1"]).env("LD_PRELOAD", tcmalloc);
    let (victim, pid) = super::attach::start_victim(&program);
    let refused = ask(pid, &[]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("can't be walked"), "{refused:?}");
    super::attach::assert_victim_well(victim, pid);
}

/// A program at work is well afterwards.
#[test]
fn a_busy_process_is_classified_and_lives() {
    let program = Program::fixture("victim").args(["4"]);
    let (victim, pid) = super::attach::start_victim(&program);
    for _ in 0..super::rounds(5) {
        let answer = leaks(pid, &[]);
        assert_eq!(answer["heap_findings"], 0, "{answer}");
    }
    super::attach::assert_victim_well(victim, pid);
}

/// Pages of a file that a FUSE server would have to bring, and does not, hold no look up: of a private mapping they
/// hold nothing, of a shared one they may, and are named.
#[test]
fn pages_of_a_file_that_nobody_serves_hold_nothing_up() {
    for (way, status) in [("private", 23), ("shared", 125)] {
        let folder = TempDir::new();
        let program = Program::fixture("fuse_mapped").args([way, folder.path().to_str().unwrap()]);
        let mut running = program.start();
        let first = running.line();
        let Some(pid) = first.strip_prefix("ready ") else {
            assert_eq!(first, "none");
            println!("skipped: no FUSE file system can be mounted here");
            return;
        };
        for question in [&["leaks", "--json", pid][..], &["heap", pid]] {
            // one that waits for the server is not ended by that, but its caller is
            let mut limited = Command::new("timeout");
            let output = limited.args(["-s", "KILL", "60", HEAPTRACE]).args(question).output().unwrap();
            assert!(output.status.success(), "{way} {question:?} {}", String::from_utf8_lossy(&output.stderr));
            if question[0] == "leaks" {
                let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                let leaks = &report["leaks"];
                assert_eq!([&leaks["definite"]["blocks"], &leaks["reachable"]["blocks"]], [1, 1], "{way}: {report}");
                let unread = if way == "shared" { 63 * 4096 } else { 0 };
                assert_eq!(leaks["unreadable_bytes"], unread, "{way}: {report}");
                assert_eq!(report.to_string().contains("/file\"]"), way == "shared", "{report}");
            }
        }
        running.feed(b"");
        running.wait().success();
        let checked = program.checked(&[]);
        assert_eq!(checked.ended.code(), status, "{way}: {}", checked.ended.stderr);
        let is_named = checked.ended.stderr.contains("could not be read") && checked.ended.stderr.contains("/file");
        assert_eq!(is_named, way == "shared", "{way}: {}", checked.ended.stderr);
    }
}

/// Pages that a server of faults would have to bring, and that nobody brings, hold nothing: no look waits for them, and
/// what the pages that are there lead to is reachable.
#[test]
fn pages_that_nobody_serves_hold_nothing_up() {
    for options in [&[][..], &["users"]] {
        let program = Program::fixture("unserved").args(options);
        let mut running = program.start();
        let first = running.line();
        let Some(pid) = first.strip_prefix("ready ") else {
            assert_eq!(first, "none");
            println!("skipped: the kernel offers no userfaultfd here, {options:?}");
            continue;
        };
        let report = leaks(pid.parse().unwrap(), &[]);
        for (kind, least) in [("definite", 77), ("reachable", 123)] {
            let found = &report["leaks"][kind];
            assert_eq!(found["blocks"], 1, "{kind} {options:?}: {report}");
            assert!((least..least + 32).contains(&found["bytes"].as_u64().unwrap()), "{kind} {options:?}: {report}");
        }
        let heap = Command::new(HEAPTRACE).args(["heap", pid]).output().unwrap();
        let text = String::from_utf8_lossy(&heap.stdout);
        assert!(heap.status.success() && text.contains("2 blocks live with room for 224 B"), "{options:?} {text}");
        running.feed(b"");
        running.wait().success();
        let checked = program.checked(&[]);
        assert_eq!(checked.ended.code(), 23, "{options:?} {}", checked.ended.stderr);
        let told = "77 bytes in 1 block leaked (definite)";
        assert!(checked.ended.stderr.contains(told), "{options:?} {}", checked.ended.stderr);
    }
}
