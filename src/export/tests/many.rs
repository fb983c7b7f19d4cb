//! Formats on a profile of 262,144 stacks, each of them the call path of one block.

use super::*;
use crate::profile::Stacks;
use std::io::Write;
use std::time::{Duration, Instant};

/// How often the path forks, and how many frames it has in all.
const LEVELS: usize = 18;
const DEPTH: usize = 40;

/// Two functions on each of 18 levels, each of which calls either of the next level, below 22 frames that are always
/// the same.
fn many_stacks() -> Profile {
    let mut profile = empty_profile();
    (profile.functions, profile.locations) = (Vec::new(), Vec::new());
    for frame in 0..DEPTH + LEVELS {
        profile.functions.push(Function {
            name: format!("project::module::Visitor_{frame}::visit(project::Node const&, unsigned long)"),
            system_name: format!("_ZN7project6module10Visitor_{frame}5visitERKNS_4NodeEm"),
            file: Some(format!("/home/user/project/src/module/visitor_{frame}.cpp")),
            start_line: 1,
        });
        profile.locations.push(Location {
            module: Some(0),
            address: Addr(0x5555_5555_5000 + 16 * frame as u64),
            offset: 0x1000 + 16 * frame as u64,
            lines: vec![Line { function: frame, line: 100, inlined: false }],
        });
    }
    let block = Sample {
        size: 16,
        allocated: amount(1, 16),
        live: amount(1, 16),
        at_peak: amount(1, 16),
        ..samples().swap_remove(0)
    };
    for path in 0..1 << LEVELS {
        let turn = |level: usize| level + if path >> level & 1 == 0 { 0 } else { DEPTH };
        let locations: Vec<usize> = (0..LEVELS).map(turn).chain(LEVELS..DEPTH).collect();
        profile.samples.push(&Sample { stack: path, ..block });
        profile.stacks.push(Stack::new(&locations, Quality::Complete));
    }
    profile
}

/// Counts and drops.
struct Sink(u64);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The size of a profile in a format, and how long the writing took.
fn written(format: Format, profile: &Profile) -> (u64, Duration) {
    let (mut sink, start) = (Sink(0), Instant::now());
    write(format, profile, &ExportOptions::default(), &mut sink).expect("the sink takes everything");
    (sink.0, start.elapsed())
}

/// Times are shown, for `cargo test --release --lib many -- --nocapture`, and not judged: the machine has other work.
#[test]
fn json_of_many_stacks_has_each_frame_once() {
    let profile = many_stacks();
    let (json, json_time) = written(Format::Json, &profile);
    let (pprof, pprof_time) = written(Format::PprofGz, &profile);
    println!("json: {json} bytes in {json_time:?}; pb.gz: {pprof} bytes in {pprof_time:?}");
    // what whole frames in each stack would take, as in version 1; all frames are of about one size
    let alone = |locations: &[u32]| {
        let mut one = profile.clone();
        one.stacks = Stacks::default();
        one.stacks.add(locations, Quality::Complete);
        one.samples.edit(|samples| samples.truncate(1));
        written(Format::Json, &one).0
    };
    let frames = alone(&profile.stacks.row(0).locations) - alone(&[]);
    let whole = frames * profile.stacks.len() as u64;
    println!("with whole frames: {whole} bytes and the same rest, {} times as much", whole / json);
    assert!(json * 20 < whole, "{json} bytes, {whole} with whole frames");
}
