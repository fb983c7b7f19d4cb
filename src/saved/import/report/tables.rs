//! The tables of a profile, filled from the frames and modules of a report.

use super::super::budget::Budget;
use super::Trouble;
use super::model::{Frame, FrameOf, Module, SiteType};
use crate::base::addr::{Addr, ModuleId};
use crate::profile::build::{TRUNCATED_STACK, UNKNOWN_STACK};
use crate::profile::identity::is_unresolved;
use crate::profile::objects::{Certainty, ObjectType};
use crate::profile::{Function, Line, Location, ModuleInfo, Stack, Stacks, SymbolStatus};
use crate::unwinder::Quality;
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// What the tables became.
pub(super) struct Finished {
    pub(super) modules: Vec<ModuleInfo>,
    pub(super) strings: Vec<String>,
    pub(super) functions: Vec<Function>,
    pub(super) locations: Vec<Location>,
    pub(super) stacks: Stacks,
}

/// See the module.
pub(super) struct Tables<'b> {
    budget: &'b mut Budget,
    frames: Vec<Frame>,
    by_frame: FxHashMap<Frame, usize>,
    modules: Vec<ModuleInfo>,
    by_path: FxHashMap<String, usize>,
    strings: Vec<String>,
    by_text: FxHashMap<String, usize>,
    functions: Vec<Function>,
    by_function: FxHashMap<Function, usize>,
    locations: Vec<Location>,
    /// By the indices of their frames.
    by_frames: FxHashMap<Box<[usize]>, usize>,
    stacks: Stacks,
    by_locations: FxHashMap<Box<[u32]>, usize>,
}

impl<'b> Tables<'b> {
    pub(super) fn new(modules: Vec<Module>, frames: Vec<Frame>, budget: &'b mut Budget) -> Result<Self, Trouble> {
        let mut tables = Self {
            budget,
            frames,
            by_frame: FxHashMap::default(),
            modules: Vec::new(),
            by_path: FxHashMap::default(),
            strings: vec![String::new()],
            by_text: FxHashMap::from_iter([(String::new(), 0)]),
            functions: Vec::new(),
            by_function: FxHashMap::default(),
            locations: Vec::new(),
            by_frames: FxHashMap::default(),
            stacks: Stacks::default(),
            by_locations: FxHashMap::default(),
        };
        for module in modules {
            tables.budget.copy(module.path.len())?;
            tables.budget.hashed::<String, usize>()?;
            tables.budget.entries::<ModuleInfo>(1)?;
            tables.by_path.entry(module.path.clone()).or_insert(tables.modules.len());
            tables.modules.push(ModuleInfo {
                id: ModuleId(tables.modules.len() as u32),
                path: PathBuf::from(module.path),
                build_id: module.build_id,
                start: Addr(hex(&module.start)?),
                end: Addr(hex(&module.end)?),
                file_offset: 0,
                // what was found is there, and nothing else can be looked up: the report has no addresses of the
                // process
                symbols: SymbolStatus { functions: true, ..SymbolStatus::default() },
                debug_package: None,
            });
        }
        Ok(tables)
    }

    /// The index of the module with this path.
    pub(super) fn module(&self, path: &str) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    /// The index of a text.
    pub(super) fn string(&mut self, text: &str) -> Result<usize, Trouble> {
        if let Some(known) = self.by_text.get(text) {
            return Ok(*known);
        }
        self.copies(2, text.len())?;
        self.budget.entries::<String>(1)?;
        self.budget.hashed::<String, usize>()?;
        self.strings.push(text.to_owned());
        self.by_text.insert(text.to_owned(), self.strings.len() - 1);
        Ok(self.strings.len() - 1)
    }

    /// Takes what an entry of another table needs from the budget.
    pub(super) fn room_for<T>(&mut self) -> Result<(), Trouble> {
        Ok(self.budget.entries::<T>(1)?)
    }

    /// Takes what so many copies of something of so many bytes need.
    pub(super) fn copies(&mut self, count: usize, bytes: usize) -> Result<(), Trouble> {
        for _ in 0..count {
            self.budget.copy(bytes)?;
        }
        Ok(())
    }

    /// Notes the type of the objects on a stack.
    pub(super) fn set_object(&mut self, stack: usize, told: &SiteType) -> Result<(), Trouble> {
        let certainty = Certainty::ALL.into_iter().find(|certainty| certainty.name() == told.certainty);
        if let Some(certainty) = certainty {
            self.budget.copy(told.name.len())?;
            self.stacks.set_object(stack, ObjectType { name: told.name.as_str().into(), certainty });
        }
        Ok(())
    }

    /// The index of a stack like that one, for the objects of one of the types that it makes.
    pub(super) fn stack_of_type(&mut self, like: usize, told: &SiteType) -> Result<usize, Trouble> {
        let Some(stack) = self.stacks.get(like).map(Stack::from) else { return Ok(like) };
        self.copies(1, size_of_val(&*stack.locations))?;
        self.budget.entries::<Stack>(1)?;
        let stack = self.stacks.push(stack);
        self.set_object(stack, told)?;
        Ok(stack)
    }

    /// The index of a stack.
    pub(super) fn stack(&mut self, stack: &[FrameOf], quality: Quality) -> Result<usize, Trouble> {
        let mut locations: Vec<u32> = Vec::new();
        let mut frames: Vec<usize> = Vec::new();
        for (place, frame) in stack.iter().enumerate() {
            let index = self.frame(frame)?;
            let (inlined, name) =
                self.frames.get(index).map_or((false, ""), |frame| (frame.inlined, frame.function.as_str()));
            if name == UNKNOWN_STACK && stack.len() == 1 {
                break;
            }
            frames.push(index);
            // The function that the calls were inlined into ends a location.
            if !inlined || place + 1 == stack.len() {
                locations.push(self.location(&frames)? as u32);
                frames.clear();
            }
        }
        let locations: Box<[u32]> = locations.into();
        if let Some(known) = self.by_locations.get(&locations).copied() {
            self.stacks.trust_at_most(known, quality);
            return Ok(known);
        }
        self.copies(2, size_of_val(&*locations))?;
        self.budget.entries::<Stack>(1)?;
        self.budget.hashed::<Box<[u32]>, usize>()?;
        let stack = self.stacks.add(&locations, quality);
        self.by_locations.insert(locations, stack);
        Ok(stack)
    }

    fn frame(&mut self, frame: &FrameOf) -> Result<usize, Trouble> {
        match frame {
            FrameOf::Index(index) => {
                let index = usize::try_from(*index).unwrap_or(usize::MAX);
                if index < self.frames.len() {
                    Ok(index)
                } else {
                    Err(format!("a stack names frame {index}, which is not there").into())
                }
            }
            FrameOf::Whole(frame) => {
                if let Some(known) = self.by_frame.get(&**frame) {
                    return Ok(*known);
                }
                self.copies(2, frame.text_bytes())?;
                self.budget.entries::<Frame>(1)?;
                self.budget.hashed::<Frame, usize>()?;
                self.frames.push((**frame).clone());
                self.by_frame.insert((**frame).clone(), self.frames.len() - 1);
                Ok(self.frames.len() - 1)
            }
        }
    }

    fn location(&mut self, frames: &[usize]) -> Result<usize, Trouble> {
        if let Some(known) = self.by_frames.get(frames) {
            return Ok(*known);
        }
        self.copies(1, frames.len() * size_of::<Line>())?;
        self.copies(1, size_of_val(frames))?;
        self.budget.entries::<Location>(1)?;
        self.budget.hashed::<Box<[usize]>, usize>()?;
        let mut lines = Vec::with_capacity(frames.len());
        let mut place = (None, 0);
        for index in frames {
            let Some(frame) = self.frames.get(*index) else { continue };
            let function = Function {
                name: frame.function.clone(),
                system_name: frame.function.clone(),
                file: frame.file.clone(),
                start_line: 0,
            };
            let module = frame.module.as_ref().and_then(|path| self.by_path.get(path)).copied();
            place = (module, frame.offset.as_deref().map_or(Ok(0), hex)?);
            let (line, inlined) = (frame.line.unwrap_or(0), frame.inlined);
            // what the file tells of a module is what was found of its frames
            if let Some(module) = module.and_then(|module| self.modules.get_mut(module)) {
                module.symbols.files |= frame.file.is_some();
                module.symbols.lines |= frame.line.is_some();
                module.symbols.inlines |= inlined;
            }
            let function = match self.by_function.get(&function) {
                Some(known) => *known,
                None => {
                    let texts = function.name.len() * 2 + function.file.as_ref().map_or(0, String::len);
                    self.budget.copy(texts * 2)?;
                    self.budget.entries::<Function>(1)?;
                    self.budget.hashed::<Function, usize>()?;
                    self.by_function.insert(function.clone(), self.functions.len());
                    self.functions.push(function);
                    self.functions.len() - 1
                }
            };
            lines.push(Line { function, line, inlined });
        }
        let (module, offset) = place;
        let start = module.and_then(|module| self.modules.get(module)).map_or(0, |module| module.start.0);
        let address = Addr(start.wrapping_add(offset));
        self.by_frames.insert(frames.into(), self.locations.len());
        self.locations.push(Location { module, address, offset, lines });
        Ok(self.locations.len() - 1)
    }

    pub(super) fn finish(mut self) -> Finished {
        // A module none of whose frames has a name is told to lack symbols, as it was in the run.
        let mut named = vec![false; self.modules.len()];
        for location in &self.locations {
            let names = location.lines.iter().filter_map(|line| self.functions.get(line.function));
            let is_named = names.into_iter().any(|f| !is_unresolved(&f.name) && f.name != TRUNCATED_STACK);
            if let Some(entry) = location.module.and_then(|module| named.get_mut(module)) {
                *entry |= is_named;
            }
        }
        for (module, named) in self.modules.iter_mut().zip(named) {
            module.symbols.functions = named;
        }
        let Self { modules, strings, functions, locations, stacks, .. } = self;
        Finished { modules, strings, functions, locations, stacks }
    }
}

/// A number in hexadecimal, with 0x.
pub(super) fn hex(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("the address `{}`", text.chars().take(40).collect::<String>()))
}
