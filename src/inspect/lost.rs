//! Which blocks of a process that nobody has traced can't be reached any more. The blocks are those of the allocator's
//! walk; the classes are [`crate::heap::leaks`]'s.

use super::core::Core;
use super::inside::{self, Inside};
use super::looks::{self, Attempt, Purpose};
use super::modules::Objects;
use super::seen::ProcessView;
use crate::base::addr::{LoadBias, ModuleId};
use crate::base::memory::ReadMemory;
use crate::heap::graph::live_blocks;
use crate::heap::leaks::{Graph, MappedFiles, RootKind, Scan, ScanOptions};
use crate::heap::walk::Walk;
use crate::symbols::{Search, Symbolizer};
use crate::tracer::cputime::of_thread as ran;
use crate::tracer::{Result, ids, procfs};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was found.
#[derive(Debug)]
pub struct LostBlocks {
    /// The program's name.
    pub program: String,
    /// How long the process stood still; None: it was seen in a core.
    pub stood: Option<Duration>,
    /// Whether it stood only to be copied, and the copy was read.
    pub copied: bool,
    /// The names of its threads, by id.
    pub threads: BTreeMap<i32, String>,
    /// The blocks with their classes.
    pub scan: Scan,
    /// How many places of the heap were inconsistent: blocks may be missing.
    pub findings: usize,
    /// Whether they may be of a heap that threads are just changing.
    pub in_motion: bool,
    /// What is wrong besides, in sentences.
    pub warnings: Vec<String>,
    objects: Objects,
}

impl LostBlocks {
    /// Names the variables of the process's modules.
    pub fn symbolizer(&self, debug_dirs: &[PathBuf], root: PathBuf) -> Symbolizer {
        let mut symbolizer = Symbolizer::new(Search::new(debug_dirs, None, None, root));
        for object in &self.objects.found {
            symbolizer.add_module(object.id, object.source());
        }
        symbolizer
    }

    /// The path of a module, and where it is loaded.
    pub fn module(&self, id: ModuleId) -> Option<(&std::path::Path, LoadBias)> {
        let object = self.objects.found.iter().find(|object| object.id == id)?;
        Some((&object.path, object.bias))
    }
}

/// Classifies the live blocks of process `pid`, which stands still while they are read. None if its allocator can't be
/// walked.
///
/// # Errors
/// It can't be traced, or its memory can't be read.
pub fn lost(pid: i32, options: &ScanOptions) -> Result<Option<LostBlocks>> {
    ids::require_own()?;
    let program = procfs::program_name(pid, pid);
    let look = || looks::look(pid, Purpose::Leaks, |seen, walk, memory| read(seen, walk, memory, options));
    let Attempt { seen, walk, read, copied, mut stood, in_motion, mut warnings } = look()?;
    let Some((walk, mut read)) = walk.zip(read) else { return Ok(None) };
    let mut again = |inside: &[Inside]| {
        let ran_before: Vec<_> = awaited(inside).map(|tid| (tid, ran(pid, tid))).collect();
        let began = Instant::now();
        loop {
            std::thread::sleep(PAUSE);
            let has_run = ran_before.iter().all(|(tid, before)| ran(pid, *tid) != *before);
            if has_run || began.elapsed() > TIMEOUT {
                break;
            }
        }
        // the process has ended since, or another tracer has come: the first look is what is known
        let look = look().map_err(|error| tracing::debug!("the second look failed: {error}")).ok()?;
        stood += look.stood;
        warnings.extend(look.warnings.into_iter().filter(|warning| !warnings.contains(warning)).collect::<Vec<_>>());
        look.read.map(|read| (read.graph, read.inside))
    };
    leave_out_what_moves(&mut read.graph, &read.inside, &mut again);
    let lost = told(program, seen, &walk, read);
    Ok(Some(LostBlocks { stood: Some(stood), copied, in_motion, warnings, ..lost }))
}

/// Between two looks threads have at least so long to leave the allocator.
const PAUSE: Duration = Duration::from_millis(2);

/// Threads that get no processor meanwhile are waited for no longer than this.
const TIMEOUT: Duration = Duration::from_millis(50);

/// So many looks more are taken at most.
const MAX_MORE: u32 = 4;

/// So many of them must agree one after the other while threads are inside of the allocator: a block that was on its
/// way at the first look may be so again at the next one, as allocators give the same block out again and again.
const AGREEING: u32 = 2;

/// The threads that are to run between two looks: those that wait in a system call stay where they are for as long as
/// that takes.
fn awaited(inside: &[Inside]) -> impl Iterator<Item = i32> {
    inside.iter().filter(|thread| thread.running.is_some()).map(|thread| thread.tid)
}

/// A block that a thread is just being given, or gives back, may be neither live nor free by the structures: no pointer
/// leads to it. What a later look finds elsewhere, or leads to, or does not find, was not lost. What is lost stays so,
/// at the same address with the same size.
fn leave_out_what_moves(graph: &mut Graph, inside: &[Inside], again: &mut dyn FnMut(&[Inside]) -> Option<Later>) {
    if inside.is_empty() {
        return;
    }
    let first = graph.unreached();
    let mut lost = first.clone();
    let mut agreeing = 0;
    for _ in 0..MAX_MORE {
        if lost.is_empty() {
            break;
        }
        let Some((later, now)) = again(inside) else { break };
        let later = later.unreached();
        let before = lost.len();
        lost.retain(|block| later.contains(block));
        // a thread that has no processor stands where it stood
        let is_unmoved = inside.iter().any(|thread| now.iter().any(|later| later.stands_where(thread)));
        agreeing = if lost.len() == before && !is_unmoved { agreeing + 1 } else { 0 };
        // nothing is on its way where nobody is inside
        if now.is_empty() || agreeing >= AGREEING {
            break;
        }
    }
    for (block, _) in first.difference(&lost) {
        graph.hold(*block, RootKind::InMotion);
    }
}

/// Classifies the live blocks of a process that a core has kept. None if its allocator can't be walked.
pub fn in_core(core: &Arc<Core>, options: &ScanOptions) -> Option<LostBlocks> {
    let seen = ProcessView::in_core(core);
    let parts = core.file_parts();
    let mut memory = core.memory(&parts);
    let walk = seen.walk(&mut memory)?;
    let read = read(&seen, &walk, &mut memory, options);
    Some(told(core.file.program.clone(), seen, &walk, read))
}

fn told(program: String, seen: ProcessView, walk: &Walk, read: Read) -> LostBlocks {
    LostBlocks {
        program,
        stood: None,
        copied: false,
        threads: seen.names,
        scan: read.graph.classify(),
        findings: walk.findings.len(),
        in_motion: false,
        warnings: Vec::new(),
        objects: read.objects,
    }
}

/// What a later look has found: the blocks, and which threads stood inside of the allocator.
type Later = (Graph, Vec<Inside>);

/// What is read while the process stands still.
struct Read {
    graph: Graph,
    objects: Objects,
    inside: Vec<Inside>,
}

fn read(seen: &ProcessView, walk: &Walk, memory: &mut dyn ReadMemory, options: &ScanOptions) -> Read {
    let blocks = live_blocks(walk);
    let objects = seen.objects(walk);
    let roots = seen.roots(walk, &objects, &blocks, memory);
    let inside = inside::threads(walk, &objects, &seen.states, &seen.calls, memory);
    let options = ScanOptions { files: MappedFiles::of(&seen.mappings), ..options.clone() };
    Read { graph: Graph::read(blocks, &roots, memory, &options), objects, inside }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Regs;
    use crate::base::addr::Addr;
    use crate::base::leakclass::LeakClass;
    use crate::heap::leaks::Roots;
    use crate::heapmodel::{LiveBlock, SiteId};

    /// Memory that holds nothing but zeros.
    struct Zeros;

    impl ReadMemory for Zeros {
        fn read(&mut self, _: Addr, buf: &mut [u8]) -> usize {
            buf.fill(0);
            buf.len()
        }
    }

    /// Blocks that no pointer leads to.
    fn graph(blocks: &[(u64, u64)]) -> Graph {
        let block = |&(at, size): &(u64, u64)| LiveBlock { addr: Addr(at), size, site: SiteId(0), inherited: false };
        let blocks = blocks.iter().map(block).collect();
        Graph::read(blocks, &Roots::default(), &mut Zeros, &ScanOptions::default())
    }

    fn at(rip: u64) -> Inside {
        Inside { tid: 1, running: Some(Regs { rip, ..Regs::default() }) }
    }

    /// The blocks that a later look finds lost, by address and size, and where the thread stands if it is in the
    /// allocator.
    type Found<'a> = (&'a [(u64, u64)], Option<u64>);

    /// Where blocks are lost by a first look and later ones, each with where the thread stood; and how many looks there
    /// were.
    fn lost(first: &[(u64, u64)], later: &[Found<'_>]) -> (Vec<u64>, usize) {
        let (mut of_first, mut looks) = (graph(first), 0);
        leave_out_what_moves(&mut of_first, &[at(1)], &mut |_| {
            let (blocks, place) = later.get(looks)?;
            looks += 1;
            Some((graph(blocks), place.map(at).into_iter().collect()))
        });
        let scan = of_first.classify();
        let lost = scan.blocks().filter(|(_, class)| *class == LeakClass::Definite);
        (lost.map(|(block, _)| block.addr.0).collect(), looks)
    }

    #[test]
    fn what_a_later_look_does_not_find_at_its_place_was_not_lost() {
        let (one, other) = ((0x1000, 64), (0x2000, 64));
        assert_eq!(lost(&[one, other], &[(&[one], None), (&[one, other], None)]), (vec![0x1000], 1));
        // another size is another block
        assert_eq!(lost(&[one, other], &[(&[one, (0x2000, 80)], None), (&[one], None)]), (vec![0x1000], 1));
        assert_eq!(lost(&[one], &[(&[], Some(2))]), (vec![], 1));
        // what is lost anew was not lost at first
        assert_eq!(lost(&[one], &[(&[one, other], None)]), (vec![0x1000], 1));
    }

    #[test]
    fn a_thread_that_is_at_its_place_has_not_moved_whatever_its_registers_hold() {
        let mut changed = at(1);
        if let Some(regs) = &mut changed.running {
            regs.gpr[crate::arch::reg::RAX] = 5;
        }
        assert!(changed.stands_where(&at(1)));
        assert!(!at(2).stands_where(&at(1)));
        let asleep = Inside { tid: 1, running: None };
        assert!(!asleep.stands_where(&asleep) && !asleep.stands_where(&at(1)));
    }

    #[test]
    fn what_moves_hangs_on_the_allocator_and_on_no_thread() {
        let mut of_first = graph(&[(0x1000, 64)]);
        leave_out_what_moves(&mut of_first, &[at(1)], &mut |_| Some((graph(&[]), Vec::new())));
        let scan = of_first.classify();
        assert_eq!(scan.path_to(0).map(|path| path.root), Some(RootKind::InMotion));
    }

    #[test]
    fn only_threads_that_run_are_to_have_run_between_two_looks() {
        let asleep = Inside { tid: 2, running: None };
        assert_eq!(awaited(&[asleep, at(1), asleep]).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn looks_end_when_nobody_is_inside_or_three_agree_and_the_threads_have_moved() {
        let one = (0x1000, 64);
        assert_eq!(lost(&[one], &[(&[one], None), (&[], None)]), (vec![0x1000], 1));
        assert_eq!(lost(&[one], &[(&[one], Some(2)), (&[one], Some(3)), (&[], None)]), (vec![0x1000], 2));
        // it was on its way twice
        assert_eq!(lost(&[one], &[(&[one], Some(2)), (&[], Some(3))]), (vec![], 2));
        assert_eq!(lost(&[one], &[(&[one], Some(1)), (&[], None)]), (vec![], 2));
        let unmoved: Found<'_> = (&[one], Some(1));
        assert_eq!(lost(&[one], &[unmoved, unmoved, unmoved, unmoved, (&[], None)]), (vec![0x1000], 4));
        assert_eq!(lost(&[], &[(&[], None)]), (vec![], 0));
        assert_eq!(lost(&[one], &[]), (vec![0x1000], 0));
    }
}
