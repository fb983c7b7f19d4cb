//! What debug information says of blocks: the types of variables, carried along pointers, and the names of the members
//! that pointers lie in.

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::heap::leaks::{Graph, RootKind};
use crate::heap::types::spread::{self, Blocks, Edge, Lead, Spread, Typed, offset_in};
use crate::heap::types::{Places, TypeId, TypeTable, in_element};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// So many members of one type are named; an array in a structure may have any number.
const MAX_PLACES: usize = 4096;
/// The names of all of them take so many bytes.
const MAX_TEXT: usize = 128 << 20;

/// A variable in the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Where it begins.
    pub start: Addr,
    /// How large it is, in bytes.
    pub size: u64,
    /// Its name, with namespaces.
    pub name: String,
    /// Its type.
    pub of: TypeId,
    /// The number of the module that it is in.
    pub module: u32,
}

/// What the modules of a process declare.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// All types.
    pub table: TypeTable,
    /// Classes by their names' [`crate::heap::types::name_hash`].
    pub by_name: FxHashMap<u64, TypeId>,
    /// In the order of addresses.
    variables: Vec<Variable>,
    /// Thread-local ones by the numbers of their modules, whose starts count from that of a thread's block; in their
    /// order.
    thread_locals: FxHashMap<u32, Vec<Variable>>,
    /// Tables of Rust `dyn` pointers: the types of values, and the numbers of the modules that they are in.
    pub tables: FxHashMap<Addr, (TypeId, u32)>,
    /// The names of the modules' files, by the modules' numbers.
    pub modules: Vec<String>,
}

/// Where a thread has the thread-local variables of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadBlock {
    /// From the first to the last.
    pub range: Range<Addr>,
    /// The module's number.
    pub module: u32,
    /// So many bytes more a block of the heap may have that was made for it, in bytes; None: it lies in whatever block,
    /// from the library's coming on.
    pub room: Option<u64>,
}

/// Those of what modules declare that are still where they were.
#[derive(Clone, Debug)]
pub struct Present<'a> {
    /// What all declare.
    pub all: &'a Declared,
    /// Of each module whether it is there.
    there: Vec<bool>,
    /// Where the threads have thread-local variables, in the order of addresses.
    blocks: Vec<ThreadBlock>,
}

/// How pointers lie in blocks of one type.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The type's name.
    pub name: String,
    /// Of several in one block: the size of each, in bytes; 0: there is one.
    pub stride: u64,
    /// How far behind the block's start the first whole one begins, in bytes.
    pub phase: u64,
    /// Members with pointers, by how far behind the start of each they lie.
    pub places: Vec<(u64, String)>,
}

impl Layout {
    /// The name of the member so many bytes behind the block's start: `next`, `[3].next`.
    pub fn field(&self, at: u64) -> Option<String> {
        let within = at.checked_sub(self.phase)?;
        let path = |offset: u64| {
            let found = self.places.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
            self.places.get(found).map(|(_, path)| path.as_str())
        };
        match within.checked_div(self.stride) {
            None => path(within).filter(|path| !path.is_empty()).map(str::to_owned),
            Some(number) => path(within % self.stride).map(|path| in_element(number, path)),
        }
    }
}

/// The layouts of all blocks.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    /// All of them.
    pub all: Vec<Layout>,
    /// Of each block the number of its own; [`Layouts::NONE`]: it has none.
    pub of_block: Vec<u32>,
}

impl Layouts {
    /// No layout.
    pub const NONE: u32 = u32::MAX;

    /// A block's.
    pub fn of(&self, block: usize) -> Option<(u32, &Layout)> {
        let number = *self.of_block.get(block)?;
        Some((number, self.all.get(number as usize)?))
    }
}

/// The pointers of a block are loaded ahead if they are not more than this.
const MAX_LOADED: usize = 1024;

impl Blocks for Graph {
    fn count(&self) -> usize {
        self.blocks().len()
    }

    fn range(&self, block: u32) -> (Addr, u64) {
        self.blocks().get(block as usize).map_or((Addr::NULL, 0), |block| (block.addr, block.size))
    }

    fn edges(&self, block: u32) -> impl Iterator<Item = Edge> {
        let pointers = self.pointers(block);
        pointers.filter_map(|pointer| Some(Edge { at: pointer.at?, target: pointer.target, into: pointer.into }))
    }

    fn load(&self, blocks: &[u32], targets: &mut Vec<u32>) {
        let start = |block: &u32| self.blocks().get(*block as usize).map_or(0, |block| block.addr.0);
        let edges: Vec<_> = blocks.iter().map(|block| self.edges_of(*block)).collect();
        // of blocks with millions of pointers not all would be kept until they are asked for
        for edges in edges.into_iter().filter(|edges| edges.len() <= MAX_LOADED) {
            targets.extend(self.targets_of(edges));
        }
        std::hint::black_box(blocks.iter().chain(&*targets).fold(0, |any, block| any ^ start(block)));
    }
}

impl Declared {
    /// Whether nothing is declared that tells anything of blocks.
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.thread_locals.is_empty() && self.by_name.is_empty() && self.tables.is_empty()
    }

    /// Adds variables.
    pub fn add_variables(&mut self, more: Vec<Variable>) {
        self.variables.extend(more);
        sort(&mut self.variables);
    }

    /// Adds thread-local variables, whose starts count from that of a thread's block of their module.
    pub fn add_thread_locals(&mut self, more: Vec<Variable>) {
        for variable in more {
            self.thread_locals.entry(variable.module).or_default().push(variable);
        }
        self.thread_locals.values_mut().for_each(sort);
    }

    /// Those of modules that are `there`, by their numbers; `blocks`: where threads have thread-local variables.
    pub fn of_modules(&self, there: Vec<bool>, mut blocks: Vec<ThreadBlock>) -> Present<'_> {
        blocks.sort_unstable_by_key(|block| block.range.start);
        Present { all: self, there, blocks }
    }
}

/// Blocks of the heap that hold the thread-local variables of one module, in which these begin equally far behind the
/// start.
#[derive(Default)]
struct Alike {
    blocks: Vec<u32>,
    /// The names of pointers, by how far behind the start of any of the blocks they lie.
    places: BTreeMap<u64, String>,
}

/// Of several at one place the largest is kept: a structure with its first member, units that share one.
fn sort(variables: &mut Vec<Variable>) {
    variables.sort_by_key(|variable| (variable.start, std::cmp::Reverse(variable.size)));
    variables.dedup_by_key(|variable| variable.start);
}

/// The variable at an address, and how far behind its start.
fn find(variables: &[Variable], addr: Addr) -> Option<(&Variable, u64)> {
    let behind = variables.partition_point(|variable| variable.start <= addr);
    let variable = variables.get(behind.checked_sub(1)?)?;
    let offset = addr.0 - variable.start.0;
    (offset < variable.size).then_some((variable, offset))
}

impl Present<'_> {
    fn is_there(&self, module: u32) -> bool {
        self.there.get(module as usize).copied().unwrap_or(false)
    }

    /// The type of the values of a Rust table of functions.
    pub fn of_table(&self, at: Addr) -> Option<TypeId> {
        let (of, module) = self.all.tables.get(&at)?;
        self.is_there(*module).then_some(*of)
    }

    /// The variable at an address, and how far behind its start.
    fn variable(&self, addr: Addr) -> Option<(&Variable, u64)> {
        let behind = self.blocks.partition_point(|block| block.range.start <= addr);
        let block = behind.checked_sub(1).and_then(|last| self.blocks.get(last));
        let (variable, offset) = match block.filter(|block| block.range.contains(&addr)) {
            Some(block) => self.thread_local(block, addr.0 - block.range.start.0),
            None => find(&self.all.variables, addr),
        }?;
        self.is_there(variable.module).then_some((variable, offset))
    }

    /// The variable so many bytes behind the start of a thread's block, and how far behind its own start.
    fn thread_local(&self, block: &ThreadBlock, at: u64) -> Option<(&Variable, u64)> {
        find(self.all.thread_locals.get(&block.module)?, Addr(at))
    }

    /// The blocks of the heap that hold thread-local variables, which the dynamic linker makes for libraries that came
    /// later; and how far behind the start these begin.
    ///
    /// A thread that has not used a library's variables yet may have the block of one that had its number before, and
    /// is gone: what does not have the size is none.
    fn on_heap<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = (u32, u64, &'a ThreadBlock)> {
        self.blocks.iter().filter_map(|block| {
            let Range { start, end } = block.range;
            let number = graph.blocks().partition_point(|one| one.addr <= start).checked_sub(1)?;
            let holder = graph.blocks().get(number)?;
            let room = holder.addr.0.checked_add(holder.size)?.checked_sub(end.0)?;
            let is_made_for_it = block.room.is_none_or(|most| room <= most);
            is_made_for_it.then_some((number as u32, start.0 - holder.addr.0, block))
        })
    }

    /// What a pointer at `addr` in a variable to `into` bytes behind the start of block `target` says of that.
    fn lead(&self, places: &mut Places, addr: Addr, target: u32, into: u64) -> Option<Lead> {
        let (variable, offset) = self.variable(addr)?;
        let place = places.get(&self.all.table, variable.of, offset)?;
        let finish = place.finish.map(|(ahead, finish)| (Addr(addr.0.wrapping_add_signed(ahead)), finish));
        Some(Lead { target, into, of: place.leads?, is_end: place.is_end, finish })
    }

    /// The way to a pointer that lies at an address outside of the blocks: `g_server.keys._M_impl._M_start`.
    pub fn path(&self, addr: Addr) -> Option<String> {
        let (variable, offset) = self.variable(addr)?;
        let path = self.all.table.place(variable.of, offset).map_or_else(String::new, |place| place.path);
        let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
        Some(format!("{}{dot}{path}", variable.name))
    }

    /// Finds the types of blocks. `exact` are those whose own tables tell.
    pub fn spread(&self, graph: &Graph, exact: &[(u32, TypeId)], memory: &mut dyn ReadMemory) -> Spread {
        let mut places = Places::default();
        let mut leads = Vec::new();
        for (kind, addr, target, into) in graph.root_targets() {
            if let RootKind::Data { .. } | RootKind::Tls { .. } = kind {
                leads.extend(addr.and_then(|addr| self.lead(&mut places, addr, target, into)));
            }
        }
        for (number, start, block) in self.on_heap(graph) {
            for edge in graph.edges(number) {
                let addr = edge.at.checked_sub(start).map(|at| block.range.start.add(at));
                leads.extend(addr.and_then(|addr| self.lead(&mut places, addr, edge.target, edge.into)));
            }
        }
        spread::spread(&self.all.table, graph, exact, &leads, memory)
    }

    /// The layouts of blocks, with the members in which pointers lie.
    pub fn layouts(&self, graph: &Graph, spread: &Spread) -> Layouts {
        let mut layouts = Layouts { all: Vec::new(), of_block: vec![Layouts::NONE; graph.blocks().len()] };
        let mut known: FxHashMap<Typed, u32> = FxHashMap::default();
        let mut places: Vec<FxHashMap<u64, String>> = Vec::new();
        let mut looked_up = Places::default();
        let mut text = 0usize;
        for (number, slot) in (0..).zip(&mut layouts.of_block) {
            let Some(typed) = spread.of(number) else { continue };
            let layout = *known.entry(typed).or_insert_with(|| {
                let name = self.all.table.name(typed.of);
                let several = if typed.many { "[]" } else { "" };
                let stride = if typed.many { self.all.table.size(typed.of) } else { 0 };
                layouts.all.push(Layout {
                    name: format!("{name}{several}"),
                    stride,
                    phase: typed.phase,
                    places: Vec::new(),
                });
                places.push(FxHashMap::default());
                places.len() as u32 - 1
            });
            *slot = layout;
            let Some(places) = places.get_mut(layout as usize) else { continue };
            for edge in graph.edges(number) {
                let Some((_, offset)) = offset_in(&self.all.table, typed, edge.at) else { continue };
                if places.len() < MAX_PLACES
                    && text < MAX_TEXT
                    && !places.contains_key(&offset)
                    && let Some(place) = looked_up.get(&self.all.table, typed.of, offset)
                {
                    text += place.path.len();
                    places.insert(offset, place.path.clone());
                }
            }
        }
        for (layout, places) in layouts.all.iter_mut().zip(places) {
            layout.places = places.into_iter().collect();
            layout.places.sort_unstable();
        }
        self.lay_out_thread_locals(&mut layouts, graph);
        layouts
    }

    /// Names the pointers in blocks of the heap that hold thread-local variables: blocks of one module have one layout.
    fn lay_out_thread_locals(&self, layouts: &mut Layouts, graph: &Graph) {
        let mut known: BTreeMap<(u32, Option<u64>), Alike> = BTreeMap::new();
        for (number, start, block) in self.on_heap(graph).filter(|(_, _, block)| self.is_there(block.module)) {
            let Alike { blocks, places } = known.entry((block.module, block.room.map(|_| start))).or_default();
            blocks.push(number);
            let Some(start) = block.range.start.0.checked_sub(start) else { continue };
            for edge in graph.edges(number) {
                if places.len() < MAX_PLACES
                    && !places.contains_key(&edge.at)
                    && let Some(path) = self.path(Addr(start).add(edge.at))
                {
                    places.insert(edge.at, path);
                }
            }
        }
        for ((module, start), Alike { blocks, places }) in known {
            let Some(module) = self.all.modules.get(module as usize) else { continue };
            for number in blocks {
                if let Some(slot) = layouts.of_block.get_mut(number as usize) {
                    *slot = layouts.all.len() as u32;
                }
            }
            let name = match start {
                Some(_) => format!("thread-local variables of {module}"),
                None => format!("{module} as loaded, with thread-local variables"),
            };
            layouts.all.push(Layout { name, stride: 0, phase: 0, places: places.into_iter().collect() });
        }
    }
}
