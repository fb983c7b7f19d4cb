//! What `check` concluded, as the report tells it.

use super::Trouble;
use super::model::{
    Advice, AdviceArena, AdviceFigures, ReportBudget, ReportFinding, ReportLeaks, ReportStep, ReportSuppression,
    ReportVerdict,
};
use super::tables::{Tables, hex};
use crate::base::addr::Addr;
use crate::base::advice::Proof;
use crate::profile::leaks::{
    BaselineStatus, Budget, Doubt, Doubted, Doubts, LeakClass, LeakSite, Leaks, PathStep, RetentionPath, Suppression,
    Verdict, VerdictKind,
};
use crate::profile::{Amount, Arena, CrossThreadFreed, Finding, FindingKind};
use crate::unwinder::Quality;
use rustc_hash::FxHashMap;

/// The budgets of `check`.
const BUDGETS: [&str; 4] = ["max-leaked-bytes", "max-peak", "max-allocations", "max-live"];

/// A verdict. Which classes of leaks counted is not in the report: it was those of the default if it says nothing else.
pub(super) fn verdict(verdict: ReportVerdict) -> Verdict {
    let kinds = [
        VerdictKind::Clean,
        VerdictKind::Leaks,
        VerdictKind::Errors,
        VerdictKind::OverBudget,
        VerdictKind::ProgramFailed,
    ];
    let kind = kinds.into_iter().find(|kind| kind.name() == verdict.result).unwrap_or(VerdictKind::Inconclusive);
    let (reasons, exit_status) = (verdict.reasons, verdict.exit_status);
    Verdict { kind, reasons, exit_status, leak_kinds: [true, true, false, false], errors: true }
}

pub(super) fn suppression(rule: ReportSuppression) -> Suppression {
    Suppression {
        rule: rule.rule,
        file: rule.file,
        line: rule.line,
        hidden: Amount { objects: rule.blocks, bytes: rule.bytes },
        hidden_errors: rule.errors,
    }
}

/// A budget; None for one that this version does not know.
pub(super) fn budget(budget: &ReportBudget) -> Option<Budget> {
    let name = BUDGETS.into_iter().find(|name| *name == budget.name)?;
    Some(Budget { name, limit: budget.limit, actual: budget.actual })
}

fn baseline(finding: &ReportFinding) -> Option<BaselineStatus> {
    let all = [BaselineStatus::New, BaselineStatus::Grown, BaselineStatus::Known];
    all.into_iter().find(|status| Some(status.name()) == finding.baseline.as_deref())
}

/// What is advised, and at which stacks.
pub(super) fn advice(list: Vec<Advice>, tables: &mut Tables<'_>) -> Result<Vec<(usize, Proof)>, Trouble> {
    let mut advice = Vec::new();
    for Advice { kind, figures, stack } in list {
        if let Some(proof) = proof(&kind, &figures)? {
            tables.room_for::<(usize, Proof)>()?;
            advice.push((tables.stack(&stack, Quality::Complete)?, proof));
        }
    }
    Ok(advice)
}

/// None of a kind that this version does not know.
fn proof(kind: &str, figures: &AdviceFigures) -> Result<Option<Proof>, Trouble> {
    let &AdviceFigures { blocks, bytes, peak_bytes, temporary, allocations, all_allocations, .. } = figures;
    let &AdviceFigures { per_second, mean_lifetime_ns, buffers, growths, copies, copied_bytes, .. } = figures;
    let &AdviceFigures { largest_bytes, size, excess, freed_elsewhere, freed, never_written_bytes, .. } = figures;
    Ok(Some(match kind {
        "largest_at_peak" => Proof::LargestAtPeak { blocks, bytes, peak_bytes },
        "temporaries" => Proof::Temporaries { temporary, allocations, all_allocations, per_second, mean_lifetime_ns },
        "growth" => Proof::Growth { buffers, growths, copies, copied_bytes, largest_bytes },
        "size_class" => Proof::SizeClass { size, excess, blocks, bytes },
        "never_written" => Proof::NeverWritten { never_written_bytes, blocks, bytes },
        "freed_elsewhere" => {
            let arena = figures.arena.as_ref().map(stranded).transpose()?;
            Proof::FreedElsewhere { freed_elsewhere, freed, bytes, arena }
        }
        _ => return Ok(None),
    }))
}

fn stranded(of: &AdviceArena) -> Result<CrossThreadFreed, Trouble> {
    let &AdviceArena { blocks, main: is_main, system_bytes, live_bytes, free_bytes, .. } = of;
    let address = hex(&of.address)?;
    Ok(CrossThreadFreed { blocks, arena: Arena { address, is_main, system_bytes, live_bytes, free_bytes } })
}

/// The errors among the findings.
pub(super) fn findings(findings: &[ReportFinding], tables: &mut Tables<'_>) -> Result<Vec<Finding>, Trouble> {
    let kinds = [
        FindingKind::DoubleFree,
        FindingKind::InvalidFree,
        FindingKind::MismatchedFree,
        FindingKind::SizedDelete,
        FindingKind::AlignedDelete,
    ];
    let mut errors = Vec::new();
    for finding in findings {
        let Some(kind) = kinds.into_iter().find(|kind| kind.name() == finding.kind) else { continue };
        tables.room_for::<Finding>()?;
        tables.copies(1, finding.thread.len() + finding.alloc_fn.len())?;
        let mut stack = |frames: &[_]| tables.stack(frames, Quality::Complete);
        let optional = |frames: &[_]| !frames.is_empty();
        errors.push(Finding {
            kind,
            count: finding.count,
            block: Addr(finding.block.as_deref().map_or(Ok(0), hex)?),
            size: finding.size,
            given_size: finding.given_size,
            offset: finding.offset,
            align: finding.align,
            given_align: finding.given_align,
            stack: stack(&finding.stack)?,
            alloc_stack: optional(&finding.alloc_stack).then(|| stack(&finding.alloc_stack)).transpose()?,
            free_stack: optional(&finding.free_stack).then(|| stack(&finding.free_stack)).transpose()?,
            thread: finding.thread.clone(),
            function: finding.alloc_fn.clone(),
            baseline: baseline(finding),
        });
    }
    Ok(errors)
}

/// The leaks among the findings, by their stacks.
pub(super) fn leaks(
    report: &ReportLeaks,
    findings: &[ReportFinding],
    tables: &mut Tables<'_>,
) -> Result<Leaks, Trouble> {
    let mut sites: Vec<LeakSite> = Vec::new();
    let mut by_stack: FxHashMap<usize, usize> = FxHashMap::default();
    for finding in findings {
        let class = LeakClass::ALL.into_iter().find(|class| class.finding_kind() == finding.kind);
        let (Some(class), Some(direct)) = (class, finding.direct) else { continue };
        let stack = tables.stack(&finding.stack, Quality::Complete)?;
        let path = path(&finding.path, tables)?;
        let at = *by_stack.entry(stack).or_insert(sites.len());
        if at == sites.len() {
            // In a table by its stack, too.
            tables.room_for::<[LeakSite; 2]>()?;
            sites.push(LeakSite {
                stack,
                thread: tables.string(&finding.thread)?,
                alloc_fn: tables.string(&finding.alloc_fn)?,
                amounts: Default::default(),
                holds: Amount::default(),
                doubts: Doubts::default(),
                path: None,
                suppressed_by: [None; 4],
                baseline: [None; 4],
            });
        }
        let Some(site) = sites.get_mut(at) else { continue };
        let index = class as usize;
        if let Some(amount) = site.amounts.get_mut(index) {
            *amount = amount.plus(direct);
        }
        if let Some(rule) = site.suppressed_by.get_mut(index) {
            *rule = finding.suppressed_by;
        }
        if let Some(status) = site.baseline.get_mut(index) {
            *status = baseline(finding);
        }
        if class == LeakClass::Definite {
            site.holds = site.holds.plus(finding.indirect.unwrap_or_default());
        }
        if let Some(doubt) = finding.doubt.as_deref().and_then(Doubt::of_name) {
            site.doubts.add(doubt, Doubted { blocks: direct.objects, bytes: direct.bytes });
        }
        site.path = site.path.take().or(path);
    }
    // Worst classes stood first; the profile has the most lost bytes first.
    sites.sort_by_key(|site| std::cmp::Reverse((site.lost(LeakClass::Definite).bytes, site.amounts.map(|a| a.bytes))));
    Ok(Leaks {
        moment: report.moment,
        stopped_ns: report.stopped_ns,
        copied: report.copied,
        unreadable_names: Vec::new(),
        scanned_bytes: report.scanned_bytes,
        unreadable_bytes: 0,
        untold: report.untold.clone(),
        sites,
        asked: None,
    })
}

fn path(steps: &[ReportStep], tables: &mut Tables<'_>) -> Result<Option<RetentionPath>, Trouble> {
    let Some((root, blocks)) = steps.split_first().filter(|(_, blocks)| !blocks.is_empty()) else { return Ok(None) };
    let mut path = RetentionPath {
        root: root.root.clone().unwrap_or_default(),
        root_address: root.address.as_deref().map(hex).transpose()?.map(Addr),
        steps: Vec::with_capacity(blocks.len()),
    };
    tables.copies(1, blocks.len() * size_of::<PathStep>() + path.root.len())?;
    for block in blocks {
        path.steps.push(PathStep {
            block: Addr(block.address.as_deref().map_or(Ok(0), hex)?),
            size: block.size.unwrap_or(0),
            stack: tables.stack(&block.stack, Quality::Complete)?,
            target_offset: block.target_offset.unwrap_or(0),
            next_offset: block.next_offset,
        });
    }
    Ok(Some(path))
}
