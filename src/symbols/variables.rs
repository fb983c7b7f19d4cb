//! Names of variables, for the roots of a leak scan.

use super::{ModuleSource, demangle, module_file, packed_symbols, parse, unhex};
use crate::base::addr::ObjAddr;
use crate::image::elf::{Binding, Elf, SymbolKind, base_name};
use crate::symbols::Search;

/// The variables of one module, by address.
#[derive(Debug, Default)]
pub(super) struct Variables {
    sorted: Vec<Variable>,
}

#[derive(Debug)]
struct Variable {
    start: ObjAddr,
    end: ObjAddr,
    name: String,
}

impl Variables {
    /// Those of the module's own file and of its debug file.
    pub(super) fn of(source: &ModuleSource, search: &Search, warn: &mut dyn FnMut(String)) -> Self {
        let file = module_file(source, search, warn);
        let own = file.as_ref().and_then(|(_, bytes)| Elf::parse(bytes).ok());
        let memory = source.memory.as_ref().filter(|_| own.is_none());
        let image = memory.and_then(|memory| Elf::parse_memory(&memory.bytes, memory.start).ok());
        let known = own.or(image);
        let debug_file = if own.is_some_and(|elf| elf.has_symtab()) {
            None
        } else {
            let build_id = source.build_id.as_deref().and_then(unhex);
            search.debug_file(&source.path, build_id.as_deref(), known.as_ref(), warn)
        };
        let debug = debug_file.as_ref().and_then(|(place, bytes)| parse(place, bytes, warn));
        let packed = packed_symbols([own, debug], &source.path, warn);
        let mini = packed.as_ref().and_then(|bytes| parse(&source.path, bytes, warn));
        let objects: Vec<Elf<'_>> = [known, debug, mini].into_iter().flatten().collect();
        Self::index(&objects)
    }

    fn index(objects: &[Elf<'_>]) -> Self {
        let mut found: Vec<_> = objects
            .iter()
            .flat_map(Elf::all_symbols)
            .filter(|symbol| symbol.kind == SymbolKind::Object && symbol.size > 0)
            .collect();
        // Of several names of one place, an exported one without underscores before it is the one that people know.
        found.sort_by_cached_key(|symbol| {
            let name = base_name(&symbol.name);
            let underscores = name.bytes().take_while(|&byte| byte == b'_').count();
            (symbol.addr, symbol.binding == Binding::Local, underscores, name.to_owned())
        });
        found.dedup_by_key(|symbol| symbol.addr);
        let variable = |symbol: &crate::image::elf::Symbol<'_>| Variable {
            start: symbol.addr,
            end: ObjAddr(symbol.addr.0.saturating_add(symbol.size)),
            name: demangle::function_name(base_name(&symbol.name)).name.as_ref().to_owned(),
        };
        Self { sorted: found.iter().map(variable).collect() }
    }

    /// The variable that `addr` lies in, and how far behind its start.
    pub(super) fn find(&self, addr: ObjAddr) -> Option<(String, u64)> {
        let last = self.sorted.partition_point(|variable| variable.start <= addr).checked_sub(1)?;
        let variable = self.sorted.get(last).filter(|variable| addr < variable.end)?;
        Some((variable.name.clone(), addr.0 - variable.start.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;

    const SOURCE: &str = "
struct list { void *head; void *tail; } queue;
static void *hidden[4];
int main(void) { hidden[1] = &queue; return hidden[0] == 0; }
";

    #[test]
    fn a_variable_is_named_with_the_offset_into_it() {
        let dir = TempDir::new("variables");
        let program = dir.compile("cc", "program", SOURCE, &["-O0"]);
        let bytes = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let variables = Variables::index(&[elf]);
        let queue = elf.find_symbol("queue").unwrap().addr;
        assert_eq!(variables.find(queue), Some(("queue".to_owned(), 0)));
        assert_eq!(variables.find(ObjAddr(queue.0 + 8)), Some(("queue".to_owned(), 8)));
        let hidden = elf.find_symbol("hidden").unwrap().addr;
        assert_eq!(variables.find(ObjAddr(hidden.0 + 24)), Some(("hidden".to_owned(), 24)));
        assert_eq!(variables.find(ObjAddr(1)), None);
    }
}
