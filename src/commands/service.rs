//! Answers other heaptraces while a process is traced: the serving side of the control socket.

use crate::ctl::{self, Command, Request, Response};
use crate::session::{Answer, Requests, Wish};
use crate::tracer::control::Control;
use crate::tracer::socket::ControlSocket;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How long the other side may take to say what it wants, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The open control socket of a traced process; its name vanishes with this value.
#[derive(Debug)]
pub struct Service {
    _socket: Arc<ControlSocket>,
}

impl Service {
    /// Opens the socket and serves it on a thread of its own. Without a socket tracing goes on: None, and a diagnostic.
    pub fn start(control: &Arc<Control>, requests: &Arc<Requests>) -> Option<Self> {
        let socket = match ControlSocket::bind() {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                tracing::warn!("this process can't be asked about its heap while it is traced: {error}");
                return None;
            }
        };
        tracing::info!("control socket: {}", socket.path().display());
        let served = Arc::clone(&socket);
        let (control, requests) = (Arc::clone(control), Arc::clone(requests));
        let spawned = std::thread::Builder::new().name("control socket".to_owned()).spawn(move || {
            // Ends with the process: what it waits for in between costs nothing.
            while let Ok(stream) = served.accept() {
                serve(stream, &control, &requests);
            }
        });
        spawned.is_ok().then_some(Self { _socket: socket })
    }
}

/// One question, one answer. Whatever goes wrong with one who asks concerns nobody else.
fn serve(mut stream: UnixStream, control: &Arc<Control>, requests: &Requests) {
    let limited = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    if limited.is_err() {
        return;
    }
    let response = match ctl::receive::<Request>(&mut stream) {
        Ok(request) => respond(&request, control, requests),
        Err(error) => Response::Failed(error.to_string()),
    };
    if let Err(error) = ctl::send(&response, &mut stream) {
        tracing::info!("an answer could not be given: {error}");
    }
}

fn respond(request: &Request, control: &Arc<Control>, requests: &Requests) -> Response {
    if request.version != ctl::VERSION {
        return Response::Failed(format!(
            "the tracer speaks version {} of the protocol, the request has {}",
            ctl::VERSION,
            request.version
        ));
    }
    let wish = match request.command {
        Command::Pause => Wish::Pause(true),
        Command::Resume => Wish::Pause(false),
        Command::Detach => Wish::Detach,
    };
    match requests.ask(control, request.pid, wish) {
        None => Response::Failed("tracing has just ended".to_owned()),
        Some(Err(reason)) => Response::Failed(reason),
        Some(Ok(Answer::Detaching | Answer::Paused { already: false })) => Response::Done(String::new()),
        Some(Ok(Answer::Paused { already: true })) => Response::Done("nothing to do: it was so already\n".to_owned()),
    }
}
