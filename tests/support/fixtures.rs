//! Builds the small programs of `tests/fixtures`, each once.
//!
//! A fixture is one source file, named by its path without the extension, which tells its language. Flags of its own
//! stand in its first lines as `// flags: …`. The result goes to a folder named by the hash of all that went in, the
//! compiler's version included, so that a second test run builds nothing and the file itself keeps the fixture's name.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{OsStr, OsString};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// One lock a file that is built, within this process; other processes are kept apart by rename.
static BUILDING: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// The folder of the fixtures' sources.
pub fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The path of a fixture's source, as the debug information names it.
pub fn source(name: &str) -> PathBuf {
    ["c", "cc", "rs"]
        .iter()
        .map(|extension| source_dir().join(format!("{name}.{extension}")))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no fixture {name} in {}", source_dir().display()))
}

/// Builds an executable with the source's own flags.
pub fn program(name: &str) -> PathBuf {
    build(name, base(name), &[])
}

/// Builds an executable with further flags (`-static`, …).
pub fn program_with(name: &str, flags: &[&str]) -> PathBuf {
    build(name, base(name), &flags.iter().map(OsString::from).collect::<Vec<_>>())
}

/// Builds an executable with musl instead of glibc.
pub fn musl_program(name: &str, flags: &[&str]) -> PathBuf {
    build_by("musl-gcc", name, name, &flags.iter().map(OsString::from).collect::<Vec<_>>())
}

/// Builds an executable of C++ with clang and libc++ in place of gcc and libstdc++.
pub fn libcxx_program(name: &str, flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/libcxx");
    let (headers, libraries) = (folder.join("include/c++/v1"), folder.join("lib"));
    assert!(headers.exists(), "there is no {}: ./test makes it (tests/libcxx)", headers.display());
    let mut all: Vec<OsString> = vec!["-nostdinc++".into(), "-isystem".into(), headers.into()];
    all.extend(["-nostdlib++".into(), "-L".into(), libraries.into()]);
    // static: nothing need be found to run it
    all.extend(["-l:libc++.a", "-l:libc++abi.a"].map(OsString::from));
    all.extend(flags.iter().map(OsString::from));
    build_by("clang++", name, base(name), &all)
}

/// The root folders of other versions of glibc.
pub fn other_glibcs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/libcs");
    let found = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = found.filter(|path| path.join("lib64/ld-linux-x86-64.so.2").exists()).collect();
    found.sort();
    assert!(!found.is_empty(), "there is none in {}: ./test makes them (tests/libcs)", folder.display());
    found
}

/// Builds an executable with the glibc of a root folder, which it uses also to run.
pub fn program_of_glibc(name: &str, root: &Path) -> PathBuf {
    let shown = root.display();
    let [own, of_development] =
        ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|part| format!("{shown}/{part}"));
    let flags = [
        format!("--sysroot={shown}"),
        format!("-B{of_development}/"),
        format!("-L{of_development}"),
        format!("-L{own}"),
        // part of the other library since 2.34
        "-l:libpthread.so.0".to_owned(),
        format!("-Wl,--dynamic-linker={shown}/lib64/ld-linux-x86-64.so.2"),
        format!("-Wl,-rpath,{own}"),
    ];
    build(name, base(name), &flags.map(OsString::from))
}

/// Builds a shared library `NAME.so` with further flags.
pub fn library_with(name: &str, flags: &[&str]) -> PathBuf {
    let file = format!("{}.so", base(name));
    let mut all: Vec<OsString> = vec!["-shared".into(), "-fPIC".into(), format!("-Wl,-soname,{file}").into()];
    all.extend(flags.iter().map(OsString::from));
    build(name, &file, &all)
}

/// The same with musl instead of glibc.
pub fn musl_library(name: &str) -> PathBuf {
    let file = format!("{}.so", base(name));
    build_by("musl-gcc", name, &file, &["-shared".into(), "-fPIC".into(), format!("-Wl,-soname,{file}").into()])
}

/// Builds a shared library `NAME.so`.
pub fn library(name: &str) -> PathBuf {
    library_with(name, &[])
}

/// Builds an executable that is linked with shared libraries built here and finds them by run path.
pub fn program_linked(name: &str, libraries: &[&Path]) -> PathBuf {
    let mut flags: Vec<OsString> = vec!["-Wl,--no-as-needed".into()];
    for library in libraries {
        flags.push(library.into());
        flags.push(format!("-Wl,-rpath,{}", library.parent().unwrap().display()).into());
    }
    build(name, base(name), &flags)
}

/// Marked lines of a source: `// SITE: name` gives the line on which it stands.
pub fn site_line(name: &str, site: &str) -> u64 {
    let text = std::fs::read_to_string(source(name)).unwrap();
    let wanted = format!("SITE: {site}");
    let found: Vec<_> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.trim_end().trim_end_matches("*/").trim_end().ends_with(&wanted))
        .map(|(index, _)| index as u64 + 1)
        .collect();
    assert_eq!(found.len(), 1, "marker {wanted} in {name}: lines {found:?}");
    found[0]
}

/// The last part of a fixture's name.
fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// The other fixtures that a fixture's `text` includes as a whole.
fn included_sources(source: &Path, text: &str) -> Vec<PathBuf> {
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.strip_suffix('"'));
    names.filter(|name| name.ends_with(".c")).map(|name| source.with_file_name(name)).collect()
}

fn build(name: &str, file: &str, extra: &[OsString]) -> PathBuf {
    build_by("cc", name, file, extra)
}

/// By this compiler; cc stands for that of the source's language.
fn build_by(c_compiler: &str, name: &str, file: &str, extra: &[OsString]) -> PathBuf {
    let source = source(name);
    let mut command = compiler(c_compiler, &source);
    let text = std::fs::read_to_string(&source).unwrap();
    for line in text.lines().take(12) {
        if let Some(flags) = line.trim().strip_prefix("// flags:") {
            command.args(flags.split_whitespace());
        }
    }
    // libraries must follow the source that needs them
    command.arg(&source).args(extra);

    let mut hasher = DefaultHasher::new();
    format!("{command:?}").hash(&mut hasher);
    version(command.get_program()).hash(&mut hasher);
    text.hash(&mut hasher);
    for other in headers().into_iter().chain(included_sources(&source, &text)) {
        std::fs::read(other).unwrap().hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixtures").join(format!("{:016x}", hasher.finish()));
    let path = folder.join(file);

    let lock = {
        let mut building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        building.entry(path.clone()).or_default().clone()
    };
    let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(built) = std::fs::File::open(&path) {
        let modified = |file: &std::fs::File| file.metadata().and_then(|about| about.modified()).unwrap();
        let source = modified(&std::fs::File::open(&source).unwrap());
        // A checkout may have written the same text once more: it is what the program was built from all the same.
        if modified(&built) < source {
            built.set_modified(source).unwrap();
        }
        return path;
    }
    std::fs::create_dir_all(&folder).unwrap();
    let temporary = folder.join(format!(".{file}.{}", std::process::id()));
    command.arg("-o").arg(&temporary);
    let output = command.output().unwrap_or_else(|error| {
        panic!("cannot run {command:?} ({error}): install the Debian packages gcc, g++ and musl-tools, and a Rust tool chain")
    });
    assert!(
        output.status.success(),
        "building the fixture {name} failed\n{command:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&temporary, &path).unwrap();
    path
}

/// What a compiler says of its version; empty if it is not there, which its use will tell.
fn version(compiler: &OsStr) -> Vec<u8> {
    static KNOWN: Mutex<BTreeMap<OsString, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let ask = || Command::new(compiler).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    known.entry(compiler.to_owned()).or_insert_with(ask).clone()
}

fn compiler(c_compiler: &str, source: &Path) -> Command {
    match source.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => {
            let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
            command.args(["--edition=2024", "-g", "-Copt-level=1", "-Dwarnings"]);
            command
        }
        extension => {
            let is_other = extension == Some("cc") && c_compiler == "cc";
            let mut command = Command::new(if is_other { "c++" } else { c_compiler });
            command.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"]);
            // the compiler knows malloc, and drops pairs of which nobody looks at the result
            command.args(["-fno-builtin", "-fno-optimize-sibling-calls"]);
            command
        }
    }
}

fn headers() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = [source_dir(), source_dir().join("leaks")]
        .into_iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "h"))
        .collect();
    found.sort();
    found
}
