//! Small judgements that several topics need.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;

/// An exit status as a shell and `heaptrace run` tell it: 128+N for signal N.
pub fn shell_status(status: &ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("exited or killed")
}

/// The pprof tool.
pub fn pprof_tool() -> &'static Path {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let output = go().args(["tool", "-n", "pprof"]).output().expect("install the Debian package golang-go");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    })
}

/// Google's own pprof, which `go tool pprof` is a part of: built from the copy of its sources in the Go tool chain.
/// Only this one reads build ids of files (cmd/pprof, `BuildID`: "No support for build ID").
pub fn google_pprof() -> &'static Path {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let run = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let workspace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("google-pprof");
        let main = workspace.join("src/main");
        std::fs::create_dir_all(&main).unwrap();
        let vendored = Path::new(run(go().args(["env", "GOROOT"])).trim()).join("src/cmd/vendor/github.com");
        run(Command::new("cp").arg("-rL").arg(vendored).arg(workspace.join("src")));
        let source = "package main\nimport (\n\"os\"\n\"github.com/google/pprof/driver\"\n)\nfunc main() {\n\
            if err := driver.PProf(&driver.Options{}); err != nil {\nos.Stderr.WriteString(err.Error())\nos.Exit(2)\n}\n}\n";
        std::fs::write(main.join("main.go"), source).unwrap();
        let tool = workspace.join("pprof");
        let mut build = go();
        build.env("GO111MODULE", "off").env("GOPATH", &workspace).env_remove("GOFLAGS");
        run(build.arg("build").arg("-o").arg(&tool).arg("main"));
        tool
    })
}

/// A `go` command without network and with its folders in the build directory.
fn go() -> Command {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new("go");
    command.env("HOME", &folder).env("GOCACHE", &folder).env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
    command
}

/// Runs pprof and returns its standard output; fails if it does.
pub fn pprof(args: &[&str], profiles: &[&Path]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let mut command = Command::new(pprof_tool());
    command.env("HOME", &folder).env("PPROF_TMPDIR", &folder).args(args).args(profiles);
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "pprof {args:?} {profiles:?}: {}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Fails unless pprof opens the profile.
pub fn pprof_opens(profile: &Path) {
    pprof(&["-top", "-nodecount=1"], &[profile]);
}

/// Allocations, frees and bytes of Memcheck's line
/// `total heap usage: 1,234 allocs, 1,200 frees, 5,678 bytes allocated`.
pub fn memcheck_totals(stderr: &str) -> [u64; 3] {
    let line = stderr
        .lines()
        .find(|line| line.contains("total heap usage:"))
        .unwrap_or_else(|| panic!("Memcheck printed no totals; is valgrind installed?\n{stderr}"));
    let text = line.split("usage:").nth(1).unwrap();
    let mut numbers = text.split(", ").map(|part| {
        let digits: String = part.chars().take_while(|c| !c.is_alphabetic()).filter(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("not a number in {line:?}"))
    });
    [numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap()]
}
