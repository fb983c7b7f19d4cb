//! A leak scan with names.

use super::*;
use crate::base::memory::MemoryImage;
use crate::heap::leaks::{Graph, RootKind, RootRange, RootWord, Roots, Scan, ScanOptions};
use crate::heapmodel::{LiveBlock, SiteId};
use crate::profile::leaks::{LeakClass, ScanMoment};

/// Where the made-up data segment and the heap begin.
const DATA: u64 = 0x7000_0000;
const HEAP: u64 = 0x7000_2000;

/// Four blocks: 0 is held by a variable, 1 by nothing, 2 by 1 alone, and into 3 a register points.
fn scanned() -> Scan {
    let mut memory = MemoryImage { start: Addr(DATA), bytes: vec![0; 0x3000] };
    let mut write = |at: u64, value: u64| {
        let at = (at - DATA) as usize;
        memory.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    let block = |number: u64| HEAP + number * 0x100;
    write(DATA + 24, block(0));
    write(block(1) + 8, block(2));
    let sizes = [64, 100, 10, 40];
    let blocks = sizes.into_iter().zip(0..).map(|(size, number)| LiveBlock {
        addr: Addr(block(number)),
        size,
        site: SiteId(number as u32),
        inherited: false,
    });
    let data = RootRange { start: Addr(DATA), end: Addr(DATA + 0x100), kind: RootKind::Data { module: ModuleId(0) } };
    let register = RootWord { value: block(3) + 17, kind: RootKind::Register { tid: 12, name: "rbx" } };
    let roots = Roots { ranges: vec![data], words: vec![register], ..Roots::default() };
    Graph::read(blocks.collect(), &roots, &mut memory, &ScanOptions::default()).classify()
}

#[test]
fn blocks_of_one_stack_are_one_site_and_paths_begin_at_named_roots() {
    let stacks = TestStacks(vec![
        (vec![], Quality::Truncated),
        (vec![frame(0, 0x30)], Quality::Complete),
        (vec![frame(1, 0x10), frame(0, 0x40)], Quality::Complete),
    ]);
    let names_of = vec![(0x30, "lose", "lose"), (0x10, "operator new(unsigned long)", "_Znwm"), (0x40, "keep", "keep")];
    let mut symbols = TestSymbols { names: names_of, asked: vec![] };
    // Blocks 0 to 2 come from the first stack, but from two threads; block 3 from the second.
    let sites = [site(1, 0, 0, 64, 1), site(1, 1, 0, 100, 1), site(1, 1, 0, 10, 1), site(2, 0, 0, 40, 1)];
    let key = |id: SiteId| sites.get(id.0 as usize).map(|site| site.key);
    let thread_name = |tid: i32| (tid == 12).then(|| "worker".to_owned());
    let scan = scanned();
    let input = LeakInput {
        scan: &scan,
        site: &key,
        thread_name: &thread_name,
        moment: ScanMoment::Exit,
        stopped_ns: 5,
        copied: false,
        explain: None,
        block: None,
    };
    let profile = run_with(&snapshot(sites.to_vec()), &stacks, &mut symbols, Some(input));
    let leaks = profile.leaks.as_ref().unwrap();
    assert_eq!((leaks.moment, leaks.stopped_ns), (ScanMoment::Exit, 5));
    let [lost, kept] = leaks.sites.as_slice() else { panic!("{:?}", leaks.sites) };

    assert_eq!((names(&profile, lost.stack), names(&profile, kept.stack)), (vec!["lose"], vec!["keep"]));
    let amount = |bytes| Amount { objects: 1, bytes };
    let none = Amount::default();
    assert_eq!(lost.amounts, [amount(100), amount(10), none, amount(64)]);
    assert_eq!(lost.holds, amount(10));
    assert_eq!(kept.amounts, [none, none, amount(40), none]);
    let (thread, alloc_fn) = (string(&profile, lost.thread), string(&profile, lost.alloc_fn));
    assert_eq!((thread, alloc_fn), ("worker-1", "malloc"), "the thread of most blocks");
    assert_eq!(string(&profile, kept.alloc_fn), "operator new(unsigned long)");

    let path = lost.path_of(LeakClass::Reachable).unwrap();
    assert_eq!(path.root, "global `cache` +8 in app");
    assert_eq!(path.root_address, Some(Addr(DATA + 24)));
    let steps: Vec<_> = path.steps.iter().map(|step| (step.block.0, step.size, step.target_offset)).collect();
    assert_eq!(steps, [(HEAP, 64, 0)]);
    let path = kept.path_of(LeakClass::Possible).unwrap();
    assert_eq!((path.root.as_str(), path.root_address), ("register rbx of thread 12 (worker)", None));
    assert_eq!(path.steps[0].target_offset, 17);
}
