//! What programs tell LeakSanitizer of their memory, by calling functions of its runtime, or of their own with these
//! names (<sanitizer/lsan_interface.h>). Heeded at the functions' entries, whatever they do then.

use super::AddressSpace;
use super::facts::Facts;
use super::named::Annotation;
use super::probes::{Deferred, ToPlace};
use crate::base::addr::{Addr, LoadBias};
use crate::tracer::Result;

impl AddressSpace {
    /// Watches the functions of a module by which it tells of its memory.
    pub(super) fn watch_annotations(&mut self, facts: &Facts, bias: LoadBias) -> Result<()> {
        for &(function, _) in &facts.named.annotations {
            let addr = bias.to_process(function);
            self.place_or_defer(Deferred { addr, to_place: ToPlace::Annotation }, None)?;
        }
        Ok(())
    }

    /// What the function at this address tells of.
    pub fn annotation_at(&self, at: Addr) -> Option<Annotation> {
        self.module(at)?.annotations.get(&at).copied()
    }
}
