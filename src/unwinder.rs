//! Walks a stopped thread's stack by the CFI of its modules, and interns the stacks it finds.
//!
//! Pure: memory enters through [`crate::base::memory::ReadMemory`], modules as byte sections. Deriving a rule (parsing
//! CFI, rare) is apart from executing it (every frame): rules are small `Copy` values, cached per address.

pub mod cfi;
pub mod cpython;
mod ends;
mod epilogue;
mod handlers;
pub mod rule;
pub mod stacks;
mod step;
mod switching;
mod told;
pub mod window;

pub use handlers::landing_pads;

use crate::arch::Regs;
use crate::base::addr::{Addr, FrameAddr, LoadBias, ModuleId, ObjAddr, StackId};
use crate::base::memory::ReadMemory;
use cfi::ModuleCfi;
use gimli::UnwindContext;
use rule::{Rows, Rule};
use rustc_hash::{FxHashMap, FxHashSet};
use stacks::is_canonical;
pub use stacks::{StackNode, StackPath, StackTable};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use step::{Cursor, Next};
pub use told::LatestWalks;
use window::{StackBuffer, StackWindow};

/// How far a stack can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Quality {
    /// Unwound by CFI from end to end.
    Complete,
    /// At least one frame without CFI was passed by its frame pointer.
    Guessed,
    /// The walk ended before the outermost frame.
    Truncated,
}

/// One frame of an interned stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// Its code address.
    pub addr: FrameAddr,
    /// The module that held the address when the stack was taken; [`ModuleId::NONE`] for code without one.
    pub module: ModuleId,
}

/// What a walk found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwound {
    /// The interned stack.
    pub stack: StackId,
    /// Its number of frames.
    pub depth: u32,
    /// How far to trust it.
    pub quality: Quality,
}

/// A section's bytes and where the object file says they are.
#[derive(Clone, Debug)]
pub struct Section {
    /// The object address of the first byte.
    pub addr: ObjAddr,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// What the unwinder needs of a module. Without any section every frame in it is guessed or ends the stack.
#[derive(Clone, Debug)]
pub struct UnwindModule {
    /// Identity; stacks refer to it.
    pub id: ModuleId,
    /// The process addresses of its executable mappings.
    pub code: Vec<Range<Addr>>,
    /// From object to process addresses.
    pub bias: LoadBias,
    /// `.eh_frame_hdr` (PT_GNU_EH_FRAME).
    pub eh_frame_hdr: Option<Section>,
    /// `.eh_frame`.
    pub eh_frame: Option<Section>,
    /// `.debug_frame`, uncompressed.
    pub debug_frame: Option<Section>,
    /// Base of DW_EH_PE_textrel values: `.text`.
    pub text: Option<ObjAddr>,
    /// Base of DW_EH_PE_datarel values outside `.eh_frame_hdr`: `.got`.
    pub got: Option<ObjAddr>,
    /// The entry point (e_entry): code without CFI right behind it is the outermost frame.
    pub entry: Option<ObjAddr>,
}

/// One frame as [`Unwinder::walk`] shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameInfo {
    /// Its code address.
    pub addr: FrameAddr,
    /// The module that holds the address; [`ModuleId::NONE`] if none does.
    pub module: ModuleId,
    /// Its stack pointer: the CFA of the frame that it called.
    pub sp: Addr,
    /// Its CFA, the stack pointer of its caller; None for the last frame of the walk. Of a signal frame: the stack
    /// pointer that the signal interrupted.
    pub cfa: Option<Addr>,
    /// Whether this is the trampoline that a signal handler returns to.
    pub is_signal_frame: bool,
    /// Whether this frame or one further in was reached by a frame pointer instead of CFI.
    pub guessed: bool,
}

/// Signal frames that one walk passes at most. Between them the stack grows, so this ends every walk, whatever is on
/// it.
const MAX_SIGNAL_FRAMES: u32 = 64;
/// Entries of the cache of walked edges. A power of two; half a MiB in all.
const EDGES: usize = 1 << 14;

/// One step of a walk that was done before: from the stack `parent` to the caller of its outermost frame, at `pc`.
/// Whether the caller was guessed need not be kept: the rule of `parent` decides it. A walk along known stacks costs
/// one probe per frame.
#[derive(Clone, Copy, Debug)]
struct Edge {
    pc: u64,
    parent: StackId,
    /// [`StackId::EMPTY`], which is no frame's child, marks an empty slot.
    child: StackId,
    rule: Rule,
    is_return: bool,
}

const _: () = assert!(size_of::<Edge>() <= 32);

const NO_EDGE: Edge =
    Edge { pc: 0, parent: StackId::EMPTY, child: StackId::EMPTY, rule: Rule::NoModule, is_return: false };

/// An executable mapping.
#[derive(Clone, Debug)]
struct CodeRange {
    code: Range<Addr>,
    module: ModuleId,
}

/// Unwinds the threads of one process.
#[derive(Clone, Debug)]
pub struct Unwinder {
    modules: FxHashMap<ModuleId, ModuleCfi>,
    /// Sorted by start.
    code: Vec<CodeRange>,
    /// By look-up address; only addresses inside modules.
    rules: FxHashMap<Addr, (Rule, ModuleId)>,
    rows: Rows,
    /// Empty before the first walk, which many processes never see.
    edges: Vec<Edge>,
    stacks: StackTable,
    context: UnwindContext<usize>,
    buffer: StackBuffer,
    /// The stack pointer with which the program began.
    initial_sp: Option<Addr>,
    /// Modules with code that their tables do not cover, each told once.
    uncovered: Vec<ModuleId>,
    told_uncovered: FxHashSet<ModuleId>,
    /// How often rules were forgotten.
    forgotten: u32,
    /// The callers that lists had lately, by their addresses; none before the first.
    callers: Vec<told::KnownCaller>,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self {
            modules: FxHashMap::default(),
            code: Vec::new(),
            rules: FxHashMap::default(),
            rows: Rows::default(),
            edges: Vec::new(),
            stacks: StackTable::new(),
            context: UnwindContext::new(),
            buffer: StackBuffer::default(),
            initial_sp: None,
            uncovered: Vec::new(),
            told_uncovered: FxHashSet::default(),
            forgotten: 0,
            callers: Vec::new(),
        }
    }
}

impl Unwinder {
    /// An unwinder that knows no code yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells the stack pointer with which the program began: its first frames lie right below, and some C libraries
    /// describe them by no CFI.
    pub fn set_initial_stack(&mut self, sp: Addr) {
        self.initial_sp = Some(sp);
    }

    /// Whether the entry point's frame may begin at `sp`: right below the stack pointer with which the program began,
    /// as start code pushes little and aligns.
    pub fn is_initial_stack(&self, sp: Addr) -> bool {
        const MAX_PUSHED: u64 = 64;
        self.initial_sp.is_some_and(|initial| sp <= initial && initial.0 - sp.0 <= MAX_PUSHED)
    }

    /// The unwinder of a copy of the process: it knows the same code and the same stacks.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            modules: self.modules.clone(),
            code: self.code.clone(),
            rules: self.rules.clone(),
            rows: self.rows.clone(),
            stacks: self.stacks.clone(),
            initial_sp: self.initial_sp,
            told_uncovered: self.told_uncovered.clone(),
            ..Self::default()
        }
    }

    /// Ends the unwinder and keeps the stacks.
    pub fn into_stacks(self) -> StackTable {
        self.stacks
    }

    /// The stacks found so far, which share their memory with those that are still found.
    pub fn share_stacks(&mut self) -> StackTable {
        self.stacks.view()
    }

    /// The stacks found so far.
    pub fn stacks(&self) -> &StackTable {
        &self.stacks
    }

    /// Adds a module, in place of one with the same id. Its code must not overlap that of another one (which of
    /// the two an address would then belong to is not specified). An executable region without a file may be given
    /// as a module without sections: then its frame pointers are tried.
    pub fn add_module(&mut self, module: UnwindModule) {
        self.remove_module(module.id);
        self.forget(&module.code);
        for code in module.code.iter().filter(|code| code.start < code.end) {
            self.code.push(CodeRange { code: code.clone(), module: module.id });
        }
        self.code.sort_by_key(|range| range.code.start);
        self.modules.insert(module.id, ModuleCfi::new(module));
    }

    /// The modules that have no `.debug_frame` and in which walks have met code without CFI, each told once:
    /// [`Unwinder::add_debug_frame`] may help, if their debug files have one.
    pub fn take_uncovered(&mut self) -> Vec<ModuleId> {
        std::mem::take(&mut self.uncovered)
    }

    /// Gives a module a `.debug_frame` that was found elsewhere.
    pub fn add_debug_frame(&mut self, id: ModuleId, section: Section) {
        let Some(cfi) = self.modules.get(&id) else { return };
        let module = UnwindModule { debug_frame: Some(section), ..cfi.module().clone() };
        self.add_module(module);
    }

    /// Forgets a module that was unmapped. Stacks through it keep their meaning, as ids are not used again.
    pub fn remove_module(&mut self, id: ModuleId) {
        let Some(cfi) = self.modules.remove(&id) else { return };
        self.code.retain(|range| range.module != id);
        self.forget(&cfi.module().code);
    }

    /// The module that holds the code at `addr`.
    pub fn module_of(&self, addr: Addr) -> Option<ModuleId> {
        let behind = self.code.partition_point(|range| range.code.start <= addr);
        let range = self.code.get(behind.checked_sub(1)?)?;
        range.code.contains(&addr).then_some(range.module)
    }

    /// Whether a function begins at `addr`, as the CFI of its module says it.
    pub fn begins_function(&mut self, addr: Addr) -> bool {
        let module = self.module_of(addr).and_then(|id| self.modules.get_mut(&id));
        module.is_some_and(|cfi| {
            let at = cfi.module().bias.to_object(addr);
            cfi.begins_function(at)
        })
    }

    /// The code that its module's CFI describes together with that at `addr`: a function, or a part of one that the
    /// compiler has put elsewhere.
    pub fn code_around(&mut self, addr: Addr) -> Option<Range<Addr>> {
        let cfi = self.module_of(addr).and_then(|id| self.modules.get_mut(&id))?;
        let bias = cfi.module().bias;
        let code = cfi.code_around(bias.to_object(addr))?;
        Some(bias.to_process(code.start)..bias.to_process(code.end))
    }

    /// Where the module `id` lists the handlers of exceptions of the function at `addr`, if it has any: what
    /// [`landing_pads`] reads.
    pub fn handlers(&mut self, id: ModuleId, addr: Addr) -> Option<ObjAddr> {
        let cfi = self.modules.get_mut(&id)?;
        let at = cfi.module().bias.to_object(addr);
        cfi.handlers(at)
    }

    /// The stack of a thread that stands at the first instruction of a function, from the caller on: there the return
    /// address is on top of the stack and every register is the caller's. At most `max_depth` frames are taken.
    pub fn unwind_at_entry<M>(&mut self, regs: &Regs, memory: &mut M, max_depth: u32) -> Unwound
    where
        M: ReadMemory + ?Sized,
    {
        self.unwind(regs, memory, true, max_depth)
    }

    /// The stack of a thread that stands anywhere; the first frame is its instruction pointer. At most `max_depth`
    /// frames are taken.
    pub fn unwind_from<M>(&mut self, regs: &Regs, memory: &mut M, max_depth: u32) -> Unwound
    where
        M: ReadMemory + ?Sized,
    {
        self.unwind(regs, memory, false, max_depth)
    }

    /// Shows each frame, from the innermost one outwards, until `visit` breaks or the walk ends. Nothing is interned.
    /// `at_entry`: the thread stands at the first instruction of a function, whose caller is the first frame.
    ///
    /// Returns the registers of the caller of the frame at which `visit` broke, as they will be when that frame has
    /// returned (of those that a function need not keep, whatever they hold now); None if CFI does not tell.
    pub fn walk<M>(
        &mut self,
        regs: &Regs,
        memory: &mut M,
        at_entry: bool,
        visit: &mut dyn FnMut(&FrameInfo) -> ControlFlow<()>,
    ) -> Option<Regs>
    where
        M: ReadMemory + ?Sized,
    {
        let mut outer = None;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut stack = StackWindow::new(&mut buffer, memory, regs.sp());
        let mut cursor = Cursor::new(regs);
        let mut frame = cursor.first_frame(at_entry, &mut stack);
        let mut guessed = false;
        while let Some(addr) = frame.filter(|addr| is_canonical(addr.raw())) {
            let (rule, module) = self.rule(addr, &mut stack);
            if rule == Rule::Stray {
                break;
            }
            let addr = rule.seen_at(addr);
            let sp = Addr(cursor.cpu.sp());
            let caller = match self.next(rule, &mut cursor, &mut stack) {
                Next::Caller { addr, guessed } => Some((addr, guessed)),
                _ => None,
            };
            let cfa = caller.map(|_| Addr(cursor.cpu.sp()));
            let info = FrameInfo { addr, module, sp, cfa, is_signal_frame: rule.is_signal_frame(), guessed };
            if visit(&info).is_break() {
                let is_told = caller.is_some_and(|(_, by_frame_pointer)| !guessed && !by_frame_pointer);
                outer = is_told.then_some(Regs { gpr: cursor.cpu.gpr, rip: cursor.cpu.pc, ..*regs });
                break;
            }
            guessed |= caller.is_some_and(|(_, guessed)| guessed);
            frame = caller.map(|(addr, _)| addr);
        }
        drop(stack);
        self.buffer = buffer;
        outer
    }

    /// The rule that a walk has found for the frame at `addr`, and that holds there whatever the stack; None if none is
    /// known.
    pub fn known_rule(&self, addr: FrameAddr) -> Option<Rule> {
        self.rules.get(&addr.lookup()).map(|(rule, _)| *rule)
    }

    fn unwind<M>(&mut self, regs: &Regs, memory: &mut M, at_entry: bool, max_depth: u32) -> Unwound
    where
        M: ReadMemory + ?Sized,
    {
        if self.edges.is_empty() {
            self.edges.resize(EDGES, NO_EDGE);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut stack = StackWindow::new(&mut buffer, memory, regs.sp());
        let mut cursor = Cursor::new(regs);
        let mut id = StackId::EMPTY;
        let mut depth = 0;
        let mut caller = cursor.first_frame(at_entry, &mut stack).map(|addr| (addr, false));
        let id = loop {
            let Some((addr, guessed)) = caller.filter(|(addr, _)| depth < max_depth && is_canonical(addr.raw())) else {
                break self.stacks.truncated(id);
            };
            let (child, rule) = self.enter(id, addr, guessed, &mut stack);
            if rule == Rule::Stray {
                break self.stacks.truncated(id);
            }
            id = child;
            depth += 1;
            caller = match self.next(rule, &mut cursor, &mut stack) {
                Next::Caller { addr, guessed } => Some((addr, guessed)),
                Next::Outermost => break id,
                Next::GuessedOutermost => break self.stacks.guessed_end(id),
                Next::Lost => None,
            };
        };
        stack.reached(cursor.cpu.sp());
        drop(stack);
        self.buffer = buffer;
        Unwound { stack: id, depth, quality: self.stacks.quality(id) }
    }

    /// The node of the frame `addr` below `parent`, and the frame's rule.
    #[inline]
    fn enter<M>(
        &mut self,
        parent: StackId,
        addr: FrameAddr,
        guessed: bool,
        stack: &mut StackWindow<'_, M>,
    ) -> (StackId, Rule)
    where
        M: ReadMemory + ?Sized,
    {
        let pc = addr.raw().0;
        let is_return = matches!(addr, FrameAddr::Return(_));
        let hash = (pc ^ u64::from(parent.0) << 32 ^ u64::from(parent.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (hash >> 40) as usize & self.edges.len().wrapping_sub(1);
        if let Some(edge) = self.edges.get(slot)
            && edge.pc == pc
            && edge.parent == parent
            && edge.is_return == is_return
            && edge.child != StackId::EMPTY
        {
            return (edge.child, edge.rule);
        }
        let (rule, module) = self.rule(addr, stack);
        if rule == Rule::Stray {
            return (parent, rule);
        }
        let child = self.stacks.child(parent, Frame { addr: rule.seen_at(addr), module }, guessed);
        if rule != Rule::NoModule
            && let Some(edge) = self.edges.get_mut(slot)
        {
            *edge = Edge { pc, parent, child, rule, is_return };
        }
        (child, rule)
    }

    /// Drops what was cached for these addresses.
    fn forget(&mut self, code: &[Range<Addr>]) {
        self.rules.retain(|addr, _| !code.iter().any(|range| range.contains(addr)));
        self.edges.fill(NO_EDGE);
        self.callers.clear();
        self.forgotten = self.forgotten.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests;
