//! Stacks that the routine does not know: how they are taken from the slots where threads leave them, and told of.

use super::fallback::Copied;
use super::{Account, Jump, JumpEngine, JumpState};
use crate::arch::{Regs, reg};
use crate::base::addr::{Addr, FrameAddr, StackId};
use crate::base::memory::ReadMemory;
use crate::image::maps::MapIndex;
use crate::jump::layout::{
    COPIES, COPY_AREA, COPY_LEN, COPY_SIZE, COPY_STACK, Form, RBP_SAME, RULES_GENERATION, tail_hash,
};
use crate::jump::merge::RecordedStack;
use crate::jump::nodes::{CallerRule, Nodes};
use crate::jump::shared::Shared;
use crate::jump::{frames, lists};
use crate::session::space::OriginalMemory;
use crate::session::tracee::Tracee;
use crate::tracer::jump::region::SharedMapping;
use crate::unwinder::rule::{Base, CALLEE_SAVED, Rule, SAME};
use crate::unwinder::{LatestWalks, Quality, Unwound};
use std::ops::Range;

impl Jump {
    /// The stack that a record or a frame of this cell names. A copy is unwound, and its slot given back.
    pub(super) fn stack_of(
        &mut self,
        tracee: &mut Tracee,
        account: &mut Account,
        cell: u16,
        stack: RecordedStack,
        caller: Addr,
    ) -> StackId {
        match stack {
            RecordedStack::Listed(number) => {
                self.take_lists_of(tracee, cell);
                let known = self.owner_mut(cell).and_then(|owner| owner.lists.stack(number));
                known.map_or(StackId::EMPTY, StackId)
            }
            // Nobody has met this caller of a free, or there was no room for its node.
            RecordedStack::Caller(0) => {
                if let Some(known) = self.callers.get(&caller) {
                    return *known;
                }
                let mut regs = Regs::default();
                regs.gpr[reg::RSP] = CallerAlone::PLACE.0;
                let space = &mut tracee.space;
                let target = OriginalMemory { memory: &mut space.image.memory, patches: space.image.code.patches() };
                let unwound = space.modules.unwinder.unwind_at_entry(&regs, &mut CallerAlone { caller, target }, 1);
                self.publish(tracee, unwound);
                self.callers.insert(caller, unwound.stack);
                unwound.stack
            }
            RecordedStack::Known(id) | RecordedStack::Caller(id) => {
                let known = tracee.space.modules.unwinder.stacks().contains(StackId(id));
                if known { StackId(id) } else { StackId::EMPTY }
            }
            RecordedStack::Copied(copy) => {
                let found = self.unwind_copy(tracee, copy);
                frames::release_copy(self.shared(), copy % COPIES as u32);
                let Some((stack, copied)) = found else {
                    tracing::debug!("copy {copy} of a call from {caller} is damaged");
                    return StackId::EMPTY;
                };
                account.fallbacks.note_copy(copied, self.nodes.refused());
                stack
            }
        }
    }

    fn unwind_copy(&mut self, tracee: &mut Tracee, copy: u32) -> Option<(StackId, Copied)> {
        let (regs, copied) = CopiedStack::of(self.shared(), copy)?;
        let space = &mut tracee.space;
        let target = OriginalMemory { memory: &mut space.image.memory, patches: space.image.code.patches() };
        let mut memory = CopiedMemory { copied, target, maps: &space.image.maps };
        let unwound = space.modules.unwinder.unwind_at_entry(&regs, &mut memory, tracee.settings.max_depth);
        Some((unwound.stack, self.publish(tracee, unwound)))
    }

    /// Takes what threads have listed, which records that were published later may name.
    pub(super) fn take_lists(&mut self, tracee: &mut Tracee) {
        for cell in self.used_cells() {
            self.take_lists_of(tracee, cell);
        }
    }

    fn take_lists_of(&mut self, tracee: &mut Tracee, cell: u16) {
        let mut listed = std::mem::take(&mut self.listed);
        while let Some(owner) = self.cells.get_mut(usize::from(cell)).and_then(Option::as_mut)
            && let Some(list) = owner.lists.take(&self.region.mapping, &mut listed)
        {
            let stack = self.take_list(tracee, StackId(list.parent), &listed).unwrap_or(StackId::EMPTY);
            if let Some(owner) = self.cells.get_mut(usize::from(cell)).and_then(Option::as_mut) {
                owner.lists.note(list, stack.0);
                // at once: the thread may wait for the room
                owner.lists.give_back(&self.region.mapping);
            }
        }
        self.listed = listed;
    }

    /// Makes nodes of the frames that a thread has listed, and tells the routine of them.
    fn take_list(&mut self, tracee: &mut Tracee, parent: StackId, listed: &[u64]) -> Option<StackId> {
        let unwinder = &mut tracee.space.modules.unwinder;
        let shared = &self.region.mapping;
        let nodes = &mut self.nodes;
        let latest = self.latest.nearest(parent, listed);
        let unwound =
            unwinder.extend(parent, listed, tracee.settings.max_depth, latest, &mut |parent, stack, frame, rule| {
                // nobody asks for the way on of a node that finds no room
                let is_left_out = Nodes::has_no_room(stack.0);
                let onward = if is_left_out { CallerRule::Unknown } else { onward(Some(rule), stack) };
                nodes.publish(shared, stack.0, parent.0, frame.addr.raw().0, onward);
            })?;
        let (stack, last) = (unwound.stack, latest.stack());
        if stack != last {
            // too deep: all walks end there
            self.nodes.end_at(shared, last.0, stack.0);
        }
        if !self.nodes.is_published(last.0) {
            self.tails.publish(shared, tail_hash(parent.0.into(), listed), stack.0);
        }
        Some(stack)
    }

    /// Tells the routine of a stack, so that it knows it next time. Returns whether it will.
    pub(super) fn publish(&mut self, tracee: &Tracee, unwound: Unwound) -> Copied {
        let unwinder = &tracee.space.modules.unwinder;
        let stacks = unwinder.stacks();
        let mut path = Vec::with_capacity(unwound.depth as usize);
        let mut at = unwound.stack;
        while let Some(node) = stacks.get(at) {
            if let Some(frame) = node.frame() {
                path.push((at, node.parent, frame));
            }
            at = node.parent;
        }
        let shared = &self.region.mapping;
        for (id, parent, frame) in path.iter().rev() {
            if self.nodes.is_published(id.0) {
                continue;
            }
            let FrameAddr::Return(ra) = frame.addr else { break };
            let onward = onward(unwinder.known_rule(frame.addr), *id);
            self.rules.publish(shared, ra.0, frame.module, onward);
            self.nodes.publish(shared, id.0, parent.0, ra.0, onward);
        }
        // Where the walk's end depends on nothing but the frame it came to, or on the depth, all walks end there.
        let Some(((last, _, frame), inner)) = path.split_first() else { return Copied::Published };
        let ends_here = match unwinder.known_rule(frame.addr) {
            None => unwound.quality != Quality::Truncated || frame.module == crate::base::addr::ModuleId::NONE,
            Some(Rule::Planted { .. } | Rule::OtherStack) => true,
            Some(_) => false,
        };
        if ends_here || unwound.depth >= tracee.settings.max_depth {
            self.nodes.end_at(shared, last.0, unwound.stack.0);
        } else if !matches!(unwinder.known_rule(frame.addr), Some(Rule::Outermost)) {
            return Copied::Unwalkable;
        }
        if Nodes::has_no_room(unwound.stack.0) {
            Copied::NoRoom
        } else if inner.iter().all(|(id, ..)| self.nodes.is_walked(id.0)) {
            Copied::Published
        } else {
            Copied::Unwalkable
        }
    }
}

impl JumpEngine {
    /// The same of a stack that was walked at a stop.
    pub(in crate::session) fn publish_stack(&mut self, tracee: &Tracee, unwound: Unwound) {
        if let JumpState::On(jump) = &mut self.state {
            jump.publish(tracee, unwound);
        }
    }

    /// The caller of a free whose stack is not walked at stops, either: all that the routine needs to know of it.
    pub(super) fn publish_caller(&mut self, tracee: &mut Tracee, entered: &Regs) {
        let space = &mut tracee.space;
        let mut memory = OriginalMemory { memory: &mut space.image.memory, patches: space.image.code.patches() };
        let unwound = space.modules.unwinder.unwind_at_entry(entered, &mut memory, 1);
        self.publish_stack(tracee, unwound);
    }

    /// Modules have come or gone: what was known of their code holds no longer.
    pub(in crate::session) fn forget_stale_nodes(&mut self, tracee: &Tracee) {
        let JumpState::On(jump) = &mut self.state else { return };
        jump.facts.clear();
        jump.callers.clear();
        jump.latest = LatestWalks::default();
        let space = &tracee.space;
        let stacks = space.modules.unwinder.stacks();
        let is_stale = |id: &u32| {
            let frame = stacks.get(StackId(*id)).and_then(|node| node.frame());
            frame.is_none_or(|frame| {
                let now = space.modules.unwinder.module_of(frame.addr.lookup());
                now.unwrap_or(crate::base::addr::ModuleId::NONE) != frame.module
            })
        };
        let stale: Vec<u32> = jump.nodes.iter().filter(is_stale).collect();
        for id in stale {
            jump.nodes.forget(&jump.region.mapping, id);
        }
        let is_elsewhere =
            |ra, module| space.modules.unwinder.module_of(FrameAddr::Return(Addr(ra)).lookup()) != Some(module);
        jump.rules.forget(&jump.region.mapping, &is_elsewhere);
        // behind it: who has read the new number finds no stale rule
        let mapping = &jump.region.mapping;
        mapping.set_half(RULES_GENERATION, mapping.half(RULES_GENERATION).wrapping_add(1));
        jump.tails.clear(&jump.region.mapping);
        jump.used_cells().for_each(|cell| lists::forget_latest(&jump.region.mapping, cell));
    }
}

/// How walks go on from a frame with this rule, whose stack is `stack`.
fn onward(rule: Option<Rule>, stack: StackId) -> CallerRule {
    match rule {
        Some(Rule::Compact { base, offset, saved }) => {
            let rbp = CALLEE_SAVED.into_iter().zip(saved).find(|(register, _)| *register == reg::RBP);
            let rbp = rbp.map_or(SAME, |(_, words)| words);
            let form = match base {
                Base::Rsp => Form::Rsp,
                Base::Rbp => Form::Rbp,
                Base::LoadRbp => Form::LoadRbp,
            };
            CallerRule::Caller { form, offset, rbp: if rbp == SAME { RBP_SAME } else { rbp.into() } }
        }
        Some(Rule::Outermost) => CallerRule::End(stack.0),
        _ => CallerRule::Unknown,
    }
}

/// Where a slot for a copy begins in the shared region.
fn slot_at(copy: u32) -> u64 {
    COPY_AREA + u64::from(copy) % COPIES * COPY_SIZE
}

/// A stack as a thread has copied it: read where it lies, as a walk needs a part of it only.
struct CopiedStack<'a> {
    shared: &'a SharedMapping,
    /// Where it is in the shared region.
    at: u64,
    /// Where it was.
    start: Addr,
    len: u64,
}

impl<'a> CopiedStack<'a> {
    /// What is in a slot: sixteen registers as at a function's entry, and the stack. None if they are not as a thread
    /// copies them.
    fn of(shared: &'a SharedMapping, copy: u32) -> Option<(Regs, Self)> {
        /// The registers' order in a copy, by their numbers here.
        const ORDER: [usize; 16] = [
            reg::RAX,
            reg::RCX,
            reg::RDX,
            reg::RBX,
            reg::RSP,
            reg::RBP,
            reg::RSI,
            reg::RDI,
            reg::R8,
            reg::R9,
            reg::R10,
            reg::R11,
            reg::R12,
            reg::R13,
            reg::R14,
            reg::R15,
        ];
        let at = slot_at(copy);
        let mut regs = Regs::default();
        for (number, register) in ORDER.into_iter().enumerate() {
            regs.gpr[register] = shared.word(at + 8 * number as u64);
        }
        let len = shared.word(at + COPY_LEN);
        let stack = Self { shared, at: at + COPY_STACK, start: Addr(regs.sp()), len };
        (len <= COPY_SIZE - COPY_STACK).then_some((regs, stack))
    }

    /// A whole word of the copy, where it lies on the boundary of one.
    fn word(&self, addr: Addr) -> Option<u64> {
        let offset = addr.0.wrapping_sub(self.start.0);
        let is_whole = offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.len);
        is_whole.then(|| self.shared.word(self.at + offset))
    }

    fn read(&self, addr: Addr, buf: &mut [u8]) -> usize {
        let offset = addr.0.wrapping_sub(self.start.0);
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let is_read = n > 0 && buf.get_mut(..n).is_some_and(|part| self.shared.copy_out(self.at + offset, part));
        if is_read { n } else { 0 }
    }
}

/// The target's code, and a stack of which nothing is known but the caller.
struct CallerAlone<'a> {
    caller: Addr,
    target: OriginalMemory<'a>,
}

impl CallerAlone<'_> {
    /// Where the caller's address lies: in the first page, where nothing can be mapped.
    const PLACE: Addr = Addr(8);
}

impl ReadMemory for CallerAlone<'_> {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        match buf.first_chunk_mut() {
            Some(word) if addr == Self::PLACE => {
                *word = self.caller.0.to_le_bytes();
                word.len()
            }
            _ => self.target.read(addr, buf),
        }
    }

    fn near_word(&mut self, addr: Addr) -> Option<u64> {
        (addr == Self::PLACE).then_some(self.caller.0)
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        self.target.touched(range)
    }

    fn is_executable(&mut self, addr: Addr) -> Option<bool> {
        self.target.is_executable(addr)
    }
}

/// The memory as it was when a stack was copied: the copy, and the target's code. What else there is may have changed.
struct CopiedMemory<'a> {
    copied: CopiedStack<'a>,
    target: OriginalMemory<'a>,
    maps: &'a MapIndex,
}

impl ReadMemory for CopiedMemory<'_> {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let n = self.copied.read(addr, buf);
        let is_code = || self.maps.find(addr).is_some_and(|mapping| mapping.perms.execute);
        if n == 0 && is_code() { self.target.read(addr, buf) } else { n }
    }

    fn near_word(&mut self, addr: Addr) -> Option<u64> {
        self.copied.word(addr)
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        self.target.touched(range)
    }

    /// What was executed then may be gone by now. What was data when the map was read, and is no code now, was data.
    fn is_executable(&mut self, addr: Addr) -> Option<bool> {
        let was_data = self.maps.find(addr).is_some_and(|mapping| !mapping.perms.execute);
        self.target.is_executable(addr).filter(|is_code| *is_code || was_data)
    }
}
