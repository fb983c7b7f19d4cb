//! All names are held against c++filt's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that can't go on has failed")]

use cxx_demangle::{Options, demangle};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The C++ names in a library's tables of symbols, each once, without their versions.
fn names_in(library: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for table in [&["--dynamic"][..], &[]] {
        let output = Command::new("nm").args(table).arg(library).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let symbols = text.lines().filter_map(|line| line.split(' ').next_back());
        let plain = symbols.map(|symbol| symbol.split('@').next().unwrap_or_default());
        names.extend(plain.filter(|name| name.starts_with("_Z")).map(str::to_owned));
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// What c++filt makes of each name.
fn filtered(names: &[String]) -> Vec<String> {
    let mut child = Command::new("c++filt").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, text) = (child.stdin.take().unwrap(), names.join("\n"));
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// How many of the C++ names that a library exports are as c++filt has them, and of how many.
fn compare(library: &Path) -> (usize, usize, Vec<String>) {
    let names = names_in(library);
    let wanted = filtered(&names);
    assert_eq!(wanted.len(), names.len());
    let mut others = Vec::new();
    for (name, wanted) in names.iter().zip(&wanted) {
        let found = demangle(name);
        if found.as_ref() != Some(wanted) {
            others.push(format!("{name}\n  {found:?}\n  {wanted}"));
        }
    }
    (names.len() - others.len(), names.len(), others)
}

/// The files with such names, each once: some are links to where their package has them.
fn libraries(prefix: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir("/usr/lib/x86_64-linux-gnu").unwrap().flatten();
    let found = folder.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut files: Vec<PathBuf> = found.filter_map(|entry| entry.path().canonicalize().ok()).collect();
    files.retain(|path| path.is_file() && path.to_string_lossy().contains(".so"));
    files.sort_unstable();
    files.dedup();
    files
}

/// All names of libstdc++, libLLVM and libclang: 99.9 of 100 at the least. (Seen: 5,864 of 5,864 in libstdc++ 12;
/// 38,055 of 38,055 in libLLVM 14. Where an empty pack stands between other arguments, c++filt writes a comma too
/// many.)
#[test]
fn names_are_those_of_cxxfilt() {
    for prefix in ["libstdc++.so.6", "libLLVM", "libclang-cpp.so"] {
        let libraries = libraries(prefix);
        assert!(!libraries.is_empty(), "no {prefix}: ./test installs g++, llvm and clang, which need it");
        for library in libraries {
            let (equal, all, others) = compare(&library);
            println!("{}: {equal} of {all}\n{}", library.display(), others.join("\n"));
            assert!(all > 1000 && (all - equal) * 1000 <= all, "{}: {equal} of {all}", library.display());
        }
    }
}

/// What programs of C++20 make of the standard library, by both compilers: shared pointers, lambdas, variants, folds.
const PROGRAM: &str = "
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <variant>
#include <vector>
struct Item { int number; int twice() const & noexcept { return 2 * number; } };
template <class T> struct Convertible {
    template <class U> operator U() const { return U(); }
    template <class... A> int count(A &&...) const { return sizeof...(A); }
};
template <class... T> auto sum(T... all) -> decltype((all + ...)) { return (all + ...); }
template <class T, int (T::*Method)() const & noexcept> int call(const T &item) { return (item.*Method)(); }
namespace { template <class T> int unnamed(T (&)[3]) { return 3; } }
int main() {
    auto shared = std::make_shared<Item>();
    auto numbers = std::make_shared<std::vector<int>>(3, 4);
    auto array = std::make_unique<Item[]>(3);
    auto generic = [](auto x, int) { return x; };
    std::function<int(int)> function = [](int a) { return a; };
    std::map<std::string, std::vector<Item>> map;
    map[\"x\"].push_back({1});
    map.emplace(\"y\", std::vector<Item>{});
    std::apply([](int a, char b) { return a + b; }, std::tuple<int, char>{1, 'a'});
    std::variant<int, std::string> variant = \"z\";
    std::visit([](auto &&value) { (void)value; }, variant);
    std::optional<std::string> optional(\"a\");
    optional.emplace(3, 'c');
    Convertible<int> convertible;
    std::string text = (std::string)convertible;
    int values[3];
    std::thread thread([&] { values[0] = 1; });
    thread.join();
    return generic(1, 2) + function(1) + sum(1, 2.0, 3) + convertible.count(1, text) + convertible.count()
        + call<Item, &Item::twice>(*shared) + unnamed(values);
}
";

#[test]
fn names_of_a_modern_program_are_those_of_cxxfilt() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("modern.cc");
    std::fs::write(&source, PROGRAM).unwrap();
    for compiler in ["c++", "clang++"] {
        let program = folder.join(format!("modern-{compiler}"));
        let mut command = Command::new(compiler);
        command.args(["-std=c++20", "-O0", "-pthread", "-o"]).arg(&program).arg(&source);
        assert!(command.status().unwrap().success(), "{compiler}");
        let (equal, all, others) = compare(&program);
        // Their comma too many.
        let others: Vec<_> = others.iter().filter(|other| !other.contains(", , ")).collect();
        assert!(all > 300 && others.is_empty(), "{equal} of {all}: {others:#?}");
    }
    let raw = "_ZSt11make_sharedI3FooJEESt10shared_ptrIT_EDpOT0_";
    assert_eq!(Options::default().return_type(false).demangle(raw).as_deref(), Some("std::make_shared<Foo>()"));
}

#[test]
fn what_is_no_name_or_is_too_long_stays() {
    for raw in ["_Z", "_Zx", "_Z3fo", "_Z1fT_", "_Z1fIiEvT0_", "main", "_Z1fv9", "_ZNE", "_ZN1fC1Ev_"] {
        assert_eq!(demangle(raw), None, "{raw}");
    }
    assert_eq!(Options::default().max_bytes(5).demangle("_Z3foov").as_deref(), Some("foo()"));
    assert_eq!(Options::default().max_bytes(4).demangle("_Z3foov"), None);
    // Parts in parts without end, in every way, on a small stack.
    let deep = || {
        for part in ["P", "N1a", "I1aI", "Z1f", "XadL_Z", "DTclsr", "1AIXcl", "KFP", "A_", "M1a", "UlP", "DpJ", "cv"] {
            let part = part.repeat(30_000);
            assert_eq!(demangle(&format!("_Z{part}")), None);
            assert_eq!(demangle(&format!("_Z1f{part}i")), None);
        }
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(deep).unwrap().join().unwrap();
}

/// Each prefix of a name, and each name with a letter changed, ends in an answer.
#[test]
fn damaged_names_have_an_answer() {
    let names = names_in(libraries("libstdc++.so.6").first().unwrap());
    let letters = b"STIEJKPRONZ0123456789_LXDspclvrt";
    for (n, name) in names.iter().enumerate().step_by(7) {
        for at in 2..name.len() {
            demangle(&name[..at]);
            let letter = char::from(letters[(n + at) % letters.len()]);
            demangle(&format!("{}{letter}{}", &name[..at], &name[at + 1..]));
        }
    }
}
