//! What `check` concludes, in report.json: the verdict, leaks and errors as findings, suppressions, budgets.

use super::frames::{FrameTable, ReportStack};
use crate::profile::leaks::{BaselineStatus, LeakClass, LeakSite, PathStep, RetentionPath, ScanMoment, Verdict};
use crate::profile::{Amount, Finding, Profile};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct ReportVerdict<'a> {
    result: &'static str,
    reasons: &'a [String],
    exit_status: u8,
}

#[derive(Serialize)]
pub(super) struct ReportLeaks<'a> {
    definite: Blocks,
    indirect: Blocks,
    possible: Blocks,
    reachable: Blocks,
    suppressed: Blocks,
    known: Blocks,
    moment: ScanMoment,
    stopped_ns: u64,
    copied: bool,
    scanned_bytes: u64,
    untold: &'a [String],
}

#[derive(Serialize)]
struct Blocks {
    blocks: u64,
    bytes: u64,
}

#[derive(Serialize)]
pub(super) struct ReportFinding<'a> {
    id: String,
    kind: &'static str,
    count: u64,
    block: Option<String>,
    size: Option<u64>,
    given_size: Option<u64>,
    offset: Option<u64>,
    align: Option<u64>,
    given_align: Option<u64>,
    direct: Option<Amount>,
    indirect: Option<Amount>,
    stack: ReportStack<'a>,
    alloc_stack: ReportStack<'a>,
    free_stack: ReportStack<'a>,
    thread: &'a str,
    alloc_fn: &'a str,
    path: Vec<ReportStep<'a>>,
    baseline: Option<&'static str>,
    suppressed_by: Option<usize>,
    doubt: Option<String>,
}

/// A link of the chain from a root to a block: the root first, with its words and address, then blocks.
#[derive(Serialize)]
struct ReportStep<'a> {
    root: Option<&'a str>,
    address: Option<String>,
    size: Option<u64>,
    target_offset: Option<u64>,
    next_offset: Option<u64>,
    stack: ReportStack<'a>,
}

#[derive(Serialize)]
pub(super) struct ReportSuppression<'a> {
    rule: &'a str,
    file: &'a str,
    line: u32,
    blocks: u64,
    bytes: u64,
    errors: u64,
}

#[derive(Serialize)]
pub(super) struct ReportBudget {
    name: &'static str,
    limit: u64,
    actual: u64,
    ok: bool,
}

pub(super) fn verdict(profile: &Profile) -> Option<ReportVerdict<'_>> {
    profile.verdict.as_ref().map(report_verdict)
}

pub(super) fn report_verdict(verdict: &Verdict) -> ReportVerdict<'_> {
    ReportVerdict { result: verdict.kind.name(), reasons: &verdict.reasons, exit_status: verdict.exit_status }
}

pub(super) fn leaks(profile: &Profile) -> Option<ReportLeaks<'_>> {
    let leaks = profile.leaks.as_ref()?;
    let [definite, indirect, possible, reachable] = leaks.totals().map(blocks);
    let [suppressed, known] = leaks.suppressed_and_known(&profile.suppressions).map(blocks);
    Some(ReportLeaks {
        definite,
        indirect,
        possible,
        reachable,
        suppressed,
        known,
        moment: leaks.moment,
        stopped_ns: leaks.stopped_ns,
        copied: leaks.copied,
        scanned_bytes: leaks.scanned_bytes,
        untold: &leaks.untold,
    })
}

fn blocks(amount: Amount) -> Blocks {
    Blocks { blocks: amount.objects, bytes: amount.bytes }
}

/// The stacks of all findings and of the paths to what can still be reached.
pub(super) fn stacks(profile: &Profile) -> impl Iterator<Item = usize> {
    let errors = profile
        .findings
        .iter()
        .flat_map(|finding| [Some(finding.stack), finding.alloc_stack, finding.free_stack].into_iter().flatten());
    let sites = profile.leaks.iter().flat_map(|leaks| &leaks.sites);
    let leaks = sites.flat_map(|site| {
        let steps = site.path.iter().flat_map(|path| &path.steps);
        std::iter::once(site.stack).chain(steps.map(|step| step.stack))
    });
    errors.chain(leaks)
}

/// The errors, then the leaks: each site once for each class of which it has blocks, worst class first. The table must
/// hold their [`stacks`].
pub(super) fn findings<'a>(table: &'a FrameTable<'a>) -> Vec<ReportFinding<'a>> {
    let profile = table.view().profile;
    let errors = profile.findings.iter().map(|finding| error(table, finding));
    let leaks = profile.leaks.iter().flat_map(|leaks| {
        let of = move |class| leaks.sites.iter().filter_map(move |site| leak(table, site, class));
        LeakClass::ALL.into_iter().flat_map(of)
    });
    errors.chain(leaks).collect()
}

fn error<'a>(table: &'a FrameTable<'a>, finding: &'a Finding) -> ReportFinding<'a> {
    ReportFinding {
        id: format!("{:016x}", table.view().profile.finding_id(finding)),
        kind: finding.kind.name(),
        count: finding.count,
        block: Some(finding.block.to_string()),
        size: finding.size,
        given_size: finding.given_size,
        offset: finding.offset,
        align: finding.align,
        given_align: finding.given_align,
        direct: None,
        indirect: None,
        stack: ReportStack::new(table, Some(finding.stack)),
        alloc_stack: ReportStack::new(table, finding.alloc_stack),
        free_stack: ReportStack::new(table, finding.free_stack),
        thread: &finding.thread,
        alloc_fn: &finding.function,
        path: Vec::new(),
        baseline: finding.baseline.map(BaselineStatus::name),
        suppressed_by: None,
        doubt: None,
    }
}

fn leak<'a>(table: &'a FrameTable<'a>, site: &'a LeakSite, class: LeakClass) -> Option<ReportFinding<'a>> {
    let view = table.view();
    let direct = site.amounts.get(class as usize).copied().filter(|amount| *amount != Amount::default())?;
    let indirect = if class == LeakClass::Definite { site.holds } else { Amount::default() };
    let index = class as usize;
    let suppressed_by = site.suppressed_by.get(index).copied().flatten();
    Some(ReportFinding {
        id: format!("{:016x}", view.profile.leak_id(class, site.stack)),
        kind: class.finding_kind(),
        count: direct.objects,
        block: None,
        size: None,
        given_size: None,
        offset: None,
        align: None,
        given_align: None,
        direct: Some(direct),
        indirect: Some(indirect),
        stack: ReportStack::new(table, Some(site.stack)),
        alloc_stack: ReportStack::new(table, None),
        free_stack: ReportStack::new(table, None),
        thread: view.string(site.thread),
        alloc_fn: view.string(site.alloc_fn),
        path: site.path_of(class).map(|path| steps(table, path)).unwrap_or_default(),
        baseline: site.baseline.get(index).copied().flatten().map(BaselineStatus::name),
        suppressed_by: suppressed_by.filter(|rule| *rule < view.profile.suppressions.len()),
        doubt: site.doubts.most().filter(|_| class == LeakClass::Possible).map(|(doubt, _)| doubt.name()),
    })
}

fn steps<'a>(table: &'a FrameTable<'a>, path: &'a RetentionPath) -> Vec<ReportStep<'a>> {
    let root = ReportStep {
        root: Some(&path.root),
        address: path.root_address.map(|address| address.to_string()),
        size: None,
        target_offset: None,
        next_offset: None,
        stack: ReportStack::new(table, None),
    };
    let block = |step: &PathStep| ReportStep {
        root: None,
        address: Some(step.block.to_string()),
        size: Some(step.size),
        target_offset: Some(step.target_offset),
        next_offset: step.next_offset,
        stack: ReportStack::new(table, Some(step.stack)),
    };
    std::iter::once(root).chain(path.steps.iter().map(block)).collect()
}

pub(super) fn suppressions(profile: &Profile) -> Vec<ReportSuppression<'_>> {
    let rules = profile.suppressions.iter();
    rules
        .map(|rule| ReportSuppression {
            rule: &rule.rule,
            file: &rule.file,
            line: rule.line,
            blocks: rule.hidden.objects,
            bytes: rule.hidden.bytes,
            errors: rule.hidden_errors,
        })
        .collect()
}

pub(super) fn budgets(profile: &Profile) -> Vec<ReportBudget> {
    let budget = |budget: &crate::profile::leaks::Budget| ReportBudget {
        name: budget.name,
        limit: budget.limit,
        actual: budget.actual,
        ok: budget.ok(),
    };
    profile.budgets.iter().map(budget).collect()
}
