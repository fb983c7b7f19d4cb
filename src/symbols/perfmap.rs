//! `/tmp/perf-PID.map`, in which just-in-time compilers tell of their code: node with `--perf-basic-prof`, Java, .NET,
//! LuaJIT, Python with `-X perf`. One line a function: start and size in hexadecimal digits, then its name, which may have
//! blanks in it (the kernel's tools/perf/Documentation/jit-interface.txt).

use super::files::Bytes;
use super::{FunctionName, Resolution, SymFrame};
use crate::addr::ObjAddr;
use crate::profile::SymbolStatus;
use std::path::PathBuf;
use std::time::SystemTime;

/// Where such a file may be.
#[derive(Clone, Debug)]
pub struct PerfMap {
    /// The file.
    pub path: PathBuf,
    /// An older file is that of another process, which had the id before.
    pub not_before: Option<SystemTime>,
}

impl PerfMap {
    /// Names `addrs`, ascending addresses in the process. Whatever is wrong with the file: they have no names then.
    pub(super) fn resolve(&self, addrs: &[ObjAddr]) -> Resolution {
        let is_stale = || {
            let modified = std::fs::metadata(&self.path).and_then(|file| file.modified()).ok();
            modified.zip(self.not_before).is_some_and(|(modified, not_before)| modified < not_before)
        };
        let text = Bytes::open(&self.path).ok().filter(|_| !is_stale());
        let names = find(text.as_deref().unwrap_or_default(), addrs);
        let functions = names.iter().any(Option::is_some);
        let frame = |name: &[u8]| {
            let name = String::from_utf8_lossy(name).into_owned();
            let function = Some(FunctionName { system_name: name.clone(), name });
            SymFrame { function, ..SymFrame::default() }
        };
        Resolution {
            frames: names.into_iter().map(|name| name.map(frame).into_iter().collect()).collect(),
            status: SymbolStatus { functions, ..SymbolStatus::default() },
        }
    }
}

/// The name of each address. Of several the last one counts: code is moved, and its room used again.
fn find<'t>(text: &'t [u8], addrs: &[ObjAddr]) -> Vec<Option<&'t [u8]>> {
    let mut names = vec![None; addrs.len()];
    for (start, end, name) in text.split(|&byte| byte == b'\n').filter_map(entry) {
        let (from, to) = (addrs.partition_point(|addr| addr.0 < start), addrs.partition_point(|addr| addr.0 < end));
        if let Some(inside) = names.get_mut(from..to) {
            inside.fill(Some(name));
        }
    }
    names
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
    (!name.is_empty()).then(|| (start, start.saturating_add(size), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::TempDir;
    use std::time::Duration;

    #[test]
    fn the_last_entry_counts_and_damaged_lines_do_not() {
        let text = b"1000 40 old\n1000 20 first name\nnonsense\n\n0x2000 0x10 Ljava/lang/String;::hashCode\r\n-5 1 x\n\
            ffffffffffffffff 10 top\n1030 10\n1020 8 second";
        let addrs = [0xfff, 0x1000, 0x101f, 0x1020, 0x1028, 0x103f, 0x1040, 0x200f, 0x2010].map(ObjAddr);
        let names: Vec<_> = find(text, &addrs).into_iter().map(|name| name.map(String::from_utf8_lossy)).collect();
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

    #[test]
    fn a_file_from_before_the_process_is_another_one_s() {
        let dir = TempDir::new("perf-map");
        let path = dir.join("perf-1.map");
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        let names = |not_before| {
            let resolution = PerfMap { path: path.clone(), not_before }.resolve(&[ObjAddr(0x1001)]);
            resolution.frames[0].first().and_then(|frame| Some(frame.function.as_ref()?.name.clone()))
        };
        assert_eq!(names(None), Some("f".to_owned()));
        assert_eq!(names(Some(written)), Some("f".to_owned()));
        assert_eq!(names(Some(written + Duration::from_secs(1))), None);
        let missing = PerfMap { path: dir.join("none"), not_before: None }.resolve(&[ObjAddr(1)]);
        assert_eq!(missing.frames, [vec![]]);
    }
}
