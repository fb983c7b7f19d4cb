//! What a process leaves: its recording, made at its end, or so far.

use super::aftermath::{TargetState, TracingAborted};
use super::interim::LiveSnapshot;
use super::leakrecord::LeakScan;
use super::modulerecord::ModuleRecord;
use super::process::Process;
use super::recording::Recording;
use crate::allocators::AllocatorTable;
use crate::heapmodel::{HeapView, Mark, SiteStats, Snapshot};
use crate::image::elf::{Elf, SymbolKind};
use crate::profile::course::HeapHistory;
use crate::profile::merge::Origin;
use crate::profile::{Amount, Anomalies, Conditions, Cost, Exit, ProcessInfo, Resident, RunFacts};
use crate::session::recording::StreamEnd;
use crate::symbols::{Bytes, Similar};
use crate::unwinder::StackTable;
use std::sync::Arc;

impl Process {
    /// What was found out so far, while the process goes on. Its tables are not copied: the figures are for another
    /// thread to sum up. `with_blocks`: the single blocks are wanted, too.
    pub(super) fn interim(&mut self, with_blocks: bool) -> LiveSnapshot {
        self.settle_heap();
        let heap = self.observer.view(with_blocks);
        self.interim_of(heap)
    }

    /// The same, with this heap.
    pub(super) fn interim_of(&mut self, heap: HeapView) -> LiveSnapshot {
        let (stacks, modules) = self.tracee.space.modules.share_records();
        self.cost.note_cpu_time();
        self.cost.measured.wall_ns = self.observer.age_ns();
        self.identity.note_thread_names(&self.tracee);
        self.cost.note_peak_resident(self.tracee.pid);
        let recording = self.record(LeakScan::NotWanted, stacks, modules);
        LiveSnapshot { recording, heap, at: None, follows: self.tracee.settings.follow }
    }

    /// What was found out, at the end, or until the tracing was broken off if it was.
    pub(super) fn finish(mut self, broken_off: Option<&TracingAborted>) -> Recording {
        if self.teardown.exit.is_none() {
            self.cost.note_cpu_time();
        }
        if broken_off.is_some() {
            self.teardown.detached = self.teardown.exit.is_none();
            self.cost.note_peak_resident(self.tracee.pid);
        }
        self.jump.end(&mut self.tracee, &mut self.observer);
        self.existing.await_told(&mut self.tracee, &mut self.observer);
        if broken_off.is_some() {
            // what the jump engine had left in its rings is of now
            self.cost.measured.wall_ns = self.observer.age_ns();
        }
        #[cfg(debug_assertions)]
        assert!(self.observer.equals_its_replay(), "the recorded stream, read again, gives a different heap");
        self.identity.note_thread_names(&self.tracee);
        self.tracee.warnings.extend(self.tracee.space.modules.findings.take_warnings());
        let mut leaks = match self.tracee.settings.leak_scan {
            Some(_) => std::mem::take(&mut self.leaks).into_scan(self.teardown.exit),
            None => LeakScan::NotWanted,
        };
        self.observer.end_model();
        let mut missing_mark = None;
        let mut snapshot = match &mut leaks {
            LeakScan::Done(scan) => std::mem::take(&mut scan.snapshot),
            LeakScan::NotWanted | LeakScan::Missed(_) => {
                match self.observer.wanted_snapshot(self.tracee.settings.generation) {
                    Ok(snapshot) => {
                        self.tracee.warnings.extend(self.tracee.settings.generation.in_words());
                        snapshot
                    }
                    Err(reason) => {
                        missing_mark =
                            Some(format!("{reason}. So the report has all blocks, whenever they were allocated"));
                        self.observer.model().snapshot()
                    }
                }
            }
        };
        self.tracee.warnings.extend(missing_mark.clone());
        // What was inherited and is gone says nothing.
        snapshot.sites.retain(|site| !site.inherited || site.live.objects > 0 || site.at_peak.objects > 0);
        let (stacks, modules) = self.tracee.space.modules.take_records();
        let mut recording = self.record(leaks, stacks, modules).with_figures(snapshot, self.tracee.settings.follow);
        if self.tracee.settings.follow {
            // In the profile of all they are another process's. (Ways to a leak may lead over them.)
            if !self.tracee.settings.profile_each && self.tracee.settings.leak_scan.is_none() {
                recording.snapshot.sites.retain(|site| !site.inherited);
                recording.stream.without_inherited = true;
            }
        }
        if let Some(broken) = broken_off {
            recording.facts.warnings.push(format!("{broken}. This report lacks what it did afterwards"));
        }
        recording.broken_off = broken_off.cloned();
        recording.missing_mark = missing_mark;
        if let Some(trace) = &self.tracee.settings.trace {
            trace.end(&recording.trace_end());
        }
        recording
    }

    /// All but what [`Recording::with_figures`] adds.
    fn record(&self, leaks: LeakScan, stacks: StackTable, modules: Vec<ModuleRecord>) -> Recording {
        let (root, pid_inside) = self.tracee.space.image.root_and_inner_pid();
        let blind_spots = self.tracee.space.probes.blind_spots(&self.tracee.space.modules);
        let origin = Origin {
            start_ns: u64::try_from(self.identity.born.duration_since(self.identity.began).as_nanos())
                .unwrap_or(u64::MAX),
            inherited_bytes: self.observer.inherited_bytes(),
            inherited: Amount::default(),
            inherited_at_peak: Amount::default(),
        };
        let mut warnings = self.tracee.warnings.clone();
        warnings.extend(blind_spots.iter().filter(|what| !self.tracee.warnings.contains(what)).cloned());
        warnings.extend(self.jump.fallbacks_in_words(self.observer.events()));
        warnings.extend(self.tracee.space.python.untold_python());
        warnings.extend(self.unwritten.untold());
        if self.unknown_stops > 0 {
            warnings.push(format!("heaptrace passed on {} stops of kinds that it does not know", self.unknown_stops));
        }
        if self.identity.selected
            && !self.tracee.space.modules.has_probes()
            && self.teardown.exit.is_none_or(|exit| exit != Exit::Signal(9))
        {
            warnings.push(format!(
                "heaptrace found no allocator function in {} or its libraries, so it recorded nothing: a statically \
                 linked program needs its symbol table, in itself or in a debug file (--debug-dir). Or name its \
                 functions with --alloc-fn and --free-fn, as 'module+0xoffset' if there is no symbol",
                self.identity.program
            ));
        }
        let not_on_jump = self.jump.is_not_on_jump_yet(&self.identity.program, self.observer.events());
        // the warnings of an image before may have the same words
        warnings.extend(not_on_jump.filter(|told| !self.tracee.warnings.contains(told)));
        let paused = self.observer.paused_for();
        if !paused.is_zero() {
            warnings.push(format!(
                "collecting paused for {:.2} s in all: this report lacks what was allocated then",
                paused.as_secs_f64()
            ));
        }
        if self.teardown.detached && self.tracee.space.image.mapped_pad_bytes() > 0 {
            warnings.push(format!(
                "{} KiB of empty executable memory stay mapped in the process: heaptrace can't unmap them safely",
                self.tracee.space.image.mapped_pad_bytes() / 1024
            ));
        }
        let aftermath = self.teardown.aftermath(&self.tracee);
        let harmed = matches!(aftermath, TargetState::Damaged { .. } | TargetState::Killed { .. });
        if harmed {
            warnings.push(aftermath.to_string());
        }
        let mut cost = Cost {
            conditions: Conditions {
                threads: self.tracee.tasks.threads_ever(),
                pinned: self.tracee.settings.pin,
                free_stacks: self.tracee.settings.free_stacks,
                ..self.cost.measured.conditions
            },
            events: self.observer.events(),
            ..self.cost.measured
        };
        self.jump.add_cost(&mut cost);
        Recording {
            snapshot: Snapshot::default(),
            stacks,
            table: Arc::clone(&self.tracee.settings.table),
            modules,
            scripts: self.tracee.space.modules.files.scripts(),
            thread_names: self.identity.thread_names.clone(),
            process: ProcessInfo {
                pid: self.tracee.pid,
                pid_inside,
                program: self.identity.program.clone(),
                command: self.identity.command.clone(),
                cwd: self.identity.cwd.clone(),
                started_at: self.identity.started_at,
                of_another_user: self.identity.owner.is_another(),
                users: self.identity.owner.others.clone(),
                user_is_unknown: false,
                exit: self.teardown.exit,
                resident: self.cost.peak_resident.map(|peak_bytes| Resident {
                    peak_bytes,
                    all_blocks_known: !self.observer.model().may_have_unknown_blocks(),
                }),
            },
            facts: RunFacts {
                parent: self.identity.parent,
                origin,
                selected: self.identity.selected,
                detached_early: self.teardown.detached_early,
                attached: self.identity.attached,
                detached: self.teardown.detached,
                harmed,
                user: self.identity.owner.user,
                cost,
                children: self.children.clone(),
                images: self.identity.images.clone(),
                warnings,
                blind_spots,
                unknown_functions: Vec::new(),
                timed_out: self.tracee.control.has_timed_out(),
            },
            session: self.tracee.settings.session.clone(),
            stream: StreamEnd { without_inherited: false, ..self.observer.stream_end() },
            number: self.identity.number,
            root,
            anomalies: self.observer.model().anomalies(),
            leaks,
            tests: self.tests.record(&self.tracee, &self.observer),
            missing_mark: None,
            course: HeapHistory::of_marks(self.observer.model().marks().iter().map(Mark::named).collect()),
            broken_off: None,
            interrupted: false,
            dismissed: false,
        }
    }
}

impl Recording {
    /// Adds the figures, and what follows from them: also what only takes time to find out. `follows`: other processes
    /// are traced, too.
    pub(super) fn with_figures(mut self, snapshot: Snapshot, follows: bool) -> Self {
        let inherited = |amount: fn(&SiteStats) -> Amount| {
            let sites = snapshot.sites.iter().filter(|site| site.inherited);
            let weighted = |site: SiteStats| amount(&site).times(site.key.weight());
            sites.map(weighted).fold(Amount::default(), Amount::plus)
        };
        self.facts.origin.inherited = inherited(|site| site.live);
        self.facts.origin.inherited_at_peak = inherited(|site| site.at_peak);
        let seen = self.anomalies;
        let anomalies = Anomalies {
            lost: seen.lost,
            truncated_stacks: seen.truncated_stacks,
            cut_stacks: seen.cut_stacks,
            guessed_stacks: seen.guessed_stacks,
            abandoned_calls: seen.abandoned_calls,
            ..snapshot.anomalies
        };
        let doubtful = anomalies.unknown_frees + anomalies.double_frees;
        if snapshot.frees_unseen && doubtful > 0 {
            self.facts.warnings.push(format!(
                "{doubtful} frees of blocks that were not live are not reported as errors, as this allocator has \
                 functions that heaptrace does not see: {} times it returned the address of a block that no recorded \
                 call had freed (--alloc-fn and --free-fn can name such functions)",
                snapshot.unseen_frees
            ));
        }
        if self.facts.selected {
            self.facts.unknown_functions = unknown_functions(&self.table, &self.modules);
        }
        // Of several programs, one may have what another has not.
        if !follows {
            self.facts.warnings.extend(self.facts.unknown_functions.iter().cloned());
            self.facts.blind_spots.extend(self.facts.unknown_functions.iter().cloned());
        }
        Self { snapshot, anomalies, ..self }
    }
}

/// What was declared with --alloc-fn and --free-fn and is in none of the modules, with what may have been meant.
fn unknown_functions(table: &AllocatorTable, modules: &[ModuleRecord]) -> Vec<String> {
    let is_probed = |id| modules.iter().any(|module| module.probed.contains(&id));
    let mut unknown = Vec::new();
    for (_, function) in table.iter().filter(|(id, _)| table.is_declared(*id) && !is_probed(*id)) {
        let wanted = &function.symbol;
        if !table.declared_symbols().any(|symbol| symbol == wanted) {
            unknown
                .push(format!("{wanted}: no such module was loaded, or it has no code there (--alloc-fn, --free-fn)"));
            continue;
        }
        let mut similar = Similar::to(wanted);
        let mut defined = None;
        for file in modules.iter().filter_map(|module| module.file.as_ref()) {
            let Ok(bytes) = Bytes::of_file(file) else { continue };
            let Ok(elf) = Elf::parse(&bytes) else { continue };
            defined = defined.or_else(|| elf.find_symbol(wanted).map(|symbol| symbol.kind));
            similar.look_through(&elf);
        }
        let similar = similar.into_names();
        match defined {
            // Another name of a function that has a probe.
            Some(SymbolKind::Function) => {}
            Some(_) => unknown.push(format!(
                "{wanted}: this symbol is not a function with a known address, so heaptrace did not see its calls \
                 (--alloc-fn, --free-fn)"
            )),
            None if similar.is_empty() => {
                unknown.push(format!("{wanted}: no module defines this function (--alloc-fn, --free-fn)"));
            }
            None => unknown.push(format!(
                "{wanted}: no module defines this function (--alloc-fn, --free-fn); similar: {}",
                similar.join(", ")
            )),
        }
    }
    unknown
}
