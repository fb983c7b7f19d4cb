//! What the formats for CI systems say of a check: each error and each leak once, with a place in the source.

use super::findings::{finding_sentence, finding_words};
use super::telling::telling_frames;
use super::text::{grouped, plural, printable};
use super::view::{NamedFrame, View};
use crate::profile::check::verdict::DEFAULT_LEAK_KINDS;
use crate::profile::leaks::{BaselineStatus, LeakClass, LeakSite};
use crate::profile::{Amount, Finding, FindingKind};
use std::path::Path;

/// An error or a leak. Sites whose functions have equal names are one.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// The id in report.json: the same in the next build.
    pub id: u64,
    /// What it is.
    pub rule: ProblemKind,
    /// Whether the check fails because of it.
    pub fails: bool,
    /// The leak's own blocks; nothing for an error.
    pub direct: Amount,
    /// What hangs on them.
    pub indirect: Amount,
    /// What happened, as a sentence without a full stop.
    pub sentence: String,
    /// How many more findings of the same id there were.
    pub similar: u64,
    /// The function that it is told of.
    pub function: String,
    /// All stacks, with what happened there; the first one is where the problem is.
    pub stacks: Vec<(&'static str, usize)>,
    /// How it compares with the baseline.
    pub baseline: Option<BaselineStatus>,
    /// The name of the suppression that hides it.
    pub suppressed_by: Option<String>,
}

/// A kind of problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProblemKind {
    /// An error in the use of the heap.
    Error(FindingKind),
    /// A leak.
    Leak(LeakClass),
}

impl ProblemKind {
    /// The kind of the finding in report.json.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error(kind) => kind.name(),
            Self::Leak(class) => class.finding_kind(),
        }
    }

    /// What it is, as the beginning of a title: `definite leak`, `freed twice`.
    pub fn title(self) -> String {
        match self {
            Self::Error(kind) => finding_words(kind).to_owned(),
            Self::Leak(class) => format!("{} leak", class.name()),
        }
    }

    /// What it means, in a sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Error(FindingKind::DoubleFree) => "A block was freed a second time.",
            Self::Error(FindingKind::InvalidFree) => "A pointer was freed that the allocator never handed out.",
            Self::Error(FindingKind::MismatchedFree) => {
                "A block was freed by another family of functions than allocated it, as delete of a malloc."
            }
            Self::Error(FindingKind::SizedDelete) => "A block was freed with another size than it was requested with.",
            Self::Error(FindingKind::AlignedDelete) => {
                "A block was freed by an operator delete of another alignment than operator new was asked for."
            }
            Self::Leak(LeakClass::Definite) => "No pointer to the block was left when the program ended.",
            Self::Leak(LeakClass::Indirect) => "Only leaked blocks held pointers to the block when the program ended.",
            Self::Leak(LeakClass::Possible) => {
                "Only pointers into the inside of blocks led to the block when the program ended."
            }
            Self::Leak(LeakClass::Reachable) => "The block was still reachable, and not freed, when the program ended.",
        }
    }
}

/// All errors and leaks that a report shows: reachable blocks only if they count. Errors first, then the worst class
/// and the most bytes first.
pub(crate) fn problems(view: &View<'_>) -> Vec<Problem> {
    let profile = view.profile;
    let errors_count = profile.verdict.as_ref().is_none_or(|verdict| verdict.errors);
    let kinds = profile.verdict.as_ref().map_or(DEFAULT_LEAK_KINDS, |verdict| verdict.leak_kinds);
    let mut all: Vec<Problem> = Vec::new();
    let mut add = |problem: Problem| match all.iter_mut().find(|known| known.id == problem.id) {
        Some(known) => known.merge(&problem),
        None => all.push(problem),
    };
    for finding in &profile.findings {
        add(error(view, finding, errors_count));
    }
    if let Some(leaks) = &profile.leaks {
        for class in [LeakClass::Definite, LeakClass::Possible, LeakClass::Reachable] {
            let counts = kinds.get(class as usize).copied().unwrap_or(false);
            let sites = leaks.sites.iter().filter(|_| counts || class != LeakClass::Reachable);
            for site in sites.filter(|site| site.amounts.get(class as usize).is_some_and(|amount| amount.objects > 0)) {
                add(leak(view, site, class, &kinds));
            }
        }
    }
    for problem in &mut all {
        match problem.rule {
            ProblemKind::Leak(class) => problem.sentence = leak_sentence(class, problem.direct, problem.indirect),
            ProblemKind::Error(_) if problem.similar > 0 => {
                problem.sentence.push_str(&format!("; and {} more of this kind there", grouped(problem.similar)));
            }
            ProblemKind::Error(_) => {}
        }
    }
    all
}

impl Problem {
    /// Counts another site of the same id with this one.
    fn merge(&mut self, other: &Self) {
        self.direct = self.direct.plus(other.direct);
        self.indirect = self.indirect.plus(other.indirect);
        self.fails |= other.fails;
        self.similar += 1;
    }

    /// The name under which a CI system follows it: without numbers, which change.
    pub fn name(&self) -> String {
        format!("{} in {}", self.rule.title(), self.function)
    }
}

fn error(view: &View<'_>, finding: &Finding, counts: bool) -> Problem {
    Problem {
        id: view.profile.finding_id(finding),
        rule: ProblemKind::Error(finding.kind),
        fails: counts && finding.baseline != Some(BaselineStatus::Known),
        direct: Amount::default(),
        indirect: Amount::default(),
        sentence: printable(&finding_sentence(finding)),
        similar: 0,
        function: function(view, finding.stack),
        stacks: finding.stacks().collect(),
        baseline: finding.baseline,
        suppressed_by: None,
    }
}

fn leak(view: &View<'_>, site: &LeakSite, class: LeakClass, kinds: &[bool; 4]) -> Problem {
    let direct = site.amounts.get(class as usize).copied().unwrap_or_default();
    let indirect = if class == LeakClass::Definite { site.holds } else { Amount::default() };
    let rule = site.hidden_by(class).map(|index| view.profile.suppressions.get(index));
    Problem {
        id: view.profile.leak_id(class, site.stack),
        rule: ProblemKind::Leak(class),
        fails: site.fails(kinds, class),
        direct,
        indirect,
        sentence: String::new(),
        similar: 0,
        function: function(view, site.stack),
        stacks: vec![("allocated at", site.stack)],
        baseline: site.compared(class),
        suppressed_by: rule.map(|rule| rule.map_or_else(String::new, |rule| printable(&rule.rule))),
    }
}

/// What blocks of a class are, in Memcheck's words.
pub(crate) const fn leak_state(class: LeakClass) -> &'static str {
    match class {
        LeakClass::Definite => "definitely lost",
        LeakClass::Indirect => "indirectly lost",
        LeakClass::Possible => "possibly lost",
        LeakClass::Reachable => "still reachable",
    }
}

/// `3,200 bytes in 5 blocks (3,072 direct + 128 indirect) are definitely lost`
pub(crate) fn leak_sentence(class: LeakClass, direct: Amount, indirect: Amount) -> String {
    let all = direct.plus(indirect);
    let parts = if indirect == Amount::default() {
        String::new()
    } else {
        format!(" ({} direct + {} indirect)", grouped(direct.bytes), grouped(indirect.bytes))
    };
    let state = leak_state(class);
    format!("{} in {}{parts} are {state}", plural(all.bytes, "byte"), plural(all.objects, "block"))
}

/// The frame that a problem is told of, by its function and its line: the innermost in the program's own source, else
/// the innermost with a line, else the innermost.
pub(crate) fn told_frame<'a>(view: &View<'a>, stack: usize) -> Option<NamedFrame<'a>> {
    let line = |frame: &NamedFrame<'_>| source_line(view, frame);
    let is_own = |frame: &NamedFrame<'_>| line(frame).is_some_and(|line| !line.path.starts_with('/'));
    let mut telling = telling_frames(view, stack, usize::MAX);
    let best = telling.iter().position(is_own).or_else(|| telling.iter().position(|frame| line(frame).is_some()));
    match best {
        Some(best) => Some(telling.swap_remove(best)),
        None => view.frames(stack).find(|frame| line(frame).is_some()).or_else(|| telling.into_iter().next()),
    }
}

fn function(view: &View<'_>, stack: usize) -> String {
    told_frame(view, stack).map_or_else(String::new, |frame| printable(frame.name))
}

/// A line of a source file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SourceLine {
    /// The path: relative to the working directory if it lies below it, else as debug information has it.
    pub path: String,
    /// The line, from 1 on.
    pub line: u32,
}

/// Where a frame is in the source.
pub(crate) fn source_line(view: &View<'_>, frame: &NamedFrame<'_>) -> Option<SourceLine> {
    let file = frame.file.filter(|_| frame.line > 0)?;
    let below = Path::new(file).strip_prefix(&view.profile.meta.process.cwd).ok().and_then(Path::to_str);
    let path = below.unwrap_or(file);
    Some(SourceLine { path: path.strip_prefix("./").unwrap_or(path).to_owned(), line: frame.line })
}

/// Where a problem is best shown.
pub(crate) fn best_line(view: &View<'_>, stack: usize) -> Option<SourceLine> {
    source_line(view, &told_frame(view, stack)?)
}

/// A stack as lines of text: a title, then each frame with its place.
pub(crate) fn stack_text(view: &View<'_>, title: &str, stack: usize) -> String {
    let mut text = format!("{title}\n");
    for frame in view.frames(stack) {
        let place = frame.place(usize::MAX);
        let place = if place.is_empty() { place } else { format!("  {place}") };
        text += &format!("    {}{place}\n", printable(frame.name));
    }
    text
}
