//! What it takes to tell who holds the blocks of a process that nobody has traced: `heaptrace heap` beside programs
//! with millions of blocks, as a user runs it, with the types that their debug information declares and without
//! (`--no-types`). Limits: 10 s, and 100 bytes of heaptrace's own memory a block, of 10,000,000 blocks in 4 GiB.
//!
//! `cargo bench --bench inspect -- 2000000` for another number of blocks.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a benchmark")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");
const BLOCKS: u64 = 10_000_000;

fn main() {
    let wanted = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let counts = wanted.map_or_else(|| vec![BLOCKS / 5, BLOCKS], |count: u64| vec![count]);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mixed_blocks.cc");
    let program = folder.join("mixed_blocks");
    let built = Command::new("c++").args(["-O2", "-g", "-o"]).args([&program, &source]).status().unwrap();
    assert!(built.success());
    println!("{:>12} {:>9} {:>8} {:>9} {:>9} {:>9}", "blocks", "process", "types", "answered", "stood", "a block");
    for count in counts {
        let mut process =
            Command::new(&program).arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = process.id().to_string();
        for (types, options) in [("without", &["--no-types"][..]), ("with", &[])] {
            let start = Instant::now();
            let mut heaptrace = Command::new(HEAPTRACE);
            heaptrace.args(["heap", "--json", &pid]).args(options).stdout(Stdio::piped());
            let (status, peak, answer) = finish(heaptrace.spawn().unwrap());
            let took = start.elapsed().as_secs_f64();
            assert!(status.success(), "{status}");
            let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
            let live = answer["chunks"]["live"]["count"].as_u64().unwrap();
            assert!(live.abs_diff(count) * 50 < count, "{live} of {count}");
            // what is measured is there
            let is_declared =
                answer["types"].as_array().unwrap().iter().any(|of| of["name"].as_str().unwrap().contains("Link"));
            assert_eq!(is_declared, types == "with", "{}", answer["types"]);
            let bytes = answer["resident"].as_u64().unwrap() as f64 / f64::from(1 << 30);
            let stood = answer["stood_ns"].as_f64().unwrap() / 1e9;
            let of_block = peak as f64 / live as f64;
            println!("{live:>12} {bytes:5.2} GiB {types:>8} {took:7.2} s {stood:7.2} s {of_block:7.0} B");
        }
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

/// Waits for a process to end: its status, the most memory that it had, in bytes, and what it said.
fn finish(mut process: std::process::Child) -> (ExitStatus, u64, Vec<u8>) {
    let mut said = Vec::new();
    std::io::copy(&mut process.stdout.take().unwrap(), &mut said).unwrap();
    let mut status = 0;
    // SAFETY: plain old data; all zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a plain system call on our own child, which nobody else waits for.
    let ended = unsafe { libc::wait4(process.id() as i32, &raw mut status, 0, &raw mut usage) };
    assert_eq!(ended, process.id() as i32);
    (ExitStatus::from_raw(status), usage.ru_maxrss as u64 * 1024, said)
}
