//! The rows of a table of stacks: of each stack the few frames that tell it from the others.

use super::escape::printable;
use super::telling::{is_plumbing, telling};
use super::text::{Paint, basename, is_system_file, keep_end_of_path, left, short_name};
use super::view::{NamedFrame, TRUNCATED_STACK, View};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt::Write;

/// How many frames a row shows, unless more are needed to tell it from another one.
const FRAMES: usize = 3;

/// So many frames that all rows share are named above them.
const SHARED: usize = 2;

/// A table's stacks, ready to be shown.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    /// What all rows share at the allocation and none of them repeats, innermost first: at most [`SHARED`] frames.
    pub shared: Vec<NamedFrame<'a>>,
    /// For each stack its frames, innermost first.
    pub rows: Vec<Vec<RowFrame<'a>>>,
}

/// So many lines of one frame are named.
const LINES: usize = 3;

/// A frame of a row.
#[derive(Clone, Debug)]
pub(crate) struct RowFrame<'a> {
    pub frame: NamedFrame<'a>,
    /// Whether calls between the frame before and this one are left out that the table would show otherwise.
    pub gap: bool,
    /// The lines of the function at which the row's stacks pass through it, ascending; empty where that is the frame's
    /// own one only.
    pub lines: Vec<u32>,
}

impl RowFrame<'_> {
    /// Where it is: as [`place`] says it, with all its lines.
    pub fn place(&self, width: usize) -> String {
        let (Some(file), [_, _, ..]) = (self.frame.file, self.lines.as_slice()) else {
            return self.frame.place(width);
        };
        let named = self.lines.iter().take(LINES).map(u32::to_string).collect::<Vec<_>>().join(", ");
        let more = if self.lines.len() > LINES { ", …" } else { "" };
        keep_end_of_path(&format!("{}:{named}{more}", printable(file)), width)
    }
}

/// A stack's frames, and which of them tell whose allocation it is.
struct Candidate<'a> {
    frames: Vec<NamedFrame<'a>>,
    telling: Vec<usize>,
    shown: Vec<usize>,
    /// Of each frame the lines that it has in stacks of the same functions.
    lines: Vec<BTreeSet<u32>>,
}

impl<'a> Rows<'a> {
    /// Rows for these stacks. Each begins at the first frame in which it differs from the others, and has the nearest
    /// frame of the program's own. No two have the same text, as far as their functions differ.
    pub fn new(view: &View<'a>, stacks: &[usize]) -> Self {
        let mut candidates: Vec<Candidate<'a>> = stacks.iter().map(|stack| Candidate::new(view, *stack)).collect();
        let common = common(&candidates);
        for candidate in &mut candidates {
            candidate.show(common);
        }
        tell_apart(&mut candidates);
        let first = candidates.first();
        let shared = first
            .into_iter()
            .flat_map(|first| first.telling.iter().take(common).filter_map(|at| first.frames.get(*at)));
        // An address says nothing that the rows could have in common.
        let shared: Vec<NamedFrame<'a>> = shared.copied().filter(|frame| !frame.traits.is_unresolved()).collect();
        let shared = shared.get(shared.len().saturating_sub(SHARED)..).unwrap_or_default().to_vec();
        note_lines(view, stacks, &mut candidates);
        Self { shared, rows: candidates.iter().map(Candidate::row).collect() }
    }
}

impl<'a> Candidate<'a> {
    fn new(view: &View<'a>, stack: usize) -> Self {
        let frames: Vec<NamedFrame<'a>> = frames(view, stack).collect();
        let telling = telling(&frames);
        Self { frames, telling, shown: Vec::new(), lines: Vec::new() }
    }

    /// The text of a telling frame, which says whether it is another one's.
    fn text(&self, index: usize) -> Option<(&'a str, String)> {
        let frame = self.telling.get(index).and_then(|at| self.frames.get(*at))?;
        Some((frame.name, frame.place(usize::MAX)))
    }

    /// Chooses what to show, without the first `common` of the telling frames.
    fn show(&mut self, common: usize) {
        let rest = self.telling.get(common..).unwrap_or_default();
        self.shown = rest.iter().take(FRAMES).copied().collect();
        let own = |at: &&usize| self.frames.get(**at).is_some_and(is_own);
        let near = self.telling.iter().take(common + FRAMES).any(|at| own(&at));
        if let Some(nearest) = rest.iter().find(own).filter(|_| !near) {
            self.shown.truncate(FRAMES - 1);
            self.shown.push(*nearest);
        }
    }

    fn row(&self) -> Vec<RowFrame<'a>> {
        let mut previous: Option<usize> = None;
        let frames = self.shown.iter().filter_map(|at| {
            let between = |index: &&usize| previous.is_some_and(|previous| **index > previous) && **index < *at;
            let gap = self.telling.iter().any(|index| between(&index));
            previous = Some(*at);
            let lines = self.lines.get(*at).filter(|lines| lines.len() > 1);
            let lines = lines.into_iter().flatten().copied().collect();
            self.frames.get(*at).map(|frame| RowFrame { frame: *frame, gap, lines })
        });
        frames.collect()
    }

    /// What a row looks like.
    fn look(&self) -> Vec<(&'a str, String)> {
        let frames = self.shown.iter().filter_map(|at| self.frames.get(*at));
        frames.map(|frame| (frame.name, frame.place(usize::MAX))).collect()
    }

    /// The frames between two telling ones, and that which they lead to: all that come after the one before.
    fn leg(&self, index: usize) -> std::ops::Range<usize> {
        let begin = index.checked_sub(1).and_then(|before| self.telling.get(before)).map_or(0, |at| at + 1);
        begin..self.telling.get(index).map_or(self.frames.len(), |at| at + 1)
    }

    fn name(&self, at: usize) -> Option<&'a str> {
        self.frames.get(at).map(|frame| frame.name)
    }

    fn add(&mut self, at: Option<usize>) {
        if let Some(at) = at
            && let Err(place) = self.shown.binary_search(&at)
        {
            self.shown.insert(place, at);
        }
    }
}

fn frames<'a>(view: &View<'a>, stack: usize) -> impl Iterator<Item = NamedFrame<'a>> {
    named(view.frames(stack))
}

fn named<'a>(frames: impl Iterator<Item = NamedFrame<'a>>) -> impl Iterator<Item = NamedFrame<'a>> {
    frames.filter(|frame| frame.name != TRUNCATED_STACK)
}

/// Stacks of the same functions are one row, whatever their lines: these are all noted, so that no line has what is
/// another one's.
fn note_lines(view: &View<'_>, stacks: &[usize], candidates: &mut [Candidate<'_>]) {
    let rows = stacks.iter().enumerate().filter_map(|(row, stack)| Some((view.site_of(*stack)?, row)));
    let rows: FxHashMap<usize, usize> = rows.collect();
    // A row may be of a million stacks, of which each differs from the one before in some locations only.
    let mut noted: Vec<Vec<Noted>> = vec![Vec::new(); candidates.len()];
    for stack in 0..view.profile.stacks.len() {
        let Some(&row) = view.site_of(stack).and_then(|site| rows.get(&site)) else { continue };
        let (Some(candidate), Some(noted)) = (candidates.get_mut(row), noted.get_mut(row)) else { continue };
        let Candidate { frames, lines, .. } = candidate;
        lines.resize_with(frames.len(), BTreeSet::new);
        noted.resize(frames.len(), None);
        let mut at = 0;
        for location in view.locations(stack) {
            let Some(before) = noted.get_mut(at) else { break };
            if let Some((_, end)) = before.filter(|(of, _)| *of == location) {
                at = end;
                continue;
            }
            let begin = at;
            for frame in named(view.location_frames(location)) {
                if let Some((lines, own)) = lines.get_mut(at).zip(frames.get(at))
                    // another file has a function of the same name
                    && frame.line > 0
                    && frame.file == own.file
                {
                    lines.insert(frame.line);
                }
                at += 1;
            }
            if at > begin {
                *before = Some((location, at));
            }
        }
    }
}

/// The location whose frames were noted last from a place among a row's frames on, and the place behind them.
type Noted = Option<(usize, usize)>;

/// How many of their telling frames, from the innermost on, all stacks have in common; none where nothing would be left
/// to show.
fn common(candidates: &[Candidate<'_>]) -> usize {
    let [first, others @ ..] = candidates else { return 0 };
    if others.is_empty() {
        return 0;
    }
    let is_common = |index: usize| {
        let text = first.text(index);
        text.is_some() && others.iter().all(|other| other.text(index) == text)
    };
    let common = (0..first.telling.len()).take_while(|index| is_common(*index)).count();
    // What follows is shown: it has to be there, and to differ early enough to be seen.
    if candidates.iter().all(|candidate| candidate.telling.len() > common) { common } else { 0 }
}

/// Adds the frames that tell rows of the same look apart.
fn tell_apart(candidates: &mut [Candidate<'_>]) {
    for row in 1..candidates.len() {
        for other in 0..row {
            let Some((before, [candidate, ..])) = candidates.split_at_mut_checked(row) else { return };
            let Some(other) = before.get_mut(other) else { return };
            if candidate.look() == other.look() {
                let (one, two) = difference(candidate, other);
                candidate.add(one);
                other.add(two);
            }
        }
    }
}

/// Where two stacks differ that look alike: mostly in what the standard library does for one and the same line. The
/// function that the program itself has called says more than what that one calls in turn.
fn difference(one: &Candidate<'_>, two: &Candidate<'_>) -> (Option<usize>, Option<usize>) {
    for index in 0..=one.telling.len().max(two.telling.len()) {
        let mut legs = (one.leg(index).rev(), two.leg(index).rev());
        loop {
            match (legs.0.next(), legs.1.next()) {
                (None, None) => break,
                (a, b) if a.and_then(|at| one.name(at)) == b.and_then(|at| two.name(at)) => {}
                differing => return differing,
            }
        }
    }
    (None, None)
}

/// Whether a frame is the program's own code, rather than a library's of the system.
fn is_own(frame: &NamedFrame<'_>) -> bool {
    let is_program = frame.location.is_some_and(|location| location.module == Some(0));
    !is_plumbing(frame) && (is_program || frame.module.is_some_and(|module| !is_system_file(&module.path)))
}

/// The frames that all rows share, in one line of at most `width` columns.
pub(crate) fn shared_text(shared: &[NamedFrame<'_>], width: usize) -> String {
    let each = (width / shared.len().max(1)).saturating_sub(2);
    let text = |frame: &NamedFrame<'_>| {
        let place = match (frame.file, frame.line) {
            (Some(file), line @ 1..) => format!(" ({}:{line})", basename(file.as_ref())),
            _ => String::new(),
        };
        format!("{}{place}", short_name(frame.name, each.saturating_sub(place.chars().count())))
    };
    shared.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Writes frames below each other, names and places in columns: the first behind `first`, the others behind as many
/// columns, `indent`. Names are as wide as `names`; all but the first are dim where `fading`.
pub(crate) fn frame_lines(
    out: &mut String,
    paint: Paint,
    (first, indent): (&str, usize),
    frames: &[(String, String)],
    names: usize,
    fading: bool,
) {
    for (depth, (name, place)) in frames.iter().enumerate() {
        let name = if place.is_empty() { name.clone() } else { left(name, names) };
        let name = if fading && depth > 0 { paint.dim(&name) } else { name };
        let line = format!("{name}  {}", paint.dim(place));
        let line = if depth == 0 { format!("{first}{line}") } else { format!("{:indent$}{line}", "") };
        let _ = writeln!(out, "{}", line.trim_end());
    }
}
