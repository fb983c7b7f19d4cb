//! libunwind over ptrace: a second unwinder, for doubt and for the tests. Slow, as it reads the target word by word.
//!
//! Built in with the cargo feature `libunwind` only.

use super::ptrace::{RawRegs, Stopped};
use super::{Result, TracerError};
use crate::addr::FrameAddr;

/// The call stack of a thread as libunwind finds it.
#[derive(Debug)]
pub struct Callers {
    /// From the return address of the function that the thread is about to enter, outwards.
    pub frames: Vec<FrameAddr>,
    /// Whether the walk ended before the outermost frame.
    pub truncated: bool,
}

/// libunwind, ready for the threads of one process.
pub struct Libunwind {
    #[cfg(feature = "libunwind")]
    space: linked::Space,
}

impl std::fmt::Debug for Libunwind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Libunwind").finish_non_exhaustive()
    }
}

/// Sets a stopped thread's instruction pointer back when it goes out of scope.
struct Rewound<'a> {
    thread: &'a Stopped,
    rip: u64,
}

impl Drop for Rewound<'_> {
    fn drop(&mut self) {
        if let Err(error) =
            self.thread.set_instruction_pointer(self.rip).or_else(|_| self.thread.set_instruction_pointer(self.rip))
        {
            tracing::warn!("{error}");
        }
    }
}

impl Libunwind {
    /// Walks the stack of a thread that has hit the breakpoint at `entry`, the first instruction of a function, with the
    /// registers `raw`. At most `max_depth` frames.
    ///
    /// # Errors
    /// Any failure of a ptrace request of ours. What libunwind can't read only ends the walk.
    pub fn callers_of(&self, thread: &Stopped, raw: &RawRegs, entry: u64, max_depth: u32) -> Result<Callers> {
        // libunwind asks the kernel for the registers: the thread must stand where its int3 stands, not behind it.
        let rewound = Rewound { thread, rip: raw.0.rip };
        thread.set_instruction_pointer(entry)?;
        let callers = self.walk(thread.tid(), max_depth);
        drop(rewound);
        callers
    }
}

#[cfg(not(feature = "libunwind"))]
impl Libunwind {
    /// Prepares libunwind.
    ///
    /// # Errors
    /// In this build, always.
    pub fn open() -> Result<Self> {
        let source = std::io::Error::other("heaptrace was built without the cargo feature `libunwind`");
        Err(TracerError::Own { operation: "use libunwind", source })
    }

    fn walk(&self, _: i32, _: u32) -> Result<Callers> {
        Ok(Callers { frames: Vec::new(), truncated: true })
    }
}

#[cfg(feature = "libunwind")]
mod linked {
    use super::{Callers, FrameAddr, Libunwind, Result, TracerError};
    use crate::addr::Addr;
    use unwind::{Accessors, AddressSpace, Byteorder, Cursor, PTraceState, PTraceStateRef, RegNum};

    // Debian's libunwind-ptrace.so uses liblzma without saying so, which lld refuses. libunwind-dev brings it along.
    #[link(name = "lzma")]
    unsafe extern "C" {}

    pub(super) type Space = AddressSpace<PTraceStateRef>;

    fn failure(error: unwind::Error) -> TracerError {
        TracerError::Own { operation: "use libunwind", source: std::io::Error::other(error) }
    }

    impl Libunwind {
        /// Prepares libunwind.
        ///
        /// # Errors
        /// If it lacks memory.
        pub fn open() -> Result<Self> {
            Ok(Self { space: AddressSpace::new(Accessors::ptrace(), Byteorder::DEFAULT).map_err(failure)? })
        }

        pub(super) fn walk(&self, tid: i32, max_depth: u32) -> Result<Callers> {
            // Made anew for each walk: it remembers where modules lie, and those come and go.
            let state = PTraceState::new(tid.cast_unsigned()).map_err(failure)?;
            let mut cursor = Cursor::remote(&self.space, &state).map_err(failure)?;
            let mut frames = Vec::new();
            loop {
                let interrupted = cursor.is_signal_frame().unwrap_or(false);
                match cursor.step() {
                    Ok(true) => {}
                    Ok(false) => return Ok(Callers { frames, truncated: false }),
                    Err(_) => return Ok(Callers { frames, truncated: true }),
                }
                match cursor.register(RegNum::IP) {
                    Ok(0) => return Ok(Callers { frames, truncated: false }),
                    Ok(_) if frames.len() >= max_depth as usize => return Ok(Callers { frames, truncated: true }),
                    Ok(pc) if interrupted => frames.push(FrameAddr::Instruction(Addr(pc))),
                    Ok(pc) => frames.push(FrameAddr::Return(Addr(pc))),
                    Err(_) => return Ok(Callers { frames, truncated: true }),
                }
            }
        }
    }
}
