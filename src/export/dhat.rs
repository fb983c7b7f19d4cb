//! `.dhat.json`: what Valgrind's DHAT writes, version 2, for `dh_view.html` and the Firefox Profiler.
//!
//! Fields as `dhat/dh_main.c` of Valgrind describes them. Two that DHAT knows are not known here. The sum of the
//! lifetimes (`tl`) is left out: the viewer shows NaN for an average, where a zero would be taken for an answer. The
//! most that was live of a stack at one time (`mb`) is at least what was live at the peak of all and at the end, and
//! that is written. `mode` says both, which the viewer shows on top.

use super::escape::{Json, printable};
use super::text::shell_words;
use super::view::{NamedFrame, StackTotals, View};
use crate::profile::Amount;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};

/// The version of the format.
const VERSION: u32 = 2;

/// What the viewer shows as the mode.
const MODE: &str = "heap (by heaptrace: Max is a lower bound, lifetimes are not recorded)";

/// The first frame of the table, which the viewer has above all stacks.
const ROOT: &str = "[root]";

#[derive(Serialize)]
struct Dhat {
    #[serde(rename = "dhatFileVersion")]
    version: u32,
    mode: &'static str,
    /// What stands before the frames of a stack.
    verb: &'static str,
    /// Whether more than totals is known of blocks.
    bklt: bool,
    /// Whether accesses are.
    bkacc: bool,
    /// The unit of times, and a million of it.
    tu: &'static str,
    #[serde(rename = "Mtu")]
    mtu: &'static str,
    /// Lives no longer than this are short.
    tuth: u64,
    cmd: String,
    pid: i32,
    /// The time of the end, and that of the peak.
    te: u64,
    tg: u64,
    pps: Vec<Point>,
    ftbl: Vec<String>,
}

/// What was allocated at one stack: in all, at most, at the peak of the process, at the end; bytes and blocks.
#[derive(Serialize)]
struct Point {
    tb: u64,
    tbk: u64,
    mb: u64,
    mbk: u64,
    gb: u64,
    gbk: u64,
    eb: u64,
    ebk: u64,
    /// Indices into the table of frames, the innermost first.
    fs: Vec<u32>,
}

/// Writes the file, on one line.
///
/// # Errors
/// What `out` says.
pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(Json(&mut *out), &dhat(view))?;
    out.write_all(b"\n")
}

fn dhat(view: &View<'_>) -> Dhat {
    let profile = view.profile;
    let mut frames = Frames { texts: vec![ROOT.to_owned()], indices: FxHashMap::default() };
    let mut pps: Vec<Point> = Vec::new();
    // the viewer takes a second point of the same frames for damage
    let mut known: FxHashMap<Vec<u32>, usize> = FxHashMap::default();
    let has_amounts = |site: &StackTotals| {
        [site.allocated, site.live, site.at_peak].iter().any(|amount| *amount != Amount::default())
    };
    for site in view.sites().iter().filter(has_amounts) {
        let fs: Vec<u32> = view.frames(site.stack).map(|frame| frames.index_of(&frame)).collect();
        let place = *known.entry(fs.clone()).or_insert(pps.len());
        match pps.get_mut(place) {
            Some(point) => point.add(&site),
            None => {
                let mut point = Point { tb: 0, tbk: 0, mb: 0, mbk: 0, gb: 0, gbk: 0, eb: 0, ebk: 0, fs };
                point.add(&site);
                pps.push(point);
            }
        }
    }
    let process = &profile.meta.process;
    Dhat {
        version: VERSION,
        mode: MODE,
        verb: "Allocated",
        bklt: true,
        bkacc: false,
        tu: "µs",
        mtu: "s",
        tuth: 0,
        cmd: printable(&shell_words(&process.command)),
        pid: process.pid,
        // the viewer divides by it
        te: (profile.meta.duration_ns / 1000).max(1),
        tg: profile.totals.peak_at_ns / 1000,
        pps,
        ftbl: frames.texts,
    }
}

impl Point {
    fn add(&mut self, site: &StackTotals) {
        // what came over a fork, or was there before, was not allocated here; the viewer has no more live than
        // allocated
        let allocated = [site.live, site.at_peak].into_iter().fold(site.allocated, |most, amount| {
            let (objects, bytes) = (most.objects.max(amount.objects), most.bytes.max(amount.bytes));
            Amount { objects, bytes }
        });
        for (bytes, blocks, amount) in [
            (&mut self.tb, &mut self.tbk, allocated),
            (&mut self.gb, &mut self.gbk, site.at_peak),
            (&mut self.eb, &mut self.ebk, site.live),
        ] {
            *bytes = bytes.saturating_add(amount.bytes);
            *blocks = blocks.saturating_add(amount.objects);
        }
        let larger = |peak: (u64, u64), end: (u64, u64)| if peak.0 >= end.0 { peak } else { end };
        (self.mb, self.mbk) = larger((self.gb, self.gbk), (self.eb, self.ebk));
    }
}

/// The table of frames, each text once.
struct Frames {
    texts: Vec<String>,
    indices: FxHashMap<String, u32>,
}

impl Frames {
    fn index_of(&mut self, frame: &NamedFrame<'_>) -> u32 {
        let text = text_of(frame);
        if let Some(index) = self.indices.get(&text) {
            return *index;
        }
        let index = self.texts.len() as u32;
        self.texts.push(text.clone());
        self.indices.insert(text, index);
        index
    }
}

/// A frame as DHAT of Rust writes it, which the Firefox Profiler takes apart: address, function, file, line, column (0:
/// not known). Where no line is known, function and module, as Valgrind has them, but without the address, which would
/// make the Firefox Profiler take each call for a function of its own.
fn text_of(frame: &NamedFrame<'_>) -> String {
    let name = printable(frame.name);
    match (frame.file, frame.location, frame.module) {
        (Some(file), Some(location), _) if frame.line > 0 => {
            format!("0x{:X}: {name} ({}:{}:0)", location.address.0, printable(file), frame.line)
        }
        (_, _, Some(module)) => format!("{name} (in {})", printable(&module.path.to_string_lossy())),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::sample_profile;

    /// What came over a fork and is gone, and bytes of other tools' files that count no blocks.
    #[test]
    fn what_was_live_at_the_peak_only_counts() {
        let mut profile = sample_profile();
        let sample = profile.samples.row(0);
        let none = Amount::default();
        let bare = crate::profile::Sample { allocated: none, freed: none, live: none, at_peak: none, ..sample };
        let at_peak = crate::profile::Sample { at_peak: Amount { objects: 2, bytes: 700 }, ..bare };
        let of_bytes = crate::profile::Sample { live: Amount { objects: 0, bytes: 30 }, ..bare };
        profile.samples = [at_peak, of_bytes].into_iter().collect();
        let told = dhat(&View::new(&profile));
        let sums = told.pps.iter().fold((0, 0), |(peak, end), point| (peak + point.gb, end + point.eb));
        assert_eq!(sums, (700, 30));
    }
}
