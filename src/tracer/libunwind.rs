//! libunwind over ptrace: a second unwinder, for doubt and for the tests. Slow, as it reads the target word by word.
//!
//! Its libraries are loaded when it is asked for: heaptrace runs where they are not installed.

mod library;

use super::ptrace::Stopped;
use super::rawregs::RawRegs;
use super::{Result, TracerError};
use crate::base::addr::{Addr, FrameAddr};
use library::{Cursor, Functions};
use std::ffi::c_void;
use std::ptr::NonNull;

/// The call stack of a thread as libunwind finds it.
#[derive(Debug)]
pub struct Callers {
    /// From the return address of the function that the thread is about to enter, outwards.
    pub frames: Vec<FrameAddr>,
    /// Whether the walk ended before the outermost frame.
    pub truncated: bool,
}

/// libunwind, ready for the threads of any process that is traced.
pub struct Libunwind {
    functions: Functions,
    /// Its address space, which holds how a target is read, and nothing of one target. Destroyed on drop.
    space: NonNull<c_void>,
}

impl std::fmt::Debug for Libunwind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Libunwind").finish_non_exhaustive()
    }
}

impl Drop for Libunwind {
    fn drop(&mut self) {
        // SAFETY: made by create_addr_space, and used by nobody any more.
        unsafe { (self.functions.destroy_addr_space)(self.space.as_ptr()) };
    }
}

/// What libunwind knows of one thread: its id, and the module that was asked about last. Destroyed on drop.
struct Thread<'a> {
    functions: &'a Functions,
    state: NonNull<c_void>,
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        // SAFETY: made by _UPT_create, and used by nobody any more.
        unsafe { (self.functions.upt_destroy)(self.state.as_ptr()) };
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
    /// Loads libunwind.
    ///
    /// # Errors
    /// If its libraries can't be opened or lack a function, or if this program is linked statically; the error tells
    /// what to do. Also if there is no memory.
    pub fn open() -> Result<Self> {
        let functions = Functions::load()?;
        // SAFETY: _UPT_accessors is the table that this function expects, and lasts as long as this process. 0: the
        // byte order of this machine.
        let space = unsafe { (functions.create_addr_space)(functions.upt_accessors.as_ptr(), 0) };
        match NonNull::new(space) {
            Some(space) => Ok(Self { functions, space }),
            None => Err(TracerError::own("prepare libunwind")),
        }
    }

    /// Walks the stack of a thread that has hit the breakpoint at `entry`, the first instruction of a function, with
    /// the registers `raw`. At most `max_depth` frames.
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

    /// Walks the stack of a stopped thread, which the calling thread traces, from where it stands. At most `max_depth`
    /// frames.
    ///
    /// # Errors
    /// If the thread's registers can't be read, or there is no memory. What libunwind can't read later only ends the
    /// walk.
    pub fn walk(&self, tid: i32, max_depth: u32) -> Result<Callers> {
        let functions = &self.functions;
        // Made anew for each walk: it remembers where modules lie, and those come and go.
        // SAFETY: takes any id.
        let state = unsafe { (functions.upt_create)(tid) };
        let Some(state) = NonNull::new(state) else { return Err(TracerError::own("prepare libunwind")) };
        let thread = Thread { functions, state };
        let mut cursor = Cursor::new();
        // libunwind does not say that it sets errno: an old one must not be taken for its.
        nix::errno::Errno::clear();
        // SAFETY: the cursor has libunwind's size and alignment; space and state outlive it.
        if unsafe { (functions.init_remote)(&raw mut cursor, self.space.as_ptr(), thread.state.as_ptr()) } != 0 {
            return Err(TracerError::last("have libunwind read the registers of", tid));
        }
        let mut frames = Vec::new();
        let truncated = loop {
            // SAFETY: init_remote has filled the cursor; space and state are alive.
            let (interrupted, stepped) =
                unsafe { ((functions.is_signal_frame)(&raw mut cursor) > 0, (functions.step)(&raw mut cursor)) };
            if stepped <= 0 {
                break stepped < 0;
            }
            let mut pc = 0;
            // SAFETY: as above, and the register is one that has a word.
            let read = unsafe { (functions.get_reg)(&raw mut cursor, library::RIP, &raw mut pc) };
            match (read, pc) {
                (0, 0) => break false,
                (0, _) if frames.len() < max_depth as usize => frames.push(if interrupted {
                    FrameAddr::Instruction(Addr(pc))
                } else {
                    FrameAddr::Return(Addr(pc))
                }),
                _ => break true,
            }
        };
        Ok(Callers { frames, truncated })
    }
}
