//! Profiles that somebody has made to fill the memory: small files of which much would come, and few bytes that are
//! referred to often. Reading them is refused before it takes more than it may.

use crate::support::allocations::peak_of;
use crate::support::program::Program;
use crate::support::running::Ended;
use flate2::Compression;
use flate2::write::GzEncoder;
use heaptrace::internal::import::{ImportError, Limits, read};
use std::io::Write;

/// What reading may take, and what the test's own account may be off.
const LIMITS: Limits = Limits { unpacked: 256 << 20, memory: 48 << 20 };
const SLACK: usize = 8 << 20;

/// A text that is referred to again and again.
const LONG: usize = 1 << 20;

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A heap profile of one column, with these texts (from 4 on) and this rest.
fn profile(texts: &[Vec<u8>], rest: &[Vec<u8>]) -> Vec<u8> {
    let column = bytes(1, &[number(1, 1), number(2, 2)].concat());
    let usual = [&b""[..], b"inuse_space", b"bytes", b"heaptrace 0.1.0"];
    let texts = usual.into_iter().chain(texts.iter().map(Vec::as_slice)).map(|text| bytes(6, text));
    [column].into_iter().chain(texts).chain(rest.iter().cloned()).flatten().collect()
}

fn long(start: &str) -> Vec<u8> {
    let mut text = start.as_bytes().to_vec();
    text.resize(LONG, b'x');
    text
}

fn packed(content: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(content).expect("memory takes everything");
    gzip.finish().expect("memory takes everything")
}

/// `piece` so many times.
fn times(count: usize, piece: &[u8]) -> Vec<u8> {
    piece.repeat(count)
}

#[track_caller]
fn refused_within_memory(what: &str, file: &[u8]) {
    let mut error = None;
    let peak = peak_of(|| error = read(file, "bad.pb.gz", &LIMITS).err());
    assert!(peak < LIMITS.memory as usize + SLACK, "{what}: {} MiB were taken", peak >> 20);
    let error = error.unwrap_or_else(|| panic!("{what}: it was read, in {peak} bytes"));
    assert!(matches!(error, ImportError::TooLarge { .. }), "{what}: {error}");
    let text = error.to_string();
    assert!(text.starts_with("bad.pb.gz: ") && text.contains("48 MiB") && text.contains("memory is short"), "{text}");
}

#[test]
fn texts_that_are_referred_to_often() {
    let comments = |first: u64, count: usize| [number(13, 3), bytes(13, &times(count, &varint(first)))];
    for start in ["warning: ", "command=", "cwd=", "program=", "session=", "heaptrace ", "missing="] {
        refused_within_memory(start, &profile(&[long(start)], &comments(4, 2000)));
    }
    let words = times(LONG, b" a");
    refused_within_memory("words of a command", &profile(&[[b"command=".to_vec(), words].concat()], &comments(4, 1)));
    let frames: String = (0..400_000).map(|n| format!("{n:x}|")).collect();
    refused_within_memory("drop_frames", &profile(&[frames.into_bytes()], &[number(13, 3), number(7, 4)]));
    let mapping = |field| bytes(3, &[number(1, 1), number(field, 4)].concat());
    refused_within_memory("paths", &profile(&[long("/")], &[times(200, &mapping(5))]));
    refused_within_memory("build ids", &profile(&[long("a")], &[times(200, &mapping(6))]));
    for field in [2, 3, 4] {
        let function = bytes(5, &[number(1, 1), number(field, 4)].concat());
        refused_within_memory("functions", &profile(&[long("f")], &[times(200, &function)]));
    }
    let nameless = bytes(4, &[number(1, 1), number(2, 1)].concat());
    refused_within_memory("names of places", &profile(&[long("/")], &[mapping(5), times(200, &nameless)]));
}

#[test]
fn lists_of_parts() {
    let open = |n: usize| format!("open={n:016x}:1-1000000").into_bytes();
    let texts: Vec<Vec<u8>> = (0..100).map(open).collect();
    let indices: Vec<u8> = (4..104).collect();
    refused_within_memory("open", &profile(&texts, &[number(13, 3), bytes(13, &indices)]));
    let parts = b"parts=1-1000000".to_vec();
    refused_within_memory("parts", &profile(&[parts], &[number(13, 3), bytes(13, &times(100, &[4]))]));
}

#[test]
fn many_entries_of_few_bytes() {
    refused_within_memory("comments", &packed(&profile(&[], &[bytes(13, &times(16 << 20, &[3]))])));
    let sample = |locations: &[u8]| bytes(2, &[bytes(1, locations), bytes(2, &[1])].concat());
    let location = bytes(4, &number(1, 1));
    let deep = sample(&times(16 << 20, &[1]));
    refused_within_memory("locations of a sample", &packed(&profile(&[], &[location.clone(), deep])));
    let samples: Vec<u8> = (1..400_000).flat_map(|n| sample(&[varint(1), varint(1)].concat()[..1 + n % 2])).collect();
    let _few_stacks = read(&profile(&[], &[location.clone(), samples]), "x", &LIMITS).expect("two samples");
    for (what, entry) in
        [("locations", number(1, 1)), ("lines", bytes(4, &[])), ("functions", number(1, 1)), ("mappings", number(1, 1))]
    {
        let field = match what {
            "functions" => 5,
            "mappings" => 3,
            _ => 4,
        };
        refused_within_memory(what, &packed(&profile(&[], &[times(1 << 20, &bytes(field, &entry))])));
    }
    let function = bytes(5, &number(1, 1));
    let lines = bytes(4, &[number(1, 1), times(4 << 20, &bytes(4, &number(1, 1)))].concat());
    refused_within_memory("lines of a location", &packed(&profile(&[], &[function, lines])));
    refused_within_memory("texts", &packed(&profile(&[], &[times(4 << 20, &bytes(6, b""))])));
    refused_within_memory("names of labels", &packed(&profile(&[], &[times(1 << 20, &bytes(6, b"pid"))])));
    let different: Vec<u8> = (0..200_000_u64)
        .flat_map(|n| {
            bytes(2, &[bytes(1, &[1]), bytes(2, &[1]), bytes(3, &[number(1, 4), number(3, n)].concat())].concat())
        })
        .collect();
    refused_within_memory("samples", &profile(&[b"bytes".to_vec()], &[location, different]));
}

#[test]
fn what_is_unpacked_counts() {
    refused_within_memory("a bomb", &packed(&times(200 << 20, &[0])));
    refused_within_memory("a bomb that looks like a profile", &packed(&profile(&[times(200 << 20, b"x")], &[])));
}

/// A report with `rest` among its fields.
fn report(rest: &str) -> Vec<u8> {
    let totals = r#"{"allocations":0,"frees":0,"reallocations":0,"bytes_allocated":0,"bytes_freed":0,"live_blocks":0,"live_bytes":0,
        "peak_blocks":0,"peak_bytes":0,"peak_at_ns":0,"temporary":0,"failed":0,"preexisting_frees":0}"#;
    let mut text = format!(
        r#"{{"version":3,"heaptrace_version":"0.1.0","mode":"run","part":1,"program":"p","pid":1,"command":[],"cwd":"/",
        "started_at":"2026-01-01T00:00:00Z","duration_ns":1,"engine":"trap","complete":true,"exit":null,"verdict":null,"totals":{totals},
        "cost":{{"wall_ns":1,"stopped_ns":1,"stopped_max_ns":1,"events":1,"stops":1}},
        "anomalies":{{"lost":0,"truncated_stacks":0,"guessed_stacks":0,"unknown_frees":0,"double_frees":0,"mismatched_frees":0,
        "abandoned_calls":0}},"sampling":{{"interval":0}},"allocators":[],"modules":[],"images":[],
        "children":{{"followed":0,"untraced":0,"untraced_names":[]}},"timeline":[],"histograms":{{"size":[],"lifetime":[]}},"leaks":null,"suppressions":[],
        "budgets":[]"#
    );
    for (field, empty) in
        [("frames", "[]"), ("sites", "[]"), ("findings", "[]"), ("warnings", "[]"), ("processes", "[]")]
    {
        if !rest.contains(&format!("\"{field}\":")) {
            text += &format!(",\"{field}\":{empty}");
        }
    }
    (text + "," + rest + "}").into_bytes()
}

fn list(count: usize, item: &str) -> String {
    format!("[{}]", vec![item; count].join(","))
}

#[test]
fn reports_that_unfold() {
    let site = |stack: &str| {
        let none = r#"{"objects":0,"bytes":0}"#;
        format!(
            r#"{{"stack":{stack},"quality":"","allocated":{none},"freed":{none},"live":{none},"at_peak":{none},"temporary":0}}"#
        )
    };
    let finding = |stack: &str, path: &str| {
        format!(r#"{{"kind":"double_free","count":0,"stack":{stack},"alloc_stack":{stack},"path":{path}}}"#)
    };
    let frame = r#"{"function":"f","inlined":true}"#;
    for (what, rest) in [
        ("warnings", format!("\"warnings\":{}", list(4 << 20, "\"\""))),
        ("stacks", format!("\"frames\":[{frame}],\"sites\":[{}]", site(&list(8 << 20, "0")))),
        ("frames", format!("\"frames\":{}", list(1 << 20, frame))),
        ("whole frames", format!("\"sites\":[{}]", site(&list(1 << 20, frame)))),
        ("sites", format!("\"sites\":{}", list(200_000, &site("[]")))),
        ("findings", format!("\"findings\":{}", list(300_000, &finding("[]", "[]")))),
        ("steps", format!("\"findings\":[{}]", finding("[]", &list(2 << 20, "{}")))),
    ] {
        let file = report(&rest);
        refused_within_memory(what, &packed(&file));
    }
    // Nested without end.
    let deep = report(&format!("\"extra\":{}", "[".repeat(1 << 20)));
    let mut error = String::new();
    let peak = peak_of(|| error = read(&deep, "bad.json", &LIMITS).expect_err("no report").to_string());
    assert!(peak < SLACK && error.contains("not a report of heaptrace"), "{peak}: {error}");
    // What is as large and honest is read.
    let honest = report(&format!("\"frames\":[{frame}],\"sites\":{}", list(2000, &site(&list(20, "0")))));
    read(&honest, "good.json", &LIMITS).expect("a report");
}

/// Runs heaptrace with so many KiB of address space.
fn limited(kib: u32, args: &[String]) -> Ended {
    let words: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let command = format!("ulimit -v {kib} && exec '{}' {}", env!("CARGO_BIN_EXE_heaptrace"), words.join(" "));
    Program::new("/bin/sh").args(["-c", &command]).start().wait()
}

/// In the commands, too, under a limit of address space: the file is named, and the sum of many files ends in words.
#[test]
fn commands_end_in_words_where_memory_is_short() {
    let program = Program::new("/bin/true");
    let path = |name: &str| program.outside(name).to_str().expect("UTF-8").to_owned();
    let out = path("out.pb.gz");
    let open: Vec<Vec<u8>> = (0..200).map(|n| format!("open={n:016x}:1-1000000").into_bytes()).collect();
    let indices: Vec<u8> = (4..204).flat_map(varint).collect();
    let hostile = [
        profile(&open, &[number(13, 3), bytes(13, &indices)]),
        packed(&profile(&[long("warning: ")], &[number(13, 3), bytes(13, &times(2000, &varint(4)))])),
        packed(&report(&format!("\"warnings\":{}", list(8 << 20, "\"\"")))),
    ];
    let mut bad = Vec::new();
    for (index, content) in hostile.iter().enumerate() {
        for copy in 0..8 {
            bad.push(path(&format!("bad{index}-{copy}")));
            std::fs::write(&bad[bad.len() - 1], content).expect("written");
        }
    }
    for file in bad.iter().step_by(8) {
        for command in ["report", "diff"] {
            let mut args = vec![command.to_owned(), file.clone()];
            args.extend((command == "diff").then(|| file.clone()));
            let ended = limited(500_000, &args);
            assert_eq!(ended.code(), 125, "{command} {file}: {}", ended.stderr);
            assert!(ended.stderr.contains(&format!("{file}: reading this file would take")), "{}", ended.stderr);
        }
    }
    let ended = limited(500_000, &[vec!["merge".to_owned(), "-o".to_owned(), out.clone()], bad].concat());
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("bad0-0: reading this file would take"), "{}", ended.stderr);
    // Each of these is honest, and they have nothing in common.
    let mut honest = Vec::new();
    for file in 0..100_u64 {
        let sample = |n: u64| bytes(2, &[bytes(1, &varint(n)), bytes(2, &[1])].concat());
        let location = |n: u64| bytes(4, &[number(1, n), number(3, file << 32 | n)].concat());
        let rest: Vec<Vec<u8>> = (1..20_000).flat_map(|n| [location(n), sample(n)]).collect();
        honest.push(path(&format!("honest{file}")));
        std::fs::write(&honest[honest.len() - 1], profile(&[], &rest)).expect("written");
    }
    let few = [vec!["merge".to_owned(), "-o".to_owned(), out.clone()], honest[..5].to_vec()].concat();
    limited(700_000, &few).success();
    std::fs::remove_file(&out).expect("it was written");
    let ended = limited(700_000, &[vec!["merge".to_owned(), "-o".to_owned(), out.clone()], honest].concat());
    assert_eq!(ended.code(), 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("not enough memory for the sum of these files"), "{}", ended.stderr);
    assert!(!std::path::Path::new(&out).exists());
}
