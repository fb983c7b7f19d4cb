//! Libraries that come before main, come late, go again; executables of every shape.

use super::counts::assert_sites;
use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::Program;

/// T33: allocations of a library's first constructor and last destructor are seen, with their stacks.
#[test]
fn t33_constructors_of_libraries() {
    let library = fixtures::library("ctor_library");
    let program = Program::new(fixtures::program_linked("ctor_main", &[&library]));
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 0);
    let ledger = program.ledger();
    assert_eq!(ledger.total("allocations"), 3);
    for name in ["allocations", "frees", "live_blocks", "live_bytes"] {
        assert_eq!(traced.report.total(name), ledger.total(name), "{name}");
    }
    assert_sites(&traced.report, &ledger);
    assert_eq!(traced.report.site_sum(&["constructor_allocate", "first"], "/allocated/bytes"), 333);
    assert_eq!(traced.report.site_sum(&["constructor_allocate", "last"], "/allocated/bytes"), 333);
    traced.report.assert_no_anomaly();
}

/// T33 with a preloaded library.
#[test]
fn t33_constructors_of_preloaded_libraries() {
    let library = fixtures::library("ctor_library");
    let program = Program::new("/bin/true").env("LD_PRELOAD", &library);
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 0);
    assert_sites(&traced.report, &program.ledger());
}

/// T34: two libraries loaded and unloaded in turn, at addresses used again: each block on the right library's function.
#[test]
fn t34_dlopen_and_dlclose() {
    let libraries = [fixtures::library("plugin_one"), fixtures::library("plugin_two")];
    let program =
        Program::fixture("dlopen_loop").args([libraries[0].as_os_str(), libraries[1].as_os_str(), "1000".as_ref()]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "rounds 1000\n");
    let ledger = program.ledger();
    assert_sites(&traced.report, &ledger);
    assert_eq!(traced.report.site_sum(&["plugin_one_allocate", "plugin_allocate"], "/live/objects"), 500);
    assert_eq!(traced.report.site_sum(&["plugin_two_allocate", "plugin_allocate"], "/live/objects"), 500);
    assert_eq!(traced.report.anomaly("lost"), 0);
    assert_eq!(traced.report.anomaly("unknown_frees"), 0);
    assert_eq!(traced.report.anomaly("double_frees"), 0);
    traced.report.assert_consistent();
}

/// T36: a library is renamed while it is mapped, and another one is loaded: its probes stay what they are.
#[test]
fn t36_renamed_library() {
    let program = Program::fixture("renamed_library");
    let first = program.folder().join("first.so");
    std::fs::copy(fixtures::library("plugin_one"), &first).unwrap();
    let second = fixtures::library("plugin_two");
    let renamed = program.folder().join("renamed.so");
    let program = program.args([first.as_os_str(), second.as_os_str(), renamed.as_os_str()]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "alive\n");
    assert_sites(&traced.report, &program.ledger());
}

/// T36: the executable is deleted while it runs: names still come from the process itself.
#[test]
fn t36_deleted_executable() {
    let program = Program::fixture("victim");
    let copy = program.folder().join("victim");
    std::fs::copy(program.exe(), &copy).unwrap();
    let program = Program::new(&copy).args(["2"]);
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    std::fs::remove_file(&copy).unwrap();
    let tracer = Program::new("/bin/true");
    let traced = tracer.collect(tracer.start_attached(&["--duration", "300ms"], pid).wait().success());
    assert!(traced.report.site_sum(&["victim_allocate"], "/allocated/objects") > 0, "{}", traced.ended.stderr);
    victim.send("still alive?");
    assert_eq!(victim.line(), "alive");
    assert_eq!(procfs::tracer_of(pid), 0);
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

/// T36: the executable was replaced by another program since it started: the new file's symbols must not be used.
#[test]
fn t36_replaced_executable() {
    let program = Program::fixture("victim");
    let copy = program.folder().join("victim");
    std::fs::copy(program.exe(), &copy).unwrap();
    let program = Program::new(&copy).args(["2"]);
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    let other = program.folder().join("other");
    std::fs::copy(fixtures::program("threads"), &other).unwrap();
    std::fs::rename(&other, &copy).unwrap();
    let tracer = Program::new("/bin/true");
    let traced = tracer.collect(tracer.start_attached(&["--duration", "300ms"], pid).wait().success());
    assert!(traced.report.total("allocations") > 0);
    assert_eq!(traced.report.site_sum(&["make_block"], "/allocated/objects"), 0);
    assert!(traced.report.site_sum(&["victim_allocate"], "/allocated/objects") > 0, "{}", traced.ended.stderr);
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

/// T36: a library with the allocator was replaced by another one since it was mapped. Whether the old file can still be opened
/// (it takes privileges) or only the process's memory is left: whole stacks, and no name of the new file's.
#[test]
fn t36_replaced_library() {
    let folder = Program::new("/bin/true");
    let library = folder.folder().join("allocator.so");
    std::fs::copy("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", &library).unwrap();
    let program = Program::fixture("victim").args(["2"]).env("LD_PRELOAD", &library);
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    let other = folder.folder().join("other.so");
    std::fs::copy(fixtures::library("plugin_one"), &other).unwrap();
    std::fs::rename(&other, &library).unwrap();
    let tracer = Program::new("/bin/true");
    let traced = tracer.collect(tracer.start_attached(&["--duration", "300ms"], pid).wait().success());
    let report = &traced.report;
    assert!(report.site_sum(&["victim_allocate"], "/allocated/objects") > 0, "{}", traced.ended.stderr);
    assert_eq!(report.anomaly("truncated_stacks"), 0, "{:?}", report.sites());
    for site in report.sites() {
        assert!(!site["stack"].to_string().contains("plugin"), "{site}");
    }
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

/// A program without symbols whose allocator is in a library: counts are whole, names are module and offset.
#[test]
fn stripped_program_with_shared_libc() {
    let program = Program::new(fixtures::program_with("peak", &["-s"]));
    let traced = program.traced();
    assert_eq!(traced.report.total("allocations"), program.ledger().total("allocations"));
    let unnamed = traced
        .report
        .sites()
        .iter()
        .filter(|site| site["stack"][0]["function"].as_str().unwrap().starts_with("peak+0x"))
        .count();
    assert!(unnamed > 0, "{:?}", traced.report.sites());
    assert_eq!(traced.report.anomaly("truncated_stacks"), 0);
}
