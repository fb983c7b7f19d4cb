use super::*;
use crate::arch::reg;
use crate::base::memory::ReadMemory;
use proptest::prelude::*;
use std::path::Path;

/// A segment to load: its address, size in memory, bytes that are kept, flags (4 read, 2 write, 1 execute).
type Load = (u64, u64, Vec<u8>, u32);

/// Makes a core as the kernel writes it.
fn core(notes: &[u8], loads: &[Load]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [4_u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    for word in [0_u64, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64, 56, u16::try_from(loads.len() + 1).unwrap(), 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let mut offset = 64 + 56 * (loads.len() as u64 + 1);
    let mut header = |kind: u32, flags: u32, vaddr: u64, kept: u64, size: u64| {
        file.extend(kind.to_le_bytes());
        file.extend(flags.to_le_bytes());
        for word in [offset, vaddr, 0, kept, size, 1] {
            file.extend(word.to_le_bytes());
        }
        offset += kept;
    };
    header(4, 0, 0, notes.len() as u64, 0);
    for (vaddr, size, bytes, flags) in loads {
        header(1, *flags, *vaddr, bytes.len() as u64, *size);
    }
    file.extend(notes);
    loads.iter().for_each(|(_, _, bytes, _)| file.extend(bytes));
    file
}

fn note(name: &[u8], kind: u32, bytes: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [u32::try_from(name.len() + 1).unwrap(), u32::try_from(bytes.len()).unwrap(), kind] {
        note.extend(word.to_le_bytes());
    }
    for part in [name, b"\0"].concat().chunks(4).chain(bytes.chunks(4)) {
        note.extend(part);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    note
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The registers of a thread whose system call's number is `call`.
fn status(tid: i32, call: i64) -> Vec<u8> {
    let mut bytes = vec![0; 336];
    bytes[32..36].copy_from_slice(&tid.to_le_bytes());
    let segments = [(21, 0x7f00_0000_0740), (22, 0x7f00_0000_0840)];
    let others = [(19, 0x7fff_0000_1100), (16, 0x40_1234), (10, 7), (15, call.cast_unsigned())];
    for (place, value) in segments.into_iter().chain(others) {
        bytes[112 + place * 8..120 + place * 8].copy_from_slice(&value.to_le_bytes());
    }
    note(b"CORE", 1, &bytes)
}

fn vectors() -> Vec<u8> {
    let mut bytes = vec![0; 600];
    bytes[160..168].copy_from_slice(&0x1234_u64.to_le_bytes());
    note(b"LINUX", 0x202, &bytes)
}

const PROGRAM: u64 = 0x5555_0000_0000;
const HEAP: u64 = 0x5555_0100_0000;
const LIBRARY: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7fff_0000_0000;
const VDSO: u64 = 0x7fff_1000_0000;

/// Two threads; a program with its brk area behind a gap, a library whose code was not kept, a stack, the kernel's
/// parts.
fn made_up() -> Vec<u8> {
    let mut info = vec![0; 136];
    info[24..28].copy_from_slice(&77_i32.to_le_bytes());
    info[40..44].copy_from_slice(b"demo");
    // PT_PHDR, then PT_LOADs up to 0x4abc
    let mut page = vec![0; 4096];
    let mut at = 64;
    for (kind, vaddr, size) in [(6_u32, 64_u64, 168_u64), (1, 0, 0x1000), (1, 0x3000, 0x1abc)] {
        page[at..at + 4].copy_from_slice(&kind.to_le_bytes());
        page[at + 16..at + 24].copy_from_slice(&vaddr.to_le_bytes());
        page[at + 40..at + 48].copy_from_slice(&size.to_le_bytes());
        at += 56;
    }
    let mut files = words(&[4, 4096, PROGRAM, PROGRAM + 0x1000, 0, PROGRAM + 0x3000, PROGRAM + 0x4000, 2]);
    files.extend(words(&[LIBRARY, LIBRARY + 0x2000, 1, LIBRARY + 0x8000, LIBRARY + 0x9000, 0]));
    files.extend(b"/usr/bin/demo\0/usr/bin/demo\0/usr/lib/libx.so (deleted)\0/memfd:shared (deleted)\0");
    let auxiliary = words(&[3, PROGRAM + 64, 5, 3, 9, PROGRAM + 0x100, 25, STACK + 0x1f00, 33, VDSO, 0, 0]);
    let notes = [
        status(77, -1),
        note(b"CORE", 3, &info),
        note(b"CORE", 6, &auxiliary),
        note(b"CORE", 0x4649_4c45, &files),
        vectors(),
        status(78, 0),
        vectors(),
        note(b"OTHER", 1, b"x"),
    ];
    let loads = [
        (PROGRAM, 0x1000, page, 5),
        (PROGRAM + 0x3000, 0x1000, vec![2; 0x1000], 6),
        // .bss
        (PROGRAM + 0x4000, 0x1000, vec![0; 0x1000], 6),
        (HEAP, 0x2000, vec![3; 0x2000], 6),
        (HEAP + 0x2000, 0x1000, vec![4; 0x1000], 6),
        (LIBRARY + 0x8000, 0x1000, vec![5; 0x1000], 6),
        (LIBRARY + 0xa000, 0x1000, vec![], 6),
        (STACK, 0x2000, vec![6; 0x2000], 6),
        (VDSO - 0x4000, 0x2000, vec![], 4),
        (VDSO - 0x2000, 0x2000, vec![], 4),
        (VDSO, 0x1000, vec![7; 0x1000], 5),
        (0xffff_ffff_ff60_0000, 0x1000, vec![8; 0x1000], 1),
    ];
    core(&notes.concat(), &loads)
}

#[test]
fn a_core_tells_its_process() {
    let bytes = made_up();
    assert!(begins_as_core(&bytes));
    let core = parse(&bytes).unwrap();
    assert_eq!((core.pid, core.program.as_str(), core.missing), (77, "demo", 0));
    assert_eq!(core.entry, Some(Addr(PROGRAM + 0x100)));
    let threads: Vec<_> = core.threads.iter().map(|thread| (thread.tid, thread.vectors.len())).collect();
    // one in a system call has no vector registers
    assert_eq!(threads, [(77, 1), (78, 0)]);
    let regs = core.threads[0].regs;
    assert_eq!(
        (regs.gpr[reg::RAX], regs.sp(), regs.rip, regs.fs_base, regs.gs_base),
        (7, 0x7fff_0000_1100, 0x40_1234, 0x7f00_0000_0740, 0x7f00_0000_0840)
    );
    let kinds: Vec<_> = core.mappings.iter().map(|mapping| (mapping.start.0, mapping.kind)).collect();
    assert_eq!(
        kinds,
        [
            (PROGRAM, Kind::File),
            (PROGRAM + 0x3000, Kind::File),
            (PROGRAM + 0x4000, Kind::Anonymous),
            (HEAP, Kind::Heap),
            (HEAP + 0x2000, Kind::Heap),
            (LIBRARY, Kind::File),
            (LIBRARY + 0x8000, Kind::File),
            (LIBRARY + 0xa000, Kind::Anonymous),
            (STACK, Kind::Stack),
            (VDSO - 0x4000, Kind::Vvar),
            (VDSO - 0x2000, Kind::Vvar),
            (VDSO, Kind::Vdso),
            (0xffff_ffff_ff60_0000, Kind::Vsyscall),
        ]
    );
    let library = &core.mappings[5];
    assert_eq!((library.path.as_deref(), library.offset), (Some(Path::new("/usr/lib/libx.so")), 4096));
    assert!(library.deleted && library.perms == Perms::default());
    assert!(core.mappings[6].perms.shared && !core.mappings[1].perms.shared);
    assert_eq!(core.mappings[1].offset, 0x2000);
}

/// The brk area begins where the data ends if the kernel has put it there, and is none of a mapping far away.
#[test]
fn the_brk_area_is_behind_the_data() {
    let kinds = |loads: &[Load]| {
        let mut page = vec![0; 4096];
        page[..4].copy_from_slice(&1_u32.to_le_bytes());
        page[16..24].copy_from_slice(&0x40_0000_u64.to_le_bytes());
        page[40..48].copy_from_slice(&0x3010_u64.to_le_bytes());
        let mut all = vec![(0x40_0000, 0x1000, page, 5)];
        all.extend_from_slice(loads);
        let notes = [status(1, -1), note(b"CORE", 6, &words(&[3, 0x40_0000, 5, 1]))].concat();
        let core = parse(&core(&notes, &all)).unwrap();
        core.mappings.iter().skip(1).map(|mapping| mapping.kind).collect::<Vec<_>>()
    };
    let page = || vec![1; 0x1000];
    assert_eq!(kinds(&[(0x40_3000, 0x1000, page(), 6), (0x40_4000, 0x1000, page(), 6)]), [Kind::Anonymous, Kind::Heap]);
    // both are one mapping
    assert_eq!(kinds(&[(0x40_3000, 0x3000, page(), 6)]), [Kind::Heap]);
    assert_eq!(kinds(&[(0x8000_0000, 0x1000, page(), 6)]), [Kind::Anonymous]);
    // what can't be written to lies between
    let gap = [(0x40_5000, 0x1000, page(), 4), (0x40_7000, 0x1000, page(), 6), (0x40_9000, 0x1000, page(), 6)];
    assert_eq!(kinds(&gap), [Kind::Anonymous, Kind::Heap, Kind::Anonymous]);
}

#[test]
fn memory_is_the_cores_and_the_files() {
    let bytes = made_up();
    let core = parse(&bytes).unwrap();
    let file = [vec![9; 0x1000], vec![10; 0x1800]].concat();
    let parts = [FilePart { range: Addr(LIBRARY)..Addr(LIBRARY + 0x2000), offset: 0x1000, bytes: &file }];
    let mut memory = CoreMemory::new(&core, &bytes, &parts);
    let mut read = |at: u64, size: usize| {
        let mut bytes = vec![0; size];
        let read = memory.read(Addr(at), &mut bytes);
        bytes.truncate(read);
        bytes
    };
    assert_eq!(read(HEAP + 0x1ffe, 4), [3, 3, 4, 4]);
    assert_eq!(read(HEAP + 0x2ffe, 4), [4, 4]);
    assert!(read(HEAP - 1, 4).is_empty());
    // the file is shorter than the mapping
    assert_eq!(read(LIBRARY + 0x17fe, 4), [10, 10]);
    assert!(read(LIBRARY + 0xa000, 4).is_empty());
    assert!(read(u64::MAX - 2, 8).is_empty());
    let pages = core.pages_in_use(&bytes);
    assert!(pages.contains(&(Addr(HEAP)..Addr(HEAP + 0x3000))), "{pages:?}");
    assert!(!pages.iter().any(|range| range.contains(&Addr(PROGRAM + 0x4000))), "zeros: {pages:?}");
}

#[test]
fn what_is_no_core_is_refused_with_its_cause() {
    let good = made_up();
    let changed = |at: usize, with: u8| {
        let mut bytes = good.clone();
        bytes[at] = with;
        parse(&bytes).unwrap_err()
    };
    assert_eq!(changed(0, 1), CoreFileError::Foreign);
    assert_eq!(changed(4, 1), CoreFileError::Machine);
    assert_eq!(changed(18, 3), CoreFileError::Machine);
    assert_eq!(changed(16, 3), CoreFileError::Program);
    assert_eq!(parse(b"").unwrap_err(), CoreFileError::Foreign);
    assert_eq!(parse(&good[..12]).unwrap_err(), CoreFileError::Torn);
    assert_eq!(parse(&good[..200]).unwrap_err(), CoreFileError::Torn);
    assert_eq!(parse(b"\x28\xb5\x2f\xfdxxxx").unwrap_err(), CoreFileError::Compressed("zstd"));
    assert_eq!(parse(&core(&[], &[])).unwrap_err(), CoreFileError::Damaged("it has no thread"));
}

/// Of a core that was cut, what is there is read, and what is missing is known.
#[test]
fn a_cut_core_tells_what_is_missing() {
    let bytes = made_up();
    let whole = parse(&bytes).unwrap();
    let cut = &bytes[..bytes.len() - 0x1800];
    let core = parse(cut).unwrap();
    assert_eq!(core.missing, 0x1800);
    assert_eq!(core.mappings, whole.mappings);
    let mut memory = CoreMemory::new(&core, cut, &[]);
    assert_eq!(memory.read(Addr(VDSO), &mut [0; 0x1000]), 0x800);
    assert_eq!(memory.read(Addr(0xffff_ffff_ff60_0000), &mut [0; 8]), 0);
}

proptest! {
    /// Whatever stands in a file, it is read or refused.
    #[test]
    fn damaged_cores_never_panic(
        edits in prop::collection::vec((0_usize..4096, any::<u8>()), 0..20),
        words_at in prop::collection::vec((0_usize..512, prop::sample::select(vec![0, 1, u64::MAX, 1 << 63, 1 << 40, 0xffff])), 0..4),
        cut in 0_usize..60_000,
    ) {
        let mut bytes = made_up();
        for (at, with) in edits {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
        }
        for (at, with) in words_at {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&with.to_le_bytes());
        }
        bytes.truncate(cut.max(64));
        if let Ok(core) = parse(&bytes) {
            prop_assert!(core.mappings.is_sorted_by(|a, b| a.end <= b.start));
            let mut memory = CoreMemory::new(&core, &bytes, &[]);
            for mapping in &core.mappings {
                memory.read(mapping.start, &mut [0; 64]);
                memory.read(Addr(mapping.end.0.wrapping_sub(3)), &mut [0; 64]);
            }
            core.pages_in_use(&bytes);
        }
    }
}
