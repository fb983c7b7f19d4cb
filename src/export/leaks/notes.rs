//! What has to be known to believe the classes: how they were found, and what could not be seen.

use crate::export::sections::{self, Layout};
use crate::export::text::{duration, human_bytes, plural};
use crate::heap::leaks::{Doubt, Doubted, Doubts};
use crate::profile::check::verdict::in_brackets;
use crate::profile::leaks::{LeakSite, Leaks, ScanMoment};
use std::fmt::Write as _;

/// What it took, and what could not be seen at that moment.
pub(super) fn moment(out: &mut String, layout: Layout, leaks: &Leaks) {
    let stopped = duration(leaks.stopped_ns);
    let looked = format!("{} searched in {stopped}", human_bytes(leaks.scanned_bytes));
    let _ = writeln!(out, "  {}", layout.paint.dim(&looked));
    if leaks.unreadable_bytes > 0 {
        let unread = human_bytes(leaks.unreadable_bytes);
        let names = in_brackets(&leaks.unreadable_names);
        sections::prose(
            out,
            layout,
            &format!(
                "{unread} could not be read{names}: blocks to which only pointers there lead look lost, and may not be."
            ),
        );
    }
    untold(out, layout, &leaks.untold);
    let at_another_moment = match leaks.moment {
        ScanMoment::Exit | ScanMoment::Request => None,
        ScanMoment::LastThread => Some(
            "heaptrace read memory when the last thread ended, not at exit(): it did not read the stacks of threads \
             that had ended before.",
        ),
        ScanMoment::Program => Some(
            "heaptrace read memory when the program asked for it (__lsan_do_leak_check), not at its end: it does not \
             report what the program has lost since.",
        ),
    };
    if let Some(told) = at_another_moment {
        sections::prose(out, layout, told);
    }
}

/// Where the kernel may hold pointers that it tells nobody.
pub(in crate::export) fn untold(out: &mut String, layout: Layout, untold: &[String]) {
    if let Some(sentence) = untold_sentence(untold) {
        sections::prose(out, layout, &sentence);
    }
}

/// The same in words; None: there is nothing of that kind.
pub(in crate::export) fn untold_sentence(untold: &[String]) -> Option<String> {
    (!untold.is_empty()).then(|| {
        let by = untold.join(", ");
        format!(
            "The kernel may hold pointers that heaptrace could not read ({by}): a block to which only these lead looks \
             lost, and may not be."
        )
    })
}

/// Why the blocks of a site are only possibly lost.
pub(super) fn doubt(out: &mut String, layout: Layout, site: &LeakSite) {
    if let Some((doubt, Doubted { blocks, .. })) = site.doubts.most() {
        let line = format!("{} by pointers {}", plural(blocks, "block"), doubt.words());
        let _ = writeln!(out, "    {}", layout.paint.dim(&line));
    }
}

/// Which doubtful pointers repeat.
pub(in crate::export) fn doubts(out: &mut String, layout: Layout, doubts: &Doubts) {
    for sentence in doubt_sentences(doubts) {
        out.push('\n');
        sections::prose(out, layout, &sentence);
    }
}

/// The same in words.
pub(in crate::export) fn doubt_sentences(doubts: &Doubts) -> Vec<String> {
    let sentence = |(doubt, Doubted { blocks, bytes }): (Doubt, Doubted)| {
        let count = plural(blocks, "possibly lost block");
        format!("{count}, {}, can be reached by pointers {}.", human_bytes(bytes), doubt.words())
    };
    doubts.told().into_iter().map(sentence).collect()
}
