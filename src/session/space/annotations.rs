//! What programs tell LeakSanitizer of their memory, by calling functions of its runtime, or of their own with these names
//! (<sanitizer/lsan_interface.h>). Heeded at the functions' entries, whatever they do then.

use super::facts::Facts;
use super::{AddressSpace, Deferred, ToPlace};
use crate::addr::{Addr, LoadBias};
use crate::tracer::Result;

/// What a program tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Annotation {
    /// `__lsan_ignore_object(p)`: the block is not to count as leaked, nor what hangs on it.
    IgnoreObject,
    /// `__lsan_disable()`: nor what this thread allocates from now on. Calls nest.
    Disable,
    /// `__lsan_enable()`: ends that.
    Enable,
    /// `__lsan_register_root_region(p, size)`: pointers in this memory count.
    RegisterRegion,
    /// `__lsan_unregister_root_region(p, size)`: ends that.
    UnregisterRegion,
    /// `__lsan_do_leak_check()`: leaks are looked for now, and not at the end.
    CheckNow,
}

/// The functions' names.
pub(super) const ANNOTATIONS: [(&str, Annotation); 6] = [
    ("__lsan_ignore_object", Annotation::IgnoreObject),
    ("__lsan_disable", Annotation::Disable),
    ("__lsan_enable", Annotation::Enable),
    ("__lsan_register_root_region", Annotation::RegisterRegion),
    ("__lsan_unregister_root_region", Annotation::UnregisterRegion),
    ("__lsan_do_leak_check", Annotation::CheckNow),
];

impl AddressSpace {
    /// Watches the functions of a module by which it tells of its memory.
    pub(super) fn watch_annotations(&mut self, facts: &Facts, bias: LoadBias) -> Result<()> {
        for &(function, annotation) in &facts.named.annotations {
            let addr = bias.to_process(function);
            self.annotations.insert(addr, annotation);
            self.place_or_defer(Deferred { addr, to_place: ToPlace::Annotation }, None)?;
        }
        Ok(())
    }

    /// What the function at this address tells of.
    pub fn annotation_at(&self, at: Addr) -> Option<Annotation> {
        self.annotations.get(&at).copied()
    }
}
