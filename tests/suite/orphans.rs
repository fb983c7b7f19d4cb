//! Orphans become children of heaptrace, where it is the first process of a container or a subreaper: their ends are
//! taken, and nobody else's.

use crate::support::fixtures;
use crate::support::program::Program;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");

/// Leaves five orphans, waits until none of them is left, even as a zombie, and tells so.
const LEAVES_ORPHANS: &str = "
    for i in 1 2 3 4 5; do (sh -c 'sleep 0.05 & exit 0'); done
    for i in $(seq 200); do
        left=$(ps -eo comm --no-headers | grep -c '^sleep')
        [ $left = 0 ] && echo clean && exit 7
        sleep 0.05 < /dev/null
    done
    ps -eo stat,pid,ppid,comm
    exit 8";

fn assert_adopts(by: &str, before: &[&str], options: &[&str]) {
    let hook = Program::new("/bin/true");
    let note = hook.outside("note");
    let on_profile = format!("echo written >> {}", note.display());
    let run = ["run", "-o", "x.folded", "--on-profile", &on_profile];
    let args = [before, &[HEAPTRACE], &run, options, &["--", "/bin/bash", "-c", LEAVES_ORPHANS]].concat();
    let ended = Program::new(by).args(args).plain();
    assert!(ended.text().contains("clean"), "zombies are left:\n{}\n{}", ended.text(), ended.stderr);
    // The ends of its own children are taken by those who wait for them.
    assert_eq!(ended.code(), 7, "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "written\n", "{}", ended.stderr);
}

#[test]
fn the_first_process_of_a_container_takes_the_ends_of_orphans() {
    let container = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    assert_adopts("unshare", &container, &[]);
    assert_adopts("unshare", &container, &["-f"]);
}

#[test]
fn a_subreaper_takes_the_ends_of_orphans() {
    let subreaper = fixtures::program("subreaper");
    let container =
        ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "/bin/sh", "-c", "\"$@\"; exit $?", "sh"];
    assert_adopts("unshare", &[&container[..], &[subreaper.to_str().unwrap()]].concat(), &[]);
}
