//! `.firefox.json`, read by the rules of the Firefox Profiler's types, against report.json and pprof of the same run.

use crate::support::checks::pprof;
use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use crate::support::python::of_report;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the reader makes of a file.
pub fn read(file: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/read_firefox.mjs");
    let output = Command::new("node").arg(script).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Bytes by function.
pub type Bytes = BTreeMap<String, u64>;

/// One of the profiler's sums, of a track.
pub fn summed(track: &Value, strategy: &str) -> Bytes {
    let sums = track[strategy].as_object().unwrap_or_else(|| panic!("no {strategy} in {track}"));
    sums.iter().map(|(name, bytes)| (name.clone(), bytes.as_u64().unwrap())).collect()
}

fn total(bytes: &Bytes) -> u64 {
    bytes.values().sum()
}

fn track<'a>(read: &'a Value, name: &str) -> &'a Value {
    let tracks = read["tracks"].as_array().unwrap();
    tracks.iter().find(|track| track["name"] == name).unwrap_or_else(|| panic!("no track {name} in {tracks:?}"))
}

fn traced(program: &Program) -> (Traced, PathBuf) {
    let path = program.outside("x.firefox.json");
    let traced = program.traced_with(&["-o", path.to_str().unwrap()]);
    (traced, path)
}

/// The sum of a column, as pprof says it.
fn pprof_total(profile: &Path, column: &str) -> u64 {
    let index = format!("-sample_index={column}");
    let top = pprof(&["-top", "-unit=B", "-nodefraction=0", &index], &[profile]);
    let words = top.lines().find_map(|line| line.split_once("% of ")).expect(&top).1;
    words.split_whitespace().next().unwrap().trim_end_matches('B').parse().unwrap()
}

#[test]
fn it_has_the_sums_of_report_and_pprof() {
    for fixture in ["peak", "sites", "threads", "churn"] {
        let (traced, path) = traced(&Program::fixture(fixture));
        let (report, read) = (&traced.report, read(&path));
        let expected = |figure: &str| -> Bytes {
            let all = of_report(report).into_iter();
            all.filter_map(|(name, figures)| Some((name, *figures.get(figure)?))).collect()
        };
        let main = &read["tracks"][0];
        assert_eq!(main["name"], fixture);
        assert_eq!(summed(main, "retained"), expected("live_bytes"), "{fixture}");
        assert_eq!(summed(main, "allocated"), expected("allocated_bytes"), "{fixture}");
        assert_eq!(summed(main, "upToPeak"), expected("peak_bytes"), "{fixture}");
        assert_eq!(summed(track(&read, "Live at the peak"), "retained"), expected("peak_bytes"), "{fixture}");
        for (strategy, column) in [
            ("retained", "inuse_space"),
            ("allocated", "alloc_space"),
            ("freedAt", "deallocated_space"),
            ("upToPeak", "peak_space"),
        ] {
            assert_eq!(total(&summed(main, strategy)), pprof_total(&traced.profile, column), "{fixture}: {column}");
        }
        let (allocated, retained) = (summed(main, "allocated"), summed(main, "retained"));
        let freed = allocated.iter().map(|(name, bytes)| (name.clone(), bytes - retained.get(name).unwrap_or(&0)));
        let freed: Bytes = freed.filter(|(_, bytes)| *bytes > 0).collect();
        assert_eq!(summed(main, "freed"), freed, "{fixture}");

        // the course: what is live, and how many allocations there were
        let live = read["counters"]["malloc"].as_array().unwrap();
        let time = |read: &Value| read[0].as_f64().unwrap();
        // live bytes are steps, and the track draws slopes: nothing changes over more than a microsecond
        for pair in live.windows(2) {
            assert!(time(&pair[1]) - time(&pair[0]) < 1e-3 || pair[0][1] == pair[1][1], "{pair:?}");
        }
        let mut rest = live.iter();
        for point in report.list("/timeline") {
            let is_point = |read: &&Value| {
                (time(read) - point["t_ns"].as_f64().unwrap() / 1e6).abs() < 1e-3 && read[1] == point["live_bytes"]
            };
            assert!(rest.any(|read| is_point(&read)), "{point} {live:?}");
        }
        assert_eq!(live.last().unwrap()[1], report.total("live_bytes"));
        assert_eq!(read["allocations"], report.total("allocations"));
        let peak = &read["markers"][0];
        assert_eq!(peak[0], "peak");
        assert_eq!(peak[1], report.total("peak_at_ns") as f64 / 1e6);
        assert_eq!(peak[2]["live"], report.total("peak_bytes"));

        let command = report.list("/command")[0].as_str().unwrap();
        assert!(read["arguments"].as_str().unwrap().starts_with(command), "{}", read["arguments"]);
        assert_eq!(main["pid"], report.number("/pid").to_string());
    }
}

/// What is freed is told where it is freed, as `columns_of_known_sites` has it of pprof.
#[test]
fn frees_have_their_own_stacks() {
    let (_traced, path) = traced(&Program::fixture("peak"));
    let read = read(&path);
    let main = &read["tracks"][0];
    let of = |strategy: &str, name: &str| summed(main, strategy).get(name).copied().unwrap_or(0);
    assert_eq!(["early", "high", "late", "temporary", "drop"].map(|name| of("freedAt", name)), [0, 0, 0, 0, 82_500]);
    assert_eq!(["early", "high", "late", "temporary"].map(|name| of("freed", name)), [30_000, 50_000, 0, 2500]);
}

#[test]
fn functions_have_files_lines_and_modules() {
    let (traced, path) = traced(&Program::fixture("sites"));
    let read = read(&path);
    let functions = read["functions"].as_array().unwrap();
    let leaf = functions.iter().find(|function| function["name"] == "leaf").unwrap_or_else(|| panic!("{functions:?}"));
    assert_eq!(leaf["file"], fixtures::source("sites").to_str().unwrap());
    assert_eq!(leaf["lines"], json!([fixtures::site_line("sites", "leaf")]));
    let module = traced.report.list("/modules").first().unwrap();
    assert_eq!(leaf["lib"], module["path"]);
    let libs = read["libs"].as_array().unwrap();
    assert!(libs.iter().any(|lib| lib["path"] == module["path"] && lib["codeId"] == module["build_id"]), "{libs:?}");
}

/// Threads have a track each: what they have allocated, by whom it was freed, and what they have freed, whosever it
/// was.
#[test]
fn each_thread_has_a_track() {
    let (_traced, path) = traced(&Program::fixture("named"));
    let read = read(&path);
    let of = |name: &str| {
        let sums = ["allocated", "freed", "retained", "freedAt"].map(|strategy| summed(track(&read, name), strategy));
        let bytes = |sums: &Bytes, function: &str| sums.get(function).copied().unwrap_or(0);
        let [allocated, freed, retained, freed_at] = sums;
        [bytes(&allocated, "take"), bytes(&freed, "take"), bytes(&retained, "take"), bytes(&freed_at, "drop")]
    };
    assert_eq!(of("left"), [5000, 3000, 2000, 1000]);
    assert_eq!(of("right"), [30, 0, 30, 0]);
    let main: Vec<&Value> =
        read["tracks"].as_array().unwrap().iter().filter(|track| track["name"] == "named").collect();
    assert_eq!(main.len(), 2, "the whole, and the thread of that name");
    assert_eq!([summed(main[0], "freedAt")["drop"], summed(main[1], "freedAt")["drop"]], [3000, 2000]);
    assert_eq!(of("named"), [5030, 3000, 2030, 3000], "the first track has all");
}

/// What was told by a mark comes from a trace, too, and the compressed file says the same.
#[test]
fn marks_are_markers() {
    let program = Program::fixture("steps");
    let trace = program.outside("t.fxt.zst");
    let mut running = program.start_traced(&["--trace", trace.to_str().unwrap()]);
    let pid = running.value("ready ");
    running.send("a 10 100");
    running.line();
    let done = Command::new(env!("CARGO_BIN_EXE_heaptrace")).args(["ctl", &pid, "mark", "one"]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    running.wait().success();
    let files = ["y.firefox.json", "y.firefox.json.gz"].map(|name| program.outside(name));
    let words = ["convert", "-q", trace.to_str().unwrap()].into_iter();
    let outputs = files.iter().flat_map(|file| ["-o", file.to_str().unwrap()]);
    program.start_heaptrace(words.chain(outputs)).wait().success();
    let [plain, packed] = files.each_ref().map(|file| read(file));
    assert_eq!(plain, packed);
    let markers = plain["markers"].as_array().unwrap();
    assert!(markers.iter().any(|marker| marker[0] == "one" && marker[2]["type"] == "Mark"), "{markers:?}");
    assert!(std::fs::metadata(&files[1]).unwrap().len() < std::fs::metadata(&files[0]).unwrap().len());
}
