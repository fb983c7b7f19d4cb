//! `/tmp/perf-PID.map`, in which just-in-time compilers tell of their code: node with `--perf-basic-prof`, Java, .NET,
//! LuaJIT, Python with `-X perf`. One line a function: start and size in hexadecimal digits, then its name, which may
//! have blanks in it (the kernel's tools/perf/Documentation/jit-interface.txt).

use super::files::{NOFOLLOW, NONBLOCK};
use super::{FunctionName, Resolution, SymFrame};
use crate::base::addr::ObjAddr;
use crate::profile::SymbolStatus;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

const ROOT: u32 = 0;

/// How many bytes of the file are read, from its end, where what counts stands. A large Java server writes some tens of
/// megabytes.
const LARGEST: u64 = 256 << 20;

/// How many bytes are read at once.
const BLOCK: u64 = 1 << 20;

/// The longest name, in bytes: what is behind is left out.
const LONGEST_NAME: usize = 4 << 10;

/// The longest line, in bytes: longer ones are damage.
const LONGEST_LINE: usize = 64 << 10;

/// Where such a file may be.
#[derive(Clone, Debug)]
pub struct PerfMap {
    /// The file. Everybody may write to its folder: it counts only if it is a regular file that belongs to `owner` or
    /// root.
    pub path: PathBuf,
    /// The process's user.
    pub owner: Option<u32>,
    /// An older file is that of another process, which had the id before.
    pub not_before: Option<SystemTime>,
}

impl PerfMap {
    /// Names `addrs`, ascending addresses in the process. Whatever is wrong with the file: they have no names then.
    pub(super) fn resolve(&self, addrs: &[ObjAddr]) -> Resolution {
        let mut names = Names::of(addrs);
        if let Some((file, size)) = self.open() {
            // What was read before an error is right.
            let _ = names.read(&file, size);
        }
        let functions = names.found.iter().any(Option::is_some);
        let frame = |name: Arc<str>| {
            let function = Some(FunctionName { system_name: name.clone(), name });
            SymFrame { function, ..SymFrame::default() }
        };
        Resolution {
            frames: names.found.into_iter().map(|name| name.map(frame).into_iter().collect()).collect(),
            status: SymbolStatus { functions, ..SymbolStatus::default() },
        }
    }

    /// Opens the file if it is the process's, with its size.
    fn open(&self) -> Option<(File, u64)> {
        // A pipe or device in its place must not keep us waiting.
        let file = OpenOptions::new().read(true).custom_flags(NOFOLLOW | NONBLOCK).open(&self.path).ok()?;
        let found = file.metadata().ok()?;
        let is_ours = found.uid() == ROOT || Some(found.uid()) == self.owner;
        let is_stale = found.modified().ok().zip(self.not_before).is_some_and(|(modified, began)| modified < began);
        (found.is_file() && is_ours && !is_stale).then_some((file, found.size()))
    }
}

/// The names of addresses, found line by line from the last one to the first: of several the last counts, as code is
/// moved, and its room used again. So each address is named once, whatever the lines say.
struct Names<'a> {
    addrs: &'a [ObjAddr],
    /// A line may name all of them: they share its name.
    found: Vec<Option<Arc<str>>>,
    /// For each address an index from which on to look for the next that has no name, its own included.
    next: Vec<usize>,
    unnamed: usize,
}

impl<'a> Names<'a> {
    fn of(addrs: &'a [ObjAddr]) -> Self {
        let next = (0..=addrs.len()).collect();
        Self { addrs, found: vec![None; addrs.len()], next, unnamed: addrs.len() }
    }

    /// Reads the file's last `size` bytes, block by block from its end, until all have a name.
    fn read(&mut self, file: &File, size: u64) -> io::Result<()> {
        let first = size.saturating_sub(LARGEST);
        let mut end = size;
        // The beginning of the block behind, which is the rest of this one's last line. None: that line is too long.
        let mut rest = Some(Vec::new());
        while end > first && self.unnamed > 0 {
            let start = end.saturating_sub(BLOCK).max(first);
            let mut block = vec![0; usize::try_from(end - start).unwrap_or_default()];
            file.read_exact_at(&mut block, start)?;
            let mut lines = block.rsplit(|&byte| byte == b'\n');
            let mut last = lines.next().unwrap_or_default();
            for line in lines {
                self.end_line(last, rest.replace(Vec::new()));
                last = line;
            }
            rest = rest.filter(|rest| rest.len() + last.len() <= LONGEST_LINE).map(|rest| [last, &rest].concat());
            end = start;
        }
        // A line that begins before what is read is not known as a whole.
        if first == 0 {
            self.end_line(&[], rest);
        }
        Ok(())
    }

    /// A line is complete: its beginning, and what follows in the block behind.
    fn end_line(&mut self, beginning: &[u8], rest: Option<Vec<u8>>) {
        match rest {
            Some(rest) if rest.is_empty() => self.line(beginning),
            Some(rest) => self.line(&[beginning, &rest].concat()),
            None => {}
        }
    }

    fn line(&mut self, line: &[u8]) {
        let Some((start, end, name)) = entry(line).filter(|_| line.len() <= LONGEST_LINE) else { return };
        let to = self.addrs.partition_point(|addr| addr.0 < end);
        let mut at = self.next_unnamed(self.addrs.partition_point(|addr| addr.0 < start));
        if at >= to {
            return;
        }
        let name: Arc<str> = String::from_utf8_lossy(name).into();
        while at < to {
            if let (Some(found), Some(next)) = (self.found.get_mut(at), self.next.get_mut(at)) {
                *found = Some(name.clone());
                *next = at + 1;
                self.unnamed -= 1;
            }
            at = self.next_unnamed(at);
        }
    }

    /// The first address without a name from `at` on. Shortens the way that it goes, so that each is gone about once.
    fn next_unnamed(&mut self, mut at: usize) -> usize {
        while let Some(next) = self.next.get(at).copied().filter(|&next| next != at) {
            let after = self.next.get(next).copied().unwrap_or(next);
            if let Some(here) = self.next.get_mut(at) {
                *here = after;
            }
            at = next;
        }
        at
    }
}

/// First address, one past the last, name.
fn entry(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(fields.next()?).ok()?;
        u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = fields.next()?.trim_ascii();
    let name = name.get(..LONGEST_NAME).unwrap_or(name);
    (!name.is_empty()).then(|| (start, start.saturating_add(size), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;
    use std::time::Duration;

    #[test]
    fn the_last_entry_counts_and_damaged_lines_do_not() {
        let text = b"1000 40 old\n1000 20 first name\nnonsense\n\n0x2000 0x10 Ljava/lang/String;::hashCode\r\n-5 1 x\n\
            ffffffffffffffff 10 top\n1030 10\n1020 8 second";
        let addrs = [0xfff, 0x1000, 0x101f, 0x1020, 0x1028, 0x103f, 0x1040, 0x200f, 0x2010].map(ObjAddr);
        let dir = TempDir::new("perf-map-lines");
        let path = dir.join("map");
        std::fs::write(&path, text).unwrap();
        let mut names = Names::of(&addrs);
        names.read(&File::open(&path).unwrap(), text.len() as u64).unwrap();
        let names = names.found;
        let expected = [
            None,
            Some("first name"),
            Some("first name"),
            Some("second"),
            Some("old"),
            Some("old"),
            None,
            Some("Ljava/lang/String;::hashCode"),
            None,
        ];
        assert_eq!(names.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
    }

    fn names_in(path: &std::path::Path, owner: Option<u32>, not_before: Option<SystemTime>) -> Option<String> {
        let resolution = PerfMap { path: path.to_owned(), owner, not_before }.resolve(&[ObjAddr(0x1001)]);
        resolution.frames[0].first().and_then(|frame| Some(frame.function.as_ref()?.name.as_ref().to_owned()))
    }

    #[test]
    fn a_file_from_before_the_process_is_another_one_s() {
        let dir = TempDir::new("perf-map");
        let path = dir.join("perf-1.map");
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let found = std::fs::metadata(&path).unwrap();
        let (owner, written) = (Some(found.uid()), found.modified().unwrap());
        let named = Some("f".to_owned());
        assert_eq!(names_in(&path, owner, None), named);
        assert_eq!(names_in(&path, owner, Some(written)), named);
        assert_eq!(names_in(&path, owner, Some(written + Duration::from_secs(1))), None);
        assert_eq!(names_in(&dir.join("none"), owner, None), None);
    }

    #[test]
    fn neither_links_nor_pipes_nor_files_of_strangers_are_read() {
        let dir = TempDir::new("perf-map-strangers");
        let path = dir.join("perf-1.map");
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let own = std::fs::metadata(&path).unwrap().uid();
        let link = dir.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(names_in(&link, Some(own), None), None);
        assert_eq!(names_in(std::path::Path::new("/dev/zero"), Some(own), None), None);
        if own == ROOT {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert_eq!(names_in(&path, Some(65534), None), Some("f".to_owned()));
            assert_eq!(names_in(&path, Some(1), None), None);
            assert_eq!(names_in(&path, None, None), None);
        }
    }

    /// Each line names all addresses: what was quadratic.
    #[test]
    fn a_hostile_file_takes_time_by_its_length_alone() {
        let dir = TempDir::new("perf-map-hostile");
        let path = dir.join("map");
        let line = |number: u32| format!("0 ffffffffffffffff {number}\n");
        let mut text: String = (0..200_000).map(line).collect();
        // longer than a block
        text.push_str(&format!("0 ffffffffffffffff {}\n", "x".repeat(3 << 20)));
        std::fs::write(&path, &text).unwrap();
        let addrs: Vec<ObjAddr> = (0..100_000).map(|index| ObjAddr(index * 16)).collect();
        let mut names = Names::of(&addrs);
        names.read(&File::open(&path).unwrap(), text.len() as u64).unwrap();
        assert!(names.found.iter().all(|name| name.as_deref() == Some("199999")));
    }

    /// A line that covers all addresses costs its name once.
    #[test]
    fn addresses_share_the_name_of_their_line() {
        let dir = TempDir::new("perf-map-shared");
        let path = dir.join("perf-1.map");
        std::fs::write(&path, [b"0 ffffffffffffffff ".as_slice(), &[0xff; 5000], b"\n"].concat()).unwrap();
        let owner = std::fs::metadata(&path).unwrap().uid();
        let addrs: Vec<ObjAddr> = (0..100_000).map(|index| ObjAddr(index * 16)).collect();
        let frames = PerfMap { path, owner: Some(owner), not_before: None }.resolve(&addrs).frames;
        let function = |index: usize| frames[index][0].function.as_ref().unwrap();
        let first = function(0);
        assert_eq!(first.name.chars().count(), LONGEST_NAME);
        let is_first = |name: &Arc<str>| Arc::ptr_eq(name, &first.name);
        assert!(
            (0..addrs.len()).all(|index| is_first(&function(index).name) && is_first(&function(index).system_name))
        );
    }

    /// Every line is found, wherever blocks begin.
    #[test]
    fn lines_over_the_ends_of_blocks_are_whole() {
        let dir = TempDir::new("perf-map-blocks");
        let path = dir.join("map");
        let text: String = (0..100_000u32).map(|index| format!("{:x} 10 function_{index}\n", index * 16)).collect();
        assert!(text.len() as u64 > 2 * BLOCK);
        std::fs::write(&path, &text).unwrap();
        let addrs: Vec<ObjAddr> = (0..100_000).map(|index| ObjAddr(index * 16 + 3)).collect();
        let mut names = Names::of(&addrs);
        names.read(&File::open(&path).unwrap(), text.len() as u64).unwrap();
        let is_wrong =
            |(index, name): &(usize, &Option<Arc<str>>)| name.as_deref() != Some(&*format!("function_{index}"));
        let wrong = names.found.iter().enumerate().find(is_wrong);
        assert_eq!(wrong, None);
    }
}
