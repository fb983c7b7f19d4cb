//! The Debian package: what [package.metadata.deb] of Cargo.toml says is packed by Debian's own tools, with the program
//! as the tests have it, and installed into a root folder that has nothing but the packages that it depends on.
//! (`packaging/deb` has cargo-deb do the same with the program as it is built for release.)

use crate::support::tempdir::TempDir;
use crate::support::{container, fixtures};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEAPTRACE: &str = env!("CARGO_BIN_EXE_heaptrace");
const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

fn out_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What Cargo.toml says.
fn package() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap();
    let words = ["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"];
    let text = out_of(Command::new(cargo).args(words).arg(Path::new(REPOSITORY).join("Cargo.toml")));
    let mut metadata: Value = serde_json::from_str(&text).unwrap();
    // beside the crates of the workspace
    let mut packages = metadata["packages"].as_array_mut().unwrap().iter_mut();
    packages.find(|package| package["name"] == "heaptrace").unwrap().take()
}

/// The files of an asset, `generated` standing for target/packaging and `program` for the program.
fn sources(pattern: &str, program: &Path, generated: &Path) -> Vec<PathBuf> {
    let pattern = match pattern.strip_prefix("target/packaging/") {
        _ if pattern == "target/release/heaptrace" => return vec![program.to_owned()],
        Some(rest) => generated.join(rest),
        None => Path::new(REPOSITORY).join(pattern),
    };
    // the shell knows the patterns of files
    let found = out_of(Command::new("sh").args(["-c", "ls -d $0"]).arg(&pattern));
    found.lines().map(PathBuf::from).collect()
}

/// What the program is linked with: package and least version, as Debian's own tool says it; without libgcc, which
/// cargo-deb leaves out of that.
fn depends(program: &Path, folder: &Path) -> String {
    fs::create_dir(folder.join("debian")).unwrap();
    fs::write(folder.join("debian/control"), "Source: heaptrace\n").unwrap();
    let found = out_of(Command::new("dpkg-shlibdeps").args(["-O", "--warnings=0"]).arg(program).current_dir(folder));
    let found = found.trim().strip_prefix("shlibs:Depends=").unwrap_or_else(|| panic!("{found}"));
    found.split(", ").filter(|one| !one.starts_with("libgcc")).collect::<Vec<_>>().join(", ")
}

/// Packs it; the package and what it depends on.
fn packed(folder: &Path) -> (PathBuf, String) {
    let package = package();
    let deb = &package["metadata"]["deb"];
    let (program, generated, tree) = (folder.join("heaptrace"), folder.join("packaging"), folder.join("tree"));
    out_of(Command::new("strip").arg("-o").arg(&program).arg(HEAPTRACE));
    fs::create_dir(&generated).unwrap();
    out_of(Command::new(Path::new(REPOSITORY).join("packaging/generate")).arg(HEAPTRACE).arg(&generated));
    for asset in deb["assets"].as_array().unwrap() {
        let [from, to, mode] = [0, 1, 2].map(|at| asset[at].as_str().unwrap());
        for source in sources(from, &program, &generated) {
            let to = if to.ends_with('/') { tree.join(to).join(source.file_name().unwrap()) } else { tree.join(to) };
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            crate::support::copy_file(&source, &to).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
            fs::set_permissions(&to, fs::Permissions::from_mode(u32::from_str_radix(mode, 8).unwrap())).unwrap();
        }
    }
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned();
    let depends = text(&deb["depends"]).replace("$auto", &depends(&program, folder));
    let control = format!(
        "Package: heaptrace\nVersion: {}\nArchitecture: amd64\nMaintainer: {}\nSection: {}\nPriority: {}\nDepends: {depends}\nRecommends: {}\nSuggests: {}\nDescription: {}\n",
        text(&package["version"]),
        text(&deb["maintainer"]),
        text(&deb["section"]),
        text(&deb["priority"]),
        text(&deb["recommends"]),
        text(&deb["suggests"]),
        text(&package["description"]),
    );
    fs::create_dir(tree.join("DEBIAN")).unwrap();
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let file = folder.join("heaptrace.deb");
    out_of(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build"]).args([&tree, &file]));
    (file, depends)
}

/// A root folder with the files of these packages, and a book of dpkg's in which they are installed.
fn clean_root(root: &Path, packages: &[&str]) {
    for folder in [
        "usr/lib",
        "usr/lib64",
        "usr/bin",
        "usr/sbin",
        "proc",
        "dev",
        "tmp",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
    ] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for link in ["lib", "lib64", "bin", "sbin"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    // of another architecture the machine may have packages of the same names
    let packages: Vec<String> = packages.iter().map(|package| format!("{package}:amd64")).collect();
    for file in out_of(Command::new("dpkg-query").arg("--listfiles").args(&packages)).lines().map(Path::new) {
        // links stay links, to what comes from the same packages
        let is_file = fs::symlink_metadata(file).is_ok_and(|found| !found.is_dir());
        if is_file && !file.starts_with("/usr/share") {
            let to = root.join(file.strip_prefix("/").unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            out_of(Command::new("cp").arg("-dp").arg(file).arg(&to));
        }
    }
    fs::write(root.join("var/lib/dpkg/status"), out_of(Command::new("dpkg-query").arg("--status").args(&packages)))
        .unwrap();
}

/// Installs the package, then runs it in the root folder, to which nothing else belongs.
const IN_ROOT: &str = r#"
    dpkg --root="$1" --install "$2" >&2
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    chroot "$1" /usr/bin/heaptrace --version
    chroot "$1" /usr/bin/heaptrace run -q -o /heap.json -- /app >&2
    chroot "$1" /usr/bin/heaptrace run -q --engine jump -o /jump.json -- /app >&2
"#;

#[test]
fn the_package_installs_and_runs_in_a_clean_root_folder() {
    let folder = TempDir::new();
    let folder = folder.path();
    let (file, depends) = packed(folder);
    let packages: Vec<&str> = depends.split(", ").map(|one| one.split(' ').next().unwrap()).collect();
    assert!(packages.contains(&"libc6"), "{depends}");
    let root = folder.join("root");
    clean_root(&root, &packages);
    crate::support::copy_file(fixtures::program("peak"), root.join("app")).unwrap();
    let mut apart = Command::new("unshare");
    apart.args(container::UNSHARE);
    let said = out_of(apart.args(["sh", "-ec", IN_ROOT, "sh"]).args([&root, &file]));
    assert_eq!(said, out_of(Command::new(HEAPTRACE).arg("--version")));
    for name in ["heap.json", "jump.json"] {
        let report: Value = serde_json::from_slice(&fs::read(root.join(name)).unwrap()).unwrap();
        let innermost =
            |site: &Value| report["frames"][site["stack"][0].as_u64().unwrap() as usize]["function"].clone();
        let high = report["sites"].as_array().unwrap().iter().find(|site| innermost(site) == "high");
        assert_eq!(high.unwrap()["at_peak"]["bytes"], 50_000, "{name}");
    }

    // a page for man for each command, and completions where Debian's shells look for them
    let help = out_of(Command::new(HEAPTRACE).arg("--help"));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"run") && commands.contains(&"doctor"), "{help}");
    let pages = commands.iter().map(|command| format!("man/man1/heaptrace-{command}.1"));
    let others = [
        "man/man1/heaptrace.1",
        "bash-completion/completions/heaptrace",
        "zsh/vendor-completions/_heaptrace",
        "fish/vendor_completions.d/heaptrace.fish",
    ];
    for file in pages.chain(others.map(str::to_owned)) {
        let found =
            fs::read_to_string(root.join("usr/share").join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(found.contains("heaptrace"), "{file}: {found}");
    }
    assert_notices(&fs::read_to_string(root.join("usr/share/doc/heaptrace/THIRD-PARTY-NOTICES")).unwrap());
    // the pages lead to what is there
    let docs = root.join("usr/share/doc/heaptrace");
    let mut links = 0;
    for page in pages_below(&docs) {
        let text = fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            assert!(page.parent().unwrap().join(target).exists(), "{}: {target}", page.display());
            links += 1;
        }
    }
    assert!(links > 40, "{links}");
}

/// Each crate of others that `cargo tree` names is there with its licence and with a text that its folder has, or it is
/// said that it has none.
fn assert_notices(notices: &str) {
    let cargo = std::env::var_os("CARGO").unwrap();
    let words = ["tree", "--offline", "--locked", "--edges", "normal", "--target", "x86_64-unknown-linux-gnu"];
    let format = ["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"];
    let tree = out_of(Command::new(cargo).args(words).args(format).current_dir(REPOSITORY));
    let (list, texts) = notices.split_once(&"=".repeat(80)).unwrap();
    let entries: Vec<&str> = list.split("\n\n").skip(1).collect();
    // those with a folder here are our own
    let mut crates: Vec<&str> = tree.lines().filter(|line| !line.contains(REPOSITORY)).collect();
    crates.sort_unstable();
    crates.dedup();
    assert!(crates.len() > 60, "{crates:?}");
    let mut with_text = 0;
    for one in &crates {
        let (package, licence) = one.split_once('|').unwrap();
        let name = package.trim_end_matches(" (proc-macro)").replacen(" v", " ", 1);
        let head = format!("{name}: {licence}");
        let entry =
            entries.iter().find(|entry| entry.lines().next() == Some(&head)).unwrap_or_else(|| panic!("{head}"));
        let numbers: Vec<&str> = entry.lines().filter_map(|line| line.rsplit_once(": text ")).map(|(_, n)| n).collect();
        assert_eq!(numbers.is_empty(), entry.contains("it comes without a text"), "{entry}");
        with_text += usize::from(!numbers.is_empty());
        for number in numbers {
            let of = texts.split("\nText ").find_map(|text| text.strip_prefix(&format!("{number}, of ")));
            assert!(of.is_some_and(|of| of.lines().next().unwrap().split(", ").any(|one| one == name)), "{entry}");
        }
    }
    // most have one, and equal ones stand once
    assert!(with_text * 10 > crates.len() * 8, "{with_text} of {}", crates.len());
    assert!(texts.contains("Permission is hereby granted, free of charge"));
}

/// All pages of Markdown in a folder and those below it.
fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let found = out_of(Command::new("find").arg(folder).args(["-name", "*.md"]));
    found.lines().map(PathBuf::from).collect()
}
