//! Each layout that is recognized, and what only resembles it. The layouts' sizes are those that the libraries make.

use super::*;
use crate::heap::leaks::MappedFiles;
use crate::image::maps;

/// The class of a block of `size` bytes that the roots point to `offset` bytes behind its start.
fn class_of(size: u64, offset: u64, fill: &[(u64, u64)], options: &ScanOptions) -> LeakClass {
    let mut target = Target::new(0);
    target.block(HEAP, size);
    for (at, word) in fill {
        target.word(HEAP + at, *word);
    }
    target.root(0, HEAP + offset);
    target.scan_with(options).block(0).unwrap().1
}

/// Checks that the heuristic alone decides: the class with all, and with all but it.
fn check(off: &Heuristics, size: u64, offset: u64, fill: &[(u64, u64)], expected: LeakClass) {
    assert_eq!(class_of(size, offset, fill, &ScanOptions::default()), expected, "{size} {offset} {fill:x?}");
    let without = ScanOptions { heuristics: *off, ..ScanOptions::default() };
    assert_eq!(class_of(size, offset, fill, &without), Possible, "{size} {offset} {fill:x?}, switched off");
}

#[test]
fn strings_of_the_old_layout() {
    let off = Heuristics { std_string: false, ..Heuristics::default() };
    let string = |size, offset, length, capacity, expected| {
        check(&off, size, offset, &[(0, length), (8, capacity), (16, 1)], expected);
    };
    string(24 + 30 + 1, 24, 11, 30, Reachable);
    string(24 + 30 + 1, 24, 30, 30, Reachable);
    string(24 + 30 + 1, 24, 31, 30, Possible);
    string(24 + 30 + 2, 24, 11, 30, Possible);
    string(24 + 30 + 1, 25, 11, 30, Possible);
    string(24 + 30 + 1, 24, 11, u64::MAX, Possible);
}

#[test]
fn arrays_with_a_length_word() {
    let off = Heuristics { new_array: false, ..Heuristics::default() };
    let array = |size, offset, count, expected| check(&off, size, offset, &[(0, count)], expected);
    array(8 + 5 * 24, 8, 5, Reachable);
    array(8 + 5 * 24, 8, 7, Possible);
    array(8 + 5 * 24, 8, 0, Possible);
    array(8 + 5 * 24, 16, 5, Possible);
    array(8 + 100, 8, 100, Reachable);
    array(9, 8, 1, Reachable);
}

/// `new T[0]`: the pointer is one past the block. Any other pointer there is chance.
#[test]
fn arrays_of_nothing() {
    let all = ScanOptions::default();
    let interior = ScanOptions { interior: InteriorPointers::Reachable, ..ScanOptions::default() };
    let none = ScanOptions { heuristics: Heuristics::NONE, ..ScanOptions::default() };
    for options in [&all, &interior] {
        assert_eq!(class_of(8, 8, &[], options), Reachable);
        assert_eq!(class_of(16, 16, &[(0, 77)], options), Reachable);
        assert_eq!(class_of(8, 8, &[(0, 1)], options), Definite);
        assert_eq!(class_of(16, 16, &[(8, 1)], options), Definite);
        assert_eq!(class_of(24, 24, &[], options), Definite);
        assert_eq!(class_of(8, 9, &[], options), Definite);
    }
    assert_eq!(class_of(8, 8, &[], &none), Definite);
}

#[test]
fn values_behind_reference_counts() {
    let off = Heuristics { reference_counts: false, ..Heuristics::default() };
    let counted = |offset, strong, weak, expected| check(&off, 100, offset, &[(0, strong), (8, weak)], expected);
    counted(16, 1, 1, Reachable);
    counted(16, 70_000, 3, Reachable);
    counted(64, 1, 1, Reachable);
    counted(16, 0, 1, Possible);
    counted(16, 1, 0, Possible);
    counted(16, 1, 1 << 32, Possible);
    counted(16, HEAP, 1, Possible);
    counted(48, 1, 1, Possible);
    counted(24, 1, 1, Possible);
    // aligned values lie in aligned blocks
    let mut target = Target::new(0);
    target.block(HEAP + 16, 100);
    target.word(HEAP + 16, 1);
    target.word(HEAP + 24, 1);
    assert_eq!(target.root(0, HEAP + 32).classes(), [Reachable]);
    assert_eq!(target.root(0, HEAP + 48).classes(), [Possible]);
}

/// Writes a table of hashbrown: elements of `size` bytes, control bytes behind. Returns the pointer to those.
fn table(target: &mut Target, at: u64, size: u64, buckets: u64, full: &[u64]) -> u64 {
    let offset = (size * buckets).next_multiple_of(16);
    target.block(at, offset + buckets + 16);
    let control = at + offset;
    target.put(control, &vec![0xff; buckets as usize + 16]);
    for index in full {
        // as RawTable::set_ctrl does: the byte, and its copy
        let hash = [(index % 128) as u8];
        target.put(control + index, &hash);
        target.put(control + (index.wrapping_sub(16) & (buckets - 1)) + 16, &hash);
    }
    control
}

#[test]
fn hash_tables_of_rust() {
    for (size, buckets, full) in [
        (16, 4, &[0, 2][..]),
        (8, 8, &[7]),
        (1, 16, &[0, 15]),
        (24, 16, &[3]),
        (24, 1024, &[0, 5, 15, 16, 1023]),
        (40, 4, &[]),
        (4, 2, &[1]),
    ] {
        let mut target = Target::new(0);
        let control = table(&mut target, HEAP, size, buckets, full);
        assert_eq!(target.root(0, control).classes(), [Reachable], "{size} {buckets}");
        let heuristics = Heuristics { hashbrown: false, ..Heuristics::default() };
        let off = ScanOptions { heuristics, ..ScanOptions::default() };
        assert_eq!(target.scan_with(&off).block(0).unwrap().1, Possible);
        assert_eq!(target.root(0, control + 16).classes(), [Possible], "not at the control bytes");
        target.root(0, control).put(control + 1, &[0x81]);
        assert_eq!(target.classes(), [Possible], "no control byte");
        target.put(control + 1, &[0x11]);
        assert_eq!(target.classes(), [Possible], "no copy of it");
    }
    assert_eq!(class_of(64, 32, &[], &ScanOptions::default()), Possible, "zeroes: no bucket is free");
    let mut target = Target::new(0);
    target.block(HEAP, 64 + 3 + 16);
    target.put(HEAP + 64, &[0xff; 19]);
    assert_eq!(target.root(0, HEAP + 64).classes(), [Possible], "three buckets");
}

#[test]
fn objects_with_several_bases() {
    const CODE: u64 = 0x40_0000;
    const DATA: u64 = 0x41_0000;
    let text = "00400000-00401000 r-xp 00000000 08:01 9 /p\n00410000-00411000 r--p 00000000 08:01 9 /p\n";
    let files = MappedFiles::of(&maps::parse(text.as_bytes()).unwrap());
    let mut target = Target::new(0);
    target.block(HEAP, 64);
    // two tables: offset-to-top and type stand before them; a pure function's entry may be null
    let (first, second) = (DATA + 16, DATA + 64);
    target.word(first, CODE + 0x10);
    target.word(first + 8, 0);
    target.word(first + 16, CODE + 0x20);
    target.word(second, CODE + 0x30);
    target.word(second + 8, CODE + 0x38);
    target.word(HEAP, first);
    target.word(HEAP + 16, second);
    let class = |target: &mut Target, files: &MappedFiles| {
        let options = ScanOptions { files: files.clone(), ..ScanOptions::default() };
        target.scan_with(&options).block(0).unwrap().1
    };
    target.root(0, HEAP + 16);
    assert_eq!(class(&mut target, &files), Reachable);
    assert_eq!(class(&mut target, &MappedFiles::default()), Possible, "nothing known of files");
    target.root(0, HEAP + 24);
    assert_eq!(class(&mut target, &files), Possible, "no table there");
    target.root(0, HEAP + 16).word(HEAP, HEAP);
    assert_eq!(class(&mut target, &files), Possible, "no table at the start");
    target.word(HEAP, first);
    target.word(second + 8, DATA);
    assert_eq!(class(&mut target, &files), Possible, "the second entry is no code");
    target.word(second + 8, 0);
    assert_eq!(class(&mut target, &files), Possible, "one function only");
    // at the end of the mapping
    target.word(HEAP + 16, DATA + 4096 - 8);
    target.word(DATA + 4096 - 8, CODE);
    assert_eq!(class(&mut target, &files), Possible);
    let off = Heuristics { multiple_inheritance: false, ..Heuristics::default() };
    target.word(HEAP + 16, first);
    assert_eq!(class(&mut target, &files), Reachable);
    let options = ScanOptions { files, heuristics: off, ..ScanOptions::default() };
    assert_eq!(target.scan_with(&options).block(0).unwrap().1, Possible);
}

#[test]
fn what_hangs_on_such_a_pointer_is_reachable_too() {
    let mut target = Target::new(3);
    // block 0 is an array of 7 elements of 8 bytes, held by block 2
    target.root(0, block(2)).word(block(0), 7);
    target.link(2, block(0) + 8).link(0, block(1));
    let scan = target.scan();
    assert!(scan.blocks().all(|(_, class)| class == Reachable));
    assert_eq!(scan.path_to(1).unwrap().steps[1], PathBlock { block: 0, target_offset: 8, next_offset: Some(8) });
}
