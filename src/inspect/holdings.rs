//! Reads who holds what while a process stands still, and names it afterwards.

use super::declarations::Declarations;
use super::modules::Objects;
use super::names::{Names, class_name};
use super::seen::ProcessView;
use crate::base::addr::Addr;
use crate::base::memory::{ReadAgain, ReadMemory};
use crate::heap::graph::contents::{ContentKind, Contents, Looking, Part, Table};
use crate::heap::graph::declared::{Layouts, Present, ThreadBlock};
use crate::heap::graph::duplicates::{self, Duplicates};
use crate::heap::graph::holders::{Finding, Holdings};
use crate::heap::graph::pins::Pinned;
use crate::heap::graph::types::Types;
use crate::heap::graph::{Held, live_blocks};
use crate::heap::leaks::{BlockIndex, Graph, InteriorPointers, MappedFiles, PartRead, Pointers, RootKind, ScanOptions};
use crate::heap::types::spread::Spread;
use crate::heap::types::{TypeId, name_hash};
use crate::heap::walk::Walk;
use crate::image::maps::Mapping;
use crate::tracer::root::TargetRoot;
use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::Builder;

/// In larger mappings nothing is looked for that names types.
const LARGEST_ROOT: u64 = 64 << 20;
/// The answer shows the contents of at most this number of equal blocks.
const DUPLICATES: usize = 10;
/// At most this much of their text, in bytes.
const SAMPLE: usize = 40;

/// What was read.
#[derive(Debug)]
pub(super) struct Blocks {
    graph: Graph,
    contents: Contents,
    duplicates: Duplicates,
    samples: Vec<Option<String>>,
    objects: Objects,
    root: Option<TargetRoot>,
    thread_names: BTreeMap<i32, String>,
    spread: Option<Spread>,
    /// Where threads have thread-local variables.
    thread_blocks: Vec<ThreadBlock>,
}

/// Reads the blocks of a process and its roots from `memory`: its own, that of a copy, or that of a core.
/// `declared`: what the modules say of their variables.
pub(super) fn read(
    seen: &ProcessView,
    walk: &Walk,
    memory: &mut impl ReadAgain,
    declared: Option<&Declarations>,
) -> Blocks {
    let root = seen.root();
    let mappings = &seen.mappings;
    let objects = seen.objects(walk);
    let blocks = live_blocks(walk);
    let roots = seen.roots(walk, &objects, &blocks, memory);
    let options = ScanOptions {
        interior: InteriorPointers::Reachable,
        files: MappedFiles::of(mappings),
        every_root: true,
        ..ScanOptions::default()
    };
    let may_name = |kind: RootKind| !matches!(kind, RootKind::Registered | RootKind::Ignored);
    let naming: Vec<Range<Addr>> = roots
        .ranges
        .iter()
        .filter(|range| may_name(range.kind) && range.end.0 - range.start.0 <= LARGEST_ROOT)
        .map(|range| range.start..range.end)
        .collect();
    let index = BlockIndex::new(blocks);
    let looking = Looking::new(&index, mappings);
    let (pointers, looks) = read_halves(&index, memory, &options.files, &looking);
    let pointers = Pointers::of_parts(&index, &roots, memory, &options, pointers);
    let mut contents = looking.finish(looks, &naming, memory);
    let mut graph = Graph::join(index, &roots, pointers);
    graph.shrink();
    let declared = declared.filter(|declared| !declared.all.is_empty());
    let find_duplicates = || duplicates::find(graph.blocks(), &contents, DUPLICATES);
    let (duplicates, thread_blocks, spread) = std::thread::scope(|scope| {
        let finding =
            declared.and_then(|_| Builder::new().name("equal".to_owned()).spawn_scoped(scope, find_duplicates).ok());
        let threads = seen.control_blocks(memory);
        let thread_blocks =
            declared.map(|declared| declared.thread_blocks(&objects, &threads, memory)).unwrap_or_default();
        let spread = declared.map(|declared| {
            let declared = declared.of(&objects, &thread_blocks);
            let exact = exact_types(&contents, &declared);
            declared.spread(&graph, &exact, memory)
        });
        let duplicates = finding.and_then(|finding| finding.join().ok()).unwrap_or_else(find_duplicates);
        (duplicates, thread_blocks, spread)
    });
    if let Some(spread) = spread.as_ref().filter(|spread| !spread.used.is_empty()) {
        graph.keep_used(|block| spread.used.get(&block).copied());
    }
    contents.hashes = Vec::new();
    let samples = duplicates.most.iter().map(|one| one.text.then(|| sample(&graph, one.block, memory)).flatten());
    let samples = samples.collect();
    Blocks {
        graph,
        contents,
        duplicates,
        samples,
        objects,
        root,
        thread_names: seen.names.clone(),
        spread,
        thread_blocks,
    }
}

/// Reads the blocks in two parts of as many bytes, side by side where a second thread can be had, and looks at each.
fn read_halves<'a>(
    index: &BlockIndex,
    memory: &mut impl ReadAgain,
    files: &MappedFiles,
    looking: &'a Looking<'a>,
) -> ([PartRead; 2], [Part<'a>; 2]) {
    let (starts, middle) = (index.starts(), index.middle());
    let read = |part: Range<usize>, memory: &mut dyn ReadMemory| {
        let mut looks = looking.part(part.clone());
        (PartRead::of(index, &starts, part, memory, files, &mut looks), looks)
    };
    let behind = middle..index.blocks().len();
    let (first, second) = std::thread::scope(|scope| {
        let second = memory.again().and_then(|mut again| {
            let (read, behind) = (&read, behind.clone());
            let work = move || read(behind, &mut again);
            Builder::new().name("blocks".to_owned()).spawn_scoped(scope, work).ok()
        });
        (read(0..middle, memory), second.and_then(|second| second.join().ok()))
    });
    let second = second.unwrap_or_else(|| read(behind, memory));
    ([first.0, second.0], [first.1, second.1])
}

/// The declared types of blocks whose own tables tell what they are.
fn exact_types(contents: &Contents, declared: &Present<'_>) -> Vec<(u32, TypeId)> {
    let of_table = |table: &Table| match &table.class {
        Some(class) => declared.all.by_name.get(&name_hash(&[&class_name(class)?])).copied(),
        None => declared.of_table(table.at),
    };
    let of_tables: Vec<Option<TypeId>> = contents.tables.iter().map(of_table).collect();
    let looks = (0..).zip(&contents.looks);
    let exact = looks.filter_map(|(block, look)| match look {
        ContentKind::Table(table) | ContentKind::Dyn(table) => Some((block, (*of_tables.get(*table as usize)?)?)),
        _ => None,
    });
    exact.collect()
}

/// The beginning of a block's text. None if that looks like a secret.
fn sample(graph: &Graph, block: u32, memory: &mut dyn ReadMemory) -> Option<String> {
    let block = graph.blocks().get(block as usize)?;
    let mut bytes = vec![0; SAMPLE.min(usize::try_from(block.size).ok()?)];
    let read = memory.read(block.addr, &mut bytes);
    bytes.truncate(read);
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    Some(String::from_utf8_lossy(&bytes).into_owned()).filter(|text| !duplicates::looks_secret(text))
}

impl Blocks {
    /// Finds who holds what, by name, but not what is pinned. Needs nothing of the process.
    pub(super) fn name(self, mappings: &[Mapping], declared: Option<&Declarations>) -> Held {
        let Self { graph, mut contents, duplicates, samples, objects, root, thread_names, spread, thread_blocks } =
            self;
        let looks = std::mem::take(&mut contents.looks);
        let declared = declared.map(|declared| declared.of(&objects, &thread_blocks));
        let layouts = match (&declared, &spread) {
            (Some(declared), Some(spread)) => declared.layouts(&graph, spread),
            _ => Layouts::default(),
        };
        drop(spread);
        let mut names = Names::new(&objects, root.as_ref(), &thread_names, mappings, &contents, declared.as_ref());
        let mut finding = Finding::begin(&graph, &mut names);
        let types = std::thread::scope(|scope| {
            let beside = Builder::new().name("owners".to_owned()).spawn_scoped(scope, || finding.follow());
            let types = Types::find(&graph, &looks, layouts, &mut names);
            // without a thread, it is done at the end
            drop(beside);
            types
        });
        drop(looks);
        let found = finding.finish(&mut names);
        let holdings = Holdings::of_found(graph, found);
        Held { holdings, types, duplicates, samples, pinned: Pinned::default(), remedy: None }
    }
}
