//! Python's readers of the formats that heaptrace writes.

use super::report::Report;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python that has the packages of tests/requirements.txt.
pub fn python() -> Command {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python/bin/python");
    assert!(python.exists(), "{} is not there: ./test makes it", python.display());
    Command::new(python)
}

/// Releases of mimalloc 3 that are there as libraries.
pub const MIMALLOCS: [&str; 2] = ["3.2.8", "3.4.3"];

/// The library of one of them.
pub fn mimalloc(release: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/python/mimalloc-{release}"));
    let library = folder.join("cmeel.prefix/lib/libmimalloc.so.3");
    assert!(library.exists(), "{} is not there: ./test gets it", library.display());
    library
}

/// What `tests/formats.py` says of a file.
pub fn read_format(format: &str, file: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats.py");
    let output = python().arg(script).arg(format).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Figures by innermost function, without those that are zero.
pub type ByFunction = BTreeMap<String, BTreeMap<String, u64>>;

/// The figures of such a reader.
pub fn by_function(read: &Value) -> ByFunction {
    let functions = read["functions"].as_object().unwrap();
    let figures = |value: &Value| {
        let figures = value.as_object().unwrap().iter();
        let mut figures: BTreeMap<_, _> =
            figures.map(|(name, value)| (name.clone(), value.as_u64().unwrap())).collect();
        figures.retain(|_, value| *value != 0);
        figures
    };
    functions.iter().map(|(name, value)| (name.clone(), figures(value))).filter(|(_, map)| !map.is_empty()).collect()
}

/// The same figures from report.json.
pub fn of_report(report: &Report) -> ByFunction {
    sums(report, |_| true)
}

/// The same by the innermost function that was not inlined.
pub fn by_outer_function(report: &Report) -> ByFunction {
    sums(report, |frame| frame["inlined"] != true)
}

/// Sums by the innermost function that `counts`.
fn sums(report: &Report, counts: impl Fn(&Value) -> bool) -> ByFunction {
    let mut all = ByFunction::new();
    for site in report.sites() {
        let name = match site["stack"].as_array().unwrap().iter().find(|frame| counts(frame)) {
            Some(frame) => frame["function"].as_str().unwrap().to_owned(),
            None => "[unknown stack]".to_owned(),
        };
        let figures = all.entry(name).or_default();
        for (figure, key) in [("allocated", "allocated"), ("live", "live"), ("peak", "at_peak")] {
            for unit in ["objects", "bytes"] {
                *figures.entry(format!("{figure}_{unit}")).or_default() += site[key][unit].as_u64().unwrap();
            }
        }
        *figures.entry("temporary".to_owned()).or_default() += site["temporary"].as_u64().unwrap();
    }
    all.values_mut().for_each(|figures| figures.retain(|_, value| *value != 0));
    all.retain(|_, figures| !figures.is_empty());
    all
}

/// The figures with one of these names only.
pub fn only(mut functions: ByFunction, names: &[&str]) -> ByFunction {
    functions.values_mut().for_each(|figures| figures.retain(|name, _| names.contains(&&**name)));
    functions.retain(|_, figures| !figures.is_empty());
    functions
}

/// The sum of a figure over all functions.
pub fn sum(functions: &ByFunction, figure: &str) -> u64 {
    functions.values().filter_map(|figures| figures.get(figure)).sum()
}
