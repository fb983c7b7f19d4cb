//! The leak check against Memcheck: the same classes of the same blocks, on fixtures of one behaviour each and on real
//! programs.

mod allocators;
mod blind;
mod builds;
mod chains;
mod ci;
mod clean;
mod known;
mod random;
mod real;
mod suppress;
mod threads;
mod told;
mod unread;

use crate::support::fixtures;
use crate::support::leakcheck::{Amounts, CLASSES, Found};
use crate::support::program::{Checked, Program};
use std::collections::BTreeMap;

/// How many blocks of each class a function of a fixture has allocated: definite, indirect, possible, reachable.
type Blocks = [u64; 4];

const DEFINITE: Blocks = [1, 0, 0, 0];
const INDIRECT: Blocks = [0, 1, 0, 0];
const POSSIBLE: Blocks = [0, 0, 1, 0];
const REACHABLE: Blocks = [0, 0, 0, 1];

/// So many blocks of the same class.
const fn times(count: u64, class: Blocks) -> Blocks {
    [class[0] * count, class[1] * count, class[2] * count, class[3] * count]
}

/// What a test expects of one function's blocks.
struct Expected {
    function: &'static str,
    ours: Blocks,
    memcheck: Blocks,
}

/// Both are to say the same.
const fn same(function: &'static str, blocks: Blocks) -> Expected {
    Expected { function, ours: blocks, memcheck: blocks }
}

/// Ours is the truer answer; the test says why.
const fn truer(function: &'static str, ours: Blocks, memcheck: Blocks) -> Expected {
    Expected { function, ours, memcheck }
}

/// Which functions hold blocks that hang on a thread's table of its thread-local storage (DTV). The C library keeps a
/// pointer 16 bytes into the table's block, so that Memcheck calls it, and what it leads to, possibly lost, once per
/// thread. heaptrace knows this pointer, and takes it for what it is.
type ByDtv<'a> = &'a [&'a str];

/// dlopen keeps a pointer into a block that it aligns to 64 bytes by itself (elf/dl-find_object.c). Whether that is the
/// block's start depends on where the allocator puts it, which is not the same in both runs.
const CALLER_OF_DLOPEN: &str = "main";

/// Runs a fixture under both, and fails unless both say what is expected, and the same of everything else.
fn assert_classes(program: &Program, expected: &[Expected], by_dtv: ByDtv<'_>) -> Checked {
    let memchecked = |program: &Program| {
        let found = program.memcheck_leaks(&[]).1.by_function();
        let wrong = not_as_expected("Memcheck", &found, expected.iter().map(|e| (e.function, e.memcheck)));
        (found, wrong)
    };
    let (mut memcheck, mut wrong) = memchecked(program);
    if !wrong.is_empty() {
        // Addresses are small numbers below Valgrind: the number of a library's inode, which the dynamic linker keeps,
        // may look like a pointer into a large block. Another library moves all blocks on by more than their size.
        eprintln!("Memcheck is asked once more: {}", wrong.join("\n"));
        (memcheck, wrong) = memchecked(&program.clone().env("LD_PRELOAD", "libm.so.6"));
    }
    let checked = program.checked(&[]);
    let ours = Found::from_report(&checked.report).by_function();
    wrong.extend(not_as_expected("heaptrace", &ours, expected.iter().map(|e| (e.function, e.ours))));
    let differing: Vec<_> = expected.iter().filter(|e| e.ours != e.memcheck).map(|e| e.function).collect();
    let names: std::collections::BTreeSet<_> = memcheck.keys().chain(ours.keys()).collect();
    for name in names {
        let [theirs, mine] = [&memcheck, &ours].map(|found| found.get(name).copied().unwrap_or_default());
        let lumped = |[definite, indirect, mut possible, reachable]: Amounts| {
            possible.add(reachable);
            [definite, indirect, possible]
        };
        let agreed = if by_dtv.contains(&name.as_str()) {
            lumped(theirs) == lumped(mine) && mine[2].blocks < theirs[2].blocks
        } else {
            theirs == mine || (name == CALLER_OF_DLOPEN && lumped(theirs) == lumped(mine))
        };
        if !agreed && !differing.contains(&name.as_str()) {
            wrong.push(format!("{name} ({CLASSES:?}): Memcheck {theirs:?}\n    heaptrace {mine:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}\n{}", program.exe().display(), wrong.join("\n"), checked.ended.stderr);
    checked
}

/// What a tool says of functions, where it is not what is expected.
fn not_as_expected(
    tool: &str,
    found: &BTreeMap<String, Amounts>,
    expected: impl Iterator<Item = (&'static str, Blocks)>,
) -> Vec<String> {
    let blocks = |function: &str| found.get(function).map(|amounts| amounts.map(|amount| amount.blocks));
    let wrong = expected.filter(|(function, wanted)| blocks(function) != Some(*wanted));
    wrong
        .map(|(function, wanted)| format!("{function}: {tool} says {:?}, expected {wanted:?}", blocks(function)))
        .collect()
}

/// Runs a fixture under heaptrace alone, where Memcheck can't see it as it is.
fn assert_ours(program: &Program, expected: &[Expected]) -> Checked {
    assert_checked(program, program.checked(&[]), expected)
}

/// Holds a check of a fixture against what is expected.
fn assert_checked(program: &Program, checked: Checked, expected: &[Expected]) -> Checked {
    let ours = Found::from_report(&checked.report).by_function();
    let wrong = not_as_expected("heaptrace", &ours, expected.iter().map(|e| (e.function, e.ours)));
    assert!(wrong.is_empty(), "{}\n{}\n{}", program.exe().display(), wrong.join("\n"), checked.ended.stderr);
    checked
}

/// A fixture of this folder.
fn fixture(name: &str) -> Program {
    Program::new(fixtures::program(&format!("leaks/{name}")))
}
