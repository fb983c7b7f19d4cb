//! Test frameworks: by which of their functions a test is seen to begin and to end, and how its name is read there.
//!
//! Pure. What is read is checked: a name that is none is not told.

use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};

/// The frameworks that are known, for people.
pub const KNOWN: &str = "GoogleTest, Catch2, doctest and Rust's own";

/// The longest name that is read, in bytes.
const LONGEST_NAME: u64 = 4096;

/// A function of a framework.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// GoogleTest's `testing::TestInfo::Run()`, once for each test, also for those that are filtered out: these return
    /// at once.
    GoogleTest,
    /// Catch2's `Catch::RunContext::runTest`, before version 3: a `TestCase` begins with its name.
    CatchCase,
    /// The same of version 3: a `TestCaseHandle` begins with a pointer to what begins with the name.
    CatchHandle,
    /// doctest's `doctest::detail::regTest`, once for each test, before the first one runs.
    Doctest,
    /// Rust's `test::test_main_static`, to which the tests are given.
    Libtest,
}

/// What a framework tells at a [`Hook`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HookEvent {
    /// The function runs the test of this name.
    Runs(String),
    /// Tests, each with the function that it is.
    Tests(Vec<(Addr, String)>),
}

/// The functions by their symbols; where a part of one changes from build to build, its beginning and its end.
const HOOKS: [(&str, &str, Hook); 6] = [
    ("_ZN7testing8TestInfo3RunEv", "", Hook::GoogleTest),
    ("_ZN5Catch10RunContext7runTestERKNS_8TestCaseE", "", Hook::CatchCase),
    ("_ZN5Catch10RunContext7runTestERKNS_14TestCaseHandleE", "", Hook::CatchHandle),
    ("_ZN7doctest6detail7regTestERKNS0_8TestCaseE", "", Hook::Doctest),
    // of the legacy mangling and of v0 (RFC 2603), which put a hash behind the name and before it
    ("_ZN4test16test_main_static17h", "E", Hook::Libtest),
    ("_RNvCs", "_4test16test_main_static", Hook::Libtest),
];

/// Which function of a framework has this symbol, if one has.
pub fn hook(symbol: &str) -> Option<Hook> {
    let is_it = |(start, end, _): &&(&str, &str, Hook)| match end.is_empty() {
        true => symbol == *start,
        false => symbol.strip_prefix(start).and_then(|rest| rest.strip_suffix(end)).is_some_and(is_hash),
    };
    HOOKS.iter().find(is_it).map(|(_, _, hook)| *hook)
}

fn is_hash(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What is told where a thread enters the function, with these arguments. None if it can't be read. `begins_function`:
/// whether a function of the program's begins at an address. What is told here is patched: data must never be taken for
/// code, which may lie side by side.
pub fn told(
    hook: Hook,
    arguments: &[u64; 6],
    memory: &mut dyn ReadMemory,
    begins_function: &mut dyn FnMut(Addr) -> bool,
) -> Option<HookEvent> {
    let [first, second, third, ..] = arguments.map(Addr);
    match hook {
        Hook::GoogleTest => {
            // `const std::string test_suite_name_, name_`, from version 1.0 on (`test_case_name_` before 1.10)
            let (suite, size) = std_string(first, memory)?;
            let (name, _) = std_string(first.add(size), memory)?;
            Some(HookEvent::Runs(format!("{suite}.{name}")))
        }
        // Totals come back by a pointer that comes first, `this` is the second argument
        Hook::CatchCase => std_string(third, memory).map(|(name, _)| HookEvent::Runs(name)),
        Hook::CatchHandle => {
            let info = Addr(memory.read_u64(third)?);
            std_string(info, memory).map(|(name, _)| HookEvent::Runs(name))
        }
        Hook::Doctest => doctest(first, memory, begins_function),
        Hook::Libtest => libtest(first, second.0, memory, begins_function),
    }
}

/// A `std::string`, and how many bytes the object has: libstdc++'s with the size behind the pointer, 32 bytes; or
/// libc++'s, 24 bytes, whose lowest bit says whether the text is elsewhere.
fn std_string(at: Addr, memory: &mut dyn ReadMemory) -> Option<(String, u64)> {
    const GNU: u64 = 32;
    const LLVM: u64 = 24;
    let mut object = [0; LLVM as usize];
    if memory.read(at, &mut object) < object.len() {
        return None;
    }
    let (start, size) = (word(&object, 0)?, word(&object, 8)?);
    let is_inside = start == at.add(16).0;
    if is_inside == (size < 16)
        && let Some(text) = terminated(Addr(start), size, memory)
    {
        return Some((text, GNU));
    }
    let flag = object.first()?;
    let text = match flag & 1 {
        0 => terminated(at.add(1), u64::from(flag >> 1).min(LLVM), memory),
        _ => terminated(Addr(word(&object, 16)?), size, memory),
    };
    text.map(|text| (text, LLVM))
}

/// So many bytes of text that a zero follows.
fn terminated(at: Addr, size: u64, memory: &mut dyn ReadMemory) -> Option<String> {
    let wanted = usize::try_from(size.checked_add(1)?).ok().filter(|_| size <= LONGEST_NAME)?;
    let mut bytes = vec![0; wanted];
    if memory.read(at, &mut bytes) < wanted || bytes.pop() != Some(0) {
        return None;
    }
    name(bytes)
}

/// Text up to a zero.
fn c_string(at: Addr, memory: &mut dyn ReadMemory) -> Option<String> {
    let mut bytes = vec![0; LONGEST_NAME as usize];
    let n = memory.read(at, &mut bytes);
    let end = bytes.iter().take(n).position(|byte| *byte == 0)?;
    bytes.truncate(end);
    name(bytes)
}

fn name(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty() && !text.chars().any(char::is_control))
}

/// A `doctest::detail::TestCase`: file (before version 2.4.5 a pointer, then an object of 24 bytes), line, pointers to
/// name, suite and description, five flags, a count, a time, the function, all at multiples of 8 bytes.
fn doctest(at: Addr, memory: &mut dyn ReadMemory, begins_function: &mut dyn FnMut(Addr) -> bool) -> Option<HookEvent> {
    const FILE_SIZES: [u64; 2] = [24, 8];
    let function_behind = |file: u64| at.add(file + 8 + 3 * 8 + 8 + 8 + 8);
    FILE_SIZES.into_iter().find_map(|file| {
        let function = Addr(memory.read_u64(function_behind(file))?);
        let name = Addr(memory.read_u64(at.add(file + 8))?);
        let suite = Addr(memory.read_u64(at.add(file + 16))?);
        if !begins_function(function) {
            return None;
        }
        let name = c_string(name, memory)?;
        let full = match c_string(suite, memory) {
            Some(suite) => format!("{suite}: {name}"),
            None => name,
        };
        Some(HookEvent::Tests(vec![(function, full)]))
    })
}

/// How many tests a program may have: more than any has.
const MAX_TESTS: u64 = 1 << 20;

/// Words of a `test::TestDescAndFn` that are looked at: it has 19 in Rust 1.95, and had 13 and more before.
const WORDS: usize = 19;

/// The tests that `test_main_static(&[&TestDescAndFn])` is given. Rust does not say in which order the members lie: the
/// function is the word that points to the beginning of one in all of them, the name is the text that only has
/// characters of paths in all of them.
fn libtest(
    slice: Addr,
    count: u64,
    memory: &mut dyn ReadMemory,
    begins_function: &mut dyn FnMut(Addr) -> bool,
) -> Option<HookEvent> {
    let count = usize::try_from(count).ok().filter(|_| (1..=MAX_TESTS).contains(&count))?;
    let mut pointers = vec![0; count * 8];
    if memory.read(slice, &mut pointers) < pointers.len() {
        return None;
    }
    let mut tests = Vec::with_capacity(count);
    for pointer in (0..count).filter_map(|index| word(&pointers, index * 8)) {
        let mut object = [0; WORDS * 8];
        let n = memory.read(Addr(pointer), &mut object);
        let words: Vec<u64> = (0..n / 8).filter_map(|index| word(&object, index * 8)).collect();
        tests.push(words);
    }
    let all_have = |at: usize, is_it: &mut dyn FnMut(u64) -> bool| {
        tests.iter().all(|words| words.get(at).is_some_and(|word| is_it(*word)))
    };
    let functions: Vec<usize> =
        (0..WORDS).filter(|at| all_have(*at, &mut |word| begins_function(Addr(word)))).collect();
    // if there are two, nobody knows which is the test
    let &[function] = functions.as_slice() else { return None };
    let names = (0..WORDS).find_map(|at| {
        if !all_have(at + 1, &mut |size| (1..=LONGEST_NAME).contains(&size)) {
            return None;
        }
        let path = |words: &Vec<u64>| rust_path(Addr(*words.get(at)?), *words.get(at + 1)?, memory);
        tests.iter().map(path).collect::<Option<Vec<String>>>()
    })?;
    let functions = tests.iter().filter_map(|words| words.get(function).copied().map(Addr));
    Some(HookEvent::Tests(merged(functions.zip(names).collect())))
}

/// The path of a function, as in `module::tests::works`.
fn rust_path(at: Addr, size: u64, memory: &mut dyn ReadMemory) -> Option<String> {
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    if memory.read(at, &mut bytes) < bytes.len() {
        return None;
    }
    let is_path = |text: &str| text.split("::").all(|part| !part.is_empty() && part.chars().all(is_identifier));
    String::from_utf8(bytes).ok().filter(|text| is_path(text))
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '#')
}

/// Of equal functions compilers make one: nobody can tell which of these tests runs, so that they are one, too.
fn merged(mut tests: Vec<(Addr, String)>) -> Vec<(Addr, String)> {
    tests.sort();
    let mut merged: Vec<(Addr, String)> = Vec::with_capacity(tests.len());
    for (function, name) in tests {
        match merged.last_mut() {
            Some((known, names)) if *known == function => {
                names.push_str(", ");
                names.push_str(&name);
            }
            _ => merged.push((function, name)),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
