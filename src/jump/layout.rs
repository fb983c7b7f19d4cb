//! What lies where in the memory that the jump engine adds to a process. The routine (`tracer/jump/routine.s`) is
//! assembled with these numbers.
//!
//! Two mappings. The *code region*: [`CODE_SIZE`] bytes of routine and stubs (R-X, private), and behind it the *state
//! page* (RW, private, wiped in forked children). The *shared region*: [`SHARED_SIZE`] bytes of a memfd that the tracer
//! maps, too; not inherited by children. All offsets and sizes are in bytes; all words are little-endian.

/// The first word of the code region and of the shared region: `heapjump`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"heapjump");
/// The version of this layout, the word behind [`MAGIC`].
pub const VERSION: u64 = 8;

/// In the code region: where its ask sites are, as [`ASKS`] u32 from its beginning. An int3 stands there, over a
/// [`NOP`], while somebody answers. Who finds a region that another heaptrace has left needs no more than this, the
/// magic number, and [`STATE_ACTIVE`].
pub const ASKS_AT: u64 = 16;
/// How many.
pub const ASKS: usize = 4;
/// What an ask site is once nobody answers any more.
pub const NOP: u8 = 0x90;

/// Bytes of the code region that hold code.
pub const CODE_SIZE: u64 = 0x5000;
/// Where the state page begins in the code region.
pub const STATE: u64 = CODE_SIZE;
/// Bytes of the state page.
pub const STATE_SIZE: u64 = 0x1000;
/// Bytes of the code region with its state page.
pub const REGION_SIZE: u64 = CODE_SIZE + STATE_SIZE;

/// In the state page: a u32, one of [`Active`].
pub const STATE_ACTIVE: u64 = STATE;
/// In the state page: the process address of the shared region.
pub const STATE_SHARED: u64 = STATE + 8;
/// In the state page: a u64, 1 where the shared region's rest is kept free by memory that nobody may access.
pub const STATE_FENCED: u64 = STATE + 16;

/// What the stubs of a process do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Active {
    /// Pass calls through and touch nothing else. What a forked child finds, as its state page is wiped.
    Off = 0,
    /// Record.
    Record = 1,
    /// Hand each call to the tracer.
    Ask = 2,
}

/// Bytes of the shared region.
pub const SHARED_SIZE: u64 = 0x9a0_0000;

// ---- control page, at 0: MAGIC, VERSION, then

/// A u64 in a cache line of its own: the counter that orders records, see [`Record`].
pub const SEQ: u64 = 0x40;
/// A u32: 0 if frees are to be recorded with their caller's node only.
pub const FREE_STACKS: u64 = 0x80;
/// A u32: which calls are timed, [`TIMED_MARK`] or [`TIMED_NEVER`]. See [`CELL_TSC`].
pub const TIMED: u64 = 0x84;
/// A u64: where the trie's index begins in the shared region (low 32 bits), and its number of slots less one (high 32
/// bits). Published in one word.
pub const INDEX_WORD: u64 = 0x88;
/// A u32: the number of the interval that is sampled with, 1 to [`INTERVALS`] - 1; 0: each call is recorded.
pub const SAMPLED: u64 = 0x90;
/// A u32: how often a thread that finds its ring full looks again before it asks, [`PATIENT`] or [`IMPATIENT`].
pub const SPINS: u64 = 0x94;
/// A u32: of how many frames stacks have at most; 0: nothing is listed ([`LIST_AREA`]).
pub const LIST_DEPTH: u64 = 0x98;
/// A u32: 0 while [`TAIL_AREA`] has no entry.
pub const TAILED: u64 = 0x9c;
/// A u32: one more each time that rules of [`RULE_AREA`] have become invalid. What threads know of their latest walks
/// ([`WALK_AREA`]) holds for one generation.
pub const RULES_GENERATION: u64 = 0xa0;
/// A u64 in a cache line of its own: which copy slots are taken, one bit each.
pub const COPY_BITS: u64 = 0xc0;

// ---- sampling

/// [`INTERVALS`] u64s, by number: the mean distance of two sampled bytes, in bytes. Number 0 is none.
pub const INTERVAL_AREA: u64 = 0x100;
/// See [`INTERVAL_AREA`].
pub const INTERVALS: u64 = 15;
/// [`DISTANCES`] u64s: exponentially distributed numbers with the mean 1, times 2^32.
pub const DISTANCE_AREA: u64 = 0x245_0000;
/// How many: a power of two.
pub const DISTANCES: u64 = 1 << 16;
/// [`LIVE_BUCKETS`] buckets of [`LIVE_BUCKET`] bytes, the words of which are the addresses of live blocks that were
/// picked, or 0. A block is in any word of its bucket, see [`live_bucket`]. The same address may be there twice for a
/// moment, if it was handed out again.
pub const LIVE_AREA: u64 = 0x24d_0000;
/// See [`LIVE_AREA`]: a power of two.
pub const LIVE_BUCKETS: u64 = 1 << 13;
/// See [`LIVE_AREA`]: a cache line.
pub const LIVE_BUCKET: u64 = 64;

/// The bucket of a block.
pub const fn live_bucket(block: u64) -> u64 {
    LIVE_AREA + (block.wrapping_mul(HASH) >> (64 - LIVE_BUCKETS.trailing_zeros())) * LIVE_BUCKET
}

/// [`PAGES`] bytes: how many blocks of [`LIVE_AREA`] begin in pages of that number (modulo [`PAGES`]): where that is 0
/// nothing need be looked for. From [`PAGE_STUCK`] on a counter stays as it is, and each block of the page is taken for
/// a picked one: there was no room in a bucket.
pub const PAGE_AREA: u64 = 0x244_0000;
/// See [`PAGE_AREA`].
pub const PAGES: u64 = 1 << 16;
/// Half of what a byte holds: all threads together can't count on to its end between a look and the addition.
pub const PAGE_STUCK: u8 = 128;
/// What a page's counter becomes that sticks as there was no room: whoever is about to take one away has looked before,
/// and leaves it above [`PAGE_STUCK`].
pub const PAGE_FULL: u8 = u8::MAX;
/// The bits of a page's offsets.
pub const PAGE_BITS: u64 = 12;

// ---- which cell a thread has

/// [`CELL_KEYS`] entries of 16 bytes: the thread's fs base (0: the entry is free, and ends a search), then the cell's
/// number (u32). A search begins at [`cell_slot`] and goes on to the next entry, round the end; fs base [`CELL_GONE`]
/// is passed over.
pub const CELL_INDEX: u64 = 0x1000;
/// Entries of the cell index: a power of two, at least twice [`CELLS`].
pub const CELL_KEYS: u64 = 1024;
/// An entry whose thread has gone.
pub const CELL_GONE: u64 = 1;
/// The multiplier of [`cell_slot`]: 2^64 divided by the golden ratio.
pub const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where the search for the cell of the thread with this fs base begins: an entry of the cell index.
pub const fn cell_slot(fs_base: u64) -> u64 {
    fs_base.wrapping_mul(HASH) >> (64 - CELL_KEYS.trailing_zeros())
}

// ---- what a call within a call is

/// [`NESTED_KEYS`] entries of 16 bytes: the return address of the inner call (0: free, ends a search), then the outer
/// function (u16), the inner function (u16) and one of [`Nested`] (u32). A search begins at [`nested_slot`] and goes on
/// to the next entry, round the end.
pub const NESTED: u64 = 0x5000;
/// Entries of the table of nested calls: a power of two. The tracer fills at most half of it.
pub const NESTED_KEYS: u64 = 1024;

/// Where the search for a nested call begins.
pub const fn nested_slot(return_addr: u64) -> u64 {
    return_addr.wrapping_mul(HASH) >> (64 - NESTED_KEYS.trailing_zeros())
}

/// What a call is that a function makes while another call of its thread is in progress. Without an entry: ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Nested {
    /// Part of the outer call: not recorded.
    Part = 1,
    /// A call of its own: recorded.
    Own = 2,
}

// ---- cells

/// [`CELLS`] cells of [`CELL_SIZE`] bytes.
pub const CELL_AREA: u64 = 0x1_0000;
/// How many threads can have a cell and a ring at a time. Those without one ask at each call.
pub const CELLS: u64 = 96;
/// Bytes of a cell.
pub const CELL_SIZE: u64 = 1024;
/// In a cell: a u32, one of [`Mode`].
pub const CELL_MODE: u64 = 0;
/// In a cell: a u32, the number of frames in use: those with smaller numbers.
pub const CELL_DEPTH: u64 = 4;
/// In a cell: a u64, the position up to which the ring has room, as the routine read it last (tail + [`CELL_RING`]).
pub const CELL_LIMIT: u64 = 8;
/// In a cell: u64s, for the thread alone: how often it asked, copied, waited for room in its ring; dead frames that
/// were dropped.
pub const CELL_ASKS: u64 = 16;
/// See [`CELL_ASKS`].
pub const CELL_COPIES: u64 = 24;
/// See [`CELL_ASKS`].
pub const CELL_WAITS: u64 = 32;
/// See [`CELL_ASKS`].
pub const CELL_DROPPED: u64 = 40;
/// In a cell: u64s, for the truth about the own cost: over the calls that were timed, the sum of ticks of the timestamp
/// counter from the finding of the cell until the stack is known, and their number. Written by the thread only.
pub const CELL_TSC: u64 = 48;
/// See [`CELL_TSC`].
pub const CELL_TIMED: u64 = 56;
/// A call is timed if the number of its thread's records so far, times this, has the word at [`TIMED`] in its upper
/// bits: one in 256, in no step with what the program does (Knuth's multiplicative hashing, 2^32 divided by the golden
/// ratio).
pub const TIMED_FACTOR: u32 = 0x9e37_79b1;
/// How far the product is shifted down.
pub const TIMED_SHIFT: u32 = 24;
/// See [`TIMED_FACTOR`]. Not 0: the first calls of a thread are not like the others.
pub const TIMED_MARK: u32 = 1;
/// No call is timed: the program may not read the counter (`PR_TSC_SIGSEGV` of prctl(2)).
pub const TIMED_NEVER: u32 = u32::MAX;
/// What took so many ticks or more was interrupted, and is not counted.
pub const TIMED_MOST: u64 = 1 << 18;
/// In a cell, in a line of its own: a u64, how many records were published in all. Written by the thread only.
pub const CELL_HEAD: u64 = 64;
/// In a cell: a u64, how many records its ring has room for: a power of two, [`RING_LEAST`] to [`RING_MOST`]. Written
/// by the tracer, while the thread stands or has no cell yet.
pub const CELL_RING: u64 = 72;
/// In a cell: what an operator that passes its call on has been given: the block (u64; 0: none yet). It concerns the
/// thread's next record, and no other: see [`CELL_TOLD_HEAD`]. Written by the thread, as what follows; the tracer
/// writes 0 while the thread stands.
pub const CELL_TOLD: u64 = 80;
/// In a cell: the size that goes with [`CELL_TOLD`] (u64), if [`FLAG_SIZED`] is among its flags.
pub const CELL_TOLD_SIZE: u64 = 88;
/// In a cell: the alignment that goes with [`CELL_TOLD`] (u64); 0: the operator has none.
pub const CELL_TOLD_ALIGN: u64 = 96;
/// In a cell: what [`CELL_HEAD`] was when [`CELL_TOLD`] was written. Where the two differ, the record that it concerns
/// was written since.
pub const CELL_TOLD_HEAD: u64 = 104;
/// In a cell: the flags (u64) that the record gets: [`FLAG_TOLD`], and [`FLAG_SIZED`] if the operator has a size.
pub const CELL_TOLD_FLAGS: u64 = 112;
/// In a cell, in a line of its own: a u64, how many records the tracer has taken. Written by the tracer only.
pub const CELL_TAIL: u64 = 128;
/// In a cell: a u64, how many bytes are left until the next picked one. Written by the thread, as what follows.
pub const CELL_LEFT: u64 = 208;
/// In a cell: u64s, for the exact totals: calls that were not picked nor recorded otherwise, and the bytes that these
/// asked for.
pub const CELL_CALLS: u64 = 216;
/// See [`CELL_CALLS`].
pub const CELL_BYTES: u64 = 224;
/// In a cell: a u64, what [`CELL_CALLS`] was when the thread picked a block last.
pub const CELL_SINCE: u64 = 232;
/// In a cell: a u32, the number of the interval that [`CELL_LEFT`] was drawn with.
pub const CELL_INTERVAL: u64 = 240;
/// In a cell: a u32, which of [`DISTANCES`] was drawn last (modulo their number).
pub const CELL_DRAW: u64 = 244;
/// In a cell: a u64, how often the thread has looked in vain for room in its ring, a `pause` each time. Written by the
/// thread only.
pub const CELL_SPUN: u64 = 248;
/// In a cell: [`FRAMES`] frames of [`FRAME_SIZE`] bytes.
pub const CELL_FRAMES: u64 = 256;
/// Frames of a cell: calls of one thread in progress at a time. A thread with more asks.
pub const FRAMES: u64 = 8;
/// In a cell: a u64, how many words the thread has written to its part of [`LIST_AREA`] in all. Written by the thread
/// only, when a list is whole.
pub const CELL_LISTED: u64 = 768;
/// In a cell: where the list must end that is being written (process address), for the thread alone.
pub const CELL_LIST_LIMIT: u64 = 776;
/// In a cell, for the thread alone: its latest lists, so that it does not write the same one again before the tracer
/// has taken it: [`LATEST`] entries of 16 bytes, of [`tail_hash`] (u64; 0: none) and the list's number (u64). The upper
/// bits of the hash's lower half say which entry.
pub const CELL_LATEST: u64 = 832;
/// See [`CELL_LATEST`]: a power of two.
pub const LATEST: u64 = 8;
/// In a cell, in a line of its own: a u64, how many of these words the tracer has taken. Written by the tracer only.
pub const CELL_LIST_TAIL: u64 = 960;
/// Bytes of a frame.
pub const FRAME_SIZE: u64 = 64;
/// In a frame: where the return address of the call lay on the stack (u64; 0: free).
pub const FRAME_SLOT: u64 = 0;
/// In a frame: the return address of the call (u64), which the routine writes back when the call is over.
pub const FRAME_CALLER: u64 = 8;
/// In a frame: the function's first three arguments (u64 each).
pub const FRAME_ARGS: u64 = 16;
/// In a frame: as the second word of a record ([`RECORD_WHAT`]) for the end of the call.
pub const FRAME_WHAT: u64 = 40;

/// What is done with the calls of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// They are recorded.
    Record = 0,
    /// They are handed to the tracer, each.
    Ask = 1,
}

// The routine looks at both at once.
const _: () = assert!(CELL_MODE.is_multiple_of(8) && CELL_DEPTH == CELL_MODE + 4 && Mode::Record as u32 == 0);

/// Where a cell begins in the shared region.
#[inline(always)]
pub const fn cell_at(cell: u64) -> u64 {
    CELL_AREA + cell * CELL_SIZE
}

// ---- copies of stacks

/// [`COPIES`] slots of [`COPY_SIZE`] bytes.
pub const COPY_AREA: u64 = 0x4_0000;
/// Slots for copies of stacks.
pub const COPIES: u64 = 64;
/// Bytes of a slot: 16 general registers as at the function's entry, in the order of their numbers in instructions
/// (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15), the number of bytes of stack (u64), then the stack from rsp on.
pub const COPY_SIZE: u64 = 0x1_0000;
/// In a slot: the number of bytes of stack.
pub const COPY_LEN: u64 = 128;
/// In a slot: the stack.
pub const COPY_STACK: u64 = 136;
/// In a cell: a u64, where the stack of the thread ends (process address, exclusive), as far as the tracer knows; 0:
/// not known, so that nothing is copied. It holds for stack pointers from [`CELL_STACK_BEGIN`] on.
pub const CELL_STACK_END: u64 = 192;
/// In a cell: a u64, where the mapping of the thread's stack begins at the latest: below it, nothing is known.
pub const CELL_STACK_BEGIN: u64 = 200;

// ---- lists of return addresses

/// One part of [`LIST_SIZE`] bytes for each cell, in which its thread lists stacks that have no node yet, but whose
/// frames have rules in [`RULE_AREA`]: one list after the other, round the end. A list is a word with the stack (lower
/// half) that its first address is the caller of and the number n of addresses (upper half), and these (u64 each, the
/// innermost first), of a walk that came to its end, or to one frame more than stacks have. It does not go round the
/// end: [`LIST_SKIP`] in place of the first word says that the next one is at the beginning.
///
/// A list's number is what [`CELL_LISTED`] was before it, modulo 2^32.
pub const LIST_AREA: u64 = 0x268_0000;
/// See [`LIST_AREA`].
pub const LIST_SIZE: u64 = 8 * LIST_WORDS;
/// Words of a part: a power of two.
pub const LIST_WORDS: u64 = 1 << 13;
/// See [`LIST_AREA`].
pub const LIST_SKIP: u64 = u64::MAX;
/// Where stacks may have so many frames or more nothing is listed.
pub const LIST_MOST: u64 = LIST_WORDS / 4;

/// Where the part of a cell begins in the shared region.
pub const fn lists_at(cell: u64) -> u64 {
    LIST_AREA + cell * LIST_SIZE
}

// ---- the latest walk of each thread

/// One part of [`WALK_SIZE`] bytes for each cell: what its thread has found on its latest walk beyond the nodes, while
/// stacks without nodes are known ([`TAIL_AREA`]). Most calls of a thread share their outer frames with the call
/// before: such a walk checks that these frames are as they were, and need not find them anew.
///
/// The row of checks begins at the outermost frame; each is a place on the stack (u64, process address) and the word
/// that stood there (u64): a return address, or what a rule has read besides. If all checks up to a frame hold, a walk
/// that comes to that frame goes on as the latest one did. Written by the thread only; nobody else reads it.
pub const WALK_AREA: u64 = 0x8e0_0000;
/// See [`WALK_AREA`].
pub const WALK_SIZE: u64 = 0x2_0000;
/// In a part: a u32, the number of the walk that is in progress or was the latest. With [`WALK_LEN`] one word, which is
/// exchanged only while it is what the walk has left there: where a handler has interrupted the walk, it is not.
pub const WALK_NUMBER: u64 = 0;
/// In a part: a u32, how many checks there are, at most [`WALK_MOST`].
pub const WALK_LEN: u64 = 4;
/// In a part: a u32, the [`RULES_GENERATION`] of the checks.
pub const WALK_GENERATION: u64 = 8;
/// In a part: a u32, how many calls yet do without.
pub const WALK_SKIPS: u64 = 12;
/// [`WALK_SKIPS`] when a walk had no way to its end: it costs a walk in vain.
pub const WALK_SKIPPED: u32 = 63;
/// In a part: the checks, 16 bytes each.
pub const WALK_CHECKS: u64 = 64;
/// How many checks have room.
pub const WALK_MOST: u64 = 1024;
/// In a part: what else is known of each check, [`JOINT_SIZE`] bytes each.
pub const WALK_JOINTS: u64 = WALK_CHECKS + 16 * WALK_MOST;
/// Bytes of a joint.
pub const JOINT_SIZE: u64 = 32;
/// In a joint: the hash of the frame's return address and of those outside of it (u64), as in [`tail_hash`].
pub const JOINT_HASH: u64 = 0;
/// In a joint: rbp of the frame (u64).
pub const JOINT_OF_RBP: u64 = 8;
/// In a joint: a u32, [`JOINT_FRAME`] and [`JOINT_RBP`].
pub const JOINT_FLAGS: u64 = 16;
/// In a joint: a u32, how many frames there are from this one to the outermost one.
pub const JOINT_FRAMES: u64 = 20;
/// The check is of a return address: a walk may come to this frame.
pub const JOINT_FRAME: u32 = 1;
/// The way on depends on the frame's rbp.
pub const JOINT_RBP: u32 = 2;
/// In a part, while a walk is in progress: what it has met that was not known, the innermost first. 32 bytes each: the
/// place (u64), the word there (u64), rbp of a frame (u64), flags (u32).
pub const WALK_NEW: u64 = WALK_JOINTS + JOINT_SIZE * WALK_MOST;
/// Flag: a frame. The next higher bit says that its rule needs rbp.
pub const NEW_FRAME: u32 = 1;
/// Flag: the place where the rbp of the next frame is saved.
pub const NEW_RBP: u32 = 4;

/// Where the part of a cell begins in the shared region.
pub const fn walk_at(cell: u64) -> u64 {
    WALK_AREA + cell * WALK_SIZE
}

// ---- rings of records

/// One ring of [`RING_SIZE`] bytes for each cell.
pub const RING_AREA: u64 = 0x2e0_0000;
/// How many records a ring has room for at first, and when its thread has once found it full ([`CELL_RING`]). Powers of
/// two.
pub const RING_LEAST: u64 = 1 << 12;
/// See [`RING_LEAST`].
pub const RING_MOST: u64 = 1 << 14;
/// Bytes of a record.
pub const RECORD_SIZE: u64 = 64;
/// Bytes of the largest ring.
pub const RING_SIZE: u64 = RING_MOST * RECORD_SIZE;

/// So many bytes before a thread writes there, it makes the line of a record its own: the tracer has read it, and the
/// counter's addition waits for all that was written before it.
pub const AHEAD: u64 = 8 * RECORD_SIZE;

/// Where the ring of a cell begins in the shared region.
#[inline(always)]
pub const fn ring_at(cell: u64) -> u64 {
    RING_AREA + cell * RING_SIZE
}

/// Where in the shared region the record with this number is, in a ring of a cell that has room for `records` (a power
/// of two). A number that is none gives a place in that ring all the same.
#[inline(always)]
pub const fn record_at(cell: u64, records: u64, number: u64) -> u64 {
    ring_at(cell) + (number & records.wrapping_sub(1) & (RING_MOST - 1)) * RECORD_SIZE
}

/// In a record: the key that orders it among all of the process (u64). A call that gives something back
/// ([`Kind::Freed`], [`Kind::Began`]) takes s = fetch_add([`SEQ`], 1) before the function runs: 2s + 1. The end of a
/// call loads g = [`SEQ`] after the function has run: 2g.
pub const RECORD_KEY: u64 = 0;
/// In a record: the stack (u32, bits 0 to 31), the function (u16, bits 32 to 47), one of [`Kind`] (bits 48 to 52),
/// flags (bits 53 to 59), the number of the interval that the block was picked with (bits 60 to 63; 0: it was not, or
/// each call is recorded; see [`PICKED_SHIFT`]).
///
/// The stack is a stack's id, or with [`FLAG_LISTED`] the number of a list, with [`FLAG_COPY`] that of a copy slot,
/// with [`FLAG_CALLER`] the id of the stack that has the caller only.
pub const RECORD_WHAT: u64 = 8;
/// In a record: what the function has returned in rax (u64) of an end; else how many calls of the thread were counted
/// in [`CELL_CALLS`] since it picked a block last; with [`FLAG_TOLD`] the alignment ([`CELL_TOLD_ALIGN`]).
pub const RECORD_RESULT: u64 = 16;
/// In a record: the function's first three arguments as at its entry (u64 each).
pub const RECORD_ARGS: u64 = 24;
/// In a record: of an end of a function of [`StubKind::AllocOut`] that has returned 0, the word that its first argument
/// points to. With [`FLAG_SIZED`] the size ([`CELL_TOLD_SIZE`]).
pub const RECORD_OUT: u64 = 48;
/// In a record: the return address of the call.
pub const RECORD_CALLER: u64 = 56;

/// Flag of a record of [`Kind::Freed`]: the block was passed on by an operator that was given an alignment
/// or a size ([`CELL_TOLD`]). Only where blocks are not sampled.
pub const FLAG_TOLD: u64 = 1 << 53;
/// Flag of a record with [`FLAG_TOLD`]: the operator was given a size.
pub const FLAG_SIZED: u64 = 1 << 54;
/// Flag of a record: the stack is the number of a list of its thread's ([`LIST_AREA`]).
pub const FLAG_LISTED: u64 = 1 << 55;
/// Flag of a record: the stack is the number of a copy slot.
pub const FLAG_COPY: u64 = 1 << 56;
/// Flag of a record: the stack is that of the caller only, as frees are not walked.
pub const FLAG_CALLER: u64 = 1 << 57;
/// Flag of a frame: the function is one of [`StubKind::AllocOut`].
pub const FLAG_OUT: u64 = 1 << 58;
/// Flag of a frame, and of the record of its end: there was a record of [`Kind::Began`], with the same stack. Where
/// that is a copy, the tracer gives the slot back when it has taken that first record.
pub const FLAG_BEGAN: u64 = 1 << 59;

/// The bits of a [`Kind`] behind bit 48 of a record's or frame's word.
pub const KIND_MASK: u8 = 0x1f;
/// Where the number of the interval begins in a record's or frame's word.
pub const PICKED_SHIFT: u64 = 60;
/// In a frame instead of such a number: the call was counted, and is not recorded. Its frame tells that calls within it
/// are part of it.
pub const COUNTED: u64 = 15;
/// In the routine alone: the call was not picked, and is recorded as it changes a block that was.
pub const CHANGED: u64 = 16;
/// In the routine alone: the call gives back a block that was picked.
pub const REMOVES: u64 = 32;

/// [`SPINS`] where the tracer has a processor to itself, and takes records meanwhile: 50 µs or so, which is less than a
/// stop takes both of them.
pub const PATIENT: u32 = 1024;
/// [`SPINS`] where it has none, or may have none: 3 µs.
pub const IMPATIENT: u32 = 64;
/// How many nodes of the index a walk looks at, at most: a table that the program has filled has no end.
pub const STEPS: u64 = 1 << 16;

/// What a record tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A function of [`StubKind::Free`] is about to run. It has no end.
    Freed = 1,
    /// A function of [`StubKind::Realloc`] is about to run.
    Began = 2,
    /// A function of any other way has run.
    Ended = 3,
}

/// How the routine goes about a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StubKind {
    /// One record, when it has returned.
    Alloc = 0,
    /// One record, when it has returned; the block is where the first argument points to.
    AllocOut = 1,
    /// Two records: before it runs, and when it has returned. With a null first argument only the latter.
    Realloc = 2,
    /// One record, before it runs; none if the first argument is null. Of an operator that passes its call on
    /// ([`SizeOf::TOLD`](super::sampling::SizeOf::TOLD)) none.
    Free = 3,
    /// None: a function that looks at the stack. A thread that has calls in progress asks.
    Guard = 4,
}

impl StubKind {
    /// Whether the call has a frame, and so an end that is seen.
    pub const fn has_frame(self) -> bool {
        matches!(self, Self::Alloc | Self::AllocOut | Self::Realloc)
    }
}

// ---- the trie of stacks

/// The trie's index. A table of n slots (u32: a node's number, 0: free, ends a search) begins at this plus 4 n, so that
/// tables of all sizes have places of their own; n is a power of two, from [`INDEX_LEAST`] to [`INDEX_MOST`]. A search
/// begins at [`index_slot`] and goes on to the next slot, round the end.
pub const INDEX_AREA: u64 = 0x44_0000;
/// Slots of the smallest index.
pub const INDEX_LEAST: u64 = 1 << 12;
/// Slots of the largest index.
pub const INDEX_MOST: u64 = 1 << 20;

/// Where the search for the node of the caller at `ra` of the stack `parent` begins, in an index of `mask` + 1 slots.
pub const fn index_slot(parent: u32, ra: u64, mask: u64) -> u64 {
    // both are multiplied: nodes of one return address have many parents, which must not come to the same few slots
    ((ra ^ (parent as u64).wrapping_mul(HASH)).wrapping_mul(HASH) >> 32) & mask
}

/// Nodes of [`NODE_SIZE`] bytes, each at its number: that of the stack in the tracer's table. Node 0 is the empty
/// stack.
pub const NODE_AREA: u64 = 0xc4_0000;
/// Bytes of a node.
pub const NODE_SIZE: u64 = 32;
/// How many nodes there are at most. Stacks whose nodes have no room are in [`TAIL_AREA`].
pub const NODES: u64 = 524_288;

/// In a node: the address of the frame (u64; a return address). 0: the node matches nothing. Written last, and never
/// changed but to 0.
pub const NODE_RA: u64 = 0;
/// In a node: the stack without this frame (u32).
pub const NODE_PARENT: u64 = 8;
/// In a node: a node to try for the caller (u32; 0: none) after the one behind this node, which mostly is the caller's.
/// May be any node: the routine compares its parent.
pub const NODE_HINT: u64 = 12;
/// In a node: of [`Form::End`]: the stack's id (u32).
pub const NODE_STACK: u64 = 16;
/// In a node: one of [`Form`] (u8).
pub const NODE_FORM: u64 = 20;
/// In a node: 1 (u8) if the node behind it in the table is that of a caller of its frame: the routine compares no more
/// than the return address there. Written after that node.
pub const NODE_NEXT: u64 = 21;
/// In a node: where the caller's rbp is saved, in words from the CFA ([`Form::LoadRbp`]: from rbp) on (i16);
/// [`RBP_SAME`]: rbp is the caller's.
pub const NODE_RBP: u64 = 22;
/// In a node: the offset of the form (i32, bytes).
pub const NODE_OFFSET: u64 = 24;
/// In a node: how many frames the stack has (u32).
pub const NODE_DEPTH: u64 = 28;

/// Stacks that have no nodes, by what a thread lists of them: [`TAILS`] entries of [`TAIL_SIZE`] bytes. A search begins
/// at [`tail_slot`] and goes on to the next entry,
/// round the end, up to one whose hash is 0. When three quarters are in use the tracer frees all of them.
pub const TAIL_AREA: u64 = 0x1c4_0000;
/// Entries of the table: a power of two.
pub const TAILS: u64 = 1 << 19;
/// Bytes of an entry.
pub const TAIL_SIZE: u64 = 16;
/// In an entry: the hash of the list (u64), see [`tail_hash`]; 0: the entry is free. Written last. Who has read the
/// stack reads it again: if it is another one, the entry was
/// freed meanwhile.
pub const TAIL_HASH: u64 = 0;
/// In an entry: the stack's id (u32).
pub const TAIL_STACK: u64 = 8;

/// The hash of the stack `parent` with these callers, the innermost first. Never 0. It begins at the outermost one:
/// so a thread knows the hash of frames that it has met before, whatever is inside of them.
pub fn tail_hash(parent: u64, callers: &[u64]) -> u64 {
    // The parent's number is mixed, too: added to an address it would be another parent's with another address.
    let mix = |hash: u64| {
        let hash = hash.wrapping_mul(HASH);
        hash ^ hash >> 32
    };
    mix(callers.iter().rfold(HASH, |hash, caller| mix(hash ^ caller)) ^ parent) | 1
}

/// Where the search for a list begins.
pub const fn tail_slot(hash: u64) -> u64 {
    (hash & 0xffff_ffff) >> (32 - TAILS.trailing_zeros())
}

/// The rules of frames by their return addresses alone, for walks on to stacks that have no node yet: [`RULES`] entries
/// of [`RULE_SIZE`] bytes. A search begins at [`rule_slot`] and goes on to the next entry, round the end, up to one
/// whose address is 0.
pub const RULE_AREA: u64 = 0x258_0000;
/// Entries of the table: a power of two. The tracer fills half of it.
pub const RULES: u64 = 1 << 16;
/// Bytes of an entry.
pub const RULE_SIZE: u64 = 16;
/// In an entry: the return address (u64; [`RULE_GONE`]: the rule holds no longer). Written last, and never changed but
/// to that.
pub const RULE_RA: u64 = 0;
/// In an entry: the rule, as a node has it from [`NODE_FORM`] on. [`Form::End`]: the frame is the outermost one.
pub const RULE_FORM: u64 = 8;
/// See [`RULE_RA`]: no return address.
pub const RULE_GONE: u64 = u64::MAX;

/// Where the search for the rule of the frame at `ra` begins.
pub const fn rule_slot(ra: u64) -> u64 {
    ra.wrapping_mul(HASH) >> (64 - RULES.trailing_zeros())
}

/// See [`NODE_RBP`].
pub const RBP_SAME: i16 = i16::MIN;

/// How the caller of a frame is found: the three forms of `Rule::Compact`. The return address is in the word below the
/// CFA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Form {
    /// Not by the routine: it makes a copy.
    Unknown = 0,
    /// The CFA is rsp + offset.
    Rsp = 1,
    /// The CFA is rbp + offset.
    Rbp = 2,
    /// The CFA is in the word at rbp + offset.
    LoadRbp = 3,
    /// The walk ends here, with the id in [`NODE_STACK`].
    End = 4,
}

/// [`NODE_FORM`] and [`NODE_NEXT`] in one u16, of most frames: the CFA is rsp + offset, and the next node is a
/// caller's. Such an offset is from 1 to [`LARGEST_FRAME`].
pub const FORM_NEXT: u32 = Form::Rsp as u32 | IS_NEXT;
/// [`NODE_FORM`] to [`NODE_RBP`] in one u32, where besides rbp is the caller's.
pub const FORM_PLAIN: u32 = FORM_NEXT | (RBP_SAME.cast_unsigned() as u32) << 16;
/// [`NODE_NEXT`] in a u32 that begins at [`NODE_FORM`].
pub const IS_NEXT: u32 = 1 << 8;

/// The CFA of a caller is above that of the frame it called, by so many bytes at most. Else the walk is lost, and a
/// copy is made.
pub const LARGEST_FRAME: u64 = 16 << 20;

const _: () = {
    assert!(CELL_INDEX + CELL_KEYS * 16 <= NESTED);
    assert!(NESTED + NESTED_KEYS * 16 <= CELL_AREA);
    assert!(CELL_AREA + CELLS * CELL_SIZE <= COPY_AREA);
    assert!(CELL_FRAMES + FRAMES * FRAME_SIZE <= CELL_SIZE);
    assert!(CELL_TOLD_FLAGS + 8 <= CELL_TAIL);
    assert!(COPY_AREA + COPIES * COPY_SIZE <= INDEX_AREA);
    assert!(INDEX_AREA + 4 * (2 * INDEX_MOST) <= NODE_AREA);
    assert!(NODE_AREA + NODES * NODE_SIZE <= TAIL_AREA);
    assert!(TAIL_AREA + TAILS * TAIL_SIZE <= PAGE_AREA);
    assert!(PAGE_AREA + PAGES <= DISTANCE_AREA);
    assert!(DISTANCE_AREA + 8 * DISTANCES <= LIVE_AREA);
    assert!(LIVE_AREA + LIVE_BUCKETS * LIVE_BUCKET <= RULE_AREA);
    assert!(RULE_AREA + RULES * RULE_SIZE <= LIST_AREA);
    assert!(LIST_AREA + CELLS * LIST_SIZE <= RING_AREA);
    assert!(RING_AREA + CELLS * RING_SIZE <= WALK_AREA);
    assert!(WALK_AREA + CELLS * WALK_SIZE <= SHARED_SIZE);
    assert!(WALK_NEW + 32 * WALK_MOST <= WALK_SIZE);
    assert!(CELL_FRAMES + FRAMES * FRAME_SIZE <= CELL_LISTED);
    assert!(CELL_LIST_LIMIT + 8 <= CELL_LATEST && CELL_LATEST + 16 * LATEST <= CELL_LIST_TAIL);
    assert!(RULE_AREA.is_multiple_of(COPY_SIZE) && COPY_AREA.is_multiple_of(COPY_SIZE));
    assert!(RULES_GENERATION + 4 <= COPY_BITS);
    assert!(INTERVAL_AREA + 8 * INTERVALS <= CELL_INDEX);
    assert!(CELL_KEYS >= 2 * CELLS);
};
