//! What other files know of a loaded module: symbols that were stripped from it, unwind tables of its debug file.

use crate::arch::Regs;
use crate::base::addr::ModuleId;
use crate::image::elf::Elf;
use crate::session::space::OriginalMemory;
use crate::session::space::helper::{Pending, Poll};
use crate::session::space::image::Image;
use crate::session::space::modules::Modules;
use crate::symbols::{Bytes, Leads};
use crate::unwinder::{Section, Unwound};
use std::time::Duration;

/// How long a thread may be kept waiting for unwind tables of a debug file. Until they come its stacks are marked as
/// guessed.
const FRAMES_PATIENCE: Duration = Duration::from_secs(1);

impl Modules {
    /// The stack of a thread at the entry of a function. Code without CFI makes us look for its module's debug file:
    /// what is built without `.eh_frame` has its tables there.
    pub fn unwind_at_entry(&mut self, image: &mut Image, regs: &Regs, max_depth: u32) -> Unwound {
        self.take_awaited_frames();
        let mut memory = OriginalMemory { memory: &mut image.memory, patches: image.code.patches() };
        let found = self.unwinder.unwind_at_entry(regs, &mut memory, max_depth);
        let mut is_better = false;
        for module in self.unwinder.take_uncovered() {
            match self.debug_frame_elsewhere(module) {
                Poll::Done(Some(section)) => {
                    self.unwinder.add_debug_frame(module, section);
                    is_better = true;
                }
                Poll::Pending(late) => self.await_frames(module, late),
                Poll::Done(None) | Poll::Failed => {}
            }
        }
        if !is_better {
            return found;
        }
        // The callers are other ones now, perhaps of other such modules.
        self.unwind_at_entry(image, regs, max_depth)
    }

    pub(in crate::session::space) fn await_frames(&mut self, module: ModuleId, late: Pending<Option<Section>>) {
        if let Some(record) = self.loaded.record(module) {
            self.findings.warnings.push(format!(
                "the unwind tables of {} are in its debug file, or compressed, and take long to read: until then, \
                 stacks through it are marked as guessed",
                record.path.display()
            ));
        }
        self.awaited_frames.push((module, late));
    }

    /// Takes the unwind tables that have come meanwhile.
    pub(in crate::session::space) fn take_awaited_frames(&mut self) {
        for (module, late) in std::mem::take(&mut self.awaited_frames) {
            match late.look() {
                Poll::Done(Some(section)) => self.unwinder.add_debug_frame(module, section),
                Poll::Pending(late) => self.awaited_frames.push((module, late)),
                Poll::Done(None) | Poll::Failed => {}
            }
        }
    }

    /// `.debug_frame` of a module's own file, where it is compressed, or else of its companion.
    pub(in crate::session::space) fn debug_frame_elsewhere(&self, module: ModuleId) -> Poll<Option<Section>> {
        let record = self.loaded.record(module);
        let opened = record.and_then(|record| Some((record.path.clone(), record.file.clone()?)));
        let (Some((path, file)), Some(search)) = (opened, self.files.search.clone()) else { return Poll::Failed };
        self.files.objects.soon(FRAMES_PATIENCE, move || {
            let bytes = Bytes::of_file(&file).ok()?;
            let elf = Elf::parse(&bytes).ok()?;
            elf.sections().debug_frame().or_else(|| {
                let companion = search.companion(&Leads::of(&path, &elf), |elf| elf.sections().has_debug_frame())?;
                companion.elf()?.sections().debug_frame()
            })
        })
    }
}
