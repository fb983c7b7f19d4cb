//! The control socket: one heaptrace asks another that traces a process.

use super::attach::{assert_victim_well, start_victim};
use crate::support::procfs;
use crate::support::program::Program;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

fn ask(arguments: &[&str]) -> Output {
    Command::new(HEAPTRACE).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A command that the user nobody runs.
fn as_nobody(program: &Path) -> Command {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = Command::new(if is_root { "setpriv" } else { "sudo" });
    let options: &[&str] =
        if is_root { &["--reuid=65534", "--regid=65534", "--clear-groups"] } else { &["-n", "-u", "nobody"] };
    command.args(options).arg(program);
    command
}

/// `ctl PID detach` ends the tracing as Ctrl-C does: the process lives, the profile is written.
#[test]
fn ctl_detach_lets_the_process_go() {
    let program = Program::fixture("victim").args(["3"]);
    let (victim, pid) = start_victim(&program);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    let wrong = ask(&["ctl", &attached.pid().to_string(), "detach"]);
    assert_eq!(wrong.status.code(), Some(125));
    assert!(stderr(&wrong).contains("is not being traced"), "{}", stderr(&wrong));
    let asked = ask(&["ctl", &pid.to_string(), "detach"]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    let traced = tracer.collect(attached.wait());
    assert_eq!(traced.ended.code(), 0);
    assert_victim_well(victim, pid);
}

/// Others than the tracer's user and root are not answered.
#[test]
fn another_user_is_refused() {
    let program = Program::fixture("victim").args(["1"]);
    let (victim, pid) = start_victim(&program);
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_probed(pid);
    let copy = program.folder().join("heaptrace");
    std::fs::copy(HEAPTRACE, &copy).unwrap();
    for folder in copy.ancestors().skip(1).take_while(|folder| folder.starts_with(std::env::temp_dir())) {
        let _ = std::fs::set_permissions(folder, PermissionsExt::from_mode(0o1777));
    }
    let other = as_nobody(&copy).args(["ctl", &pid.to_string(), "detach"]).output().unwrap();
    assert_eq!(other.status.code(), Some(125));
    assert!(stderr(&other).contains("belongs to another user"), "{}", stderr(&other));
    attached.signal(nix::sys::signal::Signal::SIGINT);
    tracer.collect(attached.wait());
    assert_victim_well(victim, pid);
}

/// A tracer that is no heaptrace is named, and an untraced process is told from one that does not exist.
#[test]
fn what_can_not_be_asked_is_said() {
    let gone = ask(&["ctl", "999999999", "detach"]);
    assert_eq!(gone.status.code(), Some(125));
    assert!(stderr(&gone).contains("there is no process 999999999"), "{}", stderr(&gone));
    let own = std::process::id().to_string();
    assert!(stderr(&ask(&["ctl", &own, "detach"])).contains("is not being traced"));
    for (words, reason) in [
        (vec!["ctl", "12"], "the order is missing"),
        (vec!["ctl", "x", "detach"], "`x` is no process id"),
        (vec!["ctl", "12", "dance"], "there is no order `dance`"),
    ] {
        let asked = ask(&words);
        assert_eq!(asked.status.code(), Some(125));
        assert!(stderr(&asked).contains(reason), "{}", stderr(&asked));
    }
}
