//! What a function is whose entry a thread has reached, besides the allocator's.

use crate::allocators::frameworks::{Hook, HookEvent, told};
use crate::base::addr::{Addr, FunctionId};
use crate::session::space::OriginalMemory;
use crate::session::space::image::Image;
use crate::session::space::modules::Modules;
use crate::session::space::named::{Annotation, ExecCall};
use crate::tracer::files::Executed;
use crate::tracer::rawregs::RawRegs;

impl Modules {
    /// What the function at this address tells of.
    pub fn annotation_at(&self, at: Addr) -> Option<Annotation> {
        self.module(at)?.annotations.get(&at).copied()
    }

    /// Which function a resolver that begins at `at` is for.
    pub fn resolver_at(&self, at: Addr) -> Option<FunctionId> {
        self.module(at)?.resolvers.get(&at).copied()
    }

    /// Which function of a framework begins here.
    pub fn test_hook_at(&self, at: Addr) -> Option<Hook> {
        self.module(at)?.test_hooks.get(&at).copied()
    }

    /// Whether a module has functions of a framework.
    pub fn has_test_hooks(&self) -> bool {
        self.loaded.iter().any(|module| !module.test_hooks.is_empty())
    }

    /// What a framework tells where a thread has entered this function of it.
    pub fn told_by_framework(&mut self, image: &mut Image, hook: Hook, arguments: &[u64; 6]) -> Option<HookEvent> {
        let unwinder = &mut self.unwinder;
        let mut begins_function = |addr| unwinder.begins_function(addr);
        let mut memory = OriginalMemory { memory: &mut image.memory, patches: image.code.patches() };
        told(hook, arguments, &mut memory, &mut begins_function)
    }

    /// Which file a thread is about to execute that stands at the entry `at` of one of the
    /// [`super::named::EXEC_CALLS`].
    pub fn executed(&self, image: &Image, raw: &RawRegs, at: Addr) -> Option<Executed> {
        let (first, second) = (raw.0.rdi, raw.0.rsi);
        // An int, in the lower half.
        let descriptor = (first as u32).cast_signed();
        Some(match self.module(at)?.exec_calls.get(&at)? {
            ExecCall::Path => Executed { start: None, path: image.memory.read_c_string(Addr(first))? },
            ExecCall::PathFrom => Executed {
                start: Some(descriptor).filter(|descriptor| *descriptor >= 0),
                path: image.memory.read_c_string(Addr(second))?,
            },
            ExecCall::Open => Executed { start: Some(descriptor), path: Vec::new() },
        })
    }
}
