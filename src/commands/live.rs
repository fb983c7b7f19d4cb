//! Answers `heaptrace top` for a process that is traced: the sums, and the sites that come first, one answer after the other over one connection.
//!
//! Only what is sent gets names; the rest of the sites is added up, on the thread that answers. The tracer thread gives a view.

use super::conclude::wanted;
use super::saver::Snapshots;
use super::service::mark_name;
use crate::ctl::{Base, MOST_FRAMES, MOST_SITES, TopAnswer, TopFrame, TopQuestion, TopSite};
use crate::export::frames::told_frames;
use crate::figures::Amount;
use crate::heapmodel::{HeapView, SiteKey, SiteStats};
use crate::naming::{self, KnownNames, Wanted};
use crate::session::{Interim, Wish};
use crate::top::{Moment, Row, Watch, by_stack};
use rustc_hash::FxHashMap;

/// So many stacks get names for each site that is wanted: those that differ in addresses only are one site.
const STACKS_FOR_A_SITE: usize = 4;

/// One conversation.
#[derive(Debug, Default)]
pub(super) struct Live {
    watch: Watch,
    known: KnownNames,
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
        let sites = question.sites.min(MOST_SITES);
        let rows = self.watch.look(now, &stacks, question.order, sites * STACKS_FOR_A_SITE);
        let (cost, sample_interval) = (interim.cost(), interim.heap().sample_interval());
        let engine = if cost.conditions.jump { "jump" } else { "trap" }.to_owned();
        let waited_ns = cost.waited_ns;
        let (program, pid) = (interim.process().program.clone(), interim.process().pid);
        let sites_told = self.name(snapshots, interim, &rows, sites);
        let (span_ns, recent) = self.watch.span();
        Ok(TopAnswer {
            pid,
            program,
            image: now.image,
            engine,
            sample_interval,
            elapsed_ns: now.elapsed_ns,
            waited_ns,
            live: now.live,
            peak_bytes,
            allocated: now.allocated,
            span_ns,
            recent,
            base: self.watch.base().clone(),
            stacks: stacks.len() as u64,
            sites: sites_told,
        })
    }

    /// Sets a mark, and compares with the heap as it was then.
    fn mark(&mut self, snapshots: Snapshots<'_>, pid: i32, mark: &str) -> Result<(), String> {
        let name = mark_name(mark)?;
        let asked = snapshots.requests.ask(snapshots.control, pid, Wish::Mark(name));
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
    fn name(&mut self, snapshots: Snapshots<'_>, interim: Interim, rows: &[Row], most: usize) -> Vec<TopSite> {
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
        let wanted = Wanted { snapshot: true, ..wanted(snapshots.options) };
        let profile = naming::build_profile(recording, wanted, &mut self.known);
        let mut places: Vec<(usize, usize)> =
            profile.samples.iter().map(|sample| (sample.size as usize, sample.stack)).collect();
        places.sort_unstable();
        let mut sites: Vec<TopSite> = Vec::new();
        let mut by_id: FxHashMap<u64, usize> = FxHashMap::default();
        for (place, stack) in places {
            let Some(row) = rows.get(place) else { continue };
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
                    let frames = told_frames(&profile, stack, MOST_FRAMES).into_iter();
                    let frames = frames.map(|(function, place, dull)| TopFrame { function, place, dull }).collect();
                    sites.push(TopSite { id, frames, live: row.live, grown: row.grown, recent: row.recent });
                }
            }
        }
        sites
    }
}

/// What is known of the whole heap, and its peak in bytes. Where blocks are sampled, their number is what the sites stand for.
fn moment(interim: &Interim, sites: impl Iterator<Item = (Amount, Amount)>) -> (Moment, u64) {
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
