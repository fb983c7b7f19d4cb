//! `.heaptimeline`, which the Memory panel of Chrome's developer tools opens: live blocks by the places that allocated
//! them, when that was, and the stacks.
//!
//! A block's id is made of the number of its birth, so that it is the same in each file that is made of one trace; the
//! tools draw what was allocated between two samples, the second and the first one's last ids. In the tree of stacks a
//! node has what was allocated there in all, as V8 has it: what is live of that the tools count by the nodes' ids.

use super::devtools::{ELEMENT, NATIVE, Node, ROOTS, SYNTHETIC, Strings, begin, comma, write_edge, write_node};
use super::escape::printable;
use super::view::{NamedFrame, View};
use crate::profile::births::{Births, Born};
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Nodes before the blocks: the root of all, and what the blocks hang on.
const BEFORE: u64 = 2;

/// Writes it.
///
/// # Errors
/// What `out` says; if the profile does not know single blocks.
pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let profile = view.profile;
    let Some(births) = &profile.course.births else {
        let why = match profile.processes.is_empty() {
            true => "a .heaptimeline is made of a trace: `heaptrace convert`",
            false => {
                "a .heaptimeline holds one process, and there are several: put %p in the file's name, and each process \
                 gets a file"
            }
        };
        return Err(io::Error::other(why));
    };
    let mut strings = Strings::default();
    let tree = Tree::new(view, &mut strings);
    let ids = Ids::new(births);
    let blocks = births.blocks.len() as u64;
    begin(out, BEFORE + blocks, 1 + blocks, tree.functions.len() as u64)?;
    let mut first = true;
    for (number, (name, edges)) in [("", 1), (ROOTS, blocks)].into_iter().enumerate() {
        let (name, id) = (strings.number(name), number as u32 * 2 + 1);
        write_node(out, &Node { kind: SYNTHETIC, name, id, size: 0, edges, trace: 0 }, &mut first)?;
    }
    let mut places: FxHashMap<usize, (u32, String)> = FxHashMap::default();
    for (rank, born) in births.blocks.iter().enumerate() {
        let place = || {
            let name = view.frames(born.stack).next().map_or_else(String::new, |frame| printable(frame.name));
            (strings.number(&name), name)
        };
        let (name, text) = places.entry(born.stack).or_insert_with(place);
        let name = match born.blocks {
            0 | 1 => *name,
            several => strings.number(&format!("{text} (and {} more)", several - 1)),
        };
        let (id, trace) = (ids.of(rank, born), tree.node_of(born.stack));
        write_node(out, &Node { kind: NATIVE, name, id, size: born.bytes, edges: 0, trace }, &mut first)?;
    }
    out.write_all(b"],\n\"edges\":[")?;
    let mut first = true;
    write_edge(out, (ELEMENT, 1, 1), &mut first)?;
    for block in 0..blocks {
        write_edge(out, (ELEMENT, block as u32 + 1, BEFORE + block), &mut first)?;
    }
    out.write_all(b"],\n\"trace_function_infos\":[")?;
    tree.write_functions(out)?;
    out.write_all(b"],\n\"trace_tree\":[")?;
    tree.write_nodes(out)?;
    out.write_all(b"],\n\"samples\":[")?;
    let mut first = true;
    let begin_ns = births.moments.first().map_or(0, |moment| moment.t_ns);
    for moment in &births.moments {
        comma(out, &mut first)?;
        write!(out, "{},{}", moment.t_ns.saturating_sub(begin_ns) / 1000, ids.last_of(births, moment.births))?;
    }
    out.write_all(b"],\"locations\":[],\n")?;
    strings.end(out)
}

/// Which ids the blocks have: odd ones, in the order of their births.
enum Ids {
    /// By their births, behind so many blocks that were there before.
    Births(u64),
    /// By their places among the live ones: the numbers of births would be too large.
    Ranks,
}

impl Ids {
    fn new(births: &Births<usize>) -> Self {
        let of_blocks = births.blocks.last().map_or(0, |born| born.birth);
        let last = births.moments.last().map_or(0, |moment| moment.births).max(of_blocks);
        let existing = births.existing.max(births.blocks.partition_point(|born| born.birth == 0) as u64);
        match last.checked_add(existing).and_then(id_of) {
            Some(_) => Self::Births(existing),
            None => Self::Ranks,
        }
    }

    /// That of a block with this place among the live ones.
    fn of(&self, rank: usize, born: &Born<usize>) -> u32 {
        let number = match self {
            Self::Births(existing) if born.birth > 0 => existing.saturating_add(born.birth),
            Self::Births(_) | Self::Ranks => rank as u64 + 1,
        };
        id_of(number).unwrap_or(u32::MAX)
    }

    /// The last one that is given when so many blocks have been born.
    fn last_of(&self, births: &Births<usize>, born: u64) -> u32 {
        let number = match self {
            Self::Births(existing) => existing.saturating_add(born),
            Self::Ranks => births.blocks.partition_point(|block| block.birth <= born) as u64,
        };
        id_of(number).unwrap_or(u32::MAX)
    }
}

/// The id of the block with this number, from 1 on: 1 and 3 are those of the nodes before. None if it has none.
fn id_of(number: u64) -> Option<u32> {
    u32::try_from(number.checked_mul(2)?.checked_add(3)?).ok()
}

/// A place in the code: function, file, line, all by their numbers in the format.
type Function = (u32, u32, u32, u32);

/// What was allocated where: a tree of calls, whose root is the first node.
struct Tree {
    functions: Vec<Function>,
    nodes: Vec<Call>,
    /// Of each stack of the profile: its innermost node.
    of_stack: Vec<u32>,
}

/// A call in it.
#[derive(Default)]
struct Call {
    function: u32,
    objects: u64,
    bytes: u64,
    first_child: Option<u32>,
    last_child: u32,
    next_sibling: Option<u32>,
}

impl Tree {
    fn new(view: &View<'_>, strings: &mut Strings) -> Self {
        let mut tree = Self { functions: Vec::new(), nodes: Vec::new(), of_stack: Vec::new() };
        tree.functions.push((strings.number("(root)"), strings.number(""), 0, 0));
        tree.nodes.push(Call::default());
        let mut building = Building::default();
        tree.of_stack = vec![u32::MAX; view.profile.stacks.len()];
        for sample in view.samples.iter().filter(|sample| sample.allocated.objects > 0 || sample.live.objects > 0) {
            let known = tree.of_stack.get(sample.stack).copied().filter(|node| *node != u32::MAX);
            let node = known.unwrap_or_else(|| building.enter(&mut tree, view, sample.stack, strings));
            if let Some(slot) = tree.of_stack.get_mut(sample.stack) {
                *slot = node;
            }
            if let Some(call) = tree.nodes.get_mut(node as usize) {
                // what came over a fork, or was there before, was not allocated here
                call.objects = call.objects.saturating_add(sample.allocated.objects.max(sample.live.objects));
                call.bytes = call.bytes.saturating_add(sample.allocated.bytes.max(sample.live.bytes));
            }
        }
        tree
    }

    /// The id of the node of a stack; 0 if it has none.
    fn node_of(&self, stack: usize) -> u32 {
        self.of_stack.get(stack).map_or(0, |node| node.wrapping_add(1))
    }

    fn write_functions(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut first = true;
        for (number, (name, file, script, line)) in self.functions.iter().enumerate() {
            comma(out, &mut first)?;
            let column = u32::from(*script > 0);
            write!(out, "{},{name},{file},{script},{line},{column}", number + 1)?;
        }
        Ok(())
    }

    /// Writes the nodes, each with those below it in its last field.
    fn write_nodes(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut above: Vec<u32> = Vec::new();
        let mut at = 0;
        while let Some(call) = self.nodes.get(at as usize) {
            write!(out, "{},{},{},{},[", at + 1, call.function, call.objects, call.bytes)?;
            if let Some(child) = call.first_child {
                above.push(at);
                at = child;
                continue;
            }
            out.write_all(b"]")?;
            let mut next = call.next_sibling;
            while next.is_none() {
                let Some(parent) = above.pop() else { return Ok(()) };
                out.write_all(b"]")?;
                next = self.nodes.get(parent as usize).and_then(|call| call.next_sibling);
            }
            out.write_all(b",")?;
            at = next.unwrap_or(u32::MAX);
        }
        Ok(())
    }
}

/// What is needed only while the tree is made.
#[derive(Default)]
struct Building {
    functions: FxHashMap<Function, u32>,
    scripts: FxHashMap<String, u32>,
    /// By caller and function.
    calls: FxHashMap<(u32, u32), u32>,
}

impl Building {
    /// The node of a stack, with those of its callers.
    fn enter(&mut self, tree: &mut Tree, view: &View<'_>, stack: usize, strings: &mut Strings) -> u32 {
        let frames: Vec<NamedFrame<'_>> = view.frames(stack).collect();
        let mut at = 0;
        for frame in frames.iter().rev() {
            let function = self.function(tree, frame, strings);
            let next = tree.nodes.len() as u32;
            let call = *self.calls.entry((at, function)).or_insert(next);
            if call == next {
                tree.nodes.push(Call { function, ..Call::default() });
                let last = tree.nodes.get_mut(at as usize).and_then(|parent| match parent.first_child {
                    None => {
                        (parent.first_child, parent.last_child) = (Some(call), call);
                        None
                    }
                    Some(_) => Some(std::mem::replace(&mut parent.last_child, call)),
                });
                if let Some(last) = last.and_then(|last| tree.nodes.get_mut(last as usize)) {
                    last.next_sibling = Some(call);
                }
            }
            at = call;
        }
        at
    }

    fn function(&mut self, tree: &mut Tree, frame: &NamedFrame<'_>, strings: &mut Strings) -> u32 {
        let file = printable(frame.file.unwrap_or_default());
        let next = self.scripts.len() as u32 + 1;
        let (script, line) = match frame.file {
            Some(_) => (*self.scripts.entry(file.clone()).or_insert(next), frame.line),
            None => (0, 0),
        };
        let function = (strings.number(&printable(frame.name)), strings.number(&file), script, line);
        let next = tree.functions.len() as u32;
        let number = *self.functions.entry(function).or_insert(next);
        if number == next {
            tree.functions.push(function);
        }
        number
    }
}
