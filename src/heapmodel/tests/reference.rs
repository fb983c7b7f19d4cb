//! The model against a naive one: plain maps, and a full copy of all live figures at each new maximum.

use super::*;
use crate::base::addr::TestId;
use crate::event::{EventLog, MarkName};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

type Key = (u32, u32, u16, u64);

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    key: Key,
    /// Number of the allocation of the process, and of its thread.
    birth: (u64, u64),
    family: Option<Family>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Figures {
    allocated: Amount,
    freed: Amount,
    deallocated: Amount,
    live: Amount,
    temporary: u64,
}

#[derive(Debug, Default)]
struct Reference {
    attached: bool,
    live: BTreeMap<u64, Block>,
    dead: BTreeMap<u64, ()>,
    sites: BTreeMap<Key, Figures>,
    at_peak: BTreeMap<Key, Amount>,
    family: BTreeMap<Key, Vec<Option<Family>>>,
    thread_allocations: BTreeMap<u32, u64>,
    /// (thread, address) -> call; what it held, or None: retired; or a stranger.
    limbo: Vec<(u32, u64, Call, Old)>,
    totals: Totals,
    lifetimes: Vec<u64>,
    errors: BTreeMap<FindingKind, u64>,
    lost: u64,
    freed_dead: Vec<u64>,
    frees_unseen: bool,
    now_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Old {
    Held(u64),
    Retired,
    Stranger(bool),
}

fn key(by: &Call, size: u64) -> Key {
    (by.stack.0, by.task.serial, by.function.0, size)
}

fn plus(amount: &mut Amount, bytes: u64) {
    *amount = Amount { objects: amount.objects + 1, bytes: amount.bytes + bytes };
}

impl Reference {
    fn apply(&mut self, event: &EventKind) {
        match *event {
            EventKind::Allocated { block, size, by } => self.allocate(block.0, size, by),
            EventKind::AllocatedUnseen { size, by } => {
                self.allocate(1, size, by);
                self.lost += 1;
                let temporary = self.totals.temporary;
                self.release(1, None);
                // the latest allocation of the thread is still the one before
                let added = self.totals.temporary - temporary;
                self.totals.temporary = temporary;
                self.sites.entry(key(&by, size)).or_default().temporary -= added;
                *self.thread_allocations.entry(by.task.serial).or_default() -= 1;
                self.dead.remove(&1);
            }
            EventKind::Freed { block, internal, by, .. } => {
                if let Some(found) = self.live.get(&block.0).copied() {
                    self.mismatch(&found, &by);
                    self.release(block.0, Some(by));
                } else if !internal && !self.stranger(block.0) {
                    self.totals.preexisting_frees += 1;
                }
            }
            EventKind::ReallocBegan { old, by } => {
                let state = match self.live.get(&old.0).copied() {
                    Some(found) => {
                        self.mismatch(&found, &by);
                        Old::Held(found.birth.0)
                    }
                    None => Old::Stranger(!self.stranger(old.0)),
                };
                self.limbo.push((by.task.serial, old.0, by, state));
            }
            EventKind::ReallocEnded { old, new, size, by } => {
                let Some(state) = self.take(by.task.serial, old.0) else { panic!("generator") };
                if new.is_null() && size > 0 {
                    self.totals.failed += 1;
                    return;
                }
                let mut known = state == Old::Retired;
                match state {
                    Old::Held(birth) if self.live.get(&old.0).is_some_and(|b| b.birth.0 == birth) => {
                        self.release(old.0, Some(by));
                        known = true;
                    }
                    Old::Stranger(preexisting) => self.totals.preexisting_frees += u64::from(preexisting),
                    _ => {}
                }
                if !new.is_null() {
                    self.totals.reallocations += u64::from(known);
                    self.allocate(new.0, size, by);
                }
            }
            EventKind::ReallocAbandoned { old, task } => {
                self.take(task.serial, old.0);
            }
            EventKind::Failed { .. } => self.totals.failed += 1,
            other => panic!("no event of the generator: {other:?}"),
        }
    }

    fn take(&mut self, task: u32, old: u64) -> Option<Old> {
        let at = self.limbo.iter().rposition(|l| (l.0, l.1) == (task, old))?;
        Some(self.limbo.remove(at).3)
    }

    fn allocate(&mut self, addr: u64, size: u64, by: Call) {
        if let Some(found) = self.live.get(&addr).copied() {
            let held = Old::Held(found.birth.0);
            match self.limbo.iter_mut().find(|l| l.1 == addr && l.3 == held) {
                Some(limbo) => {
                    limbo.3 = Old::Retired;
                    let by = limbo.2;
                    self.release(addr, Some(by));
                }
                None => {
                    let inside = addr..addr + found.size.max(1);
                    if self.frees_unseen || !self.freed_dead.iter().any(|freed| inside.contains(freed)) {
                        self.lost += 1;
                        self.frees_unseen = true;
                    }
                    self.release(addr, None);
                }
            }
        }
        self.dead.remove(&addr);
        self.totals.allocations += 1;
        self.totals.bytes_allocated += size;
        self.totals.live_blocks += 1;
        self.totals.live_bytes += size;
        let thread = self.thread_allocations.entry(by.task.serial).or_default();
        *thread += 1;
        let birth = (self.totals.allocations, *thread);
        let key = key(&by, size);
        self.live.insert(addr, Block { size, key, birth, family: by.family });
        self.family.entry(key).or_default().push(by.family);
        let site = self.sites.entry(key).or_default();
        plus(&mut site.allocated, size);
        plus(&mut site.live, size);
        if self.totals.live_bytes > self.totals.peak_bytes {
            (self.totals.peak_bytes, self.totals.peak_blocks) = (self.totals.live_bytes, self.totals.live_blocks);
            self.totals.peak_at_ns = self.now_ns;
            self.at_peak = self.sites.iter().map(|(key, site)| (*key, site.live)).collect();
        }
    }

    fn release(&mut self, addr: u64, by: Option<Call>) {
        let Some(block) = self.live.remove(&addr) else { panic!("not live") };
        self.totals.frees += 1;
        self.totals.bytes_freed += block.size;
        self.totals.live_blocks -= 1;
        self.totals.live_bytes -= block.size;
        self.lifetimes.push(self.totals.allocations - block.birth.0);
        let temporary = u64::from(self.thread_allocations[&block.key.1] == block.birth.1);
        self.totals.temporary += temporary;
        let site = self.sites.entry(block.key).or_default();
        plus(&mut site.freed, block.size);
        site.temporary += temporary;
        site.live = Amount { objects: site.live.objects - 1, bytes: site.live.bytes - block.size };
        let charged = by.map_or(block.key, |by| key(&by, block.size));
        plus(&mut self.sites.entry(charged).or_default().deallocated, block.size);
        self.dead.insert(addr, ());
    }

    fn mismatch(&mut self, block: &Block, by: &Call) {
        let all_same = self.family[&block.key].iter().all(|family| *family == block.family);
        let known = |f: Option<Family>| f.filter(|f| *f != Family::Other);
        if let (true, Some(a), Some(b)) = (all_same, known(block.family), known(by.family))
            && a != b
        {
            *self.errors.entry(FindingKind::MismatchedFree).or_default() += 1;
        }
    }

    fn stranger(&mut self, addr: u64) -> bool {
        self.freed_dead.push(addr);
        let kind = match (self.dead.contains_key(&addr), self.attached) {
            (true, _) => FindingKind::DoubleFree,
            (false, true) => return false,
            (false, false) => FindingKind::InvalidFree,
        };
        *self.errors.entry(kind).or_default() += 1;
        true
    }
}

/// One step of the made-up program: on few addresses, so that each rule meets the others.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: u8,
    addr: u64,
    other: u64,
    size: u64,
    task: u32,
    stack: u32,
    family: u8,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Up to 40 sizes on a stack and thread: site sizes are exact.
    let step = (0..20u8, 1..12u64, 0..12u64, 0..20u64, 1..4u32, 1..4u32, 0..12u8);
    let step = step.prop_map(|(what, addr, other, size, task, stack, family)| Step {
        what,
        addr: addr * 16,
        other: other * 16,
        size: size * size * 3,
        task,
        stack,
        family,
    });
    prop::collection::vec(step, 1..200)
}

fn events(steps: &[Step]) -> Vec<EventKind> {
    let mut pending: Vec<(u32, u64)> = Vec::new();
    let mut events = Vec::new();
    for step in steps {
        let make = |function, stack| {
            let family = match step.family {
                0 => Some(Family::New),
                1 => Some(Family::Other),
                2..=8 => Some(Family::Malloc),
                _ => None,
            };
            Call { family, ..call(function, step.task, stack) }
        };
        let began = pending.iter().rposition(|(task, _)| *task == step.task);
        events.push(match (step.what, began) {
            (0..=7, _) => {
                EventKind::Allocated { block: Addr(step.addr), size: step.size, by: make(MALLOC, step.stack) }
            }
            (8..=12, _) => {
                let internal = step.family == 11;
                EventKind::Freed { block: Addr(step.addr), internal, given_size: None, by: make(FREE, step.stack + 10) }
            }
            (13, _) if step.family == 0 => EventKind::AllocatedUnseen { size: step.size, by: make(MALLOC, step.stack) },
            (13, _) => EventKind::Failed { size: step.size, by: make(MALLOC, step.stack) },
            (14, Some(at)) => {
                let (_, old) = pending.remove(at);
                EventKind::ReallocAbandoned { old: Addr(old), task: make(REALLOC, 0).task }
            }
            (15.., Some(at)) => {
                let (_, old) = pending.remove(at);
                let new = if step.what == 15 { old } else { step.other };
                EventKind::ReallocEnded {
                    old: Addr(old),
                    new: Addr(new),
                    size: step.size,
                    by: make(REALLOC, step.stack + 20),
                }
            }
            (_, None) => {
                pending.push((step.task, step.addr));
                EventKind::ReallocBegan { old: Addr(step.addr), by: make(REALLOC, step.stack + 20) }
            }
        });
    }
    events
}

fn compare(model: &HeapModel, reference: &Reference) -> Result<(), TestCaseError> {
    let snapshot = model.snapshot();
    prop_assert_eq!(snapshot.totals, reference.totals);
    let sites: BTreeMap<Key, Figures> = snapshot
        .sites
        .iter()
        .map(|s| {
            let key = (s.key.stack.0, s.key.task, s.key.function.0, s.key.size);
            let SiteStats { allocated, freed, deallocated, live, temporary, .. } = s;
            (key, Figures { allocated, freed, deallocated, live, temporary })
        })
        .collect();
    prop_assert_eq!(&sites, &reference.sites);
    for site in snapshot.sites.iter() {
        let key = (site.key.stack.0, site.key.task, site.key.function.0, site.key.size);
        prop_assert_eq!(site.at_peak, reference.at_peak.get(&key).copied().unwrap_or_default(), "{:?}", key);
    }
    let live: BTreeMap<u64, u64> = model.live_blocks().map(|b| (b.addr.0, b.size)).collect();
    prop_assert_eq!(live, reference.live.iter().map(|(a, b)| (*a, b.size)).collect::<BTreeMap<_, _>>());
    let error = |kind| reference.errors.get(&kind).copied().unwrap_or(0);
    prop_assert_eq!(snapshot.anomalies.double_frees, error(FindingKind::DoubleFree));
    prop_assert_eq!(snapshot.anomalies.unknown_frees, error(FindingKind::InvalidFree));
    prop_assert_eq!(snapshot.anomalies.mismatched_frees, error(FindingKind::MismatchedFree));
    for kind in [FindingKind::DoubleFree, FindingKind::InvalidFree, FindingKind::MismatchedFree] {
        let is_certain = kind == FindingKind::MismatchedFree || !reference.frees_unseen;
        let told = snapshot.errors.iter().filter(|e| e.kind == kind).map(|e| e.count).sum::<u64>();
        prop_assert_eq!(told, if is_certain { error(kind) } else { 0 });
    }
    prop_assert_eq!(snapshot.anomalies.lost, reference.lost);
    let bucket = |value: u64| u64::BITS - value.leading_zeros();
    for (at, count) in snapshot.histograms.lifetime.iter().enumerate() {
        let expected = reference.lifetimes.iter().filter(|l| bucket(**l) as usize == at).count() as u64;
        prop_assert_eq!(*count, expected);
    }
    prop_assert_eq!(snapshot.histograms.lifetime.iter().sum::<u64>(), reference.lifetimes.len() as u64);
    prop_assert_eq!(snapshot.timeline.iter().map(|p| p.live_bytes).max().unwrap_or(0), reference.totals.peak_bytes);
    Ok(())
}

/// What can be seen changes, or the process itself, at some places of a stream.
fn circumstance(n: u8) -> EventKind {
    let task = |serial| TaskId { tid: 1, serial };
    match n % 8 {
        0 => EventKind::Exec { image: ImageId(9) },
        1 => EventKind::Missed(Missed::OuterFrames { cut: n % 16 == 1 }),
        2 => EventKind::UnknownFreesExpected,
        3 => EventKind::Unobserved,
        4 => EventKind::Paused(n % 16 == 4),
        5 => EventKind::BlockIgnored(Addr(u64::from(n) * 16)),
        6 => EventKind::NewBlocksIgnored { task: task(u32::from(n % 3)), ignore: n % 16 == 6 },
        7 if n % 48 == 15 => EventKind::TestBegan {
            test: TestId(u32::from(n / 128)),
            task: task(u32::from(n % 3)),
            alone: n.is_multiple_of(5),
        },
        7 if n % 48 == 31 => EventKind::TestEnded { task: task(u32::from(n % 3)) },
        _ if n % 16 == 7 => EventKind::Mark(MarkName::new("a mark").unwrap()),
        _ => EventKind::Missed(Missed::Call),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_stream_gives_what_the_naive_model_gives(steps in steps(), attached: bool) {
        let preexisting = if attached { Preexisting::Unknown } else { Preexisting::None };
        let mut model = HeapModel::new(preexisting);
        let mut reference = Reference { attached, ..Reference::default() };
        for (n, event) in events(&steps).iter().enumerate() {
            reference.now_ns = n as u64 * 100;
            model.apply(&Event { seq: n as u64, time_ns: reference.now_ns, kind: *event });
            reference.apply(event);
            if n % 16 == 0 {
                compare(&model, &reference)?;
            }
        }
        compare(&model, &reference)?;
        let totals = model.totals();
        prop_assert_eq!(totals.allocations - totals.frees, totals.live_blocks);
        prop_assert_eq!(totals.bytes_allocated - totals.bytes_freed, totals.live_bytes);
    }

    /// Whatever comes after it, and whether others are still held.
    #[test]
    fn a_view_stays_as_the_model_was(steps in steps(), at in prop::collection::vec(any::<prop::sample::Index>(), 1..5), keep: bool) {
        let kinds = events(&steps);
        let mut model = HeapModel::new(Preexisting::None);
        let mut views = Vec::new();
        let blocks = |blocks: &mut dyn Iterator<Item = LiveBlock>| {
            let mut blocks: Vec<LiveBlock> = blocks.collect();
            blocks.sort_unstable_by_key(|block| block.addr);
            format!("{blocks:?}")
        };
        for (n, kind) in kinds.iter().enumerate() {
            if at.iter().any(|at| at.index(kinds.len()) == n) {
                let told = (format!("{:?}", model.snapshot()), blocks(&mut model.live_blocks()));
                views.push((model.view(true), told, model.births));
                if !keep && views.len() == 2 {
                    views.remove(0);
                }
            }
            model.apply(&Event { seq: n as u64, time_ns: n as u64 * 100, kind: *kind });
        }
        for (view, told, births) in &views {
            prop_assert_eq!(&(format!("{:?}", view.snapshot()), blocks(&mut view.live_blocks())), told);
            prop_assert_eq!(view.survivors(*births).unwrap().totals, Totals::default());
            let all = view.survivors(0).unwrap();
            let (live, whole) = (|totals: Totals| (totals.live_blocks, totals.live_bytes), view.snapshot());
            prop_assert_eq!(live(all.totals), live(whole.totals));
            let set = |stacks: &mut dyn Iterator<Item = StackId>| stacks.collect::<BTreeSet<_>>();
            let errors = whole.errors.iter().flat_map(HeapError::stacks);
            let named = set(&mut whole.sites.iter().map(|site| site.key.stack).chain(errors));
            prop_assert_eq!(set(&mut view.stacks().into_iter()), named);
            let of_sites = |sites: &SiteTable| -> BTreeMap<_, _> {
                sites.iter().filter(|site| site.live.objects > 0).map(|s| ((s.key.stack, s.key.task, s.key.function.0, s.key.size), s.live)).collect()
            };
            prop_assert_eq!(of_sites(&all.sites), of_sites(&whole.sites));
        }
        let newest = model.view(true);
        for (_, _, births) in &views {
            let born = newest.live_blocks().count();
            let since = newest.survivors(*births).unwrap().totals.live_blocks;
            let reborn = model.blocks.iter().filter(|(_, block)| block.birth > *births).count();
            prop_assert!(since as usize == reborn && reborn <= born);
        }
    }

    /// Also of a child that was forked in the middle, and of its child.
    #[test]
    fn a_recorded_stream_read_again_gives_the_same_model(
        steps in steps(),
        changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..8),
        forks in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        free_stacks: bool,
    ) {
        let mut kinds = events(&steps);
        for (at, n) in &changes {
            kinds.insert(at.index(kinds.len() + 1), circumstance(*n));
        }
        for at in &forks {
            let task = |serial| TaskId { tid: 1, serial };
            let fork = EventKind::Forked { image: ImageId(3), parent: task(1), child: task(2), among_threads: free_stacks };
            kinds.insert(at.index(kinds.len() + 1), fork);
        }
        let image = ImageId(0);
        kinds.insert(0, EventKind::Began { image, preexisting: Preexisting::None, free_stacks, sample_interval: 0 });
        let mut models = vec![(HeapModel::default(), EventLog::default())];
        for (n, kind) in kinds.into_iter().enumerate() {
            if matches!(kind, EventKind::Forked { .. }) {
                let (model, log) = models.last().unwrap();
                let child = (model.clone(), log.of_child());
                models.push(child);
            }
            let (model, log) = models.last_mut().unwrap();
            let event = Event { seq: n as u64, time_ns: n as u64 * 100, kind };
            model.apply(&event);
            log.take(&event);
        }
        for (model, log) in &models {
            let mut again = HeapModel::default();
            log.replay(&mut again);
            prop_assert_eq!(again.contents(), model.contents());
        }
    }
}
