//! Saved profiles that earlier versions have written (tests/kept/profiles): this one reads, merges and judges by them
//! as they did. Its README tells what the programs did; all figures here are counted from that.

use super::check::check;
use crate::support::checks::pprof;
use crate::support::program::Program;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Allocations, frees, what is live, and the peak: blocks and bytes.
type Figures = [u64; 8];

const WHOLE: Figures = [18, 2_000_021, 5, 400_007, 13, 1_600_014, 14, 1_600_021];
const FIRST: Figures = [13, 1_000_021, 4, 400_000, 9, 600_021, 10, 1_000_000];
const SECOND: Figures = [5, 1_000_000, 1, 7, 13, 1_600_014, 14, 1_600_021];
const SAMPLED: Figures = [15, 2_000_000, 4, 400_000, 11, 1_600_000, 11, 1_600_000];
const LOST: Figures = [1, 640, 0, 0, 1, 640, 1, 640];
const MADE_UP: Figures = [116, 1_065_248, 109, 798_976, 7, 266_272, 64, 1_060_000];

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/profiles").join(name)
}

fn heaptrace(args: &[&str]) -> String {
    Program::new("/bin/true").start_heaptrace(args.iter().copied()).wait().success().text()
}

fn report(file: &Path, options: &[&str]) -> Value {
    let text = heaptrace(&[&["report", "--json", file.to_str().unwrap()], options].concat());
    serde_json::from_str(&text).unwrap()
}

fn figures(report: &Value) -> Figures {
    ["allocations", "bytes_allocated", "frees", "bytes_freed", "live_blocks", "live_bytes", "peak_blocks", "peak_bytes"]
        .map(|figure| report["totals"][figure].as_u64().unwrap())
}

/// The bytes that functions have allocated themselves, by what `value` counts.
fn own_bytes<const N: usize>(file: &Path, value: &str, functions: [&str; N]) -> [u64; N] {
    let table = report(file, &["--by", "function", "--value", value]);
    functions.map(|function| {
        let groups = table["groups"].as_array().unwrap();
        let group = groups.iter().find(|group| group["name"] == function);
        group.map_or(0, |group| group["own_bytes"].as_u64().unwrap())
    })
}

#[test]
fn files_of_version_0_1_0_are_read() {
    for (name, expected, mode, ended) in [
        ("whole.pb.gz", WHOLE, "run", true),
        ("report-3.json.gz", WHOLE, "run", true),
        ("part-1.pb.gz", FIRST, "snapshot", false),
        ("part-2.pb.gz", SECOND, "snapshot", true),
        ("snapshot.pb.gz", FIRST, "snapshot", false),
        ("sampled.pb.gz", SAMPLED, "run", true),
        ("leaks.pb.gz", LOST, "check", true),
        ("baseline.json.gz", LOST, "check", true),
    ] {
        let report = report(&kept("0.1.0").join(name), &[]);
        assert_eq!(figures(&report), expected, "{name}");
        assert_eq!((&report["mode"], &report["complete"]), (&mode.into(), &true.into()), "{name}");
        let exit = if ended { 0.into() } else { Value::Null };
        assert_eq!(report["exit"]["code"], exit, "{name}");
        let program = if expected == LOST { "known" } else { "steps" };
        assert_eq!(report["program"], program, "{name}");
        let interval = if expected == SAMPLED { 1000 } else { 0 };
        assert_eq!(report["sampling"]["interval"], interval, "{name}");
        assert_eq!(report["part"], if expected == SECOND { 2 } else { 1 }, "{name}");
    }
}

#[test]
fn functions_of_version_0_1_0_have_their_sums() {
    let steps = ["steps_a", "steps_b"];
    for (name, live, peak, allocated) in [
        ("whole.pb.gz", [1_600_000, 14], [1_600_000, 21], [2_000_000, 21]),
        ("report-3.json.gz", [1_600_000, 14], [1_600_000, 21], [2_000_000, 21]),
        ("part-1.pb.gz", [600_000, 21], [1_000_000, 0], [1_000_000, 21]),
        ("part-2.pb.gz", [1_600_000, 14], [1_600_000, 21], [1_000_000, 0]),
        ("snapshot.pb.gz", [600_000, 21], [1_000_000, 0], [1_000_000, 21]),
        ("sampled.pb.gz", [1_600_000, 0], [1_600_000, 0], [2_000_000, 0]),
    ] {
        let file = kept("0.1.0").join(name);
        for (value, expected) in [("live", live), ("peak", peak), ("allocated", allocated)] {
            assert_eq!(own_bytes(&file, value, steps), expected, "{name}: {value}");
        }
    }
    assert_eq!(own_bytes(&kept("0.1.0/report-3.json.gz"), "freed", steps), [400_000, 7]);
    assert_eq!(own_bytes(&kept("0.1.0/leaks.pb.gz"), "live", ["lose_known"]), [640]);
}

/// What `report` says of a file is what pprof adds up in it, function by function.
#[test]
fn totals_are_those_of_pprof() {
    for name in ["whole", "part-1", "part-2", "snapshot", "sampled", "leaks"] {
        let file = kept("0.1.0").join(format!("{name}.pb.gz"));
        let totals = report(&file, &[]);
        for (value, total, index) in [
            ("live", "live_bytes", "inuse_space"),
            ("live", "live_bytes", "residual_allocated_space"),
            ("allocated", "bytes_allocated", "alloc_space"),
            ("allocated", "bytes_allocated", "allocated_space"),
        ] {
            let text = pprof(&["-top", "-nodefraction=0", "-unit=B", &format!("-sample_index={index}")], &[&file]);
            let bytes = |word: &str| word.trim_end_matches('B').parse::<u64>().unwrap();
            let (_, of) = text.lines().find_map(|line| line.split_once("% of ")).unwrap();
            let all = bytes(of.split(' ').next().unwrap());
            assert_eq!(totals["totals"][total], all, "{name} {index}: {text}");
            let rows = text.lines().skip_while(|line| !line.contains("flat%")).skip(1);
            let mut sum = 0;
            for row in rows {
                let words: Vec<&str> = row.split_whitespace().collect();
                let flat = bytes(words[0]);
                assert_eq!(own_bytes(&file, value, [words[5]]), [flat], "{name} {index}: {row}");
                sum += flat;
            }
            assert_eq!(sum, all, "{name} {index}: {text}");
        }
    }
}

#[test]
fn files_of_version_0_1_0_are_merged() {
    let folder = Program::new("/bin/true");
    let out = folder.outside("sum.pb.gz");
    let merged = |names: &[&str]| {
        let files: Vec<PathBuf> = names.iter().map(|name| kept("0.1.0").join(name)).collect();
        let mut args = vec!["merge", "-o", out.to_str().unwrap()];
        args.extend(files.iter().map(|file| file.to_str().unwrap()));
        let ended = Program::new("/bin/true").start_heaptrace(args).wait();
        (ended.code(), ended.stderr)
    };
    // The parts of a session make the whole of it; those of another program are added.
    assert_eq!(merged(&["part-2.pb.gz", "part-1.pb.gz"]).0, 0);
    assert_eq!(figures(&report(&out, &[])), WHOLE);
    for whole in ["whole.pb.gz", "report-3.json.gz"] {
        assert_eq!(merged(&[whole, "baseline.json.gz"]).0, 0);
        assert_eq!(figures(&report(&out, &[])), std::array::from_fn(|figure| WHOLE[figure] + LOST[figure]));
        assert_eq!(own_bytes(&out, "live", ["steps_a", "steps_b", "lose_known"]), [1_600_000, 14, 640]);
    }
    let (code, error) = merged(&["whole.pb.gz", "sampled.pb.gz"]);
    assert_eq!(code, 125, "{error}");
    let (code, error) = merged(&["whole.pb.gz", "report-3.json.gz"]);
    assert!(code == 125 && error.contains("same run"), "{error}");
}

/// The block that the baseline knows is excused, and no other one: the program is built anew.
#[test]
fn a_baseline_of_version_0_1_0_judges() {
    let program = Program::fixture("known");
    let file = kept("0.1.0/baseline.json.gz");
    let options = ["--baseline", file.to_str().unwrap()];
    assert_eq!(check(&program, &[], &[]).verdict(), (23, "leaks"));
    let known = check(&program, &options, &[]);
    assert_eq!(known.verdict(), (0, "clean"), "{}", known.ended.stderr);
    let more = check(&program, &options, &["more"]);
    assert_eq!(more.verdict(), (23, "leaks"), "{}", more.ended.stderr);
    assert!(more.report.text("/verdict/reasons/0").starts_with("70 bytes in 1 block"), "{}", more.ended.stderr);
}

/// Reports of versions 1 to 3, and the pprof file of the same profile: read, merged, and baselines.
#[test]
fn reports_of_all_versions_are_read() {
    let program = Program::fixture("known");
    for name in ["report-1.json", "report-2.json", "report-3.json.gz", "pprof-0.1.0.pb.gz"] {
        let file = kept("made-up").join(name);
        assert_eq!(figures(&report(&file, &[])), MADE_UP, "{name}");
        let out = program.outside("copy.pb.gz");
        heaptrace(&["merge", "-o", out.to_str().unwrap(), file.to_str().unwrap()]);
        assert_eq!(figures(&report(&out, &[])), MADE_UP, "{name}");
        if name.contains("json") {
            let judged = check(&program, &["--baseline", file.to_str().unwrap()], &[]);
            assert_eq!(judged.verdict(), (23, "leaks"), "{name}: {}", judged.ended.stderr);
        }
    }
}
