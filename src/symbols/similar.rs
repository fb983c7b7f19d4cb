//! Which functions somebody may have meant whose name for one no module defines.

use super::demangle::function_name;
use crate::image::elf::{Elf, base_name};

/// As many are named.
const MAX_NAMES: usize = 5;
/// Of two names, a part this long in common says something.
const SHORTEST_PART: usize = 4;

/// The functions of several objects whose names are like `wanted`, the most similar first; C++ and Rust ones are found
/// by their demangled names and given as the symbols that they are.
#[derive(Debug)]
pub struct Similar<'a> {
    wanted: &'a str,
    /// Without case and leading underscores.
    plain: String,
    found: Vec<(usize, String)>,
}

impl<'a> Similar<'a> {
    /// Nothing found yet.
    pub fn to(wanted: &'a str) -> Self {
        Self { wanted, plain: plain(wanted), found: Vec::new() }
    }

    /// Looks through an object's symbols.
    pub fn look_through(&mut self, elf: &Elf<'_>) {
        for symbol in elf.symbols().filter(|symbol| symbol.size > 0) {
            let name = base_name(&symbol.name);
            if let Some(distance) = self.distance(name)
                && !self.found.iter().any(|(_, known)| known == name)
            {
                self.found.push((distance, name.to_owned()));
                if self.found.len() > 64 * MAX_NAMES {
                    self.keep_best();
                }
            }
        }
    }

    /// At most five names.
    pub fn into_names(mut self) -> Vec<String> {
        self.keep_best();
        self.found.into_iter().map(|(_, name)| name).collect()
    }

    fn keep_best(&mut self) {
        self.found.sort();
        self.found.truncate(MAX_NAMES);
    }

    /// How far a name is from the wanted one, if it is near.
    fn distance(&self, name: &str) -> Option<usize> {
        // A mangled name holds the plain names that it is made of.
        let last = self.wanted.rsplit("::").next().filter(|last| !last.is_empty())?;
        if (name.starts_with("_Z") || name.starts_with("_R")) && name.contains(last) {
            let readable = function_name(name).name;
            let path = readable.split(['(', '<']).next().unwrap_or_default();
            let meant = path == self.wanted || path.strip_suffix(self.wanted).is_some_and(|rest| rest.ends_with("::"));
            return meant.then_some(0);
        }
        let name = plain(name);
        let limit = (self.plain.len() / 4).clamp(1, 3);
        let part = |long: &str, short: &str| short.len() >= SHORTEST_PART && long.contains(short);
        edits(self.plain.as_bytes(), name.as_bytes(), limit)
            .or_else(|| (part(&name, &self.plain) || part(&self.plain, &name)).then_some(limit + 1))
    }
}

fn plain(name: &str) -> String {
    name.trim_start_matches('_').to_ascii_lowercase()
}

/// The number of bytes to be put in, taken out or changed to make one text of the other (V. Levenshtein, "Binary codes
/// capable of correcting deletions, insertions, and reversals", 1966), if it is at most `limit`.
fn edits(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(row.first_mut()?, i + 1);
        let mut left = i + 1;
        let mut least = left;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            left = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            diagonal = std::mem::replace(cell, left);
            least = least.min(left);
        }
        if least > limit {
            return None;
        }
    }
    row.last().copied().filter(|&distance| distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;
    use proptest::prelude::*;

    const SOURCE: &str = "
#include <cstdlib>
extern \"C\" {
    __attribute__((used)) void *pool_get(void *p, unsigned long n) { return p ? p : malloc(n); }
    __attribute__((used)) void Pool_Put(void *p) { free(p); }
}
namespace arena { struct Zone { __attribute__((used)) static void *take(unsigned long n) { return malloc(n); } }; }
int main() { return 0; }
";

    #[test]
    fn misspelt_and_unmangled_names_lead_to_symbols() {
        let dir = TempDir::new("similar");
        let bytes = std::fs::read(dir.compile("c++", "program", SOURCE, &["-O0"])).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let names = |wanted: &str| {
            let mut similar = Similar::to(wanted);
            similar.look_through(&elf);
            similar.into_names()
        };
        assert_eq!(names("pool_gett"), ["pool_get"]);
        assert_eq!(names("__pool_put"), ["Pool_Put", "pool_get"]);
        assert_eq!(names("pool"), ["Pool_Put", "pool_get"]);
        for readable in ["arena::Zone::take", "Zone::take", "take"] {
            assert_eq!(names(readable), ["_ZN5arena4Zone4takeEm"], "{readable}");
        }
        assert_eq!(names("nothing_like_it"), Vec::<String>::new());
        assert_eq!(names(""), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn the_number_of_edits_agrees_with_its_definition(a in "[ab]{0,6}", b in "[abc]{0,6}") {
            fn slow(a: &[u8], b: &[u8]) -> usize {
                match (a, b) {
                    ([], rest) | (rest, []) => rest.len(),
                    ([x, a @ ..], [y, b @ ..]) if x == y => slow(a, b),
                    ([_, shorter @ ..], [_, rest @ ..]) => {
                        1 + slow(shorter, b).min(slow(a, rest)).min(slow(shorter, rest))
                    }
                }
            }
            let expected = slow(a.as_bytes(), b.as_bytes());
            for limit in 0..8 {
                prop_assert_eq!(edits(a.as_bytes(), b.as_bytes(), limit), Some(expected).filter(|&n| n <= limit));
            }
        }
    }
}
