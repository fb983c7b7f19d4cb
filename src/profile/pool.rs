//! Tables that take those of many profiles, each entry once. Pure.

use super::{AllocatorUse, Function, Line, Location, ModuleInfo, Profile, Stack, Stacks};
use crate::base::addr::Addr;
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::path::PathBuf;

/// Which of several equal modules says where it lay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// That of the profile that came first.
    First,
    /// The lowest one, whatever the order of the profiles.
    Lowest,
}

/// Module, offset in it, and names: code without a module has only those.
type LocationKey = (Option<usize>, u64, Vec<Line>);

/// The tables. Addresses of locations count from the beginnings of their modules until they are handed over.
#[derive(Debug)]
pub(super) struct Pool {
    place: Place,
    strings: Vec<String>,
    functions: Vec<Function>,
    modules: Vec<ModuleInfo>,
    locations: Vec<Location>,
    stacks: Stacks,
    allocators: Vec<AllocatorUse>,
    by_text: FxHashMap<String, usize>,
    by_function: FxHashMap<Function, usize>,
    by_module: FxHashMap<(PathBuf, Option<String>), usize>,
    by_place: FxHashMap<LocationKey, usize>,
    by_locations: FxHashMap<Box<[u32]>, usize>,
}

/// The numbers that a profile's strings and stacks have in the pool.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) strings: Vec<usize>,
    pub(super) stacks: Vec<usize>,
}

impl Pool {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            strings: Vec::new(),
            functions: Vec::new(),
            modules: Vec::new(),
            locations: Vec::new(),
            stacks: Stacks::default(),
            allocators: Vec::new(),
            by_text: FxHashMap::default(),
            by_function: FxHashMap::default(),
            by_module: FxHashMap::default(),
            by_place: FxHashMap::default(),
            by_locations: FxHashMap::default(),
        }
    }

    /// About how much memory the tables take, in bytes, without what their entries point to.
    pub(super) fn size(&self) -> usize {
        fn list<T>(list: &Vec<T>) -> usize {
            list.capacity() * size_of::<T>()
        }
        fn table<K, V>(table: &FxHashMap<K, V>) -> usize {
            table.capacity() * size_of::<(K, V)>()
        }
        list(&self.strings)
            + list(&self.functions)
            + list(&self.modules)
            + list(&self.locations)
            + self.stacks.size()
            + table(&self.by_text)
            + table(&self.by_function)
            + table(&self.by_place)
            + table(&self.by_locations)
    }

    /// The number of a text.
    pub(super) fn intern(&mut self, text: &str) -> usize {
        number_of(text, &mut self.by_text, &mut self.strings)
    }

    /// Enters the tables of a profile.
    pub(super) fn enter(&mut self, profile: &Profile) -> Numbers {
        let strings = profile.strings.iter().map(|text| self.intern(text)).collect();
        let mut number = |function| number_of(function, &mut self.by_function, &mut self.functions);
        let functions: Vec<usize> = profile.functions.iter().map(&mut number).collect();
        let modules: Vec<usize> = profile.modules.iter().map(|module| self.module(module)).collect();
        for AllocatorUse { module, functions } in &profile.allocators {
            self.allocator(modules.get(*module).copied().unwrap_or_default(), functions);
        }
        let mut locations = Vec::with_capacity(profile.locations.len());
        for location in &profile.locations {
            let start =
                location.module.and_then(|module| profile.modules.get(module)).map_or(0, |module| module.start.0);
            let module = location.module.and_then(|module| modules.get(module)).copied();
            let address = Addr(location.address.0.wrapping_sub(start));
            let mut location = Location { module, address, ..location.clone() };
            for line in &mut location.lines {
                line.function = functions.get(line.function).copied().unwrap_or_default();
            }
            locations.push(self.location(location) as u32);
        }
        let stacks = profile.stacks.iter().map(|stack| {
            let list =
                stack.locations.clone().map(|at| locations.get(at as usize).copied().unwrap_or_default()).collect();
            Stack { locations: list, ..stack.into() }
        });
        let stacks = stacks.map(|stack| self.stack(stack)).collect();
        Numbers { strings, stacks }
    }

    fn module(&mut self, module: &ModuleInfo) -> usize {
        let key = (module.path.clone(), module.build_id.clone());
        let at = *self.by_module.entry(key).or_insert(self.modules.len());
        match self.modules.get_mut(at) {
            Some(known) => {
                known.symbols.functions |= module.symbols.functions;
                known.symbols.files |= module.symbols.files;
                known.symbols.lines |= module.symbols.lines;
                known.symbols.inlines |= module.symbols.inlines;
                let place = |module: &ModuleInfo| (module.start, module.end, module.file_offset);
                if self.place == Place::Lowest && place(module) < place(known) {
                    (known.start, known.end, known.file_offset) = place(module);
                }
            }
            None => self.modules.push(module.clone()),
        }
        at
    }

    fn allocator(&mut self, module: usize, functions: &[String]) {
        let known = self.allocators.iter_mut().find(|known| known.module == module);
        match known {
            Some(known) => {
                known.functions.extend(functions.iter().cloned());
                known.functions.sort_unstable();
                known.functions.dedup();
            }
            None => self.allocators.push(AllocatorUse { module, functions: functions.to_vec() }),
        }
    }

    fn location(&mut self, location: Location) -> usize {
        let key = (location.module, location.offset, location.lines.clone());
        let at = *self.by_place.entry(key).or_insert(self.locations.len());
        if at == self.locations.len() {
            self.locations.push(location);
        }
        at
    }

    fn stack(&mut self, stack: Stack) -> usize {
        if let Some(&known) = self.by_locations.get(stack.locations.as_slice()) {
            self.stacks.trust_at_most(known, stack.quality);
            let before = self.stacks.get(known).and_then(|known| known.object);
            if let Some(object) = stack.object
                && before.is_none_or(|before| object < *before)
            {
                self.stacks.set_object(known, object);
            }
            if let Some(leak) = stack.leak {
                self.stacks.add_leak(known, leak);
            }
            return known;
        }
        self.by_locations.insert(stack.locations.as_slice().into(), self.stacks.len());
        self.stacks.push(stack)
    }

    /// Hands the tables over to a profile, with `first` as the first module if it is there.
    pub(super) fn fill(mut self, profile: &mut Profile, first: Option<&(PathBuf, Option<String>)>) {
        for location in &mut self.locations {
            let start = location.module.and_then(|module| self.modules.get(module)).map_or(0, |module| module.start.0);
            location.address = Addr(location.address.0.wrapping_add(start));
        }
        if self.place == Place::Lowest {
            self.sort_modules(first);
        }
        profile.strings = self.strings;
        profile.functions = self.functions;
        profile.modules = self.modules;
        profile.locations = self.locations;
        profile.stacks = self.stacks;
        profile.allocators = self.allocators;
    }

    /// Puts the modules into an order of their own, so that it does not matter which profile came first.
    fn sort_modules(&mut self, first: Option<&(PathBuf, Option<String>)>) {
        let mut order: Vec<usize> = (0..self.modules.len()).collect();
        order.sort_by_key(|at| {
            let key = self.modules.get(*at).map(|module| (module.path.clone(), module.build_id.clone()));
            (key.as_ref() != first, key)
        });
        let mut places = vec![0; order.len()];
        for (place, old) in order.iter().enumerate() {
            if let Some(slot) = places.get_mut(*old) {
                *slot = place;
            }
        }
        self.modules = order.iter().filter_map(|at| self.modules.get(*at)).cloned().collect();
        for location in &mut self.locations {
            location.module = location.module.and_then(|module| places.get(module)).copied();
        }
        for allocator in &mut self.allocators {
            allocator.module = places.get(allocator.module).copied().unwrap_or_default();
        }
        self.allocators.sort_by_key(|allocator| allocator.module);
    }
}

/// The place of `item` in `table`, to which it is added if it is not `known` there.
fn number_of<T>(item: &T, known: &mut FxHashMap<T::Owned, usize>, table: &mut Vec<T::Owned>) -> usize
where
    T: ToOwned + Hash + Eq + ?Sized,
    T::Owned: Hash + Eq,
{
    if let Some(&at) = known.get(item) {
        return at;
    }
    let at = table.len();
    table.push(item.to_owned());
    known.insert(item.to_owned(), at);
    at
}
