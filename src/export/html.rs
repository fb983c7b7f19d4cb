//! A report to look at in a browser: one file, which opens from a disk and asks no network for anything.
//!
//! The page (`web/`) is plain HTML, CSS and JavaScript. Two packed blocks hold the data: `words`, JSON with the head of
//! report.json and the texts that the summary has, and `numbers`, the call tree as flat lists (`numbers.rs`). Both are
//! compressed and in Base64, so that no name of the program's can be taken for markup; the page puts them in as text
//! only.

mod difference;
mod numbers;
mod pack;
mod source;
mod tree;

use super::advice::{self, AdviceLine};
use super::cost;
use super::json::{self, frames::FrameTable};
use super::problems::problems;
use super::report::thread_sums;
use super::sections::{self, Layout, is_held, value_title};
use super::telling;
use super::text::{self, Paint};
use super::view::{StackTotals, View};
use super::{ExportOptions, names};
use crate::base::advice::Proof;
use crate::profile::check::suppressions::suppression_of;
use crate::profile::leaks::LeakClass;
use crate::profile::value::Value;
use crate::profile::{Amount, Profile};
pub(super) use difference::write as write_difference;
use difference::{Side, WordsDifference};
use numbers::Numbers;
use rustc_hash::FxHashMap;
use serde::Serialize;
use source::Source;
use std::io::{self, Write};
use tree::CallTree;

/// The page, with `{{…}}` where the rest goes.
const PAGE: &str = include_str!("../../web/page.html");

/// Its look.
const STYLE: &str = include_str!("../../web/style.css");

/// Its modules: each names things only of those before it.
const MODULES: [&str; 20] = [
    include_str!("../../web/text.js"),
    include_str!("../../web/data.js"),
    include_str!("../../web/work.js"),
    include_str!("../../web/tree.js"),
    include_str!("../../web/sums.js"),
    include_str!("../../web/window.js"),
    include_str!("../../web/course.js"),
    include_str!("../../web/words.js"),
    include_str!("../../web/model.js"),
    include_str!("../../web/state.js"),
    include_str!("../../web/dom.js"),
    include_str!("../../web/row.js"),
    include_str!("../../web/flame.js"),
    include_str!("../../web/table.js"),
    include_str!("../../web/timeline.js"),
    include_str!("../../web/source.js"),
    include_str!("../../web/findings.js"),
    include_str!("../../web/tests.js"),
    include_str!("../../web/about.js"),
    include_str!("../../web/main.js"),
];

/// Wide enough that no sentence is cut into lines.
const UNWRAPPED: Layout = Layout { paint: Paint { color: false }, width: 1 << 20 };

/// So much is advised at most.
const MAX_ADVICE: usize = 5;

/// The column of what a leak scan found lost.
const LEAKED: &str = "leaked";

/// Writes the page.
///
/// # Errors
/// What `out` says.
pub(super) fn write(view: &View<'_>, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let mut table = json::frames(view);
    tree::stacks_of_heaps(view.profile).for_each(|stack| table.enter(stack));
    let columns = columns(view);
    let value = view.value(options.value);
    let tree = CallTree::new(view, &table, &tree::by_place(&table), |site| site.of(value).bytes);
    let mut numbers = Numbers::new(&table);
    numbers.tree(&tree);
    numbers.sites(view, &tree, &columns);
    if sections::has_lifetimes(view.profile) {
        numbers.lifetimes(view);
    }
    numbers.heaps(view, &tree);
    let source = if options.source { source::of(view, &table, &columns) } else { Source::default() };
    let words = words(view, options, &table, &columns, &numbers.strings, &source);
    page(&title(view, options), &words, &numbers.bytes, out)
}

/// The page with these data.
fn page(title: &str, words: &impl Serialize, numbers: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut json = Vec::new();
    serde_json::to_writer(super::escape::Json(&mut json), words)?;
    let script = bundle();
    for piece in PAGE.split("{{").enumerate() {
        let text = match piece {
            (0, text) => text,
            (_, piece) => {
                let (name, text) = piece.split_once("}}").unwrap_or((piece, ""));
                match name {
                    "title" => out.write_all(super::escape::xml(title).as_bytes())?,
                    "style" => out.write_all(STYLE.as_bytes())?,
                    "script" => out.write_all(script.as_bytes())?,
                    "words" => pack::write(&json, out)?,
                    "numbers" => pack::write(numbers, out)?,
                    _ => {}
                }
                text
            }
        };
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn title(view: &View<'_>, options: &ExportOptions) -> String {
    options.title.clone().unwrap_or_else(|| format!("{} – heaptrace", view.profile.meta.process.program))
}

/// The modules as one: without comments, the lines that import, and the words that export.
fn bundle() -> String {
    let mut script = String::new();
    let is_code =
        |line: &&str| !line.is_empty() && !line.starts_with("import ") && !line.trim_start().starts_with("//");
    for line in MODULES.iter().flat_map(|module| module.lines()).filter(is_code) {
        script.push_str(line.strip_prefix("export ").unwrap_or(line));
        script.push('\n');
    }
    script
}

/// An amount that the page can show of each site.
#[derive(Clone, Copy, Debug)]
enum Column {
    Value(Value),
    Leaked,
    /// Of a difference.
    Side(Side),
}

impl Column {
    fn words(self, view: &View<'_>) -> WordsColumn {
        match self {
            Self::Value(value) => WordsColumn { name: value.name(), title: value_title(view, value) },
            Self::Leaked => WordsColumn { name: LEAKED, title: "Leaked" },
            Self::Side(side) => WordsColumn { name: side.name(), title: side.title() },
        }
    }

    /// What a site has; `leaked`: what each has lost, by its id.
    fn of(self, site: &StackTotals, view: &View<'_>, leaked: &FxHashMap<u64, Amount>) -> Amount {
        match self {
            Self::Value(value) => site.of(value),
            Self::Leaked => leaked.get(&view.id_of(site)).copied().unwrap_or_default(),
            Self::Side(side) => side.of(site),
        }
    }
}

/// Those that the profile knows, in the order of their keys.
fn columns(view: &View<'_>) -> Vec<Column> {
    let values = Value::ALL.into_iter().filter(|value| is_held(view.profile, *value)).map(Column::Value);
    values.chain(view.profile.leaks.iter().map(|_| Column::Leaked)).collect()
}

/// The blocks that were found lost and are not suppressed, by the id of their site: a site is of all stacks with its
/// functions' names.
fn leaked(profile: &Profile) -> FxHashMap<u64, Amount> {
    let mut by_site: FxHashMap<u64, Amount> = FxHashMap::default();
    for site in profile.leaks.iter().flat_map(|leaks| &leaks.sites) {
        let sum = by_site.entry(profile.site_id(site.stack)).or_default();
        let classes = site.amounts.iter().zip(&site.suppressed_by).take(LeakClass::Indirect as usize + 1);
        *sum = classes.filter(|(_, rule)| rule.is_none()).fold(*sum, |sum, (amount, _)| sum.plus(*amount));
    }
    by_site
}

#[derive(Serialize)]
struct Words<'a, R: Serialize> {
    title: String,
    report: R,
    strings: &'a [String],
    columns: Vec<WordsColumn>,
    /// Whether it is known for how long blocks have lived.
    lifetimes: bool,
    /// Which one is shown first.
    column: &'static str,
    header: Vec<String>,
    resident: Option<String>,
    cost: Vec<String>,
    unnamed: Vec<String>,
    anomalies: Vec<WordsAnomaly>,
    advice: Vec<WordsAdvice<'a>>,
    problems: Vec<WordsProblem>,
    /// One row for each name of a thread.
    threads: Vec<WordsThread<'a>>,
    /// When marks were set, in nanoseconds, and their names.
    marks: &'a [(u64, String)],
    /// Time in nanoseconds and bytes resident.
    resident_course: &'a [(u64, u64)],
    attached: bool,
    source: &'a Source,
    /// Of a difference: of what.
    difference: Option<WordsDifference<'a>>,
}

#[derive(Serialize)]
struct WordsColumn {
    name: &'static str,
    title: &'static str,
}

#[derive(Serialize)]
struct WordsAnomaly {
    count: u64,
    label: &'static str,
    meaning: &'static str,
}

/// What the program could do to allocate less.
#[derive(Serialize)]
struct WordsAdvice<'a> {
    lead: &'static str,
    text: String,
    /// The column that shows it, and the function whose callers it is about.
    column: &'static str,
    function: &'a str,
}

/// A finding in words, by its id in the report.
#[derive(Serialize)]
struct WordsProblem {
    id: String,
    title: String,
    sentence: String,
    fails: bool,
    /// What hides it, ready for a file of suppressions.
    suppression: Option<String>,
}

#[derive(Serialize)]
struct WordsThread<'a> {
    name: &'a str,
    /// One for each column; nothing where threads are not told apart.
    amounts: Vec<Amount>,
}

fn words<'a>(
    view: &'a View<'a>,
    options: &ExportOptions,
    table: &'a FrameTable<'a>,
    columns: &[Column],
    strings: &'a [String],
    source: &'a Source,
) -> Words<'a, impl Serialize + use<'a>> {
    let profile = view.profile;
    let values = columns.iter().map(|column| match column {
        Column::Value(value) => Some(*value),
        Column::Leaked | Column::Side(_) => None,
    });
    let threads = thread_sums(view, &values.collect::<Vec<_>>()).into_iter();
    Words {
        title: title(view, options),
        report: json::head(view, table),
        strings,
        columns: columns.iter().map(|column| column.words(view)).collect(),
        lifetimes: sections::has_lifetimes(profile),
        column: view.value(options.value).name(),
        header: lines(|out| sections::header(out, UNWRAPPED, profile, "")),
        resident: sections::resident_sentence(profile),
        cost: lines(|out| cost::cost(out, UNWRAPPED, view)),
        unnamed: lines(|out| names::missing(out, UNWRAPPED, view)),
        anomalies: sections::doubts(profile)
            .into_iter()
            .map(|anomaly| WordsAnomaly { count: anomaly.count, label: anomaly.label, meaning: anomaly.meaning })
            .collect(),
        advice: words_of_advice(view),
        problems: words_of_problems(view),
        threads: threads.map(|(thread, amounts)| WordsThread { name: view.string(thread), amounts }).collect(),
        marks: &profile.course.marks,
        resident_course: &profile.course.resident,
        attached: profile.meta.mode.is_attached(),
        source,
        difference: None,
    }
}

/// That one site has most of the peak, a sentence about the peak says already.
fn words_of_advice<'a>(view: &View<'a>) -> Vec<WordsAdvice<'a>> {
    let all = advice::advice(view).into_iter();
    let words = all.filter_map(|AdviceLine { proof, stack, text }| {
        let (lead, column) = match proof {
            Proof::LargestAtPeak { .. } => return None,
            Proof::Temporaries { .. } => ("Short-lived blocks", Value::Temporary),
            Proof::Growth { .. } => ("Growth bit by bit", Value::Allocated),
            Proof::SizeClass { .. } => ("Sizes just too large", Value::Peak),
            Proof::FreedElsewhere { .. } => ("Freed by other threads", Value::Freed),
            Proof::NeverWritten { .. } => ("Capacity never written", Value::Allocated),
        };
        let function = telling::telling_frames(view, stack, 1).first()?.name;
        Some(WordsAdvice { lead, text, column: column.name(), function })
    });
    words.take(MAX_ADVICE).collect()
}

fn words_of_problems(view: &View<'_>) -> Vec<WordsProblem> {
    let profile = view.profile;
    let sites = || profile.leaks.iter().flat_map(|leaks| &leaks.sites);
    let suppression = |id| {
        sites().find_map(|site| {
            let class = LeakClass::ALL.into_iter().find(|class| profile.leak_id(*class, site.stack) == id)?;
            suppression_of(profile, site, &[class])
        })
    };
    let words = problems(view).into_iter().map(|problem| WordsProblem {
        id: format!("{:016x}", problem.id),
        title: text::capitalized(&problem.rule.title()),
        suppression: suppression(problem.id),
        sentence: problem.sentence,
        fails: problem.fails,
    });
    words.collect()
}

/// What a part of the summary says, without its heading.
fn lines(write: impl FnOnce(&mut String)) -> Vec<String> {
    let mut text = String::new();
    write(&mut text);
    let lines = text.lines().filter(|line| !line.is_empty());
    let has_heading = text.starts_with('\n');
    lines.skip(usize::from(has_heading)).map(|line| line.trim().to_owned()).collect()
}
