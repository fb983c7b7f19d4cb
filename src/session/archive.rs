//! Keeps the recordings of processes that have ended until all have: `make` of a large project leaves thousands.
//! Processes of one program have most of their stacks in common, once these name places in modules instead of
//! addresses; and most of what they count is small numbers.

use super::modulerecord::ModuleRecord;
use super::recording::Recording;
use crate::base::addr::{FrameAddr, ModuleId, StackId};
use crate::heapmodel::SiteTable;
use crate::unwinder::{Frame, StackTable};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// A module, by its path and which one of those with that path it was in its process (dlmopen, dlclose and dlopen).
/// Nothing shows its contents: a recording comes back with its own modules.
type ModuleKey = (PathBuf, usize);

/// The archive of one session. A recording comes back from the archive that it was added to only.
#[derive(Debug, Default)]
pub struct Archive {
    /// The stacks of all; the modules are those of `modules`, the addresses count from the beginnings of their code.
    stacks: StackTable,
    modules: HashMap<ModuleKey, ModuleId>,
}

/// A recording in an [`Archive`].
#[derive(Debug)]
pub struct ArchivedRecording {
    /// All but its stacks, its sites and its timeline.
    rest: Recording,
    /// Sites and timeline, see [`pack`].
    packed: Option<Vec<u8>>,
}

impl ArchivedRecording {
    /// What can be read without taking it out: all but stacks, sites and timeline.
    pub const fn rest(&self) -> &Recording {
        &self.rest
    }

    /// See [`Self::rest`].
    pub const fn rest_mut(&mut self) -> &mut Recording {
        &mut self.rest
    }
}

impl Archive {
    /// Adds a recording, and keeps of its stacks only what something refers to.
    pub fn add(&mut self, mut recording: Recording) -> ArchivedRecording {
        let shifts = self.shifts_into(&recording.modules);
        let stacks = std::mem::take(&mut recording.stacks);
        renumber(&mut recording, &stacks, &mut self.stacks, &shifts);
        // What can't be packed lies there as it is.
        let packed = pack(&(&recording.snapshot.sites, &recording.snapshot.timeline)).ok();
        if packed.is_some() {
            (recording.snapshot.sites, recording.snapshot.timeline) = (SiteTable::default(), Vec::new());
        }
        ArchivedRecording { rest: recording, packed }
    }

    /// Takes a recording out: it is as it was, but for stacks that nothing refers to.
    pub fn take(&self, archived: ArchivedRecording) -> Recording {
        let ArchivedRecording { rest: mut recording, packed } = archived;
        match packed.map(|packed| unpack(&packed)) {
            Some(Ok(contents)) => (recording.snapshot.sites, recording.snapshot.timeline) = contents,
            Some(Err(error)) => {
                recording.facts.warnings.push(format!("internal error: the recording can't be read back: {error:#}"));
            }
            None => {}
        }
        let shifts = self.shifts_out_of(&recording.modules);
        let mut stacks = StackTable::new();
        renumber(&mut recording, &self.stacks, &mut stacks, &shifts);
        recording.stacks = stacks;
        recording
    }

    /// What code of these modules is moved by when a recording is added.
    fn shifts_into(&mut self, modules: &[ModuleRecord]) -> Shifts {
        let mut shifts = Shifts::default();
        for (key, module) in keyed(modules) {
            let next = ModuleId(u32::try_from(self.modules.len()).unwrap_or(u32::MAX));
            let number = *self.modules.entry(key).or_insert(next);
            shifts.insert(module.id, (number, module.start.0.wrapping_neg()));
        }
        shifts
    }

    /// The reverse.
    fn shifts_out_of(&self, modules: &[ModuleRecord]) -> Shifts {
        let known =
            |(key, module): (ModuleKey, &ModuleRecord)| Some((*self.modules.get(&key)?, (module.id, module.start.0)));
        keyed(modules).filter_map(known).collect()
    }
}

/// As bytes that take little room. The errors are those of an encoder that writes to memory: none is to be expected.
fn pack(contents: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_allocvec(contents).map_err(io::Error::other)?;
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&bytes)?;
    let mut packed = packed.finish()?;
    packed.shrink_to_fit();
    Ok(packed)
}

/// What was packed by [`pack`].
fn unpack<T: DeserializeOwned>(packed: &[u8]) -> io::Result<T> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(packed).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// The modules of a recording, with their keys.
fn keyed(modules: &[ModuleRecord]) -> impl Iterator<Item = (ModuleKey, &ModuleRecord)> {
    let mut times: HashMap<&PathBuf, usize> = HashMap::new();
    modules.iter().map(move |module| {
        let time = times.entry(&module.path).or_default();
        *time += 1;
        ((module.path.clone(), *time), module)
    })
}

/// What each module becomes, and how many bytes further on (wrapping) its code is then.
type Shifts = FxHashMap<ModuleId, (ModuleId, u64)>;

/// Copies stacks from one table to another, with other modules at other addresses, and changes their ids accordingly.
fn renumber(recording: &mut Recording, from: &StackTable, to: &mut StackTable, shifts: &Shifts) {
    let mut stacks = Vec::new();
    recording.change_stacks(|stack| stacks.push(*stack));
    let ids = copied(stacks, from, to, shifts);
    recording.change_stacks(|stack| *stack = ids.get(stack).copied().unwrap_or(StackId::EMPTY));
}

/// Copies those stacks only; gives each one's new id.
fn copied(
    stacks: Vec<StackId>,
    from: &StackTable,
    to: &mut StackTable,
    shifts: &Shifts,
) -> FxHashMap<StackId, StackId> {
    let moved = |Frame { addr, module }| match shifts.get(&module) {
        Some(&(module, by)) => {
            let addr = match addr {
                FrameAddr::Instruction(addr) => FrameAddr::Instruction(addr.add(by)),
                FrameAddr::Return(addr) => FrameAddr::Return(addr.add(by)),
            };
            Frame { addr, module }
        }
        // Code of its own: it lies where it did.
        None => Frame { addr, module: ModuleId::NONE },
    };
    from.copy_into(to, stacks, moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::{Addr, FunctionId, LoadBias};
    use crate::heapmodel::{SiteKey, SiteStats};
    use crate::profile::{Amount, TimelinePoint};
    use crate::unwinder::Quality;

    fn module(id: u32, path: &str, start: u64) -> ModuleRecord {
        ModuleRecord {
            id: ModuleId(id),
            path: path.into(),
            build_id: None,
            start: Addr(start),
            end: Addr(start + 0x10000),
            file_offset: 0,
            bias: LoadBias(start),
            file: None,
            version: None,
            memory: None,
            is_program: false,
            probed: Vec::new(),
        }
    }

    /// A stack through both modules and code without one, in a process where they have these ids and places.
    fn stack(table: &mut StackTable, modules: &[ModuleRecord], depth: u64) -> StackId {
        let mut stack = StackId::EMPTY;
        for (index, offset) in [(1, 0x123), (0, 0x4567), (2, 0x89)] {
            let module = &modules[index];
            let addr = FrameAddr::Return(module.start.add(offset + depth));
            stack = table.child(stack, Frame { addr, module: module.id }, depth == 3 && index == 0);
        }
        let own = Frame { addr: FrameAddr::Instruction(Addr(0x7000_0000_1000)), module: ModuleId::NONE };
        let whole = table.child(stack, own, false);
        if depth == 4 { table.truncated(whole) } else { whole }
    }

    /// Two processes of one program, which lies elsewhere in each, and has one library twice: what they share is kept
    /// once, and each gets its own back.
    #[test]
    fn stacks_of_one_program_are_shared_and_come_back_as_they_were() {
        let library = "/lib/c.so";
        let one =
            [module(0, "/bin/a", 0x5555_0000_0000), module(1, library, 0x7f01_0000_0000), module(2, library, 0x1000)];
        let other =
            [module(7, "/bin/a", 0x5600_1234_0000), module(3, library, 0x4000), module(4, library, 0x7fff_0000_0000)];
        let mut archive = Archive::default();
        let mut sizes = Vec::new();
        let mut lying = Vec::new();
        for modules in [&one, &other] {
            let mut table = StackTable::new();
            let mut ids: Vec<StackId> = (0..6).map(|depth| stack(&mut table, modules, depth)).collect();
            ids.push(StackId::EMPTY);
            let before: Vec<_> = ids.iter().map(|&id| (table.frames(id), table.quality(id))).collect();
            let shifts = archive.shifts_into(modules);
            let new = copied(ids.clone(), &table, &mut archive.stacks, &shifts);
            ids.iter_mut().for_each(|id| *id = new[id]);
            sizes.push(archive.stacks.node_count());
            lying.push((ids, before));
        }
        assert_eq!(sizes[0], sizes[1], "the second has nothing that the first had not");
        assert_eq!(lying[0].0, lying[1].0);
        for (modules, (mut ids, before)) in [&one, &other].into_iter().zip(lying) {
            let mut own = StackTable::new();
            let new = copied(ids.clone(), &archive.stacks, &mut own, &archive.shifts_out_of(modules));
            ids.iter_mut().for_each(|id| *id = new[id]);
            let after: Vec<_> = ids.iter().map(|&id| (own.frames(id), own.quality(id))).collect();
            assert_eq!(after, before);
            assert_eq!((after[3].1, after[4].1), (Quality::Guessed, Quality::Truncated));
        }
    }

    #[test]
    fn what_is_packed_is_read_back() {
        let amount = |objects, bytes| Amount { objects, bytes };
        let site = SiteStats {
            key: SiteKey { stack: StackId(7), task: 1, function: FunctionId(300), size: u64::MAX, interval: 0 },
            inherited: true,
            allocated: amount(1, 2),
            freed: amount(3, 4),
            deallocated: amount(5, 6),
            live: amount(7, 8),
            at_peak: amount(9, 1 << 40),
            temporary: 11,
            lifetime_ns: 12,
            freed_elsewhere: 13,
        };
        let contents = (vec![site; 100], vec![TimelinePoint { t_ns: 1, live_bytes: 2, allocations: 3 }]);
        let mut packed = pack(&contents).unwrap();
        assert_eq!(unpack::<(Vec<SiteStats>, Vec<TimelinePoint>)>(&packed).unwrap(), contents);
        assert!(packed.len() < 10 * size_of::<SiteStats>(), "{}", packed.len());
        packed.truncate(packed.len() / 2);
        assert!(unpack::<(Vec<SiteStats>, Vec<TimelinePoint>)>(&packed).is_err());
    }
}
