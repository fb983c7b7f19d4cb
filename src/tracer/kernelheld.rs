//! What the kernel holds for a process and can be asked for: values of timers' signals, the data of what epoll watches,
//! signal stacks.

use super::copy::{self, Means};
use super::memory::TargetMemory;
use super::ptrace::Stopped;
use super::rawregs::RawRegs;
use super::remote::Caller;
use super::remote::function::{self, Filters, Function};
use super::standstill::Standstill;
use super::{Result, TracerError, procfs};
use crate::base::addr::Addr;
use crate::image::maps::{Kind, Mapping};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the kernel has shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// The values of timers' signals; None: this kernel lists no timers.
    pub timers: Option<Vec<u64>>,
    /// The data of all that epoll watches; None: there are too many descriptors to look at.
    pub epoll: Option<Vec<u64>>,
    /// Whether the process has a context of io_setup(2).
    pub has_aio: bool,
    /// Whether it has a ring of io_uring(7).
    pub has_io_uring: bool,
}

/// So many descriptors are looked at: each takes about a microsecond while the process stands still.
const MAX_DESCRIPTORS: usize = 20_000;

/// How the kernel names the memory of an aio context.
const AIO_RING: &str = "/[aio]";

/// Asks for a process that has these mappings. `live`: one of its threads that lives, as the files of a first thread
/// are gone when it has ended.
pub fn of(live: i32, mappings: &[Mapping]) -> Held {
    let timers = procfs::read(live, "timers").ok().map(|text| timers(&String::from_utf8_lossy(&text)));
    let is_aio = |path: &Path| path.to_string_lossy().starts_with(AIO_RING);
    let has_aio = mappings.iter().any(|mapping| mapping.path.as_deref().is_some_and(is_aio));
    let mut held = Held { timers, epoll: Some(Vec::new()), has_aio, has_io_uring: false };
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{live}/fd")) else {
        held.epoll = None;
        return held;
    };
    for (number, descriptor) in descriptors.flatten().enumerate() {
        if number == MAX_DESCRIPTORS {
            held.epoll = None;
            break;
        }
        let Ok(target) = std::fs::read_link(descriptor.path()) else { continue };
        match target.to_string_lossy().as_ref() {
            "anon_inode:[eventpoll]" => {
                let file = format!("fdinfo/{}", descriptor.file_name().to_string_lossy());
                let data = procfs::read(live, &file).map(|text| epoll(&String::from_utf8_lossy(&text)));
                held.epoll = match (held.epoll, data) {
                    (Some(known), Ok(data)) => Some(known.into_iter().chain(data).collect()),
                    _ => None,
                };
            }
            "anon_inode:[io_uring]" => held.has_io_uring = true,
            _ => {}
        }
    }
    held
}

/// The values in `/proc/PID/timers` (proc_pid_timers(5)): `signal: NUMBER/VALUE`.
fn timers(text: &str) -> Vec<u64> {
    let values = text.lines().filter_map(|line| line.strip_prefix("signal:")?.split_once('/'));
    values.filter_map(|(_, value)| u64::from_str_radix(value.trim(), 16).ok()).collect()
}

/// The data in an epoll instance's `/proc/PID/fdinfo/FD` (proc_pid_fdinfo(5)): `tfd: … events: … data: DATA …`.
fn epoll(text: &str) -> Vec<u64> {
    let data = text.lines().filter(|line| line.starts_with("tfd:")).filter_map(|line| {
        let (_, data) = line.split_once("data:")?;
        data.split_ascii_whitespace().next()
    });
    data.filter_map(|data| u64::from_str_radix(data, 16).ok()).collect()
}

/// The size of a `stack_t`.
const STACK_T: usize = size_of::<libc::stack_t>();

/// Asks a stopped thread for its signal stack (sigaltstack(2)): where it lies, if it has one. None: it could not be
/// asked.
///
/// # Errors
/// As for [`Caller::call`].
pub fn signal_stack(caller: &mut Caller<'_>) -> Result<Option<Option<Range<Addr>>>> {
    let scratch = caller.borrow_stack();
    let called = caller.call(libc::SYS_sigaltstack, [0, scratch.at.0, 0, 0, 0, 0]);
    let mut told = [0; STACK_T];
    let is_told = matches!(called, Ok(0)) && caller.memory.read_uncached(scratch.at, &mut told) == told.len();
    caller.return_stack(&scratch)?;
    called?;
    Ok(is_told.then(|| registered(&told)))
}

/// Where a signal stack lies by a `stack_t`; None: there is none.
fn registered(stack: &[u8; STACK_T]) -> Option<Range<Addr>> {
    // ss_sp, ss_flags and padding, ss_size
    let word = |at| crate::base::memory::word(stack, at).unwrap_or(0);
    let is_disabled = word(8) & libc::SS_DISABLE as u64 != 0;
    let stack = Addr(word(0))..Addr(word(0).saturating_add(word(16)));
    Some(stack).filter(|stack| stack.start != Addr::NULL && !is_disabled)
}

/// The signal stacks of threads that could be asked, by their ids; None: that one has none.
pub type SignalStacks = BTreeMap<i32, Option<Range<Addr>>>;

/// Threads are asked for no longer than this, in all: their process stands still meanwhile.
pub const ASKING: Duration = Duration::from_millis(50);

/// Asks the threads of a process that nobody traces, and that stands still, with these mappings. The system call that a
/// thread waits in goes on as it does after the standstill: the kernel keeps what is left of it
/// (restart_syscall(2)), and what [`super::timedwait`] knows stays known. `means`: what of the C library they make
/// the call with; None: there is nothing.
///
/// Not asked are threads that have stopped for a signal, that did not stop, or that are on another stack than the one
/// that the C library has given them: what a call lays down below its stack pointer may be somebody's there, and would
/// be lost if heaptrace were killed meanwhile.
pub fn signal_stacks(
    still: &Standstill,
    means: Option<Means>,
    mappings: &[Mapping],
    memory: &mut TargetMemory,
) -> SignalStacks {
    let mut stacks = SignalStacks::new();
    let Some(means) = means.filter(|means| means.are_there(memory)) else { return stacks };
    let began = Instant::now();
    for (thread, resume) in still.callers() {
        if began.elapsed() > ASKING {
            break;
        }
        if !is_on_own_stack(&resume, mappings) || !copy::can_make(thread, &resume, mappings) {
            continue;
        }
        match ask(thread, &resume, means, memory) {
            Ok(stack) => stacks.extend(stack.map(|stack| (thread.tid(), stack))),
            Err(error) => {
                still.leave_out(&error);
                tracing::debug!("the signal stack of thread {} could not be read: {error}", thread.tid());
            }
        }
    }
    stacks
}

/// Whether a thread is on the stack that the kernel has made for the first one, or that ends in its control block, as
/// those of glibc and musl do.
pub fn is_on_own_stack(regs: &RawRegs, mappings: &[Mapping]) -> bool {
    let [sp, tcb] = [Addr(regs.0.rsp), Addr(regs.0.fs_base)];
    let own = mappings.iter().find(|mapping| mapping.contains(sp));
    own.is_some_and(|own| own.kind == Kind::Stack || own.kind == Kind::Anonymous && sp < tcb && own.contains(tcb))
}

/// As [`signal_stack`].
fn ask(
    thread: &Stopped,
    resume: &RawRegs,
    means: Means,
    memory: &mut TargetMemory,
) -> Result<Option<Option<Range<Addr>>>> {
    /// What the kernel does not write.
    const UNTOLD: [u8; STACK_T] = [0xff; STACK_T];
    memory.stands_still(Some(thread.tid()));
    let scratch = function::scratch(resume);
    let mut before = [0; STACK_T];
    if memory.read_uncached(scratch, &mut before) != before.len() {
        return Ok(None);
    }
    memory.write_data(scratch, &UNTOLD)?;
    let call = Function {
        at: means.system_call,
        rax: libc::SYS_sigaltstack.cast_unsigned(),
        arguments: [0, scratch.0, 0, 0, 0, 0],
        filters: Filters::Thread,
    };
    let called = function::call(thread, resume, &call, means.restorer, memory, &mut None);
    if matches!(called, Err(TracerError::Unresponsive { .. })) {
        // the call is still to be made
        return called.map(|()| None);
    }
    let mut told = [0; STACK_T];
    let is_read = memory.read_uncached(scratch, &mut told) == told.len();
    called.and(memory.write_data(scratch, &before))?;
    Ok((is_read && told != UNTOLD).then(|| registered(&told)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_tell_the_values_of_their_signals() {
        let text = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/pid.2634\nClockID: 0\n\
                    ID: 0\nsignal: 10/0\nnotify: none/pid.2634\nClockID: 1\n";
        assert_eq!(timers(text), [0x7fff_86e4_52a8, 0]);
        assert!(timers("signal: 60\nsignal: /x\n").is_empty());
    }

    #[test]
    fn epoll_tells_the_data_of_what_it_watches() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1059\n\
                    tfd:        4 events:       19 data:     55d0c0de12a0  pos:0 ino:3a sdev:e\n\
                    tfd:        5 events:       19 data: ffffffffffffffff  pos:0 ino:3a sdev:e\n";
        assert_eq!(epoll(text), [0x55d0_c0de_12a0, u64::MAX]);
    }
}
