//! `heaptrace heap`: types and names of members as debug information declares them, held against what fixtures of C, C++ and Rust say of themselves.

use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");
/// Numbers of a node in a `.heapsnapshot`.
const NODE_FIELDS: usize = 7;
const PROPERTY: u64 = 2;

/// What a fixture says of its blocks: addresses, types, members.
#[derive(Default)]
struct Ledger {
    blocks: Vec<(u64, String)>,
    edges: Vec<(u64, u64, String)>,
    roots: Vec<(u64, String)>,
    lost: Vec<u64>,
}

fn start(exe: &Path) -> (Running, i32, Ledger) {
    let mut running = Program::new(exe).start();
    let mut ledger = Ledger::default();
    let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap();
    loop {
        let line = running.line();
        let (what, rest) = line.split_once(' ').unwrap();
        match what {
            "block" => {
                let (at, of) = rest.split_once(' ').unwrap();
                ledger.blocks.push((address(at), of.to_owned()));
            }
            "edge" => {
                let fields: Vec<&str> = rest.split(' ').collect();
                ledger.edges.push((address(fields[0]), address(fields[1]), fields[2].to_owned()));
            }
            "root" => {
                let (at, member) = rest.split_once(' ').unwrap();
                ledger.roots.push((address(at), member.to_owned()));
            }
            "lost" => ledger.lost.push(address(rest)),
            "ready" => return (running, rest.parse().unwrap(), ledger),
            _ => panic!("{line}"),
        }
    }
}

fn end(mut running: Running, pid: i32) {
    procfs::assert_left_as_it_was(pid);
    running.feed(b"");
    running.wait().success();
}

fn ask(arguments: &[&str]) -> String {
    let output = Command::new(HEAPTRACE).arg("heap").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A `.heapsnapshot`: names of nodes by their ids, and names of edges between nodes.
struct Snapshot {
    nodes: BTreeMap<u64, String>,
    edges: BTreeMap<(u64, u64), BTreeSet<String>>,
}

fn read(path: &Path) -> Snapshot {
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let numbers = |name: &str| -> Vec<u64> {
        file[name].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let (nodes, edges) = (numbers("nodes"), numbers("edges"));
    let text = |number: u64| file["strings"][number as usize].as_str().unwrap().to_owned();
    let id = |place: u64| nodes[place as usize + 2];
    let mut rest = edges.chunks_exact(3);
    let mut found = Snapshot { nodes: BTreeMap::new(), edges: BTreeMap::new() };
    for node in nodes.chunks_exact(NODE_FIELDS) {
        found.nodes.insert(node[2], text(node[1]));
        for _ in 0..node[4] {
            let edge = rest.next().unwrap();
            let name = if edge[0] == PROPERTY { text(edge[1]) } else { String::new() };
            found.edges.entry((node[2], id(edge[2]))).or_default().insert(name);
        }
    }
    found
}

/// The id of a block, as src/export/heap/snapshot.rs makes it of its address.
const fn id(addr: u64) -> u64 {
    ((addr >> 4) & 0x7fff_ffff) * 2 + 1
}

/// Names without spaces, which compilers and demanglers set differently.
fn plain(name: &str) -> String {
    name.replace(' ', "")
}

impl Snapshot {
    /// Holds it against the fixture's ledger.
    fn agrees(&self, ledger: &Ledger) {
        let name = |addr: u64| self.nodes.get(&id(addr)).unwrap_or_else(|| panic!("no block at {addr:#x}"));
        for (addr, of) in &ledger.blocks {
            let told = name(*addr);
            if of == "-" {
                assert!(told.starts_with("block of "), "{addr:#x} is nothing known, told as {told}");
            } else {
                assert_eq!(plain(told), plain(of), "{addr:#x}");
            }
        }
        for (from, to, member) in &ledger.edges {
            let names = &self.edges[&(id(*from), id(*to))];
            assert!(names.contains(member), "{from:#x} to {to:#x}: {member}, told as {names:?}");
        }
        for (to, member) in &ledger.roots {
            let all: Vec<_> = self.edges.iter().filter(|((_, target), _)| *target == id(*to)).collect();
            assert!(all.iter().any(|(_, names)| names.contains(member)), "{to:#x}: {member}, told as {all:?}");
        }
        let lost = self.nodes.iter().find(|(_, name)| *name == "(lost blocks)").unwrap().0;
        for addr in &ledger.lost {
            let holders: Vec<_> = self.edges.keys().filter(|(_, to)| *to == id(*addr)).collect();
            assert_eq!(holders, [&(*lost, id(*addr))], "{addr:#x}");
        }
    }
}

/// Looks at what `target` names, and gives the answer with the file for Chrome's developer tools.
fn look(target: &[&str], dir: &TempDir) -> (Value, Snapshot) {
    let path = dir.path().join("told.heapsnapshot");
    let mut arguments = vec!["--json", "-o", path.to_str().unwrap()];
    arguments.extend(target);
    if !target[0].ends_with(".heap") {
        arguments.push("--types");
    }
    let answer = serde_json::from_str(&ask(&arguments)).unwrap();
    (answer, read(&path))
}

fn certainty(answer: &Value, name: &str) -> String {
    let types = answer["types"].as_array().unwrap();
    let found = types.iter().find(|of| of["name"] == name).unwrap_or_else(|| panic!("{name}: {types:?}"));
    found["certainty"].as_str().unwrap().to_owned()
}

/// All that a fixture says of its blocks is told of the process, of its core and of the saved heap.
fn agrees(exe: &Path) -> (Running, i32, Value) {
    let (running, pid, ledger) = start(exe);
    let dir = TempDir::new();
    let saved = dir.path().join("saved.heap");
    let pid_text = pid.to_string();
    let (answer, snapshot) = look(&[&pid_text, "--save", saved.to_str().unwrap()], &dir);
    snapshot.agrees(&ledger);
    let (again, snapshot) = look(&[saved.to_str().unwrap()], &dir);
    assert_eq!(again["types"], answer["types"]);
    snapshot.agrees(&ledger);
    let (_, snapshot) = look(&[&pid_text, "--no-stop"], &dir);
    snapshot.agrees(&ledger);
    (running, pid, answer)
}

#[test]
fn structures_of_c_are_told_with_their_members() {
    let (running, pid, answer) = agrees(&fixtures::program("declared"));
    assert_eq!(certainty(&answer, "entry"), "inferred");
    let tree = ask(&[&pid.to_string(), "--types", "--of", "g_table", "--color", "never"]);
    for told in ["g_table.first: entry at 0x", "next: entry at 0x", "g_table.points: point[] at 0x"] {
        assert!(tree.contains(told), "{told}: {tree}");
    }
    let plain = ask(&[&pid.to_string(), "--json"]);
    assert!(!plain.contains("\"entry\""), "{plain}");
    end(running, pid);
}

#[test]
fn containers_of_libstdcxx_are_told() {
    let (running, pid, answer) = agrees(&fixtures::program("declared_containers"));
    assert_eq!(certainty(&answer, "shop::Circle"), "exact");
    assert_eq!(certainty(&answer, "shop::Item"), "inferred");
    // what lies behind the last elements of vectors
    assert_eq!(answer["lost"]["blocks"], 2);
    end(running, pid);
}

#[test]
fn containers_of_rust_are_told() {
    let (running, pid, answer) = agrees(&fixtures::program("declared_rust"));
    assert_eq!(certainty(&answer, "declared_rust::Square"), "exact");
    assert_eq!(answer["lost"]["blocks"], 1);
    end(running, pid);
}
