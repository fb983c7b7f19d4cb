//! The tables of one track: strings, functions, frames, stacks, and the libraries that all tracks share.
//!
//! Columns are arrays of equal length; indices are into the track's own tables. A location with inlined calls is a
//! frame for each of them, of one address; depth 0 is the outermost.

use crate::export::escape::printable;
use crate::export::view::{NamedFrame, UNKNOWN_STACK, View};
use crate::profile::ModuleInfo;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};

/// Categories, which give frames their colours; `grey` is the one that stands for none.
pub(super) const OTHER: u8 = 0;
const PROGRAM: u8 = 1;
const LIBRARY: u8 = 2;
const SCRIPT: u8 = 3;

/// The type of resources that are libraries.
const OF_LIBRARY: u8 = 1;

/// The categories, in the order of their numbers.
pub(super) fn categories() -> Value {
    let category = |name: &str, color: &str| json!({ "name": name, "color": color, "subcategories": ["Other"] });
    json!([
        category("Other", "grey"),
        category("Program", "blue"),
        category("Library", "lightblue"),
        category("Script", "yellow"),
    ])
}

/// A module.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lib {
    name: String,
    path: String,
    debug_name: String,
    debug_path: String,
    breakpad_id: String,
    code_id: Option<String>,
    arch: &'static str,
}

/// The modules that frames lie in.
#[derive(Default)]
pub(super) struct Libraries {
    list: Vec<Lib>,
    /// By the profile's modules.
    known: FxHashMap<usize, usize>,
}

impl Libraries {
    pub(super) fn into_list(self) -> Vec<Lib> {
        self.list
    }

    fn number(&mut self, index: usize, module: &ModuleInfo) -> usize {
        *self.known.entry(index).or_insert_with(|| {
            let path = printable(&module.path.to_string_lossy());
            let name = name_of(&path).to_owned();
            self.list.push(Lib {
                debug_name: name.clone(),
                debug_path: path.clone(),
                name,
                path,
                breakpad_id: breakpad_id(module.build_id.as_deref().unwrap_or_default()),
                code_id: module.build_id.clone(),
                arch: "x86_64",
            });
            self.list.len() - 1
        })
    }
}

/// The name of a file without its folders.
fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The id by which symbols are looked for: the first 16 bytes of the build id as a GUID, whose first three fields are
/// little-endian, and the age 0.
fn breakpad_id(build_id: &str) -> String {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let byte = |at: usize| build_id.get(at * 2..at * 2 + 2).unwrap_or("00").to_ascii_uppercase();
    ORDER.map(byte).concat() + "0"
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    length: usize,
    /// Within the library; -1 for none.
    address: Vec<i64>,
    inline_depth: Vec<u32>,
    category: Vec<u8>,
    subcategory: Vec<u8>,
    func: Vec<usize>,
    native_symbol: Vec<Option<usize>>,
    #[serde(rename = "innerWindowID")]
    window: Vec<u8>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    /// Which bag of code it is of; -1 for none.
    resource: Vec<i64>,
    file_name: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
}

#[derive(Serialize, Default)]
struct StackTable {
    length: usize,
    prefix: Vec<Option<usize>>,
    frame: Vec<usize>,
}

#[derive(Serialize, Default)]
struct ResourceTable {
    length: usize,
    lib: Vec<usize>,
    name: Vec<usize>,
    host: Vec<Option<usize>>,
    r#type: Vec<u8>,
}

/// Functions by their addresses in libraries, for views of machine code: there are none.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    length: usize,
    address: Vec<u64>,
    function_size: Vec<u64>,
    lib_index: Vec<usize>,
    name: Vec<usize>,
}

/// What makes a function: name, file, library.
type FunctionKey = (usize, Option<usize>, i64);

/// The tables, filled as stacks need them.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tables {
    frame_table: FrameTable,
    func_table: FuncTable,
    stack_table: StackTable,
    resource_table: ResourceTable,
    native_symbols: NativeSymbols,
    string_array: Vec<String>,
    #[serde(skip)]
    strings: FxHashMap<String, usize>,
    #[serde(skip)]
    functions: FxHashMap<FunctionKey, usize>,
    /// By the profile's location: the frames, outermost first.
    #[serde(skip)]
    frames: FxHashMap<usize, Vec<usize>>,
    #[serde(skip)]
    unknown: Option<usize>,
    /// By caller and frame.
    #[serde(skip)]
    calls: FxHashMap<(Option<usize>, usize), usize>,
    /// By the library's number.
    #[serde(skip)]
    resources: FxHashMap<usize, i64>,
}

impl Tables {
    /// The number of a text.
    pub(super) fn string(&mut self, text: &str) -> usize {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let number = self.string_array.len();
        self.string_array.push(printable(text));
        self.strings.insert(text.to_owned(), number);
        number
    }

    /// The number of a stack of the profile.
    pub(super) fn stack(&mut self, view: &View<'_>, libraries: &mut Libraries, stack: usize) -> usize {
        let mut at = None;
        for location in view.locations(stack).rev() {
            for frame in self.location(view, libraries, location) {
                at = Some(self.call(at, frame));
            }
        }
        at.unwrap_or_else(|| {
            let frame = self.unknown();
            self.call(None, frame)
        })
    }

    fn call(&mut self, caller: Option<usize>, frame: usize) -> usize {
        let table = &mut self.stack_table;
        *self.calls.entry((caller, frame)).or_insert_with(|| {
            table.prefix.push(caller);
            table.frame.push(frame);
            table.length += 1;
            table.length - 1
        })
    }

    fn location(&mut self, view: &View<'_>, libraries: &mut Libraries, index: usize) -> Vec<usize> {
        if let Some(known) = self.frames.get(&index) {
            return known.clone();
        }
        let named: Vec<NamedFrame<'_>> = view.location_frames(index).collect();
        let outermost_first = named.iter().rev().zip(0..);
        let frames: Vec<usize> =
            outermost_first.map(|(frame, depth)| self.frame(view, libraries, frame, depth)).collect();
        self.frames.insert(index, frames.clone());
        frames
    }

    fn frame(&mut self, view: &View<'_>, libraries: &mut Libraries, frame: &NamedFrame<'_>, depth: u32) -> usize {
        let place = frame.location.and_then(|location| Some((location, location.module?, frame.module?)));
        let resource = place.map_or(-1, |(_, index, module)| self.resource(libraries, index, module));
        let address = place.map_or(-1, |(location, ..)| i64::try_from(location.offset).unwrap_or(-1));
        let category = match frame.module {
            _ if frame.is_script() => SCRIPT,
            Some(module) if module.path.ends_with(&view.profile.meta.process.program) => PROGRAM,
            Some(_) => LIBRARY,
            None => OTHER,
        };
        let line = Some(frame.line).filter(|line| *line > 0);
        let func = self.function(frame.name, frame.file, resource);
        self.add_frame(func, category, address, depth, line)
    }

    /// The frame that stands for an unknown stack.
    fn unknown(&mut self) -> usize {
        if let Some(known) = self.unknown {
            return known;
        }
        let func = self.function(UNKNOWN_STACK, None, -1);
        let frame = self.add_frame(func, OTHER, -1, 0, None);
        self.unknown = Some(frame);
        frame
    }

    fn add_frame(&mut self, func: usize, category: u8, address: i64, depth: u32, line: Option<u32>) -> usize {
        let table = &mut self.frame_table;
        table.address.push(address);
        table.inline_depth.push(depth);
        table.category.push(category);
        table.subcategory.push(0);
        table.func.push(func);
        table.native_symbol.push(None);
        table.window.push(0);
        table.line.push(line);
        table.column.push(None);
        table.length += 1;
        table.length - 1
    }

    fn function(&mut self, name: &str, file: Option<&str>, resource: i64) -> usize {
        let key = (self.string(name), file.map(|file| self.string(file)), resource);
        let table = &mut self.func_table;
        *self.functions.entry(key).or_insert_with(|| {
            let (name, file, resource) = key;
            table.name.push(name);
            table.is_js.push(false);
            table.relevant_for_js.push(false);
            table.resource.push(resource);
            table.file_name.push(file);
            table.line_number.push(None);
            table.column_number.push(None);
            table.length += 1;
            table.length - 1
        })
    }

    fn resource(&mut self, libraries: &mut Libraries, index: usize, module: &ModuleInfo) -> i64 {
        let lib = libraries.number(index, module);
        if let Some(known) = self.resources.get(&lib) {
            return *known;
        }
        let name = self.string(name_of(&module.path.to_string_lossy()));
        let table = &mut self.resource_table;
        table.lib.push(lib);
        table.name.push(name);
        table.host.push(None);
        table.r#type.push(OF_LIBRARY);
        let number = table.length as i64;
        table.length += 1;
        self.resources.insert(lib, number);
        number
    }
}
