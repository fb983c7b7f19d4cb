//! What a copy does as it begins, while the process stands: it lets go of the open files that it shares with the
//! process, and takes a name of its own.
//!
//! Then no port, pipe or lock of the process stays taken while the copy is read, and whoever finds the copy dead later
//! knows by the name that its status may be taken.

use super::Means;
use crate::base::addr::Addr;
use crate::tracer::memory::TargetMemory;
use crate::tracer::ptrace::{self, SYSTEM_CALL_STOP, Stopped, Waited};
use crate::tracer::status::WaitStatus;
use crate::tracer::{Result, TracerError};

/// The name of each copy (`comm` of proc_pid_comm(5)).
pub(super) const NAME: &str = "heaptrace-copy";

/// Lets a copy that has just begun set itself apart. `free`: 16 bytes of its stack that it does not need.
///
/// # Errors
/// Any failure of a request; [`TracerError::Overtaken`] by its end.
pub(super) fn set_apart(copy: &Stopped, means: Means, free: Addr) -> Result<()> {
    let mut name = NAME.as_bytes().to_vec();
    name.resize(16, 0);
    TargetMemory::open(copy.tid(), copy.tid())?.write_data(free, &name)?;
    call(copy, means, libc::SYS_prctl, [libc::PR_SET_NAME as u64, free.0, 0])?;
    // With a table of its own, which is empty. Kernels before 5.9 can't, and the table stays shared until the copy is
    // killed.
    let closed =
        call(copy, means, libc::SYS_close_range, [0, u64::from(u32::MAX), u64::from(libc::CLOSE_RANGE_UNSHARE)])?;
    if closed < 0 {
        tracing::debug!("the copy shares open files: {}", std::io::Error::from_raw_os_error(-closed as i32));
    }
    Ok(())
}

/// One system call of the copy, and what the kernel says (−errno for failures). It stands behind it then.
fn call(copy: &Stopped, means: Means, number: i64, arguments: [u64; 3]) -> Result<i64> {
    let mut changed = copy.registers()?;
    let r = &mut changed.0;
    r.rip = means.system_call.0;
    r.rax = number.cast_unsigned();
    r.orig_rax = u64::MAX;
    [r.rdi, r.rsi, r.rdx] = arguments;
    copy.set_registers(&changed)?;
    let tid = copy.tid();
    for _entry_then_exit in 0..2 {
        copy.run_to_system_call()?;
        match ptrace::wait_task(tid, ptrace::TIMEOUT)? {
            Waited::Task(_, WaitStatus::Signal(SYSTEM_CALL_STOP), Some(_)) => {}
            Waited::Task(_, status, _) => return Err(TracerError::Overtaken { tid, status }),
            Waited::Nothing => return Err(TracerError::Unresponsive { tid }),
            Waited::Interrupted | Waited::NoTasks => return Err(TracerError::Died { tid }),
        }
    }
    Ok(copy.registers()?.0.rax.cast_signed())
}
