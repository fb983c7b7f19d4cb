//! The table of frames in report.json: each frame is written once, and stacks are lists of indices into it.

use super::super::view::{NamedFrame, View};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use std::borrow::Cow;

#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct ReportFrame<'a> {
    pub function: &'a str,
    pub file: Option<&'a str>,
    pub line: Option<u32>,
    pub module: Option<Cow<'a, str>>,
    offset: Option<String>,
    inlined: bool,
}

/// The frames of all stacks that were entered, in the order of their first use.
pub(crate) struct FrameTable<'a> {
    view: &'a View<'a>,
    frames: Vec<ReportFrame<'a>>,
    /// Processes of one tree have locations of their own for the same place in a file.
    by_content: FxHashMap<ReportFrame<'a>, u32>,
    /// By the profile's index of a location: the indices of its frames; None: not entered yet.
    of_location: Vec<Option<Box<[u32]>>>,
    /// The index of the frame that stands for an unknown stack.
    unknown: Option<u32>,
}

impl<'a> FrameTable<'a> {
    pub fn new(view: &'a View<'a>) -> Self {
        let locations = view.profile.locations.len();
        Self {
            view,
            frames: Vec::new(),
            by_content: FxHashMap::default(),
            of_location: vec![None; locations],
            unknown: None,
        }
    }

    /// The profile whose stacks these are.
    pub const fn view(&self) -> &'a View<'a> {
        self.view
    }

    /// Makes sure that all frames of a stack are in the table.
    pub fn enter(&mut self, stack: usize) {
        let view = self.view;
        let locations = view.locations(stack);
        if locations.len() == 0 && self.unknown.is_none() {
            let frames = self.indices_of(view.frames(stack));
            self.unknown = frames.first().copied();
        }
        for location in locations {
            if self.of_location.get(location).is_some_and(Option::is_none) {
                let frames = self.indices_of(view.location_frames(location));
                if let Some(entry) = self.of_location.get_mut(location) {
                    *entry = Some(frames);
                }
            }
        }
    }

    fn indices_of(&mut self, frames: impl Iterator<Item = NamedFrame<'a>>) -> Box<[u32]> {
        frames.map(|frame| self.index(report_frame(&frame))).collect()
    }

    fn index(&mut self, frame: ReportFrame<'a>) -> u32 {
        // a table of four thousand million frames fits no memory
        let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        *self.by_content.entry(frame).or_insert_with_key(|frame| {
            self.frames.push(frame.clone());
            next
        })
    }

    /// The frames, for the report.
    pub fn frames(&self) -> &[ReportFrame<'a>] {
        &self.frames
    }

    /// The indices of a stack's frames, innermost first. The stack must have been entered.
    pub fn stack(&self, stack: usize) -> impl Iterator<Item = u32> {
        let locations = self.view.locations(stack);
        let unknown = self.unknown.filter(|_| locations.len() == 0);
        locations.filter_map(|location| self.of_location.get(location)?.as_deref()).flatten().copied().chain(unknown)
    }
}

/// A stack of the profile: a list of indices into the table, made when it is written.
pub(super) struct ReportStack<'t> {
    table: &'t FrameTable<'t>,
    /// None: not known, an empty list.
    stack: Option<usize>,
}

impl<'t> ReportStack<'t> {
    /// A stack that was entered into `table`.
    pub(super) const fn new(table: &'t FrameTable<'t>, stack: Option<usize>) -> Self {
        Self { table, stack }
    }
}

impl Serialize for ReportStack<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.stack.into_iter().flat_map(|stack| self.table.stack(stack)))
    }
}

fn report_frame<'a>(frame: &NamedFrame<'a>) -> ReportFrame<'a> {
    ReportFrame {
        function: frame.name,
        file: frame.file,
        line: Some(frame.line).filter(|line| *line != 0),
        module: frame.module.map(|module| module.path.to_string_lossy()),
        offset: frame.location.map(|location| format!("{:#x}", location.offset)),
        inlined: frame.inlined,
    }
}
