//! What a heaptrace that traces a process can be asked by another heaptrace, and how that goes over the wire: one line
//! of JSON each way; behind the answer to [`Command::Snapshot`], the bytes of the files. docs/control.md describes it
//! for others. Pure.
//!
//! Each question names the version of the protocol that brought its command, so that a newer heaptrace can ask an older
//! one all that both know; an older one is answered as ever.
//!
//! The tracer renders the answer, because it alone has the heap model; the one who asks says how wide his terminal is.

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};

mod top;

pub use top::{Base, Change, Grouping, MAX_FRAMES, MAX_SITES, Order, TopAnswer, TopFrame, TopQuestion, TopSite};

/// The version of this protocol: 2 has snapshots and marks, 3 what `heaptrace top` asks. Questions of each earlier
/// version are answered.
pub const VERSION: u32 = 3;

/// The longest file in an answer, in bytes.
pub const LONGEST_FILE: u64 = 1 << 30;

/// The most blocks whose contents a snapshot can have.
pub const MAX_BLOCKS: usize = 100_000;

/// The most files that a snapshot can be asked for.
pub const MAX_FILES: usize = 32;

/// The longest question, in bytes.
pub const LONGEST_QUESTION: usize = 64 << 10;

/// The longest answer, in bytes: the other side may be anybody's.
pub const LONGEST_ANSWER: usize = 1 << 20;

/// The longest answer that is a report.json.
const LONGEST_REPORT: usize = 64 << 20;

/// A question or an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The version that brought the command ([`Command::version`]); 1 to [`VERSION`].
    pub version: u32,
    /// The process that it is about.
    pub pid: i32,
    /// What is wanted.
    pub command: Command,
    /// How the answer is to look.
    pub look: TextStyle,
}

/// What is wanted of the tracer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Classify the live blocks.
    Leaks {
        /// Show only what has grown since the last such request.
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
    /// Give what is live now, as files.
    Snapshot(SnapshotQuestion),
    /// Set a mark.
    Mark {
        /// Its name, see [`crate::event::MarkName`].
        name: String,
    },
    /// Tell the sums and the sites that come first. More such questions can follow on the same connection.
    Top(TopQuestion),
}

/// What is wanted of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotQuestion {
    /// The formats of the files, by the names that `--format` has.
    pub formats: Vec<String>,
    /// Columns of pprof files: `all`, `sampler` or `go`.
    pub pprof_columns: String,
    /// Only blocks that were allocated since this mark.
    pub since: Option<String>,
    /// What was live at this mark, instead of now.
    pub until: Option<String>,
    /// What the blocks hold, too, so many bytes at most.
    pub contents: Option<u64>,
}

/// What a snapshot is of, and how long its files are, whose bytes follow one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotHead {
    /// The process, as the tracer knows it.
    pub pid: i32,
    /// Its program.
    pub program: String,
    /// How many snapshots this tracer was asked for so far, this one included.
    pub number: u32,
    /// Whether the process belongs to another user than the tracer.
    pub of_another_user: bool,
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// The length of each file, in the order of the question.
    pub files: Vec<u64>,
    /// The number of blocks whose contents come behind the files, if they were asked for.
    #[serde(default)]
    pub blocks: Option<u64>,
}

impl Command {
    /// The version of the protocol that brought it.
    pub const fn version(&self) -> u32 {
        match self {
            Self::Leaks { .. } | Self::Pause | Self::Resume | Self::Detach => 1,
            Self::Snapshot(_) | Self::Mark { .. } => 2,
            Self::Top(_) => 3,
        }
    }

    /// How many bytes the answer may have.
    pub const fn longest_answer(&self) -> usize {
        match self {
            Self::Leaks { json: true, .. } => LONGEST_REPORT,
            Self::Top(_) => top::LONGEST_ANSWER,
            _ => LONGEST_ANSWER,
        }
    }
}

/// How text is to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TextStyle {
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
    /// The files of a snapshot follow.
    Snapshot(SnapshotHead),
    /// What `heaptrace top` shows.
    Top(Box<TopAnswer>),
}

/// Why the other side could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(io::Error),
    /// The other side has not said all in time.
    #[error("the other side took too long")]
    Pending,
    /// A message is longer than it may be.
    #[error("the message is longer than the maximum of {} KiB", limit >> 10)]
    TooLong {
        /// How long it may be, in bytes.
        limit: usize,
    },
    /// The other side closed it without a word.
    #[error("the other side ended before it answered")]
    Closed,
    /// What came is no message of this protocol.
    #[error("heaptrace can't understand the other side ({0}); are both the same version of heaptrace?")]
    Malformed(String),
    /// A question of a newer heaptrace.
    #[error("the tracer speaks versions 1 to {VERSION} of the protocol, the request has {0}")]
    Newer(u32),
}

impl From<io::Error> for ProtocolError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Pending } else { Self::Io(error) }
    }
}

/// Writes a message as one line of `limit` bytes at most.
///
/// # Errors
/// [`ProtocolError::TooLong`]: nothing was written; [`ProtocolError::Pending`], [`ProtocolError::Io`].
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

/// Reads a message: one line of `limit` bytes at most. What comes behind it is left in `from`.
///
/// # Errors
/// Any [`ProtocolError`].
pub fn receive<M: for<'a> Deserialize<'a>>(from: &mut impl BufRead, limit: usize) -> Result<M, ProtocolError> {
    understood(&line(from, limit)?)
}

/// The same for a question, whose version says whether it can be understood.
///
/// # Errors
/// Any [`ProtocolError`].
pub fn receive_question(from: &mut impl BufRead) -> Result<Request, ProtocolError> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let line = line(from, LONGEST_QUESTION)?;
    let request = understood(&line);
    match understood::<Head>(&line) {
        Ok(Head { version }) if version > VERSION => Err(ProtocolError::Newer(version)),
        _ => request,
    }
}

fn understood<M: for<'a> Deserialize<'a>>(line: &[u8]) -> Result<M, ProtocolError> {
    serde_json::from_slice(line).map_err(|error| ProtocolError::Malformed(error.to_string()))
}

fn line(from: &mut impl BufRead, limit: usize) -> Result<Vec<u8>, ProtocolError> {
    let mut line = Vec::new();
    from.take(limit as u64 + 1).read_until(b'\n', &mut line)?;
    if line.len() > limit {
        return Err(ProtocolError::TooLong { limit });
    }
    if line.is_empty() {
        return Err(ProtocolError::Closed);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 1000;

    fn request() -> Request {
        Request {
            version: 1,
            pid: 12,
            command: Command::Detach,
            look: TextStyle { top: None, color: false, width: 100 },
        }
    }

    fn question(bytes: &[u8]) -> Result<Request, ProtocolError> {
        receive_question(&mut &*bytes)
    }

    /// What version 1 of the protocol wrote, byte for byte: these never change.
    const QUESTIONS_OF_VERSION_1: [(&str, Command); 4] = [
        (
            r#"{"version":1,"pid":12,"command":{"leaks":{"increased":true,"explain":94000,"json":false}},"look":{"top":null,"color":false,"width":100}}"#,
            Command::Leaks { increased: true, explain: Some(94000), json: false },
        ),
        (r#"{"version":1,"pid":12,"command":"pause","look":{"top":null,"color":false,"width":100}}"#, Command::Pause),
        (r#"{"version":1,"pid":12,"command":"resume","look":{"top":null,"color":false,"width":100}}"#, Command::Resume),
        (r#"{"version":1,"pid":12,"command":"detach","look":{"top":null,"color":false,"width":100}}"#, Command::Detach),
    ];

    #[test]
    fn version_1_is_understood_and_spoken_byte_for_byte() {
        for (line, command) in QUESTIONS_OF_VERSION_1 {
            let expected = Request { version: command.version(), command, ..request() };
            assert_eq!(question(line.as_bytes()).unwrap(), expected);
            let mut wire = Vec::new();
            send(&expected, &mut wire, LIMIT).unwrap();
            assert_eq!(String::from_utf8(wire).unwrap().trim_end(), line, "an old tracer understands it");
        }
        for (line, response) in [
            ("{\"done\":\"text\"}\n", Response::Done("text".to_owned())),
            ("{\"failed\":\"reason\"}\n", Response::Failed("reason".to_owned())),
        ] {
            assert_eq!(receive::<Response>(&mut line.as_bytes(), LIMIT).unwrap(), response);
            let mut wire = Vec::new();
            send(&response, &mut wire, LIMIT).unwrap();
            assert_eq!(wire, line.as_bytes(), "an old client understands it");
        }
    }

    #[test]
    fn a_message_survives_the_wire_and_what_follows_is_left() {
        let mut wire = Vec::new();
        send(&request(), &mut wire, LIMIT).unwrap();
        let head = SnapshotHead {
            pid: 12,
            program: "two\nlines".to_owned(),
            number: 1,
            of_another_user: false,
            live_blocks: 3,
            live_bytes: 30,
            files: vec![5],
            blocks: None,
        };
        send(&Response::Snapshot(head.clone()), &mut wire, LIMIT).unwrap();
        wire.extend(b"bytes");
        let mut wire = wire.as_slice();
        assert_eq!(receive_question(&mut wire).unwrap(), request());
        assert_eq!(receive::<Response>(&mut wire, LIMIT).unwrap(), Response::Snapshot(head));
        assert_eq!(wire, b"bytes");
    }

    #[test]
    fn silence_and_another_protocol_are_told_apart() {
        assert!(matches!(question(b""), Err(ProtocolError::Closed)));
        assert!(matches!(question(b"GET / HTTP/1.1\r\n"), Err(ProtocolError::Malformed(_))));
        assert!(matches!(question(b"{\"version\":1"), Err(ProtocolError::Malformed(_))));
    }

    #[test]
    fn long_messages_are_neither_sent_nor_read_to_their_end() {
        let long = Response::Done("x".repeat(LIMIT));
        let mut wire = Vec::new();
        assert!(matches!(send(&long, &mut wire, LIMIT), Err(ProtocolError::TooLong { limit: LIMIT })));
        assert!(wire.is_empty());
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        assert!(matches!(receive::<Response>(&mut endless, LIMIT), Err(ProtocolError::TooLong { limit: LIMIT })));
    }

    #[test]
    fn a_newer_question_is_refused_by_its_version_whatever_else_it_says() {
        let newer = r#"{"version":7,"pid":1,"command":"levitate","height":3}"#;
        assert!(
            question(newer.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("versions 1 to 3 of the protocol, the request has 7")
        );
        assert!(matches!(question(br#"{"version":2,"pid":1,"command":"levitate"}"#), Err(ProtocolError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = receive::<Response>(&mut bytes.as_slice(), LIMIT);
            let _ = question(&bytes);
        }
    }
}
