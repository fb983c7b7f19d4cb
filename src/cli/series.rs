//! `--profile-every` and its kin: a series of profiles instead of one.

use super::{Refusal, values};
use clap::Args;
use std::time::Duration;

/// Where parts of a series go if no -o says it.
pub const DEFAULT_SERIES: &str = "heaptrace.%n.%p.%i.pb.gz";

/// Parts are at least so far apart, unless asked for otherwise.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(super) struct SeriesArguments {
    /// Write a profile of each period of this length: 1h, 10m, 30s
    ///
    /// Each file -o NAME.%i.pb.gz holds what was allocated and freed in its period, and what is live at its end; it
    /// leaves out sites where nothing happened and nothing is live. heaptrace writes the last one at the end of the
    /// program or the tracing, whatever ended it. Names without %i get a profile of the whole time, at the end.
    /// Example: `heaptrace attach --profile-every 1h --keep 24 -o heap.%i.pb.gz PID`
    #[arg(long, value_name = "TIME", value_parser = values::duration, help_heading = "Series")]
    pub(super) profile_every: Option<Duration>,

    /// Write a profile for each N allocations, counted ten times a second; with --profile-every: whichever comes first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Series")]
    pub(super) profile_every_allocs: Option<u64>,

    /// The shortest time between two parts (1s)
    #[arg(long, value_name = "TIME", value_parser = values::duration, help_heading = "Series")]
    pub(super) min_interval: Option<Duration>,
}

/// When parts of a series are written, and how many are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesOptions {
    /// The longest period, if there is one.
    pub every: Option<Duration>,
    /// The most allocations in a period, if there are; about.
    pub every_allocations: Option<u64>,
    /// How many parts are kept besides the last one; None: all.
    pub keep: Option<usize>,
    /// The shortest period.
    pub min_interval: Duration,
}

/// Checks the options of a series; None if none is wanted. `keep`: how many parts are kept.
///
/// # Errors
/// --min-interval without a series.
pub(super) fn resolve(arguments: &SeriesArguments, keep: Option<usize>) -> Result<Option<SeriesOptions>, Refusal> {
    let (every, every_allocations) = (arguments.profile_every, arguments.profile_every_allocs);
    if every.is_none() && every_allocations.is_none() {
        return match arguments.min_interval {
            None => Ok(None),
            Some(_) => Err(Refusal::Usage(
                "--min-interval is for a series of profiles: --profile-every TIME or --profile-every-allocs N\n"
                    .to_owned(),
            )),
        };
    }
    let min_interval = arguments.min_interval.unwrap_or(MIN_INTERVAL);
    // A period that was asked for is not made longer by a default.
    let min_interval =
        every.filter(|_| arguments.min_interval.is_none()).map_or(min_interval, |every| every.min(min_interval));
    Ok(Some(SeriesOptions { every, every_allocations, keep, min_interval }))
}
