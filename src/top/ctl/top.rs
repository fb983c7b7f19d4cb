//! What `heaptrace top` asks, again and again over one connection, and what it is answered.

use crate::base::figures::Amount;
use serde::{Deserialize, Serialize};

/// The most sites that an answer has.
pub const MAX_SITES: usize = 500;

/// The most frames of a site.
pub const MAX_FRAMES: usize = 40;

/// The longest answer, in bytes.
pub(super) const LONGEST_ANSWER: usize = 16 << 20;

/// What the sites are sorted by, the most first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Bytes that are live.
    #[default]
    Live,
    /// By how many live bytes it has grown since the base.
    Grown,
    /// Bytes allocated since the last answer.
    Bytes,
    /// Blocks allocated since the last answer.
    Calls,
}

impl Order {
    /// The place of what is live, has grown since the base and was allocated since the last answer: the most comes
    /// first.
    pub fn rank(self, live: Amount, grown: Change, recent: Amount) -> i64 {
        let most = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        match self {
            Self::Live => most(live.bytes),
            Self::Grown => grown.bytes,
            Self::Bytes => most(recent.bytes),
            Self::Calls => most(recent.objects),
        }
    }
}

/// What is one row of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// Each site.
    #[default]
    Site,
    /// The sites of a function: of the innermost one that tells whose allocation it is.
    Function,
    /// The sites of the module that such a function is in.
    Module,
}

/// One question. The first of a connection sets the base of what has grown, as each one with a mark does.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TopQuestion {
    /// Which sites come first.
    pub order: Order,
    /// How many are wanted, [`MAX_SITES`] at most.
    pub sites: usize,
    /// Only those with this text in a function or a place, whatever the case of its letters; all if it is empty.
    pub filter: String,
    /// What is one row.
    pub group: Grouping,
    /// Set a mark of this name, and make it the base.
    pub mark: Option<String>,
}

/// How an amount has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Change {
    /// Blocks more, or fewer.
    pub objects: i64,
    /// Bytes more, or fewer.
    pub bytes: i64,
}

impl Change {
    /// From `before` to `now`.
    pub fn between(before: Amount, now: Amount) -> Self {
        let change = |before: u64, now: u64| {
            let most = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
            if now >= before { most(now - before) } else { -most(before - now) }
        };
        Self { objects: change(before.objects, now.objects), bytes: change(before.bytes, now.bytes) }
    }

    /// The sum; it does not overflow.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { objects: self.objects.saturating_add(other.objects), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// The moment that what has grown is compared with.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Base {
    /// The mark; None: the first answer of the connection, or of the program since its exec.
    pub mark: Option<String>,
    /// When it was, ns since tracing began.
    pub at_ns: u64,
    /// What was live then.
    pub live: Amount,
}

/// One function of a stack.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TopFrame {
    /// Its name.
    pub function: String,
    /// Its source file and line, or its module in brackets; may be empty.
    pub place: String,
    /// Whether it tells nothing of whose allocation it is: a function of a standard library or of the start of a
    /// program.
    #[serde(default)]
    pub dull: bool,
}

/// A place that allocates.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TopSite {
    /// What it is called by, the same in each answer and, of single sites, in report.json.
    pub id: u64,
    /// What its stacks have in common; empty of a single site.
    #[serde(default)]
    pub name: String,
    /// How many stacks it has, if it is no single site.
    #[serde(default)]
    pub stacks: u64,
    /// Its stack, innermost first, [`MAX_FRAMES`] at most; of several the one that comes first.
    pub frames: Vec<TopFrame>,
    /// What is live.
    pub live: Amount,
    /// How that has changed since the base.
    pub grown: Change,
    /// What it has allocated since the last answer.
    pub recent: Amount,
}

/// One answer: all figures are of one moment. Of a sampled process they are what the sample stands for, but those that
/// are counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TopAnswer {
    /// The process, as the tracer knows it.
    pub pid: i32,
    /// Its program.
    pub program: String,
    /// How often it has executed another program while it was traced.
    pub image: u32,
    /// How its calls are seen by now: `trap` or `jump`.
    pub engine: String,
    /// One byte in so many is sampled on average; 0: every block is recorded.
    pub sample_interval: u64,
    /// For how long it has been traced, ns.
    pub elapsed_ns: u64,
    /// How long it had to wait for heaptrace of that, ns; None where that is not known.
    pub waited_ns: Option<u64>,
    /// The bounds of that estimate, ns, if they are known.
    #[serde(default)]
    pub waited_range_ns: Option<(u64, u64)>,
    /// What is live.
    pub live: Amount,
    /// The most bytes that were ever live.
    pub peak_bytes: u64,
    /// What was allocated in all.
    pub allocated: Amount,
    /// The time since the last answer of this connection, ns; 0 in the first.
    pub span_ns: u64,
    /// What was allocated in that time.
    pub recent: Amount,
    /// What [`TopSite::grown`] is compared with.
    pub base: Base,
    /// How many stacks have allocated so far.
    pub stacks: u64,
    /// The text that the sites have, as it was asked for.
    #[serde(default)]
    pub filter: String,
    /// How many stacks have that text, of those with anything in their columns; 0 if there is none.
    #[serde(default)]
    pub with_text: u64,
    /// What is one row.
    #[serde(default)]
    pub group: Grouping,
    /// Those that come first.
    pub sites: Vec<TopSite>,
}
