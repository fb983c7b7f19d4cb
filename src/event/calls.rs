//! Pairs the entry of an allocator function with its return, thread by thread, and turns them into heap events.
//!
//! Pure: no process is touched. The session tells what it saw ([`Calls::classify`], [`Calls::enter`],
//! [`Calls::leave`]) and carries out what the answers ask for. The rules:
//!
//! * a free counts at entry, an allocation at return;
//! * the outermost allocator function names the call; calls of the allocator to itself and tail jumps are part of it;
//! * a function that branches back to its first instruction is in the call that it was in, with the arguments that its
//!   caller gave; but one that frees, and comes there with another block, frees that, too: it has called itself by a
//!   jump;
//! * a signal handler's, new-handler's or hook's own call is a call of its own;
//! * frames that a longjmp, an exception or a dead thread left behind are dropped and counted.

mod frames;
mod mapping;
mod outcome;
mod passed_on;

use crate::allocators::{AllocatorTable, Family, Function, Kind};
use crate::base::addr::{Addr, FunctionId, ModuleId, StackId, TaskId};
use crate::event::{Call, EventKind, Missed};
use frames::{Frames, PendingCall, Verdict};
pub use mapping::MapCall;
pub use outcome::{Operation, Recorded, Returned, outcome};
pub use passed_on::ToldOfBlock;
use passed_on::{DeleteArguments, LastFree, NewArguments};
use rustc_hash::FxHashMap;

/// A thread has arrived at the first instruction of a probed function.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The thread.
    pub task: TaskId,
    /// The function entered.
    pub function: FunctionId,
    /// Its six integer register arguments.
    pub args: [u64; 6],
    /// The stack pointer at entry: it points at the return address.
    pub sp: u64,
    /// The return address, read from the stack.
    pub return_addr: Addr,
    /// The module of the function entered.
    pub module: ModuleId,
    /// The module that the return address lies in.
    pub caller_module: ModuleId,
    /// Whether the allocator's own code has made the call: the return address lies in a module that has probes, or,
    /// where the program and its allocator share one module (static linking), in a function that has one; and the
    /// function called there is none of the C++ runtime's, as for an exception's object.
    pub caller_is_allocator: bool,
    /// Whether the function entered only passes the call on to another one with a probe: its arguments are of interest,
    /// the call is not.
    pub is_wrapper: bool,
    /// The wrapper that has made the call, or that was entered itself: where it begins.
    pub wrapper: Option<Addr>,
    /// Whether the function branches back to its first instruction, so that this may be no call but the next round of
    /// one.
    pub loops_to_entry: bool,
    /// The family of the function that the program called, for [`Call::family`]; None if it can't be told.
    pub family: Option<Family>,
    /// See [`Call::interval`].
    pub interval: u64,
}

/// A thread has arrived at a watched return address.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// The thread.
    pub task: TaskId,
    /// The return address.
    pub site: Addr,
    /// The stack pointer there: the return address has been popped.
    pub sp: u64,
    /// What the call has returned. Where [`Calls::out_argument`] says so, the engine has read the block's address.
    pub returned: Returned,
}

/// Questions that only the session can answer, asked in rare cases only.
pub trait CallContext {
    /// Whether the two stack pointers lie in one memory mapping, so that "deeper" has a meaning.
    fn same_stack(&mut self, a: u64, b: u64) -> bool;
    /// Whether a signal frame lies between the entry at hand and the frame whose entry stack pointer was
    /// `outer_sp`: the entry then belongs to a signal handler. Walks the stack.
    fn signal_frame_between(&mut self, outer_sp: u64) -> bool;
}

/// What an entry turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Classified {
    /// Part of the allocator call in progress on this thread, or without effect (`free(NULL)`): resume.
    Nothing,
    /// A call of its own: unwind the stack, then [`Calls::enter`] it.
    Outermost,
}

/// What [`Calls::enter`] wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entered {
    /// The return address that must be watched, so that [`Calls::leave`] learns the result. None if nothing is to be
    /// learnt there: a free, but of a function that the user has declared, or that may come to its entry once more.
    pub watch: Option<Addr>,
}

/// What [`Calls::leave`] made of a return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReturnMatch {
    /// No call in progress on this thread returns here at this stack depth: another function's return, or a jump.
    Spurious,
    /// It ended a call.
    Matched,
}

/// Receives the events.
pub type Emit<'a> = dyn FnMut(EventKind) + 'a;

/// The calls in progress of all threads.
///
/// A free is known at its entry and leaves nothing pending, but in a function that the user has declared or that
/// branches back to its entry. After [`Classified::Outermost`] the caller must `enter` the same entry before anything
/// else happens on that thread.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    tasks: FxHashMap<u32, Frames>,
    /// Where calls would have returned that will not.
    dropped_sites: Vec<Addr>,
    /// Calls of threads that have ended in them. Only if the program goes on after that has anything been lost.
    ended: u64,
}

impl Calls {
    /// No thread, no call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells what an entry is, and drops the frames that it proves dead.
    pub fn classify(
        &mut self,
        entry: &Entry,
        table: &AllocatorTable,
        context: &mut dyn CallContext,
        emit: &mut Emit<'_>,
    ) -> Classified {
        let Some(function) = table.get(entry.function) else { return Classified::Nothing };
        let freed = match function.kind {
            Kind::Free { ptr, .. } => Some(Addr(ptr.of(&entry.args))),
            _ => None,
        };
        if entry.is_wrapper {
            let frames = self.tasks.entry(entry.task.serial).or_default();
            let align = function.align.map_or(0, |align| align.of(&entry.args));
            match function.kind {
                Kind::Free { ptr, size } => {
                    let (block, size) = (Addr(ptr.of(&entry.args)), size.map(|size| size.of(&entry.args)));
                    let given = DeleteArguments { block, size, align, sp: entry.sp };
                    frames.delete_arguments = Some(given.after(frames.delete_arguments, entry));
                }
                Kind::Alloc { size, .. } => {
                    let size = size.of(&entry.args);
                    frames.new_arguments = Some(NewArguments { size, align, sp: entry.sp, wrapper: entry.wrapper });
                }
                Kind::AllocOut { .. }
                | Kind::GrowOut { .. }
                | Kind::Realloc { .. }
                | Kind::ResizeInPlace { .. }
                | Kind::Mapping(_) => {}
            }
            return Classified::Nothing;
        }
        let is_nothing = match function.kind {
            Kind::Mapping(function) => match MapCall::of(function, &entry.args) {
                None => true,
                // What it unmaps may be the program's, which has given it the memory.
                Some(MapCall::Unmap { .. }) => false,
                // Another module's allocator maps its memory by the C library's functions at any time, not only when it
                // is called.
                Some(_) => entry.caller_is_allocator && entry.caller_module != entry.module,
            },
            _ => freed == Some(Addr::NULL),
        };
        if is_nothing {
            return Classified::Nothing;
        }
        let Some(frames) = self.tasks.get_mut(&entry.task.serial) else { return Classified::Outermost };
        if freed.is_some_and(|block| frames.last_free.is_some_and(|last| last.is_same_free(entry, block))) {
            return Classified::Nothing;
        }
        match frames.relate_to_pending(
            entry,
            freed,
            context,
            &mut Dropping { dropped_sites: &mut self.dropped_sites, emit },
        ) {
            Verdict::PartOfCall => Classified::Nothing,
            Verdict::Independent => Classified::Outermost,
        }
    }

    /// What the call is about that [`Calls::classify`] found to be one of its own, before its stack is known.
    pub fn operation_at(&self, entry: &Entry, table: &AllocatorTable) -> Option<Operation> {
        let asked = self.tasks.get(&entry.task.serial).and_then(|frames| frames.new_arguments);
        let asked = asked.filter(|asked| asked.is_near(entry));
        table.get(entry.function).map(|function| Operation::of(function.kind, &entry.args).as_asked(asked))
    }

    /// Begins a call that [`Calls::classify`] found to be one of its own. `stack` is the stack at its entry, or the
    /// empty one if nothing is `recorded` of it.
    pub fn enter(
        &mut self,
        entry: &Entry,
        stack: StackId,
        recorded: Recorded,
        table: &AllocatorTable,
        emit: &mut Emit<'_>,
    ) -> Entered {
        let Some(function) = table.get(entry.function) else { return Entered { watch: None } };
        self.count_calls_of_ended(emit);
        if let Operation::Mapping(call) = Operation::of(function.kind, &entry.args) {
            return call.map_or(Entered { watch: None }, |call| self.enter_mapping(entry, call, stack, emit));
        }
        let declared = table.is_declared(entry.function) || function.text.is_some();
        let frames = self.tasks.entry(entry.task.serial).or_default();
        frames.last_free = None;
        let delete_arguments = frames.delete_arguments.take();
        let new_arguments = frames.new_arguments.filter(|asked| asked.is_passed_on(entry));
        let operation = Operation::of(function.kind, &entry.args).as_asked(new_arguments);
        let by_itself = align_as_told(operation, function, &entry.args, entry.family, table);
        let align = match (operation, function.align) {
            (_, Some(_)) => by_itself,
            (Operation::Free { block }, None) => match delete_arguments.filter(|_| is_operator(entry.family)) {
                Some(given) => given.is_passed_on(entry, block).then_some(given.align),
                None => by_itself,
            },
            _ => new_arguments.map(|asked| asked.align).or(by_itself),
        };
        let by = Call {
            function: entry.function,
            task: entry.task,
            stack,
            family: entry.family,
            align,
            interval: entry.interval,
        };
        if let Operation::Free { block } = operation {
            let given_size = match function.kind {
                Kind::Free { size: Some(size), .. } => Some(size.of(&entry.args)),
                _ => delete_arguments.filter(|given| given.is_passed_on(entry, block)).and_then(|given| given.size),
            };
            if recorded == Recorded::All {
                emit(EventKind::Freed { block, internal: entry.caller_is_allocator, given_size, by });
            }
            // A declared function may free other blocks by functions that have probes: those calls are parts of
            // it, which only its return bounds. So are the rounds of one that comes to its first instruction again.
            if !declared {
                frames.last_free = Some(LastFree::of(entry, block));
                if !entry.loops_to_entry {
                    return Entered { watch: None };
                }
            }
        }
        if let Some(old) = operation.resizes_from_entry() {
            recorded.of(EventKind::ReallocBegan { old, by }).into_iter().for_each(&mut *emit);
        }
        self.adopt(entry, operation, &by, (recorded, declared), emit);
        Entered { watch: Some(entry.return_addr) }
    }

    fn enter_mapping(&mut self, entry: &Entry, call: MapCall, stack: StackId, emit: &mut Emit<'_>) -> Entered {
        let Entry { function, task, family, .. } = *entry;
        let by = Call { function, task, stack, family, align: None, interval: 0 };
        if let Some(change) = call.begun() {
            emit(EventKind::Mapping { change, by });
        }
        if call.is_told_at_entry() {
            return Entered { watch: None };
        }
        self.adopt(entry, Operation::Mapping(Some(call)), &by, (Recorded::All, false), emit);
        Entered { watch: Some(entry.return_addr) }
    }

    /// Takes a call over in the middle: its entry has been told, by whatever engine, its return has not. `declared`: by
    /// the user, see [`AllocatorTable::is_declared`].
    pub fn adopt(
        &mut self,
        entry: &Entry,
        operation: Operation,
        by: &Call,
        (recorded, declared): (Recorded, bool),
        emit: &mut Emit<'_>,
    ) {
        let frames = self.tasks.entry(entry.task.serial).or_default();
        let call = PendingCall::of(entry, operation, by, recorded, declared);
        frames.push(call, &mut Dropping { dropped_sites: &mut self.dropped_sites, emit });
    }

    /// Where the block's address is to be read before [`Self::leave`] is told of a return to `site` with the stack
    /// pointer `sp`.
    pub fn out_argument(&self, task: TaskId, site: Addr, sp: u64) -> Option<Addr> {
        self.operation_ending(task, site, sp)?.out_argument()
    }

    /// What the call is about that ends with a return to `site` with the stack pointer `sp`, before [`Self::leave`] is
    /// told of it.
    pub fn operation_ending(&self, task: TaskId, site: Addr, sp: u64) -> Option<Operation> {
        let owner = self.owner_of_return(task, site, sp)?;
        Some(self.tasks.get(&owner)?.returning(site, sp)?.operation)
    }

    /// The function whose call ends so.
    pub fn function_ending(&self, task: TaskId, site: Addr, sp: u64) -> Option<FunctionId> {
        let owner = self.owner_of_return(task, site, sp)?;
        Some(self.tasks.get(&owner)?.returning(site, sp)?.function)
    }

    /// By its serial number, the thread in whose call that is which returns to `site` at `sp` in `task`: its own, or
    /// another one's, as a fiber goes on where it is resumed.
    fn owner_of_return(&self, task: TaskId, site: Addr, sp: u64) -> Option<u32> {
        let returns = |frames: &Frames| frames.returning(site, sp).is_some();
        if self.tasks.get(&task.serial).is_some_and(returns) {
            return Some(task.serial);
        }
        self.tasks.iter().find(|(_, frames)| returns(frames)).map(|(serial, _)| *serial)
    }

    /// The call that is about to end is recorded with its new block, which was picked with this interval in bytes (see
    /// [`Call::interval`]). Returns the call's stack if nothing was to be recorded of it before.
    pub fn pick_at_return(&mut self, at: &Return, interval: u64) -> Option<StackId> {
        let owner = self.owner_of_return(at.task, at.site, at.sp)?;
        let call = self.tasks.get_mut(&owner)?.returning_mut(at.site, at.sp)?;
        let was_recorded = call.recorded != Recorded::Failure;
        call.recorded = call.recorded.with_new_block();
        call.interval = interval;
        (!was_recorded).then_some(call.call().stack)
    }

    /// Ends a call. It matches only if the stack pointer is where this call's entry left it; calls that began later on
    /// this thread and have not returned will not any more: they are dropped.
    pub fn leave(&mut self, at: &Return, emit: &mut Emit<'_>) -> ReturnMatch {
        let owner = self.owner_of_return(at.task, at.site, at.sp).unwrap_or(at.task.serial);
        let Some(frames) = self.tasks.get_mut(&owner) else { return ReturnMatch::Spurious };
        let dropping = &mut Dropping { dropped_sites: &mut self.dropped_sites, emit };
        let call = if owner == at.task.serial { frames.pop(at, dropping) } else { frames.take(at) };
        let Some(call) = call else { return ReturnMatch::Spurious };
        frames.last_free = None;
        outcome(call.operation, at.returned, call.call(), &mut |event| {
            call.recorded.of(event).into_iter().for_each(&mut *dropping.emit);
        });
        ReturnMatch::Matched
    }

    /// A signal is about to be delivered to the thread: what it calls next may be the handler's own.
    pub fn signal_delivered(&mut self, task: TaskId) {
        if let Some(frames) = self.tasks.get_mut(&task.serial) {
            frames.interrupt();
        }
    }

    /// The latest call of the thread can't be followed to its end, as no breakpoint can be set at its return address.
    /// It is taken to succeed, as nearly all calls do.
    pub fn give_up_latest(&mut self, task: TaskId, emit: &mut Emit<'_>) {
        if let Some(call) = self.tasks.get_mut(&task.serial).and_then(Frames::pop_latest) {
            outcome::unseen_outcome(call.operation, call.call(), &mut |event| {
                call.recorded.of(event).into_iter().for_each(&mut *emit);
            });
        }
    }

    /// The latest call of the thread has not begun yet: the thread will come to its entry once more.
    pub fn take_back_latest(&mut self, task: TaskId, emit: &mut Emit<'_>) {
        if let Some(call) = self.tasks.get_mut(&task.serial).and_then(Frames::pop_latest)
            && let Some(old) = call.operation.resizes_from_entry()
        {
            call.recorded.of(EventKind::ReallocAbandoned { old, task }).into_iter().for_each(emit);
        }
    }

    /// The thread has ended: its calls will not return.
    pub fn task_ended(&mut self, task: TaskId, emit: &mut Emit<'_>) {
        if let Some(mut frames) = self.tasks.remove(&task.serial) {
            let ended = &mut self.ended;
            let hold_back = &mut |event| match event {
                EventKind::Missed(Missed::Return) => *ended += 1,
                event => emit(event),
            };
            frames.drop_all(Some(task), &mut Dropping { dropped_sites: &mut self.dropped_sites, emit: hold_back });
        }
    }

    /// Calls went unseen for a while: those that had begun before may have returned, and others of their threads may
    /// return to the same places.
    pub fn forget_all(&mut self, emit: &mut Emit<'_>) {
        // a gap is told as such
        let hold_back = &mut |event| match event {
            EventKind::Missed(Missed::Return) => {}
            event => emit(event),
        };
        let mut all: Vec<Frames> = std::mem::take(&mut self.tasks).into_values().collect();
        all.sort_unstable_by_key(Frames::owner);
        for frames in &mut all {
            frames.drop_all(None, &mut Dropping { dropped_sites: &mut self.dropped_sites, emit: hold_back });
        }
    }

    /// The program has gone on since its threads ended: theirs were not ends of the whole.
    fn count_calls_of_ended(&mut self, emit: &mut Emit<'_>) {
        for _ in 0..std::mem::take(&mut self.ended) {
            emit(EventKind::Missed(Missed::Return));
        }
    }

    /// The calls of another process, whose only thread `child` came to be as a copy of `parent`: it is in the same
    /// calls.
    #[must_use]
    pub fn fork(&self, parent: TaskId, child: TaskId) -> Self {
        let frames = self.tasks.get(&parent.serial).map(|frames| (child.serial, frames.of_copy(child)));
        Self { tasks: frames.into_iter().collect(), ..Self::default() }
    }

    /// Where calls that were dropped since the last question would have returned.
    pub fn take_dropped_sites(&mut self) -> Vec<Addr> {
        std::mem::take(&mut self.dropped_sites)
    }

    /// Whether any thread is in a call that returns to `site`.
    pub fn awaits(&self, site: Addr) -> bool {
        self.tasks.values().any(|frames| frames.return_to(site))
    }

    /// Whether something is known of the thread that concerns its next call: it is in a call, or an operator has told
    /// what it was asked for.
    pub fn concerns_next(&self, task: TaskId) -> bool {
        self.tasks.get(&task.serial).is_some_and(|frames| !frames.is_empty() || frames.was_told())
    }

    /// Whether that is what an operator has told, and nothing else.
    pub fn was_told_only(&self, task: TaskId) -> bool {
        self.tasks.get(&task.serial).is_some_and(|frames| frames.is_empty() && frames.was_told())
    }

    /// An operator that passes its call on to the function that the thread calls next, at `sp`, has told so much of a
    /// block.
    pub fn tell(&mut self, task: TaskId, told: ToldOfBlock, sp: u64) {
        self.tasks.entry(task.serial).or_default().delete_arguments = Some(told.at(sp));
    }

    /// What an operator has told is forgotten: its call has been made.
    pub fn forget_told(&mut self, task: TaskId) {
        if let Some(frames) = self.tasks.get_mut(&task.serial) {
            frames.forget_told();
        }
    }

    /// Whether any thread is in a call whose return is awaited.
    pub fn any_pending(&self) -> bool {
        self.tasks.values().any(|frames| !frames.is_empty())
    }

    /// Whether the thread is in a call whose return is awaited.
    #[cfg(test)]
    pub fn pending(&self, task: TaskId) -> bool {
        self.tasks.get(&task.serial).is_some_and(|frames| !frames.is_empty())
    }
}

/// What happens to calls that will not return.
struct Dropping<'a, 'b> {
    dropped_sites: &'a mut Vec<Addr>,
    emit: &'a mut Emit<'b>,
}

impl Dropping<'_, '_> {
    fn drop(&mut self, call: &PendingCall, task: TaskId) {
        if !call.is_told() {
            (self.emit)(EventKind::Missed(Missed::Return));
        }
        self.dropped_sites.push(call.site);
        if let Some(old) = call.operation.resizes_from_entry() {
            call.recorded.of(EventKind::ReallocAbandoned { old, task }).into_iter().for_each(&mut *self.emit);
        }
    }
}

/// The alignment that an operator was asked for, or told, as far as the call itself says it: 0 for one without, None if
/// another function was called, or nobody saw which.
pub fn align_as_told(
    operation: Operation,
    function: &Function,
    args: &[u64; 6],
    family: Option<Family>,
    table: &AllocatorTable,
) -> Option<u64> {
    match (operation, function.align) {
        (_, Some(align)) => Some(align.of(args)),
        // The operator itself has a probe, or would have told if it was told an alignment.
        (Operation::Free { .. }, None) => {
            (is_operator(family) && (function.family.is_operator() || table.watches_deletes())).then_some(0)
        }
        _ => is_operator(family).then_some(0),
    }
}

/// Whether the call is one of operator new or delete, or made by one.
pub fn is_operator(family: Option<Family>) -> bool {
    family.is_some_and(Family::is_operator)
}

#[cfg(test)]
mod tests;
