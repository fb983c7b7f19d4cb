//! What a leak checker says of a run, ours or another, in one form, so that both can be compared.

use super::report::{Report, plain};
use serde_json::Value;
use std::collections::BTreeMap;

/// The classes, worst first, as heaptrace names them.
pub const CLASSES: [&str; 4] = ["definite", "indirect", "possible", "reachable"];

/// What stands for the functions of libraries and of programs that are no fixtures.
pub const ELSEWHERE: &str = "[elsewhere]";

/// Blocks and bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Amount {
    pub blocks: u64,
    pub bytes: u64,
}

impl Amount {
    /// Adds another one to it.
    pub fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
    }
}

/// Blocks and bytes by class, worst class first.
pub type Amounts = [Amount; 4];

/// A frame of an allocating stack.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The function without parameters; a dash if not known.
    pub function: String,
    /// The path of its source, or the empty text.
    pub file: String,
}

/// Blocks of one class from one stack.
#[derive(Clone, Debug)]
pub struct Record {
    /// The index of the class in [`CLASSES`].
    pub class: usize,
    /// These blocks alone, without what hangs on them.
    pub amount: Amount,
    /// The stack from the allocator's caller outwards.
    pub stack: Vec<Frame>,
}

/// All live blocks of a run.
#[derive(Clone, Default, Debug)]
pub struct Found {
    /// What no suppression hides.
    pub records: Vec<Record>,
    /// What suppressions hide, of all classes.
    pub suppressed: Amount,
}

impl Found {
    /// What a report of `heaptrace check` says. Fails if it holds no leak scan, or if its findings do not add up to its
    /// sums.
    pub fn from_report(report: &Report) -> Self {
        let mut found = Self::default();
        for finding in report.list("/findings") {
            let Some(name) = finding["kind"].as_str().and_then(|kind| kind.strip_prefix("leak_")) else { continue };
            let class = CLASSES.iter().position(|class| *class == name).expect("a class");
            if finding["suppressed_by"].is_null() {
                let frames = finding["stack"].as_array().expect("a stack");
                let amount = amount(&finding["direct"], "objects");
                found.records.push(Record { class, amount, stack: frames.iter().map(frame).collect() });
            }
        }
        let leaks = report.0.get("leaks").filter(|leaks| !leaks.is_null());
        let leaks = leaks.unwrap_or_else(|| panic!("no leak scan: {}", report.0["verdict"]));
        let totals = CLASSES.map(|class| amount(&leaks[class], "blocks"));
        // Of indirect blocks the sum leaves out those that hang on suppressed ones.
        let compared = |[definite, _, possible, reachable]: Amounts| [definite, possible, reachable];
        assert_eq!(compared(found.totals()), compared(totals), "findings and sums of the report differ");
        found.suppressed = amount(&leaks["suppressed"], "blocks");
        found
    }

    /// The sums by class.
    pub fn totals(&self) -> Amounts {
        let mut totals = Amounts::default();
        for record in &self.records {
            totals[record.class].add(record.amount);
        }
        totals
    }

    /// The sums by class for each function of a fixture's source that is the innermost such one on a stack. All other
    /// stacks, for which tools have different names, stand under [`ELSEWHERE`].
    pub fn by_function(&self) -> BTreeMap<String, Amounts> {
        let mut functions: BTreeMap<String, Amounts> = BTreeMap::new();
        for record in &self.records {
            let own = record.stack.iter().find(|frame| frame.file.contains("tests/fixtures/leaks/"));
            let name = own.map_or(ELSEWHERE, |frame| frame.function.as_str());
            functions.entry(name.to_owned()).or_default()[record.class].add(record.amount);
        }
        functions
    }
}

fn amount(value: &Value, blocks: &str) -> Amount {
    let number = |name: &str| value[name].as_u64().unwrap_or_else(|| panic!("no count {name} in {value}"));
    Amount { blocks: number(blocks), bytes: number("bytes") }
}

fn frame(value: &Value) -> Frame {
    let text = |name: &str| value[name].as_str().unwrap_or_default();
    Frame { function: plain(text("function")).to_owned(), file: text("file").to_owned() }
}
