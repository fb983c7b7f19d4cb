//! What the routine can't do in a process on the jump engine, and why: one line a cause, for the summary.

use crate::base::addr::TaskId;
use crate::base::figures::{grouped, plural};
use crate::breakpoints::patches::own::EntryError;
use crate::jump::layout::{CELLS, NODES};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Why calls of a function are seen at stops.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Error)]
pub(in crate::session) enum Cause {
    /// Or it came later.
    #[error("the jump engine records the calls of one allocator only, the one in use when the engine started")]
    OtherModule,
    #[error("an exception may leave functions that --alloc-fn or --free-fn declares")]
    Declared,
    #[error(
        "an exception may leave the allocator's own operators new and delete, and the program may throw exceptions \
         from code without symbols"
    )]
    Operator,
    #[error("with sampling, the jump engine can't record functions that resize a block in place")]
    ResizesInPlace,
    #[error("it calls another allocator function, which does not get all of its arguments")]
    PassesOn,
    #[error("the jump engine can record only the first three arguments of a function")]
    Arguments,
    /// The program has unmapped it, or taken its rights away.
    #[error("memory that heaptrace had added to the program became unusable")]
    Unusable,
    #[error("threads ran while heaptrace let a child go for its parent to trace")]
    SetAside,
    #[error("the program has locked its memory (mlockall), and that would have locked the jump engine's memory, too")]
    Locked,
    #[error(transparent)]
    Entry(#[from] EntryError),
}

/// Why a thread has no cell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum NoCell {
    /// All are taken.
    Taken,
    /// It could not be found by its thread pointer, which is not like that of a thread of the C library.
    ThreadPointer,
}

/// What has become of a stack that was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copied {
    /// The routine can walk it next time.
    Published,
    /// It has a frame that the routine can't walk.
    Unwalkable,
    /// There is no room for its nodes.
    NoRoom,
}

/// Of so many calls of a thread that were seen at stops it is not told: the first ones of a program, before it has a
/// thread pointer.
const FEW_CALLS: u32 = 16;

/// What concerns fewer calls is not told, whatever their share.
const MIN_CALLS: u64 = 1000;

/// Nor what concerns less than one of so many.
const MIN_PART_DIVISOR: u64 = 100;

/// So many functions are named for a cause.
const NAMED: usize = 5;

/// See the module's head.
#[derive(Debug, Default)]
pub(in crate::session) struct Fallbacks {
    functions: BTreeMap<Cause, BTreeSet<String>>,
    /// How many of its calls were seen at stops.
    threads: FxHashMap<(NoCell, TaskId), u32>,
    /// Calls of threads with cells that were seen at stops.
    asks: u64,
    /// Calls whose stacks were copied, as they can't be walked.
    unwalkable: u64,
    /// Calls whose stacks were copied, as there is no room for their nodes.
    without_room: u64,
    /// These nodes.
    refused: u64,
}

impl Fallbacks {
    pub(super) fn note_function(&mut self, cause: Cause, name: &str) {
        let names = self.functions.entry(cause).or_default();
        if !names.contains(name) {
            names.insert(name.to_owned());
        }
    }

    pub(super) fn note_thread(&mut self, task: TaskId, why: NoCell) {
        let calls = self.threads.entry((why, task)).or_default();
        *calls = calls.saturating_add(1);
    }

    pub(super) fn note_ask(&mut self) {
        self.asks += 1;
    }

    /// `refused`: nodes that had no room until now.
    pub(super) fn note_copy(&mut self, copied: Copied, refused: u64) {
        match copied {
            Copied::Published => {}
            Copied::Unwalkable => self.unwalkable += 1,
            Copied::NoRoom => {
                self.without_room += 1;
                self.refused = refused;
            }
        }
    }

    /// What is worth telling of a process with so many events.
    pub(in crate::session) fn in_words(&self, events: u64) -> Vec<String> {
        let mut told: Vec<String> = self.functions.iter().map(|(cause, names)| of_functions(*cause, names)).collect();
        let threads = |why: NoCell| {
            let concerned = self.threads.iter().filter(|((known, _), calls)| *known == why && **calls > FEW_CALLS);
            let count = concerned.count() as u64;
            (count > 0).then(|| plural(count, "thread"))
        };
        if let Some(threads) = threads(NoCell::Taken) {
            told.push(format!(
                "calls of {threads} were recorded at stops, at least for a time, as the jump engine has room for \
                 {CELLS} threads at once"
            ));
        }
        if let Some(threads) = threads(NoCell::ThreadPointer) {
            told.push(format!(
                "calls of {threads} were recorded at stops, as the jump engine identifies a thread by its thread \
                 pointer (fs), which must point to itself, as in threads of the C library"
            ));
        }
        let relevant = |calls: u64| {
            let is_relevant = calls >= MIN_CALLS && calls.saturating_mul(MIN_PART_DIVISOR) > events;
            let percent = calls.saturating_mul(100).checked_div(events).unwrap_or(100).min(100);
            is_relevant.then(|| format!("{} ({percent} %)", plural(calls, "call")))
        };
        if let Some(calls) = relevant(self.unwalkable) {
            told.push(format!(
                "{calls} had stacks that the jump engine can't walk inside the program (code without unwind \
                 information, generated code, signal handlers): heaptrace copied and walked these stacks, which takes \
                 longer"
            ));
        }
        if let Some(calls) = relevant(self.without_room) {
            told.push(format!(
                "{calls} had stacks that heaptrace copied and walked, which takes longer: the jump engine's memory has \
                 room for {} frames of different stacks, and heaptrace found {} more (--max-depth makes them fewer)",
                grouped(NODES),
                grouped(self.refused)
            ));
        }
        if let Some(calls) = relevant(self.asks) {
            told.push(format!(
                "{calls} were still recorded at stops: their threads had changed stacks, as coroutines and signal \
                 handlers do, or had another call in progress when a signal came"
            ));
        }
        told
    }
}

fn of_functions(cause: Cause, names: &BTreeSet<String>) -> String {
    let mut named: Vec<String> = names.iter().take(NAMED).cloned().collect();
    if names.len() > NAMED {
        named.push(format!("{} other functions", names.len() - NAMED));
    }
    let last = named.pop().unwrap_or_default();
    let all = if named.is_empty() { last } else { format!("{} and {last}", named.join(", ")) };
    format!("the trap engine, not the jump engine, recorded calls of {all}, as {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(serial: u32) -> TaskId {
        TaskId { tid: 1, serial }
    }

    #[test]
    fn functions_with_one_cause_share_a_line() {
        let mut fallbacks = Fallbacks::default();
        for name in ["operator new", "operator delete", "operator new", "operator new[]"] {
            fallbacks.note_function(Cause::Operator, name);
        }
        fallbacks.note_function(EntryError::JumpsBack.into(), "malloc");
        let told = fallbacks.in_words(0);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].contains("calls of operator delete, operator new and operator new[], as an exception"),
            "{told:?}"
        );
        assert!(told[1].contains("calls of malloc, as ") && told[1].contains("branch"), "{told:?}");
        for number in 0..9 {
            fallbacks.note_function(Cause::Declared, &format!("take{number}"));
        }
        let told = fallbacks.in_words(0);
        assert!(told[0].contains("take0, take1, take2, take3, take4 and 4 other functions, as"), "{told:?}");
    }

    #[test]
    fn threads_are_counted_once_each() {
        let mut fallbacks = Fallbacks::default();
        for thread in 0..3 {
            (0..100).for_each(|_| fallbacks.note_thread(task(thread), NoCell::Taken));
        }
        // the first call of a program
        fallbacks.note_thread(task(0), NoCell::ThreadPointer);
        let told = fallbacks.in_words(300);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("3 threads") && told[0].contains("96 threads"), "{told:?}");
    }

    #[test]
    fn only_a_relevant_share_is_told() {
        let mut fallbacks = Fallbacks::default();
        for _ in 0..2000 {
            fallbacks.note_ask();
            fallbacks.note_copy(Copied::Unwalkable, 0);
            fallbacks.note_copy(Copied::Published, 0);
        }
        assert!(fallbacks.in_words(1_000_000).is_empty());
        let told = fallbacks.in_words(20_000);
        assert!(told.len() == 2 && told.iter().all(|told| told.contains("2,000 calls (10 %)")), "{told:?}");
        fallbacks.note_copy(Copied::NoRoom, 7000);
        assert!(fallbacks.in_words(1_000_000).is_empty(), "one call");
        (0..2000).for_each(|_| fallbacks.note_copy(Copied::NoRoom, 7000));
        let told = fallbacks.in_words(100_000);
        let text = "2,001 calls (2 %) had stacks that heaptrace copied";
        let frames = "room for 524,288 frames of different stacks, and heaptrace found 7,000 more";
        assert!(told.iter().any(|told| told.starts_with(text) && told.contains(frames)), "{told:?}");
    }
}
