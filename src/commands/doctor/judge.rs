//! From facts to findings.

use super::facts::{DEBUG_ROOT, Facts, Leftovers, Libc, Trial};
use crate::base::figures::plural;
use crate::session::EngineForecast;
use crate::tracer::probe::CodeAccess;
use std::time::Duration;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// heaptrace works, but something will be missing or slow.
    Warn,
    /// heaptrace can't work.
    Fail,
}

/// One line of the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) title: &'static str,
    pub(super) text: String,
    /// What to change.
    pub(super) cure: Option<String>,
}

impl Finding {
    fn new(level: Level, title: &'static str, text: impl Into<String>) -> Self {
        Self { level, title, text: text.into(), cure: None }
    }

    fn with_cure(self, cure: impl Into<String>) -> Self {
        Self { cure: Some(cure.into()), ..self }
    }
}

/// Makes findings of `facts`, in the order in which they are to be read.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![kernel(facts)];
    if let Some(error) = &facts.proc {
        findings.push(Finding::new(Level::Fail, "processes", error.clone()));
    } else {
        findings.push(tracing(facts));
        findings.extend(breakpoints(facts));
        findings.push(attach(facts));
        findings.extend((!facts.settings).then(hidden_settings));
    }
    findings.push(engine(facts));
    findings.extend(seccomp(facts));
    findings.extend(stop_cost(facts));
    findings.extend(facts.hidepid.as_deref().map(|value| hidden_processes(facts, value)));
    findings.extend(facts.libc.as_ref().map(|libc| libc_symbols(facts, libc)));
    findings.extend(debug_path(facts));
    findings.extend(debuginfod(facts));
    findings
}

/// What a heaptrace that was killed has left in process `pid`. Unless it `is_settled`, its guardian may still take that
/// away.
pub(super) fn leftovers(pid: i32, leftovers: &Leftovers, is_settled: bool) -> Finding {
    let title = "leftovers";
    match leftovers {
        Leftovers::Memory(_) | Leftovers::Some { .. } if !is_settled => Finding::new(
            Level::Warn,
            title,
            format!(
                "process {pid} holds what a killed heaptrace has left, and its guardian seems to be at work: something \
                 held a lock on /proc/{pid} for twelve seconds"
            ),
        )
        .with_cure(format!(
            "ask again in a moment. If nothing changes, see who has the lock (lslocks): a stopped guardian continues \
             after `kill -CONT`; without a guardian, `heaptrace attach --duration 1s {pid}` removes what is left"
        )),
        Leftovers::None => Finding::new(Level::Ok, title, format!("none of an earlier heaptrace in process {pid}")),
        Leftovers::Memory(bytes) => Finding::new(
            Level::Warn,
            title,
            format!(
                "an earlier heaptrace has left {} KiB of memory mapped in process {pid}, as a thread may still have \
                 needed it to return",
                bytes / 1024
            ),
        )
        .with_cure(format!("`heaptrace attach --duration 1s {pid}` unmaps what is no longer needed")),
        Leftovers::Traced { by } => {
            Finding::new(Level::Ok, title, format!("task {by} traces process {pid}: its breakpoints are the tracer's"))
        }
        Leftovers::Some { breakpoints, unproved } => {
            let others = match unproved {
                0 => String::new(),
                n => {
                    format!(
                        "; its code also differs from the files in {}, which may be the program's own changes",
                        plural(*n as u64, "byte")
                    )
                }
            };
            let text = format!(
                "a heaptrace that was killed together with its guardian has left {} in process {pid}: at the first one \
                 it reaches, it dies or hangs{others}",
                plural(*breakpoints as u64, "breakpoint")
            );
            Finding::new(Level::Warn, title, text)
                .with_cure(format!("`heaptrace attach --duration 1s {pid}` removes them before it begins"))
        }
        Leftovers::Unknown(error) => {
            Finding::new(Level::Warn, title, format!("process {pid} can't be inspected: {error}"))
                .with_cure("check that it exists and is yours; otherwise use sudo")
        }
    }
}

/// PTRACE_SEIZE came with Linux 3.4 (ptrace(2)).
fn kernel(facts: &Facts) -> Finding {
    let mut numbers = facts.kernel.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse::<u32>().ok());
    let version = numbers.next().zip(numbers.next());
    match version {
        Some(version) if version < (3, 4) => {
            Finding::new(Level::Fail, "kernel", format!("Linux {} is too old", facts.kernel))
                .with_cure("3.4 or later is needed")
        }
        Some(_) => Finding::new(Level::Ok, "kernel", format!("Linux {}", facts.kernel)),
        None => Finding::new(Level::Warn, "kernel", "its version is unknown"),
    }
}

fn tracing(facts: &Facts) -> Finding {
    let title = "tracing";
    let Trial::NoTrace(error) = &facts.trial else {
        return Finding::new(Level::Ok, title, "a child can be traced: `heaptrace run` works");
    };
    let cure = match (facts.yama, facts.seccomp) {
        (Some(3), _) => {
            "kernel.yama.ptrace_scope is 3, which forbids all tracing until the next boot: set it to 1 or 0 in \
                         /etc/sysctl.d and reboot"
        }
        (Some(2), _) if !facts.privileged => {
            "kernel.yama.ptrace_scope is 2: only root may trace. Use sudo, or `sudo sysctl kernel.yama.ptrace_scope=1`"
        }
        (_, Some(1 | 2)) => {
            "a seccomp filter is on, as in a container, and may forbid ptrace: in Docker, start the container with \
             --cap-add SYS_PTRACE (and --security-opt seccomp=unconfined if that is not enough)"
        }
        _ => "a security module (AppArmor, SELinux) or a container may forbid it; try outside it, or as root",
    };
    Finding::new(Level::Fail, title, error.clone()).with_cure(cure)
}

fn breakpoints(facts: &Facts) -> Option<Finding> {
    match &facts.trial {
        Trial::NotMade | Trial::NoTrace(_) => None,
        Trial::NoBreakpoint(error) => Some(
            Finding::new(Level::Fail, "breakpoints", error.clone())
                .with_cure("a security module may forbid debuggers to write code"),
        ),
        Trial::Done { code: CodeAccess::StoppedOnly, .. } => Some(
            Finding::new(
                Level::Warn,
                "breakpoints",
                "heaptrace can write a traced process's code through stopped threads only: attach and detach stop one \
                 briefly, and copies of single instructions stay in the padding between functions",
            )
            .with_cure(
                "Linux 6.12 and later can forbid writes to code through /proc/PID/mem: boot with \
                 proc_mem.force_override=ptrace",
            ),
        ),
        Trial::Done { code: CodeAccess::Running, .. } => {
            Some(Finding::new(Level::Ok, "breakpoints", "heaptrace can write the code of a traced process"))
        }
    }
}

/// Which engine sees the calls.
fn engine(facts: &Facts) -> Finding {
    let title = "engine";
    let shadow =
        if facts.shadow_stack { "; trap for programs with a shadow stack, which this CPU supports" } else { "" };
    match &facts.no_shared_memory {
        Some(error) => Finding::new(Level::Warn, title, format!("trap, as the jump engine can't run here: {error}"))
            .with_cure("a seccomp filter, or a limit of open files or of address space (ulimit -n, -v), may forbid it"),
        None if facts.seccomp.is_some_and(|mode| mode != 0) => {
            Finding::new(Level::Warn, title, "trap, as programs started here have a seccomp filter").with_cure(
                "in Docker, --security-opt seccomp=unconfined lets the jump engine record calls without a stop",
            )
        }
        None => Finding::new(
            Level::Ok,
            title,
            format!(
                "trap at first, jump once the stops have taken a fifth of a program's time (--engine auto){shadow}"
            ),
        ),
    }
}

/// Which engine would see process `pid`.
pub(super) fn engine_of(pid: i32, prospect: &Result<EngineForecast, String>) -> Finding {
    let title = "its engine";
    match prospect {
        Ok(EngineForecast::Jump) => Finding::new(
            Level::Ok,
            title,
            format!(
                "process {pid}: trap at first, jump once the stops have taken a fifth of its time; with --engine jump \
                 from its first call on"
            ),
        ),
        Ok(EngineForecast::Trap(why)) => {
            Finding::new(Level::Warn, title, format!("process {pid}: trap, a stop at each of its calls, as {why}"))
                .with_cure("attach only for a short time (--duration 10s), as the process runs much slower meanwhile")
        }
        Ok(EngineForecast::Not64Bit) => Finding::new(
            Level::Warn,
            title,
            format!("process {pid}: none, as heaptrace traces 64-bit x86-64 programs only"),
        ),
        Err(error) => Finding::new(Level::Warn, title, format!("process {pid} can't be inspected: {error}"))
            .with_cure("check that it exists and is yours; otherwise use sudo"),
    }
}

fn attach(facts: &Facts) -> Finding {
    let title = "attach";
    let sysctl = "`sudo heaptrace attach …`, or `sudo sysctl kernel.yama.ptrace_scope=0` until the next boot";
    match (facts.yama, facts.privileged) {
        (Some(3), _) => Finding::new(Level::Warn, title, "impossible (kernel.yama.ptrace_scope is 3)"),
        (_, true) if facts.contained => Finding::new(
            Level::Ok,
            title,
            "to any process of this user namespace and those below (CAP_SYS_PTRACE); to others only from outside",
        ),
        (_, true) => Finding::new(Level::Ok, title, "to any process (CAP_SYS_PTRACE)"),
        (None | Some(0), false) => Finding::new(
            Level::Ok,
            title,
            "to your own processes; other users' processes, and programs with extra rights, need sudo",
        ),
        (Some(1), false) => {
            Finding::new(Level::Warn, title, "not to running processes (kernel.yama.ptrace_scope is 1)")
                .with_cure(sysctl)
        }
        (Some(scope), false) => {
            Finding::new(Level::Warn, title, format!("only as root (kernel.yama.ptrace_scope is {scope})"))
                .with_cure(sysctl)
        }
    }
}

/// As in a service with ProcSubset=pid (systemd.exec(5)).
fn hidden_settings() -> Finding {
    let text = "/proc does not show the kernel's settings (subset=pid): it is unknown whether Yama restricts attaching";
    Finding::new(Level::Warn, "settings", text)
}

fn seccomp(facts: &Facts) -> Option<Finding> {
    let Some(mode @ 1..) = facts.seccomp else { return None };
    let mode = if mode == 1 { "strict mode" } else { "a filter" };
    Some(Finding::new(Level::Ok, "seccomp", format!("{mode} is on for heaptrace itself, as in a container")))
}

/// Two stops for an allocation, at entry and return, and one for a free.
const STOPS_PER_PAIR: u32 = 3;

fn stop_cost(facts: &Facts) -> Option<Finding> {
    let Trial::Done { stop: Some(stop), pinned, .. } = facts.trial else { return None };
    let machine = if facts.virtual_machine { ", virtual" } else { "" };
    let cpus = if facts.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", facts.cpus) };
    let typical = stop.typical;
    let varies = if times(stop.high, stop.low) >= VARIES {
        format!("; between {} and {} now, as other programs run", micros(stop.low), micros(stop.high))
    } else {
        String::new()
    };
    let pair = micros(typical * STOPS_PER_PAIR);
    let text = format!("a stop takes {}, a malloc and its free {pair} ({cpus}{machine}{varies})", micros(typical));
    let finding = Finding::new(Level::Ok, "speed", text);
    let pinned = pinned.map(|pinned| pinned.typical).filter(|pinned| !pinned.is_zero());
    Some(match pinned.map(|pinned| (pinned, times(typical, pinned))) {
        // Below that, it is not worth showing the program fewer CPUs than there are.
        Some((pinned, gain)) if gain >= 1.5 && facts.cpus > 1 => finding.with_cure(format!(
            "programs of one thread: with --pin a stop takes {} now, which is {gain:.1} times faster",
            micros(pinned)
        )),
        _ => finding,
    })
}

/// From here on the rounds of the trial differ so much that one figure says too little.
const VARIES: f64 = 1.5;

fn times(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

/// Two digits: a second trial has the same ones, or nearly.
fn micros(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 9.95 { format!("{micros:.1} µs") } else { format!("{micros:.0} µs") }
}

fn hidden_processes(facts: &Facts, value: &str) -> Finding {
    let text = format!("/proc is mounted with hidepid={value}");
    if facts.privileged {
        Finding::new(Level::Ok, "processes", text)
    } else {
        Finding::new(Level::Warn, "processes", format!("{text}: other users' processes can't be found"))
            .with_cure("use sudo for those")
    }
}

fn libc_symbols(facts: &Facts, libc: &Libc) -> Finding {
    let title = "debug files";
    let path = libc.path.display();
    match (&libc.debug_file, &libc.build_id) {
        (Some(file), _) => Finding::new(Level::Ok, title, format!("of the C library: {}", file.display())),
        (None, Some(id)) => {
            let cure = if facts.debian {
                "`sudo apt install libc6-dbg`".to_owned()
            } else {
                "install your distribution's debug files of the C library (glibc-debuginfo or similar)".to_owned()
            };
            Finding::new(
                Level::Warn,
                title,
                format!("none for {path} (build id {id}) in {DEBUG_ROOT}: its frames lack lines, and some lack names"),
            )
            .with_cure(cure)
        }
        (None, None) => {
            Finding::new(Level::Warn, title, format!("{path} has no build id, so heaptrace can't find its debug file"))
        }
    }
}

fn debug_path(facts: &Facts) -> Option<Finding> {
    let missing: Vec<_> =
        facts.debug_path.iter().filter(|(_, there)| !there).map(|(dir, _)| dir.display().to_string()).collect();
    if !missing.is_empty() {
        let text = format!("$HEAPTRACE_DEBUG_PATH names something that is not a folder: {}", missing.join(", "));
        return Some(Finding::new(Level::Warn, "debug path", text).with_cure("correct or unset it"));
    }
    let dirs: Vec<_> = facts.debug_path.iter().map(|(dir, _)| dir.display().to_string()).collect();
    (!dirs.is_empty()).then(|| Finding::new(Level::Ok, "debug path", format!("{}, then {DEBUG_ROOT}", dirs.join(", "))))
}

fn debuginfod(facts: &Facts) -> Option<Finding> {
    facts.debuginfod.then(|| {
        Finding::new(Level::Ok, "debuginfod", "$DEBUGINFOD_URLS is set: --debuginfod fetches debug files from there")
    })
}
