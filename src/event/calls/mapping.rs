//! What mmap and its kin do, told from their arguments and results: mmap(2), munmap(2), mremap(2), brk(2) and sbrk(3)
//! as the C libraries have them. The kernel deals in pages, and so do these.

use crate::allocators::MapFunction;
use crate::base::addr::Addr;
use crate::event::{Call, EventKind, Length, MapChange};

/// The size of a page of x86-64, in bytes.
const PAGE: u64 = 4096;

/// `MAP_FIXED` and its kin, as in <linux/mman.h>.
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_HUGETLB: u64 = 0x4_0000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MAP_HUGE_SHIFT: u32 = 26;
const MAP_HUGE_MASK: u64 = 0x3f;
/// The binary logarithm of a huge page's size where the flags don't tell it: that of nearly all machines.
const HUGE_SHIFT: u32 = 21;
const MREMAP_FIXED: u64 = 2;
const MREMAP_DONTUNMAP: u64 = 4;
/// What mmap, mremap and sbrk return if they fail.
const FAILED: u64 = u64::MAX;

/// A call that may change what is mapped without a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapCall {
    /// Maps so many bytes, of memory or, `over` what is there, of a file.
    Map {
        /// In whole pages.
        bytes: u64,
        /// Whether it is of a file.
        of_file: bool,
        /// The address that was asked for, if what is there is replaced.
        over: Option<Addr>,
    },
    /// Unmaps.
    Unmap {
        /// Where.
        start: Addr,
        /// In whole pages.
        bytes: u64,
    },
    /// Resizes, or moves.
    Move {
        /// Where it is.
        old: Addr,
        /// In whole pages.
        old_bytes: u64,
        /// In whole pages.
        new_bytes: u64,
        /// The old place stays mapped.
        keeps_old: bool,
        /// The new address, if one was asked for: what is there is replaced.
        over: Option<Addr>,
    },
    /// Sets the program break.
    SetBreak {
        /// Where it was.
        old: Addr,
        /// Where it is to be.
        new: Addr,
    },
    /// Moves the program break by so many bytes.
    MoveBreak(i64),
}

impl MapCall {
    /// What a call with these arguments is about; None if it changes nothing, or not what counts. Of brk(2) the second
    /// one is where the break was.
    pub fn of(function: MapFunction, args: &[u64; 6]) -> Option<Self> {
        let [first, second, third, fourth, fifth, ..] = *args;
        match function {
            MapFunction::Mmap => {
                let flags = fourth;
                let of_file = flags & MAP_ANONYMOUS == 0;
                let replaces = flags & MAP_FIXED != 0 && flags & MAP_FIXED_NOREPLACE != MAP_FIXED_NOREPLACE;
                let over = replaces.then_some(Addr(first));
                let bytes = in_pages(second, page_of(flags))?;
                (!of_file || over.is_some()).then_some(Self::Map { bytes, of_file, over })
            }
            MapFunction::Munmap => {
                let bytes = in_pages(second, PAGE)?;
                first.is_multiple_of(PAGE).then_some(Self::Unmap { start: Addr(first), bytes })
            }
            MapFunction::Mremap => {
                let over = (fourth & MREMAP_FIXED != 0).then_some(Addr(fifth));
                Some(Self::Move {
                    old: Addr(first),
                    // of no bytes it makes a second view of shared memory, which matters only where it replaces
                    // something
                    old_bytes: if second == 0 && over.is_some() { 0 } else { in_pages(second, PAGE)? },
                    new_bytes: in_pages(third, PAGE)?,
                    keeps_old: fourth & MREMAP_DONTUNMAP != 0,
                    over,
                })
            }
            MapFunction::Brk => {
                (first != 0 && second != 0).then_some(Self::SetBreak { old: Addr(second), new: Addr(first) })
            }
            MapFunction::Sbrk => (first != 0).then_some(Self::MoveBreak(first.cast_signed())),
        }
    }

    /// Whether it is about memory of which any `is_mapped`, as far as is known: else it is of no interest. None if it
    /// is of interest in any case.
    pub fn concerns(self, is_mapped: impl Fn(Addr, u64) -> bool) -> Option<bool> {
        match self {
            Self::Map { of_file: true, over: Some(start), bytes } | Self::Unmap { start, bytes } => {
                Some(is_mapped(start, bytes))
            }
            Self::Move { old, old_bytes, new_bytes, over, .. } => {
                Some(is_mapped(old, old_bytes) || over.is_some_and(|new| is_mapped(new, new_bytes)))
            }
            Self::Map { .. } | Self::SetBreak { .. } | Self::MoveBreak(_) => None,
        }
    }

    /// Whether the break is to be lowered.
    pub const fn lowers_break(self) -> bool {
        match self {
            Self::SetBreak { old, new } => new.0 < old.0,
            Self::MoveBreak(by) => by < 0,
            _ => false,
        }
    }

    /// What is told of its beginning. What is unmapped may be another thread's before the call has returned; it fails
    /// only where the process has as many mappings as it may have.
    pub const fn begun(self) -> Option<MapChange> {
        match self {
            Self::Unmap { start, bytes } => Some(MapChange::Unmapped { start, bytes }),
            // What stays where it is can't become another's meanwhile.
            Self::Move { old, old_bytes, keeps_old: false, .. } => Some(MapChange::MoveBegan { old, old_bytes }),
            _ => None,
        }
    }

    /// Whether its beginning tells all.
    pub const fn is_told_at_entry(self) -> bool {
        matches!(self, Self::Unmap { .. })
    }

    /// Tells of its end: one event.
    pub fn ended(self, result: u64, by: Call) -> EventKind {
        let change = match (self, result) {
            (Self::Unmap { start, .. }, _) => MapChange::Unmapped { start, bytes: 0 },
            (Self::Move { old, old_bytes, new_bytes, .. }, FAILED) => {
                return remapped(old, old_bytes, Addr::NULL, new_bytes, by);
            }
            // Files don't count.
            (Self::Map { of_file: true, over, .. }, FAILED) => {
                MapChange::Unmapped { start: over.unwrap_or(Addr::NULL), bytes: 0 }
            }
            (Self::Map { bytes, .. }, FAILED) => return EventKind::Failed { size: bytes, by },
            // The result is an int: the upper half of rax is undefined (System V ABI).
            (Self::SetBreak { old, new }, result) if result as u32 != 0 => {
                return EventKind::Failed { size: new.0.saturating_sub(old.0), by };
            }
            (Self::MoveBreak(moved), FAILED) => return EventKind::Failed { size: moved.max(0).unsigned_abs(), by },
            (Self::Map { bytes, of_file: true, .. }, start) => MapChange::Unmapped { start: Addr(start), bytes },
            (Self::Map { bytes, .. }, start) => MapChange::Mapped { start: Addr(start), bytes },
            (Self::Move { new_bytes, keeps_old: true, .. }, new) => {
                MapChange::Mapped { start: Addr(new), bytes: new_bytes }
            }
            (Self::Move { old, old_bytes, new_bytes, .. }, new) => {
                return remapped(old, old_bytes, Addr(new), new_bytes, by);
            }
            (Self::SetBreak { old, new }, _) => break_moved(old.0, new.0),
            (Self::MoveBreak(moved), old) => break_moved(old, old.saturating_add_signed(moved)),
        };
        EventKind::Mapping { change, by }
    }
}

const fn remapped(old: Addr, old_bytes: u64, new: Addr, new_bytes: u64, by: Call) -> EventKind {
    EventKind::Remapped { old, old_bytes: Length::of(old_bytes), new, new_bytes: Length::of(new_bytes), by }
}

/// The break has moved: memory was mapped or unmapped up to the ends of its pages.
fn break_moved(old: u64, new: u64) -> MapChange {
    let (old, new) = (page_end(old), page_end(new));
    if new >= old {
        MapChange::Mapped { start: Addr(old), bytes: new - old }
    } else {
        MapChange::Unmapped { start: Addr(new), bytes: old - new }
    }
}

fn page_end(addr: u64) -> u64 {
    in_pages(addr, PAGE).unwrap_or(addr)
}

/// How large the pages of a mapping are.
fn page_of(flags: u64) -> u64 {
    if flags & MAP_HUGETLB == 0 {
        return PAGE;
    }
    let shift = match (flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK) as u32 {
        0 => HUGE_SHIFT,
        shift => shift,
    };
    1u64.checked_shl(shift).unwrap_or(PAGE).max(PAGE)
}

/// A length in whole pages; None for one that no call can have.
fn in_pages(bytes: u64, page: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(page).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::{FunctionId, StackId, TaskId};

    const BY: Call = Call {
        function: FunctionId(0),
        task: TaskId { tid: 1, serial: 1 },
        stack: StackId(1),
        family: None,
        align: None,
        interval: 0,
    };

    fn call(function: MapFunction, args: &[u64]) -> Option<MapCall> {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        MapCall::of(function, &all)
    }

    fn change(function: MapFunction, args: &[u64], result: u64) -> MapChange {
        match call(function, args).expect("a call").ended(result, BY) {
            EventKind::Mapping { change, .. } => change,
            other => panic!("{other:?}"),
        }
    }

    fn mapped(start: u64, bytes: u64) -> MapChange {
        MapChange::Mapped { start: Addr(start), bytes }
    }

    fn unmapped(start: u64, bytes: u64) -> MapChange {
        MapChange::Unmapped { start: Addr(start), bytes }
    }

    /// MAP_PRIVATE.
    const PRIVATE: u64 = 2;

    #[test]
    fn only_memory_without_a_file_counts() {
        let anonymous = PRIVATE | MAP_ANONYMOUS;
        assert_eq!(change(MapFunction::Mmap, &[0, 5000, 3, anonymous], 0x7000), mapped(0x7000, 8192));
        assert_eq!(call(MapFunction::Mmap, &[0x7000, 4096, 3, PRIVATE]), None, "a file");
        let over = change(MapFunction::Mmap, &[0x7000, 4096, 3, PRIVATE | MAP_FIXED], 0x7000);
        assert_eq!(over, unmapped(0x7000, 4096), "a file in place of what was there");
        let failed = change(MapFunction::Mmap, &[0x7000, 4096, 3, PRIVATE | MAP_FIXED], FAILED);
        assert_eq!(failed, unmapped(0x7000, 0), "no failure of an allocation");
        let spares = PRIVATE | MAP_FIXED | MAP_FIXED_NOREPLACE;
        assert_eq!(call(MapFunction::Mmap, &[0x7000, 4096, 3, spares]), None);
        assert_eq!(call(MapFunction::Mmap, &[0, 0, 3, anonymous]), None, "EINVAL");
        assert_eq!(call(MapFunction::Mmap, &[0, u64::MAX, 3, anonymous]), None, "ENOMEM");
        let failed = call(MapFunction::Mmap, &[0, 1, 3, anonymous]).unwrap().ended(FAILED, BY);
        assert_eq!(failed, EventKind::Failed { size: 4096, by: BY });
    }

    #[test]
    fn huge_pages_are_counted_whole() {
        let flags = PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
        assert_eq!(change(MapFunction::Mmap, &[0, 1, 3, flags], 1 << 30), mapped(1 << 30, 2 << 20));
        let gib = flags | 30 << MAP_HUGE_SHIFT;
        assert_eq!(change(MapFunction::Mmap, &[0, 1, 3, gib], 1 << 30), mapped(1 << 30, 1 << 30));
    }

    #[test]
    fn unmapping_is_told_when_it_begins() {
        let whole = call(MapFunction::Munmap, &[0x7000, 4097]).unwrap();
        assert_eq!((whole.begun(), whole.is_told_at_entry()), (Some(unmapped(0x7000, 8192)), true));
        assert_eq!(call(MapFunction::Munmap, &[0x7001, 4096]), None, "EINVAL");
        assert_eq!(call(MapFunction::Munmap, &[0x7000, 0]), None, "EINVAL");
    }

    #[test]
    fn a_move_may_keep_the_old_place() {
        let moved = |flags, result| call(MapFunction::Mremap, &[0x7000, 4096, 8000, flags]).unwrap().ended(result, BY);
        assert_eq!(moved(1, 0x9000), remapped(Addr(0x7000), 4096, Addr(0x9000), 8192, BY));
        assert_eq!(moved(0, FAILED), remapped(Addr(0x7000), 4096, Addr::NULL, 8192, BY));
        let kept = change(MapFunction::Mremap, &[0x7000, 4096, 4096, 1 | MREMAP_DONTUNMAP], 0x9000);
        assert_eq!(kept, mapped(0x9000, 4096));
        let begun = |flags| call(MapFunction::Mremap, &[0x7000, 4096, 4096, flags]).unwrap().begun();
        let began = MapChange::MoveBegan { old: Addr(0x7000), old_bytes: 4096 };
        assert_eq!([begun(1), begun(1 | MREMAP_DONTUNMAP)], [Some(began), None]);
        assert_eq!(call(MapFunction::Mremap, &[0x7000, 0, 4096, 1]), None, "a second view of shared memory");
    }

    /// Also what moves and is not known, a file's pages, may take the place of what is known.
    #[test]
    fn a_move_concerns_both_places() {
        let concerns = |flags, known| {
            let call = call(MapFunction::Mremap, &[0x7000, 4096, 8192, flags, 0x9000]).unwrap();
            call.concerns(|start, bytes| (start.0..start.0 + bytes).contains(&known))
        };
        let fixed = [0x7000, 0x8000, 0x9000, 0xafff, 0xb000].map(|known| concerns(1 | MREMAP_FIXED, known));
        assert_eq!(fixed, [true, false, true, true, false].map(Some));
        assert_eq!([0x7000, 0x9000].map(|known| concerns(1, known)), [true, false].map(Some), "only a hint");
        let view = call(MapFunction::Mremap, &[0x7000, 0, 4096, 1 | MREMAP_FIXED, 0x9000]).unwrap().ended(0x9000, BY);
        assert_eq!(view, remapped(Addr(0x7000), 0, Addr(0x9000), 4096, BY));
    }

    #[test]
    fn the_break_moves_by_pages() {
        let by = |bytes: i64, old| change(MapFunction::Sbrk, &[bytes.cast_unsigned()], old);
        assert_eq!(by(100, 0x5000), mapped(0x5000, 4096));
        assert_eq!(by(100, 0x5064), mapped(0x6000, 0), "the page is there");
        assert_eq!(by(-0x1800, 0x8800), unmapped(0x7000, 0x2000));
        assert_eq!(change(MapFunction::Brk, &[0x9000, 0x5000], 0), mapped(0x5000, 0x4000));
        assert_eq!(change(MapFunction::Brk, &[0x5001, 0x9000], 0), unmapped(0x6000, 0x3000));
        assert_eq!(call(MapFunction::Sbrk, &[0]), None);
        assert_eq!(call(MapFunction::Brk, &[0x5000, 0]), None, "nobody knows where it was");
        let failed = call(MapFunction::Sbrk, &[4096]).unwrap().ended(FAILED, BY);
        assert_eq!(failed, EventKind::Failed { size: 4096, by: BY });
    }
}
