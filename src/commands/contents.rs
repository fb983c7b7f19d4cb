//! What live blocks hold (`heaptrace snapshot --contents`): read by the tracer while the process runs on, written by
//! the one who asks.
//!
//! A block that is freed meanwhile, or given to somebody else, is marked: its bytes are not what they were at the
//! snapshot's moment. What a thread writes to a block while it is read can't be noticed.

use crate::base::addr::{Addr, StackId};
use crate::base::figures::{grouped, plural};
use crate::heapmodel::{HeapView, LiveBlock};
use crate::profile::Profile;
use crate::top::ctl;
use crate::tracer::control;
use crate::tracer::memory::TargetMemory;
use crate::unwinder::StackTable;
use anyhow::{Context, bail};
use rustc_hash::FxHashMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// So many functions of a block's stack are in the index.
const FUNCTIONS: usize = 8;

/// So many bytes of a block are read at once.
const PIECE: usize = 1 << 20;

/// Blocks whose contents are wanted.
#[derive(Debug)]
pub(super) struct Contents {
    blocks: Vec<Block>,
    functions: FxHashMap<StackId, String>,
    memory: TargetMemory,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    addr: Addr,
    size: u64,
    birth: u64,
    stack: StackId,
}

impl Contents {
    /// The blocks of a view that were born later than `births` others, by address.
    ///
    /// # Errors
    /// There are too many, or they hold more than `limit` bytes: in words.
    pub(super) fn list(pid: i32, heap: &HeapView, births: u64, limit: u64) -> Result<Self, String> {
        let of = |block: LiveBlock| {
            let birth = heap.birth(block.addr).filter(|birth| *birth > births)?;
            let stack = heap.site(block.site).map_or(StackId::EMPTY, |site| site.key.stack);
            Some(Block { addr: block.addr, size: block.size, birth, stack })
        };
        let mut blocks: Vec<Block> = heap.live_blocks().filter_map(of).collect();
        blocks.sort_unstable_by_key(|block| block.addr);
        let bytes = blocks.iter().map(|block| block.size).fold(0, u64::saturating_add);
        if blocks.len() > ctl::MAX_BLOCKS {
            return Err(format!(
                "--contents writes one file for each block, at most {}, and {} are live: `heaptrace ctl PID mark NAME` \
                 and --since NAME choose those allocated since",
                grouped(ctl::MAX_BLOCKS as u64),
                grouped(blocks.len() as u64)
            ));
        }
        if bytes > limit {
            return Err(format!(
                "the live blocks hold {}, more than the {} that --contents may write: allow more with --contents-limit \
                 SIZE, or choose with --since MARK",
                plural(bytes, "byte"),
                grouped(limit)
            ));
        }
        let memory = TargetMemory::open(pid, pid).map_err(|error| error.to_string())?;
        Ok(Self { blocks, functions: FxHashMap::default(), memory })
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Takes the names of the functions from a profile that was made of the same moment.
    pub(super) fn name(&mut self, stacks: &StackTable, profile: &Profile) {
        let names: FxHashMap<Addr, &str> = profile
            .locations
            .iter()
            .filter_map(|location| {
                Some((location.address, &*profile.functions.get(location.lines.last()?.function)?.name))
            })
            .collect();
        for block in &self.blocks {
            self.functions.entry(block.stack).or_insert_with(|| {
                let frames = stacks.frames(block.stack);
                let known = frames.iter().filter_map(|frame| names.get(&frame.addr.lookup()).copied());
                known.take(FUNCTIONS).collect::<Vec<_>>().join(" < ")
            });
        }
    }

    /// Reads the blocks and sends them, then the index; `now` gives a view of the moment when all are read.
    ///
    /// # Errors
    /// The other side is gone.
    pub(super) fn send(self, to: &mut impl Write, now: impl FnOnce() -> Option<HeapView>) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        let mut read = Vec::with_capacity(self.blocks.len());
        let mut to = io::BufWriter::with_capacity(1 << 18, to);
        for block in &self.blocks {
            to.write_all(&block.addr.0.to_le_bytes())?;
            let mut done = 0;
            // In pieces with their lengths, as nobody knows beforehand how much can be read. An empty one ends the
            // block.
            while done < block.size {
                let piece = usize::try_from(block.size - done).unwrap_or(PIECE).min(PIECE);
                let bytes = buffer.get_mut(..piece).unwrap_or_default();
                let n = self.memory.read_uncached(block.addr.add(done), bytes);
                if n == 0 {
                    break;
                }
                to.write_all(&(n as u64).to_le_bytes())?;
                to.write_all(bytes.get(..n).unwrap_or_default())?;
                done += n as u64;
            }
            to.write_all(&0u64.to_le_bytes())?;
            read.push(done);
        }
        let index = self.index(&read, now().as_ref());
        to.write_all(&(index.len() as u64).to_le_bytes())?;
        to.write_all(index.as_bytes())?;
        to.flush()
    }

    /// The blocks as lines, their fields separated by tabs.
    fn index(&self, read: &[u64], now: Option<&HeapView>) -> String {
        let mut index = String::from(
            "# contents of live blocks, version 1\n# address\tsize\tread\tstate\tfunctions, innermost first\n",
        );
        for (block, read) in self.blocks.iter().zip(read) {
            let state = match now {
                _ if *read < block.size => "unreadable",
                Some(now) if now.birth(block.addr) == Some(block.birth) => "live",
                Some(_) => "freed",
                None => "ended",
            };
            let functions = self.functions.get(&block.stack).map_or("", String::as_str).replace(['\t', '\n'], " ");
            let _ = writeln!(index, "{:#x}\t{}\t{read}\t{state}\t{functions}", block.addr.0, block.size);
        }
        index
    }
}

/// The folder that the contents are written to. Until [`Self::finish`] it has another name, and is removed if nothing
/// comes of it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    temporary: PathBuf,
}

impl Folder {
    /// Makes sure that the folder can be made; it must not be there yet, or be empty.
    ///
    /// # Errors
    /// It can't.
    pub(super) fn prepare(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        if let Ok(mut entries) = fs::read_dir(path)
            && entries.next().is_some()
        {
            bail!("{shown}: this folder is not empty; name a new one for --contents");
        }
        let name = path.file_name().with_context(|| format!("{shown}: does not name a folder"))?;
        let temporary = path.with_file_name(format!(".{}-{}.tmp", name.to_string_lossy(), std::process::id()));
        // What blocks hold may be secret.
        DirBuilder::new().mode(0o700).create(&temporary).with_context(|| format!("{shown}: can't make this folder"))?;
        Ok(Self { path: path.to_owned(), temporary })
    }

    /// Writes what the tracer sends: one file for each block, named after its address, and the index. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// The disk is full; the connection breaks; what comes is nothing of the kind.
    pub(super) fn receive(&self, blocks: u64, limit: u64, from: &mut impl Read) -> anyhow::Result<u64> {
        let mut all = 0u64;
        if blocks > ctl::MAX_BLOCKS as u64 {
            bail!("the tracer announces {blocks} blocks, more than the {} that it may send", ctl::MAX_BLOCKS);
        }
        for _ in 0..blocks {
            if let Some(signal) = control::waiting_request_to_end() {
                bail!("cancelled by {}", control::signal_name(signal));
            }
            let addr = number(from)?;
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(self.temporary.join(format!("{addr:#x}")))
                .with_context(|| format!("{}: can't write", self.path.display()))?;
            loop {
                let length = number(from)?;
                if length == 0 {
                    break;
                }
                all = all.saturating_add(length);
                if all > limit {
                    bail!("the tracer sent more than {} of contents", plural(limit, "byte"));
                }
                let copied = io::copy(&mut from.take(length), &mut file)
                    .with_context(|| format!("{}: can't write", self.path.display()))?;
                if copied != length {
                    bail!("the connection broke inside a block");
                }
            }
        }
        let length = number(from)?;
        if length > ctl::LONGEST_FILE {
            bail!("the tracer announces an index of {}", plural(length, "byte"));
        }
        let mut index = Vec::new();
        from.take(length).read_to_end(&mut index)?;
        if index.len() as u64 != length {
            bail!("the connection broke inside the index");
        }
        fs::write(self.temporary.join("index.tsv"), index)
            .with_context(|| format!("{}: can't write", self.path.display()))?;
        Ok(all)
    }

    /// Gives the folder its name.
    ///
    /// # Errors
    /// Another one is there by now.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        // Replaces an empty folder, and no other.
        fs::rename(&self.temporary, &self.path)
            .with_context(|| format!("{}: can't make this folder", self.path.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Not there any more if it has got its name.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

fn number(from: &mut impl Read) -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes).context("the connection broke inside the contents")?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes from the other side makes no more files than may be, whatever it announces.
    #[test]
    fn announced_blocks_are_not_believed() {
        let path = std::env::temp_dir().join(format!("heaptrace-contents-{}", std::process::id()));
        let folder = Folder::prepare(&path).unwrap();
        // blocks without content at 1, 2, 3 and so on
        let mut sent = Vec::new();
        for addr in 1..1000u64 {
            sent.extend(addr.to_le_bytes());
            sent.extend([0; 8]);
        }
        let refused = folder.receive(u64::MAX, 1 << 30, &mut &*sent).unwrap_err().to_string();
        assert!(refused.contains("more than the 100000"), "{refused}");
        assert_eq!(fs::read_dir(&folder.temporary).unwrap().count(), 0);
        let refused = folder.receive(2000, 1 << 30, &mut &*sent).unwrap_err().to_string();
        assert!(refused.contains("the connection broke"), "{refused}");
        let temporary = folder.temporary.clone();
        drop(folder);
        assert!(!temporary.exists());
    }
}
