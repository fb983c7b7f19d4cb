//! The probes of an address space: which functions have one, and what waits until it can be placed.

pub(super) mod guards;
mod placing;
mod watched;

use super::breakpoints::{Helper, Placed};
use super::image::Image;
use super::modules::Modules;
use crate::allocators::{AllocatorTable, Family, Kind};
use crate::base::addr::{Addr, FunctionId, ModuleId};
use crate::breakpoints::{BreakpointTable, Probe, Purpose};
use crate::tracer::{Result, TracerError};

/// What is placed at an address once a thread stands still: its probe needs a pad, and there was no room for
/// one near the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred {
    pub(super) addr: Addr,
    pub(super) to_place: ToPlace,
}

impl Deferred {
    const fn is_entry_at(&self, addr: Addr) -> bool {
        self.addr.0 == addr.0 && matches!(self.to_place, ToPlace::Entry(_))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ToPlace {
    Entry(EntryProbe),
    /// A wrapper's probe, which tells what it was told.
    Told(FunctionId),
    Loader,
    SignalAction,
    Exec,
    /// libc's `_exit`.
    Exit,
    /// libc's `ptrace`.
    OwnTracer,
    /// mlockall(2).
    LocksMemory,
    /// A function by which the program tells of its memory.
    Annotation,
    /// A function of an unwinder that looks at stacks.
    Guard,
    /// A function of a test framework.
    Test,
    /// The resolver of an allocator function.
    Resolver,
}

impl ToPlace {
    /// Whether allocator calls go unseen without it.
    pub(super) const fn is_needed_to_see_all(self) -> bool {
        matches!(self, Self::Entry(_) | Self::Told(_) | Self::Loader | Self::Resolver)
    }
}

/// The probe on an allocator function.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryProbe {
    pub(super) function: FunctionId,
    pub(super) module: ModuleId,
    pub(super) size: u64,
    pub(super) family: Option<Family>,
}

/// Which allocator functions have probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Probing {
    /// All.
    #[default]
    All,
    /// Those that end the life of a block, or move it.
    Ends,
    /// None.
    None,
}

impl Probing {
    pub(super) fn wants(self, function: FunctionId, table: &AllocatorTable) -> bool {
        match self {
            Self::All => true,
            Self::Ends => table.get(function).is_some_and(|f| {
                matches!(
                    f.kind,
                    Kind::Free { .. }
                        | Kind::Realloc { .. }
                        | Kind::GrowOut { .. }
                        | Kind::ResizeInPlace { .. }
                        | Kind::Mapping(_)
                )
            }),
            Self::None => false,
        }
    }
}

/// Marks the probe on sigaction(2).
pub const SIGACTION_TAG: u16 = 1;

/// Marks the probe on libc's `_exit`.
pub const EXIT_TAG: u16 = 2;

/// Marks the probe on a static program's first instruction.
const START_TAG: u16 = 4;

/// Marks the probe on ptrace(2).
pub const OWN_TRACER_TAG: u16 = 8;

/// Marks the probe on mlockall(2).
pub const LOCKS_TAG: u16 = 64;

/// Marks the probes on functions by which the program tells of its memory.
pub const ANNOTATION_TAG: u16 = 16;

/// Marks the guards: the functions of unwinders that look at stacks.
pub const GUARD_TAG: u16 = 32;

/// Marks where tests, and functions of their frameworks, begin and return to.
pub const TEST_TAG: u16 = 128;

/// Marks where resolvers of allocator functions begin and return to.
pub const RESOLVER_TAG: u16 = 256;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// The breakpoints that are there.
    pub breakpoints: BreakpointTable,
    /// What waits to be placed.
    pub(super) deferred: Vec<Deferred>,
    /// Whether all breakpoints wait until [`AddressSpace::place_held_back`](super::AddressSpace::place_held_back).
    pub(super) holds_back: bool,
    pub(super) probing: Probing,
    /// Whether the jump engine sees the allocator's calls: a return is watched for one call only.
    pub(super) is_jumped: bool,
    /// Whether the functions of unwinders that look at stacks are watched.
    pub(super) is_guarded: bool,
    /// Whether libc's `_exit` is watched.
    pub(super) exit_watched: bool,
}

impl Probes {
    /// Those of a forked child: it is on the trap engine.
    pub(super) fn fork(&self) -> Self {
        Self { is_jumped: false, is_guarded: false, ..self.clone() }
    }

    /// What could not be watched, in words.
    pub fn blind_spots(&self, modules: &Modules) -> Vec<String> {
        let waiting = self.deferred.iter().filter(|probe| probe.to_place.is_needed_to_see_all());
        let waiting = waiting.map(|probe| {
            format!(
                "no probe could be placed at {}, as there was no room near it: calls of that function were missed",
                modules.place_in_module(probe.addr)
            )
        });
        modules.findings.blind_spots.iter().cloned().chain(waiting).collect()
    }

    /// Places the probes of all modules that have none yet.
    pub(super) fn place_probes(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        table: &AllocatorTable,
    ) -> Result<()> {
        let symbols: Vec<_> = modules.loaded.iter().map(|module| module.symbols.clone()).collect();
        let providers = table.select_providers(&symbols);
        for wrapper in providers.wrappers {
            let Some((start, id)) = modules.process_address(&wrapper) else { continue };
            let range = start..start.add(wrapper.size.max(1));
            if let Some(family) = wrapper.family
                && let Some(module) = modules.loaded.get_mut(id)
                && !module.wrappers.iter().any(|(known, _)| *known == range)
            {
                module.wrappers.push((range, family));
            }
        }
        for probe in providers.told {
            let Some((addr, _)) = modules.process_address(&probe) else { continue };
            let is_waiting =
                self.deferred.iter().any(|other| other.addr == addr && matches!(other.to_place, ToPlace::Told(_)));
            let is_placed = self.breakpoints.get(addr).is_some_and(|breakpoint| breakpoint.purposes.entry.is_some());
            if !is_waiting && !is_placed && self.probing.wants(probe.function, table) {
                self.place_or_defer(image, modules, Deferred { addr, to_place: ToPlace::Told(probe.function) }, None)?;
            }
        }
        for probe in providers.probes {
            let Some((addr, id)) = modules.process_address(&probe) else { continue };
            let is_placed = self.breakpoints.get(addr).is_some_and(|b| b.purposes.entry.is_some());
            if is_placed {
                if let Some(module) = modules.loaded.get_mut(id) {
                    module.entry_families.insert(addr, probe.family);
                }
                continue;
            }
            if self.deferred.iter().any(|other| other.is_entry_at(addr)) {
                continue;
            }
            let entry = EntryProbe { function: probe.function, module: id, size: probe.size, family: probe.family };
            if self.probing.wants(probe.function, table) {
                self.place_or_defer(image, modules, Deferred { addr, to_place: ToPlace::Entry(entry) }, None)?;
            } else {
                // It can be placed when collecting goes on.
                modules.note_placed(addr, entry);
            }
        }
        Ok(())
    }

    pub(super) fn place_or_defer(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        probe: Deferred,
        helper: Option<&Helper<'_>>,
    ) -> Result<()> {
        if self.holds_back {
            self.deferred.push(probe);
            return Ok(());
        }
        let purpose = match probe.to_place {
            ToPlace::Entry(entry) => Purpose::Entry(Probe::trap(entry.function)),
            ToPlace::Told(function) => Purpose::Entry(Probe::trap(function)),
            ToPlace::Loader => Purpose::Loader,
            ToPlace::SignalAction => Purpose::Tag(SIGACTION_TAG),
            ToPlace::Exec => Purpose::Exec,
            ToPlace::Exit => Purpose::Tag(EXIT_TAG),
            ToPlace::OwnTracer => Purpose::Tag(OWN_TRACER_TAG),
            ToPlace::LocksMemory => Purpose::Tag(LOCKS_TAG),
            ToPlace::Annotation => Purpose::Tag(ANNOTATION_TAG),
            ToPlace::Guard => Purpose::Tag(GUARD_TAG),
            ToPlace::Test => Purpose::Tag(TEST_TAG),
            ToPlace::Resolver => Purpose::Tag(RESOLVER_TAG),
        };
        let placed = match self.place(image, modules, probe.addr, purpose, helper) {
            Err(TracerError::Write { .. }) if image.memory.is_refused() => Placed::NoRoom,
            Err(error @ (TracerError::Overtaken { .. } | TracerError::Unresponsive { .. })) => {
                self.deferred.push(probe);
                return Err(error);
            }
            placed => placed?,
        };
        match placed {
            Placed::Done(()) => {
                if let ToPlace::Entry(entry) = probe.to_place {
                    modules.note_placed(probe.addr, entry);
                }
            }
            Placed::NoRoom => self.deferred.push(probe),
            Placed::Impossible => {
                let place = modules.place_in_module(probe.addr);
                let missed = format!("no probe could be placed at {place}: calls of that function are missed");
                if probe.to_place.is_needed_to_see_all() {
                    modules.findings.note_blind_spot(missed)
                } else {
                    modules.findings.warnings.push(missed)
                }
            }
        }
        Ok(())
    }

    /// Places what had to wait for a thread that stands still; `helper` is one that can make room for it.
    pub fn place_deferred(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        helper: Option<&Helper<'_>>,
    ) -> Result<()> {
        let mut probes = std::mem::take(&mut self.deferred).into_iter();
        let mut placed = Ok(());
        while placed.is_ok()
            && let Some(probe) = probes.next()
        {
            placed = self.place_or_defer(image, modules, probe, helper);
        }
        self.deferred.extend(probes);
        placed
    }

    /// From now on breakpoints are only noted.
    pub const fn hold_back(&mut self) {
        self.holds_back = true;
    }

    /// Whether they are.
    pub const fn holds_back(&self) -> bool {
        self.holds_back
    }

    /// Whether probes wait for a thread that stands still.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// The same, and no stop is to come by itself at which they are placed.
    pub fn awaits_a_thread(&self) -> bool {
        self.has_deferred() && !self.holds_back
    }

    /// Probes that wait for a thread at a breakpoint may be the very first ones of a static program. Its first
    /// instruction is one that needs no pad (`endbr64`, `xor %ebp, %ebp`).
    pub(super) fn watch_start(&mut self, image: &mut Image, modules: &mut Modules) -> Result<()> {
        let start =
            modules.loaded.iter().find_map(|module| module.start).filter(|_| self.has_deferred() && !self.holds_back);
        if let Some(start) = start {
            self.place(image, modules, start, Purpose::Tag(START_TAG), None)?;
        }
        Ok(())
    }
}
