//! Looks at a process that stands still: one, or as many as it takes.
//!
//! A thread that is stopped inside of the allocator leaves something half done: a chunk that is no longer in its list,
//! or not yet. At another moment it is done. So where the heap is not as the allocator leaves it, the process goes on,
//! and is looked at once more. What is found at the same place by two looks in a row is the heap's own. So is it where
//! no allocator is found: its main structure may be half done.

use super::modules;
use super::seen::ProcessView;
use crate::base::addr::Addr;
use crate::heap::walk::{Fault, Finding, Walk};
use crate::image::maps::Mapping;
use crate::tracer::copy::{self, Copy, Means};
use crate::tracer::kernelheld;
use crate::tracer::memory::TargetMemory;
use crate::tracer::standstill::{self, Standstill};
use crate::tracer::{Result, TracerError};
use std::collections::HashSet;
use std::time::Duration;

/// A process is looked at so many times at most.
const MAX_LOOKS: u32 = 4;

/// What a look is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// What memory is used for: pages are looked at.
    Census,
    /// Which blocks are lost: what is shared changes under a copy, and may hold pointers.
    Leaks,
}

/// What one look has seen, or the best of several.
pub(super) struct Attempt<T> {
    pub(super) seen: ProcessView,
    pub(super) walk: Option<Walk>,
    /// What was read of the heap, if there is one.
    pub(super) read: Option<T>,
    /// Whether the process stood only to be copied, and the copy was read.
    pub(super) copied: bool,
    /// How long it stood, in all.
    pub(super) stood: Duration,
    /// Whether what is wrong with the heap was another thing at each look.
    pub(super) in_motion: bool,
    /// What is wrong besides, in sentences.
    pub(super) warnings: Vec<String>,
}

/// Looks at process `pid` while it stands still, as a rule only to be copied, and has `read` read its heap.
///
/// # Errors
/// It can't be traced, or its memory can't be read.
pub(super) fn look<T: Send>(
    pid: i32,
    purpose: Purpose,
    read: impl Fn(&ProcessView, &Walk, &mut TargetMemory) -> T + Sync,
) -> Result<Attempt<T>> {
    let means = modules::of_c_library(pid);
    let is_copied_whole = copy::is_copied_whole(pid);
    let mut looks = Looks::new();
    let mut stood = Duration::ZERO;
    let mut warnings = Vec::new();
    loop {
        let most = looks.fewest();
        // what will not be kept need not be read
        let read = |seen: &ProcessView, walk: &Walk, memory: &mut TargetMemory| {
            most.is_none_or(|most| walk.findings.len() < most).then(|| read(seen, walk, memory))
        };
        let mut look = match look_once(pid, purpose, means, is_copied_whole, &read) {
            Ok(look) => look,
            // it has ended since
            Err(_) if most.is_some() => break,
            Err(error) => return Err(error),
        };
        stood += look.stood;
        warnings.append(&mut look.warnings);
        let findings = look.walk.as_ref().map(|walk| walk.findings.clone());
        if !looks.take(findings.as_deref(), look) {
            break;
        }
    }
    let in_motion = !looks.agree;
    // the first one was kept at least
    let Some((_, look)) = looks.kept else { return Err(TracerError::Died { tid: pid }) };
    let Attempt { seen, walk, read, copied, .. } = look;
    Ok(Attempt { seen, walk, read: read.flatten(), copied, stood, in_motion, warnings })
}

/// One look. Without `means` there is no copy, and no thread is asked for its signal stack; without `is_copied_whole`
/// there is no copy.
///
/// # Errors
/// As [`look`].
fn look_once<T: Send>(
    pid: i32,
    purpose: Purpose,
    means: Option<Means>,
    is_copied_whole: bool,
    read: &(impl Fn(&ProcessView, &Walk, &mut TargetMemory) -> T + Sync),
) -> Result<Attempt<T>> {
    let read_heap = |seen: &ProcessView, memory: &mut TargetMemory| {
        let walk = seen.walk(memory);
        let read = walk.as_ref().map(|walk| read(seen, walk, memory));
        (walk, read)
    };
    let standing = |still: &Standstill| {
        let seen = ProcessView::of(pid, &still.threads())?;
        let seen = if purpose == Purpose::Census { seen.with_pages()? } else { seen };
        let mut memory = seen.memory()?;
        let stacks = kernelheld::signal_stacks(still, means, &seen.mappings, &mut memory);
        let seen = seen.with_signal_stacks(stacks);
        let means = means
            .filter(|_| is_copied_whole)
            .filter(|_| purpose == Purpose::Census || !seen.mappings.iter().any(is_shared));
        let copy = means.and_then(|means| {
            Copy::make(still, pid, means, &seen.mappings, &mut memory).unwrap_or_else(|error| {
                tracing::debug!("the process can't be copied: {error}");
                None
            })
        });
        let is_copied = copy.as_ref().is_some_and(Copy::is_whole);
        let heap = (!is_copied).then(|| read_heap(&seen, &mut memory));
        Ok((seen, heap, copy))
    };
    let then = |looked: Result<(ProcessView, Option<_>, Option<Copy>)>| {
        let (seen, heap, copy) = looked?;
        let copied = heap.is_none();
        let of_heap = match (heap, &copy) {
            (Some(heap), _) => Ok(heap),
            (None, Some(copy)) => copy.memory().map(|mut memory| {
                memory.wait_for_no_servers(seen.tid, &seen.mappings);
                read_heap(&seen, &mut memory)
            }),
            (None, None) => Ok((None, None)),
        };
        if copied && copy.as_ref().is_some_and(Copy::has_outlived_its_program) {
            return Err(TracerError::EndedMeanwhile { pid });
        }
        let (walk, read) = of_heap?;
        let warnings = copy.and_then(Copy::end).into_iter().collect();
        Ok(Attempt { seen, walk, read, copied, stood: Duration::ZERO, in_motion: false, warnings })
    };
    let (looked, stood) = standstill::stand_still(pid, standing, then)?;
    Ok(Attempt { stood, ..looked? })
}

/// Memory that others may write to, too.
fn is_shared(mapping: &Mapping) -> bool {
    mapping.perms.shared && mapping.perms.write && !mapping.is_heaptrace_s()
}

/// Which of several looks is kept, and when they end.
struct Looks<T> {
    /// The one with the fewest findings so far, and how many it has.
    kept: Option<(usize, T)>,
    /// What the last look has found; None in it: no allocator.
    last: Option<Option<HashSet<(Addr, Fault)>>>,
    left: u32,
    /// Whether all that the last look has found was found by the one before, too.
    agree: bool,
}

impl<T> Looks<T> {
    const fn new() -> Self {
        Self { kept: None, last: None, left: MAX_LOOKS, agree: false }
    }

    /// How many findings the look has that is kept; more than any of one that has found no allocator.
    fn fewest(&self) -> Option<usize> {
        self.kept.as_ref().map(|(findings, _)| *findings)
    }

    /// Takes a look that has found this; None: no allocator. Whether another one is to follow.
    fn take(&mut self, findings: Option<&[Finding]>, look: T) -> bool {
        let places = |findings: &[Finding]| findings.iter().map(|finding| (finding.at, finding.what)).collect();
        let found: Option<HashSet<_>> = findings.map(places);
        self.agree = match (&found, &self.last) {
            (Some(found), _) if found.is_empty() => true,
            (Some(found), Some(Some(last))) => found.is_subset(last),
            (None, Some(None)) => true,
            _ => false,
        };
        let count = findings.map_or(usize::MAX, <[_]>::len);
        if self.fewest().is_none_or(|fewest| count < fewest) {
            self.kept = Some((count, look));
        }
        self.last = Some(found);
        self.left = self.left.saturating_sub(1);
        !self.agree && self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(places: &[u64]) -> Vec<Finding> {
        places.iter().map(|&at| Finding { at: Addr(at), what: Fault::List, before: None }).collect()
    }

    /// Takes looks that find something at these places until they end: how many were taken, which was kept, and whether
    /// they agree.
    fn taken(looks: &[&[u64]]) -> (usize, usize, bool) {
        let mut taken = Looks::new();
        let count = (0..looks.len()).position(|number| !taken.take(Some(&found(looks[number])), number));
        (count.expect("they end") + 1, taken.kept.expect("one is kept").1, taken.agree)
    }

    #[test]
    fn looks_end_when_nothing_is_found() {
        assert_eq!(taken(&[&[], &[]]), (1, 0, true));
        assert_eq!(taken(&[&[1], &[], &[]]), (2, 1, true));
        assert_eq!(taken(&[&[1, 2], &[3], &[4, 5], &[]]), (4, 3, true));
    }

    #[test]
    fn what_stays_is_the_heaps_own() {
        assert_eq!(taken(&[&[1], &[1], &[]]), (2, 0, true));
        assert_eq!(taken(&[&[1, 2], &[1], &[]]), (2, 1, true));
        // one thing stays, beside what threads have left half done
        assert_eq!(taken(&[&[1, 2], &[1, 3], &[1], &[]]), (3, 2, true));
        // the same place is not enough
        let mut looks = Looks::new();
        assert!(looks.take(Some(&found(&[1])), ()));
        assert!(looks.take(Some(&[Finding { at: Addr(1), what: Fault::Circle, before: None }]), ()));
    }

    #[test]
    fn two_looks_decide_that_there_is_no_allocator() {
        let mut looks = Looks::new();
        assert!(looks.take(None, 1));
        assert!(!looks.take(Some(&[]), 2));
        assert_eq!(looks.kept, Some((0, 2)));
        let mut looks = Looks::new();
        assert!(looks.take(None, 1) && !looks.take(None, 2) && looks.agree);
        // one that has found it is kept
        let mut looks = Looks::new();
        assert!(looks.take(Some(&found(&[1, 2])), 1) && looks.take(None, 2) && !looks.take(None, 3));
        assert_eq!(looks.kept, Some((2, 1)));
    }

    #[test]
    fn looks_that_never_agree_end_and_the_one_with_the_fewest_findings_is_kept() {
        assert_eq!(taken(&[&[1, 2], &[3], &[4], &[5, 6], &[]]), (4, 1, false));
    }
}
