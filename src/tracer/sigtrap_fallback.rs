//! The SIGTRAP fallback: a handler in the target for the moment in which heaptrace is killed.
//!
//! A thread that hits a breakpoint which nobody watches any more would die of it. With this handler it goes back to the
//! breakpoint, and hits it again until the [guardian](super::guardian) has put the original byte back. As long as
//! heaptrace traces the handler never runs: the trap's signal is taken away from the thread.
//!
//! A thread that was stopped when heaptrace was killed gets its signal even where heaptrace has already moved it past
//! the breakpoint. Such a thread is told by its resume flag, which [`ptrace::Stopped::pass_trap`] sets: a processor
//! clears that flag with the first instruction, and it is never set behind an int3.

use super::code::write::write;
use super::memory::TargetMemory;
use super::remote::Caller;
use super::{Result, status::SIGTRAP};
use crate::base::addr::Addr;

/// SIG_IGN as a handler.
pub const IGNORE: u64 = 1;

/// The handler, called as handler(signal, siginfo, ucontext), and the function that it returns to.
const CODE: [u8; 34] = [
    0x81, 0x7e, 0x08, 0x80, 0x00, 0x00, 0x00, // cmpl $SI_KERNEL, si_code(%rsi)
    0x75, 0x11, // jne return
    0xf6, 0x82, 0xb2, 0x00, 0x00, 0x00, 0x01, // testb $(RESUME_FLAG >> 16), uc_mcontext.flags+2(%rdx)
    0x75, 0x08, // jne return
    0x48, 0x83, 0xaa, 0xa8, 0x00, 0x00, 0x00, 0x01, // subq $1, uc_mcontext.rip(%rdx)
    0xc3, // return: ret
    0xb8, 0x0f, 0x00, 0x00, 0x00, // mov $SYS_rt_sigreturn, %eax
    0x0f, 0x05, // syscall
];

/// Where the return to the kernel begins in [`CODE`].
const RESTORER: u64 = 27;

/// Where the action to install stands behind the code: four words, as in the kernel's `struct sigaction`.
const INSTALLED: u64 = 40;

/// Where the program's own action stands, which is put back: the default one, or to ignore the signal.
const OWN: u64 = INSTALLED + 32;

/// SA_RESTORER of the kernel's <asm/signal.h>, which the C library keeps to itself.
const SA_RESTORER: u64 = 0x0400_0000;

/// Bytes that the handler takes in the target, with the actions that system calls set.
pub const SIZE: u64 = OWN + 32;

/// What is to be written at `at`: [`SIZE`] bytes in executable memory. The default action is put back.
pub fn image(at: Addr) -> Vec<u8> {
    let mut bytes = CODE.to_vec();
    bytes.resize(INSTALLED as usize, 0);
    let flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK;
    for word in [at.0, u64::from(flags.cast_unsigned()) | SA_RESTORER, at.add(RESTORER).0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(SIZE as usize, 0);
    bytes
}

/// Whether `bytes`, which stand at `at`, begin with an [`image`] for that place.
pub fn is_image(bytes: &[u8], at: Addr) -> bool {
    bytes.starts_with(&CODE) && image(at).get(..OWN as usize).is_some_and(|image| bytes.starts_with(image))
}

/// Where the two parts stand that it takes to install and to remove the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SigtrapFallback {
    /// The [`image`].
    pub at: Addr,
    /// Room for the code of a remote call: see [`Caller`].
    pub call: Addr,
}

impl SigtrapFallback {
    /// Lets a thread install the handler.
    ///
    /// # Errors
    /// As for [`Caller::call`].
    pub fn install(self, caller: &mut Caller<'_>) -> Result<i64> {
        caller.exchange_signal_action(SIGTRAP, self.at.add(INSTALLED), Addr(0))
    }

    /// Says what is put back: the default action, or to ignore the signal.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn puts_back(self, ignoring: bool, memory: &mut TargetMemory) -> Result<()> {
        let own = if ignoring { IGNORE } else { 0 };
        let at = self.at.add(OWN);
        if memory.read_word_uncached(at) == Some(own) { Ok(()) } else { write(memory, at, &own.to_le_bytes()) }
    }

    /// Lets a thread put the program's own action back, unless it has set another one, past the C library.
    ///
    /// Where that is to ignore the signal, the kernel forgets the traps that other threads of the process have just run
    /// into: none may stand behind a breakpoint then.
    ///
    /// # Errors
    /// As for [`Caller::call`].
    pub fn remove(self, caller: &mut Caller<'_>) -> Result<i64> {
        let scratch = caller.borrow_stack();
        let mut called = caller.exchange_signal_action(SIGTRAP, self.at.add(OWN), scratch.at)?;
        // Without an answer there was no room on the stack, and nothing is known against it.
        let handler = if called == 0 { caller.memory.read_word_uncached(scratch.at) } else { None };
        if handler.is_some_and(|handler| handler != self.at.0 && handler != 0) {
            called = caller.exchange_signal_action(SIGTRAP, scratch.at, Addr(0))?;
        }
        caller.return_stack(&scratch)?;
        Ok(called)
    }
}
