//! The formats of other tools, read by those tools or with their published definitions, against report.json of the same run.

use crate::suite::attach::{assert_victim_well, start_victim};
use crate::support::program::{Program, Traced};
use crate::support::python::{by_function, of_report, read_format, sum};
use std::path::PathBuf;

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
        assert_eq!(functions, of_report(report), "{fixture}");
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

/// A process that is attached to, and lives on.
#[test]
fn formats_of_an_attach() {
    let victim = Program::fixture("victim").args(["2"]);
    let (victim, pid) = start_victim(&victim);
    let tracer = Program::new("/bin/true");
    let path = tracer.outside("other.pftrace");
    let options = ["--duration", "300ms", "-o", path.to_str().unwrap()];
    let traced = tracer.collect(tracer.start_attached(&options, pid).wait().success());
    let read = read_format("pftrace", &path);
    assert_eq!(by_function(&read), of_report(&traced.report));
    assert_eq!(read["heaps"]["libc.malloc"]["from_startup"], false);
    assert_victim_well(victim, pid);
}
