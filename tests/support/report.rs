//! report.json, read and validated.

use super::running::{Asked, Ended};
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;

/// A report that its schema has accepted; in its stacks, frames stand where the file has indices into its table of
/// frames.
#[derive(Clone, Debug)]
pub struct Report(pub Value);

impl Report {
    /// Reads a file that heaptrace has written.
    pub fn read(path: &Path, ended: &Ended) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| {
            panic!("no report at {}: {error}\nheaptrace: {}\n{}", path.display(), ended.status, ended.stderr)
        });
        let mut value: Value = serde_json::from_str(&text).expect("report.json is JSON");
        if let Some(validator) = schema() {
            let errors: Vec<_> =
                validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect();
            assert!(errors.is_empty(), "report.json does not follow its schema:\n{}", errors.join("\n"));
        }
        if ended.asked.jump {
            assert_on_jump_engine(&mut value, &ended.asked);
        }
        Self::with_stacks(value)
    }

    /// A report in whose stacks frames stand, not indices.
    pub fn with_stacks(mut value: Value) -> Self {
        let frames = value["frames"].as_array().expect("a table of frames").clone();
        // Reports of before have no advice.
        for list in ["sites", "findings", "advice"] {
            if let Some(list) = value.get_mut(list) {
                fill_stacks(list, &frames);
            }
        }
        Self(value)
    }

    /// A number at a path like `/totals/allocations`.
    pub fn number(&self, pointer: &str) -> u64 {
        let value = self.0.pointer(pointer).unwrap_or_else(|| panic!("report.json has no {pointer}"));
        value.as_u64().unwrap_or_else(|| panic!("{pointer} is no count: {value}"))
    }

    /// One of the totals.
    pub fn total(&self, name: &str) -> u64 {
        self.number(&format!("/totals/{name}"))
    }

    /// One of the anomalies.
    pub fn anomaly(&self, name: &str) -> u64 {
        self.number(&format!("/anomalies/{name}"))
    }

    /// The text at a path.
    pub fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("report.json has no text {pointer}"))
    }

    /// The items of a list at a path.
    pub fn list(&self, pointer: &str) -> &[Value] {
        self.0.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("report.json has no list {pointer}"))
    }

    /// All sites.
    pub fn sites(&self) -> &[Value] {
        self.list("/sites")
    }

    /// The sites whose stack, innermost first, begins with these functions.
    pub fn sites_at<'a>(&'a self, functions: &'a [&str]) -> impl Iterator<Item = &'a Value> {
        self.sites().iter().filter(move |site| {
            let names = functions_of(site);
            names.len() >= functions.len() && names.iter().zip(functions).all(|(name, wanted)| plain(name) == *wanted)
        })
    }

    /// The sum of a figure like `/allocated/bytes` over the sites that begin with these functions.
    pub fn site_sum(&self, functions: &[&str], pointer: &str) -> u64 {
        self.sites_at(functions)
            .map(|site| {
                site.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in a site"))
            })
            .sum()
    }

    /// Fails unless nothing was lost, guessed or cut, and no error was found that the program did not make.
    pub fn assert_no_anomaly(&self) {
        let anomalies = self.0.pointer("/anomalies").and_then(Value::as_object).expect("anomalies");
        let present: Vec<_> = anomalies.iter().filter(|(_, count)| count.as_u64() != Some(0)).collect();
        assert!(present.is_empty(), "unexpected anomalies: {present:?}\nwarnings: {:?}", self.list("/warnings"));
    }

    /// Fails unless the totals agree with each other and with the sites.
    pub fn assert_consistent(&self) {
        let sum = |pointer: &str| self.site_sum(&[], pointer);
        assert_eq!(sum("/allocated/objects"), self.total("allocations"), "allocations of all sites");
        assert_eq!(sum("/allocated/bytes"), self.total("bytes_allocated"), "bytes of all sites");
        assert_eq!(sum("/live/objects"), self.total("live_blocks"), "live blocks of all sites");
        assert_eq!(sum("/live/bytes"), self.total("live_bytes"), "live bytes of all sites");
        assert_eq!(sum("/at_peak/bytes"), self.total("peak_bytes"), "bytes at peak of all sites");
        assert_eq!(sum("/at_peak/objects"), self.total("peak_blocks"), "blocks at peak of all sites");
        assert_eq!(sum("/freed/objects"), self.total("frees"), "frees of all sites");
        assert_eq!(
            self.total("allocations"),
            self.total("frees") + self.total("live_blocks"),
            "what is not freed lives"
        );
        assert_eq!(self.total("bytes_allocated"), self.total("bytes_freed") + self.total("live_bytes"));
        let histogram: u64 = self
            .list("/histograms/size")
            .iter()
            .map(|bucket| bucket.as_u64().or(bucket["count"].as_u64()).unwrap())
            .sum();
        assert_eq!(histogram, self.total("allocations"), "the size histogram counts every allocation");
        let end = self.number("/duration_ns");
        assert!(self.total("peak_at_ns") <= end, "the peak at {} ns, the end at {end}", self.total("peak_at_ns"));
        for point in self.list("/timeline") {
            assert!(point["t_ns"].as_u64().unwrap() <= end, "{point} of {end} ns");
        }
    }
}

/// What begins the warnings of what the trap engine has seen although the jump engine was asked for.
const SEEN_BY_TRAP: &str = "the trap engine, ";

/// A program of no more events than these may have come to its end before the jump engine could be had.
const FEW_EVENTS: u64 = 300;

/// Fails if the trap engine has seen what the jump engine was asked to see, unless the test knows why. A warning of
/// that is taken away where only the tests' environment has asked: the test would not expect it.
fn assert_on_jump_engine(report: &mut Value, asked: &Asked) {
    let events = report["cost"]["events"].as_u64().expect("events");
    // Who was killed may have been so before.
    let was_killed = report["exit"]["signal"] == 9;
    let on_trap = report["engine"] == "trap" && events > FEW_EVENTS && !was_killed;
    let warnings = report["warnings"].as_array_mut().expect("warnings");
    let told = |warning: &Value| warning.as_str().is_some_and(|text| text.starts_with(SEEN_BY_TRAP));
    let is_known = |warning: &Value| asked.stays_on_trap.iter().any(|why| warning.as_str().unwrap().contains(why));
    let unknown: Vec<_> = warnings.iter().filter(|warning| told(warning) && !is_known(warning)).collect();
    assert!(
        was_killed || unknown.is_empty(),
        "the test does not say that it knows (Program::stays_on_trap): {unknown:?}"
    );
    let is_explained = warnings.iter().any(told);
    assert!(
        !on_trap || is_explained,
        "{events} events were left to the trap engine, and nobody says why: {warnings:?}"
    );
    if !asked.by_option {
        warnings.retain(|warning| !told(warning));
    }
}

/// Puts frames where stacks have their indices, here and in what stands below.
fn fill_stacks(value: &mut Value, frames: &[Value]) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| fill_stacks(item, frames)),
        Value::Object(fields) => {
            for (name, field) in fields {
                if !name.ends_with("stack") {
                    fill_stacks(field, frames);
                    continue;
                }
                for index in field.as_array_mut().expect("a stack") {
                    let at = index.as_u64().expect("an index of a frame") as usize;
                    *index = frames.get(at).expect("a frame in the table").clone();
                }
            }
        }
        _ => {}
    }
}

/// Function names of a site or finding, innermost first.
pub fn functions_of(site: &Value) -> Vec<String> {
    let frames = site["stack"].as_array().expect("a stack");
    frames.iter().map(|frame| frame["function"].as_str().expect("function is never null").to_owned()).collect()
}

/// A C++ name without its parameters: `f(int)` is `f`.
pub fn plain(name: &str) -> &str {
    if name.starts_with('(') { name } else { name.split('(').next().unwrap_or(name) }
}

fn schema() -> Option<&'static jsonschema::Validator> {
    static SCHEMA: OnceLock<Option<jsonschema::Validator>> = OnceLock::new();
    SCHEMA
        .get_or_init(|| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/report.schema.json");
            let text = std::fs::read_to_string(path).ok()?;
            let value = serde_json::from_str(&text).expect("the schema is JSON");
            Some(jsonschema::validator_for(&value).expect("the schema is a schema"))
        })
        .as_ref()
}
