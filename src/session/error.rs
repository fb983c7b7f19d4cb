//! What can go wrong with a whole session.

use super::aftermath::TracingAborted;
use crate::profile::{Exit, signal_text};
use crate::tracer::TracerError;

/// What `kill -9` sends.
const SIGKILL: i32 = 9;

/// What went wrong with a whole session; single tasks' troubles are counted instead.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// An operation on the target or on heaptrace's own process.
    #[error(transparent)]
    Tracer(#[from] TracerError),
    /// The program ended before it became the program asked for.
    #[error("{program} ended before its first instruction: {}", describe_early_end(*exit))]
    EndedEarly {
        /// The program as the user named it.
        program: String,
        /// How, if that is known.
        exit: Option<Exit>,
    },
    /// A signal asked heaptrace to end before the program became the program asked for.
    #[error("{program} was not started: a signal asked heaptrace to end while the kernel loaded it")]
    NotStarted {
        /// The program as the user named it.
        program: String,
    },
    /// A 32-bit (or x32) program.
    #[error("{what} is a 32-bit program; heaptrace traces 64-bit x86-64 programs only")]
    Not64Bit {
        /// The process, or the program as the user named it.
        what: String,
    },
    /// An allocation has failed; what was kept in reserve is needed to end in good order.
    #[error("out of memory (a limit, such as `ulimit -v`?)")]
    OutOfMemory,
    /// Tracing ended in the middle, by an error or a panic, and the process was detached from.
    #[error(transparent)]
    BrokenOff(#[from] TracingAborted),
}

/// A program that the kernel kills in exec has no memory image any more when it finds the file wanting (execve(2)).
fn describe_early_end(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit::Signal(signal)) if signal != SIGKILL => {
            format!("killed by {} while it was loaded. Is its file damaged, or cut off?", signal_text(signal))
        }
        Some(Exit::Signal(signal)) => format!("killed by {}", signal_text(signal)),
        Some(Exit::Code(code)) => format!("exit status {code}"),
        None => "how it ended is unknown".to_owned(),
    }
}
