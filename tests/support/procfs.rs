//! What /proc tells about a process: used to prove that it was left as it was.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Whether the tests run as root, which they are meant to: those that need processes and files of several users pass
/// over themselves without.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// An executable mapping of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextMapping {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// The file.
    pub path: PathBuf,
}

/// All r-x mappings of files; `[vdso]`, `[vsyscall]`, anonymous and deleted ones are left out.
pub fn text_mappings(pid: i32) -> Vec<TextMapping> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (range, perms, offset) = (fields.next()?, fields.next()?, fields.next()?);
            let path = fields.nth(2)?;
            if !perms.starts_with("r-x") || !path.starts_with('/') || line.ends_with("(deleted)") {
                return None;
            }
            let (start, end) = range.split_once('-')?;
            Some(TextMapping {
                start: u64::from_str_radix(start, 16).ok()?,
                end: u64::from_str_radix(end, 16).ok()?,
                offset: u64::from_str_radix(offset, 16).ok()?,
                path: path.into(),
            })
        })
        .collect()
}

/// The addresses at which executable memory differs from its file.
pub fn text_differences(pid: i32) -> Vec<(PathBuf, u64)> {
    let Ok(memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else { return Vec::new() };
    let mut differences = Vec::new();
    for mapping in text_mappings(pid) {
        let length = usize::try_from(mapping.end - mapping.start).unwrap();
        let (mut in_memory, mut in_file) = (vec![0; length], Vec::new());
        if memory.read_exact_at(&mut in_memory, mapping.start).is_err() {
            continue;
        }
        // the file itself, wherever it lies and whatever has come to its path; this takes privileges
        let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
        let mut file = std::fs::File::open(link).or_else(|_| std::fs::File::open(&mapping.path)).unwrap();
        file.seek(SeekFrom::Start(mapping.offset)).unwrap();
        file.take(length as u64).read_to_end(&mut in_file).unwrap();
        // beyond the end of the file a mapped page reads as zero
        in_file.resize(length, 0);
        let differing = in_memory.iter().zip(&in_file).enumerate().filter(|(_, (a, b))| a != b);
        differences.extend(differing.map(|(index, _)| (mapping.path.clone(), mapping.offset + index as u64)));
    }
    differences
}

/// Fails if a byte of the process's code differs from its file.
pub fn assert_text_intact(pid: i32) {
    assert!(!text_mappings(pid).is_empty(), "process {pid} has no text to compare");
    let differences = text_differences(pid);
    assert!(
        differences.is_empty(),
        "{} bytes of code of process {pid} differ from their files, the first at {:x?}",
        differences.len(),
        &differences[..differences.len().min(8)]
    );
}

/// Waits until a tracer has written its first probe.
pub fn wait_until_probed(pid: i32) {
    wait_until("a probe is written", || !text_differences(pid).is_empty());
}

/// What `heaptrace ctl PID ORDER` says.
fn ask(pid: i32, order: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heaptrace")).args(["ctl", &pid.to_string(), order]).output().unwrap()
}

/// Gives the process's tracer an order, which must be obeyed.
pub fn order(pid: i32, order: &str) {
    let asked = ask(pid, order);
    assert!(asked.status.success(), "{order}: {}", String::from_utf8_lossy(&asked.stderr));
}

/// Waits until the process's tracer answers: all probes stand then.
pub fn wait_until_answered(pid: i32) {
    wait_until("the tracer answers", || ask(pid, "resume").status.success());
}

/// One line of /proc/PID/status.
pub fn status_field(pid: i32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Its children.
pub fn children(pid: i32) -> Vec<i32> {
    let of_thread = |thread| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
    let text: String = threads(pid).into_iter().map(of_thread).collect();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Whether it has a handler for the signal.
pub fn catches(pid: i32, signal: nix::sys::signal::Signal) -> bool {
    let set = status_field(pid, "SigCgt").and_then(|set| u64::from_str_radix(&set, 16).ok());
    set.is_some_and(|set| set & (1 << (signal as i32 - 1)) != 0)
}

/// The process that traces it; 0 if none does.
pub fn tracer_of(pid: i32) -> i32 {
    status_field(pid, "TracerPid").and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// The one-letter state.
pub fn state(pid: i32) -> Option<char> {
    status_field(pid, "State")?.chars().next()
}

/// What a thread waits for, as far as the kernel says: its state and signals, its system call, where in the kernel it
/// is.
pub fn waits(pid: i32, tid: i32) -> String {
    let of = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default();
    let told = ["State", "TracerPid", "SigPnd", "ShdPnd", "SigBlk"];
    let status = of("status");
    let lines = status.lines().filter(|line| told.iter().any(|name| line.starts_with(name)));
    format!(
        "{tid}: {} | {} | {}",
        lines.collect::<Vec<_>>().join(", "),
        of("syscall").trim(),
        of("stack").replace('\n', " ")
    )
}

/// Ids of all threads. The kernel cuts a list short when a thread ends while it is made: then it is made again.
pub fn threads(pid: i32) -> Vec<i32> {
    loop {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
        let found: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        match status_field(pid, "Threads").and_then(|count| count.parse().ok()) {
            None => return found,
            Some(count) if found.len() >= count => return found,
            Some::<usize>(_) => {}
        }
    }
}

/// Waits until no thread of the process is traced and its code is clean: pads are emptied last. Two looks in a row must
/// show it: while the first is taken, a thread that is still traced can make another.
pub fn wait_until_let_go(pid: i32) {
    let mut in_a_row = 0;
    wait_until("it is let go and clean", || {
        let untraced = threads(pid).into_iter().all(|thread| tracer_of(thread) == 0);
        in_a_row = if untraced && text_differences(pid).is_empty() { in_a_row + 1 } else { 0 };
        in_a_row == 2
    });
}

/// Fails unless the process, with all its threads, is untraced and its code is as in its files.
pub fn assert_left_as_it_was(pid: i32) {
    for thread in threads(pid) {
        assert_eq!(tracer_of(thread), 0, "thread {thread} of {pid} is still traced");
    }
    assert_text_intact(pid);
}

/// Fails if a process that was let go, and may have ended since, is traced or has other code than its files.
pub fn assert_clean_if_alive(pid: i32) {
    let traced: Vec<_> = threads(pid).into_iter().filter(|&thread| tracer_of(thread) != 0).collect();
    assert!(traced.is_empty(), "threads {traced:?} of {pid} are still traced");
    let differences = text_differences(pid);
    assert!(differences.is_empty(), "code of process {pid} differs from its files: {differences:x?}");
}

/// The processes of a process group that are not dead yet.
pub fn group_members(group: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // the name in parentheses may hold anything; what follows is state, parent, group
            let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
            let state = fields.next().unwrap_or("Z");
            let member = fields.nth(1).and_then(|value| value.parse().ok()) == Some(group);
            member && state != "Z" && state != "X"
        })
        .collect()
}

/// Looks again and again, giving way to others in between, until something is so; fails after a minute. For facts
/// that no one announces; where a program can say so itself, it does through a pipe.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
