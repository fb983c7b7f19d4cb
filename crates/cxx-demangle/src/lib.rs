//! Demangles C++ names as compilers write them on Linux and most other systems (Itanium C++ ABI, section 5.1), to the
//! very text that binutils' `c++filt` prints.
//!
//! ```
//! let name = cxx_demangle::demangle("_ZNSt6vectorIiSaIiEE9push_backERKi");
//! assert_eq!(name.as_deref(), Some("std::vector<int, std::allocator<int> >::push_back(int const&)"));
//! ```
//!
//! Names of functions are often shown without the type that they return, and must not take memory without bounds:
//!
//! ```
//! use cxx_demangle::Options;
//!
//! let options = Options::default().return_type(false).max_bytes(1000);
//! assert_eq!(options.demangle("_Z3maxIiET_S0_S0_").as_deref(), Some("max<int>(int, int)"));
//! assert_eq!(cxx_demangle::demangle("_Z3maxIiET_S0_S0_").as_deref(), Some("int max<int>(int, int)"));
//! assert_eq!(options.max_bytes(10).demangle("_Z3maxIiET_S0_S0_"), None);
//! ```
//!
//! What is no mangled name, or a damaged one, is `None`. No name makes the crate panic, overflow the stack or run for
//! long. It has no dependency and no unsafe code.

#![forbid(unsafe_code)]

mod cursor;
mod expressions;
mod names;
mod operators;
mod parser;
mod print;
mod reread;
mod scope;
mod tree;
mod types;

/// The longest mangled name, in bytes. Each byte may become a part or two.
const MAX_MANGLED_BYTES: usize = 64 << 10;

/// The name of a symbol, as `c++filt` prints it; None if it is not of this scheme, or damaged.
pub fn demangle(mangled: &str) -> Option<String> {
    Options::default().demangle(mangled)
}

/// How names are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    return_type: bool,
    max_bytes: usize,
}

impl Default for Options {
    /// As `c++filt` does it, and at most 64 KiB.
    fn default() -> Self {
        Self { return_type: true, max_bytes: 64 << 10 }
    }
}

impl Options {
    /// Whether the names of functions that templates make begin with the type that they return.
    #[must_use]
    pub const fn return_type(self, return_type: bool) -> Self {
        Self { return_type, ..self }
    }

    /// How long a name may be, in bytes: substitutions can make it grow exponentially.
    #[must_use]
    pub const fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// The name of a symbol; None if it is not of this scheme, damaged, or too long.
    pub fn demangle(&self, mangled: &str) -> Option<String> {
        let rest = mangled.strip_prefix("_Z").filter(|rest| rest.len() <= MAX_MANGLED_BYTES)?;
        let (nodes, root) = parser::Parser::parse(rest)?;
        let mut printer = print::Printer::new(&nodes, self.return_type, self.max_bytes);
        printer.print(root).ok()?;
        Some(printer.into_text())
    }
}
