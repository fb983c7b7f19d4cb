//! What the files of Chrome's developer tools are made of: V8's format of heap snapshots and timelines
//! (src/profiler/heap-snapshot-generator.cc, `HeapSnapshotJSONSerializer`). The tools keep the numbers of nodes and
//! edges in 32 bits.

use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Types of nodes, in the format's order.
const NODE_TYPES: &str = r#"["hidden","array","string","object","code","closure","regexp","number","native","synthetic","concatenated string","sliced string","symbol","bigint","object shape"]"#;
pub(super) const STRING: u32 = 2;
pub(super) const OBJECT: u32 = 3;
pub(super) const NATIVE: u32 = 8;
pub(super) const SYNTHETIC: u32 = 9;
/// Types of edges.
const EDGE_TYPES: &str = r#"["context","element","property","internal","hidden","shortcut","weak"]"#;
pub(super) const ELEMENT: u32 = 1;
pub(super) const PROPERTY: u32 = 2;
/// Numbers that make up a node.
const NODE_FIELDS: u64 = 7;

/// The name of the node that all blocks are below.
pub(super) const ROOTS: &str = "(GC roots)";

/// Writes the beginning, up to the first node.
pub(super) fn begin(out: &mut dyn Write, nodes: u64, edges: u64, functions: u64) -> io::Result<()> {
    write!(
        out,
        r#"{{"snapshot":{{"meta":{{"node_fields":["type","name","id","self_size","edge_count","trace_node_id","detachedness"],"node_types":[{NODE_TYPES},"string","number","number","number","number","number"],"edge_fields":["type","name_or_index","to_node"],"edge_types":[{EDGE_TYPES},"string_or_number","node"],"trace_function_info_fields":["function_id","name","script_name","script_id","line","column"],"trace_node_fields":["id","function_info_index","count","size","children"],"sample_fields":["timestamp_us","last_assigned_id"],"location_fields":["object_index","script_id","line","column"]}},"node_count":{nodes},"edge_count":{edges},"trace_function_count":{functions}}},"nodes":["#
    )
}

/// The table of strings.
#[derive(Default)]
pub(super) struct Strings {
    all: Vec<String>,
    known: FxHashMap<String, u32>,
}

impl Strings {
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let number = self.all.len() as u32;
        self.all.push(text.to_owned());
        self.known.insert(text.to_owned(), number);
        number
    }

    /// Writes it: the end of the file.
    pub(super) fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"\"strings\":")?;
        serde_json::to_writer(&mut *out, &self.all)?;
        out.write_all(b"}\n")
    }
}

/// One node of the format.
pub(super) struct Node {
    pub(super) kind: u32,
    pub(super) name: u32,
    pub(super) id: u32,
    pub(super) size: u64,
    pub(super) edges: u64,
    /// The node of the tree of stacks; 0 for none.
    pub(super) trace: u32,
}

/// Separates entries.
pub(super) fn comma(out: &mut dyn Write, first: &mut bool) -> io::Result<()> {
    if std::mem::replace(first, false) { Ok(()) } else { out.write_all(b",\n") }
}

pub(super) fn write_node(out: &mut dyn Write, node: &Node, first: &mut bool) -> io::Result<()> {
    comma(out, first)?;
    let size = node.size.min(u64::from(u32::MAX));
    write!(out, "{},{},{},{size},{},{},0", node.kind, node.name, node.id, node.edges, node.trace)
}

/// An edge: its type, its name or number, and the node that it leads to.
pub(super) fn write_edge(out: &mut dyn Write, (kind, name, to): (u32, u32, u64), first: &mut bool) -> io::Result<()> {
    comma(out, first)?;
    write!(out, "{kind},{name},{}", to * NODE_FIELDS)
}
