//! A part of a trace, by time.

use super::Seconds;

/// Which part of a trace. Times are nanoseconds since the session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Span {
    /// All of it.
    #[default]
    Whole,
    /// The heaps as they were at this moment.
    At(u64),
    /// What happened from the first moment to the second; None: to the end.
    Window(u64, Option<u64>),
}

impl Span {
    /// The moment after which nothing counts.
    pub const fn end(self) -> Option<u64> {
        match self {
            Self::Whole => None,
            Self::At(at) => Some(at),
            Self::Window(_, to) => to,
        }
    }

    /// The moment before which nothing counts.
    pub const fn begin(self) -> Option<u64> {
        match self {
            Self::Whole | Self::At(_) => None,
            Self::Window(from, _) => Some(from),
        }
    }

    /// What a profile of it has to say of itself.
    pub(super) fn in_words(self) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::At(at) => Some(format!("this is the heap at {} of the trace", Seconds(at))),
            Self::Window(from, to) => {
                let until = to.map_or("the end".to_owned(), |to| Seconds(to).to_string());
                Some(format!(
                    "this is what happened from {} to {until} of the trace: what is live was allocated then, and not freed until \
                     then",
                    Seconds(from)
                ))
            }
        }
    }
}
