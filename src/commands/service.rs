//! Answers other heaptraces while a process is traced: the serving side of the control socket.

use super::conclude::wanted;
use super::tell;
use crate::addr::Addr;
use crate::cli::{ProfileOptions, Verbosity};
use crate::ctl::{self, Command, Look, ProtocolError, Request, Response};
use crate::export::leaks::{LivingLeaksOptions, living_leaks};
use crate::export::summary::SummaryOptions;
use crate::export::{self, ExportOptions, Format};
use crate::naming::{self, KnownNames, Wanted};
use crate::profile::leaks::{ClassAmounts, LeakSite};
use crate::session::{Answer, HeapCapture, Requests, Wish};
use crate::tracer::TracerError;
use crate::tracer::control::Control;
use crate::tracer::socket::{ControlSocket, Conversation};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the other side may take to say what it wants, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The open control socket of a traced process; its name vanishes with this value.
#[derive(Debug)]
pub struct Service {
    socket: Arc<ControlSocket>,
}

impl Service {
    /// Opens the socket and serves it on a thread of its own. Without a socket tracing goes on: None, and a diagnostic.
    pub fn start(control: &Arc<Control>, requests: &Arc<Requests>, profile: &ProfileOptions) -> Option<Self> {
        let socket = match ControlSocket::bind() {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                if matches!(error, TracerError::PlantedFolder { .. }) && profile.verbosity != Verbosity::Quiet {
                    tell(&format!("`heaptrace leaks` and `ctl` can't ask this heaptrace: {error}"));
                }
                tracing::warn!("this process can't be asked about its heap while it is traced: {error}");
                return None;
            }
        };
        tracing::info!("control socket: {}", socket.path().display());
        let served = Arc::clone(&socket);
        let mut answerer = Answerer {
            control: Arc::clone(control),
            requests: Arc::clone(requests),
            options: profile.clone(),
            before: None,
        };
        let spawned = std::thread::Builder::new().name("control socket".to_owned()).spawn(move || {
            while let Ok(stream) = served.accept() {
                answerer.serve(stream);
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

/// Answers questions, one after the other.
#[derive(Debug)]
struct Answerer {
    control: Arc<Control>,
    requests: Arc<Requests>,
    options: ProfileOptions,
    /// What each site had at the last leak scan, by site id.
    before: Option<FxHashMap<u64, ClassAmounts>>,
}

impl Answerer {
    /// One question, one answer. Whatever goes wrong with one who asks concerns nobody else.
    fn serve(&mut self, mut asker: Conversation) {
        asker.wait_at_most(PATIENCE);
        let (response, limit) = match ctl::receive::<Request>(&mut asker, ctl::LONGEST_QUESTION) {
            Ok(request) => (self.respond(&request).unwrap_or_else(Response::Failed), request.command.longest_answer()),
            Err(error) => (Response::Failed(error.to_string()), Command::Detach.longest_answer()),
        };
        asker.wait_at_most(PATIENCE);
        let sent = match ctl::send(&response, &mut asker, limit) {
            Err(error @ ProtocolError::TooLong { .. }) => {
                let reason = format!("{error}: ask for less with --top, or write the report at the end with -o");
                ctl::send(&Response::Failed(reason), &mut asker, limit)
            }
            sent => sent,
        };
        if let Err(error) = sent {
            tracing::info!("an answer could not be given: {error}");
        }
    }

    fn respond(&mut self, request: &Request) -> Result<Response, String> {
        if let Some(objection) = request.objection() {
            return Err(objection);
        }
        let wish = match request.command {
            Command::Leaks { .. } => Wish::Capture,
            Command::Pause => Wish::Pause(true),
            Command::Resume => Wish::Pause(false),
            Command::Detach => Wish::Detach,
        };
        let answer = self.requests.ask(&self.control, request.pid, wish).ok_or("tracing has just ended")??;
        match (answer, &request.command) {
            (Answer::Captured(capture), Command::Leaks { increased, explain, json }) => {
                let question = Question { increased: *increased, block: explain.map(Addr), json: *json };
                self.leaks(*capture, &question, request.look).map(Response::Done)
            }
            (Answer::Paused { already: true }, _) => {
                Ok(Response::Done("nothing to do: it was so already\n".to_owned()))
            }
            _ => Ok(Response::Done(String::new())),
        }
    }

    /// Classifies and names, while the process runs on.
    fn leaks(&mut self, capture: HeapCapture, question: &Question, look: Look) -> Result<String, String> {
        let wanted = Wanted { block: question.block, ..wanted(&self.options) };
        let mut profile = naming::build_profile(capture.classify(), wanted, &mut KnownNames::default());
        let ids: FxHashMap<usize, u64> = match &profile.leaks {
            Some(leaks) => leaks.sites.iter().map(|site| (site.stack, profile.site_id(site.stack))).collect(),
            None => FxHashMap::default(),
        };
        let id = |site: &LeakSite| ids.get(&site.stack).copied().unwrap_or_default();
        if let Some(leaks) = &mut profile.leaks {
            let now = leaks.sites.iter().map(|site| (id(site), site.amounts)).collect();
            let before = self.before.replace(now);
            if question.increased {
                leaks.keep_growth(id, &before.unwrap_or_default());
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
                increased: question.increased,
                block: question.block,
            },
        ))
    }
}

/// What is asked of the heap.
struct Question {
    increased: bool,
    block: Option<Addr>,
    json: bool,
}
