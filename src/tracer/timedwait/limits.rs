//! Which system calls have a limit of time that they would begin anew with, and where it stands.

use super::super::rawregs::{RawRegs, SYS_IO_PGETEVENTS, SYSCALL_LEN};
use iced_x86::Register;
use std::time::Duration;

/// The register of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Argument {
    /// The third.
    Rdx,
    /// The fourth.
    R10,
    /// The fifth.
    R8,
}

impl Argument {
    /// What `regs` have there.
    pub(super) const fn get(self, regs: &RawRegs) -> u64 {
        match self {
            Self::Rdx => regs.0.rdx,
            Self::R10 => regs.0.r10,
            Self::R8 => regs.0.r8,
        }
    }

    /// Puts `value` there.
    pub(super) const fn set(self, regs: &mut RawRegs, value: u64) {
        match self {
            Self::Rdx => regs.0.rdx = value,
            Self::R10 => regs.0.r10 = value,
            Self::R8 => regs.0.r8 = value,
        }
    }

    /// As the decoder names it.
    pub(super) const fn register(self) -> Register {
        match self {
            Self::Rdx => Register::RDX,
            Self::R10 => Register::R10,
            Self::R8 => Register::R8,
        }
    }

    /// Its place in the text of a file `syscall` (proc(5)), behind the number.
    const fn word(self) -> usize {
        match self {
            Self::Rdx => 3,
            Self::R10 => 4,
            Self::R8 => 5,
        }
    }
}

/// What the argument is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Milliseconds; negative: no limit.
    Milliseconds,
    /// The address of a `struct timespec`, from the beginning of the call on; 0: no limit.
    Timespec,
    /// The same, and the kernel writes there what is left when the call has ended: only the program's own will do.
    WrittenTimespec,
}

/// The calls that end early when their thread is stopped, by EINTR or to be called again as they were, and have a limit
/// in an argument. Left out are those
/// that the kernel takes up with what is left (poll, select, nanosleep, futex), those with a moment as limit
/// (mq_timedreceive, FUTEX_WAIT_BITSET), and those whose limit is the socket's or lies in a structure (io_uring).
const TIMED: [(i64, Argument, Form); 8] = [
    (libc::SYS_epoll_wait, Argument::R10, Form::Milliseconds),
    (libc::SYS_epoll_pwait, Argument::R10, Form::Milliseconds),
    (libc::SYS_epoll_pwait2, Argument::R10, Form::Timespec),
    (libc::SYS_semtimedop, Argument::R10, Form::Timespec),
    (libc::SYS_rt_sigtimedwait, Argument::Rdx, Form::Timespec),
    (libc::SYS_io_getevents, Argument::R8, Form::Timespec),
    (SYS_IO_PGETEVENTS, Argument::R8, Form::Timespec),
    (libc::SYS_recvmmsg, Argument::R8, Form::WrittenTimespec),
];

/// Where call `number` has its limit.
pub(super) fn of_call(number: i64) -> Option<(Argument, Form)> {
    TIMED.iter().find(|(timed, ..)| *timed == number).map(|&(_, argument, form)| (argument, form))
}

/// A timed call that a thread sleeps in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimedCall {
    /// Its number.
    pub(super) number: i64,
    /// What the argument with the limit is.
    pub(super) value: u64,
    /// Where the thread goes on behind the call.
    pub(super) behind: u64,
}

impl TimedCall {
    /// As /proc/PID/syscall tells it. None of another call.
    pub(super) fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let hexadecimal = |at: usize| u64::from_str_radix(words.get(at)?.strip_prefix("0x")?, 16).ok();
        let number = words.first()?.parse().ok()?;
        let (argument, _) = of_call(number)?;
        Some(Self { number, value: hexadecimal(argument.word())?, behind: hexadecimal(8)? })
    }

    /// Whether a thread with these registers is about to make it.
    pub(super) const fn is_made_by(&self, again: &RawRegs, argument: Argument) -> bool {
        again.0.rax.cast_signed() == self.number
            && again.0.rip.wrapping_add(SYSCALL_LEN) == self.behind
            && argument.get(again) == self.value
    }

    /// Its limit. None if it has none. `memory` reads the target's.
    pub(super) fn limit(&self, memory: impl FnOnce(u64) -> Option<[u8; 16]>) -> Option<Duration> {
        match of_call(self.number)?.1 {
            Form::Milliseconds => {
                let limit = u64::try_from(self.value as i32).ok()?;
                (limit > 0).then(|| Duration::from_millis(limit))
            }
            Form::Timespec | Form::WrittenTimespec if self.value == 0 => None,
            Form::Timespec | Form::WrittenTimespec => from_timespec(memory(self.value)?),
        }
    }
}

fn from_timespec(bytes: [u8; 16]) -> Option<Duration> {
    let (seconds, rest) = bytes.split_first_chunk::<8>()?;
    let seconds = u64::try_from(i64::from_le_bytes(*seconds)).ok()?;
    let nanoseconds = u32::try_from(i64::from_le_bytes(*rest.first_chunk()?)).ok()?;
    (nanoseconds < 1_000_000_000).then(|| Duration::new(seconds, nanoseconds))
}

/// A `struct timespec`.
pub(super) fn to_timespec(time: Duration) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (seconds, nanoseconds) = bytes.split_at_mut(8);
    seconds.copy_from_slice(&time.as_secs().to_le_bytes());
    nanoseconds.copy_from_slice(&u64::from(time.subsec_nanos()).to_le_bytes());
    bytes
}

/// What is left of a limit, in ms: never too little.
pub(super) fn left_in_ms(limit: Duration, passed: Duration) -> u32 {
    let [limit, passed] = [limit, passed].map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    u32::try_from(limit.saturating_sub(passed)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_timed_call_is_read() {
        let limit = |text: &str| TimedCall::read(text).and_then(|call| call.limit(|_| None));
        let text = "232 0x3 0x7ffd10 0x1 0xbb8 0x0 0x8 0x7ffd00 0x7f1234\n";
        let expected = TimedCall { number: libc::SYS_epoll_wait, value: 3000, behind: 0x7f_1234 };
        assert_eq!(TimedCall::read(text), Some(expected));
        assert_eq!(limit(text), Some(Duration::from_secs(3)));
        assert_eq!(limit(&text.replace("0xbb8", "0xffffffff")), None, "no limit");
        assert_eq!(TimedCall::read(&text.replace("232", "7")), None, "poll is taken up by the kernel");
        assert_eq!(TimedCall::read("running\n"), None);
    }

    #[test]
    fn a_limit_that_is_pointed_to_is_read_there() {
        // rt_sigtimedwait has its limit in the third argument
        let call = TimedCall::read("128 0x7ffd0 0x0 0x7ffe0 0x8 0x0 0x0 0x7ffc0 0x7f1230").unwrap();
        let three_and_a_bit = Duration::new(3, 7);
        let memory = |at: u64| (at == 0x7_ffe0).then(|| to_timespec(three_and_a_bit));
        assert_eq!(call.limit(memory), Some(three_and_a_bit));
        assert_eq!(call.limit(|_| None), None);
        assert_eq!(call.limit(|_| Some([0xff; 16])), None, "a negative time");
        let endless = TimedCall { value: 0, ..call };
        assert_eq!(endless.limit(|_| Some([0; 16])), None);
    }

    #[test]
    fn what_is_left_is_never_too_little() {
        let limit = Duration::from_secs(3);
        assert_eq!(left_in_ms(limit, Duration::from_micros(2_000_999)), 1000);
        assert_eq!(left_in_ms(limit, Duration::from_secs(9)), 0);
    }
}
