//! Libraries that come before main, come late, go again; executables of every shape.

use super::attach::attach_while_it_works;
use super::counts::assert_sites;
use crate::support::fixtures;
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use nix::sys::signal::Signal;
use std::path::PathBuf;

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

/// J32: an allocator is loaded and unloaded again and again, at one address: each of its calls is seen as long as it is
/// there.
#[test]
fn j32_an_allocator_is_loaded_and_unloaded() {
    // The jump engine sees one allocator only.
    let program = Program::fixture("allocator_loop")
        .args([fixtures::library("bump").as_os_str(), "300".as_ref()])
        .stays_on_trap("recorded calls of");
    let traced = program.traced();
    let reused: u32 = traced.ended.text().trim().strip_prefix("reused ").unwrap().parse().unwrap();
    assert!(reused > 200, "{reused}");
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.site_sum(&["local_allocate", "main"], "/freed/objects"), 1500);
    traced.report.assert_no_anomaly();
    traced.report.assert_consistent();
}

/// Two builds of a library whose functions have other names, and nothing else.
fn builds(flags: &[&str]) -> [PathBuf; 2] {
    ["first_build", "second_build"].map(|site| {
        let site = format!("-DSITE={site}");
        fixtures::library_with("reloaded_build", &[&[site.as_str()], flags].concat())
    })
}

/// T34, T36: builds of one library come to one path, and to one range of addresses, in turn: each block on the function
/// of the build that made it, as the program itself finds by backtrace() and dladdr(). With build ids and without.
#[test]
fn t34_builds_of_a_library_at_one_path() {
    for flags in [&[][..], &["-Wl,--build-id=none"]] {
        for in_memory in [false, true] {
            let builds = builds(flags);
            let program = Program::fixture("reloaded");
            let path = program.folder().join("library.so");
            let path = if in_memory { "open".as_ref() } else { path.as_os_str() };
            let program = program.args(["60".as_ref(), path, builds[0].as_os_str(), builds[1].as_os_str()]);
            let traced = program.traced();
            let reused: u32 = traced.ended.text().trim().strip_prefix("reused ").unwrap().parse().unwrap();
            assert!(reused > 20, "{reused}");
            let ledger = program.ledger();
            assert_eq!(ledger.sites.keys().collect::<Vec<_>>(), ["first_build", "second_build"]);
            assert_sites(&traced.report, &ledger);
            for build in ["first_build", "second_build"] {
                let stack = [build, "plugin", "main"];
                assert_eq!(traced.report.site_sum(&stack, "/allocated/objects"), 30, "{:#?}", traced.report.sites());
                let lines = traced.report.sites_at(&stack).all(|site| site["stack"][0]["line"].as_u64() > Some(0));
                assert!(lines, "{flags:?} {:#?}", traced.report.sites());
            }
            assert_eq!(traced.report.anomaly("truncated_stacks"), 0);
            assert!(traced.report.list("/warnings").is_empty(), "{:?}", traced.report.list("/warnings"));
        }
    }
}

/// T33: constructors and destructors of a library that comes and goes while the program runs.
#[test]
fn t33_constructors_of_a_library_that_is_loaded() {
    let program = Program::fixture("load_once").args([fixtures::library("ctor_library")]);
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    assert_sites(&traced.report, &program.ledger());
    assert_eq!(traced.report.site_sum(&["constructor_allocate", "first"], "/allocated/bytes"), 333);
    assert_eq!(traced.report.site_sum(&["constructor_allocate", "last"], "/allocated/bytes"), 333);
    assert_eq!(traced.report.anomaly("truncated_stacks"), 0);
}

/// T36: a library is deleted or replaced while it is mapped, before heaptrace comes. With and without build ids; with
/// the kernel's links to mapped files, and without the right to follow them: then it is read from memory, and that is
/// said once.
#[test]
fn t36_deleted_and_replaced_libraries() {
    for flags in [&[][..], &["-Wl,--build-id=none"]] {
        for replaced in [false, true] {
            for privileged in [true, false] {
                let case = format!("{flags:?}, replaced: {replaced}, privileged: {privileged}");
                let build = |site: &str| {
                    let site = format!("-DSITE={site}");
                    fixtures::library_with("contained", &[&["-DLIBRARY", site.as_str()], flags].concat())
                };
                let app = fixtures::program_with("contained", &["-DSITE=app_allocate"]);
                let mut target = Program::new(if privileged { "env" } else { "setpriv" });
                if !privileged {
                    target = target.args(["--inh-caps=-all", "--bounding-set=-all"]);
                }
                let folder = target.folder().to_owned();
                let place = |name: &str, build: PathBuf| {
                    let path = folder.join(name);
                    crate::support::copy_file(build, &path).unwrap();
                    path
                };
                let (path, late) = (place("library.so", build("old_build")), place("late.so", build("late_build")));
                let mut running = target.args([&app, &path, &late]).start();
                let pid = running.value("ready").parse().unwrap();
                std::fs::remove_file(&path).unwrap();
                if replaced {
                    place("library.so", build("new_build"));
                }
                let tracer = Program::new("/bin/true");
                let tool = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];
                let attached = tracer.start_attached_under(if privileged { &["env"] } else { &tool }, pid);
                procfs::wait_until_answered(pid);
                running.send("work");
                assert_eq!(running.line(), "done", "{case}");
                attached.signal(Signal::SIGINT);
                let traced = tracer.collect(attached.wait());
                for build in ["old_build", "late_build"] {
                    let stack = [build, "plugin", "main"];
                    assert_eq!(traced.report.site_sum(&stack, "/allocated/objects"), 10, "{case} {build}");
                }
                assert_eq!(traced.report.anomaly("truncated_stacks"), 0, "{case}");
                let warnings = traced.report.list("/warnings");
                assert_eq!(warnings.len(), usize::from(!privileged), "{case} {warnings:?}");
                for warning in warnings {
                    assert!(warning.as_str().unwrap().contains("replaced or deleted"), "{case} {warning}");
                }
                running.feed(b"");
                running.wait().success();
            }
        }
    }
}

/// T36: a program that was never a file: started by fexecve from a memory file, under trace and before.
#[test]
fn t36_program_from_a_memory_file() {
    let assert_named = |report: &Report| {
        let stack = ["in_memory_allocate", "main"];
        assert_eq!(report.site_sum(&stack, "/allocated/objects"), 10, "{:#?}", report.sites());
        assert_eq!(report.anomaly("truncated_stacks"), 0);
        assert!(report.list("/warnings").is_empty(), "{:?}", report.list("/warnings"));
    };
    let program = Program::fixture("from_memory");
    let mut running = program.start_traced(&[]);
    running.value("ready");
    running.send("work");
    assert_eq!(running.line(), "done");
    let traced = program.collect(running.wait().success());
    assert_named(&traced.report);
    assert_sites(&traced.report, &program.ledger());

    let mut running = program.start();
    let pid = running.value("ready").parse().unwrap();
    let tracer = Program::new("/bin/true");
    let attached = tracer.start_attached(&[], pid);
    procfs::wait_until_answered(pid);
    running.send("work");
    assert_eq!(running.line(), "done");
    attached.signal(Signal::SIGINT);
    assert_named(&tracer.collect(attached.wait()).report);
    running.feed(b"");
    running.wait().success();
}

/// T36: a library is renamed while it is mapped, and another one is loaded: its probes stay what they are.
#[test]
fn t36_renamed_library() {
    let program = Program::fixture("renamed_library");
    let first = program.folder().join("first.so");
    crate::support::copy_file(fixtures::library("plugin_one"), &first).unwrap();
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
    crate::support::copy_file(program.exe(), &copy).unwrap();
    let program = Program::new(&copy).args(["2"]);
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    std::fs::remove_file(&copy).unwrap();
    let traced = attach_while_it_works(&mut victim, pid);
    assert!(traced.report.site_sum(&["victim_allocate"], "/allocated/objects") > 0, "{}", traced.ended.stderr);
    assert_eq!(procfs::tracer_of(pid), 0);
    victim.send("still alive?");
    assert_eq!(victim.line(), "alive");
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

/// T36: the executable was replaced by another program since it started: the new file's symbols must not be used.
#[test]
fn t36_replaced_executable() {
    let program = Program::fixture("victim");
    let copy = program.folder().join("victim");
    crate::support::copy_file(program.exe(), &copy).unwrap();
    let program = Program::new(&copy).args(["2"]);
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    let other = program.folder().join("other");
    crate::support::copy_file(fixtures::program("threads"), &other).unwrap();
    std::fs::rename(&other, &copy).unwrap();
    let traced = attach_while_it_works(&mut victim, pid);
    assert!(traced.report.total("allocations") > 0);
    assert_eq!(traced.report.site_sum(&["make_block"], "/allocated/objects"), 0);
    assert!(traced.report.site_sum(&["victim_allocate"], "/allocated/objects") > 0, "{}", traced.ended.stderr);
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

/// T36: a library with the allocator was replaced by another one since it was mapped. Whether the old file can still be
/// opened (it takes privileges) or only the process's memory is left: whole stacks, and no name of the new file's.
#[test]
fn t36_replaced_library() {
    let folder = Program::new("/bin/true");
    let library = folder.folder().join("allocator.so");
    crate::support::copy_file("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", &library).unwrap();
    let program = Program::fixture("victim").args(["2"]).env("LD_PRELOAD", &library);
    let mut victim = program.start();
    let pid = victim.value("ready").parse().unwrap();
    let other = folder.folder().join("other.so");
    crate::support::copy_file(fixtures::library("plugin_one"), &other).unwrap();
    std::fs::rename(&other, &library).unwrap();
    let traced = attach_while_it_works(&mut victim, pid);
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
