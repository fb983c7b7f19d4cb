//! How a process comes to the jump engine, and leaves it.

use super::facts::KnownFacts;
use super::fallback::Cause;
use super::left::give_back_left_regions;
use super::plain::PlainFunctions;
use super::standstill::{Awaiting, Standstill};
use super::{Account, Awaited, Clock, Jump, JumpEngine, JumpState, Sampling};
use crate::allocators::{Arg, Function, Kind, Success};
use crate::arch::INT3;
use crate::base::addr::{Addr, ModuleId};
use crate::breakpoints::patches::Patch;
use crate::breakpoints::patches::own::{EntryError, JUMP_LEN};
use crate::jump::layout::{
    Active, CELL_ASKS, CELL_COPIES, CELL_HEAD, CELL_WAITS, CELLS, CODE_SIZE, FREE_STACKS, INDEX_AREA, INDEX_LEAST,
    LIST_DEPTH, LIST_MOST, NESTED, NESTED_KEYS, NOP, REGION_SIZE, RING_LEAST, SHARED_SIZE, STATE_ACTIVE, STATE_SHARED,
    StubKind, TIMED, TIMED_MARK,
};
use crate::jump::load::{Load, pause_after};
use crate::jump::merge::Merge;
use crate::jump::nodes::Nodes;
use crate::jump::rules::Rules;
use crate::jump::sampling::SizeOf;
use crate::jump::shared::Shared;
use crate::jump::stub::{ENTRIES, ENTRY_SIZE, STUB_SIZE, STUBS, Stub, assemble};
use crate::jump::tails::Tails;
use crate::profile::{Cost, PromotedAt};
use crate::session::observer::Observer;
use crate::session::prospect::JumpIneligible;
use crate::session::space::Candidate;
use crate::session::stops::Stops;
use crate::session::tracee::Tracee;
use crate::tracer::Result;
use crate::tracer::code::write::{Threads, write_word};
use crate::tracer::jump::region::{Region, SetUpError};
use crate::tracer::jump::routine;
use crate::tracer::ptrace::Stopped;
use crate::tracer::rawregs::RawRegs;
use crate::unwinder::LatestWalks;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::{Duration, Instant};

/// Whoever asks for the jump engine need not be told that so many events were seen at stops.
const FEW_EVENTS: u64 = 300;

const NONE_FIT: &str = "none of its allocator's functions can be wrapped";

/// What has become of an attempt.
enum Promoted {
    Yes(Box<Jump>),
    /// Not at this moment: why, in words.
    Later(&'static str),
    /// Why not, in words.
    No(String),
}

/// A thread that stands at an allocator's entry, in a process that may come to the engine.
pub(in crate::session) struct AtEntry<'a> {
    pub(in crate::session) thread: &'a Stopped,
    /// As the trap has left it.
    pub(in crate::session) raw: &'a RawRegs,
    /// What tracing the process has cost until now.
    pub(in crate::session) cost: &'a Cost,
    /// The name of its program.
    pub(in crate::session) program: &'a str,
    /// Whether its calls are asked for.
    pub(in crate::session) is_selected: bool,
}

impl JumpEngine {
    /// A thread stands at an allocator's entry: if the process is to be on the jump engine, it is from here on, or
    /// never, with a warning that says why.
    pub(in crate::session) fn promote(
        &mut self,
        tracee: &mut Tracee,
        observer: &mut Observer,
        entry: &AtEntry<'_>,
        stops: &mut Stops,
    ) -> Result<()> {
        let now_ns = observer.age_ns();
        let now = Load::new(now_ns, entry.cost.stops, entry.cost.stopped_ns);
        let (attempts, stops_permille) = match &mut self.state {
            JumpState::Wanted(awaited) if awaited.not_before_ns > now_ns => return Ok(()),
            JumpState::Wanted(awaited) => (awaited.attempts, None),
            JumpState::WhenBusy(before, attempts) => match before.is_too_much(now, *attempts) {
                Some(permille) => (*attempts, Some(permille)),
                None => return Ok(()),
            },
            JumpState::Off | JumpState::On(_) => return Ok(()),
        };
        let at = Addr(entry.raw.before_trap().0.rip);
        // What only passes a call on does not tell which allocator it is that is busy.
        if !entry.is_selected || tracee.space.probes.has_deferred() || tracee.space.modules.wrapper_at(at) == Some(at) {
            return Ok(());
        }
        self.state = JumpState::Off;
        match try_to_promote(tracee, observer, &self.account, entry, stops)? {
            Promoted::Yes(jump) => {
                self.state = JumpState::On(jump);
                self.account.promotion = Some(PromotedAt { after_ns: observer.age_ns(), stops_permille, attempts });
            }
            Promoted::Later(why) => match pause_after(attempts) {
                None => tracee.warn_once(seen_by_trap(entry.program, why)),
                // What the stops take from here on decides when it is tried again.
                Some(_) if stops_permille.is_some() => self.state = JumpState::WhenBusy(now, attempts + 1),
                Some(pause) => {
                    let not_before_ns = observer.age_ns().saturating_add(pause);
                    self.state = JumpState::Wanted(Awaited { attempts: attempts + 1, not_before_ns, why: Some(why) });
                }
            },
            Promoted::No(why) => tracee.warn_once(seen_by_trap(entry.program, &why)),
        }
        Ok(())
    }

    /// Of a process of more than a few events that was to be on the jump engine at once: that it has not come to it
    /// until now, and why.
    pub(in crate::session) fn is_not_on_jump_yet(&self, program: &str, events: u64) -> Option<String> {
        match self.state {
            JumpState::Wanted(Awaited { why: Some(why), .. }) if events > FEW_EVENTS => {
                Some(seen_by_trap(program, why))
            }
            _ => None,
        }
    }

    /// The process has another image, or is a copy of another one: the engine was in the memory of that.
    pub(in crate::session) fn begin_image(&mut self, tracee: &mut Tracee, program: &str, events: u64) {
        // It was to come to the engine as soon as possible, and there was no such moment.
        if let Some(told) = self.is_not_on_jump_yet(program, events) {
            tracee.warn_once(told);
        }
        self.log_counters(tracee.pid);
        self.state = JumpState::from(tracee.settings.engine);
    }

    /// What the routine has counted, for whoever looks for the cause of a program's slowness.
    fn log_counters(&self, pid: i32) {
        if let Some(jump) = self.on() {
            let [asks, copies, waits] = [CELL_ASKS, CELL_COPIES, CELL_WAITS].map(|place| jump.sum_of_cells(place));
            tracing::debug!(
                "process {pid}: {asks} calls asked, {copies} stacks were copied, {waits} waits for room in a ring, \
                 {} records written, {} records looked up",
                jump.sum_of_cells(CELL_HEAD),
                jump.looked_up
            );
        }
    }

    /// The memory that the threads shared with us is given back; they may go on to run through the stubs.
    pub(in crate::session) fn end(&mut self, tracee: &mut Tracee, observer: &mut Observer) {
        self.settle(tracee, observer);
        self.log_counters(tracee.pid);
        if self.on().is_some()
            && let JumpState::On(jump) = std::mem::take(&mut self.state)
        {
            jump.region.mapping.discard();
        }
    }
}

fn seen_by_trap(program: &str, why: &str) -> String {
    format!("the trap engine, not the jump engine, recorded {program}, as {why}")
}

/// Kept apart from what is done at each stop: a test counts its instructions.
#[inline(never)]
fn try_to_promote(
    tracee: &mut Tracee,
    observer: &mut Observer,
    account: &Account,
    entry: &AtEntry<'_>,
    stops: &mut Stops,
) -> Result<Promoted> {
    let AtEntry { thread, raw, .. } = *entry;
    let at = Addr(raw.before_trap().0.rip);
    let tid = thread.tid();
    let has_threads = tracee.tasks.len() > 1;
    if tracee.tasks.has_sharers() {
        return Ok(Promoted::Later("it shares its memory with a child"));
    }
    if tracee.space.image.is_refused_while_running() && has_threads {
        return Ok(Promoted::Later(
            "it has threads, and on this kernel heaptrace can write code in stopped processes only",
        ));
    }
    if tracee.settings.libunwind {
        return Ok(Promoted::No("--unwinder libunwind needs a stop at each call".to_owned()));
    }
    if let Some(why) = JumpIneligible::of_thread(tid) {
        return Ok(Promoted::No(why.to_string()));
    }
    if tracee.space.python.shows_python() {
        return Ok(Promoted::No(JumpIneligible::Python.to_string()));
    }
    if tracee.settings.perturb {
        return Ok(Promoted::No(JumpIneligible::Perturb.to_string()));
    }
    if tracee.space.modules.walks_stacks_of_callers(tracee.pid, at) {
        return Ok(Promoted::No(JumpIneligible::WalksStacks.to_string()));
    }
    let is_guarded = has_own_operators(tracee, at) && tracee.space.guard_unwinders(thread, raw)?;
    let (mut wrapped, mut at_stops) = to_wrap(tracee, at, is_guarded);
    let Some(near) = wrapped.iter().map(|(one, _)| one).find(|one| !one.is_told).map(|one| one.addr) else {
        // it may be a function of another module that the program calls most
        return Ok(Promoted::Later(NONE_FIT));
    };
    if is_guarded {
        wrapped.extend(
            tracee
                .space
                .probes
                .guard_candidates(&tracee.space.modules)
                .into_iter()
                .map(|guard| (guard, StubKind::Guard)),
        );
    }
    let candidates: Vec<_> = wrapped.iter().map(|(candidate, _)| *candidate).collect();
    let led_into = tracee.space.entries.led_into(&tracee.space.image, &mut tracee.space.modules, &candidates);
    let mut awaiting = Awaiting { tracee, observer, progress: &account.progress, stops };
    let standing = match awaiting.standstill(tid, &candidates)? {
        Standstill::Reached(standing) => standing,
        Standstill::Missed(why) => return Ok(Promoted::Later(why)),
    };
    give_back_left_regions(tracee, thread, raw.before_trap(), &standing)?;
    let Some((code, shared)) = tracee.space.jump_gaps(tid, near, REGION_SIZE, SHARED_SIZE)? else {
        return Ok(Promoted::No("the program's address space has no room for it".to_owned()));
    };
    let Some(mut caller) = tracee.space.image.caller(thread, raw.before_trap())? else {
        return Ok(Promoted::No("the program's code has no room for a system call".to_owned()));
    };
    let region = match Region::set_up(&mut caller, code, shared) {
        Ok(region) => region,
        Err(SetUpError::Tracer(error)) if error.is_out_of_reach() => return Err(error),
        Err(error) => return Ok(Promoted::No(format!("its memory could not be allocated: {error}"))),
    };
    let labels = routine::code();
    let interval = tracee.settings.sample_interval;
    let mut stubs = Vec::new();
    let mut jumps = Vec::new();
    let mut image = routine::bytes().to_vec();
    let asks = [labels.ask, labels.full_enter, labels.full_leave, labels.foreign];
    for ask in asks {
        if let Some(byte) = image.get_mut(ask as usize) {
            *byte = NOP;
        }
    }
    image.resize(CODE_SIZE as usize, INT3);
    for (candidate, way) in wrapped {
        let number = stubs.len() as u64;
        let pad = code.add(ENTRIES + number * ENTRY_SIZE);
        let placed = match tracee.space.move_entry(&candidate, pad, ENTRY_SIZE, led_into.contains(&candidate.addr)) {
            Ok(placed) => placed,
            // such a guard stays a breakpoint
            Err(_) if way == StubKind::Guard => continue,
            Err(error) => {
                at_stops.insert(candidate.addr, error.into());
                continue;
            }
        };
        let size = match tracee.settings.table.get(candidate.function) {
            Some(function) if candidate.is_told => told_of(function).unwrap_or(SizeOf(SizeOf::TOLD)),
            function => function.map_or(SizeOf(0), size_of),
        };
        let stub = Stub {
            function: candidate.function.0,
            way,
            size,
            entry: candidate.addr,
            original: placed.addr,
            is_sampled: interval > 0,
        };
        let at = code.add(STUBS + number * STUB_SIZE);
        let original = tracee.space.image.original_bytes(candidate.addr, JUMP_LEN);
        let patch = jump_to(candidate.addr, at).and_then(|jump| Patch::new(&original, &jump));
        let stub_bytes = assemble(&stub, code, number, &labels);
        let has_room = stub_bytes.is_some_and(|bytes| {
            put(&mut image, code, at, &bytes) && put(&mut image, code, placed.addr, &placed.bytes)
        });
        let Some(patch) = patch.filter(|_| has_room) else {
            if way != StubKind::Guard {
                at_stops.insert(candidate.addr, EntryError::OutOfReach.into());
            }
            continue;
        };
        stubs.push(stub);
        jumps.push((candidate.addr, patch, placed.addr));
    }
    // All of it at once: each writing takes as long as the next.
    tracee.space.image.code.write_jump_code(&mut tracee.space.image.memory, code, &image)?;
    if stubs.iter().all(|stub: &Stub| stub.way == StubKind::Guard || stub.is_told()) {
        return Ok(Promoted::No(NONE_FIT.to_owned()));
    }
    write_word(&mut tracee.space.image.memory, code.add(STATE_SHARED), shared.0)?;
    // what calls look into from the first one on
    region.mapping.allocate(0, NESTED + NESTED_KEYS * 16);
    region.mapping.allocate(INDEX_AREA + 4 * INDEX_LEAST, 4 * INDEX_LEAST);
    region.mapping.set_half(FREE_STACKS, u32::from(tracee.settings.free_stacks));
    region.mapping.set_half(TIMED, TIMED_MARK);
    let listed = Some(tracee.settings.max_depth).filter(|&depth| u64::from(depth) < LIST_MOST);
    region.mapping.set_half(LIST_DEPTH, listed.unwrap_or(0));
    let nodes = Nodes::new(&region.mapping);
    let most = tracee.settings.max_overhead;
    let sampling = (interval > 0).then(|| Sampling::begin(&region.mapping, interval, most, observer.model()));
    for ask in asks {
        tracee.space.image.code.place(&mut tracee.space.image.memory, code.add(ask), Patch::int3(NOP))?;
    }
    let switch = Patch::switch(Active::Off as u8, Active::Record as u8);
    tracee.space.image.code.place(&mut tracee.space.image.memory, code.add(STATE_ACTIVE), switch)?;
    let threads = if has_threads { tracee.whose_threads() } else { Threads::Stand };
    if let Err(error) = tracee.space.place_jumps(&jumps, threads) {
        tracee.space.image.code.lift(&mut tracee.space.image.memory, code.add(STATE_ACTIVE))?;
        return Ok(Promoted::No(format!("its code can't be changed: {error}")));
    }
    let jump = Box::new(Jump {
        region,
        code: labels,
        plain: PlainFunctions::of(&tracee.settings.table),
        stubs,
        nodes,
        rules: Rules::default(),
        tails: Tails::default(),
        listed: Vec::new(),
        latest: LatestWalks::default(),
        merge: Merge::default(),
        rings: vec![RING_LEAST; CELLS as usize],
        cells: (0..CELLS).map(|_| None).collect(),
        by_tid: FxHashMap::default(),
        at_stops,
        callers: FxHashMap::default(),
        facts: KnownFacts::default(),
        nested: 0,
        sharing: Vec::new(),
        dropped: 0,
        clock: Clock::default(),
        sampling,
        records: 0,
        looked_up: 0,
        batch: Vec::new(),
        copies: 0,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        drained: Instant::now(),
        until_half: Duration::MAX,
        used: 0,
    });
    withdraw_returns(tracee, observer);
    tracing::debug!("process {} is on the jump engine: code at {code}, shared memory at {shared}", tracee.pid);
    Ok(Promoted::Yes(jump))
}

/// Whether the module that `at` lies in has operators new and delete of its own.
fn has_own_operators(tracee: &Tracee, at: Addr) -> bool {
    let module = tracee.space.modules.module_at(at);
    let table = &tracee.settings.table;
    let is_operator = |function| table.get(function).is_some_and(|function| function.family.is_operator());
    let candidates = tracee.space.probes.jump_candidates(&tracee.space.modules, table);
    candidates.iter().any(|candidate| candidate.module == module && is_operator(candidate.function))
}

/// The functions that are wrapped, and how: those of the module that `at` lies in. And why the others, by their
/// addresses, are seen at stops. `is_guarded`: whether exceptions may leave them.
fn to_wrap(tracee: &Tracee, at: Addr, is_guarded: bool) -> (Vec<(Candidate, StubKind)>, FxHashMap<Addr, Cause>) {
    let module = tracee.space.modules.module_at(at);
    let (mut wrapped, mut functions) = (Vec::new(), FxHashSet::default());
    let mut at_stops = FxHashMap::default();
    for candidate in tracee.space.probes.jump_candidates(&tracee.space.modules, &tracee.settings.table) {
        // Records have the function's number only: of several modules' one is recorded, the allocator's own.
        if candidate.is_told && functions.contains(&candidate.function) {
            at_stops.insert(candidate.addr, Cause::OtherModule);
            continue;
        }
        match way_to_wrap(tracee, &candidate, module, is_guarded) {
            Ok(way) => {
                functions.insert(candidate.function);
                wrapped.push((candidate, way));
            }
            Err(cause) => {
                at_stops.insert(candidate.addr, cause);
            }
        }
    }
    (wrapped, at_stops)
}

fn way_to_wrap(
    tracee: &Tracee,
    candidate: &Candidate,
    module: ModuleId,
    is_guarded: bool,
) -> std::result::Result<StubKind, Cause> {
    let table = &tracee.settings.table;
    let function = table.get(candidate.function).ok_or(Cause::OtherModule)?;
    // An exception would meet our return address.
    if table.is_declared(candidate.function) {
        return Err(Cause::Declared);
    }
    if candidate.is_told {
        // It has no frame that an exception could meet. With sampling a record has no room for what it is given.
        let is_known = told_of(function).is_some() && tracee.settings.sample_interval == 0;
        return is_known.then_some(StubKind::Free).ok_or(Cause::PassesOn);
    }
    if module != candidate.module {
        return Err(Cause::OtherModule);
    }
    if function.family.is_operator() && !is_guarded {
        return Err(Cause::Operator);
    }
    // Its result is no block, which the routine would note.
    if matches!(function.kind, Kind::ResizeInPlace { .. }) && tracee.settings.sample_interval > 0 {
        return Err(Cause::ResizesInPlace);
    }
    way_of(function).ok_or(Cause::Arguments)
}

/// Return breakpoints stay only where calls in progress return: the routine sees all others.
fn withdraw_returns(tracee: &mut Tracee, observer: &Observer) {
    let sites: Vec<Addr> =
        tracee.space.probes.breakpoints.iter().filter(|(_, b)| b.purposes.returns).map(|(addr, _)| addr).collect();
    for site in sites {
        let done = if observer.awaits(site) {
            tracee.space.demote_return_site(site);
            Ok(())
        } else {
            tracee.space.unwatch_return(site)
        };
        if let Err(error) = done {
            tracing::warn!("{error}");
        }
    }
}

/// Puts code that belongs at `at` into the image of the region that begins at `start`. False: it lies outside of it.
fn put(image: &mut [u8], start: Addr, at: Addr, code: &[u8]) -> bool {
    let place = at.0.checked_sub(start.0).and_then(|offset| usize::try_from(offset).ok());
    let room = place.and_then(|place| image.get_mut(place..place.checked_add(code.len())?));
    if let Some(room) = room {
        room.copy_from_slice(code);
        return true;
    }
    false
}

/// `jmp rel32` at `from` to `to`.
fn jump_to(from: Addr, to: Addr) -> Option<[u8; JUMP_LEN]> {
    let distance = i32::try_from(to.0.wrapping_sub(from.0 + JUMP_LEN as u64).cast_signed()).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Where the routine finds the size that a function is asked for.
fn size_of(function: &Function) -> SizeOf {
    let (size, count, more) = match function.kind {
        Kind::Alloc { size, count: None } if function.symbol == "malloc" => (size, None, SizeOf::SIMPLE),
        Kind::Alloc { size, count } => (size, count, 0),
        Kind::AllocOut { size, .. } => (size, None, 0),
        Kind::Realloc { size, count, .. } => (size, count, SizeOf::CHANGES),
        Kind::ResizeInPlace { size, .. } => (size, None, SizeOf::CHANGES),
        Kind::Free { .. } | Kind::GrowOut { .. } | Kind::Mapping(_) => return SizeOf(0),
    };
    SizeOf(SizeOf::new(size.0, count.map(|count| count.0)).0 | more)
}

/// Where the routine finds size and alignment of an operator that passes its call on. None if it can't: the block is
/// the first argument.
fn told_of(function: &Function) -> Option<SizeOf> {
    let Kind::Free { ptr: Arg(0), size } = function.kind else { return None };
    let are_passed = size.into_iter().chain(function.align).all(|arg| (1..3).contains(&arg.0));
    are_passed.then(|| SizeOf::told(size.map(|arg| arg.0), function.align.map(|arg| arg.0)))
}

/// How the routine goes about a function; None if it knows no way, as its arguments are not among the first three.
fn way_of(function: &Function) -> Option<StubKind> {
    let is_passed = |arg: Arg| arg.0 < 3;
    let is_first = |arg: Arg| arg.0 == 0;
    let fits = function.align.is_none_or(is_passed);
    let (fits, way) = match function.kind {
        Kind::Alloc { size, count } => (fits && is_passed(size) && count.is_none_or(is_passed), StubKind::Alloc),
        Kind::AllocOut { out, size, success: Success::Zero } => {
            (fits && is_first(out) && is_passed(size), StubKind::AllocOut)
        }
        Kind::Realloc { old, size, count } => {
            (fits && is_first(old) && is_passed(size) && count.is_none_or(is_passed), StubKind::Realloc)
        }
        Kind::ResizeInPlace { old, size } => (fits && is_first(old) && is_passed(size), StubKind::Alloc),
        Kind::Free { ptr, size } => (fits && is_first(ptr) && size.is_none_or(is_passed), StubKind::Free),
        Kind::AllocOut { success: Success::Length, .. } | Kind::GrowOut { .. } | Kind::Mapping(_) => return None,
    };
    fits.then_some(way)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::AllocatorTable;

    /// As the Itanium C++ ABI encodes their parameters.
    #[test]
    fn operators_have_size_and_alignment_where_their_symbols_say() {
        let table = AllocatorTable::new();
        let parameters_of = |function: &Function| {
            ["_ZdlPv", "_ZdaPv"].iter().find_map(|prefix| function.symbol.strip_prefix(prefix).map(str::to_owned))
        };
        let mut known = 0;
        for (_, function) in table.iter() {
            let Some(parameters) = parameters_of(function) else { continue };
            let size = parameters.starts_with('m').then_some(1);
            let align = parameters.contains("St11align_val_t").then_some(1 + size.unwrap_or(0));
            assert_eq!(told_of(function), Some(SizeOf::told(size, align)), "{}", function.symbol);
            known += 1;
        }
        assert!(known >= 8, "{known}");
    }
}
