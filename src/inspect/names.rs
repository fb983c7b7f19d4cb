//! Names of roots and types, from the modules' symbols.

use super::modules::Objects;
use crate::base::addr::{Addr, LoadBias, ModuleId, ObjAddr};
use crate::heap::graph::contents::Contents;
use crate::heap::graph::declared::Present;
use crate::heap::graph::holders::RootNames;
use crate::heap::graph::types::TableNames;
use crate::heap::leaks::RootKind;
use crate::image::maps::Mapping;
use crate::profile::symbolize::Symbolize;
use crate::symbols::{Search, Symbolizer, function_name};
use crate::tracer::root::TargetRoot;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

/// What compilers call the function that drops a value: `core::ptr::drop_in_place<T>`, with `::` before the type in
/// newer names.
const DROP: &str = "drop_in_place";

/// Where a module lies.
struct Place {
    id: ModuleId,
    range: Range<Addr>,
    bias: LoadBias,
    file: String,
}

/// Names.
pub(super) struct Names<'a> {
    symbolizer: Symbolizer,
    /// In the order of addresses.
    places: Vec<Place>,
    /// Which of them a module is.
    numbers: BTreeMap<u32, usize>,
    thread_names: &'a BTreeMap<i32, String>,
    mappings: &'a [Mapping],
    contents: &'a Contents,
    /// By the address of the function: what it drops. None: not looked up yet.
    dropped: Option<BTreeMap<Addr, String>>,
    declared: Option<&'a Present<'a>>,
    /// The variable that was named last: many pointers lie in one.
    last: Option<(Range<Addr>, String)>,
}

impl<'a> Names<'a> {
    pub(super) fn new(
        objects: &Objects,
        root: Option<&TargetRoot>,
        thread_names: &'a BTreeMap<i32, String>,
        mappings: &'a [Mapping],
        contents: &'a Contents,
        declared: Option<&'a Present<'a>>,
    ) -> Self {
        let root = root.map_or_else(|| PathBuf::from("/"), TargetRoot::path);
        let mut symbolizer = Symbolizer::new(Search::new(&[], None, None, root));
        let mut places = Vec::new();
        for object in &objects.found {
            let file = object.path.file_name().unwrap_or(object.path.as_os_str()).to_string_lossy().into_owned();
            places.push(Place { id: object.id, range: object.range.clone(), bias: object.bias, file });
            symbolizer.add_module(object.id, object.source());
        }
        places.sort_by_key(|place: &Place| place.range.start);
        let numbers = places.iter().enumerate().map(|(number, place)| (place.id.0, number)).collect();
        Self { symbolizer, places, numbers, thread_names, mappings, contents, dropped: None, declared, last: None }
    }

    fn place(&self, addr: Addr) -> Option<&Place> {
        let behind = self.places.partition_point(|place| place.range.start <= addr);
        // modules lie apart from each other, but for parts of one that are mapped into another's holes
        self.places.get(..behind)?.iter().rev().find(|place| place.range.contains(&addr))
    }

    fn object(&self, addr: Addr) -> Option<(ModuleId, ObjAddr)> {
        let place = self.place(addr)?;
        Some((place.id, place.bias.to_object(addr)))
    }

    /// What a root is called.
    fn of_root(&mut self, kind: RootKind, addr: Option<Addr>) -> String {
        let thread = |tid: i32| match self.thread_names.get(&tid).filter(|name| !name.is_empty()) {
            Some(name) => format!("thread {tid} ({name})"),
            None => format!("thread {tid}"),
        };
        match kind {
            RootKind::Data { module } => self.variable(module, addr),
            RootKind::Stack { tid } => format!("stack of {}", thread(tid)),
            RootKind::Tls { tid } => format!("thread-local variables of {}", thread(tid)),
            RootKind::ThreadData { tid } => format!("thread-specific data of {}", thread(tid)),
            RootKind::Register { tid, .. } => format!("registers of {}", thread(tid)),
            RootKind::Registered => "memory that the program has registered".to_owned(),
            RootKind::Ignored => "the program's word that it is not a leak".to_owned(),
            RootKind::InMotion => "being allocated or freed by a thread in the allocator".to_owned(),
            RootKind::Kernel(holder) => holder.name(thread),
            RootKind::Anonymous => {
                let at = |addr: Addr| {
                    let behind = self.mappings.partition_point(|mapping| mapping.end <= addr);
                    self.mappings.get(behind).filter(|mapping| mapping.contains(addr))
                };
                match addr.and_then(at) {
                    Some(Mapping { path: Some(path), start, .. }) => {
                        format!("mapping of {} at {start}", path.display())
                    }
                    Some(mapping) => format!("mapping at {}", mapping.start),
                    None => "mapped memory outside the allocator".to_owned(),
                }
            }
        }
    }

    fn variable(&mut self, module: ModuleId, addr: Option<Addr>) -> String {
        if let Some((range, name)) = &self.last
            && addr.is_some_and(|addr| range.contains(&addr))
        {
            return name.clone();
        }
        let Some(place) = self.numbers.get(&module.0).and_then(|number| self.places.get(*number)) else {
            return "data of a module".to_owned();
        };
        let (bias, file) = (place.bias, place.file.clone());
        let Some(addr) = addr else { return format!("data of {file}") };
        match self.symbolizer.variable(module, bias.to_object(addr)) {
            Some((name, offset)) => {
                let name = format!("global `{name}` in {file}");
                // up to here it is the same one
                self.last = Some((addr.sub(offset)..addr.add(1), name.clone()));
                name
            }
            None => format!("data of {file}"),
        }
    }

    /// Looks up what all functions of Rust tables drop: at once, as debug information is read for each question.
    fn look_up_dropped(&mut self) -> BTreeMap<Addr, String> {
        let mut questions: BTreeMap<u32, Vec<(Addr, ObjAddr)>> = BTreeMap::new();
        for table in self.contents.tables.iter().filter(|table| table.class.is_none()) {
            if let Some((module, object)) = self.object(table.first) {
                questions.entry(module.0).or_default().push((table.first, object));
            }
        }
        let mut dropped = BTreeMap::new();
        for (module, asked) in questions {
            let objects: Vec<ObjAddr> = asked.iter().map(|(_, object)| *object).collect();
            let resolution = self.symbolizer.resolve(ModuleId(module), &objects);
            for ((addr, _), frames) in asked.into_iter().zip(resolution.frames) {
                let name =
                    frames.last().and_then(|frame| frame.function.as_ref()).map(|function| function.name.to_string());
                if let Some(of) = name.as_deref().and_then(type_of_drop) {
                    dropped.insert(addr, of.to_owned());
                }
            }
        }
        dropped
    }
}

/// `T` of `core::ptr::drop_in_place<T>` and `core::ptr::drop_in_place::<T>`.
fn type_of_drop(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once(DROP)?;
    let rest = rest.strip_prefix("::").unwrap_or(rest);
    rest.strip_prefix('<')?.strip_suffix('>')
}

/// A class by the mangled name in its type information.
pub(super) fn class_name(class: &[u8]) -> Option<String> {
    let mangled = format!("_ZTS{}", String::from_utf8_lossy(class));
    let name = function_name(&mangled).name;
    Some(name.strip_prefix("typeinfo name for ")?.to_owned())
}

impl RootNames for Names<'_> {
    fn holder(&mut self, kind: RootKind, addr: Option<Addr>) -> String {
        self.of_root(kind, addr)
    }

    fn member(&mut self, addr: Addr) -> Option<String> {
        self.declared?.path(addr)
    }
}

impl TableNames for Names<'_> {
    fn class(&mut self, table: u32) -> Option<String> {
        let table = self.contents.tables.get(table as usize)?;
        if let Some(class) = &table.class {
            return class_name(class);
        }
        let (module, object) = self.object(table.at)?;
        let (name, _) = self.symbolizer.variable(module, object)?;
        Some(name.strip_prefix("vtable for ")?.to_owned())
    }

    fn dropped(&mut self, table: u32) -> Option<String> {
        let first = self.contents.tables.get(table as usize)?.first;
        if self.dropped.is_none() {
            self.dropped = Some(self.look_up_dropped());
        }
        self.dropped.as_ref()?.get(&first).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::type_of_drop;

    #[test]
    fn what_a_function_drops_is_in_its_name() {
        assert_eq!(type_of_drop("core::ptr::drop_in_place<alloc::vec::Vec<u8>>"), Some("alloc::vec::Vec<u8>"));
        assert_eq!(type_of_drop("core::ptr::drop_in_place::<dog::Dog>"), Some("dog::Dog"));
        assert_eq!(type_of_drop("free"), None);
    }
}
