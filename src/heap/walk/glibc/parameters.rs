//! glibc's `mp_` (`struct malloc_par` in malloc/malloc.c), told by what its members can be: it has no symbol in
//! installed libraries.

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use std::ops::Range;

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parameters {
    /// Where the brk area began when malloc was called first.
    pub(super) brk_base: Option<Addr>,
    /// Bytes in chunks with mappings of their own.
    pub(super) mapped_bytes: u64,
}

/// `n_mmaps_max`, unless the program has changed it (`DEFAULT_MMAP_MAX`).
const MAX_MAPPED: u32 = 65536;
const PAGE: u64 = 4096;

/// Looks for it in the data that holds the main arena: four numbers of 32 bits (`n_mmaps`, `n_mmaps_max`,
/// `max_n_mmaps`, `no_dyn_threshold`), then, aligned, `mmapped_mem`, `max_mmapped_mem` and `sbrk_base`.
pub(super) fn find(data: &Range<Addr>, heap: Option<&Range<Addr>>, memory: &mut dyn ReadMemory) -> Option<Parameters> {
    let size = usize::try_from(data.end.0.checked_sub(data.start.0)?).ok()?;
    let mut bytes = vec![0; size];
    let read = memory.read(data.start, &mut bytes);
    bytes.truncate(read);
    let half = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?));
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?));
    (0..bytes.len()).step_by(4).find_map(|at| {
        let (now, most, at_most, fixed) = (half(at)?, half(at + 4)?, half(at + 8)?, half(at + 12)?);
        if most != MAX_MAPPED || now > at_most || at_most > most || fixed > 1 {
            return None;
        }
        let behind = usize::try_from((data.start.0 + at as u64 + 16).next_multiple_of(8) - data.start.0).ok()?;
        let (mapped_bytes, mapped_most, base) = (word(behind)?, word(behind + 8)?, word(behind + 16)?);
        let brk_base = (base != 0).then_some(Addr(base));
        let base_fits = brk_base.is_none_or(|base| heap.is_some_and(|heap| heap.contains(&base)));
        let fits =
            mapped_bytes.is_multiple_of(PAGE) && mapped_bytes <= mapped_most && (now == 0) == (mapped_bytes == 0);
        (fits && base_fits).then_some(Parameters { brk_base, mapped_bytes })
    })
}
