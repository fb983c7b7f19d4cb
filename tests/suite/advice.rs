//! Advice: its figures are those that the program has counted itself, and there is none where there is nothing to
//! advise.

use crate::support::fixtures;
use crate::support::program::{Program, Traced};
use crate::support::report::{Report, functions_of, plain};
use serde_json::{Value, json};
use std::fs;
use std::ops::RangeInclusive;

/// Why a process with `--perturb` stays with the trap engine.
pub const BLOCKS_ARE_READ: &str = "its blocks are read at each call's stop (--perturb)";

/// What a function of the program says of itself.
fn counted(traced: &Traced, function: &str) -> Vec<u64> {
    let text = traced.ended.text();
    let line =
        text.lines().find_map(|line| line.strip_prefix(&format!("{function} "))).unwrap_or_else(|| panic!("{text}"));
    line.split(' ').map(|figure| figure.parse().unwrap()).collect()
}

/// The advice of a kind, of which there is one at the function.
fn told<'a>(traced: &'a Traced, kind: &str, function: &str) -> &'a Value {
    let all = traced.report.0["advice"].as_array().unwrap();
    let is_there = |of: &Value| functions_of(of).iter().any(|name| plain(name) == function);
    let found: Vec<&Value> = all.iter().filter(|of| of["kind"] == kind && is_there(of)).collect();
    assert_eq!(found.len(), 1, "{kind} at {function}: {all:#?}");
    found[0]
}

#[test]
fn advice_has_the_figures_that_the_program_counts() {
    let program = Program::fixture("advised");
    let traced = program.traced();
    for function in ["fill", "append"] {
        let [buffers, growths, copies, copied, largest] = counted(&traced, function)[..] else { panic!() };
        let expected = json!({
            "buffers": buffers, "growths": growths, "copies": copies, "copied_bytes": copied, "largest_bytes": largest,
        });
        let advice = told(&traced, "growth", function);
        assert_eq!(advice["figures"], expected, "{function}");
        assert!(copies > 8, "{function}: {copies}");
    }
    let figures = |kind, function| &told(&traced, kind, function)["figures"];
    let temporaries = figures("temporaries", "moment");
    let [times] = counted(&traced, "moment")[..] else { panic!() };
    assert_eq!((&temporaries["temporary"], &temporaries["allocations"]), (&json!(times), &json!(times)));
    assert_eq!(temporaries["all_allocations"], traced.report.total("allocations"));
    let [size, excess, blocks, bytes] = counted(&traced, "just_too_large")[..] else { panic!() };
    let expected = json!({ "size": size, "excess": excess, "blocks": blocks, "bytes": bytes });
    assert_eq!(figures("size_class", "just_too_large"), &expected);
    let [elsewhere, freed, bytes] = counted(&traced, "hand_over")[..] else { panic!() };
    let mut told_of_frees = figures("freed_elsewhere", "hand_over").clone();
    let arena = told_of_frees.as_object_mut().unwrap().remove("arena").unwrap();
    assert_eq!(told_of_frees, json!({ "freed_elsewhere": elsewhere, "freed": freed, "bytes": bytes }));
    assert_eq!((&arena["main"], &arena["blocks"]), (&json!(true), &json!(elsewhere)));
    let [blocks, bytes] = counted(&traced, "most_of_all")[..] else { panic!() };
    let expected = json!({ "blocks": blocks, "bytes": bytes, "peak_bytes": traced.report.total("peak_bytes") });
    assert_eq!(figures("largest_at_peak", "most_of_all"), &expected);
    assert_eq!(traced.report.list("/advice").len(), 6, "{:#?}", traced.report.list("/advice"));

    // people are told the first of them, in the same words
    let said = traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    for advice in traced.report.list("/advice").iter().take(5) {
        let text = advice["text"].as_str().unwrap();
        assert!(said.contains(text), "{text}: {said}");
        assert!(text.contains("advised.cc:"), "a place: {text}");
    }
}

/// The arenas as malloc_info(3) tells them: what may be free, and what each has from the kernel. The main one is the
/// first. It adds up the size words of free chunks as they are, with the bit that says that the chunk before is in use:
/// one byte a chunk too much.
fn arenas_of(text: &str) -> Vec<(RangeInclusive<u64>, u64)> {
    let attribute = |of: &str, begin: &str, name: &str| -> u64 {
        let (_, behind) = of.split_once(begin).unwrap_or_else(|| panic!("{begin}: {of}"));
        let (_, behind) = behind.split_once(name).unwrap();
        behind.split('"').nth(1).unwrap().parse().unwrap()
    };
    let heaps = text.split("<heap nr=").skip(1).map(|heap| heap.split("</heap>").next().unwrap());
    let free = |heap| {
        let sum = |name| ["fast", "rest"].map(|kind| attribute(heap, &format!("<total type=\"{kind}\""), name));
        let (bytes, chunks): (u64, u64) = (sum("size").iter().sum(), sum("count").iter().sum());
        // a thread's cache is a block for malloc_info, and no one's for the program
        bytes - chunks..=bytes + 4096
    };
    heaps.map(|heap| (free(heap), attribute(heap, "<system type=\"current\"", "size"))).collect()
}

/// The arenas that advice names in a report, by the functions whose blocks lay in them.
fn arenas_told(report: &Value) -> Vec<Value> {
    let at = |function: &str| {
        let is_there = |of: &&Value| functions_of(of).iter().any(|name| plain(name) == function);
        let mut list = report["advice"].as_array().unwrap().iter().filter(|of| of["kind"] == "freed_elsewhere");
        list.find(is_there).unwrap_or_else(|| panic!("{function}: {:#}", report["advice"]))["figures"]["arena"].clone()
    };
    vec![at("produce"), at("give")]
}

/// What glibc itself says of its arenas at the same moment is what is told of those that other threads have freed
/// blocks of; a trace tells the same.
#[test]
fn what_is_stranded_in_an_arena_is_what_malloc_info_says() {
    // chunks in threads' caches are in use for malloc_info, and free to everybody else
    let program = Program::fixture("stranded").env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    let (trace, again) = (program.outside("t.fxt"), program.outside("again.json"));
    let traced = program.traced_with(&["--trace", trace.to_str().unwrap()]);
    let [produced, address] = counted(&traced, "produce")[..] else { panic!() };
    let [given] = counted(&traced, "give")[..] else { panic!() };
    let [main, other] = &arenas_of(&traced.ended.text())[..] else { panic!("{}", traced.ended.text()) };
    let arenas = arenas_told(&traced.report.0);
    let [of_produce, of_give] = &arenas[..] else { panic!() };
    let figures = |arena: &Value| ["blocks", "system_bytes"].map(|name| arena[name].as_u64().unwrap());
    let free = |arena: &Value| arena["free_bytes"].as_u64().unwrap();
    assert_eq!((figures(of_produce), figures(of_give)), ([produced, other.1], [given, main.1]));
    assert!(other.0.contains(&free(of_produce)), "{of_produce} {other:?}");
    assert!(main.0.contains(&free(of_give)), "{of_give} {main:?}");
    assert_eq!((&of_produce["address"], &of_produce["main"]), (&json!(format!("{address:#x}")), &json!(false)));
    assert_eq!(of_give["main"], json!(true));
    let text = told(&traced, "freed_elsewhere", "produce")["text"].as_str().unwrap();
    assert!(text.contains(&format!("they lay in glibc's arena at {address:#x}, which had ")), "{text}");

    let words = ["convert", "-q", trace.to_str().unwrap(), "-o", again.to_str().unwrap()];
    let ended = program.start_heaptrace(words.map(str::to_owned)).wait();
    assert_eq!(arenas_told(&Report::read(&again, &ended).0), arenas);
    // and so does a check, whose profile is of the moment of its leak scan
    let checked = program.checked(&[]);
    let of_check = &arenas_told(&checked.report.0)[1];
    assert_eq!((figures(of_check), free(of_check)), (figures(of_give), free(of_give)));
}

/// What threads keep for themselves is free, too.
#[test]
fn blocks_in_caches_of_threads_are_free() {
    let traced = Program::fixture("stranded").traced();
    let [main, other] = &arenas_of(&traced.ended.text())[..] else { panic!("{}", traced.ended.text()) };
    for (arena, (free, system)) in arenas_told(&traced.report.0).iter().zip([other, main]) {
        assert_eq!(arena["system_bytes"], *system);
        let told = arena["free_bytes"].as_u64().unwrap();
        assert!(free.contains(&told), "{told} and {free:?}");
    }
}

/// Where threads free what is their own nobody looks into arenas.
#[test]
fn arenas_are_told_only_where_others_free_much() {
    let program = Program::fixture("basic");
    let trace = program.outside("t.fxt");
    program.traced_with(&["--trace", trace.to_str().unwrap()]);
    let bytes = fs::read(&trace).unwrap();
    assert!(!bytes.windows(10).any(|window| window == b"arena_part"), "a name that is not used is not in a trace");
}

/// What is read from a report is what it says, whatever it is made into.
#[test]
fn advice_stays_in_a_report_that_is_read() {
    let program = Program::fixture("advised");
    let (json, again) = (program.outside("x.json"), program.outside("y.json"));
    program.start_traced(&["-o", json.to_str().unwrap()]).wait().success();
    let ended = program
        .start_heaptrace(["report", json.to_str().unwrap(), "-o", again.to_str().unwrap()].map(str::to_owned))
        .wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let read = |path: &std::path::Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let texts = |report: &Value| -> Vec<Value> {
        report["advice"]
            .as_array()
            .unwrap()
            .iter()
            .map(|advice| json!([advice["text"], advice["figures"], advice["site"]]))
            .collect()
    };
    assert_eq!(texts(&read(&again)), texts(&read(&json)));
    assert_eq!(texts(&read(&json)).len(), 6);
}

/// Little programs that keep what they have: nothing proves that they could do better.
#[test]
fn no_advice_without_proof() {
    for fixture in ["peak", "threads"] {
        let traced = Program::fixture(fixture).traced();
        assert_eq!(traced.report.list("/advice"), &[] as &[Value], "{fixture}");
        assert!(!traced.ended.stderr.contains("Advice"), "{}", traced.ended.stderr);
    }
}

/// What a site says of its capacity, and what its function has counted.
fn capacity_and_ledger(traced: &Traced, function: &str) -> (Value, Value) {
    let [blocks, bytes, never_written] = counted(traced, function)[..] else { panic!() };
    let at = [function];
    let sites: Vec<&Value> = traced.report.sites_at(&at).collect();
    let sum = |field: &str| -> u64 { sites.iter().filter_map(|site| site["capacity"][field].as_u64()).sum() };
    let told = json!([sum("blocks"), sum("bytes"), sum("never_written_bytes")]);
    (told, json!([blocks, bytes, never_written]))
}

/// The functions of the fixture `unwritten`.
const UNWRITTEN: [&str; 12] = [
    "halves",
    "single_bytes",
    "same_byte",
    "large",
    "aligned",
    "zeroed",
    "grown",
    "resized",
    "uses_all",
    "fails",
    "live",
    "in_a_thread",
];

#[test]
fn what_was_never_written_is_what_the_program_did_not_write() {
    let program = Program::fixture("unwritten").stays_on_trap(BLOCKS_ARE_READ);
    let traced = program.traced_with(&["--perturb"]);
    for function in UNWRITTEN {
        let (told, ledger) = capacity_and_ledger(&traced, function);
        assert_eq!(told, ledger, "{function}");
    }
    assert_eq!(counted(&traced, "wrong"), [0], "what a program has written is there after a realloc");
    let [blocks, bytes, never_written] = counted(&traced, "large")[..] else { panic!() };
    let expected = json!({ "blocks": blocks, "bytes": bytes, "never_written_bytes": never_written });
    assert_eq!(told(&traced, "never_written", "large")["figures"], expected);
    let said = &traced.ended.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("lacked the fill of glibc's malloc, as blocks of calloc do"), "{said}");
    assert!(said.contains(told(&traced, "never_written", "large")["text"].as_str().unwrap()), "{said}");
}

/// The variable may have options already, which stay; a fill among them gives way to heaptrace's.
#[test]
fn the_fill_comes_to_what_is_told_to_glibc_already() {
    let program = Program::fixture("unwritten")
        .env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.malloc.perturb=85")
        .stays_on_trap(BLOCKS_ARE_READ);
    let traced = program.traced_with(&["--perturb"]);
    for function in ["halves", "grown", "in_a_thread"] {
        let (told, ledger) = capacity_and_ledger(&traced, function);
        assert_eq!(told, ledger, "{function}");
    }
}

/// musl's malloc has no fill: nothing is told, and that is said.
#[test]
fn where_nothing_can_be_told_that_is_said() {
    let program = Program::new(fixtures::musl_program("portable", &[])).stays_on_trap(BLOCKS_ARE_READ);
    let traced = program.traced_with(&["--perturb"]);
    assert!(traced.report.sites().iter().all(|site| site.get("capacity").is_none()));
    let warnings = traced.report.list("/warnings");
    let told = |warning: &Value| warning.as_str().unwrap().starts_with("capacity that was never written is unknown");
    assert!(warnings.iter().any(told), "{warnings:?}");
}

/// Blocks that are live at a leak scan count, and what is read of a report is what it says.
#[test]
fn capacity_of_live_blocks_is_in_a_check_and_stays_in_its_report() {
    let program = Program::fixture("unwritten").stays_on_trap(BLOCKS_ARE_READ);
    let checked = program.checked(&["--perturb"]);
    let again = program.outside("again.json");
    let report = program.report_path();
    program
        .start_heaptrace(["report", report.to_str().unwrap(), "-o", again.to_str().unwrap()].map(str::to_owned))
        .wait()
        .success();
    let again: Value = serde_json::from_slice(&fs::read(&again).unwrap()).unwrap();
    let capacities = |sites: &Value| -> Vec<Value> {
        let sites = sites.as_array().unwrap().iter().filter(|site| site.get("capacity").is_some());
        sites.map(|site| json!([site["id"], site["capacity"]])).collect()
    };
    assert_eq!(capacities(&again["sites"]), capacities(&checked.report.0["sites"]));
    let live: Vec<&Value> = checked.report.sites_at(&["live"]).collect();
    assert_eq!(live.len(), 1);
    assert_eq!(live[0]["capacity"], json!({ "blocks": 20, "bytes": 210_000, "never_written_bytes": 208_100 }));
}
