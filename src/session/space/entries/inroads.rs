//! Ways into the midst of the first instructions of functions that are to be patched: what in their module leads there.
//! heaptrace looks
//! through the module's file, not through the process's memory, which would become resident by that.

use crate::base::addr::{Addr, LoadBias, ModuleId, ObjAddr};
use crate::breakpoints::patches::own::Replaced;
use crate::image::elf::{Elf, Segment};
use crate::session::modulerecord::ModuleRecord;
use crate::session::space::entries::JumpEntries;
use crate::session::space::image::Image;
use crate::session::space::jumps::Candidate;
use crate::session::space::modules::Modules;
use crate::symbols::Bytes;
use crate::unwinder::landing_pads;
use std::collections::{BTreeMap, BTreeSet};

/// So much of what tells a function's handlers of exceptions is read, in bytes.
const MAX_HANDLERS: usize = 1 << 16;

/// So much writable memory is read at once, in bytes.
const PIECE: u64 = 1 << 20;

/// What a module's file says of the ways into some of its functions. It is kept, as each attempt to change the engine
/// asks again, and the whole file is looked through.
#[derive(Clone, Debug)]
pub struct FileInroads {
    /// Of which functions: where each begins and ends, as object addresses.
    ends: BTreeMap<u64, u64>,
    /// The beginnings of those that something leads into.
    found: BTreeSet<u64>,
    /// Segments that the process may have written to since.
    writable: Vec<Segment>,
}

impl FileInroads {
    /// None: the module's bytes can't be had.
    fn of(record: &ModuleRecord, ends: BTreeMap<u64, u64>) -> Option<Self> {
        let replaced = Replaced::of(ends.keys().copied());
        let mut found = BTreeSet::new();
        let mut look = |elf: &Elf<'_>| {
            for segment in elf.segments() {
                let bytes = elf.segment_bytes(&segment).unwrap_or_default();
                if segment.execute {
                    found.extend(replaced.led_into_by_code(bytes, segment.addr.0));
                    found.extend(replaced.led_into_by_neighbours(bytes, segment.addr.0, &ends));
                }
                found.extend(replaced.led_into_by_words(bytes, segment.addr.0));
                if !elf.is_moved() {
                    found.extend(replaced.led_into_by_halves(bytes));
                }
            }
            elf.segments().filter(|segment| segment.write).collect::<Vec<_>>()
        };
        let writable = match (&record.file, &record.memory) {
            (Some(file), _) => look(&Elf::parse(&Bytes::of_file(file).ok()?).ok()?),
            (None, Some(memory)) => look(&Elf::parse_memory(&memory.bytes, memory.start).ok()?),
            (None, None) => return None,
        };
        Some(Self { ends, found, writable })
    }
}

impl JumpEntries {
    /// Those of `candidates` that something leads into behind their first byte, where a jump would stand: branches from
    /// elsewhere in the module, addresses in its
    /// code and data, relocations, symbols, landing pads. Also all of a module whose bytes can't be had.
    pub fn led_into(&mut self, image: &Image, modules: &mut Modules, candidates: &[Candidate]) -> BTreeSet<Addr> {
        let mut by_module: BTreeMap<ModuleId, Vec<Candidate>> = BTreeMap::new();
        for candidate in candidates {
            by_module.entry(candidate.module).or_default().push(*candidate);
        }
        let mut found = BTreeSet::new();
        for (id, all) in by_module {
            let Some(bias) = modules.loaded.get(id).map(|module| module.bias) else { continue };
            match self.led_into_in(image, modules, id, bias, &all) {
                Some(entries) => found.extend(entries.into_iter().map(|entry| bias.to_process(ObjAddr(entry)))),
                None => found.extend(all.iter().map(|candidate| candidate.addr)),
            }
            found.extend(
                all.iter().map(|one| one.addr).filter(|entry| self.is_landed_in(image, modules, id, bias, *entry)),
            );
        }
        found
    }

    /// The same of the functions of one module, by their object addresses. None: its bytes can't be had.
    pub(in crate::session::space) fn led_into_in(
        &mut self,
        image: &Image,
        modules: &Modules,
        id: ModuleId,
        bias: LoadBias,
        all: &[Candidate],
    ) -> Option<BTreeSet<u64>> {
        let ends = all.iter().map(|one| (bias.to_object(one.addr).0, bias.to_object(one.addr.add(one.size)).0));
        let ends: BTreeMap<u64, u64> = ends.collect();
        let has_all = |known: &FileInroads| ends.iter().all(|(entry, end)| known.ends.get(entry) == Some(end));
        if !self.inroads.get(&id).is_some_and(has_all) {
            let known = FileInroads::of(modules.loaded.record(id)?, ends.clone())?;
            self.inroads.insert(id, known);
        }
        let known = self.inroads.get(&id)?;
        let mut found: BTreeSet<u64> = known.found.iter().copied().filter(|entry| ends.contains_key(entry)).collect();
        // As relocated: symbols with a distance added to them.
        for segment in &known.writable {
            found.extend(self.led_into_by_data(image, segment, bias, all));
        }
        Some(found)
    }

    pub(in crate::session::space) fn led_into_by_data(
        &self,
        image: &Image,
        segment: &Segment,
        bias: LoadBias,
        all: &[Candidate],
    ) -> BTreeSet<u64> {
        let replaced = Replaced::of(all.iter().map(|one| one.addr.0));
        let (start, end) = (bias.to_process(segment.addr).0, bias.to_process(segment.addr).0 + segment.file_size);
        let mut found = BTreeSet::new();
        let mut piece = vec![0; PIECE as usize];
        for at in (start..end).step_by(PIECE as usize) {
            let wanted = usize::try_from((end - at).min(PIECE)).unwrap_or(0);
            let Some(bytes) = piece.get_mut(..wanted) else { continue };
            let n = image.memory.read_uncached(Addr(at), bytes);
            found.extend(replaced.led_into_by_words(bytes.get(..n).unwrap_or_default(), at));
        }
        found.into_iter().map(|entry| bias.to_object(Addr(entry)).0).collect()
    }

    /// Whether an exception may land in the first bytes of the function at `entry`.
    pub(in crate::session::space) fn is_landed_in(
        &self,
        image: &Image,
        modules: &mut Modules,
        id: ModuleId,
        bias: LoadBias,
        entry: Addr,
    ) -> bool {
        let Some(area) = modules.unwinder.handlers(id, entry) else { return false };
        let bytes = image.original_bytes(bias.to_process(area), MAX_HANDLERS);
        let replaced = Replaced::of([entry.0]);
        landing_pads(&bytes).is_none_or(|pads| pads.into_iter().any(|pad| replaced.holds(entry.0.wrapping_add(pad))))
    }
}
