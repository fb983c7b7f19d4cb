//! Failures on purpose, for the tests that show what heaptrace does to its target when it fails itself.
//!
//! Every call of the edge that can fail passes a point here, where it is counted. `HEAPTRACE_INJECT=panic:17` makes
//! the seventeenth call of the tracer thread panic, `error:17` makes it fail, `abort:17` kills heaptrace in front of
//! it, as SIGKILL does. Behind a further colon, `thrice` has the next two calls fail, too, so that it does not help to
//! repeat a request; `writes` refuses all writes through /proc/PID/mem from then on, `code` all writes to code, in
//! whatever way; from call 0 on: from the start. `copy:stopped` has the first thread told to stop that has just made a
//! copy of the target, `copy:killed` that copy killed, `call:killed:3` its thread killed in front of the third call
//! that one makes for us; `call:filtered` sends SIGUSR2 to the target in front of the first such call and waits until
//! its thread has a filter of system calls. In builds without debug assertions none of this exists.

/// What a call does to the target, as far as the injection tells calls apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// It writes to the target's memory through /proc.
    Write,
    /// It writes to the target's memory through a stopped task.
    Poke,
    /// Anything else.
    Other,
}

/// Passes one call of the edge.
///
/// # Errors
/// The failure that was ordered for this call: EIO.
#[cfg(not(debug_assertions))]
#[inline]
pub fn point(_: Call) -> std::io::Result<()> {
    Ok(())
}

/// From now on the calls of this thread are counted.
#[cfg(not(debug_assertions))]
pub fn arm() {}

/// Thread `maker` of the target has just made process `child` for us.
#[cfg(not(debug_assertions))]
pub fn at_child(_maker: i32, _child: i32) {}

/// Thread `caller` of the target is about to make a system call for us.
#[cfg(not(debug_assertions))]
pub fn at_call(_caller: i32) {}

#[cfg(debug_assertions)]
pub use ordered::{arm, at_call, at_child, point};

#[cfg(debug_assertions)]
mod ordered {
    use super::Call;
    use crate::tracer::procfs;
    use std::cell::Cell;
    use std::io;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    thread_local! {
        /// Calls of this thread so far, if they are counted.
        static CALLS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// What is to happen at the call.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Failure {
        Error,
        Panic,
        Abort,
    }

    #[derive(Clone, Copy, Debug)]
    struct Order {
        failure: Failure,
        /// The first call, and the last one, that it happens at.
        at: u64,
        until: u64,
        refused: &'static [Call],
    }

    fn order() -> Option<Order> {
        static ORDER: OnceLock<Option<Order>> = OnceLock::new();
        *ORDER.get_or_init(|| parse(&std::env::var("HEAPTRACE_INJECT").ok()?))
    }

    fn parse(text: &str) -> Option<Order> {
        let mut words = text.split(':');
        let failure = match words.next()? {
            "panic" => Failure::Panic,
            "error" => Failure::Error,
            "abort" => Failure::Abort,
            _ => return None,
        };
        let at: u64 = words.next()?.parse().ok()?;
        let further = words.next();
        let until = at.saturating_add(if further == Some("thrice") { 2 } else { 0 });
        let refused: &[Call] = match further {
            Some("writes") => &[Call::Write],
            Some("code") => &[Call::Write, Call::Poke],
            _ => &[],
        };
        Some(Order { failure, at, until, refused })
    }

    /// From now on the calls of this thread are counted.
    pub fn arm() {
        CALLS.set(Some(0));
    }

    /// Passes one call of the edge.
    ///
    /// # Errors
    /// The failure that was ordered for this call: EIO.
    #[expect(clippy::panic, reason = "that is the order")]
    pub fn point(call: Call) -> io::Result<()> {
        let (Some(order), Some(calls)) = (order(), CALLS.get()) else { return Ok(()) };
        let this = calls + 1;
        CALLS.set(Some(this));
        if this == order.at {
            match order.failure {
                Failure::Panic => panic!("call {this} of the edge panics by order"),
                // SAFETY: kill has no memory effects, and the process is our own.
                Failure::Abort => unsafe {
                    libc::kill(libc::getpid(), libc::SIGKILL);
                },
                Failure::Error => {}
            }
        }
        if (order.at..=order.until).contains(&this) || (this > order.at && order.refused.contains(&call)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    /// Thread `maker` of the target has just made process `child` for us.
    pub fn at_child(maker: i32, child: i32) {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        let (task, signal) = match std::env::var("HEAPTRACE_INJECT").as_deref() {
            Ok("copy:stopped") => (maker, libc::SIGSTOP),
            Ok("copy:killed") => (child, libc::SIGKILL),
            _ => return,
        };
        if !IS_DONE.swap(true, Ordering::Relaxed) {
            // SAFETY: tkill has no memory effects; the task stands still, traced by us.
            unsafe { libc::syscall(libc::SYS_tkill, task, signal) };
        }
    }

    /// Thread `caller` of the target is about to make a system call for us.
    pub fn at_call(caller: i32) {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        static KILLED_AT: OnceLock<Option<u64>> = OnceLock::new();
        let read = || std::env::var("HEAPTRACE_INJECT").ok()?.strip_prefix("call:killed:")?.parse().ok();
        if std::env::var("HEAPTRACE_INJECT").as_deref() == Ok("call:filtered")
            && CALLS.fetch_add(1, Ordering::Relaxed) == 0
        {
            ask_for_filter(caller);
        }
        if let Some(at) = *KILLED_AT.get_or_init(read)
            && CALLS.fetch_add(1, Ordering::Relaxed) + 1 == at
        {
            // SAFETY: tkill has no memory effects; the task stands still, traced by us.
            unsafe { libc::syscall(libc::SYS_tkill, caller, libc::SIGKILL) };
        }
    }

    /// Asks the process of a thread by SIGUSR2 to install a filter of system calls for all its threads, and waits
    /// until the thread has it: for ten seconds at most.
    fn ask_for_filter(thread: i32) {
        // SAFETY: kill has no memory effects.
        unsafe { libc::kill(thread, libc::SIGUSR2) };
        for _ in 0..10_000 {
            if procfs::status_number(thread, "Seccomp") != Some(0) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn orders_are_read() {
            let order = parse("error:12:writes").unwrap();
            assert!(
                order.failure == Failure::Error
                    && (order.at, order.until) == (12, 12)
                    && order.refused == [Call::Write]
            );
            let order = parse("error:12:thrice").unwrap();
            assert!(order.at == 12 && order.until == 14 && order.refused.is_empty());
            let order = parse("panic:3").unwrap();
            assert!(order.failure == Failure::Panic && order.at == 3 && order.refused.is_empty());
            assert_eq!(parse("abort:4").map(|order| order.failure), Some(Failure::Abort));
            assert!(parse("panic").is_none() && parse("pause:3").is_none() && parse("copy:stopped").is_none());
        }
    }
}
