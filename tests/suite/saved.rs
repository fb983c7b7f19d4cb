//! `heaptrace report` on real profiles, and its files in `go tool pprof`.

use crate::support::checks::pprof;
use crate::support::program::{Program, Traced};
use std::path::Path;

/// What a command of heaptrace prints, which succeeds.
fn heaptrace(args: &[&str]) -> String {
    Program::new("/bin/true").start_heaptrace(args.iter().copied()).wait().success().text()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The figures of the totals in a summary, without the lines that only some formats have.
fn totals(summary: &str) -> Vec<String> {
    let lines = summary.lines().filter(|line| {
        ["allocated", "freed", "live", "peak"].iter().any(|name| line.starts_with(&format!("  {name} ")))
    });
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The summary of both formats, and of the trace, is that of the run.
#[test]
fn the_summary_is_that_of_the_run() {
    let program = Program::fixture("peak");
    let trace = program.outside("t.fxt.zst");
    let traced = program.traced_with(&["--trace", text(&trace)]);
    let of_run = totals(&traced.ended.stderr);
    assert_eq!(of_run.len(), 4, "{}", traced.ended.stderr);
    for file in [&traced.profile, &program.report_path(), &trace] {
        let summary = heaptrace(&["report", text(file)]);
        assert_eq!(totals(&summary), of_run, "{summary}");
        assert!(summary.contains("exit status 0 after"), "{summary}");
    }
    for file in [&traced.profile, &program.report_path()] {
        let difference = heaptrace(&["diff", text(file), text(&trace)]);
        assert!(difference.contains("No stack has changed"), "{difference}");
    }
    std::fs::write(&trace, &std::fs::read(&trace).unwrap()[..20]).unwrap();
    let refused = Program::new("/bin/true").start_heaptrace(["report", text(&trace)]).wait();
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("t.fxt.zst"), "{}", refused.stderr);
}

/// Each function of the fixture has its sums in each view, whichever file they are from.
#[test]
fn views_have_the_sums_of_known_sites() {
    let program = Program::fixture("peak");
    let Traced { profile, .. } = program.traced();
    for file in [&profile, &program.report_path()] {
        let by = |args: &[&str]| {
            let text = heaptrace(&[&["report", text(file), "--json"], args].concat());
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        for (value, early, high, late) in
            [("peak", 10_000, 50_000, 0), ("live", 10_000, 0, 20_000), ("allocated", 40_000, 50_000, 20_000)]
        {
            let table = by(&["--by", "function", "--value", value]);
            let own = |name: &str| {
                let groups = table["groups"].as_array().unwrap();
                groups
                    .iter()
                    .find(|group| group["name"] == name)
                    .map_or(0, |group| group["own_bytes"].as_u64().unwrap())
            };
            assert_eq!([own("early"), own("high"), own("late")], [early, high, late], "{value}");
            let whole: u64 = table["groups"].as_array().unwrap().iter().map(|g| g["own_bytes"].as_u64().unwrap()).sum();
            assert_eq!(table["bytes"].as_u64().unwrap(), whole);
            let tree = by(&["--tree", "--value", value]);
            assert_eq!(tree["bytes"].as_u64().unwrap(), whole, "{tree}");
            let callers = by(&["--callers", "early", "--value", value]);
            assert_eq!(callers["bytes"].as_u64().unwrap(), early);
            assert_eq!(callers["children"][0]["children"][0]["function"], "main");
            let callees = by(&["--callees", "main", "--value", value]);
            assert_eq!(callees["children"][0]["bytes"].as_u64().unwrap(), callees["bytes"].as_u64().unwrap());
        }
    }
    let by_file = heaptrace(&["report", text(&profile), "--by", "file"]);
    assert!(by_file.contains("peak.c"), "{by_file}");
    let by_thread = heaptrace(&["report", text(&profile), "--by", "thread"]);
    assert!(by_thread.contains("  peak"), "{by_thread}");
}

/// Written again, a profile is the same to pprof, in each column; a report has no stacks of frees.
#[test]
fn what_report_writes_pprof_reads_alike() {
    let program = Program::fixture("sites");
    let Traced { profile, .. } = program.traced();
    let again = program.outside("again.pb.gz");
    let from_json = program.outside("from-json.pb");
    heaptrace(&["report", text(&profile), "-o", text(&again)]);
    heaptrace(&["report", text(&program.report_path()), "-o", text(&from_json)]);
    for column in ["peak_space", "alloc_objects", "inuse_space", "deallocated_space"] {
        let index = format!("-sample_index={column}");
        let top = |file: &Path| {
            let top = pprof(&["-top", "-nodefraction=0", "-unit=B", &index], &[file]);
            let rows = top.lines().skip_while(|line| !line.contains("flat%")).map(str::to_owned);
            rows.collect::<Vec<_>>()
        };
        assert_eq!(top(&again), top(&profile), "{column}");
        if column != "deallocated_space" {
            assert_eq!(top(&from_json), top(&profile), "{column}");
        }
    }
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&profile).unwrap(), "byte for byte");
    let svg = heaptrace(&["report", text(&profile), "-o", "-", "--format", "svg", "--value", "allocated"]);
    assert!(svg.contains("<svg") && svg.contains("bytes allocated"), "{svg}");
}

/// `--value` of a run chooses what flame graphs and folded stacks show.
#[test]
fn value_chooses_the_column_of_pictures() {
    let program = Program::fixture("peak");
    let sum = |value: &str| -> u64 {
        let folded = program.outside(&format!("{value}.folded"));
        program.start_traced(&["--value", value, "-o", text(&folded)]).wait().success();
        let lines = std::fs::read_to_string(&folded).unwrap();
        lines
            .lines()
            .filter(|line| line.contains("early"))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum()
    };
    assert_eq!([sum("live"), sum("peak"), sum("allocated"), sum("freed")], [10_000, 10_000, 40_000, 30_000]);
}

/// What can't be shown is refused with the reason, and heaptrace's own status.
#[test]
fn files_that_are_no_profiles_are_refused() {
    let program = Program::fixture("peak");
    let Traced { profile, .. } = program.traced();
    for (args, expected) in [
        (["report", "/nowhere/x.pb.gz"].as_slice(), "/nowhere/x.pb.gz: can't be read: No such file"),
        (&["report", "/bin/true"], "a program; to profile it: `heaptrace run"),
        (&["report", "/"], "can't be read: Is a directory"),
        (
            &["report", text(&profile), "--value", "temporary"],
            "no amounts of `temporary`; it has peak, live, allocated, freed",
        ),
        (&["report", text(&profile), "--callers", "nonsense"], "no stack has a function"),
        (&["report", text(&profile), "-o", "-"], "needs --format"),
        (&["report", text(&profile), "-o", "x.md"], "verdict of a check"),
    ] {
        let ended = program.start_heaptrace(args.iter().copied()).wait();
        assert_eq!(ended.code(), 125, "{args:?}");
        assert!(ended.stderr.contains(expected), "{args:?}: {}", ended.stderr);
    }
}

/// How each of the three commands refuses a file.
fn refusals(program: &Program, file: &Path, good: &Path) -> [String; 3] {
    let out = program.outside("refused.pb.gz");
    let commands = [
        vec!["report", text(file)],
        vec!["diff", text(good), text(file)],
        vec!["merge", "-o", text(&out), text(good), text(file)],
    ];
    commands.map(|args| {
        let ended = Program::new("/bin/true").start_heaptrace(&args).wait();
        assert_eq!(ended.code(), 125, "{args:?}: {}", ended.stderr);
        assert!(ended.text().is_empty() && !out.exists(), "{args:?}: {}", ended.text());
        ended.stderr
    })
}

/// Whatever is given instead of a profile: the file is named once, with what it is and what to do.
#[test]
fn what_is_no_profile_is_refused_by_each_command() {
    let program = Program::fixture("peak");
    let others = ["heaptrack.zst", "pftrace", "otlp.pb", "folded", "svg", "txt", "dhat.json", "firefox.json"];
    let others = others.map(|ending| (ending, program.outside(&format!("peak.{ending}"))));
    let outputs: Vec<&str> = others.iter().flat_map(|(_, path)| ["-o", text(path)]).collect();
    let Traced { profile, .. } = program.traced_with(&outputs);
    let unread = "neither a pprof profile nor a report.json";
    let mut cases: Vec<(std::path::PathBuf, &str)> = Vec::new();
    for (ending, path) in &others {
        let expected = match *ending {
            "heaptrack.zst" => "compressed with zstd; of a trace (.fxt.zst) `heaptrace convert` makes a profile",
            "pftrace" | "otlp.pb" => unread,
            "folded" => "text, not a profile; give the .pb.gz or .json",
            "svg" => "XML; give the .pb.gz or .json",
            "dhat.json" | "firefox.json" => "not a report of heaptrace",
            _ => "a text report; give the .pb.gz or .json",
        };
        cases.push((path.clone(), expected));
    }
    let mut file = |name: &str, content: &[u8], expected: &'static str| {
        let path = program.outside(name);
        std::fs::write(&path, content).unwrap();
        cases.push((path, expected));
    };
    file("empty.pb.gz", b"", "the file is empty; was it still being written");
    file("text.pb.gz", b"hello, this is no profile\n", "text, not a profile");
    file("csv.json", b"a,b,c\n1,2,3\n", "text, not a profile");
    file("other.json", b"{\"a\": 1}", "not a report of heaptrace (it has no `heaptrace_version`)");
    file("sarif.json", b"{\"version\": \"2.1.0\"}", "not a report of heaptrace (its `version` is not a number)");
    file("short.zst", &[0x28, 0xb5, 0x2f, 0xfd, b'.', b'.'], "compressed with zstd");
    file("tiny.pb", &[8, 1, 16, 2], unread);
    file("torn.pb.gz", &std::fs::read(&profile).unwrap()[..300], "the file ends too early; it was cut off");
    cases.push((program.folder().to_owned(), "Is a directory"));
    cases.push((program.outside("missing.pb.gz"), "No such file"));
    for (path, expected) in &cases {
        for error in refusals(&program, path, &profile) {
            let first = error.lines().next().unwrap_or_default();
            let start = format!("heaptrace: {}: ", path.display());
            assert!(first.starts_with(&start) && first.contains(expected), "{expected}\n{error}");
            assert_eq!(error.matches(&*path.to_string_lossy()).count(), 1, "{error}");
        }
    }
}

/// A file that may not be read.
#[test]
fn what_may_not_be_read_is_told() {
    let program = Program::new("/bin/true");
    let path = program.outside("secret.pb.gz");
    std::fs::write(&path, b"x").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::File::open(&path).is_ok() {
        // root may; one who has lost this may not
        let own = env!("CARGO_BIN_EXE_heaptrace");
        let args = ["--bounding-set=-all", "--inh-caps=-all", own, "report", text(&path)];
        let ended = Program::new("setpriv").args(args).start().wait();
        assert_eq!(ended.code(), 125, "{}", ended.stderr);
        assert!(ended.stderr.contains("secret.pb.gz: can't be read: Permission denied"), "{}", ended.stderr);
        return;
    }
    let ended = Program::new("/bin/true").start_heaptrace(["report", text(&path)]).wait();
    assert!(ended.stderr.contains("secret.pb.gz: can't be read: Permission denied"), "{}", ended.stderr);
}

/// What pprof has made of our files is what it says: the same, a part, or a sum that is told to be one.
#[test]
fn files_that_pprof_rewrote_are_read() {
    let (program, other) = (Program::fixture("peak"), Program::fixture("sites"));
    let (first, second) = (program.traced().profile, other.traced().profile);
    let rewritten = |name: &str, args: &[&str], files: &[&Path]| {
        let path = program.outside(name);
        let output = format!("-output={}", path.display());
        pprof(&[&["-proto", &output], args].concat(), files);
        path
    };
    let same = rewritten("same.pb.gz", &[], &[&first]);
    assert_eq!(totals(&heaptrace(&["report", text(&same)])), totals(&heaptrace(&["report", text(&first)])));
    assert!(heaptrace(&["diff", text(&first), text(&same)]).contains("No stack has changed"));
    let some = heaptrace(&["report", text(&rewritten("some.pb.gz", &["-focus=early"], &[&first]))]);
    assert!(some.contains("early") && !some.contains("late "), "{some}");
    let sum = heaptrace(&["report", text(&rewritten("sum.pb.gz", &[], &[&first, &second]))]);
    assert!(sum.contains("merged of 2 files") && sum.contains("pprof added up the profiles of 2 runs"), "{sum}");
    assert!(!sum.contains("exit status") && sum.contains("upper bound"), "{sum}");
    // The text that gperftools writes, by the way that the refusal names.
    let old = program.outside("old.heap");
    std::fs::write(
        &old,
        "heap profile:      2:     3000 [     5:     9000] @ heapprofile\n     2:     3000 [     5:     9000] @ 0x401136 0x401150\n\n\
         MAPPED_LIBRARIES:\n00400000-00500000 r-xp 00000000 fe:00 1 /bin/tool\n",
    )
    .unwrap();
    let refused = Program::new("/bin/true").start_heaptrace(["report", text(&old)]).wait();
    assert!(refused.stderr.contains("old.heap: gperftools' text format; make a pprof file"), "{}", refused.stderr);
    let converted = heaptrace(&["report", text(&rewritten("old.pb.gz", &[], &[&old]))]);
    assert!(converted.contains("3,000") && converted.contains("9,000"), "{converted}");
    assert!(!converted.contains("standard error"), "{converted}");
}
