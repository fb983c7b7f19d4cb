//! Names are looked up on a thread of their own: debug files may be large, or made to take for ever. The user is told
//! what takes long, and a signal ends it: what has no name by then is told by its address.

use crate::base::addr::{ModuleId, ObjAddr};
use crate::profile::SymbolStatus;
use crate::profile::symbolize::{Resolution, Symbolize};
use crate::symbols::{DebugServers, Symbolizer};
use crate::tracer::control;
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often signals are looked for meanwhile.
const POLL: Duration = Duration::from_millis(20);

/// After this time of looking up the user is told, and how often again.
const SILENCE: Duration = Duration::from_secs(2);
const REMINDER: Duration = Duration::from_secs(10);

/// How long names are waited for: until a signal ends it, for all recordings of one command.
#[derive(Debug, Default)]
pub struct LookupWait {
    /// Tells the user something; None: he wants to hear nothing.
    tell: Option<fn(&str)>,
    servers: Option<Arc<dyn DebugServers>>,
    /// How long names have been waited for, and when the user is told next.
    waited: Duration,
    next_word: Duration,
    /// Whether a Ctrl-C was left to the client that asks servers.
    spared: bool,
    ended_by: Option<i32>,
}

impl LookupWait {
    /// One that says by `tell` what takes long. The first Ctrl-C while `servers` are asked is meant for them.
    pub fn new(tell: Option<fn(&str)>, servers: Option<&Arc<dyn DebugServers>>) -> Self {
        Self { tell, servers: servers.cloned(), next_word: SILENCE, ..Self::default() }
    }

    /// The signal that ended it, if one did.
    pub const fn ended_by(&self) -> Option<i32> {
        self.ended_by
    }

    /// Whether names are still to be looked up.
    fn lasts(&mut self) -> bool {
        while self.ended_by.is_none() {
            // Other signals than those mean something for the tracing, which is over. (When the CPU time is up, the
            // kernel kills a second later.)
            let Some(signal) = control::next_signal(Duration::ZERO) else { return true };
            if !control::is_request_to_end(signal) && signal != control::CPU_TIME {
                continue;
            }
            let is_for_servers = signal == control::INTERRUPT
                && !self.spared
                && self.servers.as_ref().is_some_and(|servers| servers.takes_interrupt());
            if is_for_servers {
                self.spared = true;
                continue;
            }
            self.ended_by = Some(signal);
            if let Some(servers) = &self.servers {
                servers.give_up();
            }
            self.say(&format!(
                "{}: heaptrace writes the profile without the missing names",
                control::signal_name(signal)
            ));
        }
        false
    }

    /// After `more` of waiting for `what`.
    fn wait(&mut self, more: Duration, what: &str) {
        self.waited += more;
        if self.waited >= self.next_word {
            self.next_word = self.waited + REMINDER;
            let seconds = self.waited.as_secs();
            self.say(&format!("looking up {what} ({seconds} s so far; Ctrl-C writes the profile without them)"));
        }
    }

    fn say(&self, text: &str) {
        if let Some(tell) = self.tell {
            tell(text);
        }
    }
}

enum Question {
    Resolve(ModuleId, Vec<ObjAddr>),
    Variable(ModuleId, ObjAddr),
    Packages(Vec<PathBuf>),
    /// These have no answers.
    Expect(Vec<(ModuleId, Vec<ObjAddr>)>),
    ExpectPackages(Vec<PathBuf>),
    Warnings,
}

enum Answer {
    Resolved(Resolution),
    Variable(Option<(String, u64)>),
    Packages(Vec<Option<String>>),
    Warnings(Vec<String>),
}

/// A symbolizer on another thread. That thread is left alone where names are not waited for any more, and ends with
/// heaptrace.
pub struct Lookup<'a> {
    patience: &'a mut LookupWait,
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    /// For the user's eyes.
    paths: FxHashMap<ModuleId, PathBuf>,
    broken_down: bool,
    /// Whether something was not looked up.
    incomplete: bool,
}

impl std::fmt::Debug for Lookup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl<'a> Lookup<'a> {
    /// Gives `symbolizer` a thread. If there is none to be had, it comes back.
    pub fn start(
        symbolizer: Symbolizer,
        paths: FxHashMap<ModuleId, PathBuf>,
        patience: &'a mut LookupWait,
    ) -> Result<Self, Box<Symbolizer>> {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let (give, take) = channel();
        let started = std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            if let Ok(symbolizer) = take.recv() {
                serve(symbolizer, &asked, &answer);
            }
        });
        if started.is_err() {
            return Err(Box::new(symbolizer));
        }
        give.send(symbolizer).map_err(|unsent| Box::new(unsent.0))?;
        Ok(Self { patience, questions, answers, paths, broken_down: false, incomplete: false })
    }

    fn ask(&mut self, question: Question, module: ModuleId) -> Option<Answer> {
        let path = self.paths.get(&module).map(|path| path.to_string_lossy().into_owned());
        let what = format!("the names of {}", path.as_deref().unwrap_or("generated code"));
        let answer = self.answer_to(question, &what);
        self.incomplete |= answer.is_none();
        answer
    }

    fn answer_to(&mut self, question: Question, what: &str) -> Option<Answer> {
        if self.broken_down || !self.patience.lasts() || self.questions.send(question).is_err() {
            return None;
        }
        let mut since = Instant::now();
        loop {
            match self.answers.recv_timeout(POLL) {
                Ok(answer) => {
                    self.patience.waited += since.elapsed();
                    return Some(answer);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.broken_down = true;
                    return None;
                }
                Err(RecvTimeoutError::Timeout) if !self.patience.lasts() => return None,
                Err(RecvTimeoutError::Timeout) => {
                    self.patience.wait(since.elapsed(), what);
                    since = Instant::now();
                }
            }
        }
    }
}

fn serve(mut symbolizer: Symbolizer, questions: &Receiver<Question>, answers: &Sender<Answer>) {
    for question in questions {
        let answer = match question {
            Question::Resolve(module, addrs) => Answer::Resolved(symbolizer.resolve(module, &addrs)),
            Question::Variable(module, addr) => Answer::Variable(symbolizer.variable(module, addr)),
            Question::Packages(files) => Answer::Packages(symbolizer.debug_packages(&files)),
            Question::Expect(questions) => {
                symbolizer.expect(&questions);
                continue;
            }
            Question::ExpectPackages(files) => {
                symbolizer.expect_packages(&files);
                continue;
            }
            Question::Warnings => Answer::Warnings(symbolizer.take_warnings()),
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

impl Symbolize for Lookup<'_> {
    fn resolve(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Resolution {
        match self.ask(Question::Resolve(module, addrs.to_vec()), module) {
            Some(Answer::Resolved(resolution)) => resolution,
            _ => Resolution { frames: vec![Vec::new(); addrs.len()], status: SymbolStatus::default() },
        }
    }

    fn variable(&mut self, module: ModuleId, addr: ObjAddr) -> Option<(String, u64)> {
        match self.ask(Question::Variable(module, addr), module)? {
            Answer::Variable(variable) => variable,
            Answer::Resolved(_) | Answer::Packages(_) | Answer::Warnings(_) => None,
        }
    }

    fn debug_packages(&mut self, files: &[PathBuf]) -> Vec<Option<String>> {
        match self.answer_to(Question::Packages(files.to_vec()), "which packages bring the names that are missing") {
            Some(Answer::Packages(packages)) => packages,
            _ => vec![None; files.len()],
        }
    }

    fn expect(&mut self, questions: &[(ModuleId, Vec<ObjAddr>)]) {
        // If nobody is there to hear it, the questions themselves will show that.
        let _ = self.questions.send(Question::Expect(questions.to_vec()));
    }

    fn expect_packages(&mut self, files: &[PathBuf]) {
        let _ = self.questions.send(Question::ExpectPackages(files.to_vec()));
    }

    fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = match self.answer_to(Question::Warnings, "names") {
            Some(Answer::Warnings(warnings)) => warnings,
            _ => Vec::new(),
        };
        if std::mem::take(&mut self.incomplete) {
            let cause = match self.patience.ended_by {
                Some(signal) => format!("{} ended the search for names", control::signal_name(signal)),
                None => "the thread that looks up names panicked".to_owned(),
            };
            warnings.push(format!("{cause}: functions without a name appear as addresses"));
        }
        warnings
    }
}
