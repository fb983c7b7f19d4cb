//! The notes of a core (<elf.h>, <sys/procfs.h>; `struct elf_prstatus`, `struct elf_prpsinfo`, `fill_files_note` of the
//! kernel).

use super::CoreThread;
use crate::arch::xsave::{self, vector_words};
use crate::arch::{Regs, reg};
use crate::base::addr::Addr;
use crate::base::memory::word;
use object::LittleEndian as LE;
use object::elf::FileHeader64;
use object::read::elf::NoteIterator;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;

/// Where `struct elf_prstatus` has the thread's id and its registers, in bytes.
const STATUS_ID: usize = 32;
const STATUS_REGS: usize = 112;

/// The places of `struct user_regs_struct` for [`Regs::gpr`], in words.
const GENERAL: [(usize, usize); 16] = [
    (reg::R15, 0),
    (reg::R14, 1),
    (reg::R13, 2),
    (reg::R12, 3),
    (reg::RBP, 4),
    (reg::RBX, 5),
    (reg::R11, 6),
    (reg::R10, 7),
    (reg::R9, 8),
    (reg::R8, 9),
    (reg::RAX, 10),
    (reg::RCX, 11),
    (reg::RDX, 12),
    (reg::RSI, 13),
    (reg::RDI, 14),
    (reg::RSP, 19),
];
const ORIGINAL_RAX: usize = 15;
const RIP: usize = 16;
const RFLAGS: usize = 18;
const FS_BASE: usize = 21;
const GS_BASE: usize = 22;

/// Where `struct elf_prpsinfo` has the process's id and the program's name, which ends with a zero or after 16 bytes.
const INFO_ID: usize = 24;
const INFO_NAME: Range<usize> = 40..56;

/// So many files are taken.
const MAX_FILES: usize = 1 << 20;

/// A file that was mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MappedFile {
    pub(super) range: Range<Addr>,
    /// Where in the file it begins, in bytes.
    pub(super) offset: u64,
    pub(super) path: PathBuf,
    /// Whether it had no name any more.
    pub(super) deleted: bool,
}

impl MappedFile {
    /// Whether it is memory that several processes may have, rather than a file.
    pub(super) fn is_shared_memory(&self) -> bool {
        ["/memfd:", "/SYSV", "/dev/zero", "/dev/shm/"]
            .iter()
            .any(|prefix| self.path.as_os_str().as_bytes().starts_with(prefix.as_bytes()))
    }
}

/// What the kernel has told the program (getauxval(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Auxiliary {
    pub(super) entry: Option<u64>,
    pub(super) program_headers: Option<u64>,
    pub(super) program_header_count: u64,
    pub(super) vdso: Option<u64>,
    pub(super) random: Option<u64>,
    pub(super) program_name: Option<u64>,
}

/// All that is of use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Notes {
    pub(super) threads: Vec<CoreThread>,
    pub(super) pid: Option<i32>,
    pub(super) program: String,
    pub(super) auxiliary: Auxiliary,
    pub(super) files: Vec<MappedFile>,
    /// Whether the thread that was told last stood in a system call.
    in_system_call: bool,
}

impl Notes {
    /// Reads a segment of notes. What can't be understood is passed over.
    pub(super) fn read(&mut self, segment: &[u8]) {
        let Ok(mut notes) = NoteIterator::<FileHeader64<LE>>::new(LE, 4, segment) else { return };
        while let Ok(Some(note)) = notes.next() {
            let bytes = note.desc();
            match note.n_type(LE).0 {
                NT_PRSTATUS if note.name() == b"CORE" => self.status(bytes),
                NT_PRPSINFO if note.name() == b"CORE" => self.info(bytes),
                NT_AUXV if note.name() == b"CORE" => self.auxiliary = auxiliary(bytes),
                NT_FILE if note.name() == b"CORE" => self.files.extend(files(bytes)),
                kind if note.name() == b"LINUX" && i32::try_from(kind) == Ok(xsave::NT_X86_XSTATE) => {
                    self.vectors(bytes)
                }
                _ => {}
            }
        }
    }

    fn status(&mut self, bytes: &[u8]) {
        let Some((tid, registers)) = int(bytes, STATUS_ID).zip(bytes.get(STATUS_REGS..)) else { return };
        let at = |place: usize| word(registers, place * 8);
        let mut regs = Regs::default();
        for (number, place) in GENERAL {
            let (Some(register), Some(value)) = (regs.gpr.get_mut(number), at(place)) else { return };
            *register = value;
        }
        let bases = at(FS_BASE).zip(at(GS_BASE));
        let (Some(rip), Some(rflags), Some((fs_base, gs_base))) = (at(RIP), at(RFLAGS), bases) else { return };
        regs = Regs { rip, rflags, fs_base, gs_base, ..regs };
        self.in_system_call = at(ORIGINAL_RAX).is_some_and(|number| number.cast_signed() >= 0);
        self.threads.push(CoreThread { tid, regs, vectors: Vec::new() });
    }

    /// Those of the thread that was told last.
    fn vectors(&mut self, bytes: &[u8]) {
        if let Some(thread) = self.threads.last_mut().filter(|_| !self.in_system_call) {
            let words = bytes.chunks_exact(8).take(xsave::WORDS).filter_map(|bytes| word(bytes, 0));
            thread.vectors = vector_words(&words.collect::<Vec<_>>());
        }
    }

    fn info(&mut self, bytes: &[u8]) {
        self.pid = int(bytes, INFO_ID);
        let name = bytes.get(INFO_NAME).unwrap_or(&[]).split(|&byte| byte == 0).next().unwrap_or(&[]);
        self.program = String::from_utf8_lossy(name).into_owned();
    }
}

fn int(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}

fn auxiliary(bytes: &[u8]) -> Auxiliary {
    let mut found = Auxiliary::default();
    for entry in bytes.chunks_exact(16) {
        let (Some(kind), Some(value)) = (word(entry, 0), word(entry, 8)) else { break };
        let value = Some(value).filter(|value| *value != 0);
        // <elf.h>: AT_PHDR, AT_PHNUM, AT_ENTRY, AT_RANDOM, AT_EXECFN, AT_SYSINFO_EHDR
        match kind {
            3 => found.program_headers = value,
            5 => found.program_header_count = value.unwrap_or(0),
            9 => found.entry = value,
            25 => found.random = value,
            31 => found.program_name = value,
            33 => found.vdso = value,
            _ => {}
        }
    }
    found
}

/// `count, page size, (start, end, offset in pages)…, names that end with a zero…`
fn files(bytes: &[u8]) -> Vec<MappedFile> {
    let header = |place: usize| word(bytes, place * 8);
    let count = header(0).and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= MAX_FILES);
    let (Some(count), Some(page)) = (count, header(1)) else { return Vec::new() };
    let names = bytes.get(16 + count * 24..).unwrap_or(&[]).split(|&byte| byte == 0);
    (0..count)
        .zip(names)
        .filter_map(|(number, name)| {
            let (path, deleted) = name.strip_suffix(b" (deleted)").map_or((name, false), |path| (path, true));
            Some(MappedFile {
                range: Addr(header(2 + number * 3)?)..Addr(header(3 + number * 3)?),
                offset: header(4 + number * 3)?.checked_mul(page)?,
                path: PathBuf::from(OsStr::from_bytes(path)),
                deleted,
            })
        })
        .collect()
}
