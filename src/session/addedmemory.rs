//! The memory that the jump engine has added to a process, as the process is left.

/// What has become of the memory that the jump engine has added to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum AddedMemory {
    /// There is none, or it is not known yet.
    #[default]
    None,
    /// It is to be unmapped.
    Mapped,
    /// It is to be unmapped, but an attempt has failed.
    Failed,
    /// Other processes have the same memory, and their threads may return through it.
    Shared,
    /// It was looked at: so much of it stays.
    Seen(Stays),
}

/// What a detach could not unmap, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Stays {
    /// A thread may still return through so much.
    pub needed: u64,
    /// Nobody needs so much, but the thread could not unmap it.
    pub refused: u64,
}
