//! Of a process at its end, or when it is let go: whether there are signs that it has allocated in ways that were not
//! seen.

use super::identity::Identity;
use super::observer::Observer;
use super::tracee::Tracee;
use crate::event::{EventKind, Missed};
use crate::image::maps::{self, Kind, Mapping};

/// So much a C library's allocator asks of the kernel at its first call, in bytes. What has less is no heap: a static
/// program's start puts its first thread's variables there.
const FIRST_HEAP: u64 = 128 << 10;

/// Notes what was not seen, while the memory is there. `tid` is a task that lives. What has happened before must
/// be settled.
pub(super) fn judge(tracee: &mut Tracee, observer: &mut Observer, identity: &Identity, tid: i32) {
    if !identity.selected {
        return;
    }
    if tracee.space.modules.judge_slots(&tracee.space.image, &tracee.settings.table) {
        // blocks may have come and gone so: what was freed, or leaked, in other ways is not certain either
        observer.tell(EventKind::Missed(Missed::Call));
    }
    // a forked child has its parent's heap
    let is_fork = identity.parent.is_some() && identity.images.is_empty();
    let is_silent = observer.events() == 0 && !observer.is_paused() && observer.paused_for().is_zero();
    if is_fork || !is_silent || !tracee.space.modules.has_probes() || tracee.space.refresh_maps(tid).is_err() {
        return;
    }
    let [by_break, by_mmap] = [Kind::Heap, Kind::Anonymous].map(|kind| size_of(tracee.space.image.mappings(), kind));
    if by_break + by_mmap == 0 {
        return;
    }
    let heap = format!("{:.1} MiB", (by_break + by_mmap) as f64 / 1024.0 / 1024.0);
    let advice = "functions that heaptrace does not know: name them with --alloc-fn and --free-fn";
    if identity.attached {
        tracee.warn_once(format!(
            "heaptrace saw no call of an allocator function, though the process has {heap} of private memory: it did \
             not allocate in this time, or allocates through {advice} (`heaptrace heap {}` shows what its heap holds)",
            tracee.pid
        ));
        return;
    }
    let text = format!(
        "heaptrace saw no call of an allocator function, though the program had {heap} of private memory: it allocates \
         through {advice}"
    );
    // what else asks for memory there is no program's own
    if by_break > 0 { tracee.space.modules.findings.note_blind_spot(text) } else { tracee.warn_once(text) }
}

/// The bytes of memory that the process alone can write, in mappings of this kind that an allocator may have made.
fn size_of(mappings: &[Mapping], kind: Kind) -> u64 {
    let modules = maps::modules(mappings);
    let is_modules = |mapping: &Mapping| modules.iter().any(|m| (m.start()..m.end()).contains(&mapping.start));
    let is_own = |mapping: &&Mapping| {
        mapping.kind == kind && mapping.perms.write && !mapping.perms.shared && mapping.size() >= FIRST_HEAP
    };
    mappings.iter().filter(is_own).filter(|mapping| !is_modules(mapping)).map(Mapping::size).sum()
}
