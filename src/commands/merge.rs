//! `heaptrace merge`: one profile of many saved ones, in bounded memory.

use super::saved::{Destinations, is_memory_left, load_within, memory_limits};
use super::tell;
use crate::cli::MergeOptions;
use crate::export::ExportOptions;
use crate::profile::Profile;
use crate::profile::saved::Writer;
use crate::profile::series::{Head, Series, Share, plan, stands_alone};
use crate::saved::import::ImportError;
use anyhow::bail;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

/// So many files are read at the same time, if there is memory for it.
const READERS: u64 = 8;

/// So much memory is to be there for each reader, in bytes.
const EACH: u64 = 128 << 20;

/// Of what may be used, a quarter is the readers', together, and a quarter of the one that reads what is too large for
/// its share: one at a time, and the one before may still be added meanwhile. The rest is for the sum.
const QUARTERS: u64 = 4;

/// After so many files it is looked whether there is memory for more.
const PROGRESS_FILES: usize = 32;

/// And after each that has more samples than this.
const LARGE: usize = 1 << 14;

/// So many unreadable files are named.
const NAMED: usize = 10;

/// What a file was found to be.
enum MergeInput {
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
        bail!("{}: named twice, so its blocks would count twice", twice.display());
    }
    let merged = merge(options)?;
    let export = ExportOptions {
        pprof_columns: options.output.pprof_columns,
        source: options.output.source,
        value: options.value,
        ..ExportOptions::default()
    };
    destinations.write(&merged, &export)?;
    Ok(0)
}

fn merge(options: &MergeOptions) -> anyhow::Result<Profile> {
    // Of several files, one that is a session of its own is not the whole of it.
    let mut several = Series::new(false, options.scale);
    let mut seen: Vec<Option<MergeInput>> = options.files.iter().map(|_| None).collect();
    let finals: Vec<String> = options.finals.iter().map(|file| file.display().to_string()).collect();
    let order: Vec<usize> = (0..options.files.len()).collect();
    read_each(&options.files, &order, |index, read| {
        let is = match read {
            Err(error) => MergeInput::Unreadable(super::message(&error)),
            Ok(mut profile) => {
                set_interval(&mut profile, options);
                let head = Head::of(&profile, &name(options, index));
                let saved = profile.saved.as_ref();
                let alone = saved.is_none_or(|saved| stands_alone(saved) && saved.writer != Writer::MemorySampler);
                if alone && options.files.len() > 1 {
                    several.add(&profile, &Share::ALL);
                    MergeInput::Added(head)
                } else {
                    MergeInput::Waits(head)
                }
            }
        };
        if let Some(slot) = seen.get_mut(index) {
            *slot = Some(is);
        }
        Ok(several.needs())
    })?;
    let (mut heads, mut added, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut unreadable = Vec::new();
    for (index, seen) in seen.into_iter().enumerate() {
        match seen {
            Some(MergeInput::Unreadable(error)) => unreadable.push(error),
            Some(MergeInput::Added(head)) => {
                added.push((index, heads.len()));
                heads.push(head);
            }
            Some(MergeInput::Waits(head)) => {
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
    read_each(&options.files, &order, |index, read| {
        let place = waiting.iter().find(|(file, _)| *file == index).map(|(_, place)| *place);
        let share = place.and_then(|place| plan.shares.get(place)).copied().unwrap_or(Share::ALL);
        // It was readable a moment ago.
        let mut profile = read?;
        set_interval(&mut profile, options);
        series.add(&profile, &share);
        Ok(series.needs())
    })?;
    let open = plan.open.len();
    let merged = series.finish(plan.open).ok_or_else(|| anyhow::anyhow!("there is no file left to merge"))?;
    if !options.quiet {
        let parts = if open > 0 { format!("; parts of {open} of the sessions are missing") } else { String::new() };
        tell(&format!("{} of {} files merged{parts}", heads.len(), options.files.len()));
    }
    Ok(merged)
}

/// memory_sampler's files don't say how they were sampled: the user does.
fn set_interval(profile: &mut Profile, options: &MergeOptions) {
    let raw = profile.saved.as_ref().is_some_and(|saved| saved.writer == Writer::MemorySampler);
    if raw && profile.meta.sample_interval == 0 {
        profile.meta.sample_interval = options.sampler_interval.unwrap_or(0);
    }
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
        bail!(
            "nothing was written, as {} of the files can't be read; --skip-unreadable leaves them out",
            unreadable.len()
        );
    }
    Ok(())
}

/// Reads the files of these indices, some at the same time, and hands each over to `each`, in any order, which says how
/// much more memory the sum may need.
///
/// # Errors
/// That of `each`, with which reading ends; there is no memory for more.
fn read_each(
    files: &[PathBuf],
    order: &[usize],
    mut each: impl FnMut(usize, anyhow::Result<Profile>) -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let alone = Mutex::new(());
    let large = memory_limits(QUARTERS);
    let readers = (large.memory * QUARTERS / EACH).clamp(1, READERS);
    let share = memory_limits(QUARTERS * readers);
    let readers = usize::try_from(readers).unwrap_or(1);
    // Who has read a profile waits until it is taken.
    let (sender, receiver) = sync_channel(0);
    std::thread::scope(|scope| {
        for _ in 0..readers.min(order.len()) {
            let (sender, next, alone, share, large) = (sender.clone(), &next, &alone, &share, &large);
            scope.spawn(move || {
                while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(file) = files.get(*index) else { continue };
                    let mut read = load_within(file, share);
                    let mut turn = None;
                    if is_too_large(&read) {
                        turn = Some(alone.lock().unwrap_or_else(PoisonError::into_inner));
                        read = load_within(file, large);
                    }
                    if sender.send((*index, read)).is_err() {
                        return;
                    }
                    drop(turn);
                }
            });
        }
        drop(sender);
        let mut since = 0;
        for (index, read) in receiver {
            let large = read.as_ref().is_ok_and(|profile| profile.samples.len() > LARGE);
            let needs = each(index, read)?;
            since += 1;
            if large || since >= PROGRESS_FILES {
                since = 0;
                if !is_memory_left(needs) {
                    bail!(
                        "there is not enough memory for the sum of these files: merge fewer of them, or where there is more"
                    );
                }
            }
        }
        Ok(())
    })
}

/// Whether a file was refused because of its share of the memory.
fn is_too_large(read: &anyhow::Result<Profile>) -> bool {
    let error = read.as_ref().err().and_then(|error| error.downcast_ref::<ImportError>());
    matches!(error, Some(ImportError::TooLarge { .. }))
}
