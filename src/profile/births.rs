//! The live blocks one by one, and how many had been allocated by when: for formats that show single blocks.

/// So many blocks at most are told one by one; of more, those of one stack that came at about the same time are told
/// together. As many nodes as Chrome's developer tools open.
pub const MAX_BLOCKS: usize = 7_999_998;

/// The blocks that are live in a heap. `S` names a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Births<S> {
    /// The blocks, the oldest first.
    pub blocks: Vec<Born<S>>,
    /// How many blocks had been allocated by when, the earliest first. The first one says when this begins.
    pub moments: Vec<Moment>,
    /// So many blocks were there before the first was allocated: theirs is birth 0.
    pub existing: u64,
}

/// A live block, or several that are told together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Born<S> {
    /// Which of the process's allocations it came from, from 1 on; of several, the first.
    pub birth: u64,
    /// Requested bytes; of a sampled block those that it stands for.
    pub bytes: u64,
    /// How many blocks these are.
    pub blocks: u32,
    /// The serial number of the thread that has allocated it.
    pub task: u32,
    /// Where it was allocated.
    pub stack: S,
    /// Whether it came over the fork that the process began with.
    pub inherited: bool,
}

/// How many blocks had been allocated by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Nanoseconds since the session began.
    pub t_ns: u64,
    /// The allocations so far.
    pub births: u64,
}

impl<S> Births<S> {
    /// The same with other names of stacks; blocks of those that have none are left out.
    pub fn named<T>(self, name: impl Fn(&S) -> Option<T>) -> Births<T> {
        let named = |born: Born<S>| {
            let Born { birth, bytes, blocks, task, stack, inherited } = born;
            Some(Born { birth, bytes, blocks, task, stack: name(&stack)?, inherited })
        };
        let Self { blocks, moments, existing } = self;
        Births { blocks: blocks.into_iter().filter_map(named).collect(), moments, existing }
    }
}
