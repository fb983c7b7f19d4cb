//! What is noted while a process is traced, for files of the end that show time (.pftrace).

use crate::base::addr::StackId;
use crate::base::progress::Progress;
use crate::cli::ProfileOptions;
use crate::event::Generation;
use crate::export::Format;
use crate::export::format::Extra;
use crate::profile::course::{HeapAt, HeapHistory};
use crate::session::{Recording, Traced};
use crate::tracer::pressure;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// See the module's head. It is of the process that tracing began with.
#[derive(Debug, Default)]
pub struct TimelineNotes {
    course: Mutex<HeapHistory<StackId>>,
    /// The process.
    first: OnceLock<i32>,
}

impl TimelineNotes {
    /// If a file that `options` name shows time.
    pub fn wanted(options: &ProfileOptions) -> Option<Arc<Self>> {
        let format = |path: &PathBuf| options.format.or_else(|| Format::from_path(path).ok());
        let shows_time = |format: Format| format.shows(Extra::Timeline);
        options.outputs.iter().filter_map(format).any(shows_time).then(Arc::default)
    }

    /// Notes the heap of a recording that was made so far.
    pub fn heap(&self, recording: &Recording) {
        let sites = recording.snapshot.sites.iter().map(|site| {
            let weight = site.key.weight();
            (site.key.stack, site.allocated.times(weight), site.live.times(weight))
        });
        let heap = HeapAt {
            t_ns: recording.facts.cost.wall_ns,
            images: recording.facts.images.len(),
            stacks: sites.collect(),
        };
        // Sums over threads, functions and sizes take less memory.
        let heap = heap.named(|stack| Some(*stack));
        self.course.lock().unwrap_or_else(PoisonError::into_inner).add_heap(heap);
    }

    /// Notes the resident memory of the process, by the clock of its events.
    pub fn resident(&self, progress: &Progress) {
        let living = progress.processes();
        let Some(first) = living.first().map(|first| *self.first.get_or_init(|| *first)) else { return };
        let Some((lived, bytes)) = progress.lived(first).zip(pressure::resident(first)) else { return };
        let t_ns = u64::try_from(lived.as_nanos()).unwrap_or(u64::MAX);
        self.course.lock().unwrap_or_else(PoisonError::into_inner).add_resident(t_ns, bytes);
    }

    /// What was noted, as the file of the end can show it: heaps of whole processes say nothing beside blocks between
    /// two marks, nor do ids of stacks that have changed.
    pub fn take(&self, traced: &Traced, options: &ProfileOptions) -> HeapHistory<StackId> {
        let mut course = std::mem::take(&mut *self.course.lock().unwrap_or_else(PoisonError::into_inner));
        if traced.is_renumbered || options.occasions.generation != Generation::default() {
            course.heaps.clear();
        }
        // What comes behind the end of the recording, while heaptrace finishes it, is not of its time.
        course.resident.retain(|(t_ns, _)| *t_ns <= traced.first.facts.cost.wall_ns);
        // Two threads note heaps, each at its leisure.
        course.heaps.sort_by_key(|heap| heap.t_ns);
        course
    }
}
