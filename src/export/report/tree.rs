//! Trees of calls with totals: from the outermost function on, or from one function to its callers or callees.

use super::super::sections::Layout;
use super::super::text::{grouped, human_bytes, printable, short_name};
use super::super::view::{NamedFrame, View};
use super::{QueryError, QueryOptions, json, more, title};
use crate::profile::identity::without_arguments;
use crate::profile::value::Value;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::Write;

/// Nodes with less than one part in so many of the whole are summed up in a line.
const LITTLE: u64 = 200;

/// The deepest that a tree goes in JSON, whose readers have limits; text has none.
const DEEPEST: usize = 100;

/// A function in its place of the tree.
#[derive(Debug)]
struct Node<'a> {
    frame: Option<NamedFrame<'a>>,
    /// Of all stacks through it.
    bytes: u64,
    blocks: u64,
    /// Of the stacks that end here.
    own_bytes: u64,
    /// By name, and in the order of `order` once sorted.
    children: Vec<usize>,
}

/// See the module. The first node is the root, which is no function in the tree of all.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    value: Value,
    nodes: Vec<Node<'a>>,
}

#[derive(Serialize)]
struct JsonNode<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    bytes: u64,
    blocks: u64,
    own_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<JsonNode<'a>>,
}

#[derive(Serialize)]
struct JsonTree<'a> {
    value: &'static str,
    bytes: u64,
    blocks: u64,
    children: Vec<JsonNode<'a>>,
}

impl<'a> Tree<'a> {
    /// All calls.
    pub(super) fn all(view: &View<'a>, value: Value) -> Self {
        Self::grow(view, value, |frames| Some(frames.iter().rev().copied().collect()))
    }

    /// From a function to those that called it: the innermost of its frames counts, where it calls itself.
    pub(super) fn callers(view: &View<'a>, value: Value, function: &str) -> Result<Self, QueryError> {
        let matches = matcher(view, function)?;
        Ok(Self::grow(view, value, |frames| {
            let at = frames.iter().position(|frame| matches(frame.name))?;
            Some(frames.get(at..).unwrap_or_default().to_vec())
        }))
    }

    /// From a function to those that it called.
    pub(super) fn callees(view: &View<'a>, value: Value, function: &str) -> Result<Self, QueryError> {
        let matches = matcher(view, function)?;
        Ok(Self::grow(view, value, |frames| {
            let at = frames.iter().rposition(|frame| matches(frame.name))?;
            Some(frames.get(..=at).unwrap_or_default().iter().rev().copied().collect())
        }))
    }

    /// A tree of the ways that `way` gives of each stack; None: the stack is left out.
    fn grow(view: &View<'a>, value: Value, way: impl Fn(&[NamedFrame<'a>]) -> Option<Vec<NamedFrame<'a>>>) -> Self {
        let node = |frame| Node { frame, bytes: 0, blocks: 0, own_bytes: 0, children: Vec::new() };
        let mut tree = Self { value, nodes: vec![node(None)] };
        let mut known: FxHashMap<(usize, (&'a str, Option<&'a str>)), usize> = FxHashMap::default();
        for site in view.sites() {
            let amount = site.of(value);
            if amount.bytes == 0 && amount.objects == 0 {
                continue;
            }
            let frames: Vec<NamedFrame<'a>> = view.frames(site.stack).collect();
            let Some(way) = way(&frames) else { continue };
            let mut at = 0;
            tree.add(at, amount.bytes, amount.objects);
            for frame in way {
                let next = *known.entry((at, frame.key())).or_insert(tree.nodes.len());
                if next == tree.nodes.len() {
                    tree.nodes.push(node(Some(frame)));
                    if let Some(parent) = tree.nodes.get_mut(at) {
                        parent.children.push(next);
                    }
                }
                at = next;
                tree.add(at, amount.bytes, amount.objects);
            }
            if let Some(last) = tree.nodes.get_mut(at) {
                last.own_bytes = last.own_bytes.saturating_add(amount.bytes);
            }
        }
        tree.sort();
        tree
    }

    fn add(&mut self, at: usize, bytes: u64, blocks: u64) {
        if let Some(node) = self.nodes.get_mut(at) {
            node.bytes = node.bytes.saturating_add(bytes);
            node.blocks = node.blocks.saturating_add(blocks);
        }
    }

    fn sort(&mut self) {
        for at in 0..self.nodes.len() {
            let mut children =
                self.nodes.get_mut(at).map(|node| std::mem::take(&mut node.children)).unwrap_or_default();
            children.sort_by_key(|child| {
                let node = self.nodes.get(*child);
                (Reverse(node.map_or(0, |node| node.bytes)), node.and_then(|node| node.frame).map_or("", |f| f.name))
            });
            if let Some(node) = self.nodes.get_mut(at) {
                node.children = children;
            }
        }
    }

    fn whole(&self) -> (u64, u64) {
        self.nodes.first().map_or((0, 0), |root| (root.bytes, root.blocks))
    }

    fn children(&self, at: usize) -> &[usize] {
        self.nodes.get(at).map_or(&[], |node| &node.children)
    }

    fn json(&self, children: &[usize], top: usize, depth: usize) -> Vec<JsonNode<'a>> {
        let nodes = children.iter().take(top).filter_map(|at| self.nodes.get(*at));
        let deeper =
            |node: &Node<'a>| if depth < DEEPEST { self.json(&node.children, top, depth + 1) } else { Vec::new() };
        nodes
            .filter_map(|node| {
                let frame = node.frame?;
                Some(JsonNode {
                    function: frame.name,
                    file: frame.file,
                    line: Some(frame.line).filter(|line| *line > 0),
                    bytes: node.bytes,
                    blocks: node.blocks,
                    own_bytes: node.own_bytes,
                    children: deeper(node),
                })
            })
            .collect()
    }
}

/// Which functions a word of the user means: those of this name, without their arguments if there are none with; else
/// those whose names hold it.
fn matcher<'f>(view: &View<'_>, function: &'f str) -> Result<impl Fn(&str) -> bool + use<'f>, QueryError> {
    let names = || view.profile.functions.iter().map(|function| function.name.as_str());
    let levels: [fn(&str, &str) -> bool; 3] =
        [|name, word| name == word, |name, word| without_arguments(name) == word, |name, word| name.contains(word)];
    if let Some(level) = levels.into_iter().find(|level| names().any(|name| level(name, function))) {
        return Ok(move |name: &str| level(name, function));
    }
    let lower = function.to_lowercase();
    let mut near: Vec<String> =
        names().filter(|name| name.to_lowercase().contains(&lower)).map(|name| short_name(name, 60)).collect();
    near.sort_unstable();
    near.dedup();
    near.truncate(5);
    Err(QueryError::NoFunction { function: printable(function), near })
}

/// The tree as text or JSON.
pub(super) fn show(tree: &Tree<'_>, what: &str, options: &QueryOptions, layout: Layout) -> String {
    let (bytes, blocks) = tree.whole();
    if options.json {
        let children = tree.json(tree.children(0), options.top, 0);
        return json(&JsonTree { value: tree.value.name(), bytes, blocks, children });
    }
    let mut out = String::new();
    title(&mut out, layout, tree.value, bytes, &printable(what));
    let digits = grouped(blocks).len();
    // The way down: nodes still to be shown, with their indentation, and lines of what is left out.
    let mut open: Vec<(usize, Line)> = Vec::new();
    push_children(tree, 0, 0, options.top, bytes, &mut open);
    while let Some((indent, line)) = open.pop() {
        match line {
            Line::Rest { count, bytes } => {
                more(&mut out, layout, 2 + 10 + 2 + 7 + 2 + digits + 4 + indent, count, bytes)
            }
            Line::Node(at) => {
                let Some(node) = tree.nodes.get(at) else { continue };
                let Some(frame) = node.frame else { continue };
                let begin = format!("  {}", super::figures(node.bytes, bytes, node.blocks, digits));
                let room = layout.width.saturating_sub(begin.chars().count() + 2 + indent).max(24);
                let name = short_name(frame.name, room);
                let own = match node.own_bytes {
                    0 => String::new(),
                    own if own == node.bytes => String::new(),
                    own => format!("  ({} itself)", human_bytes(own)),
                };
                let left = room.saturating_sub(name.chars().count() + 2 + own.len());
                let place = if left >= 12 { frame.place(left) } else { String::new() };
                let tail = layout.paint.dim(format!("  {place}{own}").trim_end());
                let _ = writeln!(out, "{}", format!("{begin}  {:indent$}{name}{tail}", "").trim_end());
                // A chain of calls goes straight down.
                let deeper = if tree.children(at).len() > 1 { indent + 2 } else { indent };
                push_children(tree, at, deeper.min(60), options.top, bytes, &mut open);
            }
        }
    }
    if bytes == 0 && blocks == 0 {
        let _ = writeln!(out, "  Nothing.");
    }
    out
}

enum Line {
    Node(usize),
    Rest { count: usize, bytes: u64 },
}

/// How many of a node's children get lines of their own.
fn shown(tree: &Tree<'_>, at: usize, top: usize, whole: u64) -> usize {
    let is_much = |child: &&usize| tree.nodes.get(**child).is_some_and(|node| node.bytes >= whole / LITTLE);
    tree.children(at).iter().take(top).take_while(is_much).count()
}

fn push_children(tree: &Tree<'_>, at: usize, indent: usize, top: usize, whole: u64, open: &mut Vec<(usize, Line)>) {
    let children = tree.children(at);
    let (shown, rest) = children.split_at(shown(tree, at, top, whole));
    if !rest.is_empty() {
        let bytes = rest.iter().filter_map(|child| tree.nodes.get(*child)).map(|node| node.bytes).sum();
        open.push((indent, Line::Rest { count: rest.len(), bytes }));
    }
    open.extend(shown.iter().rev().map(|child| (indent, Line::Node(*child))));
}
