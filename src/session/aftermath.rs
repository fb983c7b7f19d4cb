//! What became of the process when tracing broke off, in words.

use std::fmt;

/// What became of the process when tracing broke off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetState {
    /// The program has run no instruction.
    NotStarted,
    /// Nothing was written to the process yet.
    Untouched,
    /// It had ended.
    Ended,
    /// It has ended, as code of its could not be restored.
    Killed {
        /// Its id.
        pid: i32,
        /// Breakpoints that were still in its code.
        probes: usize,
    },
    /// It runs on as if it had never been traced.
    Restored {
        /// Its id.
        pid: i32,
    },
    /// It runs on, and can't for long.
    Damaged {
        /// Its id.
        pid: i32,
        /// Breakpoints that are still in its code.
        probes: usize,
        /// Threads that could not be stopped to be detached from.
        threads: usize,
    },
}

impl TargetState {
    /// What is worst for the user.
    pub(super) const fn severity(&self) -> u8 {
        match self {
            Self::NotStarted | Self::Untouched | Self::Ended => 0,
            Self::Restored { .. } => 1,
            Self::Killed { .. } => 2,
            Self::Damaged { .. } => 3,
        }
    }

    /// The process that lives on, if one does.
    pub const fn survivor(&self) -> Option<i32> {
        match self {
            Self::Restored { pid } | Self::Damaged { pid, .. } => Some(*pid),
            Self::NotStarted | Self::Untouched | Self::Ended | Self::Killed { .. } => None,
        }
    }
}

impl fmt::Display for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => f.write_str("the program was not started"),
            Self::Untouched => f.write_str("nothing had been written to the process yet"),
            Self::Ended => f.write_str("the process has ended"),
            Self::Killed { pid, probes } => {
                write!(
                    f,
                    "process {pid} was damaged and has died: {probes} breakpoints could not be removed from its code \
                     (SIGTRAP)"
                )
            }
            Self::Restored { pid } => write!(f, "process {pid} runs on with its code restored"),
            Self::Damaged { pid, probes, threads } => {
                write!(f, "process {pid} is left damaged")?;
                if *probes > 0 {
                    write!(
                        f,
                        ": {probes} breakpoints could not be removed from its code, and it will die by SIGTRAP when it \
                         reaches one"
                    )?;
                }
                if *threads > 0 {
                    write!(f, ": {threads} of its threads could not be let go and may die by SIGTRAP")?;
                }
                Ok(())
            }
        }
    }
}

/// An end of the tracing that nobody wanted: an error or a panic of heaptrace's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracingAborted {
    /// What went wrong.
    pub cause: String,
    /// What became of the process; of several, of the one that it is worst for.
    pub aftermath: TargetState,
    /// The program that was started, if it lives on: it is a child of ours.
    pub child: Option<i32>,
}

impl TracingAborted {
    /// One that another heaptrace has told of: what became of the process is in its words.
    pub const fn as_told(cause: String) -> Self {
        Self { cause, aftermath: TargetState::Ended, child: None }
    }
}

impl fmt::Display for TracingAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tracing stopped early: {}; {}", self.cause, self.aftermath)
    }
}

impl std::error::Error for TracingAborted {}
