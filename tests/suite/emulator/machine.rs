//! A stopped child whose processor state is ours: the oracle of the emulator tests.

use heaptrace::internal::{Addr, ReadMemory, Regs};

/// Where everything is. Nothing else is mapped within 2 GiB, so a stray access faults the same way each time.
pub const BASE: u64 = 0x2000_0000_0000;
const PAGE: u64 = 4096;
/// Pages of random data before and behind the code.
const DATA_PAGES: u64 = 2;
/// One guard page, then data, code, pads, data, one guard page.
const PAGES: u64 = 2 * DATA_PAGES + 4;
pub const DATA_LOW: u64 = BASE + PAGE;
pub const CODE: u64 = DATA_LOW + DATA_PAGES * PAGE;
pub const PAD_NEAR: u64 = CODE + PAGE;
pub const DATA_HIGH: u64 = PAD_NEAR + PAGE;
pub const DATA_LEN: u64 = DATA_PAGES * PAGE;
/// A pad page 1.5 GiB away.
pub const PAD_FAR: u64 = BASE + 0x6000_0000;

/// What one resumption ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    pub signal: i32,
    /// The faulting address; 0 for a completed step.
    pub fault: u64,
}

impl Stop {
    pub const STEPPED: Self = Self { signal: libc::SIGTRAP, fault: 0 };
}

/// Everything that an instruction can change, as far as the tests let it.
#[derive(Clone, PartialEq)]
pub struct State {
    pub regs: Regs,
    pub data: Vec<u8>,
    /// The legacy floating-point area: x87 and SSE registers.
    pub float: Vec<u8>,
}

pub struct Machine {
    pid: libc::pid_t,
    initial: libc::user_regs_struct,
    initial_float: libc::user_fpregs_struct,
}

impl Machine {
    pub fn start() -> Self {
        // SAFETY: between fork and exit the child makes direct system calls only, which are async-signal-safe.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            // SAFETY: fixed mappings in a range that is free in every process of this test.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                let map = |start: u64, len: u64, prot: i32| {
                    if libc::mmap(start as *mut libc::c_void, len as usize, prot, flags, -1, 0) as u64 != start {
                        libc::_exit(1);
                    }
                };
                map(BASE, PAGE, libc::PROT_NONE);
                map(DATA_LOW, PAGES * PAGE - 2 * PAGE, all);
                map(BASE + (PAGES - 1) * PAGE, PAGE, libc::PROT_NONE);
                map(PAD_FAR, PAGE, all);
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::kill(libc::getpid(), libc::SIGSTOP);
                libc::_exit(1);
            }
        }
        let mut machine = Self {
            pid,
            // SAFETY: plain data, for which zeros are valid.
            initial: unsafe { std::mem::zeroed() },
            // SAFETY: as above.
            initial_float: unsafe { std::mem::zeroed() },
        };
        assert_eq!(machine.wait(), libc::SIGSTOP);
        machine.initial = machine.raw_regs();
        // SAFETY: the child is stopped and the buffer is of the type that the request fills.
        let rc = unsafe { libc::ptrace(libc::PTRACE_GETFPREGS, pid, 0, &raw mut machine.initial_float) };
        assert_eq!(rc, 0);
        machine
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: waits for a child of our own.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(pid, self.pid, "waitpid");
        assert!(libc::WIFSTOPPED(status), "the child died: status {status:#x}");
        libc::WSTOPSIG(status)
    }

    fn raw_regs(&self) -> libc::user_regs_struct {
        // SAFETY: plain data, for which zeros are valid.
        let mut raw: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the child is stopped and the buffer is of the type that the request fills.
        let rc = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut raw) };
        assert_eq!(rc, 0, "GETREGS");
        raw
    }

    pub fn regs(&self) -> Regs {
        let r = self.raw_regs();
        Regs {
            gpr: [
                r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
                r.r15,
            ],
            rip: r.rip,
            rflags: r.eflags,
            fs_base: r.fs_base,
            gs_base: r.gs_base,
        }
    }

    pub fn set_regs(&mut self, regs: &Regs) {
        let [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15] = regs.gpr;
        let raw = libc::user_regs_struct {
            rax,
            rdx,
            rcx,
            rbx,
            rsi,
            rdi,
            rbp,
            rsp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip: regs.rip,
            eflags: regs.rflags,
            fs_base: regs.fs_base,
            gs_base: regs.gs_base,
            orig_rax: u64::MAX,
            ..self.initial
        };
        // SAFETY: the child is stopped and the buffer is of the type that the request reads.
        let rc = unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, &raw const raw) };
        assert_eq!(rc, 0, "SETREGS");
    }

    pub fn reset_float(&mut self) {
        // SAFETY: the child is stopped and the buffer is of the type that the request reads.
        let rc = unsafe { libc::ptrace(libc::PTRACE_SETFPREGS, self.pid, 0, &raw const self.initial_float) };
        assert_eq!(rc, 0, "SETFPREGS");
    }

    /// Lets the processor execute one instruction.
    pub fn step(&mut self) -> Stop {
        // SAFETY: the child is stopped.
        let rc = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) };
        assert_eq!(rc, 0, "SINGLESTEP");
        let signal = self.wait();
        if signal == libc::SIGTRAP {
            return Stop::STEPPED;
        }
        // SAFETY: plain data; the child is stopped, and the kernel fills the buffer.
        let info = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_GETSIGINFO, self.pid, 0, &raw mut info), 0, "GETSIGINFO");
            info
        };
        // SAFETY: all signals that an instruction causes have an address.
        Stop { signal, fault: unsafe { info.si_addr() } as u64 }
    }

    pub fn write(&mut self, addr: u64, bytes: &[u8]) {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: `local` describes `bytes`, which is only read.
        let n = unsafe { libc::process_vm_writev(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        assert_eq!(n, bytes.len() as isize, "write to {addr:#x}");
    }

    pub fn state(&mut self) -> State {
        let mut data = vec![0; 2 * DATA_LEN as usize];
        let (low, high) = data.split_at_mut(DATA_LEN as usize);
        assert_eq!(self.read(Addr(DATA_LOW), low) as u64, DATA_LEN);
        assert_eq!(self.read(Addr(DATA_HIGH), high) as u64, DATA_LEN);
        // SAFETY: plain data; the child is stopped, and the kernel fills the buffer.
        let float = unsafe {
            let mut raw: libc::user_fpregs_struct = std::mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_GETFPREGS, self.pid, 0, &raw mut raw), 0);
            raw
        };
        let st = float.st_space.iter().chain(&float.xmm_space).flat_map(|w| w.to_le_bytes());
        let control = [u64::from(float.cwd), u64::from(float.swd), u64::from(float.mxcsr)];
        let float = st.chain(control.iter().flat_map(|w| w.to_le_bytes())).collect();
        State { regs: self.regs(), data, float }
    }
}

impl ReadMemory for Machine {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        let remote = libc::iovec { iov_base: addr.0 as *mut libc::c_void, iov_len: buf.len() };
        // SAFETY: `local` describes `buf`, which is exclusively ours.
        let n = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(n).unwrap_or(0)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: kills and reaps a child of our own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}
