//! `cargo bench --bench routine`: what the jump engine's routine adds to a pair of malloc and free, in nanoseconds of
//! the calling thread.
//!
//! The functions themselves do nothing, nobody drains, and the stacks are made up: each frame takes 48 bytes, every
//! third is found by rbp. Then what the walk of a known stack takes in the order in which real programs call, recorded
//! in this run; there, each frame takes 16 bytes. Stacks that have no nodes are found by the rules of their frames, or
//! outside of the innermost one as the call before has found them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a benchmark that can't measure must not go on"
)]

mod parts {
    #[allow(dead_code, reason = "others use the rest")]
    pub mod basics;
    #[allow(dead_code, reason = "others use the rest")]
    pub mod workloads;
}

#[path = "parts/replay.rs"]
mod replay;

use heaptrace::internal::jump::layout::{
    Active, CELL_CALLS, CELL_HEAD, CELL_INDEX, CELL_LEFT, CELL_RING, CELL_STACK_BEGIN, CELL_STACK_END, CELL_TAIL,
    FLAG_COPY, FLAG_LISTED, FREE_STACKS, Form, LIST_DEPTH, RBP_SAME, RECORD_SIZE, RECORD_WHAT, REGION_SIZE, RING_LEAST,
    SAMPLED, SHARED_SIZE, STATE_ACTIVE, STATE_SHARED, StubKind, WALK_SKIPS, cell_at, cell_slot, ring_at, tail_hash,
    walk_at,
};
use heaptrace::internal::jump::{
    CallerRule, Nodes, Rules, STUB_SIZE, STUBS, Shared, SizeOf, Stub, Tails, assemble, routine,
};
use heaptrace::internal::{Addr, ModuleId};
use parts::basics::median;
use std::arch::{asm, global_asm};
use std::ptr::null_mut;
use std::time::Instant;

/// Pairs from one look at the clock to the next: the ring holds them.
const PAIRS: u64 = 2000;
const ROUNDS: usize = 400;
const PROGRAM: u64 = REGION_SIZE;
const STACK_END: u64 = 0x10000;
const SHARED: u64 = 0x10000;
const FRAME: u64 = 48;

// Calls rdi, then rsi with its result, rdx times, on the stack at rcx with rbp r8.
global_asm!(
    ".globl heaptrace_bench_pairs",
    "heaptrace_bench_pairs:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "mov rbx, rsp; mov r12, rdi; mov r13, rsi; mov r14, rdx",
    "mov rsp, rcx; mov rbp, r8",
    "2:",
    "mov edi, 24; call r12",
    ".globl heaptrace_bench_after_malloc",
    "heaptrace_bench_after_malloc:",
    "mov rdi, rax; call r13",
    ".globl heaptrace_bench_after_free",
    "heaptrace_bench_after_free:",
    "dec r14; jnz 2b",
    "mov rsp, rbx",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; ret",
    // Calls rdi with rdx stack pointers, one after the other, which are at rsi.
    ".globl heaptrace_bench_calls",
    "heaptrace_bench_calls:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "mov rbx, rsp; mov r12, rdi; mov r13, rsi; mov r14, rdx",
    "2:",
    "mov rsp, [r13]; add r13, 8; mov edi, 0x4000; call r12",
    ".globl heaptrace_bench_after_call",
    "heaptrace_bench_after_call:",
    "dec r14; jnz 2b",
    "mov rsp, rbx",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; ret",
);

unsafe extern "C" {
    fn heaptrace_bench_pairs(malloc: u64, free: u64, pairs: u64, sp: u64, rbp: u64);
    fn heaptrace_bench_calls(function: u64, stack_pointers: *const u64, calls: u64);
    static heaptrace_bench_after_call: u8;
    static heaptrace_bench_after_malloc: u8;
    static heaptrace_bench_after_free: u8;
}

/// The routine, its memory, a stack, and two functions, in our own process.
struct Lab(*mut u8);

impl Lab {
    fn new() -> Self {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), (SHARED + SHARED_SIZE) as usize, all, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let lab = Self(base.cast());
        lab.write(0, routine::bytes());
        // mov eax, 0x4000; ret
        lab.write(PROGRAM, &[0xb8, 0, 0x40, 0, 0, 0xc3]);
        let simple = SizeOf(SizeOf::SIMPLE);
        for (number, way, size, is_sampled) in [
            (0, StubKind::Alloc, simple, false),
            (1, StubKind::Free, SizeOf(0), false),
            (2, StubKind::Alloc, simple, true),
            (3, StubKind::Free, SizeOf(0), true),
            (4, StubKind::Guard, SizeOf(0), false),
        ] {
            let original = Addr(lab.at(PROGRAM));
            let stub = Stub { function: number, way, size, entry: Addr(0), original, is_sampled };
            let bytes = assemble(&stub, Addr(lab.at(0)), number.into(), &routine::code()).unwrap();
            lab.write(STUBS + u64::from(number) * STUB_SIZE, &bytes);
        }
        lab.write(STATE_SHARED, &lab.at(SHARED).to_le_bytes());
        let fs: u64;
        // SAFETY: the first word of a thread's control block is its own address (ABI for thread-local storage).
        unsafe { asm!("mov {}, fs:[0]", out(reg) fs) };
        lab.set_word(CELL_INDEX + 16 * cell_slot(fs), fs);
        lab.set_word(cell_at(0) + CELL_RING, RING_LEAST);
        lab.set_word(cell_at(0) + CELL_STACK_BEGIN, lab.at(REGION_SIZE + 0x1000));
        lab.set_word(cell_at(0) + CELL_STACK_END, lab.at(STACK_END));
        lab
    }

    fn at(&self, offset: u64) -> u64 {
        self.0 as u64 + offset
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        // SAFETY: all callers write inside of the mapping.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.0.add(at as usize), bytes.len()) }
    }

    /// Nanoseconds of a pair: the middle of all rounds.
    fn measure(&self, malloc: u64, free: u64, sp: u64, rbp: u64) -> f64 {
        median((0..ROUNDS).map(|_| {
            self.set_word(cell_at(0) + CELL_TAIL, self.word(cell_at(0) + CELL_HEAD));
            let start = Instant::now();
            // SAFETY: two functions of no arguments that matter, on a stack of their own.
            unsafe { heaptrace_bench_pairs(malloc, free, PAIRS, sp, rbp) };
            start.elapsed().as_nanos() as f64 / PAIRS as f64
        }))
    }

    /// A stack of `depth` frames, known: where it begins, and rbp there.
    fn stack(&self, nodes: &mut Nodes, next: &mut u32, depth: u64) -> (u64, u64) {
        let first = self.at(STACK_END - 0x100 - FRAME * depth);
        for leaf in [(&raw const heaptrace_bench_after_malloc) as u64, (&raw const heaptrace_bench_after_free) as u64] {
            let mut parent = 0;
            let mut ra = leaf;
            for frame in 0..depth {
                let is_last = frame + 1 == depth;
                let onward = if is_last {
                    CallerRule::End(*next)
                } else if frame % 3 == 2 {
                    CallerRule::Caller { form: Form::Rbp, offset: 16, rbp: -2 }
                } else {
                    CallerRule::Caller { form: Form::Rsp, offset: FRAME as i32, rbp: RBP_SAME }
                };
                assert!(nodes.publish(self, *next, parent, ra, onward), "known already");
                parent = *next;
                *next += 1;
                // each stack has return addresses of its own
                ra = 0x100_0000 + depth * 0x1_0000 + frame * 16;
                let cfa = first + FRAME * (frame + 1);
                self.write(cfa - 8 - self.at(0), &ra.to_le_bytes());
                self.write(cfa - 16 - self.at(0), &(cfa + 3 * FRAME - 16).to_le_bytes());
            }
        }
        (first, first + 3 * FRAME - 16)
    }

    /// A stack of `depth` frames without nodes, known by its list: where it begins. Every frame saves rbp, as most of
    /// programs without frame pointers do.
    fn stack_of_rules(&self, depth: u64) -> u64 {
        let first = self.at(STACK_END - 0x100 - FRAME * depth);
        let ra = |frame: u64| 0x100_0000 + depth * 0x1_0000 + frame * 16;
        let leaves = [(&raw const heaptrace_bench_after_malloc) as u64, (&raw const heaptrace_bench_after_free) as u64];
        let mut rules = Rules::default();
        let mut publish = |ra, onward| rules.publish(self, ra, ModuleId(1), onward);
        let up = CallerRule::Caller { form: Form::Rsp, offset: FRAME as i32, rbp: -2 };
        leaves.iter().for_each(|leaf| publish(*leaf, up));
        (0..depth - 1).for_each(|frame| publish(ra(frame), if frame + 2 == depth { CallerRule::End(0) } else { up }));
        for frame in 0..depth - 1 {
            let cfa = first + FRAME * (frame + 1);
            self.write(cfa - 8 - self.at(0), &ra(frame).to_le_bytes());
            self.write(cfa - 16 - self.at(0), &frame.to_le_bytes());
        }
        let mut tails = Tails::default();
        for (leaf, stack) in leaves.into_iter().zip(1..) {
            let callers: Vec<u64> = std::iter::once(leaf).chain((0..depth - 1).map(ra)).collect();
            tails.publish(self, tail_hash(0, &callers), stack);
        }
        self.set_half(LIST_DEPTH, 512);
        first
    }
}

impl Shared for Lab {
    fn word(&self, offset: u64) -> u64 {
        // SAFETY: inside the mapping, aligned; one thread.
        unsafe { self.0.add((SHARED + offset) as usize).cast::<u64>().read_volatile() }
    }
    fn half(&self, offset: u64) -> u32 {
        // SAFETY: as above.
        unsafe { self.0.add((SHARED + offset) as usize).cast::<u32>().read_volatile() }
    }
    fn set_word(&self, offset: u64, value: u64) {
        // SAFETY: as above.
        unsafe { self.0.add((SHARED + offset) as usize).cast::<u64>().write_volatile(value) }
    }
    fn set_half(&self, offset: u64, value: u32) {
        // SAFETY: as above.
        unsafe { self.0.add((SHARED + offset) as usize).cast::<u32>().write_volatile(value) }
    }
    fn replace_word(&self, offset: u64, _: u64, new: u64) -> bool {
        self.set_word(offset, new);
        true
    }
    fn copy_out(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

fn main() {
    println!("{:<34} {:>10}   limit", "added to a pair", "ns");
    for (depth, limit) in [(1, "20, unwalked"), (5, ""), (16, "110"), (40, "")] {
        // memory of its own, as all stacks begin at the same two return addresses
        let lab = Lab::new();
        let mut nodes = Nodes::new(&lab);
        let mut next = 1;
        let plain = lab.at(PROGRAM);
        let (malloc, free) = (lab.at(STUBS), lab.at(STUBS + STUB_SIZE));
        let (sp, rbp) = lab.stack(&mut nodes, &mut next, depth);
        let alone = lab.measure(plain, plain, sp, rbp);
        if depth == 1 {
            println!("{:<34} {:>10.1}", "passed through", lab.measure(malloc, free, sp, rbp) - alone);
        }
        lab.write(STATE_ACTIVE, &(Active::Record as u32).to_le_bytes());
        if depth == 1 {
            let stub = |number: u64| lab.at(STUBS + number * STUB_SIZE);
            let added = |malloc, free| lab.measure(stub(malloc), stub(free), sp, rbp) - alone;
            lab.set_half(SAMPLED, 1);
            lab.set_word(cell_at(0) + CELL_LEFT, u64::MAX);
            println!("{:<34} {:>10.1}   10", "sampled, not picked", added(2, 3));
            println!("{:<34} {:>10.1}", "the same, through enter", added(0, 1));
            let calls = 2 * ROUNDS as u64 * PAIRS;
            assert_eq!(lab.word(cell_at(0) + CELL_CALLS), calls, "something was picked");
            lab.set_half(SAMPLED, 0);
            println!("{:<34} {:>10.1}   10", "two guards, no call in progress", added(4, 4));
        }
        for (free_stacks, what) in [(0, "malloc walked"), (1, "both walked")] {
            lab.set_half(FREE_STACKS, free_stacks);
            let added = lab.measure(malloc, free, sp, rbp) - alone;
            // The last two records: that the walks came to their ends.
            let head = lab.word(cell_at(0) + CELL_HEAD);
            let told = |number: u64| lab.word(ring_at(0) + number % RING_LEAST * RECORD_SIZE + RECORD_WHAT) as u32;
            let of_free = if free_stacks == 0 { depth + 1 } else { 2 * depth };
            assert_eq!((told(head - 2), told(head - 1)), (depth as u32, of_free as u32), "another stack was recorded");
            println!("{:<34} {added:>10.1}   {limit}", format!("{what}, depth {depth}"));
        }
    }
    for depth in [16, 40] {
        let lab = Lab::new();
        let plain = lab.at(PROGRAM);
        let (malloc, free) = (lab.at(STUBS), lab.at(STUBS + STUB_SIZE));
        let sp = lab.stack_of_rules(depth);
        Nodes::new(&lab);
        let alone = lab.measure(plain, plain, sp, 0);
        lab.write(STATE_ACTIVE, &(Active::Record as u32).to_le_bytes());
        lab.set_half(FREE_STACKS, 1);
        for (skips, what) in [(u32::MAX, "both by rules"), (0, "both, outer frames known")] {
            lab.set_half(walk_at(0) + WALK_SKIPS, skips);
            let added = lab.measure(malloc, free, sp, 0) - alone;
            let head = lab.word(cell_at(0) + CELL_HEAD);
            let told = |number: u64| lab.word(ring_at(0) + number % RING_LEAST * RECORD_SIZE + RECORD_WHAT);
            let stack = |number| told(number) & (FLAG_LISTED | FLAG_COPY | u64::from(u32::MAX));
            assert_eq!((stack(head - 2), stack(head - 1)), (1, 2), "another stack was recorded");
            println!("{:<34} {added:>10.1}", format!("{what}, depth {depth}"));
        }
    }
    replay::table();
}
