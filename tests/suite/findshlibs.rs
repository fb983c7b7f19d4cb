//! Our list of a child's modules against the child's own view, which findshlibs takes from inside.

use crate::support::program::Program;
use crate::support::report::Report;
use findshlibs::{SharedLibrary, TargetSharedLibrary};
use std::fmt::Write;

/// With `$FINDSHLIBS_OUT` set, this process is the child of the other test, and writes what it sees there.
#[test]
fn child_lists_its_libraries() {
    let mut lines = String::new();
    TargetSharedLibrary::each(|library| {
        writeln!(
            lines,
            "{} {:#x} {}",
            library.name().to_string_lossy(),
            library.virtual_memory_bias().0,
            library.id().map(|id| id.to_string()).unwrap_or_default()
        )
        .unwrap();
    });
    assert!(lines.contains("/libc.so."), "{lines}");
    if let Some(path) = std::env::var_os("FINDSHLIBS_OUT") {
        std::fs::write(path, lines).unwrap();
    }
}

/// Every library that the child sees is in the report, with its build id, at addresses inside its mapping.
#[test]
fn module_list_equals_the_childs_own() {
    let program = Program::new(std::env::current_exe().unwrap()).args([
        "--exact",
        "suite::findshlibs::child_lists_its_libraries",
        "--test-threads=1",
    ]);
    let out = program.outside("libraries");
    let program = program.env("FINDSHLIBS_OUT", &out);
    let traced = program.traced();
    assert_eq!(traced.ended.code(), 0, "{}", traced.ended.text());
    let listed = std::fs::read_to_string(&out).unwrap();
    let mut seen = 0;
    for line in listed.lines() {
        let mut words = line.split(' ');
        let (name, bias, id) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let bias = u64::from_str_radix(bias.trim_start_matches("0x"), 16).unwrap();
        // the main program has no name in the loader's list; the vdso's is no path
        let name = if name.is_empty() { program.exe().to_str().unwrap() } else { name };
        if !name.starts_with('/') {
            continue;
        }
        seen += 1;
        let real = std::fs::canonicalize(name).unwrap();
        let module = module(&traced.report, &real.display().to_string())
            .unwrap_or_else(|| panic!("{name} is missing among {:?}", traced.report.list("/modules")));
        assert_eq!(module["build_id"].as_str().unwrap(), id.to_lowercase().replace('-', ""), "{name}");
        let start = u64::from_str_radix(module["start"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
        assert!(start >= bias && start - bias < 1 << 32, "{name}: start {start:#x}, bias {bias:#x}");
    }
    assert!(seen >= 3, "{listed}");
}

fn module<'a>(report: &'a Report, path: &str) -> Option<&'a serde_json::Value> {
    report.list("/modules").iter().find(|module| {
        let named = module["path"].as_str().unwrap();
        named == path || std::fs::canonicalize(named).is_ok_and(|real| real.display().to_string() == path)
    })
}
