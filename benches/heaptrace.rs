//! `cargo bench`: what tracing costs on this machine, in one run, as a table with ratios and the limits that the
//! project sets itself. Tools that are not installed are left out.

#![allow(clippy::expect_used, clippy::panic, reason = "a benchmark that can't measure must not go on")]

mod parts {
    pub mod basics;
    pub mod crowd;
    pub mod engines;
    pub mod floor;
    pub mod limits;
    pub mod long;
    pub mod measured;
    pub mod newstacks;
    pub mod performance;
    pub mod programs;
    pub mod server;
    pub mod slopes;
    pub mod turns;
    pub mod whole;
    #[allow(dead_code, reason = "others use the rest")]
    pub mod workloads;
}

use parts::basics::{installed, median};
use parts::floor::round_trip;
use parts::measured::Page;
use parts::programs::{STOPPING, fixture, heaptrace, pair_by_slope, resident, wall};
use parts::{crowd, engines, long, newstacks, performance, server, slopes, whole};
use std::path::Path;

/// Frames on the stack of most measurements.
const STACK: u32 = 16;
/// Live blocks of the memory measurement.
const LIVE: u64 = 1_000_000;
/// Shape of the stacks of the memory measurement: outer frames, and depth of the tree of inner ones.
const CHAIN: u64 = 200;
const DEPTH: u32 = 12;

/// A line of the table; a limit is an upper one unless it is marked as a lower one.
fn row(name: &str, figure: String, ratio: String, limit: &str) {
    println!("{name:<44} {figure:>14}   {ratio:<34} {limit}");
}

fn main() {
    // cargo passes --bench, and perhaps names of sections: else there are all
    let program = fixture("pairs");
    let sections: [(&str, &dyn Fn()); 10] = [
        ("basics", &|| basics(&program)),
        ("engines", &|| engines::recording(&program)),
        ("stopping", &|| engines::stopping(&program)),
        ("mixed", &|| drop(slopes::tables(&mut Page::default()))),
        ("long", &|| drop(long::tables(&mut Page::default()))),
        ("stacks", &newstacks::table),
        ("whole", &whole::table),
        ("threads", &crowd::tables),
        ("server", &server::table),
        ("latency", &server::latencies),
    ];
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if asked.iter().any(|asked| asked == "performance") {
        return performance::write();
    }
    for (name, section) in sections {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            section();
        }
    }
}

/// What a stop and a call at a stop cost, how long the start takes, and what is kept for each block and stack.
fn basics(program: &Path) {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();

    println!("{:<44} {:>14}   {:<34} limit", "", "figure", "ratio");
    let floor_pinned = median((0..3).map(|_| round_trip(20_000, true)));
    row("int3 round trip, one CPU (floor)", nanoseconds(floor_pinned), String::new(), "");
    let floor_free = median((0..5).map(|_| round_trip(20_000, false)));
    row("int3 round trip, not pinned (floor)", nanoseconds(floor_free), String::new(), "");

    // all of these have the same pairs
    let pair = |tool: &[String]| pair_by_slope(tool, program, STOPPING, STACK);
    let pinned = pair(&heaptrace(&["--engine", "trap", "--pin"]));
    let in_floors = |pair: f64, floor: f64| format!("{:.2} x three floors", pair / (3.0 * floor));
    println!("malloc/free pair, stack of {STACK}, between {} and {} pairs:", STOPPING[0], STOPPING[1]);
    row("  trap engine, --pin", nanoseconds(pinned), in_floors(pinned, floor_pinned), "1.60");
    let free = pair(&heaptrace(&["--engine", "trap"]));
    row("  trap engine", nanoseconds(free), in_floors(free, floor_free), "1.60");
    let no_free_stacks = pair(&heaptrace(&["--engine", "trap", "--pin", "--no-free-stacks"]));
    row(
        "  trap engine, --pin --no-free-stacks",
        nanoseconds(no_free_stacks),
        in_floors(no_free_stacks, floor_pinned),
        "",
    );
    if installed("ltrace") {
        let ltrace = pair(&words("ltrace -e malloc+free -o /dev/null"));
        row(
            "  ltrace -e malloc+free",
            nanoseconds(ltrace),
            format!("{:.1} x trap engine", ltrace / free),
            "at least 8",
        );
    }

    let start = wall(&words("/bin/true"));
    let mut traced = heaptrace(&[]);
    traced.push("/bin/true".into());
    let start_traced = wall(&traced);
    row(
        "heaptrace run /bin/true, beside plain",
        format!("{:.1} ms", (start_traced - start) * 1e3),
        String::new(),
        "60.0 ms",
    );

    let empty = resident(&heaptrace(&["--engine", "trap", "--pin"]), program, &["0", "16", "1"]);
    let full = resident(&heaptrace(&["--engine", "trap", "--pin"]), program, &["0", "16", &LIVE.to_string()]);
    row(
        "resident bytes per live block, of 1,000,000",
        format!("{:.1} B", (full.saturating_sub(empty)) as f64 / LIVE as f64),
        format!("{} MiB in all", full >> 20),
        "64.0 B",
    );

    let tree = fixture("stacks");
    let few = resident(&heaptrace(&["--engine", "trap", "--pin"]), &tree, &[&CHAIN.to_string(), "0"]);
    let many = resident(&heaptrace(&["--engine", "trap", "--pin"]), &tree, &[&CHAIN.to_string(), &DEPTH.to_string()]);
    // stacks are interned from their inner end: the tree's nodes are shared, each leaf has the chain, main and its two
    // callers and _start to itself
    let leaves = 1_u64 << DEPTH;
    let nodes = 2 * leaves + leaves * (CHAIN + 4);
    row(
        "resident bytes per stack node",
        format!("{:.1} B", many.saturating_sub(few) as f64 / nodes as f64),
        format!("{leaves} stacks, {nodes} nodes"),
        "24.0 B",
    );
}

fn nanoseconds(value: f64) -> String {
    if value < 1000.0 { format!("{value:.1} ns") } else { format!("{:.2} us", value / 1000.0) }
}
