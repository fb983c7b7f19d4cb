//! How numbers, names and places are written for people.

pub(crate) use super::escape::printable;
use super::view::{NamedFrame, TRUNCATED_STACK, View};
use crate::profile::Anomalies;
use crate::profile::identity::{is_unresolved, without_arguments};
use std::path::Path;

/// Colours for a terminal, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Paint {
    /// Whether to use colours.
    pub color: bool,
}

impl Paint {
    const BOLD: &str = "\x1b[1m";
    const DIM: &str = "\x1b[2m";
    const RED: &str = "\x1b[1;31m";
    const GREEN: &str = "\x1b[1;32m";
    const YELLOW: &str = "\x1b[33m";
    const PLAIN: &str = "\x1b[0m";

    /// The escape of a colour of ours that a text begins with.
    pub fn code_at(text: &str) -> Option<&'static str> {
        let codes = [Self::PLAIN, Self::BOLD, Self::DIM, Self::RED, Self::GREEN, Self::YELLOW];
        codes.into_iter().find(|code| text.starts_with(code))
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() { format!("{code}{text}{}", Self::PLAIN) } else { text.to_owned() }
    }

    /// Headings.
    pub fn bold(self, text: &str) -> String {
        self.with(Self::BOLD, text)
    }

    /// What supports the rest.
    pub fn dim(self, text: &str) -> String {
        self.with(Self::DIM, text)
    }

    /// What is wrong.
    pub fn red(self, text: &str) -> String {
        self.with(Self::RED, text)
    }

    /// What is as it should be.
    pub fn green(self, text: &str) -> String {
        self.with(Self::GREEN, text)
    }

    /// What deserves attention.
    pub fn yellow(self, text: &str) -> String {
        self.with(Self::YELLOW, text)
    }
}

/// `1,234,567`
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `12.34 MiB`: at least three significant digits, in powers of 1024. Below 1 KiB `123 B`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.995 would be rounded to 1024.00
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS.get(unit).copied().unwrap_or_default())
}

/// `12.3 %`; a dash where there is no whole, `< 0.1 %` rather than a zero that is none.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    if part > 0 && share < 0.05 { "<0.1 %".to_owned() } else { format!("{share:.1} %") }
}

/// `1.23 s`, `45.6 ms`, `2 h 03 min`.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..999_950 => format!("{:.1} µs", ns as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1} ms", ns as f64 / 1e6),
        999_950_000..59_995_000_000 => format!("{seconds:.2} s"),
        _ => {
            let whole = (seconds.round()) as u64;
            let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
            if hours > 0 { format!("{hours} h {minutes:02} min") } else { format!("{minutes} min {seconds:02} s") }
        }
    }
}

/// `1 block`, `2 blocks`
pub(crate) fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// The beginning of a sentence.
pub(crate) fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// Text with its width padded by spaces, counted in characters.
pub(crate) fn left(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{:missing$}", "")
}

/// The same, padded in front.
pub(crate) fn right(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{:missing$}{text}", "")
}

/// Wraps a paragraph at spaces: the first line as it comes, the others behind `indent` spaces.
pub(crate) fn wrap(text: &str, indent: usize, width: usize) -> String {
    let room = width.saturating_sub(indent).max(20);
    let mut wrapped = String::new();
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
            wrapped.push('\n');
            wrapped.extend(std::iter::repeat_n(' ', indent));
            used = 0;
        } else if used > 0 {
            wrapped.push(' ');
            used += 1;
        }
        wrapped.push_str(word);
        used += length;
    }
    wrapped
}

/// Cuts a text in the middle of nowhere, with an ellipsis in front: the end of a path says most.
pub(crate) fn keep_end(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(length - width.saturating_sub(1)).collect();
    format!("…{kept}")
}

/// A function name that fits: without the hash of Rust's older mangling, and, where it is too long, with `…` for what is
/// within the outermost pairs of angle brackets and parentheses, then for what is in its middle. The end, which says what
/// is done, is kept longest.
pub(crate) fn short_name(name: &str, width: usize) -> String {
    let name = without_hash(&printable(name)).to_owned();
    if name.chars().count() <= width {
        return name;
    }
    let name = name.replace(STD_STRING, "std::string");
    let without_arguments = collapse(&name, '(', ')');
    if without_arguments.chars().count() <= width {
        return without_arguments;
    }
    let without_generics = collapse(&without_arguments, '<', '>');
    if without_generics.chars().count() <= width {
        return without_generics;
    }
    let bare =
        without_generics.strip_suffix("(…)").or(without_generics.strip_suffix("()")).unwrap_or(&without_generics);
    elide_path(&unqualify_self(bare), width)
}

/// `<a::b::C as d::E>::f` as `<C as E>::f`.
fn unqualify_self(name: &str) -> String {
    let Some((inside, rest)) =
        name.strip_prefix('<').and_then(|inner| split_at_depth(inner, |rest| rest.starts_with('>')))
    else {
        return name.to_owned();
    };
    let last = |path: &str| split_path(path).last().map(|part| (*part).to_owned()).unwrap_or_default();
    let inside: Vec<String> = inside.split(" as ").map(last).collect();
    format!("<{}{rest}", inside.join(" as "))
}

/// A path of names, parted by `::`, cut in its middle: the first part and as many of the last as fit.
fn elide_path(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    let parts = split_path(name);
    let first = parts.first().copied().unwrap_or_default();
    let tails = |prefix: String| {
        (1..parts.len())
            .filter_map(|from| Some(format!("{prefix}…::{}", parts.get(from..)?.join("::"))))
            .find(|elided| elided.chars().count() <= width)
    };
    tails(format!("{first}::")).or_else(|| tails(String::new())).unwrap_or_else(|| elide_middle(name, width))
}

/// The parts of a path between those `::` that are within no brackets.
fn split_path(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = path;
    while let Some((part, behind)) = split_at_depth(rest, |rest| rest.starts_with("::")) {
        parts.push(part);
        rest = behind.trim_start_matches(':');
    }
    parts.push(rest);
    parts
}

/// Splits before the first place outside brackets at which `found` says so.
fn split_at_depth(text: &str, found: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
    let mut depth = 0u32;
    for (at, c) in text.char_indices() {
        let (before, rest) = text.split_at(at);
        if depth == 0 && found(rest) {
            return Some((before, rest));
        }
        match c {
            '<' | '(' | '{' | '[' => depth += 1,
            // the arrow of a return type is no bracket
            '>' if before.ends_with('-') || before.ends_with('=') => {}
            '>' | ')' | '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Cuts a text in its middle: a third of its beginning, and its end.
fn elide_middle(text: &str, width: usize) -> String {
    let length = text.chars().count();
    let room = width.saturating_sub(1);
    let head = room / 3;
    let tail = room - head;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length.saturating_sub(tail)).collect();
    format!("{start}…{end}")
}

/// What libstdc++ calls `std::string`.
const STD_STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => path,
        _ => name,
    }
}

/// Replaces what is between an opening and its closing bracket, unless it begins the name (`<A as B>::f`) or is the
/// name of an operator.
fn collapse(name: &str, open: char, close: char) -> String {
    let mut collapsed = String::new();
    let mut depth = 0u32;
    let mut previous = ' ';
    for c in name.chars() {
        let arrow = c == '>' && (previous == '-' || previous == '=');
        if c == close && depth > 0 && !arrow {
            depth -= 1;
            if depth == 0 && !collapsed.ends_with(open) {
                collapsed.push(c);
            } else if depth == 0 {
                collapsed.push('…');
                collapsed.push(c);
            }
        } else if c == open
            && !collapsed.is_empty()
            && !collapsed.ends_with("operator")
            && !collapsed.ends_with("operator<")
        {
            depth += 1;
            if depth == 1 {
                collapsed.push(c);
            }
        } else if depth == 0 {
            collapsed.push(c);
        }
        previous = c;
    }
    // a bracket that is none (a comparison in a template argument): rather too long than wrong
    if depth == 0 { collapsed } else { name.to_owned() }
}

/// `file.c:12`, with the directories if there is room; the module where no file is known.
pub(crate) fn place(frame: &NamedFrame<'_>, width: usize) -> String {
    match (frame.file, frame.line) {
        (Some(file), 0) => keep_end(&printable(file), width),
        (Some(file), line) => keep_end(&format!("{}:{line}", printable(file)), width),
        (None, _) if is_unresolved(frame.name) => String::new(),
        (None, _) => {
            let module = frame.module.map(|module| keep_end(&basename(&module.path), width.saturating_sub(2)));
            module.map(|module| format!("[{module}]")).unwrap_or_default()
        }
    }
}

/// The last component of a path, or all of it.
pub(crate) fn basename(path: &Path) -> String {
    printable(&path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
}

/// Whether the file probably came with the system.
pub(crate) fn is_system_file(path: &Path) -> bool {
    ["/usr", "/lib", "/lib64", "/bin", "/sbin"].iter().any(|folder| path.starts_with(folder))
        && !path.starts_with("/usr/local")
}

/// The frames that tell whose allocation it is, see [`telling`]: the innermost `count` of them.
pub(crate) fn telling_frames<'a>(view: &View<'a>, stack: usize, count: usize) -> Vec<NamedFrame<'a>> {
    let frames: Vec<NamedFrame<'a>> = view.frames(stack).collect();
    telling(&frames).into_iter().take(count).filter_map(|at| frames.get(at).copied()).collect()
}

/// Which of a stack's frames tell whose allocation it is: all but the standard libraries', the program's start-up code, the way to
/// an allocator through the program's own wrappers of it, recursion, and an interpreter's own functions where those of the script are there. Where nothing else is there, all.
pub(crate) fn telling(frames: &[NamedFrame<'_>]) -> Vec<usize> {
    let runs_script = frames.iter().any(NamedFrame::is_script);
    let mut telling: Vec<usize> = Vec::new();
    let mut last = "";
    for (at, frame) in frames.iter().enumerate() {
        let is_way_in = telling.is_empty() && (is_global_allocator(frame, frames.get(at + 1)) || is_wrapper(frame));
        let is_interpreter = runs_script && !frame.is_script() && is_of_python(frame);
        if is_way_in || is_interpreter || is_plumbing(frame) || frame.name == TRUNCATED_STACK {
            continue;
        }
        if telling.is_empty() || last != frame.name {
            telling.push(at);
            last = frame.name;
        }
    }
    if telling.is_empty() { (0..frames.len()).collect() } else { telling }
}

/// Whether a frame is of Python's interpreter, by its module: `python3.11`, `libpython3.11.so.1.0`, a module of the standard library in `lib-dynload`.
fn is_of_python(frame: &NamedFrame<'_>) -> bool {
    let Some(module) = frame.module else { return false };
    let name = basename(&module.path);
    name.strip_prefix("lib").unwrap_or(&name).starts_with("python")
        || module.path.components().any(|part| part.as_os_str() == "lib-dynload")
}

/// Whether a function is known to do no more than to call the allocator and to end the program, or throw, where that fails.
fn is_wrapper(frame: &NamedFrame<'_>) -> bool {
    const FUNCTIONS: &str = "\
        xmalloc xcalloc xrealloc xstrdup xstrndup xmemdup xzalloc xmallocz xmemdupz xcharalloc xreallocarray \
        g_malloc g_malloc0 g_realloc g_malloc_n g_malloc0_n";
    FUNCTIONS.split(' ').any(|function| function == without_arguments(frame.name))
}

/// The frames of a stack, innermost first, up to `main` or a test's function: what called those is none of the program's. All, if none
/// is the program's.
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
    // Where inlined calls are not known, the program's own function bears the file of what was inlined into it.
    is_plumbing_by_name(frame.name) || frame.inlined && frame.file.is_some_and(is_standard_source)
}

/// Whether an inlined frame with a bare name is a function of GlobalAlloc, which the standard library calls only.
fn is_global_allocator(frame: &NamedFrame<'_>, caller: Option<&NamedFrame<'_>>) -> bool {
    const FUNCTIONS: [&str; 4] = ["alloc", "alloc_zeroed", "realloc", "dealloc"];
    frame.inlined && FUNCTIONS.contains(&frame.name) && caller.is_some_and(is_plumbing)
}

/// Whether a source file is one of a standard library, of Rust (as rustc has it, or `/rust/deps/…` for what it is built with)
/// or C++: where debug information has lines only, inlined functions have bare names, such as `alloc`.
fn is_standard_source(file: &str) -> bool {
    const BEGINNINGS: [&str; 5] =
        ["/rustc/", "/rust/deps/", "library/std/src/", "library/core/src/", "library/alloc/src/"];
    const PARTS: [&str; 3] = ["/rustlib/src/rust/library/", "/hashbrown-0.", "/include/c++/"];
    BEGINNINGS.iter().any(|beginning| file.starts_with(beginning)) || PARTS.iter().any(|part| file.contains(part))
}

fn is_plumbing_by_name(name: &str) -> bool {
    const CRATES: [&str; 9] =
        ["std::", "core::", "alloc::", "hashbrown::", "__gnu_cxx::", "<std::", "<core::", "<alloc::", "<hashbrown::"];
    const START: [&str; 6] =
        ["_start", "__libc_start_main", "__libc_start_call_main", "start_thread", "clone3", "__clone3"];
    let bare = name.split_once('@').map_or(name, |(bare, _)| bare);
    CRATES.iter().any(|prefix| name.starts_with(prefix))
        // the return type of a C++ template comes first: `void std::vector<…>::push_back(…)`
        || name.split(['<', '(']).next().is_some_and(|head| head.contains(" std::") || head.contains(" __gnu_cxx::"))
        || name.starts_with("<T as ")
        // a Rust program's own global allocator
        || name.contains(" as core::alloc::global::GlobalAlloc>::")
        // libstdc++'s way to call what a thread runs; its debug information leaves `std::` out
        || name.starts_with("__invoke")
        || START.contains(&bare)
        || bare.starts_with("__libc_start_main")
        || bare.starts_with("__rust_")
}

/// A command line as a shell would read it.
pub(crate) fn shell_words(words: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@%_+=:,./-".contains(&byte))
    };
    let quoted = words
        .iter()
        .map(|word| if plain(word) { word.clone() } else { format!("'{}'", printable(word).replace('\'', r"'\''")) });
    quoted.collect::<Vec<_>>().join(" ")
}

/// One kind of what could not be seen or did not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anomaly {
    /// The name in report.json.
    pub key: &'static str,
    /// How often.
    pub count: u64,
    /// The name for people.
    pub label: &'static str,
    /// What it means for the numbers.
    pub meaning: &'static str,
}

/// All kinds, in the order of report.json.
pub(crate) fn anomalies(anomalies: &Anomalies) -> [Anomaly; 7] {
    let anomaly = |key, count, label, meaning| Anomaly { key, count, label, meaning };
    [
        anomaly("lost", anomalies.lost, "lost events", "known to have been missed: the numbers are too low by these"),
        anomaly(
            "truncated_stacks",
            anomalies.truncated_stacks,
            "truncated stacks",
            match (anomalies.cut_stacks, anomalies.truncated_stacks) {
                (0, _) => "events whose stack ends before the outermost frame; the amounts are right",
                (cut, all) if cut == all => {
                    "events deeper than --max-depth: --max-depth 10000 keeps the outermost frames; the amounts are right"
                }
                _ => {
                    "events whose stack ends before the outermost frame, some only as they are deeper than --max-depth; the amounts \
                     are right"
                }
            },
        ),
        anomaly(
            "guessed_stacks",
            anomalies.guessed_stacks,
            "guessed stacks",
            "events with a frame passed by its frame pointer, for lack of unwind tables; callers may be wrong",
        ),
        anomaly(
            "unknown_frees",
            anomalies.unknown_frees,
            "unknown frees",
            "frees of pointers that no probed function handed out: another allocator, or an error",
        ),
        anomaly("double_frees", anomalies.double_frees, "double frees", "frees of blocks that had been freed before"),
        anomaly(
            "mismatched_frees",
            anomalies.mismatched_frees,
            "mismatched frees",
            "frees by another family than the allocation's, as delete of a malloc",
        ),
        anomaly(
            "abandoned_calls",
            anomalies.abandoned_calls,
            "unfinished calls",
            "allocator calls that never returned (longjmp, an exception, a thread that ended inside)",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_switch_units_without_showing_1024() {
        let shown = [0, 1023, 1024, 1536, 1_048_575, 1_048_576, u64::MAX].map(human_bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "1.00 MiB", "16.00 EiB"]);
    }

    #[test]
    fn times_keep_three_digits() {
        let shown = [0, 999, 1500, 999_960, 1_000_000, 2_310_000_000, 61_000_000_000, 7_380_000_000_000].map(duration);
        assert_eq!(shown, ["0 s", "999 ns", "1.5 µs", "1.0 ms", "1.0 ms", "2.31 s", "1 min 01 s", "2 h 03 min"]);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let shown = [0, 999, 1000, 1_234_567, u64::MAX].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567", "18,446,744,073,709,551,615"]);
    }

    #[test]
    fn a_small_share_is_not_shown_as_none() {
        let shown = [percent(0, 10), percent(1, 100_000), percent(1, 3), percent(5, 0)];
        assert_eq!(shown, ["0.0 %", "<0.1 %", "33.3 %", "-"]);
    }

    #[test]
    fn standard_libraries_and_allocators_tell_nothing() {
        let frame = |name, file, inlined| NamedFrame { name, file, line: 1, inlined, location: None, module: None };
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

    #[test]
    fn long_names_lose_arguments_first_and_keep_operators() {
        assert_eq!(short_name("foo::bar::h0123456789abcdef", 40), "foo::bar");
        assert_eq!(short_name("f(std::vector<int, std::allocator<int>>)", 12), "f(…)");
        assert_eq!(short_name("g<std::pair<int, int>>(int)", 12), "g<…>(…)");
        assert_eq!(short_name("<alpha::Beta as core::Clone>::clone", 26), "<Beta as Clone>::clone");
        assert_eq!(short_name("<alpha::Beta as Clone>::clone", 12), "…::clone");
        assert_eq!(short_name("Parser::operator()(char const*, int)", 24), "Parser::operator()(…)");
        assert_eq!(
            short_name("std::ostream& operator<< <char>(std::ostream&, char)", 40),
            "std::ostream& operator<< <char>(…)"
        );
        assert_eq!(short_name("h()", 2), "h");
        let string = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
        assert_eq!(short_name(&format!("{string}::append(unsigned long)"), 30), "std::string::append(…)");
    }

    #[test]
    fn long_names_are_cut_in_the_middle_so_that_the_end_is_readable() {
        let cargo = "cargo::util::toml::normalize_dependencies";
        assert_eq!(short_name(cargo, 40), "cargo::…::toml::normalize_dependencies");
        assert_eq!(short_name(cargo, 36), "cargo::…::normalize_dependencies");
        assert_eq!(short_name(cargo, 30), "…::normalize_dependencies");
        assert_eq!(short_name(cargo, 20), "cargo:…_dependencies");
        assert_eq!(
            short_name("<cargo::sources::registry::RegistrySource as cargo::core::source::Source>::query", 41),
            "<RegistrySource as Source>::query"
        );
        assert_eq!(
            short_name("void ns::Long<std::pair<int, int>>::Inner::assign<char const*>(char const*, char const*)", 30),
            "void ns::…::Inner::assign<…>"
        );
        assert_eq!(short_name("app::run::{{closure}}::{{closure}}", 30), "app::…::{{closure}}");
        for width in 2..60 {
            assert!(short_name(cargo, width).chars().count() <= width);
        }
    }

    #[test]
    fn paragraphs_wrap_at_spaces() {
        assert_eq!(wrap("one two three four five six", 2, 22), "one two three four\n  five six");
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["./app", "a b", "", "it's"].map(str::to_owned);
        assert_eq!(shell_words(&words), r"./app 'a b' '' 'it'\''s'");
    }
}
