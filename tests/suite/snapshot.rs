//! `heaptrace snapshot`, marks, and what is left of a process that dies: against a fixture's account in shared memory.

use crate::support::procfs;
use crate::support::program::{Program, engine};
use crate::support::report::Report;
use crate::support::running::{Asked, Ended, Running};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

/// What the fixture has done for certain, and what it has begun: the bounds of what has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    pub takes: [u64; 2],
    pub bytes: [u64; 2],
    pub gives: [u64; 2],
    pub given: [u64; 2],
}

/// The sums over all threads.
pub fn account(path: &Path) -> Account {
    let bytes = std::fs::read(path).unwrap();
    let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let of = |begun: usize, done: usize| {
        let sum = |at: usize| words.chunks_exact(8).map(|thread| thread[at]).sum::<u64>();
        [sum(done), sum(begun)]
    };
    Account { takes: of(0, 1), bytes: of(2, 3), gives: of(4, 5), given: of(6, 7) }
}

pub fn ask(arguments: &[&str]) -> Output {
    Command::new(HEAPTRACE).args(arguments).output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A snapshot as a report, checked by its schema.
fn snapshot(program: &Program, pid: i32, options: &[&str]) -> Report {
    let path = program.folder().join("now.json");
    let (pid, path_text) = (pid.to_string(), path.to_string_lossy().into_owned());
    let asked = ask(&[&["snapshot", &pid, "-o", &path_text], options].concat());
    assert!(asked.status.success(), "{}", stderr(&asked));
    let ended = Ended {
        status: asked.status,
        stdout: asked.stdout,
        stderr: String::new(),
        asked: Asked { jump: engine() == "jump", ..Asked::default() },
    };
    let report = Report::read(&path, &ended);
    assert_eq!(report.text("/mode"), "snapshot");
    report
}

fn fixture(arguments: &[&str]) -> (Program, std::path::PathBuf) {
    let program = Program::fixture("shared").args(arguments);
    let shared = program.folder().join("shared");
    (program.env("SHARED", &shared), shared)
}

fn step(running: &mut Running, line: &str) {
    running.send(line);
    assert_eq!(running.line(), "ok");
}

/// All figures are of one moment between the accounts before and after, and agree with each other.
#[test]
fn a_snapshot_under_the_load_of_8_threads_is_consistent() {
    let (program, shared) = fixture(&["load", "8"]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(300));
        let before = account(&shared);
        let report = snapshot(&program, pid, &[]);
        let after = account(&shared);
        assert!(after.takes[0] > before.takes[0], "the program runs on");
        let allocated = |what: &str| report.site_sum(&["take"], &format!("/allocated/{what}"));
        let freed = |what: &str| report.site_sum(&["take"], &format!("/freed/{what}"));
        for (name, figure, [lower, _], [_, upper]) in [
            ("blocks", allocated("objects"), before.takes, after.takes),
            ("bytes", allocated("bytes"), before.bytes, after.bytes),
            ("blocks freed", freed("objects"), before.gives, after.gives),
            ("bytes freed", freed("bytes"), before.given, after.given),
        ] {
            assert!((lower..=upper).contains(&figure), "{name}: {lower} <= {figure} <= {upper}");
        }
        for what in ["objects", "bytes"] {
            let live = report.site_sum(&["take"], &format!("/live/{what}"));
            assert_eq!(live, allocated(what) - freed(what));
        }
        assert_eq!(report.total("live_blocks"), report.total("allocations") - report.total("frees"));
        assert_eq!(report.total("live_bytes"), report.total("bytes_allocated") - report.total("bytes_freed"));
        let sites: u64 = report.sites().iter().map(|site| site["live"]["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sites, report.total("live_bytes"));
    }
    running.send("enough");
    let traced = program.collect(running.wait());
    assert_eq!(traced.ended.code(), 0);
    let end = account(&shared);
    assert_eq!(traced.report.site_sum(&["take"], "/allocated/objects"), end.takes[0]);
    assert_eq!(traced.report.text("/mode"), "run");
}

/// Any format, several at once, standard output too; a pprof file whose default column is what is in use.
#[test]
fn a_snapshot_has_any_format_and_the_right_default_column() {
    let (program, _) = fixture(&["marks"]);
    let mut running = program.start_traced(&[]);
    let pid = running.value("ready");
    step(&mut running, "take 7");
    let folder = program.folder().to_string_lossy().into_owned();
    let pattern = format!("{folder}/%n.%p.%i.pb.gz");
    let svg = format!("{folder}/now.svg");
    let asked = ask(&["snapshot", &pid, "-o", &pattern, "-o", &svg, "-o", "-", "--format", "pb.gz"]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    let first = std::fs::read(format!("{folder}/shared.{pid}.000001.pb.gz")).unwrap();
    assert_eq!((first == asked.stdout, std::fs::metadata(&svg).is_ok()), (true, true));
    let raw = Command::new("go")
        .args(["tool", "pprof", "-raw"])
        .arg(format!("{folder}/shared.{pid}.000001.pb.gz"))
        .output()
        .unwrap();
    let raw = String::from_utf8_lossy(&raw.stdout).into_owned();
    assert!(raw.contains("inuse_space/bytes[dflt]"), "{raw}");
    let text = ask(&["snapshot", &pid, "-o", "-", "--format", "txt"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("700"), "{text}");
    for (words, reason) in [
        (vec!["snapshot", "-o", "-", &pid], "choose one with --format"),
        (vec!["snapshot", "-o", "x.sarif", &pid], "verdict of a check"),
        (vec!["snapshot", "-o", "/nowhere/at/all.svg", &pid], "can't create a file in this directory"),
        (vec!["snapshot", "--since", "dawn", &pid, "-o", "-", "--format", "txt"], "no mark named `dawn`"),
        (
            vec!["snapshot", "--since", "dawn", &pid, "-o", "-", "--format", "txt"],
            "exec: there are none (`heaptrace ctl",
        ),
    ] {
        let asked = ask(&words);
        assert_eq!(asked.status.code(), Some(125), "{words:?}");
        assert!(stderr(&asked).contains(reason), "{words:?}: {}", stderr(&asked));
    }
    drop(running);
}

/// Only what was allocated behind the mark, and is still there.
#[test]
fn a_snapshot_since_a_mark_holds_what_came_after_it_and_stayed() {
    let (program, _) = fixture(&["marks"]);
    let mut running = program.start_traced(&[]);
    let pid: i32 = running.value("ready").parse().unwrap();
    step(&mut running, "take 10");
    procfs::order(pid, "pause");
    procfs::order(pid, "resume");
    for (name, blocks) in [("warm", 5), ("hot", 3)] {
        let asked = ask(&["ctl", &pid.to_string(), "mark", name]);
        assert!(asked.status.success(), "{}", stderr(&asked));
        step(&mut running, &format!("take {blocks}"));
    }
    for (options, live) in [(&[][..], 18), (&["--since", "warm"], 8), (&["--since", "hot"], 3)] {
        let report = snapshot(&program, pid, options);
        assert_eq!(report.site_sum(&["take"], "/live/objects"), live, "{options:?}");
        assert_eq!(report.site_sum(&["take"], "/live/bytes"), live * 100);
    }
    for (options, live) in [(&["--until", "hot"][..], 15), (&["--since", "warm", "--until", "hot"], 5)] {
        let report = snapshot(&program, pid, options);
        assert_eq!(report.site_sum(&["take"], "/live/objects"), live, "{options:?}");
        let said = report.0["warnings"].to_string();
        assert!(options.iter().skip(1).step_by(2).all(|mark| said.contains(&format!("the mark `{mark}`"))), "{said}");
    }
    let asked = ask(&["snapshot", &pid.to_string(), "--until", "dawn", "-o", "-", "--format", "txt"]);
    assert!(stderr(&asked).contains("the heap at the mark `dawn` is not kept"), "{}", stderr(&asked));
    let asked = ask(&["ctl", &pid.to_string(), "mark", &"x".repeat(48)]);
    assert!(stderr(&asked).contains("1 to 47 bytes"), "{}", stderr(&asked));
    drop(running.wait());
}

/// The way out is told.
#[test]
fn a_process_that_nobody_traces_has_no_snapshot() {
    let asked = ask(&["snapshot", &std::process::id().to_string()]);
    assert_eq!(asked.status.code(), Some(125));
    assert!(stderr(&asked).contains("`heaptrace attach"), "{}", stderr(&asked));
}

/// The bytes of each block, byte for byte, and who allocated it; limits are told, and nothing half-done is left.
#[test]
fn the_contents_of_live_blocks_are_written_with_an_index() {
    let (program, _) = fixture(&["marks"]);
    let mut running = program.start_traced(&[]);
    let pid = running.value("ready");
    step(&mut running, "take 5");
    assert!(ask(&["ctl", &pid, "mark", "text"]).status.success());
    step(&mut running, "text");
    step(&mut running, "text");
    let folder = program.folder().join("blocks");
    let path = folder.to_string_lossy().into_owned();
    let asked = ask(&["snapshot", &pid, "--since", "text", "--contents", &path]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    let index = std::fs::read_to_string(folder.join("index.tsv")).unwrap();
    assert!(index.starts_with("# contents of live blocks, version 1\n"), "{index}");
    let rows: Vec<Vec<&str>> =
        index.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2, "{index}");
    for row in &rows {
        assert_eq!(row[1..4], ["33", "33", "live"], "{index}");
        assert!(row[4].starts_with("take < main"), "{index}");
        assert_eq!(std::fs::read(folder.join(row[0])).unwrap(), b"the quick brown fox of heaptrace\0");
    }
    let others = std::fs::read_dir(program.folder()).unwrap();
    assert!(!others.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(".tmp")));
    let new = format!("{path}-new");
    for (options, reason) in [
        (vec!["--contents", &path], "is not empty"),
        (vec!["--contents", &new, "--contents-limit", "100"], "allow more with --contents-limit"),
        (vec!["--contents", "/nowhere/blocks"], "can't make this folder"),
    ] {
        let asked = ask(&[&["snapshot", &pid][..], &options].concat());
        assert_eq!(asked.status.code(), Some(125), "{options:?}");
        assert!(stderr(&asked).contains(reason), "{options:?}: {}", stderr(&asked));
    }
    assert!(!Path::new(&new).exists());
    drop(running.wait());
}

/// Blocks come and go all the time: each file has what its row says, and blocks that were freed are marked.
#[test]
fn contents_of_a_busy_program_are_marked_where_blocks_went() {
    let (program, _) = fixture(&["load", "4"]);
    let mut running = program.start_traced(&[]);
    let pid = running.value("ready");
    std::thread::sleep(Duration::from_millis(300));
    let folder = program.folder().join("blocks");
    let path = folder.to_string_lossy().into_owned();
    let report = program.folder().join("now.json");
    let asked = ask(&["snapshot", &pid, "--contents", &path, "-o", &report.to_string_lossy()]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    running.send("enough");
    let traced = program.collect(running.wait());
    let report = Report::read(&report, &traced.ended);
    let index = std::fs::read_to_string(folder.join("index.tsv")).unwrap();
    let mut blocks = 0;
    for row in index.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect::<Vec<_>>()) {
        assert_eq!(std::fs::metadata(folder.join(row[0])).unwrap().len().to_string(), row[2], "{row:?}");
        assert!(["live", "freed"].contains(&row[3]), "{row:?}");
        blocks += 1;
    }
    assert_eq!(blocks, report.total("live_blocks"), "all blocks of the same moment");
    // names are looked up before blocks are read: meanwhile the threads have given some back
    assert!(index.contains("\tfreed\t"), "{index}");
}

/// Under -f a child is asked for alone; under attach, the snapshot says what live means there.
#[test]
fn a_child_is_asked_for_alone_and_an_attached_process_as_such() {
    let program = Program::fixture("fork_child");
    let mut running = program.start_traced(&["-f"]);
    let child: i32 = running.value("child").parse().unwrap();
    let report = snapshot(&program, child, &[]);
    assert_eq!(report.number("/pid"), u64::try_from(child).unwrap());
    assert_eq!(report.site_sum(&["parent_allocate"], "/live/objects"), 100, "inherited blocks are live");
    assert_eq!(report.site_sum(&["parent_allocate"], "/allocated/objects"), 0);
    running.send("go on");
    drop(running.wait());

    let (program, _) = fixture(&["marks"]);
    let mut victim = program.start();
    let pid: i32 = victim.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    step(&mut victim, "take 3");
    let report = snapshot(&program, pid, &[]);
    assert_eq!(report.site_sum(&["take"], "/live/objects"), 3);
    let text = ask(&["snapshot", &pid.to_string(), "-o", "-", "--format", "txt"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("allocated since attach"), "{text}");
    assert!(ask(&["ctl", &pid.to_string(), "mark", "warm"]).status.success());
    step(&mut victim, "take 2");
    // of the file, too, which says no more that the process was attached to
    let json = format!("{}/since.json", program.folder().display());
    let since = ask(&["snapshot", &pid.to_string(), "--since", "warm", "-o", "-", "--format", "txt"]);
    assert!(ask(&["snapshot", &pid.to_string(), "--since", "warm", "-o", &json]).status.success());
    for told in [since, ask(&["report", &json])] {
        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(text.contains("Live means: allocated since the mark") && !text.contains("since attach"), "{text}");
    }
    let whole = format!("{}/whole.json", program.folder().display());
    assert!(ask(&["snapshot", &pid.to_string(), "-o", &whole]).status.success());
    let text = ask(&["report", &whole]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(!text.contains("run --debuginfod"), "nobody has run it: {text}");
    attached.signal(Signal::SIGINT);
    assert_eq!(tracer.collect(attached.wait()).ended.code(), 0);
    drop(victim.wait());
}

/// Each snapshot is whole, whatever its number: it is read back as a snapshot, compared, and not added to others.
#[test]
fn later_snapshots_are_read_back_as_snapshots() {
    let (program, _) = fixture(&["marks"]);
    let mut running = program.start_traced(&[]);
    let pid = running.value("ready");
    let name = |number: u32, end: &str| format!("{}/s.{number:06}.{end}", program.folder().display());
    for number in 1..=3 {
        step(&mut running, &format!("take {}", number * 10));
        let [json, pprof] = ["json", "pb.gz"].map(|end| format!("{}/s.%i.{end}", program.folder().display()));
        assert!(ask(&["snapshot", &pid, "-o", &pprof, "-o", &json]).status.success());
        for end in ["json", "pb.gz"] {
            let told = ask(&["report", &name(number, end)]);
            let text = String::from_utf8_lossy(&told.stdout).into_owned();
            assert!(text.contains("a snapshot after") && !text.contains("part"), "{}", text);
        }
    }
    for end in ["json", "pb.gz"] {
        let [second, third] = [2, 3].map(|number| name(number, end));
        let differs = ask(&["diff", &second, &third, "-o", "-", "--format", "json"]);
        let differs: serde_json::Value = serde_json::from_slice(&differs.stdout).unwrap();
        let bytes = |side: &str| differs[side]["bytes"].as_u64().unwrap();
        assert_eq!(
            (differs["value"].as_str(), bytes("before"), bytes("after")),
            (Some("live"), 3000, 6000),
            "{differs}"
        );
    }
    let [second, third, all] = [name(2, "pb.gz"), name(3, "pb.gz"), name(0, "pb.gz")];
    let merged = ask(&["merge", "-o", &all, &second, &third]);
    assert_eq!(merged.status.code(), Some(125));
    assert!(stderr(&merged).contains("`heaptrace diff` compares them"), "{}", stderr(&merged));
    let traced = program.collect(running.wait());
    let merged = ask(&["merge", "-o", &all, &second, traced.profile.to_str().unwrap()]);
    assert_eq!(merged.status.code(), Some(125));
    assert!(stderr(&merged).contains("`heaptrace diff` compares them"), "{}", stderr(&merged));
}

/// Ctrl-C while the tracer gives no answer leaves no folder behind.
#[test]
fn contents_that_are_given_up_leave_nothing() {
    let (program, _) = fixture(&["marks"]);
    let mut running = program.start_traced(&[]);
    let pid = running.value("ready");
    step(&mut running, "take 5");
    running.signal(Signal::SIGSTOP);
    let asks = Program::new("/bin/true");
    let folder = asks.folder().join("blocks");
    let asking = asks.start_heaptrace(["snapshot", &pid, "--contents", folder.to_str().unwrap()]);
    let entries = || std::fs::read_dir(asks.folder()).unwrap().count();
    procfs::wait_until("the folder is prepared", || entries() == 1);
    procfs::wait_until("it says that it waits", || asking.stderr_so_far().contains("waiting up to 600 s"));
    asking.signal(Signal::SIGINT);
    let ended = asking.wait();
    assert_eq!(ended.code(), 130, "{}", ended.stderr);
    assert!(ended.stderr.contains("cancelled by Ctrl-C") && ended.stderr.contains("no contents"), "{}", ended.stderr);
    assert_eq!(entries(), 0);
    running.signal(Signal::SIGCONT);
    step(&mut running, "take 5");
    assert_eq!(running.wait().code(), 0);
}

/// The socket of the heaptrace with this process id.
fn socket_of(tracer: i32) -> std::path::PathBuf {
    let user = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let folders =
        [format!("/run/user/{user}/heaptrace"), format!("{}/heaptrace-{user}", std::env::temp_dir().display())];
    let sockets = folders.iter().map(|folder| Path::new(folder).join(format!("{tracer}.sock")));
    sockets.into_iter().find(|socket| socket.exists()).expect("a socket")
}

/// Some connect and say nothing, some read no answer: others are answered at once, and the program runs on.
#[test]
fn those_who_say_or_read_nothing_keep_nobody_waiting() {
    let (program, _) = fixture(&["marks"]);
    let mut running = program.start_traced(&[]);
    let pid = running.value("ready");
    step(&mut running, "take 5");
    let socket = socket_of(running.pid());
    let connect = || UnixStream::connect(&socket).unwrap();
    let soon = |words: &[&str]| {
        let began = Instant::now();
        let asked = ask(words);
        assert!(asked.status.success(), "{}", stderr(&asked));
        assert!(began.elapsed() < Duration::from_secs(8), "{words:?}: {:?}", began.elapsed());
    };
    let silent: Vec<UnixStream> = (0..200).map(|_| connect()).collect();
    soon(&["ctl", &pid, "mark", "one"]);
    soon(&["snapshot", &pid, "-o", "-", "--format", "json", "-q"]);
    drop(silent);
    // more bytes than a socket takes without a reader
    let formats = vec!["json"; 32];
    let question = serde_json::json!({"version": 2, "pid": pid.parse::<i32>().unwrap(),
        "command": {"snapshot": {"formats": formats, "pprof_columns": "all"}},
        "look": {"top": null, "color": false, "width": 80}});
    let deaf: Vec<UnixStream> = (0..4).map(|_| connect()).collect();
    for mut one in &deaf {
        one.write_all(format!("{question}\n").as_bytes()).unwrap();
        one.read_exact(&mut [0; 100]).unwrap();
    }
    soon(&["ctl", &pid, "mark", "two"]);
    soon(&["snapshot", &pid, "--since", "two", "-o", "-", "--format", "json", "-q"]);
    step(&mut running, "take 5");
    drop(deaf);
    assert_eq!(running.wait().code(), 0);
}

/// The profile at the end is of the blocks between two marks, of run as of attach, and says so; one that was never set
/// is told with those that were, and loses nothing.
#[test]
fn the_profile_at_the_end_is_of_the_blocks_between_two_marks() {
    for (options, live) in [
        (&["--since", "warm"][..], Some(15)),
        (&["--until", "hot"], Some(15)),
        (&["--since", "warm", "--until", "hot"], Some(5)),
        (&["--since", "dawn"], None),
        (&["--since", "hot", "--until", "dusk"], None),
    ] {
        for attach in [false, true] {
            let (program, _) = fixture(&["marks"]);
            let tracer = Program::new("/bin/true");
            let mut victim = if attach { program.start() } else { program.start_traced(options) };
            let pid: i32 = victim.value("ready").parse().unwrap();
            let attached = attach.then(|| {
                let attached = tracer.start_attached(options, pid);
                procfs::wait_until_answered(pid);
                attached
            });
            step(&mut victim, "take 10");
            for (name, blocks) in [("warm", 5), ("hot", 4), ("a", 1), ("b", 2), ("c", 1), ("d", 1), ("e", 1)] {
                assert!(ask(&["ctl", &pid.to_string(), "mark", name]).status.success());
                step(&mut victim, &format!("take {blocks}"));
            }
            let traced = match attached {
                None => program.collect(victim.wait()),
                Some(attached) => {
                    attached.signal(Signal::SIGINT);
                    let traced = tracer.collect(attached.wait());
                    drop(victim.wait());
                    traced
                }
            };
            let said = &traced.ended.stderr;
            let told = ask(&["report", traced.profile.to_str().unwrap()]);
            let told = String::from_utf8_lossy(&told.stdout).replace("\n  ", " ");
            assert_eq!(traced.report.site_sum(&["take"], "/live/objects"), live.unwrap_or(25), "{options:?}: {said}");
            assert_eq!(traced.report.site_sum(&["take"], "/live/bytes"), 100 * live.unwrap_or(25), "{options:?}");
            let code = if live.is_some() { 0 } else { 125 };
            assert_eq!(traced.ended.code(), code, "{options:?}: {said}");
            let words: Vec<String> = match live {
                Some(_) => options.iter().skip(1).step_by(2).map(|mark| format!("the mark `{mark}`")).collect(),
                None => vec!["there are e, d, c, b".to_owned(), "So the report has all blocks".to_owned()],
            };
            for word in words {
                assert!(told.contains(&word), "{options:?}: {told}");
                assert!(said.replace("\n  ", " ").contains(&word), "{options:?}: {said}");
            }
        }
    }
    let refused = ask(&["check", "--since", "a", "/bin/true"]);
    assert!(stderr(&refused).contains("check judges all blocks"), "{}", stderr(&refused));
}
