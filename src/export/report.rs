//! What `heaptrace report` shows of a saved profile besides the summary: call trees, callers and callees of a function,
//! sums by function, file, module or thread; as text, or as JSON.

mod groups;
mod tree;

use super::sections::{Layout, heading};
use super::text::{Paint, grouped, human_bytes, percent, right};
use super::view::View;
use crate::profile::value::Value;
use crate::profile::{Amount, Profile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Sums are made by this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The functions of the stacks.
    Function,
    /// The files of source that they are in.
    File,
    /// The modules (program, libraries).
    Module,
    /// The names of the threads.
    Thread,
    /// The types of the objects in the blocks.
    Type,
}

/// What to show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// All calls, from the outermost function on.
    Tree,
    /// Who calls a function, and who calls those.
    Callers(String),
    /// Whom a function calls, and whom those call.
    Callees(String),
    /// Sums.
    By(By),
}

/// How to show it.
#[derive(Clone, Copy, Debug)]
pub struct QueryOptions {
    /// Which amounts; None: what the profile is about.
    pub value: Option<Value>,
    /// How many rows a table has at most, and how many children a node of a tree.
    pub top: usize,
    /// JSON instead of text.
    pub json: bool,
    /// Whether to use terminal colours.
    pub color: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// Why there is nothing to show.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum QueryError {
    /// No such function.
    #[error("no stack has a function whose name is, or contains, `{function}`{}", similar(near))]
    NoFunction { function: String, near: Vec<String> },
    /// The file does not have these amounts.
    #[error("this file has no amounts of `{value}`; it has {held}{}", cure(value))]
    NotHeld { value: &'static str, held: String },
}

fn similar(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; there are {}", near.join(", ")) }
}

fn cure(value: &str) -> &'static str {
    if value == "temporary" { "; a report.json of the same run has those, too" } else { "" }
}

/// Whether a profile has a value at all, as files of some formats have not all of them.
///
/// # Errors
/// It has not.
pub fn require(profile: &Profile, value: Option<Value>) -> Result<(), QueryError> {
    let is_held = |value| super::sections::is_held(profile, value);
    match value.filter(|value| !is_held(*value)) {
        None => Ok(()),
        Some(value) => {
            let held = Value::ALL.into_iter().filter(|value| is_held(*value)).map(Value::name);
            Err(QueryError::NotHeld { value: value.name(), held: held.collect::<Vec<_>>().join(", ") })
        }
    }
}

/// Shows it.
///
/// # Errors
/// The function is not there; the amounts are not in the file.
pub fn query(profile: &Profile, query: &Query, options: &QueryOptions) -> Result<String, QueryError> {
    require(profile, options.value)?;
    let view = View::new(profile);
    let value = view.value(options.value);
    let layout = Layout::new(Paint { color: options.color }, options.width);
    match query {
        Query::By(by) => Ok(groups::show(&view, value, *by, options, layout)),
        Query::Tree => Ok(tree::show(&tree::Tree::all(&view, value), "", options, layout)),
        Query::Callers(function) => {
            let tree = tree::Tree::callers(&view, value, function)?;
            Ok(tree::show(&tree, &format!(" through {function}, by callers"), options, layout))
        }
        Query::Callees(function) => {
            let tree = tree::Tree::callees(&view, value, function)?;
            Ok(tree::show(&tree, &format!(" through {function}, by callees"), options, layout))
        }
    }
}

/// What the threads of each name have of each value, by the names' indices in the profile's strings; nothing of what is
/// None.
pub(crate) fn thread_sums(view: &View<'_>, values: &[Option<Value>]) -> Vec<(usize, Vec<Amount>)> {
    let mut sums: BTreeMap<usize, Vec<Amount>> = BTreeMap::new();
    for sample in view.samples.iter() {
        let sums = sums.entry(sample.thread).or_insert_with(|| vec![Amount::default(); values.len()]);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = value.map_or(*sum, |value| sum.plus(value.of(&sample)));
        }
    }
    sums.into_iter().filter(|(_, sums)| sums.iter().any(|sum| *sum != Amount::default())).collect()
}

/// A document of JSON, with a line end.
fn json(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    // Writing to memory does not fail, and all keys are texts.
    let _ = serde_json::to_writer_pretty(super::escape::Json(&mut bytes), value);
    bytes.push(b'\n');
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The heading of a table or tree.
fn title(out: &mut String, layout: Layout, value: Value, bytes: u64, what: &str) {
    heading(out, layout, &format!("{}: {}{what}", value.title(), human_bytes(bytes)));
    // a heading begins with an empty line, which the first one does not need
    out.remove(0);
}

/// Bytes, share and blocks, in columns.
fn figures(bytes: u64, whole: u64, blocks: u64, width: usize) -> String {
    format!("{:>10}  {:>7}  {} ×", human_bytes(bytes), percent(bytes, whole), right(&grouped(blocks), width))
}

fn more(out: &mut String, layout: Layout, indent: usize, count: usize, bytes: u64) {
    let text = format!("and {} more, {}", grouped(count as u64), human_bytes(bytes));
    let _ = writeln!(out, "{:indent$}{}", "", layout.paint.dim(&text));
}
