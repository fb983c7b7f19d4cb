//! gzip on all processors: the bytes are cut into blocks, which are compressed side by side, and beside whoever makes
//! them.
//!
//! The blocks are joined as pigz does it, each but the last ending at a byte (a "sync flush"), so that a reader sees
//! one ordinary gzip member (RFC 1952). Where the cuts are depends on the bytes only: equal profiles make equal files.

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes of a block. Each begins without a memory of the one before, which costs one percent of the size.
const BLOCK: usize = 256 << 10;

/// No name, no time, no flags; made on Unix (RFC 1952, section 2.3).
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// Room for the output is made so many bytes at a time.
const ROOM: usize = 64 << 10;

/// So many blocks wait at most, for each processor, until they are compressed and written.
const HELD: usize = 4;

/// Writes `bytes` as one gzip member.
pub(super) fn write(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer::new(out);
    writer.write_all(bytes)?;
    writer.finish()
}

/// Compresses what is written to it into one gzip member, block by block, while more is written.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    /// What is not given to anybody yet: a block at most.
    held: Vec<u8>,
    crc: Crc,
    has_begun: bool,
    /// Whoever compresses blocks beside this thread, once there was one to be.
    team: Option<Team>,
    /// Blocks that were given away, in their order.
    waiting: VecDeque<Receiver<io::Result<Packed>>>,
    /// Room of blocks that are written.
    free: Vec<Vec<u8>>,
    processors: usize,
}

/// A block that is to be compressed.
struct Job {
    block: Vec<u8>,
    is_last: bool,
    done: Sender<io::Result<Packed>>,
}

/// A block that was.
struct Packed {
    bytes: Vec<u8>,
    block: Vec<u8>,
    crc: Crc,
}

/// Threads that take one block after the other, until no more can come.
struct Team {
    jobs: Sender<Job>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    fn new(threads: usize) -> Self {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let work = |queue: Arc<Mutex<Receiver<Job>>>| {
            move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(Job { block, is_last, done }) = next() {
                    // nobody waits for it where the output could not be written
                    let _ = done.send(pack(block, is_last));
                }
            }
        };
        let named = || thread::Builder::new().name("gzip".to_owned());
        let threads = (0..threads).filter_map(|_| named().spawn(work(Arc::clone(&queue))).ok()).collect();
        Self { jobs, threads }
    }
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            out,
            held: Vec::new(),
            crc: Crc::new(),
            has_begun: false,
            team: None,
            waiting: VecDeque::new(),
            free: Vec::new(),
            processors,
        }
    }

    /// Writes what is left, and the member's end.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let last = std::mem::take(&mut self.held);
        let last = pack(last, true);
        while !self.waiting.is_empty() {
            self.write_oldest()?;
        }
        self.write_packed(last?)?;
        if let Some(Team { jobs, threads }) = self.team {
            drop(jobs);
            // Each has done all its work.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        self.out.write_all(&self.crc.sum().to_le_bytes())?;
        self.out.write_all(&self.crc.amount().to_le_bytes())
    }

    /// Gives the block away that is held, which is not the last.
    fn give_away(&mut self) -> io::Result<()> {
        if self.waiting.len() >= self.processors.saturating_mul(HELD) {
            self.write_oldest()?;
        }
        let room = self.free.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK));
        let block = std::mem::replace(&mut self.held, room);
        let team = self.team.get_or_insert_with(|| Team::new(self.processors));
        let (done, result) = channel();
        if team.threads.is_empty() {
            // Without a thread, this one does the work.
            let _ = done.send(pack(block, false));
        } else {
            // They wait for more until they are told that none comes.
            let _ = team.jobs.send(Job { block, is_last: false, done });
        }
        self.waiting.push_back(result);
        Ok(())
    }

    fn write_oldest(&mut self) -> io::Result<()> {
        let Some(oldest) = self.waiting.pop_front() else { return Ok(()) };
        let packed = oldest.recv().map_err(io::Error::other)??;
        self.write_packed(packed)
    }

    fn write_packed(&mut self, packed: Packed) -> io::Result<()> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.out.write_all(&HEADER)?;
        }
        self.crc.combine(&packed.crc);
        self.out.write_all(&packed.bytes)?;
        self.free.push(packed.block);
        Ok(())
    }
}

impl Write for Writer<'_> {
    /// Takes as much as there is room for, which is something.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Only now is it known that the block is not the last.
        if self.held.len() >= BLOCK && !bytes.is_empty() {
            self.give_away()?;
        }
        let taken = bytes.get(..BLOCK.saturating_sub(self.held.len())).unwrap_or(bytes);
        self.held.extend_from_slice(taken);
        Ok(taken.len())
    }

    /// What is held stays so: where blocks end depends on the bytes only.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A block, compressed; its room is given back empty.
fn pack(mut block: Vec<u8>, is_last: bool) -> io::Result<Packed> {
    let mut crc = Crc::new();
    crc.update(&block);
    let bytes = deflate(&block, is_last)?;
    block.clear();
    Ok(Packed { bytes, block, crc })
}

/// One block; only the last may be empty.
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
    use crate::image::elf::testing::TempDir;
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
        for length in [0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12_345, 20 * BLOCK] {
            let (bytes, path) = (bytes(length), dir.join("x.gz"));
            write(&bytes, &mut std::fs::File::create(&path).unwrap()).unwrap();
            let output = Command::new("gzip").arg("-dc").arg(&path).stderr(Stdio::inherit()).output().unwrap();
            assert!(output.status.success(), "{length}");
            assert!(output.stdout == bytes, "{length}");
            let mut again = Vec::new();
            let mut writer = Writer { processors: 1 + length % 2, ..Writer::new(&mut again) };
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
