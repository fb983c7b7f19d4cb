//! Event traces, as heaptrace writes them: read by tests/decode_fxt.py, which knows the format's description only.

use crate::support::procfs;
use crate::support::program::{Program, engine};
use crate::support::python::python;
use crate::support::running::Ended;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// What the independent decoder says of a trace that keeps to all rules.
fn decoded(trace: &Path, options: &[&str]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decode_fxt.py");
    let output = python().arg(script).args(options).arg(trace).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn count(read: &Value, event: &str) -> u64 {
    read["events"][event].as_u64().unwrap_or(0)
}

fn run(program: &Program, name: &str, options: &[&str]) -> (Ended, std::path::PathBuf) {
    let trace = program.outside(name);
    let mut words = vec!["--trace", trace.to_str().unwrap()];
    words.extend_from_slice(options);
    (program.start_traced(&words).wait(), trace)
}

fn no_parts(trace: &Path) {
    let parts = fs::read_dir(trace.parent().unwrap()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains(".part")
    });
    assert_eq!(parts.count(), 0);
}

/// Every call of a program stands in its trace, compressed or not, and the session's id ties it to the profile.
#[test]
fn a_trace_holds_every_call() {
    for name in ["all.fxt", "all.fxt.zst"] {
        let program = Program::fixture("basic");
        let (ended, trace) = run(&program, name, &[]);
        assert_eq!(ended.code(), 7, "the program's own status: {}", ended.stderr);
        let traced = program.collect(ended);
        let read = decoded(&trace, &[]);
        let total = |figure| traced.report.total(figure);
        // What the decoder's own heap has at the end; reallocs that fail or free are no allocations.
        let process = read["processes"].as_object().unwrap().values().next().unwrap();
        for figure in ["live_blocks", "live_bytes"] {
            assert_eq!(process[figure], total(figure), "{read}");
        }
        let reallocated = total("reallocations");
        assert_eq!(count(&read, "alloc") + reallocated, total("allocations"), "{read}");
        assert_eq!(count(&read, "failed"), 103, "{read}");
        assert_eq!((&read["ended"], &read["names"], &read["wrong_counters"]), (&1.into(), &true.into(), &0.into()));
        assert_eq!(count(&read, "realloc_begin"), count(&read, "realloc"));
        no_parts(&trace);
        let told = format!("trace: {} (", trace.display());
        assert!(traced.ended.stderr.contains(&told), "{}", traced.ended.stderr);
    }
}

/// A oneshot trace that is full says so at once, at the end and in the profile, which is whole.
#[test]
fn a_oneshot_trace_stops_at_its_size_and_says_so() {
    let program = Program::fixture("pairs").args(["20000"]);
    let (ended, trace) = run(&program, "first.fxt", &["--trace-mode", "oneshot", "--trace-size", "256KiB"]);
    let traced = program.collect(ended.success());
    let at_once = traced.ended.stderr.find("is full (--trace-size): it lacks what happens from now on").unwrap();
    let summary = traced.ended.stderr.find("exit status 0").unwrap();
    assert!(at_once < summary, "{}", traced.ended.stderr);
    let read = decoded(&trace, &[]);
    let events = count(&read, "alloc") + count(&read, "free");
    // the rest are counters of the live bytes, which come by time: a busy machine takes longer for as many events
    assert!((2000..6000).contains(&events), "{read}");
    assert!(traced.report.total("allocations") >= 20_000);
    let warnings = traced.report.0["warnings"].to_string();
    assert!(warnings.contains("was full after"), "{warnings}");
    assert!(fs::metadata(&trace).unwrap().len() < 400 << 10);
}

/// A circular trace keeps what came last, in no more bytes than it may have; each of its segments has all that it
/// needs.
#[test]
fn a_circular_trace_keeps_the_newest() {
    for (name, options) in [("last.fxt", &[][..]), ("last.fxt.zst", &["--no-free-stacks"][..])] {
        // Records that the jump engine gets at once have one time, and are compressed to a fraction of the others.
        let pairs = if engine() == "jump" { "400000" } else { "60000" };
        let program = Program::fixture("pairs").args([pairs]);
        let mut words = vec!["--trace-mode", "circular", "--trace-size", "256KiB"];
        words.extend_from_slice(options);
        let (ended, trace) = run(&program, name, &words);
        let traced = program.collect(ended.success());
        let size = fs::metadata(&trace).unwrap().len();
        assert!((100 << 10..400 << 10).contains(&size), "{size}");
        let read = decoded(&trace, &[]);
        let (kept, all) = (count(&read, "alloc"), traced.report.total("allocations"));
        assert!(kept > 500 && kept < all * 9 / 10, "{kept} of {all}: {read}");
        no_parts(&trace);
    }
}

/// Names and ends, which come last, push no event out of a circular trace, however many they are.
#[test]
fn names_do_not_push_events_out_of_a_circular_trace() {
    let program = Program::new(env!("CARGO_BIN_EXE_heaptrace")).args(["run", "--help"]);
    let (ended, trace) = run(&program, "names.fxt", &["--trace-mode", "circular", "--trace-size", "256KiB"]);
    let traced = program.collect(ended.success());
    let read = decoded(&trace, &[]);
    let events = count(&read, "alloc") + count(&read, "free");
    assert!(events > 500 && read["segments"].as_u64().unwrap() > 5, "{read}");
    assert!(fs::metadata(&trace).unwrap().len() > 400 << 10, "the names alone are more than the size");
    assert_eq!((&read["names"], &read["ended"]), (&true.into(), &1.into()), "{read}");
    // What was overwritten is not told as kept.
    let all: u64 = read["events"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    let told =
        if all < 1000 { format!("({all} events, ") } else { format!("({},{:03} events, ", all / 1000, all % 1000) };
    assert!(traced.ended.stderr.contains(&told), "{told}: {}", traced.ended.stderr);
    assert!(traced.ended.stderr.contains("before them were overwritten"), "{}", traced.ended.stderr);
}

/// All processes of a tree are in one trace.
#[test]
fn a_tree_of_processes_is_in_one_trace() {
    let program = Program::fixture("fork_many").args(["4"]);
    let (ended, trace) = run(&program, "tree.fxt", &["-f"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let read = decoded(&trace, &[]);
    assert!(count(&read, "forked") > 1, "{read}");
}

/// What goes wrong with the trace ends it, at once and in words, and nothing else: the profile is whole, the program
/// unharmed.
#[test]
fn a_trace_that_cant_be_written_costs_only_itself() {
    // A full disk.
    let program = Program::fixture("pairs").args(["20000"]);
    let traced = program.start_traced(&["--trace", "/dev/full"]).wait();
    assert_eq!(traced.code(), 125, "{}", traced.stderr);
    let told = "the trace ends, the program goes on: /dev/full: No space left on device";
    assert_eq!(traced.stderr.matches(told).count(), 1, "{}", traced.stderr);
    assert!(traced.stderr.contains("heaptrace: /dev/full: No space left on device"), "{}", traced.stderr);
    let traced = program.collect(traced);
    assert!(traced.report.total("allocations") >= 20_000);
    assert!(traced.report.0["warnings"].to_string().contains("the trace /dev/full ended early"));

    // A reader that goes away.
    let pipe = program.outside("pipe.fxt");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    let running = program.start_traced(&["--trace", pipe.to_str().unwrap()]);
    let mut reader = File::open(&pipe).unwrap();
    reader.read_exact(&mut [0; 4096]).unwrap();
    drop(reader);
    let ended = running.wait();
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("pipe.fxt: Broken pipe"), "{}", ended.stderr);
    assert!(program.collect(ended).report.total("allocations") >= 20_000);
}

/// A pipe gets the whole trace, and its reader may be slow.
#[test]
fn a_pipe_s_reader_gets_everything() {
    let program = Program::fixture("pairs").args(["5000"]);
    let pipe = program.outside("pipe.fxt");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    let running = program.start_traced(&["--trace", pipe.to_str().unwrap()]);
    let mut bytes = Vec::new();
    File::open(&pipe).unwrap().read_to_end(&mut bytes).unwrap();
    let traced = program.collect(running.wait().success());
    let copy = program.outside("copy.fxt");
    fs::write(&copy, bytes).unwrap();
    assert_eq!(count(&decoded(&copy, &[]), "alloc"), traced.report.total("allocations"));
}

/// A reader that is there but takes nothing: Ctrl-C gives the trace up, and the profile is whole.
#[test]
fn a_reader_that_does_not_read_is_given_up_when_told() {
    let program = Program::fixture("pairs").args(["3000"]);
    let pipe = program.outside("pipe.fxt");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    let reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let running = program.start_traced(&["--trace", pipe.to_str().unwrap()]);
    procfs::wait_until("the user is told", || {
        running.stderr_so_far().contains("waiting for the reader of") && running.stderr_so_far().contains("Ctrl-C")
    });
    running.signal(Signal::SIGINT);
    let ended = running.wait();
    drop(reader);
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("before tracing could end"), "{}", ended.stderr);
    assert!(program.collect(ended).report.total("allocations") >= 3000);
}

/// A signal to heaptrace reaches the thread that takes it, and no other: one that does not block it would be ended, and
/// heaptrace with it. A stop by the terminal (^Z) reaches nobody while a process is attached to.
#[test]
fn signals_to_heaptrace_reach_one_thread_only() {
    let blocked_everywhere = |pid: i32, signals: &[Signal]| {
        // The main thread waits for them.
        for thread in procfs::threads(pid).into_iter().filter(|&thread| thread != pid) {
            // A thread of the list may have ended since: nothing can end it any more.
            let Some(blocked) = procfs::status_field(thread, "SigBlk") else { continue };
            let blocked = u64::from_str_radix(&blocked, 16).unwrap();
            for &signal in signals {
                assert!(blocked & 1 << (signal as i32 - 1) != 0, "{signal} can end thread {thread} of {pid}");
            }
        }
    };
    let program = Program::fixture("threads").args(["2", "10", "wait"]);
    let (trace, series) = (program.outside("trace.fxt"), program.outside("part-%i.json"));
    let options = ["--trace", trace.to_str().unwrap(), "--profile-every", "1h", "-o", series.to_str().unwrap()];
    let mut running = program.start_traced(&options);
    running.value("ready ");
    blocked_everywhere(running.pid(), &[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    running.send("go");
    running.wait().success();

    let mut alone = program.start();
    let pid: i32 = alone.value("ready ").parse().unwrap();
    let attached = program.start_attached(&["--trace", trace.to_str().unwrap()], pid);
    procfs::wait_until_answered(pid);
    blocked_everywhere(attached.pid(), &[Signal::SIGINT, Signal::SIGTERM, Signal::SIGTSTP]);
    alone.send("go");
    alone.wait().success();
    attached.wait().success();
}

/// The same where nobody is there to press Ctrl-C: the time that `check` gives a program is also that of the trace's
/// reader.
#[test]
fn a_reader_that_does_not_read_is_given_up_when_the_time_is_up() {
    let program = Program::fixture("pairs").args(["100000000"]);
    let pipe = program.outside("pipe.fxt");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    let reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let running = program.start_checked(&["--timeout", "1s", "--trace", pipe.to_str().unwrap()]);
    let ended = running.wait_at_most(Duration::from_secs(30));
    drop(reader);
    assert_eq!(ended.code(), 124, "{}", ended.stderr);
    assert!(ended.stderr.contains("before tracing could end"), "{}", ended.stderr);
}

/// A link in the place of the trace is followed, and what lies behind it is replaced as a whole.
#[test]
fn a_trace_behind_a_link_replaces_what_the_link_leads_to() {
    let program = Program::fixture("pairs").args(["100"]);
    let folder = program.outside("elsewhere");
    fs::create_dir(&folder).unwrap();
    let link = program.outside("link.fxt");
    std::os::unix::fs::symlink(folder.join("real.fxt"), &link).unwrap();
    let (ended, trace) = run(&program, "link.fxt", &[]);
    program.collect(ended.success());
    assert!(fs::symlink_metadata(&trace).unwrap().is_symlink());
    assert!(count(&decoded(&folder.join("real.fxt"), &[]), "alloc") >= 100);
    no_parts(&folder.join("real.fxt"));
    no_parts(&link);
}

/// A limit of file sizes is an error like any other.
#[test]
fn a_limit_of_file_sizes_ends_the_trace_only() {
    // It is heaptrace that gives the memory of the jump engine its size.
    let program = Program::fixture("pairs").args(["20000"]).stays_on_trap("File too large");
    let trace = program.outside("large.fxt");
    let mut command = std::process::Command::new("prlimit");
    command.args(["--fsize=300000", env!("CARGO_BIN_EXE_heaptrace"), "run", "-o"]).arg(program.report_path());
    command.arg("-o").arg(program.profile_path()).arg("--trace").arg(&trace).arg("--");
    let ended = program.run_under(command);
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("large.fxt: File too large"), "{}", ended.stderr);
    let part = program.outside("large.fxt.part");
    assert!(!trace.exists() && count(&decoded(&part, &["--torn"]), "alloc") > 1000);
    assert!(program.collect(ended).report.total("allocations") >= 20_000);
}

/// What can't be is refused before the program starts.
#[test]
fn impossible_traces_are_refused_before_the_program_starts() {
    let program = Program::fixture("basic");
    let refused = |options: &[&str], text: &str| {
        let ended = program.start_traced(options).wait();
        assert_eq!(ended.code(), 125, "{}", ended.stderr);
        assert!(ended.stderr.contains(text), "{}", ended.stderr);
        assert!(!program.report_path().exists());
    };
    refused(&["--trace", "/no/such/folder/x.fxt"], "/no/such/folder");
    refused(&["--trace", "x.json"], "name a trace FILE.fxt or, compressed, FILE.fxt.zst");
    refused(&["--trace", "x.fxt", "--trace-size", "1M"], "add --trace-mode oneshot or circular");
    refused(&["--trace", "x.fxt", "--trace-mode", "circular", "--trace-size", "1k"], "the minimum is 256 KiB");
    refused(&["--trace", "/dev/null", "--trace-mode", "circular"], "not a pipe or device");
    refused(&["--trace-mode", "oneshot"], "--trace <FILE>");

    let missing = Program::new("/no/such/program");
    let trace = missing.outside("none.fxt");
    let ended = missing.start_traced(&["--trace", trace.to_str().unwrap()]).wait();
    assert_eq!(ended.code(), 127, "{}", ended.stderr);
    assert!(!trace.exists());
    no_parts(&trace);
}

/// What a program has done before it sleeps is in the file soon, though nothing follows it.
#[test]
fn the_last_events_before_a_sleep_reach_the_file() {
    for name in ["sleep.fxt", "sleep.fxt.zst"] {
        let program = Program::fixture("pairs").args(["100", "16", "7"]);
        let trace = program.outside(name);
        let part = program.outside(&format!("{name}.part"));
        let mut running = program.start_traced(&["--trace", trace.to_str().unwrap()]);
        assert_eq!(running.value("holding "), "7");
        procfs::wait_until("the events are in the file", || fs::metadata(&part).is_ok_and(|part| part.len() > 500));
        // Whatever is in the file now was told before the program slept.
        running.signal(Signal::SIGKILL);
        running.assert_killed();
        let read = decoded(&part, &["--torn"]);
        assert!(count(&read, "alloc") >= 7, "{read}");
        assert_eq!(read["torn_at"], Value::Null, "all that was told is whole: {read}");
    }
}

/// After a kill of heaptrace what was written is there, and can be read up to the tear.
#[test]
fn a_killed_heaptrace_leaves_what_it_has_written() {
    for name in ["torn.fxt", "torn.fxt.zst"] {
        let program = Program::fixture("pairs").args(["2000000"]);
        let trace = program.outside(name);
        let part = program.outside(&format!("{name}.part"));
        let running = program.start_traced(&["--trace", trace.to_str().unwrap()]);
        procfs::wait_until("there is a part of the trace", || {
            fs::metadata(&part).is_ok_and(|part| part.len() > 200_000)
        });
        running.signal(Signal::SIGKILL);
        running.assert_killed();
        assert!(!trace.exists());
        let read = decoded(&part, &["--torn"]);
        assert!(count(&read, "alloc") > 1000, "{read}");
    }
}

/// The tracer's memory is that of live blocks and stacks, not of events: ten times as many of them leave its peak where
/// it was.
#[test]
fn the_tracer_s_memory_does_not_grow_with_events() {
    let peak_kib = |pairs: &str| {
        let program = Program::fixture("pairs").args([pairs]);
        let (trace, report) = (program.outside("long.fxt.zst"), program.report_path());
        // The tests' own record of each event is one thing that does grow.
        let mut heaptrace = std::process::Command::new("env");
        heaptrace.args([
            "-u",
            "HEAPTRACE_TEST_REPLAY",
            env!("CARGO_BIN_EXE_heaptrace"),
            "run",
            "-q",
            "--pin",
            "--no-symbolize",
        ]);
        heaptrace.arg("--trace").arg(&trace).arg("-o").arg(&report).arg("--");
        let running = program.start_under(heaptrace);
        let mut peak = 0;
        while running.is_alive() {
            let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            peak = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(peak);
            std::thread::sleep(Duration::from_millis(5));
        }
        running.wait().success();
        peak
    };
    // Compression's own buffers fill up meanwhile, by about 2 MiB; 24 bytes for each event would be 3.8.
    let (few, many): (u64, u64) = (peak_kib("20000"), peak_kib("100000"));
    assert!(few > 1000 && many < few + 4096, "{few} KiB, then {many} KiB");
}
