//! The leak scan with names: its blocks by allocating stack, and ways from named roots to what is still reachable.

use super::{ExportedStacks, Locations, Strings, Tables};
use crate::base::addr::{Addr, FunctionId, LoadBias, ModuleId, StackId};
use crate::heap::leaks::{Doubted, Doubts, Path, RootKind, Scan};
use crate::heapmodel::{LiveBlock, SiteId, SiteKey};
use crate::profile::leaks::{
    AskedBlock, ClassAmounts, LeakClass, LeakSite, Leaks, PathStep, RetentionPath, ScanMoment,
};
use crate::profile::symbolize::Symbolize;
use crate::profile::{Amount, ModuleInfo, Stacks};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// So many of the largest sites with reachable or possibly leaked blocks get a path without being asked for.
const EXPLAINED_SITES: usize = 20;

/// A leak scan to be named.
#[allow(missing_docs, reason = "see profile::leaks::Leaks for the fields that are not explained")]
pub struct LeakInput<'a> {
    pub scan: &'a Scan,
    /// What a block's site is.
    pub site: &'a dyn Fn(SiteId) -> Option<SiteKey>,
    /// The name of a thread, by its id.
    pub thread_name: &'a dyn Fn(i32) -> Option<String>,
    pub moment: ScanMoment,
    pub stopped_ns: u64,
    pub copied: bool,
    /// Paths are wanted for all sites with this text in a function's name.
    pub explain: Option<&'a str>,
    /// The block of which a path is wanted: any address in it.
    pub block: Option<Addr>,
}

impl std::fmt::Debug for LeakInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeakInput")
            .field("moment", &self.moment)
            .field("explain", &self.explain)
            .finish_non_exhaustive()
    }
}

/// Where a module is, for the names of its variables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) info: &'a ModuleInfo,
    pub(super) bias: LoadBias,
}

/// What a site is made of while it grows.
#[derive(Debug, Default)]
struct LeakSiteBuilder {
    amounts: ClassAmounts,
    holds: Amount,
    doubts: Doubts,
    /// Blocks by thread, function and stack: those of most blocks name the site.
    callers: FxHashMap<(u32, FunctionId, StackId), u64>,
    largest: Largest,
}

/// The sizes and numbers of a site's largest reachable block, and of its largest possibly leaked one.
type Largest = [Option<(u64, usize)>; 2];

/// The tables that a path's names come from.
pub(super) struct Names<'a> {
    pub(super) stacks: &'a ExportedStacks,
    pub(super) thread_of_task: &'a dyn Fn(u32) -> String,
    pub(super) function_name: &'a dyn Fn(FunctionId) -> String,
    pub(super) places: &'a [Place<'a>],
    pub(super) locations: &'a Locations,
}

/// Names a scan. The sites of one exported stack are one.
pub(super) fn name(
    input: &LeakInput<'_>,
    names: &Names<'_>,
    tables: &mut Tables,
    symbolizer: &mut dyn Symbolize,
) -> Leaks {
    let keys = SiteKeys { input, names, known: FxHashMap::default() };
    let (order, growing) = gather(input, keys);
    let mut sites: Vec<(LeakSite, Largest)> = Vec::with_capacity(order.len());
    for stack in order {
        let Some(site) = growing.get(&stack) else { continue };
        let (thread, alloc_fn) = caller(site, names, &tables.strings);
        let thread = tables.strings.intern(&thread);
        let alloc_fn = tables.strings.intern(&alloc_fn);
        let site_of = LeakSite {
            stack,
            thread,
            alloc_fn,
            amounts: site.amounts,
            holds: site.holds,
            doubts: site.doubts.clone(),
            path: None,
            suppressed_by: [None; 4],
            baseline: [None; 4],
        };
        sites.push((site_of, site.largest));
    }
    let bytes = |site: &LeakSite, class: LeakClass| site.amounts.get(class as usize).map_or(0, |amount| amount.bytes);
    let held = |site: &LeakSite| bytes(site, LeakClass::Reachable).saturating_add(bytes(site, LeakClass::Possible));
    sites.sort_by_key(|(site, _)| (Reverse(held(site)), site.stack));
    let mut roots = RootNames { input, names, symbolizer };
    for (index, (site, largest)) in sites.iter_mut().enumerate() {
        let asked = input.explain.is_some_and(|text| calls(&tables.stacks, site.stack, names, text));
        if index < EXPLAINED_SITES || asked {
            let block = largest.iter().flatten().next().map(|(_, block)| *block);
            site.path = block.and_then(|block| input.scan.path_to(block)).and_then(|path| roots.name(&path));
        }
    }
    let asked = input.block.and_then(|addr| roots.block_at(addr));
    // Their order is made when all stacks have names.
    let sites = sites.into_iter().map(|(site, _)| site).collect();
    Leaks {
        moment: input.moment,
        stopped_ns: input.stopped_ns,
        copied: input.copied,
        unreadable_names: input.scan.unreadable_names().to_vec(),
        scanned_bytes: input.scan.scanned_bytes(),
        unreadable_bytes: input.scan.unreadable_bytes(),
        untold: input.scan.untold().into_iter().map(|untold| untold.name().to_owned()).collect(),
        sites,
        asked,
    }
}

/// From sites of the model to exported stacks.
struct SiteKeys<'a, 'b> {
    input: &'a LeakInput<'b>,
    names: &'a Names<'a>,
    known: FxHashMap<SiteId, Option<(usize, SiteKey)>>,
}

impl SiteKeys<'_, '_> {
    fn of(&mut self, site: SiteId) -> Option<(usize, SiteKey)> {
        *self.known.entry(site).or_insert_with(|| {
            let key = (self.input.site)(site)?;
            let stack = self.names.stacks.get(key.stack)?.stack;
            Some((stack, key))
        })
    }
}

/// The blocks by exported stack; the stacks in the order of their first blocks.
fn gather(input: &LeakInput<'_>, mut keys: SiteKeys<'_, '_>) -> (Vec<usize>, FxHashMap<usize, LeakSiteBuilder>) {
    let mut order = Vec::new();
    let mut growing: FxHashMap<usize, LeakSiteBuilder> = FxHashMap::default();
    for (number, (block, class)) in input.scan.blocks().enumerate() {
        // What came over a fork is another process's to free.
        if block.inherited {
            continue;
        }
        let leader = || input.scan.leader(number).and_then(|leader| input.scan.block(leader));
        let class = match class {
            LeakClass::Indirect if leader().is_some_and(|(block, _)| block.inherited) => LeakClass::Definite,
            class => class,
        };
        let Some((stack, key)) = keys.of(block.site) else { continue };
        let site = growing.entry(stack).or_insert_with(|| {
            order.push(stack);
            LeakSiteBuilder::default()
        });
        let one = Amount { objects: 1, bytes: block.size };
        if let Some(amount) = site.amounts.get_mut(class as usize) {
            *amount = amount.plus(one);
        }
        if let Some(doubt) = input.scan.doubt(number) {
            site.doubts.add(doubt, Doubted { blocks: 1, bytes: block.size });
        }
        *site.callers.entry((key.task, key.function, key.stack)).or_default() += 1;
        let slot = match class {
            LeakClass::Reachable => site.largest.first_mut(),
            LeakClass::Possible => site.largest.last_mut(),
            LeakClass::Definite | LeakClass::Indirect => None,
        };
        if let Some(slot) = slot
            && slot.is_none_or(|(size, _)| block.size > size)
        {
            *slot = Some((block.size, number));
        }
        if class == LeakClass::Indirect
            && let Some(leader) = leader()
            && let Some((stack, ..)) = keys.of(leader.0.site)
        {
            let site = growing.entry(stack).or_insert_with(|| {
                order.push(stack);
                LeakSiteBuilder::default()
            });
            site.holds = site.holds.plus(one);
        }
    }
    (order, growing)
}

/// The thread and the function that allocated most of a site's blocks.
fn caller(site: &LeakSiteBuilder, names: &Names<'_>, strings: &Strings) -> (String, String) {
    let most = site.callers.iter().max_by_key(|(caller, count)| (**count, Reverse(**caller)));
    let Some((&(task, function, stack), _)) = most else { return (String::new(), String::new()) };
    let operator = names.stacks.get(stack).and_then(|exported| strings.list.get(exported.operator?));
    let function = operator.cloned().unwrap_or_else(|| (names.function_name)(function));
    ((names.thread_of_task)(task), function)
}

/// Whether a function on the stack has `text` in its name.
fn calls(stacks: &Stacks, stack: usize, names: &Names<'_>, text: &str) -> bool {
    let locations = stacks.locations(stack);
    let lines = locations.filter_map(|location| names.locations.list.get(location as usize)).flat_map(|l| &l.lines);
    lines
        .filter_map(|line| names.locations.functions.get(line.function))
        .any(|function| function.name.contains(text) || function.system_name.contains(text))
}

/// Names roots.
struct RootNames<'a, 'b> {
    input: &'a LeakInput<'b>,
    names: &'a Names<'a>,
    symbolizer: &'a mut dyn Symbolize,
}

impl RootNames<'_, '_> {
    fn block_at(&mut self, addr: Addr) -> Option<AskedBlock> {
        let holds = |block: &LiveBlock| block.addr <= addr && addr.0 - block.addr.0 < block.size.max(1);
        let (number, (block, class)) =
            self.input.scan.blocks().enumerate().filter(|(_, (block, _))| holds(block)).last()?;
        let key = (self.input.site)(block.site)?;
        let stack = self.names.stacks.get(key.stack)?.stack;
        let path = self.input.scan.path_to(number).and_then(|path| self.name(&path));
        Some(AskedBlock { block: block.addr, size: block.size, class, stack, path })
    }

    fn name(&mut self, path: &Path) -> Option<RetentionPath> {
        let mut steps = Vec::with_capacity(path.steps.len());
        for step in &path.steps {
            let (block, _) = self.input.scan.block(step.block)?;
            let key = (self.input.site)(block.site)?;
            steps.push(PathStep {
                block: block.addr,
                size: block.size,
                stack: self.names.stacks.get(key.stack)?.stack,
                target_offset: step.target_offset,
                next_offset: step.next_offset,
            });
        }
        Some(RetentionPath { root: self.root(path), root_address: path.root_address, steps })
    }

    fn root(&mut self, path: &Path) -> String {
        let places = self.names.places;
        let module = |id: ModuleId| {
            let place = places.iter().find(|place| place.info.id == id)?;
            Some((place.info.path.as_path(), place.bias))
        };
        root_name(path, self.input.thread_name, &module, self.symbolizer)
    }
}

/// What a path's root is called. `thread_name`: the name of a thread, by its id. `module`: a module's path, and where
/// it is loaded.
pub fn root_name<'m>(
    path: &Path,
    thread_name: &dyn Fn(i32) -> Option<String>,
    module: &dyn Fn(ModuleId) -> Option<(&'m std::path::Path, LoadBias)>,
    symbolizer: &mut dyn Symbolize,
) -> String {
    let thread = |tid: i32| match thread_name(tid) {
        Some(name) => format!("thread {tid} ({name})"),
        None => format!("thread {tid}"),
    };
    match path.root {
        RootKind::Data { module: id } => match module(id) {
            Some(place) => variable(id, place, path.root_address, symbolizer),
            None => "data of a module".to_owned(),
        },
        RootKind::Stack { tid } => format!("stack of {}", thread(tid)),
        RootKind::Tls { tid } => format!("thread-local variable of {}", thread(tid)),
        RootKind::ThreadData { tid } => format!("thread-specific data of {}", thread(tid)),
        RootKind::Register { tid, name } => format!("register {name} of {}", thread(tid)),
        RootKind::Registered => "memory that the program has registered".to_owned(),
        RootKind::Ignored => "the program's word that it is not a leak".to_owned(),
        RootKind::InMotion => "being allocated or freed by a thread in the allocator".to_owned(),
        RootKind::Kernel(holder) => holder.name(thread),
        RootKind::Anonymous => "mapped memory outside the allocator".to_owned(),
    }
}

fn variable(
    module: ModuleId,
    (path, bias): (&std::path::Path, LoadBias),
    address: Option<Addr>,
    symbolizer: &mut dyn Symbolize,
) -> String {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let Some(address) = address else { return format!("data of {file}") };
    let object = bias.to_object(address);
    match symbolizer.variable(module, object) {
        Some((name, 0)) => format!("global `{name}` in {file}"),
        Some((name, offset)) => format!("global `{name}` +{offset} in {file}"),
        None => format!("data of {file} at {object}"),
    }
}
