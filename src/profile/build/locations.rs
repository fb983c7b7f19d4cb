//! Code addresses with their names.

use super::LoadedModule;
use super::shims::{Shim, shim};
use crate::base::addr::{Addr, ModuleId, ObjAddr};
use crate::profile::symbolize::{Question, SymFrame, Symbolize};
use crate::profile::{Function, Line, Location, SymbolStatus};
use crate::unwinder::Frame;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// What will be asked of which of the modules, and the addresses that lie in none.
type Questions = (Vec<(usize, Question)>, BTreeMap<ModuleId, Vec<Addr>>);

/// What the frames ask of the modules.
pub(super) fn questions<'a>(modules: &[LoadedModule], frames: impl IntoIterator<Item = &'a Frame>) -> Questions {
    let mut by_module: BTreeMap<ModuleId, Vec<Addr>> = BTreeMap::new();
    for frame in frames {
        by_module.entry(frame.module).or_default().push(frame.addr.lookup());
    }
    let mut asked = Vec::new();
    for (index, module) in modules.iter().enumerate() {
        let Some(addresses) = by_module.remove(&module.info.id) else { continue };
        let mut offsets: Vec<ObjAddr> = addresses.into_iter().map(|a| module.bias.to_object(a)).collect();
        offsets.sort_unstable();
        offsets.dedup();
        asked.push((index, (module.info.id, offsets)));
    }
    (asked, by_module)
}

/// All locations of a profile.
#[derive(Debug, Default)]
pub(super) struct Locations {
    pub(super) list: Vec<Location>,
    pub(super) functions: Vec<Function>,
    /// For each module what was resolved.
    pub(super) statuses: Vec<SymbolStatus>,
    shims: FxHashMap<u32, Shim>,
    by_address: FxHashMap<(ModuleId, Addr), u32>,
    by_function: FxHashMap<Function, usize>,
    synthetic: FxHashMap<&'static str, u32>,
}

impl Locations {
    /// Resolves the frames, one module after the other.
    pub(super) fn resolve<'a>(
        modules: &[LoadedModule],
        frames: impl IntoIterator<Item = &'a Frame>,
        symbolizer: &mut dyn Symbolize,
    ) -> Self {
        let mut all = Self { statuses: vec![SymbolStatus::default(); modules.len()], ..Self::default() };
        let (asked, by_module) = questions(modules, frames);
        let (places, questions): (Vec<usize>, Vec<Question>) = asked.into_iter().unzip();
        symbolizer.expect(&questions);
        for (index, (_, offsets)) in places.into_iter().zip(questions) {
            let Some(module) = modules.get(index) else { continue };
            let resolution = symbolizer.resolve(module.info.id, &offsets);
            if let Some(status) = all.statuses.get_mut(index) {
                *status = resolution.status;
            }
            let name = module.info.path.file_name().unwrap_or(module.info.path.as_os_str()).to_string_lossy();
            let mut frames = resolution.frames.into_iter();
            for offset in offsets {
                let address = module.bias.to_process(offset);
                let fallback = format!("{name}+{offset}");
                let id = module.info.id;
                all.add((id, address), Some(index), offset, frames.next().unwrap_or_default(), fallback);
            }
        }
        // What is left lies in no module: code that was made at run time.
        for (id, mut addresses) in by_module {
            addresses.sort_unstable();
            addresses.dedup();
            let places: Vec<ObjAddr> = addresses.iter().map(|address| ObjAddr(address.0)).collect();
            let mut frames = symbolizer.resolve(id, &places).frames.into_iter();
            for address in addresses {
                let found = frames.next().unwrap_or_default();
                let fallback = match address.script() {
                    Some(number) => format!("[script]+{number:#x}"),
                    None => format!("[jit]+{address}"),
                };
                all.add((id, address), None, ObjAddr(address.0), found, fallback);
            }
        }
        all
    }

    fn add(
        &mut self,
        key: (ModuleId, Addr),
        module: Option<usize>,
        offset: ObjAddr,
        mut frames: Vec<SymFrame>,
        fallback: String,
    ) {
        if frames.is_empty() {
            frames.push(SymFrame::default());
        }
        let shim = frames.last().and_then(|f| f.function.as_ref()).and_then(shim);
        let last = frames.len() - 1;
        let lines = frames
            .into_iter()
            .enumerate()
            .map(|(i, frame)| {
                let (name, system_name) = match frame.function {
                    Some(function) => (function.name.as_ref().to_owned(), function.system_name.as_ref().to_owned()),
                    None => (fallback.clone(), fallback.clone()),
                };
                let function = Function { name, system_name, file: frame.file, start_line: frame.start_line };
                Line { function: self.intern(function), line: frame.line, inlined: i != last }
            })
            .collect();
        let index = self.push(Location { module, address: key.1, offset: offset.0, lines });
        self.by_address.insert(key, index);
        if let Some(shim) = shim {
            self.shims.insert(index, shim);
        }
    }

    /// A location that is no code, such as the end of a stack that was cut off.
    pub(super) fn synthetic(&mut self, name: &'static str) -> u32 {
        if let Some(&known) = self.synthetic.get(name) {
            return known;
        }
        let function = Function { name: name.to_owned(), system_name: name.to_owned(), file: None, start_line: 0 };
        let lines = vec![Line { function: self.intern(function), line: 0, inlined: false }];
        let index = self.push(Location { module: None, address: Addr::NULL, offset: 0, lines });
        self.synthetic.insert(name, index);
        index
    }

    pub(super) fn index_of(&self, frame: &Frame) -> Option<u32> {
        self.by_address.get(&(frame.module, frame.addr.lookup())).copied()
    }

    /// Whether no two stacks of these frames have the same locations, if each frame has another number: as each has a
    /// location of its own, and none is left out.
    pub(super) fn tell_apart(&self, frames: &[(u32, Frame)]) -> bool {
        let mut is_taken = vec![false; self.list.len()];
        let mut has_its_own = |(_, frame): &(u32, Frame)| {
            let taken = self.index_of(frame).and_then(|place| is_taken.get_mut(place as usize));
            taken.is_some_and(|taken| !std::mem::replace(taken, true))
        };
        self.shims.is_empty() && frames.iter().all(&mut has_its_own)
    }

    /// How many of the innermost locations belong to the allocator's interface, and the outermost C++ operator of them.
    pub(super) fn leading_shims(&self, stack: &[u32]) -> (usize, Option<String>) {
        let mut operator = None;
        let mut count = 0;
        for shim in stack.iter().map_while(|location| self.shims.get(location)) {
            count += 1;
            if let Shim::Operator(name) = shim {
                operator = Some(name.clone());
            }
        }
        (count, operator)
    }

    fn push(&mut self, location: Location) -> u32 {
        self.list.push(location);
        self.list.len() as u32 - 1
    }

    fn intern(&mut self, function: Function) -> usize {
        if let Some(&known) = self.by_function.get(&function) {
            return known;
        }
        self.functions.push(function.clone());
        self.by_function.insert(function, self.functions.len() - 1);
        self.functions.len() - 1
    }
}
