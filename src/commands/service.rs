//! Answers other heaptraces while a process is traced: the serving side of the control socket.

use super::contents::Contents;
use super::live::{Live, mark_name};
use super::profileoptions::{export_options, wanted};
use super::saver::Snapshots;
use super::tell;
use crate::base::addr::Addr;
use crate::base::progress::Progress;
use crate::cli::{ProfileOptions, Verbosity};
use crate::export::leakreport::{LeakScope, LivingLeaksOptions, living_leaks};
use crate::export::summary::SummaryOptions;
use crate::export::{self, ExportOptions, Format, PprofColumns};
use crate::inspect;
use crate::naming::{self, KnownNames, NamingOptions};
use crate::profile::leaks::{LeakSite, SiteSums};
use crate::session::{Answer, HeapCapture, LiveSnapshot, RequestKind, Requests};
use crate::top::ctl::{
    self, Command, ProtocolError, Request, Response, SnapshotHead, SnapshotQuestion, TextStyle, TopQuestion,
};
use crate::tracer::TracerError;
use crate::tracer::control::Control;
use crate::tracer::socket::{ControlSocket, Conversation, HangUp};
use crate::unwinder::StackTable;
use rustc_hash::FxHashMap;
use std::io::{self, BufReader, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the other side may take to say what it wants, and again to take the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// So many are connected at the same time.
const MAX_GUESTS: usize = 32;

/// How long one who is one too many may take to say what it wants.
const PATIENCE_FOR_TOO_MANY: Duration = Duration::from_millis(200);

/// How long reading and taking the contents of blocks may take.
const PATIENCE_FOR_CONTENTS: Duration = Duration::from_secs(900);

/// How long it may take to take the files of a snapshot.
const PATIENCE_FOR_FILES: Duration = Duration::from_secs(120);

/// How long `heaptrace top` may say nothing between two questions.
const PATIENCE_WITH_TOP: Duration = Duration::from_secs(600);

/// The open control socket of a traced process; its name vanishes with this value.
#[derive(Debug)]
pub struct Service {
    socket: Arc<ControlSocket>,
}

impl Service {
    /// Opens the socket and serves it on a thread of its own. Without a socket tracing goes on: None, and a diagnostic.
    pub fn start(
        control: &Arc<Control>,
        requests: &Arc<Requests>,
        progress: &Arc<Progress>,
        profile: &ProfileOptions,
    ) -> Option<Self> {
        let socket = match ControlSocket::bind() {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                if matches!(error, TracerError::PlantedFolder { .. }) && profile.verbosity != Verbosity::Quiet {
                    tell(&format!("`heaptrace leaks` and `ctl` can't reach this heaptrace: {error}"));
                }
                tracing::warn!(
                    "heaptrace can't answer questions about this process's heap while it is traced: {error}"
                );
                return None;
            }
        };
        tracing::info!("control socket: {}", socket.path().display());
        let served = Arc::clone(&socket);
        let answerer = Arc::new(Answerer {
            control: Arc::clone(control),
            requests: Arc::clone(requests),
            progress: Arc::clone(progress),
            options: profile.clone(),
            guests: Mutex::default(),
            slow: Mutex::default(),
        });
        let spawned = std::thread::Builder::new().name("control socket".to_owned()).spawn(move || {
            for number in 0.. {
                let Ok(asker) = served.accept() else { break };
                Answerer::admit(&answerer, number, asker);
            }
        });
        spawned.is_ok().then_some(Self { socket })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Ends the thread that serves it, when it has answered who asks just now.
        self.socket.close();
    }
}

/// Answers questions, each on a thread of its own: what takes long, one after the other; orders at once.
#[derive(Debug)]
struct Answerer {
    control: Arc<Control>,
    requests: Arc<Requests>,
    progress: Arc<Progress>,
    options: ProfileOptions,
    /// Those who are connected, in the order in which they came.
    guests: Mutex<Vec<Guest>>,
    slow: Mutex<Slow>,
}

/// One who is connected.
#[derive(Debug)]
struct Guest {
    number: u64,
    connection: HangUp,
    /// Whether the whole question has come.
    has_asked: bool,
}

/// What the answers that take long need: one of them is made at a time.
#[derive(Debug, Default)]
struct Slow {
    /// What each site had at the last leak scan, by site id.
    before: Option<FxHashMap<u64, SiteSums>>,
    /// Names that snapshots have needed so far.
    known: KnownNames,
    /// How many snapshots were given.
    snapshots: u32,
}

impl Answerer {
    /// Answers one who has connected, on a thread of its own. There are so many at most; who says nothing gives way.
    fn admit(self: &Arc<Self>, number: u64, mut asker: Conversation) {
        let Ok(connection) = asker.hang_up() else { return };
        let mut guests = self.guests();
        if guests.len() >= MAX_GUESTS {
            let Some(silent) = guests.iter().position(|guest| !guest.has_asked) else {
                drop(guests);
                // A question that nobody has read would break the answer off.
                asker.wait_at_most(PATIENCE_FOR_TOO_MANY);
                let _ = ctl::receive_question(&mut BufReader::new(&mut asker));
                let reason = format!("heaptrace is answering {MAX_GUESTS} other requests: ask again later");
                let _ = ctl::send(&Response::Failed(reason), &mut asker, ctl::LONGEST_ANSWER);
                return;
            };
            guests.remove(silent).connection.now();
        }
        guests.push(Guest { number, connection, has_asked: false });
        drop(guests);
        let answerer = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("answer".to_owned()).spawn(move || {
            answerer.serve(number, asker);
            answerer.guests().retain(|guest| guest.number != number);
        });
        if spawned.is_err() {
            self.guests().retain(|guest| guest.number != number);
        }
    }

    fn guests(&self) -> MutexGuard<'_, Vec<Guest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other answer that takes long is being made.
    ///
    /// # Errors
    /// Who asks has gone meanwhile.
    fn slow(&self, asker: &Conversation) -> Result<MutexGuard<'_, Slow>, String> {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if asker.is_gone() { Err("nobody waits for the answer any longer".to_owned()) } else { Ok(slow) }
    }

    /// One question, one answer, but for `heaptrace top`. Whatever goes wrong with one who asks concerns nobody else.
    fn serve(&self, number: u64, mut asker: Conversation) {
        asker.wait_at_most(TIMEOUT);
        let question = ctl::receive_question(&mut BufReader::new(&mut asker));
        self.note_asked(number, true);
        if let Ok(Request { pid, command: Command::Top(question), .. }) = question {
            return self.keep_telling(number, asker, pid, question);
        }
        let mut files = Vec::new();
        let mut blocks = None;
        let (response, limit) = match &question {
            Ok(Request { pid, command: Command::Snapshot(question), .. }) => {
                let response = match self.snapshot(*pid, question, &asker) {
                    Ok(snapshot) => {
                        (files, blocks) = (snapshot.files, snapshot.contents);
                        Response::Snapshot(snapshot.head)
                    }
                    Err(reason) => Response::Failed(reason),
                };
                (response, ctl::LONGEST_ANSWER)
            }
            Ok(request) => {
                (self.respond(request, &asker).unwrap_or_else(Response::Failed), request.command.longest_answer())
            }
            Err(error) => (Response::Failed(error.to_string()), ctl::LONGEST_ANSWER),
        };
        asker.wait_at_most(if files.is_empty() { TIMEOUT } else { PATIENCE_FOR_FILES });
        let sent = match ctl::send(&response, &mut asker, limit) {
            Err(error @ ProtocolError::TooLong { .. }) => {
                let reason = format!("{error}: ask for less with --top, or write the report at the end with -o");
                ctl::send(&Response::Failed(reason), &mut asker, limit)
            }
            sent => sent,
        };
        let mut sent = sent.and_then(|()| Ok(files.iter().try_for_each(|file| asker.write_all(file))?));
        if let (Ok(()), Some(blocks), Ok(Request { pid, .. })) = (&sent, blocks, &question) {
            asker.wait_at_most(PATIENCE_FOR_CONTENTS);
            let snapshots = Snapshots { requests: &self.requests, control: &self.control, options: &self.options };
            let now = || snapshots.view(*pid, true, None).ok().map(LiveSnapshot::into_heap);
            sent = blocks.send(&mut asker, now).map_err(ProtocolError::from);
        }
        if let Err(error) = sent {
            tracing::info!("heaptrace could not answer: {error}");
        }
    }

    /// Notes whether the whole question of a guest has come.
    fn note_asked(&self, number: u64, has_asked: bool) {
        for guest in self.guests().iter_mut().filter(|guest| guest.number == number) {
            guest.has_asked = has_asked;
        }
    }

    /// Answers `heaptrace top`, question by question, until it has gone or has said nothing for a long time.
    fn keep_telling(&self, number: u64, mut asker: Conversation, pid: i32, mut question: TopQuestion) {
        let mut live = Live::default();
        let snapshots = Snapshots { requests: &self.requests, control: &self.control, options: &self.options };
        loop {
            let mut answer = live.answer(snapshots, pid, &question);
            if let Ok(answer) = &mut answer
                && self.progress.only_process() == Some(answer.pid)
            {
                // it is measured for all processes together
                let reading = self.progress.read();
                let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                let (least, most) = reading.waited_range;
                answer.waited_ns = Some(ns(reading.waited));
                answer.waited_range_ns = Some((ns(least), ns(most)));
            }
            let response = answer.map_or_else(Response::Failed, |answer| Response::Top(Box::new(answer)));
            asker.wait_at_most(TIMEOUT);
            let limit = Command::Top(question).longest_answer();
            let sent = match ctl::send(&response, &mut asker, limit) {
                Err(error @ ProtocolError::TooLong { .. }) => {
                    ctl::send(&Response::Failed(error.to_string()), &mut asker, limit)
                }
                sent => sent,
            };
            if let Err(error) = sent {
                tracing::info!("heaptrace could not answer: {error}");
                return;
            }
            asker.wait_at_most(PATIENCE_WITH_TOP);
            // where others are to be answered, who is silent makes room for them
            self.note_asked(number, false);
            question = match ctl::receive_question(&mut BufReader::new(&mut asker)) {
                Ok(Request { pid: same, command: Command::Top(next), .. }) if same == pid => {
                    self.note_asked(number, true);
                    next
                }
                // it has left, or asks what is for a connection of its own
                _ => return,
            };
        }
    }

    /// What is live now, in each format that is wanted.
    fn snapshot(&self, pid: i32, question: &SnapshotQuestion, asker: &Conversation) -> Result<Snapshot, String> {
        if question.formats.len() > ctl::MAX_FILES {
            return Err(format!("a snapshot can have at most {} files", ctl::MAX_FILES));
        }
        let since = question.since.as_deref().map(mark_name).transpose()?;
        let until = question.until.as_deref().map(mark_name).transpose()?;
        let formats: Vec<Format> = question
            .formats
            .iter()
            .map(|name| Format::from_name(name).map_err(|error| format!("the tracer's heaptrace: {error}")))
            .collect::<Result<_, _>>()?;
        let mut slow = self.slow(asker)?;
        let snapshots = Snapshots { requests: &self.requests, control: &self.control, options: &self.options };
        let mut interim = snapshots.view(pid, since.is_some() || question.contents.is_some(), until)?;
        let mut contents = None;
        let mut stacks = StackTable::new();
        if let Some(limit) = question.contents {
            let births = since.map_or(Ok(0), |mark| interim.births_at(&mark)).map_err(|error| error.to_string())?;
            contents = Some(Contents::list(pid, interim.heap(), births, limit)?);
            stacks = interim.share_stacks();
        }
        let profile = snapshots.name(interim, since, &mut slow.known)?;
        if let Some(contents) = &mut contents {
            contents.name(&stacks, &profile);
        }
        slow.snapshots += 1;
        let number = slow.snapshots;
        drop(slow);
        let pprof_columns = PprofColumns::from_name(&question.pprof_columns).unwrap_or_default();
        // Who asks may not be allowed to read what this process may.
        let export =
            ExportOptions { pprof_columns, source: false, number: Some(number), ..export_options(&self.options) };
        let render = |format: &Format| {
            let mut file = Limited(Vec::new());
            export::write(*format, &profile, &export, &mut file).map_err(|error| format!(".{format}: {error}"))?;
            Ok(file.0)
        };
        let files: Vec<Vec<u8>> = formats.iter().map(render).collect::<Result<_, String>>()?;
        let head = SnapshotHead {
            pid: profile.meta.process.pid,
            program: profile.meta.process.program.clone(),
            number,
            of_another_user: profile.meta.process.of_another_user,
            live_blocks: profile.totals.live_blocks,
            live_bytes: profile.totals.live_bytes,
            files: files.iter().map(|file| file.len() as u64).collect(),
            blocks: contents.as_ref().map(Contents::len),
        };
        Ok(Snapshot { head, files, contents })
    }

    fn respond(&self, request: &Request, asker: &Conversation) -> Result<Response, String> {
        let mut slow = matches!(request.command, Command::Leaks { .. }).then(|| self.slow(asker)).transpose()?;
        let wish = match &request.command {
            Command::Leaks { .. } => RequestKind::Capture(inspect::means(request.pid)),
            Command::Pause => RequestKind::Pause(true),
            Command::Resume => RequestKind::Pause(false),
            Command::Detach => RequestKind::Detach,
            Command::Mark { name } => RequestKind::Mark(mark_name(name)?),
            // See `Self::serve`.
            Command::Snapshot(_) | Command::Top(_) => RequestKind::View { blocks: false, at: None },
        };
        let answer = self.requests.ask(&self.control, request.pid, wish).ok_or("tracing has just ended")??;
        match (answer, &request.command) {
            (Answer::Captured(capture), Command::Leaks { increased, explain, json }) => {
                let question = Question { increased: *increased, block: explain.map(Addr), json: *json };
                let before = slow.as_mut().map(|slow| &mut slow.before);
                self.leaks(*capture, &question, request.look, before).map(Response::Done)
            }
            (Answer::Paused { already: true }, _) => {
                Ok(Response::Done("nothing to do: that was already so\n".to_owned()))
            }
            _ => Ok(Response::Done(String::new())),
        }
    }

    /// Classifies and names, while the process runs on.
    fn leaks(
        &self,
        capture: HeapCapture,
        question: &Question,
        look: TextStyle,
        last: Option<&mut Option<FxHashMap<u64, SiteSums>>>,
    ) -> Result<String, String> {
        let wanted = NamingOptions { block: question.block, ..wanted(&self.options) };
        let mut profile = naming::build_profile(capture.classify()?, wanted, &mut KnownNames::default());
        let ids: FxHashMap<usize, u64> = match &profile.leaks {
            Some(leaks) => leaks.sites.iter().map(|site| (site.stack, profile.site_id(site.stack))).collect(),
            None => FxHashMap::default(),
        };
        let id = |site: &LeakSite| ids.get(&site.stack).copied().unwrap_or_default();
        let mut scope = LeakScope::All;
        if let Some(leaks) = &mut profile.leaks {
            let now = leaks.by_id(id);
            let before = last.and_then(|last| last.replace(now));
            scope = match (question.increased, before.is_some()) {
                (false, _) => LeakScope::All,
                (true, true) => LeakScope::Grown,
                (true, false) => LeakScope::FirstScan,
            };
            if question.increased {
                leaks.keep_growth(id, before.unwrap_or_default());
            }
        }
        if question.json {
            let mut text = Vec::new();
            export::write(Format::Json, &profile, &ExportOptions::default(), &mut text).map_err(|e| e.to_string())?;
            return String::from_utf8(text).map_err(|error| error.to_string());
        }
        Ok(living_leaks(
            &profile,
            &LivingLeaksOptions {
                top: look.top.unwrap_or(SummaryOptions::default().top),
                color: look.color,
                width: look.width,
                scope,
                block: question.block,
            },
        ))
    }
}

/// What is sent of a snapshot.
struct Snapshot {
    head: SnapshotHead,
    files: Vec<Vec<u8>>,
    contents: Option<Contents>,
}

/// A file in memory, as long as one may be.
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > ctl::LONGEST_FILE {
            return Err(io::Error::other(format!(
                "longer than {} MiB, the maximum for a snapshot",
                ctl::LONGEST_FILE >> 20
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is asked of the heap.
struct Question {
    increased: bool,
    block: Option<Addr>,
    json: bool,
}
