//! Memory that is read from one end to the other, half of it ahead of time by a second thread: the kernel's copying takes most of the time of a walk over many small blocks.

use crate::addr::Addr;
use crate::memory::{ReadAgain, ReadMemory};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};

/// Pieces are of so many bytes, and begin at multiples of it.
const PIECE: u64 = 1 << 20;
/// So many are kept: the one that is read, the one before, and the one ahead.
const KEPT: usize = 3;
/// Smaller readings are of words here and there.
const LEAST: usize = 16 << 10;
/// So many readings, each near behind the one before, are a way from one end to the other.
const STEADY: u32 = 8;

/// A reader of `memory` that has the next piece read by a thread of `scope`, where one can be had, as soon as somebody reads one part behind the other.
/// What it has read is kept for a while: it is for memory that nobody changes meanwhile, or of which torn parts are expected.
pub(super) struct Ahead<'scope, 'env, M> {
    memory: &'env mut M,
    scope: &'scope Scope<'scope, 'env>,
    helper: Helper,
    /// The pieces that were read last: where each begins, and its bytes up to the first that can't be read.
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// Where the last reading was, and how many followed each other.
    last: u64,
    steady: u32,
}

/// The thread that reads ahead.
enum Helper {
    /// It was not needed yet.
    None,
    /// It is there, and reads this piece, if any.
    Works { ask: Sender<u64>, answers: Receiver<(u64, Vec<u8>)>, asked: Option<u64> },
    /// There can't be one.
    Refused,
}

impl<'scope, 'env, M: ReadAgain + 'env> Ahead<'scope, 'env, M> {
    pub(super) fn new(memory: &'env mut M, scope: &'scope Scope<'scope, 'env>) -> Self {
        Self { memory, scope, helper: Helper::None, pieces: VecDeque::new(), last: 0, steady: 0 }
    }

    /// Has the piece at `start` read by the thread.
    fn ask(&mut self, start: u64) {
        if matches!(self.helper, Helper::None) {
            self.helper = self.begin().unwrap_or(Helper::Refused);
        }
        if let Helper::Works { ask, asked, .. } = &mut self.helper
            && asked.is_none()
            && ask.send(start).is_ok()
        {
            *asked = Some(start);
        }
    }

    fn begin(&self) -> Option<Helper> {
        let mut memory = self.memory.again()?;
        let (ask, questions) = channel();
        let (send, answers) = channel();
        let work = move || {
            for start in questions {
                if send.send((start, piece(&mut memory, start))).is_err() {
                    break;
                }
            }
        };
        Builder::new().name("ahead".to_owned()).spawn_scoped(self.scope, work).ok()?;
        Some(Helper::Works { ask, answers, asked: None })
    }

    /// What the thread was asked for last, if it is the piece at `start`.
    fn answer(&mut self, start: u64) -> Option<Vec<u8>> {
        let Helper::Works { answers, asked, .. } = &mut self.helper else { return None };
        if *asked != Some(start) {
            return None;
        }
        *asked = None;
        answers.recv().ok().filter(|(told, _)| *told == start).map(|(_, bytes)| bytes)
    }

    /// Sees to it that the piece at `start` is there.
    fn need(&mut self, start: u64) {
        if self.pieces.iter().any(|(kept, _)| *kept == start) {
            return;
        }
        let bytes = self.answer(start).unwrap_or_else(|| {
            // each reads every other piece
            if let Some(next) = start.checked_add(PIECE) {
                self.ask(next);
            }
            piece(self.memory, start)
        });
        if self.pieces.len() == KEPT {
            self.pieces.pop_front();
        }
        self.pieces.push_back((start, bytes));
    }

    /// Copies from the piece at `start` what it has from `at` on.
    fn copy(&self, start: u64, at: u64, buf: &mut [u8]) -> Option<usize> {
        let (_, bytes) = self.pieces.iter().find(|(kept, _)| *kept == start)?;
        let held = bytes.get(usize::try_from(at.checked_sub(start)?).ok()?..)?;
        let len = held.len().min(buf.len());
        buf.get_mut(..len)?.copy_from_slice(held.get(..len)?);
        Some(len)
    }
}

/// The bytes at `start`, up to the first that can't be read.
fn piece(memory: &mut impl ReadMemory, start: u64) -> Vec<u8> {
    let mut bytes = vec![0; PIECE as usize];
    let read = memory.read(Addr(start), &mut bytes);
    bytes.truncate(read);
    bytes
}

impl<'env, M: ReadAgain + 'env> ReadMemory for Ahead<'_, 'env, M> {
    fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
        if buf.len() < LEAST || buf.len() as u64 > PIECE {
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
            let start = at - at % PIECE;
            self.need(start);
            let copied = buf.get_mut(done..).and_then(|rest| self.copy(start, at, rest)).unwrap_or(0);
            if copied == 0 {
                // the piece ends before, as there is a gap in it or an end
                return done + buf.get_mut(done..).map_or(0, |rest| self.memory.read(Addr(at), rest));
            }
            done += copied;
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
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};
    use std::thread::ThreadId;

    /// Bytes that tell their own place, with gaps; notes which thread reads.
    #[derive(Clone)]
    struct Told {
        gaps: Vec<Range<u64>>,
        readers: Arc<Mutex<BTreeSet<String>>>,
        alone: bool,
    }

    fn byte(at: u64) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16)) as u8
    }

    impl ReadMemory for Told {
        fn read(&mut self, addr: Addr, buf: &mut [u8]) -> usize {
            let thread: ThreadId = std::thread::current().id();
            self.readers.lock().unwrap().insert(format!("{thread:?}"));
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

    /// Reads from one end to the other, here and there by a word, and back; compares each byte with the memory's own.
    fn readers(gaps: Vec<Range<u64>>, alone: bool) -> usize {
        let readers = Arc::default();
        let mut memory = Told { gaps, readers: Arc::clone(&readers), alone };
        let mut plain = Told { readers: Arc::default(), ..memory.clone() };
        std::thread::scope(|scope| {
            let mut ahead = Ahead::new(&mut memory, scope);
            let mut compare = |at: u64, len: usize| {
                let (mut told, mut expected) = (vec![0; len], vec![0; len]);
                let read = ahead.read(Addr(at), &mut told);
                assert_eq!(read, plain.read(Addr(at), &mut expected), "{at:#x}");
                assert_eq!(told, expected, "{at:#x}");
            };
            for at in (0x7f00_0001_2340..0x7f00_0101_2340_u64).step_by(65_440) {
                compare(at, 64 << 10);
                compare(at ^ 0x8_0000, 8);
            }
            for at in [0x7f00_0001_0000, 0x7f00_0080_0000, 0x7f00_0080_ffff, 0x1000] {
                compare(at, 64 << 10);
            }
        });
        readers.lock().unwrap().len()
    }

    #[test]
    fn what_is_read_ahead_is_what_is_there() {
        let gaps = vec![
            0x7f00_0030_1000..0x7f00_0030_3000,
            0x7f00_0050_0000..0x7f00_0060_0000,
            0x7f00_00f0_0000..0x7f10_0000_0000,
        ];
        assert_eq!(readers(Vec::new(), false), 2);
        assert_eq!(readers(gaps.clone(), false), 2);
        assert_eq!(readers(gaps, true), 1);
    }
}
