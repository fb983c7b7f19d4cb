//! What the records of a heap's trace are called, and how a call is packed into an argument.

use crate::allocators::Family;
use crate::base::addr::FunctionId;

/// The name of the trace's provider, and its id.
pub const PROVIDER: (&str, u32) = ("heaptrace", 1);

macro_rules! words {
    ($($name:ident = $text:literal,)*) => {
        /// A category, or the name of an event, an argument or a blob.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs, reason = "docs/trace.md explains the words")]
        pub enum Word { $($name,)* }

        impl Word {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// How it is written.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The word that is written so.
            pub fn of(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$name),)* _ => None }
            }
        }
    };
}

words! {
    // categories
    Alloc = "alloc",
    Free = "free",
    ReallocBegin = "realloc_begin",
    Realloc = "realloc",
    ReallocAbandoned = "realloc_abandoned",
    AllocUnseen = "alloc_unseen",
    Failed = "failed",
    Map = "map",
    Unmap = "unmap",
    RemapBegin = "remap_begin",
    Remap = "remap",
    Heap = "heap",
    // events of the category heap
    Began = "began",
    Forked = "forked",
    Exec = "exec",
    MissedCall = "missed.call",
    MissedReturn = "missed.return",
    MissedOuterFrames = "missed.outer_frames",
    MissedUnwindRule = "missed.unwind_rule",
    UnknownFreesExpected = "unknown_frees_expected",
    Existing = "existing",
    Unobserved = "unobserved",
    Unwritten = "unwritten",
    ArenaPart = "arena_part",
    Paused = "paused",
    Resumed = "resumed",
    BlockIgnored = "block_ignored",
    NewBlocksIgnored = "new_blocks_ignored",
    Mark = "mark",
    TestBegan = "test_began",
    TestJoined = "test_joined",
    TestEnded = "test_ended",
    NotRecorded = "not_recorded",
    Counted = "counted",
    LiveBytes = "live bytes",
    // arguments
    Addr = "addr",
    Size = "size",
    Stack = "stack",
    Call = "call",
    Given = "given",
    Align = "align",
    Old = "old",
    New = "new",
    Image = "image",
    ParentImage = "parent_image",
    ParentProcess = "parent_process",
    ParentThread = "parent_thread",
    AmongThreads = "among_threads",
    UnknownBlocks = "unknown_blocks",
    FreeStacks = "free_stacks",
    SampleInterval = "sample_interval",
    Name = "name",
    Cut = "cut",
    Ignore = "ignore",
    Bytes = "bytes",
    Allocations = "allocations",
    Process = "process",
    Test = "test",
    Alone = "alone",
    Arena = "arena",
    Main = "main",
    Live = "live",
    Kept = "kept",
    // blobs
    SessionBlob = "heaptrace.session",
    FunctionsBlob = "heaptrace.functions",
    ProcessBlob = "heaptrace.process",
    ModuleBlob = "heaptrace.module",
    StacksBlob = "heaptrace.stacks",
    ProfileBlob = "heaptrace.profile",
    EndBlob = "heaptrace.end",
    NamesBlob = "heaptrace.names",
}

/// The end of a blob's name of which the next one is the continuation.
pub const CONTINUED: char = '+';

/// A call without its thread and its stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedCall {
    /// The outermost allocator function.
    pub function: FunctionId,
    /// See [`crate::event::Call::family`].
    pub family: Option<Family>,
    /// See [`crate::event::Call::align`].
    pub align: Align,
    /// Of a free: see [`crate::event::EventKind::Freed`].
    pub internal: bool,
}

/// An alignment as it is packed: those of no use to an allocator are told beside, in an argument of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// None was told, or it can't be told.
    Unknown,
    /// So many bytes: 0 or a power of two.
    Bytes(u64),
    /// Another number, in the argument `align`.
    Beside,
}

impl Align {
    /// What packs this alignment.
    pub const fn of(align: Option<u64>) -> Self {
        match align {
            None => Self::Unknown,
            Some(bytes) if bytes == 0 || bytes.is_power_of_two() => Self::Bytes(bytes),
            Some(_) => Self::Beside,
        }
    }
}

const BESIDE: u32 = 0x7f;

impl PackedCall {
    /// Function in bits 0 to 15, family in 16 to 18, alignment in 19 to 25, whether it is internal in 26.
    pub const fn pack(self) -> u32 {
        let family = match self.family {
            None => 0,
            Some(Family::Malloc) => 1,
            Some(Family::New) => 2,
            Some(Family::NewArray) => 3,
            Some(Family::Other) => 4,
            Some(Family::Mapping) => 5,
        };
        let align = match self.align {
            Align::Unknown => 0,
            Align::Bytes(0) => 1,
            Align::Bytes(bytes) => 2 + bytes.trailing_zeros(),
            Align::Beside => BESIDE,
        };
        self.function.0 as u32 | family << 16 | align << 19 | (self.internal as u32) << 26
    }

    /// What was packed; None if that can't have been.
    pub fn unpack(packed: u32) -> Option<Self> {
        let family = match packed >> 16 & 7 {
            0 => None,
            1 => Some(Family::Malloc),
            2 => Some(Family::New),
            3 => Some(Family::NewArray),
            4 => Some(Family::Other),
            5 => Some(Family::Mapping),
            _ => return None,
        };
        let align = match packed >> 19 & 0x7f {
            0 => Align::Unknown,
            1 => Align::Bytes(0),
            BESIDE => Align::Beside,
            power => Align::Bytes(1u64.checked_shl(power - 2)?),
        };
        if packed >> 27 != 0 {
            return None;
        }
        Some(Self { function: FunctionId(packed as u16), family, align, internal: packed >> 26 & 1 == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_comes_back_as_it_was_packed() {
        let known = [Family::Malloc, Family::New, Family::NewArray, Family::Other, Family::Mapping];
        for family in known.map(Some).into_iter().chain([None]) {
            for align in [None, Some(0), Some(1), Some(16), Some(1 << 63), Some(24)].map(Align::of) {
                for internal in [false, true] {
                    let call = PackedCall { function: FunctionId(0xfedc), family, align, internal };
                    assert_eq!(PackedCall::unpack(call.pack()), Some(call));
                }
            }
        }
        assert_eq!(PackedCall::unpack(7 << 16), None);
        assert_eq!(PackedCall::unpack(1 << 27), None);
        assert_eq!(PackedCall::unpack(70 << 19), None);
    }

    #[test]
    fn every_word_is_written_in_its_own_way() {
        for &word in Word::ALL {
            assert_eq!(Word::of(word.text()), Some(word));
        }
        assert_eq!(Word::of("no such word"), None);
    }
}
