//! Trees of processes under `-f`.

mod told;

use super::counts::assert_sites;
use crate::support::ledger::Ledger;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::{Ended, Running};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;

/// Runs the fixture `tree` with `-f`, one report for each process and one for all.
struct Tree {
    program: Program,
    ended: Ended,
    all: Report,
}

impl Tree {
    fn fixture(args: &[&str]) -> Program {
        Program::fixture("tree").args(args)
    }

    fn run(program: Program, options: &[&str], talk: impl FnOnce(&mut Running)) -> Self {
        let each = program.outside("each.%p.json");
        let options: Vec<&str> =
            ["-f", "-o", each.to_str().unwrap()].into_iter().chain(options.iter().copied()).collect();
        let mut running = program.start_traced(&options);
        talk(&mut running);
        let ended = running.wait();
        let traced = program.collect(ended);
        Self { program, ended: traced.ended, all: traced.report }
    }

    fn of(args: &[&str]) -> Self {
        Self::run(Self::fixture(args), &[], |_| {})
    }

    /// The reports of single processes, by their ids.
    fn each(&self) -> Vec<Report> {
        let folder = self.program.outside("x");
        let mut files: Vec<_> = std::fs::read_dir(folder.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("each.")))
            .collect();
        files.sort();
        files.iter().map(|path| Report::read(path, &self.ended)).collect()
    }

    fn process(&self, pid: i64) -> Report {
        self.each().into_iter().find(|report| report.0["pid"] == pid).expect("a report of the process")
    }

    fn rows(&self) -> &[Value] {
        self.all.list("/processes")
    }

    fn ledger(&self, suffix: &str) -> Ledger {
        Ledger::read(Path::new(&format!("{}{suffix}", self.program.outside("ledger").display())))
    }
}

const FIGURES: [&str; 5] = ["allocations", "frees", "reallocations", "bytes_allocated", "bytes_freed"];

fn assert_totals(report: &Report, ledger: &Ledger) {
    for name in FIGURES {
        assert_eq!(report.total(name), ledger.total(name), "{name}");
    }
}

/// T28: a followed child begins with its parent's blocks, which it has not allocated; each process's own calls are its
/// own, and in the profile of all each block stands once.
#[test]
fn t28_followed_child_inherits_blocks() {
    let mut child = 0;
    let tree = Tree::run(Tree::fixture(&["inherit"]), &[], |running| {
        child = running.value("child").parse().unwrap();
        assert_ne!(procfs::tracer_of(child), 0, "the child is traced");
        running.send("go on");
    });
    let (parent, childs) = (tree.ledger(""), tree.ledger(".child"));
    let report = tree.process(i64::from(child));
    assert_totals(&report, &childs);
    assert_eq!(report.total("preexisting_frees"), 40);
    assert_eq!(report.total("live_blocks"), 60 + 10);
    assert_eq!(report.total("live_bytes"), 60 * 50 + 10 * 70);
    assert_eq!(report.site_sum(&["parent_allocate"], "/live/objects"), 60);
    assert_eq!(report.site_sum(&["parent_allocate"], "/allocated/objects"), 0);
    assert_eq!(report.site_sum(&["child_allocate"], "/allocated/objects"), 30);
    assert_eq!(report.0["exit"]["code"], 3);
    report.assert_no_anomaly();
    for name in FIGURES {
        assert_eq!(tree.all.total(name), parent.total(name) + childs.total(name), "{name} of all");
    }
    assert_eq!((tree.all.total("live_blocks"), tree.all.total("live_bytes")), (10, 700));
    tree.all.assert_consistent();
    tree.all.assert_no_anomaly();
    let [first, second] = tree.rows() else { panic!("two processes: {:?}", tree.rows()) };
    assert_eq!((&first["pid"], &second["pid"]), (&second["parent"], &Value::from(child)));
    assert_eq!(second["inherited"]["objects"], 60);
}

/// T28: the code of a followed child is as it was after a detach, and it goes on.
#[test]
fn t28_followed_child_is_left_as_it_was() {
    let program = Tree::fixture(&["inherit"]);
    let mut running = program.start_traced(&["-f"]);
    let child: i32 = running.value("child").parse().unwrap();
    assert!(!procfs::text_differences(child).is_empty(), "there is something to be put back");
    procfs::order(child, "detach");
    procfs::wait_until_let_go(child);
    assert!(!procfs::catches(child, Signal::SIGTRAP), "it has inherited our handler, and kept it");
    running.send("go on");
    assert_eq!(running.line(), "parent done");
    program.collect(running.wait().success());
}

/// T28: the parent ends right after its fork, which may be before its child has been told of: the child lives on.
#[test]
fn t28_followed_child_of_a_parent_that_has_ended() {
    for _ in 0..crate::suite::rounds(5) {
        let program = Program::fixture("orphan");
        let traced = program.traced_with(&["-f"]);
        assert_eq!(traced.ended.clone().success().text(), "child\n");
        traced.report.assert_no_anomaly();
    }
}

/// T29: a thousand followed children, each with figures of its own; few descriptors are held for them.
#[test]
fn t29_thousand_followed_children() {
    let count = 1000;
    let program = Tree::fixture(&["many", &count.to_string()]);
    let traced = program.traced_with(&["-f"]);
    assert_eq!(traced.ended.text(), format!("children {count}\n"));
    let ledger = program.ledger();
    assert_eq!(traced.report.total("allocations"), ledger.total("allocations") + count);
    assert_eq!(traced.report.total("frees"), ledger.total("frees") + count);
    assert_eq!(traced.report.total("preexisting_frees"), count);
    assert_eq!(traced.report.number("/children/followed"), count);
    let rows = traced.report.list("/processes");
    let own = rows.iter().filter(|row| row["totals"]["allocations"] == 1 && row["totals"]["frees"] == 1).count();
    assert_eq!(own as u64, count);
    assert_eq!(traced.report.site_sum(&["child_allocate"], "/allocated/objects"), count);
    traced.report.assert_no_anomaly();
}

/// T30: a fork among threads that allocate: nobody's error, and nobody's loss.
#[test]
fn t30_followed_forks_among_allocating_threads() {
    let tree = Tree::of(&["threads", "40"]);
    assert_eq!(tree.ended.clone().success().text(), "children 40\n");
    let ledger = tree.ledger("");
    assert_sites(&tree.process(tree.rows()[0]["pid"].as_i64().unwrap()), &ledger);
    for row in &tree.rows()[1..] {
        assert_eq!((&row["totals"]["allocations"], &row["totals"]["bytes_allocated"]), (&10.into(), &5000.into()));
    }
    tree.all.assert_no_anomaly();
}

/// A fork in the middle of a call of a declared function: it returns in both processes, and each has its block.
#[test]
fn t30_followed_fork_within_a_call() {
    let options = ["--alloc-fn", "forking_allocate:size=arg1", "--free-fn", "forked_free:ptr=arg1"];
    // An exception may leave what others declare.
    let program = Tree::fixture(&["within"]).stays_on_trap("recorded calls of fork");
    let tree = Tree::run(program, &options, |_| {});
    assert_eq!(tree.ended.clone().success().text(), "done\n");
    for report in tree.each() {
        assert_eq!(report.site_sum(&["within"], "/allocated/bytes"), 321, "{:#?}", report.sites());
        assert_eq!(report.site_sum(&["within"], "/live/objects"), 0, "{:#?}", report.sites());
        report.assert_no_anomaly();
    }
    assert_eq!(tree.rows().len(), 2);
    tree.all.assert_no_anomaly();
}

/// T30, T31: whichever way a program is started, it is a process of its own from its exec on.
#[test]
fn t31_followed_programs_by_fork_vfork_and_spawn() {
    for how in ["fork", "vfork", "spawn"] {
        let tree = Tree::of(&[how]);
        assert_eq!(tree.ended.clone().success().text(), format!("{how} done\n"));
        let [first, second] = tree.rows() else { panic!("two processes: {:?}", tree.rows()) };
        let leaf = tree.process(second["pid"].as_i64().unwrap());
        assert_totals(&leaf, &tree.ledger(".leaf"));
        leaf.assert_consistent();
        leaf.assert_no_anomaly();
        assert_eq!(leaf.total("live_blocks"), 4, "{how}");
        assert_eq!(second["exit"]["code"], 4);
        let parent = tree.process(first["pid"].as_i64().unwrap());
        assert_sites(&parent, &tree.ledger(""));
        tree.all.assert_consistent();
    }
}

/// T31: a process that shares the memory allocates on its parent's heap, followed or not.
#[test]
fn t31_followed_process_in_the_same_memory() {
    let tree = Tree::of(&["shared"]);
    assert_eq!(tree.ended.clone().success().text(), "done\n");
    // there is but one heap
    assert!(tree.rows().is_empty());
    assert_totals(&tree.all, &tree.ledger(""));
    tree.all.assert_no_anomaly();
}

/// A daemon is traced to its end, which is later than its maker's; the status is that of the first program.
#[test]
fn a_daemon_is_followed_to_its_end() {
    let mut daemon = 0;
    let tree = Tree::run(Tree::fixture(&["daemon"]), &[], |running| {
        daemon = running.value("daemon").parse().unwrap();
        running.send("go on");
        assert_eq!(running.line(), "daemon done");
    });
    assert_eq!(tree.ended.code(), 5);
    let report = tree.process(i64::from(daemon));
    assert_totals(&report, &tree.ledger(".daemon"));
    assert_eq!(report.0["exit"]["code"], 0);
    assert_eq!(report.total("live_bytes"), 1000, "what it has inherited");
    assert_eq!(tree.all.total("live_bytes"), 1000);
    assert_eq!(tree.rows().len(), 3);
}

/// A child that is killed in the middle takes nobody with it.
#[test]
fn a_followed_child_may_be_killed() {
    let tree = Tree::run(Tree::fixture(&["killed"]), &[], |running| {
        let _pid: i32 = running.value("child").parse().unwrap();
        running.send("kill it");
        assert_eq!(running.line(), "parent done");
    });
    assert_eq!(tree.ended.clone().success().code(), 0);
    assert_eq!(tree.rows()[1]["exit"]["signal"], 9, "{:?}\n{}", tree.rows(), tree.ended.stderr);
}

/// A pipeline of the shell: each program has its own report.
#[test]
fn a_pipeline_has_a_report_for_each_program() {
    let program = Program::new("sh").args(["-c", "printf 'b\\na\\n' | sort | cat -n"]);
    let tree = Tree::run(program, &[], |_| {});
    assert_eq!(tree.ended.clone().success().text(), "     1\ta\n     2\tb\n");
    let names: Vec<_> = tree.each().iter().map(|report| report.text("/program").to_owned()).collect();
    for name in ["sh", "sort", "cat"] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    tree.all.assert_consistent();
    tree.all.assert_no_anomaly();
}

/// `--only` and `--skip` choose by the executable; what is not chosen runs without probes, and its children are
/// followed.
#[test]
fn only_chosen_programs_are_recorded() {
    for (options, chosen) in [
        (&["--only", "sort"][..], &["sort"][..]),
        (&["--skip", "sort"], &["cat", "sh"]),
        (&["--skip", "s*"], &["cat"]),
        (&["--only", "s*", "--skip", "*/sh", "--skip", "sh"], &["sort"]),
    ] {
        let program = Program::new("sh").args(["-c", "printf 'b\\na\\n' | sort | cat -n"]);
        let tree = Tree::run(program, options, |_| {});
        assert_eq!(tree.ended.clone().success().text(), "     1\ta\n     2\tb\n");
        let allocations = |row: &Value| row["totals"]["allocations"].as_u64().unwrap();
        let recorded: Vec<_> = tree.rows().iter().filter(|row| row["seen"] == "recorded").collect();
        assert_eq!(tree.all.total("allocations"), recorded.iter().map(|row| allocations(row)).sum::<u64>());
        assert!(recorded.iter().all(|row| allocations(row) > 0));
        let mut names: Vec<_> = recorded.iter().map(|row| row["program"].as_str().unwrap()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, chosen, "{options:?}");
        // nothing stands in the way of the files that say something, but the first process's
        let files = tree.each();
        let said_nothing = |report: &&Report| report.total("allocations") == 0;
        assert!(
            files.iter().filter(said_nothing).all(|report| report.0["pid"] == tree.rows()[0]["pid"]),
            "{options:?}"
        );
        for row in tree.rows().iter().filter(|row| !chosen.contains(&row["program"].as_str().unwrap())) {
            assert_eq!((&row["seen"], allocations(row)), (&"skipped".into(), 0), "{options:?}");
        }
    }
}

/// What the dynamic linker is told to load, and what is started by a link, is chosen by its own name.
#[test]
fn programs_are_chosen_by_the_name_they_were_started_by() {
    for (command, started) in [
        ("ln -s $(command -v sort) own-sort; printf 'b\\na\\n' | ./own-sort", "own-sort"),
        ("printf 'b\\na\\n' | /lib64/ld-linux-x86-64.so.2 $(command -v sort)", "sort"),
    ] {
        let program = Program::new("sh").args(["-c", &format!("{command} | cat -n")]);
        let tree = Tree::run(program, &["--only", started], |_| {});
        assert_eq!(tree.ended.clone().success().text(), "     1\ta\n     2\tb\n");
        let recorded: Vec<_> = tree.rows().iter().filter(|row| row["seen"] == "recorded").collect();
        assert_eq!(recorded.len(), 1, "{command}: {:?}", tree.rows());
        assert_eq!(recorded[0]["program"], started, "{command}");
        assert!(tree.all.total("allocations") > 0, "{command}");
    }
}

/// make: one report for each run of the compiler proper.
#[test]
fn make_gives_a_profile_for_each_compiler() {
    let program = Program::new("make").args(["-s"]);
    std::fs::write(program.folder().join("Makefile"), "all: a.o b.o\n%.o: %.c\n\tgcc -c -o $@ $<\n").unwrap();
    for name in ["a", "b"] {
        std::fs::write(program.folder().join(format!("{name}.c")), format!("int {name}(void) {{ return 1; }}\n"))
            .unwrap();
    }
    let tree = Tree::run(program, &[], |_| {});
    assert!(tree.ended.status.success(), "{}", tree.ended.stderr);
    let folder = tree.program.folder();
    assert!(folder.join("a.o").exists() && folder.join("b.o").exists());
    let count = |name: &str| tree.each().iter().filter(|report| report.text("/program") == name).count();
    assert_eq!((count("cc1"), count("make")), (2, 1));
    tree.all.assert_no_anomaly();
}

/// A leak of the child's is the child's; what it has inherited and lost is not, nor is its parent's.
#[test]
fn check_judges_each_process() {
    let program = Tree::fixture(&["leaks"]);
    let junit = program.outside("check.junit.xml");
    let checked = program.checked(&["-f", "-o", junit.to_str().unwrap()]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    let [parent, child] = checked.report.list("/processes") else { panic!("{}", checked.ended.stderr) };
    assert_eq!((&parent["verdict"]["result"], &child["verdict"]["result"]), (&"clean".into(), &"leaks".into()));
    assert_eq!(checked.report.number("/leaks/definite/blocks"), 1);
    assert_eq!(checked.report.number("/leaks/definite/bytes"), 1234);
    assert_eq!(checked.report.text("/verdict/result"), "leaks");
    let text = std::fs::read_to_string(junit).unwrap();
    assert!(text.contains("process 1: tree\" classname=\"heaptrace.tree\"/>"), "{text}");
    assert!(text.contains("process 2: tree") && text.contains("leaked"), "{text}");
}

/// What several processes lose at one place stands once, with the sum.
#[test]
fn check_adds_up_what_several_processes_lose() {
    let checked = Tree::fixture(&["alike"]).checked(&["-f"]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    assert_eq!(checked.report.list("/processes").len(), 3);
    assert_eq!(checked.report.number("/leaks/definite/blocks"), 3);
    assert_eq!(checked.report.number("/leaks/definite/bytes"), 3 * 1234);
    let [finding] = checked.report.list("/findings") else { panic!("{:?}", checked.report.list("/findings")) };
    assert_eq!(
        (&finding["direct"]["objects"], &finding["direct"]["bytes"]),
        (&3.into(), &(3 * 1234).into()),
        "{finding}"
    );
}

/// A child that its own parent is not the parent of (CLONE_PARENT; here it is heaptrace) is a process of the tree all
/// the same, and in the same memory it allocates on the one heap.
#[test]
fn t31_followed_child_of_the_parents_parent() {
    let tree = Tree::of(&["sibling", "0"]);
    assert_eq!(tree.ended.clone().success().text(), "sibling done\ndone\n");
    let [first, second] = tree.rows() else { panic!("two processes: {:?}", tree.rows()) };
    assert_eq!((&second["parent"], &second["exit"]["code"]), (&first["pid"], &6.into()));
    let report = tree.process(second["pid"].as_i64().unwrap());
    assert_totals(&report, &tree.ledger(".sibling"));
    assert_eq!(report.total("preexisting_frees"), 1);
    tree.all.assert_no_anomaly();

    let tree = Tree::of(&["sibling", "1"]);
    assert_eq!(tree.ended.clone().success().text(), "done\n");
    assert!(tree.rows().is_empty(), "there is but one heap");
    assert_totals(&tree.all, &tree.ledger(""));
    tree.all.assert_no_anomaly();
}

/// What docs/limits.md says of CLONE_UNTRACED: the child hangs at a breakpoint, which nobody takes out; its parent is
/// well.
#[test]
fn an_untraceable_child_hangs() {
    for options in [&["--engine", "trap"][..], &["--engine", "trap", "-f"]] {
        let program = Tree::fixture(&["untraced"]);
        let mut running = program.start_traced(options);
        let child: i32 = running.value("child").parse().unwrap();
        assert_eq!(procfs::tracer_of(child), 0);
        // It meets the int3 again and again, which takes time of the processor (ticks of 10 ms).
        let ticks = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
            let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
            fields.map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
        };
        procfs::wait_until("it has gone round for a while", || ticks() > 10);
        kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
        assert_eq!(running.line(), "Killed", "neither at its end nor dead before");
        let traced = program.collect(running.wait().success());
        assert_totals(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    }
}

/// Where the jump engine has changed the code that such a child has a copy of, its calls pass through.
#[test]
fn an_untraceable_child_passes_the_jump_engine() {
    for options in [&["--engine", "jump"][..], &["--engine", "jump", "-f"]] {
        let program = Tree::fixture(&["untraced"]);
        let traced = program.traced_with(options);
        let said = traced.ended.text();
        let mut said: Vec<_> = said.lines().map(|line| line.trim_end_matches(|c: char| c.is_ascii_digit())).collect();
        said.sort_unstable();
        assert_eq!(said, ["child ", "child done", "ended"], "{}", traced.ended.stderr);
        assert_eq!(traced.report.text("/engine"), "jump");
        assert_totals(&traced.report, &program.ledger());
        traced.report.assert_no_anomaly();
    }
}

/// A declared function need not be known to each program of a tree, but to one of those that are chosen.
#[test]
fn a_declared_function_is_known_to_one_program_at_least() {
    let pool = Program::fixture("pool");
    let sh = |words: &[&str]| {
        let program = Program::new("sh").args(["-c", &format!("{}; sort /dev/null; exit 0", pool.exe().display())]);
        // the jump engine leaves them to stops, and says so if it has come by the time of the next malloc
        program.stays_on_trap("--alloc-fn or --free-fn declares").traced_with(&[&["-f"], words].concat())
    };
    let well = sh(&["--alloc-fn", "pool_get:size=arg2", "--free-fn", "pool_put:ptr=arg2"]);
    assert_eq!(well.ended.code(), 0, "{}", well.ended.stderr);
    let live = well.report.site_sum(&["user"], "/live/objects");
    assert_eq!(live, 5, "{:#?}", well.report.sites());
    for (options, name) in [
        (&["--alloc-fn", "pool_gett:size=arg2"][..], "pool_gett"),
        (&["--alloc-fn", "pool_get:size=arg2", "--only", "sort"], "pool_get"),
    ] {
        let unknown = sh(options);
        assert_eq!(unknown.ended.code(), 125, "{options:?}: {}", unknown.ended.stderr);
        let warnings = unknown.report.list("/warnings");
        let told = warnings.iter().filter(|warning| warning.as_str().unwrap().contains(name)).count();
        assert_eq!(told, 1, "{options:?}: {warnings:?}");
    }
}

/// A set-user-ID helper keeps its rights although its parents are traced. Needs root, to make such a helper.
#[test]
fn t32_followed_set_user_id_helper_keeps_its_rights() {
    if let Some((report, ended)) = super::processes::set_user_id_helper(&["run", "-f"]) {
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        assert_eq!(report.number("/children/untraced"), 6);
        report.assert_no_anomaly();
    }
}

/// A check counts the helper, which it can't see, only if all are required.
#[test]
fn t32_set_user_id_helper_of_a_checked_tree() {
    for (options, code) in [(&["check", "-f"][..], 0), (&["check", "-f", "--require-all"], 125)] {
        if let Some((report, ended)) = super::processes::set_user_id_helper(options) {
            assert_eq!(ended.code(), code, "{options:?}: {}", ended.stderr);
            for row in report.list("/processes").iter().filter(|row| row["seen"] == "let_go") {
                assert_eq!(row["verdict"].is_null(), code == 0, "{row}");
            }
        }
    }
}

/// An attached shell's children are followed from then on; the shell and they are left as they were.
#[test]
fn attach_follows_what_is_started_from_then_on() {
    let program = Program::new("sh");
    let mut shell = program.start();
    shell.send("echo $$");
    let pid: i32 = shell.line().parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&["-f"], pid);
    procfs::wait_until_probed(pid);
    shell.send("sort /dev/null; ls -d /; echo over");
    assert_eq!((shell.line(), shell.line()), ("/".to_owned(), "over".to_owned()));
    shell.send("(read line; echo $line)");
    let ended = tracer.start_heaptrace(["ctl", &pid.to_string(), "detach"]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let traced = tracer.collect(attached.wait().success());
    procfs::assert_left_as_it_was(pid);
    shell.send("still here");
    assert_eq!(shell.line(), "still here");
    shell.send("exit 3");
    assert_eq!(shell.wait().code(), 3);
    let rows = traced.report.list("/processes");
    for name in ["sort", "ls"] {
        let row = rows.iter().find(|row| row["program"] == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
        assert_eq!((&row["seen"], &row["exit"]["code"]), (&"recorded".into(), &0.into()));
    }
    traced.report.assert_no_anomaly();
}

/// `ctl CHILD detach` lets that process go and no other one; what it does then is its own.
#[test]
fn a_child_is_let_go_alone() {
    let (mut child, mut first) = (0, 0);
    let tree = Tree::run(Tree::fixture(&["inherit"]), &[], |running| {
        child = running.value("child").parse().unwrap();
        first = procfs::status_field(child, "PPid").unwrap().parse().unwrap();
        let asker = Program::new("/bin/true");
        asker.start_heaptrace(["ctl", &child.to_string(), "detach"]).wait().success();
        procfs::wait_until_let_go(child);
        procfs::assert_left_as_it_was(child);
        assert_ne!(procfs::tracer_of(first), 0, "its parent is traced on");
        running.send("go on");
        assert_eq!(running.line(), "parent done");
    });
    tree.ended.clone().success();
    assert_totals(&tree.process(i64::from(first)), &tree.ledger(""));
    let [_, second] = tree.rows() else { panic!("two processes: {:?}", tree.rows()) };
    assert_eq!((&second["pid"], &second["exit"]), (&Value::from(child), &Value::Null));
    assert_eq!(second["totals"]["allocations"], 0, "it was let go before");
    tree.all.assert_no_anomaly();
}

/// So where the child has threads that allocate all the time.
#[test]
fn a_busy_child_is_let_go_alone() {
    let busy = Program::fixture("victim").exe().display().to_string();
    let program = Program::new("sh").args(["-c", &format!("{busy} 4; sort /dev/null; echo over")]);
    let mut running = program.start_traced(&["-f"]);
    let pid: i32 = running.value("ready").parse().unwrap();
    procfs::wait_until_probed(pid);
    let shell: i32 = procfs::status_field(pid, "PPid").unwrap().parse().unwrap();
    let asker = Program::new("/bin/true");
    asker.start_heaptrace(["ctl", &pid.to_string(), "detach"]).wait().success();
    procfs::wait_until_let_go(pid);
    procfs::assert_left_as_it_was(pid);
    assert!(!procfs::catches(pid, Signal::SIGTRAP), "our handler for SIGTRAP is still there");
    assert_ne!(procfs::tracer_of(shell), 0);
    running.send("still alive?");
    assert_eq!(running.line(), "alive");
    running.feed(b"");
    assert_eq!(running.line(), "ok");
    assert_eq!(running.line(), "over");
    let traced = program.collect(running.wait().success());
    let rows = traced.report.list("/processes");
    let of = |name: &str| rows.iter().find(|row| row["program"] == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
    assert_eq!((&of("victim")["seen"], &of("victim")["exit"]), (&"recorded".into(), &Value::Null));
    assert_eq!(of("sort")["exit"]["code"], 0, "what is started later is traced");
    traced.report.assert_no_anomaly();
}

/// Each process of the tree can be asked about by its own id.
#[test]
fn leaks_finds_each_process_of_the_tree() {
    let program = Tree::fixture(&["inherit"]);
    let mut running = program.start_traced(&["-f"]);
    let child: i32 = running.value("child").parse().unwrap();
    let asker = Program::new("/bin/true");
    let answered = asker.start_heaptrace(["leaks", &child.to_string(), "--json"]).wait().success();
    let report: Value = serde_json::from_str(&answered.text()).unwrap();
    assert_eq!(report["pid"], child);
    assert_eq!(report["totals"]["live_blocks"], 100);
    // what it has inherited is not its own to lose
    assert!(report["findings"].as_array().unwrap().is_empty(), "{}", report["findings"]);
    let refused = asker.start_heaptrace(["leaks", "1"]).wait();
    assert_ne!(refused.code(), 0);
    running.send("go on");
    assert_eq!(running.line(), "parent done");
    program.collect(running.wait().success());
}

/// When the time of a check is up, all processes of the tree are judged and ended.
#[test]
fn a_timeout_ends_the_whole_tree() {
    let program = Program::new("sh").args(["-c", "sleep 1000 & sleep 1000; :"]);
    let checked = program.checked(&["-f", "--timeout", "500ms"]);
    assert_eq!(checked.ended.code(), 124, "{}", checked.ended.stderr);
    let rows = checked.report.list("/processes");
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in rows {
        let state = procfs::state(row["pid"].as_i64().unwrap().try_into().unwrap());
        assert!(matches!(state, None | Some('Z' | 'X')), "{row}");
        assert_eq!(row["verdict"]["result"], "program_failed", "{row}");
    }
}

/// A program that can't be traced is waited for all the same, and its status is the program's.
#[test]
fn a_tree_ends_with_the_status_of_the_first() {
    for (script, code) in [("(exit 3) & wait $!; exit 7", 7), ("kill -9 $$", 128 + 9), ("sort /dev/null & exit 5", 5)] {
        let program = Program::new("sh").args(["-c", script]);
        assert_eq!(program.start_traced(&["-f"]).wait().code(), code, "{script}");
    }
}

/// The time is up for all of a tree, also when the first process has ended long before.
#[test]
fn check_tells_of_a_child_that_does_not_end_in_time() {
    let program = Program::new("sh").args(["-c", "sleep 60 & exit 0"]);
    let checked = program.checked(&["-f", "--timeout", "1"]);
    assert_eq!(checked.ended.code(), 124, "{}", checked.ended.stderr);
    assert!(checked.ended.stderr.contains("did not end in time"), "{}", checked.ended.stderr);
    let [first, second] = checked.report.list("/processes") else { panic!("{}", checked.ended.stderr) };
    assert_eq!(
        (&first["exit"]["code"], &second["exit"]["signal"]),
        (&0.into(), &15.into()),
        "asked to end, not killed"
    );
}

/// How a child ends is its parent's affair.
#[test]
fn check_leaves_a_childs_status_to_its_parent() {
    for (script, code, verdict) in [("(exit 3); exit 0", 0, "clean"), ("exit 3", 3, "program_failed")] {
        let checked = Program::new("sh").args(["-c", script]).checked(&["-f"]);
        assert_eq!(checked.ended.code(), code, "{script}: {}", checked.ended.stderr);
        assert_eq!(checked.report.text("/verdict/result"), verdict, "{script}");
    }
}

/// What is not chosen is not judged: neither for its leaks nor for what was not seen of it.
#[test]
fn check_judges_chosen_programs_only() {
    let judged = Program::fixture("judged");
    let check = |way: &str, options: &[&str]| {
        let script = format!("{} {way}; exit 0", judged.exe().display());
        Program::new("sh").args(["-c", &script]).checked(&[&["-f"], options].concat())
    };
    for (way, options, code) in [
        ("leak", &[][..], 23),
        ("leak", &["--only", "judged"], 23),
        ("clean", &["--only", "judged"], 0),
        ("leak", &["--skip", "judged"], 0),
    ] {
        let checked = check(way, options);
        assert_eq!(checked.ended.code(), code, "{way} {options:?}: {}", checked.ended.stderr);
        for row in checked.report.list("/processes") {
            assert_eq!(row["verdict"].is_null(), row["seen"] == "skipped", "{way} {options:?}: {row}");
        }
    }
}

/// A pause is one of all processes, whichever is named.
#[test]
fn a_pause_is_the_whole_trees() {
    for of_child in [false, true] {
        let tree = Tree::run(Tree::fixture(&["inherit"]), &[], |running| {
            let child: i32 = running.value("child").parse().unwrap();
            let parent = procfs::status_field(child, "PPid").unwrap().parse().unwrap();
            procfs::order(if of_child { child } else { parent }, "pause");
            running.send("go on");
            assert_eq!(running.line(), "parent done");
        });
        assert_eq!(tree.rows()[1]["totals"]["allocations"], 0, "{of_child}");
        assert_eq!(tree.all.total("allocations"), tree.ledger("").total("allocations"));
    }
}

/// Patterns that choose nothing are told of.
#[test]
fn only_that_chooses_nothing_is_told() {
    let program = Program::fixture("tree").args(["inherit"]);
    let ended = program.start_traced(&["-f", "--only", "no-such-program*"]).wait();
    assert!(ended.stderr.contains("--only and --skip choose"), "{}", ended.stderr);
}
