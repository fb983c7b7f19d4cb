//! T37: processes in other namespaces, with other files at the same paths.

use crate::support::container::{Apart, Contained};
use crate::support::program::{Program, Traced};
use crate::support::report::Report;
use crate::support::running::Running;
use crate::support::{fixtures, procfs};
use nix::sys::signal::Signal;
use std::process::{Command, Output};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

const APART: [Apart; 3] = [Apart::Container, Apart::Chroot, Apart::Overmount];

fn heaptrace(arguments: &[&str]) -> Output {
    Command::new(HEAPTRACE).args(arguments).output().unwrap()
}

/// Attaches, and returns when all probes stand: only then the tracer answers.
fn attach(tracer: &Program, pid: i32) -> Running {
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until("the tracer answers", || heaptrace(&["leaks", &pid.to_string()]).status.success());
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
    for apart in APART {
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

/// T37: the process has ended, and its file systems with it, before names are looked for.
#[test]
fn t37_the_process_ends_while_it_is_traced() {
    for apart in APART {
        let contained = Contained::new(apart, &[]);
        let (mut target, pid, _) = contained.start();
        let tracer = Program::new("/bin/true");
        let attached = attach(&tracer, pid);
        work(&mut target);
        target.feed(b"");
        let traced = tracer.collect(attached.wait());
        target.wait().success();
        assert_stacks(&traced.report, 1);
        assert_no_warning(&traced);
    }
}

/// T37: names that only a separate debug file inside has, found by its name, after the end of the process.
#[test]
fn t37_debug_files_inside() {
    for apart in APART {
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
        let (mut target, pid, _) = contained.start();
        let tracer = Program::new("/bin/true");
        let attached = attach(&tracer, pid);
        work(&mut target);
        target.feed(b"");
        let traced = tracer.collect(attached.wait());
        target.wait().success();
        assert_stacks(&traced.report, 1);
    }
}

/// T37: a program that is started by heaptrace and set apart by what it executes first.
#[test]
fn t37_run_unshare() {
    for apart in [Apart::Chroot, Apart::Overmount] {
        let contained = Contained::new(apart, &[]);
        let mut running = contained.program.start_traced(&[]);
        running.value("ready");
        work(&mut running);
        let traced = contained.program.collect(running.wait().success());
        assert_stacks(&traced.report, 1);
        assert_eq!(traced.report.text("/program"), "app");
    }
}
