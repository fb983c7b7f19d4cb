//! The fields of report.json that are read. Fields that came with later versions have defaults.

use crate::profile::leaks::ScanMoment;
use crate::profile::pertest::Grown;
use crate::profile::{
    Amount, Anomalies, Capacity, Children, Exit, Histograms, Image, Mode, PromotedAt, Seen, TimelinePoint, Totals,
};
use serde::de::{IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// What tells a report, of whatever version.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Head {
    pub(super) version: Option<u64>,
    pub(super) heaptrace_version: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(super) struct Report {
    pub(super) mode: Mode,
    pub(super) part: u32,
    pub(super) program: String,
    pub(super) pid: i32,
    pub(super) command: Vec<String>,
    pub(super) cwd: String,
    pub(super) started_at: String,
    pub(super) duration_ns: u64,
    pub(super) engine: String,
    pub(super) complete: bool,
    pub(super) exit: Option<Exit>,
    pub(super) verdict: Option<ReportVerdict>,
    pub(super) totals: Totals,
    #[serde(default)]
    pub(super) resident: Option<ReportResident>,
    #[serde(default)]
    pub(super) promotion: Option<PromotedAt>,
    pub(super) cost: ReportCost,
    pub(super) anomalies: Anomalies,
    pub(super) sampling: Sampling,
    pub(super) allocators: Vec<Allocator>,
    pub(super) modules: Vec<Module>,
    pub(super) images: Vec<Image>,
    pub(super) children: Children,
    #[serde(default)]
    pub(super) processes: Vec<ReportProcess>,
    pub(super) timeline: Vec<TimelinePoint>,
    pub(super) histograms: Histograms,
    #[serde(default)]
    pub(super) frames: Vec<Frame>,
    pub(super) sites: Vec<Site>,
    #[serde(default)]
    pub(super) advice: Option<Vec<Advice>>,
    pub(super) leaks: Option<ReportLeaks>,
    #[serde(default)]
    pub(super) tests: Option<ReportTests>,
    pub(super) findings: Vec<ReportFinding>,
    pub(super) suppressions: Vec<ReportSuppression>,
    pub(super) budgets: Vec<ReportBudget>,
    pub(super) warnings: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct ReportVerdict {
    pub(super) result: String,
    pub(super) reasons: Vec<String>,
    pub(super) exit_status: u8,
}

#[derive(Deserialize)]
pub(super) struct ReportTests {
    pub(super) rows: Vec<ReportTest>,
    pub(super) outside_leaked: Amount,
    pub(super) unassigned: Amount,
}

#[derive(Deserialize)]
pub(super) struct ReportTest {
    pub(super) name: String,
    pub(super) runs: u64,
    pub(super) duration_ns: u64,
    pub(super) allocated: Amount,
    pub(super) peak_bytes: u64,
    pub(super) kept: Amount,
    pub(super) leaked: Amount,
    pub(super) grown: Vec<Grown>,
}

#[derive(Deserialize)]
pub(super) struct ReportResident {
    pub(super) peak_bytes: u64,
    #[serde(default)]
    pub(super) explained_permille: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct ReportCost {
    pub(super) wall_ns: u64,
    #[serde(default)]
    pub(super) waited_ns: Option<u64>,
    #[serde(default)]
    pub(super) waited_range_ns: Option<(u64, u64)>,
    pub(super) stopped_ns: u64,
    pub(super) stopped_max_ns: u64,
    pub(super) events: u64,
    #[serde(default)]
    pub(super) events_without_stop: u64,
    #[serde(default)]
    pub(super) recording_ns: u64,
    pub(super) stops: u64,
}

#[derive(Deserialize)]
pub(super) struct Sampling {
    pub(super) interval: u64,
    #[serde(default)]
    pub(super) standard_error: u64,
}

#[derive(Deserialize)]
pub(super) struct Allocator {
    pub(super) module: String,
    pub(super) functions: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Module {
    pub(super) path: String,
    pub(super) build_id: Option<String>,
    pub(super) start: String,
    pub(super) end: String,
}

#[derive(Deserialize)]
pub(super) struct ReportProcess {
    pub(super) pid: i32,
    pub(super) parent: Option<i32>,
    pub(super) program: String,
    pub(super) exit: Option<Exit>,
    pub(super) seen: Seen,
    pub(super) totals: Totals,
    pub(super) inherited: Amount,
    pub(super) inherited_at_peak: Amount,
    #[serde(default)]
    pub(super) resident: Option<ReportResident>,
    #[serde(default)]
    pub(super) verdict: Option<ReportVerdict>,
}

/// A frame; the table of frames has them from version 2 on.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    pub(super) function: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
    pub(super) module: Option<String>,
    pub(super) offset: Option<String>,
    pub(super) inlined: bool,
}

impl Frame {
    /// How many bytes its texts have.
    pub(super) fn text_bytes(&self) -> usize {
        let optional = [&self.file, &self.module, &self.offset];
        self.function.len() + optional.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

/// A frame of a stack: its place in the table, or in version 1 the frame itself.
pub(super) enum FrameOf {
    Index(u64),
    Whole(Box<Frame>),
}

impl<'de> Deserialize<'de> for FrameOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = FrameOf;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a frame or its number")
            }
            fn visit_u64<E>(self, index: u64) -> Result<FrameOf, E> {
                Ok(FrameOf::Index(index))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FrameOf, A::Error> {
                Frame::deserialize(MapAccessDeserializer::new(map)).map(|frame| FrameOf::Whole(Box::new(frame)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(Deserialize)]
pub(super) struct Site {
    pub(super) stack: Vec<FrameOf>,
    pub(super) quality: String,
    pub(super) allocated: Amount,
    pub(super) freed: Amount,
    pub(super) live: Amount,
    pub(super) at_peak: Amount,
    pub(super) temporary: u64,
    /// Reports of earlier versions do not tell it.
    #[serde(default)]
    pub(super) r#type: Option<SiteType>,
    #[serde(default)]
    pub(super) types: Vec<TypeShare>,
    #[serde(default)]
    pub(super) mean_lifetime_ns: Option<u64>,
    #[serde(default)]
    pub(super) capacity: Option<Capacity>,
}

/// Kinds that this version does not know are left out.
#[derive(Deserialize)]
pub(super) struct Advice {
    pub(super) kind: String,
    pub(super) figures: AdviceFigures,
    pub(super) stack: Vec<FrameOf>,
}

/// The figures of all kinds: each has some of them.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct AdviceFigures {
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) temporary: u64,
    pub(super) allocations: u64,
    pub(super) all_allocations: u64,
    pub(super) per_second: u64,
    pub(super) mean_lifetime_ns: Option<u64>,
    pub(super) buffers: u64,
    pub(super) growths: u64,
    pub(super) copies: u64,
    pub(super) copied_bytes: u64,
    pub(super) largest_bytes: u64,
    pub(super) size: u64,
    pub(super) excess: u64,
    pub(super) freed_elsewhere: u64,
    pub(super) freed: u64,
    pub(super) never_written_bytes: u64,
    pub(super) arena: Option<AdviceArena>,
}

/// The arena of blocks that other threads have freed.
#[derive(Deserialize)]
pub(super) struct AdviceArena {
    pub(super) blocks: u64,
    pub(super) address: String,
    pub(super) main: bool,
    pub(super) system_bytes: u64,
    pub(super) live_bytes: u64,
    pub(super) free_bytes: u64,
}

/// What a site that makes objects of several types has of one.
#[derive(Deserialize)]
pub(super) struct TypeShare {
    #[serde(flatten)]
    pub(super) of: SiteType,
    pub(super) allocated: Amount,
    pub(super) freed: Amount,
    pub(super) live: Amount,
    pub(super) at_peak: Amount,
}

#[derive(Deserialize)]
pub(super) struct SiteType {
    pub(super) name: String,
    pub(super) certainty: String,
}

#[derive(Deserialize)]
pub(super) struct ReportLeaks {
    pub(super) moment: ScanMoment,
    pub(super) stopped_ns: u64,
    #[serde(default)]
    pub(super) copied: bool,
    pub(super) scanned_bytes: u64,
    #[serde(default)]
    pub(super) untold: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct ReportFinding {
    pub(super) kind: String,
    pub(super) count: u64,
    #[serde(default)]
    pub(super) block: Option<String>,
    #[serde(default)]
    pub(super) size: Option<u64>,
    #[serde(default)]
    pub(super) given_size: Option<u64>,
    #[serde(default)]
    pub(super) offset: Option<u64>,
    #[serde(default)]
    pub(super) align: Option<u64>,
    #[serde(default)]
    pub(super) given_align: Option<u64>,
    #[serde(default)]
    pub(super) direct: Option<Amount>,
    #[serde(default)]
    pub(super) indirect: Option<Amount>,
    pub(super) stack: Vec<FrameOf>,
    #[serde(default)]
    pub(super) alloc_stack: Vec<FrameOf>,
    #[serde(default)]
    pub(super) free_stack: Vec<FrameOf>,
    #[serde(default)]
    pub(super) thread: String,
    #[serde(default)]
    pub(super) alloc_fn: String,
    #[serde(default)]
    pub(super) path: Vec<ReportStep>,
    #[serde(default)]
    pub(super) baseline: Option<String>,
    #[serde(default)]
    pub(super) suppressed_by: Option<usize>,
    #[serde(default)]
    pub(super) doubt: Option<String>,
}

/// A link of the chain to a block: the root first, with its words.
#[derive(Deserialize)]
pub(super) struct ReportStep {
    #[serde(default)]
    pub(super) root: Option<String>,
    #[serde(default)]
    pub(super) address: Option<String>,
    #[serde(default)]
    pub(super) size: Option<u64>,
    #[serde(default)]
    pub(super) target_offset: Option<u64>,
    #[serde(default)]
    pub(super) next_offset: Option<u64>,
    #[serde(default)]
    pub(super) stack: Vec<FrameOf>,
}

#[derive(Deserialize)]
pub(super) struct ReportSuppression {
    pub(super) rule: String,
    pub(super) file: String,
    pub(super) line: u32,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) errors: u64,
}

#[derive(Deserialize)]
pub(super) struct ReportBudget {
    pub(super) name: String,
    pub(super) limit: u64,
    pub(super) actual: u64,
}
