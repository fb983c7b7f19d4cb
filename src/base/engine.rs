//! The choice among the engines that record calls of the allocator.

/// How allocator calls are recorded: which of the engines is used, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum EngineChoice {
    /// The trap engine at first; the jump engine as soon as stops have taken a fifth of a process's time, over 2 ms of
    /// them.
    #[default]
    Auto,
    /// The trap engine: a stop at each entry and return.
    Trap,
    /// The jump engine as soon as a process can be put on it: calls are recorded without stops.
    Jump,
}

impl EngineChoice {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Trap, Self::Jump];

    /// `auto`, `trap` or `jump`, as `--engine` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Trap => "trap",
            Self::Jump => "jump",
        }
    }
}
