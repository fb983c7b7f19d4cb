//! `heaptrace convert`: a trace becomes profiles, as the run that wrote it would have made them, or one of a part of
//! it.

use super::conclude::{Destinations, RunOutcome, conclude_trace};
use super::tell;
use crate::base::figures::plural;
use crate::cli::{ConvertOptions, EXIT_OWN_FAILURE, ProfileOptions, Verbosity, whole_trace};
use crate::event::EventKind;
use crate::export::format::Extra;
use crate::export::{ExportOptions, Format, Source, write};
use crate::profile::Profile;
use crate::saved::replay::{Ending, Outcome, Replay, ReplayOptions};
use crate::trace::reader::{Item, Reader};
use crate::tracer::limits;
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How zstd frames begin (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// How traces begin: fxt's magic record.
const MAGIC: [u8; 8] = 0x0016_5478_4604_0010_u64.to_le_bytes();

/// Frames that need more than 2^this bytes of memory to be unpacked are refused; zstd's own limit.
const LARGEST_WINDOW: u32 = 27;

/// What stands for standard input.
const STDIN: &str = "-";

/// So many bytes are read at a time.
const PIECE: usize = 1 << 18;

/// After so many items, memory and progress are looked at, or after so many bytes that were unpacked. A process counts
/// as more of them.
const PROGRESS_EVENTS: u64 = 1 << 16;
const LOOK_BYTES: u64 = 16 << 20;
const LOOK_PROCESS: u64 = 1 << 7;

/// Names may have so many bytes in the trace for each byte that is free: they take up to eight times as many.
const NAMES_SHARE: u64 = 16;

/// So many bytes that can't be read are counted.
const MAX_SKIPPED: u64 = 256 << 20;

/// With less memory than this left, in bytes, a trace is not read on.
const MIN_MEMORY: u64 = 48 << 20;

/// Makes the profiles.
///
/// # Errors
/// If the trace can't be read, has nothing of what was asked for, or an output can't be written.
pub fn execute(options: &ConvertOptions) -> anyhow::Result<u8> {
    let destinations = Destinations::prepare(&options.profile)?.filled_from(Source::Trace)?;
    options.stdout.map_or(Ok(()), |format| format.can_hold(Source::Trace))?;
    let concluded = replay(options, &destinations)?;
    if let Some(format) = options.stdout {
        print(format, &concluded.profile, options).context("could not write to standard output")?;
    }
    let lost = concluded.files.iter().any(|file| file.result.is_err());
    Ok(if lost { EXIT_OWN_FAILURE } else { 0 })
}

/// The profile of a whole trace.
///
/// # Errors
/// If it can't be read.
pub fn load(trace: &Path) -> anyhow::Result<Profile> {
    let Ok(options) = whole_trace(trace, |name| std::env::var_os(name)) else {
        bail!("internal error: there is no default for each option")
    };
    Ok(replay(&options, &Destinations::prepare(&options.profile)?)?.profile)
}

/// Whether a trace begins here, or one that is compressed. What else is compressed with zstd is none.
///
/// # Errors
/// It can't be read, or not be unpacked.
pub fn begins_as_trace(mut file: impl Read) -> io::Result<bool> {
    let mut start = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
    if !start.starts_with(&ZSTD_MAGIC) {
        return Ok(start == MAGIC);
    }
    let mut unpacked = Vec::new();
    let mut decoder = zstd::stream::read::Decoder::new(start.chain(file))?;
    decoder.window_log_max(LARGEST_WINDOW)?;
    decoder.take(MAGIC.len() as u64).read_to_end(&mut unpacked)?;
    Ok(unpacked == MAGIC)
}

fn replay(options: &ConvertOptions, destinations: &Destinations) -> anyhow::Result<RunOutcome> {
    let writes = |of: fn(Format) -> bool| destinations.have(of) || options.stdout.is_some_and(of);
    let wanted = ReplayOptions {
        part: options.part,
        thread: options.thread.clone(),
        profile_each: destinations.take_processes(),
        blocks: writes(Format::needs_blocks),
        heaps: writes(|format| format.shows(Extra::Heaps)),
    };
    let Outcome { mut traced, names } =
        read(options, &wanted).with_context(|| format!("can't convert {}", options.trace.display()))?;
    if let Ok(trace) = std::fs::metadata(&options.trace) {
        // Whoever has written the trace may have put names of files there.
        traced.all_mut().for_each(|recording| recording.process.users.extend([trace.uid()]));
    }
    Ok(conclude_trace(traced, names.unwrap_or_default(), &options.profile, destinations))
}

/// Reads the trace from its beginning to its end.
fn read(options: &ConvertOptions, wanted: &ReplayOptions) -> anyhow::Result<Outcome> {
    let file = open(&options.trace)?;
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    let progress = Progress::new(options, length);
    let count = Arc::new(AtomicU64::new(0));
    let mut input = BufReader::with_capacity(PIECE, Counting { input: file, count: Arc::clone(&count) });
    let mut start = [0; ZSTD_MAGIC.len()];
    let read = fill(&mut input, &mut start)?;
    let start = start.get(..read).unwrap_or_default();
    let packed = start == ZSTD_MAGIC;
    let input = io::Cursor::new(start.to_vec()).chain(input);
    let input: Box<dyn Read> = match packed {
        false => Box::new(input),
        true => {
            let mut unpacked = zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(PIECE, input))?;
            unpacked.window_log_max(LARGEST_WINDOW)?;
            Box::new(unpacked)
        }
    };
    let names = limits::available_memory().map_or(u64::MAX, |left| left / NAMES_SHARE);
    let mut reader = Reader::new(BufReader::with_capacity(PIECE, input), packed)
        .with_names_up_to(usize::try_from(names).unwrap_or(usize::MAX));
    let mut replay = Replay::new(wanted.clone());
    let mut watch = Watch::default();
    let mut is_ours = false;
    let damage = loop {
        let item = match reader.next_item() {
            Ok(Some(item)) => item,
            Ok(None) => break None,
            Err(error) if is_ours && error.is_damage() => break Some(error),
            Err(error) => return Err(error.into()),
        };
        is_ours = true;
        watch.note(&item);
        replay.take(item);
        if watch.is_due(reader.offset()) {
            progress.tick(count.load(Ordering::Relaxed));
            if limits::is_memory_short() || limits::available_memory().is_some_and(|left| left < MIN_MEMORY) {
                bail!(
                    "there is not enough memory for what is live in this trace at byte {}: convert it on a machine \
                     that has more",
                    reader.offset()
                );
            }
        }
    };
    let unpacked = if packed { " of what was unpacked" } else { "" };
    let shown = options.trace.display();
    let ending = match (&damage, reader.tear()) {
        (Some(_), _) => Ending::Damaged,
        (None, Some(_)) => Ending::Torn,
        (None, None) => Ending::Whole,
    };
    let outcome = match (replay.finish(reader.gaps(), ending), damage) {
        (Ok(outcome), Some(damage)) => {
            let unread = match reader.skip_rest(MAX_SKIPPED) {
                rest if rest < MAX_SKIPPED => format!("{}{unpacked}", plural(rest, "byte")),
                _ => format!("more than {} MiB{unpacked}", MAX_SKIPPED >> 20),
            };
            drop(progress);
            tell(&format!(
                "{shown}: {damage}. heaptrace reads nothing after that ({unread}); the profile holds what comes before"
            ));
            outcome
        }
        (Err(_), Some(damage)) => return Err(damage.into()),
        (outcome, None) => {
            drop(progress);
            if let Some(tear) = reader.tear() {
                tell(&format!(
                    "{shown} is cut off at byte {}{unpacked}: the profile lacks what came afterwards",
                    tear.offset
                ));
            }
            outcome?
        }
    };
    Ok(outcome)
}

/// Says when memory and progress are to be looked at.
#[derive(Debug, Default)]
struct Watch {
    items: u64,
    looked_at: u64,
}

impl Watch {
    /// Counts an item by what it may take.
    fn note(&mut self, item: &Item<'_>) {
        self.items += match item {
            // A copy of all that its parent has.
            Item::Event(told) if matches!(told.event.kind, EventKind::Forked { .. }) => PROGRESS_EVENTS,
            Item::Event(told) if matches!(told.event.kind, EventKind::Began { .. }) => LOOK_PROCESS,
            Item::Process(_) => LOOK_PROCESS,
            _ => 1,
        };
    }

    fn is_due(&mut self, offset: u64) -> bool {
        let is_due = self.items >= PROGRESS_EVENTS || offset >= self.looked_at.saturating_add(LOOK_BYTES);
        if is_due {
            *self = Self { items: 0, looked_at: offset };
        }
        is_due
    }
}

/// Opens a trace; `-` is standard input.
fn open(trace: &Path) -> io::Result<File> {
    if trace == Path::new(STDIN) {
        return Ok(io::stdin().as_fd().try_clone_to_owned()?.into());
    }
    File::open(trace)
}

/// Reads until the buffer is full or nothing more comes; how much came.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Writes the profile to standard output. A reader that has seen enough is no error.
fn print(format: Format, profile: &Profile, options: &ConvertOptions) -> anyhow::Result<()> {
    let defaults = ExportOptions::default();
    let top = options.profile.top.unwrap_or(defaults.top);
    let ProfileOptions { pprof_columns, source, value, .. } = options.profile;
    let export = ExportOptions { pprof_columns, source, value, top, ..defaults };
    let mut out = BufWriter::new(io::stdout().lock());
    match write(format, profile, &export, &mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Counts what is read.
#[derive(Debug)]
struct Counting {
    input: File,
    count: Arc<AtomicU64>,
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.count.fetch_add(u64::try_from(read).unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(read)
    }
}

/// The progress bar, which goes when it is dropped.
#[derive(Debug)]
struct Progress(Option<ProgressBar>);

impl Progress {
    /// One over `length` bytes of file, if it is wanted.
    fn new(options: &ConvertOptions, length: Option<u64>) -> Self {
        let profile = &options.profile;
        let wanted = profile.verbosity != Verbosity::Quiet && profile.progress.resolve(io::stderr().is_terminal());
        let Some(length) = length.filter(|_| wanted) else { return Self(None) };
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        let name = options.trace.file_name().map(Path::new).unwrap_or(&options.trace).display().to_string();
        if let Ok(style) = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes} {eta}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(crate::export::escape::printable(&name));
        Self(Some(bar))
    }

    fn tick(&self, read: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(read);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
