//! Services: each process of a name is profiled as it comes, and the systemd unit in docs/ does it.

use super::attach::{assert_victim_well, start_victim};
use crate::support::procfs;
use crate::support::program::Program;
use crate::support::report::Report;
use crate::support::running::{Ended, Running};
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A program with a name that no other test has, and a heaptrace that waits for it.
struct Service {
    name: String,
    program: Program,
    tracer: Program,
}

impl Service {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let fixture = Program::fixture("victim");
        let copy = fixture.folder().join(&name);
        crate::support::copy_file(fixture.exe(), &copy).unwrap();
        // The copy must outlive this function; so must its folder.
        let program = Program::new(&copy).args(["2"]).keeping(fixture);
        Self { name, program, tracer: Program::new("/bin/true") }
    }

    /// The same, run by another user if we are root.
    fn of_nobody(name: &str) -> Self {
        let service = Self::new(name);
        if !procfs::is_root() {
            return service;
        }
        let copy = service.program.exe().to_owned();
        for folder in copy.ancestors().skip(1).take_while(|folder| folder.starts_with(std::env::temp_dir())) {
            let _ = std::fs::set_permissions(folder, PermissionsExt::from_mode(0o1777));
        }
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups", copy.to_str().unwrap(), "2"];
        Self { program: Program::new("setpriv").args(words).keeping(service.program), ..service }
    }

    /// A further process of it, which works already.
    fn start(&self) -> (Running, i32) {
        start_victim(&self.program)
    }

    fn pattern(&self) -> PathBuf {
        self.tracer.outside("%n.%p.%i.json")
    }

    /// Starts `heaptrace attach --by-name`, and waits until it waits.
    fn attach(&self, options: &[&str]) -> Running {
        let pattern = self.pattern();
        let mut words = vec!["attach", "--by-name", &self.name, "-o", pattern.to_str().unwrap()];
        words.extend(options);
        let running = self.tracer.start_heaptrace(words);
        self.wait_until_said("waiting for");
        running
    }

    /// The same with `--wait`, in a network namespace of heaptrace's own: the kernel does not tell of new processes
    /// there.
    fn attach_unheard(&self) -> Running {
        let pattern = self.pattern();
        let own = ["unshare", "--net", env!("CARGO_BIN_EXE_heaptrace")];
        // Without root the kernel would not tell anyway.
        let words = if procfs::is_root() { &own[..] } else { &own[2..] };
        let attach = ["attach", "-v", "--by-name", &self.name, "--wait", "-o", pattern.to_str().unwrap()];
        let heaptrace = Program::new(words[0]).args(words[1..].iter().chain(&attach));
        let running = heaptrace.start();
        let stderr = heaptrace.outside("stderr");
        let waits = |text: String| text.contains("waiting for") && text.contains("does not report new processes");
        procfs::wait_until("it waits", || std::fs::read_to_string(&stderr).is_ok_and(waits));
        running
    }

    fn wait_until_said(&self, words: &str) {
        let stderr = self.tracer.outside("stderr");
        procfs::wait_until(words, || std::fs::read_to_string(&stderr).is_ok_and(|text| text.contains(words)));
    }

    fn report(&self, pid: i32, number: u32, ended: &Ended) -> Report {
        let name = format!("{}.{pid}.{number:06}.json", self.name);
        Report::read(&self.tracer.outside(&name), ended)
    }

    /// How many reports there are.
    fn reports(&self) -> usize {
        let files = std::fs::read_dir(self.pattern().parent().unwrap()).unwrap();
        files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "json")).count()
    }
}

/// Lets an attached process work for a while, and end by itself.
fn work_and_end(mut victim: Running, pid: i32) {
    // a breakpoint in its own code is where a call returns to
    let own = |path: &Path| {
        path.file_name().is_some_and(|name| {
            procfs::status_field(pid, "Name").is_some_and(|comm| name.to_string_lossy().starts_with(&comm))
        })
    };
    procfs::wait_until("a call was seen", || procfs::text_differences(pid).iter().any(|(path, _)| own(path)));
    // all probes are there then
    procfs::wait_until_answered(pid);
    victim.send("work");
    assert_eq!(victim.line(), "alive");
    victim.feed(b"");
    assert_eq!(victim.line(), "ok");
    victim.wait().success();
}

fn assert_profiled(report: &Report, pid: i32) {
    assert_eq!(report.number("/pid"), u64::try_from(pid).unwrap());
    assert_eq!(report.0["exit"]["code"], 0);
    assert!(report.site_sum(&["victim_allocate", "work"], "/allocated/objects") > 50);
    report.assert_no_anomaly();
}

/// `--wait` finds a process that starts later, profiles it to its end, and is done.
#[test]
fn wait_for_a_process_that_starts_later() {
    let service = Service::new("later");
    let tracer = service.attach(&["--wait"]);
    let (victim, pid) = service.start();
    work_and_end(victim, pid);
    let ended = tracer.wait().success();
    assert_profiled(&service.report(pid, 1, &ended), pid);
}

/// With `--again` each process has a series of its own, numbered from 1 on.
#[test]
fn again_writes_a_series_for_each_process() {
    let service = Service::new("parts");
    let (first, first_pid) = service.start();
    let (second, second_pid) = service.start();
    let tracer = service.attach(&["--again", "--profile-every", "1h"]);
    work_and_end(first, first_pid);
    work_and_end(second, second_pid);
    procfs::wait_until("two reports are written", || service.reports() == 2);
    tracer.signal(Signal::SIGTERM);
    let ended = tracer.wait().success();
    for pid in [first_pid, second_pid] {
        assert_profiled(&service.report(pid, 1, &ended), pid);
    }
}

/// `--again` takes those that run already, oldest first, and each that comes; every one has its own file. SIGTERM ends
/// it.
#[test]
fn again_profiles_each_process_of_a_service() {
    let service = Service::new("again");
    let (first, first_pid) = service.start();
    let (second, second_pid) = service.start();
    let tracer = service.attach(&["--again"]);
    work_and_end(first, first_pid);
    work_and_end(second, second_pid);
    let (third, third_pid) = service.start();
    work_and_end(third, third_pid);
    procfs::wait_until("three reports are written", || service.reports() == 3);
    tracer.signal(Signal::SIGTERM);
    let ended = tracer.wait().success();
    for (number, pid) in (1..).zip([first_pid, second_pid, third_pid]) {
        let report = service.report(pid, number, &ended);
        assert_profiled(&report, pid);
        assert_eq!(report.number("/part"), 1, "each is a session of its own, and whole");
    }
}

/// With `--duration` each process is traced once, for that time, and then lives on as it was.
#[test]
fn again_takes_no_process_twice() {
    let service = Service::new("once");
    let (first, first_pid) = service.start();
    let tracer = service.attach(&["--again", "--duration", "100ms"]);
    procfs::wait_until("the first report is written", || service.reports() == 1);
    procfs::wait_until_let_go(first_pid);
    let (second, second_pid) = service.start();
    procfs::wait_until("the second report is written", || service.reports() == 2);
    tracer.signal(Signal::SIGINT);
    let ended = tracer.wait().success();
    for (number, pid) in [(1, first_pid), (2, second_pid)] {
        assert!(service.report(pid, number, &ended).0["exit"].is_null());
    }
    assert_victim_well(first, first_pid);
    assert_victim_well(second, second_pid);
    assert_eq!(service.reports(), 2);
}

/// A signal while a process is traced ends that and the waiting for others; the profile is written.
#[test]
fn a_signal_ends_tracing_and_waiting() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let service = Service::new("dismissed");
        let (victim, pid) = service.start();
        let tracer = service.attach(&["--wait", "--again"]);
        procfs::wait_until_probed(pid);
        tracer.signal(signal);
        let ended = tracer.wait().success();
        assert!(service.report(pid, 1, &ended).0["exit"].is_null());
        assert_victim_well(victim, pid);
    }
}

/// A signal while nothing is traced yet is no failure.
#[test]
fn a_signal_ends_waiting() {
    for option in ["--wait", "--again"] {
        let service = Service::new("never");
        let tracer = service.attach(&[option]);
        tracer.signal(Signal::SIGINT);
        let ended = tracer.wait().success();
        assert_eq!(service.reports(), 0, "{}", ended.stderr);
    }
}

/// Where the kernel does not tell of new processes, in a network namespace of heaptrace's own, they are found too.
#[test]
fn new_processes_are_found_without_the_kernels_help() {
    let service = Service::new("unheard");
    let running = service.attach_unheard();
    let (victim, pid) = service.start();
    work_and_end(victim, pid);
    let ended = running.wait().success();
    assert_profiled(&service.report(pid, 1, &ended), pid);
}

/// A process that another heaptrace traces is waited for until that lets it go.
#[test]
fn a_traced_process_is_taken_when_it_is_let_go() {
    for own_network in [false, true] {
        let service = Service::new(if own_network { "passed-on-unheard" } else { "passed-on" });
        let (victim, pid) = service.start();
        let first = Program::new("/bin/true");
        let before = first.start_attached(&[], pid);
        procfs::wait_until_answered(pid);
        let tracer = if own_network { service.attach_unheard() } else { service.attach(&["--wait"]) };
        procfs::order(pid, "detach");
        before.wait().success();
        work_and_end(victim, pid);
        let ended = tracer.wait().success();
        assert_profiled(&service.report(pid, 1, &ended), pid);
    }
}

/// A process that has ended before it could be attached to is passed over: there may be a next one. One in a hundred
/// lives long enough.
#[test]
fn processes_that_end_at_once_are_passed_over() {
    for _ in 0..crate::suite::rounds(3) {
        let service = Service::new("short");
        let copy = service.program.folder().join(&service.name);
        crate::support::copy_file("/bin/sleep", &copy).unwrap();
        let (short, stop) = (copy.to_str().unwrap(), service.tracer.outside("stop"));
        std::fs::write(&stop, "").unwrap();
        let script = "n=0; until [ -s $1 ]; do n=$(((n + 1) % 100)); $0 $((n ? 0 : 2)); done";
        let many = Program::new("sh").args(["-c", script, short, stop.to_str().unwrap()]).start();
        let tracer = service.attach(&["--wait"]);
        let ended = tracer.wait().success();
        std::fs::write(&stop, "stop").unwrap();
        many.wait().success();
        assert_eq!(service.reports(), 1, "{}", ended.stderr);
    }
}

/// One file for all of them would hold the last one only.
#[test]
fn again_wants_a_file_for_each() {
    for name in ["heap.svg", "%n.svg"] {
        let ended =
            Program::new("/bin/true").start_heaptrace(["attach", "--by-name", "x", "--again", "-o", name]).wait();
        assert_eq!(ended.code(), 125);
        assert!(ended.stderr.contains(name) && ended.stderr.contains("%p"), "{}", ended.stderr);
    }
    let ended = Program::new("/bin/true").start_heaptrace(["attach", "--wait", "1"]).wait();
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.contains("--by-name"), "{}", ended.stderr);
}

/// The lines `KEY=VALUE` of the unit in docs/.
fn unit() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/heaptrace@.service");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The command of the systemd unit, with its specifiers filled in and no more rights than it asks for, profiles each
/// instance of another user's program into its state directory and stops at SIGTERM. (systemd itself can't run in a
/// test.)
#[test]
fn the_systemd_unit_profiles_a_service() {
    let unit = unit();
    let value = |key: &str| &unit.iter().find(|(name, _)| name == key).unwrap_or_else(|| panic!("no {key}")).1;
    let service = Service::of_nobody("unit");
    let state = service.tracer.outside("state");
    std::fs::create_dir_all(state.join(value("StateDirectory").replace("%i", &service.name))).unwrap();
    let filled = value("ExecStart")
        .replace("%%", "\u{1}")
        .replace("%i", &service.name)
        .replace("%S", state.to_str().unwrap())
        .replace('\u{1}', "%");
    // %I would be the name with a slash for each dash, and a specifier that is left here is one that systemd replaces
    assert!(!["%I", "%S", "$"].iter().any(|other| filled.contains(other)), "{filled}");
    let mut words: Vec<String> = filled.split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[0], "/usr/local/bin/heaptrace");
    words[0] = env!("CARGO_BIN_EXE_heaptrace").to_owned();
    if procfs::is_root() {
        let rights: Vec<String> = value("CapabilityBoundingSet")
            .split_whitespace()
            .map(|name| format!("+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()))
            .collect();
        assert_eq!(value("NoNewPrivileges"), "yes");
        let bounding = format!("--bounding-set=-all,{}", rights.join(","));
        words.splice(0..0, ["setpriv".to_owned(), bounding, "--no-new-privs".to_owned()]);
    }
    let tracer = Program::new(&words[0]).args(&words[1..]);
    let running = tracer.start();
    let mut pids = Vec::new();
    for _ in 0..2 {
        let (victim, pid) = service.start();
        work_and_end(victim, pid);
        pids.push(pid);
    }
    let folder = state.join("heaptrace").join(&service.name);
    let files = || -> Vec<PathBuf> { std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect() };
    procfs::wait_until("two profiles are written", || {
        files().iter().filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.')).count() == 2
    });
    running.signal(Signal::SIGTERM);
    running.wait().success();
    for pid in pids {
        let path = folder.join(format!("{}.{pid}.pb.gz", service.name));
        crate::support::checks::pprof_opens(&path);
    }
}
