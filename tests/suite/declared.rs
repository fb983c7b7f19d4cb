//! `heaptrace heap`: types and names of members as debug information declares them, held against what fixtures of C,
//! C++ and Rust say of themselves.

use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::{Program, installed};
use crate::support::running::Running;
use crate::support::tempdir::TempDir;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
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
    /// What threads have for themselves: addresses, types, members.
    own: Vec<(u64, String, String)>,
    lost: Vec<u64>,
}

fn start(program: &Program) -> (Running, i32, Ledger) {
    let mut running = program.start();
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
            "own" => {
                let fields: Vec<&str> = rest.split(' ').collect();
                ledger.own.push((address(fields[0]), fields[1].to_owned(), fields[2].to_owned()));
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

/// Names without spaces, which compilers and demanglers set differently; where clang puts `const` first, demanglers put
/// it last.
fn plain(name: &str) -> String {
    name.replace(' ', "").replace("constchar*", "charconst*")
}

impl Snapshot {
    /// Holds it against the fixture's ledger.
    fn agrees(&self, ledger: &Ledger, knows_threads: bool) {
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
        for (addr, of, member) in &ledger.own {
            let all: BTreeSet<_> = self
                .edges
                .iter()
                .filter(|((_, target), _)| *target == id(*addr))
                .flat_map(|(_, names)| names)
                .collect();
            if knows_threads {
                assert_eq!(name(*addr), of, "{addr:#x}");
                assert!(all.contains(member), "{addr:#x}: {member}, told as {all:?}");
            } else {
                // where a thread's are is known of one that stands still
                assert!(name(*addr).starts_with("block of "), "{}", name(*addr));
            }
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
    agrees_of(&Program::new(exe))
}

fn agrees_of(program: &Program) -> (Running, i32, Value) {
    let (running, pid, ledger) = start(program);
    let dir = TempDir::new();
    let saved = dir.path().join("saved.heap");
    let pid_text = pid.to_string();
    let (answer, snapshot) = look(&[&pid_text, "--save", saved.to_str().unwrap()], &dir);
    snapshot.agrees(&ledger, true);
    let (again, snapshot) = look(&[saved.to_str().unwrap()], &dir);
    assert_eq!(again["types"], answer["types"]);
    snapshot.agrees(&ledger, true);
    let (_, snapshot) = look(&[&pid_text, "--no-stop"], &dir);
    snapshot.agrees(&ledger, false);
    let gcore = installed(Path::new("/usr/bin/gcore"));
    let kept = Command::new(gcore).arg("-o").arg(dir.path().join("core")).arg(&pid_text).output().unwrap();
    assert!(kept.status.success());
    let core = dir.path().join(format!("core.{pid}"));
    let (_, snapshot) = look(&["--core", core.to_str().unwrap(), program.exe().to_str().unwrap()], &dir);
    snapshot.agrees(&ledger, true);
    (running, pid, answer)
}

#[test]
fn structures_of_c_are_told_with_their_members() {
    let (running, pid, answer) = agrees(&fixtures::program("declared"));
    assert_eq!(certainty(&answer, "entry"), "inferred");
    let tree = ask(&[&pid.to_string(), "--of", "g_table", "--color", "never"]);
    for told in ["g_table.first: entry at 0x", "next: entry at 0x", "g_table.points: point[] at 0x"] {
        assert!(tree.contains(told), "{told}: {tree}");
    }
    let plain = ask(&[&pid.to_string(), "--no-types", "--json"]);
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
fn containers_of_libcxx_are_told() {
    let (running, pid, answer) = agrees(&fixtures::libcxx_program("declared_containers", &[]));
    assert_eq!(certainty(&answer, "shop::Circle"), "exact");
    assert_eq!(certainty(&answer, "shop::Item"), "inferred");
    // what lies behind the last elements of vectors
    assert_eq!(answer["lost"]["blocks"], 2);
    end(running, pid);
}

/// Linkers did not always say that a program is one. Then it has its thread-local variables all the same where a
/// program has them.
#[test]
fn a_program_that_does_not_say_so_is_one() {
    const FLAGS_1: u64 = 0x6fff_fffb;
    const PIE: u64 = 0x0800_0000;
    let mut bytes = std::fs::read(fixtures::program_with("declared", &["-pie"])).unwrap();
    let tag = bytes.windows(8).position(|window| window == FLAGS_1.to_le_bytes()).unwrap();
    let value = u64::from_le_bytes(bytes[tag + 8..tag + 16].try_into().unwrap());
    assert_ne!(value & PIE, 0);
    bytes[tag + 8..tag + 16].copy_from_slice(&(value & !PIE).to_le_bytes());
    let dir = TempDir::new();
    let program = dir.path().join("silent");
    std::fs::write(&program, bytes).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (running, pid, ledger) = start(&Program::new(&program));
    assert!(!ledger.own.is_empty());
    let (_, snapshot) = look(&[&pid.to_string()], &dir);
    snapshot.agrees(&ledger, true);
    end(running, pid);
}

/// Where threads have the thread-local variables of libraries: of one that comes with the program, of one that is
/// loaded later, by each way in which compilers have code find them.
#[test]
fn thread_local_variables_of_libraries_are_told() {
    let models: [&[&str]; 4] =
        [&[], &["-mtls-dialect=gnu2"], &["-ftls-model=initial-exec"], &["-ftls-model=global-dynamic"]];
    for (model, preloaded) in models.into_iter().flat_map(|model| [(model, true), (model, false)]) {
        let library = fixtures::library_with("declared_library", model);
        let mut program = Program::fixture("declared_user").args([library.to_str().unwrap()]);
        if preloaded {
            program = program.env("LD_PRELOAD", &library);
        }
        let (running, pid, answer) = agrees_of(&program);
        // room for the variables of libraries that are loaded later is where the others' are, if their code asks for
        // that (or may, by glibc's tunable)
        let told = answer["types"]
            .as_array()
            .unwrap()
            .iter()
            .find(|of| of["name"] == "thread-local variables of declared_library.so");
        let is_on_heap = !preloaded && !model.contains(&"-ftls-model=initial-exec");
        if !is_on_heap {
            assert_eq!(told, None, "{model:?}");
        } else if !model.contains(&"-mtls-dialect=gnu2") {
            assert_eq!(told.unwrap()["blocks"], 3, "{model:?}: those of the threads that use them");
        }
        end(running, pid);
    }
}

/// The same with musl, whose vectors and blocks are others.
#[test]
fn thread_local_variables_of_libraries_are_told_with_musl() {
    let library = fixtures::musl_library("declared_library");
    for preloaded in [true, false] {
        let mut program = Program::new(fixtures::musl_program("declared_user", &[])).args([library.to_str().unwrap()]);
        if preloaded {
            program = program.env("LD_PRELOAD", &library);
        }
        let (running, pid, _) = agrees_of(&program);
        end(running, pid);
    }
}

#[test]
fn containers_of_rust_are_told() {
    let (running, pid, answer) = agrees(&fixtures::program("declared_rust"));
    assert_eq!(certainty(&answer, "declared_rust::Square"), "exact");
    assert_eq!(answer["lost"]["blocks"], 1);
    end(running, pid);
}

fn warnings(arguments: &[&str]) -> String {
    let output = Command::new(HEAPTRACE).arg("heap").args(arguments).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// A variable's members are kept in a file, even where no block has a type of its own; what a file has cannot be asked
/// for again.
#[test]
fn members_are_kept_where_no_block_has_a_type() {
    let (running, pid, _) = start(&Program::fixture("declared_untyped"));
    let dir = TempDir::new();
    let saved = dir.path().join("saved.heap");
    let (pid_text, saved) = (pid.to_string(), saved.to_str().unwrap());
    let told = ask(&[&pid_text, "--save", saved, "--of", "g_holder", "--color", "never"]);
    assert!(told.contains("g_holder.any: zeros at"), "{told}");
    assert_eq!(ask(&[saved, "--of", "g_holder", "--color", "never"]), told);
    let refused = Command::new(HEAPTRACE).args(["heap", saved, "--no-types"]).output().unwrap();
    assert!(!refused.status.success());
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("this file keeps the types that it was saved with"), "{text}");
    end(running, pid);
}

/// Where debug information is not whole, that is told; not where there is none, as in most programs of a system: the
/// report says which types are not known.
#[test]
fn what_is_missing_of_types_is_told() {
    let (running, pid, _) = start(&Program::new(fixtures::program_with("declared_untyped", &["-s"])));
    assert_eq!(warnings(&[&pid.to_string()]), "");
    end(running, pid);
    let dir = TempDir::new();
    let program = dir.path().join("split");
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-gsplit-dwarf", "-o"]).arg(&program).arg(fixtures::source("declared_untyped"));
    assert!(compiler.current_dir(dir.path()).status().unwrap().success());
    let (running, pid, _) = start(&Program::new(&program));
    let pid_text = pid.to_string();
    assert_eq!(warnings(&[&pid_text]), "");
    let files = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
    let split: Vec<_> = files.filter(|path| path.extension().is_some_and(|name| name == "dwo")).collect();
    assert_eq!(split.len(), 1);
    std::fs::remove_file(&split[0]).unwrap();
    assert_eq!(warnings(&[&pid_text, "--no-types"]), "");
    let told = warnings(&[&pid_text]);
    assert!(told.contains("split: 1 .dwo files (split DWARF) are missing"), "{told}");
    end(running, pid);
}

/// An interpreter without debug information is told the same with and without types: no block changes its holder, or
/// comes or goes, and what blocks look like stays where nothing is declared.
#[test]
fn an_interpreter_is_told_the_same_without_types() {
    const SCRIPT: &str = "
import os, sys
kept = {str(number): [number] * 20 for number in range(20000)}
print('ready', os.getpid(), flush=True)
sys.stdin.read()
";
    let mut running = Program::new("/usr/bin/python3").args(["-c", SCRIPT]).start();
    let pid: i32 = running.value("ready").parse().unwrap();
    let told = |arguments: &[&str]| -> Value {
        serde_json::from_str(&ask(&[arguments, &["--json", &pid.to_string()]].concat())).unwrap()
    };
    let (with, without) = (told(&[]), told(&["--no-types"]));
    for same in ["allocator", "chunks", "findings", "reachable", "lost", "held_by_several", "holders", "duplicates"] {
        assert_eq!(with[same], without[same], "{same}");
    }
    let of = |answer: &Value, name: &str| {
        let types = answer["types"].as_array().unwrap();
        types.iter().find(|of| of["name"] == name).map_or(0, |of| of["blocks"].as_u64().unwrap())
    };
    let all = |answer: &Value| -> u64 {
        answer["types"].as_array().unwrap().iter().map(|of| of["blocks"].as_u64().unwrap()).sum()
    };
    assert_eq!(all(&with), all(&without));
    // the C library's own debug information, where it is installed, tells what few of them are
    // the blocks of the interpreter's own that are no text
    assert!(of(&with, "unknown") > 200, "{}", with["types"]);
    for (name, few) in [("unknown", 150), ("text", 20)] {
        let (typed, untyped) = (of(&with, name), of(&without, name));
        assert!(typed <= untyped && untyped - typed <= few, "{name}: {typed}, {untyped}");
    }
    running.feed(b"");
    running.wait().success();
}
