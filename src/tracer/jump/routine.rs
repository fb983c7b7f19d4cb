//! The routine as bytes of our own image, to be copied to a process, and where its parts are.

use crate::jump::layout as l;
use crate::jump::undo::Code;
use std::arch::global_asm;

const fn bits(size: u64) -> u64 {
    size.trailing_zeros() as u64
}

global_asm!(
    include_str!("routine.s"),
    MAGIC = const l::MAGIC,
    VERSION = const l::VERSION,
    HASH = const l::HASH,
    CODE_SIZE = const l::CODE_SIZE,
    STATE_ACTIVE = const l::STATE_ACTIVE,
    STATE_SHARED = const l::STATE_SHARED,
    RECORD = const l::Active::Record as u32,
    SEQ = const l::SEQ,
    FREE_STACKS = const l::FREE_STACKS,
    INDEX_WORD = const l::INDEX_WORD,
    COPY_BITS = const l::COPY_BITS,
    CELL_INDEX = const l::CELL_INDEX,
    CELL_KEYS = const l::CELL_KEYS,
    CELL_SHIFT = const 64 - bits(l::CELL_KEYS),
    NESTED = const l::NESTED,
    NESTED_KEYS = const l::NESTED_KEYS,
    NESTED_SHIFT = const 64 - bits(l::NESTED_KEYS),
    NESTED_PART = const l::Nested::Part as u32,
    NESTED_OWN = const l::Nested::Own as u32,
    CELLS = const l::CELLS,
    CELL_AREA = const l::CELL_AREA,
    CELL_BITS = const bits(l::CELL_SIZE),
    CELL_MODE = const l::CELL_MODE,
    CELL_DEPTH = const l::CELL_DEPTH,
    CELL_LIMIT = const l::CELL_LIMIT,
    CELL_ASKS = const l::CELL_ASKS,
    CELL_COPIES = const l::CELL_COPIES,
    CELL_WAITS = const l::CELL_WAITS,
    CELL_DROPPED = const l::CELL_DROPPED,
    CELL_TSC = const l::CELL_TSC,
    CELL_TIMED = const l::CELL_TIMED,
    TIMED_FACTOR = const l::TIMED_FACTOR.cast_signed(),
    TIMED_SHIFT = const l::TIMED_SHIFT,
    TIMED = const l::TIMED,
    TIMED_MOST = const l::TIMED_MOST,
    CELL_HEAD = const l::CELL_HEAD,
    CELL_TAIL = const l::CELL_TAIL,
    CELL_STACK_BEGIN = const l::CELL_STACK_BEGIN,
    CELL_STACK_END = const l::CELL_STACK_END,
    CELL_FRAMES = const l::CELL_FRAMES,
    FRAMES = const l::FRAMES,
    FRAME_SIZE = const l::FRAME_SIZE,
    FRAME_BITS = const bits(l::FRAME_SIZE),
    FRAME_SLOT = const l::FRAME_SLOT,
    FRAME_CALLER = const l::FRAME_CALLER,
    FRAME_ARGS = const l::FRAME_ARGS,
    FRAME_WHAT = const l::FRAME_WHAT,
    COPY_AREA = const l::COPY_AREA,
    COPIES = const l::COPIES,
    COPY_SIZE = const l::COPY_SIZE,
    COPY_SHIFT = const bits(l::COPY_SIZE),
    COPY_LEN = const l::COPY_LEN,
    COPY_STACK = const l::COPY_STACK,
    RING_AREA = const l::RING_AREA,
    RING_RECORDS = const l::RING_RECORDS,
    RING_BITS = const bits(l::RING_SIZE),
    RECORD_BITS = const bits(l::RECORD_SIZE),
    RECORD_KEY = const l::RECORD_KEY,
    RECORD_WHAT = const l::RECORD_WHAT,
    RECORD_RESULT = const l::RECORD_RESULT,
    RECORD_ARGS = const l::RECORD_ARGS,
    RECORD_OUT = const l::RECORD_OUT,
    RECORD_CALLER = const l::RECORD_CALLER,
    FLAG_COPY = const l::FLAG_COPY,
    FLAG_COPY_BIT = const bits(l::FLAG_COPY),
    FLAG_CALLER = const l::FLAG_CALLER,
    FLAG_OUT_BIT = const bits(l::FLAG_OUT),
    FLAG_BEGAN_BIT = const bits(l::FLAG_BEGAN),
    FREED = const l::Kind::Freed as u64,
    ENDED = const l::Kind::Ended as u64,
    WAY_ALLOC_OUT = const l::Way::AllocOut as u32,
    WAY_REALLOC = const l::Way::Realloc as u32,
    WAY_FREE = const l::Way::Free as u32,
    FREES = const (l::Way::Free as u32) << 16,
    NODE_AREA = const l::NODE_AREA,
    NODE_BITS = const bits(l::NODE_SIZE),
    NODES = const l::NODES,
    NODE_RA = const l::NODE_RA,
    NODE_PARENT = const l::NODE_PARENT,
    NODE_HINT = const l::NODE_HINT,
    NODE_STACK = const l::NODE_STACK,
    NODE_FORM = const l::NODE_FORM,
    NODE_RBP = const l::NODE_RBP,
    NODE_OFFSET = const l::NODE_OFFSET,
    RBP_SAME = const l::RBP_SAME,
    FORM_RSP = const l::Form::Rsp as u32,
    FORM_RBP = const l::Form::Rbp as u32,
    FORM_LOAD = const l::Form::LoadRbp as u32,
    FORM_END = const l::Form::End as u32,
    INDEX_MOST = const l::INDEX_MOST,
    LARGEST_FRAME = const l::LARGEST_FRAME,
    SPINS = const l::SPINS,
    STEPS = const l::STEPS,
);

macro_rules! labels {
    ($($field:ident = $label:ident),* $(,)?) => {
        unsafe extern "C" {
            $(static $label: u8;)*
        }
        /// Where the parts of the routine are, in bytes from its beginning.
        pub fn code() -> Code {
            let begin = (&raw const heaptrace_jump_begin) as u64;
            Code { $($field: (&raw const $label) as u64 - begin,)* }
        }
    };
}

labels!(
    begin = heaptrace_jump_begin,
    enter = heaptrace_jump_enter,
    enter_body = heaptrace_jump_enter_body,
    clock_entered = heaptrace_jump_clock_entered,
    clock_walked = heaptrace_jump_clock_walked,
    walked = heaptrace_jump_walked,
    claimed = heaptrace_jump_claimed,
    framed = heaptrace_jump_framed,
    entered = heaptrace_jump_entered,
    enter_end = heaptrace_jump_enter_end,
    realloc = heaptrace_jump_realloc,
    began = heaptrace_jump_began,
    commit = heaptrace_jump_commit,
    commit_key = heaptrace_jump_commit_key,
    commit_head = heaptrace_jump_commit_head,
    committed = heaptrace_jump_committed,
    committed_end = heaptrace_jump_committed_end,
    committed_done = heaptrace_jump_committed_done,
    full_enter = heaptrace_jump_full_enter,
    nested = heaptrace_jump_nested,
    claim = heaptrace_jump_claim,
    copy = heaptrace_jump_copy,
    copied = heaptrace_jump_copied,
    pass = heaptrace_jump_pass,
    pass_end = heaptrace_jump_pass_end,
    pass_done = heaptrace_jump_pass_done,
    ask = heaptrace_jump_ask,
    leave = heaptrace_jump_leave,
    leave_body = heaptrace_jump_leave_body,
    released = heaptrace_jump_released,
    ended_head = heaptrace_jump_ended_head,
    left = heaptrace_jump_left,
    left_done = heaptrace_jump_left_done,
    full_leave = heaptrace_jump_full_leave,
    lost = heaptrace_jump_lost,
    foreign = heaptrace_jump_foreign,
    end = heaptrace_jump_end,
);

/// The routine's bytes, as they are copied to the beginning of a code region.
pub fn bytes() -> &'static [u8] {
    let begin = &raw const heaptrace_jump_begin;
    // SAFETY: both labels lie in one section of our own image, which is mapped for reading as long as we live and never written.
    unsafe { std::slice::from_raw_parts(begin, code().end as usize) }
}
