//! Decoding what wait4 reports.
//!
//! Done by hand, because nix's type can't hold realtime signals: it turns such a stop into an error after the
//! status has been consumed, and the target would hang.

/// The signal that a breakpoint raises.
pub const SIGTRAP: i32 = libc::SIGTRAP;
/// An access to memory that is not there.
pub const SIGSEGV: i32 = libc::SIGSEGV;
/// An access to a page of a file that is not there.
pub const SIGBUS: i32 = libc::SIGBUS;
/// An instruction that does not exist.
pub const SIGILL: i32 = libc::SIGILL;

/// Whether the kernel sends this signal for a mistake of the program, or abort(3) does.
pub const fn is_fault(signal: i32) -> bool {
    matches!(signal, SIGSEGV | SIGBUS | SIGILL | libc::SIGFPE | libc::SIGABRT)
}

/// What a wait reported of one task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// It ended by exit with this status (0–255).
    Exited(i32),
    /// A signal of this number ended it.
    Signaled(i32),
    /// A signal of this number is about to be delivered (signal-delivery-stop).
    Signal(i32),
    /// All threads of the process are being stopped by this signal (SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU).
    GroupStop(i32),
    /// PTRACE_EVENT_STOP outside a group stop: a new task's first stop, our own interrupt, or SIGCONT's wake-up.
    EventStop,
    /// One of the events asked for with PTRACE_O_TRACE….
    Event(Event),
    /// A status that this decoder does not know: to be resumed and counted.
    Unknown(i32),
}

/// The ptrace events that heaptrace asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// clone with an exit signal other than SIGCHLD: as a rule a thread.
    Clone,
    /// clone with exit signal SIGCHLD.
    Fork,
    /// clone with CLONE_VFORK.
    Vfork,
    /// The child of a vfork has called exec or ended.
    VforkDone,
    /// exec succeeded; the new image has not run yet.
    Exec,
    /// The task is about to end; memory and registers can still be read.
    Exit,
}

impl WaitStatus {
    /// Decodes the `status` of wait4 (wait(2), ptrace(2) "Stopped tracees").
    pub const fn decode(status: i32) -> Self {
        let low = status & 0x7f;
        if low == 0 {
            return Self::Exited((status >> 8) & 0xff);
        }
        if status & 0xff != 0x7f {
            return Self::Signaled(low);
        }
        let signal = (status >> 8) & 0xff;
        match status >> 16 {
            0 => Self::Signal(signal),
            libc::PTRACE_EVENT_STOP => match signal {
                libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => Self::GroupStop(signal),
                _ => Self::EventStop,
            },
            libc::PTRACE_EVENT_CLONE => Self::Event(Event::Clone),
            libc::PTRACE_EVENT_FORK => Self::Event(Event::Fork),
            libc::PTRACE_EVENT_VFORK => Self::Event(Event::Vfork),
            libc::PTRACE_EVENT_VFORK_DONE => Self::Event(Event::VforkDone),
            libc::PTRACE_EVENT_EXEC => Self::Event(Event::Exec),
            libc::PTRACE_EVENT_EXIT => Self::Event(Event::Exit),
            _ => Self::Unknown(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_ends_and_signals_with_realtime_ones() {
        assert_eq!(WaitStatus::decode(0x2a00), WaitStatus::Exited(42));
        assert_eq!(WaitStatus::decode(libc::SIGKILL), WaitStatus::Signaled(9));
        assert_eq!(WaitStatus::decode(libc::SIGSEGV | 0x80), WaitStatus::Signaled(11));
        assert_eq!(WaitStatus::decode(0x057f), WaitStatus::Signal(5));
        assert_eq!(WaitStatus::decode(0x407f), WaitStatus::Signal(64));
    }

    #[test]
    fn tells_group_stops_from_event_stops() {
        let event = libc::PTRACE_EVENT_STOP << 16;
        assert_eq!(WaitStatus::decode(event | libc::SIGSTOP << 8 | 0x7f), WaitStatus::GroupStop(libc::SIGSTOP));
        assert_eq!(WaitStatus::decode(event | libc::SIGTRAP << 8 | 0x7f), WaitStatus::EventStop);
        assert_eq!(WaitStatus::decode(6 << 16 | 0x057f), WaitStatus::Event(Event::Exit));
        assert_eq!(WaitStatus::decode(4 << 16 | 0x057f), WaitStatus::Event(Event::Exec));
    }
}
