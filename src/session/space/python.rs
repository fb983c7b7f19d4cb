//! The Python interpreter of an address space, whose functions take the place of its loop in stacks.

use super::facts::Facts;
use super::findings::Findings;
use super::image::Image;
use super::modules::Modules;
use super::named::code_of;
use super::probes::Probes;
use crate::arch::Regs;
use crate::base::addr::{Addr, FrameAddr, LoadBias, ModuleId, ObjAddr, StackId};
use crate::image::elf::PlainSymbols;
use crate::profile::symbolize::{FunctionName, ScriptNames, SymFrame};
use crate::unwinder::cpython::{
    Interpreter, NativeFrame, PythonFrame, PythonFunction, PythonRun, SYMBOLS, Symbols, Unavailable,
};
use crate::unwinder::{Frame, Unwound};
use rustc_hash::FxHashMap;
use std::ops::{ControlFlow, Range};
use std::rc::Rc;
use std::sync::Arc;

/// The interpreter's loop, and what a compiler moves out of it.
const LOOP: [&str; 2] = ["_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault.cold"];

/// A stack of more native frames is not gone through for Python's functions.
const MAX_FRAMES: usize = 1 << 16;

/// So many lines of scripts have numbers at once in a process; they get the same ones again.
const MAX_NUMBERS: usize = 1 << 16;

/// The names of scripts in stacks take so many bytes at most; of further ones the interpreter's own frames stay.
const MAX_NAMES: usize = 256 << 20;

/// The summary leaves out stacks that are less than one of so many of those with Python in them.
const MIN_PART_DIVISOR: u64 = 100;

/// What an object file that holds an interpreter tells by its symbols.
#[derive(Debug)]
pub(super) struct PythonFacts {
    symbols: [Option<ObjAddr>; SYMBOLS.len()],
    loop_code: Vec<Range<ObjAddr>>,
}

impl PythonFacts {
    /// None of an object that holds none.
    pub(super) fn of(plain: &PlainSymbols<'_>) -> Option<Self> {
        if !plain.has_any(&SYMBOLS[..1]) {
            return None;
        }
        let symbols = plain.find(SYMBOLS).map(|symbol| Some(symbol?.addr));
        let loop_code = code_of(plain, LOOP);
        (!loop_code.is_empty()).then_some(Self { symbols, loop_code })
    }
}

/// The lines of scripts that stacks of a session have.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    numbers: FxHashMap<(PythonFunction, u32), u32>,
    names: ScriptNames,
    /// What the names take, in bytes.
    bytes: usize,
}

impl Scripts {
    /// See [`super::SharedObjects::number_of`].
    pub(super) fn number_of(&mut self, frame: &PythonFrame) -> Option<u32> {
        let PythonFrame { function, line } = frame;
        let key = (PythonFunction::clone(function), *line);
        if let Some(known) = self.numbers.get(&key) {
            return Some(*known);
        }
        let size = 2 * (function.name.len() + function.file.len()) + size_of::<SymFrame>() + size_of_val(&key);
        if self.bytes + size > MAX_NAMES {
            return None;
        }
        self.bytes += size;
        let name: Arc<str> = function.name.as_str().into();
        let names = Arc::make_mut(&mut self.names);
        let number = u32::try_from(names.len()).ok()?;
        names.push(SymFrame {
            function: Some(FunctionName { name: Arc::clone(&name), system_name: name }),
            file: Some(function.file.clone()),
            line: *line,
            start_line: function.first_line,
        });
        self.numbers.insert(key, number);
        Some(number)
    }

    /// See [`super::SharedObjects::scripts`].
    pub(super) fn names(&self) -> ScriptNames {
        Arc::clone(&self.names)
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Python {
    is_wanted: bool,
    loaded: Option<Loaded>,
    /// Whether a stack passes through the interpreter's loop.
    passing: FxHashMap<StackId, bool>,
    /// The numbers of lines, by the address of the function's names, which live as long as they stand here.
    numbers: FxHashMap<(usize, u32), (Rc<PythonFunction>, u32)>,
    /// Stacks with Python in them, and those whose functions of Python are not known.
    stacks: u64,
    untold: u64,
}

/// An interpreter that is loaded.
#[derive(Clone, Debug)]
struct Loaded {
    module: ModuleId,
    loop_code: Vec<Range<Addr>>,
    symbols: Symbols,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Not looked at yet.
    New,
    Known(Box<Interpreter>),
    /// Its structures can't be read.
    Refused,
}

impl Python {
    /// That of a child, which has made no calls yet.
    pub(super) fn forked(&self) -> Self {
        Self { stacks: 0, untold: 0, ..self.clone() }
    }

    /// A module has gone.
    pub(super) fn forget(&mut self, module: ModuleId) {
        if self.loaded.as_ref().is_some_and(|loaded| loaded.module == module) {
            self.loaded = None;
            self.passing.clear();
        }
    }

    /// Whether Python's functions are wanted in stacks.
    pub const fn show_python(&mut self, so: bool) {
        self.is_wanted = so;
    }

    /// Whether stacks are walked with an interpreter's help.
    pub fn shows_python(&self) -> bool {
        self.is_wanted && self.loaded.as_ref().is_some_and(|loaded| !matches!(loaded.state, State::Refused))
    }

    /// A module has come that may hold an interpreter.
    pub(super) fn note_python(
        &mut self,
        findings: &mut Findings,
        probes: &Probes,
        module: ModuleId,
        facts: &Facts,
        bias: LoadBias,
    ) {
        let Some(python) = facts.python.as_ref().filter(|_| self.is_wanted) else { return };
        let in_process = |addr: ObjAddr| bias.to_process(addr);
        // a library of another interpreter does not take the place of the one that runs
        if self.loaded.as_ref().is_some_and(|loaded| matches!(loaded.state, State::Known(_))) {
            return;
        }
        self.passing.clear();
        let Some(symbols) = Symbols::of(python.symbols.map(|addr| addr.map(in_process))) else { return };
        let loop_code = python.loop_code.iter().map(|code| in_process(code.start)..in_process(code.end)).collect();
        if probes.is_jumped {
            findings.warnings.push(
                "Python's functions are not shown (--python): the program loaded its interpreter after the jump engine \
                 had started"
                    .to_owned(),
            );
        }
        self.loaded = Some(Loaded { module, loop_code, symbols, state: State::New });
    }

    fn passes_through_loop(&mut self, modules: &Modules, stack: StackId) -> bool {
        let Python { loaded: Some(loaded), passing, .. } = self else { return false };
        let stacks = modules.unwinder.stacks();
        *passing.entry(stack).or_insert_with(|| stacks.frames(stack).iter().any(|frame| loaded.runs_in(frame)))
    }

    /// A stack, `native`, with the functions of an interpreter, if these are wanted and it passes through its loop.
    pub(super) fn told_stack(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        regs: &Regs,
        native: Unwound,
        max_depth: u32,
    ) -> Unwound {
        if !self.shows_python() || !self.passes_through_loop(modules, native.stack) {
            return native;
        }
        self.stacks += 1;
        let told = self.with_python(image, modules, regs, native, max_depth);
        if told.is_none() && self.shows_python() {
            self.untold += 1;
        }
        told.unwrap_or(native)
    }

    /// The same stack with Python's functions; None if they are not known.
    fn with_python(
        &mut self,
        image: &mut Image,
        modules: &mut Modules,
        regs: &Regs,
        native: Unwound,
        max_depth: u32,
    ) -> Option<Unwound> {
        let Modules { unwinder, findings, files, .. } = modules;
        let loaded = self.loaded.as_mut()?;
        let mut memory = image.original_memory();
        let mut walked: Vec<(Frame, bool)> = Vec::new();
        let mut frames: Vec<NativeFrame> = Vec::new();
        let mut is_too_deep = false;
        unwinder.walk(regs, &mut memory, true, &mut |info| {
            if walked.len() >= MAX_FRAMES {
                is_too_deep = true;
                return ControlFlow::Break(());
            }
            let frame = Frame { addr: info.addr, module: info.module };
            walked.push((frame, info.guessed));
            frames.push(NativeFrame {
                sp: info.sp,
                cfa: info.cfa.unwrap_or(info.sp),
                is_loop: loaded.runs_in(&frame),
                is_interpreter: frame.module == loaded.module,
            });
            ControlFlow::Continue(())
        });
        if is_too_deep {
            return None;
        }
        let interpreter = match &mut loaded.state {
            State::Known(interpreter) => interpreter,
            State::Refused => return None,
            state @ State::New => match Interpreter::new(&loaded.symbols, &mut memory) {
                Ok(interpreter) => {
                    *state = State::Known(Box::new(interpreter));
                    let State::Known(interpreter) = state else { return None };
                    interpreter
                }
                Err(why) => {
                    findings.warnings.push(format!("Python's functions are not shown (--python): {why}"));
                    *state = State::Refused;
                    return None;
                }
            },
        };
        let runs = match interpreter.runs(&mut memory, regs.fs_base, &frames) {
            Ok(runs) => runs,
            Err(why @ (Unavailable::Thread | Unavailable::Frames)) => {
                tracing::trace!("Python's functions can't be read: {why:?}");
                return None;
            }
        };
        if self.numbers.len() >= MAX_NUMBERS {
            self.numbers.clear();
        }
        let mut number = |frame: &PythonFrame| {
            let key = (Rc::as_ptr(&frame.function).addr(), frame.line);
            if let Some((_, known)) = self.numbers.get(&key) {
                return Some(*known);
            }
            let number = files.objects.number_of(frame)?;
            self.numbers.insert(key, (Rc::clone(&frame.function), number));
            Some(number)
        };
        let mut told: Vec<(Frame, bool)> = Vec::with_capacity(walked.len());
        let mut runs = runs.into_iter().peekable();
        for (index, &(frame, guessed)) in walked.iter().enumerate() {
            match runs.next_if(|run| run.native == index) {
                None => told.push((frame, guessed)),
                Some(PythonRun { frames, .. }) => {
                    for frame in &frames {
                        let addr = FrameAddr::Instruction(Addr::of_script(number(frame)?));
                        told.push((Frame { addr, module: ModuleId::NONE }, guessed));
                    }
                }
            }
        }
        Some(unwinder.retell(native, told.into_iter(), max_depth))
    }

    /// In words, if it concerns many stacks: that Python's functions are not known.
    pub fn untold_python(&self) -> Option<String> {
        let Self { stacks, untold, .. } = *self;
        (untold > stacks / MIN_PART_DIVISOR).then(|| {
            format!(
                "{untold} of {stacks} calls from Python have the interpreter's own frames (--python): at those moments \
                 its structures did not say which Python functions ran"
            )
        })
    }
}

impl Loaded {
    /// Whether a frame is the interpreter's loop.
    fn runs_in(&self, frame: &Frame) -> bool {
        frame.module == self.module && self.loop_code.iter().any(|code| code.contains(&frame.addr.lookup()))
    }
}
