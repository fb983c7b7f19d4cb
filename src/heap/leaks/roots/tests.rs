//! Roots of made-up address spaces.

use super::*;
use crate::heapmodel::SiteId;
use std::collections::BTreeMap;

/// Words of memory; all others are zero.
#[derive(Debug, Default)]
struct Words(BTreeMap<u64, u64>);

impl ReadMemory for Words {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        buf.fill(0);
        let end = addr.0 + buf.len() as u64;
        for (&at, word) in self.0.range(addr.0.saturating_sub(7)..end) {
            for (at, byte) in (at..).zip(word.to_le_bytes()) {
                if let Some(slot) = at.checked_sub(addr.0).and_then(|offset| buf.get_mut(offset as usize)) {
                    *slot = byte;
                }
            }
        }
        buf.len()
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        let pages = self.0.range(range.start.0..range.end.0).map(|(at, _)| at / PAGE_SIZE * PAGE_SIZE);
        pages.map(|page| Addr(page)..Addr(page + PAGE_SIZE)).collect()
    }
}

fn module_data(ranges: &[(u64, u64)]) -> ModuleData {
    let ranges = ranges.iter().map(|&(start, end)| Addr(start)..Addr(end)).collect();
    ModuleData { id: ModuleId(0), ranges, tls_size: 0x40, glibc: None }
}

/// An address space: the text of its maps, and what else is known.
struct World {
    mappings: Vec<Mapping>,
    modules: Vec<ModuleData>,
    threads: Vec<ThreadState>,
    blocks: Vec<LiveBlock>,
    registered: Vec<Range<Addr>>,
    layout: HeapLayout,
    owned: Vec<Range<Addr>>,
    kernel: KernelHeld,
    memory: Words,
}

impl World {
    fn new(maps: &str) -> Self {
        let mappings = crate::image::maps::parse(maps.as_bytes()).unwrap();
        let (modules, threads, blocks) = (vec![module_data(&[])], Vec::new(), Vec::new());
        let (registered, layout) = (Vec::new(), HeapLayout::Glibc);
        let (owned, kernel, memory) = (Vec::new(), KernelHeld::default(), Words::default());
        Self { mappings, modules, threads, blocks, registered, layout, owned, kernel, memory }
    }

    fn data(mut self, start: u64, end: u64) -> Self {
        self.modules = vec![module_data(&[(start, end)])];
        self
    }

    /// The same module has glibc's allocator.
    fn glibc(mut self) -> Self {
        self.modules.iter_mut().for_each(|module| module.glibc = Some(None));
        self
    }

    fn thread(mut self, tid: i32, sp: u64, fs_base: u64) -> Self {
        let mut regs = Regs { fs_base, ..Regs::default() };
        regs.gpr[reg::RSP] = sp;
        regs.gpr[reg::RBX] = 0xb10c;
        self.threads.push(ThreadState::stopped(tid, regs, Vec::new()));
        self
    }

    fn block(mut self, addr: u64, size: u64) -> Self {
        self.blocks.push(LiveBlock { addr: Addr(addr), size, site: SiteId(0), inherited: false });
        self
    }

    fn word(mut self, at: u64, value: u64) -> Self {
        self.memory.0.insert(at, value);
        self
    }

    fn roots(mut self) -> Roots {
        let mut memory = std::mem::take(&mut self.memory);
        self.roots_in(&mut memory)
    }

    fn roots_in(&mut self, memory: &mut dyn ReadMemory) -> Roots {
        let Self { mappings, modules, threads, blocks, registered, layout, owned, kernel, .. } = self;
        find(
            &RootSources {
                mappings,
                modules,
                threads,
                pid: 1,
                registered,
                kernel,
                blocks,
                layout: *layout,
                owned,
                heap_is_known: true,
            },
            memory,
        )
    }

    fn ranges(self) -> Vec<(u64, u64, RootKind)> {
        self.roots().ranges.iter().map(|range| (range.start.0, range.end.0, range.kind)).collect()
    }
}

const MODULE: RootKind = RootKind::Data { module: ModuleId(0) };

/// Below a handler's frames, or all; but not where the memory has become part of something else.
#[test]
fn signal_stacks_hold_nothing_but_frames() {
    let maps = "\
400000-500000 rw-p 00000000 00:00 0 
700000-710000 rw-p 00000000 00:00 0 [stack]
";
    let stale = |stack: (u64, u64), sp: u64, blocks: &[(u64, u64)]| {
        let world = World::new(maps).thread(1, sp, 0);
        let mut world = blocks.iter().fold(world, |world, &(at, size)| world.block(at, size));
        world.kernel.signal_stacks = [(1, Some(Addr(stack.0)..Addr(stack.1)))].into();
        world.roots().stale.iter().map(|range| (range.start.0, range.end.0)).collect::<Vec<_>>()
    };
    let stack = (0x40_1000, 0x40_3000);
    assert_eq!(stale(stack, 0x70_8000, &[]), [stack]);
    assert_eq!(stale(stack, 0x40_2000, &[]), [(0x40_1000, 0x40_1f80)]);
    assert_eq!(stale(stack, 0x40_3000, &[]), [(0x40_1000, 0x40_2f80)]);
    for in_or_beside in [[(0x40_1000, 0x2000), (0x40_3000, 64)], [(0x40_0ff0, 16), (0x40_0ff8, 0x3000)]] {
        assert_eq!(stale(stack, 0x70_8000, &in_or_beside), [stack]);
    }
    for reused in [(0x40_0ff0, 32), (0x40_1000, 64), (0x40_1010, 64), (0x40_2ff0, 64), (0x40_1000, 0x1fff)] {
        assert_eq!(stale(stack, 0x70_8000, &[reused]), [], "{reused:x?}");
    }
    assert_eq!(stale((0x70_9000, 0x70_b000), 0x70_8000, &[]), []);
    assert_eq!(stale((0x70_1000, 0x70_3000), 0x70_8000, &[]), [(0x70_1000, 0x70_3000)]);
}

/// What a program registers need not be there, nor be as large as it says.
#[test]
fn of_registered_memory_what_can_be_read_is_a_root() {
    let maps = "\
400000-401000 r--p 00000000 08:01 7 /srv/table
500000-501000 ---p 00000000 00:00 0 
600000-601000 rw-s 00000000 00:06 9 /dev/dri/card0
";
    let mut world = World::new(maps);
    world.registered =
        vec![Addr(0x40_0800)..Addr(u64::MAX), Addr(0x1000)..Addr(0x2000), Addr(0x40_0ff0)..Addr(0x40_0800)];
    assert_eq!(world.ranges(), [(0x40_0800, 0x40_1000, RootKind::Registered)]);
}

#[test]
fn start_frames_are_no_roots() {
    let mut world = World::new("700000-710000 rw-p 00000000 00:00 0 [stack]\n").thread(1, 0x70_8000, 0);
    world.threads[0].start_frames = Some(Addr(0x70_9000)..Addr(0x70_a000));
    let stack = RootKind::Stack { tid: 1 };
    assert_eq!(world.ranges(), [(0x70_7f80, 0x70_9000, stack), (0x70_a000, 0x71_0000, stack)]);
}

#[test]
fn data_with_relro_and_bss_is_a_root_and_what_else_lies_in_its_pages_is_not() {
    let maps = "\
400000-401000 r-xp 00000000 08:01 7 /bin/app
402000-403000 r--p 00002000 08:01 7 /bin/app
403000-404000 rw-p 00003000 08:01 7 /bin/app
404000-406000 rw-p 00000000 00:00 0 
500000-501000 rw-p 00000000 00:00 0 
600000-601000 rw-s 00000000 00:06 9 /dev/dri/card0
700000-701000 rw-s 00000000 00:06 9 /dev/shm/shared
800000-801000 r--p 00000000 08:01 8 /usr/share/data
";
    let ranges = World::new(maps).data(0x402e00, 0x405678).ranges();
    let expected = [
        (0x402e00, 0x405678, MODULE),
        (0x500000, 0x501000, RootKind::Anonymous),
        (0x700000, 0x701000, RootKind::Anonymous),
    ];
    assert_eq!(ranges, expected);
}

/// glibc's dynamic linker keeps its first own data behind that of its file, and before a segment another one's page may
/// end.
#[test]
fn with_glibc_the_rest_of_data_s_pages_is_a_root() {
    let maps = "\
402000-403000 r--p 00002000 08:01 7 /lib/ld.so
403000-406000 rw-p 00003000 08:01 7 /lib/ld.so
";
    let ranges = World::new(maps).data(0x402e00, 0x405678).glibc().ranges();
    assert_eq!(ranges, [(0x402000, 0x402e00, MODULE), (0x402e00, 0x405678, MODULE), (0x405678, 0x406000, MODULE)]);
}

/// What is complete is often made read-only. Of files the modules tell what was written to.
#[test]
fn pages_without_a_file_that_were_made_read_only_are_roots() {
    let maps = "\
400000-401000 r--p 00000000 00:00 0 
500000-501000 r-xp 00000000 00:00 0 
600000-601000 ---p 00000000 00:00 0 
700000-701000 r--p 00000000 08:01 8 /usr/share/data
";
    let ranges = World::new(maps).ranges();
    assert_eq!(ranges, [(0x400000, 0x401000, RootKind::Anonymous), (0x500000, 0x501000, RootKind::Anonymous)]);
}

/// Memory that knows which of its pages were written to, and some of which can't be read.
struct Pages {
    written: Vec<Range<Addr>>,
    unreadable: Vec<Range<Addr>>,
}

impl ReadMemory for Pages {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        if self.unreadable.iter().any(|range| range.contains(&addr)) { 0 } else { buf.len() }
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        let parts = self.written.iter().map(|part| part.start.max(range.start)..part.end.min(range.end));
        parts.filter(|part| part.start < part.end).collect()
    }
}

/// A program protects what it has written, and reserves what it will write.
#[test]
fn of_protected_memory_what_was_written_is_a_root() {
    let maps = "\
400000-480000 ---p 00000000 00:00 0 
600000-601000 ---p 00000000 00:00 0 
700000-701000 ---s 00000000 00:00 0 
800000-801000 ---p 00000000 08:01 8 /usr/lib/between.so
10000000000-20000000000 ---p 00000000 00:00 0 
";
    let written =
        [(0x40_2000, 0x40_4000), (0x47_f000, 0x48_0000), (0x60_0000, 0x90_0000), (0x180_0000_0000, 0x190_0000_0000)];
    let range = |(start, end): (u64, u64)| Addr(start)..Addr(end);
    let mut world = World::new(maps);
    let Roots { ranges, .. } = world.roots_in(&mut Pages { written: written.map(range).into(), unreadable: vec![] });
    let found: Vec<_> = ranges.iter().map(|range| (range.start.0, range.end.0)).collect();
    assert_eq!(found, [(0x40_2000, 0x40_4000), (0x47_f000, 0x48_0000), (0x60_0000, 0x60_1000)]);
    let unreadable = vec![range((0x60_0000, 0x60_1000))];
    let Roots { ranges, .. } = world.roots_in(&mut Pages { written: written.map(range).into(), unreadable });
    assert_eq!(ranges.len(), 2);
}

/// Whatever lies below the stack pointer, and in registers that the function called need not keep.
#[test]
fn a_thread_in_its_last_call_holds_what_its_callers_do() {
    let mut world = World::new("7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]\n");
    let mut regs = Regs { gpr: [0xb10c; 16], ..Regs::default() };
    regs.gpr[reg::RSP] = 0x7ffc00020000;
    world.threads.push(ThreadState::in_call(1, &regs));
    let roots = world.roots();
    let ranges: Vec<_> = roots.ranges.iter().map(|range| (range.start.0, range.end.0)).collect();
    assert_eq!(ranges, [(0x7ffc00020000, 0x7ffc00021000)]);
    let kinds: Vec<_> = roots.words.iter().map(|word| word.kind).collect();
    let kept = ["rbx", "rbp", "r12", "r13", "r14", "r15"].map(|name| RootKind::Register { tid: 1, name });
    assert_eq!(kinds, kept);
}

#[test]
fn a_stack_counts_from_the_red_zone_on() {
    let maps = "\
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
7f0000001000-7f0000801000 rw-p 00000000 00:00 0 
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
";
    let tcb = 0x7f0000800000;
    let ranges = World::new(maps).thread(1, 0x7ffc00020000, 0).thread(2, 0x7f0000700000, tcb).ranges();
    let expected = [
        (0x7f0000700000 - 128, tcb - 0x40, RootKind::Stack { tid: 2 }),
        (tcb - 0x40, tcb, RootKind::Tls { tid: 2 }),
        (tcb, tcb + 0x900, RootKind::ThreadData { tid: 2 }),
        (tcb + 0x900, 0x7f0000801000, RootKind::Stack { tid: 2 }),
        (0x7ffc00020000 - 128, 0x7ffc00021000, RootKind::Stack { tid: 1 }),
    ];
    assert_eq!(ranges, expected);
}

#[test]
fn the_stack_of_the_first_thread_counts_while_that_lives() {
    let maps = "\
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
7f0000001000-7f0000801000 rw-p 00000000 00:00 0 
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
";
    let on_first = |roots: Roots| roots.ranges.iter().any(|range| range.start.0 >= 0x7ffc00000000);
    let second = World::new(maps).thread(2, 0x7f0000700000, 0x7f0000800000);
    assert!(!on_first(second.roots()));
    let standing_there = World::new(maps).thread(2, 0x7ffc00020000, 0x7f0000800000);
    assert!(on_first(standing_there.roots()));
    let both = World::new(maps).thread(2, 0x7f0000700000, 0x7f0000800000).thread(1, 0x7ffc00020000, 0);
    assert!(on_first(both.roots()));
}

#[test]
fn of_a_thread_on_another_stack_its_own_counts_whole() {
    let maps = "\
7f0000001000-7f0000011000 rw-p 00000000 00:00 0 
7f0000100000-7f0000101000 ---p 00000000 00:00 0 
7f0000101000-7f0000201000 rw-p 00000000 00:00 0 
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
";
    let tcb = 0x7f0000200000;
    let ranges = World::new(maps).thread(1, 0x7f0000008000, tcb).ranges();
    assert!(ranges.contains(&(0x7f0000101000, tcb - 0x40, RootKind::Anonymous)), "{ranges:x?}");
    assert!(ranges.contains(&(0x7ffc00000000, 0x7ffc00021000, RootKind::Anonymous)), "{ranges:x?}");
    assert!(ranges.contains(&(0x7f0000008000 - 128, 0x7f0000011000, RootKind::Stack { tid: 1 })), "{ranges:x?}");
    // There is no guard: what lies below may be anything.
    assert!(ranges.contains(&(0x7f0000001000, 0x7f0000008000 - 128, RootKind::Anonymous)), "{ranges:x?}");
}

#[test]
fn a_fiber_on_the_heap_has_a_stack() {
    let maps = "1000000-1021000 rw-p 00000000 00:00 0 [heap]\n";
    let ranges = World::new(maps).block(0x1000010, 0x8000).thread(1, 0x1006000, 0).ranges();
    assert_eq!(ranges, [(0x1006000 - 128, 0x1008010, RootKind::Stack { tid: 1 })]);
}

/// glibc keeps the stacks of ended threads. The descriptor near the end of each tells one.
#[test]
fn the_stack_of_an_ended_thread_is_no_root_but_for_its_descriptor() {
    let maps = "\
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
7f0000001000-7f0000021000 rw-p 00000000 00:00 0 
7f0000021000-7f0000022000 ---p 00000000 00:00 0 
7f0000022000-7f0000042000 rw-p 00000000 00:00 0 
";
    let (ended, living) = (0x7f0000020000, 0x7f0000041000);
    let ranges = World::new(maps)
        .word(ended, ended)
        .word(ended + 16, ended)
        .word(living, living)
        .word(living + 16, living)
        .thread(2, 0x7f0000040000, living)
        .ranges();
    assert_eq!(ranges.first(), Some(&(ended - 0x40, 0x7f0000021000, RootKind::Anonymous)));
    assert_eq!(ranges.get(1), Some(&(0x7f0000040000 - 128, living - 0x40, RootKind::Stack { tid: 2 })));
}

/// The kernel merges a malloc(300000) and an mmap(300000) of the program.
#[test]
fn an_mmapped_chunk_is_told_from_its_neighbour_in_the_same_mapping() {
    let maps = "7f0000000000-7f0000100000 rw-p 00000000 00:00 0 \n";
    let chunk = 0x7f0000040000;
    let world = World::new(maps).block(chunk + 0x10, 300_000).word(chunk + 8, 0x4a000 | 2);
    let expected =
        [(0x7f0000000000, chunk, RootKind::Anonymous), (chunk + 0x4a000, 0x7f0000100000, RootKind::Anonymous)];
    assert_eq!(world.ranges(), expected);
    // memalign leaves a gap before the chunk, which its header tells.
    let world =
        World::new(maps).block(chunk + 0x1010, 8).word(chunk + 0x1008, 0x49000 | 2).word(chunk + 0x1000, 0x1000);
    assert_eq!(world.ranges(), expected);
}

#[test]
fn the_arena_of_a_thread_is_no_root() {
    let base = 0x7f0004000000u64;
    let maps = "\
7f0004000000-7f0004021000 rw-p 00000000 00:00 0 
7f0004021000-7f0008000000 ---p 00000000 00:00 0 
7f000c000000-7f000c021000 rw-p 00000000 00:00 0 
";
    let world = World::new(maps).word(base, base + 0x30).word(base + 16, 0x21000).word(base + 24, 0x21000);
    let world = world.block(base + 0x8c0, 100);
    assert_eq!(
        world.ranges(),
        [(0x7f000c000000, 0x7f000c021000, RootKind::Anonymous)],
        "the program's own, so aligned too"
    );
}

#[test]
fn where_brk_fails_the_main_arena_is_told_by_its_blocks() {
    let maps = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
7f0000200000-7f0000300000 rw-p 00000000 00:00 0 
";
    let world = World::new(maps).block(0x7f0000000010, 24).word(0x7f0000000008, 0x21);
    assert_eq!(world.ranges(), [(0x7f0000200000, 0x7f0000300000, RootKind::Anonymous)]);
}

/// A static program's first sbrk holds the main thread's variables and descriptor.
#[test]
fn thread_local_data_inside_the_heap_stays_a_root() {
    let maps = "1000000-1022000 rw-p 00000000 00:00 0 [heap]\n";
    let tcb = 0x1000340;
    let ranges = World::new(maps).block(tcb + 0x2000, 100).thread(1, 0x7ffc00000000, tcb).ranges();
    let expected = [
        (0x1000000, tcb - 0x40, RootKind::Anonymous),
        (tcb - 0x40, tcb, RootKind::Tls { tid: 1 }),
        (tcb, tcb + 0x900, RootKind::ThreadData { tid: 1 }),
    ];
    assert_eq!(ranges, expected);
    let ranges = World::new(maps).block(tcb + 0x810, 100).thread(1, 0x7ffc00000000, tcb).ranges();
    assert_eq!(ranges.last(), Some(&(tcb, tcb + 0x800, RootKind::ThreadData { tid: 1 })), "not beyond the first chunk");
}

#[test]
fn the_mappings_of_another_allocator_are_those_that_hold_blocks() {
    let maps = "\
1000000-1021000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
7f0000200000-7f0000300000 rw-p 00000000 00:00 0 
";
    let mut world = World::new(maps).block(0x7f0000000010, 24);
    world.layout = HeapLayout::Other;
    let expected = [(0x1000000, 0x1021000, RootKind::Anonymous), (0x7f0000200000, 0x7f0000300000, RootKind::Anonymous)];
    assert_eq!(world.ranges(), expected);
}

/// musl's groups and the stacks of its threads have the same rights, and the kernel makes one mapping of neighbours.
#[test]
fn a_stack_in_one_mapping_with_blocks_is_a_root() {
    let other = |mut world: World| {
        world.layout = HeapLayout::Other;
        world
    };
    let maps = "10000-11000 ---p 00000000 00:00 0\n11000-20000 rw-p 00000000 00:00 0\n";
    // stack from the guard to 16000, blocks above
    let world = other(World::new(maps).block(0x16010, 0x100).thread(5, 0x14000, 0x15800));
    let found = world.ranges();
    assert_eq!((found.first().unwrap().0, found.last().unwrap().1), (0x13f80, 0x16010), "{found:?}");
    // the descriptor ends a page before the first block: what lies between is the allocator's
    let world = other(World::new(maps).block(0x18010, 0x100).thread(5, 0x14000, 0x15500));
    assert_eq!(world.ranges().last().unwrap().1, 0x16000);
    // blocks below another thread's stack, which has no guard
    let maps = "11000-20000 rw-p 00000000 00:00 0\n";
    let world = other(World::new(maps).block(0x12010, 0x100).thread(5, 0x1e000, 0x1f500));
    let found = world.ranges();
    assert_eq!((found[0].0, found.last().unwrap().1), (0x1df80, 0x20000), "{found:?}");
}

/// On an alternate stack, or a fiber's, a thread's own stack counts as far as it can be one.
#[test]
fn of_a_thread_elsewhere_the_stack_in_one_mapping_with_blocks_is_a_root() {
    let maps = "10000-11000 ---p 00000000 00:00 0\n11000-20000 rw-p 00000000 00:00 0\n\
                30000-40000 rw-p 00000000 00:00 0\n";
    let mut world = World::new(maps).block(0x18010, 0x100).thread(5, 0x3f000, 0x15500);
    world.layout = HeapLayout::Other;
    let found = world.ranges();
    assert_eq!((found[0].0, found.iter().rfind(|range| range.1 < 0x30000).unwrap().1), (0x11000, 0x16000));
}

/// A walk knows better: the kernel may have made one mapping of the allocator's and of the program's own.
#[test]
fn what_a_walk_has_found_is_the_allocators() {
    let maps = "7f0000000000-7f0000300000 rw-p 00000000 00:00 0 \n";
    let mut world = World::new(maps).block(0x7f0000000010, 24);
    world.layout = HeapLayout::Walked;
    world.owned = vec![Addr(0x7f0000000000)..Addr(0x7f0000100000), Addr(0x7f0000200000)..Addr(0x7f0000300000)];
    assert_eq!(world.ranges(), [(0x7f0000100000, 0x7f0000200000, RootKind::Anonymous)]);
}

/// Bins of glibc's main arena lead to free chunks; empty ones point to themselves.
#[test]
fn the_main_arena_is_found_without_its_symbol() {
    let bins = 0x403c80u64;
    let maps = "403000-405000 rw-p 00003000 08:01 7 /lib/libc.so.6\n";
    let mut world = World::new(maps).data(0x403000, 0x405000).glibc();
    for bin in 0..127 {
        let (at, chunk) = (bins + bin * 16, 0x1000_0000 + bin * 0x40);
        world = match bin % 3 {
            0 => world.word(at, at - 16).word(at + 8, at - 16),
            // a list of one
            _ => world.word(at, chunk).word(at + 8, chunk).word(chunk + 16, at - 16).word(chunk + 24, at - 16),
        };
    }
    world = world.word(bins - 16, 0x1000_5550);
    let expected = [(0x403000, bins - 0x60, MODULE), (bins + 127 * 16, 0x405000, MODULE)];
    assert_eq!(world.ranges(), expected);

    let world = World::new(maps).data(0x403000, 0x405000).glibc();
    let world = world.word(bins, bins - 16).word(bins + 8, bins - 16);
    assert_eq!(world.ranges(), [(0x403000, 0x405000, MODULE)], "one such list is no arena");
}

#[test]
fn registers_and_the_thread_vector_are_start_pointers() {
    let maps = "7f0000000000-7f0000002000 rw-p 00000000 00:00 0 \n";
    let tcb = 0x7f0000001000;
    let roots = World::new(maps).thread(3, 0x7ffc00000000, tcb).word(tcb + 8, 0x5550_0010).roots();
    let expected = [
        RootWord { value: 0xb10c, kind: RootKind::Register { tid: 3, name: "rbx" } },
        RootWord { value: 0x5550_0000, kind: RootKind::ThreadData { tid: 3 } },
    ];
    assert_eq!(roots.words, expected);
}
