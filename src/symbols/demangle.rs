//! Mangled names to names for people.

use super::dlang;
use crate::image::elf::base_name;
use crate::profile::symbolize::FunctionName;
use std::fmt::{self, Write};

/// Demangled names longer than this stay mangled: templates can make them grow without bounds.
pub(super) const LONGEST_NAME: usize = 64 << 10;

/// What compilers and linkers append to a function's symbol when they split or copy the function.
const CLONE_SUFFIXES: [&str; 8] = ["cold", "part", "isra", "constprop", "lto_priv", "localalias", "llvm", "clone"];

/// The name of a symbol for people: Rust without hash, C++ and D with parameters but without return type; without
/// version and clone suffixes.
pub fn function_name(raw: &str) -> FunctionName {
    let system_name = base_name(raw);
    let plain = without_clone_suffixes(system_name);
    // glibc's own aliases, by which it calls itself without the PLT, are the names that its DWARF has.
    let people = plain.strip_prefix("__GI_").unwrap_or(plain);
    let name = demangle(plain).map_or_else(|| people.into(), Into::into);
    FunctionName { name, system_name: system_name.into() }
}

/// Whether the name says more than a plain identifier does.
pub fn is_mangled(raw: &str) -> bool {
    demangle(without_clone_suffixes(base_name(raw))).is_some()
}

fn demangle(name: &str) -> Option<String> {
    if name.starts_with("_D") {
        return dlang::demangle(name);
    }
    if !name.starts_with("_Z") && !name.starts_with("_R") {
        return None;
    }
    // Rust's old scheme looks like C++ with a hash at the end, so it goes first.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return bounded(|out| write!(out, "{rust:#}"));
    }
    cxx_demangle::Options::default().return_type(false).max_bytes(LONGEST_NAME).demangle(name)
}

/// `foo.constprop.0.cold` is `foo`; `counter.5` stays what it is.
fn without_clone_suffixes(name: &str) -> &str {
    let mut rest = name;
    loop {
        let numberless = match rest.rsplit_once('.') {
            Some((head, number)) if number.bytes().all(|b| b.is_ascii_digit()) => head,
            _ => rest,
        };
        match numberless.rsplit_once('.') {
            Some((head, suffix)) if !head.is_empty() && CLONE_SUFFIXES.contains(&suffix) => rest = head,
            _ => return rest,
        }
    }
}

/// What `write` writes, unless it is too long.
fn bounded(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut out = Bounded(String::new());
    write(&mut out).ok()?;
    Some(out.0)
}

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::tool;
    use proptest::prelude::*;

    fn name(raw: &str) -> String {
        function_name(raw).name.as_ref().to_owned()
    }

    #[test]
    fn plain_names_agree_with_cxxfilt() {
        for raw in [
            "_Znwm",
            "_ZnamRKSt9nothrow_t",
            "_ZN3Foo3barEiPKc",
            "_ZNKSt6vectorIiSaIiEE4sizeEv",
            "_ZN12_GLOBAL__N_14findERKj",
            "_ZZN3Foo3barEvENKUlvE_clEv",
            "main",
            "_start",
        ] {
            assert_eq!(name(raw), tool("c++filt", &[raw]).trim_end(), "{raw}");
        }
    }

    #[test]
    fn names_lose_hash_return_type_version_and_clones() {
        assert_eq!(name("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core::fmt::Write::write_fmt");
        assert_eq!(name("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(name("_RNvCsgQbrYBbNM3D_7___rustc12___rust_alloc"), "__rustc::__rust_alloc");
        assert_eq!(name("_Z3fooIiET_S0_"), "foo<int>(int)");
        assert_eq!(name("_D3foo3barFiZv"), "foo.bar(int)");
        assert_eq!(&*function_name("memcpy@@GLIBC_2.14").system_name, "memcpy");
        assert_eq!(name("sort.constprop.0.isra.0.cold"), "sort");
        assert_eq!(&*function_name("sort.part.1").system_name, "sort.part.1");
        assert_eq!(name("_ZN3Foo3barEv.cold"), "Foo::bar()");
        for kept in ["counter.5", ".cold", "a.b", "_Zbroken", "_R", "_DYNAMIC", ""] {
            assert_eq!(name(kept), kept);
        }
        assert!(is_mangled("_ZN3Foo3barEv.part.0") && !is_mangled("main"));
    }

    #[test]
    fn exploding_names_stay_mangled() {
        // A<int, int> is substitution 0; each argument is an A of twice the one before.
        let digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars();
        let arguments: String = digits.take(25).map(|d| format!("S_IS{d}_S{d}_E")).collect();
        let raw = format!("_Z1f1AIiiE{arguments}");
        assert!(name("_Z1f1AIiiES_IS0_S0_E").starts_with("f(A<int, int>, A<A<int, int>, A<int, int>"));
        assert_eq!(name(&raw), raw);
    }

    proptest! {
        #[test]
        fn no_name_panics(tail in "[a-zA-Z0-9_.$@]{0,60}") {
            for prefix in ["_Z", "_ZN", "_R", "_RNv", ""] {
                function_name(&format!("{prefix}{tail}"));
            }
        }
    }
}
