//! The lines of source that have bytes, with their text and a few lines around, as far as the files are here.

use super::super::json::frames::FrameTable;
use super::super::view::View;
use super::{Column, leaked};
use crate::base::sources::{Readers, doubt, opened, text_of};
use crate::profile::Profile;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

/// So many lines with bytes are shown, those with most.
const MAX_LINES: usize = 2_000;

/// So many files are looked for, those with most bytes: on a file system that answers late each may take long.
const MAX_FILES: usize = 500;

/// So many lines before and behind one with bytes are shown, too.
const AROUND: u32 = 2;

/// A longer line is cut, in characters.
const LONGEST: usize = 160;

/// So much text is held in all, in bytes.
const MAX_TEXT: usize = 192 << 10;

/// What the page holds of sources.
#[derive(Debug, Default, Serialize)]
pub(super) struct Source {
    /// The lines with bytes.
    lines: Vec<Line>,
    files: Vec<Text>,
}

/// A line of a function.
#[derive(Debug, Serialize)]
struct Line {
    /// A frame with its function, file and line.
    frame: u32,
    /// For each column the bytes that were allocated in this line itself.
    own: Vec<u64>,
    /// The same with what is further inside; each stack counts once.
    total: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct Text {
    /// A frame of this file.
    frame: u32,
    /// Why it may not be what ran.
    doubt: Option<&'static str>,
    /// Numbers and texts.
    lines: Vec<(u32, String)>,
}

/// Function, file, line.
type Place<'a> = (&'a str, &'a str, u32);

/// Who must be able to read the sources of a module.
struct ModuleReaders {
    users: Readers,
    modules: FxHashMap<String, Readers>,
}

impl ModuleReaders {
    fn of_process(profile: &Profile) -> Self {
        let process = &profile.meta.process;
        let users = Readers::of_process(&process.users, process.user_is_unknown);
        Self { users, modules: FxHashMap::default() }
    }

    fn of(&mut self, module: &str) -> &Readers {
        let users = &self.users;
        self.modules.entry(module.to_owned()).or_insert_with(|| users.of_module(Path::new(module)))
    }
}

/// Reads what `view` needs.
pub(super) fn of(view: &View<'_>, table: &FrameTable<'_>, columns: &[Column]) -> Source {
    let mut places: FxHashMap<Place<'_>, usize> = FxHashMap::default();
    let mut lines: Vec<Line> = Vec::new();
    let of_frame: Vec<Option<usize>> = (0u32..)
        .zip(table.frames())
        .map(|(index, frame)| {
            let (file, line) = (frame.file?, frame.line?);
            Some(*places.entry((frame.function, file, line)).or_insert_with(|| {
                lines.push(Line { frame: index, own: vec![0; columns.len()], total: vec![0; columns.len()] });
                lines.len() - 1
            }))
        })
        .collect();
    if lines.is_empty() {
        return Source::default();
    }
    add_up(view, table, columns, &of_frame, &mut lines);
    lines.retain(|line| line.total.iter().any(|bytes| *bytes > 0));
    lines.sort_by_key(|line| (std::cmp::Reverse(line.total.iter().max().copied()), line.frame));
    let mut is_here: FxHashMap<&str, bool> = FxHashMap::default();
    let mut readers = ModuleReaders::of_process(view.profile);
    lines.retain(|line| {
        let Some((frame, file)) = table.frames().get(line.frame as usize).and_then(|of| Some((of, of.file?))) else {
            return false;
        };
        match is_here.get(file).copied() {
            Some(is_here) => is_here,
            None if is_here.len() >= MAX_FILES => false,
            None => {
                let readers = readers.of(frame.module.as_deref().unwrap_or_default());
                *is_here.entry(file).or_insert(opened(Path::new(file), readers).is_ok())
            }
        }
    });
    lines.truncate(MAX_LINES);
    let files = texts(table, &lines, &mut readers);
    Source { lines, files }
}

fn add_up(view: &View<'_>, table: &FrameTable<'_>, columns: &[Column], of_frame: &[Option<usize>], lines: &mut [Line]) {
    let leaked = leaked(view.profile);
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    for site in view.sites() {
        let bytes: Vec<u64> = columns.iter().map(|column| column.of(&site, view, &leaked).bytes).collect();
        seen.clear();
        for (depth, frame) in table.stack(site.stack).enumerate() {
            let Some(index) = of_frame.get(frame as usize).copied().flatten() else { continue };
            let Some(line) = lines.get_mut(index) else { continue };
            let is_first = seen.insert(index);
            for ((own, total), bytes) in line.own.iter_mut().zip(&mut line.total).zip(&bytes) {
                *own = own.saturating_add(if depth == 0 { *bytes } else { 0 });
                *total = total.saturating_add(if is_first { *bytes } else { 0 });
            }
        }
    }
}

/// The texts around the lines, the files with most first.
fn texts(table: &FrameTable<'_>, lines: &[Line], readers: &mut ModuleReaders) -> Vec<Text> {
    let mut order: Vec<(&str, u32)> = Vec::new();
    let mut wanted: FxHashMap<&str, BTreeSet<u32>> = FxHashMap::default();
    for line in lines {
        let Some((file, number)) = table.frames().get(line.frame as usize).and_then(|of| Some((of.file?, of.line?)))
        else {
            continue;
        };
        let numbers = wanted.entry(file).or_insert_with(|| {
            order.push((file, line.frame));
            BTreeSet::new()
        });
        numbers.extend(number.saturating_sub(AROUND).max(1)..=number.saturating_add(AROUND));
    }
    let mut room = MAX_TEXT;
    let mut built: FxHashMap<&str, Option<SystemTime>> = FxHashMap::default();
    let mut texts = Vec::new();
    for (file, frame) in order {
        let module = table.frames().get(frame as usize).and_then(|frame| frame.module.as_deref()).unwrap_or_default();
        let Ok((text, modified)) = text_of(Path::new(file), readers.of(module)) else { continue };
        let built = *built.entry(module).or_insert_with(|| std::fs::metadata(module).and_then(|of| of.modified()).ok());
        let numbers = wanted.remove(file).unwrap_or_default();
        let lines: Vec<(u32, String)> = (1u32..)
            .zip(text.lines())
            .filter(|(number, _)| numbers.contains(number))
            .map(|(number, line)| (number, line.replace('\t', "    ").chars().take(LONGEST).collect()))
            .collect();
        let size: usize = lines.iter().map(|(_, text)| text.len() + 8).sum();
        if size > room {
            break;
        }
        room -= size;
        texts.push(Text { frame, doubt: doubt(built, modified), lines });
    }
    texts
}
