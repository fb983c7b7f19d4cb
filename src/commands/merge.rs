//! `heaptrace merge`: one profile of many saved ones, in bounded memory.

use super::saved::{Destinations, load_within, memory_limits};
use super::tell;
use crate::cli::MergeOptions;
use crate::export::ExportOptions;
use crate::import::Limits;
use crate::profile::Profile;
use crate::profile::saved::Writer;
use crate::profile::series::{Head, Series, Share, plan, stands_alone};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// So many files are read at the same time.
const READERS: usize = 8;

/// So many unreadable files are named.
const NAMED: usize = 10;

/// What a file was found to be.
enum Seen {
    /// Its amounts are in the sum; only its head is kept.
    Added(Head),
    /// It has to be read again, once it is known what of it counts.
    Waits(Head),
    /// Left out.
    Unreadable(String),
}

/// Carries out `options` and returns the exit status.
///
/// # Errors
/// Files that can't be read or must not be added up; an output that can't be written.
pub fn execute(options: &MergeOptions) -> anyhow::Result<u8> {
    let destinations = Destinations::prepare(&options.output)?;
    let mut known = HashSet::new();
    if let Some(twice) = options.files.iter().find(|file| !known.insert(*file)) {
        anyhow::bail!("{}: named twice, so that its blocks would count twice", twice.display());
    }
    let merged = merge(options)?;
    let export =
        ExportOptions { pprof_columns: options.output.pprof_columns, value: options.value, ..ExportOptions::default() };
    destinations.write(&merged, &export)?;
    Ok(0)
}

fn merge(options: &MergeOptions) -> anyhow::Result<Profile> {
    let all = memory_limits();
    let limits = Limits { unpacked: all.unpacked, tables: all.tables / READERS as u64 };
    // Of several files, one that is a session of its own is not the whole of it.
    let mut several = Series::new(false, options.scale);
    let mut seen: Vec<Option<Seen>> = options.files.iter().map(|_| None).collect();
    let finals: Vec<String> = options.finals.iter().map(|file| file.display().to_string()).collect();
    let order: Vec<usize> = (0..options.files.len()).collect();
    read_each(&options.files, &order, &limits, |index, read| {
        let is = match read {
            Err(error) => Seen::Unreadable(super::message(&error)),
            Ok(profile) => {
                let head = Head::of(&profile, &name(options, index));
                let saved = profile.saved.as_ref();
                let alone = saved.is_none_or(|saved| stands_alone(saved) && saved.writer != Writer::MemorySampler);
                if alone && options.files.len() > 1 {
                    several.add(&profile, &Share::ALL);
                    Seen::Added(head)
                } else {
                    Seen::Waits(head)
                }
            }
        };
        if let Some(slot) = seen.get_mut(index) {
            *slot = Some(is);
        }
    });
    let (mut heads, mut added, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut unreadable = Vec::new();
    for (index, seen) in seen.into_iter().enumerate() {
        match seen {
            Some(Seen::Unreadable(error)) => unreadable.push(error),
            Some(Seen::Added(head)) => {
                added.push((index, heads.len()));
                heads.push(head);
            }
            Some(Seen::Waits(head)) => {
                waiting.push((index, heads.len()));
                heads.push(head);
            }
            None => {}
        }
    }
    tell_unreadable(&unreadable, options.skip_unreadable)?;
    let plan = plan(&heads, &finals, options.scale)?;
    let mut series = several;
    if plan.single {
        // What was added to the sum of several sessions is of the only one.
        series = Series::new(true, options.scale);
        waiting.append(&mut added);
    }
    let order: Vec<usize> = waiting.iter().map(|(index, _)| *index).collect();
    let mut failed = None;
    read_each(&options.files, &order, &limits, |index, read| {
        let place = waiting.iter().find(|(file, _)| *file == index).map(|(_, place)| *place);
        let share = place.and_then(|place| plan.shares.get(place)).copied().unwrap_or(Share::ALL);
        match read {
            Ok(profile) => series.add(&profile, &share),
            // It was readable a moment ago.
            Err(error) => failed = failed.take().or(Some(error)),
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let open = plan.open.len();
    let merged = series.finish(plan.open).ok_or_else(|| anyhow::anyhow!("no file is left that could be merged"))?;
    if !options.quiet {
        let parts = if open > 0 { format!("; of {open} of the sessions parts are missing") } else { String::new() };
        tell(&format!("{} of {} files merged{parts}", heads.len(), options.files.len()));
    }
    Ok(merged)
}

fn name(options: &MergeOptions, index: usize) -> String {
    options.files.get(index).map(|file| file.display().to_string()).unwrap_or_default()
}

fn tell_unreadable(unreadable: &[String], skip: bool) -> anyhow::Result<()> {
    for error in unreadable.iter().take(NAMED) {
        tell(error);
    }
    if unreadable.len() > NAMED {
        tell(&format!("and {} more files can't be read", unreadable.len() - NAMED));
    }
    if !unreadable.is_empty() && !skip {
        anyhow::bail!(
            "nothing was written, as {} of the files can't be read; --skip-unreadable leaves such out",
            unreadable.len()
        );
    }
    Ok(())
}

/// Reads the files of these indices, some at the same time, and hands each over to `each`, in any order.
fn read_each(
    files: &[PathBuf],
    order: &[usize],
    limits: &Limits,
    mut each: impl FnMut(usize, anyhow::Result<Profile>),
) {
    let next = AtomicUsize::new(0);
    // Read profiles wait here, one at most for each reader.
    let (sender, receiver) = sync_channel(1);
    std::thread::scope(|scope| {
        for _ in 0..READERS.min(order.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(file) = files.get(*index) else { continue };
                    if sender.send((*index, load_within(file, limits))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (index, read) in receiver {
            each(index, read);
        }
    });
}
