//! Which engine a process would be seen by, as far as that shows without tracing it (`heaptrace doctor PID`).

use super::space::tells_jemalloc_to_profile;
use crate::image::elf::{Elf, has_jemalloc};
use crate::image::maps;
use crate::tracer::{Result, TracerError, procfs};
use std::io::Read;
use std::path::Path;
use thiserror::Error;

/// Why a process stays with the trap engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum JumpIneligible {
    /// A filter may kill it for the calls that set the engine up.
    #[error("it filters its system calls (seccomp)")]
    Seccomp,
    /// Return addresses can't be exchanged.
    #[error("it has a shadow stack")]
    ShadowStack,
    /// It would meet our return address.
    #[error("its allocator may walk the stacks of its callers, as a sanitizer does")]
    WalksStacks,
    /// The interpreter's structures are read while the thread stands.
    #[error("it runs Python, whose functions are read at each call's stop (--python)")]
    Python,
    /// Blocks are read while the thread stands.
    #[error("its blocks are read at each call's stop (--perturb)")]
    Perturb,
}

impl JumpIneligible {
    /// What the kernel tells of a thread.
    pub(super) fn of_thread(tid: i32) -> Option<Self> {
        if procfs::has_seccomp(tid) {
            Some(Self::Seccomp)
        } else if procfs::has_shadow_stack(tid) {
            Some(Self::ShadowStack)
        } else {
            None
        }
    }
}

/// What shows of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineForecast {
    /// It is no program that heaptrace can trace.
    Not64Bit,
    /// The trap engine, and why.
    Trap(JumpIneligible),
    /// The jump engine, if that is asked for, or worth while.
    Jump,
}

/// The fifth byte of an ELF file with 64-bit addresses (ELFCLASS64).
const CLASS_64: u8 = 2;

/// Looks at process `pid`, without touching it.
///
/// # Errors
/// It is not there, or not to be looked at.
pub fn prospect_of(pid: i32) -> Result<EngineForecast> {
    let unreadable = |source| TracerError::Task { operation: "read the program of", tid: pid, source };
    let mut head = [0; 5];
    let mut file = std::fs::File::open(format!("/proc/{pid}/exe")).map_err(unreadable)?;
    file.read_exact(&mut head).map_err(unreadable)?;
    if head != [0x7f, b'E', b'L', b'F', CLASS_64] {
        return Ok(EngineForecast::Not64Bit);
    }
    let of_thread = procfs::tasks(pid)?.into_iter().find_map(JumpIneligible::of_thread);
    Ok(match of_thread {
        Some(why) => EngineForecast::Trap(why),
        None if walks_stacks(pid)? => EngineForecast::Trap(JumpIneligible::WalksStacks),
        None => EngineForecast::Jump,
    })
}

/// Whether one of the objects that define malloc may walk the stacks of its callers.
fn walks_stacks(pid: i32) -> Result<bool> {
    let mappings = maps::parse(&procfs::maps(pid)?).unwrap_or_default();
    let program = procfs::executable(pid);
    let mut walks = false;
    for module in maps::modules(&mappings).iter().filter(|module| !module.is_vdso() && !module.deleted) {
        let below_root = module.path.strip_prefix("/").unwrap_or(&module.path);
        let Ok(bytes) = std::fs::read(Path::new(&format!("/proc/{pid}/root")).join(below_root)) else { continue };
        let Ok(elf) = Elf::parse(&bytes) else { continue };
        let is_program = program.as_deref() == Some(&module.path);
        let symbols = elf.plain_symbols();
        if matches!(symbols.find(["malloc"]), [Some(malloc)] if malloc.is_function()) {
            let jemalloc = has_jemalloc(&symbols);
            walks |= if jemalloc { tells_jemalloc_to_profile(pid) } else { elf.may_walk_stacks(&symbols, is_program) };
        }
    }
    Ok(walks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_process_may_come_to_the_jump_engine() {
        let own = i32::try_from(std::process::id()).unwrap();
        let expected = match JumpIneligible::of_thread(own) {
            Some(why) => EngineForecast::Trap(why),
            None => EngineForecast::Jump,
        };
        assert_eq!(prospect_of(own).unwrap(), expected);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(prospect_of(i32::MAX).is_err());
    }
}
