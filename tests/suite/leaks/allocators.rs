//! The same classes where the allocator lies elsewhere: in the program itself, whose thread-local data is then inside
//! the heap, or in a library that manages memory in its own way. Memcheck puts its own allocator in the place of each,
//! or does not see a static program's at all, so that the classes that it gives the ordinary program are what is
//! expected.

use super::chains::{cycles, freed, mapped, nine_cases};
use super::threads::of_threads;
use super::{assert_checked, assert_ours, fixture};
use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::report::Report;

#[test]
fn static_programs() {
    for flags in [&["-static"][..], &["-static-pie"]] {
        let program = |name: &str| Program::new(fixtures::program_with(&format!("leaks/{name}"), flags));
        assert_ours(&program("chains"), &nine_cases());
        assert_ours(&program("cycles"), &cycles());
        assert_ours(&program("freed"), &freed());
        assert_ours(&program("threads"), &of_threads());
        let program = program("mapped");
        let file = program.outside("mapped");
        assert_ours(&program.args([file]), &mapped());
    }
}

#[test]
fn jemalloc() {
    let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    assert!(std::path::Path::new(library).exists(), "install the Debian package libjemalloc2");
    let program = |name: &str| fixture(name).env("LD_PRELOAD", library);
    assert_ours(&program("chains"), &nine_cases());
    assert_ours(&program("cycles"), &cycles());
    assert_ours(&program("freed"), &freed());
    let threads = program("threads");
    let checked = (0..4).map(|_| threads.checked(&[])).find(|checked| !has_block_at_gigabyte(&checked.report));
    let checked = checked.expect("four times in a row a block began at a whole gigabyte");
    assert_checked(&threads, checked, &of_threads());
}

/// Whether the way to some block leads through one that begins at a multiple of 1 GiB. jemalloc remembers for each
/// thread, among its thread-local variables, in which gigabytes it looked last (`rtree_ctx`, the keys of leaves): such
/// a number is a pointer to the block, as far as anybody can see. Of 500 runs 4 have such a block, by chance of where
/// the kernel maps memory.
fn has_block_at_gigabyte(report: &Report) -> bool {
    let address =
        |step: &serde_json::Value| u64::from_str_radix(step["address"].as_str()?.strip_prefix("0x")?, 16).ok();
    let ways = report.list("/findings").iter().filter_map(|finding| finding["path"].as_array());
    ways.flatten().filter(|step| step["root"].is_null()).filter_map(address).any(|at| at % (1 << 30) == 0)
}
