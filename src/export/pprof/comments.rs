//! The comments of a pprof file: what the format has no field for, one `key=value` a line. `import` reads them back,
//! and `docs/profile.md` lists them.

use super::super::{ExportOptions, text};
use crate::profile::saved::{Holds, Saved, ranges};
use crate::profile::{Exit, Mode, Profile};
use std::ops::Range;

/// What was done, what could not be seen, and what `heaptrace merge` has to know.
pub(in crate::export) fn comments(profile: &Profile, options: &ExportOptions) -> Vec<String> {
    let meta = &profile.meta;
    let process = &meta.process;
    let saved = profile.saved.as_deref();
    let last = saved.map_or(options.last, |saved| saved.last);
    let mut comments = vec![
        format!("heaptrace {}", env!("CARGO_PKG_VERSION")),
        format!("command={}", text::shell_words(&process.command)),
        format!("program={}", process.program),
    ];
    comments.extend((process.pid != 0).then(|| format!("pid={}", process.pid)));
    let mode = match meta.mode {
        Mode::Run => "run",
        Mode::Attach => "attach",
        Mode::Check => "check",
        Mode::Snapshot => "snapshot",
        Mode::SnapshotOfAttached => "snapshot of attached",
    };
    comments.push(format!("mode={mode}"));
    comments.extend(process.exit.map(|exit| match exit {
        Exit::Code(code) => format!("exit=code {code}"),
        Exit::Signal(signal) => format!("exit=signal {signal}"),
    }));
    comments.push(format!("engine={}", meta.engine));
    // Of several sessions there is none.
    if !meta.session.is_empty() {
        comments.push(format!("session={}", meta.session));
        comments.push(format!("part={}", meta.part));
    }
    comments.push(format!("last={last}"));
    if let Some(Range { start, end }) = &options.period {
        comments.push(format!("period={:.3}s-{:.3}s", *start as f64 / 1e9, *end as f64 / 1e9));
    }
    comments.push(format!("complete={}", meta.complete));
    if let Some(saved) = saved {
        of_merged(saved, &mut comments);
    }
    let variance = saved.map_or_else(|| u128::from(profile.standard_error()).pow(2), |saved| saved.variance);
    comments.extend((variance > 0).then(|| format!("variance={variance}")));
    if let Some(resident) = &process.resident {
        let share = resident.explained_permille(profile.totals.peak_bytes);
        let share = share.map(|permille| format!(" explained={:.1}%", permille as f64 / 10.0)).unwrap_or_default();
        comments.push(format!("resident: peak_bytes={}{share}", resident.peak_bytes));
    }
    comments.push(format!("totals: {}", totals(profile)));
    let anomalies: Vec<String> = text::anomalies(&profile.anomalies)
        .into_iter()
        .filter(|anomaly| anomaly.count > 0)
        .map(|anomaly| format!("{}={}", anomaly.key, anomaly.count))
        .collect();
    comments.push(format!("anomalies: {}", if anomalies.is_empty() { "none".to_owned() } else { anomalies.join(" ") }));
    comments.extend(profile.warnings.iter().map(|warning| format!("warning: {warning}")));
    comments
}

/// The sums that no column has.
fn totals(profile: &Profile) -> String {
    let totals = &profile.totals;
    let mut sums = vec![
        ("reallocations", totals.reallocations),
        ("failed", totals.failed),
        ("preexisting_frees", totals.preexisting_frees),
        ("peak_at_ns", totals.peak_at_ns),
    ];
    if profile.saved.as_ref().is_none_or(|saved| saved.holds.temporary) {
        sums.push(("temporary", totals.temporary));
    }
    let counted = [("counted_allocations", totals.counted_allocations), ("counted_bytes", totals.counted_bytes)];
    sums.extend(counted.into_iter().filter(|(_, value)| *value > 0));
    sums.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// Of what files it was made, and what is not in it.
fn of_merged(saved: &Saved, comments: &mut Vec<String>) {
    if saved.files > 1 {
        comments.push(format!("files={}", saved.files));
        if !saved.parts.is_empty() {
            comments.push(format!("parts={}", ranges(&saved.parts)));
            comments.push(format!("peak_part={}", saved.peak_part));
        }
    }
    if saved.peak_is_bound {
        comments.push("peak=upper bound".to_owned());
    }
    comments.extend(saved.open.iter().map(|(session, parts)| format!("open={session}:{}", ranges(parts))));
    // Columns have what was freed where it was freed; the rest follows from others, or is in the totals.
    let missing = Holds { temporary: true, ..saved.holds }.missing();
    if !missing.is_empty() {
        comments.push(format!("missing={}", missing.join(",")));
    }
}
