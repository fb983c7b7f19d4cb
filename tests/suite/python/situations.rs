//! The same in threads, children, other interpreters and coroutines, in processes that run already and in such as die,
//! in checks and in traces. What Python says itself of each allocation is in a file that the script writes line by
//! line.

use super::{STAYS, is_script, pythons, script, scripts_of};
use crate::support::checks::pprof;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The script in a situation.
fn situation(python: &Path, name: &str, args: &[&str]) -> Program {
    let program = Program::new(python).stays_on_trap(STAYS);
    let ledger = program.outside("frames");
    program.args([script("python_situations.py").as_os_str(), name.as_ref(), ledger.as_os_str()]).args(args)
}

/// What the script has written so far.
fn noted(program: &Program) -> Vec<Value> {
    let text = std::fs::read_to_string(program.outside("frames")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The stacks of a profile in which something was allocated, as `go tool pprof` reads them.
struct Seen {
    /// By the size of the blocks: how many, and the locations, the innermost first.
    stacks: BTreeMap<u64, Vec<(u64, Vec<String>)>>,
    /// The address and the functions of each location.
    locations: BTreeMap<String, (String, String)>,
}

impl Seen {
    fn in_profile(profile: &Path) -> Self {
        let raw = pprof(&["-raw"], &[profile]);
        let (samples, rest) = raw.split_once("Samples:\n").unwrap().1.split_once("\nLocations\n").unwrap();
        let locations = rest.split_once("\nMappings\n").map_or(rest, |(locations, _)| locations);
        let mut functions: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut number = String::new();
        for line in locations.lines().map(str::trim) {
            let begins = line.split_once(": 0x").and_then(|(number, rest)| Some((number, rest.split_once(' ')?)));
            if let Some((new, (address, function))) = begins {
                new.clone_into(&mut number);
                functions.insert(number.clone(), (address.to_owned(), function.trim().to_owned()));
            } else if let Some((_, of_location)) = functions.get_mut(&number) {
                // what is inlined there has a line each
                of_location.push(' ');
                of_location.push_str(line);
            }
        }
        let mut stacks: BTreeMap<u64, Vec<(u64, Vec<String>)>> = BTreeMap::new();
        let mut last = None;
        for line in samples.lines() {
            if let Some((_, size)) = line.split_once(" bytes:[") {
                let size = size.split(' ').next().unwrap().parse().unwrap();
                let (objects, stack) = last.take().unwrap();
                if objects > 0 {
                    stacks.entry(size).or_default().push((objects, stack));
                }
            } else if let Some((values, stack)) = line.split_once(": ")
                && !line.contains('[')
            {
                let objects = values.split_whitespace().nth(2).unwrap().parse().unwrap();
                last = Some((objects, stack.split_whitespace().map(str::to_owned).collect()));
            }
        }
        Self { stacks, locations: functions }
    }

    fn of(&self, size: u64) -> &[(u64, Vec<String>)] {
        self.stacks.get(&size).map_or(&[], Vec::as_slice)
    }

    /// The functions of a stack that are Python's, as the script tells them, and whether the interpreter's loop is
    /// there besides.
    fn scripts(&self, stack: &[String]) -> (Value, bool) {
        let locations = stack.iter().map(|number| &self.locations[number]);
        let is_loop = locations.clone().any(|(_, function)| function.contains("_PyEval_EvalFrameDefault"));
        let scripts = locations.filter(|(address, _)| address.starts_with("ff0000")).map(|(_, function)| {
            let words: Vec<&str> = function.split(' ').collect();
            let (file, line) = words[1].rsplit_once(':').unwrap();
            json!([words[0], file, line.parse::<u32>().unwrap()])
        });
        (scripts.collect(), is_loop)
    }

    /// One block of each size, with the frames that the script tells.
    fn assert_tells<'a>(&self, noted: impl IntoIterator<Item = &'a Value>, of: &Path) {
        for line in noted {
            let (size, frames) = (line["size"].as_u64().unwrap(), &line["frames"]);
            let stacks = self.of(size);
            let [(1, stack)] = stacks else { panic!("{}: {stacks:?} with {size} bytes: {frames}", of.display()) };
            let (scripts, is_loop) = self.scripts(stack);
            assert_eq!(scripts, *frames, "{}: {size} bytes", of.display());
            assert!(!is_loop, "{}: {size} bytes, {frames}: the interpreter's loop", of.display());
        }
    }
}

fn assert_no_warning(report: &Report) {
    let warnings = report.list("/warnings");
    assert!(!warnings.iter().any(|warning| warning.as_str().unwrap().contains("--python)")), "{warnings:?}");
}

/// The minor number of its release.
fn minor(python: &Path) -> u32 {
    let version = std::process::Command::new(python).arg("--version").output().unwrap();
    let text = String::from_utf8(version.stdout).unwrap();
    text.strip_prefix("Python 3.").unwrap().split('.').next().unwrap().parse().unwrap()
}

/// Debian's Python alone: with all that there are, as `HEAPTRACE_TEST_FACTOR=7` has it, these tests take minutes.
fn first_pythons() -> impl Iterator<Item = PathBuf> {
    pythons().into_iter().take(crate::suite::rounds(1) as usize)
}

/// Those of all threads, also where one has the place of another, where calls are outside of the interpreter's lock,
/// and where Python has not made the thread; and of generators and coroutines, which run in turns.
#[test]
fn threads_and_tasks_have_their_own() {
    for python in first_pythons() {
        for (name, least) in [("threads", 200), ("tasks", 100)] {
            let program = situation(&python, name, &[]);
            let traced = program.traced_with(&["--python"]);
            assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
            let noted = noted(&program);
            assert!(noted.len() >= least, "{} blocks", noted.len());
            Seen::in_profile(&traced.profile).assert_tells(&noted, &python);
            assert_no_warning(&traced.report);
        }
    }
}

/// Those of children that are forked, of a thread's child, of programs that they execute, and of the pools of
/// `multiprocessing`.
#[test]
fn children_have_their_own() {
    for python in first_pythons() {
        let program = situation(&python, "forks", &[]);
        let each = program.outside("each.%p.pb.gz");
        let traced = program.traced_with(&["--python", "-f", "-o", each.to_str().unwrap()]);
        assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
        let noted = noted(&program);
        assert!(pids(&noted).len() >= 7, "{:?}", pids(&noted));
        Seen::in_profile(&traced.profile).assert_tells(&noted, &python);
        for pid in pids(&noted) {
            let own = noted.iter().filter(|line| line["pid"] == pid);
            Seen::in_profile(&program.outside(&format!("each.{pid}.pb.gz"))).assert_tells(own, &python);
        }
        assert_no_warning(&traced.report);
    }
}

/// The processes that have written.
fn pids(noted: &[Value]) -> Vec<i64> {
    let mut pids: Vec<i64> = noted.iter().map(|line| line["pid"].as_i64().unwrap()).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Those of all interpreters of a process, of which the outer ones know nothing of the inner ones. Before 3.11 what an
/// interpreter runs below another one can't be told, and nothing is.
#[test]
fn interpreters_have_their_own() {
    // what interpreters keep is another thing in the newest one
    let newest = pythons().into_iter().skip(1).max_by_key(|python| minor(python));
    for python in first_pythons().chain(newest) {
        let program = situation(&python, "interpreters", &[]);
        let traced = program.traced_with(&["--python"]);
        assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
        let noted = noted(&program);
        let (nested, plain): (Vec<&Value>, Vec<&Value>) = noted.iter().partition(|line| line["nested"] == 1);
        assert!(nested.len() > 45 && plain.len() > 90, "{} {}", nested.len(), plain.len());
        let seen = Seen::in_profile(&traced.profile);
        seen.assert_tells(plain, &python);
        if minor(&python) >= 11 {
            seen.assert_tells(nested, &python);
            assert_no_warning(&traced.report);
            continue;
        }
        for line in nested {
            let stacks = seen.of(line["size"].as_u64().unwrap());
            let [(1, stack)] = stacks else { panic!("{}: {stacks:?}: {line}", python.display()) };
            assert_eq!(seen.scripts(stack), (json!([]), true), "{}: {line}", python.display());
        }
    }
}

/// What was seen until then is told.
#[test]
fn a_program_that_dies_has_them() {
    for (how, status) in [("kill", 128 + 9), ("abrt", 128 + 6), ("segv", 128 + 11)] {
        let python = Path::new("/usr/bin/python3");
        let program = situation(python, "dies", &[how]);
        let traced = program.traced_with(&["--python"]);
        assert_eq!(traced.ended.code(), status, "{}", traced.ended.stderr);
        let noted = noted(&program);
        assert_eq!(noted.len(), 4);
        Seen::in_profile(&traced.profile).assert_tells(&noted, python);
    }
}

/// Functions that were called before heaptrace came are in stacks, as far as they run still; threads are in the middle
/// of anything when it comes, and when it goes.
#[test]
fn a_process_that_runs_already_has_them() {
    for python in first_pythons() {
        let program = situation(&python, "attached", &[]);
        let mut running = program.start();
        let pid: i32 = running.value("ready").parse().unwrap();
        for round in 0..3 {
            let before = noted(&program).len();
            let tracer = Program::new("/bin/true").stays_on_trap(STAYS);
            let attached = tracer.start_attached(&["--python"], pid);
            procfs::wait_until_answered(pid);
            running.send(&format!("{} {}", 2 * round, 1_000_000 + 100 * round));
            assert_eq!(running.line(), "ok");
            procfs::order(pid, "detach");
            let traced = tracer.collect(attached.wait().success());
            let noted = noted(&program);
            assert_eq!(noted.len(), before + 4);
            let seen = Seen::in_profile(&traced.profile);
            seen.assert_tells(&noted[before..], &python);
            // threads that always allocate blocks of this size in the same functions have allocated some there, and
            // none elsewhere
            let spinning = noted.iter().filter(|line| line["size"] == 200_002 || line["size"] == 300_002);
            for line in spinning.clone() {
                let stacks = seen.of(line["size"].as_u64().unwrap());
                assert!(!stacks.is_empty(), "{}: {line}", python.display());
                for (_, stack) in stacks {
                    assert_eq!(seen.scripts(stack), (line["frames"].clone(), false), "{}", python.display());
                }
            }
            assert_eq!(spinning.count(), 2);
            assert_no_warning(&traced.report);
        }
        running.feed(b"");
        assert_eq!(running.wait().code(), 0);
    }
}

/// An interpreter that says that it has no global lock keeps its frames, and the summary says why.
#[test]
fn a_free_threaded_interpreter_is_told() {
    let pythons = pythons();
    let python = pythons.iter().find(|python| minor(python) == 13);
    let Some(python) = python else { return eprintln!("not tested: there is no CPython 3.13") };
    let program = situation(python, "unlocked", &[]);
    let mut running = program.start();
    let pid: i32 = running.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&["--python", "--engine", "trap"], pid);
    procfs::wait_until_answered(pid);
    running.send("1 1000000");
    assert_eq!(running.line(), "ok");
    procfs::order(pid, "detach");
    let traced = tracer.collect(attached.wait().success());
    let why = "Python's functions are not shown (--python): it is a free-threaded build of CPython";
    assert!(traced.ended.stderr.contains(why), "{}", traced.ended.stderr);
    let seen = Seen::in_profile(&traced.profile);
    let noted = noted(&program);
    assert_eq!(noted.len(), 4);
    for line in &noted {
        let [(1, stack)] = seen.of(line["size"].as_u64().unwrap()) else { panic!("{line}") };
        assert_eq!(seen.scripts(stack), (json!([]), true), "{line}");
    }
    running.feed(b"");
    assert_eq!(running.wait().code(), 0);
}

/// Findings and their suppressions have Python's functions.
#[test]
fn a_check_tells_and_suppresses_by_them() {
    let python = Path::new("/usr/bin/python3");
    let program = situation(python, "leaks", &[]);
    let made = program.outside("made.supp");
    let options = ["--python", "--leak-kinds", "definite", "--gen-suppressions", made.to_str().unwrap()];
    let checked = program.checked(&options);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    let noted = noted(&program);
    assert_eq!(noted.len(), 2);
    for line in &noted {
        let (size, frames) = (line["size"].as_u64().unwrap(), &line["frames"]);
        let lost =
            |finding: &&Value| finding["direct"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0 && bytes % size == 0);
        let stacks: Vec<&Value> =
            checked.report.list("/findings").iter().filter(lost).map(|finding| &finding["stack"]).collect();
        // the interpreter calls from several places
        assert!(!stacks.is_empty(), "{size}: {}", checked.ended.stderr);
        for stack in stacks {
            assert_eq!(&scripts_of(stack), frames);
            assert!(stack.as_array().unwrap().iter().any(is_script));
        }
    }
    assert!(checked.ended.stderr.contains("loses"), "{}", checked.ended.stderr);
    // what was found before is no news
    let options = ["--python", "--leak-kinds", "definite", "--suppressions", made.to_str().unwrap()];
    let checked = situation(python, "leaks", &[]).checked(&options);
    assert_eq!(checked.ended.code(), 0, "{}", checked.ended.stderr);
}

/// A trace of threads and children has them, too.
#[test]
fn a_trace_of_threads_and_children_has_them() {
    let python = Path::new("/usr/bin/python3");
    for (name, options) in [("threads", &[][..]), ("forks", &["-f"][..])] {
        let program = situation(python, name, &[]);
        let [trace, each] = ["t.fxt.zst", "converted.%p.pb.gz"].map(|name| program.outside(name));
        let options = [&["--python", "--trace", trace.to_str().unwrap()], options].concat();
        let traced = program.traced_with(&options);
        assert_eq!(traced.ended.code(), 0, "{}", traced.ended.stderr);
        program
            .start_heaptrace(["convert".as_ref(), trace.as_os_str(), "-o".as_ref(), each.as_os_str()])
            .wait()
            .success();
        let noted = noted(&program);
        for pid in pids(&noted) {
            let profile = program.outside(&format!("converted.{pid}.pb.gz"));
            let own = noted.iter().filter(|line| line["pid"] == pid);
            Seen::in_profile(&profile).assert_tells(own, python);
        }
    }
}
