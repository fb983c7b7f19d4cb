//! What stays the same in the next build: ids of sites, findings and leaks, made of function names.

use super::leaks::LeakClass;
use super::stacks::Locations;
use super::{Finding, Function, Profile};

/// The frame that stands for a function without any name.
pub const UNKNOWN_FUNCTION: &str = "[unknown]";

/// Where FNV-1a (64 bits) starts, as published by its authors.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// Goes on hashing with FNV-1a, whose prime this is.
fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The name without its arguments, as pprof matches `drop_frames`.
pub fn without_arguments(name: &str) -> &str {
    name.split_once('(').map_or(name, |(bare, _)| bare)
}

/// The parts of a regular expression between those `|` that stand in no parentheses: what `drop_frames` is made of.
/// Brackets are taken for plain characters, so a `|` or a parenthesis in them has to be escaped.
pub fn alternatives(pattern: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut escaped) = (0_usize, false);
    pattern.split(move |c: char| {
        let plain = !escaped;
        escaped = plain && c == '\\';
        depth = match c {
            '(' if plain => depth.saturating_add(1),
            ')' if plain => depth.saturating_sub(1),
            _ => depth,
        };
        plain && c == '|' && depth == 0
    })
}

/// Whether a function has no name but only a place: `module+0xoffset`.
pub fn is_unresolved(name: &str) -> bool {
    name.rsplit_once("+0x").is_some_and(|(_, hex)| !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Finding {
    /// Its stacks, each with what happened there, the offending call first.
    pub fn stacks(&self) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        let others = [("freed first at", self.free_stack), ("allocated at", self.alloc_stack)];
        let others = others.into_iter().filter_map(|(title, stack)| Some((title, stack?)));
        std::iter::once(("at", self.stack)).chain(others)
    }
}

impl Profile {
    /// The locations of a stack, innermost (the allocator's caller) first.
    pub fn locations_of(&self, stack: usize) -> Locations<'_> {
        self.stacks.locations(stack)
    }

    /// The functions of a stack, innermost first.
    pub fn functions_of(&self, stack: usize) -> impl Iterator<Item = &Function> {
        let locations = self.locations_of(stack).filter_map(|index| self.locations.get(index as usize));
        locations.flat_map(|location| &location.lines).filter_map(|line| self.functions.get(line.function))
    }

    /// Whether some function of a stack has a name that holds `text`: how `--explain FUNCTION` selects.
    pub fn passes_through(&self, stack: usize, text: &str) -> bool {
        self.functions_of(stack).any(|function| function.name.contains(text) || function.system_name == text)
    }

    /// A hash of the function names of a stack: 64-bit FNV-1a, each name followed by a zero
    /// byte; the name of a script's function also by that of its file, as many files have a function of the same name.
    pub fn site_id(&self, stack: usize) -> u64 {
        if self.locations_of(stack).len() == 0 {
            return hash_name(FNV_OFFSET, super::build::UNKNOWN_STACK);
        }
        let locations = self.locations_of(stack).filter_map(|index| self.locations.get(index as usize));
        let lines =
            locations.flat_map(|location| location.lines.iter().map(|line| (location.is_script(), line.function)));
        lines.filter_map(|(is_script, function)| Some((is_script, self.functions.get(function)?))).fold(
            FNV_OFFSET,
            |hash, (is_script, function)| {
                let name = if function.name.is_empty() { UNKNOWN_FUNCTION } else { &function.name };
                let hash = hash_name(hash, name);
                if is_script { hash_name(hash, function.script_file()) } else { hash }
            },
        )
    }

    /// A hash of the kind of an error and of the function names of its stacks.
    pub fn finding_id(&self, finding: &Finding) -> u64 {
        let stacks = [Some(finding.stack), finding.alloc_stack, finding.free_stack];
        self.id_of(finding.kind.name(), &stacks)
    }

    /// A hash of a leak's class and of the function names of its allocating stack.
    pub fn leak_id(&self, class: LeakClass, stack: usize) -> u64 {
        self.id_of(class.finding_kind(), &[Some(stack)])
    }

    fn id_of(&self, kind: &str, stacks: &[Option<usize>]) -> u64 {
        let ids = stacks.iter().map(|stack| stack.map_or(0, |stack| self.site_id(stack)).to_le_bytes());
        ids.fold(fnv1a(FNV_OFFSET, kind.as_bytes()), |hash, id| fnv1a(hash, &id))
    }
}

fn hash_name(hash: u64, name: &str) -> u64 {
    fnv1a(fnv1a(hash, name.as_bytes()), &[0])
}

#[cfg(test)]
mod tests {
    use super::alternatives;

    #[test]
    fn a_pattern_is_taken_apart_outside_of_parentheses_only() {
        let parts = |pattern| alternatives(pattern).collect::<Vec<_>>();
        assert_eq!(parts("a|b(?:c|d(e|f))|g"), ["a", "b(?:c|d(e|f))", "g"]);
        assert_eq!(parts(r"operator\||\(|x\\|y"), [r"operator\|", r"\(", r"x\\", "y"]);
        assert_eq!(parts(")|a"), [")", "a"]);
        assert_eq!(parts("(a|b"), ["(a|b"]);
        assert_eq!(parts(""), [""]);
    }
}
