//! The tracer's side: how the sites have changed since the last answer and since the base, and which of them come
//! first.

use crate::base::addr::{FunctionId, StackId};
use crate::base::figures::Amount;
use crate::heapmodel::SiteStats;
use crate::top::ctl::{Base, Change, Order};
use rustc_hash::FxHashMap;

/// What one stack has, over all threads and sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// A function that it calls the allocator by.
    pub function: FunctionId,
    /// What is live.
    pub live: Amount,
    /// What was allocated so far.
    pub allocated: Amount,
}

/// The sums by stack; of sampled sites, what they stand for. Stacks that have only freed what others have allocated
/// have none: in programs with many stacks most are such.
pub fn by_stack(sites: impl Iterator<Item = SiteStats>) -> FxHashMap<StackId, Figures> {
    let mut stacks: FxHashMap<StackId, Figures> = FxHashMap::default();
    for site in sites.filter(|site| site.allocated.objects > 0 || site.live.objects > 0) {
        let weight = site.key.weight();
        let none = Figures { function: site.key.function, live: Amount::default(), allocated: Amount::default() };
        let stack = stacks.entry(site.key.stack).or_insert(none);
        stack.live = stack.live.plus(site.live.times(weight));
        stack.allocated = stack.allocated.plus(site.allocated.times(weight));
    }
    stacks
}

/// When an answer is given, and what is known of the whole heap then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moment {
    /// Since tracing began, ns.
    pub elapsed_ns: u64,
    /// How often the process has executed another program.
    pub image: u32,
    /// What is live.
    pub live: Amount,
    /// What was allocated in all.
    pub allocated: Amount,
}

/// One stack of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The stack.
    pub stack: StackId,
    /// See [`Figures::function`].
    pub function: FunctionId,
    /// What is live.
    pub live: Amount,
    /// How that has changed since the base.
    pub grown: Change,
    /// What was allocated since the last answer.
    pub recent: Amount,
}

impl Row {
    /// What it is sorted by.
    fn rank(&self, order: Order) -> i64 {
        order.rank(self.live, self.grown, self.recent)
    }
}

/// What one who asks has been told so far.
#[derive(Debug, Default)]
pub struct Watch {
    base: Base,
    /// What each stack had at the base.
    base_live: FxHashMap<StackId, Amount>,
    /// What each had allocated when the last answer was given.
    before: FxHashMap<StackId, Amount>,
    last: Option<Moment>,
    /// Whether a base was set before the first moment.
    has_base: bool,
    span_ns: u64,
    recent: Amount,
}

impl Watch {
    /// Compares with another moment from now on.
    pub fn rebase(&mut self, base: Base, stacks: &FxHashMap<StackId, Figures>) {
        self.has_base = true;
        self.base = base;
        self.base_live = stacks.iter().map(|(stack, figures)| (*stack, figures.live)).collect();
    }

    /// Takes what the stacks have now, and gives the `most` that come first. The first time, if there is no base yet,
    /// and when another program has been executed, whose stacks are others, now is the base.
    pub fn look(&mut self, now: Moment, stacks: &FxHashMap<StackId, Figures>, order: Order, most: usize) -> Vec<Row> {
        let last = self.last.filter(|last| last.image == now.image);
        if last.is_none() {
            self.before = stacks.iter().map(|(stack, figures)| (*stack, figures.allocated)).collect();
            if self.last.is_some() || !self.has_base {
                self.rebase(Base { mark: None, at_ns: now.elapsed_ns, live: now.live }, stacks);
            }
        }
        self.span_ns = last.map_or(0, |last| now.elapsed_ns.saturating_sub(last.elapsed_ns));
        self.recent = last.map_or(Amount::default(), |last| now.allocated.minus(last.allocated));
        self.last = Some(now);
        let mut rows: Vec<Row> = Vec::with_capacity(stacks.len());
        for (&stack, &Figures { function, live, allocated }) in stacks {
            let before = self.before.insert(stack, allocated).unwrap_or_default();
            let base = self.base_live.get(&stack).copied().unwrap_or_default();
            let row =
                Row { stack, function, live, grown: Change::between(base, live), recent: allocated.minus(before) };
            if row.live != Amount::default() || row.recent != Amount::default() || row.grown != Change::default() {
                rows.push(row);
            }
        }
        // equal ones always in the same order
        let key = |row: &Row| (std::cmp::Reverse(row.rank(order)), row.stack);
        if rows.len() > most {
            rows.select_nth_unstable_by_key(most, key);
            rows.truncate(most);
        }
        rows.sort_unstable_by_key(key);
        rows
    }

    /// What the rows' growth is compared with.
    pub const fn base(&self) -> &Base {
        &self.base
    }

    /// The time between the last two answers, ns, and what was allocated in it; nothing where there is only one.
    pub const fn span(&self) -> (u64, Amount) {
        (self.span_ns, self.recent)
    }
}
