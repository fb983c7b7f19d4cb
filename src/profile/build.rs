//! The finished profile from the model's snapshot, the interned stacks and the names of their addresses. Pure.
//!
//! Exported stacks begin at the allocator's caller: `operator new` and its kin and Rust's allocator shims are dropped,
//! and stacks and samples that are equal then are merged. Order and numbering depend on bytes and names only, not on
//! the order of hash tables.

use super::identity::is_unresolved;
use super::samples::SAMPLE;
use super::symbolize::{Question, Symbolize};
use super::{
    AllocatorUse, Anomalies, Capacity, Children, Cost, CrossThreadFreed, Finding, Function, Growth, Image, Location,
    Meta, ModuleInfo, Profile, Sample, Samples, Stacks as StackList, SymbolStatus,
};
use crate::base::addr::{FunctionId, LoadBias, ModuleId, StackId};
use crate::base::packed::PackedBuilder;
use crate::heapmodel::{HeapError, SiteStats, SiteTable, Snapshot};
use crate::profile::course::HeapHistory;
use crate::unwinder::{Frame, Quality, StackPath, StackTable};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHasher};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};

mod leaks;
mod locations;
pub(super) mod order;
mod pertest;
mod shims;

pub use leaks::{LeakInput, root_name};
pub use pertest::TestInput;

use leaks::{Names, Place};
use locations::Locations;
pub use shims::shim_names;

/// The frame of blocks that were there before tracing began (`attach --existing`), and their function.
pub const BEFORE_ATTACH: &str = "[before attach]";

/// The frame of a stack of which nothing is known.
pub const UNKNOWN_STACK: &str = "[unknown stack]";
/// The outermost frame of a stack that was cut off.
pub const TRUNCATED_STACK: &str = "[truncated stack]";

/// The interned stacks of a session. Each frame has a number, as there are few frames in many stacks.
pub trait Stacks {
    /// Makes `path` that of a stack: the numbers of its frames, innermost first, among them some that are of no frame.
    fn follow(&self, stack: StackId, path: &mut StackPath);
    /// The numbers that [`Self::follow`] gives for any of these stacks, in any order, some more than once.
    fn frames_of_all(&self, stacks: &[StackId]) -> Vec<u32>;
    /// The frame with this number, if it is of one.
    fn frame(&self, number: u32) -> Option<Frame>;
    /// How far to trust a stack.
    fn quality(&self, stack: StackId) -> Quality;
}

impl Stacks for StackTable {
    fn follow(&self, stack: StackId, path: &mut StackPath) {
        self.follow(stack, path);
    }

    fn frames_of_all(&self, stacks: &[StackId]) -> Vec<u32> {
        self.frame_numbers_of_all(stacks)
    }

    fn frame(&self, number: u32) -> Option<Frame> {
        self.frame_of_number(number)
    }

    fn quality(&self, stack: StackId) -> Quality {
        self.quality(stack)
    }
}

/// A module and where it was loaded.
#[derive(Clone, Debug)]
pub struct LoadedModule {
    /// What goes into the profile; `symbols` is filled in here.
    pub info: ModuleInfo,
    /// From object to process addresses.
    pub bias: LoadBias,
}

/// Everything that a profile is made of.
#[allow(missing_docs, reason = "see profile::Profile for the fields that are not explained")]
pub struct BuildInput<'a> {
    pub meta: Meta,
    /// Its counts of unknown, double and mismatched frees are taken from the snapshot.
    pub anomalies: Anomalies,
    pub cost: Cost,
    pub snapshot: &'a Snapshot,
    /// The sites of the snapshot, which has none itself: they are given back as samples are made of them.
    pub sites: SiteTable,
    pub stacks: &'a dyn Stacks,
    /// All modules ever seen, the main program first.
    pub modules: Vec<LoadedModule>,
    /// The names of the probed functions of each module.
    pub allocators: Vec<(ModuleId, Vec<String>)>,
    /// The name of a thread, by its serial number.
    pub thread_name: &'a dyn Fn(u32) -> String,
    /// The name of an allocator function.
    pub function_name: &'a dyn Fn(FunctionId) -> String,
    pub images: Vec<Image>,
    pub children: Children,
    pub warnings: Vec<String>,
    /// What was noted along the way.
    pub course: HeapHistory<StackId>,
    /// The leak scan, if one was made; `snapshot` is of its moment then.
    pub leaks: Option<LeakInput<'a>>,
    /// What each test did; stacks are those of the scan.
    pub tests: Option<TestInput<'a>>,
}

impl std::fmt::Debug for BuildInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildInput").field("meta", &self.meta).field("modules", &self.modules).finish_non_exhaustive()
    }
}

/// A profile whose tables are in the order in which they were made.
#[derive(Debug)]
#[must_use = "a profile is in the order of its figures"]
pub struct Unordered(Profile);

impl Unordered {
    /// Brings the tables into their order.
    pub fn ordered(self) -> Profile {
        let Self(mut profile) = self;
        order::normalize(&mut profile);
        profile
    }
}

/// Makes the profile. Each code address is resolved once, one module after the other. What it is made of can be given
/// back before it is put in order, as there may be a million stacks.
pub fn build(mut input: BuildInput<'_>, symbolizer: &mut dyn Symbolize) -> Unordered {
    let errors = &input.snapshot.errors;
    let stack_ids = used_stacks(&input.sites, errors);
    let (numbers, frames) = frames_of(input.stacks, &stack_ids);
    let mut locations = Locations::resolve(&input.modules, frames.iter().map(|(_, frame)| frame), symbolizer);
    let lacking = lack_names(&locations.statuses, &locations.list, &locations.functions);
    let lacking = input.modules.iter().zip(lacking).filter(|(_, lacks)| *lacks);
    symbolizer.expect_packages(&lacking.map(|(module, _)| module.info.path.clone()).collect::<Vec<_>>());

    // then none is looked for among a million; a number that is of no frame is of a walk's end, which is left out
    let are_apart = numbers.len() == frames.len() && locations.tell_apart(&frames);
    let mut tables = Tables::with_room(stack_ids.len(), are_apart);
    // by the frame's number
    let mut places: Vec<Option<u32>> = vec![None; numbers.iter().max().map_or(0, |most| *most as usize + 1)];
    for (number, frame) in &frames {
        if let Some(place) = places.get_mut(*number as usize) {
            *place = locations.index_of(frame);
        }
    }
    let place = |number: &u32| places.get(*number as usize).copied().flatten();
    let (mut path, mut list) = (StackPath::default(), Vec::new());
    // the locations of `path`, where each of its numbers has one
    let mut apart: Vec<u32> = Vec::new();
    let export = |&id: &StackId| {
        if id == StackId::EXISTING {
            list.clear();
            list.push(locations.synthetic(BEFORE_ATTACH));
            let exported = tables.export(&mut locations, &mut list, Quality::Complete);
            return Exported { operator: Some(tables.strings.intern(BEFORE_ATTACH)), ..exported };
        }
        input.stacks.follow(id, &mut path);
        let quality = input.stacks.quality(id);
        list.clear();
        if are_apart {
            apart.truncate(path.kept());
            let new = path.numbers().get(apart.len()..).unwrap_or_default();
            apart.extend(new.iter().map(|number| place(number).unwrap_or_default()));
            if !apart.is_empty() && quality != Quality::Truncated {
                return Exported { stack: tables.stacks.add(&apart, quality), operator: None };
            }
            list.extend_from_slice(&apart);
        } else {
            list.extend(path.numbers().iter().filter_map(place));
        }
        tables.export(&mut locations, &mut list, quality)
    };
    let exported = stack_ids.iter().map(export).map(Packed::from).collect();
    let stacks = ExportedStacks { ids: stack_ids, exported };
    let sites = std::mem::take(&mut input.sites);
    tables.add_samples(sites, &stacks, &input);
    tables.add_growths(&input.snapshot.growths, &stacks);
    tables.add_capacities(&input.snapshot.capacities, &stacks);
    tables.add_stranded(&input.snapshot.stranded, &stacks);
    tables.add_findings(errors, &stacks, &input);
    let leaks = input.leaks.as_ref().map(|leaks| {
        let places: Vec<_> = input.modules.iter().map(|m| Place { info: &m.info, bias: m.bias }).collect();
        let names = Names {
            stacks: &stacks,
            thread_of_task: input.thread_name,
            function_name: input.function_name,
            places: &places,
            locations: &locations,
        };
        leaks::name(leaks, &names, &mut tables, symbolizer)
    });

    let exported = |id| stacks.get(id).map(|exported| exported.stack);
    let tests = input.tests.as_ref().map(|tests| pertest::name(tests, exported));
    let module_index: FxHashMap<ModuleId, usize> =
        input.modules.iter().enumerate().map(|(i, m)| (m.info.id, i)).collect();
    let mut allocators: Vec<AllocatorUse> = Vec::new();
    for (id, mut functions) in input.allocators {
        if let Some(&module) = module_index.get(&id) {
            functions.sort_unstable();
            functions.dedup();
            allocators.push(AllocatorUse { module, functions });
        }
    }
    allocators.sort_by_key(|a| a.module);
    let mut modules: Vec<ModuleInfo> = input.modules.into_iter().map(|m| m.info).collect();
    for (module, status) in modules.iter_mut().zip(&locations.statuses) {
        module.symbols = *status;
    }
    let mut warnings = input.warnings;
    warnings.extend(symbolizer.take_warnings());

    Unordered(Profile {
        meta: input.meta,
        totals: input.snapshot.totals,
        cost: input.cost,
        anomalies: input.anomalies,
        allocators,
        modules,
        images: input.images,
        children: input.children,
        timeline: input.snapshot.timeline.clone(),
        histograms: input.snapshot.histograms.clone(),
        strings: tables.strings.list,
        functions: locations.functions,
        locations: locations.list,
        stacks: tables.stacks,
        samples: tables.samples,
        growths: tables.growths.into_iter().collect(),
        capacities: tables.capacities.into_iter().collect(),
        stranded: tables.stranded,
        findings: tables.findings,
        suppressions: Vec::new(),
        leaks,
        tests,
        verdict: None,
        budgets: Vec::new(),
        warnings,
        processes: Vec::new(),
        saved: None,
        course: input.course.named(|id| stacks.get(*id).map(|exported| exported.stack)),
    })
}

/// For each module, of which this was resolved, whether names are missing that a package of debug information would
/// bring; of the main program, the first, also lines. One that has lines has its debug information.
pub fn lack_names(statuses: &[SymbolStatus], locations: &[Location], functions: &[Function]) -> Vec<bool> {
    let mut lacking = vec![false; statuses.len()];
    for location in locations {
        let Some(module) = location.module else { continue };
        let has_lines = statuses.get(module).is_none_or(|status| status.lines);
        if let Some(lacks) = lacking.get_mut(module).filter(|_| !has_lines) {
            let name = |function: usize| functions.get(function).map_or("", |function| &function.name);
            *lacks |= module == 0 || location.lines.iter().any(|line| is_unresolved(name(line.function)));
        }
    }
    lacking
}

/// The stacks that anything refers to, ascending.
/// The numbers that these stacks consist of, and those of frames with their frames.
fn frames_of(stacks: &dyn Stacks, ids: &[StackId]) -> (Vec<u32>, Vec<(u32, Frame)>) {
    let numbers = stacks.frames_of_all(ids);
    let frames = numbers.iter().filter_map(|number| Some((*number, stacks.frame(*number)?))).collect();
    (numbers, frames)
}

/// What [`build`] will ask a symbolizer first, for a profile whose sites and errors have these stacks (in any order):
/// the modules, each with the addresses in it.
pub fn questions(modules: &[LoadedModule], stacks: &dyn Stacks, mut ids: Vec<StackId>) -> Vec<Question> {
    ids.sort_unstable();
    ids.dedup();
    let (_, frames) = frames_of(stacks, &ids);
    let (asked, _) = locations::questions(modules, frames.iter().map(|(_, frame)| frame));
    asked.into_iter().map(|(_, question)| question).collect()
}

fn used_stacks(sites: &SiteTable, errors: &[HeapError]) -> Vec<StackId> {
    let of_errors = errors.iter().flat_map(HeapError::stacks);
    // most are sorted by their stacks
    let mut ids: Vec<StackId> = sites.iter().map(|s| s.key.stack).collect();
    ids.dedup();
    ids.extend(of_errors);
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The number of no sample.
const NO_SAMPLE: u32 = u32::MAX;

/// What became of an interned stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Exported {
    /// Index into the profile's stacks.
    stack: usize,
    /// Index into the strings: the C++ operator through which the allocator was called, if that was dropped from the
    /// stack.
    operator: Option<usize>,
}

/// The same in eight bytes, as there may be a million.
#[derive(Clone, Copy, Debug)]
struct Packed {
    stack: u32,
    /// One more than the index; 0: none.
    operator: u32,
}

impl From<Exported> for Packed {
    fn from(exported: Exported) -> Self {
        let operator = exported.operator.map_or(0, |operator| operator as u32 + 1);
        Self { stack: exported.stack as u32, operator }
    }
}

/// What became of all interned stacks that are used.
#[derive(Debug)]
struct ExportedStacks {
    /// Ascending.
    ids: Vec<StackId>,
    /// One for each.
    exported: Vec<Packed>,
}

impl ExportedStacks {
    fn get(&self, id: StackId) -> Option<Exported> {
        self.at(self.ids.binary_search(&id).ok()?)
    }

    /// The same, and its place. Looks at the places behind `near` first: who asks for one stack after the other mostly
    /// finds it there.
    fn get_near(&self, id: StackId, near: usize) -> Option<(usize, Exported)> {
        let is_it = |at: &usize| self.ids.get(*at) == Some(&id);
        let at = [near, near + 1].into_iter().find(is_it).or_else(|| self.ids.binary_search(&id).ok())?;
        Some((at, self.at(at)?))
    }

    fn at(&self, at: usize) -> Option<Exported> {
        let Packed { stack, operator } = *self.exported.get(at)?;
        Some(Exported { stack: stack as usize, operator: operator.checked_sub(1).map(|operator| operator as usize) })
    }
}

/// Each string once.
#[derive(Debug, Default)]
struct Strings {
    list: Vec<String>,
    index: FxHashMap<String, usize>,
}

impl Strings {
    fn intern(&mut self, text: &str) -> usize {
        if let Some(&known) = self.index.get(text) {
            return known;
        }
        self.list.push(text.to_owned());
        self.index.insert(text.to_owned(), self.list.len() - 1);
        self.list.len() - 1
    }
}

#[derive(Debug, Default)]
struct Tables {
    strings: Strings,
    stacks: StackList,
    /// Indices into `stacks`, by their locations.
    stack_index: HashTable<u32>,
    samples: Samples,
    growths: BTreeMap<usize, Growth>,
    capacities: BTreeMap<usize, Capacity>,
    stranded: Vec<(usize, CrossThreadFreed)>,
    findings: Vec<Finding>,
}

impl Tables {
    /// With room for so many stacks: there may be a million. `are_apart`: nearly none is in the index.
    fn with_room(stacks: usize, are_apart: bool) -> Self {
        Self {
            stacks: StackList::with_capacity(stacks),
            stack_index: HashTable::with_capacity(if are_apart { 0 } else { stacks }),
            ..Self::default()
        }
    }

    /// Enters a stack of these locations, innermost first, as the profile shows it: `list` is changed to that.
    fn export(&mut self, locations: &mut Locations, list: &mut Vec<u32>, quality: Quality) -> Exported {
        let has_frames = !list.is_empty();
        let (dropped, operator) = locations.leading_shims(list);
        let operator = operator.map(|name| self.strings.intern(&name));
        list.drain(..dropped);
        if quality == Quality::Truncated && has_frames {
            list.push(locations.synthetic(TRUNCATED_STACK));
        } else if list.is_empty() {
            list.push(locations.synthetic(UNKNOWN_STACK));
        }
        let hash = hash_of(list.iter().copied());
        let stacks = &self.stacks;
        let is_it = |known: &u32| stacks.locations(*known as usize).eq(list.iter().copied());
        let stack = match self.stack_index.find(hash, is_it) {
            Some(&known) => {
                self.stacks.trust_at_most(known as usize, quality);
                known as usize
            }
            None => {
                let rehash = |known: &u32| hash_of(stacks.locations(*known as usize));
                self.stack_index.insert_unique(hash, stacks.len() as u32, rehash);
                self.stacks.add(list, quality)
            }
        };
        Exported { stack, operator }
    }

    /// Makes samples of the sites, whose memory is given back meanwhile.
    fn add_samples(&mut self, sites: SiteTable, stacks: &ExportedStacks, input: &BuildInput<'_>) {
        let mut threads: FxHashMap<u32, usize> = FxHashMap::default();
        let mut functions: FxHashMap<FunctionId, usize> = FxHashMap::default();
        let mut near = 0;
        // of each stack; most have no other
        let mut first: Vec<u32> = vec![NO_SAMPLE; self.stacks.len()];
        let mut index: HashTable<u32> = HashTable::new();
        let mut samples: PackedBuilder<Sample, SAMPLE> = PackedBuilder::default();
        for site in sites.into_rows() {
            let Some((at, exported)) = stacks.get_near(site.key.stack, near) else { continue };
            near = at;
            let task = site.key.task;
            let thread = *threads.entry(task).or_insert_with(|| self.strings.intern(&(input.thread_name)(task)));
            let alloc_fn = match exported.operator {
                Some(name) => name,
                None => {
                    let id = site.key.function;
                    *functions.entry(id).or_insert_with(|| self.strings.intern(&(input.function_name)(id)))
                }
            };
            let sample = sample(&site, exported.stack, thread, alloc_fn);
            let Some(first) = first.get_mut(exported.stack) else { continue };
            if *first == NO_SAMPLE {
                *first = samples.len() as u32;
                samples.push(&sample);
                continue;
            }
            let hash = |sample: &Sample| FxBuildHasher.hash_one(key_of(sample));
            let known = |at: &u32| samples.get(*at as usize);
            let is_it = |at: &u32| known(at).is_some_and(|known| key_of(&known) == key_of(&sample));
            let found = if is_it(first) { Some(*first) } else { index.find(hash(&sample), is_it).copied() };
            if let Some(at) = found {
                samples.change(at as usize, |known| known.add(&sample));
            } else {
                let number = samples.len() as u32;
                index.insert_unique(hash(&sample), number, |at| known(at).as_ref().map_or(0, hash));
                samples.push(&sample);
            }
        }
        self.samples = samples.finish();
    }

    fn add_growths(&mut self, growths: &[(StackId, Growth)], stacks: &ExportedStacks) {
        for (stack, growth) in growths {
            let Some(exported) = stacks.get(*stack) else { continue };
            let sum = self.growths.entry(exported.stack).or_default();
            *sum = sum.plus(*growth);
        }
    }

    fn add_capacities(&mut self, capacities: &[(StackId, Capacity)], stacks: &ExportedStacks) {
        for (stack, capacity) in capacities {
            let Some(exported) = stacks.get(*stack) else { continue };
            let sum = self.capacities.entry(exported.stack).or_default();
            *sum = sum.plus(*capacity);
        }
    }

    fn add_stranded(&mut self, stranded: &[(StackId, CrossThreadFreed)], stacks: &ExportedStacks) {
        let told = stranded.iter().filter_map(|(stack, of)| Some((stacks.get(*stack)?.stack, *of)));
        self.stranded.extend(told);
    }

    fn add_findings(&mut self, errors: &[HeapError], stacks: &ExportedStacks, input: &BuildInput<'_>) {
        let mut index: FxHashMap<_, usize> = FxHashMap::default();
        for error in errors {
            let Some(exported) = stacks.get(error.stack) else { continue };
            let other = |id: Option<StackId>| id.and_then(|id| stacks.get(id)).map(|e| e.stack);
            let finding = Finding {
                kind: error.kind,
                count: error.count,
                block: error.block,
                size: error.size,
                given_size: error.given_size,
                offset: error.offset,
                align: error.align,
                given_align: error.given_align,
                stack: exported.stack,
                alloc_stack: other(error.alloc_stack),
                free_stack: other(error.free_stack),
                thread: (input.thread_name)(error.task),
                function: exported
                    .operator
                    .and_then(|name| self.strings.list.get(name).cloned())
                    .unwrap_or_else(|| deallocator(error, (input.function_name)(error.function))),
                baseline: None,
            };
            let key = (finding.kind, finding.stack, finding.alloc_stack, finding.free_stack);
            let at = *index.entry(key).or_insert(self.findings.len());
            match self.findings.get_mut(at) {
                Some(known) => known.count = known.count.saturating_add(finding.count),
                None => self.findings.push(finding),
            }
        }
    }
}

fn hash_of(locations: impl Iterator<Item = u32>) -> u64 {
    let mut hasher = FxHasher::default();
    locations.for_each(|location| hasher.write_u32(location));
    hasher.finish()
}

/// The C library's name for what operators delete end in.
const FREE: &str = "free";

/// The function that the program has called: of an operator delete that ends in a jump to free, nothing is on the
/// stack.
fn deallocator(error: &HeapError, called: String) -> String {
    match error.operator {
        Some(operator) if called == FREE => operator.to_owned(),
        _ => called,
    }
}

/// A site as a sample; the numbers are indices into the profile's tables.
const fn sample(site: &SiteStats, stack: usize, thread: usize, alloc_fn: usize) -> Sample {
    Sample {
        stack,
        thread,
        alloc_fn,
        program: None,
        inherited: site.inherited,
        size: site.key.size,
        interval: site.key.interval,
        allocated: site.allocated,
        freed: site.freed,
        deallocated: site.deallocated,
        live: site.live,
        at_peak: site.at_peak,
        temporary: site.temporary,
        lifetime_ns: site.lifetime_ns,
        freed_elsewhere: site.freed_elsewhere,
    }
}

/// What samples that are one have in common.
const fn key_of(sample: &Sample) -> (usize, usize, usize, u64, u64, bool) {
    (sample.stack, sample.thread, sample.alloc_fn, sample.size, sample.interval, sample.inherited)
}

#[cfg(test)]
mod tests;
