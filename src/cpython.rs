//! The Python functions that a thread of CPython 3.8 to 3.13 runs, read from outside.
//!
//! Pure: memory enters through [`ReadMemory`], native frames as ranges of the stack. What is read is believed only where the interpreter's
//! own structures agree with each other and with the native stack: a thread's state names the thread, code objects are of the type
//! of code objects, and Python's frames belong to that native frame of the interpreter's loop in which they say that they run. Where
//! they do not, there are no Python frames, and the native ones stay.

mod code;
mod frames;
mod layout;
mod lines;
#[cfg(test)]
mod tests;
mod text;

use crate::addr::Addr;
use crate::memory::ReadMemory;
pub use code::PythonFunction;
use code::{Codes, TypeAddresses};
pub use frames::NativeFrame;
use frames::{RawFrame, Run};
use layout::Layout;
pub use layout::{SYMBOLS, Symbols, Unsupported};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// A thread is looked for among so many, of all interpreters.
const MOST_THREADS: usize = 1 << 12;

/// A process has so many interpreters at most.
const MOST_INTERPRETERS: usize = 1 << 10;

/// A Python function in a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PythonFrame {
    /// Which function.
    pub function: Rc<PythonFunction>,
    /// The line that it has come to; 0 where its code has none.
    pub line: u32,
}

/// Python functions that run in one native frame, the innermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PythonRun {
    /// The index of the native frame.
    pub native: usize,
    /// Never empty.
    pub frames: Vec<PythonFrame>,
}

/// Why a thread's Python functions can't be told at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Untold {
    /// The interpreter has no state for the thread, or more than one.
    Thread,
    /// Its frames are not those of the native stack.
    Frames,
}

/// An interpreter in a process.
#[derive(Clone, Debug)]
pub struct Interpreter {
    runtime: Addr,
    layout: Layout,
    codes: Codes,
    /// The states of threads that were found, by the thread's pointer.
    threads: FxHashMap<u64, ThreadState>,
}

/// Where a thread's state is, and its interpreter's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ThreadState {
    at: Addr,
    interpreter: Addr,
}

impl Interpreter {
    /// That of a process whose object file has these symbols.
    ///
    /// # Errors
    /// Why its structures can't be read.
    pub fn new<M: ReadMemory + ?Sized>(symbols: &Symbols, memory: &mut M) -> Result<Self, Unsupported> {
        let layout = Layout::of(symbols, memory)?;
        let types = TypeAddresses { code: symbols.code_type, text: symbols.text_type };
        Ok(Self { runtime: symbols.runtime, codes: Codes::new(layout, types), layout, threads: FxHashMap::default() })
    }

    /// The Python functions that the thread with this thread pointer (pthread_self) runs in the frames `native`, the innermost first. Of a native frame in
    /// which none can be told there is no run.
    ///
    /// # Errors
    /// Why none can be told.
    pub fn runs<M>(&mut self, memory: &mut M, thread: u64, native: &[NativeFrame]) -> Result<Vec<PythonRun>, Untold>
    where
        M: ReadMemory + ?Sized,
    {
        self.codes.begin_call();
        let state = self.thread(memory, thread).ok_or(Untold::Thread)?;
        let runs = frames::runs(&self.layout, memory, state, native).ok_or(Untold::Frames)?;
        let mut told = Vec::new();
        for Run { native, frames } in runs {
            // of a function that can't be told nothing is told, nor of those that run with it
            let named: Option<Vec<Option<PythonFrame>>> =
                frames.iter().map(|frame| self.named(memory, frame)).collect();
            let frames: Vec<PythonFrame> = named.into_iter().flatten().flatten().collect();
            if !frames.is_empty() {
                told.push(PythonRun { native, frames });
            }
        }
        if told.is_empty() { Err(Untold::Frames) } else { Ok(told) }
    }

    /// The function of a frame, with its line; `Some(None)` where it has not begun.
    fn named<M: ReadMemory + ?Sized>(&mut self, memory: &mut M, frame: &RawFrame) -> Option<Option<PythonFrame>> {
        let Some((function, line)) = self.codes.named(memory, frame.code, frame.position)? else { return Some(None) };
        Some(Some(PythonFrame { function, line }))
    }

    /// The state of a thread, which says itself that it is, and stands in the list of its interpreter.
    fn thread<M: ReadMemory + ?Sized>(&mut self, memory: &mut M, id: u64) -> Option<Addr> {
        if let Some(known) = self.threads.get(&id).copied() {
            if self.is_state_of(memory, known, id) {
                return Some(known.at);
            }
            self.threads.remove(&id);
        }
        let found = self.find_thread(memory, id)?;
        self.threads.insert(id, found);
        Some(found.at)
    }

    fn is_state_of<M: ReadMemory + ?Sized>(&self, memory: &mut M, state: ThreadState, id: u64) -> bool {
        let of = &self.layout.thread;
        let says_so = memory.read_u64(state.at.add(of.id)) == Some(id)
            && memory.read_u64(state.at.add(of.interpreter)) == Some(state.interpreter.0);
        let link = match memory.read_u64(state.at.add(of.previous)) {
            Some(0) => memory.read_u64(state.interpreter.add(self.layout.first_thread)),
            Some(previous) => memory.read_u64(Addr(previous).add(of.next)),
            None => None,
        };
        says_so && link == Some(state.at.0)
    }

    /// The only state that a thread has, in any interpreter.
    fn find_thread<M: ReadMemory + ?Sized>(&self, memory: &mut M, id: u64) -> Option<ThreadState> {
        let mut found = None;
        let mut left = MOST_THREADS;
        let mut interpreter = memory.read_u64(self.runtime.add(self.layout.first_interpreter)).map(Addr)?;
        for _ in 0..MOST_INTERPRETERS {
            if interpreter.is_null() {
                return found;
            }
            let mut at = memory.read_u64(interpreter.add(self.layout.first_thread)).map(Addr)?;
            while !at.is_null() {
                left = left.checked_sub(1)?;
                let state = ThreadState { at, interpreter };
                if memory.read_u64(at.add(self.layout.thread.id))? == id {
                    if found.is_some() || !self.is_state_of(memory, state, id) {
                        return None;
                    }
                    found = Some(state);
                }
                at = memory.read_u64(at.add(self.layout.thread.next)).map(Addr)?;
            }
            interpreter = memory.read_u64(interpreter.add(self.layout.next_interpreter)).map(Addr)?;
        }
        None
    }
}
