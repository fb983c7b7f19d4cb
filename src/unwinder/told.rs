//! Stacks that somebody else has walked, or tells otherwise.

use super::rule::Rule;
use super::stacks::is_canonical;
use super::{Frame, FrameAddr, Quality, Unwinder, Unwound};
use crate::base::addr::{Addr, ModuleId, StackId};

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

    /// Interns a stack in which frames of `like`, which this unwinder has walked, are told otherwise: the innermost
    /// frame first, each with whether it or one further in was guessed. At most `max_depth` are taken; it ends as
    /// `like` does.
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

    /// The stack `parent` with these callers, the innermost first, as somebody else has walked on by the rules that are
    /// known ([`Self::known_rule`]), and to the walk's end; at most `max_depth` frames in all are taken. `latest` has
    /// what was found last time: frames that are there are not looked up again. `visit` is shown each other frame: the
    /// stack without it, with it, its address, module and rule.
    ///
    /// None if `parent` is no stack of the table, which would make a circle of it later, or if there is a caller that
    /// no rule is known of, or whose rule needs more than the stack.
    pub fn extend(
        &mut self,
        parent: StackId,
        callers: &[u64],
        max_depth: u32,
        latest: &mut LatestWalk,
        visit: &mut dyn FnMut(StackId, StackId, Frame, Rule),
    ) -> Option<Unwound> {
        if parent != StackId::EMPTY && !self.stacks.contains(parent) {
            return None;
        }
        let known = latest.go_back_to(parent, callers, self.forgotten, || self.stacks.depth(parent));
        let is_guessed = self.stacks.is_guessed(parent);
        let mut stack = latest.stack();
        let mut depth = latest.depth();
        // Where the outermost frame is among those that are known, the walk ends with it.
        let is_over = latest.is_whole && known > 0;
        for &caller in callers.get(known..).filter(|_| !is_over).unwrap_or_default() {
            if depth >= max_depth {
                stack = self.stacks.truncated(stack);
                break;
            }
            let KnownCaller { module, rule, number, .. } = self.known_caller(caller)?;
            let frame = Frame { addr: FrameAddr::Return(Addr(caller)), module };
            let child = match is_guessed {
                true => self.stacks.child(stack, frame, false),
                false => self.stacks.numbered_child(stack, number),
            };
            visit(stack, child, frame, rule);
            latest.frames.push((caller, child));
            latest.is_whole = rule == Rule::Outermost;
            stack = child;
            depth += 1;
            if latest.is_whole {
                break;
            }
        }
        Some(Unwound { stack, depth, quality: self.stacks.quality(stack) })
    }

    /// What [`Self::extend`] needs to know of a caller: nearly all frames of new stacks are among some hundred. None if
    /// there is no rule for it, or one that needs more than the stack.
    #[inline]
    fn known_caller(&mut self, caller: u64) -> Option<KnownCaller> {
        let place = (caller ^ caller >> 8) as usize % KnownCaller::PLACES;
        match self.callers.get(place) {
            Some(known) if known.caller == caller && known.number != 0 => Some(*known),
            _ => self.look_up_caller(caller, place),
        }
    }

    #[cold]
    fn look_up_caller(&mut self, caller: u64, place: usize) -> Option<KnownCaller> {
        let addr = FrameAddr::Return(Addr(caller));
        let (rule, module) = self.rules.get(&addr.lookup()).copied()?;
        if !matches!(rule, Rule::Compact { .. } | Rule::Outermost) || !is_canonical(Addr(caller)) {
            return None;
        }
        let number = self.stacks.number_of(Frame { addr, module });
        let known = KnownCaller { caller, module, rule, number };
        if self.callers.is_empty() {
            self.callers = vec![KnownCaller::NONE; KnownCaller::PLACES];
        }
        self.callers.get_mut(place).into_iter().for_each(|slot| *slot = known);
        Some(known)
    }
}

/// A caller as [`Unwinder::extend`] has met it lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownCaller {
    caller: u64,
    module: ModuleId,
    rule: Rule,
    /// Of its frame where none was guessed; 0: nothing is known here.
    number: u32,
}

impl KnownCaller {
    const NONE: Self = Self { caller: 0, module: ModuleId::NONE, rule: Rule::Outermost, number: 0 };

    /// How many are kept, by their addresses: a power of two.
    const PLACES: usize = 256;
}

/// The stack that [`Unwinder::extend`] has found last, frame by frame: the next one mostly is the same, but for some of
/// its outer frames. The most frames that stacks may have are the same for all.
#[derive(Debug)]
pub struct LatestWalk {
    /// Where it begins, and how many frames that stack has.
    start: StackId,
    start_depth: u32,
    /// The callers from there on, each with the stack that ends with it. Their ids ascend.
    frames: Vec<(u64, StackId)>,
    /// The last of them is the outermost frame.
    is_whole: bool,
    /// How often rules had been forgotten when it was found.
    forgotten: u32,
}

impl Default for LatestWalk {
    fn default() -> Self {
        Self { start: StackId::EMPTY, start_depth: 0, frames: Vec::new(), is_whole: false, forgotten: 0 }
    }
}

impl LatestWalk {
    /// Keeps the frames up to the stack `parent`, and those behind it that are these callers: so many are known.
    fn go_back_to(&mut self, parent: StackId, callers: &[u64], forgotten: u32, depth: impl FnOnce() -> u32) -> usize {
        let below = self.place_of(parent);
        // what follows an outermost frame, if anything does, is no part of its walk
        let is_outermost = |below: &usize| self.is_whole && *below == self.frames.len();
        let Some(below) = below.filter(|below| forgotten == self.forgotten && !is_outermost(below)) else {
            self.frames.clear();
            *self = Self { start: parent, start_depth: depth(), forgotten, is_whole: false, ..std::mem::take(self) };
            return 0;
        };
        let known = self.known_behind(below, callers);
        if below + known < self.frames.len() {
            self.frames.truncate(below + known);
            self.is_whole = false;
        }
        known
    }

    /// How many of its frames the stack `parent` has, if its frames begin with those of that one.
    fn place_of(&self, parent: StackId) -> Option<usize> {
        if parent == self.start {
            return Some(0);
        }
        self.frames.binary_search_by_key(&parent, |(_, stack)| *stack).ok().map(|at| at + 1)
    }

    /// How many of these callers it has behind its first `below` frames.
    fn known_behind(&self, below: usize, callers: &[u64]) -> usize {
        let behind = self.frames.get(below..).unwrap_or_default();
        behind.iter().zip(callers).take_while(|((known, _), caller)| known == *caller).count()
    }

    /// The stack that was found, without a mark of its end.
    pub fn stack(&self) -> StackId {
        self.frames.last().map_or(self.start, |(_, stack)| *stack)
    }

    /// How many frames that has.
    pub(super) fn depth(&self) -> u32 {
        self.start_depth.saturating_add(self.frames.len() as u32)
    }
}

/// So many walks are kept.
const WALKS: usize = 4;

/// The latest walks of several kinds of call. Those of malloc and of free take turns, and differ from the innermost
/// frame on: each would make the other's frames unknown if one walk alone was kept.
#[derive(Debug, Default)]
pub struct LatestWalks {
    walks: [LatestWalk; WALKS],
    /// The one that makes room next.
    next: usize,
}

impl LatestWalks {
    /// For [`Unwinder::extend`] with the same arguments: the walk that has most of the frames, or if none has any, one
    /// that was not asked for lately.
    pub fn nearest(&mut self, parent: StackId, callers: &[u64]) -> &mut LatestWalk {
        let kept = |walk: &LatestWalk| {
            let below = walk.place_of(parent)?;
            Some(below + walk.known_behind(below, callers)).filter(|kept| *kept > 0)
        };
        let all = self.walks.iter().enumerate();
        let nearest = all.filter_map(|(at, walk)| Some((kept(walk)?, at))).max();
        let at = match nearest {
            Some((_, at)) => at,
            None => self.next,
        };
        if at == self.next {
            self.next = (at + 1) % WALKS;
        }
        &mut self.walks[at % WALKS]
    }
}
