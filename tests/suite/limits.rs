//! Resource limits (setrlimit), of the program and of heaptrace: the program finds its own where they are without us,
//! and heaptrace ends in good order.

use super::counts::assert_sites;
use crate::support::procfs::{self, is_root};
use crate::support::program::{Program, engine};
use crate::support::report::Report;
use crate::support::running::Ended;
use std::os::unix::fs::PermissionsExt;

/// The program sets itself a limit of address space, open files or file size and meets it exactly where it does alone:
/// nothing of ours counts for it.
#[test]
fn the_programs_own_limits_are_where_they_were() {
    for limit in ["memory", "files", "size"] {
        let program = Program::fixture("limits").args([limit]);
        let plain = program.plain().success();
        let traced = program.traced();
        assert_eq!(traced.ended.code(), 0);
        assert_eq!(traced.ended.text(), plain.text(), "{limit}");
        let ledger = program.ledger();
        assert_sites(&traced.report, &ledger);
        assert_eq!(traced.report.total("failed"), ledger.total("failed"), "{limit}");
        traced.report.assert_no_anomaly();
    }
}

/// The same for processes, followed and not. Needs root: such limits are for other users only, and heaptrace's own
/// threads would count if it were the same user's.
#[test]
fn the_programs_limit_of_processes() {
    if !is_root() {
        return;
    }
    let fixture = Program::fixture("limits");
    // a user without any other process
    let user = format!("--reuid={}", 100_000 + std::process::id());
    let program = Program::new("setpriv").args([&user, "--clear-groups", fixture.exe().to_str().unwrap(), "processes"]);
    let plain = program.plain().success();
    assert_eq!(plain.text(), "children 7\n");
    for (options, children) in [(&[][..], "/children/untraced"), (&["-f"], "/children/followed")] {
        let traced = program.traced_with(options);
        assert_eq!(traced.ended.code(), 0, "{options:?}: {}", traced.ended.stderr);
        assert_eq!(traced.ended.text(), plain.text(), "{options:?}");
        assert_eq!(traced.report.number(children), 7, "{options:?}");
        traced.report.assert_no_anomaly();
    }
}

/// Where heaptrace's own threads are too many for the user, this is said, and nothing is started.
#[test]
fn no_room_for_heaptraces_threads() {
    if !is_root() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("heaptrace-limits-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let heaptrace = folder.join("heaptrace");
    crate::support::copy_file(env!("CARGO_BIN_EXE_heaptrace"), &heaptrace).unwrap();
    let user = format!("--reuid={}", 200_000 + std::process::id());
    let run = |most: &str| {
        let command =
            ["setpriv", &user, "--clear-groups", "bash", "-c", "ulimit -u $1; shift; exec \"$@\"", "bash", most];
        let heaptrace =
            [heaptrace.to_str().unwrap(), "run", "-q", "-o", "/dev/null", "--format", "json", "/bin/echo", "done"];
        Program::new(command[0]).args(command[1..].iter().chain(&heaptrace)).plain()
    };
    let refused = run("1");
    assert_eq!((refused.code(), refused.text().as_str()), (125, ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("ulimit -u"), "{}", refused.stderr);
    assert_eq!((run("20").code(), run("20").text().as_str()), (0, "done\n"));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A program that has used up its CPU time ends by SIGXCPU, traced or not.
#[test]
fn the_programs_cpu_time() {
    let program = Program::fixture("limits").args(["cpu"]);
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 128 + 24);
    assert_eq!(traced.report.0["exit"]["signal"], 24);
    assert!(traced.report.total("allocations") > 100);
    traced.report.assert_no_anomaly();
}

/// A shell with a limit that starts heaptrace, which inherits it, and gives it to the program.
fn below(limit: &str, program: &Program, command: &str) -> Ended {
    let line = format!(
        "{limit}; exec {} run -q -o {} -- {command}",
        env!("CARGO_BIN_EXE_heaptrace"),
        program.report_path().display()
    );
    Program::new("/bin/sh").args(["-c", &line]).plain()
}

/// heaptrace's CPU time is up: it lets the program go in time, which lives on to its own end, and writes what it has.
#[test]
fn heaptraces_cpu_time() {
    let program = Program::fixture("pairs");
    // far more than what 2 s are enough for
    let pairs = if engine() == "jump" { 20_000_000 } else { 400_000 };
    let command = format!("/bin/sh -c 'ulimit -t; exec {} {pairs} 2'", program.exe().display());
    let ended = below("ulimit -t 2", &program, &command).success();
    assert_eq!(ended.text().lines().next(), Some("2"), "the program has the limit that was inherited");
    assert_eq!(ended.text().lines().count(), 2, "it has come to its end");
    let report = Report::read(&program.report_path(), &ended);
    assert_eq!(report.0["complete"], false);
    let allocations = report.total("allocations");
    assert!((1000..pairs).contains(&allocations), "{allocations}");
    let warnings = report.list("/warnings");
    assert!(warnings.iter().any(|text| text.as_str().unwrap().contains("CPU time")), "{warnings:?}");
}

/// Files that many processes of a tree have in common take one descriptor.
#[test]
fn few_descriptors_for_many_children() {
    let program = Program::new("/bin/true");
    let line = format!(
        "ulimit -n 120; exec {} run -q -f -o {} -- /bin/sh -c 'for i in $(seq 80); do /bin/true; done'",
        env!("CARGO_BIN_EXE_heaptrace"),
        program.report_path().display(),
    );
    let ended = Program::new("/bin/sh").args(["-c", &line]).plain().success();
    let report = Report::read(&program.report_path(), &ended);
    let children = report.list("/processes").iter().filter(|row| row["program"] == "true").count();
    assert_eq!((children, report.number("/children/untraced")), (80, 0), "{:?}", report.list("/warnings"));
    assert_eq!(report.list("/warnings"), &[] as &[serde_json::Value]);
}

/// Little stack is enough, and the program has as much as it was given.
#[test]
fn little_stack() {
    let program = Program::fixture("basic");
    let ended = below("ulimit -s 256", &program, &program.exe().display().to_string());
    assert_eq!((ended.code(), ended.text().as_str()), (7, "done\n"), "{}", ended.stderr);
}

/// No file may grow: the profile can't be written, which is said; the program is not harmed.
#[test]
fn no_room_for_files() {
    let program = Program::new("/bin/echo");
    // standard error is a file, too
    let ended = below("exec 2>&1; ulimit -f 0", &program, "/bin/echo done");
    let said = ended.text();
    assert_eq!(ended.code(), 125, "{said}");
    assert!(said.starts_with("done\n") && said.contains("File too large"), "{said}");
    assert!(!program.report_path().exists());
}

/// Short of address space, heaptrace says so instead of aborting, whatever the amount; a program that had begun is not
/// harmed as long as heaptrace had its reserve.
#[test]
fn short_of_memory() {
    let mut refused = 0;
    for kilobytes in (24_000..120_000).step_by(8000) {
        let program = Program::new("/bin/true");
        let line = format!(
            "ulimit -v {kilobytes}; exec {} run -q -o {} -- /bin/echo done",
            env!("CARGO_BIN_EXE_heaptrace"),
            program.report_path().display()
        );
        let ended = Program::new("/bin/sh").args(["-c", &line]).plain();
        assert!([0, 125].contains(&ended.code()), "{kilobytes}: {}", ended.stderr);
        if ended.code() == 125 {
            refused += 1;
            assert!(ended.stderr.contains("memory"), "{kilobytes}: {}", ended.stderr);
            assert!(!ended.stderr.contains("panicked"), "{kilobytes}: {}", ended.stderr);
        } else {
            assert_eq!(ended.text(), "done\n", "{kilobytes}");
        }
    }
    assert!(refused > 0);
}

/// The main thread's stack is there before memory can get short: where it has to grow then, the kernel would end
/// heaptrace.
#[test]
fn the_stack_is_there_from_the_start() {
    let mut running = Program::fixture("threads").args(["2", "10", "wait"]).start_traced(&[]);
    running.value("ready ");
    let stack = procfs::status_field(running.pid(), "VmStk").unwrap();
    let kib: u64 = stack.trim_end_matches(" kB").trim().parse().unwrap();
    assert!(kib >= 512, "{stack}");
    running.send("go");
    running.wait().success();
}

/// heaptrace raises its own limit of open files, and gives the program, and the user's command, the one that it was
/// given.
#[test]
fn limit_of_open_files_is_raised_for_ourselves_only() {
    let program = Program::new("/bin/true");
    let line = format!(
        "ulimit -Sn 64; exec {} run -q -o {} --on-profile 'echo hook $(ulimit -Sn) >&2' -- /bin/sh -c 'ulimit -Sn; grep files \
         /proc/$PPID/limits'",
        env!("CARGO_BIN_EXE_heaptrace"),
        program.report_path().display()
    );
    let ended = Program::new("/bin/sh").args(["-c", &line]).plain().success();
    let text = ended.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("64"));
    let limits: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(limits[3], limits[4], "soft and hard: {limits:?}");
    assert!(ended.stderr.contains("hook 64"), "{}", ended.stderr);
}
