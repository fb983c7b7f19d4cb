//! Hearing of each program that is executed on this machine: the kernel's process events connector, which tells
//! privileged processes of the first network, pid and user namespaces (linux/cn_proc.h,
//! Documentation/driver-api/connector.rst).

use super::control;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// `CN_IDX_PROC` and `CN_VAL_PROC` of linux/connector.h: both name the connector and its multicast group.
const PROC_CONNECTOR: u32 = 1;

/// `PROC_CN_MCAST_LISTEN` of linux/cn_proc.h.
const LISTEN: u32 = 1;

/// Sizes of `struct nlmsghdr` and `struct cn_msg`, behind which an event begins.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
const EVENT: usize = NETLINK_HEADER + CONNECTOR_HEADER;

/// Where the members of `struct proc_event` lie in a datagram: what happened; behind it a CPU number and a time; then,
/// for an acknowledgement, an error number, and for an execution the thread and its process.
const WHAT: usize = EVENT;
const ERROR: usize = EVENT + 16;
const PROCESS: usize = EVENT + 20;

/// `PROC_EVENT_NONE`: the answer to a subscription.
const ACKNOWLEDGEMENT: u32 = 0;

/// `PROC_EVENT_EXEC`.
const EXECUTION: u32 = 2;

/// How long the kernel's answer to a subscription may take; it comes at once, if at all.
const ANSWER: Duration = Duration::from_millis(200);

/// Why a wait is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wakeup {
    /// These processes have executed a program.
    Executed(Vec<i32>),
    /// Some have, but the kernel had no room to say which.
    Missed,
    /// The time has passed, or one of heaptrace's own signals waits to be taken.
    Nothing,
}

/// A subscription to the executions of all processes.
#[derive(Debug)]
pub struct ExecEvents {
    socket: OwnedFd,
    signals: OwnedFd,
}

impl ExecEvents {
    /// Subscribes. None where the kernel does not tell us: without the right (CAP_NET_ADMIN), in a container, or if it
    /// was built without the connector.
    pub fn subscribe() -> Option<Self> {
        let events = Self { socket: open()?, signals: control::own_signals_fd().ok()? };
        events.send(LISTEN)?;
        // No answer comes where the request is not heard: in other namespaces than the first ones.
        let deadline = Instant::now() + ANSWER;
        loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            wait_readable(&[&events.socket], left);
            let datagram = events.receive()??;
            if number(&datagram, WHAT)? == ACKNOWLEDGEMENT {
                return (number(&datagram, ERROR)? == 0).then_some(events);
            }
        }
    }

    /// Waits for executions, at most for `timeout`. Ends early if one of heaptrace's own signals waits to be taken.
    pub fn wait(&self, timeout: Duration) -> Wakeup {
        let deadline = Instant::now() + timeout;
        let mut executed = Vec::new();
        while executed.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !wait_readable(&[&self.socket, &self.signals], left) {
                return Wakeup::Nothing;
            }
            let mut heard = false;
            loop {
                match self.receive() {
                    None => return Wakeup::Missed,
                    Some(None) => break,
                    Some(Some(datagram)) => {
                        heard = true;
                        executed.extend(process_of(&datagram));
                    }
                }
            }
            if !heard {
                return Wakeup::Nothing;
            }
        }
        Wakeup::Executed(executed)
    }

    fn send(&self, operation: u32) -> Option<()> {
        let length = EVENT + size_of::<u32>();
        let mut message = Vec::with_capacity(length);
        let sender = std::process::id();
        let [type_and_flags, sequence, flags_and_size] = [libc::NLMSG_DONE as u32, 0, size_of::<u32>() as u32];
        let header = [u32::try_from(length).ok()?, type_and_flags, sequence, sender];
        let connector = [PROC_CONNECTOR, PROC_CONNECTOR, sequence, 0, flags_and_size];
        for word in header.into_iter().chain(connector).chain([operation]) {
            message.extend_from_slice(&word.to_ne_bytes());
        }
        // SAFETY: `message` has the length that is told.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        (usize::try_from(sent) == Ok(length)).then_some(())
    }

    /// The next datagram: Some(None) if there is none, None if some were lost.
    fn receive(&self) -> Option<Option<Vec<u8>>> {
        let mut datagram = vec![0; 1024];
        // SAFETY: `datagram` has the length that is told.
        let received = unsafe {
            libc::recv(self.socket.as_raw_fd(), datagram.as_mut_ptr().cast(), datagram.len(), libc::MSG_DONTWAIT)
        };
        match usize::try_from(received) {
            Ok(length) => {
                datagram.truncate(length);
                Some(Some(datagram))
            }
            Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS) => None,
            Err(_) => Some(None),
        }
    }
}

/// A netlink socket in the connector's group that is given executions and acknowledgements only: a machine that forks a
/// lot would keep us busy with the rest.
fn open() -> Option<OwnedFd> {
    // SAFETY: socket takes numbers only.
    let socket =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_CONNECTOR) };
    if socket < 0 {
        return None;
    }
    // SAFETY: a new descriptor that is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let return_if = |wanted: u32, skip| {
        // A filter sees numbers in network order.
        [
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, wanted.to_be()),
            (libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        ]
    };
    let load = [(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, WHAT as u32)];
    let drop = [(libc::BPF_RET | libc::BPF_K, 0, 0, 0)];
    let steps = load.into_iter().chain(return_if(EXECUTION, 1)).chain(return_if(ACKNOWLEDGEMENT, 1)).chain(drop);
    let mut filter: Vec<libc::sock_filter> =
        steps.map(|(code, jt, jf, k)| libc::sock_filter { code: code as u16, jt, jf, k }).collect();
    let program = libc::sock_fprog { len: u16::try_from(filter.len()).ok()?, filter: filter.as_mut_ptr() };
    // SAFETY: zero is valid for all members.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = PROC_CONNECTOR;
    // SAFETY: filter and address live for the duration of the calls, which get their sizes.
    let results = unsafe {
        [
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            ),
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t),
        ]
    };
    (results == [0, 0]).then_some(socket)
}

/// Waits until one of the descriptors can be read, at most for `timeout`. False if none can.
fn wait_readable(descriptors: &[&OwnedFd], timeout: Duration) -> bool {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|descriptor| libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).saturating_add(1);
    // SAFETY: the array is valid for its length.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) > 0 }
}

/// The process of an execution.
fn process_of(datagram: &[u8]) -> Option<i32> {
    (number(datagram, WHAT)? == EXECUTION).then(|| number(datagram, PROCESS))??.try_into().ok()
}

fn number(datagram: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(datagram.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram as the kernel sends it.
    fn datagram(what: u32, thread: u32, process: u32) -> Vec<u8> {
        let mut bytes = vec![0; EVENT];
        for word in [what, 0, 7, 7, thread, process] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn only_executions_name_a_process() {
        assert_eq!(process_of(&datagram(EXECUTION, 41, 40)), Some(40));
        assert_eq!(process_of(&datagram(1, 41, 40)), None);
        assert_eq!(process_of(&datagram(EXECUTION, 41, 40)[..50]), None);
        assert_eq!(process_of(&[]), None);
    }

    /// Where the kernel tells us, it tells of a program that is executed now.
    #[test]
    fn an_execution_is_heard_of() {
        let Some(events) = ExecEvents::subscribe() else { return };
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut heard = false;
        while !heard {
            assert!(Instant::now() < deadline);
            heard = match events.wait(Duration::from_secs(1)) {
                Wakeup::Executed(processes) => processes.contains(&pid),
                Wakeup::Missed => true,
                Wakeup::Nothing => false,
            };
        }
        child.wait().unwrap();
    }
}
