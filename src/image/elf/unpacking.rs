//! How much may be unpacked of what a file has compressed. Files of strangers may be made to fill the memory: 1,032
//! bytes of deflate can come out of one, and of xz and zstd any number.

use flate2::{Decompress, FlushDecompress, Status};
use std::sync::OnceLock;

/// Sections that come out no larger than this are always unpacked, in bytes.
const ALWAYS: u64 = 16 << 20;

/// The largest section that is copied, in bytes. Chromium's unwind tables have less than 50 MB.
const LARGEST_COPY: u64 = 256 << 20;

/// What a byte may become in larger ones. Debug information shrinks to a third or a fifth of its size, its tables of
/// ranges to a tenth.
const LARGEST_RATIO: u64 = 64;

/// What one section may take of the memory that is free: this part of it. So much of the rest may the next one take.
const LARGEST_PART: u64 = 4;

/// Tells how many bytes of memory are free.
static AVAILABLE: OnceLock<fn() -> Option<u64>> = OnceLock::new();

/// Makes all unpacking heed the memory that is free, in bytes, as `available` tells it.
pub fn mind_available_memory(available: fn() -> Option<u64>) {
    // Once is enough: all tell the same.
    let _ = AVAILABLE.set(available);
}

/// Whether `size` bytes of a file may be copied while the program is traced. A file can have holes.
pub(super) fn may_copy(size: usize) -> bool {
    let free = || AVAILABLE.get().and_then(|available| available());
    let size = size as u64;
    size <= ALWAYS || size <= LARGEST_COPY && free().is_none_or(|free| size <= free / LARGEST_PART)
}

/// How many bytes may come out of `packed` compressed ones.
pub(super) fn most_bytes_of(packed: u64) -> u64 {
    let free = AVAILABLE.get().and_then(|available| available());
    most(packed, free)
}

fn most(packed: u64, free: Option<u64>) -> u64 {
    let by_size = packed.saturating_mul(LARGEST_RATIO).max(ALWAYS);
    free.map_or(by_size, |free| by_size.min(free / LARGEST_PART))
}

/// The first `size` bytes that come out of a zlib stream. What stands behind them in it is not looked at. None: it is
/// damaged before, or ends, or the memory is short.
pub(super) fn beginning(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut unpacked = Vec::new();
    unpacked.try_reserve_exact(size).ok()?;
    let mut inflate = Decompress::new(true);
    while unpacked.len() < size {
        let before = (inflate.total_in(), inflate.total_out());
        let rest = packed.get(usize::try_from(before.0).ok()?..)?;
        let status = inflate.decompress_vec(rest, &mut unpacked, FlushDecompress::None).ok()?;
        let is_stuck = (inflate.total_in(), inflate.total_out()) == before;
        if is_stuck || status == Status::StreamEnd {
            break;
        }
    }
    unpacked.truncate(size);
    (unpacked.len() == size).then_some(unpacked)
}

/// A size for people.
pub(super) fn human(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn size_and_memory_limit_what_is_unpacked() {
        assert_eq!(most(100, None), ALWAYS);
        assert_eq!(most(2 << 20, None), 128 << 20);
        assert_eq!(most(2 << 20, Some(40 << 20)), 10 << 20);
        assert_eq!(most(u64::MAX, Some(8 << 30)), 2 << 30);
    }

    #[test]
    fn no_hole_in_a_file_is_copied() {
        assert!(may_copy(0) && may_copy(16 << 20) && !may_copy((256 << 20) + 1) && !may_copy(usize::MAX));
    }

    #[test]
    fn the_beginning_of_a_stream_needs_no_end() {
        let whole: Vec<u8> = (0..200_000_u32).flat_map(|n| (n.wrapping_mul(n) ^ n >> 3).to_le_bytes()).collect();
        let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(&whole).unwrap();
        let packed = packer.finish().unwrap();
        for size in [0, 1, 4097, whole.len() - 1, whole.len()] {
            assert_eq!(beginning(&packed, size).unwrap(), &whole[..size], "{size}");
        }
        assert_eq!(beginning(&packed, whole.len() + 1), None);
        let cut = &packed[..packed.len() / 2];
        assert_eq!(beginning(cut, 1000).unwrap(), &whole[..1000]);
        assert_eq!(beginning(cut, whole.len()), None);
        assert_eq!(beginning(b"no stream of zlib", 10), None);
        assert_eq!(beginning(&packed, usize::MAX), None);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([human(7), human(2 << 10), human(4 << 30)], ["7 bytes", "2 KiB", "4096 MiB"]);
    }
}
