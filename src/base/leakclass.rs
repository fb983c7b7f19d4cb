//! The classes of live blocks: what the leak check finds, and a profile, a suppression and the verdict speak of.

/// How a block that is still live can be reached. The classes are Memcheck's (Valgrind manual, section 4.2.8 "Memory
/// leak detection").
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum LeakClass {
    /// No pointer to it was found.
    Definite,
    /// Pointers to it were found in definitely leaked blocks only.
    Indirect,
    /// Pointers were found, but on each way to it at least one of them points into the inside of a block, or has a tag
    /// in its upper 16 bits.
    Possible,
    /// A chain of pointers to block starts leads to it from a root.
    Reachable,
}

impl LeakClass {
    /// All classes, worst first; the index of each is `class as usize`.
    pub const ALL: [Self; 4] = [Self::Definite, Self::Indirect, Self::Possible, Self::Reachable];

    /// The name in options and reports: `definite`, `indirect`, `possible`, `reachable`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Definite => "definite",
            Self::Indirect => "indirect",
            Self::Possible => "possible",
            Self::Reachable => "reachable",
        }
    }

    /// The kind of a finding of this class in report.json.
    pub const fn finding_kind(self) -> &'static str {
        match self {
            Self::Definite => "leak_definite",
            Self::Indirect => "leak_indirect",
            Self::Possible => "leak_possible",
            Self::Reachable => "leak_reachable",
        }
    }
}
