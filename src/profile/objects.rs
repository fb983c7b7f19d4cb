//! The types of the objects that blocks were allocated for, as far as code tells: the names of the allocator's callers
//! (`std::__new_allocator<T>::allocate`, `alloc::boxed::Box<T>::new`), or the line of source that called it (`new T`,
//! `malloc(sizeof(T))`).
//!
//! A type is exact where the function named allocates memory for nothing else, and runs no other code that might
//! allocate and be inlined unseen. It is inferred where another reading is possible: in functions that also construct
//! objects, in modules without debug information, and wherever source is read.

mod cxx;
mod rust;
mod source;
mod template;

use super::Profile;
use rustc_hash::FxHashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A longer name is cut, in characters: of nested templates some have thousands.
const LONGEST: usize = 400;

/// A longer name of a function is not read, in bytes.
const LONGEST_READ: usize = 16 << 10;

/// The type of the objects in a block: of one of them if there are several.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectType {
    /// Its name, as the program's language writes it.
    pub name: Arc<str>,
    /// How sure that is.
    pub certainty: Certainty,
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.certainty {
            Certainty::Exact => write!(f, "{}", self.name),
            Certainty::Inferred => write!(f, "{} (inferred)", self.name),
        }
    }
}

/// How sure a type is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Certainty {
    /// The function that allocates does so for this type only.
    Exact,
    /// It looks so.
    Inferred,
}

impl Certainty {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Exact, Self::Inferred];

    /// Its name, as reports write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Inferred => "inferred",
        }
    }
}

/// A frame, as much of it as tells types.
#[derive(Clone, Copy, Debug)]
struct Caller<'a> {
    /// Index into [`Profile::functions`].
    function: usize,
    name: &'a str,
    /// Whether all that was inlined at its address is shown as frames of their own.
    shows_inlined: bool,
}

/// What a function's name says.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    /// It hands on what its caller has asked for.
    Nothing,
    /// It allocates memory for objects of this type and for nothing else.
    Allocates(String),
    /// It allocates memory for objects of this type, and may run code of theirs.
    Constructs(String),
    /// It is the program's own.
    Other,
}

/// The type that the innermost frames tell, and the number of the frame that called for memory: the first that does not
/// only hand on what its caller has asked for.
fn told<'a>(
    frames: impl Iterator<Item = Caller<'a>>,
    known: &mut FxHashMap<usize, Told>,
) -> (Option<(String, Certainty)>, usize) {
    let mut at = 0;
    for frame in frames {
        let certainty = if frame.shows_inlined { Certainty::Exact } else { Certainty::Inferred };
        match known.entry(frame.function).or_insert_with(|| told_by_name(frame.name)) {
            Told::Nothing => at += 1,
            Told::Allocates(name) => return (Some((name.clone(), Certainty::Exact)), at),
            Told::Constructs(name) => return (Some((name.clone(), certainty)), at),
            Told::Other => break,
        }
    }
    (None, at)
}

fn told_by_name(name: &str) -> Told {
    if name.len() > LONGEST_READ {
        return Told::Other;
    }
    match rust::told(name) {
        Told::Other => cxx::told(name),
        told => told,
    }
}

/// A line of source: the file of the module that was made of it, its own, its number.
type Place<'a> = (&'a Path, &'a str, u32);

impl Profile {
    /// Finds the types of the objects on the stacks of which they are not known yet. `line_of`: a line of source, if it
    /// may be read and is what the module was made of.
    pub fn find_object_types(&mut self, line_of: &mut dyn FnMut(&Path, &str, u32) -> Option<String>) {
        let mut names: FxHashMap<String, Arc<str>> = FxHashMap::default();
        let mut of_functions: FxHashMap<usize, Told> = FxHashMap::default();
        let mut of_lines: FxHashMap<(Place<'_>, bool), Option<String>> = FxHashMap::default();
        // of the location that a stack begins with, where that alone tells it: a million stacks begin with a few
        let mut of_locations: FxHashMap<u32, Option<ObjectType>> = FxHashMap::default();
        let mut found = Vec::new();
        for (number, stack) in self.stacks.iter().enumerate().filter(|(_, stack)| stack.object.is_none()) {
            let innermost = stack.locations.clone().next();
            if let Some(known) = innermost.and_then(|innermost| of_locations.get(&innermost)) {
                found.extend(known.iter().map(|object| (number, object.clone())));
                continue;
            }
            let lines = stack.locations.filter_map(|at| self.locations.get(at as usize)).flat_map(|location| {
                let module = location.module.and_then(|module| self.modules.get(module));
                // a module may have debug information for a part of its code only
                let is_covered = location.lines.last().is_some_and(|outer| outer.line > 0);
                let shows_inlined = is_covered && module.is_some_and(|module| module.symbols.inlines);
                location.lines.iter().map(move |line| (line, module, shows_inlined))
            });
            let frames = lines.clone().filter_map(|(line, _, shows_inlined)| {
                let function = line.function;
                Some(Caller { function, name: &self.functions.get(function)?.name, shows_inlined })
            });
            let (told, caller) = told(frames, &mut of_functions);
            let told = told.or_else(|| {
                let (line, module, _) = lines.clone().nth(caller)?;
                let function = self.functions.get(line.function)?;
                let (file, in_template) = (function.file.as_deref()?, function.name.contains('<'));
                let place = (module?.path.as_path(), file, line.line);
                let read = || source::told(&line_of(place.0, file, line.line)?, in_template);
                let name = of_lines.entry((place, in_template)).or_insert_with(read).clone()?;
                Some((name, Certainty::Inferred))
            });
            let object = told.map(|(name, certainty)| {
                let name = names.entry(name).or_insert_with_key(|name| shortened(name).into()).clone();
                ObjectType { name, certainty }
            });
            if let Some(innermost) = innermost
                && let Some(location) = self.locations.get(innermost as usize)
                && caller < location.lines.len()
                && location.lines.iter().all(|line| line.function < self.functions.len())
            {
                of_locations.insert(innermost, object.clone());
            }
            found.extend(object.map(|object| (number, object)));
        }
        for (number, object) in found {
            self.stacks.set_object(number, object);
        }
    }
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
