use super::*;
use crate::arch::PAGE_SIZE;
use Kind::{Anonymous, File, Heap, Stack, Vdso, Vsyscall, Vvar};
use proptest::prelude::*;

const SAMPLE: &str = "\
55e1a0000000-55e1a0002000 r--p 00000000 fe:01 1234                       /opt/my app/a (x)
55e1a0002000-55e1a0005000 r-xp 00002000 fe:01 1234                       /opt/my app/a (x)
55e1a0005000-55e1a0006000 rw-p 00005000 fe:01 1234                       /opt/my app/a (x)
55e1a0006000-55e1a0009000 rw-p 00000000 00:00 0 
55e1a1000000-55e1a1021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00000000 fe:01 77                         /lib/gone.so (deleted)
7f0000001000-7f0000002000 rw-s 00000000 00:05 9                          /memfd:buffer (deleted)
7f0000002000-7f0000003000 rw-p 00000000 00:00 0                          [anon:arena]
7f0000003000-7f0000004000 r--p 00000000 fe:01 5                          /tmp/two\\012lines\\x
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7ffd00100000-7ffd00104000 r--p 00000000 00:00 0                          [vvar]
7ffd00104000-7ffd00106000 r--p 00000000 00:00 0                          [vvar_vclock]
7ffd00106000-7ffd00108000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

fn mapping(start: u64, pages: u64, perms: &str, offset: u64, path: &str) -> Mapping {
    let end = start + pages * PAGE_SIZE;
    let inode = if path.starts_with('/') { 7 } else { 0 };
    let line = format!("{start:x}-{end:x} {perms} {offset:08x} 00:01 {inode} {path}");
    parse(line.as_bytes()).unwrap().remove(0)
}

#[test]
fn every_field_of_a_line_is_read() {
    let maps = parse(SAMPLE.as_bytes()).unwrap();
    let text = &maps[1];
    assert_eq!((text.start, text.end), (Addr(0x55e1_a000_2000), Addr(0x55e1_a000_5000)));
    assert_eq!(text.perms, Perms { read: true, write: false, execute: true, shared: false });
    assert_eq!((text.offset, text.inode), (0x2000, 1234));
    assert_eq!(text.dev, Device { major: 0xfe, minor: 1 });
    assert_eq!(text.path.as_deref(), Some("/opt/my app/a (x)".as_ref()));
    assert!(!text.deleted);
    assert!(maps[6].perms.shared);
}

#[test]
fn kinds_deleted_files_and_escapes_are_told() {
    let maps = parse(SAMPLE.as_bytes()).unwrap();
    let kinds: Vec<_> = maps.iter().map(|m| m.kind).collect();
    assert_eq!(
        kinds,
        [File, File, File, Anonymous, Heap, File, File, Anonymous, File, Stack, Vvar, Vvar, Vdso, Vsyscall]
    );
    assert!(maps[5].deleted && maps[6].deleted);
    assert_eq!(maps[5].path.as_deref(), Some("/lib/gone.so".as_ref()));
    assert_eq!(maps[8].path.as_deref(), Some("/tmp/two\nlines\\x".as_ref()));
}

#[test]
fn a_bad_line_is_named() {
    let text = "1000-2000 r--p 0 0:0 0\n2000-1000 r--p 0 0:0 0\n";
    assert_eq!(parse(text.as_bytes()).unwrap_err().line, 2);
    for bad in ["x", "1000 r--p 0 0:0 0", "1000-2000 r-- 0 0:0 0", "1000-2000 r--p 0 00 0", "1000-2000 r--p 0 0:0 x"] {
        assert_eq!(parse(bad.as_bytes()).unwrap_err().line, 1, "{bad}");
    }
    assert_eq!(parse(b"").unwrap(), []);
}

#[test]
fn our_own_map_agrees_with_the_loader() {
    let text = std::fs::read("/proc/self/maps").unwrap();
    let maps = parse(&text).unwrap();
    let modules = modules(&maps);
    let own = std::env::current_exe().unwrap();
    assert_eq!(modules.iter().filter(|m| m.path == own).count(), 1);
    assert_eq!(modules.iter().filter(|m| m.is_vdso()).count(), 1);

    use findshlibs::{Segment, SharedLibrary};
    findshlibs::TargetSharedLibrary::each(|library| {
        for segment in library.segments().filter(|s| s.is_code()) {
            let addr = Addr(segment.actual_virtual_memory_address(library).0 as u64);
            let module = modules.iter().find(|m| m.code().iter().any(|r| r.contains(&addr)));
            assert!(module.is_some(), "{:?} at {addr}", library.name());
        }
    });
    let index = MapIndex::new(maps);
    let here = Addr(our_own_map_agrees_with_the_loader as fn() as usize as u64);
    assert_eq!(index.find(here).unwrap().path.as_deref(), Some(own.as_path()));
}

#[test]
fn bss_belongs_to_the_module_and_foreign_memory_does_not() {
    let maps = [
        mapping(0x10000, 1, "r-xp", 0, "/a"),
        mapping(0x11000, 1, "rw-p", 0x1000, "/a"),
        mapping(0x12000, 1, "rw-p", 0, ""),
        mapping(0x13000, 9, "rwxp", 0, ""),
        mapping(0x20000, 1, "r--p", 0, "/data"),
    ];
    let modules = modules(&maps);
    assert_eq!(modules.len(), 1);
    assert_eq!((modules[0].start(), modules[0].end()), (Addr(0x10000), Addr(0x13000)));
    assert_eq!(modules[0].code(), [Addr(0x10000)..Addr(0x11000)]);
}

#[test]
fn text_moved_to_anonymous_memory_stays_in_its_module() {
    let maps = [
        mapping(0x10000, 1, "r--p", 0, "/a"),
        mapping(0x11000, 1, "r-xp", 0x1000, "/a"),
        mapping(0x12000, 4, "r-xp", 0, ""),
        mapping(0x16000, 1, "r-xp", 0x6000, "/a"),
    ];
    let modules = modules(&maps);
    assert_eq!(modules.len(), 1);
    assert_eq!(modules[0].code(), [Addr(0x11000)..Addr(0x17000)]);
}

#[test]
fn text_moved_in_a_program_whose_segments_lie_apart_stays_in_its_module() {
    let maps = [
        mapping(0x1_0000, 1, "r--p", 0, "/a"),
        mapping(0x20_0000, 4, "r-xp", 0, ""),
        mapping(0x40_0000, 1, "r--p", 0x40_0000, "/a"),
        mapping(0x50_0000, 1, "rw-p", 0x50_0000, "/a"),
        // code and data of somebody else's
        mapping(0x60_0000, 1, "r-xp", 0, ""),
        mapping(0x70_0000, 1, "r--p", 0, "/b"),
    ];
    let modules = modules(&maps);
    assert_eq!(modules.len(), 1);
    // only the file tells what is its own of the code nearby
    assert_eq!((modules[0].code(), nearby(&modules[0])), (vec![], vec![0x20_0000, 0x60_0000]));
    let mut module = modules[0].clone();
    module.adopt(|code| (code.start == Addr(0x20_0000)).then_some(0x20_0000));
    assert_eq!((module.code(), nearby(&module)), (vec![Addr(0x20_0000)..Addr(0x20_4000)], vec![]));
    assert_eq!((module.start(), module.end()), (Addr(0x1_0000), Addr(0x50_1000)));
    assert_eq!(module.segments[1].offset, 0x20_0000);
}

fn nearby(module: &MappedModule) -> Vec<u64> {
    module.nearby_code.iter().map(|code| code.start.0).collect()
}

#[test]
fn a_first_and_a_last_piece_that_were_moved_are_near() {
    let maps = [
        mapping(0x0_8000, 1, "r--p", 0, "/before"),
        mapping(0x0_9000, 1, "rw-p", 0x1000, "/before"),
        mapping(0x1_0000, 4, "r-xp", 0, ""),
        mapping(0x1_4000, 1, "r--p", 0x4000, "/a"),
        mapping(0x1_5000, 1, "rw-p", 0x5000, "/a"),
        mapping(0x1_6000, 1, "rw-p", 0, ""),
        mapping(0x2_0000, 4, "rwxp", 0, ""),
        mapping(0x3_0000, 1, "rw-p", 0, "[heap]"),
        mapping(0x4_0000, 1, "r-xp", 0, ""),
        // an allocator that has only data, and a font: neither is a module
        mapping(0x5_0000, 1, "rw-s", 0, "/shared"),
        mapping(0x5_1000, 1, "r-xp", 0, ""),
        mapping(0x5_2000, 1, "r--p", 0, "/font"),
    ];
    let found: Vec<_> = modules(&maps).iter().map(|module| (module.start().0, nearby(module))).collect();
    assert_eq!(found, [(0x0_8000, vec![0x1_0000]), (0x1_4000, vec![0x1_0000, 0x2_0000])]);
}

#[test]
fn a_module_whose_text_was_moved_since_is_the_same_load() {
    let known = [
        mapping(0x1_0000, 2, "r-xp", 0, "/a"),
        mapping(0x1_2000, 1, "r--p", 0x2000, "/a"),
        mapping(0x1_3000, 1, "rw-p", 0x3000, "/a"),
    ];
    let known = &modules(&known)[0];
    let later = |text: &str, shift: u64| {
        let maps = [
            mapping(0x1_0000 + shift, 2, text, 0, ""),
            mapping(0x1_2000 + shift, 1, "r--p", 0x2000, "/a"),
            mapping(0x1_3000 + shift, 1, "rw-p", 0x3000, "/a"),
            mapping(0x1_8000, 1, "r-xp", 0, ""),
        ];
        modules(&maps).remove(0)
    };
    assert!(known.is_same_load(&later("r-xp", 0)));
    // its text is gone, and somebody else's is near; it was loaded elsewhere
    assert!(!known.is_same_load(&later("---p", 0)));
    assert!(!known.is_same_load(&later("r-xp", 0x1000)));
}

#[test]
fn memory_of_huge_pages_without_a_file_is_anonymous() {
    let maps = parse(b"200000-400000 r-xp 00000000 00:0f 1234 /anon_hugepage (deleted)\n").unwrap();
    assert_eq!(maps[0].kind, Anonymous);
}

#[test]
fn two_adjacent_loads_of_one_file_are_two_modules() {
    // As lld lays out an object below one page: all four segments map the file's first page.
    let load = |at: u64| {
        [
            mapping(at, 1, "r--p", 0, "/tiny.so"),
            mapping(at + 0x1000, 1, "r-xp", 0, "/tiny.so"),
            mapping(at + 0x2000, 1, "r--p", 0, "/tiny.so"),
            mapping(at + 0x3000, 1, "rw-p", 0, "/tiny.so"),
        ]
    };
    let maps: Vec<_> = load(0x10000).into_iter().chain(load(0x14000)).collect();
    let starts: Vec<_> = modules(&maps).iter().map(MappedModule::start).collect();
    assert_eq!(starts, [Addr(0x10000), Addr(0x14000)]);
}

#[test]
fn a_gap_is_free_near_and_clear_of_stack_and_heap() {
    let maps = vec![
        mapping(0x40_0000, 16, "r-xp", 0, "/a"),
        mapping(0x42_0000, 1, "rw-p", 0, "[heap]"),
        mapping(0x7f00_0000_0000, 16, "r-xp", 0, "/lib"),
        mapping(0x7f00_0100_0000, 1, "rw-p", 0, "[stack]"),
    ];
    let index = MapIndex::new(maps);
    // Below the program, one guard page apart.
    assert_eq!(index.find_gap(Addr(0x40_1000), 0x1000), Some(Addr(0x3f_e000)));
    // More than fits below it: not within the heap's way.
    let above = index.find_gap(Addr(0x40_1000), 0x50_0000).unwrap();
    assert!(above.0 > 0x42_0000 + (1 << 30), "{above}");
    assert_eq!(index.find_gap(Addr(0x7f00_0000_8000), 0x1000), Some(Addr(0x7eff_ffff_e000)));
    // Nor between the heap and what lies in its way.
    let maps = vec![mapping(0x10_0000, 0x300, "rw-p", 0, "[heap]"), mapping(0x1000_0000, 1, "r-xp", 0, "/a")];
    let above = MapIndex::new(maps).find_gap(Addr(0x1000_0000), 0x1000).unwrap();
    assert!(above.0 > 1 << 30, "{above}");
    // Below the stack there is room only where it can't grow to.
    let maps = vec![mapping(0x10_0000, 0x7fff, "r-xp", 0, "/a"), mapping(0x2000_0000, 1, "rw-p", 0, "[stack]")];
    let clear = MapIndex::new(maps).find_gap(Addr(0x10_0000), 0x1000).unwrap();
    assert!(clear.0 + 0x1000 < 0x2000_0000 - (256 << 20) || clear.0 > 0x2000_0000, "{clear}");
    assert_eq!(index.find_gap(Addr(0x40_1000), 1 << 40), None);
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..SAMPLE.len()) {
        let _ = parse(&text);
        let mut mixed = SAMPLE.as_bytes()[..cut].to_vec();
        mixed.extend(&text);
        if let Ok(maps) = parse(&mixed) {
            modules(&maps);
            MapIndex::new(maps).find_gap(Addr(0x5555_5555_5000), 64);
        }
    }

    #[test]
    fn gaps_never_overlap_a_mapping(at in proptest::collection::vec((0x100u64..0x9_0000, 1u64..40), 1..40), near in 0x100u64..0x9_0000) {
        let mut end = 0;
        let mut maps = Vec::new();
        let mut at = at;
        at.sort_unstable();
        for (page, pages) in at {
            if page >= end {
                maps.push(mapping(page * PAGE_SIZE, pages, "rw-p", 0, ""));
                end = page + pages;
            }
        }
        let index = MapIndex::new(maps);
        if let Some(gap) = index.find_gap(Addr(near * PAGE_SIZE), 3 * PAGE_SIZE) {
            for page in 0..3 {
                prop_assert!(index.find(gap.add(page * PAGE_SIZE)).is_none());
            }
            prop_assert!(gap.0.abs_diff(near * PAGE_SIZE) < 1 << 31);
        }
    }
}
