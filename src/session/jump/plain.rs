//! Calls whose records become events by themselves: nothing but the function and the stack must be known of them.
//! Nearly all calls of nearly all programs are such; the rest take the way of [`Jump::take_record`].

use super::{Jump, LastFree};
use crate::allocators::{AllocatorTable, Arg, Family, Function, Kind as FunctionKind};
use crate::base::addr::{FunctionId, StackId};
use crate::event::Call;
use crate::event::calls::is_operator;
use crate::jump::layout::Kind;
use crate::jump::merge::{Record, RecordedStack};
use crate::session::observer::Observer;

/// What a call of such a function does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    /// It hands out a block of the size in this argument, times the other.
    Allocate { size: u8, count: Option<u8> },
    /// It gives back the block in its first argument, which has the size in this one.
    Free { size: Option<u8> },
}

/// A function whose calls are such.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PlainFunction {
    does: Does,
    /// Whether an operator that makes this call is known to be told no alignment.
    tells_operators: bool,
}

/// Arguments that a record has.
const RECORDED: u8 = 3;

impl PlainFunction {
    /// None if more must be known of its calls than their records tell.
    fn of(function: &Function, watches_deletes: bool) -> Option<Self> {
        let recorded = |arg: Arg| (arg.0 < RECORDED).then_some(arg.0);
        if function.align.is_some() || function.text.is_some() {
            return None;
        }
        let does = match function.kind {
            FunctionKind::Alloc { size, count: None } => Does::Allocate { size: recorded(size)?, count: None },
            FunctionKind::Alloc { size, count: Some(count) } => {
                Does::Allocate { size: recorded(size)?, count: Some(recorded(count)?) }
            }
            FunctionKind::Free { ptr: Arg(0), size: None } => Does::Free { size: None },
            FunctionKind::Free { ptr: Arg(0), size: Some(size) } => Does::Free { size: Some(recorded(size)?) },
            _ => return None,
        };
        let frees = matches!(does, Does::Free { .. });
        Some(Self { does, tells_operators: !frees || function.family.is_operator() || watches_deletes })
    }

    /// The alignment as [`Call::align`] has it.
    fn align(self, family: Option<Family>) -> Option<u64> {
        (self.tells_operators && is_operator(family)).then_some(0)
    }
}

/// The functions whose calls are such, by their numbers.
#[derive(Debug)]
pub(super) struct PlainFunctions(Vec<Option<PlainFunction>>);

impl PlainFunctions {
    /// Of all in the table.
    pub(super) fn of(table: &AllocatorTable) -> Self {
        Self(table.iter().map(|(_, function)| PlainFunction::of(function, table.watches_deletes())).collect())
    }

    #[inline]
    fn get(&self, function: u16) -> Option<PlainFunction> {
        self.0.get(usize::from(function)).copied().flatten()
    }
}

/// Tells the observer of a call that a record is of, where blocks are not sampled and nothing pauses. False if more
/// must be known of it.
#[inline]
pub(super) fn take(observer: &mut Observer, jump: &mut Jump, cell: u16, record: &Record, time_ns: u64) -> bool {
    let (id, is_walked) = match record.stack {
        RecordedStack::Known(id) => (StackId(id), true),
        RecordedStack::Caller(id) => (StackId(id), false),
        RecordedStack::Listed(_) | RecordedStack::Copied(_) => return false,
    };
    let Some(function) = jump.plain.get(record.function) else { return false };
    let argument = |at: u8| record.args.get(usize::from(at)).copied();
    let block = record.block();
    let Some(owner) = jump.cells.get_mut(usize::from(cell)).and_then(Option::as_mut) else { return false };
    let Some(facts) = jump.facts.latest(record.function, id).filter(|facts| facts.missed.is_none()) else {
        return false;
    };
    let by = Call {
        function: FunctionId(record.function),
        task: owner.task,
        stack: if is_walked { id } else { StackId::EMPTY },
        family: facts.family,
        align: function.align(facts.family),
        interval: 0,
    };
    match (record.kind, function.does) {
        (Kind::Ended, Does::Allocate { size, count }) if !block.is_null() => {
            let Some(size) = argument(size) else { return false };
            let Some(size) = size.checked_mul(count.map_or(Some(1), argument).unwrap_or(1)) else { return false };
            owner.last_free = None;
            observer.take_allocated(time_ns, block, size, &by);
        }
        (Kind::Freed, Does::Free { size }) if !block.is_null() && record.counted() == 0 => {
            let free = LastFree { function: record.function, block: block.0, caller: record.caller };
            if !owner.note_free(free, facts.caller_is_allocator) {
                let (told_size, told_align) = record.told().unzip();
                let align = told_align.filter(|_| is_operator(facts.family)).or(by.align);
                let size = size.map_or(told_size.flatten(), argument);
                observer.take_freed(time_ns, (block, facts.caller_is_allocator), size, &Call { align, ..by });
            }
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::addr::Addr;
    use crate::event::calls::{Operation, align_as_told};

    /// What is plain is what the general way says of the same call.
    #[test]
    fn a_plain_call_is_what_the_general_way_makes_of_it() {
        let table = AllocatorTable::new();
        let plain = PlainFunctions::of(&table);
        let args = [48, 3, 7, 0, 0, 0];
        let (mut allocating, mut freeing) = (0, 0);
        for (id, function) in table.iter() {
            let Some(known) = plain.get(id.0) else { continue };
            let operation = Operation::of(function.kind, &args);
            match known.does {
                Does::Allocate { size, count } => {
                    allocating += 1;
                    let size = args[usize::from(size)] * count.map_or(1, |count| args[usize::from(count)]);
                    assert_eq!(operation, Operation::Allocate { size }, "{}", function.name);
                }
                Does::Free { size } => {
                    freeing += 1;
                    assert_eq!(operation, Operation::Free { block: Addr(48) }, "{}", function.name);
                    let FunctionKind::Free { size: given, .. } = function.kind else { panic!("{}", function.name) };
                    assert_eq!(size.map(|at| args[usize::from(at)]), given.map(|given| given.of(&args)));
                }
            }
            for family in [None, Some(Family::Malloc), Some(Family::New), Some(Family::NewArray)] {
                let align = align_as_told(operation, function, &args, family, &table);
                assert_eq!(known.align(family), align, "{} {family:?}", function.name);
            }
        }
        assert!(allocating > 10 && freeing > 10, "{allocating} {freeing}");
        let id = |name: &str| table.iter().find(|(_, function)| *function.name == *name).unwrap().0.0;
        let [malloc, free, realloc] = ["malloc", "free", "realloc"].map(id);
        assert!(plain.get(malloc).is_some() && plain.get(free).is_some());
        assert!(plain.get(realloc).is_none(), "it may give a block back");
    }
}
