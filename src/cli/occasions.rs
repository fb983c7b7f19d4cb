//! When `run`, `attach` and `check` write snapshots and set marks by themselves.

use super::snapshot::DEFAULT_SNAPSHOT;
use super::values;
use crate::base::triggers::Condition;
use crate::event::{Generation, MarkName};
use crate::tracer::control::UserSignal;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// When snapshots are written and marks are set, and where snapshots go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Occasions {
    /// The signal to heaptrace that asks for a snapshot.
    pub on_signal: Option<UserSignal>,
    /// The time between two of them; never zero.
    pub every: Option<Duration>,
    /// Conditions that ask for one when they begin to hold.
    pub when: Vec<Condition>,
    /// The files of each, patterns not yet filled in; never empty.
    pub outputs: Vec<PathBuf>,
    /// How many of the newest are kept, besides the largest; at least 1.
    pub keep: Option<usize>,
    /// The signal to heaptrace that sets a mark.
    pub mark_on_signal: Option<UserSignal>,
    /// The blocks that the files at the end hold.
    pub generation: Generation,
}

impl Occasions {
    /// Whether there can be a snapshot.
    pub fn write_snapshots(&self) -> bool {
        self.on_signal.is_some() || self.every.is_some() || !self.when.is_empty()
    }
}

#[derive(Args, Debug)]
pub(super) struct OccasionArguments {
    /// Write what is live each time heaptrace (not the program) gets this signal: USR1 or USR2
    #[arg(long, value_name = "SIGNAL", value_parser = values::user_signal(), help_heading = "Snapshots")]
    snapshot_on_signal: Option<UserSignal>,

    /// Write what is live every so often: 10s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = values::duration, help_heading = "Snapshots")]
    snapshot_every: Option<Duration>,

    /// Write what is live when a condition begins to hold, like 'rss>90%'; repeatable
    ///
    /// rss>2GiB: resident memory of all traced processes; rss>90%: of the memory limit of the control group
    /// (memory.max), or else of the machine's memory. live>1GiB, live>50%: live bytes of the heap. rate>100MiB/s:
    /// allocated in the last second. psi>20: memory pressure, in percent of the last ten seconds, of the control group
    /// or the machine. A condition can fire again once its value is 5 % below the limit.
    #[arg(long, value_name = "EXPR", value_parser = Condition::parse, help_heading = "Snapshots")]
    snapshot_when: Vec<Condition>,

    /// Where these snapshots go; repeatable
    ///
    /// The name needs %i, the number of the snapshot, and with -f %p, too. Without it:
    /// heaptrace.%n.%p.snapshot.%i.pb.gz.
    #[arg(long, value_name = "FILE", help_heading = "Snapshots")]
    snapshot_output: Vec<PathBuf>,

    /// Keep only the newest N of these snapshots, and the one with the most live bytes; of a series (--profile-every),
    /// the newest N parts, and the last
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Snapshots")]
    keep: Option<u16>,

    /// Set a mark each time heaptrace (not the program) gets this signal: USR1 or USR2
    ///
    /// They are called signal-1, signal-2 and so on. `heaptrace snapshot --since signal-1` shows what was allocated
    /// since. `heaptrace ctl PID mark NAME` does the same with names.
    #[arg(long, value_name = "SIGNAL", value_parser = values::user_signal(), help_heading = "Snapshots")]
    mark_on_signal: Option<UserSignal>,

    /// At the end, write only blocks that were allocated since this mark and are live then, or at --until
    ///
    /// `heaptrace ctl PID mark NAME` and --mark-on-signal set marks; of several with one name the latest counts. If the
    /// mark was not set, heaptrace lists those that were, writes all blocks, and exits with 125 if the program exited
    /// with 0.
    #[arg(long, value_name = "MARK", value_parser = values::mark, help_heading = "Snapshots")]
    since: Option<MarkName>,

    /// At the end, write what was live when this mark was set
    #[arg(long, value_name = "MARK", value_parser = values::mark, help_heading = "Snapshots")]
    until: Option<MarkName>,
}

impl OccasionArguments {
    pub(super) fn resolve(self) -> Occasions {
        let mut outputs = self.snapshot_output;
        if outputs.is_empty() {
            outputs.push(DEFAULT_SNAPSHOT.into());
        }
        Occasions {
            on_signal: self.snapshot_on_signal,
            every: self.snapshot_every,
            when: self.snapshot_when,
            outputs,
            keep: self.keep.map(usize::from),
            mark_on_signal: self.mark_on_signal,
            generation: Generation { since: self.since, until: self.until },
        }
    }
}
