//! A process whose heaptrace was killed together with its guardian: its code still holds our breakpoints, and pads, and
//! nobody knows of them any more. What stands there is found by comparing the code with the files that it was mapped
//! from.
//!
//! An int3 that a file does not have may be a debugger's, or the program's own. It is taken for ours only if all of
//! these hold: the code of a remote call or the handler for SIGTRAP, which no one else writes, stands in the slack of a
//! module; nobody traces the process; the page is private and the file is proved by its headers, build id included; and
//! a function begins there or a call returns there. A jump is ours if it leads to a region that begins as the jump
//! engine's does: nobody else has one. Whatever else differs is left alone and counted.
//!
//! The repair itself is the guardian's.

use super::rescue::{Space, Written};
use crate::arch::{INT3, PAGE_SIZE, step};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::breakpoints::patches::own::JUMP_LEN;
use crate::breakpoints::patches::{Patch, Patches};
use crate::image::elf::Elf;
use crate::image::maps::{self, Kind, MappedModule, Mapping};
use crate::jump::layout::{ASKS, ASKS_AT, Active, CODE_SIZE, MAGIC, NOP, REGION_SIZE, STATE_ACTIVE, VERSION};
use crate::jump::stub::STUBS;
use crate::tracer::code::write;
use crate::tracer::memory::TargetMemory;
use crate::tracer::remote::code as remote_code;
use crate::tracer::root::TargetRoot;
use crate::tracer::sigtrap_fallback::{self, SigtrapFallback};
use crate::tracer::{Result, TracerError, files, limits, procfs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// So much of a file's beginning is compared: headers and notes.
const HEAD: u64 = 4 * PAGE_SIZE;

/// The largest file in which functions are looked for, in bytes, and the largest where memory is short.
const LARGEST_READ: u64 = 1 << 30;
const ALWAYS_READ: u64 = 256 << 20;

/// Code is compared in pieces of so many bytes.
const PIECE: u64 = 64 * 1024;

/// The first byte of `jmp rel32`.
const JUMP: u8 = 0xe9;

/// Room for our code begins at multiples of this.
const ALIGNMENT: usize = 16;

/// What a heaptrace that was killed has left in a process.
#[derive(Debug)]
pub struct Orphan {
    space: Space,
    unproved: usize,
}

/// What has become of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repaired {
    /// Breakpoints that were taken out.
    pub breakpoints: usize,
    /// Breakpoints that could not be taken out.
    pub left: usize,
    /// Changed bytes of code that are not certain to be ours, and were left alone.
    pub unproved: usize,
}

/// What a look for one has shown.
#[derive(Debug)]
pub enum Looked {
    /// There is nothing.
    Clean,
    /// A task with this id traces the process: its breakpoints are that one's.
    Traced(i32),
    /// This was left.
    Orphan(Box<Orphan>),
}

impl Orphan {
    /// Looks for what a heaptrace that is gone has left in process `pid`. Touches nothing.
    ///
    /// # Errors
    /// If the process can't be read.
    pub fn find(pid: i32) -> Result<Looked> {
        let threads = procfs::tasks(pid)?;
        // A thread that has ended since they were listed has no tracer that anybody could see.
        if let Some(tracer) = threads.iter().filter_map(|&tid| procfs::tracer_of(tid)).find(|&tracer| tracer != 0) {
            return Ok(Looked::Traced(tracer));
        }
        let look = |tid| Ok((tid, procfs::maps(tid)?, TargetMemory::open(pid, tid)?));
        let (tid, text, memory) = match procfs::through_any(pid, threads, look) {
            Err(error) if error.is_out_of_reach() => return Ok(Looked::Clean),
            seen => seen?,
        };
        let Ok(mappings) = maps::parse(&text) else { return Ok(Looked::Clean) };
        let modules = maps::modules(&mappings);
        let regions = jump_regions(&memory, &mappings);
        let Some(evidence) = modules.iter().find_map(|module| evidence(&memory, module)) else {
            return Ok(Looked::Clean);
        };
        let (fallback, others_fallback) = (evidence.installed, evidence.installed);
        let mut written = Written { fallback, others_fallback, ..Written::default() };
        regions.iter().for_each(|region| note_region(&memory, *region, &mut written.patches));
        let mut search = Search { pid, tid, root: TargetRoot::of(tid), memory, regions, written, unproved: 0 };
        for module in modules.iter().filter(|module| !module.is_vdso()) {
            search.compare(module);
        }
        let Search { memory, written, unproved, .. } = search;
        Ok(Looked::Orphan(Box::new(Self { space: Space { pid, memory, written, _claim: None }, unproved })))
    }

    /// How many breakpoints of ours stand in its code.
    pub fn breakpoints(&self) -> usize {
        self.space.written.patches.iter().len()
    }

    /// How many changed bytes of code are not certain to be ours.
    pub const fn unproved(&self) -> usize {
        self.unproved
    }

    /// Gives the process its code back, as the guardian would have: breakpoints first, then the handler for SIGTRAP,
    /// then, once every thread was seen outside of them, the pads.
    fn repair(mut self) -> Repaired {
        self.space.restore();
        let mut known = BTreeSet::from([self.space.pid]);
        self.space.rescue(&mut known);
        let Space { memory, written, .. } = &self.space;
        let left = written.patches.iter().filter(|(addr, patch)| write::stands(memory, *addr, patch)).count();
        Repaired { breakpoints: written.patches.iter().len() - left, left, unproved: self.unproved }
    }
}

/// Repairs what a heaptrace that was killed has left in process `pid`. None if there is nothing.
///
/// # Errors
/// If the process can't be read.
pub fn repair(pid: i32) -> Result<Option<Repaired>> {
    let Looked::Orphan(orphan) = Orphan::find(pid)? else { return Ok(None) };
    // What a thread traces is let go when it ends.
    let thread = std::thread::Builder::new().name("repair".to_owned()).spawn(move || orphan.repair());
    let thread = thread.map_err(|source| TracerError::Own { operation: "start a thread", source })?;
    Ok(thread.join().ok())
}

/// What proves that a heaptrace was here.
struct Evidence {
    /// The handler for SIGTRAP and the room for the call that takes it out, if both are there.
    installed: Option<SigtrapFallback>,
}

/// Looks in the slack of a module, at the end of its code, for what only heaptrace writes.
fn evidence(memory: &TargetMemory, module: &MappedModule) -> Option<Evidence> {
    let (mut at, mut call) = (None, None);
    for segment in module.segments.iter().filter(|segment| is_code(segment)) {
        let page = Addr(segment.end.0.saturating_sub(PAGE_SIZE).max(segment.start.0));
        let mut bytes = vec![0; usize::try_from(segment.end.0 - page.0).unwrap_or(0)];
        let n = memory.read_uncached(page, &mut bytes);
        for offset in (0..n).step_by(ALIGNMENT) {
            let here = page.add(offset as u64);
            let Some(rest) = bytes.get(offset..n) else { continue };
            if sigtrap_fallback::is_image(rest, here) {
                at = Some(here);
            } else if remote_code::is_image(rest) {
                call = Some(here);
            }
        }
    }
    (at.is_some() || call.is_some())
        .then(|| Evidence { installed: at.zip(call).map(|(at, call)| SigtrapFallback { at, call }) })
}

/// Whether breakpoints are written to such a mapping.
fn is_code(segment: &Mapping) -> bool {
    let perms = segment.perms;
    perms.execute && !perms.write && !perms.shared && segment.kind == Kind::File
}

/// The search through the code of one process.
struct Search {
    pid: i32,
    tid: i32,
    root: Option<TargetRoot>,
    memory: TargetMemory,
    /// Of the jump engine.
    regions: Vec<Addr>,
    written: Written,
    unproved: usize,
}

/// Where code regions of the jump engine begin.
fn jump_regions(memory: &TargetMemory, mappings: &[Mapping]) -> Vec<Addr> {
    let may_be = |mapping: &&Mapping| {
        let perms = mapping.perms;
        perms.execute && !perms.write && !perms.shared && mapping.kind == Kind::Anonymous && mapping.size() >= CODE_SIZE
    };
    let expected = [MAGIC.to_le_bytes(), VERSION.to_le_bytes()].concat();
    let is_one = |start: &Addr| {
        let mut head = [0; 16];
        memory.read_uncached(*start, &mut head) == head.len() && head == *expected
    };
    mappings.iter().filter(may_be).map(|mapping| mapping.start).filter(is_one).collect()
}

/// Bytes of memory that the jump engine has added to process `pid`, now or earlier, and that are still mapped.
///
/// # Errors
/// If the process can't be read.
pub fn added_memory(pid: i32) -> Result<u64> {
    let look = |tid| Ok((procfs::maps(tid)?, TargetMemory::open(pid, tid)?));
    let (text, memory) = match procfs::through_any(pid, procfs::tasks(pid)?, look) {
        Err(error) if error.is_out_of_reach() => return Ok(0),
        seen => seen?,
    };
    let Ok(mappings) = maps::parse(&text) else { return Ok(0) };
    let code = jump_regions(&memory, &mappings).len() as u64 * REGION_SIZE;
    let shared = mappings.iter().filter(|mapping| mapping.is_heaptrace_s()).map(Mapping::size);
    Ok(code + shared.sum::<u64>())
}

/// Notes what stands in such a region as long as somebody answers: its switch, and the int3s of its ask sites.
fn note_region(memory: &TargetMemory, region: Addr, patches: &mut Patches) {
    let mut note = |at: Addr, patch: Patch| {
        if write::stands(memory, at, &patch) {
            patches.insert(at, patch);
        }
    };
    note(region.add(STATE_ACTIVE), Patch::switch(Active::Off as u8, Active::Record as u8));
    let mut asks = [0; 4 * ASKS];
    if memory.read_uncached(region.add(ASKS_AT), &mut asks) != asks.len() {
        return;
    }
    let offsets = asks.chunks_exact(4).map(|offset| offset.try_into().map_or(0, u32::from_le_bytes));
    for offset in offsets.map(u64::from).filter(|offset| (ASKS_AT..CODE_SIZE).contains(offset)) {
        note(region.add(offset), Patch::int3(NOP));
    }
}

impl Search {
    fn compare(&mut self, module: &MappedModule) {
        let Some(file) = self.file_of(module) else { return };
        let mut placed = BTreeMap::new();
        for segment in module.segments.iter().filter(|segment| is_code(segment)) {
            self.compare_segment(segment, &file, &mut placed);
        }
        if placed.is_empty() {
            return;
        }
        let mut functions = None;
        for (addr, (original, behind_call)) in placed {
            if behind_call || functions.get_or_insert_with(|| functions_of(module, &file)).contains(&addr) {
                self.written.patches.insert(addr, Patch::int3(original));
            } else {
                self.unproved += 1;
            }
        }
    }

    /// The file that the module was mapped from, proved by its headers.
    fn file_of(&self, module: &MappedModule) -> Option<File> {
        let first = module.segments.first().filter(|first| first.offset == 0)?;
        let mut head = vec![0; usize::try_from(first.size().min(HEAD)).unwrap_or(0)];
        let n = self.memory.read_uncached(first.start, &mut head);
        head.truncate(n);
        let has_build_id = Elf::parse_memory(&head, first.start).is_ok_and(|elf| elf.build_id().is_some());
        let mut accepts = |file: &File, same_inode: bool| {
            (has_build_id || same_inode) && !head.is_empty() && read(file, 0, head.len()) == head
        };
        files::open_module(self.pid, self.tid, self.root.as_ref(), module, &mut accepts)
    }

    /// Notes where a segment differs from its file: int3s in `placed`, with the byte of the file and whether a call
    /// returns there; what stands in the slack as code.
    fn compare_segment(&mut self, segment: &Mapping, file: &File, placed: &mut BTreeMap<Addr, (u8, bool)>) {
        let slack = slack_of(segment, file);
        let mut jump: Option<Range<Addr>> = None;
        let mut used: Option<(Addr, Addr)> = None;
        for range in self.memory.touched(segment.range()) {
            let (start, end) = (range.start.max(segment.start), range.end.min(segment.end));
            let pieces = (start.0..end.0).step_by(PIECE as usize);
            for at in pieces.map(Addr) {
                let offset = segment.offset + (at.0 - segment.start.0);
                let mut present = vec![0; usize::try_from((end.0 - at.0).min(PIECE)).unwrap_or(0)];
                let n = self.memory.read_uncached(at, &mut present);
                let original = read(file, offset, n);
                let differs =
                    present.iter().zip(&original).enumerate().filter(|(_, (present, original))| present != original);
                for (i, (&present, &original)) in differs {
                    let addr = at.add(i as u64);
                    if jump.as_ref().is_some_and(|jump| jump.contains(&addr)) {
                        continue;
                    }
                    if let Some((at, patch)) = self.jump_over(addr, segment, file) {
                        self.written.patches.insert(at, patch);
                        jump = Some(at..at.add(JUMP_LEN as u64));
                    } else if addr >= slack {
                        used = Some(used.map_or((addr, addr), |(first, _)| (first, addr)));
                    } else if present == INT3 {
                        placed.insert(addr, (original, is_behind_call(file, offset + i as u64)));
                    } else {
                        self.unproved += 1;
                    }
                }
            }
        }
        if let Some((first, last)) = used {
            self.written.patches.own.note(first, last.0 + 1 - first.0);
        }
    }
}

impl Search {
    /// The jump to a region of ours that `addr` is a byte of, if it is.
    fn jump_over(&self, addr: Addr, segment: &Mapping, file: &File) -> Option<(Addr, Patch)> {
        if self.regions.is_empty() {
            return None;
        }
        (0..JUMP_LEN as u64).find_map(|back| {
            let at = addr.sub(back);
            let mut present = [0; JUMP_LEN];
            if at < segment.start || self.memory.read_uncached(at, &mut present) != present.len() {
                return None;
            }
            let jump = jump_in(at, present, &self.regions)?;
            let original = read(file, segment.offset + (at.0 - segment.start.0), JUMP_LEN);
            Some((at, Patch::new(&original, &jump)?))
        })
    }
}

/// The jump that stands at `at`, if it leads to one of these regions. Whoever was killed while it was written, or taken
/// out, has left an int3 in the place of its first byte: only with the other bytes is that undone.
fn jump_in(at: Addr, present: [u8; JUMP_LEN], regions: &[Addr]) -> Option<[u8; JUMP_LEN]> {
    let [JUMP | INT3, distance @ ..] = present else { return None };
    let to = at.0.wrapping_add(JUMP_LEN as u64).wrapping_add_signed(i32::from_le_bytes(distance).into());
    regions.iter().find(|region| (region.0 + STUBS..region.0 + CODE_SIZE).contains(&to))?;
    let [a, b, c, d] = distance;
    Some([JUMP, a, b, c, d])
}

/// Where the zeros begin that end the last page of a segment.
fn slack_of(segment: &Mapping, file: &File) -> Addr {
    let page = Addr(segment.end.0.saturating_sub(PAGE_SIZE).max(segment.start.0));
    let size = usize::try_from(segment.end.0 - page.0).unwrap_or(0);
    let bytes = read(file, segment.offset + (page.0 - segment.start.0), size);
    let zeros = bytes.iter().rev().take_while(|&&byte| byte == 0).count();
    Addr(segment.end.0 - zeros as u64)
}

/// Whether the instruction in front of `offset` in a file is a call.
fn is_behind_call(file: &File, offset: u64) -> bool {
    let size = offset.min(step::MAX_INSTRUCTION_LEN as u64);
    step::ends_in_call(&read(file, offset - size, usize::try_from(size).unwrap_or(0)))
}

/// Where functions begin. Not known of a file that is too large to be read, as a sparse one can be made at no cost.
fn functions_of(module: &MappedModule, file: &File) -> BTreeSet<Addr> {
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let is_too_large = || size > LARGEST_READ || limits::available_memory().is_some_and(|free| size > free / 4);
    if size > ALWAYS_READ && is_too_large() {
        return BTreeSet::new();
    }
    let bytes = read(file, 0, usize::try_from(size).unwrap_or(0));
    let Ok(elf) = Elf::parse(&bytes) else { return BTreeSet::new() };
    let Some(bias) = elf.load_bias(&module.segments) else { return BTreeSet::new() };
    let functions = elf.all_symbols().map(|symbol| symbol.addr).chain([elf.entry()]);
    functions.map(|addr| bias.to_process(addr)).collect()
}

/// `size` bytes of a file from `offset` on; zeros behind its end, as in the last page of a mapping.
fn read(file: &File, offset: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;

    #[test]
    fn a_jump_that_is_half_written_is_known_as_one() {
        let (at, region) = (Addr(0x40_0000), Addr(0x10_0000));
        let distance = |to: u64| i32::try_from(to.cast_signed() - (at.0 + 5).cast_signed()).unwrap().to_le_bytes();
        let jump = |first: u8, to: u64| {
            let [a, b, c, d] = distance(to);
            [first, a, b, c, d]
        };
        let stub = region.0 + STUBS;
        let known = |bytes| jump_in(at, bytes, &[Addr(0x1000), region]);
        assert_eq!(known(jump(0xe9, stub)), Some(jump(0xe9, stub)));
        assert_eq!(known(jump(INT3, stub)), Some(jump(0xe9, stub)));
        assert_eq!(known(jump(0x55, stub)), None);
        for elsewhere in [region.0, region.0 + CODE_SIZE, at.0] {
            assert_eq!([0xe9, INT3].map(|first| known(jump(first, elsewhere))), [None, None]);
        }
    }

    /// A sparse file of a terabyte that begins as this program does.
    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let dir = TempDir::new("orphan-sparse");
        let path = dir.join("sparse");
        let mut own = File::open("/proc/self/exe").unwrap();
        let mut copy = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        std::io::copy(&mut std::io::Read::by_ref(&mut own), &mut copy).unwrap();
        let mappings = maps::parse(&std::fs::read("/proc/self/maps").unwrap()).unwrap();
        let modules = maps::modules(&mappings);
        let exe = std::fs::read_link("/proc/self/exe").unwrap();
        let module = modules.iter().find(|module| module.path == exe).unwrap();
        let here = Addr(a_file_that_is_too_large_is_not_read as fn() as usize as u64);
        assert!(functions_of(module, &copy).contains(&here));
        copy.set_len(1 << 40).unwrap();
        assert!(functions_of(module, &copy).is_empty());
    }
}
