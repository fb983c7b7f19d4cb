//! What is left of a whole session.

use super::archive::{Archive, ArchivedRecording};
use super::recording::Recording;

/// What was found out of all processes of a session.
#[derive(Debug)]
pub struct Traced {
    /// The one that tracing began with.
    pub first: Recording,
    /// Whether that one has ended before others: its stacks have other ids than they had while it was traced.
    pub is_renumbered: bool,
    /// Those that were followed, in the order in which they came to be.
    pub others: Vec<ArchivedRecording>,
    /// Where those lie.
    pub archive: Archive,
    /// Whether something could not be written or passed on while it lasted; heaptrace has told the user so.
    pub unsaved: bool,
}

impl Traced {
    /// All of them; of the others, see [`ArchivedRecording::rest`].
    pub fn all(&self) -> impl Iterator<Item = &Recording> {
        std::iter::once(&self.first).chain(self.others.iter().map(ArchivedRecording::rest))
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Recording> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().map(ArchivedRecording::rest_mut))
    }

    /// The functions that the user has declared and no program has, in words: taken out of the recordings.
    pub fn take_unknown_functions(&mut self) -> Vec<String> {
        let symbol = |unknown: &str| unknown.split(':').next().unwrap_or_default().to_owned();
        let mut unknown = std::mem::take(&mut self.first.facts.unknown_functions);
        if !self.first.facts.selected {
            unknown = self
                .others
                .iter()
                .map(ArchivedRecording::rest)
                .find(|other| other.facts.selected)
                .map_or(unknown, |other| other.facts.unknown_functions.clone());
        }
        for other in self.others.iter().map(ArchivedRecording::rest).filter(|other| other.facts.selected) {
            unknown.retain(|mine| other.facts.unknown_functions.iter().any(|theirs| symbol(theirs) == symbol(mine)));
        }
        if !self.others.is_empty() {
            self.first.facts.warnings.extend(unknown.iter().cloned());
        }
        unknown
    }

    /// Whether the tracing ended as it should, and harmed nobody.
    pub fn went_well(&self) -> bool {
        !self.has_harmed() && self.first.broken_off.is_none()
    }

    /// Whether a process was detached from without having got all its code back.
    pub fn has_harmed(&self) -> bool {
        self.all().any(|recording| recording.facts.harmed)
    }
}
