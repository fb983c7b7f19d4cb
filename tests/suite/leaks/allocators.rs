//! The same classes where the allocator lies elsewhere: in the program itself, whose thread-local data is then inside
//! the heap, or in a library that manages memory in its own way. Memcheck puts its own allocator in the place of each,
//! or does not see a static program's at all, so that the classes that it gives the ordinary program are what is
//! expected.

use super::chains::{cycles, freed, mapped, nine_cases};
use super::threads::of_threads;
use super::{assert_ours, fixture};
use crate::support::fixtures;
use crate::support::program::Program;

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
    assert_ours(&program("threads"), &of_threads());
}
