//! What is made of several processes: files of each, one profile of all, one verdict.

use super::conclude::Work;
use crate::export::output::{DirectOutputs, Outcome, Scope};
use crate::profile::check::verdict::of_all;
use crate::profile::merge::{Merger, Origin};
use crate::profile::{ProcessRow, Profile, Seen};
use crate::session::{Recording, Traced};

impl Work<'_> {
    /// Writes the files of each process that has something to tell, then those of all. Returns the profile of all.
    pub(super) fn tree(&mut self, traced: Traced, direct: &mut dyn DirectOutputs) -> (Profile, Vec<Outcome>) {
        let Traced { first, others, archive, .. } = traced;
        let mut files = Vec::new();
        let mut rows = Vec::with_capacity(others.len() + 1);
        let (profile, origin) = self.one(first, &mut rows, &mut files, direct);
        let mut merger = Merger::new(profile, &origin);
        for other in others {
            let (profile, origin) = self.one(archive.take(other), &mut rows, &mut files, direct);
            merger.add(profile, &origin);
        }
        let mut all = merger.finish(rows);
        of_all(&mut all);
        files.extend(self.outputs.write(Scope::Tree, &all, &self.export, direct));
        (all, files)
    }

    fn one(
        &mut self,
        recording: Recording,
        rows: &mut Vec<ProcessRow>,
        files: &mut Vec<Outcome>,
        direct: &mut dyn DirectOutputs,
    ) -> (Profile, Origin) {
        let origin = recording.facts.origin;
        let (parent, seen) = (recording.facts.parent, seen(&recording));
        let profile = self.name(recording);
        // Files that say nothing are in the way of those that do.
        if seen == Seen::Recorded || parent.is_none() && seen != Seen::Skipped {
            files.extend(self.outputs.write(Scope::Process, &profile, &self.export, direct));
        }
        let require_all = self.judging.as_ref().is_some_and(|judging| judging.options.policy.require_all);
        let is_judged = matches!(seen, Seen::Recorded | Seen::Silent) || require_all && seen == Seen::LetGo;
        let row = row(&profile, parent, seen, &origin);
        rows.push(if is_judged { row } else { ProcessRow { verdict: None, ..row } });
        (profile, origin)
    }
}

fn seen(recording: &Recording) -> Seen {
    match recording.facts.selected {
        false => Seen::Skipped,
        true if recording.facts.detached_early => Seen::LetGo,
        true if recording.is_silent() => Seen::Silent,
        true => Seen::Recorded,
    }
}

fn row(profile: &Profile, parent: Option<i32>, seen: Seen, origin: &Origin) -> ProcessRow {
    ProcessRow {
        pid: profile.meta.process.pid,
        parent,
        program: profile.meta.process.program.clone(),
        exit: profile.meta.process.exit,
        seen,
        totals: profile.totals,
        inherited: origin.inherited,
        inherited_at_peak: origin.inherited_at_peak,
        resident: profile.meta.process.resident,
        verdict: profile.verdict.clone(),
    }
}
