//! A program to run: plainly, under heaptrace, under the in-process counter or under another oracle, always in the
//! same environment.

use super::counter::{self, Counts};
use super::ledger::Ledger;
use super::report::Report;
use super::running::{Asked, Ended, Running};
use super::tempdir::TempDir;
use super::{checks, fixtures, procfs};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// What to run, with which arguments, input and environment.
#[derive(Clone, Debug)]
pub struct Program {
    exe: PathBuf,
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    input: Vec<u8>,
    folder: Arc<TempDir>,
    out: Arc<TempDir>,
    stays_on_trap: Vec<&'static str>,
}

/// A finished run under heaptrace.
#[derive(Debug)]
pub struct Traced {
    /// How heaptrace ended (it passes on the program's status).
    pub ended: Ended,
    /// report.json, validated by its schema.
    pub report: Report,
    /// The pprof profile, which `go tool pprof` has opened.
    pub profile: PathBuf,
    /// Keeps the files.
    _out: Arc<TempDir>,
}

/// A finished run under `heaptrace check`.
#[derive(Debug)]
pub struct Checked {
    /// How heaptrace ended.
    pub ended: Ended,
    /// report.json, validated by its schema.
    pub report: Report,
}

impl Program {
    /// A fixture by name.
    pub fn fixture(name: &str) -> Self {
        Self::new(fixtures::program(name))
    }

    /// A program by path, or by name in the usual folders.
    pub fn new(exe: impl AsRef<Path>) -> Self {
        let exe = exe.as_ref();
        let path = if exe.is_absolute() { exe.to_owned() } else { installed(exe) };
        let folder = TempDir::new();
        let out = Arc::new(folder.beside("-out"));
        Self {
            exe: path,
            args: Vec::new(),
            environment: Vec::new(),
            input: Vec::new(),
            folder: Arc::new(folder),
            out,
            stays_on_trap: Vec::new(),
        }
    }

    /// Appends arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Keeps the folder of another program, from which this one was copied.
    pub fn keeping(mut self, other: Self) -> Self {
        self.folder = other.folder;
        self
    }

    /// What it reads from standard input.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// Knows why the jump engine can't see all of it: words of the warning that tells so. Where that engine is asked
    /// for, a report that tells of any other reason fails, and one of many events that the trap engine has seen without
    /// a reason. There may be several.
    pub fn stays_on_trap(mut self, why: &'static str) -> Self {
        self.stays_on_trap.push(why);
        self
    }

    /// The folder in which it runs: empty but for what the test puts there.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The executable.
    pub fn exe(&self) -> &Path {
        &self.exe
    }

    /// What the fixture of the last run wrote about itself.
    pub fn ledger(&self) -> Ledger {
        Ledger::read(&self.outside("ledger"))
    }

    /// Starts it without heaptrace and leaves its standard input open.
    pub fn start(&self) -> Running {
        let mut command = Command::new(&self.exe);
        command.args(&self.args);
        self.finish(command, None)
    }

    /// Runs it without heaptrace.
    pub fn plain(&self) -> Ended {
        self.feed_and_wait(self.start())
    }

    /// Starts it under `heaptrace run` and leaves its standard input open.
    pub fn start_traced(&self, options: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        command.arg("run").arg("-o").arg(self.report_path()).arg("-o").arg(self.profile_path());
        command.args(options).arg("--").arg(&self.exe).args(&self.args);
        self.finish(command, None)
    }

    /// Starts `heaptrace attach` on a process.
    pub fn start_attached(&self, options: &[&str], pid: i32) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        command.arg("attach").arg("-o").arg(self.report_path()).arg("-o").arg(self.profile_path());
        command.args(options).arg(pid.to_string());
        self.finish(command, None)
    }

    /// The same with heaptrace started by another tool.
    pub fn start_attached_under(&self, tool: &[&str], pid: i32) -> Running {
        let mut command = Command::new(tool[0]);
        command.args(&tool[1..]).arg(env!("CARGO_BIN_EXE_heaptrace"));
        command.arg("attach").arg("-o").arg(self.report_path()).arg("-o").arg(self.profile_path()).arg(pid.to_string());
        self.finish(command, None)
    }

    /// Starts heaptrace with arguments of the test's own.
    pub fn start_heaptrace<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        command.args(args);
        self.finish(command, None)
    }

    /// Runs it under `heaptrace run` and reads what was written.
    pub fn traced(&self) -> Traced {
        self.traced_with(&[])
    }

    /// The same with options for heaptrace.
    pub fn traced_with(&self, options: &[&str]) -> Traced {
        let ended = self.feed_and_wait(self.start_traced(options));
        self.collect(ended)
    }

    /// Reads report and profile of a run that has ended.
    pub fn collect(&self, ended: Ended) -> Traced {
        let report = Report::read(&self.report_path(), &ended);
        let profile = self.profile_path();
        checks::pprof_opens(&profile);
        if report.0["exit"].is_null() {
            procfs::assert_clean_if_alive(i32::try_from(report.number("/pid")).unwrap());
        }
        Traced { ended, report, profile, _out: self.out.clone() }
    }

    /// Runs it with the counter preloaded; one entry per process that counted.
    pub fn counted(&self) -> (Ended, Counts) {
        let counts = self.outside("counts");
        let _ = std::fs::remove_dir_all(&counts);
        std::fs::create_dir_all(&counts).unwrap();
        let mut command = Command::new(&self.exe);
        command.args(&self.args);
        let running = self.finish(command, Some("LD_PRELOAD"));
        let pid = running.pid();
        let ended = self.feed_and_wait(running);
        (ended, Counts::read(&counts, pid))
    }

    /// Runs it under Memcheck and returns its totals: allocations, frees, bytes allocated.
    pub fn memcheck(&self) -> (Ended, [u64; 3]) {
        let mut command = Command::new("valgrind");
        command.args(["--run-libc-freeres=no", "--run-cxx-freeres=no", "--leak-check=no", "--undef-value-errors=no"]);
        let ended = self.run_under(command);
        let totals = checks::memcheck_totals(&ended.stderr);
        (ended, totals)
    }

    /// Where heaptrace writes report.json.
    pub fn report_path(&self) -> PathBuf {
        self.outside("report.json")
    }

    /// Where heaptrace writes the profile.
    pub fn profile_path(&self) -> PathBuf {
        self.outside("heap.pb.gz")
    }

    /// A file beside the program's folder, which the program itself does not see in a listing of it.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.out.path().join(name)
    }

    /// Starts it under `heaptrace check` and leaves its standard input open.
    pub fn start_checked(&self, options: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptrace"));
        command.arg("check").arg("-o").arg(self.report_path());
        command.args(options).arg("--").arg(&self.exe).args(&self.args);
        self.finish(command, None)
    }

    /// Runs it under `heaptrace check` and reads the report.
    pub fn checked(&self, options: &[&str]) -> Checked {
        let ended = self.feed_and_wait(self.start_checked(options));
        self.collect_checked(ended)
    }

    /// Reads the report of a check that has ended.
    pub fn collect_checked(&self, ended: Ended) -> Checked {
        let report = Report::read(&self.report_path(), &ended);
        Checked { ended, report }
    }

    /// Starts it under another tool: the tool's own command line, to which the program's is added.
    pub fn start_under(&self, mut tool: Command) -> Running {
        tool.arg(&self.exe).args(&self.args);
        self.finish(tool, None)
    }

    /// The same, and waits for the end.
    pub fn run_under(&self, tool: Command) -> Ended {
        self.feed_and_wait(self.start_under(tool))
    }

    fn feed_and_wait(&self, mut running: Running) -> Ended {
        running.feed(&self.input);
        running.wait()
    }

    /// Gives every way to run the same number of variables of the same lengths: what some programs allocate depends
    /// on the size of the environment.
    fn finish(&self, mut command: Command, preload: Option<&str>) -> Running {
        command.env_clear().current_dir(self.folder.path());
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", self.folder.path()).env("LANG", "C").env("TZ", "UTC").env("PWD", self.folder.path());
        command.env("LEDGER", self.outside("ledger"));
        command.env("COUNTER_OUT", self.outside("counts"));
        // heaptrace then records each process's stream, and reads it again at the end: it must give the same heap
        command.env("HEAPTRACE_TEST_REPLAY", "1");
        // which engine `auto` is, in builds for tests
        command.env("HEAPTRACE_ENGINE", engine());
        command.env(preload.unwrap_or("XX_PRELOAD"), counter::library());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let asked = Asked::by(&command, &self.stays_on_trap);
        Running::start(command, self.outside("stderr"), [self.folder.clone(), self.out.clone()], asked)
    }
}

/// The engine that these tests are run with: `trap`, or `jump` where HEAPTRACE_ENGINE says so.
pub fn engine() -> &'static str {
    if std::env::var_os("HEAPTRACE_ENGINE").is_some_and(|engine| engine == "jump") { "jump" } else { "trap" }
}

/// The path of an installed program. Fails with what to install.
pub fn installed(name: &Path) -> PathBuf {
    ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{} is not installed: ./test installs the packages of the tests", name.display()))
}
