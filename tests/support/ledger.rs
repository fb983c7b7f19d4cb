//! What a fixture says about its own calls (see `tests/fixtures/ledger.h`).

use std::collections::BTreeMap;
use std::path::Path;

/// The figures of a program or of one of its functions, by name.
pub type Figures = BTreeMap<String, u64>;

/// A fixture's own account, in the names of report.json.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// The sums over all of the fixture's own calls.
    pub totals: Figures,
    /// The same by the function that made the call.
    pub sites: BTreeMap<String, Figures>,
}

impl Ledger {
    /// Reads the file that the fixture wrote to `$LEDGER`.
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("the fixture wrote no ledger at {}: {error}", path.display()));
        Self::parse(&text)
    }

    /// Parses it.
    pub fn parse(text: &str) -> Self {
        let mut ledger = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let figures = match words.next() {
                Some("ledger") => &mut ledger.totals,
                Some("site") => ledger.sites.entry(words.next().expect("site without name").to_owned()).or_default(),
                other => panic!("not a ledger line: {other:?} in {line:?}"),
            };
            for word in words {
                let (name, value) = word.split_once('=').expect("name=value");
                figures.insert(name.to_owned(), value.parse().expect("a number"));
            }
        }
        ledger
    }

    /// One of the totals.
    pub fn total(&self, name: &str) -> u64 {
        *self.totals.get(name).unwrap_or_else(|| panic!("the ledger has no {name}"))
    }
}
