//! Memory that is read from one end to the other, half of it ahead of time by a second thread: the kernel's copying
//! takes most of the time of a walk over many small blocks.

use crate::base::addr::Addr;
use crate::base::memory::{ReadAgain, ReadMemory};
use crate::image::maps::Mapping;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};

/// Pieces are of so many bytes, and begin at multiples of it.
const PIECE: u64 = 1 << 20;
/// So many are kept: the one that is read, the one before, and the one ahead.
const KEPT: usize = 3;
/// Smaller readings are of words here and there.
const MIN_READING: usize = 16 << 10;
/// So many readings, each near behind the one before, are a way from one end to the other.
const STEADY: u32 = 8;

/// A reader of `memory` that has the next piece read by a thread of `scope`, where one can be had, as soon as somebody
/// reads one part behind the other. What it has read is kept for a while: it is for memory that nobody changes
/// meanwhile, or of which torn parts are expected. No mapping is read that nobody asks for: to read some takes long, or
/// has somebody serve it who stands still.
pub(super) struct Prefetch<'scope, 'env, M> {
    memory: &'env mut M,
    scope: &'scope Scope<'scope, 'env>,
    /// The mappings, ascending.
    mappings: Vec<Range<u64>>,
    helper: Helper,
    /// The pieces that were read last: which, and their bytes up to the first that can't be read.
    pieces: VecDeque<Piece>,
    /// Where the last reading was, and how many followed each other.
    last: u64,
    steady: u32,
}

/// A part of a mapping, and what was read of it.
type Piece = (Range<u64>, Vec<u8>);

/// The thread that reads ahead.
enum Helper {
    /// It was not needed yet.
    None,
    /// It is there, and reads this piece, if any.
    Works { ask: Sender<Range<u64>>, answers: Receiver<Piece>, asked: Option<Range<u64>> },
    /// There can't be one.
    Refused,
}

impl<'scope, 'env, M: ReadAgain + 'env> Prefetch<'scope, 'env, M> {
    pub(super) fn new(memory: &'env mut M, mappings: &[Mapping], scope: &'scope Scope<'scope, 'env>) -> Self {
        let mappings = mappings.iter().map(|mapping| mapping.start.0..mapping.end.0).collect();
        Self { memory, scope, mappings, helper: Helper::None, pieces: VecDeque::new(), last: 0, steady: 0 }
    }

    /// The piece that holds `at`, and whether its mapping goes on behind it.
    fn piece_at(&self, at: u64) -> Option<(Range<u64>, bool)> {
        let mapping = self.mappings.get(self.mappings.partition_point(|mapping| mapping.end <= at))?;
        let start = at - at % PIECE;
        let end = start.saturating_add(PIECE).min(mapping.end);
        mapping.contains(&at).then(|| (start.max(mapping.start)..end, end < mapping.end))
    }

    /// Has a piece read by the thread.
    fn ask(&mut self, piece: Range<u64>) {
        if matches!(self.helper, Helper::None) {
            self.helper = self.begin().unwrap_or(Helper::Refused);
        }
        if let Helper::Works { ask, asked, .. } = &mut self.helper
            && asked.is_none()
            && ask.send(piece.clone()).is_ok()
        {
            *asked = Some(piece);
        }
    }

    fn begin(&self) -> Option<Helper> {
        let mut memory = self.memory.again()?;
        let (ask, questions) = channel::<Range<u64>>();
        let (send, answers) = channel();
        let work = move || {
            for piece in questions {
                let bytes = bytes_of(&mut memory, &piece);
                if send.send((piece, bytes)).is_err() {
                    break;
                }
            }
        };
        Builder::new().name("ahead".to_owned()).spawn_scoped(self.scope, work).ok()?;
        Some(Helper::Works { ask, answers, asked: None })
    }

    /// What the thread was asked for, if it is this piece.
    fn answer(&mut self, piece: &Range<u64>) -> Option<Vec<u8>> {
        let Helper::Works { answers, asked, .. } = &mut self.helper else { return None };
        let is_wanted = asked.as_ref()? == piece;
        // What was asked for somewhere else is of no use any more.
        let answer = if is_wanted { answers.recv().ok() } else { answers.try_recv().ok() };
        if is_wanted || answer.is_some() {
            *asked = None;
        }
        answer.filter(|_| is_wanted).map(|(_, bytes)| bytes)
    }

    /// Sees to it that a piece is there.
    fn need(&mut self, piece: &Range<u64>, goes_on: bool) {
        if self.pieces.iter().any(|(kept, _)| kept == piece) {
            return;
        }
        let bytes = self.answer(piece).unwrap_or_else(|| {
            // each reads every other piece
            if let Some((next, _)) = self.piece_at(piece.end).filter(|_| goes_on) {
                self.ask(next);
            }
            bytes_of(self.memory, piece)
        });
        if self.pieces.len() == KEPT {
            self.pieces.pop_front();
        }
        self.pieces.push_back((piece.clone(), bytes));
    }

    /// Copies from a piece what it has from `at` on.
    fn copy(&self, piece: &Range<u64>, at: u64, buf: &mut [u8]) -> Option<usize> {
        let (_, bytes) = self.pieces.iter().find(|(kept, _)| kept == piece)?;
        let held = bytes.get(usize::try_from(at.checked_sub(piece.start)?).ok()?..)?;
        let len = held.len().min(buf.len());
        buf.get_mut(..len)?.copy_from_slice(held.get(..len)?);
        Some(len)
    }
}

/// The bytes of a piece, up to the first that can't be read.
fn bytes_of(memory: &mut impl ReadMemory, piece: &Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(piece.end - piece.start).unwrap_or(0)];
    let read = memory.read(Addr(piece.start), &mut bytes);
    bytes.truncate(read);
    bytes
}

impl<'env, M: ReadAgain + 'env> ReadMemory for Prefetch<'_, 'env, M> {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        if buf.len() < MIN_READING || buf.len() as u64 > PIECE {
            return self.memory.read(addr, buf);
        }
        let reach = addr.0.saturating_sub(self.last);
        self.steady =
            if addr.0 >= self.last && reach <= 2 * buf.len() as u64 { self.steady.saturating_add(1) } else { 0 };
        self.last = addr.0;
        if self.steady < STEADY {
            return self.memory.read(addr, buf);
        }
        let mut done = 0;
        while done < buf.len() {
            let at = addr.0.saturating_add(done as u64);
            let Some(rest) = buf.get_mut(done..) else { break };
            let copied = self.piece_at(at).and_then(|(piece, goes_on)| {
                self.need(&piece, goes_on);
                self.copy(&piece, at, rest)
            });
            match copied.filter(|copied| *copied > 0) {
                Some(copied) => done += copied,
                // nothing is mapped there, or it can't be read
                None => return done + self.memory.read(Addr(at), rest),
            }
        }
        done
    }

    fn touched(&mut self, range: Range<Addr>) -> Vec<Range<Addr>> {
        self.memory.touched(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::maps;
    use std::sync::{Arc, Mutex};
    use std::thread::ThreadId;

    const FIRST: Range<u64> = 0x7f00_0000_1000..0x7f00_0100_1000;
    const SECOND: Range<u64> = 0x7f00_4000_0000..0x7f00_40ff_f000;

    /// Who has read which part.
    type Read = (ThreadId, Range<u64>);

    /// Bytes that tell their own place, with gaps; notes who reads what of large parts.
    #[derive(Clone)]
    struct Told {
        gaps: Vec<Range<u64>>,
        pieces: Arc<Mutex<Vec<Read>>>,
        alone: bool,
    }

    fn byte(at: u64) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16)) as u8
    }

    impl ReadMemory for Told {
        fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
            if buf.len() as u64 > PIECE / 2 {
                let piece = addr.0..addr.0 + buf.len() as u64;
                self.pieces.lock().unwrap().push((std::thread::current().id(), piece));
            }
            let end = self.gaps.iter().find(|gap| gap.end > addr.0).map_or(u64::MAX, |gap| gap.start.max(addr.0));
            let len = usize::try_from(end - addr.0).unwrap_or(usize::MAX).min(buf.len());
            buf[..len].iter_mut().zip(addr.0..).for_each(|(slot, at)| *slot = byte(at));
            len
        }
    }

    impl ReadAgain for Told {
        fn again(&self) -> Option<Self> {
            (!self.alone).then(|| self.clone())
        }
    }

    /// Reads both mappings from one end to the other, here and there by a word, and back; compares each byte with the
    /// memory's own. Returns who has read which piece.
    fn pieces(gaps: Vec<Range<u64>>, alone: bool) -> Vec<Read> {
        let pieces = Arc::default();
        let mut memory = Told { gaps, pieces: Arc::clone(&pieces), alone };
        let mut plain = Told { pieces: Arc::default(), ..memory.clone() };
        let text = [FIRST, SECOND].map(|range| format!("{:x}-{:x} rw-p 00000000 00:00 0 \n", range.start, range.end));
        let mappings = maps::parse(text.concat().as_bytes()).unwrap();
        std::thread::scope(|scope| {
            let mut ahead = Prefetch::new(&mut memory, &mappings, scope);
            let mut compare = |at: u64, len: usize| {
                let (mut told, mut expected) = (vec![0; len], vec![0; len]);
                let read = ahead.read(Addr(at), &mut told);
                assert_eq!(read, plain.read(Addr(at), &mut expected), "{at:#x}");
                assert_eq!(told, expected, "{at:#x}");
            };
            for range in [FIRST, SECOND] {
                for at in range.step_by(65_440) {
                    compare(at, 64 << 10);
                    compare(at ^ 0x8_0000, 8);
                }
            }
            for at in [FIRST.start, 0x7f00_0080_0000, 0x7f00_0080_ffff, 0x1000] {
                compare(at, 64 << 10);
            }
        });
        pieces.lock().unwrap().clone()
    }

    #[test]
    fn what_is_read_ahead_is_what_is_there() {
        let gaps = vec![
            0x7f00_0030_1000..0x7f00_0030_3000,
            0x7f00_0050_0000..0x7f00_0060_0000,
            0x7f00_00f0_0000..0x7f00_3fff_f000,
        ];
        let own = std::thread::current().id();
        for gaps in [Vec::new(), gaps] {
            let read = pieces(gaps.clone(), false);
            for mapping in [FIRST, SECOND] {
                let of_mapping = || read.iter().filter(|(_, piece)| mapping.contains(&piece.start));
                assert!(of_mapping().all(|(_, piece)| piece.end <= mapping.end), "{read:x?}");
                let ahead = of_mapping().filter(|(thread, _)| *thread != own).count();
                assert!(ahead * 3 >= of_mapping().count(), "{ahead} of {read:x?}");
            }
            assert!(pieces(gaps, true).iter().all(|(thread, _)| *thread == own));
        }
    }
}
