//! The conversation with the heaptrace that traces the process, on a thread of its own: the screen waits for nobody.

use crate::commands::ask::{no_answer, put, refused};
use crate::commands::{message, snapshot};
use crate::top::ctl::{self, Command, Response, TextStyle, TopAnswer, TopQuestion};
use crate::tracer::pressure;
use crate::tracer::socket::{self, AskError, HangUp, TracerOf};
use anyhow::{Context, bail};
use std::io::BufReader;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long an answer may take: the first one has names to find.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How the answers are to look: this side draws.
const LOOK: TextStyle = TextStyle { top: None, color: false, width: 0 };

/// What has come.
#[derive(Debug)]
pub(super) enum TopEvent {
    /// An answer.
    Answer {
        /// What it says.
        answer: Box<TopAnswer>,
        /// The resident memory of the process then, bytes.
        resident: Option<u64>,
        /// The mark that was set with it.
        mark: Option<String>,
    },
    /// The tracer does not do it.
    Refused(String),
    /// Something else is done, or could not be.
    Told(String),
    /// There will be no more answers, as the process is traced no more.
    Over(String),
    /// There will be no more, as the conversation has failed.
    Broken(String),
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Asker {
    pid: i32,
    questions: Sender<TopQuestion>,
    news: Receiver<TopEvent>,
    tell: Sender<TopEvent>,
    connection: HangUp,
    is_waiting: bool,
    /// Snapshots that are being written.
    snapshots: Vec<JoinHandle<()>>,
}

impl Asker {
    /// Begins the conversation.
    ///
    /// # Errors
    /// No descriptor is free, or no thread.
    pub(super) fn start(pid: i32, mut tracer: TracerOf) -> anyhow::Result<Self> {
        let connection = tracer.conversation.hang_up()?;
        let (questions, to_ask) = mpsc::channel::<TopQuestion>();
        let (tell, news) = mpsc::channel();
        let told = tell.clone();
        std::thread::Builder::new().name("asking".to_owned()).spawn(move || {
            for question in to_ask {
                let mark = question.mark.clone();
                let new = match ask(&mut tracer, pid, question) {
                    Ok(Ok(answer)) => TopEvent::Answer { answer, resident: pressure::resident(pid), mark },
                    Ok(Err(_)) if !tracer.still_traces() => TopEvent::Over(why_over(pid)),
                    Ok(Err(reason)) => TopEvent::Refused(message(&refused(pid, &reason))),
                    Err(_) if !tracer.still_traces() => TopEvent::Over(why_over(pid)),
                    Err(error) => TopEvent::Broken(message(&error)),
                };
                if told.send(new).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { pid, questions, news, tell, connection, is_waiting: false, snapshots: Vec::new() })
    }

    /// Whether an answer has not come yet.
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Asks, and waits for nothing.
    pub(super) fn ask(&mut self, question: TopQuestion) {
        self.is_waiting = self.questions.send(question).is_ok();
    }

    /// What has come, within `patience`.
    pub(super) fn news(&mut self, patience: Duration) -> Option<TopEvent> {
        let news = self.news.recv_timeout(patience).ok()?;
        self.is_waiting &= matches!(news, TopEvent::Told(_));
        Some(news)
    }

    /// Has a snapshot written, and reports how that went.
    pub(super) fn take_snapshot(&mut self) {
        let written = self.beside(snapshot::write_one);
        self.snapshots.extend(written);
    }

    /// Orders the tracer to let the process go.
    pub(super) fn detach(&self) {
        self.beside(|pid| {
            let mut tracer = socket::connect_to_tracer_of(pid)?;
            put(&mut tracer, pid, Command::Detach, LOOK, TIMEOUT)?;
            let mut answers = BufReader::new(&mut tracer.conversation);
            match ctl::receive(&mut answers, ctl::LONGEST_ANSWER).with_context(|| no_answer(pid))? {
                Response::Failed(reason) => Err(refused(pid, &reason)),
                _ => Ok("the process is being let go".to_owned()),
            }
        });
    }

    /// Does something beside the conversation, over a connection of its own.
    fn beside(&self, work: impl FnOnce(i32) -> anyhow::Result<String> + Send + 'static) -> Option<JoinHandle<()>> {
        let (pid, tell) = (self.pid, self.tell.clone());
        let spawned = std::thread::Builder::new().name("order".to_owned()).spawn(move || {
            let told = work(pid).unwrap_or_else(|error| message(&error));
            // Who asked may have left.
            let _ = tell.send(TopEvent::Told(told));
        });
        match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                let _ = self.tell.send(TopEvent::Told(format!("no thread could be started: {error}")));
                None
            }
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // Ends the thread that may wait for an answer.
        self.connection.now();
        // What was ordered is written to its end.
        for written in self.snapshots.drain(..) {
            let _ = written.join();
        }
    }
}

/// The answer, or in words why the tracer gives none. An error is one of the connection.
fn ask(tracer: &mut TracerOf, pid: i32, question: TopQuestion) -> anyhow::Result<Result<Box<TopAnswer>, String>> {
    let command = Command::Top(question);
    let limit = command.longest_answer();
    put(tracer, pid, command, LOOK, TIMEOUT)?;
    let mut answers = BufReader::new(&mut tracer.conversation);
    match ctl::receive(&mut answers, limit).with_context(|| no_answer(pid))? {
        Response::Top(answer) => Ok(Ok(answer)),
        Response::Failed(reason) => Ok(Err(reason)),
        Response::Done(_) | Response::Snapshot(_) => {
            bail!("process {pid}: its tracer gave an answer of the wrong kind")
        }
    }
}

/// What has become of a process that is traced no more.
fn why_over(pid: i32) -> String {
    match socket::connect_to_tracer_of(pid) {
        Err(AskError::NotTraced { .. }) => {
            format!("the heaptrace that traced process {pid} let it go, or the process is ending")
        }
        _ => format!("process {pid} has ended"),
    }
}
