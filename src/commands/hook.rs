//! `--on-profile`: a command of the user's for each finished file, to upload it or attach it to a crash report.
//!
//! While a process is traced the command has a thread of its own and as much time as it needs: nobody waits for it.
//! When the tracing is over it is waited for a fixed time, or until a signal comes; then it is ended with all that it
//! has started.

use super::tell;
use crate::cli::{ProfileOptions, Verbosity};
use crate::export::output::Outcome;
use crate::profile::Profile;
use crate::tracer::{control, orphans};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a command may take when nobody is traced any more.
const GRACE: Duration = Duration::from_secs(30);

/// How long a command may take to end after SIGTERM, before SIGKILL.
const TO_CLEAR_UP: Duration = Duration::from_secs(1);

/// After this time of waiting heaptrace tells the user.
const SILENCE: Duration = Duration::from_secs(2);

/// How often it is looked whether a command has ended, at last; short ones are looked after more often.
const POLL: Duration = Duration::from_millis(20);

/// How many times the command can wait to be run.
const MAX_WAITING: usize = 256;

/// The variable that holds the file's path.
const FILE_VARIABLE: &str = "HEAPTRACE_FILE";

/// The variables that hold when what is in the file began and ended, in seconds since 1970.
const FROM_VARIABLE: &str = "HEAPTRACE_FROM";
const UNTIL_VARIABLE: &str = "HEAPTRACE_UNTIL";

/// The time that a profile is of, in whole seconds since 1970; the end is rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    from: u64,
    until: u64,
}

impl Span {
    /// That of `profile`.
    pub fn of(profile: &Profile) -> Self {
        let start = profile.meta.process.started_at;
        let end = start.checked_add(Duration::from_nanos(profile.meta.duration_ns)).unwrap_or(start);
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { from: seconds(start).as_secs(), until: seconds(end).as_millis().div_ceil(1000) as u64 }
    }
}

/// Why the command did not do its work for a file.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The shell could not be started.
    #[error("--on-profile could not be run for {}: {source}", file.display())]
    Start {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The command failed.
    #[error("--on-profile failed for {}: {status}{}", file.display(), in_words(*status))]
    Failed {
        /// The file.
        file: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
    /// The command was ended.
    #[error("--on-profile was ended {cut} for {}; that file is complete", file.display())]
    Cut {
        /// The file.
        file: PathBuf,
        /// Why.
        cut: Cut,
    },
    /// The command was not tried.
    #[error("--on-profile was not run for {files} more file(s), as it had been ended")]
    NotTried {
        /// How many files.
        files: usize,
    },
}

/// What the two statuses say that a shell gives itself.
fn in_words(status: ExitStatus) -> &'static str {
    match status.code() {
        Some(126) => " (the shell has no permission to execute the command)",
        Some(127) => " (the shell did not find the command)",
        _ => "",
    }
}

/// Why a command is waited for no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Cut {
    /// It took too long.
    #[error("after {} s", .0.as_secs())]
    Pending(Duration),
    /// A signal to heaptrace asked for its end.
    #[error("by {}", control::signal_name(*.0))]
    Signal(i32),
}

/// Runs the command for files of processes that are traced on, one after the other, on a thread of its own.
#[derive(Debug)]
pub struct HookRunner {
    orders: Mutex<Option<SyncSender<Order>>>,
    over: Arc<Mutex<Option<Instant>>>,
    thread: Mutex<Option<JoinHandle<bool>>>,
    /// Whether there was no room for a file.
    refused: AtomicBool,
}

/// Those whose files' turn has not come, though nobody is traced any more.
#[derive(Debug, Default)]
pub struct Passers(Mutex<Vec<Arc<HookRunner>>>);

impl Passers {
    /// Tells the passer that nobody is traced any more, and keeps it.
    pub fn close(&self, passer: Arc<HookRunner>) {
        passer.close();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(passer);
    }

    /// Waits for them all, for a limited time. Whether the command did its work for all files; if not, the user was
    /// told so.
    pub fn finish(&self) -> bool {
        let passers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut well = true;
        for passer in passers {
            well &= passer.finish();
        }
        well
    }
}

#[derive(Debug)]
struct Order {
    files: Vec<PathBuf>,
    span: Span,
}

impl HookRunner {
    /// Starts the thread, if `options` name a command.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(options: &ProfileOptions) -> io::Result<Option<Self>> {
        let Some(command) = options.on_profile.clone() else { return Ok(None) };
        let (orders, to_do) = mpsc::sync_channel(MAX_WAITING);
        let over = Arc::new(Mutex::new(None));
        let work = Work { command, over: Arc::clone(&over), quiet: options.verbosity == Verbosity::Quiet };
        let thread = std::thread::Builder::new().name("on-profile".to_owned()).spawn(move || work.all(&to_do))?;
        let (orders, thread, refused) = (Mutex::new(Some(orders)), Mutex::new(Some(thread)), AtomicBool::new(false));
        Ok(Some(Self { orders, over, thread, refused }))
    }

    /// Lets the command be run once for each regular file that was written, when it has been run for those before.
    /// Nobody waits.
    pub fn pass_on(&self, files: &[Outcome], span: Span) {
        let files: Vec<PathBuf> = regular(files).map(Path::to_owned).collect();
        if files.is_empty() {
            return;
        }
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let order = Order { files, span };
        let refused = match orders.as_ref().map(|orders| orders.try_send(order)) {
            Some(Err(TrySendError::Full(order) | TrySendError::Disconnected(order))) => order.files,
            _ => return,
        };
        self.refused.store(true, Ordering::Relaxed);
        for file in refused {
            let file = file.display();
            tell(&format!(
                "--on-profile was not run for {file}: it still runs for earlier files, and too many files wait"
            ));
        }
    }

    /// Nobody is traced any more: no file comes, and the time of the command is limited.
    fn close(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        drop(self.orders.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Waits for the command. Whether it did its work for all files.
    fn finish(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let well = thread.is_none_or(|thread| thread.join().unwrap_or(false));
        well && !self.refused.load(Ordering::Relaxed)
    }
}

/// What the thread has.
struct Work {
    command: OsString,
    over: Arc<Mutex<Option<Instant>>>,
    quiet: bool,
}

impl Work {
    fn all(&self, orders: &Receiver<Order>) -> bool {
        let (mut well, mut left_out, mut cut) = (true, 0, false);
        for Order { files, span } in orders {
            for file in files {
                if cut {
                    left_out += 1;
                    continue;
                }
                if !file.is_file() {
                    tell(&format!("--on-profile was not run for {}: it was deleted or moved before", file.display()));
                    well = false;
                    continue;
                }
                let since = || *self.over.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = run_for(&self.command, &file, span, &mut HookWait::new(since, GRACE, self.quiet)) {
                    tell(&error.to_string());
                    well = false;
                    cut = matches!(error, HookError::Cut { .. });
                }
            }
        }
        if left_out > 0 {
            tell(&HookError::NotTried { files: left_out }.to_string());
        }
        well && left_out == 0
    }
}

/// Runs `command` by /bin/sh once for each regular file that was written, one after the other, when nobody is traced
/// any more. What failed is added to `failed`; after a command that had to be ended no other is begun.
pub fn run(command: &OsStr, files: &[Outcome], span: Span, quiet: bool, failed: &mut Vec<HookError>) {
    let written: Vec<&Path> = regular(files).collect();
    for (done, file) in written.iter().enumerate() {
        if failed.iter().any(|error| matches!(error, HookError::Cut { .. })) {
            failed.push(HookError::NotTried { files: written.len() - done });
            return;
        }
        let now = Instant::now();
        failed.extend(run_for(command, file, span, &mut HookWait::new(|| Some(now), GRACE, quiet)).err());
    }
}

fn regular(files: &[Outcome]) -> impl Iterator<Item = &Path> {
    files.iter().filter(|file| file.result.is_ok() && file.path.is_file()).map(|file| &*file.path)
}

/// How long one command is waited for.
struct HookWait<S> {
    /// Since when nobody is traced any more; None: somebody is.
    over: S,
    grace: Duration,
    /// Whether heaptrace need not tell the user any more that it waits.
    told: bool,
}

impl<S: Fn() -> Option<Instant>> HookWait<S> {
    const fn new(over: S, grace: Duration, quiet: bool) -> Self {
        Self { over, grace, told: quiet }
    }

    /// Whether the waiting is over. While somebody is traced it is not, and signals are not for us.
    fn ends(&mut self, file: &Path) -> Option<Cut> {
        let waited = (self.over)()?.elapsed();
        if let Some(signal) = control::waiting_request_to_end() {
            return Some(Cut::Signal(signal));
        }
        if waited >= self.grace {
            return Some(Cut::Pending(self.grace));
        }
        if waited >= SILENCE && !self.told {
            self.told = true;
            let seconds = self.grace.as_secs();
            tell(&format!("waiting up to {seconds} s for --on-profile on {} (Ctrl-C ends it)", file.display()));
        }
        None
    }
}

fn run_for(
    command: &OsStr,
    file: &Path,
    span: Span,
    patience: &mut HookWait<impl Fn() -> Option<Instant>>,
) -> Result<(), HookError> {
    let error = |source| HookError::Start { file: file.to_owned(), source };
    // The command may change its folder before it looks at the file.
    let path = std::path::absolute(file).map_err(error)?;
    // Standard input and output are the program's, which may still run.
    let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(error)?;
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).env(FILE_VARIABLE, path).stdin(Stdio::null()).stdout(stderr);
    shell.env(FROM_VARIABLE, span.from.to_string()).env(UNTIL_VARIABLE, span.until.to_string());
    // Of its own, so that it can be ended with all that it has started.
    shell.process_group(0);
    // What we have blocked for ourselves must not be blocked in it.
    control::give_inherited_signals(&mut shell);
    let mut child = shell.spawn().map_err(error)?;
    orphans::note_own(child.id().cast_signed());
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().map_err(error)? {
            return if status.success() { Ok(()) } else { Err(HookError::Failed { file: file.to_owned(), status }) };
        }
        if let Some(cut) = patience.ends(file) {
            end(&mut child).map_err(error)?;
            return Err(HookError::Cut { file: file.to_owned(), cut });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(POLL);
    }
}

/// Ends a process with all of its group.
fn end(leader: &mut Child) -> io::Result<()> {
    let group = leader.id().cast_signed();
    let _ = control::send_to_group(group, control::TERMINATE);
    let since = Instant::now();
    // As long as the leader has not been waited for, nobody else's group has its number.
    while since.elapsed() < TO_CLEAR_UP && !control::has_ended(leader)? {
        std::thread::sleep(POLL);
    }
    let _ = control::send_to_group(group, control::KILL);
    leader.wait().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Format;

    fn outcome(path: &Path) -> Outcome {
        Outcome { path: path.to_owned(), format: Format::Txt, allocated_bytes: 0, result: Ok(1) }
    }

    const SPAN: Span = Span { from: 1, until: 2 };

    /// Asks it to end first, and kills it if it does not.
    #[test]
    fn a_command_that_is_late_is_ended_with_its_children() {
        let file = std::env::temp_dir().join(format!("heaptrace-hook-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let now = Instant::now();
        let grace = Duration::from_millis(300);
        let command = "tail -f /dev/null & echo $! > $HEAPTRACE_FILE; trap '' TERM; while :; do sleep 0.1; done";
        let mut patience = HookWait::new(|| Some(now), grace, true);
        let failed = run_for(command.as_ref(), &file, SPAN, &mut patience).unwrap_err();
        assert!(matches!(failed, HookError::Cut { cut: Cut::Pending(limit), .. } if limit == grace), "{failed}");
        assert!(now.elapsed() >= grace + TO_CLEAR_UP);
        let child = std::fs::read_to_string(&file).unwrap();
        assert!(!Path::new(&format!("/proc/{}/exe", child.trim())).exists(), "{child}");
        let _ = std::fs::remove_file(&file);
    }

    /// No time is too long while somebody is traced, and all files get their turn.
    #[test]
    fn a_command_is_waited_for_while_somebody_is_traced() {
        let file = std::env::temp_dir().join(format!("heaptrace-passed-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let over = || None;
        run_for("sleep 0.2".as_ref(), &file, SPAN, &mut HookWait::new(over, Duration::ZERO, true)).unwrap();
        let mut failed = Vec::new();
        run("exit 3".as_ref(), &[outcome(&file), outcome(&file)], SPAN, true, &mut failed);
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed[0].to_string().ends_with("exit status: 3"), "{failed:?}");
        let _ = std::fs::remove_file(&file);
    }
}
