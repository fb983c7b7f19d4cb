//! What a check knows before it begins: suppressions and the baseline.

use crate::cli::CheckOptions;
use crate::profile::check::CheckRules;
use crate::profile::check::baseline::Baseline;
use crate::profile::check::suppressions::Suppressions;
use crate::session::OwnSuppressions;
use crate::tracer::launch::Program;
use anyhow::{Context, bail};
use flate2::read::MultiGzDecoder;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// What was read.
    pub(super) rules: CheckRules,
    own: BTreeSet<(String, &'static str, Option<Vec<u8>>)>,
}

/// How a file begins that gzip has compressed (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

impl Rules {
    /// Reads the files that the options name, and the one that `lsan_options` (the variable $LSAN_OPTIONS) names.
    ///
    /// # Errors
    /// The first that can't be read or understood.
    pub(super) fn read(options: &CheckOptions, lsan_options: Option<OsString>) -> anyhow::Result<Self> {
        let mut rules = Self::default();
        rules.rules.policy = options.policy.clone();
        rules.rules.known_leaks = options.known_leaks;
        for path in &options.suppressions {
            rules.add_file(path)?;
        }
        for path in lsan_options.as_deref().map(suppression_files).unwrap_or_default() {
            let found = beside_program(&path, &options.run.program);
            rules.add_file(&found).context("named by $LSAN_OPTIONS")?;
        }
        if let Some(path) = &options.baseline {
            let unreadable = || format!("baseline {} can't be read", path.display());
            let mut bytes = std::fs::read(path).with_context(unreadable)?;
            if bytes.starts_with(&GZIP) {
                let mut report = Vec::new();
                MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut report).with_context(unreadable)?;
                bytes = report;
            }
            let baseline = Baseline::from_report(&bytes, &path.display().to_string())?;
            if !options.growth.is_empty() && !baseline.knows_tests() {
                bail!(
                    "baseline {}: it has no results of single tests; make one with `heaptrace check --per-test -o \
                     NAME.json`",
                    path.display()
                );
            }
            rules.rules.baseline = Some(baseline);
            rules.rules.growth.clone_from(&options.growth);
        }
        Ok(rules)
    }

    fn add_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let shown = path.display().to_string();
        let text = std::fs::read(path).with_context(|| format!("suppressions {shown} can't be read"))?;
        self.rules.suppressions.extend(Suppressions::read(&text, &shown)?);
        Ok(())
    }

    /// Adds those that the program has in itself. Returns warnings about what could not be used of them.
    pub(super) fn add_own(&mut self, own: &[OwnSuppressions]) -> Vec<String> {
        let mut warnings = Vec::new();
        // Who turns the check off does so for one process: the judgement on that one knows it.
        for OwnSuppressions { module, function, text } in own.iter().filter(|own| !own.turn_check_off()) {
            // Of several processes, many have the same.
            if self.own.insert((module.clone(), function, text.clone())) {
                warnings.extend(self.rules.add_own_suppressions(module, function, text.as_deref()));
            }
        }
        warnings
    }
}

/// The values of `suppressions=` in a list of options as sanitizers read it (sanitizer_flag_parser.cpp): separated by
/// white space, commas and colons, values in quotes if they hold these.
fn suppression_files(options: &OsStr) -> Vec<PathBuf> {
    let is_separator = |byte: u8| b" ,:\n\t\r".contains(&byte);
    let mut files = Vec::new();
    let mut rest = options.as_bytes();
    while let Some(&first) = rest.first() {
        if is_separator(first) {
            rest = rest.get(1..).unwrap_or_default();
            continue;
        }
        let name_end = rest.iter().position(|&byte| byte == b'=' || is_separator(byte)).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(name_end);
        let Some(value) = behind.strip_prefix(b"=") else {
            rest = behind;
            continue;
        };
        let quote = value.first().copied().filter(|byte| b"'\"".contains(byte));
        let (value, behind) = match quote {
            Some(quote) => {
                let value = value.get(1..).unwrap_or_default();
                let end = value.iter().position(|&byte| byte == quote).unwrap_or(value.len());
                (value.get(..end).unwrap_or_default(), value.get(end + 1..).unwrap_or_default())
            }
            None => value.split_at(value.iter().position(|&byte| is_separator(byte)).unwrap_or(value.len())),
        };
        if name == b"suppressions" && !value.is_empty() {
            files.push(PathBuf::from(OsString::from_vec(value.to_vec())));
        }
        rest = behind;
    }
    files
}

/// The sanitizers look for such a file beside the program, too.
fn beside_program(path: &Path, program: &OsStr) -> PathBuf {
    if path.is_absolute() || path.exists() {
        return path.to_owned();
    }
    let program = Program::new(program, &[], []).ok();
    let beside = program.and_then(|program| Some(program.path().parent()?.join(path)));
    beside.filter(|beside| beside.exists()).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitizer_options_name_suppression_files() {
        let files = |text: &str| suppression_files(OsStr::new(text));
        assert_eq!(
            files("verbosity=1:suppressions=a.txt,suppressions=/b/c.supp exitcode=3"),
            [PathBuf::from("a.txt"), PathBuf::from("/b/c.supp")]
        );
        assert_eq!(files("suppressions='with:colon and space'"), [PathBuf::from("with:colon and space")]);
        assert_eq!(files("suppressions=\"open"), [PathBuf::from("open")]);
        assert!(files("detect_leaks=0::suppressions=:=:suppression=x").is_empty());
        assert!(files("").is_empty());
    }
}
