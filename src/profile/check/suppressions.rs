//! Suppressions: rules that keep known leaks and errors out of the verdict. Two kinds of files are read, and may be
//! mixed: LeakSanitizer's lines `leak:PATTERN`, and Valgrind's entries `{ NAME Memcheck:Leak fun:… }`.
//!
//! A rule matches whole stacks as the tool that it was written for sees them: those begin with the allocator function
//! itself, which our stacks leave out. So it is put back before a rule is tried.

mod generate;
mod pattern;
mod read;

use super::known;
use crate::allocators::AllocatorTable;
use crate::profile::identity::is_unresolved;
use crate::profile::leaks::{KNOWN_LEAKS, LeakClass, LeakSite, Leaks, Suppression};
use crate::profile::{Amount, FindingKind, Profile};
use pattern::{Entry, Template};

pub use generate::{generate, suppression_of};

/// So many unused rules are named.
const UNUSED_NAMED: usize = 5;

/// Why a suppression file can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("suppressions in {file}, line {line}: {reason}")]
pub struct SuppressionError {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1 on.
    pub line: u32,
    /// What is wrong there, and what would be right.
    pub reason: String,
}

/// Rules, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Suppressions {
    rules: Vec<SuppressionRule>,
}

#[derive(Clone, Debug)]
struct SuppressionRule {
    name: String,
    file: String,
    line: u32,
    /// Which classes it hides, indexed by `LeakClass as usize`.
    classes: [bool; 4],
    /// Which errors in the use of the heap it hides.
    errors: &'static [FindingKind],
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    /// LeakSanitizer's: some frame's function, file or module.
    Any(Template),
    /// Valgrind's: the frames from the innermost on.
    Stack(Vec<Entry>),
    /// What an allocator has for itself ([`known::is_of_allocator`]).
    OfAllocator,
}

/// A frame as the rules look at it: each list holds all names under which a rule may know it.
#[derive(Clone, Debug, Default)]
struct RuleFrame<'a> {
    functions: Vec<&'a str>,
    objects: Vec<&'a str>,
    sources: Vec<&'a str>,
    line: u32,
}

impl Suppressions {
    /// Reads a file's text, or that of `__lsan_default_suppressions`; `file` is its name for messages. Entries for
    /// other tools and for errors that are not looked for are left out.
    ///
    /// # Errors
    /// The first line that is neither a rule nor a comment.
    pub fn read(text: &[u8], file: &str) -> Result<Self, SuppressionError> {
        Ok(Self { rules: read::read(text, file)? })
    }

    /// Adds the rules for leaks that are known ([`known`]) behind those that are there.
    pub fn with_known_leaks(mut self) -> Self {
        self.extend(known::table().unwrap_or_default());
        self.rules.push(SuppressionRule {
            name: known::OF_ALLOCATOR.to_owned(),
            file: KNOWN_LEAKS.to_owned(),
            line: 1,
            classes: [true, true, true, false],
            errors: &[],
            matcher: Matcher::OfAllocator,
        });
        self
    }

    /// Adds rules behind those that are there.
    pub fn extend(&mut self, other: Self) {
        self.rules.extend(other.rules);
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Takes out of [`Profile::findings`] the errors that the rules hide. Marks what they hide in [`Profile::leaks`],
    /// and lists all rules there with what they hid. Of several rules that match, the first one counts. Tells the
    /// unused and the over-broad ones in [`Profile::warnings`].
    pub fn apply(&self, profile: &mut Profile) {
        let table = AllocatorTable::new();
        let mut described: Vec<Suppression> = self.rules.iter().map(SuppressionRule::describe).collect();
        self.hide_errors(profile, &table, &mut described);
        self.hide_leaks(profile, &table, &mut described);
        profile.suppressions = without_idle_known(described, profile.leaks.as_mut());
    }

    fn hide_leaks(&self, profile: &mut Profile, table: &AllocatorTable, described: &mut [Suppression]) {
        let Some(mut leaks) = profile.leaks.take() else { return };
        for site in &mut leaks.sites {
            let function = profile.strings.get(site.alloc_fn).map_or("malloc", String::as_str);
            let frames = frames(profile, function, site.stack, table);
            site.suppressed_by = [None; 4];
            for (index, rule) in self.rules.iter().enumerate() {
                let classes = rule.classes_of(site);
                let open = classes.iter().zip(site.suppressed_by).zip(site.amounts);
                let concerns =
                    open.into_iter().any(|((hides, by), amount)| *hides && by.is_none() && amount.objects > 0);
                if concerns && rule.matches(&frames, || known::is_of_allocator(profile, site.stack)) {
                    let hidden = hide(site, index, &classes);
                    if let Some(suppression) = described.get_mut(index) {
                        suppression.hidden = suppression.hidden.plus(hidden);
                    }
                }
            }
        }
        profile.warnings.extend(warnings(&leaks, described));
        profile.leaks = Some(leaks);
    }

    fn hide_errors(&self, profile: &mut Profile, table: &AllocatorTable, described: &mut [Suppression]) {
        let mut findings = std::mem::take(&mut profile.findings);
        findings.retain(|finding| {
            let frames = frames(profile, &finding.function, finding.stack, table);
            let hides = |rule: &SuppressionRule| rule.errors.contains(&finding.kind) && rule.matches(&frames, || false);
            let Some(index) = self.rules.iter().position(hides) else { return true };
            if let Some(rule) = described.get_mut(index) {
                rule.hidden_errors = rule.hidden_errors.saturating_add(finding.count);
            }
            false
        });
        profile.findings = findings;
    }
}

impl SuppressionRule {
    fn describe(&self) -> Suppression {
        let Self { name, file, line, .. } = self;
        Suppression { rule: name.clone(), file: file.clone(), line: *line, hidden: Amount::default(), hidden_errors: 0 }
    }

    /// The classes of a site that it can hide: those that are known are hidden where they are few.
    fn classes_of(&self, site: &LeakSite) -> [bool; 4] {
        if self.file != KNOWN_LEAKS {
            return self.classes;
        }
        let mut classes = self.classes;
        for (hides, amount) in classes.iter_mut().zip(site.amounts) {
            *hides &= amount.objects <= known::MAX_BLOCKS && site.holds.objects <= known::MAX_HELD;
        }
        classes
    }

    fn matches(&self, frames: &[RuleFrame<'_>], is_of_allocator: impl FnOnce() -> bool) -> bool {
        match &self.matcher {
            Matcher::OfAllocator => is_of_allocator(),
            Matcher::Any(template) => frames.iter().any(|frame| {
                let names = frame.functions.iter().chain(&frame.objects).chain(&frame.sources);
                names.into_iter().any(|name| template.matches(name))
            }),
            Matcher::Stack(entries) => pattern::stack_matches(entries, frames),
        }
    }
}

/// The rules without those for known leaks that hid nothing.
fn without_idle_known(rules: Vec<Suppression>, leaks: Option<&mut Leaks>) -> Vec<Suppression> {
    let mut kept = Vec::new();
    let mut numbers = Vec::new();
    for rule in rules {
        numbers.push(kept.len());
        if !rule.is_known_leak() || rule.is_used() {
            kept.push(rule);
        }
    }
    for by in leaks.into_iter().flat_map(|leaks| &mut leaks.sites).flat_map(|site| &mut site.suppressed_by) {
        *by = by.and_then(|rule| numbers.get(rule).copied());
    }
    kept
}

/// Lets a rule hide the classes of a site that no earlier one hides; returns what that is, with what hangs on it.
fn hide(site: &mut LeakSite, rule: usize, classes: &[bool; 4]) -> Amount {
    let mut hidden = Amount::default();
    let parts = site.amounts.into_iter().zip(&mut site.suppressed_by).zip(classes).zip(LeakClass::ALL);
    for (((amount, by), hides), class) in parts {
        if *hides && by.is_none() && amount.objects > 0 {
            *by = Some(rule);
            hidden = hidden.plus(amount);
            if class == LeakClass::Definite {
                hidden = hidden.plus(site.holds);
            }
        }
    }
    hidden
}

/// How the names of operators begin of which libstdc++ makes one by a jump to the other: which of the two was called
/// can't be told on the stack.
const TWINS: [(&str, &str); 2] = [("operator new(", "operator new[]("), ("operator delete(", "operator delete[](")];

/// How the names of all operators begin that give a block back.
const DELETES: &str = "operator delete";

/// What Memcheck's replacements of the allocator are part of.
const MEMCHECK: &str = "/usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so";

/// A stack with the allocator function that it called on top.
fn frames<'a>(profile: &'a Profile, called: &'a str, stack: usize, table: &'a AllocatorTable) -> Vec<RuleFrame<'a>> {
    let mut functions = vec![called];
    functions.extend(table.iter().find(|(_, function)| function.name == called).map(|(_, f)| f.symbol.as_str()));
    for (single, array) in TWINS {
        let Some(parameters) = called.strip_prefix(single) else { continue };
        let twin = |name: &str| name.strip_prefix(array) == Some(parameters);
        let twin = table.iter().find(|(_, function)| twin(&function.name));
        functions.extend(twin.into_iter().flat_map(|(_, function)| [function.name.as_ref(), function.symbol.as_str()]));
    }
    if called.starts_with(DELETES) {
        // with the size or without is up to the compiler's options
        let operators = table.iter().filter(|(_, function)| function.name.starts_with(DELETES));
        functions.extend(operators.map(|(_, function)| function.symbol.as_str()));
    }
    let modules = profile.allocators.iter().filter_map(|allocator| profile.modules.get(allocator.module));
    let objects = modules.filter_map(|module| module.path.to_str()).chain([MEMCHECK]).collect();
    let mut frames = vec![RuleFrame { functions, objects, sources: Vec::new(), line: 0 }];
    for location in profile.locations_of(stack).filter_map(|index| profile.locations.get(index as usize)) {
        let module = location.module.and_then(|index| profile.modules.get(index));
        let object = module.and_then(|module| module.path.to_str()).unwrap_or(UNKNOWN);
        for line in &location.lines {
            let Some(function) = profile.functions.get(line.function) else { continue };
            let functions = names(&function.name, &function.system_name);
            let sources = function.file.as_deref().map(sources).unwrap_or_default();
            frames.push(RuleFrame { functions, objects: vec![object], sources, line: line.line });
        }
    }
    frames
}

/// How Valgrind calls what it has no name for.
const UNKNOWN: &str = "???";

/// All names of a function: for people, mangled, and both without the version of a symbol; and without the leading
/// underscores that tell the C library's names for itself from the public one (`__strdup`, `strdup`): each tool takes
/// another of them.
fn names<'a>(name: &'a str, system_name: &'a str) -> Vec<&'a str> {
    if is_unresolved(name) {
        return vec![UNKNOWN, name];
    }
    let mut names = vec![name];
    for name in [system_name, name.split('@').next().unwrap_or(name)] {
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    let public = names.first().filter(|name| name.starts_with("__")).map(|name| name.trim_start_matches('_'));
    names.extend(public.filter(|name| !name.is_empty()));
    names
}

/// A source file with and without its directories: debug information has either.
fn sources(file: &str) -> Vec<&str> {
    let base = file.rsplit('/').next().unwrap_or(file);
    if base == file { vec![file] } else { vec![file, base] }
}

/// Sentences on rules that hid nothing, and on those that hid more than half of all leaked bytes (definite and what
/// hangs on them).
fn warnings(leaks: &Leaks, rules: &[Suppression]) -> Vec<String> {
    let mut warnings = Vec::new();
    let place = |rule: &Suppression| format!("`{}` ({}:{})", rule.rule, rule.file, rule.line);
    let known = rules.iter().filter(|rule| rule.is_known_leak()).count();
    let unused: Vec<&Suppression> = rules.iter().filter(|rule| !rule.is_used() && !rule.is_known_leak()).collect();
    if !unused.is_empty() {
        let named: Vec<String> = unused.iter().take(UNUSED_NAMED).map(|rule| place(rule)).collect();
        let more = unused.len().saturating_sub(UNUSED_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (count, all) = (unused.len(), rules.len() - known);
        warnings.push(format!("{count} of {all} suppression rules hid nothing: {}{more}", named.join(", ")));
    }
    let leaked = |site: &LeakSite| {
        u128::from(site.amounts.first().map_or(0, |amount| amount.bytes)) + u128::from(site.holds.bytes)
    };
    let whole: u128 = leaks.sites.iter().map(leaked).sum();
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| !rule.is_known_leak()) {
        let by_this = leaks.sites.iter().filter(|site| site.hidden_by(LeakClass::Definite) == Some(index));
        let hidden: u128 = by_this.map(leaked).sum();
        if hidden * 2 > whole {
            let share = hidden * 100 / whole.max(1);
            warnings.push(format!("the suppression rule {} hides {share} % of all leaked bytes", place(rule)));
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
