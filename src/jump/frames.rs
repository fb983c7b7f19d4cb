//! The calls in progress, as the threads' cells tell them.

use super::layout::{
    CELL_DEPTH, CELL_FRAMES, CELLS, COPIES, COPY_BITS, FLAG_BEGAN, FLAG_COPY, FRAME_ARGS, FRAME_CALLER, FRAME_SIZE,
    FRAME_SLOT, FRAME_WHAT, FRAMES, PICKED_SHIFT, cell_at,
};
use super::merge::{RecordedStack, function_of};
use super::shared::Shared;
use crate::base::addr::Addr;

/// One call in progress, as its thread has noted it. The program can write there, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The cell that holds it.
    pub cell: u16,
    /// Its place in the cell.
    pub index: u32,
    /// Where the return address lay on the stack.
    pub slot: Addr,
    /// The return address.
    pub caller: Addr,
    /// The first three arguments.
    pub args: [u64; 3],
    /// See [`FRAME_WHAT`].
    pub what: u64,
}

impl Frame {
    fn read(shared: &dyn Shared, cell: u16, index: u32) -> Self {
        let at = cell_at(cell.into()) + CELL_FRAMES + u64::from(index) * FRAME_SIZE;
        Self {
            cell,
            index,
            slot: Addr(shared.word(at + FRAME_SLOT)),
            caller: Addr(shared.word(at + FRAME_CALLER)),
            args: [0, 8, 16].map(|arg| shared.word(at + FRAME_ARGS + arg)),
            what: shared.word(at + FRAME_WHAT),
        }
    }

    /// The number of the function.
    pub const fn function(&self) -> u16 {
        function_of(self.what)
    }

    /// The number of the interval that the call was picked with; 0: it was not; [`COUNTED`](super::layout::COUNTED).
    pub const fn picked(&self) -> u64 {
        self.what >> PICKED_SHIFT
    }

    /// What is known of the stack.
    pub const fn stack(&self) -> RecordedStack {
        RecordedStack::of(self.what)
    }

    /// The copy slot that holds its stack, if one does.
    pub const fn copy(&self) -> Option<u32> {
        copy_in(self.what)
    }
}

/// Where a frame lies in the shared region.
pub const fn frame_at(cell: u16, index: u32) -> u64 {
    cell_at(cell as u64) + CELL_FRAMES + index as u64 * FRAME_SIZE
}

/// The copy slot that a record's or frame's word names.
pub const fn copy_in(what: u64) -> Option<u32> {
    if what & FLAG_COPY != 0 { Some(what as u32 % COPIES as u32) } else { None }
}

/// How many frames of the cell are in use.
pub fn depth(shared: &dyn Shared, cell: u16) -> u32 {
    shared.half(cell_at(cell.into()) + CELL_DEPTH).min(FRAMES as u32)
}

/// From now on so many frames of the cell are in use.
pub fn set_depth(shared: &dyn Shared, cell: u16, depth: u32) {
    shared.set_half(cell_at(cell.into()) + CELL_DEPTH, depth);
}

/// The calls in progress of a cell, the oldest first.
pub fn of_cell(shared: &dyn Shared, cell: u16) -> Vec<Frame> {
    let all = (0..depth(shared, cell)).map(|index| Frame::read(shared, cell, index));
    all.filter(|frame| !frame.slot.is_null()).collect()
}

/// The call whose return address lay at `slot`: in the thread's own cell, or in any, whatever its depth says.
pub fn at_slot(shared: &dyn Shared, own: Option<u16>, slot: Addr) -> Option<Frame> {
    let of_own = own.and_then(|cell| of_cell(shared, cell).into_iter().rev().find(|frame| frame.slot == slot));
    let mut anywhere = (0..CELLS as u16).flat_map(|cell| (0..FRAMES as u32).map(move |index| (cell, index)));
    of_own.or_else(|| {
        let (cell, index) = anywhere.find(|(cell, index)| {
            let at = cell_at((*cell).into()) + CELL_FRAMES + u64::from(*index) * FRAME_SIZE;
            shared.word(at + FRAME_SLOT) == slot.0
        })?;
        Some(Frame::read(shared, cell, index))
    })
}

/// Forgets a call in progress, and those of its cell that began after it: these are dead.
pub fn forget(shared: &dyn Shared, own: Option<u16>, frame: &Frame) {
    shared.set_word(frame_at(frame.cell, frame.index) + FRAME_SLOT, 0);
    if own == Some(frame.cell) {
        for dead in of_cell(shared, frame.cell).into_iter().filter(|other| other.index > frame.index) {
            if let Some(copy) = dead.copy().filter(|_| dead.what & FLAG_BEGAN == 0) {
                release_copy(shared, copy);
            }
            shared.set_word(frame_at(dead.cell, dead.index) + FRAME_SLOT, 0);
        }
        set_depth(shared, frame.cell, frame.index);
    }
}

/// Gives a copy slot back.
pub fn release_copy(shared: &dyn Shared, copy: u32) {
    loop {
        let bits = shared.word(COPY_BITS);
        if shared.replace_word(COPY_BITS, bits, bits & !(1 << (u64::from(copy) % COPIES))) {
            return;
        }
    }
}
