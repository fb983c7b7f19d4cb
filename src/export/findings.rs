//! The program's errors in using the heap, in words.

use super::rows::frame_lines;
use super::sections::{FRAMES, Layout, prose};
use super::telling::telling_frames;
use super::text::{grouped, plural, short_name};
use super::view::{NamedFrame, View};
use crate::profile::{Finding, FindingKind, Profile};
use std::fmt::Write;

/// The program's errors in using the heap; what `tell` says of each.
pub(crate) fn write_by(
    out: &mut String,
    layout: Layout,
    profile: &Profile,
    top: usize,
    tell: impl Fn(&mut String, &Finding),
) {
    let findings = &profile.findings;
    if findings.is_empty() {
        return;
    }
    let title = format!("Errors in the use of the heap: {}", grouped(findings.len() as u64));
    let _ = writeln!(out, "\n{}", layout.paint.red(&title));
    let shown = shown_findings(findings, top);
    shown.iter().for_each(|finding| tell(out, finding));
    if findings.len() > shown.len() {
        let more = grouped((findings.len() - shown.len()) as u64);
        let _ = writeln!(out, "  and {more} more, all of them in report.json (-o NAME.json)");
    }
}

/// The program's errors in using the heap, with the frames that tell most.
pub(crate) fn write(out: &mut String, layout: Layout, view: &View<'_>, top: usize) {
    write_by(out, layout, view.profile, top, |out, finding| {
        prose(out, layout, &finding_sentence(finding));
        let room = layout.width.saturating_sub(4 + 14 + 2 + 2);
        for (title, stack) in finding.stacks() {
            let frames = telling_frames(view, stack, FRAMES - 1);
            let line = |frame: &NamedFrame<'_>| (short_name(frame.name, room * 3 / 5), frame.place(room * 2 / 5));
            let lines: Vec<(String, String)> = frames.iter().map(line).collect();
            let names = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
            frame_lines(out, layout.paint, (&format!("    {title:14}  "), 20), &lines, names, false);
        }
    });
}

/// At most `top` errors, in their order; of each kind at least one, as repeats of one kind would hide the others.
fn shown_findings(findings: &[Finding], top: usize) -> Vec<&Finding> {
    let is_first = |index: usize, kind| findings.iter().position(|other| other.kind == kind) == Some(index);
    let kinds = findings.iter().enumerate().filter(|(index, finding)| is_first(*index, finding.kind)).count();
    let mut repeats = top.saturating_sub(kinds);
    let shown = findings.iter().enumerate().filter(|(index, finding)| {
        is_first(*index, finding.kind) || repeats.checked_sub(1).inspect(|left| repeats = *left).is_some()
    });
    shown.map(|(_, finding)| finding).collect()
}

/// What a kind of error is, as a participle.
pub(crate) const fn finding_words(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::DoubleFree => "freed twice",
        FindingKind::InvalidFree => "freed, but never allocated",
        FindingKind::MismatchedFree => "freed by the wrong family of functions",
        FindingKind::SizedDelete => "freed with a wrong size",
        FindingKind::AlignedDelete => "freed with a wrong alignment",
    }
}

/// An error in words, without its stacks.
pub(crate) fn finding_sentence(finding: &Finding) -> String {
    let kind = finding_words(finding.kind);
    let aligned = |align: Option<u64>| match align {
        Some(align) => format!("aligned to {}", plural(align, "byte")),
        None => "without alignment".to_owned(),
    };
    let bytes = |size| plural(size, "byte");
    let (size, given) = match (finding.kind, finding.size) {
        (FindingKind::AlignedDelete, size) => {
            let size = size.map(|size| format!("{}, ", bytes(size))).unwrap_or_default();
            (format!(" ({size}{})", aligned(finding.align)), format!(" as one {}", aligned(finding.given_align)))
        }
        (_, size) => (
            size.map(|size| format!(" ({})", bytes(size))).unwrap_or_default(),
            finding.given_size.map(|size| format!(" as one of {}", bytes(size))).unwrap_or_default(),
        ),
    };
    let times = if finding.count == 1 { String::new() } else { format!("; {} times", grouped(finding.count)) };
    let (block, function, thread) = (finding.block, &finding.function, &finding.thread);
    if let (Some(offset), Some(size)) = (finding.offset, finding.size) {
        let place = format!("{} inside a live block of {}", bytes(offset), bytes(size));
        return format!("{kind}: {block}, {place}, by {function} in thread {thread}{times}");
    }
    format!("{kind}: the block at {block}{size}{given}, by {function} in thread {thread}{times}")
}
