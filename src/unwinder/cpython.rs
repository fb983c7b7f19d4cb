//! The Python functions that a thread of CPython 3.8 to 3.13 runs, read from outside.
//!
//! Pure: memory enters through [`ReadMemory`], native frames as ranges of the stack. What is read is believed only
//! where the interpreter's own structures agree with each other and with the native stack: a thread's state names the
//! thread, code objects are of the type of code objects, and Python's frames belong to that native frame of the
//! interpreter's loop in which they say that they run. Where they do not, there are no Python frames, and the native
//! ones stay.

mod code;
mod frames;
mod layout;
mod lines;
#[cfg(test)]
mod tests;
mod text;
mod threads;

use crate::base::addr::Addr;
use crate::base::memory::ReadMemory;
pub use code::PythonFunction;
use code::{Codes, TypeAddresses};
pub use frames::NativeFrame;
use frames::{RawFrame, Run};
use layout::{Layout, Shape};
pub use layout::{SYMBOLS, Symbols, Unsupported};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::rc::Rc;
use threads::{ThreadState, Threads};

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
pub enum Unavailable {
    /// The interpreter has no state for the thread, or several, of which nothing says which one counts.
    Thread,
    /// Its frames are not those of the native stack.
    Frames,
}

/// An interpreter in a process.
#[derive(Clone, Debug)]
pub struct Interpreter {
    layout: Layout,
    codes: Codes,
    threads: Threads,
    /// Of each thread the frames of the loop that no state explains, by their ends: they are not looked for again as
    /// long as they are there.
    unexplained: FxHashMap<u64, Vec<Addr>>,
}

/// Which Python frames run in a native one, and whether they are of the interpreter that came first.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Claim {
    frames: Vec<RawFrame>,
    is_of_first: bool,
}

impl Interpreter {
    /// That of a process whose object file has these symbols.
    ///
    /// # Errors
    /// Why its structures can't be read.
    pub fn new<M: ReadMemory + ?Sized>(symbols: &Symbols, memory: &mut M) -> Result<Self, Unsupported> {
        let layout = Layout::of(symbols, memory)?;
        let types = TypeAddresses { code: symbols.code_type, text: symbols.text_type };
        let codes = Codes::new(layout, types);
        let threads = Threads::new(symbols.runtime, layout);
        Ok(Self { codes, threads, layout, unexplained: FxHashMap::default() })
    }

    /// The Python functions that the thread with this thread pointer (pthread_self) runs in the frames `native`, the
    /// innermost first. Of a native frame in which none can be told there is no run.
    ///
    /// # Errors
    /// Why none can be told.
    pub fn runs<M>(
        &mut self,
        memory: &mut M,
        thread: u64,
        native: &[NativeFrame],
    ) -> Result<Vec<PythonRun>, Unavailable>
    where
        M: ReadMemory + ?Sized,
    {
        self.codes.begin_call();
        let claims = match self.layout.shape {
            Shape::Objects { .. } => self.by_number(memory, thread, native)?,
            Shape::Records { .. } | Shape::Entries { .. } => self.by_place(memory, thread, native)?,
        };
        let mut told = Vec::new();
        for (native, Claim { frames, is_of_first }) in claims {
            // of a function that can't be told nothing is told, nor of those that run with it
            let named: Option<Vec<Option<PythonFrame>>> =
                frames.iter().map(|frame| self.named(memory, frame, is_of_first)).collect();
            let frames: Vec<PythonFrame> = named.into_iter().flatten().flatten().collect();
            if !frames.is_empty() {
                told.push(PythonRun { native, frames });
            }
        }
        if told.is_empty() { Err(Unavailable::Frames) } else { Ok(told) }
    }

    /// The function of a frame, with its line; `Some(None)` where it has not begun.
    fn named<M>(&mut self, memory: &mut M, frame: &RawFrame, is_of_first: bool) -> Option<Option<PythonFrame>>
    where
        M: ReadMemory + ?Sized,
    {
        let Some((function, line)) = self.codes.named(memory, frame.code, frame.position, is_of_first)? else {
            return Some(None);
        };
        Some(Some(PythonFrame { function, line }))
    }

    /// Until 3.10, where nothing but their number ties frames to native ones: those of the thread's only state. If
    /// there are several, that of the first interpreter counts: while the thread is in another one, its frames are not
    /// as many.
    fn by_number<M>(
        &mut self,
        memory: &mut M,
        thread: u64,
        native: &[NativeFrame],
    ) -> Result<BTreeMap<usize, Claim>, Unavailable>
    where
        M: ReadMemory + ?Sized,
    {
        let states = self.threads.of(memory, thread).ok_or(Unavailable::Thread)?;
        let mut of_first = states.iter().filter(|state| state.is_of_first);
        let state = match (states.as_slice(), of_first.next(), of_first.next()) {
            ([only], ..) | (_, Some(only), None) => only,
            _ => return Err(Unavailable::Thread),
        };
        let claims = self.claims(memory, &[*state], native);
        if claims.is_empty() { Err(Unavailable::Frames) } else { Ok(claims) }
    }

    /// Since 3.11, where frames say by their place on the stack in which native ones they run: whichever state has
    /// them.
    fn by_place<M>(
        &mut self,
        memory: &mut M,
        thread: u64,
        native: &[NativeFrame],
    ) -> Result<BTreeMap<usize, Claim>, Unavailable>
    where
        M: ReadMemory + ?Sized,
    {
        let mut states = self.threads.of(memory, thread).ok_or(Unavailable::Thread)?;
        let claims = self.claims(memory, &states, native);
        let unexplained = |claims: &BTreeMap<usize, Claim>| -> Vec<Addr> {
            let loops = native.iter().enumerate().filter(|(index, frame)| frame.is_loop && !claims.contains_key(index));
            loops.map(|(_, frame)| frame.cfa).collect()
        };
        let missing = unexplained(&claims);
        let known = self.unexplained.get(&thread);
        if missing.iter().all(|frame| known.is_some_and(|known| known.contains(frame))) {
            if known.is_some() {
                self.unexplained.insert(thread, missing);
            }
            return Ok(claims);
        }
        // it may have come to another interpreter meanwhile, by a state of its own or by one that another thread has
        // made
        states = self.threads.find(memory, thread).ok_or(Unavailable::Thread)?;
        for state in self.threads.of_later_interpreters(memory).unwrap_or_default() {
            if !states.contains(&state) {
                states.push(state);
            }
        }
        let claims = self.claims(memory, &states, native);
        self.unexplained.insert(thread, unexplained(&claims));
        Ok(claims)
    }

    /// What runs in which native frame by these states. Where two of them claim the same one, neither is believed.
    fn claims<M>(&self, memory: &mut M, states: &[ThreadState], native: &[NativeFrame]) -> BTreeMap<usize, Claim>
    where
        M: ReadMemory + ?Sized,
    {
        let mut claims: BTreeMap<usize, Option<Claim>> = BTreeMap::new();
        for state in states {
            for Run { native, frames } in frames::runs(&self.layout, memory, state.at, native).unwrap_or_default() {
                let claim = Claim { frames, is_of_first: state.is_of_first };
                claims.entry(native).and_modify(|before| *before = None).or_insert(Some(claim));
            }
        }
        claims.into_iter().filter_map(|(native, claim)| Some((native, claim?))).collect()
    }
}
