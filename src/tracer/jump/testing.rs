//! For tests: a process that holds the routine, stubs, made-up functions and a stack, and does nothing but what it is
//! told.
//!
//! All of its memory is shared with the test, at the same addresses, so that the test reads and writes it directly. Its
//! registers are set by ptrace, and it runs to the next int3 or for one instruction.

use super::routine;
use crate::arch::{Regs, reg};
use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
use crate::jump::layout::*;
use crate::jump::nodes::Nodes;
use crate::jump::rules::Rules;
use crate::jump::sampling::SizeOf;
use crate::jump::shared::{Shared, lies_inside};
use crate::jump::stub::{BACK, STUB_SIZE, STUBS, Stub, assemble};
use crate::jump::undo::{Code, Place};
use crate::tracer::rawregs::RawRegs;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PROGRAM: u64 = REGION_SIZE;
const ORIGINALS: u64 = PROGRAM + 0x800;
const FS: u64 = PROGRAM + 0x2000;
const STACK: Range<u64> = 0x10000..0x30000;
pub const SHARED: u64 = 0x40000;
const SIZE: u64 = SHARED + SHARED_SIZE;

/// The made-up functions, by number.
pub const MALLOC: u16 = 0;
/// Writes 0x7777 to where its first argument points, and returns its second one.
pub const MEMALIGN: u16 = 1;
/// As [`MALLOC`].
pub const REALLOC: u16 = 2;
/// As [`MALLOC`], but of no use.
pub const FREE: u16 = 3;
/// Calls [`MALLOC`].
pub const OUTER: u16 = 4;
/// Jumps to [`MALLOC`].
pub const TAIL: u16 = 5;
/// Calls [`FREE`].
pub const OUTER_OF_FREE: u16 = 6;
/// As [`MALLOC`], in a process whose blocks are sampled.
pub const SAMPLED_MALLOC: u16 = 7;
/// As [`FREE`], there.
pub const SAMPLED_FREE: u16 = 8;
/// Calls [`SAMPLED_MALLOC`].
pub const OUTER_OF_SAMPLED: u16 = 9;

/// Is given a size and an alignment, and jumps to [`PASSES_ALIGN`].
pub const PASSES_BOTH: u16 = 10;
/// Is given an alignment, and jumps to [`FREE`].
pub const PASSES_ALIGN: u16 = 11;
/// Is given a size, and jumps to [`FREE`].
pub const PASSES_SIZE: u16 = 12;
/// Is given an alignment, and jumps to [`REALLOC`].
pub const PASSES_TO_REALLOC: u16 = 13;

/// Where the sizes are: [`MALLOC`] and [`SAMPLED_MALLOC`] are simple, [`OUTER`] and [`TAIL`] are not.
const SIZES: [SizeOf; 14] = [
    SizeOf(SizeOf::SIMPLE),
    SizeOf(1),
    SizeOf(1 | SizeOf::CHANGES),
    SizeOf(0),
    SizeOf(1 << 2 | SizeOf::MULTIPLIED),
    SizeOf(0),
    SizeOf(0),
    SizeOf(SizeOf::SIMPLE),
    SizeOf(0),
    SizeOf(1 << 2 | SizeOf::MULTIPLIED),
    SizeOf(SizeOf::TOLD | 1 | 2 << 2),
    SizeOf(SizeOf::TOLD | 1 << 2),
    SizeOf(SizeOf::TOLD | 1),
    SizeOf(SizeOf::TOLD | 1 << 2),
];
const WAYS: [StubKind; 14] = [
    StubKind::Alloc,
    StubKind::AllocOut,
    StubKind::Realloc,
    StubKind::Free,
    StubKind::Alloc,
    StubKind::Alloc,
    StubKind::Alloc,
    StubKind::Alloc,
    StubKind::Free,
    StubKind::Alloc,
    StubKind::Free,
    StubKind::Free,
    StubKind::Free,
    StubKind::Free,
];

/// The memory of the process.
#[derive(Debug)]
pub struct Lab {
    base: *mut u8,
    pub code: Code,
    pub stubs: Vec<Stub>,
}

impl Lab {
    pub fn new() -> Self {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), SIZE as usize, all, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let mut lab = Self { base: base.cast(), code: routine::code(), stubs: Vec::new() };
        lab.write(0, routine::bytes());
        for (function, (way, size)) in (0..).zip(WAYS.into_iter().zip(SIZES)) {
            let (entry, original) = (lab.entry(function), lab.original(function));
            let is_sampled = (SAMPLED_MALLOC..=OUTER_OF_SAMPLED).contains(&function);
            let stub = Stub { function, way, size, entry, original, is_sampled };
            let bytes = assemble(&stub, lab.region(), u64::from(function), &lab.code).unwrap();
            lab.write(STUBS + u64::from(function) * STUB_SIZE, &bytes);
            let to = STUBS + u64::from(function) * STUB_SIZE;
            lab.write(stub.entry.0 - lab.base(), &near(0xe9, stub.entry.0, lab.base() + to));
            lab.stubs.push(stub);
        }
        for function in 0..WAYS.len() as u16 {
            lab.write(lab.original(function).0 - lab.base(), &lab.body(function));
        }
        for at in [lab.landing(), lab.handler_landing()] {
            lab.write(at.0 - lab.base(), &[0xcc]);
        }
        lab.write(FS, &(lab.base() + FS).to_le_bytes());
        lab
    }

    fn body(&self, function: u16) -> Vec<u8> {
        // mov rcx, 1; mov rdx, 2; mov rsi, 3; mov rdi, 4; mov r8d, 5; mov r9d, 6; mov r10d, 7; mov r11d, 8; mov eax,
        // 0x4000 + n; ret
        let mut bytes = match function {
            MEMALIGN => vec![0xb9, 0x77, 0x77, 0, 0, 0x48, 0x89, 0x0f, 0x89, 0xf0, 0xc3],
            TAIL => near(0xe9, self.original(function).0, self.entry(MALLOC).0),
            // mov rsi, rdx first
            PASSES_BOTH => {
                let jump = near(0xe9, self.original(function).0 + 3, self.entry(PASSES_ALIGN).0);
                [&[0x48, 0x89, 0xd6], &jump[..]].concat()
            }
            PASSES_ALIGN | PASSES_SIZE => near(0xe9, self.original(function).0, self.entry(FREE).0),
            PASSES_TO_REALLOC => near(0xe9, self.original(function).0, self.entry(REALLOC).0),
            OUTER => near(0xe8, self.original(function).0, self.entry(MALLOC).0),
            OUTER_OF_SAMPLED => near(0xe8, self.original(function).0, self.entry(SAMPLED_MALLOC).0),
            OUTER_OF_FREE => near(0xe8, self.original(function).0, self.entry(FREE).0),
            _ => Vec::new(),
        };
        for (opcode, value) in [(0xb9, 1), (0xba, 2), (0xbe, 3), (0xbf, 4)] {
            bytes.extend([opcode, value, 0, 0, 0]);
        }
        for (opcode, value) in [(0xb8, 5), (0xb9, 6), (0xba, 7), (0xbb, 8)] {
            bytes.extend([0x41, opcode, value, 0, 0, 0]);
        }
        bytes.push(0xb8);
        bytes.extend((0x4000 + u32::from(function)).to_le_bytes());
        bytes.push(0xc3);
        bytes
    }

    pub fn base(&self) -> u64 {
        self.base as u64
    }
    pub fn region(&self) -> Addr {
        Addr(self.base())
    }
    pub fn entry(&self, function: u16) -> Addr {
        Addr(self.base() + PROGRAM + 32 * u64::from(function))
    }
    pub fn original(&self, function: u16) -> Addr {
        Addr(self.base() + ORIGINALS + 128 * u64::from(function))
    }
    /// Where the original of an outer function is returned to by the inner one.
    pub fn inner_return(&self, function: u16) -> u64 {
        self.original(function).0 + 5
    }
    /// Where the stub of a function is returned to.
    pub fn back(&self, function: u16) -> u64 {
        self.base() + STUBS + u64::from(function) * STUB_SIZE + BACK
    }
    pub fn landing(&self) -> Addr {
        Addr(self.base() + PROGRAM + 0x1f00)
    }
    pub fn handler_landing(&self) -> Addr {
        Addr(self.base() + PROGRAM + 0x1f10)
    }
    pub fn fs_base(&self) -> u64 {
        self.base() + FS
    }
    pub fn stack(&self) -> Range<u64> {
        self.base() + STACK.start..self.base() + STACK.end
    }
    pub fn place(&self, cell: Option<u16>) -> Place<'_> {
        Place { region: self.region(), code: &self.code, stubs: &self.stubs, cell }
    }

    /// Bytes of the whole, from its base on.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= SIZE);
        // SAFETY: inside the mapping; the process is stopped while the test looks at it.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.base.add(offset as usize), bytes.len()) }
    }
    pub fn read_bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        assert!(offset + len <= SIZE);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.base.add(offset as usize), len as usize) }.to_vec()
    }
    /// A word at an address of the process.
    pub fn poke(&self, at: u64, value: u64) {
        self.write(at - self.base(), &value.to_le_bytes());
    }
    pub fn peek(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.read_bytes(at - self.base(), 8).try_into().unwrap())
    }

    /// The state of the shared region that a new thread finds: cell 0, an empty ring, no frames. What stacks are known
    /// stays.
    pub fn reset(&self) {
        self.poke(self.base() + STATE_ACTIVE, Active::Record as u64);
        self.poke(self.base() + STATE_SHARED, self.base() + SHARED);
        let index = self.word(INDEX_WORD);
        self.write(SHARED, &vec![0; COPY_AREA as usize]);
        self.set_word(INDEX_WORD, index);
        self.set_word(0, MAGIC);
        self.set_half(FREE_STACKS, 1);
        self.set_half(TIMED, TIMED_MARK);
        self.set_half(LIST_DEPTH, 100);
        self.write(SHARED + PAGE_AREA, &[0; PAGES as usize]);
        self.write(SHARED + LIVE_AREA, &[0; (LIVE_BUCKETS * LIVE_BUCKET) as usize]);
        self.forget_rules();
        for cell in [0, 1] {
            self.write(SHARED + walk_at(cell), &[0; WALK_CHECKS as usize]);
        }
        self.give_cell(0);
        for cell in [0, 1] {
            self.set_word(cell_at(cell) + CELL_LIMIT, RING_LEAST);
            self.set_word(cell_at(cell) + CELL_RING, RING_LEAST);
            self.set_word(cell_at(cell) + CELL_STACK_BEGIN, self.stack().start);
            self.set_word(cell_at(cell) + CELL_STACK_END, self.stack().end);
        }
    }
    /// The only thread has this cell.
    pub fn give_cell(&self, cell: u64) {
        let at = CELL_INDEX + 16 * cell_slot(self.fs_base());
        self.set_word(at, self.fs_base());
        self.set_word(at + 8, cell);
    }
    /// No stack is known any more.
    pub fn forget_nodes(&self, most: u64) -> Nodes {
        self.write(SHARED + NODE_AREA, &vec![0; (NODE_SIZE * most) as usize]);
        self.write(SHARED + INDEX_AREA, &vec![0; 16 * most.next_power_of_two().max(INDEX_LEAST) as usize]);
        Nodes::new(self)
    }
    /// No rule is known any more.
    pub fn forget_rules(&self) -> Rules {
        self.write(SHARED + RULE_AREA, &vec![0; (RULES * RULE_SIZE) as usize]);
        self.set_half(RULES_GENERATION, self.half(RULES_GENERATION) + 1);
        Rules::default()
    }
    /// What changes in a call.
    pub fn snapshot(&self) -> Vec<(u64, Vec<u8>)> {
        let ranges = [
            (STACK.end - 0x1000, 0x1000),
            (SHARED, 0x200),
            (SHARED + PAGE_AREA, 16),
            (SHARED + live_bucket(0x4000), LIVE_BUCKET),
            (SHARED + live_bucket(0x4002), LIVE_BUCKET),
            (SHARED + live_bucket(0x4007), LIVE_BUCKET),
            (SHARED + live_bucket(0x5000), LIVE_BUCKET),
            (SHARED + live_bucket(0x7777), LIVE_BUCKET),
            (SHARED + CELL_AREA, 2 * CELL_SIZE),
            (SHARED + ring_at(0), 4 * RECORD_SIZE),
            (SHARED + record_at(0, RING_MOST, 3 * RING_LEAST), 4 * RECORD_SIZE),
            (SHARED + ring_at(1), 4 * RECORD_SIZE),
            (SHARED + lists_at(0), 64),
            (SHARED + lists_at(1), 64),
            (SHARED + walk_at(0), WALK_CHECKS + 8 * 16),
            (SHARED + walk_at(0) + WALK_JOINTS, 8 * JOINT_SIZE),
            (SHARED + walk_at(0) + WALK_NEW, 8 * 32),
        ];
        ranges.iter().map(|(at, len)| (*at, self.read_bytes(*at, *len))).collect()
    }
    pub fn restore(&self, snapshot: &[(u64, Vec<u8>)]) {
        for (at, bytes) in snapshot {
            self.write(*at, bytes);
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // SAFETY: nobody refers to the mapping any more.
        unsafe { libc::munmap(self.base.cast(), SIZE as usize) };
    }
}

/// A call or jump to `to`, at `at`.
fn near(opcode: u8, at: u64, to: u64) -> Vec<u8> {
    let distance = i32::try_from(to.wrapping_sub(at + 5).cast_signed()).unwrap();
    [&[opcode][..], &distance.to_le_bytes()].concat()
}

impl Shared for Lab {
    fn word(&self, offset: u64) -> u64 {
        if !lies_inside(offset, 8) || !offset.is_multiple_of(8) {
            return 0;
        }
        // SAFETY: aligned and inside the mapping.
        unsafe { &*self.base.add((SHARED + offset) as usize).cast::<AtomicU64>() }.load(Ordering::Acquire)
    }
    fn half(&self, offset: u64) -> u32 {
        if !lies_inside(offset, 4) || !offset.is_multiple_of(4) {
            return 0;
        }
        // SAFETY: as above.
        unsafe { &*self.base.add((SHARED + offset) as usize).cast::<AtomicU32>() }.load(Ordering::Acquire)
    }
    fn set_word(&self, offset: u64, value: u64) {
        assert!(lies_inside(offset, 8) && offset.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { &*self.base.add((SHARED + offset) as usize).cast::<AtomicU64>() }.store(value, Ordering::Release);
    }
    fn set_half(&self, offset: u64, value: u32) {
        assert!(lies_inside(offset, 4) && offset.is_multiple_of(4));
        // SAFETY: as above.
        unsafe { &*self.base.add((SHARED + offset) as usize).cast::<AtomicU32>() }.store(value, Ordering::Release);
    }
    fn replace_word(&self, offset: u64, old: u64, new: u64) -> bool {
        let is_old = self.word(offset) == old;
        if is_old {
            self.set_word(offset, new);
        }
        is_old
    }
    fn copy_out(&self, offset: u64, to: &mut [u8]) -> bool {
        let inside = lies_inside(offset, to.len() as u64);
        if inside {
            to.copy_from_slice(&self.read_bytes(SHARED + offset, to.len() as u64));
        }
        inside
    }
}

/// The stack of the process, and nothing else of it.
#[derive(Debug)]
pub struct StackOf<'a>(pub &'a Lab);

impl ReadMemory for StackOf<'_> {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let stack = self.0.stack();
        if !stack.contains(&addr.0) {
            return 0;
        }
        let n = buf.len().min((stack.end - addr.0) as usize);
        buf[..n].copy_from_slice(&self.0.read_bytes(addr.0 - self.0.base(), n as u64));
        n
    }
}

/// Where a thread has come to an int3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    Landing,
    HandlerLanding,
    /// One of the routine's, with its offset.
    Routine(u64),
}

/// The process.
#[derive(Debug)]
pub struct Puppet {
    pub lab: Lab,
    pid: i32,
}

impl Puppet {
    pub fn start() -> Self {
        let lab = Lab::new();
        lab.forget_nodes(INDEX_LEAST);
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let limit = libc::rlimit { rlim_cur: 60, rlim_max: 60 };
            // SAFETY: system calls on our own behalf.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::setrlimit(libc::RLIMIT_CPU, &raw const limit);
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
                libc::_exit(1);
            }
        }
        let puppet = Self { lab, pid };
        assert_eq!(puppet.wait(), libc::SIGSTOP);
        puppet
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
        assert_eq!(waited, self.pid);
        assert!(libc::WIFSTOPPED(status), "it has ended: {status:#x}");
        libc::WSTOPSIG(status)
    }

    pub fn raw(&self) -> RawRegs {
        let mut regs = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
        // SAFETY: our stopped child, and a place for its registers, which are whole numbers.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, regs.as_mut_ptr()), 0);
            RawRegs(regs.assume_init())
        }
    }
    pub fn regs(&self) -> Regs {
        self.raw().regs()
    }
    pub fn set_regs(&self, regs: &Regs) {
        let mut raw = self.raw();
        raw.set_regs(regs);
        raw.0.rip = regs.rip;
        raw.0.fs_base = self.lab.fs_base();
        raw.0.orig_rax = u64::MAX;
        // SAFETY: our stopped child, and its registers.
        let set = unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, &raw const raw.0) };
        assert_eq!(set, 0);
    }

    fn resume(&self, request: u32) {
        // SAFETY: our stopped child.
        assert_eq!(unsafe { libc::ptrace(request, self.pid, 0, 0) }, 0);
        let signal = self.wait();
        assert_eq!(signal, libc::SIGTRAP, "at {:#x}", self.regs().rip.wrapping_sub(self.lab.base()));
    }
    /// One instruction.
    pub fn step(&self) {
        self.resume(libc::PTRACE_SINGLESTEP);
    }
    /// To the next int3.
    pub fn run(&self) -> Met {
        self.resume(libc::PTRACE_CONT);
        self.met().unwrap()
    }
    /// The int3 that the thread has just executed.
    pub fn met(&self) -> Option<Met> {
        let at = self.regs().rip - 1;
        let code = &self.lab.code;
        if at == self.lab.landing().0 {
            Some(Met::Landing)
        } else if at == self.lab.handler_landing().0 {
            Some(Met::HandlerLanding)
        } else {
            let offset = at.wrapping_sub(self.lab.base());
            let is_known = [code.ask, code.full_enter, code.full_leave, code.foreign].contains(&offset);
            is_known.then_some(Met::Routine(offset))
        }
    }

    /// Registers of a call: all different.
    pub fn call(&self, function: u16, sp: u64, args: [u64; 3]) -> Regs {
        let mut regs = self.regs();
        for (number, register) in regs.gpr.iter_mut().enumerate() {
            *register = 0x1111_0000 + number as u64;
        }
        regs.gpr[reg::RDI] = args[0];
        regs.gpr[reg::RSI] = args[1];
        regs.gpr[reg::RDX] = args[2];
        regs.gpr[reg::RSP] = sp;
        regs.rflags = 0x202;
        regs.rip = self.lab.entry(function).0;
        regs
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // SAFETY: our child, which is reaped here and nowhere else.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, null_mut(), libc::__WALL);
        }
    }
}
