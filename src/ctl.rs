//! What a heaptrace that traces a process can be asked by another heaptrace, and how that goes over the wire: one line of
//! JSON each way. Pure.
//!
//! The tracer renders the answer, because it alone has the heap model; the one who asks says how wide his terminal is.

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};

/// The version of this protocol. Both sides must have the same.
pub const VERSION: u32 = 1;

/// The longest question, in bytes.
pub const LONGEST_QUESTION: usize = 64 << 10;

/// The longest answer, in bytes: the other side may be anybody's.
const LONGEST_ANSWER: usize = 1 << 20;

/// The longest answer that is a report.json.
const LONGEST_REPORT: usize = 64 << 20;

/// A question or an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the one who asks.
    pub version: u32,
    /// The process that it is about.
    pub pid: i32,
    /// What is wanted.
    pub command: Command,
    /// How the answer is to look.
    pub look: Look,
}

/// What is wanted of the tracer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Classify the live blocks.
    Leaks {
        /// Tell only what has grown since the last such request.
        increased: bool,
        /// The address of a block, or into one: tell why it can still be reached.
        explain: Option<u64>,
        /// Answer with report.json instead of text.
        json: bool,
    },
    /// Record nothing for a while.
    Pause,
    /// Go on recording.
    Resume,
    /// Let the process go, and write what was found.
    Detach,
}

impl Command {
    /// How many bytes the answer may have.
    pub const fn longest_answer(&self) -> usize {
        match self {
            Self::Leaks { json: true, .. } => LONGEST_REPORT,
            _ => LONGEST_ANSWER,
        }
    }
}

/// How text is to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Look {
    /// How many sites are shown; None: as many as fit.
    pub top: Option<usize>,
    /// Whether terminal colours are wanted.
    pub color: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// The answer: text for stdout, or why there is none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// What was asked for.
    Done(String),
    /// It could not be done, in words.
    Failed(String),
}

/// Why the other side could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(io::Error),
    /// The other side has not said all in time.
    #[error("the other side took too long")]
    Late,
    /// A message is longer than it may be.
    #[error("the message is longer than {} KiB, the most it may have", limit >> 10)]
    TooLong {
        /// How long it may be, in bytes.
        limit: usize,
    },
    /// The other side closed it without a word.
    #[error("the other side ended before it answered")]
    Closed,
    /// What came is no message of this protocol.
    #[error("what the other side says can't be understood ({0}); are both the same version of heaptrace?")]
    Malformed(String),
}

impl From<io::Error> for ProtocolError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Late } else { Self::Io(error) }
    }
}

/// Writes a message as one line of `limit` bytes at most.
///
/// # Errors
/// [`ProtocolError::TooLong`]: nothing was written; [`ProtocolError::Late`], [`ProtocolError::Io`].
pub fn send(message: &impl Serialize, to: &mut impl Write, limit: usize) -> Result<(), ProtocolError> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::from)?;
    line.push(b'\n');
    if line.len() > limit {
        return Err(ProtocolError::TooLong { limit });
    }
    to.write_all(&line)?;
    to.flush()?;
    Ok(())
}

/// Reads a message: one line of `limit` bytes at most.
///
/// # Errors
/// Any [`ProtocolError`].
pub fn receive<M: for<'a> Deserialize<'a>>(from: &mut impl Read, limit: usize) -> Result<M, ProtocolError> {
    let mut line = Vec::new();
    io::BufReader::new(from.take(limit as u64 + 1)).read_until(b'\n', &mut line)?;
    if line.len() > limit {
        return Err(ProtocolError::TooLong { limit });
    }
    if line.is_empty() {
        return Err(ProtocolError::Closed);
    }
    serde_json::from_slice(&line).map_err(|error| ProtocolError::Malformed(error.to_string()))
}

impl Request {
    /// Why this side can't understand the request, if so. Whether it traces the process, the session alone can tell.
    pub fn objection(&self) -> Option<String> {
        let Self { version, .. } = self;
        (*version != VERSION)
            .then(|| format!("the tracer speaks version {VERSION} of the protocol, the request has {version}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 1000;

    fn request() -> Request {
        Request {
            version: VERSION,
            pid: 12,
            command: Command::Detach,
            look: Look { top: None, color: false, width: 100 },
        }
    }

    #[test]
    fn a_message_survives_the_wire() {
        let mut wire = Vec::new();
        send(&request(), &mut wire, LIMIT).unwrap();
        send(&Response::Done("two\nlines".to_owned()), &mut wire, LIMIT).unwrap();
        let mut lines = wire.split_inclusive(|&byte| byte == b'\n');
        assert_eq!(receive::<Request>(&mut lines.next().unwrap(), LIMIT).unwrap(), request());
        assert_eq!(
            receive::<Response>(&mut lines.next().unwrap(), LIMIT).unwrap(),
            Response::Done("two\nlines".to_owned())
        );
        assert!(lines.next().is_none());
    }

    #[test]
    fn silence_and_another_protocol_are_told_apart() {
        assert!(matches!(receive::<Request>(&mut &b""[..], LIMIT), Err(ProtocolError::Closed)));
        assert!(matches!(receive::<Request>(&mut &b"GET / HTTP/1.1\r\n"[..], LIMIT), Err(ProtocolError::Malformed(_))));
        assert!(matches!(receive::<Request>(&mut &b"{\"version\":1"[..], LIMIT), Err(ProtocolError::Malformed(_))));
    }

    #[test]
    fn long_messages_are_neither_sent_nor_read_to_their_end() {
        let long = Response::Done("x".repeat(LIMIT));
        let mut wire = Vec::new();
        assert!(matches!(send(&long, &mut wire, LIMIT), Err(ProtocolError::TooLong { limit: LIMIT })));
        assert!(wire.is_empty());
        let mut endless = io::repeat(b'x');
        assert!(matches!(receive::<Response>(&mut endless, LIMIT), Err(ProtocolError::TooLong { limit: LIMIT })));
    }

    #[test]
    fn another_version_is_refused() {
        assert_eq!(request().objection(), None);
        assert!(Request { version: 2, ..request() }.objection().unwrap().contains("has 2"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = receive::<Request>(&mut bytes.as_slice(), LIMIT);
            let _ = receive::<Response>(&mut bytes.as_slice(), LIMIT);
        }
    }
}
