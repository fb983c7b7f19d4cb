//! What the code says in words: comments that fit a screen, constants whose names say what they bound.

use super::{package, rust_files};

/// A comment is read beside code, in half a screen. rustfmt keeps code at this width, but not comments.
const MAX_COLUMNS: usize = 120;

/// Names that say too little: each stood in several files for another thing, in other units. MAX_…, MIN_…, …_TIMEOUT,
/// …_INTERVAL or a unit say it.
const VAGUE: [&str; 6] = ["MOST", "LEAST", "PATIENCE", "FEW", "SHARE", "WHOLE"];

/// All lines of Rust, each with its file and number.
fn lines() -> Vec<(String, usize, String)> {
    let mut files = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples"] {
        rust_files(&package().join(folder), &mut files);
    }
    assert!(files.len() > 100, "the sources are missing");
    let of_file = |file: std::path::PathBuf| {
        let path = file.strip_prefix(package()).unwrap().display().to_string();
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<_> =
            text.lines().enumerate().map(|(at, line)| (path.clone(), at + 1, line.to_owned())).collect();
        lines
    };
    files.into_iter().flat_map(of_file).collect()
}

/// Whether a line is a comment that could be broken: not a row of a table.
fn is_prose(line: &str) -> bool {
    line.trim_start().strip_prefix("//").is_some_and(|rest| !rest.trim_start_matches(['/', '!', ' ']).starts_with('|'))
}

#[test]
fn comments_fit_beside_code() {
    let is_long = |line: &str| is_prose(line) && line.chars().count() > MAX_COLUMNS;
    assert!(is_long(&format!("    /// {}", "x".repeat(MAX_COLUMNS))) && !is_long(&format!("{:120}", "// short")));
    let long: Vec<_> = lines().into_iter().filter(|(_, _, line)| is_long(line)).collect();
    let places: Vec<_> = long.iter().map(|(path, number, _)| format!("{path}:{number}")).collect();
    assert!(places.is_empty(), "comments of more than {MAX_COLUMNS} columns: {}", places.join(", "));
}

/// The name of the constant that a line declares.
fn constant(line: &str) -> Option<&str> {
    let (_, name) = line.split_once("const ")?;
    Some(name.split_once(':')?.0.trim())
}

#[test]
fn constants_say_what_they_bound() {
    let is_vague = |name: &str| {
        VAGUE.contains(&name) || ["MOST_", "LEAST_", "FEWEST_"].iter().any(|prefix| name.starts_with(prefix))
    };
    assert_eq!(constant("    pub const MOST: usize = 3;").map(is_vague), Some(true));
    let declared = lines().into_iter().filter(|(path, ..)| path.starts_with("src/") || path.starts_with("crates/"));
    let vague: Vec<_> = declared
        .filter(|(_, _, line)| constant(line).is_some_and(is_vague))
        .map(|(path, number, line)| format!("{path}:{number}: {}", line.trim()))
        .collect();
    assert!(vague.is_empty(), "{}", vague.join("\n"));
}
