//! The lines of source that have bytes, with their text and a few lines around, as far as the files are here.
//!
//! A path comes from the debug information of the program, or from a profile that somebody else has written: only what has a name as source code has,
//! and none as secrets have, is read.

use super::super::json::frames::FrameTable;
use super::super::view::View;
use super::{Column, leaked};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};
use std::time::SystemTime;

/// So many lines with bytes are shown, those with most.
const MOST_LINES: usize = 2_000;

/// So many files are looked for, those with most bytes: on a file system that answers late each may take long.
const MOST_FILES: usize = 500;

/// So many lines before and behind one with bytes are shown, too.
const AROUND: u32 = 2;

/// A longer line is cut, in characters.
const LONGEST: usize = 160;

/// A larger file is no source that a person wrote, in bytes.
const LARGEST_FILE: u64 = 4 << 20;

/// So much text is held in all, in bytes.
const MOST_TEXT: usize = 192 << 10;

/// How names of source files end.
const ENDINGS: &str = "c cc cpp cxx c++ h hh hpp hxx h++ ipp inl tcc rs go zig d swift m mm f f90 f95 py pyx java kt cu S s asm y l ada adb ads nim cr v ml hs";

/// Names with these are taken for secrets, whatever their case.
const SECRET: [&str; 4] = ["secret", "credential", "password", "passwd"];

/// So are names of which one word is one of these.
const SECRET_WORDS: [&str; 7] = ["key", "keys", "apikey", "privatekey", "token", "tokens", "env"];

/// Opening a pipe that nobody writes to does not wait (`O_NONBLOCK` of open(2)).
const NONBLOCK: i32 = 0o4000;

/// Folders that begin with a dot and hold sources of other people.
const KNOWN_HIDDEN: [&str; 4] = [".cargo", ".rustup", ".conan", ".conan2"];

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
    lines.retain(|line| {
        let file = table.frames().get(line.frame as usize).and_then(|frame| frame.file);
        file.is_some_and(|file| match is_here.get(file).copied() {
            Some(is_here) => is_here,
            None if is_here.len() >= MOST_FILES => false,
            None => *is_here.entry(file).or_insert(opened(Path::new(file)).is_ok()),
        })
    });
    lines.truncate(MOST_LINES);
    let files = texts(table, &lines);
    Source { lines, files }
}

fn add_up(view: &View<'_>, table: &FrameTable<'_>, columns: &[Column], of_frame: &[Option<usize>], lines: &mut [Line]) {
    let leaked = leaked(view.profile);
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    for site in view.sites() {
        let bytes: Vec<u64> = columns.iter().map(|column| column.of(site, view, &leaked).bytes).collect();
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
fn texts(table: &FrameTable<'_>, lines: &[Line]) -> Vec<Text> {
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
    let mut room = MOST_TEXT;
    let mut built: FxHashMap<&str, Option<SystemTime>> = FxHashMap::default();
    let mut texts = Vec::new();
    for (file, frame) in order {
        let Ok((text, modified)) = text_of(Path::new(file)) else { continue };
        let module = table.frames().get(frame as usize).and_then(|frame| frame.module.as_deref()).unwrap_or_default();
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

/// Why the text may not be what ran: `built` is when the program's file was, `modified` when that of the source.
fn doubt(built: Option<SystemTime>, modified: SystemTime) -> Option<&'static str> {
    match built {
        Some(built) if modified <= built => None,
        Some(_) => Some("changed since the program was built: its lines may have moved"),
        None => Some("the program's file is not here to compare with: this may be another version"),
    }
}

fn text_of(path: &Path) -> io::Result<(String, SystemTime)> {
    let file = opened(path)?;
    let modified = file.metadata()?.modified()?;
    let mut text = String::new();
    file.take(LARGEST_FILE).read_to_string(&mut text)?;
    Ok((text, modified))
}

/// A source file that may be shown.
fn opened(path: &Path) -> io::Result<File> {
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let real = path.canonicalize()?;
    if !path.is_absolute() || !may_be_shown(path) || !may_be_shown(&real) {
        return Err(refused());
    }
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&real)?;
    let about = file.metadata()?;
    // Folders may be somebody else's, who has put a link there meanwhile: what counts is what was opened.
    let is_it = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))? == real;
    if is_it && about.is_file() && about.len() <= LARGEST_FILE { Ok(file) } else { Err(refused()) }
}

/// Whether a name is that of source code, and of nothing secret.
fn may_be_shown(path: &Path) -> bool {
    let is_source = path
        .extension()
        .and_then(|ending| ending.to_str())
        .is_some_and(|ending| ENDINGS.split(' ').any(|known| known.eq_ignore_ascii_case(ending)));
    let may = |name: &str| {
        let lower = name.to_lowercase();
        let is_hidden = name.starts_with('.') && !KNOWN_HIDDEN.contains(&name);
        let is_secret = SECRET.iter().any(|secret| lower.contains(secret));
        !is_hidden && !is_secret && !words(name).iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
    };
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    is_source && parts.map(|part| part.as_os_str().to_str()).all(|name| name.is_some_and(may))
}

/// The words of a name, in small letters: `HostKey`, `host_key` and `host-key.c` have the same first ones.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for letter in name.chars() {
        if !letter.is_alphabetic() || before.is_lowercase() && letter.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphabetic()) {
            word.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_no_source_or_looks_secret_is_not_shown() {
        for path in [
            "/src/main.c",
            "/a/b/lib.rs",
            "/root/.cargo/registry/src/x-1.0/src/lib.rs",
            "/a/x.y/B.CPP",
            "/home/monkey/keyboard.c",
            "/a/tokenizer.cc",
        ] {
            assert!(may_be_shown(Path::new(path)), "{path}");
        }
        for path in [
            "/etc/passwd",
            "/src/secrets.c",
            "/src/my-Secret/main.c",
            "/src/.env.c",
            "/src/id_key.rs",
            "/src/HostKey.java",
            "/home/a/.ssh/x.c",
            "/src/Credentials.java",
            "/src/password.py",
            "/src/server.pem",
            "/src/tokens/a.c",
            "/src/Makefile",
            "/src/a.txt",
        ] {
            assert!(!may_be_shown(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn younger_sources_are_doubted() {
        let early = SystemTime::UNIX_EPOCH;
        let late = early + Duration::from_secs(1);
        assert!(doubt(Some(late), early).is_none() && doubt(Some(late), late).is_none());
        assert!(doubt(Some(early), late).unwrap().contains("changed since"));
        assert!(doubt(None, early).unwrap().contains("not here"));
    }
}
