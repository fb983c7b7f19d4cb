//! T37: processes in other namespaces, with other files at the same paths.

use crate::support::container::{self, Apart, Contained};
use crate::support::program::{Program, Traced};
use crate::support::report::Report;
use crate::support::running::Running;
use crate::support::{fixtures, procfs};
use nix::sys::signal::Signal;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

fn heaptrace(arguments: &[&str]) -> Output {
    Command::new(HEAPTRACE).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Attaches, and returns when all probes stand: only then the tracer answers.
fn attach(tracer: &Program, pid: i32) -> Running {
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    attached
}

/// One round of the fixture's work.
fn work(target: &mut Running) {
    target.send("work");
    assert_eq!(target.line(), "done");
}

/// What `rounds` rounds of work must look like: every block on the function that is inside, on its line.
fn assert_stacks(report: &Report, rounds: u64) {
    let line = fixtures::site_line("contained", "allocate");
    for stack in
        [&["inside_allocate", "main"][..], &["inside_plugin", "plugin", "main"], &["inside_late", "plugin", "main"]]
    {
        assert_eq!(report.site_sum(stack, "/allocated/objects"), 10 * rounds, "{stack:?} {:#?}", report.sites());
        for site in report.sites_at(stack) {
            let frame = &site["stack"][0];
            assert!(frame["file"].as_str().unwrap().ends_with("contained.c"), "{frame}");
            assert_eq!(frame["line"], line);
        }
    }
    assert!(!report.sites().iter().any(|site| site["stack"].to_string().contains("outside_")), "{:#?}", report.sites());
    for anomaly in ["lost", "truncated_stacks", "guessed_stacks", "double_frees", "unknown_frees"] {
        assert_eq!(report.anomaly(anomaly), 0, "{anomaly}");
    }
}

fn assert_no_warning(traced: &Traced) {
    let warnings = traced.report.list("/warnings");
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// T37: attach from outside to a process that sees other files than we do, and let it go again.
#[test]
fn t37_attach_to_a_process_apart() {
    for apart in Apart::ALL {
        let contained = Contained::new(apart, &[]);
        let (mut target, pid, inner) = contained.start();
        assert_eq!(inner == pid, apart != Apart::Container);
        let tracer = Program::new("/bin/true");
        let attached = attach(&tracer, pid);
        work(&mut target);
        work(&mut target);
        attached.signal(Signal::SIGINT);
        let traced = tracer.collect(attached.wait());
        assert_stacks(&traced.report, 2);
        assert_no_warning(&traced);
        assert_eq!(traced.report.number("/pid"), u64::try_from(pid).unwrap());
        procfs::assert_left_as_it_was(pid);
        work(&mut target);
        target.feed(b"");
        target.wait().success();
    }
}

/// Attaches to a contained process, lets it work and end, and names are looked for afterwards.
fn attached_to_its_end(contained: &Contained) -> Traced {
    let (target, pid, _) = contained.start();
    attached_while_it_works(target, pid)
}

/// The same for one that has been started.
fn attached_while_it_works(mut target: Running, pid: i32) -> Traced {
    let tracer = Program::new("/bin/true");
    let attached = attach(&tracer, pid);
    work(&mut target);
    target.feed(b"");
    let traced = tracer.collect(attached.wait());
    target.wait().success();
    traced
}

/// T37: the process has ended, and its file systems with it, before names are looked for.
#[test]
fn t37_the_process_ends_while_it_is_traced() {
    for apart in Apart::ALL {
        let contained = Contained::new(apart, &[]);
        let traced = attached_to_its_end(&contained);
        assert_stacks(&traced.report, 1);
        assert_no_warning(&traced);
    }
}

/// T37: names that only a separate debug file inside has, found by its name, after the end of the process.
#[test]
fn t37_debug_files_inside() {
    for apart in Apart::ALL {
        let split = |inside: &std::path::Path| {
            for name in ["app", "plugin.so", "late.so"] {
                let file = inside.join(name);
                let debug = inside.join(format!("{name}.debug"));
                let run = |arguments: &[&std::ffi::OsStr]| {
                    assert!(Command::new("objcopy").args(arguments).status().unwrap().success());
                };
                run(&["--only-keep-debug".as_ref(), file.as_os_str(), debug.as_os_str()]);
                let link = format!("--add-gnu-debuglink={}", debug.display());
                run(&["--strip-all".as_ref(), link.as_ref(), file.as_os_str()]);
            }
        };
        let contained = Contained::of(apart, &["-Wl,--build-id=none"], &split);
        let traced = attached_to_its_end(&contained);
        assert_stacks(&traced.report, 1);
    }
}

/// T37: a program that is started by heaptrace and set apart by what it executes first.
#[test]
fn t37_run_unshare() {
    for apart in [Apart::Chroot, Apart::Overmount, Apart::Overlay] {
        let contained = Contained::new(apart, &[]);
        let mut running = contained.program.start_traced(&[]);
        running.value("ready");
        work(&mut running);
        let traced = contained.program.collect(running.wait().success());
        assert_stacks(&traced.report, 1);
        assert_eq!(traced.report.text("/program"), "app");
    }
}

/// In a user namespace in which the machine's root has no id, its links belong to nobody; /dev/stdout is one of them.
#[test]
fn dev_stdout_where_the_machine_s_root_has_no_id() {
    let place = std::env::temp_dir().join(format!("heaptrace-rootless-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let tracer = place.join("heaptrace");
    crate::support::copy_file(HEAPTRACE, &tracer).unwrap();
    let script = r#""$1" run -q -o /dev/stdout --format json -- /bin/true | cat; exit "${PIPESTATUS[0]}""#;
    let program = Program::new("setpriv")
        .args(["--reuid=65533", "--regid=65533", "--clear-groups", "unshare", "--user", "--map-root-user"])
        .args(["bash", "-c", script, "bash", tracer.to_str().unwrap()]);
    let ended = program.plain().success();
    assert!(ended.text().contains("\"allocations\""), "{} {}", ended.text(), ended.stderr);
    std::fs::remove_dir_all(&place).unwrap();
}

/// T37: heaptrace is root of a user namespace only, and the program enters one below it. Without the rights to open the
/// kernel's links to mapped files.
#[test]
fn t37_in_a_user_namespace_and_below_it() {
    let program = Program::new("unshare").args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
    let (report, profile) = (program.report_path(), program.profile_path());
    let app = fixtures::program_with("contained", &["-DSITE=inside_allocate"]);
    let library = fixtures::library_with("contained", &["-DLIBRARY", "-DSITE=inside_late"]);
    let program = program
        .args([HEAPTRACE, "run", "-o"])
        .args([report.as_os_str(), "-o".as_ref(), profile.as_os_str(), "--".as_ref()])
        .args(["unshare", "--user", "--map-root-user", "--mount"])
        .args([&app, &library]);
    let mut running = program.start();
    running.value("ready");
    work(&mut running);
    let traced = program.collect(running.wait().success());
    for stack in [&["inside_allocate", "main"][..], &["inside_late", "plugin", "main"]] {
        assert_eq!(traced.report.site_sum(stack, "/allocated/objects"), 10, "{stack:?} {}", traced.ended.stderr);
    }
    assert_no_warning(&traced);
}

/// T37: `check` judges a program that was set apart after its start.
#[test]
fn t37_check_unshare() {
    for apart in [Apart::Chroot, Apart::Overlay] {
        let contained = Contained::new(apart, &[]);
        let mut running = contained.program.start_checked(&[]);
        running.value("ready");
        work(&mut running);
        let checked = contained.program.collect_checked(running.wait());
        assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
        let lost: Vec<_> =
            checked.report.list("/findings").iter().map(|finding| finding["stack"].to_string()).collect();
        for function in ["inside_allocate", "inside_plugin", "inside_late"] {
            assert!(lost.iter().any(|stack| stack.contains(function)), "{function}: {lost:?}");
        }
        assert!(!lost.concat().contains("outside_"), "{lost:?}");
    }
}

/// T37: /proc is that of another pid namespace. Ids in it are those of other processes: nothing is traced, nobody's
/// memory is written to.
#[test]
fn t37_proc_of_another_pid_namespace_is_refused() {
    let program = Program::fixture("victim").args(["1"]);
    let (victim, pid) = super::attach::start_victim(&program);
    let apart = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", HEAPTRACE]).args(arguments);
        command.current_dir(program.folder()).output().unwrap()
    };
    let id = pid.to_string();
    for arguments in
        [&["run", "/bin/true"][..], &["check", "/bin/true"], &["attach", &id], &["attach", "1"], &["leaks", &id]]
    {
        let ended = apart(arguments);
        assert_eq!(ended.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&ended).contains("--mount-proc"), "{arguments:?}: {}", stderr(&ended));
    }
    let doctor = apart(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("--mount-proc"));
    super::attach::assert_victim_well(victim, pid);
    let without = Command::new("unshare")
        .args(["--mount", "sh", "-c", &format!("umount -l /proc; exec {HEAPTRACE} doctor")])
        .output()
        .unwrap();
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stdout).contains("is not mounted"));
}

/// T37: an id that is one inside only is answered by the id outside.
#[test]
fn t37_an_id_from_inside_is_translated() {
    // an id that nobody has outside, and that is not given out soon
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    let limit: i32 = read("/proc/sys/kernel/pid_max").trim().parse().unwrap();
    let last: i32 = read("/proc/loadavg").split_whitespace().last().unwrap().parse().unwrap();
    let id = (1..limit)
        .map(|step| 400 + (last + limit / 2 + step) % (limit - 500))
        .find(|id| procfs::state(*id).is_none())
        .unwrap();
    // the next process there gets that id
    let script = format!("echo {} > /proc/sys/kernel/ns_last_pid; sh -c 'echo ready $$; read end'; true", id - 1);
    let program = Program::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-ec", &script]);
    let mut target = program.start();
    assert_eq!(target.value("ready"), id.to_string());
    let shell = procfs::children(target.pid())[0];
    let outside = procfs::children(shell)[0];
    assert_ne!(outside, id);
    for arguments in [["attach", &id.to_string()], ["leaks", &id.to_string()]] {
        let refused = heaptrace(&arguments);
        assert_eq!(refused.status.code(), Some(125));
        let expected = format!("is the id that process {outside} has in its container");
        assert!(stderr(&refused).contains(&expected), "{}", stderr(&refused));
    }
    target.feed(b"\n");
    target.wait().success();
}

/// T37: one who asks from outside finds the tracer in a container, and is let in; one who asks from inside a tracer
/// outside is told so.
#[test]
fn t37_asking_across_namespaces() {
    // without root outside, so that root there is nobody that the container knows
    let folder = Program::new("/bin/true");
    let place = std::env::temp_dir().join(format!("heaptrace-contained-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let copy = |from: &std::path::Path, name: &str| {
        let to = place.join(name);
        crate::support::copy_file(from, &to).unwrap();
        to
    };
    let tracer = copy(HEAPTRACE.as_ref(), "heaptrace");
    let app = copy(&fixtures::program_with("contained", &["-DSITE=inside_allocate"]), "app");
    let library = copy(&fixtures::library_with("contained", &["-DLIBRARY", "-DSITE=inside_late"]), "late.so");
    let program = Program::new("setpriv")
        .args(["--reuid=65533", "--regid=65533", "--clear-groups"])
        .args(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args([tracer.as_os_str(), "run".as_ref(), "-q".as_ref(), "-o".as_ref(), "/dev/null".as_ref()])
        .args(["--format", "json", "--"])
        .args([&app, &library]);
    let mut running = program.start();
    let inner = running.value("ready");
    assert_ne!(inner, "1");
    let heaptrace_outside = procfs::children(running.pid())[0];
    let is_target =
        |pid: &i32| procfs::status_field(*pid, "NSpid").is_some_and(|ids| ids.ends_with(&format!("\t{inner}")));
    let target = procfs::children(heaptrace_outside).into_iter().find(is_target).unwrap();
    work(&mut running);
    let asked = heaptrace(&["leaks", &target.to_string()]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    let detached = heaptrace(&["ctl", &target.to_string(), "detach"]);
    assert!(detached.status.success(), "{}", stderr(&detached));
    procfs::wait_until_let_go(target);

    let outside = folder.start_attached(&[], target);
    procfs::wait_until_answered(target);
    let inside = Command::new("nsenter")
        .args(["--target", &target.to_string(), "--user", "--mount", "--pid"])
        .args([tracer.as_os_str(), "leaks".as_ref(), inner.as_ref()])
        .output()
        .unwrap();
    assert_eq!(inside.status.code(), Some(125));
    assert!(stderr(&inside).contains("from outside this container"), "{}", stderr(&inside));
    outside.signal(Signal::SIGINT);
    folder.collect(outside.wait());
    running.feed(b"");
    running.wait().success();
    std::fs::remove_dir_all(&place).unwrap();
}

/// T46: names that a maker of code has written to its perf map, here and in a container, where the file is another one
/// and so is the process's id.
#[test]
fn t46_names_of_code_made_at_run_time() {
    let assert_named = |report: &Report| {
        for (name, bytes) in [("*first js:1", 500), ("second js:2", 505)] {
            assert_eq!(report.site_sum(&[name], "/allocated/bytes"), bytes, "{:#?}", report.sites());
        }
        assert_eq!(report.anomaly("truncated_stacks"), 10);
    };
    let plain = Program::fixture("perf_map");
    let mut running = plain.start_traced(&[]);
    let pid = running.value("ready");
    work(&mut running);
    let traced = plain.collect(running.wait().success());
    std::fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap();
    assert_named(&traced.report);

    // a map from before the attach counts
    let mut target = plain.start();
    let pid = target.value("ready");
    let map = format!("/tmp/perf-{pid}.map");
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&map).unwrap().set_modified(an_hour_ago).unwrap();
    let tracer = Program::new("/bin/true");
    let attached = attach(&tracer, pid.parse().unwrap());
    work(&mut target);
    target.feed(b"");
    let traced = tracer.collect(attached.wait());
    target.wait().success();
    std::fs::remove_file(map).unwrap();
    assert_named(&traced.report);

    let copy = |inside: &std::path::Path| {
        crate::support::copy_file(fixtures::program("perf_map"), inside.join("app")).unwrap();
    };
    let contained = container::apart(Apart::Container, &copy, &["./app"]);
    let (target, pid, inner) = container::start(&contained, Apart::Container);
    assert_ne!(pid, inner);
    assert_named(&attached_while_it_works(target, pid).report);
}
