//! Stacks that somebody else has walked, or tells otherwise.

use super::rule::Rule;
use super::stacks::is_canonical;
use super::{Frame, FrameAddr, Quality, Unwinder, Unwound};
use crate::addr::{Addr, ModuleId, StackId};

impl Unwinder {
    /// Interns a stack that another unwinder has walked, innermost frame first.
    pub fn intern(&mut self, frames: &[FrameAddr], truncated: bool) -> Unwound {
        let mut stack = StackId::EMPTY;
        for &addr in frames {
            let module = self.module_of(addr.lookup()).unwrap_or(ModuleId::NONE);
            stack = self.stacks.child(stack, Frame { addr, module }, false);
        }
        if truncated {
            stack = self.stacks.truncated(stack);
        }
        Unwound { stack, depth: self.stacks.depth(stack), quality: self.stacks.quality(stack) }
    }

    /// Interns a stack in which frames of `like`, which this unwinder has walked, are told otherwise: the innermost frame first, each with whether it or one further in was
    /// guessed. At most `max_depth` are taken; it ends as `like` does.
    pub fn retell(&mut self, like: Unwound, frames: impl Iterator<Item = (Frame, bool)>, max_depth: u32) -> Unwound {
        let (mut stack, mut depth, mut is_cut) = (StackId::EMPTY, 0, like.quality == Quality::Truncated);
        for (frame, guessed) in frames {
            if depth == max_depth {
                is_cut = true;
                break;
            }
            stack = self.stacks.child(stack, frame, guessed);
            depth += 1;
        }
        if is_cut {
            stack = self.stacks.truncated(stack);
        } else if like.quality == Quality::Guessed {
            stack = self.stacks.guessed_end(stack);
        }
        Unwound { stack, depth, quality: self.stacks.quality(stack) }
    }

    /// The stack `parent` with these callers, the innermost first, as somebody else has walked on by the rules that are known ([`Self::known_rule`]), and to the walk's
    /// end; at most `max_depth` frames in all are taken. `visit` is shown each new frame: the stack without it, with it, its address, module and rule.
    ///
    /// None if `parent` is no stack of the table, which would make a circle of it later, or if there is a caller that no rule is known of, or whose rule needs more
    /// than the stack.
    pub fn extend(
        &mut self,
        parent: StackId,
        callers: impl Iterator<Item = Addr>,
        max_depth: u32,
        visit: &mut dyn FnMut(StackId, StackId, Frame, Rule),
    ) -> Option<Unwound> {
        if parent != StackId::EMPTY {
            self.stacks.get(parent)?;
        }
        let mut stack = parent;
        let mut depth = self.stacks.depth(parent);
        for caller in callers {
            if depth >= max_depth {
                stack = self.stacks.truncated(stack);
                break;
            }
            let addr = FrameAddr::Return(caller);
            let (rule, module) = self.rules.get(&addr.lookup()).copied()?;
            if !matches!(rule, Rule::Compact { .. } | Rule::Outermost) || !is_canonical(caller) {
                return None;
            }
            let frame = Frame { addr, module };
            let child = self.stacks.child(stack, frame, false);
            visit(stack, child, frame, rule);
            stack = child;
            depth += 1;
            if rule == Rule::Outermost {
                break;
            }
        }
        Some(Unwound { stack, depth, quality: self.stacks.quality(stack) })
    }
}
