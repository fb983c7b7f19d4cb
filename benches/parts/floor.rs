//! The floor: what the kernel asks for one int3, with nothing done but reading and writing the registers.

use std::time::Instant;

/// Runs a child over `count` int3 instructions and returns the nanoseconds per round trip: trap, wait, GETREGS,
/// SETREGS, continue. With `pinned`, tracer and child share one processor.
pub fn round_trip(count: u64, pinned: bool) -> f64 {
    let before = affinity();
    if pinned {
        pin_to_one();
    }
    // SAFETY: the benchmark has one thread, and the child calls async-signal-safe functions only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain system calls and an instruction that traps into the tracer.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            for _ in 0..count {
                std::arch::asm!("int3");
            }
            libc::_exit(0);
        }
    }
    assert!(child > 0, "fork failed");
    wait(child);
    let mut begin = Instant::now();
    let mut stops = 0_u64;
    let mut elapsed = 0.0;
    resume(child);
    loop {
        let status = wait(child);
        if !libc::WIFSTOPPED(status) {
            break;
        }
        if stops == 0 {
            begin = Instant::now();
        }
        stops += 1;
        elapsed = begin.elapsed().as_secs_f64();
        // SAFETY: the child is stopped, and `registers` is a valid place for them.
        unsafe {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, child, 0, &raw mut registers);
            libc::ptrace(libc::PTRACE_SETREGS, child, 0, &raw const registers);
        }
        resume(child);
    }
    assert_eq!(stops, count, "every int3 is one stop");
    // SAFETY: `before` was filled by sched_getaffinity.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const before) };
    elapsed * 1e9 / (stops - 1) as f64
}

fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let pid = unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
    assert_eq!(pid, child, "waitpid");
    status
}

fn resume(child: i32) {
    // SAFETY: the child is our stopped tracee; no signal is passed on.
    unsafe { libc::ptrace(libc::PTRACE_CONT, child, 0, 0) };
}

fn affinity() -> libc::cpu_set_t {
    // SAFETY: the set is plain bits, written by the kernel.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    }
}

/// Keeps this process, and children to come, on the first processor that it may use.
fn pin_to_one() {
    let allowed = affinity();
    // SAFETY: indices are below CPU_SETSIZE, the set is valid for the call.
    unsafe {
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &allowed)).unwrap_or(0);
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one);
    }
}
