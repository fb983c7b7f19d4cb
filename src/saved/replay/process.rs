//! One process of a trace, as far as it was read.

use super::births::Moments;
use super::heaps::Heaps;
use super::number_of;
use super::span::Span;
use super::window::Window;
use crate::allocators::AllocatorTable;
use crate::base::addr::{Addr, FunctionId, ImageId, LoadBias, ModuleId, StackId};
use crate::base::figures::{Amount, Totals};
use crate::event::{Event, EventKind, MapChange, Preexisting};
use crate::heapmodel::{HeapModel, Mark, SiteStats, Snapshot};
use crate::profile::births::{Births, MAX_BLOCKS};
use crate::profile::course::HeapHistory;
use crate::profile::merge::Origin;
use crate::profile::symbolize::ScriptNames;
use crate::profile::{Anomalies, Conditions, Cost, ProcessInfo, RunFacts};
use crate::session::{LeakScan, ModuleRecord, Recording, StreamEnd, TracingAborted};
use crate::symbols::FileVersion;
use crate::trace::metadata::{End, Module, Process, Session};
use crate::trace::process_of;
use crate::unwinder::{StackNode, StackTable};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What is said where the run has looked for leaks.
const LEAKS_NOT_THERE: &str = "the run looked for leaks: the trace lacks what it found";

/// What is said where events count that did not in the run.
const SCAN_OVERWRITTEN: &str =
    "the run's profile shows the moment of its leak scan, which the trace lacks: this one shows the end";

/// What is wanted of a process besides its sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extras {
    /// The live blocks one by one.
    pub blocks: bool,
    /// Heaps at moments on the way.
    pub heaps: bool,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Replayed {
    koid: u64,
    model: HeapModel,
    /// The heap at the moment from which on events no longer count for the profile.
    of_profile: Option<Box<(Snapshot, Option<Births<StackId>>)>>,
    /// How many blocks had been allocated by when, if the live ones are wanted one by one.
    moments: Option<Box<Moments>>,
    /// Heaps on the way, if they are wanted.
    heaps: Option<Box<Heaps>>,
    /// What is counted since the window began.
    window: Option<Window>,
    /// Whether the part that is wanted has ended before its latest event.
    is_past: bool,
    /// When its stream began, and when the latest event was.
    began_ns: Option<u64>,
    latest_ns: u64,
    events: u64,
    inherited_bytes: u64,
    paused: bool,
    free_stacks: bool,
    sample_interval: u64,
    image: ImageId,
    stacks: Stacks,
    modules: Vec<Module>,
    /// Of the image that counts.
    described: Option<Process>,
}

/// The stacks of an image, under ids of our own.
#[derive(Clone, Debug, Default)]
struct Stacks {
    table: StackTable,
    /// The trace's ids below this one are ours; the empty stack is the first.
    same_below: u32,
    others: FxHashMap<u32, StackId>,
}

impl Stacks {
    fn add(&mut self, id: StackId, node: StackNode) {
        if id == StackId::EMPTY {
            return;
        }
        let parent = self.find(node.parent);
        let own = self.table.insert(StackNode { parent, ..node });
        self.same_below = self.same_below.max(1);
        if own == id && id.0 == self.same_below {
            self.same_below += 1;
        } else if own != id || id.0 >= self.same_below {
            self.others.insert(id.0, own);
        }
    }

    /// Our id; the empty stack for one that nothing has described.
    fn find(&self, id: StackId) -> StackId {
        match id.0 < self.same_below || id == StackId::EXISTING {
            true => id,
            false => self.others.get(&id.0).copied().unwrap_or(StackId::EMPTY),
        }
    }
}

impl Replayed {
    /// The process with this koid.
    pub(super) fn new(koid: u64, extras: Extras) -> Self {
        Self {
            koid,
            // What came before the first event that is there, nobody knows.
            model: HeapModel::new(Preexisting::Unknown),
            of_profile: None,
            moments: extras.blocks.then(|| Box::new(Moments::new())),
            heaps: extras.heaps.then(|| Box::new(Heaps::new(0))),
            window: None,
            is_past: false,
            began_ns: None,
            latest_ns: 0,
            events: 0,
            inherited_bytes: 0,
            paused: false,
            free_stacks: true,
            sample_interval: 0,
            image: ImageId::default(),
            stacks: Stacks::default(),
            modules: Vec::new(),
            described: None,
        }
    }

    /// A copy of it, as a fork makes one, before the event of that.
    pub(super) fn fork(&self, child: u64) -> Self {
        let modules = self.modules.iter().map(|module| Module { process: child, ..module.clone() });
        Self {
            koid: child,
            model: self.model.clone(),
            of_profile: None,
            moments: self.moments.clone(),
            heaps: self.heaps.as_ref().map(|_| Box::new(Heaps::new(0))),
            window: self.window.clone(),
            is_past: self.is_past,
            began_ns: None,
            latest_ns: 0,
            events: 0,
            inherited_bytes: 0,
            paused: self.paused,
            free_stacks: self.free_stacks,
            sample_interval: self.sample_interval,
            image: self.image,
            stacks: self.stacks.clone(),
            modules: modules.collect(),
            described: None,
        }
    }

    /// Takes over what was told of the process before it was known whose copy it is.
    pub(super) fn describe_as(&mut self, other: Self) {
        self.described = other.described;
    }

    pub(super) fn number(&self) -> u64 {
        number_of(self.koid)
    }

    /// Time goes on to this moment: a window may begin.
    pub(super) fn reach(&mut self, time_ns: u64, span: Span) {
        let begins = span.begin().is_some_and(|begin| time_ns >= begin) && self.window.is_none() && !self.is_past;
        if begins && self.began_ns.is_some() {
            let mut window = Window::begin(&self.model);
            let (image, free_stacks, sample_interval) = (self.image, self.free_stacks, self.sample_interval);
            let began = EventKind::Began { image, preexisting: Preexisting::Unknown, free_stacks, sample_interval };
            window.since.apply(&Event { seq: 0, time_ns, kind: began });
            if self.paused {
                window.since.apply(&Event { seq: 0, time_ns, kind: EventKind::Paused(true) });
            }
            if let Some(moments) = &mut self.moments {
                moments.begin(span.begin().unwrap_or(time_ns), window.births_before);
            }
            if let Some(heaps) = &mut self.heaps {
                **heaps = Heaps::new(time_ns);
            }
            self.window = Some(window);
        }
    }

    /// The blocks that are live now, one by one, if these are wanted.
    fn births(&self) -> Option<Births<StackId>> {
        let (model, earlier) = match &self.window {
            Some(window) => (&window.since, window.births_before),
            None => (&self.model, 0),
        };
        self.moments.as_ref().map(|moments| moments.of(model, earlier, MAX_BLOCKS))
    }

    /// What follows no longer counts for the profile.
    pub(super) fn profile_ends(&mut self) {
        if self.of_profile.is_none() {
            self.of_profile = Some(Box::new((self.model.snapshot(), self.births())));
        }
    }

    /// The part that is wanted has ended with the latest event.
    pub(super) const fn end_part(&mut self) {
        self.is_past = true;
    }

    /// Takes an event of its stream.
    pub(super) fn take(&mut self, event: &Event, span: Span) {
        if self.is_past || span.end().is_some_and(|end| event.time_ns > end) {
            self.is_past = true;
            return;
        }
        self.reach(event.time_ns, span);
        self.began_ns.get_or_insert(event.time_ns);
        self.latest_ns = event.time_ns;
        self.events += u64::from(counts(&event.kind));
        match event.kind {
            EventKind::Began { image, free_stacks, sample_interval, .. } => {
                (self.image, self.free_stacks, self.sample_interval) = (image, free_stacks, sample_interval);
                if let Some(begin) = span.begin().filter(|begin| event.time_ns >= *begin) {
                    self.window.get_or_insert_with(|| Window::begin(&HeapModel::default()));
                    if let Some(moments) = &mut self.moments {
                        moments.begin(begin, 0);
                    }
                }
            }
            EventKind::Forked { image, .. } => self.image = image,
            EventKind::Exec { image } => {
                self.image = image;
                self.stacks = Stacks::default();
                self.modules.clear();
                self.inherited_bytes = 0;
            }
            EventKind::Paused(paused) => self.paused = paused,
            _ => {}
        }
        // A trace names the interval of a call only where it is not that of the process.
        let mut event = *event;
        if let Some(call) = event.kind.call_mut().filter(|call| call.interval == 0) {
            call.interval = self.sample_interval;
        }
        let event = &event;
        if let Some(heaps) = self.heaps.as_mut().filter(|_| self.of_profile.is_none()) {
            let model = self.window.as_ref().map_or(&self.model, |window| &window.since);
            heaps.note(&event.kind, event.time_ns, model);
        }
        self.model.apply(event);
        if let Some(moments) = &mut self.moments {
            moments.note(&event.kind, event.time_ns, self.model.births());
        }
        if let Some(window) = &mut self.window {
            window.since.apply(event);
            if matches!(event.kind, EventKind::Exec { .. }) {
                window.births_before = 0;
            }
            if matches!(event.kind, EventKind::Exec { .. } | EventKind::Forked { .. }) {
                (window.totals_before, window.deallocated_before) = (Totals::default(), FxHashMap::default());
            }
        }
        if matches!(event.kind, EventKind::Forked { .. }) {
            let model = self.window.as_ref().map_or(&self.model, |window| &window.since);
            self.inherited_bytes = model.totals().live_bytes;
        }
    }

    pub(super) fn add_stacks(&mut self, image: ImageId, nodes: impl Iterator<Item = (StackId, StackNode)>) {
        if image == self.image {
            nodes.for_each(|(id, node)| self.stacks.add(id, node));
        }
    }

    pub(super) fn describe(&mut self, described: Process) {
        if self.began_ns.is_none() && !self.is_past {
            // Its beginning was overwritten.
            (self.image, self.free_stacks) = (ImageId(described.image), described.free_stacks);
            self.sample_interval = described.sample_interval;
            let kind = EventKind::Began {
                image: self.image,
                preexisting: Preexisting::Unknown,
                free_stacks: described.free_stacks,
                sample_interval: described.sample_interval,
            };
            self.model.apply(&Event { seq: 0, time_ns: 0, kind });
        }
        if ImageId(described.image) == self.image {
            self.described = Some(described);
        }
    }

    pub(super) fn add_module(&mut self, module: Module) {
        if ImageId(module.image) != self.image {
            return;
        }
        match self.modules.iter_mut().find(|known| known.id == module.id) {
            Some(known) => *known = module,
            None => self.modules.push(module),
        }
    }

    /// What it leaves; None if it did not live in that part of the trace.
    pub(super) fn into_recording(
        self,
        end: Option<End>,
        span: Span,
        table: &Arc<AllocatorTable>,
        session: &Session,
    ) -> Option<Recording> {
        let began_ns = self.began_ns.or_else(|| (!self.is_past).then_some(0))?;
        let ended_ns = end.as_ref().map(|end| end.facts.origin.start_ns.saturating_add(end.facts.cost.wall_ns));
        let is_over = |moment: u64| ended_ns.is_some_and(|ended| ended < moment);
        match span {
            Span::At(at) if is_over(at) => return None,
            Span::Window(from, _) if is_over(from) => return None,
            Span::Whole | Span::At(_) | Span::Window(..) => {}
        }
        // Whether its end lies in the part that is wanted.
        let has_ended = span.end().is_none_or(|end| ended_ns.is_some_and(|ended| ended <= end)) && !self.is_past;
        let seen = self.model.anomalies();
        let births = if self.of_profile.is_none() { self.births() } else { None };
        let Self { model, of_profile, window, heaps, mut stacks, described, modules, .. } = self;
        let is_later = |end: &End| end.profile_seq.is_some_and(|seq| seq < end.next_seq);
        let scan_overwritten = span == Span::Whole && of_profile.is_none() && end.as_ref().is_some_and(is_later);
        let (mut snapshot, births) = match (of_profile, window, span) {
            (Some(of_profile), ..) => *of_profile,
            (None, Some(window), _) => (window.snapshot(&model), births),
            (None, None, Span::Window(..)) => {
                (Snapshot::default(), births.map(|births| Births { blocks: Vec::new(), ..births }))
            }
            (None, None, _) => (model.snapshot(), births),
        };
        snapshot.sites.retain(|site| !site.inherited || site.live.objects > 0 || site.at_peak.objects > 0);
        let anomalies = Anomalies {
            lost: seen.lost,
            truncated_stacks: seen.truncated_stacks,
            cut_stacks: seen.cut_stacks,
            guessed_stacks: seen.guessed_stacks,
            abandoned_calls: seen.abandoned_calls,
            ..snapshot.anomalies
        };
        let inherited = |amount: fn(&SiteStats) -> Amount| {
            let sites = snapshot.sites.iter().filter(|site| site.inherited);
            let weighted = |site: SiteStats| amount(&site).times(site.key.weight());
            sites.map(weighted).fold(Amount::default(), Amount::plus)
        };
        let origin = Origin {
            start_ns: end.as_ref().map_or(began_ns, |end| end.facts.origin.start_ns),
            inherited_bytes: self.inherited_bytes,
            inherited: inherited(|site| site.live),
            inherited_at_peak: inherited(|site| site.at_peak),
        };
        let koid = self.koid;
        let mut end = end.unwrap_or_else(|| unknown_end(koid, session.attached, self.free_stacks, origin, &described));
        let until = span.end().filter(|_| !has_ended);
        let from_ns = span.begin().unwrap_or(0).max(origin.start_ns);
        let cost = match until {
            None if span.begin().is_none() => end.facts.cost,
            _ => Cost {
                wall_ns: until.or(ended_ns).unwrap_or(self.latest_ns).saturating_sub(from_ns),
                events: self.events,
                conditions: Conditions { free_stacks: self.free_stacks, ..end.facts.cost.conditions },
                ..Cost::default()
            },
        };
        // Of another image than the last one only what was told when it began is known.
        let is_last = described.as_ref().is_none_or(|described| {
            end.modules.is_empty() || end.modules.iter().any(|module| module.image == described.image)
        });
        let (program, command) = match described.filter(|_| !is_last) {
            Some(described) => (described.program, described.command),
            None => (end.program, end.command),
        };
        let mut warnings = std::mem::take(&mut end.facts.warnings);
        warnings.extend(end.leak_scan.then(|| LEAKS_NOT_THERE.to_owned()));
        warnings.extend(scan_overwritten.then(|| SCAN_OVERWRITTEN.to_owned()));
        let modules = if is_last && !end.modules.is_empty() { end.modules } else { modules };
        let origin = if has_ended && span == Span::Whole { end.facts.origin } else { origin };
        let mut recording = Recording {
            snapshot,
            stacks: std::mem::take(&mut stacks.table),
            table: Arc::clone(table),
            modules: modules.into_iter().map(module_record).collect(),
            scripts: ScriptNames::default(),
            thread_names: end.thread_names.into_iter().collect::<HashMap<_, _>>(),
            process: ProcessInfo {
                pid: end.pid,
                pid_inside: end.pid_inside,
                program,
                command,
                cwd: end.cwd.into(),
                started_at: time_of(end.started_at_unix_ns),
                of_another_user: end.of_another_user,
                // whoever writes sources into a page knows whose trace it is
                users: std::collections::BTreeSet::new(),
                user_is_unknown: true,
                exit: end.exit.filter(|_| has_ended),
                resident: end.resident.filter(|_| has_ended && span.begin().is_none()),
            },
            facts: RunFacts {
                origin,
                cost,
                warnings,
                detached_early: end.facts.detached_early && has_ended,
                detached: end.facts.detached || !has_ended,
                ..end.facts
            },
            session: session.session.clone(),
            stream: StreamEnd {
                process: process_of(koid),
                image: self.image,
                next_seq: end.next_seq,
                without_inherited: end.without_inherited,
            },
            number: number_of(koid),
            root: None,
            anomalies,
            leaks: LeakScan::NotWanted,
            tests: None,
            missing_mark: None,
            course: HeapHistory::of_births(births),
            broken_off: end.broken_off.map(TracingAborted::as_told),
            interrupted: false,
            dismissed: false,
        };
        recording.course.marks = model.marks().iter().map(Mark::named).collect();
        if let Some(heaps) = heaps {
            recording.course.heaps = heaps.finish(recording.facts.images.len(), |id| stacks.find(id));
        }
        recording.change_stacks(|id| *id = stacks.find(*id));
        Some(recording)
    }
}

/// Takes what a later telling of the same end has that the one before had not.
pub(super) fn amend(recording: &mut Recording, end: End, span: Span) {
    let mut facts = end.facts;
    facts.warnings.extend(end.leak_scan.then(|| LEAKS_NOT_THERE.to_owned()));
    if span != Span::Whole {
        recording.facts.warnings = facts.warnings;
        return;
    }
    recording.process.exit = end.exit;
    let before = &recording.facts;
    recording.facts = RunFacts {
        parent: before.parent,
        origin: before.origin,
        selected: before.selected,
        detached_early: before.detached_early,
        attached: before.attached,
        user: before.user,
        ..facts
    };
    recording.broken_off = end.broken_off.map(TracingAborted::as_told);
}

/// What can be said of a process whose end is not in the trace.
fn unknown_end(koid: u64, attached: bool, free_stacks: bool, origin: Origin, described: &Option<Process>) -> End {
    let conditions = Conditions { free_stacks, ..Conditions::default() };
    let described = described.clone();
    let (program, command, cwd, parent) = match described {
        Some(described) => (described.program, described.command, described.cwd, described.parent),
        None => ("unknown".to_owned(), Vec::new(), Default::default(), None),
    };
    End {
        koid,
        next_seq: 0,
        pid: process_of(koid).pid,
        pid_inside: None,
        facts: RunFacts {
            parent,
            origin,
            selected: true,
            attached,
            detached: true,
            cost: Cost { conditions, ..Cost::default() },
            ..RunFacts::default()
        },
        program,
        command,
        cwd,
        started_at_unix_ns: 0,
        of_another_user: false,
        exit: None,
        resident: None,
        without_inherited: false,
        thread_names: Default::default(),
        modules: Vec::new(),
        broken_off: Some("the trace ends before the process's end was written".to_owned()),
        leak_scan: false,
        profile_seq: None,
    }
}

fn module_record(module: Module) -> ModuleRecord {
    ModuleRecord {
        id: ModuleId(module.id),
        path: PathBuf::from(module.path),
        build_id: module.build_id,
        start: Addr(module.start),
        end: Addr(module.end),
        file_offset: module.file_offset,
        bias: LoadBias(module.bias),
        file: None,
        // Without a build id no file can be proved to be the one that was mapped.
        version: Some(FileVersion::UNKNOWN),
        memory: None,
        is_program: module.is_program,
        probed: module.probed.into_iter().map(FunctionId).collect(),
    }
}

fn time_of(unix_ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(unix_ns)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Whether this is the end of a call: what [`Cost::events`] counts.
const fn counts(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Allocated { .. }
            | EventKind::AllocatedUnseen { .. }
            | EventKind::Freed { .. }
            | EventKind::ReallocEnded { .. }
            | EventKind::Failed { .. }
            | EventKind::Remapped { .. }
            | EventKind::Mapping { change: MapChange::Mapped { .. } | MapChange::Unmapped { .. }, .. }
    )
}
