//! What is written: known stacks with their lines, all formats, names of files, the summary.

use crate::support::fixtures::{self, site_line};
use crate::support::procfs;
use crate::support::program::{Program, engine};
use crate::support::report::{functions_of, plain};
use std::path::Path;
use std::process::Command;

/// The stacks of a program with known sites: functions, lines, files and inlining, innermost first.
#[test]
fn known_stacks_with_lines_and_inlines() {
    let traced = Program::fixture("sites").traced();
    let report = &traced.report;
    let chain = [
        "inlined",
        "leaf",
        "middle",
        "recursive",
        "recursive",
        "recursive",
        "recursive",
        "recursive",
        "recursive",
        "main",
    ];
    let sites: Vec<_> = report.sites_at(&chain).collect();
    assert_eq!(sites.len(), 1, "{:?}", report.sites().iter().map(functions_of).collect::<Vec<_>>());
    let site = sites[0];
    assert_eq!(site["allocated"]["objects"], 3);
    assert_eq!(site["allocated"]["bytes"], 3000);
    assert_eq!(site["live"]["bytes"], 3000);
    assert_eq!(site["quality"], "complete");
    let line = |index: usize| site["stack"][index]["line"].as_u64().unwrap();
    let mut expected = vec![site_line("sites", "inlined"), site_line("sites", "leaf"), site_line("sites", "middle")];
    // the conditional spans two lines; the compiler gives both calls the line of their own branch
    expected.push(site_line("sites", "recursion_end"));
    expected.extend([site_line("sites", "recursive"); 5]);
    expected.push(site_line("sites", "main"));
    assert_eq!((0..chain.len()).map(line).collect::<Vec<_>>(), expected);
    for (index, frame) in site["stack"].as_array().unwrap().iter().take(chain.len()).enumerate() {
        assert!(frame["file"].as_str().unwrap().ends_with("tests/fixtures/sites.c"), "{frame}");
        assert_eq!(frame["inlined"], index == 0, "{frame}");
        assert!(frame["module"].as_str().unwrap().ends_with("/sites"), "{frame}");
    }
    // through libc's qsort, which has no frame pointers
    let compared: Vec<_> = report.sites_at(&["compare"]).collect();
    assert!(!compared.is_empty());
    for site in compared {
        assert!(functions_of(site).iter().any(|name| plain(name) == "main"), "{:?}", functions_of(site));
        assert_eq!(site["stack"][0]["line"], site_line("sites", "compare"));
    }
    report.assert_no_anomaly();
}

/// The figures of the report's head.
#[test]
fn head_of_the_report() {
    let program = Program::fixture("ends").args(["return"]);
    let traced = program.traced();
    let report = &traced.report;
    assert_eq!(report.number("/version"), 3);
    assert_eq!(report.text("/heaptrace_version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(report.text("/mode"), "run");
    assert_eq!(report.text("/program"), "ends");
    assert_eq!(report.text("/engine"), engine());
    assert_eq!(report.text("/command/0"), program.exe().to_str().unwrap());
    assert_eq!(report.text("/command/1"), "return");
    assert_eq!(report.text("/cwd"), program.folder().to_str().unwrap());
    assert_eq!(report.number("/exit/code"), 31);
    assert_eq!(report.number("/sampling/interval"), 0);
    let libc = report.list("/allocators").iter().find(|user| user["module"].as_str().unwrap().contains("libc"));
    let functions = libc.expect("libc is an allocator")["functions"].as_array().unwrap().clone();
    for name in ["malloc", "free", "calloc", "realloc"] {
        assert!(functions.iter().any(|function| function == name), "{name} in {functions:?}");
    }
    assert!(report.list("/modules").iter().any(|module| module["path"].as_str() == program.exe().to_str()));
    let mut before = (0, 0);
    for point in report.list("/timeline") {
        let now = (point["t_ns"].as_u64().unwrap(), point["allocations"].as_u64().unwrap());
        assert!(now.0 >= before.0 && now.1 >= before.1, "the timeline goes back at {point}");
        before = now;
    }
    assert!(report.number("/cost/stops") >= report.number("/cost/events"));
    assert!(report.number("/cost/wall_ns") >= report.number("/cost/stopped_max_ns"));
}

/// A site's id is the same in every run of the same program, and even of another build.
#[test]
fn site_ids_are_stable() {
    let ids = |program: Program| {
        let mut ids: Vec<_> =
            program.traced().report.sites().iter().map(|site| site["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let first = ids(Program::fixture("peak"));
    assert!(first.len() >= 4);
    assert_eq!(first, ids(Program::fixture("peak")));
    assert_eq!(first, ids(Program::new(fixtures::program_with("peak", &["-no-pie"]))));
}

/// All formats in one run, from one profile.
#[test]
fn every_format() {
    let program = Program::fixture("sites");
    let path = |name: &str| program.outside(name);
    let files: Vec<String> =
        ["a.pb", "a.folded", "a.svg", "a.txt"].iter().map(|name| path(name).display().to_string()).collect();
    let options: Vec<&str> = files.iter().flat_map(|file| ["-o", file.as_str()]).collect();
    program.traced_with(&options);
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();

    let folded = read("a.folded");
    let line = folded.lines().find(|line| line.contains(";middle;leaf;inlined ")).expect("the known stack");
    assert!(line.ends_with(" 3000"), "{line}");
    assert!(line.contains("main;recursive;recursive;recursive;recursive;recursive;recursive;middle"), "{line}");
    let svg = read("a.svg");
    assert!(svg.starts_with("<?xml") && svg.contains("</svg>") && svg.contains("recursive"));
    assert!(read("a.txt").contains("inlined"));
    crate::support::checks::pprof_opens(&path("a.pb"));
}

/// `--format` overrides the name; `%p` and `%n` become process id and program name.
#[test]
fn names_of_outputs() {
    let program = Program::fixture("peak");
    let pattern = program.folder().join("%n-%p.dat");
    let ended = program
        .start_heaptrace([
            "run",
            "--format",
            "json",
            "-o",
            pattern.to_str().unwrap(),
            "--",
            program.exe().to_str().unwrap(),
        ])
        .wait()
        .success();
    let files: Vec<_> = std::fs::read_dir(program.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let report = crate::support::report::Report::read(&program.folder().join(&files[0]), &ended);
    assert_eq!(files[0], format!("peak-{}.dat", report.number("/pid")));
}

/// Without `-o` there is one profile in the current folder, and the summary names it.
#[test]
fn default_output() {
    let program = Program::fixture("peak");
    let ended = program.start_heaptrace(["run", program.exe().to_str().unwrap()]).wait().success();
    let files: Vec<_> = std::fs::read_dir(program.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(files[0].starts_with("heaptrace.peak.") && files[0].ends_with(".pb.gz"), "{files:?}");
    assert!(ended.stderr.contains(&files[0]), "{}", ended.stderr);
    crate::support::checks::pprof_opens(&program.folder().join(&files[0]));
}

/// The summary has the totals and the largest sites on standard error; with `-q` there is none.
#[test]
fn summary_on_standard_error() {
    let program = Program::fixture("peak");
    let traced = program.traced();
    assert_eq!(traced.ended.text(), "done\n");
    for word in ["late", "high", "peak"] {
        assert!(traced.ended.stderr.contains(word), "no {word:?} in\n{}", traced.ended.stderr);
    }
    assert!(traced.ended.stderr.lines().count() < 60, "one screen\n{}", traced.ended.stderr);
    assert!(!traced.ended.stderr.contains('\x1b'), "no colours in a file");
    let quiet = program.traced_with(&["-q"]);
    assert_eq!(quiet.ended.stderr, "");
}

/// `--no-symbolize`: names are module and offset, and the offsets are those that the symbolized report tells.
#[test]
fn without_symbols() {
    let program = Program::fixture("sites");
    let named = program.traced().report;
    let raw = program.traced_with(&["--no-symbolize"]).report;
    let site = named.sites_at(&["inlined", "leaf", "middle"]).next().expect("the known stack");
    let offset = site["stack"][0]["offset"].as_str().unwrap().to_owned();
    let name = format!("sites+{offset}");
    assert!(
        raw.sites().iter().any(|site| site["stack"][0]["function"] == name.as_str()),
        "{name} in {:?}",
        raw.sites()
    );
    assert_eq!(raw.total("allocations"), named.total("allocations"));
}

/// `--max-depth` cuts stacks, and what is cut is counted.
#[test]
fn cut_stacks_are_counted() {
    let traced = Program::fixture("sites").traced_with(&["--max-depth", "4"]);
    assert!(traced.report.anomaly("truncated_stacks") >= 3);
    let site = traced.report.sites_at(&["inlined", "leaf", "middle", "recursive"]).next().expect("the inner frames");
    assert_eq!(site["quality"], "truncated");
}

/// A recursion deeper than the limit: the summary says which option helps, and the text report tells it in a few lines.
#[test]
fn deep_recursion() {
    let program = Program::fixture("recursion").args(["700"]);
    let text = program.outside("a.txt");
    let traced = program.traced_with(&["-o", text.to_str().unwrap()]);
    assert!(traced.report.anomaly("truncated_stacks") > 0);
    assert_eq!(traced.ended.stderr.matches("--max-depth 10000 keeps").count(), 1, "{}", traced.ended.stderr);
    let lines = std::fs::read_to_string(text).unwrap();
    assert!(lines.contains("  × 51") && lines.lines().count() < 600, "{lines}");
    let whole = program.traced_with(&["--max-depth", "10000"]);
    assert_eq!(whole.report.anomaly("truncated_stacks"), 0);
}

/// What the tool says of itself.
#[test]
fn help_and_version() {
    let program = Program::new("/bin/true");
    let ended = program.start_heaptrace(["--version"]).wait().success();
    assert_eq!(ended.text(), format!("heaptrace {}\n", env!("CARGO_PKG_VERSION")));
    for args in [&["--help"][..], &["run", "--help"], &["attach", "--help"], &["doctor", "--help"]] {
        let ended = program.start_heaptrace(args).wait().success();
        assert!(ended.text().contains("heaptrace"), "{args:?}");
    }
}

/// `doctor` finds that this machine, on which the tests run, allows tracing.
#[test]
fn doctor_finds_no_obstacle() {
    let ended = Program::new("/bin/true").start_heaptrace(["doctor"]).wait().success();
    assert!(ended.text().contains("ptrace") || ended.text().contains("trac"), "{}", ended.text());
}

/// In a folder that all may write to, another user's link under the name of an output leads nowhere; and the profile of
/// a process of another user is for the one who made it alone.
#[test]
fn shared_folders_and_other_users() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
    if !procfs::is_root() {
        return;
    }
    let program = Program::fixture("victim").args(["1"]);
    let shared = program.outside("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777)).unwrap();
    let (precious, name) = (program.outside("precious"), shared.join("heap.json"));
    std::fs::write(&precious, "precious").unwrap();
    symlink(&precious, &name).unwrap();
    lchown(&name, Some(65534), None).unwrap();
    let exe = program.exe().to_str().unwrap();
    let ended = program.start_heaptrace(["run", "-o", name.to_str().unwrap(), "--", exe]).wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("this link belongs to another user (uid 65534)"), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");

    let mine = program.outside("mine.json");
    let words = ["run", "-o", mine.to_str().unwrap(), "--", "setpriv", "--reuid=65534", "--clear-groups", "/bin/true"];
    program.start_heaptrace(words).wait().success();
    assert_eq!(std::fs::metadata(&mine).unwrap().mode() & 0o777, 0o600);
    let (store, rules) = (program.outside("store"), program.outside("rules"));
    let (store_name, rules_name) = (store.to_str().unwrap(), rules.to_str().unwrap());
    let words = ["check", "--save-binaries", store_name, "--gen-suppressions", rules_name, "--"];
    program.start_heaptrace(words.iter().chain(&["setpriv", "--reuid=65534", "--clear-groups", "/bin/true"])).wait();
    let saved = Command::new("find").args([store.join(".build-id").to_str().unwrap(), "-type", "f"]).output().unwrap();
    let saved = String::from_utf8(saved.stdout).unwrap();
    assert!(saved.lines().count() > 1, "{saved}");
    for path in saved.lines().map(Path::new).chain([rules.as_path()]) {
        assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o600, "{}", path.display());
    }
    program.start_heaptrace(["run", "-o", mine.to_str().unwrap(), "--", "/bin/true"]).wait().success();
    assert_eq!(std::fs::metadata(&mine).unwrap().mode() & 0o777, 0o644);
}

/// The same for a user without privileges: links of others are refused in the shared folder, even root's link is no way
/// to write what only root may, and the user's own links are followed.
#[test]
fn shared_folders_of_an_ordinary_user() {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    if !procfs::is_root() {
        return;
    }
    let place = std::env::temp_dir().join(format!("heaptrace-shared-{}", std::process::id()));
    let (own, shared) = (place.join("own"), place.join("shared"));
    for (folder, mode) in [(&place, 0o755), (&own, 0o755), (&shared, 0o1777)] {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::chown(&own, Some(65534), None).unwrap();
    let tracer = place.join("heaptrace");
    crate::support::copy_file(env!("CARGO_BIN_EXE_heaptrace"), &tracer).unwrap();
    let precious = place.join("precious");
    std::fs::write(&precious, "precious").unwrap();
    for (owner, target, status) in
        [(65533, own.join("theirs"), 125), (0, precious.clone(), 125), (65534, own.join("mine"), 0)]
    {
        let link = shared.join(format!("{owner}.json"));
        symlink(&target, &link).unwrap();
        lchown(&link, Some(owner), None).unwrap();
        let ended = Program::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", tracer.to_str().unwrap(), "run", "-q", "-o"])
            .args([link.to_str().unwrap(), "--", "/bin/true"])
            .plain();
        assert_eq!(ended.code(), status, "{owner}: {}", ended.stderr);
        assert_eq!(target == own.join("mine"), own.join("mine").exists(), "{owner}");
    }
    assert!(!own.join("theirs").exists());
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    std::fs::remove_dir_all(&place).unwrap();
}

/// Inlined functions to which gcc gives no linkage name are named as those of them are that are not inlined: with scope
/// and parameters. (Lambdas' numbers depend on the compiler's version.)
#[test]
fn inlined_functions_have_their_scopes() {
    let apart = fixtures::program_with("scopes", &["-O2", "-DHOW=__attribute__((noinline))"]);
    let symbols = Command::new("nm").arg("-C").arg(&apart).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let without_number = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let known: Vec<_> = symbols.lines().filter_map(|line| line.split(" [clone").next()).map(without_number).collect();
    let traced = Program::new(fixtures::program_with("scopes", &["-O2"])).traced();
    let mut names = std::collections::BTreeSet::new();
    for site in traced.report.sites() {
        let frames = site["stack"].as_array().unwrap().iter().filter(|frame| frame["inlined"] == true);
        names.extend(frames.map(|frame| frame["function"].as_str().unwrap().to_owned()));
    }
    assert_eq!(names.len(), 11, "{names:?}");
    let is_known = |name: &String| known.iter().any(|line| line.ends_with(&format!(" {}", without_number(name))));
    let unknown: Vec<_> = names.iter().filter(|name| !is_known(name)).collect();
    assert_eq!(unknown, [] as [&String; 0], "{symbols}");
}
