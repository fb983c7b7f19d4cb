//! Pointers into the inside of blocks that are the only ones a correct program keeps.

use super::index::points_behind;
use crate::base::addr::Addr;
use crate::base::memory::{MemoryImage, ReadMemory};
use crate::heapmodel::LiveBlock;
use crate::image::maps::{Kind, Mapping};
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Which layouts are recognized. All by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heuristics {
    /// `std::string` of libstdc++'s old layout: length, capacity and reference count stand before the text.
    pub std_string: bool,
    /// `new T[n]` with n before the elements; also blocks whose first word is the size of the rest (Memcheck's
    /// `length64`, which is a special case of it where pointers have 64 bits).
    pub new_array: bool,
    /// A C++ object with several bases, pointed to by a base that is not its first.
    pub multiple_inheritance: bool,
    /// Rust's `Arc` and `Rc`, by pointers to the value: the two counts stand before it.
    pub reference_counts: bool,
    /// The hash tables of Rust (hashbrown), by their pointer to the control bytes behind the buckets.
    pub hashbrown: bool,
}

impl Default for Heuristics {
    fn default() -> Self {
        Self { std_string: true, new_array: true, multiple_inheritance: true, reference_counts: true, hashbrown: true }
    }
}

impl Heuristics {
    /// None of them.
    #[cfg(test)]
    pub const NONE: Self = Self {
        std_string: false,
        new_array: false,
        multiple_inheritance: false,
        reference_counts: false,
        hashbrown: false,
    };
}

/// The readable mappings of files: where C++ tables of virtual functions can be, and the functions; and what may end
/// before its mapping does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MappedFiles {
    ranges: Vec<FileRange>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct FileRange {
    start: Addr,
    end: Addr,
    execute: bool,
    path: Option<Arc<PathBuf>>,
}

impl MappedFiles {
    /// The mapped files among the mappings of a process, which are in the order of addresses.
    pub fn of(mappings: &[Mapping]) -> Self {
        let ranges = mappings
            .iter()
            .filter(|mapping| mapping.kind == Kind::File && mapping.perms.read)
            .map(|mapping| FileRange {
                start: mapping.start,
                end: mapping.end,
                execute: mapping.perms.execute,
                path: mapping.path.clone().map(Arc::new),
            })
            .collect();
        Self { ranges }
    }

    /// Whether a file is mapped at `addr`.
    pub(super) fn contain(&self, addr: Addr) -> bool {
        self.range(addr).is_some()
    }

    /// What is mapped at `addr`, in words: the file's path, or where memory without one is.
    pub(super) fn name_at(&self, addr: Addr) -> String {
        let path = self.range(addr).and_then(|range| range.path.as_deref());
        path.map_or_else(|| format!("memory at {addr}"), |path| path.display().to_string())
    }

    fn range(&self, addr: Addr) -> Option<&FileRange> {
        let behind = self.ranges.partition_point(|range| range.start <= addr);
        self.ranges.get(behind.checked_sub(1)?).filter(|range| addr < range.end)
    }
}

/// Decides which pointers into the inside count as pointers to the start. Pointers must come in the order of addresses.
pub(super) struct Judge<'a> {
    heuristics: &'a Heuristics,
    files: &'a MappedFiles,
    memory: &'a mut dyn ReadMemory,
    /// Some memory around the block that was looked at last.
    window: MemoryImage,
    tables: FxHashMap<Addr, bool>,
}

/// So much is read around a block, from the page's start on: neighbours are mostly looked at next.
const WINDOW: usize = 8192;
const PAGE: u64 = 4096;

/// The largest reference count that is believed.
const MAX_COUNT: u64 = u32::MAX as u64;

/// So many words of a table of virtual functions are looked at.
const TABLE_WORDS: u64 = 20;

/// hashbrown looks at so many control bytes at once (SSE2), and has so many more of them than buckets.
const GROUP: u64 = 16;

impl<'a> Judge<'a> {
    pub(super) fn new(heuristics: &'a Heuristics, files: &'a MappedFiles, memory: &'a mut dyn ReadMemory) -> Self {
        Self { heuristics, files, memory, window: MemoryImage::default(), tables: FxHashMap::default() }
    }

    /// Whether a pointer `offset` bytes behind the block's start counts as one to its start.
    pub(super) fn is_start(&mut self, block: &LiveBlock, offset: u64) -> bool {
        let on = *self.heuristics;
        if points_behind(block, offset) {
            return on.new_array && self.new_array(block, offset);
        }
        on.std_string && self.std_string(block, offset)
            || on.new_array && self.new_array(block, offset)
            || on.reference_counts && self.reference_counts(block, offset)
            || on.hashbrown && self.hashbrown(block, offset)
            || on.multiple_inheritance && self.multiple_inheritance(block, offset)
    }

    fn word(&mut self, block: &LiveBlock, offset: u64) -> Option<u64> {
        let inside = offset.checked_add(8)? <= block.size;
        let mut word = [0; 8];
        (inside && self.bytes(block, offset, &mut word)).then(|| u64::from_le_bytes(word))
    }

    /// Reads all of `buf` from `offset` bytes behind the block's start on.
    fn bytes(&mut self, block: &LiveBlock, offset: u64, buf: &mut [u8]) -> bool {
        let addr = block.addr.add(offset);
        if self.window.read(addr, buf) == buf.len() {
            return true;
        }
        self.window.start = addr.sub(addr.0 % PAGE);
        self.window.bytes.resize(WINDOW, 0);
        let read = self.memory.read(self.window.start, &mut self.window.bytes);
        self.window.bytes.truncate(read);
        self.window.read(addr, buf) == buf.len() || self.memory.read(addr, buf) == buf.len()
    }

    /// Length, capacity and count, 8 bytes each, then capacity + 1 bytes of text.
    fn std_string(&mut self, block: &LiveBlock, offset: u64) -> bool {
        if offset != 24 {
            return false;
        }
        let (Some(length), Some(capacity)) = (self.word(block, 0), self.word(block, 8)) else { return false };
        capacity.checked_add(25) == Some(block.size) && length <= capacity
    }

    /// The number of elements, then the elements; there may be none.
    fn new_array(&mut self, block: &LiveBlock, offset: u64) -> bool {
        if points_behind(block, offset) {
            return self.word(block, offset.saturating_sub(8)) == Some(0);
        }
        offset == 8 && self.word(block, 0).is_some_and(|count| count > 0 && (block.size - 8).is_multiple_of(count))
    }

    /// Strong and weak count, then the value at its alignment.
    fn reference_counts(&mut self, block: &LiveBlock, offset: u64) -> bool {
        if offset < 16 || !offset.is_power_of_two() || !block.addr.0.is_multiple_of(offset.max(16)) {
            return false;
        }
        let (Some(strong), Some(weak)) = (self.word(block, 0), self.word(block, 8)) else { return false };
        (1..=MAX_COUNT).contains(&strong) && (1..=MAX_COUNT).contains(&weak)
    }

    /// Buckets downwards, control bytes upwards: one for each bucket, then the first 16 of them again. A free bucket's
    /// is 0xff, a deleted one's 0x80, others have seven bits of the hash. A table is never full.
    fn hashbrown(&mut self, block: &LiveBlock, offset: u64) -> bool {
        let Some(buckets) = block.size.checked_sub(offset).and_then(|n| n.checked_sub(GROUP)) else { return false };
        if buckets < 2 || !buckets.is_power_of_two() || !offset.is_multiple_of(GROUP) {
            return false;
        }
        // the buckets' size is a multiple of their number, rounded up to 16
        if buckets >= GROUP && !offset.is_multiple_of(buckets) {
            return false;
        }
        let (mut first, mut mirror) = ([0; GROUP as usize], [0; GROUP as usize]);
        let copied = buckets.min(GROUP) as usize;
        let (Some(first), Some(mirror)) = (first.get_mut(..copied), mirror.get_mut(..copied)) else { return false };
        // the mirror of a small table stands behind the first group, of a large one behind the buckets
        self.bytes(block, offset, first)
            && self.bytes(block, offset + buckets.max(GROUP), mirror)
            && first == mirror
            && self.has_free_buckets(block, offset, buckets)
    }

    /// Whether the control bytes are such, and enough of them are free.
    fn has_free_buckets(&mut self, block: &LiveBlock, offset: u64, buckets: u64) -> bool {
        let capacity = if buckets <= 8 { buckets - 1 } else { buckets / 8 * 7 };
        // in a small table, what fills its first group stays free
        let bytes = buckets.max(GROUP);
        let mut free = 0;
        let mut group = [0; GROUP as usize];
        for at in (0..bytes).step_by(group.len()) {
            if !self.bytes(block, offset + at, &mut group) {
                return false;
            }
            if group.iter().any(|byte| !matches!(byte, 0..=0x7f | 0x80 | 0xff)) {
                return false;
            }
            free += group.iter().filter(|byte| **byte == 0xff).count() as u64;
        }
        free >= bytes - capacity
    }

    /// A pointer to a table of virtual functions stands at the block's start, and another one where the pointer points.
    fn multiple_inheritance(&mut self, block: &LiveBlock, offset: u64) -> bool {
        if self.files.ranges.is_empty() || !block.addr.add(offset).0.is_multiple_of(8) {
            return false;
        }
        let inner = self.word(block, offset);
        inner.is_some_and(|table| self.is_function_table(Addr(table)))
            && self.word(block, 0).is_some_and(|table| self.is_function_table(Addr(table)))
    }

    /// Whether two pointers to code come first there, null pointers aside (functions that are not there).
    fn is_function_table(&mut self, table: Addr) -> bool {
        if !table.0.is_multiple_of(8) {
            return false;
        }
        let Some(range) = self.files.range(table) else { return false };
        let end = range.end;
        if let Some(known) = self.tables.get(&table) {
            return *known;
        }
        let known = self.has_two_functions(table, end);
        self.tables.insert(table, known);
        known
    }

    fn has_two_functions(&mut self, table: Addr, end: Addr) -> bool {
        let mut functions = 0;
        for word in 0..=TABLE_WORDS {
            let at = table.add(word * 8);
            if at.add(8) > end {
                return false;
            }
            let Some(function) = self.memory.read_u64(at) else { return false };
            if function == 0 {
                continue;
            }
            if !self.files.range(Addr(function)).is_some_and(|range| range.execute) {
                return false;
            }
            functions += 1;
            if functions == 2 {
                return true;
            }
        }
        false
    }
}
