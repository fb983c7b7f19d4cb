//! Which frames of a stack tell whose allocation it is.

use super::text::basename;
use super::view::{NamedFrame, TRUNCATED_STACK, View};

/// The frames that tell whose allocation it is, see [`telling`]: the innermost `count` of them.
pub(crate) fn telling_frames<'a>(view: &View<'a>, stack: usize, count: usize) -> Vec<NamedFrame<'a>> {
    let runs_script = view.has_scripts() && view.frames(stack).any(|frame| frame.is_script());
    let mut found: Vec<NamedFrame<'a>> = Vec::with_capacity(count.min(8));
    let mut frames = view.frames(stack).peekable();
    while found.len() < count
        && let Some(frame) = frames.next()
    {
        if tells(&frame, frames.peek(), found.last(), runs_script) {
            found.push(frame);
        }
    }
    if found.is_empty() { view.frames(stack).take(count).collect() } else { found }
}

/// Which of a stack's frames tell whose allocation it is: all but the standard libraries', the program's start-up code,
/// the way to an allocator through the program's own wrappers of it, recursion, and an interpreter's own functions
/// where those of the script are there. Where nothing else is there, all.
pub(crate) fn telling(frames: &[NamedFrame<'_>]) -> Vec<usize> {
    let runs_script = frames.iter().any(NamedFrame::is_script);
    let mut telling: Vec<usize> = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let last = telling.last().and_then(|last: &usize| frames.get(*last));
        if tells(frame, frames.get(at + 1), last, runs_script) {
            telling.push(at);
        }
    }
    if telling.is_empty() { (0..frames.len()).collect() } else { telling }
}

/// Whether a frame does, after the last one that did. `runs_script`: the stack has functions of a script.
fn tells(
    frame: &NamedFrame<'_>,
    caller: Option<&NamedFrame<'_>>,
    last: Option<&NamedFrame<'_>>,
    runs_script: bool,
) -> bool {
    let is_way_in = last.is_none() && (is_global_allocator(frame, caller) || frame.traits.is_wrapper());
    let is_interpreter = runs_script && !frame.is_script() && is_of_python(frame);
    !(is_way_in || is_interpreter || is_plumbing(frame) || frame.name == TRUNCATED_STACK)
        && last.is_none_or(|last| last.name != frame.name)
}

/// Whether a frame is of Python's interpreter, by its module: `python3.11`, `libpython3.11.so.1.0`, a module of the
/// standard library in `lib-dynload`.
fn is_of_python(frame: &NamedFrame<'_>) -> bool {
    let Some(module) = frame.module else { return false };
    let name = basename(&module.path);
    name.strip_prefix("lib").unwrap_or(&name).starts_with("python")
        || module.path.components().any(|part| part.as_os_str() == "lib-dynload")
}

/// The frames of a stack, innermost first, up to `main` or a test's function: what called those is none of the
/// program's. All, if none is the program's.
pub(crate) fn program_frames<'a>(view: &View<'a>, stack: usize) -> Vec<NamedFrame<'a>> {
    let all: Vec<NamedFrame<'a>> = view.frames(stack).collect();
    let is_outside = |(index, frame): (usize, &NamedFrame<'a>)| {
        let callee = index.checked_sub(1).and_then(|inner| all.get(inner));
        // rustc makes a `main` of its own that calls the standard library.
        let is_rust_start = frame.name == "main" && callee.is_some_and(|callee| callee.name.starts_with("std::rt::"));
        is_rust_start || is_plumbing(frame) || is_test_runner(frame.name)
    };
    let outside = all.iter().enumerate().rev().take_while(|frame| is_outside(*frame)).count();
    let shown = if outside == all.len() { all.len() } else { all.len() - outside };
    all.into_iter().take(shown).collect()
}

/// Whether a function is one of Rust's test harness.
fn is_test_runner(name: &str) -> bool {
    const RUNNERS: [&str; 5] =
        ["test::run_test", "test::__rust_begin_short_backtrace", "test::test_main", "test::console::", "test::types::"];
    RUNNERS.iter().any(|runner| name.trim_start_matches('<').starts_with(runner))
}

/// Whether a function belongs to a standard library, to the way to an allocator, or to what runs before `main`.
pub(crate) fn is_plumbing(frame: &NamedFrame<'_>) -> bool {
    frame.traits.is_plumbing(frame.inlined)
}

/// Whether an inlined frame with a bare name is a function of GlobalAlloc, which the standard library calls only.
fn is_global_allocator(frame: &NamedFrame<'_>, caller: Option<&NamedFrame<'_>>) -> bool {
    const FUNCTIONS: [&str; 4] = ["alloc", "alloc_zeroed", "realloc", "dealloc"];
    frame.inlined && FUNCTIONS.contains(&frame.name) && caller.is_some_and(is_plumbing)
}

#[cfg(test)]
mod tests {
    use super::super::nametraits::NameTraits;
    use super::*;

    #[test]
    fn standard_libraries_and_allocators_tell_nothing() {
        let frame = |name, file, inlined| NamedFrame {
            name,
            file,
            line: 1,
            inlined,
            location: None,
            module: None,
            traits: NameTraits::of(name, file),
        };
        let plumbing = |name, file| is_plumbing(&frame(name, file, true));
        for file in [
            "/rustc/59807616e1fa/library/alloc/src/raw_vec/mod.rs",
            "library/std/src/sys/alloc/unix.rs",
            "/rust/deps/hashbrown-0.16.1/src/raw.rs",
            "/home/me/.rustup/toolchains/x/lib/rustlib/src/rust/library/alloc/src/vec/mod.rs",
            "/usr/include/c++/12/bits/new_allocator.h",
            "/usr/lib/llvm-14/include/c++/v1/vector",
        ] {
            assert!(plumbing("grow_one<u8>", Some(file)), "{file}");
            assert!(!is_plumbing(&frame("own", Some(file), false)), "inlined calls are not known: {file}");
        }
        let own = "<counting::Counting as core::alloc::global::GlobalAlloc>::alloc";
        assert!(plumbing(own, Some("/home/me/counting.rs")));
        for file in [
            "src/alloc.rs",
            "/home/me/library/core/src/alloc.c",
            "/usr/include/glib-2.0/glib.h",
            "/src/hashbrown-demo/a.c",
        ] {
            assert!(!plumbing("grow_one", Some(file)), "{file}");
        }
        let standard = frame("alloc", Some("/rustc/59807616e1fa/library/alloc/src/alloc.rs"), true);
        let jemalloc = frame("alloc", Some("/registry/tikv-jemallocator-0.6.1/src/lib.rs"), true);
        assert!(is_global_allocator(&jemalloc, Some(&standard)));
        assert!(!is_global_allocator(&jemalloc, Some(&frame("main", Some("src/main.rs"), false))));
        assert!(!is_global_allocator(&frame("grow", jemalloc.file, true), Some(&standard)));
        assert!(!plumbing("grow_one", None));
    }
}
