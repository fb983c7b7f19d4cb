//! The allocations and frees of some threads only.

use super::{NAMED, ReplayError};
use crate::base::figures::{Amount, Histograms, Totals};
use crate::event::EventKind;
use crate::heapmodel::{SiteStats, SiteTable};
use crate::session::Recording;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Which threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ThreadChoice {
    /// Those with this id.
    Id(i32),
    /// Those with this name.
    Name(String),
}

/// The threads that a trace tells of.
#[derive(Debug, Default)]
pub(super) struct TraceThreads {
    /// Thread ids by serial numbers.
    ids: FxHashMap<u32, i32>,
    there: BTreeSet<String>,
    /// Whether the one that is wanted has called at any time, and in the part that is wanted.
    found: bool,
    has_acted: bool,
}

impl TraceThreads {
    /// Notes who has called.
    pub(super) fn note(&mut self, kind: &EventKind) {
        let (EventKind::Allocated { by, .. }
        | EventKind::AllocatedUnseen { by, .. }
        | EventKind::Freed { by, .. }
        | EventKind::Mapping { by, .. }
        | EventKind::Remapped { by, .. }
        | EventKind::ReallocBegan { by, .. }) = kind
        else {
            return;
        };
        self.ids.insert(by.task.serial, by.task.tid);
    }

    /// Leaves in a recording what those threads have done.
    pub(super) fn keep_only(&mut self, choice: &ThreadChoice, recording: &mut Recording) {
        let Self { ids, there, found, has_acted } = self;
        let names = &recording.thread_names;
        let is_chosen = |serial: u32| match choice {
            ThreadChoice::Id(id) => ids.get(&serial) == Some(id),
            ThreadChoice::Name(name) => names.get(&serial) == Some(name),
        };
        let snapshot = &mut recording.snapshot;
        let of_sites: BTreeSet<u32> = snapshot.sites.iter().map(|site| site.key.task).collect();
        for (serial, id) in ids.iter().filter(|(serial, _)| names.contains_key(serial) || of_sites.contains(serial)) {
            *found |= is_chosen(*serial);
            if there.len() < NAMED {
                there.insert(format!("{} ({id})", names.get(serial).map_or("?", String::as_str)));
            }
        }
        snapshot.sites.retain(|site| is_chosen(site.key.task));
        // Whose they are is not kept.
        snapshot.growths.clear();
        snapshot.capacities.clear();
        snapshot.stranded.clear();
        snapshot.errors.retain(|error| is_chosen(error.task));
        if let Some(births) = &mut recording.course.births {
            births.blocks.retain(|born| is_chosen(born.task));
        }
        *has_acted |= !snapshot.sites.is_empty();
        snapshot.totals = totals(&snapshot.sites);
        // They are of all threads together.
        snapshot.timeline.clear();
        snapshot.histograms = Histograms::default();
    }

    /// Whether one of them was there; what is to be said if it has done nothing in this part.
    pub(super) fn check(&self, choice: &ThreadChoice) -> Result<Option<String>, ReplayError> {
        let wanted = match choice {
            ThreadChoice::Id(id) => format!("number {id}"),
            ThreadChoice::Name(name) => format!("called `{name}`"),
        };
        if self.found {
            let idle = || format!("the thread {wanted} has allocated and freed nothing in this part of the trace");
            return Ok((!self.has_acted).then(idle));
        }
        let there: Vec<&str> = self.there.iter().map(String::as_str).collect();
        let there = if there.is_empty() { "none that allocates".to_owned() } else { there.join(", ") };
        Err(ReplayError::NoThread { wanted, there })
    }
}

/// The sums over these sites: what their threads have allocated, and what they have freed, whoever had allocated it.
fn totals(sites: &SiteTable) -> Totals {
    let sum = |amount: fn(&SiteStats) -> Amount| {
        let weighted = |site: SiteStats| amount(&site).times(site.key.weight());
        sites.iter().map(weighted).fold(Amount::default(), Amount::plus)
    };
    let (allocated, freed) = (sum(|site| site.allocated), sum(|site| site.deallocated));
    let (live, peak) = (sum(|site| site.live), sum(|site| site.at_peak));
    Totals {
        allocations: allocated.objects,
        bytes_allocated: allocated.bytes,
        frees: freed.objects,
        bytes_freed: freed.bytes,
        live_blocks: live.objects,
        live_bytes: live.bytes,
        peak_blocks: peak.objects,
        peak_bytes: peak.bytes,
        temporary: sites.iter().map(|site| site.temporary).sum(),
        ..Totals::default()
    }
}
