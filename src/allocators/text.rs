//! Functions that hand out a block with a text in it, such as strdup and asprintf: no argument tells its size, the text
//! does.
//!
//! The C library's call its malloc. An allocator that brings its own has them use its inner functions, where no call is
//! seen.

use super::Arg;
use super::select::{AllocatorSymbol, ModuleSymbols};
use crate::base::addr::{Addr, ObjAddr};

/// Reads memory of the process from an address on, and returns how many bytes could be read.
pub type Read<'a> = dyn FnMut(Addr, &mut [u8]) -> usize + 'a;

/// Which text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Text {
    /// A copy of that at `from`, of `most` characters if it is told.
    Copied {
        /// Where the text is.
        from: Arg,
        /// How many characters are copied at most.
        most: Option<Arg>,
        /// The size of a character in bytes.
        unit: u8,
    },
    /// What the function finds out, with characters of a byte. With a non-null argument `unless` it writes there, and
    /// allocates nothing.
    Found {
        /// Where the caller's own memory is.
        unless: Option<Arg>,
    },
    /// What the function prints. It returns how many characters of a byte that are.
    Printed,
    /// A line of a file, in a block that the caller may have given (see [`super::Kind::GrowOut`]), with
    /// its size.
    Line,
}

/// What is read of a text at most, in bytes.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// So much is read at a time.
const PIECE: usize = 1024;

impl Text {
    /// The argument that the size is put into: what these functions have there says nothing of the block.
    pub const SIZE: Arg = Arg(5);

    /// The argument that the block is put into which the caller has given, if it has.
    pub const OLD: Arg = Arg(4);

    /// Whether a call with these arguments may allocate.
    pub fn allocates(self, args: &[u64; 6]) -> bool {
        match self {
            Self::Found { unless: Some(unless) } => unless.of(args) == 0,
            Self::Line => args.iter().take(2).all(|pointer| *pointer != 0),
            Self::Copied { .. } | Self::Found { unless: None } | Self::Printed => true,
        }
    }

    /// Puts into the arguments what is known at the entry: the size of the block that the call asks for, in bytes, or
    /// 0; and the block that the caller has given.
    pub fn complete(self, args: &mut [u64; 6], read: &mut Read<'_>) {
        let mut word = |at: u64| {
            let mut bytes = [0; 8];
            if read(Addr(at), &mut bytes) == bytes.len() { u64::from_le_bytes(bytes) } else { 0 }
        };
        let (old, size) = match self {
            Self::Copied { from, most, unit } => {
                let most = most.map_or(u64::MAX, |most| most.of(args));
                (None, size_of(Addr(from.of(args)), most, unit, read).unwrap_or(0))
            }
            Self::Found { .. } | Self::Printed => (None, 0),
            Self::Line => (Some(word(args[0])), word(args[1])),
        };
        args[usize::from(Self::SIZE.0)] = size;
        if let Some(old) = old {
            args[usize::from(Self::OLD.0)] = old;
        }
    }

    /// Whether only the return of a call tells the size of its block.
    pub const fn is_sized_at_return(self) -> bool {
        match self {
            Self::Found { .. } | Self::Printed | Self::Line => true,
            Self::Copied { .. } => false,
        }
    }

    /// The size in bytes of the block that a call has handed out which returned `result`, if it was not known before.
    pub fn size_at_return(self, block: Addr, result: u64, read: &mut Read<'_>) -> Option<u64> {
        match self {
            Self::Copied { .. } | Self::Line => None,
            Self::Found { .. } => Some(size_of(block, u64::MAX, 1, read).unwrap_or(0)),
            // an int, which is negative where nothing was printed; and the end of the text
            Self::Printed => u64::try_from(result as i32).ok().map(|length| length + 1),
        }
    }
}

/// What the text at `from` takes in bytes, of `most` characters at most, with its end. None if it can't be read.
fn size_of(from: Addr, most: u64, unit: u8, read: &mut Read<'_>) -> Option<u64> {
    let unit = u64::from(unit.max(1));
    let most = most.min(MAX_TEXT_BYTES / unit);
    let mut piece = [0; PIECE];
    let mut length = 0;
    while length < most {
        let at = from.add(length * unit);
        // not across the end of a page: the next one may not be there
        let wanted = usize::try_from(PIECE as u64 - at.0 % PIECE as u64).ok()?;
        let wanted = wanted.max(usize::try_from(unit).ok()?);
        let piece = piece.get_mut(..wanted)?;
        let count = read(at, piece);
        let characters = piece.get(..count)?.chunks_exact(usize::try_from(unit).ok()?);
        let count = characters.len() as u64;
        if let Some(end) = characters.into_iter().position(|character| character.iter().all(|byte| *byte == 0)) {
            return Some(((length + end as u64).min(most) + 1) * unit);
        }
        if count == 0 {
            return None;
        }
        length += count;
    }
    Some((most + 1) * unit)
}

/// Whether one of these functions, at `addr` in a module, is an allocator's: the C library's calls malloc. A program
/// may hold both.
pub(super) fn is_allocators_own(addr: ObjAddr, module: &ModuleSymbols, provides_malloc: bool) -> bool {
    let is_mimallocs = |symbol: &AllocatorSymbol| symbol.addr == addr && symbol.name.starts_with("mi_");
    provides_malloc && (!module.is_c_library || module.symbols.iter().any(is_mimallocs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x10_0000 - 10;

    /// Memory of one mapping.
    fn reader(bytes: Vec<u8>) -> impl FnMut(Addr, &mut [u8]) -> usize {
        move |addr, out| {
            let Some(rest) = addr.0.checked_sub(START).and_then(|at| bytes.get(at as usize..)) else { return 0 };
            let count = rest.len().min(out.len());
            out[..count].copy_from_slice(&rest[..count]);
            count
        }
    }

    /// What stands for the size at an entry.
    fn size(text: Text, mut args: [u64; 6], read: &mut Read<'_>) -> u64 {
        text.complete(&mut args, read);
        Text::SIZE.of(&args)
    }

    #[test]
    fn a_text_is_as_long_as_it_is_with_its_end() {
        let text = [vec![b'x'; 3000], vec![0]].concat();
        let mut memory = reader(text);
        let of = |most| Text::Copied { from: Arg(0), most, unit: 1 };
        let args = |most| [START, most, 0, 0, 0, 0];
        assert_eq!(size(of(None), args(7), &mut memory), 3001);
        assert_eq!(size(of(Some(Arg(1))), args(7), &mut memory), 8);
        assert_eq!(size(of(Some(Arg(1))), args(3000), &mut memory), 3001);
        assert_eq!(size(of(Some(Arg(1))), args(u64::MAX), &mut memory), 3001);
        assert_eq!(size(of(Some(Arg(1))), args(0), &mut memory), 1);
        let found = Text::Found { unless: Some(Arg(1)) };
        assert_eq!(size(found, args(0), &mut memory), 0);
        assert_eq!(found.size_at_return(Addr(START), 7, &mut memory), Some(3001));
        assert!(found.allocates(&args(0)) && !found.allocates(&args(1)));
    }

    #[test]
    fn wide_characters_end_where_all_bytes_of_one_are_zero() {
        let mut memory = reader([[1, 0, 0, 0], [0, 1, 0, 0], [0; 4]].concat());
        let wide = Text::Copied { from: Arg(0), most: None, unit: 4 };
        assert_eq!(size(wide, [START, 0, 0, 0, 0, 0], &mut memory), 12);
        // without an end it can't be read
        let mut endless = reader(vec![1; 40]);
        assert_eq!(size(wide, [START, 0, 0, 0, 0, 0], &mut endless), 0);
    }

    #[test]
    fn what_a_caller_has_given_for_a_line_is_read_at_the_entry() {
        let mut memory = reader([0x5000_u64.to_le_bytes(), 120_u64.to_le_bytes()].concat());
        let mut args = [START, START + 8, 7, 7, 7, 7];
        assert!(Text::Line.allocates(&args) && !Text::Line.allocates(&[START, 0, 7, 7, 7, 7]));
        Text::Line.complete(&mut args, &mut memory);
        assert_eq!((Text::OLD.of(&args), Text::SIZE.of(&args)), (0x5000, 120));
        // nothing there can be read
        Text::Line.complete(&mut args, &mut reader(Vec::new()));
        assert_eq!((Text::OLD.of(&args), Text::SIZE.of(&args)), (0, 0));
    }

    #[test]
    fn what_is_printed_has_a_length_that_is_an_int() {
        let size = |result: u64| Text::Printed.size_at_return(Addr(START), result, &mut |_, _| 0);
        assert_eq!((size(0xdead_0000_0007), size(0)), (Some(8), Some(1)));
        assert_eq!(size(i32::MAX as u64), Some(1 << 31));
        // the upper half is undefined
        assert_eq!((size(0xffff_ffff), size(u64::MAX), size(0x8000_0000)), (None, None, None));
    }
}
