//! Sums over the stacks by function, file, module, thread or type.

use super::super::sections::Layout;
use super::super::text::{basename, grouped, human_bytes, percent, printable, right, short_name};
use super::super::view::{NamedFrame, View};
use super::{By, QueryOptions, json, more, title};
use crate::profile::Sample;
use crate::profile::value::Value;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::Write;

/// The sums of a name.
#[derive(Clone, Debug, Default, Serialize)]
struct Group {
    name: String,
    /// Of the stacks whose innermost frame it is.
    own_bytes: u64,
    own_blocks: u64,
    /// Of all stacks through it.
    total_bytes: u64,
    total_blocks: u64,
}

#[derive(Serialize)]
struct JsonGroups<'a> {
    value: &'static str,
    by: &'static str,
    bytes: u64,
    groups: &'a [Group],
}

const fn by_name(by: By) -> &'static str {
    match by {
        By::Function => "function",
        By::File => "file",
        By::Module => "module",
        By::Thread => "thread",
        By::Type => "type",
    }
}

/// The table as text or JSON.
pub(super) fn show(view: &View<'_>, value: Value, by: By, options: &QueryOptions, layout: Layout) -> String {
    let (mut groups, whole) = match by {
        By::Thread => samples(view, value, |sample| thread_name(view, sample)),
        By::Type => samples(view, value, |sample| type_name(view, sample.stack)),
        By::Function | By::File | By::Module => frames(view, value, by),
    };
    groups.retain(|group| group.total_blocks > 0 || group.total_bytes > 0);
    groups.sort_by(|a, b| {
        let key = |group: &Group| Reverse((group.own_bytes, group.total_bytes, group.total_blocks));
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    if options.json {
        let groups = groups.get(..options.top).unwrap_or(&groups);
        return json(&JsonGroups { value: value.name(), by: by_name(by), bytes: whole, groups });
    }
    let mut out = String::new();
    title(&mut out, layout, value, whole, &format!(", by {}", by_name(by)));
    let (shown, rest) = groups.split_at(options.top.min(groups.len()));
    let blocks = shown.iter().map(|group| grouped(group.own_blocks).len()).max().unwrap_or(0).max("blocks".len());
    let head = match by {
        By::Thread | By::Type => format!("  {:>10}  {:>7}  {}  {}", "", "", right("blocks", blocks), by_name(by)),
        _ => format!(
            "  {:>10}  {:>7}  {}  {:>10}  {:>7}  {}",
            "itself",
            "",
            right("blocks", blocks),
            "total",
            "",
            by_name(by)
        ),
    };
    let _ = writeln!(out, "{}", layout.paint.dim(&head));
    for group in shown {
        let total = match by {
            By::Thread | By::Type => String::new(),
            _ => format!("  {:>10}  {:>7}", human_bytes(group.total_bytes), percent(group.total_bytes, whole)),
        };
        let begin = format!(
            "  {:>10}  {:>7}  {}{total}",
            human_bytes(group.own_bytes),
            percent(group.own_bytes, whole),
            right(&grouped(group.own_blocks), blocks)
        );
        let room = layout.width.saturating_sub(begin.chars().count() + 2).max(24);
        let name = match by {
            By::Function | By::Type => short_name(&group.name, room),
            _ => super::super::text::keep_end(&printable(&group.name), room),
        };
        let _ = writeln!(out, "{begin}  {name}");
    }
    if !rest.is_empty() {
        more(&mut out, layout, 2, rest.len(), rest.iter().map(|group| group.own_bytes).sum());
    }
    out
}

/// By what the frames have in common.
fn frames(view: &View<'_>, value: Value, by: By) -> (Vec<Group>, u64) {
    let mut groups: Vec<Group> = Vec::new();
    let mut known: FxHashMap<String, usize> = FxHashMap::default();
    let mut whole = 0u64;
    let mut seen: Vec<usize> = Vec::new();
    for site in view.sites() {
        let amount = site.of(value);
        whole = whole.saturating_add(amount.bytes);
        seen.clear();
        for (depth, frame) in view.frames(site.stack).enumerate() {
            let name = name_of(&frame, by);
            let at = match known.get(name.as_str()) {
                Some(at) => *at,
                None => {
                    known.insert(name.clone(), groups.len());
                    groups.push(Group { name, ..Group::default() });
                    groups.len() - 1
                }
            };
            let Some(group) = groups.get_mut(at) else { continue };
            if depth == 0 {
                group.own_bytes = group.own_bytes.saturating_add(amount.bytes);
                group.own_blocks = group.own_blocks.saturating_add(amount.objects);
            }
            // once for each stack, however often it is in it
            if !seen.contains(&at) {
                seen.push(at);
                group.total_bytes = group.total_bytes.saturating_add(amount.bytes);
                group.total_blocks = group.total_blocks.saturating_add(amount.objects);
            }
        }
    }
    (groups, whole)
}

fn name_of(frame: &NamedFrame<'_>, by: By) -> String {
    match by {
        By::File => frame.file.map_or_else(
            || frame.module.map_or("[unknown]".to_owned(), |module| format!("[{}]", basename(&module.path))),
            str::to_owned,
        ),
        By::Module => frame.module.map_or("[none]".to_owned(), |module| module.path.to_string_lossy().into_owned()),
        By::Function | By::Thread | By::Type => frame.name.to_owned(),
    }
}

/// The name of a stack's type, and whether it is only inferred.
fn type_name(view: &View<'_>, stack: usize) -> String {
    view.object_type(stack).map_or_else(|| "[unknown]".to_owned(), ToString::to_string)
}

/// By what the samples themselves tell.
fn samples(view: &View<'_>, value: Value, name: impl Fn(&Sample) -> String) -> (Vec<Group>, u64) {
    let mut groups: FxHashMap<String, Group> = FxHashMap::default();
    let mut whole = 0u64;
    for sample in view.samples.iter() {
        let amount = value.of(&sample);
        whole = whole.saturating_add(amount.bytes);
        let group = groups.entry(name(&sample)).or_default();
        group.own_bytes = group.own_bytes.saturating_add(amount.bytes);
        group.own_blocks = group.own_blocks.saturating_add(amount.objects);
    }
    let named = groups.into_iter().map(|(name, group)| {
        let (total_bytes, total_blocks) = (group.own_bytes, group.own_blocks);
        Group { name, total_bytes, total_blocks, ..group }
    });
    (named.collect(), whole)
}

fn thread_name(view: &View<'_>, sample: &Sample) -> String {
    let name = view.string(sample.thread);
    if name.is_empty() { "[not told]" } else { name }.to_owned()
}
