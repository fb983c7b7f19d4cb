//! What lacks names or line numbers, and what would bring them.

use super::escape::printable;
use super::runtimes;
use super::sections::{Layout, heading, prose};
use super::text::{basename, grouped, human_bytes, is_system_file, keep_end, left, percent, plural, shell_words, wrap};
use super::view::{Headline, StackTotals, View};
use crate::profile::identity::is_unresolved;
use crate::profile::saved::Writer;
use crate::profile::{Location, Mode, ModuleInfo, Profile};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::fmt::Write;

/// The server that asks those of all distributions.
const SERVERS: &str = "DEBUGINFOD_URLS=https://debuginfod.elfutils.org";

/// So many modules are named.
const SHOWN: usize = 4;

/// What the stacks show of a module.
#[derive(Debug, Default)]
struct NameCoverage {
    /// Bytes of the stacks that pass through it where it has no name.
    bytes: u64,
    /// Places in its code, by whether they have a name.
    named: usize,
    unnamed: usize,
}

/// The modules of which functions lack names.
pub(crate) fn missing(out: &mut String, layout: Layout, view: &View<'_>) {
    let (mut whole, mut without_lines, mut in_python) = (0u64, 0u64, 0u64);
    let mut seen: FxHashMap<Option<usize>, NameCoverage> = FxHashMap::default();
    for site in view.sites() {
        let weight = weight(view, &site);
        whole = whole.saturating_add(weight);
        if is_named_main_without_line(view, site.stack) {
            without_lines = without_lines.saturating_add(weight);
        }
        let mut runs_python = false;
        let mut modules: Vec<Option<usize>> = Vec::new();
        for frame in view.frames(site.stack) {
            runs_python |= frame.traits.is_python_loop();
            if frame.traits.is_unresolved()
                && let Some(location) = frame.location
            {
                modules.push(location.module);
            }
        }
        if runs_python {
            in_python = in_python.saturating_add(weight);
        }
        modules.sort_unstable();
        modules.dedup();
        for module in modules {
            let seen = seen.entry(module).or_default();
            seen.bytes = seen.bytes.saturating_add(weight);
        }
    }
    for location in &view.profile.locations {
        if let Some(seen) = seen.get_mut(&location.module) {
            let name = location.lines.first().and_then(|line| view.profile.functions.get(line.function));
            let is_named = name.is_some_and(|function| !is_unresolved(&function.name));
            *if is_named { &mut seen.named } else { &mut seen.unnamed } += 1;
        }
    }
    of_python(out, layout, view.profile, in_python > whole / 10);
    runtimes::told(out, layout, view.profile, seen.get(&None).is_some_and(|made| made.bytes > whole / 1000));
    // less than a thousandth is not worth a line
    let mut modules: Vec<(Option<usize>, NameCoverage)> =
        seen.into_iter().filter(|(_, seen)| seen.bytes > whole / 1000).collect();
    modules.sort_unstable_by_key(|(module, seen)| (Reverse(seen.bytes), *module));
    if !modules.is_empty() {
        heading(out, layout, "Code without function names, by the bytes that were allocated through it");
        table(out, layout, view, &modules, whole);
    }
    // A static program's libraries have none, though it has been built with -g itself.
    let main = view.profile.modules.first().filter(|main| without_lines > whole / 20 && !main.symbols.lines);
    if let Some(main) = main {
        if modules.is_empty() {
            heading(out, layout, "Without line numbers");
        }
        let cure = match (&main.debug_package, is_system_file(&main.path)) {
            (Some(package), _) => format!("{} adds them", install(package)),
            (None, true) => "its package's debug symbols would add them".to_owned(),
            (None, false) => "build it with -g".to_owned(),
        };
        prose(out, layout, &format!("{} has names but no line numbers: {cure}.", view.profile.meta.process.program));
    }
    let of_system =
        |module: &&ModuleInfo| is_system_file(&module.path) && !module.symbols.lines && module.build_id.is_some();
    let infos = modules.iter().filter_map(|(module, _)| view.profile.modules.get((*module)?));
    let is_other_tools = view.profile.saved.as_ref().is_some_and(|saved| saved.writer != Writer::Heaptrace);
    if infos.chain(main).any(|module| of_system(&module)) && !is_other_tools {
        prose(out, layout, &format!("Or let heaptrace fetch the missing files: {}", debuginfod(view)));
    }
}

/// What shows more of a program that runs Python. `in_loop`: the interpreter's loop stands in its stacks.
fn of_python(out: &mut String, layout: Layout, profile: &Profile, in_loop: bool) {
    let has_scripts = profile.locations.iter().any(Location::is_script);
    let is_told = |warning: &String| warning.contains("(--python)");
    let mut advice = Vec::new();
    if in_loop && !has_scripts && !profile.warnings.iter().any(is_told) {
        advice.push("The program runs Python: --python shows its functions, with files and lines.");
    }
    let resident = profile.meta.process.resident;
    let explained = resident.and_then(|resident| resident.explained_permille(profile.totals.peak_bytes));
    if (in_loop || has_scripts) && explained.is_some_and(|permille| permille < 500) {
        advice.push("Python takes small objects from arenas that it maps, not from malloc:");
        if !profile.records_mappings() {
            advice.push("--mmap shows where it needs new arenas, and");
        }
        advice.push("PYTHONMALLOC=malloc in the environment shows each object, which costs as many calls more.");
    }
    if !advice.is_empty() {
        heading(out, layout, "Python");
        prose(out, layout, &advice.join(" "));
    }
}

/// The command that does the same again, with debug files from the server that asks those of all distributions.
fn debuginfod(view: &View<'_>) -> String {
    const LONGEST: usize = 60;
    let meta = &view.profile.meta;
    if meta.mode.is_snapshot() {
        // Files do not say whether `run` or `attach` traces it, and the names are those that it finds.
        return format!("start the heaptrace that traces the process with {SERVERS}, and with --debuginfod");
    }
    let command = match meta.mode {
        mode if mode.is_attached() => format!("attach --debuginfod {}", meta.process.pid),
        _ => {
            let words = shell_words(&meta.process.command);
            let words = if words.chars().count() > LONGEST { "…".to_owned() } else { words };
            let command = if meta.mode == Mode::Check { "check" } else { "run" };
            format!("{command} --debuginfod -- {words}")
        }
    };
    format!("{SERVERS} heaptrace {command}")
}

fn table(out: &mut String, layout: Layout, view: &View<'_>, modules: &[(Option<usize>, NameCoverage)], whole: u64) {
    let info = |index: &Option<usize>| index.and_then(|index| view.profile.modules.get(index));
    let name = |index: &Option<usize>| match info(index) {
        Some(module) => basename(&module.path),
        None => "code outside any module".to_owned(),
    };
    let shown = modules.get(..SHOWN).unwrap_or(modules);
    let names = shown.iter().map(|(module, _)| name(module).chars().count()).max().unwrap_or(0);
    let places = |seen: &NameCoverage| match seen.named {
        0 if seen.unnamed == 1 => "the one place".to_owned(),
        0 => format!("all {} places", grouped(seen.unnamed as u64)),
        named => format!("{} of {}", grouped(seen.unnamed as u64), plural((seen.unnamed + named) as u64, "place")),
    };
    let widest = shown.iter().map(|(_, seen)| places(seen).chars().count()).max().unwrap_or(0);
    // 2, 10, 2, 7 and 2 columns for the figures
    let names = names.min(layout.width.saturating_sub(23 + 2 + widest));
    for (module, seen) in shown {
        let help = match info(module) {
            Some(module) => cure(module),
            None => "made at run time?".to_owned(),
        };
        let figures = format!("  {:>10}  {:>7}  ", human_bytes(seen.bytes), percent(seen.bytes, whole));
        let row = format!("{figures}{}  {}", left(&keep_end(&name(module), names), names), left(&places(seen), widest));
        let fits = row.chars().count() + 2 + help.chars().count() <= layout.width;
        let (row, help) = match fits {
            true => (format!("{row}  "), help),
            false => (format!("{}\n{:6}", row.trim_end(), ""), wrap(&help, 6, layout.width)),
        };
        let _ = writeln!(out, "{row}{}", layout.paint.dim(&help));
    }
    if let Some(more @ 1..) = modules.len().checked_sub(SHOWN) {
        let _ = writeln!(out, "  and {}", plural(more as u64, "more module"));
    }
    if modules.len() > 1 {
        prose(out, layout, "A stack that passes through several of them counts for each.");
    }
}

/// How to install a package with debug information. Not every package has one of its own, and those are in an archive
/// that most machines do not ask.
fn install(package: &str) -> String {
    let package = printable(package);
    let may_be = if package.ends_with("-dbgsym") { " (if the debug archive has it)" } else { "" };
    format!("apt install {package}{may_be}")
}

/// What brings a module's names.
fn cure(module: &ModuleInfo) -> String {
    match (&module.debug_package, is_system_file(&module.path)) {
        _ if module.symbols.lines => "its debug information does not cover that code".to_owned(),
        (Some(package), _) => install(package),
        (None, true) => match &module.build_id {
            Some(id) => format!("its package's debug symbols (build id {id})"),
            None => "its package's debug symbols".to_owned(),
        },
        (None, false) => "build it unstripped, or pass its debug file with --debug-dir".to_owned(),
    }
}

/// Whether a stack begins in the main program, at a place that has a name but no line.
fn is_named_main_without_line(view: &View<'_>, stack: usize) -> bool {
    view.frames(stack).next().is_some_and(|frame| {
        frame.line == 0
            && !frame.traits.is_unresolved()
            && frame.location.is_some_and(|location| location.module == Some(0))
    })
}

/// All that a site ever allocated, or holds if that was before tracing.
fn weight(view: &View<'_>, site: &StackTotals) -> u64 {
    match view.headline() {
        Headline::Peak => site.allocated.bytes.max(site.at_peak.bytes),
        Headline::Live => site.allocated.bytes.max(site.live.bytes),
    }
}
