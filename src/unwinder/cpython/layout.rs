//! Where the fields of CPython's structures are, in bytes.
//!
//! Facts of the headers of the releases 3.8 to 3.12 (`Include/internal/pycore_*.h`, `Include/cpython/*.h`), which
//! `offsetof` has told on x86-64. A release of 3.13 says most of them itself (`_Py_DebugOffsets`, the first member of
//! `_PyRuntime`).

use crate::base::addr::Addr;
use crate::base::memory::{ReadMemory, word};
use thiserror::Error;

/// The symbols of an interpreter's object file that are of use, in the order of [`Symbols::of`].
pub const SYMBOLS: [&str; 8] = [
    "_PyRuntime",
    "PyCode_Type",
    "PyUnicode_Type",
    "_PyEval_EvalFrameDefault",
    "Py_Version",
    "PyIter_Send",
    "PyFrame_GetCode",
    "PyConfig_InitPythonConfig",
];

/// Where an object file that holds an interpreter has what is of use, as the process has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbols {
    /// `_PyRuntime`: the state of the whole process.
    pub runtime: Addr,
    /// `PyCode_Type`, the type of code objects.
    pub code_type: Addr,
    /// `PyUnicode_Type`, the type of strings.
    pub text_type: Addr,
    /// What tells the release.
    pub release: ReleaseSymbol,
}

/// What of an object file tells which release of CPython it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseSymbol {
    /// `Py_Version`, a number that says it; since 3.11.
    Number(Addr),
    /// A function that came with 3.10, as there is no number yet.
    Since310,
    /// The same of 3.9.
    Since39,
    /// The same of 3.8.
    Since38,
    /// None of these: an older one.
    Older,
}

impl Symbols {
    /// From the addresses of [`SYMBOLS`]; None if the object is no interpreter.
    pub fn of(found: [Option<Addr>; 8]) -> Option<Self> {
        let [runtime, code_type, text_type, eval, number, since_310, since_39, since_38] = found;
        eval?;
        let release = match (number, since_310, since_39, since_38) {
            (Some(number), ..) => ReleaseSymbol::Number(number),
            (None, Some(_), ..) => ReleaseSymbol::Since310,
            (None, None, Some(_), _) => ReleaseSymbol::Since39,
            (None, None, None, Some(_)) => ReleaseSymbol::Since38,
            (None, None, None, None) => ReleaseSymbol::Older,
        };
        Some(Self { runtime: runtime?, code_type: code_type?, text_type: text_type?, release })
    }
}

/// Why an interpreter's structures can't be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Unsupported {
    /// Another release.
    #[error("it is CPython {0}, and heaptrace knows the frames of 3.8 to 3.13")]
    Release(String),
    /// One without the global lock.
    #[error("it is a free-threaded build of CPython")]
    FreeThreaded,
    /// Its own table of offsets is none.
    #[error("the description of its own structures can't be understood")]
    Table,
    /// Its release could not be read.
    #[error("its release could not be read")]
    Unreadable,
}

/// How frames hang together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// 3.8 to 3.10: frame objects, one for each native frame of the loop.
    Objects {
        /// The byte that says whether a frame runs, and its value then.
        running: (u64, u8),
        /// The line that the frame itself tells, and what says that it does.
        line: u64,
        told: LineTold,
        /// Whether positions count code units of two bytes, rather than bytes.
        in_units: bool,
    },
    /// 3.11: a record on the native stack for each frame of the loop (`_PyCFrame`), which has the innermost of its
    /// Python frames; the last one is marked.
    Records {
        /// Of the record.
        current: u64,
        previous: u64,
        /// The byte of a frame that marks the outermost one.
        is_entry: u64,
    },
    /// 3.12 and later: a Python frame on the native stack below those that run in one frame of the loop. `record`:
    /// where the record is that has the innermost one (3.12), if there is one.
    Entries {
        /// See above.
        record: Option<u64>,
    },
}

/// When a frame object's own line counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineTold {
    /// If this word of it, its trace function, is not null (3.8, 3.9).
    IfTraced(u64),
    /// If it is not zero (3.10).
    IfNotZero,
}

/// Of `PyThreadState`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadLayout {
    pub(super) previous: u64,
    pub(super) next: u64,
    pub(super) interpreter: u64,
    /// pthread_self.
    pub(super) id: u64,
    /// What leads to the innermost frame, or record.
    pub(super) frames: u64,
}

/// Of `PyFrameObject` or `_PyInterpreterFrame`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FrameLayout {
    pub(super) previous: u64,
    pub(super) code: u64,
    /// The index (4 bytes) or the address (8 bytes) of the instruction.
    pub(super) position: u64,
    /// Who owns it (1 byte); since 3.11.
    pub(super) owner: u64,
}

/// Of `PyCodeObject`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CodeLayout {
    pub(super) file: u64,
    /// `co_qualname` since 3.11, `co_name` before.
    pub(super) name: u64,
    pub(super) lines: u64,
    pub(super) first_line: u64,
    /// `co_code_adaptive`, where the instructions begin; since 3.11.
    pub(super) instructions: u64,
    /// Whether it has a number that no other code object of the interpreter has, unless it is zero; since 3.12.
    pub(super) has_serial: bool,
}

/// How a code object tells lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineFormat {
    /// `co_lnotab` (Objects/lnotab_notes.txt of 3.9).
    Lnotab,
    /// `co_linetable` of 3.10 (PEP 626).
    Ranges,
    /// `co_linetable` since 3.11 (PEP 657; Objects/locations.md).
    Locations,
}

/// Of strings (`PyUnicodeObject`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TextLayout {
    /// Where the characters of compact ASCII strings begin.
    pub(super) ascii: u64,
    /// The same of other compact ones.
    pub(super) compact: u64,
}

/// All of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// Of `_PyRuntime`.
    pub(super) first_interpreter: u64,
    /// Of `PyInterpreterState`.
    pub(super) next_interpreter: u64,
    pub(super) first_thread: u64,
    pub(super) thread: ThreadLayout,
    pub(super) shape: Shape,
    pub(super) frame: FrameLayout,
    pub(super) code: CodeLayout,
    pub(super) lines: LineFormat,
    pub(super) text: TextLayout,
}

const OLD_CODE: CodeLayout =
    CodeLayout { file: 104, name: 112, lines: 120, first_line: 40, instructions: 0, has_serial: false };

const OLD_TEXT: TextLayout = TextLayout { ascii: 48, compact: 72 };
const NEW_TEXT: TextLayout = TextLayout { ascii: 40, compact: 56 };

const V38: Layout = Layout {
    first_interpreter: 32,
    next_interpreter: 0,
    first_thread: 8,
    thread: ThreadLayout { previous: 0, next: 8, interpreter: 16, id: 176, frames: 24 },
    shape: Shape::Objects { running: (116, 1), line: 108, told: LineTold::IfTraced(80), in_units: false },
    frame: FrameLayout { previous: 24, code: 32, position: 104, owner: 0 },
    code: OLD_CODE,
    lines: LineFormat::Lnotab,
    text: OLD_TEXT,
};

const V39: Layout = V38;

const V310: Layout = Layout {
    shape: Shape::Objects { running: (108, 0), line: 100, told: LineTold::IfNotZero, in_units: true },
    frame: FrameLayout { previous: 24, code: 32, position: 96, owner: 0 },
    lines: LineFormat::Ranges,
    ..V38
};

const V311: Layout = Layout {
    first_interpreter: 40,
    next_interpreter: 0,
    first_thread: 16,
    thread: ThreadLayout { previous: 0, next: 8, interpreter: 16, id: 152, frames: 56 },
    shape: Shape::Records { current: 8, previous: 16, is_entry: 68 },
    frame: FrameLayout { previous: 48, code: 32, position: 56, owner: 69 },
    code: CodeLayout { file: 112, name: 128, lines: 136, first_line: 72, instructions: 184, has_serial: false },
    lines: LineFormat::Locations,
    text: OLD_TEXT,
};

const V312: Layout = Layout {
    first_thread: 72,
    thread: ThreadLayout { id: 136, ..V311.thread },
    shape: Shape::Entries { record: Some(0) },
    frame: FrameLayout { previous: 8, code: 0, position: 56, owner: 70 },
    code: CodeLayout { first_line: 68, instructions: 192, has_serial: true, ..V311.code },
    text: NEW_TEXT,
    ..V311
};

/// So much of the structure that 3.13 tells of itself is of use.
const TABLE_SIZE: usize = 584;

/// Where it begins with this, it is that structure.
const COOKIE: &[u8; 8] = b"xdebugpy";

/// No structure is larger.
const MAX_OFFSET: u64 = 1 << 20;

impl Layout {
    /// That of the interpreter whose symbols these are.
    pub(super) fn of<M: ReadMemory + ?Sized>(symbols: &Symbols, memory: &mut M) -> Result<Self, Unsupported> {
        let number = match symbols.release {
            ReleaseSymbol::Number(at) => memory.read_u64(at).ok_or(Unsupported::Unreadable)?,
            ReleaseSymbol::Since310 => return Ok(V310),
            ReleaseSymbol::Since39 => return Ok(V39),
            ReleaseSymbol::Since38 => return Ok(V38),
            ReleaseSymbol::Older => return Err(Unsupported::Release("3.7 or older".to_owned())),
        };
        // PY_VERSION_HEX: a byte each for major, minor and micro, then the level
        match number >> 16 {
            0x30b => Ok(V311),
            0x30c => Ok(V312),
            0x30d => of_itself(symbols.runtime, number, memory),
            release => Err(Unsupported::Release(format!("{}.{}", release >> 8, release & 0xff))),
        }
    }
}

/// As 3.13 says it.
fn of_itself<M: ReadMemory + ?Sized>(runtime: Addr, number: u64, memory: &mut M) -> Result<Layout, Unsupported> {
    let mut table = [0; TABLE_SIZE];
    if memory.read(runtime, &mut table) < TABLE_SIZE {
        return Err(Unsupported::Unreadable);
    }
    let says = |at: usize| word(&table, at).filter(|offset| *offset < MAX_OFFSET).ok_or(Unsupported::Table);
    if !table.starts_with(COOKIE) || word(&table, 8) != Some(number) {
        return Err(Unsupported::Table);
    }
    if word(&table, 16) != Some(0) {
        return Err(Unsupported::FreeThreaded);
    }
    let ascii = says(560)?;
    Ok(Layout {
        first_interpreter: says(40)?,
        next_interpreter: says(64)?,
        first_thread: says(72)?,
        thread: ThreadLayout {
            previous: says(160)?,
            next: says(168)?,
            interpreter: says(176)?,
            frames: says(184)?,
            id: says(192)?,
        },
        shape: Shape::Entries { record: None },
        frame: FrameLayout { previous: says(232)?, code: says(240)?, position: says(248)?, owner: says(264)? },
        code: CodeLayout {
            file: says(280)?,
            name: says(296)?,
            lines: says(304)?,
            first_line: says(312)?,
            instructions: says(344)?,
            has_serial: true,
        },
        lines: LineFormat::Locations,
        // utf8_length and utf8 come between
        text: TextLayout { ascii, compact: ascii + 16 },
    })
}
