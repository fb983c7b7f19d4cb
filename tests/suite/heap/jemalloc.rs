//! Heaps of jemalloc, held against what the program and jemalloc itself know of them.

use super::super::redis::Server;
use super::*;
use crate::support::python;

fn library() -> std::path::PathBuf {
    installed(&Path::new(LIBRARIES).join("libjemalloc.so.2"))
}

/// One thread, two and sixteen, with the library before glibc's malloc, and linked; the sum is jemalloc's own.
#[test]
fn each_block_of_jemalloc_is_found() {
    for threads in ["1", "2", "16"] {
        let program = Program::fixture("blocks_of").args([threads]).env("LD_PRELOAD", library());
        assert_blocks(&program, "jemalloc", false);
    }
    assert_blocks(&Program::new(fixtures::program_linked("blocks_of", &[&library()])), "jemalloc", false);
    let archive = installed(&Path::new(LIBRARIES).join("libjemalloc.a"));
    for more in [&[][..], &["-static"]] {
        let flags = [&[archive.to_str().unwrap(), "-lstdc++", "-lm"], more].concat();
        assert_blocks(&Program::new(fixtures::program_with("blocks_of", &flags)), "jemalloc", false);
    }
}

/// A file of a heap says whose it is.
#[test]
fn a_file_keeps_the_allocator() {
    let debians = [("libjemalloc.so.2", "jemalloc"), ("libmimalloc.so.2", "mimalloc")]
        .map(|(library, name)| (installed(&Path::new(LIBRARIES).join(library)), name));
    for (library, name) in debians.into_iter().chain([(python::mimalloc("3.4.3"), "mimalloc")]) {
        let program = Program::fixture("blocks_of").args(["2"]).env("LD_PRELOAD", library);
        let (running, pid, _) = start_blocks(&program);
        let file = program.folder().join("a.heap");
        let answer = heap(pid, &["--save", file.to_str().unwrap()]);
        let output = Command::new(HEAPTRACE).args(["heap", "--json"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let kept: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(kept["allocator"], name);
        assert_eq!(kept["chunks"], answer["chunks"], "{name}");
        end(running, pid);
    }
}

/// Under load, in the midst of its calls: no more is amiss than few things for each thread.
#[test]
fn a_busy_process_with_jemalloc_is_looked_at_and_lives() {
    let program = Program::fixture("victim").args(["4"]).env("LD_PRELOAD", library());
    let (victim, pid) = super::super::attach::start_victim(&program);
    for options in [&[][..], &["--no-stop"]] {
        for _ in 0..super::super::rounds(2) {
            let answer = heap(pid, options);
            assert_eq!(answer["allocator"], "jemalloc", "{answer}");
            assert!(number(&answer, "/uses/live/resident") > 0, "{answer}");
            if options.is_empty() {
                assert!(answer["findings"].as_array().unwrap().len() <= 4, "{answer}");
                assert_eq!(number(&answer, "/resident"), number(&answer, "/resident_of_kernel"));
            }
        }
    }
    let text = String::from_utf8(ask(pid, &[]).stdout).unwrap();
    assert!(text.contains("Arena") && text.contains("in no block") && !text.contains("malloc_trim"), "{text}");
    super::super::attach::assert_victim_well(victim, pid);
}

/// redis-server, filled with known keys: their values are there, each in a block of its class; the sum is what the
/// server counts.
#[test]
fn the_blocks_of_redis_are_those_that_it_counts() {
    const KEYS: u64 = 20_000;
    let server = Server::start("heap");
    let pid = server.running.pid();
    let info = |section: &str, name: &str| -> String {
        let text = server.client(&["INFO", section]);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name}: {text}")).trim().to_owned()
    };
    assert!(info("memory", "mem_allocator").starts_with("jemalloc-5."), "it has another allocator");
    let of_size = |answer: &Value, size: u64| {
        let row = answer["sizes"].as_array().unwrap().iter().find(|row| row["usable"] == size).cloned();
        row.map_or(0, |row| row["live"].as_u64().unwrap())
    };
    let before = of_size(&heap(pid, &[]), 1280);
    let script = format!("for i = 1, {KEYS} do redis.call('SET', 'key:' .. i, string.rep('x', 1100)) end");
    server.client(&["EVAL", &script, "0"]);
    let answer = heap(pid, &[]);
    assert_eq!(answer["allocator"], "jemalloc");
    assert_eq!(answer["findings"].as_array().unwrap().len(), 0, "{answer}");
    let values = of_size(&answer, 1280) - before;
    assert!((KEYS..KEYS + 10).contains(&values), "{values} values: {answer}");
    let counted: u64 = info("memory", "used_memory").parse().unwrap();
    let live = number(&answer, "/chunks/live/bytes");
    // besides Lua's and the C library's own
    assert!(live + (256 << 10) > counted && live < counted + (1 << 20), "{live} bytes, {counted} counted");
    server.end();
}
