//! docs/performance.md: its text, and the tables that this bench measures for it.

use super::limits::{Bound, Single};
use super::measured::Page;
use super::programs::{heaptrace, wall};
use super::{crowd, limits, long, slopes, whole};
use std::path::Path;

const HEAD: &str = "\
# What heaptrace costs

`cargo bench --bench heaptrace -- performance` has measured and written this page, in one run";

const PAIRS: &str = "
heaptrack, too, records each call with its stack. Both have the same work, the same counts and their usual options;
`--no-free-stacks` is what heaptrack does: it keeps no stacks of frees. All take turns, so that a machine whose speed changes
is as slow for each. CPU time is that of the program and of all processes of the tool. Analysis of heaptrack's file, which is a
step of its own, does not count. A turn counts only if the program alone took at most 12 % longer in it than in its fastest turn;
where fewer than three of eight turns were so quiet, the row says that it was disturbed. Beside busy loops each turn counts, and
figures below zero show how much runs vary.

## Pairs of malloc and free

`tests/fixtures/mixed.c` gives a block back and takes another one, 16 frames deep. A figure is the slope between 1,000,000 and
4,000,000 pairs (2,500 and 10,000 for tools that stop the program), the middle one of three turns. What a tool does once, at its start
and end, is in the last column.";

const RUNS: &str = "
## Whole runs

Start and end of the tool included: of heaptrace some 0.05 s, of heaptrack 0.2 s. The middle one of three turns. python3 has
PYTHONMALLOC=malloc. What was added, as a part of what heaptrack has added, is the middle one of the turns.";

const HELD: &str = "
## Limits

What the project wants, and what this run has measured. **Bold** figures do not hold their limit. The limits on one processor and beside
busy loops are of wall time. `cargo bench --bench heaptrace -- server latency` measures what an attach costs a server; it is not in this
page, as it takes half an hour.
";

/// Measures all, and writes the page. It takes about a quarter of an hour.
pub fn write() {
    let mut page = Page::default();
    page.line(&format!("{HEAD} on {}.", machine()));
    let (mut pairs, mut runs) = (Page::default(), Page::default());
    pairs.line(PAIRS);
    let mut parts = slopes::tables(&mut pairs);
    runs.line(RUNS);
    let long = long::tables(&mut runs);
    parts.extend(long.parts);
    page.line(HELD);
    limits::tables(&mut page, &parts, &long.sampled, &singles());
    page.0 += &(pairs.0 + &runs.0);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md");
    std::fs::write(path, page.0).expect("written");
}

/// What is measured once.
fn singles() -> Vec<Single> {
    let plain = wall(&["/bin/true".to_owned()]);
    let mut traced = heaptrace(&[]);
    traced.push("/bin/true".to_owned());
    let start = Single {
        name: "`heaptrace run /bin/true`, beyond /bin/true alone",
        unit: "ms",
        measured: (wall(&traced) - plain) * 1e3,
        limit: Bound::AtMost(15.0),
    };
    let end = whole::end_of_long("jq").map(|seconds| Single {
        name: "end of heaptrace after jq's own",
        unit: "ms",
        measured: seconds * 1e3,
        limit: Bound::AtMost(40.0),
    });
    let crowd = Single {
        name: "8 threads of mixed calls, each recorded, `--engine jump`",
        unit: "million calls a second",
        measured: crowd::mixed(8),
        limit: Bound::AtLeast(12.0),
    };
    [start, crowd].into_iter().chain(end).collect()
}

/// Processors and kernel.
fn machine() -> String {
    let of = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = of("/proc/cpuinfo").lines().find_map(|line| Some(line.strip_prefix("model name")?.trim().to_owned()));
    let model = model.as_deref().and_then(|model| model.strip_prefix(": ")).unwrap_or("processors").to_owned();
    let count = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let release = of("/proc/sys/kernel/osrelease");
    format!("{count} × {model}, Linux {}", release.split('-').next().unwrap_or_default().trim())
}
