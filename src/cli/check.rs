//! The options of `heaptrace check`.

use super::args::{PerturbArguments, ProfileArguments, RunArguments};
use super::{Refusal, RunOptions, resolve_run, values};
use crate::heap::leaks::InteriorPointers;
use crate::profile::check::growth::GrowthLimit;
use crate::profile::check::verdict::{Limits, Policy};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `heaptrace check`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckOptions {
    /// What to start, and how to profile it; no output unless one is asked for.
    pub run: RunOptions,
    /// What fails the check.
    pub policy: Policy,
    /// Files of suppressions.
    pub suppressions: Vec<PathBuf>,
    /// Whether leaks of libraries that are known don't count.
    pub known_leaks: bool,
    /// Where to write suppressions for what was found.
    pub gen_suppressions: Option<PathBuf>,
    /// A report.json to compare with.
    pub baseline: Option<PathBuf>,
    /// End the program after this time; never zero.
    pub timeout: Option<Duration>,
    /// Part of the name of a function: explain its reachable blocks.
    pub explain: Option<String>,
    /// Whether to write annotations for GitHub Actions.
    pub github: bool,
    /// Whether to report tests one by one.
    pub per_test: bool,
    /// By how much tests may grow since the baseline; empty: by any.
    pub growth: Vec<GrowthLimit>,
    /// What pointers into the inside of blocks are worth.
    pub interior: InteriorPointers,
}

/// Which classes of leaks count, indexed by `LeakClass as usize`.
pub type LeakKinds = [bool; 4];

/// Run a program and judge its use of the heap: leaks, errors, budgets
///
/// When the program is about to end, its memory is read and each block that is still live is classified as Memcheck
/// does: definite (no pointer leads to it), indirect (only lost blocks lead to it), possible (only pointers into its
/// inside do, or such with a tag in their upper 16 bits), reachable. The report goes to stderr; no file is written
/// unless -o asks for one.
///
/// Errors are wrong frees: of a block that was already freed, was never allocated, or was allocated by another family
/// of functions, with another size or another alignment. heaptrace does not check what the program does with the memory
/// itself: AddressSanitizer and Memcheck find writes beyond a block's end, use after free and uninitialised memory.
///
/// Exit status: the program's own if it failed (128+N for signal N); 23 for leaks, errors and exceeded budgets; 124 if
/// --timeout ended it; 125 if heaptrace could not judge, as it missed allocations or could not read memory, and for
/// wrong usage; 126 and 127 if the program could not be executed or was not found; else 0.
#[derive(Args, Debug)]
#[command(
    override_usage = "heaptrace check [OPTIONS] [--] PROGRAM [ARGUMENTS]...",
    after_long_help = "\
Examples:
  heaptrace check ./app_test
      Exit status 23 if it leaks, or frees twice, or frees with the wrong function.
  heaptrace check -o leaks.json --suppressions known.supp -- ./app_test --all
      The same with known leaks hidden, and the result as a file.
  heaptrace check --baseline main.json ./app_test
      Fails only on what the report of an earlier run does not have.
  heaptrace check --per-test -o tests.junit.xml ./app_test
      A table of its tests, and one test case for each in tests.junit.xml.
  heaptrace check --per-test --baseline main.json --fail-if-grown 10% ./app_test
      Fails, too, if a test's peak, allocations or what it keeps are over 10 % more than in main.json.
  heaptrace check --leak-kinds all --explain cache_insert ./app
      Counts every live block as a leak, and shows what still points to those that cache_insert allocated."
)]
pub(super) struct CheckArguments {
    /// The program and its arguments. The first word that is not an option ends heaptrace's own options
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,

    /// Classes of live blocks that count as leaks: definite, indirect, possible, reachable; or all, or none
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "definite,indirect",
        value_parser = values::leak_kind,
        help_heading = "Judgement"
    )]
    leak_kinds: Vec<LeakKinds>,

    /// Exit status for leaks, errors and exceeded budgets
    #[arg(
        long,
        value_name = "STATUS",
        default_value = "23",
        value_parser = clap::value_parser!(u8).range(1..),
        help_heading = "Judgement"
    )]
    leak_exit_code: u8,

    /// Whether errors count: double frees, frees of foreign pointers, frees by the wrong function
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = values::on_off(), action = clap::ArgAction::Set, help_heading = "Judgement")]
    errors: bool,

    /// Known leaks and errors to hide: a file of `leak:PATTERN` lines (LeakSanitizer) or Valgrind's suppressions;
    /// repeatable
    ///
    /// heaptrace also reads the files that $LSAN_OPTIONS names (`suppressions=FILE`) and the program's own
    /// `__lsan_default_suppressions`.
    #[arg(long, value_name = "FILE", help_heading = "Judgement")]
    suppressions: Vec<PathBuf>,

    /// Count known leaks of libraries, too: what GL drivers, fontconfig, GLib and others allocate once and keep, and
    /// what an allocator keeps for itself
    ///
    /// Otherwise the report sums them up as `known: N bytes`, and they don't fail the check. A site that has lost more
    /// than 32 blocks always counts.
    #[arg(long, help_heading = "Judgement")]
    no_known_leaks: bool,

    /// Write suppressions for all leaks that were found to this file
    #[arg(long, value_name = "FILE", help_heading = "Judgement")]
    gen_suppressions: Option<PathBuf>,

    /// An earlier report (-o x.json, x.json.gz): only leaks and errors that it does not have count
    ///
    /// heaptrace compares them by the names of the functions on their stacks, so the report of an older build will do.
    #[arg(long, value_name = "FILE", help_heading = "Judgement")]
    baseline: Option<PathBuf>,

    /// Leaks of at most this many bytes do not fail the check; with -f, in each process
    #[arg(long, value_name = "BYTES", value_parser = values::size, help_heading = "Judgement")]
    max_leaked_bytes: Option<u64>,

    /// Fail if more bytes than this are live at one moment: 1000000, 512k, 10MiB; with -f, in any one process
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Judgement")]
    max_peak: Option<u64>,

    /// Fail after more allocations than this; with -f, of any one process
    #[arg(long, value_name = "N", help_heading = "Judgement")]
    max_allocations: Option<u64>,

    /// Fail if more bytes than this are live at the end, leaked or not; with -f, in any one process
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Judgement")]
    max_live: Option<u64>,

    /// End the program after this time: 30, 30s, 500ms, 1m
    ///
    /// heaptrace sends it SIGTERM, reads its memory when it ends, and exits with 124, as timeout(1) does. If it lives
    /// for 5 more seconds, heaptrace reads its memory as it stands and kills it.
    #[arg(long, value_name = "TIME", value_parser = values::duration, help_heading = "Judgement")]
    timeout: Option<Duration>,

    /// Child processes that were not checked make the check inconclusive (exit status 125)
    ///
    /// Without -f, programs that the checked one starts run untraced, and the report names them; with -f, those with
    /// other rights. (A program that replaces itself by exec is followed in any case.)
    #[arg(long, help_heading = "Judgement")]
    require_all: bool,

    /// Show why the blocks that this function allocated can still be reached
    ///
    /// Prints a chain of pointers from a global variable, a stack or a register to such a block. Any part of the
    /// function's name will do.
    #[arg(long, value_name = "FUNCTION", help_heading = "Judgement")]
    explain: Option<String>,

    /// Report what each test of a test program leaked, kept, allocated and had at its peak
    ///
    /// heaptrace sees tests begin and end by functions of GoogleTest, Catch2, doctest or Rust's own framework. A block
    /// belongs to the test in which it was allocated, and a test fails if some of its blocks are leaked at the end of
    /// the program.
    #[arg(long, help_heading = "Judgement", conflicts_with = "follow_forks")]
    per_test: bool,

    /// Fail if a test's peak, its allocations or what it keeps have grown by more than this since the baseline: 5%, or
    /// 1MiB (not for allocations); repeatable, each limit counts
    #[arg(
        long,
        value_name = "LIMIT",
        value_parser = values::growth_limit,
        requires_all = ["per_test", "baseline"],
        help_heading = "Judgement"
    )]
    fail_if_grown: Vec<GrowthLimit>,

    /// Write annotations for GitHub Actions to stderr
    #[arg(long, help_heading = "Judgement")]
    github: bool,

    /// The class of blocks to which only inner pointers lead: possible (Memcheck) or reachable (LeakSanitizer)
    ///
    /// Inner pointers of std::string, new[], multiple inheritance, and Rust's Arc, Rc and HashMap always count as
    /// pointers to the start.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "possible",
        value_parser = values::interior_pointers(),
        help_heading = "Judgement"
    )]
    interior_pointers: InteriorPointers,

    #[command(flatten)]
    profile: ProfileArguments,

    #[command(flatten)]
    perturb: PerturbArguments,
}

///
/// # Errors
/// Options that don't go together.
pub(super) fn resolve_check(
    arguments: CheckArguments,
    debug_path: impl Iterator<Item = PathBuf>,
) -> Result<CheckOptions, Refusal> {
    let mut leak_kinds: LeakKinds = [false; 4];
    for kinds in arguments.leak_kinds {
        leak_kinds.iter_mut().zip(kinds).for_each(|(counts, kind)| *counts |= kind);
    }
    let policy = Policy {
        leak_kinds,
        errors: arguments.errors,
        leak_exit_code: arguments.leak_exit_code,
        limits: Limits {
            max_leaked_bytes: arguments.max_leaked_bytes,
            max_peak: arguments.max_peak,
            max_allocations: arguments.max_allocations,
            max_live: arguments.max_live,
        },
        require_all: arguments.require_all,
    };
    // The report on stderr is the result: without -o there is no file.
    let has_output = !arguments.profile.output.is_empty();
    let command = RunArguments { command: arguments.command, perturb: arguments.perturb, profile: arguments.profile };
    let mut run = resolve_run(command, debug_path)?;
    if !has_output {
        run.profile.outputs.clear();
    }
    Ok(CheckOptions {
        run,
        policy,
        suppressions: arguments.suppressions,
        known_leaks: !arguments.no_known_leaks,
        gen_suppressions: arguments.gen_suppressions,
        baseline: arguments.baseline,
        timeout: arguments.timeout,
        explain: arguments.explain,
        github: arguments.github,
        per_test: arguments.per_test,
        growth: arguments.fail_if_grown,
        interior: arguments.interior_pointers,
    })
}
