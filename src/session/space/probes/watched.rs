//! What is watched in a module besides the allocator: functions of the dynamic linker and of test frameworks; in the C
//! library exec, as a program with other rights must not be traced, ptrace, as a task can have one tracer only,
//! mlockall, and changes of signal actions.

use crate::base::addr::{Addr, LoadBias};
use crate::session::space::facts::Facts;
use crate::session::space::image::Image;
use crate::session::space::modules::Modules;
use crate::session::space::probes::{Deferred, Probes, ToPlace};
use crate::tracer::Result;

impl Probes {
    /// Places a probe, or notes that it is to be placed, where no thread stands still that could help.
    fn watch(&mut self, image: &mut Image, modules: &mut Modules, addr: Addr, to_place: ToPlace) -> Result<()> {
        self.place_or_defer(image, modules, Deferred { addr, to_place }, None)
    }

    /// Watches the functions by which a program tells LeakSanitizer of its memory: those of its runtime, or the
    /// program's own with these names (<sanitizer/lsan_interface.h>). Their entries count, whatever they do then.
    pub(in crate::session::space) fn watch_annotations(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        facts: &Facts,
        bias: LoadBias,
    ) -> Result<()> {
        for &(function, _) in &facts.named.annotations {
            self.watch(image, modules, bias.to_process(function), ToPlace::Annotation)?;
        }
        Ok(())
    }

    /// From now on, stops threads at libc's `_exit`. To be called before the modules are loaded.
    pub fn watch_exit(&mut self) {
        self.exit_watched = true;
    }

    pub(in crate::session::space) fn watch_libc_exit(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        facts: &Facts,
        bias: LoadBias,
    ) -> Result<()> {
        for &function in &facts.named.exits {
            self.watch(image, modules, bias.to_process(function), ToPlace::Exit)?;
        }
        Ok(())
    }

    /// If the module is the dynamic linker: watches the function that it calls before and after each change of its
    /// list.
    pub(in crate::session::space) fn watch_loader(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        facts: &Facts,
        bias: LoadBias,
    ) -> Result<()> {
        let Some((notify, _)) = facts.loader else { return Ok(()) };
        self.watch(image, modules, bias.to_process(notify), ToPlace::Loader)
    }

    /// Watches the resolvers of a module's allocator functions: what they return is what will be called.
    pub(in crate::session::space) fn watch_resolvers(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        resolvers: &[Addr],
    ) -> Result<()> {
        for &addr in resolvers {
            self.watch(image, modules, addr, ToPlace::Resolver)?;
        }
        Ok(())
    }

    /// Watches the functions of frameworks in a module.
    pub(in crate::session::space) fn watch_test_hooks(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        facts: &Facts,
        bias: LoadBias,
    ) -> Result<()> {
        for &(function, _) in &facts.test_hooks {
            self.watch(image, modules, bias.to_process(function), ToPlace::Test)?;
        }
        Ok(())
    }

    /// If the module is the C library: watches the program's changes of signal actions (`signal` calls `sigaction`,
    /// too), execve(2), ptrace(2) and mlockall(2).
    pub(in crate::session::space) fn watch_libc(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        facts: &Facts,
        bias: LoadBias,
    ) -> Result<()> {
        if let Some(sigaction) = facts.named.sigaction {
            self.watch(image, modules, bias.to_process(sigaction), ToPlace::SignalAction)?;
        }
        for &(function, _) in &facts.named.exec_calls {
            self.watch(image, modules, bias.to_process(function), ToPlace::Exec)?;
        }
        if let Some(ptrace) = facts.named.ptrace {
            self.watch(image, modules, bias.to_process(ptrace), ToPlace::OwnTracer)?;
        }
        if let Some(mlockall) = facts.named.mlockall {
            self.watch(image, modules, bias.to_process(mlockall), ToPlace::LocksMemory)?;
        }
        Ok(())
    }
}
