//! Symbol tables as an index from address to name.
//!
//! A symbol names only the addresses inside its size: the symbols of a stripped library cover less than half of its
//! code, and there the nearest symbol below is mostly a wrong name.

use crate::base::addr::ObjAddr;
use crate::image::elf::{Binding, Elf, Symbol, SymbolKind, Table, base_name};

/// The functions of one or more symbol tables of the same object that cover some of given addresses: of a C library's
/// twenty thousand some dozen.
#[derive(Debug, Default)]
pub struct FunctionTable<'d> {
    /// Sorted by start, then from the worst to the best name.
    entries: Vec<Entry<'d>>,
    /// For each entry the highest end of it and all before: where a search backwards may stop.
    highest_end: Vec<ObjAddr>,
}

#[derive(Debug)]
struct Entry<'d> {
    end: ObjAddr,
    symbol: Symbol<'d>,
}

impl<'d> FunctionTable<'d> {
    /// Indexes the functions of all `objects`, which are one object and its debug file, that cover some of `addrs`.
    pub fn new(objects: &[Elf<'d>], addrs: &[ObjAddr]) -> Self {
        let mut addrs = addrs.to_vec();
        addrs.sort_unstable();
        let covers_some = |start: ObjAddr, end: ObjAddr| {
            let first = addrs.get(addrs.partition_point(|addr| *addr < start));
            first.is_some_and(|addr| *addr < end)
        };
        let mut entries: Vec<Entry<'d>> = Vec::new();
        let mut starts = Vec::new();
        let mut unsized_symbols = Vec::new();
        for object in objects {
            for symbol in object.symbols().chain(object.global_labels()) {
                if symbol.size > 0 {
                    let end = ObjAddr(symbol.addr.0.saturating_add(symbol.size));
                    starts.push(symbol.addr);
                    if covers_some(symbol.addr, end) {
                        entries.push(Entry { end, symbol });
                    }
                } else if symbol.table == Table::Symtab {
                    let section_end = object.sections().range_by_index(symbol.section).map(|r| r.end);
                    unsized_symbols.extend(section_end.map(|end| (end, symbol)));
                }
            }
        }
        let bounded = bounded_by_neighbours(unsized_symbols, starts);
        entries.extend(bounded.into_iter().filter(|entry| covers_some(entry.symbol.addr, entry.end)));
        entries.sort_by(|a, b| a.symbol.addr.cmp(&b.symbol.addr).then_with(|| rank(&b.symbol).cmp(&rank(&a.symbol))));
        let highest_end = entries
            .iter()
            .scan(ObjAddr(0), |highest, entry| {
                *highest = entry.end.max(*highest);
                Some(*highest)
            })
            .collect();
        Self { entries, highest_end }
    }

    /// The symbol whose size covers `addr`: of several, the one that begins last, by its best name. A stated size
    /// counts before a guessed one: assembly has labels inside functions.
    pub fn find(&self, addr: ObjAddr) -> Option<&Symbol<'d>> {
        let after = self.entries.partition_point(|e| e.symbol.addr <= addr);
        let candidates = self.entries.get(..after)?.iter().zip(&self.highest_end).rev();
        let mut guessed = None;
        for (entry, _) in candidates.take_while(|(_, highest)| **highest > addr).filter(|(e, _)| e.end > addr) {
            if entry.symbol.size > 0 {
                return Some(&entry.symbol);
            }
            guessed = guessed.or(Some(&entry.symbol));
        }
        guessed
    }
}

/// Assembly code often states no size. Such a symbol of `.symtab` (where no neighbour was stripped) reaches to the next
/// symbol or the end of its section.
/// `starts`: where those with a size begin.
fn bounded_by_neighbours<'d>(symbols: Vec<(ObjAddr, Symbol<'d>)>, mut starts: Vec<ObjAddr>) -> Vec<Entry<'d>> {
    if symbols.is_empty() {
        return Vec::new();
    }
    starts.extend(symbols.iter().map(|(_, s)| s.addr));
    starts.sort_unstable();
    symbols
        .into_iter()
        .map(|(section_end, symbol)| {
            let next = starts.get(starts.partition_point(|&s| s <= symbol.addr)).copied();
            Entry { end: next.map_or(section_end, |n| n.min(section_end)), symbol }
        })
        .collect()
}

/// Smaller is better: of the names of one address people know the exported one, and of these the plain one
/// (`malloc` rather than `__libc_malloc`).
fn rank<'a>(symbol: &'a Symbol<'_>) -> impl Ord + use<'a> {
    let binding = match symbol.binding {
        Binding::Global => 0,
        Binding::Local => 1,
        Binding::Weak => 2,
    };
    let name = base_name(&symbol.name);
    let underscores = name.bytes().take_while(|&b| b == b'_').count();
    (symbol.size == 0, symbol.kind != SymbolKind::Function, binding, underscores, name.len(), name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::{TempDir, tool};
    use std::fs;

    const SOURCE: &str = "
__attribute__((noinline)) int first(int x) { return x * 3; }
int alias_a(int) __attribute__((weak, alias(\"first\")));
int _hidden_name(int) __attribute__((alias(\"first\")));
asm(\".text\\n.type no_size, @function\\nno_size: nop\\nnop\\nnop\\nret\\n.p2align 6\\n\");
asm(\".type tail, @function\\ntail: nop\\nret\\n.size tail, .-tail\\n.fill 100, 1, 0x90\\n\");
asm(\".type outer, @function\\nouter: nop\\n.type inner, @function\\ninner: nop\\n.size inner, .-inner\\nnop\\nret\\n.size outer, .-outer\\n\");
asm(\".globl label\\nlabel: nop\\n.Llocal: nop\\nlocal: nop\\nret\\n\");
int main(void) { return first(2); }
";

    #[test]
    fn a_symbol_names_its_own_bytes_only() {
        let dir = TempDir::new("table");
        let program = dir.compile("cc", "program", SOURCE, &["-O1"]);
        let bytes = fs::read(&program).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let all: Vec<ObjAddr> = (0..0x1_0000).map(ObjAddr).collect();
        let table = FunctionTable::new(&[elf], &all);
        let at = |name: &str| elf.find_symbol(name).unwrap();
        let name = |addr| table.find(addr).map(|s| s.name.clone().into_owned());
        let first = at("first");
        for offset in [0, first.size - 1] {
            assert_eq!(
                name(ObjAddr(first.addr.0 + offset)).as_deref(),
                Some("first"),
                "the global name, not the aliases"
            );
        }
        let tail = at("tail");
        assert_eq!(name(tail.addr).as_deref(), Some("tail"));
        assert_eq!(name(ObjAddr(tail.addr.0 + tail.size)), None, "padding has no name");
        let no_size = at("no_size");
        assert_eq!(no_size.size, 0);
        assert_eq!(name(ObjAddr(no_size.addr.0 + 3)).as_deref(), Some("no_size"));
        let label = at("label").addr.0;
        let labelled: Vec<_> = (label..label + 4).filter_map(|a| name(ObjAddr(a))).collect();
        assert_eq!(labelled, ["label"; 4]);
        assert_eq!(name(ObjAddr(0)), None);
        let outer = at("outer").addr.0;
        let nested: Vec<_> = (outer..outer + 4).filter_map(|a| name(ObjAddr(a))).collect();
        assert_eq!(nested, ["outer", "inner", "outer", "outer"]);
    }

    #[test]
    fn every_name_is_one_that_nm_gives_the_address() {
        let program = std::env::current_exe().unwrap();
        let bytes = fs::read(&program).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let listed = tool("nm", &["--defined-only", "-S", program.to_str().unwrap()]);
        let functions: Vec<(u64, u64, &str)> = listed
            .lines()
            .filter_map(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                let &[start, size, "t" | "T" | "W", name] = fields.as_slice() else { return None };
                let number = |text| u64::from_str_radix(text, 16).unwrap();
                Some((number(start), number(start) + number(size) - 1, name))
            })
            .collect();
        // in no order, and not all
        let asked = functions.iter().enumerate().filter(|(number, _)| number % 3 == 0).map(|(_, function)| function);
        let lasts: Vec<ObjAddr> = asked.clone().map(|(_, last, _)| ObjAddr(*last)).collect();
        let table = FunctionTable::new(&[elf], &lasts);
        for (start, last, name) in asked {
            let found = table.find(ObjAddr(*last)).unwrap();
            assert!(found.name == *name || found.addr.0 >= *start, "{name}: {found:?}");
        }
        assert!(lasts.len() > 1000, "{}", lasts.len());
        let largest = functions.iter().max_by_key(|(start, last, _)| last - start).unwrap();
        let few = FunctionTable::new(&[elf], &[ObjAddr(largest.0 + 1)]);
        assert!(few.find(ObjAddr(largest.1)).is_some(), "a function is covered up to its end");
        assert!(few.entries.len() < 10, "{} are kept for one address", few.entries.len());
    }
}
