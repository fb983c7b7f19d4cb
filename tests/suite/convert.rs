//! `heaptrace convert`: what it makes of a trace is what the run has made.

use super::advice::BLOCKS_ARE_READ;
use super::realprograms;
use crate::support::program::Program;
use crate::support::running::Ended;
use heaptrace::internal::trace::fxt;
use heaptrace::internal::trace::reader::{Item, Reader};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Runs heaptrace with words of which some are paths.
fn heaptrace(program: &Program, words: &[&str]) -> Ended {
    program.start_heaptrace(words).wait()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The trace of a run, whose report and profile lie beside it.
fn traced(program: &Program, options: &[&str]) -> PathBuf {
    let trace = program.outside("t.fxt.zst");
    let words: Vec<&str> = ["--trace", text(&trace)].into_iter().chain(options.iter().copied()).collect();
    program.traced_with(&words);
    trace
}

/// The files of a run and those of its trace are the same, byte for byte.
fn assert_converts(program: &Program, options: &[&str]) {
    let trace = traced(program, options);
    let (report, profile) = (program.outside("again.json"), program.outside("again.pb.gz"));
    heaptrace(program, &["convert", "-q", text(&trace), "-o", text(&report), "-o", text(&profile)]).success();
    let same = |a: &Path, b: &Path| fs::read(a).unwrap() == fs::read(b).unwrap();
    assert!(
        same(&program.report_path(), &report),
        "{} and {} differ",
        program.report_path().display(),
        report.display()
    );
    assert!(same(&program.profile_path(), &profile));
}

/// Each block of a sample has the weight of the interval that it was picked with, in a trace, too.
#[test]
fn an_interval_that_changes_is_in_the_trace() {
    let program = Program::fixture("churning").args(["1500000"]);
    assert_converts(&program, &["--engine", "jump", "--max-overhead", "0.5%"]);
    let text =
        heaptrace(&program, &["convert", "-q", text(&program.outside("t.fxt.zst")), "-o", "-", "--format", "txt"]);
    assert!(text.success().text().contains("one byte in 4.00 KiB to "));
}

fn report(program: &Program, trace: &Path, options: &[&str]) -> Value {
    let words: Vec<&str> = ["convert", "-q", text(trace), "-o", "-", "--format", "json"]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    let ended = heaptrace(program, &words).success();
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[test]
fn fixtures_convert_to_the_profiles_of_their_runs() {
    for name in ["sites", "peak", "threads", "bad_frees", "exec_chain", "recursion"] {
        assert_converts(&Program::fixture(name), &[]);
    }
}

/// What was read of blocks is in the trace, too.
#[test]
fn what_was_never_written_is_in_the_trace() {
    assert_converts(&Program::fixture("unwritten").stays_on_trap(BLOCKS_ARE_READ), &["--perturb"]);
}

#[test]
fn real_programs_convert_to_the_profiles_of_their_runs() {
    for program in [realprograms::jq(), realprograms::sqlite3(), realprograms::ls()] {
        assert_converts(&program, &[]);
    }
    assert_converts(&realprograms::git().args(["log", "--stat", "--format=%s"]), &[]);
    // The compiler, what it runs, and the assembler.
    let gcc = Program::new("gcc").args(["-c", "input.c"]);
    fs::write(gcc.folder().join("input.c"), "int main(void) { return 0; }\n").unwrap();
    assert_converts(&gcc, &["-f"]);
}

#[test]
fn trees_and_options_convert_to_the_profiles_of_their_runs() {
    assert_converts(&Program::fixture("fork_child"), &["-f"]);
    assert_converts(&Program::fixture("peak"), &["--no-free-stacks"]);
    assert_converts(&Program::fixture("peak"), &["--sample-interval", "1000"]);
}

/// When the first event of a trace happened.
fn first_event_ns(trace: &Path) -> u64 {
    let mut reader = Reader::new(fs::File::open(trace).unwrap(), false);
    loop {
        if let Item::Event(first) = reader.next_item().unwrap().unwrap() {
            return first.event.time_ns;
        }
    }
}

/// What is live at the end was allocated in windows that join, and the last moment's heap is that of the end.
#[test]
fn parts_of_a_trace_add_up() {
    let program = Program::fixture("peak");
    let trace = program.outside("t.fxt");
    program.traced_with(&["--trace", text(&trace)]);
    let whole = report(&program, &trace, &[]);
    let total = |report: &Value, name: &str| report["totals"][name].as_u64().unwrap();
    let ledger = program.ledger();
    // On a busy machine the program may begin late: before that, there is no process to tell of.
    let (begin, end) = (first_event_ns(&trace), whole["duration_ns"].as_u64().unwrap());
    for tenth in 1..10 {
        // No event has an odd time: the clock's ticks are microseconds.
        let moment = format!("{}ns", (begin + (end - begin) * tenth / 10) | 1);
        let first = report(&program, &trace, &["--to", &moment]);
        let second = report(&program, &trace, &["--from", &moment]);
        for figure in ["allocations", "bytes_allocated", "frees", "bytes_freed"] {
            let sum = total(&first, figure) + total(&second, figure);
            assert_eq!((sum, sum), (total(&whole, figure), ledger.total(figure)), "{figure} at {moment}");
        }
        let then = report(&program, &trace, &["--at", &moment]);
        assert_eq!(total(&then, "live_bytes"), total(&first, "live_bytes"));
        assert!(total(&second, "live_bytes") <= total(&whole, "live_bytes"));
    }
    let late = heaptrace(&program, &["convert", "-q", text(&trace), "--at", "1h", "-o", "-", "--format", "txt"]);
    assert_eq!(late.code(), 125);
    assert!(late.stderr.contains("no process lived then: the trace ends after"), "{}", late.stderr);
}

/// What was traced without names gets them by `convert`.
#[test]
fn names_are_found_afterwards() {
    let program = Program::fixture("sites");
    let trace = traced(&program, &["--no-symbolize"]);
    let functions = |report: &Value| report["frames"].to_string();
    assert!(functions(&report(&program, &trace, &[])).contains("\"leaf\""));
    assert!(!functions(&report(&program, &trace, &["--no-symbolize"])).contains("\"leaf\""));
}

/// The profile of a check is of the moment of its scan; parts of the trace are of all that has happened. What the trace
/// comes out of may be a pipe: it is read once.
#[test]
fn what_follows_a_leak_scan_is_in_the_parts() {
    let program = Program::fixture("leaks/checked_now");
    let trace = program.outside("t.fxt");
    let checked = program.checked(&["--trace", text(&trace)]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    let totals = |report: &Value| report["totals"].clone();
    let whole = report(&program, &trace, &[]);
    assert_eq!(totals(&whole), checked.report.0["totals"]);
    let all = report(&program, &trace, &["--from", "1us"]);
    let lost_later = |figure: &str, more: u64| {
        assert_eq!(
            all["totals"][figure].as_u64().unwrap(),
            whole["totals"][figure].as_u64().unwrap() + more,
            "{figure}"
        );
    };
    lost_later("bytes_allocated", 200);
    lost_later("live_bytes", 200);

    for from in ["-", "/dev/stdin", "pipe"] {
        let script = match from {
            "pipe" => "mkfifo pipe; cat \"$1\" > pipe & exec \"$0\" convert -q pipe -o - --format json".to_owned(),
            _ => format!("cat \"$1\" | \"$0\" convert -q {from} -o - --format json"),
        };
        let shell = Program::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_heaptrace"), text(&trace)]);
        let piped = shell.plain().success();
        assert_eq!(serde_json::from_slice::<Value>(&piped.stdout).unwrap(), whole, "{from}");
    }
}

/// The end of a trace of sampled blocks, whose beginning was overwritten, still says what each block stands for.
#[test]
fn a_circular_trace_of_a_sampled_run_keeps_its_interval() {
    let program = Program::fixture("pairs").args(["20000"]);
    let trace = program.outside("t.fxt");
    let words =
        ["--sample-interval", "100", "--trace-mode", "circular", "--trace-size", "256KiB", "--trace", text(&trace)];
    program.traced_with(&words);
    let end = report(&program, &trace, &[]);
    assert_eq!(end["sampling"]["interval"], 100);
    assert!(end["warnings"].to_string().contains("were overwritten"), "{end}");
    // Frees of blocks that were not sampled are not told: each pair that is there stands for more than itself.
    let total = |figure: &str| end["totals"][figure].as_u64().unwrap();
    let (bytes, blocks) = (total("bytes_allocated"), total("allocations"));
    assert!((63..=65).contains(&(bytes / blocks)) && (1000..20_000).contains(&blocks), "{bytes} in {blocks}");
    let told = end["cost"]["events"].as_u64().unwrap();
    assert!(told > blocks * 2, "{told} calls in all");
}

/// A file that was cut off is read to there; other files are refused in a sentence.
#[test]
fn torn_and_foreign_files() {
    let program = Program::fixture("peak");
    let trace = program.outside("t.fxt");
    program.traced_with(&["--trace", text(&trace)]);
    let bytes = fs::read(&trace).unwrap();
    let torn = program.outside("torn.fxt");
    fs::write(&torn, &bytes[..bytes.len() / 2 / 8 * 8 + 3]).unwrap();
    let ended = heaptrace(&program, &["convert", "-q", text(&torn), "-o", "-", "--format", "json"]).success();
    assert!(ended.stderr.contains("is cut off at byte"), "{}", ended.stderr);
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["complete"], false);
    let foreign = heaptrace(&program, &["convert", "-q", text(program.exe()), "-o", "-", "--format", "json"]);
    assert_eq!(foreign.code(), 125);
    assert!(foreign.stderr.contains("this is not a trace"), "{}", foreign.stderr);
}

/// A trace's records, made up.
struct MadeUp(Vec<u8>);

impl MadeUp {
    fn begin() -> Self {
        let session = r#"{"format":1,"heaptrace":"0.1.0","session":"0123456789abcdef","started_at_unix_ns":1,
            "trace_mode":"streaming","segment":0,"attached":false,"engine":"trap"}"#;
        Self(fxt::MAGIC.to_le_bytes().to_vec()).blob("heaptrace.session", session.as_bytes())
    }

    fn blob(mut self, name: &str, payload: &[u8]) -> Self {
        let words = 1 + fxt::words_of(name.len()) + fxt::words_of(payload.len());
        let name_bytes = name.len() as u64 | 0x8000;
        let header = 5 | (words as u64) << 4 | name_bytes << 16 | (payload.len() as u64) << 32 | 1 << 48;
        self.0.extend(header.to_le_bytes());
        for bytes in [name.as_bytes(), payload] {
            self.0.extend(bytes);
            self.0.resize(self.0.len().next_multiple_of(8), 0);
        }
        self
    }

    fn process(self, koid: u64) -> Self {
        let process = format!(
            r#"{{"koid":{koid},"pid":1,"parent":null,"image":{koid},"next_seq":0,"free_stacks":true,"program":"bomb","command":[],"cwd":"/"}}"#
        );
        self.blob("heaptrace.process", process.as_bytes())
    }
}

/// Writes a packed trace: this, and so many times what follows.
fn write_packed(path: &Path, begin: &MadeUp, times: u64, mut next: impl FnMut(u64) -> Vec<u8>) {
    let mut packer = zstd::stream::write::Encoder::new(fs::File::create(path).unwrap(), 1).unwrap();
    packer.write_all(&begin.0).unwrap();
    for n in 0..times {
        packer.write_all(&next(n)).unwrap();
    }
    packer.finish().unwrap();
}

/// Small files that are large when they are unpacked end in a sentence, in little memory and soon.
#[test]
fn bombs_are_defused() {
    let program = Program::new("true");
    let bomb = program.outside("bomb.fxt.zst");
    let convert = || {
        assert!(fs::metadata(&bomb).unwrap().len() < 8 << 20);
        let mut command = std::process::Command::new("prlimit");
        command.args(["--as=700000000", env!("CARGO_BIN_EXE_heaptrace"), "convert", "-q", text(&bomb)]);
        let began = Instant::now();
        let output = command.args(["-o", "-", "--format", "json"]).output().unwrap();
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let zeros = vec![0; 1 << 20];
    write_packed(&bomb, &MadeUp::begin().process(1), 2048, |_| zeros.clone());
    let (code, stderr) = convert();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("a record of no length") && stderr.contains("more than 256 MiB"), "{stderr}");

    let empty = r#""","#.repeat(10_000);
    let part = MadeUp(Vec::new()).blob("heaptrace.names+", empty.as_bytes()).0;
    let begin = MadeUp::begin().process(1).blob("heaptrace.names+", br#"{"modules":[],"warnings":["#);
    write_packed(&bomb, &begin, 50_000, |_| part.clone());
    let (code, stderr) = convert();
    assert_eq!(code, Some(0), "what comes before it is read: {stderr}");
    assert!(stderr.contains("heaptrace.names can't be read: it is longer than"), "{stderr}");

    write_packed(&bomb, &MadeUp::begin(), 150_000, |n| MadeUp(Vec::new()).process(n + 1).0);
    let (code, stderr) = convert();
    assert_eq!(code, Some(125), "{stderr}");
    assert!(stderr.contains("there is not enough memory for what is live in this trace"), "{stderr}");
}

/// What is damaged in the middle is read up to there, and what is lost is told.
#[test]
fn a_damaged_trace_is_read_up_to_the_damage() {
    let program = Program::fixture("peak");
    let trace = program.outside("t.fxt");
    program.traced_with(&["--trace", text(&trace)]);
    let bytes = fs::read(&trace).unwrap();
    let mut starts = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let header = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        starts.extend((header & 15 == 4).then_some(at));
        at += 8 * fxt::record_words(header);
    }
    let middle = starts[starts.len() / 2];
    let mut damaged = bytes.clone();
    damaged[middle..middle + 8].fill(0);
    let broken = program.outside("broken.fxt");
    fs::write(&broken, &damaged).unwrap();
    let ended = heaptrace(&program, &["convert", "-q", text(&broken), "-o", "-", "--format", "json"]).success();
    let told = format!(
        "at byte {middle}, a record of no length. heaptrace reads nothing after that ({} bytes);",
        bytes.len() - middle
    );
    // numbers have separators there
    let plain = |text: &str| text.replace(',', "");
    assert!(plain(&ended.stderr).contains(&plain(&told)), "{told}: {}", ended.stderr);
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["complete"], false);
    assert!(report["warnings"].to_string().contains("the trace is damaged"), "{}", report["warnings"]);
    // The same as of a trace that was cut off there.
    let torn = program.outside("torn.fxt");
    fs::write(&torn, &bytes[..middle + 4]).unwrap();
    let torn = self::report(&program, &torn, &[]);
    assert_eq!(report["totals"], torn["totals"]);
    assert!(report["totals"]["allocations"].as_u64().unwrap() > 10, "{report}");

    // Packed, where what follows can't be unpacked.
    let packed = program.outside("broken.fxt.zst");
    let mut bytes = zstd::encode_all(&bytes[..], 1).unwrap();
    let behind = bytes.len();
    bytes.extend([0xff; 64]);
    fs::write(&packed, &bytes).unwrap();
    let ended = heaptrace(&program, &["convert", "-q", text(&packed), "-o", "-", "--format", "json"]).success();
    assert!(ended.stderr.contains("heaptrace reads nothing after that"), "{behind}: {}", ended.stderr);
}
