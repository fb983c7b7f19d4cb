//! The two formats of suppression files.
//!
//! Sources: the sanitizers' documentation of `suppressions`; Valgrind's manual, section 2.5 "Suppressing errors", and
//! 4.4 "Writing suppression files" of Memcheck's.

use super::pattern::{Entry, Template};
use super::{Matcher, SuppressionError, SuppressionRule};
use crate::base::glob::Glob;
use crate::profile::FindingKind;
use crate::profile::leaks::LeakClass;

/// What other sanitizers' files suppress: such lines are no mistake in a file that several tools share.
const OTHER_SANITIZERS: &str = "\
    race race_top mutex thread signal called_from_lib deadlock interceptor_name interceptor_via_fun \
    interceptor_via_lib odr_violation alloc_dealloc_mismatch vptr_check undefined";

/// Which of our errors a kind of Memcheck's means (mc_errors.c, `MC_(error_matches_suppression)`). Other kinds are of
/// errors that we do not look for, and new ones come with each release of Valgrind.
fn errors(kind: &str) -> &'static [FindingKind] {
    match kind {
        "Free" => &[FindingKind::DoubleFree, FindingKind::InvalidFree, FindingKind::MismatchedFree],
        "SizeMismatch" => &[FindingKind::SizedDelete],
        "AlignMismatch" => &[FindingKind::AlignedDelete],
        _ => &[],
    }
}

/// Whether a kind is `Leak` with a slip.
fn is_nearly_leak(kind: &str) -> bool {
    let kind = kind.trim().to_ascii_lowercase();
    matches!(kind.as_str(), "leak" | "leaks" | "leek" | "lea" | "laek")
}

/// Valgrind's own limit of lines in one entry's stack.
const MAX_ENTRIES: usize = 500;

/// The lines that say something, without white space around them, and with their numbers.
struct Lines<'a> {
    file: &'a str,
    lines: std::vec::IntoIter<(u32, String)>,
    /// The number of the last line that was read.
    line: u32,
}

impl<'a> Lines<'a> {
    fn new(text: &[u8], file: &'a str) -> Self {
        let numbered = text.split(|byte| *byte == b'\n').zip(1..).map(|(line, number)| {
            let line = String::from_utf8_lossy(line);
            (number, line.trim().to_owned())
        });
        let lines: Vec<_> = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
        Self { file, lines: lines.into_iter(), line: 0 }
    }

    fn next(&mut self) -> Option<String> {
        let (number, line) = self.lines.next()?;
        self.line = number;
        Some(line)
    }

    /// The next line, within an entry that is not closed yet.
    fn inside(&mut self) -> Result<String, SuppressionError> {
        let opened = self.line;
        self.next().ok_or_else(|| SuppressionError {
            file: self.file.to_owned(),
            line: opened,
            reason: "the file ends here, before the `}` of this entry".to_owned(),
        })
    }

    fn error(&self, reason: impl Into<String>) -> SuppressionError {
        SuppressionError { file: self.file.to_owned(), line: self.line, reason: reason.into() }
    }
}

pub(super) fn read(text: &[u8], file: &str) -> Result<Vec<SuppressionRule>, SuppressionError> {
    let mut lines = Lines::new(text, file);
    let mut rules = Vec::new();
    while let Some(line) = lines.next() {
        let rule = if line == "{" { valgrind(&mut lines)? } else { sanitizer(&lines, &line)? };
        rules.extend(rule);
    }
    Ok(rules)
}

/// `leak:PATTERN`
fn sanitizer(lines: &Lines<'_>, line: &str) -> Result<Option<SuppressionRule>, SuppressionError> {
    let Some((kind, pattern)) = line.split_once(':') else {
        return Err(
            lines.error(format!("`{}` is neither `leak:PATTERN` nor the `{{` of an entry for Valgrind", short(line)))
        );
    };
    if OTHER_SANITIZERS.split(' ').any(|other| other == kind) {
        return Ok(None);
    }
    if kind != "leak" {
        let advice = if matches!(kind, "fun" | "obj" | "src") { " outside of an entry `{ … }`" } else { "" };
        return Err(lines.error(format!(
            "`{}:`{advice} is not a kind of suppression; `leak:PATTERN` suppresses leaks",
            short(kind)
        )));
    }
    let pattern = pattern.trim();
    if pattern.is_empty() {
        return Err(lines.error("`leak:` without a pattern would hide every leak; write `leak:*` if that is meant"));
    }
    let matcher = Matcher::Any(Template::new(pattern));
    let (name, file) = (pattern.to_owned(), lines.file.to_owned());
    Ok(Some(SuppressionRule { name, file, line: lines.line, classes: [true; 4], errors: &[], matcher }))
}

/// The rest of an entry of Valgrind, behind its opening brace. None for another tool or kind.
fn valgrind(lines: &mut Lines<'_>) -> Result<Option<SuppressionRule>, SuppressionError> {
    let name = lines.inside()?;
    if name == "}" {
        return Err(lines.error("an empty entry: its first line is a name, the second `Memcheck:Leak`"));
    }
    let line = lines.line;
    let tools = lines.inside()?;
    let Some((tools, kind)) = tools.split_once(':') else {
        return Err(lines.error(format!("`{}` should be TOOL:KIND, as `Memcheck:Leak`", short(&tools))));
    };
    if tools.is_empty() || kind.is_empty() {
        return Err(lines.error("TOOL:KIND lacks one of them, as in `Memcheck:Leak`"));
    }
    if !tools.split(',').any(|tool| tool.trim() == "Memcheck") {
        return skip(lines).map(|()| None);
    }
    let errors = errors(kind);
    let is_leak = kind == "Leak";
    if !is_leak && is_nearly_leak(kind) {
        return Err(
            lines.error(format!("`Memcheck:{}` is not a kind of error; leaks are `Memcheck:Leak`", short(kind)))
        );
    }
    if !is_leak && errors.is_empty() {
        return skip(lines).map(|()| None);
    }
    let mut classes = [is_leak; 4];
    let mut entries = Vec::new();
    loop {
        let text = lines.inside()?;
        if text == "}" {
            break;
        }
        if let Some(kinds) = text.strip_prefix("match-leak-kinds:").filter(|_| is_leak) {
            if !entries.is_empty() {
                return Err(lines.error("`match-leak-kinds:` must stand before the stack"));
            }
            classes = leak_kinds(lines, kinds)?;
            continue;
        }
        if entries.len() == MAX_ENTRIES {
            return Err(lines.error(format!("more than {MAX_ENTRIES} lines in one stack")));
        }
        entries.push(entry(lines, &text)?);
    }
    if entries.is_empty() {
        return Err(lines.error("an entry without a stack: it needs `fun:`, `obj:` or `src:` lines"));
    }
    if entries.iter().all(|entry| *entry == Entry::Any) {
        return Err(lines.error(format!(
            "an entry of `...` only would hide every {}; it needs a `fun:`, `obj:` or `src:` line",
            if is_leak { "leak" } else { "such error" }
        )));
    }
    Ok(Some(SuppressionRule {
        name,
        file: lines.file.to_owned(),
        line,
        classes,
        errors,
        matcher: Matcher::Stack(entries),
    }))
}

/// Reads to the end of an entry that does not concern leaks.
fn skip(lines: &mut Lines<'_>) -> Result<(), SuppressionError> {
    loop {
        match lines.inside()?.as_str() {
            "}" => return Ok(()),
            "{" => return Err(lines.error("`{` within an entry: the `}` of the one before is missing")),
            _ => {}
        }
    }
}

/// A comma-separated list of classes, `all` or `none`.
fn leak_kinds(lines: &Lines<'_>, kinds: &str) -> Result<[bool; 4], SuppressionError> {
    let kinds = kinds.trim();
    match kinds {
        "all" => return Ok([true; 4]),
        "none" => return Ok([false; 4]),
        _ => {}
    }
    let mut classes = [false; 4];
    for kind in kinds.split(',').map(str::trim) {
        let known = LeakClass::ALL.into_iter().zip(&mut classes).find(|(class, _)| class.name() == kind);
        match known {
            Some((_, class)) => *class = true,
            None => {
                return Err(lines.error(format!(
                    "`{}` is not a kind of leak; there are definite, indirect, possible, reachable, and all or none \
                     alone",
                    short(kind)
                )));
            }
        }
    }
    Ok(classes)
}

/// A line of a stack.
fn entry(lines: &Lines<'_>, text: &str) -> Result<Entry, SuppressionError> {
    if text == "..." {
        return Ok(Entry::Any);
    }
    let (kind, pattern) = text.split_once(':').unwrap_or((text, ""));
    if matches!(kind, "fun" | "obj" | "src") && pattern.is_empty() {
        return Err(lines.error(format!("`{kind}:` without a name; `{kind}:*` matches any")));
    }
    match kind {
        "fun" if is_rust_shim(pattern) => Ok(Entry::Shim(Glob::new(pattern))),
        "fun" => Ok(Entry::Function(Glob::new(pattern))),
        "obj" => Ok(Entry::Object(Glob::new(pattern))),
        "src" => {
            let numbered = pattern.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse().ok()?)));
            let (file, line) = numbered.map_or((pattern, None), |(file, line)| (file, Some(line)));
            Ok(Entry::Source(Glob::new(file), line))
        }
        _ => Err(lines.error(format!("`{}` should be `...`, `fun:NAME`, `obj:FILE` or `src:FILE`", short(text)))),
    }
}

/// Whether a pattern means what rustc puts between code and the global allocator, mangled or not.
fn is_rust_shim(pattern: &str) -> bool {
    ["__rust_", "__rdl_", "__rg_"].iter().any(|shim| pattern.contains(shim))
        || pattern.contains("GlobalAlloc") && pattern.contains("System")
}

/// A text for a message: cut off, and without control characters.
fn short(text: &str) -> String {
    const LENGTH: usize = 60;
    let shown: String = text.chars().take(LENGTH).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().count() > LENGTH { format!("{shown}…") } else { shown }
}
