//! The formats of other tools, read by those tools or with their published definitions, against report.json of the same
//! run.

use crate::suite::attach::{assert_victim_well, start_victim};
use crate::support::checks::pprof;
use crate::support::procfs;
use crate::support::program::{Program, Traced};
use crate::support::python::{ByFunction, by_function, by_outer_function, of_report, only, read_format, sum};
use crate::support::report::Report;
use heaptrace::{Format, Source};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The figures of blocks and bytes.
const BLOCKS: [&str; 6] =
    ["allocated_objects", "allocated_bytes", "live_objects", "live_bytes", "peak_objects", "peak_bytes"];

/// A run whose figures are all different, in a format besides the report.
fn traced(fixture: &str, suffix: &str) -> (Traced, PathBuf) {
    let program = Program::fixture(fixture);
    let path = program.outside(&format!("other.{suffix}"));
    let traced = program.traced_with(&["-o", path.to_str().unwrap()]);
    (traced, path)
}

#[test]
fn pftrace_has_the_figures_of_the_report() {
    for fixture in ["peak", "sites", "threads"] {
        let (traced, path) = traced(fixture, "pftrace");
        let report = &traced.report;
        let read = read_format("pftrace", &path);
        let functions = by_function(&read);
        assert_eq!(functions, only(of_report(report), &BLOCKS), "{fixture}");
        assert_eq!(sum(&functions, "allocated_objects"), report.total("allocations"));
        assert_eq!(sum(&functions, "allocated_bytes"), report.total("bytes_allocated"));
        assert_eq!(sum(&functions, "live_bytes"), report.total("live_bytes"));
        assert_eq!(sum(&functions, "peak_bytes"), report.total("peak_bytes"));
        assert_eq!(sum(&functions, "peak_objects"), report.total("peak_blocks"));

        let (end, peak) = (&read["heaps"]["libc.malloc"], &read["heaps"]["libc.malloc at its peak"]);
        assert_eq!([&end["pid"], &peak["pid"]], [&report.0["pid"]; 2]);
        assert!(end["from_startup"] == true && end["interval"] == 1, "{end}");
        let times = [peak, end].map(|heap| heap["timestamp"].as_u64().unwrap());
        assert_eq!(times[1] - times[0], report.number("/duration_ns") - report.total("peak_at_ns"));

        let live = read["counters"]["live bytes"].as_array().unwrap();
        assert_eq!(live.len(), report.list("/timeline").len() + 1);
        let start = times[1] - report.number("/duration_ns");
        for (point, read) in report.list("/timeline").iter().zip(live) {
            assert_eq!(read[0].as_u64().unwrap() - start, point["t_ns"].as_u64().unwrap());
            assert_eq!(read[1], point["live_bytes"]);
        }
        assert_eq!(live.last().unwrap()[1], report.total("live_bytes"));
        assert_eq!(read["process"]["name"], fixture);

        let modules = report.list("/modules");
        let program = modules.first().unwrap();
        assert_eq!(read["mappings"][program["path"].as_str().unwrap()], program["build_id"], "{}", read["mappings"]);
        assert!(read["sources"]["main"].as_str().unwrap().ends_with(&format!("{fixture}.c")), "{}", read["sources"]);
    }
}

/// What `heaptrack_print` says at the end: calls, temporary ones, peak, lost bytes, as it rounds them.
fn heaptrack_totals(path: &Path) -> [String; 4] {
    let text = heaptrack_print(path, &[]);
    let starts = [
        "calls to allocation functions:",
        "temporary memory allocations:",
        "peak heap memory consumption:",
        "total memory leaked:",
    ];
    starts.map(|start| {
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        let line = line.unwrap_or_else(|| panic!("no line {start:?} in\n{text}"));
        line.split_whitespace().next().unwrap().to_owned()
    })
}

fn heaptrack_print(path: &Path, options: &[&str]) -> String {
    let mut command = Command::new("heaptrack_print");
    command.args(["--disable-builtin-suppressions", "-t", "0", "-f"]).arg(path).args(options);
    let output = command.output().expect("install the Debian package heaptrack");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && errors.is_empty(), "{errors}\n{text}");
    text.into_owned()
}

/// Bytes as heaptrack_print writes them.
fn heaptrack_bytes(bytes: u64) -> String {
    let units = ["B", "K", "M", "G"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes}B") } else { format!("{value:.2}{}", units[unit]) }
}

/// Exact figures by innermost function: those of its flame graphs.
fn heaptrack_functions(path: &Path, stacks: &Path) -> ByFunction {
    let mut functions = ByFunction::new();
    for (cost, figure) in [
        ("allocations", "allocated_objects"),
        ("temporary", "temporary"),
        ("peak", "peak_bytes"),
        ("leaked", "live_bytes"),
    ] {
        heaptrack_print(path, &["--flamegraph-cost-type", cost, "-F", stacks.to_str().unwrap()]);
        for line in std::fs::read_to_string(stacks).unwrap().lines() {
            let (stack, value) = line.rsplit_once(' ').unwrap();
            let value = value.parse::<u64>().unwrap();
            let function = stack.trim_end_matches(';').rsplit(';').next().unwrap();
            // `name (file.c)`, where the file is known
            let function = function.split_once(" (").map_or(function, |(name, _)| name).to_owned();
            if value != 0 {
                *functions.entry(function).or_default().entry(figure.to_owned()).or_default() += value;
            }
        }
    }
    functions
}

#[test]
fn heaptrack_print_has_the_figures_of_the_report() {
    for fixture in ["peak", "sites", "threads", "churn"] {
        let (traced, path) = traced(fixture, "heaptrack.zst");
        let report = &traced.report;
        let [calls, temporary, peak, leaked] = heaptrack_totals(&path);
        assert_eq!(calls, report.total("allocations").to_string(), "{fixture}");
        assert_eq!(temporary, report.total("temporary").to_string(), "{fixture}");
        assert_eq!(peak, heaptrack_bytes(report.total("peak_bytes")), "{fixture}");
        assert_eq!(leaked, heaptrack_bytes(report.total("live_bytes")), "{fixture}");

        let read = heaptrack_functions(&path, &path.with_extension("stacks"));
        let figures = ["allocated_objects", "temporary", "peak_bytes", "live_bytes"];
        // its flame graphs have a function that was inlined on the wrong side of the one that it is part of; its lists
        // are right
        let expected = only(by_outer_function(report), &figures);
        assert_eq!(read, expected, "{fixture}");
        // the stack with the most calls is told first
        let expected = of_report(report);
        let most = expected.iter().max_by_key(|(_, figures)| figures.get("allocated_objects")).unwrap();
        let first = heaptrack_print(&path, &[]);
        let first = first.lines().skip_while(|line| !line.starts_with("MOST CALLS")).nth(2).unwrap();
        assert_eq!(first.trim(), most.0, "{fixture}");
    }
}

#[test]
fn otlp_has_the_figures_of_the_report() {
    for fixture in ["peak", "sites", "threads"] {
        let (traced, path) = traced(fixture, "otlp.pb");
        let report = &traced.report;
        let read = read_format("otlp", &path);
        let functions = by_function(&read);
        assert_eq!(functions, only(of_report(report), &BLOCKS), "{fixture}");
        assert_eq!(sum(&functions, "allocated_objects"), report.total("allocations"));
        assert_eq!(sum(&functions, "peak_bytes"), report.total("peak_bytes"));
        assert_eq!(read["order"][0], "peak_space");
        assert_eq!(read["duration"], report.0["duration_ns"]);
        let resource = &read["resource"];
        assert_eq!(resource["service.name"], fixture);
        assert_eq!(resource["process.pid"], report.0["pid"]);
        assert_eq!(resource["process.command_args"], report.0["command"]);
        let program = report.list("/modules").first().unwrap();
        assert_eq!(read["mappings"][program["path"].as_str().unwrap()], program["build_id"], "{}", read["mappings"]);
        assert!(read["comments"].as_array().unwrap().contains(&"last=true".into()), "{}", read["comments"]);
        assert!(!read["threads"].as_array().unwrap().is_empty());
    }
}

/// A process that is attached to, and lives on.
#[test]
fn formats_of_an_attach() {
    let victim = Program::fixture("victim").args(["2"]);
    let (victim, pid) = start_victim(&victim);
    let tracer = Program::new("/bin/true");
    let paths = ["pftrace", "otlp.pb", "heaptrack.zst"].map(|suffix| tracer.outside(&format!("other.{suffix}")));
    let mut options = vec!["--duration", "300ms"];
    options.extend(paths.iter().flat_map(|path| ["-o", path.to_str().unwrap()]));
    let traced = tracer.collect(tracer.start_attached(&options, pid).wait().success());
    let report = only(of_report(&traced.report), &BLOCKS);
    let perfetto = read_format("pftrace", &paths[0]);
    assert_eq!(by_function(&perfetto), report);
    assert_eq!(perfetto["heaps"]["libc.malloc"]["from_startup"], false);
    let otlp = read_format("otlp", &paths[1]);
    assert_eq!(by_function(&otlp), report);
    assert_eq!(otlp["order"][0], "inuse_space", "it lives on");
    assert_eq!(heaptrack_totals(&paths[2])[0], traced.report.total("allocations").to_string());
    assert_victim_well(victim, pid);
}

/// Perfetto shows a heap for each snapshot and for each part, what is live then by function, and the resident memory
/// over time.
#[test]
fn pftrace_has_a_heap_for_each_snapshot_and_part() {
    let kinds: [&[&str]; 2] = [
        &["--snapshot-every", "100ms", "--snapshot-output", "s.%i.json"],
        &["--profile-every", "100ms", "-o", "s.%i.json"],
    ];
    for options in kinds {
        let program = Program::fixture("shared").args(["grow", "10000", "150", "10000"]);
        let shared = program.folder().join("shared");
        let program = program.env("SHARED", shared);
        let path = program.outside("other.pftrace");
        let mut running = program.start_traced(&[&["-o", path.to_str().unwrap()], options].concat());
        running.value("ready");
        assert_eq!(running.line(), "grown");
        running.send("enough");
        let traced = program.collect(running.wait());
        let read = read_format("pftrace", &path);
        let heap = &read["heaps"]["libc.malloc"];
        let dumps = heap["dumps"].as_object().unwrap();
        let numbers =
            (1..).map_while(|number| std::fs::read(program.folder().join(format!("s.{number:06}.json"))).ok());
        let files: Vec<serde_json::Value> = numbers.map(|bytes| serde_json::from_slice(&bytes).unwrap()).collect();
        assert!(files.len() >= 4, "{options:?}: {}", traced.ended.stderr);
        let lives: Vec<u64> = dumps.values().map(|live| live["take"].as_u64().unwrap_or(0)).collect();
        let expected: Vec<u64> = files
            .iter()
            .map(|file| {
                let sites = file["sites"].as_array().unwrap().iter();
                let frame =
                    |site: &serde_json::Value| site["stack"][0].as_u64().and_then(|at| usize::try_from(at).ok());
                let named = |site: &&serde_json::Value| file["frames"][frame(site).unwrap()]["function"] == "take";
                sites.filter(named).map(|site| site["live"]["bytes"].as_u64().unwrap()).sum()
            })
            .collect();
        // a series has its last part at the end, as the whole has
        let ends = if options[0] == "--profile-every" { 0 } else { 1 };
        assert_eq!(lives.len(), files.len() + ends, "{options:?}: {dumps:?}");
        assert_eq!(lives[..files.len()], expected, "{options:?}");
        assert!(lives.first() < lives.last());
        assert_eq!(*lives.last().unwrap(), traced.report.site_sum(&["take"], "/live/bytes"));
        let resident = read["counters"]["resident memory (RSS)"].as_array().unwrap();
        let bytes = |point: &serde_json::Value| point[1].as_u64().unwrap();
        assert!(resident.len() >= 5, "{resident:?}");
        let grown = bytes(resident.last().unwrap()) - bytes(&resident[0]);
        assert!((1_000_000..8_000_000).contains(&grown), "the program takes 1.5 MB: {resident:?}");
        let most = bytes(&read["counters"]["most memory resident (RSS)"][0]);
        assert!(resident.iter().all(|point| bytes(point) <= most), "{most} {resident:?}");
    }
}

/// The bytes that the fixture's function `take` has left live, as a file says in its own way.
fn live_of_take(path: &Path) -> u64 {
    let name = path.file_name().unwrap().to_str().unwrap();
    let (_, format) = name.split_once('.').unwrap();
    let of = |functions: &ByFunction| functions["take"]["live_bytes"];
    let unpacked = |path: &Path| {
        let unpacked = Command::new("gzip").args(["-dc"]).arg(path).output().unwrap();
        assert!(unpacked.status.success());
        unpacked.stdout
    };
    match format {
        "pb.gz" | "pb" => {
            let top = pprof(&["-top", "-unit=B", "-sample_index=inuse_space", "-nodefraction=0"], &[path]);
            let line = top.lines().find(|line| line.split_whitespace().last() == Some("take")).expect(&top);
            line.split_whitespace().next().unwrap().trim_end_matches('B').parse().unwrap()
        }
        "json" | "json.gz" => {
            let plain = path.with_extension("unpacked");
            std::fs::write(&plain, if format == "json" { std::fs::read(path).unwrap() } else { unpacked(path) })
                .unwrap();
            of(&of_report(&Report::read(&plain, &Program::new("/bin/true").plain())))
        }
        "folded" => {
            let text = std::fs::read_to_string(path).unwrap();
            let line = text.lines().find(|line| line.contains(";take")).expect(&text);
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        }
        "svg" | "txt" => {
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.contains("take"), "{text}");
            let told = ["700 B", "700 bytes", "(700"].iter().any(|told| text.contains(told));
            if told { 700 } else { panic!("{text}") }
        }
        "html" => super::html::live_of(path, "take"),
        "dhat.json" => of(&super::dhat::by_function(&super::dhat::viewed(path))),
        "firefox.json" | "firefox.json.gz" => {
            super::firefox::summed(&super::firefox::read(path)["tracks"][0], "retained")["take"]
        }
        "pftrace" => of(&by_function(&read_format("pftrace", path))),
        "otlp.pb" => of(&by_function(&read_format("otlp", path))),
        "heaptrack.zst" => of(&heaptrack_functions(path, &path.with_extension("stacks"))),
        other => panic!("no reader of .{other}"),
    }
}

/// Each format from each command that writes profiles, with the same figures.
#[test]
fn all_formats_come_from_run_attach_snapshot_and_convert() {
    let formats: Vec<Format> = Format::ALL.into_iter().filter(|format| format.can_hold(Source::Run).is_ok()).collect();
    let traces = Program::new("/bin/true");
    let path = |command: &str, format: &Format| traces.outside(&format!("{command}.{format}")).display().to_string();
    let paths = |command: &str| formats.iter().map(|format| path(command, format)).collect::<Vec<_>>();
    let outputs =
        |command: &str| paths(command).into_iter().flat_map(|path| ["-o".to_owned(), path]).collect::<Vec<_>>();
    let words = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let heaptrace = |args: &[String]| {
        let ended = traces.start_heaptrace(args).wait();
        assert_eq!(ended.code(), 0, "{}: {}", words(args), ended.stderr);
    };
    let trace = traces.outside("t.fxt").display().to_string();
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for attach in [false, true] {
        let program = Program::fixture("shared").args(["marks"]);
        let shared = program.folder().join("shared");
        let program = program.env("SHARED", shared);
        let options = [outputs(if attach { "attach" } else { "run" }), text(&["--value", "live"])].concat();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let with_trace = [&options[..], &["--trace", &trace]].concat();
        let mut running = if attach { program.start() } else { program.start_traced(&with_trace) };
        let pid: i32 = running.value("ready").parse().unwrap();
        let attached = attach.then(|| {
            let attached = traces.start_attached(&options, pid);
            procfs::wait_until_answered(pid);
            attached
        });
        running.send("take 7");
        assert_eq!(running.line(), "ok");
        match attached {
            None => heaptrace(&[text(&["snapshot", &pid.to_string()]), outputs("snapshot")].concat()),
            Some(attached) => {
                attached.signal(nix::sys::signal::Signal::SIGINT);
                attached.wait().success();
            }
        }
        running.wait().success();
    }
    heaptrace(&[text(&["convert", &trace]), outputs("convert")].concat());
    for command in ["run", "attach", "snapshot", "convert"] {
        for path in paths(command) {
            assert_eq!(live_of_take(Path::new(&path)), 700, "{path}");
        }
    }
}
