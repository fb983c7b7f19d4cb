//! gzip on all processors: the bytes are cut into blocks, which are compressed side by side.
//!
//! The blocks are joined as pigz does it, each but the last ending at a byte (a "sync flush"), so that a reader sees one ordinary
//! gzip member (RFC 1952). Where the cuts are depends on the bytes only: equal profiles make equal files.

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Bytes of a block. Each begins without a memory of the one before, which costs one percent of the size.
const BLOCK: usize = 256 << 10;

/// No name, no time, no flags; made on Unix (RFC 1952, section 2.3).
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// Room for the output is made so many bytes at a time.
const ROOM: usize = 64 << 10;

/// So many blocks are compressed side by side, for each processor, before they are written.
const HELD: usize = 4;

/// Writes `bytes` as one gzip member.
pub(super) fn write(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer::new(out);
    writer.write_all(bytes)?;
    writer.finish()
}

/// Compresses what is written to it into one gzip member, some blocks at a time.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    /// What is not compressed yet.
    held: Vec<u8>,
    /// How much of it there is at most, in bytes.
    most: usize,
    crc: Crc,
    has_begun: bool,
    processors: usize,
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let most = processors.saturating_mul(HELD * BLOCK);
        Self { out, held: Vec::new(), most, crc: Crc::new(), has_begun: false, processors }
    }

    /// Writes what is left, and the member's end.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.pack(true)?;
        self.out.write_all(&self.crc.sum().to_le_bytes())?;
        self.out.write_all(&self.crc.amount().to_le_bytes())
    }

    /// Writes all blocks that are held. `is_end`: they are the last.
    fn pack(&mut self, is_end: bool) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.held);
        let mut blocks: Vec<&[u8]> = bytes.chunks(BLOCK).collect();
        if blocks.is_empty() {
            blocks.push(&[]);
        }
        let last = blocks.len() - 1;
        let mut packed: Vec<io::Result<Vec<u8>>> = blocks.iter().map(|_| Ok(Vec::new())).collect();
        // some blocks take longer than others: whoever is done takes the next one
        let tasks = Mutex::new(blocks.iter().zip(&mut packed).enumerate());
        let work = || {
            let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((index, (block, place))) = next() {
                *place = deflate(block, is_end && index == last);
            }
        };
        let crc = &mut self.crc;
        thread::scope(|scope| {
            for _ in 1..self.processors.clamp(1, blocks.len()) {
                // Without a thread, this one does the work.
                let _ = thread::Builder::new().name("gzip".to_owned()).spawn_scoped(scope, work);
            }
            work();
            crc.update(&bytes);
        });
        if !std::mem::replace(&mut self.has_begun, true) {
            self.out.write_all(&HEADER)?;
        }
        for done in packed {
            self.out.write_all(&done?)?;
        }
        self.held = bytes;
        self.held.clear();
        Ok(())
    }
}

impl Write for Writer<'_> {
    /// Takes as much as there is room for, which is something.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Only now is it known that the blocks are not the last.
        if self.held.len() >= self.most && !bytes.is_empty() {
            self.pack(false)?;
        }
        let taken = bytes.get(..self.most.saturating_sub(self.held.len())).unwrap_or(bytes);
        self.held.extend_from_slice(taken);
        Ok(taken.len())
    }

    /// What is held stays so: where blocks end depends on the bytes only.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One block, never empty.
fn deflate(block: &[u8], is_last: bool) -> io::Result<Vec<u8>> {
    let mut state = Compress::new(Compression::default(), false);
    let flush = if is_last { FlushCompress::Finish } else { FlushCompress::Sync };
    let mut packed = Vec::with_capacity(block.len() / 8 + ROOM);
    loop {
        let (taken, made) = (state.total_in(), state.total_out());
        let rest = block.get(usize::try_from(taken).unwrap_or(usize::MAX)..).unwrap_or_default();
        let status = state.compress_vec(rest, &mut packed, flush).map_err(io::Error::other)?;
        let is_stuck = (state.total_in(), state.total_out()) == (taken, made);
        let is_done = match is_last {
            true => status == Status::StreamEnd,
            // With room left, nothing is held back.
            false => state.total_in() == block.len() as u64 && packed.len() < packed.capacity(),
        };
        if is_done {
            return Ok(packed);
        }
        if is_stuck && packed.len() < packed.capacity() {
            return Err(io::Error::other("deflate does not get on"));
        }
        packed.reserve(ROOM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::TempDir;
    use std::process::{Command, Stdio};

    /// Bytes that compress in part.
    fn bytes(length: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut byte = |at: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if at % 3000 < 2000 { (at / 7) as u8 } else { (state >> 24) as u8 }
        };
        (0..length).map(&mut byte).collect()
    }

    /// gzip itself unpacks it, and finds the sums right.
    #[test]
    fn gzip_unpacks_it() {
        let dir = TempDir::new("gzip");
        for length in [0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12_345] {
            let (bytes, path) = (bytes(length), dir.join("x.gz"));
            write(&bytes, &mut std::fs::File::create(&path).unwrap()).unwrap();
            let output = Command::new("gzip").arg("-dc").arg(&path).stderr(Stdio::inherit()).output().unwrap();
            assert!(output.status.success(), "{length}");
            assert!(output.stdout == bytes, "{length}");
            let mut again = Vec::new();
            let mut writer = Writer { most: 2 * BLOCK, ..Writer::new(&mut again) };
            bytes.chunks(100_003).for_each(|part| writer.write_all(part).unwrap());
            writer.finish().unwrap();
            assert!(again == std::fs::read(&path).unwrap(), "{length}: in parts, other bytes");
        }
    }

    /// The cuts cost next to nothing.
    #[test]
    fn it_is_as_small_as_one_stream() {
        let bytes = bytes(5 * BLOCK);
        let mut ours = Vec::new();
        write(&bytes, &mut ours).unwrap();
        let mut whole = flate2::write::GzEncoder::new(Vec::new(), Compression::default());
        whole.write_all(&bytes).unwrap();
        let whole = whole.finish().unwrap().len();
        assert!(ours.len() < whole + whole / 100, "{} beside {whole}", ours.len());
    }
}
