//! What is written and told of a tree.

use super::Tree;
use crate::support::program::Program;

/// A first process that is not chosen has no file; of the chosen ones' files that one is recommended which has most in
/// it.
#[test]
fn an_unchosen_first_process_has_no_file() {
    let script = "cat /dev/null; sort /dev/null; cat /dev/null";
    let program = Program::new("sh").args(["-c", script]);
    let tree = Tree::run(program, &["--only", "sort", "--only", "cat"], |_| {});
    let recorded = tree.rows().iter().filter(|row| row["seen"] == "recorded");
    let mut pids: Vec<i64> = recorded.map(|row| row["pid"].as_i64().unwrap()).collect();
    let mut found: Vec<i64> = tree.each().iter().map(|report| report.0["pid"].as_i64().unwrap()).collect();
    pids.sort_unstable();
    found.sort_unstable();
    assert!(pids.len() == 3 && found == pids, "{found:?}: {pids:?}");

    let named = tree.program.outside("of-%n.%p.pb.gz").display().to_string();
    let words = ["run", "-f", "--only", "sort", "--only", "cat", "-o", &named, "--", "sh", "-c", script];
    let ended = tree.program.start_heaptrace(words).wait().success();
    let best = ended.stderr.split("go tool pprof -top ").nth(1).unwrap_or_else(|| panic!("{}", ended.stderr));
    assert!(best.contains("/of-sort."), "{}", ended.stderr);
}

/// Nothing is written, and that is told, if no process is chosen.
#[test]
fn without_a_chosen_process_there_is_no_file() {
    let program = Program::new("sh").args(["-c", "sort /dev/null; :"]);
    let each = program.outside("each.%p.json");
    let words = ["run", "-f", "--only", "none", "-o", each.to_str().unwrap(), "--", "sh", "-c", "sort /dev/null; :"];
    let ended = program.start_heaptrace(words).wait().success();
    assert!(
        ended.stderr.contains("--only and --skip choose none of the programs that were executed"),
        "{}",
        ended.stderr
    );
    let files = std::fs::read_dir(each.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!files.into_iter().any(|name| name.to_string_lossy().starts_with("each.")));
}

/// What several processes have in common is told once, with how many they are.
#[test]
fn what_processes_have_in_common_is_told_once() {
    let script = "f() { sh -c 'exec sh -c \"exec sort /dev/null\"'; }; f; f; f; f";
    let tree = Tree::run(Program::new("sh").args(["-c", script]), &[], |_| {});
    let stderr = &tree.ended.stderr;
    assert_eq!(stderr.matches("before exec, sh ").count(), 1, "{stderr}");
    assert!(stderr.contains("times in 4 processes):"), "{stderr}");
    let images = tree.all.list("/images");
    let allocations: u64 = images.iter().map(|image| image["totals"]["allocations"].as_u64().unwrap()).sum();
    let of_each: u64 = tree
        .each()
        .iter()
        .flat_map(|report| report.list("/images").to_vec())
        .fold(0, |sum, image| sum + image["totals"]["allocations"].as_u64().unwrap());
    assert!(allocations > 0 && allocations == of_each, "{allocations} of {of_each}");
}

/// Times in a report count from its own process's beginning; in that of all, from the first one's.
#[test]
fn a_peak_lies_between_beginning_and_end() {
    let program = Program::new("sh").args(["-c", "sort /dev/null; sort /dev/null; sort /dev/null"]);
    let tree = Tree::run(program, &[], |_| {});
    tree.all.assert_consistent();
    assert!(tree.each().len() > 3);
    for report in tree.each() {
        report.assert_consistent();
        assert!(report.number("/duration_ns") < tree.all.number("/duration_ns"));
    }
    let last = tree.each().into_iter().rfind(|report| report.text("/program") == "sort").unwrap();
    let sum = tree.all.number("/totals/peak_at_ns");
    assert!(sum > last.number("/totals/peak_at_ns"), "the third one's peak comes after the others");
}

/// A report that was compressed is the same report.
#[test]
fn a_compressed_report_of_a_tree_is_small_and_the_same() {
    let program = Program::new("sh").args(["-c", "sort /dev/null; sort /dev/null"]);
    let packed = program.outside("all.json.gz");
    let tree = Tree::run(program, &["-o", packed.to_str().unwrap()], |_| {});
    let unpacked = std::process::Command::new("gzip").arg("-dc").arg(&packed).output().unwrap();
    assert!(unpacked.status.success());
    assert!(unpacked.stdout == std::fs::read(tree.program.report_path()).unwrap());
    assert!(std::fs::metadata(&packed).unwrap().len() * 3 < unpacked.stdout.len() as u64);
}

/// Budgets are each process's.
#[test]
fn budgets_are_for_each_process() {
    let program = Program::new("sh").args(["-c", "sort /dev/null; sort /dev/null"]);
    let checked =
        |limit: u64| program.checked(&["-f", "--max-leaked-bytes", "4k", "--max-allocations", &limit.to_string()]);
    let free = checked(1 << 40);
    let rows = free.report.list("/processes");
    let most = rows.iter().map(|row| row["totals"]["allocations"].as_u64().unwrap()).max().unwrap();
    assert!(free.report.total("allocations") > most && most > 0);
    assert_eq!(free.report.text("/verdict/result"), "clean", "{}", free.ended.stderr);
    assert_eq!(checked(most).report.text("/verdict/result"), "clean");
    let over = checked(most - 1);
    assert_eq!((over.ended.code(), over.report.text("/verdict/result")), (23, "over_budget"));
}
