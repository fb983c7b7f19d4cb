//! Entries of allocator functions that jump to the stubs of the jump engine.

use super::AddressSpace;
use crate::allocators::AllocatorTable;
use crate::arch::PAGE_SIZE;
use crate::arch::step::StepOver;
use crate::base::addr::{Addr, FunctionId, ModuleId};
use crate::base::memory::ReadMemory;
use crate::breakpoints::patches::Patch;
use crate::breakpoints::patches::own::{EntryError, PlacedEntry};
use crate::breakpoints::{Engine, Probe};
use crate::image::maps::{Kind, MapIndex, Mapping};
use crate::jump::layout::{CODE_SIZE, MAGIC, SHARED_SIZE, STATE_FENCED, STATE_SHARED, VERSION};
use crate::tracer::code::write::Threads;
use crate::tracer::{Result, procfs};

/// How far the code region is from the allocator: the program's own mappings go where they would without it.
const DISTANCE: u64 = 0x5000_0000;
/// So many places are tried, each so many bytes nearer.
const TRIES: u64 = 32;
const STRIDE: u64 = 0x200_0000;

/// A longer function gets no jump, in bytes.
pub(super) const MAX_CODE: usize = 1 << 20;

/// What tells jemalloc to profile, in MALLOC_CONF or as the target of the link /etc/malloc.conf.
const PROFILES: &[u8] = b"prof:true";

/// A function that could be wrapped: it has a probe of the trap engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Where it begins.
    pub addr: Addr,
    /// Its size in bytes; 0 if that is not known.
    pub size: u64,
    /// Which.
    pub function: FunctionId,
    /// The module that it is in.
    pub module: ModuleId,
    /// Whether it is an operator that passes its call on, and whose arguments tell more than those of what it calls.
    pub is_told: bool,
}

/// What an earlier heaptrace has left: see `jump/layout.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftRegion {
    /// Where its code region begins.
    pub code: Addr,
    /// Where its shared region begins.
    pub shared: Addr,
    /// How much of that is mapped, in bytes; 0: it is not there any more.
    pub shared_size: u64,
}

impl LeftRegion {
    /// What of it is mapped still; None if its address holds something else by now, which is the program's.
    /// `is_fenced`: what was unmapped of it is kept free by memory that nobody may access.
    fn as_mapped(self, is_fenced: bool, maps: &MapIndex) -> Option<Self> {
        let is_ours = |mapping: &&Mapping| mapping.start == self.shared && mapping.is_heaptrace_s();
        let shared = maps.find(self.shared).filter(is_ours);
        let mut shared_size = shared.map_or(0, |mapping| mapping.size().min(self.shared_size));
        let is_fence = |rest: &Mapping| {
            let ends = rest.end == self.shared.add(SHARED_SIZE) && rest.kind == Kind::Anonymous;
            ends && !rest.perms.read && !rest.perms.write && !rest.perms.execute
        };
        // A program may keep addresses free for itself, as glibc's arenas do: without the mark it is no fence of ours.
        if is_fenced && shared_size > 0 && maps.find(self.shared.add(shared_size)).is_some_and(is_fence) {
            shared_size = SHARED_SIZE;
        }
        (shared_size > 0 || self.shared_size == 0).then_some(Self { shared_size, ..self })
    }
}

/// Whether the process `pid` has told jemalloc, if it has that, to profile (`prof:true`, jemalloc(3)).
pub fn tells_jemalloc_to_profile(pid: i32) -> bool {
    let environment = procfs::read(pid, "environ").unwrap_or_default();
    let by_file = std::fs::read_link("/etc/malloc.conf").map(|link| link.into_os_string().into_encoded_bytes());
    let profiles = |text: &[u8]| text.windows(PROFILES.len()).any(|part| part == PROFILES);
    profiles(&environment) || by_file.is_ok_and(|text| profiles(&text))
}

impl AddressSpace {
    /// The regions of the jump engine that the process has.
    pub fn left_regions(&mut self, tid: i32) -> Result<Vec<LeftRegion>> {
        self.image.read_maps(&mut self.modules.findings, tid)?;
        let is_code = |mapping: &&Mapping| {
            let perms = mapping.perms;
            perms.execute
                && !perms.write
                && !perms.shared
                && mapping.kind == Kind::Anonymous
                && mapping.size() == CODE_SIZE
        };
        let mut word = |at: Addr| self.image.memory.read_u64(at).unwrap_or(0);
        let regions = self.image.maps.mappings().iter().filter(is_code).filter_map(|mapping| {
            let code = mapping.start;
            let is_ours = word(code) == MAGIC && word(code.add(8)) == VERSION;
            let shared = Addr(word(code.add(STATE_SHARED)));
            let shares = is_ours && word(shared) == MAGIC;
            let shared_size = if shares { SHARED_SIZE } else { 0 };
            is_ours.then_some((LeftRegion { code, shared, shared_size }, word(code.add(STATE_FENCED)) == 1))
        });
        let regions: Vec<_> = regions.collect();
        Ok(regions.into_iter().filter_map(|(left, is_fenced)| left.as_mapped(is_fenced, &self.image.maps)).collect())
    }

    /// How the first instructions of a function run at `pad`, where `room` bytes are free; who asks writes them there.
    /// The error: why they can't. `is_led_into`: whether it is one of
    /// [`JumpEntries::led_into`](super::entries::JumpEntries::led_into).
    pub fn move_entry(
        &mut self,
        candidate: &Candidate,
        pad: Addr,
        room: u64,
        is_led_into: bool,
    ) -> std::result::Result<PlacedEntry, EntryError> {
        let at = candidate.addr;
        let size = usize::try_from(candidate.size).unwrap_or(usize::MAX);
        let code = self.image.original_bytes(at, size.min(MAX_CODE));
        if code.len() < size {
            return Err(EntryError::TooShort);
        }
        if self.probes.loops_to_entry(&self.image, &mut self.modules, &self.entries, at) {
            return Err(EntryError::LoopsToEntry);
        }
        if is_led_into {
            return Err(EntryError::LedInto);
        }
        if self.entries.jumps_anywhere(&self.image, &code, at) {
            return Err(EntryError::JumpsAnywhere);
        }
        self.image.code.own().place_entry(&code, at, pad, room)
    }

    /// From now on the functions at these addresses jump to stubs, and their first instructions are in these pads. No
    /// thread stands behind the first of them.
    pub fn place_jumps(&mut self, jumps: &[(Addr, Patch, Addr)], threads: Threads) -> Result<()> {
        let patches: Vec<_> = jumps.iter().map(|(addr, patch, _)| (*addr, *patch)).collect();
        self.image.code.place_jumps(&mut self.image.memory, &patches, threads)?;
        self.probes.is_jumped = true;
        for (addr, _, pad) in jumps {
            if let Some(breakpoint) = self.probes.breakpoints.get_mut(*addr) {
                breakpoint.planned.step = StepOver::Pad;
                breakpoint.pad = Some(*pad);
                if let Some(Probe { engine, .. }) = &mut breakpoint.purposes.entry {
                    *engine = Engine::Jump;
                }
            }
        }
        Ok(())
    }

    /// Functions that jump to stubs get breakpoints instead: the trap engine sees their calls from here on.
    pub fn probe_anew(&mut self, table: &AllocatorTable, threads: Threads) -> Result<()> {
        self.probes.lift_jumps(&mut self.image, threads)?;
        self.probes.is_jumped = false;
        self.probes.place_probes(&mut self.image, &mut self.modules, table)
    }

    /// Where the two regions of the jump engine can lie: within reach of `near`, and far from everything.
    pub fn jump_gaps(&mut self, tid: i32, near: Addr, code: u64, shared: u64) -> Result<Option<(Addr, Addr)>> {
        self.image.read_maps(&mut self.modules.findings, tid)?;
        let page = near.0 / PAGE_SIZE * PAGE_SIZE;
        let below = (0..TRIES).filter_map(|n| page.checked_sub(DISTANCE - n * STRIDE).map(Addr));
        let above = (0..TRIES).filter_map(|n| page.checked_add(DISTANCE - n * STRIDE).map(Addr));
        let distant = below.chain(above).find(|at| self.image.maps.is_free(*at, code));
        let gap = distant.or_else(|| self.image.maps.find_gap(near, code));
        Ok(gap.zip(self.image.maps.find_distant_gap(shared)))
    }

    /// The mapping that holds `addr`, as the kernel has it now.
    pub fn mapping_now(&mut self, tid: i32, addr: Addr) -> Option<Mapping> {
        let _ = self.image.read_maps(&mut self.modules.findings, tid);
        self.image.maps.find(addr).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region of which only the cells are mapped, with memory behind them that nobody may access.
    #[test]
    fn only_a_fence_of_ours_is_a_part_of_what_was_left() {
        let end = 0x7f00_0000_0000 + SHARED_SIZE;
        let lines = format!(
            "7f0000000000-7f0000200000 rw-s 00000000 00:01 7 /memfd:heaptrace (deleted)\n\
             7f0000200000-{end:x} ---p 00000000 00:00 0 \n"
        );
        let maps = MapIndex::new(crate::image::maps::parse(lines.as_bytes()).unwrap());
        let left = LeftRegion { code: Addr(0x1000), shared: Addr(0x7f00_0000_0000), shared_size: SHARED_SIZE };
        let size = |is_fenced| left.as_mapped(is_fenced, &maps).map(|left| left.shared_size);
        assert_eq!(size(true), Some(SHARED_SIZE));
        assert_eq!(size(false), Some(0x20_0000), "the program's own: a thread arena's room for a heap");
        let elsewhere = LeftRegion { shared: Addr(0x7f00_0020_0000), ..left };
        assert_eq!(elsewhere.as_mapped(true, &maps), None);
    }
}
