//! Answers `heaptrace top` for a process that is traced: the sums, and the sites that come first, one answer after the
//! other over one connection.
//!
//! Only what is sent gets names, unless sites are wanted by their names; the rest is added up, on the thread that
//! answers. The tracer thread gives a view.

use super::profileoptions::wanted;
use super::saver::Snapshots;
use crate::base::figures::Amount;
use crate::event::MarkName;
use crate::export::frames::{Stacks, told_frames};
use crate::heapmodel::{HeapView, SiteKey, SiteStats};
use crate::naming::{self, KnownNames, NamingOptions};
use crate::profile::Profile;
use crate::session::{LiveSnapshot, RequestKind};
use crate::top::ctl::{Base, Grouping, MAX_FRAMES, MAX_SITES, TopAnswer, TopFrame, TopQuestion, TopSite};
use crate::top::{Group, Labels, Moment, Row, Watch, by_stack};
use rustc_hash::FxHashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// So many stacks get names for each site that is wanted: those that differ in addresses only are one site.
const STACKS_FOR_A_SITE: usize = 4;

/// One conversation.
#[derive(Debug, Default)]
pub(super) struct Live {
    watch: Watch,
    known: KnownNames,
    labels: Labels,
}

impl Live {
    /// The answer to the next question.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn answer(
        &mut self,
        snapshots: Snapshots<'_>,
        pid: i32,
        question: &TopQuestion,
    ) -> Result<TopAnswer, String> {
        if let Some(mark) = &question.mark {
            self.mark(snapshots, pid, mark)?;
        }
        let interim = snapshots.view(pid, false, None)?;
        let stacks = by_stack(interim.heap().sites());
        let (now, peak_bytes) = moment(&interim, stacks.values().map(|figures| (figures.live, figures.allocated)));
        let sites = question.sites.min(MAX_SITES);
        let by_name = !question.filter.is_empty() || question.group != Grouping::Site;
        let most = if by_name { usize::MAX } else { sites * STACKS_FOR_A_SITE };
        let rows = self.watch.look(now, &stacks, question.order, most);
        let (cost, sample_interval) = (interim.cost(), interim.heap().sample_interval());
        let engine = if cost.conditions.jump { "jump" } else { "trap" }.to_owned();
        let (waited_ns, waited_range_ns) = (cost.waited_ns, cost.waited_range_ns);
        let (program, pid) = (interim.process().program.clone(), interim.process().pid);
        let sites_told = if by_name {
            self.labels.begin(&question.filter, now.image);
            self.by_name(snapshots, interim, &rows, question)
        } else {
            self.name(snapshots, interim, &rows, sites)
        };
        let has_text = |row: &&Row| !question.filter.is_empty() && self.labels.has_text(row.stack);
        let with_text = rows.iter().filter(has_text).count() as u64;
        let (span_ns, recent) = self.watch.span();
        Ok(TopAnswer {
            pid,
            program,
            image: now.image,
            engine,
            sample_interval,
            elapsed_ns: now.elapsed_ns,
            waited_ns,
            waited_range_ns,
            live: now.live,
            peak_bytes,
            allocated: now.allocated,
            span_ns,
            recent,
            base: self.watch.base().clone(),
            stacks: stacks.len() as u64,
            filter: question.filter.clone(),
            with_text,
            group: question.group,
            sites: sites_told,
        })
    }

    /// Sets a mark, and compares with the heap as it was then.
    fn mark(&mut self, snapshots: Snapshots<'_>, pid: i32, mark: &str) -> Result<(), String> {
        let name = mark_name(mark)?;
        let asked = snapshots.requests.ask(snapshots.control, pid, RequestKind::Mark(name));
        asked.ok_or("tracing has just ended")??;
        let then = snapshots.view(pid, false, Some(name))?;
        let stacks = by_stack(then.heap().sites());
        let (moment, _) = moment(&then, stacks.values().map(|figures| (figures.live, figures.allocated)));
        // The view was made a moment later.
        let base = Base { mark: Some(mark.to_owned()), at_ns: moment.elapsed_ns, live: moment.live };
        self.watch.rebase(base, &stacks);
        Ok(())
    }

    /// The rows as sites, in their order; so many sites at most.
    fn name(&mut self, snapshots: Snapshots<'_>, interim: LiveSnapshot, rows: &[Row], most: usize) -> Vec<TopSite> {
        let (profile, stacks) = self.profile_of(snapshots, interim, rows);
        sites(&profile, rows.iter().copied().zip(stacks), most)
    }

    /// The sites whose names have the text that is asked for, or the sums by what is asked for.
    fn by_name(
        &mut self,
        snapshots: Snapshots<'_>,
        interim: LiveSnapshot,
        rows: &[Row],
        question: &TopQuestion,
    ) -> Vec<TopSite> {
        let most = question.sites.min(MAX_SITES);
        let places = self.labels.to_name(rows, question.group, most * STACKS_FOR_A_SITE);
        let asked: Vec<Row> = places.iter().filter_map(|place| rows.get(*place).copied()).collect();
        let (profile, stacks) = self.profile_of(snapshots, interim, &asked);
        let mut named = Stacks::new(&profile, &question.filter);
        for (row, stack) in asked.iter().zip(&stacks) {
            if let (false, Some(stack)) = (self.labels.knows(row.stack), *stack) {
                let (function, module) = named.owner(stack);
                let has_text = named.have_text(stack);
                self.labels.learn(row.stack, function, module, has_text);
            }
        }
        if question.group == Grouping::Site {
            let with_text = asked.into_iter().zip(stacks).filter(|(row, _)| self.labels.has_text(row.stack));
            return sites(&profile, with_text, most);
        }
        let stack_of: FxHashMap<usize, usize> =
            places.into_iter().zip(stacks).filter_map(|(place, stack)| Some((place, stack?))).collect();
        let groups = self.labels.groups(rows, question.group, question.order, most);
        groups.into_iter().map(|group| site_of(&profile, group, question.group, &stack_of)).collect()
    }

    /// A profile with the stacks of these rows, and where it has each of them.
    fn profile_of(
        &mut self,
        snapshots: Snapshots<'_>,
        interim: LiveSnapshot,
        rows: &[Row],
    ) -> (Profile, Vec<Option<usize>>) {
        // Each row is a site of its own, whose size says which one it is.
        let stand_in = |(place, row): (usize, &Row)| SiteStats {
            key: SiteKey { stack: row.stack, task: 0, function: row.function, size: place as u64, interval: 0 },
            inherited: false,
            allocated: Amount { objects: 1, bytes: 1 },
            freed: Amount::default(),
            deallocated: Amount::default(),
            live: Amount::default(),
            at_peak: Amount::default(),
            temporary: 0,
            lifetime_ns: 0,
            freed_elsewhere: 0,
        };
        let recording = interim.into_recording_of(rows.iter().enumerate().map(stand_in).collect());
        let wanted = NamingOptions { snapshot: true, ..wanted(snapshots.options) };
        let profile = naming::build_profile(recording, wanted, &mut self.known);
        let mut stacks = vec![None; rows.len()];
        for sample in profile.samples.iter() {
            if let Some(stack) = stacks.get_mut(sample.size as usize) {
                *stack = Some(sample.stack);
            }
        }
        (profile, stacks)
    }
}

/// The rows as sites, in their order, each with the stack that the profile has of it; so many sites at most.
fn sites(profile: &Profile, rows: impl Iterator<Item = (Row, Option<usize>)>, most: usize) -> Vec<TopSite> {
    let mut sites: Vec<TopSite> = Vec::new();
    let mut by_id: FxHashMap<u64, usize> = FxHashMap::default();
    for (row, stack) in rows {
        let Some(stack) = stack else { continue };
        let id = profile.site_id(stack);
        let count = sites.len();
        let at = *by_id.entry(id).or_insert(count);
        match sites.get_mut(at) {
            Some(site) => {
                site.live = site.live.plus(row.live);
                site.grown = site.grown.plus(row.grown);
                site.recent = site.recent.plus(row.recent);
            }
            // a row of it may follow that counts to one of those
            None if count >= most => {}
            None => {
                let (live, grown, recent) = (row.live, row.grown, row.recent);
                let frames = frames(profile, stack);
                sites.push(TopSite { id, frames, live, grown, recent, ..TopSite::default() });
            }
        }
    }
    sites
}

/// A group as a site; `stack_of` has the profile's stacks of rows.
fn site_of(profile: &Profile, group: Group, grouping: Grouping, stack_of: &FxHashMap<usize, usize>) -> TopSite {
    let Group { name, first, stacks, live, grown, recent } = group;
    let mut hasher = DefaultHasher::new();
    ((grouping == Grouping::Module), &name).hash(&mut hasher);
    let frames = stack_of.get(&first).map(|stack| frames(profile, *stack)).unwrap_or_default();
    TopSite { id: hasher.finish(), name, stacks, frames, live, grown, recent }
}

fn frames(profile: &Profile, stack: usize) -> Vec<TopFrame> {
    let frames = told_frames(profile, stack, MAX_FRAMES).into_iter();
    frames.map(|(function, place, dull)| TopFrame { function, place, dull }).collect()
}

/// What is known of the whole heap, and its peak in bytes. Where blocks are sampled, their number is what the sites
/// stand for.
fn moment(interim: &LiveSnapshot, sites: impl Iterator<Item = (Amount, Amount)>) -> (Moment, u64) {
    let heap: &HeapView = interim.heap();
    let totals = heap.totals();
    let mut live = Amount { objects: totals.live_blocks, bytes: totals.live_bytes };
    let mut allocated = Amount { objects: totals.allocations, bytes: totals.bytes_allocated };
    if heap.sample_interval() > 0 {
        (live.objects, allocated.objects) = sites.fold((0, 0), |(live_blocks, blocks), (site_live, site_allocated)| {
            (live_blocks + site_live.objects, blocks + site_allocated.objects)
        });
    }
    if totals.counted_allocations > 0 {
        allocated = Amount { objects: totals.counted_allocations, bytes: totals.counted_bytes };
    }
    let elapsed_ns = interim.cost().wall_ns;
    let image = u32::try_from(interim.images()).unwrap_or(u32::MAX);
    (Moment { elapsed_ns, image, live, allocated }, totals.peak_bytes)
}

/// A name for a mark, from whoever asks.
///
/// # Errors
/// Says what is wrong with the name.
pub(super) fn mark_name(name: &str) -> Result<MarkName, String> {
    MarkName::new(name).ok_or_else(|| {
        format!(
            "`{name}` can't be the name of a mark: it has 1 to {} bytes, and no control characters",
            MarkName::LONGEST
        )
    })
}
