//! `.heaptimeline` files of traces, held against the fixture's ledger, and opened by Chromium's own developer tools.

use crate::support::program::{Program, installed};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Numbers of a node.
const NODE_FIELDS: usize = 7;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Traces the program, and makes a timeline of the trace.
fn timeline(program: &Program, options: &[&str]) -> PathBuf {
    let (trace, file) = (program.outside("t.fxt.zst"), program.outside("x.heaptimeline"));
    let words: Vec<&str> = ["--trace", text(&trace)].into_iter().chain(options.iter().copied()).collect();
    program.traced_with(&words);
    convert(program, &["-o", text(&file)]);
    file
}

fn convert(program: &Program, options: &[&str]) {
    let trace = program.outside("t.fxt.zst");
    let words: Vec<&str> = ["convert", "-q", text(&trace)].into_iter().chain(options.iter().copied()).collect();
    program.start_heaptrace(&words).wait().success();
}

/// A file, read strictly.
struct Timeline {
    /// Id, size, name of each block.
    blocks: Vec<(u64, u64, String)>,
    /// What was allocated in all, by the function that did.
    allocated: Vec<(String, u64, u64)>,
    /// Time in microseconds and last id.
    samples: Vec<(u64, u64)>,
}

fn read(path: &Path) -> Timeline {
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let numbers = |name: &str| -> Vec<u64> {
        file[name].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let string = |number: u64| file["strings"][number as usize].as_str().unwrap().to_owned();
    let (nodes, edges, functions) = (numbers("nodes"), numbers("edges"), numbers("trace_function_infos"));
    let head = &file["snapshot"];
    assert_eq!(head["node_count"], nodes.len() / NODE_FIELDS);
    assert_eq!(head["edge_count"], edges.len() / 3);
    assert_eq!(head["trace_function_count"], functions.len() / 6);
    assert_eq!(nodes.chunks(NODE_FIELDS).map(|node| node[4]).sum::<u64>() as usize * 3, edges.len());
    assert!(
        edges.chunks(3).all(|edge| (edge[2] as usize) < nodes.len() && (edge[2] as usize).is_multiple_of(NODE_FIELDS))
    );
    let mut calls = Vec::new();
    let mut waiting = vec![&file["trace_tree"]];
    while let Some(list) = waiting.pop() {
        for call in list.as_array().unwrap().chunks(5) {
            let [id, function, count, size] = [0, 1, 2, 3].map(|field| call[field].as_u64().unwrap());
            calls.push((id, string(functions[function as usize * 6 + 1]), count, size));
            waiting.push(&call[4]);
        }
    }
    let blocks: Vec<(u64, u64, String)> = nodes
        .chunks(NODE_FIELDS)
        .skip(2)
        .map(|node| {
            // the block is called like the function that has allocated it
            let (_, function, _, _) = calls.iter().find(|call| call.0 == node[5]).unwrap();
            assert_eq!(*function, string(node[1]));
            (node[2], node[3], function.clone())
        })
        .collect();
    assert!(blocks.is_sorted_by(|a, b| a.0 < b.0) && blocks.iter().all(|block| block.0 % 2 == 1));
    let samples: Vec<(u64, u64)> = numbers("samples").chunks(2).map(|sample| (sample[0], sample[1])).collect();
    assert!(samples.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1), "{samples:?}");
    let allocated = calls.into_iter().filter(|call| call.2 > 0).map(|call| (call.1, call.2, call.3));
    Timeline { blocks, allocated: allocated.collect(), samples }
}

/// All that the fixture has live at its end is there, under the numbers of its allocations, and all that it has
/// allocated.
#[test]
fn a_timeline_has_what_the_program_has() {
    for engine in ["trap", "jump"] {
        let program = Program::fixture("peak");
        let told = read(&timeline(&program, &["--engine", engine]));
        let ledger = program.ledger();
        assert_eq!(told.blocks.iter().map(|block| block.1).sum::<u64>(), ledger.total("live_bytes"));
        assert_eq!(told.blocks.len() as u64, ledger.total("live_blocks"));
        // 40 early blocks, of which 10 stay; 5 at the peak; 20 late ones
        let births: Vec<(u64, &str)> = told.blocks.iter().map(|block| (block.0, block.2.as_str())).collect();
        let early = (31..=40).map(|birth| (2 * birth + 3, "early"));
        let late = (46..=65).map(|birth| (2 * birth + 3, "late"));
        assert_eq!(births, early.chain(late).collect::<Vec<_>>());
        for (site, figures) in &ledger.sites {
            let of: Vec<_> = told.allocated.iter().filter(|call| call.0 == *site).collect();
            let [(_, count, bytes)] = of.as_slice() else { panic!("{site}: {:?}", told.allocated) };
            assert_eq!((*count, *bytes), (figures["allocations"], figures["bytes_allocated"]), "{site}");
        }
        assert_eq!(told.samples.last().unwrap().1, 2 * ledger.total("allocations") + 3);
    }
}

/// Threads that allocate at once, of a part of the trace, of sampled blocks: the sums are those of the report of the
/// same.
#[test]
fn sums_are_those_of_the_report() {
    for (name, options, parts) in [
        ("threads", &[][..], &[&[][..], &["--from", "1us"], &["--to", "1h"]][..]),
        ("peak", &["--sample-interval", "5000"], &[&[][..]]),
        ("exec_chain", &[], &[&[]]),
    ] {
        let program = Program::fixture(name);
        timeline(&program, options);
        for part in parts {
            let (file, json) = (program.outside("y.heaptimeline"), program.outside("y.json"));
            let words: Vec<&str> = ["-o", text(&file), "-o", text(&json)].iter().chain(*part).copied().collect();
            convert(&program, &words);
            let told = read(&file);
            let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
            let live = report["totals"]["live_bytes"].as_u64().unwrap();
            // where a block stands for several, each is rounded
            let slack = if options.is_empty() { 0 } else { told.blocks.len() as u64 };
            let sum = told.blocks.iter().map(|block| block.1).sum::<u64>();
            assert!(sum.abs_diff(live) <= slack, "{name} {part:?}: {sum} of {live}");
            let allocated = report["totals"]["bytes_allocated"].as_u64().unwrap();
            let sum = told.allocated.iter().map(|call| call.2).sum::<u64>();
            assert!(sum.abs_diff(allocated) <= slack * 2, "{name} {part:?}: {sum} of {allocated}");
        }
    }
}

/// Of several processes each has its own; one file of all is refused, and other commands say what makes one.
#[test]
fn a_timeline_is_of_one_process_and_of_a_trace() {
    let program = Program::new("sh").args(["-c", "ls; ls; true"]);
    let trace = program.outside("t.fxt.zst");
    program.traced_with(&["-f", "--trace", text(&trace)]);
    let each = program.outside("%p.heaptimeline");
    convert(&program, &["-o", text(&each)]);
    let files: Vec<PathBuf> = std::fs::read_dir(each.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "heaptimeline"))
        .collect();
    assert_eq!(files.len(), 3, "{files:?}");
    files.iter().for_each(|file| drop(read(file)));
    let one = program.outside("all.heaptimeline");
    let ended = program.start_heaptrace(["convert", "-q", text(&trace), "-o", text(&one)]).wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("put %p in the file's name") && !one.exists(), "{}", ended.stderr);
    for command in ["run", "check"] {
        let ended = program.start_heaptrace([command, "-o", text(&one), "true"]).wait();
        assert_eq!(ended.code(), 125);
        assert!(ended.stderr.contains("use `heaptrace convert`"), "{}", ended.stderr);
    }
}

/// Sets a mark in the trace of a process.
fn mark(pid: &str, name: &str) {
    let done = Command::new(env!("CARGO_BIN_EXE_heaptrace")).args(["ctl", pid, "mark", name]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A process whose parent has ended: what it has of that is left out, as in the profile of the same moment.
#[test]
fn what_came_over_a_fork_is_left_out_where_it_is_in_the_profile() {
    let program = Program::fixture("left_alone");
    let trace = program.outside("t.fxt.zst");
    let mut running = program.start_traced(&["-f", "--trace", text(&trace)]);
    let pid = running.value("alone");
    running.send("go");
    assert_eq!(running.line(), "done");
    mark(&pid, "then");
    running.send("end");
    running.wait();
    let (file, each) = (program.outside("x.heaptimeline"), program.outside("%p.heaptimeline"));
    convert(&program, &["--at", "@then", "-o", text(&file)]);
    let told: Vec<(u64, String)> = read(&file).blocks.into_iter().map(|block| (block.1, block.2)).collect();
    let own = [vec![(100, "both".to_owned()); 50], vec![(300, "after".to_owned()); 20]].concat();
    assert_eq!(told, own);
    // a file for each process has all that the process has
    convert(&program, &["--at", "@then", "-o", text(&each)]);
    let told = read(&program.outside(&format!("{pid}.heaptimeline")));
    assert_eq!(told.blocks.iter().filter(|block| block.1 == 100 && block.2 == "both").count(), 100);
    assert_eq!(told.blocks.len(), 120);
}

/// The times of a part count from where it begins, whether the process was there already or not.
#[test]
fn the_times_of_a_part_begin_with_it() {
    let program = Program::fixture("steps");
    let trace = program.outside("t.fxt.zst");
    let mut running = program.start_traced(&["--trace", text(&trace)]);
    let pid = running.value("ready ");
    let mut step = |line: &str| {
        running.send(line);
        running.line();
    };
    step("a 10 100");
    // this takes longer than a moment of the file
    mark(&pid, "one");
    step("a 5 1000");
    running.wait().success();
    let samples = |options: &[&str]| {
        let file = program.outside("x.heaptimeline");
        convert(&program, &[&["-o", text(&file)], options].concat());
        read(&file).samples
    };
    let whole = samples(&[]);
    // the first step took one moment or several; its last block is the tenth
    let first = whole.iter().find(|sample| sample.1 == 2 * 10 + 3).unwrap_or_else(|| panic!("{whole:?}")).0;
    let since = |from: u64| -> Vec<(u64, u64)> {
        whole.iter().filter(|sample| sample.0 > from).map(|sample| (sample.0 - from, sample.1)).collect()
    };
    // the process begins later than that, and so do the first blocks
    assert_eq!(samples(&["--from", "1ms"])[1..], since(1000));
    assert_eq!(samples(&["--from", &format!("{first}us")])[1..], since(first));
    assert_eq!(since(first).last().unwrap().1, 2 * 15 + 3);
}

/// Chromium's own developer tools open the file: they count blocks and allocations as the fixture does, and show
/// stacks.
#[test]
fn developer_tools_open_a_timeline() {
    let chromium = installed(Path::new("/usr/bin/chromium"));
    let program = Program::fixture("peak");
    let path = timeline(&program, &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/open_heapsnapshot.mjs");
    let output =
        Command::new("node").arg("--experimental-websocket").args([&script, &chromium, &path]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8(output.stdout).unwrap();
    let (constructors, rest) = told.split_once("\nallocations\n").unwrap();
    let (allocations, rest) = rest.split_once("\nstack\n").unwrap();
    let (stack, samples) = rest.split_once("\nsamples\n").unwrap();
    for row in ["late×20\t", "early×10\t"] {
        assert!(constructors.lines().any(|line| line.starts_with(row)), "{row}: {told}");
    }
    // live blocks, all blocks, live bytes, all bytes
    for (row, function) in [
        ("10\t40\t10.0\u{a0}kB\t40.0\u{a0}kB\t", "early"),
        ("20\t20\t20.0\u{a0}kB\t20.0\u{a0}kB\t", "late"),
        ("0\t5\t0\u{a0}B\t50.0\u{a0}kB\t", "high"),
        ("0\t25\t0\u{a0}B\t2.5\u{a0}kB\t", "temporary"),
    ] {
        let found = allocations.lines().any(|line| line.starts_with(row) && line.trim_end().ends_with(function));
        assert!(found, "{row} {function}: {told}");
    }
    let frames: Vec<&str> = stack.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert!(frames.starts_with(&["late", "main"]) && frames.ends_with(&["(root)"]), "{stack}");
    let drawn: u64 = samples.lines().map(|line| line.split('\t').nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(drawn, program.ledger().total("live_bytes"), "{samples}");
}
