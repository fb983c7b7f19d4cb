//! All of the message but its samples.

use super::super::budget::Budget;
use super::super::wire::{Fields, Torn, Value, numbers};
use super::Trouble;
use crate::base::addr::{Addr, ModuleId};
use crate::profile::{Function, Line, Location, ModuleInfo, Profile, SymbolStatus};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::fmt::Write;
use std::path::PathBuf;

/// So many lines have room in the smallest list of them.
const FIRST_LINES: usize = 2;

/// The longest text of an offset, with its sign.
const OFFSET_TEXT: usize = 20;

/// The tables as they lie in the message.
#[derive(Debug, Default)]
pub(super) struct Tables<'a> {
    strings: Vec<&'a str>,
    /// Names of columns, as indices into `strings`.
    columns: Vec<u64>,
    mappings: Vec<&'a [u8]>,
    locations: Vec<&'a [u8]>,
    functions: Vec<&'a [u8]>,
    comments: Vec<u64>,
    default_column: u64,
    drop_frames: u64,
    period_type: [u64; 2],
    period: u64,
    pub(super) time_nanos: u64,
    pub(super) duration_nanos: u64,
}

impl<'a> Tables<'a> {
    pub(super) fn read(message: &'a [u8], budget: &mut Budget) -> Result<Self, Trouble> {
        let mut tables = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, Value::Bytes(column)) => {
                    budget.entries::<(u64, &str)>(1)?;
                    tables.columns.push(value_type(column)?[0]);
                }
                (3, Value::Bytes(mapping)) => {
                    budget.entries::<(&[u8], ModuleInfo)>(1)?;
                    budget.hashed::<u64, usize>()?;
                    tables.mappings.push(mapping);
                }
                (4, Value::Bytes(location)) => {
                    budget.entries::<(&[u8], Location)>(1)?;
                    budget.hashed::<u64, u32>()?;
                    tables.locations.push(location);
                }
                (5, Value::Bytes(function)) => {
                    budget.entries::<(&[u8], Function)>(1)?;
                    budget.hashed::<u64, usize>()?;
                    tables.functions.push(function);
                }
                (6, Value::Bytes(text)) => {
                    budget.entries::<&str>(1)?;
                    tables.strings.push(text_of(text)?);
                }
                (7, Value::Number(text)) => tables.drop_frames = text,
                (9, Value::Number(time)) => tables.time_nanos = time.min(i64::MAX as u64),
                (10, Value::Number(time)) => tables.duration_nanos = time.min(i64::MAX as u64),
                (11, Value::Bytes(kind)) => tables.period_type = value_type(kind)?,
                (12, Value::Number(period)) => tables.period = period,
                (13, value) => {
                    budget.entries::<u64>(value.numbers_at_most())?;
                    numbers(value, |comment| tables.comments.push(comment))?;
                }
                (14, Value::Number(name)) => tables.default_column = name,
                _ => {}
            }
        }
        Ok(tables)
    }

    /// A text by its index; empty if there is none.
    pub(super) fn text(&self, index: u64) -> &'a str {
        usize::try_from(index).ok().and_then(|index| self.strings.get(index)).copied().unwrap_or_default()
    }

    /// All texts, with their indices.
    pub(super) fn texts(&self) -> impl Iterator<Item = (u64, &'a str)> {
        (0..).zip(self.strings.iter().copied())
    }

    pub(super) fn column_names(&self) -> Vec<&'a str> {
        self.columns.iter().map(|name| self.text(*name)).collect()
    }

    pub(super) fn comments(&self) -> impl Iterator<Item = &'a str> + Clone {
        self.comments.iter().map(|index| self.text(*index))
    }

    /// The name of the column to show first; some tools write its number instead, and then it is any name.
    pub(super) fn default_column(&self) -> &'a str {
        self.text(self.default_column)
    }

    /// The functions that pprof hides, as a regular expression.
    pub(super) fn drop_frames(&self) -> &'a str {
        self.text(self.drop_frames)
    }

    /// The mean sampling interval in bytes; 0 if all was recorded, or if the file does not say.
    pub(super) fn interval(&self) -> u64 {
        let [kind, unit] = self.period_type.map(|index| self.text(index));
        if kind == "space" && unit == "bytes" && (2..=i64::MAX as u64).contains(&self.period) { self.period } else { 0 }
    }

    pub(super) fn modules(&self, budget: &mut Budget) -> Result<Vec<ModuleInfo>, Trouble> {
        let mut modules = Vec::with_capacity(self.mappings.len());
        for (index, bytes) in (0..).zip(&self.mappings) {
            let number = |field| field_number(bytes, field);
            let flag = |field| number(field) != 0;
            let (path, build_id) = (self.text(number(5)), self.text(number(6)));
            budget.copy(path.len())?;
            budget.copy(build_id.len())?;
            modules.push(ModuleInfo {
                id: ModuleId(index),
                path: PathBuf::from(path),
                build_id: (!build_id.is_empty()).then(|| build_id.to_owned()),
                start: Addr(number(2)),
                end: Addr(number(3)),
                file_offset: number(4),
                symbols: SymbolStatus { functions: flag(7), files: flag(8), lines: flag(9), inlines: flag(10) },
                debug_package: None,
            });
        }
        Ok(modules)
    }

    /// Fills the profile's tables of functions and locations.
    pub(super) fn functions_and_locations(&self, profile: &mut Profile, budget: &mut Budget) -> Result<(), Trouble> {
        let mut functions: FxHashMap<u64, usize> = FxHashMap::default();
        for bytes in &self.functions {
            let number = |field| field_number(bytes, field);
            let (name, system_name, file) = (self.text(number(2)), self.text(number(3)), self.text(number(4)));
            let name = if name.is_empty() { system_name } else { name };
            let system_name = if system_name.is_empty() { name } else { system_name };
            for text in [name, system_name, file] {
                budget.copy(text.len())?;
            }
            let function = Function {
                name: name.to_owned(),
                system_name: system_name.to_owned(),
                file: (!file.is_empty()).then(|| file.to_owned()),
                start_line: u32::try_from(number(5)).unwrap_or(0),
            };
            functions.insert(number(1), profile.functions.len());
            profile.functions.push(function);
        }
        let mappings: FxHashMap<u64, usize> =
            self.mappings.iter().enumerate().map(|(index, bytes)| (field_number(bytes, 1), index)).collect();
        for bytes in &self.locations {
            let module = mappings.get(&field_number(bytes, 2)).copied();
            let mut lines = self.lines(bytes, &functions, budget)?;
            let address = field_number(bytes, 3);
            let found = module.and_then(|module| profile.modules.get(module));
            let offset = offset(found, address);
            if lines.is_empty() {
                let name = file_name(found);
                for _ in 0..2 {
                    budget.copy(name.len() + OFFSET_TEXT)?;
                }
                budget.entries::<Function>(1)?;
                budget.entries::<Line>(FIRST_LINES)?;
                // without the room for more that format! leaves
                let mut text = String::with_capacity(name.len() + OFFSET_TEXT);
                text.push_str(&name);
                let _never_fails = write!(text, "+{offset:#x}");
                let name = text;
                lines.push(Line { function: profile.functions.len(), line: 0, inlined: false });
                profile.functions.push(Function { system_name: name.clone(), name, file: None, start_line: 0 });
            }
            profile.locations.push(Location { module, address: Addr(address), offset, lines });
        }
        Ok(())
    }

    fn lines(
        &self,
        location: &[u8],
        functions: &FxHashMap<u64, usize>,
        budget: &mut Budget,
    ) -> Result<Vec<Line>, Trouble> {
        let mut lines = Vec::new();
        for field in Fields::of(location) {
            if let (4, Value::Bytes(line)) = field? {
                budget.entries::<Line>(if lines.is_empty() { FIRST_LINES } else { 1 })?;
                let function = field_number(line, 1);
                let function = functions.get(&function);
                let function = *function.ok_or_else(|| Trouble::Damaged("a line of an unknown function".to_owned()))?;
                let number = u32::try_from(field_number(line, 2)).unwrap_or(0);
                lines.push(Line { function, line: number, inlined: true });
            }
        }
        if let Some(last) = lines.last_mut() {
            last.inlined = false;
        }
        Ok(lines)
    }

    /// Notes where each location is, by its id.
    pub(super) fn index(&self) -> FxHashMap<u64, u32> {
        (0..).zip(&self.locations).map(|(index, bytes)| (field_number(bytes, 1), index)).collect()
    }
}

/// Where in its file, or in the process, a location is.
fn offset(module: Option<&ModuleInfo>, address: u64) -> u64 {
    module.map_or(address, |module| address.wrapping_sub(module.start.0).wrapping_add(module.file_offset))
}

/// How the file of a location without names is called.
fn file_name(module: Option<&ModuleInfo>) -> Cow<'_, str> {
    let Some(module) = module else { return Cow::Borrowed("[unknown]") };
    match module.path.file_name().map(std::ffi::OsStr::to_string_lossy) {
        Some(name) if !name.is_empty() => name,
        // memory_sampler's mappings have a build id only
        _ => module.build_id.as_deref().map_or(Cow::Borrowed("[unknown]"), Cow::Borrowed),
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, Trouble> {
    std::str::from_utf8(bytes).map_err(|_| Trouble::Damaged("a text that is not UTF-8".to_owned()))
}

/// The two numbers of a ValueType: its name and its unit.
fn value_type(bytes: &[u8]) -> Result<[u64; 2], Torn> {
    let mut found = [0; 2];
    for field in Fields::of(bytes) {
        match field? {
            (1, Value::Number(name)) => found[0] = name,
            (2, Value::Number(unit)) => found[1] = unit,
            _ => {}
        }
    }
    Ok(found)
}

/// A number of a message; 0 where it is not there.
fn field_number(bytes: &[u8], number: u64) -> u64 {
    let value = |field| match field {
        Ok((found, Value::Number(value))) if found == number => Some(value),
        _ => None,
    };
    Fields::of(bytes).filter_map(value).last().unwrap_or(0)
}
