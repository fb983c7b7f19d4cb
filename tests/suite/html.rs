//! `.html` reports: opened and used in Chromium, and held against report.json, the fixture's ledger and pprof.

use crate::support::checks::pprof;
use crate::support::program::{Program, installed};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What the script tells of the reports that it has opened. No console has said anything, and no request was made.
fn opened(plan: &str, files: &[&str]) -> Vec<Value> {
    let chromium = installed(Path::new("/usr/bin/chromium"));
    let script = package("tests/support/open_report.mjs");
    let output = Command::new("node")
        .arg("--experimental-websocket")
        .args([script.as_os_str(), chromium.as_os_str()])
        .arg(plan)
        .args(files)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["problems"], &told["requests"]), (&json!([]), &json!([])));
    told["reports"].as_array().unwrap().clone()
}

/// The live bytes of a function as the page's table tells them.
pub fn live_of(path: &Path, function: &str) -> u64 {
    let told = opened("look", &[text(path)]);
    let rows = told[0]["live"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == function).unwrap_or_else(|| panic!("{function}: {rows:?}"));
    row["self"].as_u64().unwrap()
}

/// The text of the page's view of single tests; None if it has none.
pub fn tests_of(path: &Path) -> Option<String> {
    opened("look", &[text(path)])[0]["tests"].as_str().map(str::to_owned)
}

fn successful(output: Output) -> String {
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    told
}

/// The modules are well formed, and their pure parts do what their own tests say.
#[test]
fn modules_of_the_page_pass_their_own_tests() {
    let modules: Vec<PathBuf> = std::fs::read_dir(package("web"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "js"))
        .collect();
    assert!(modules.len() > 10, "{modules:?}");
    let joined = std::fs::read_to_string(package("src/export/html.rs")).unwrap();
    for module in &modules {
        successful(Command::new("node").arg("--check").arg(module).output().unwrap());
        let name = module.file_name().unwrap().to_str().unwrap();
        assert!(joined.contains(&format!("web/{name}\"")), "{name} is not part of the page");
    }
    let told = successful(Command::new("node").arg("--test").arg(package("web/tests")).output().unwrap());
    assert!(told.contains("# fail 0") && !told.contains("# pass 0"), "{told}");
}

/// Live bytes are drawn as steps: what the fixture holds between two of its calls, to the end; no rate where nothing
/// was allocated; and the resident memory by the same clock.
#[test]
fn the_course_has_steps() {
    const STEP: u64 = 8 << 20;
    let program = Program::fixture("stairs");
    let [html, report] = ["x.html", "x.json"].map(|name| program.outside(name));
    program.start_traced(&["-o", text(&html), "-o", text(&report)]).wait().success();
    let told = &opened("course", &[text(&html)])[0];
    let between = told["between"].as_array().unwrap();
    let held: Vec<u64> = between.iter().map(|moment| moment["bytes"].as_u64().unwrap()).collect();
    assert_eq!(held, [0, STEP, 2 * STEP, STEP, 0], "{told}");
    for moment in between {
        let is_drawn = (moment["above"].as_bool().unwrap(), moment["below"].as_bool().unwrap());
        assert_eq!(is_drawn, (false, moment["bytes"] != 0), "{moment}");
        let said = moment["said"].as_str().unwrap();
        let bytes = moment["bytes"].as_u64().unwrap() >> 20;
        let live = if bytes == 0 { ": 0 B live".to_owned() } else { format!(": {bytes}.00 MiB live") };
        assert!(said.contains(&live) && said.ends_with(" 0 allocations/s"), "{said}");
    }
    // two allocations, each in one bar or on the border of two
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let births: Vec<f64> = [0, 1].map(|at| report["timeline"][at]["t_ns"].as_f64().unwrap()).to_vec();
    let bars = told["bars"].as_array().unwrap();
    assert!((2..=4).contains(&bars.len()), "{bars:?}");
    for bar in bars {
        let (from, to) = (bar["from"].as_f64().unwrap(), bar["to"].as_f64().unwrap());
        assert!(births.iter().any(|birth| from <= *birth && *birth - 2000.0 <= to), "{bar} {births:?}");
    }
    let resident: Vec<(u64, u64)> = serde_json::from_value(told["resident"].clone()).unwrap();
    let duration = told["duration"].as_u64().unwrap();
    assert!(resident.len() > 4 && resident.iter().all(|(time, _)| *time <= duration), "{resident:?} {duration}");
    let early = resident.iter().filter(|(time, bytes)| (*time as f64) < births[0] && *bytes > STEP).count();
    assert_eq!(early, 0, "{resident:?} {births:?}");
    // one block of two that was freed before the next allocation is nothing to speak of
    let words = told["words"].as_array().unwrap();
    assert!(words.iter().all(|word| !word.as_str().unwrap().starts_with("Churn")), "{words:?}");
}

/// All that a person does with a page: the figures are those of report.json and pprof, whichever way they are asked
/// for.
#[test]
fn a_report_shows_the_figures_of_the_profile() {
    let program = Program::fixture("peak");
    let [html, report, profile] = ["x.html", "x.json", "x.pb.gz"].map(|name| program.outside(name));
    program.start_traced(&["-o", text(&html), "-o", text(&report), "-o", text(&profile)]).wait().success();
    let whole: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let totals = &whole["totals"];
    let told = &opened("use", &[text(&html), "early"])[0];
    let said = |path: &str| told.pointer(path).unwrap_or_else(|| panic!("{path}: {told}")).as_str().unwrap();

    let sums = [
        ("peak", "peak_bytes", "peak_blocks"),
        ("live", "live_bytes", "live_blocks"),
        ("allocated", "bytes_allocated", "allocations"),
        ("freed", "bytes_freed", "frees"),
    ];
    for (column, bytes, blocks) in sums {
        let told = &told["columns"][column];
        assert_eq!((&told["bytes"], &told["blocks"]), (&totals[bytes], &totals[blocks]), "{column}");
    }
    assert_eq!(told["columns"]["temporary"]["blocks"], totals["temporary"]);
    assert_eq!(said("/columns/live/pressed"), "Live");
    assert!(said("/columns/live/status").starts_with("Live at exit: "), "{told}");
    let words = told["words"].as_array().unwrap();
    assert!(words[0].as_str().unwrap().starts_with("Peak "), "{words:?}");

    // each sum by function, file, module and thread is that of `report --by`
    for by in ["function", "file", "module", "thread"] {
        for (column, ..) in sums {
            let words =
                ["report", text(&report), "--by", by, "--value", column, "--json", "--top", "1000"].map(str::to_owned);
            let words = if by == "thread" { words.map(|word| word.replace("x.json", "x.pb.gz")) } else { words };
            let ended = program.start_heaptrace(words).wait();
            assert_eq!(ended.code(), 0, "{}", ended.stderr);
            let expected: Value = serde_json::from_str(&ended.text()).unwrap();
            let row =
                |name: &Value, own: &Value, total: &Value, blocks: &Value| format!("{name} {own} {total} {blocks}");
            let mut expected: Vec<String> = expected["groups"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|group| group["total_bytes"] != 0)
                .map(|group| row(&group["name"], &group["own_bytes"], &group["total_bytes"], &group["own_blocks"]))
                .collect();
            let rows = told["tables"][by][column]["all"].as_array().unwrap();
            let mut rows: Vec<String> =
                rows.iter().map(|of| row(&of["name"], &of["self"], &of["total"], &of["blocks"])).collect();
            expected.sort();
            rows.sort();
            assert_eq!(rows, expected, "{by} {column}");
        }
    }
    let top = pprof(&["-top", "-unit=B", "-sample_index=inuse_space", "-nodefraction=0"], &[&profile]);
    for function in ["early", "late"] {
        let line = top.lines().find(|line| line.split_whitespace().last() == Some(function)).expect(&top);
        let flat: u64 = line.split_whitespace().next().unwrap().trim_end_matches('B').parse().unwrap();
        let rows = told["tables"]["function"]["live"]["all"].as_array().unwrap();
        assert_eq!(rows.iter().find(|row| row["name"] == function).unwrap()["self"], flat, "{function}");
    }
    let listed = |of: &str| told["inBlocks"][of].as_array().unwrap();
    assert!(!listed("shown").is_empty(), "{}", told["inBlocks"]);
    for (row, cells) in listed("all").iter().zip(listed("shown")) {
        let blocks = cells[0].as_str().unwrap().replace(',', "");
        assert_eq!(blocks, row["self"].to_string(), "blocks are no bytes: {cells}");
    }
    let shown = told["tables"]["function"]["allocated"]["shown"].as_array().unwrap();
    assert_eq!(shown[0][8], "high", "most was allocated there: {shown:?}");
    assert!(
        told["csv"]
            .as_str()
            .unwrap()
            .starts_with("Itself,Total,Blocks,Mean allocated,Temporary,Lifetime,Function,Where\r\n")
    );
    assert!(told["byName"].as_array().unwrap().is_sorted_by(|a, b| a.as_str() <= b.as_str()), "{}", told["byName"]);

    // 10 of 40 blocks of 1,000 bytes are there at the peak
    assert!(said("/tip").starts_with("early") && said("/tip").contains("9.77 KiB in 10 blocks"), "{}", told["tip"]);
    assert!(said("/zoomed").contains("9.77 KiB in 10 blocks"), "{}", told["zoomed"]);
    assert!(said("/fragment").starts_with("#zoom="), "{}", told["fragment"]);
    assert_eq!(told["again"], told["zoomed"], "the address opens the same");
    assert_ne!(told["colors"][0], told["colors"][1], "light and dark");
    assert_eq!(said("/unzoomed"), said("/columns/peak/status"));
    assert!(
        said("/found").contains("found 9.77 KiB") && said("/found").ends_with("in 1 function"),
        "{}",
        told["found"]
    );
    assert_eq!(told["modes"]["flame"]["bytes"], totals["peak_bytes"]);
    for mode in ["callers", "callees"] {
        assert_eq!(told["modes"][mode]["bytes"], 10_000, "{mode}");
        assert_eq!(told["modes"][mode]["functions"][0], "early", "{mode}");
    }
    assert_eq!(told["modes"]["callers"]["functions"][1], "main");
    assert_eq!(told["hidden"]["bytes"], totals["peak_bytes"]);
    assert!(!told["hidden"]["functions"].as_array().unwrap().contains(&json!("early")));
    assert!(said("/moved").contains(": ") && said("/moved").ends_with('%'), "{}", told["moved"]);

    let veiled = &told["veiled"];
    assert!(veiled[0] != veiled[1] && veiled[0] == veiled[2], "{veiled}");
    let [from, to, end] = [0, 1, 2].map(|at| told["window"][at].as_f64().unwrap());
    assert!(0.0 < from && from < to && to < end, "{}", told["window"]);
    assert!(said("/brushed").contains("heaptrace convert t.fxt --from "), "{}", told["brushed"]);
    let counted = told["counted"].as_f64().unwrap();
    assert!((counted - totals["allocations"].as_f64().unwrap()).abs() < 0.5, "the rate adds up: {counted}");
    let sizes = said("/sizes");
    assert!(sizes.contains("512 B – 1023 B"), "{sizes}");
    assert!(said("/about").contains("the amounts are exact") && said("/about").contains("What tracing cost"), "{told}");
}

/// A function that is chosen shows its lines with their bytes, as the source file has them and report.json adds them
/// up; not with --no-source.
#[test]
fn a_function_shows_its_source() {
    let program = Program::fixture("peak");
    let [html, plain, report] = ["x.html", "plain.html", "x.json"].map(|name| program.outside(name));
    program.start_traced(&["-o", text(&html), "-o", text(&report)]).wait().success();
    let whole: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let mut lines = std::collections::BTreeMap::<(u64, String), u64>::new();
    for site in whole["sites"].as_array().unwrap() {
        let frame = &whole["frames"][site["stack"][0].as_u64().unwrap() as usize];
        if frame["function"] == "high" {
            let place = (frame["line"].as_u64().unwrap(), frame["file"].as_str().unwrap().to_owned());
            *lines.entry(place).or_default() += site["allocated"]["bytes"].as_u64().unwrap();
        }
    }
    let ((line, file), bytes) = lines.into_iter().next().unwrap();
    assert_eq!(bytes, 50_000);
    let source = std::fs::read_to_string(&file).unwrap();
    let told = &opened("source", &[text(&html), "high"])[0];
    assert_eq!(told["before"], true, "nothing is chosen at first");
    assert!(told["titles"][0].as_str().unwrap().starts_with(&format!("peak.c {file}")), "{told}");
    let expected: Vec<(u64, &str)> =
        (1u64..).zip(source.lines()).filter(|(number, _)| number.abs_diff(line) <= 2).collect();
    let rows = told["rows"].as_array().unwrap();
    let shown: Vec<(u64, &str)> =
        rows.iter().map(|row| (row[2].as_str().unwrap().parse().unwrap(), row[3].as_str().unwrap())).collect();
    assert_eq!(shown, expected);
    assert_eq!(rows[2][0], "48.83 KiB", "{rows:?}");
    program.start_heaptrace(["report", text(&report), "--no-source", "-o", text(&plain)]).wait().success();
    let told = &opened("source", &[text(&plain), "high"])[0];
    assert_eq!((&told["rows"], &told["held"]), (&json!([]), &json!(0)));
}

/// Marks stand in the course where they were set: between what the program had allocated before and what it did after.
#[test]
fn the_course_has_the_marks() {
    let program = Program::fixture("shared").args(["marks"]);
    let shared = program.folder().join("shared");
    let program = program.env("SHARED", &shared);
    let [html, report] = ["x.html", "x.json"].map(|name| program.outside(name));
    let mut running = program.start_traced(&["-o", text(&html), "-o", text(&report)]);
    let pid: String = running.value("ready");
    for (command, mark) in [("take 3", "three <b>"), ("take 4", "seven")] {
        running.send(command);
        assert_eq!(running.line(), "ok");
        program.start_heaptrace(["ctl", &pid, "mark", mark]).wait().success();
    }
    running.send("take 1");
    assert_eq!(running.line(), "ok");
    assert_eq!(running.wait().code(), 0);
    let whole: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let told = &opened("look", &[text(&html)])[0];
    let live = |mark: &Value| {
        let time = mark["time"].as_u64().unwrap();
        let points = whole["timeline"].as_array().unwrap().iter();
        let before = points.take_while(|point| point["t_ns"].as_u64().unwrap() <= time).last().unwrap();
        (mark["name"].as_str().unwrap().to_owned(), before["live_bytes"].as_u64().unwrap())
    };
    let marks: Vec<_> = told["marks"].as_array().unwrap().iter().map(live).collect();
    assert_eq!(marks, [("three <b>".to_owned(), 300), ("seven".to_owned(), 700)]);
}

/// Leaks are told with what holds them and a suppression that hides them; the lost bytes are a column.
#[test]
fn a_report_of_a_check_has_its_findings() {
    let program = Program::fixture("classes");
    let [html, report] = ["x.html", "x.json"].map(|name| program.outside(name));
    program.start_checked(&["-o", text(&html), "-o", text(&report)]).wait();
    let whole: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let told = &opened("use", &[text(&html), "main"])[0];
    let sum = |field: &str| {
        let of = |class: &str| whole["leaks"][class][field].as_u64().unwrap();
        of("definite") + of("indirect")
    };
    assert!(sum("bytes") > 0);
    assert_eq!(
        (&told["columns"]["leaked"]["bytes"], &told["columns"]["leaked"]["blocks"]),
        (&json!(sum("bytes")), &json!(sum("blocks")))
    );
    let ids: Vec<&Value> = whole["findings"].as_array().unwrap().iter().map(|finding| &finding["id"]).collect();
    assert_eq!(told["findingIds"], json!(ids));
    assert!(told["findings"].as_str().unwrap().contains("held by"), "{}", told["findings"]);
    assert!(told["words"][0].as_str().unwrap().starts_with("Leaks: "), "{}", told["words"]);
    // what the buttons copy hides the leaks
    let rules: Vec<&str> = told["suppressions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let file = program.outside("all.supp");
    std::fs::write(&file, rules.concat()).unwrap();
    let ended = program.start_checked(&["--suppressions", text(&file)]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

/// Two runs in one page: what has grown is red, what has shrunk is blue; the figures are those of the fixture and of
/// `diff --json`.
#[test]
fn a_difference_has_both_sides() {
    let runs = ["before", "after"].map(|side| {
        let program = Program::fixture("compared").args([side]);
        let report = program.outside("side.json");
        assert_eq!(program.start_traced(&["-o", text(&report)]).wait().code(), 0);
        (program, report)
    });
    let [(program, before), (_after, after)] = &runs;
    let html = program.outside("x.html");
    let compared =
        program.start_heaptrace(["diff", text(before), text(after), "--value", "live", "-o", text(&html)]).wait();
    assert_eq!(compared.code(), 0, "{}", compared.stderr);
    let names = ["grows", "shrinks", "stays", "comes", "goes", "work"];
    let told = &opened("difference", &[&[text(&html)], &names[..]].concat())[0];
    assert_eq!(
        told["columns"],
        json!({ "grown": [6000 + 700, 1], "shrunk": [4000 + 400, 1], "after": [12700, 4], "before": [10400, 4] })
    );
    assert_eq!(told["first"], "Grown");
    assert_eq!(told["views"], json!(["Graph", "Table"]));
    assert_eq!((&told["sections"], &told["hasCourse"]), (&json!(["flame"]), &json!(false)));
    assert_eq!(told["legend"], json!(["more than before", "as before", "less than before"]));
    let files = [before, after].map(|path| text(path));
    assert_eq!(told["program"], files.join(" → "));
    let words: Vec<&str> = told["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(words[0], "+2.25 KiB (+22.1 %): Live: 10.16 KiB in 4 blocks before, 12.40 KiB in 4 blocks after");
    assert!(
        words[1].starts_with("Grown by 6.54 KiB: 89.6 % of it is one call: ") && words[1].contains("grows"),
        "{words:?}"
    );
    assert!(words[2].starts_with("Shrunk by 4.30 KiB: 90.9 % of it is one call: "), "{words:?}");
    assert_eq!(words[3], "1 stack: as before");
    let color = |name: &str| -> [i64; 3] {
        let color = told["colors"][name].as_array().unwrap_or_else(|| panic!("{name}: {told}"));
        [0, 1, 2].map(|at| color[at].as_i64().unwrap())
    };
    let red_of = |name: &str| color(name)[0] - color(name)[2];
    assert!(red_of("comes") > red_of("grows") && red_of("grows") > red_of("work") && red_of("work") > 0, "{told}");
    assert!(red_of("shrinks") < -20, "{told}");
    assert!(red_of("stays").abs() < 12, "{told}");
    assert_eq!(told["colors"]["goes"], Value::Null, "nothing is left of it");
    let row = |rows: &Value, name: &str| -> Option<[i64; 3]> {
        let row = rows.as_array().unwrap().iter().find(|row| row[0] == name)?;
        Some([1, 2, 3].map(|at| row[at].as_i64().unwrap()))
    };
    let functions = &told["rows"]["function"];
    assert_eq!(row(functions, "work"), Some([10400, 12700, 2300]));
    assert_eq!(row(functions, "grows"), Some([3000, 9000, 6000]));
    assert_eq!(functions[0][0], "grows", "most has come there: {functions}");
    assert_eq!(row(functions, "goes"), None, "nothing is left of it");
    assert!(told["headings"].to_string().contains("Change"), "{}", told["headings"]);
    // what diff itself says, stack by stack
    let answer = program.start_heaptrace(["diff", text(before), text(after), "--value", "live", "--json"]).wait();
    let answer: Value = serde_json::from_str(&answer.text()).unwrap();
    for change in answer["changes"].as_array().unwrap().iter().filter(|change| change["change"] != "new") {
        let name =
            change["stack"].as_array().unwrap().iter().find(|name| names.contains(&name.as_str().unwrap())).unwrap();
        let bytes = |side: &str| change[side]["bytes"].as_i64().unwrap();
        let expected = [bytes("before"), bytes("after"), bytes("after") - bytes("before")];
        let sites = &told["rows"]["site"];
        let found =
            sites.as_array().unwrap().iter().any(|row| [1, 2, 3].map(|at| row[at].as_i64().unwrap()) == expected);
        assert!(found, "{name}: {expected:?} in {sites}");
    }
}

/// Names that want to be markup stay names, and nothing of them runs.
#[test]
fn hostile_names_stay_names() {
    let program = Program::fixture("peak");
    let report = program.outside("x.json");
    program.start_traced(&["-o", text(&report)]).wait().success();
    let bad = "</script><script>owned=1</script><img src=x onerror=owned=2><svg onload=owned=3>";
    let mut whole: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    for frame in whole["frames"].as_array_mut().unwrap() {
        let name = format!("{}{bad}", frame["function"].as_str().unwrap());
        frame["function"] = name.into();
        frame["file"] = bad.into();
    }
    for field in ["program", "cwd"] {
        whole[field] = bad.into();
    }
    whole["command"] = json!([bad]);
    whole["warnings"] = json!([bad]);
    let (hostile, html) = (program.outside("hostile.json"), program.outside("hostile.html"));
    std::fs::write(&hostile, whole.to_string()).unwrap();
    program.start_heaptrace(["report", text(&hostile), "-o", text(&html)]).wait().success();
    let told = &opened("look", &[text(&html)])[0];
    assert_eq!((&told["foreign"], &told["owned"]), (&json!(0), &json!("undefined")));
    assert_eq!(told["scripts"], 3);
    assert!(told["title"].as_str().unwrap().contains("<img src=x"), "{}", told["title"]);
    assert!(told["table"].as_str().unwrap().contains("</script><script>owned=1"), "{}", told["table"]);
}

/// Of a trace the page knows heaps on the way: a part of the time that is brushed is, in all views, what `convert`
/// makes of that part.
#[test]
fn a_part_of_the_time_is_what_convert_makes_of_it() {
    let program = Program::new("jq").args(["-n", "[range(2000) | tostring] | length"]);
    let [trace, html] = ["t.fxt.zst", "x.html"].map(|name| program.outside(name));
    program.start_traced(&["--engine", "trap", "--trace", text(&trace), "-o", text(&html)]).wait().success();
    let convert = |options: &[&str], name: &str| -> PathBuf {
        let file = program.outside(name);
        let words: Vec<&str> =
            ["convert", "-q", text(&trace), "-o", text(&file)].into_iter().chain(options.iter().copied()).collect();
        program.start_heaptrace(words).wait().success();
        file
    };
    let told = &opened("window", &[text(&convert(&[], "whole.html"))])[0];
    assert!(told["moments"].as_u64().unwrap() >= 6, "{told}");
    let [from, to] = ["from", "to"].map(|end| told[end].as_u64().unwrap());
    let report = |options: &[&str]| -> Value {
        serde_json::from_slice(&std::fs::read(convert(options, "part.json")).unwrap()).unwrap()
    };
    // a heap is that before the event of its moment
    let [begin, before_begin, before_end] = [from, from - 1, to - 1].map(|time| format!("{time}ns"));
    let part = report(&["--from", &begin, "--to", &before_end]);
    let (first, last) = (report(&["--at", &before_begin]), report(&["--at", &before_end]));
    let sums = |column: &str| ["bytes", "blocks"].map(|unit| told["columns"][column][unit].as_u64().unwrap());
    let total = |report: &Value, name: &str| report["totals"][name].as_u64().unwrap();
    assert_eq!(sums("allocated"), [total(&part, "bytes_allocated"), total(&part, "allocations")]);
    assert!(sums("allocated")[1] > 100, "{told}");
    assert_eq!(sums("live"), [total(&last, "live_bytes"), total(&last, "live_blocks")]);
    let freed = |name| total(&last, name) - total(&first, name);
    assert_eq!(sums("freed"), [freed("bytes_freed"), freed("frees")]);
    assert!(sums("peak")[0] >= sums("live")[0]);
    // by function, too
    let frames = part["frames"].as_array().unwrap();
    let mut expected = std::collections::BTreeMap::<&str, u64>::new();
    for site in part["sites"].as_array().unwrap() {
        let frame = &frames[site["stack"][0].as_u64().unwrap() as usize];
        *expected.entry(frame["function"].as_str().unwrap()).or_default() +=
            site["allocated"]["bytes"].as_u64().unwrap();
    }
    let rows = told["functions"]["allocated"].as_array().unwrap();
    let told_of =
        |name: &str| rows.iter().find(|row| row["name"] == name).map_or(0, |row| row["self"].as_u64().unwrap());
    for (name, bytes) in expected {
        assert_eq!(told_of(name), bytes, "{name}");
    }
    assert!(told["note"].as_str().unwrap().contains("The views show "), "{}", told["note"]);
    assert_eq!(told["whole"], total(&report(&[]), "bytes_allocated"));
}
