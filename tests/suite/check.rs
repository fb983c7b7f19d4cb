//! `heaptrace check`: when it reads the memory, what it concludes, and which exit status that gives.

use crate::support::fixtures;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::Ended;
use std::path::PathBuf;

/// A finished check.
pub(super) struct Checked {
    pub(super) ended: Ended,
    pub(super) report: Report,
}

impl Checked {
    pub(super) fn verdict(&self) -> (i32, &str) {
        (self.ended.code(), self.report.text("/verdict/result"))
    }

    /// Bytes and blocks of a class.
    fn class(&self, class: &str) -> (u64, u64) {
        let of = |figure| self.report.number(&format!("/leaks/{class}/{figure}"));
        (of("bytes"), of("blocks"))
    }

    fn reasons(&self) -> String {
        let reasons = self.report.list("/verdict/reasons").iter();
        reasons.map(|reason| reason.as_str().unwrap()).collect::<Vec<_>>().join("; ")
    }

    /// What all ways of the fixture but "clean" lose.
    fn assert_lost(&self) {
        let classes = (self.class("definite"), self.class("indirect"));
        assert_eq!(classes, ((100, 1), (200, 1)), "{}", self.ended.stderr);
    }
}

pub(super) fn check(program: &Program, options: &[&str], args: &[&str]) -> Checked {
    let path = program.report_path();
    let exe = program.exe().to_str().unwrap();
    let words = [&["check", "-o", path.to_str().unwrap()], options, &["--", exe], args].concat();
    let mut running = program.start_heaptrace(words);
    running.feed(b"");
    let ended = running.wait();
    let report = Report::read(&path, &ended);
    Checked { ended, report }
}

fn judged(options: &[&str], way: &str) -> Checked {
    check(&Program::fixture("judged"), options, &[way])
}

#[test]
fn leaks_fail_the_check_and_their_absence_does_not() {
    let clean = judged(&[], "clean");
    assert_eq!(clean.verdict(), (0, "clean"), "{}", clean.ended.stderr);
    assert_eq!(clean.class("reachable"), (50, 1));
    let leak = judged(&[], "leak");
    assert_eq!(leak.verdict(), (23, "leaks"));
    leak.assert_lost();
    assert_eq!(leak.class("reachable"), (50, 1));
    assert_eq!(leak.ended.text(), "lost\n", "the program keeps its output");
    assert!(leak.ended.stderr.contains("300 bytes in 2 blocks (100 direct + 200 indirect)"), "{}", leak.ended.stderr);
    assert!(leak.ended.stderr.contains("lose"), "{}", leak.ended.stderr);
}

#[test]
fn the_options_say_what_counts() {
    for (options, expected) in [
        (&["--leak-exit-code", "9"][..], (9, "leaks")),
        (&["--leak-kinds", "possible"], (0, "clean")),
        (&["--leak-kinds", "none"], (0, "clean")),
        (&["--max-leaked-bytes", "300"], (0, "clean")),
        (&["--max-leaked-bytes", "299"], (23, "over_budget")),
    ] {
        assert_eq!(judged(options, "leak").verdict(), expected, "{options:?}");
    }
    for (options, expected) in [
        (&["--leak-kinds", "reachable"][..], (23, "leaks")),
        (&["--max-live", "49"], (23, "over_budget")),
        (&["--max-live", "1k", "--max-peak", "1k", "--max-allocations", "2"], (0, "clean")),
        (&["--max-allocations", "1"], (23, "over_budget")),
    ] {
        assert_eq!(judged(options, "clean").verdict(), expected, "{options:?}");
    }
    let mismatched = |options: &[&str]| check(&Program::fixture("mismatched"), options, &[]);
    assert_eq!(mismatched(&[]).verdict(), (23, "errors"));
    assert_eq!(mismatched(&["--errors", "off"]).verdict(), (0, "clean"));
    let sized = check(&Program::fixture("sized_delete"), &[], &[]);
    assert_eq!(sized.verdict(), (23, "errors"), "{}", sized.ended.stderr);
}

/// The program's own failure goes first, but its leaks are told.
#[test]
fn a_failing_program_fails_with_its_own_status() {
    for (way, status) in [("fail", 7), ("abort", 134)] {
        let checked = judged(&[], way);
        assert_eq!(checked.verdict(), (status, "program_failed"), "{way}");
        checked.assert_lost();
    }
}

/// The memory is read at `_exit` where there is one, else when the last thread disappears.
#[test]
fn every_way_to_end_is_seen() {
    for way in ["leak", "exit_group", "two", "leader", "sleeper"] {
        for _ in 0..crate::suite::rounds(2) {
            let checked = judged(&[], way);
            assert_eq!(checked.verdict(), (23, "leaks"), "{way}: {}", checked.ended.stderr);
            checked.assert_lost();
        }
    }
}

/// The `_exit` of a child is not the program's: what the parent loses afterwards is found.
#[test]
fn a_child_s_exit_is_not_taken_for_the_program_s() {
    for way in ["fork", "vfork"] {
        let checked = judged(&[], way);
        assert_eq!(checked.verdict(), (23, "leaks"), "{way}: {}", checked.ended.stderr);
        checked.assert_lost();
    }
}

/// What an image has lost is gone with it.
#[test]
fn the_last_image_is_judged() {
    let checked = judged(&[], "exec");
    assert_eq!(checked.verdict(), (0, "clean"), "{}", checked.ended.stderr);
    assert_eq!(checked.class("reachable"), (50, 1));
}

/// A leaking child runs unchecked: it is named, and with `--require-all` the check is no success.
#[test]
fn children_are_named_and_required_on_request() {
    let checked = judged(&[], "spawn");
    assert_eq!(checked.verdict(), (0, "clean"));
    assert_eq!(checked.report.number("/children/untraced"), 1);
    assert!(checked.ended.stderr.contains("1 child process"), "{}", checked.ended.stderr);
    let required = judged(&["--require-all"], "spawn");
    assert_eq!(required.verdict(), (125, "inconclusive"));
    assert!(required.reasons().contains("1 child process"), "{}", required.reasons());
}

#[test]
fn a_program_whose_time_is_up_is_ended_and_read() {
    let checked = judged(&["--timeout", "1s"], "sleep");
    assert_eq!(checked.verdict(), (124, "program_failed"), "{}", checked.ended.stderr);
    checked.assert_lost();
    assert_eq!(checked.report.number("/exit/signal"), 15);
}

/// SIGTERM is ignored: the memory is read while the program lives, which is killed then.
#[test]
fn a_program_that_ignores_the_end_of_its_time_is_killed() {
    let checked = judged(&["--timeout", "500ms"], "deaf");
    assert_eq!(checked.verdict(), (124, "program_failed"), "{}", checked.ended.stderr);
    checked.assert_lost();
    assert_eq!(checked.report.number("/exit/signal"), 9);
}

/// Never 0 for what was not seen.
#[test]
fn what_was_not_seen_is_never_clean() {
    let stripped = Program::new(fixtures::program_with("judged", &["-static", "-s"]));
    let checked = check(&stripped, &[], &["clean"]);
    assert_eq!(checked.verdict(), (125, "inconclusive"), "{}", checked.ended.stderr);
    assert!(checked.reasons().contains("no allocator function"), "{}", checked.reasons());

    let killed = judged(&[], "kill");
    assert!([125, 137].contains(&killed.ended.code()), "{}", killed.ended.stderr);

    let sees_half = judged(&["--alloc-fn", "no_such_function"], "clean");
    assert_eq!(sees_half.verdict(), (125, "inconclusive"), "a declared function is nowhere");
    assert!(sees_half.ended.stderr.contains("no_such_function"), "{}", sees_half.ended.stderr);
}

/// A static program has its thread-local data inside the heap, and its symbols tell its allocator.
#[test]
fn a_static_program_is_judged() {
    let program = Program::new(fixtures::program_with("judged", &["-static"]));
    let clean = check(&program, &[], &["clean"]);
    assert_eq!(clean.verdict(), (0, "clean"), "{}", clean.ended.stderr);
    let leak = check(&program, &[], &["leak"]);
    assert_eq!(leak.verdict(), (23, "leaks"), "{}", leak.ended.stderr);
    leak.assert_lost();
}

#[test]
fn why_a_block_is_reachable_is_explained() {
    let checked = judged(&["--explain", "cache_insert"], "clean");
    assert!(checked.ended.stderr.contains("global `cache` in judged"), "{}", checked.ended.stderr);
    let findings = checked.report.list("/findings");
    let reachable = findings.iter().find(|finding| finding["kind"] == "leak_reachable").expect("a finding");
    assert!(!reachable["path"].as_array().expect("a path").is_empty());
}

/// Suppressions from a file, from $LSAN_OPTIONS and from the program itself; those that were generated hide all.
#[test]
fn suppressed_leaks_do_not_fail() {
    let program = Program::fixture("judged");
    let rules = program.outside("known.supp");
    std::fs::write(&rules, "# known\nleak:^lose$\n").unwrap();
    let hidden = check(&program, &["--suppressions", rules.to_str().unwrap()], &["leak"]);
    assert_eq!(hidden.verdict(), (0, "clean"), "{}", hidden.ended.stderr);
    assert_eq!(hidden.class("suppressed"), (300, 2));

    let options = format!("verbosity=0:suppressions={}", rules.display());
    let program = Program::fixture("judged").env("LSAN_OPTIONS", options);
    assert_eq!(check(&program, &[], &["leak"]).verdict(), (0, "clean"));

    // a relative path may also count from the program's folder
    let fixture = Program::fixture("judged");
    let folder = fixture.outside("bin");
    std::fs::create_dir(&folder).unwrap();
    crate::support::copy_file(fixture.exe(), folder.join("judged")).unwrap();
    crate::support::copy_file(&rules, folder.join("beside.supp")).unwrap();
    let program = Program::new(folder.join("judged")).env("LSAN_OPTIONS", "suppressions=beside.supp");
    let hidden = check(&program, &[], &["leak"]);
    assert_eq!(hidden.verdict(), (0, "clean"), "{}", hidden.ended.stderr);

    let own = check(&Program::fixture("own_suppressions"), &[], &[]);
    assert_eq!(own.verdict(), (0, "clean"), "{}", own.ended.stderr);
    assert_eq!(own.class("suppressed"), (123, 1));

    let program = Program::fixture("judged");
    let made = program.outside("made.supp");
    let made = made.to_str().unwrap();
    assert_eq!(check(&program, &["--gen-suppressions", made], &["leak"]).verdict(), (23, "leaks"));
    let hidden = check(&program, &["--suppressions", made], &["leak"]);
    assert_eq!(hidden.verdict(), (0, "clean"), "{}\n{}", std::fs::read_to_string(made).unwrap(), hidden.ended.stderr);
}

#[test]
fn a_baseline_excuses_what_it_knows() {
    let program = Program::fixture("judged");
    assert_eq!(check(&program, &[], &["leak"]).verdict(), (23, "leaks"));
    let old = program.outside("old.json");
    crate::support::copy_file(program.report_path(), &old).unwrap();
    let known = check(&program, &["--baseline", old.to_str().unwrap()], &["leak"]);
    assert_eq!(known.verdict(), (0, "clean"), "{}", known.ended.stderr);
    let packed = std::process::Command::new("gzip").arg("-k").arg(&old).status().unwrap();
    assert!(packed.success());
    let known = check(&program, &["--baseline", &format!("{}.gz", old.display())], &["leak"]);
    assert_eq!(known.verdict(), (0, "clean"), "{}", known.ended.stderr);
    assert_eq!(check(&program, &[], &["clean"]).verdict(), (0, "clean"));
    crate::support::copy_file(program.report_path(), &old).unwrap();
    let new = check(&program, &["--baseline", old.to_str().unwrap()], &["leak"]);
    assert_eq!(new.verdict(), (23, "leaks"), "{}", new.ended.stderr);
}

/// Bad files are told before the program starts.
#[test]
fn bad_files_of_the_judgement_are_refused_at_once() {
    let program = Program::fixture("judged");
    let bad: PathBuf = program.outside("bad.supp");
    std::fs::write(&bad, "leak:fine\nnonsense\n").unwrap();
    let bad = bad.to_str().unwrap();
    for (option, file, reason) in [
        ("--suppressions", bad, "line 2"),
        ("--suppressions", "/does/not/exist", "/does/not/exist"),
        ("--baseline", bad, "bad.supp"),
        ("--baseline", "/does/not/exist", "/does/not/exist"),
        ("--gen-suppressions", "/does/not/exist/made.supp", "/does/not/exist"),
        ("--duration", "1s", "--timeout"),
        ("--delay", "1s", "from start to end"),
    ] {
        let exe = program.exe().to_str().unwrap();
        let ended = program.start_heaptrace(["check", option, file, "--", exe, "leak"]).wait();
        assert_eq!(ended.code(), 125, "{option} {file}: {}", ended.stderr);
        assert!(ended.stderr.contains(reason), "{option} {file}: {}", ended.stderr);
        assert_eq!(ended.text(), "", "{option} {file}: nothing was started");
    }
}
