//! A part of a trace, by time or by marks.

use super::Seconds;
use crate::event::MarkName;

/// A moment of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// So many nanoseconds after the session began.
    Time(u64),
    /// The first mark of this name; of an end, the first behind the beginning.
    Mark(MarkName),
}

/// Which part of a trace is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TracePart {
    /// All of it.
    #[default]
    Whole,
    /// The heaps as they were at this moment.
    At(Moment),
    /// What happened from the first moment to the second; None: to the end.
    Window(Moment, Option<Moment>),
}

/// A part as far as its marks have come. Times are nanoseconds since the session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Span {
    /// See [`TracePart::Whole`].
    #[default]
    Whole,
    /// See [`TracePart::At`].
    At(u64),
    /// See [`TracePart::Window`].
    Window(u64, Option<u64>),
}

/// The moment of a mark that has not come, which is later than all others.
const NOT_YET: u64 = u64::MAX;

impl Moment {
    /// That of a mark, if one can be called so.
    pub fn of_mark(name: &str) -> Option<Self> {
        MarkName::new(name).map(Self::Mark)
    }

    const fn known(self) -> u64 {
        match self {
            Self::Time(time) => time,
            Self::Mark(_) => NOT_YET,
        }
    }

    /// In words, when it was at this time.
    fn in_words(self, time_ns: u64) -> String {
        match self {
            Self::Time(_) => Seconds(time_ns).to_string(),
            Self::Mark(name) => format!("the mark `{}` ({})", name.as_str(), Seconds(time_ns)),
        }
    }
}

impl TracePart {
    /// Before any mark was seen.
    pub(super) const fn span(self) -> Span {
        match self {
            Self::Whole => Span::Whole,
            Self::At(at) => Span::At(at.known()),
            Self::Window(from, None | Some(Moment::Mark(_))) => Span::Window(from.known(), None),
            Self::Window(from, Some(Moment::Time(to))) => Span::Window(from.known(), Some(to)),
        }
    }

    /// What a profile of it has to say of itself.
    pub(super) fn in_words(self, span: Span) -> Option<String> {
        match (self, span) {
            (Self::At(moment), Span::At(at)) => {
                Some(format!("this is the heap at {} of the trace", moment.in_words(at)))
            }
            (Self::Window(first, second), Span::Window(from, to)) => {
                let until = match (second, to) {
                    (Some(second), Some(to)) => second.in_words(to),
                    _ => "the end".to_owned(),
                };
                Some(format!(
                    "this is what happened from {} to {until} of the trace: live blocks were allocated in that time, \
                     and not freed in it",
                    first.in_words(from)
                ))
            }
            _ => None,
        }
    }
}

impl Span {
    /// The moment after which nothing counts.
    pub(super) const fn end(self) -> Option<u64> {
        match self {
            Self::Whole => None,
            Self::At(at) => Some(at),
            Self::Window(_, to) => to,
        }
    }

    /// The moment before which nothing counts.
    pub(super) const fn begin(self) -> Option<u64> {
        match self {
            Self::Whole | Self::At(_) => None,
            Self::Window(from, _) => Some(from),
        }
    }

    /// A mark is set. True if the part ends with it.
    pub(super) fn reach_mark(&mut self, part: TracePart, mark: MarkName, time_ns: u64) -> bool {
        let is_it = |moment| moment == Moment::Mark(mark);
        match (part, self) {
            (TracePart::At(moment), Self::At(at)) if is_it(moment) && *at == NOT_YET => {
                *at = time_ns;
                true
            }
            (TracePart::Window(first, _), Self::Window(from, _)) if is_it(first) && *from == NOT_YET => {
                *from = time_ns;
                false
            }
            (TracePart::Window(_, Some(second)), Self::Window(from, to))
                if is_it(second) && to.is_none() && *from <= time_ns =>
            {
                *to = Some(time_ns);
                true
            }
            _ => false,
        }
    }

    /// The mark that the part has waited for in vain.
    pub(super) fn missing_mark(self, part: TracePart) -> Option<MarkName> {
        match (part, self) {
            (TracePart::At(Moment::Mark(name)), Self::At(NOT_YET))
            | (TracePart::Window(Moment::Mark(name), _), Self::Window(NOT_YET, _)) => Some(name),
            (TracePart::Window(_, Some(Moment::Mark(name))), Self::Window(_, None)) => Some(name),
            _ => None,
        }
    }
}
