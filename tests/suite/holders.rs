//! `heaptrace heap`: what the blocks are and who holds them, held against what the fixtures say of themselves.

use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::{Program, installed};
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

fn ask(pid: i32, options: &[&str]) -> String {
    let output = Command::new(HEAPTRACE).arg("heap").args(options).arg(pid.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn heap(pid: i32) -> Value {
    serde_json::from_str(&ask(pid, &["--json"])).unwrap()
}

fn end(mut running: Running, pid: i32) {
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
}

fn row<'a>(answer: &'a Value, list: &str, name: &str) -> &'a Value {
    let found = answer[list].as_array().unwrap().iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {}", answer[list]))
}

/// The fixture's ledger: what it holds by class, as number and bytes.
fn start_classes(program: &Path) -> (Running, i32, BTreeMap<String, (u64, u64)>) {
    let mut running = Program::new(program).start();
    let mut ledger = BTreeMap::new();
    loop {
        let line = running.line();
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            ["held", name, count, bytes] => {
                ledger.insert((*name).to_owned(), (count.parse().unwrap(), bytes.parse().unwrap()));
            }
            ["ready", pid] => return (running, pid.parse().unwrap(), ledger),
            _ => panic!("{line}"),
        }
    }
}

/// As debug information calls a node of the fixture's map.
const TREE_NODE: &str = "std::_Rb_tree_node<std::pair<int const, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > > >";

/// Objects of 20 classes are counted exactly, with symbols and without.
#[test]
fn classes_are_told_by_their_tables() {
    let by_gcc = |flags: &[&str]| fixtures::program_with("classes", flags);
    let programs = [
        (by_gcc(&[]), true),
        (by_gcc(&["-s"]), false),
        (by_gcc(&["-static"]), true),
        (by_gcc(&["-fno-rtti"]), true),
        (fixtures::libcxx_program("classes", &["-s"]), false),
    ];
    for (program, has_debug_info) in programs {
        let (running, pid, ledger) = start_classes(&program);
        assert_eq!(ledger.len(), 20);
        let answer = heap(pid);
        for (name, (count, bytes)) in &ledger {
            let told = row(&answer, "types", name);
            assert_eq!(told["certainty"], "exact");
            assert_eq!(told["blocks"], *count, "{program:?}: {told}");
            let usable = told["bytes"].as_u64().unwrap();
            assert!((*bytes..*bytes + 24 * count).contains(&usable), "{program:?}: {told}");
        }
        let (tree, list) = match has_debug_info {
            true => (TREE_NODE, "std::_List_node<long>"),
            false => ("node of a std::map or std::set", "node of a std::list"),
        };
        assert_eq!(row(&answer, "types", tree)["blocks"], 100, "{program:?}");
        assert_eq!(row(&answer, "types", list)["blocks"], 50, "{program:?}");
        // each block has one type
        let typed: u64 = answer["types"].as_array().unwrap().iter().map(|of| of["blocks"].as_u64().unwrap()).sum();
        let live = ["live", "mapped"].iter().filter_map(|state| answer["chunks"][state]["count"].as_u64());
        assert_eq!(typed, live.sum::<u64>(), "{program:?}");
        end(running, pid);
    }
}

/// A variable retains what only it leads to; what nothing leads to is lost.
#[test]
fn variables_hold_what_only_they_lead_to() {
    let (running, pid, _) = start_classes(&fixtures::program("classes"));
    let answer = heap(pid);
    let list = row(&answer, "holders", "global `hidden_list` in classes");
    assert_eq!((&list["blocks"], &list["bytes"]), (&Value::from(40), &Value::from(40 * 10_008)), "{list}");
    // 210 objects, the shared one, 100 nodes and texts, 50 of the list, the vector, the keeper
    let keeper = row(&answer, "holders", "global `keeper` in classes");
    assert_eq!(keeper["blocks"], 210 + 1 + 200 + 50 + 1 + 1, "{keeper}");
    assert_eq!(answer["lost"]["blocks"], 20, "{answer}");
    assert_eq!(answer["lost"]["bytes"], 10 * (1000 + 504), "{answer}");
    let tree = ask(pid, &["--of", "hidden_list", "--color", "never"]);
    assert!(tree.contains("global `hidden_list` in classes") && tree.contains("390.94 KiB"), "{tree}");
    // the hundred texts are ten different ones
    assert_eq!(answer["duplicates"]["wasted_text"], 90 * 56, "{answer}");
    end(running, pid);
}

/// What one block for all that hold the same would spare is told by the ledger's figures, and what looks like a secret
/// nowhere.
#[test]
fn blocks_that_hold_the_same_are_advised_to_be_shared() {
    let mut running = Program::fixture("equal").start();
    let figures = |line: &str| -> Vec<u64> { line.split(' ').map(|figure| figure.parse().unwrap()).collect() };
    let [names, size] = figures(&running.value("names"))[..] else { panic!() };
    let [keys, key_size] = figures(&running.value("keys"))[..] else { panic!() };
    let first = running.value("first");
    let pid: i32 = running.value("ready").parse().unwrap();
    let answer = heap(pid);
    let wasted = [(names - 1) * size, (keys - 1) * key_size];
    let [all, of_names, of_keys] = answer["advice"].as_array().unwrap().as_slice() else {
        panic!("{:#}", answer["advice"])
    };
    assert_eq!(all["kind"], "duplicates");
    assert_eq!(all["figures"]["wasted_text"], wasted[0] + wasted[1], "{all}");
    let expected = json!({
        "count": names, "size": size, "wasted": wasted[0], "address": first, "type": "text",
        "holder": "global `names` in equal",
    });
    assert_eq!((&of_names["kind"], &of_names["figures"]), (&json!("copies"), &expected));
    assert_eq!((&of_keys["figures"]["count"], &of_keys["figures"]["wasted"]), (&json!(keys), &json!(wasted[1])));
    let folder = TempDir::new();
    let file = folder.path().join("heap.md");
    let printed = ask(pid, &["--color", "never", "-o", file.to_str().unwrap()]);
    for text in [printed, std::fs::read_to_string(&file).unwrap(), answer.to_string()] {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("3,000 blocks of ") && text.contains("the name of a package that comes again"), "{text}");
        assert!(text.contains("2,000 blocks of ") && !text.contains("nobody"), "{text}");
        assert!(text.contains(", held by several") && !text.contains("held by ("), "{text}");
    }
    end(running, pid);
}

/// Values behind Rust's `dyn` pointers have the types that their tables drop.
#[test]
fn dyn_values_are_told_by_what_drops_them() {
    let mut running = Program::fixture("traits").start();
    let pid: i32 = running.value("ready").parse().unwrap();
    let answer = heap(pid);
    for (name, count) in [("traits::Dog", 30), ("traits::Cat", 20), ("traits::Bird", 10)] {
        let told = row(&answer, "types", name);
        assert_eq!((&told["blocks"], &told["certainty"]), (&Value::from(count), &Value::from("exact")), "{told}");
    }
    let tree = ask(pid, &["--of", "traits::ZOO", "--color", "never"]);
    assert!(tree.contains("global `traits::ZOO`") && tree.contains("traits::Cat at 0x"), "{tree}");
    end(running, pid);
}

/// A `.heapsnapshot`, read strictly.
struct Snapshot {
    /// Type, name, id, size.
    nodes: Vec<(u64, String, u64, u64)>,
    /// From, type, name or number, to.
    edges: Vec<(usize, u64, u64, usize)>,
}

fn read(path: &Path) -> Snapshot {
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let numbers = |name: &str| -> Vec<u64> {
        file[name]
            .as_array()
            .unwrap()
            .iter()
            .map(|number| u64::from(u32::try_from(number.as_u64().unwrap()).unwrap()))
            .collect()
    };
    let meta = &file["snapshot"]["meta"];
    let (node_fields, edge_fields) =
        (meta["node_fields"].as_array().unwrap().len(), meta["edge_fields"].as_array().unwrap().len());
    let strings = file["strings"].as_array().unwrap();
    let (node_numbers, edge_numbers) = (numbers("nodes"), numbers("edges"));
    assert_eq!(node_numbers.len() as u64, file["snapshot"]["node_count"].as_u64().unwrap() * node_fields as u64);
    assert_eq!(edge_numbers.len() as u64, file["snapshot"]["edge_count"].as_u64().unwrap() * edge_fields as u64);
    let mut edges = Vec::new();
    let mut rest = edge_numbers.chunks_exact(edge_fields);
    let nodes: Vec<_> = node_numbers
        .chunks_exact(node_fields)
        .enumerate()
        .map(|(number, node)| {
            for _ in 0..node[4] {
                let edge = rest.next().unwrap();
                assert!(edge[2] % node_fields as u64 == 0 && edge[2] < node_numbers.len() as u64);
                assert!(edge[0] != 2 || edge[1] < strings.len() as u64);
                edges.push((number, edge[0], edge[1], edge[2] as usize / node_fields));
            }
            (node[0], strings[node[1] as usize].as_str().unwrap().to_owned(), node[2], node[3])
        })
        .collect();
    assert!(rest.next().is_none(), "edges without a node");
    let ids: BTreeSet<u64> = nodes.iter().map(|node| node.2).collect();
    assert_eq!(ids.len(), nodes.len(), "an id twice");
    Snapshot { nodes, edges }
}

/// The file for Chrome's developer tools has all blocks with their sizes below the roots or the lost ones, and the same
/// ids each time.
#[test]
fn a_snapshot_has_all_blocks() {
    let (running, pid, ledger) = start_classes(&fixtures::program("classes"));
    let dir = TempDir::new();
    let paths = ["a.heapsnapshot", "b.heapsnapshot"].map(|name| dir.path().join(name));
    for path in &paths {
        ask(pid, &["-o", path.to_str().unwrap()]);
    }
    let [a, b] = paths.each_ref().map(|path| read(path));
    assert_eq!(a.nodes, b.nodes);
    let answer = heap(pid);
    let sizes: u64 = a.nodes.iter().map(|node| node.3).sum();
    let typed: u64 = answer["types"].as_array().unwrap().iter().map(|of| of["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sizes, typed);
    for (name, (count, _)) in &ledger {
        assert_eq!(a.nodes.iter().filter(|node| node.1 == *name).count() as u64, *count);
    }
    let mut reached = vec![false; a.nodes.len()];
    let mut waiting = vec![0];
    while let Some(node) = waiting.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            waiting.extend(a.edges.iter().filter(|edge| edge.0 == node).map(|edge| edge.3));
        }
    }
    assert!(reached.iter().all(|reached| *reached));
    let lost = a.nodes.iter().position(|node| node.1 == "(lost blocks)").unwrap();
    assert_eq!(a.edges.iter().filter(|edge| edge.0 == lost).count(), 10);
    end(running, pid);
}

/// Chromium's own developer tools open the file, and count the objects as the fixture does.
#[test]
fn developer_tools_open_a_snapshot() {
    let chromium = installed(Path::new("/usr/bin/chromium"));
    let (running, pid, ledger) = start_classes(&fixtures::program_with("classes", &["-s"]));
    let dir = TempDir::new();
    let path = dir.path().join("classes.heapsnapshot");
    ask(pid, &["-o", path.to_str().unwrap()]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/open_heapsnapshot.mjs");
    let output =
        Command::new("node").arg("--experimental-websocket").args([&script, &chromium, &path]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = String::from_utf8(output.stdout).unwrap();
    // one object has no number
    for (name, (count, _)) in ledger.iter().filter(|(_, (count, _))| *count > 1) {
        assert!(rows.lines().any(|row| row.starts_with(&format!("{name}×{count}\t"))), "{name}: {rows}");
    }
    assert!(rows.contains("node of a std::map or std::set×100\t"), "{rows}");
    end(running, pid);
}

/// An ending that says nothing, and a name that nobody has, are refused.
#[test]
fn what_is_not_there_is_refused() {
    let (running, pid, _) = start_classes(&fixtures::program("classes"));
    for (options, words) in [
        (["-o", "x.svg"], "heap writes .heapsnapshot"),
        (["--of", "nobody"], "no variable nobody"),
        (["--of", "0x10"], "there is no live block at 0x10"),
    ] {
        let output = Command::new(HEAPTRACE).arg("heap").args(options).arg(pid.to_string()).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{output:?}");
    }
    end(running, pid);
}
