//! What is noted while a process is traced, for files of the end that show time (.pftrace).

use crate::addr::StackId;
use crate::cli::ProfileOptions;
use crate::export::Format;
use crate::profile::course::{Course, HeapAt};
use crate::progress::Progress;
use crate::sampling::weight;
use crate::session::Recording;
use crate::tracer::pressure;
use std::sync::{Arc, Mutex, PoisonError};

/// See the module's head. It is of the process that tracing began with.
#[derive(Debug, Default)]
pub struct Notes {
    course: Mutex<Course<StackId>>,
}

impl Notes {
    /// If a file that `options` name shows time.
    pub fn wanted(options: &ProfileOptions) -> Option<Arc<Self>> {
        let format = |path| options.format.or_else(|| Format::from_path(path).ok());
        options.outputs.iter().any(|path| format(path) == Some(Format::Perfetto)).then(Arc::default)
    }

    /// Notes the heap of a recording that was made so far.
    pub fn heap(&self, recording: &Recording) {
        let interval = recording.snapshot.sample_interval;
        let sites = recording.snapshot.sites.iter().map(|site| {
            let weight = weight(site.key.size, interval);
            (site.key.stack, site.allocated.times(weight), site.live.times(weight))
        });
        let heap = HeapAt { t_ns: recording.cost.wall_ns, images: recording.images.len(), stacks: sites.collect() };
        // Sums over threads, functions and sizes take less memory.
        let heap = heap.named(|stack| Some(*stack));
        self.course.lock().unwrap_or_else(PoisonError::into_inner).add_heap(heap);
    }

    /// Notes the resident memory of the process.
    pub fn resident(&self, progress: &Progress) {
        let Some(bytes) = progress.processes().first().copied().and_then(pressure::resident) else { return };
        let t_ns = u64::try_from(progress.read().elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.course.lock().unwrap_or_else(PoisonError::into_inner).add_resident(t_ns, bytes);
    }

    /// What was noted.
    pub fn take(&self) -> Course<StackId> {
        std::mem::take(&mut *self.course.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
