use super::write::{SYNCHRONIZED, clear_own, restore_copy};
use super::*;
use crate::tracer::procfs;
use crate::tracer::testing::Sleeper;

/// A process whose stack we write to: it sleeps.
struct Target {
    sleeper: Sleeper,
    memory: TargetMemory,
    at: Addr,
    original: [u8; 64],
}

impl Target {
    fn start() -> Self {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid();
        let memory = TargetMemory::open(pid, pid).unwrap();
        let at = procfs::initial_stack(pid).unwrap();
        let mut target = Self { sleeper, memory, at, original: [0; 64] };
        // no byte is what any patch writes
        let quiet: Vec<u8> = (1..=64).collect();
        write(&mut target.memory, at, &quiet).unwrap();
        target.original = target.bytes();
        target
    }

    fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        assert_eq!(self.memory.read_uncached(self.at, &mut bytes), 64);
        bytes
    }

    /// A patch of `len` bytes, `offset` bytes behind [`Self::at`].
    fn patch(&self, offset: usize, len: usize) -> (Addr, Patch) {
        let original = &self.original[offset..offset + len];
        let new: Vec<u8> = (0..len).map(|i| if i == 0 { 0xe9 } else { 0xa0 + i as u8 }).collect();
        let patch = if len == 1 { Patch::int3(original[0]) } else { Patch::new(original, &new).unwrap() };
        (self.at.add(offset as u64), patch)
    }
}

const PLACES: [(usize, usize); 4] = [(0, 1), (4, 2), (8, 5), (16, 16)];

#[test]
fn patches_of_all_lengths_are_placed_and_lifted() {
    let mut target = Target::start();
    let mut code = TargetCode::default();
    for (offset, len) in PLACES {
        let (addr, patch) = target.patch(offset, len);
        code.place(&mut target.memory, addr, patch).unwrap();
        assert_eq!(target.bytes()[offset..offset + len], *patch.replacement());
        assert!(stands(&target.memory, addr, &patch));
    }
    let mut shown = target.bytes();
    assert_ne!(shown, target.original);
    code.patches().mask(target.at, &mut shown);
    assert_eq!(shown, target.original);
    for (offset, _) in PLACES {
        code.lift(&mut target.memory, target.at.add(offset as u64)).unwrap();
    }
    assert_eq!(target.bytes(), target.original);
    assert_eq!((code.patches().iter().len(), code.patches().removed().count()), (0, 4));
}

/// Threads that have run into an int3 stand while jumps are placed or taken out: nobody waits for all processors, 8 to
/// 16 ms each time, where all threads of the process sleep or stand.
#[test]
fn jumps_of_a_process_that_sleeps_wait_for_no_processor() {
    let mut target = Target::start();
    let pid = target.sleeper.pid();
    let jumps = [target.patch(8, 5), target.patch(16, 5)];
    for (threads, times) in [(Threads::OfOne(pid), 0), (Threads::OfAll(pid), 0), (Threads::Stand, 0), (Threads::Run, 3)]
    {
        let mut code = TargetCode::default();
        let before = SYNCHRONIZED.get();
        code.place_jumps(&mut target.memory, &jumps, threads).unwrap();
        assert!(jumps.iter().all(|(addr, patch)| stands(&target.memory, *addr, patch)), "{threads:?}");
        assert_eq!(SYNCHRONIZED.get() - before, times, "{threads:?}");
        assert_eq!(code.lift_jumps(&mut target.memory, threads).unwrap().len(), 2);
        assert_eq!(target.bytes(), target.original, "{threads:?}");
        assert_eq!(SYNCHRONIZED.get() - before, 2 * times, "{threads:?}");
    }
    // of one that is not there nothing is known
    for threads in [Threads::OfOne(i32::MAX), Threads::OfAll(i32::MAX)] {
        let before = SYNCHRONIZED.get();
        TargetCode::default().place_jumps(&mut target.memory, &jumps, threads).unwrap();
        assert_eq!(SYNCHRONIZED.get() - before, 3, "{threads:?}");
    }
}

#[test]
fn patches_are_set_aside_and_taken_up_again() {
    let mut target = Target::start();
    let mut code = TargetCode::default();
    for (offset, len) in PLACES {
        let (addr, patch) = target.patch(offset, len);
        code.place(&mut target.memory, addr, patch).unwrap();
    }
    let patched = target.bytes();
    code.set_aside(&mut target.memory).unwrap();
    assert_eq!(target.bytes(), target.original);
    // the program writes over the one of five bytes meanwhile
    write(&mut target.memory, target.at.add(10), &[0x77]).unwrap();
    code.take_up(&mut target.memory).unwrap();
    let mut expected = patched;
    expected[8..13].copy_from_slice(&target.original[8..13]);
    expected[10] = 0x77;
    assert_eq!(target.bytes(), expected);
    assert!(code.forget_if_overwritten(&target.memory, target.at.add(8)));
    assert!(!code.forget_if_overwritten(&target.memory, target.at.add(16)));
}

/// A child forked in between has what was written then.
#[test]
fn a_copy_is_restored_and_catches_up() {
    let (mut parent, mut child) = (Target::start(), Target::start());
    // at the same addresses, as in a fork: what the copy has is moved
    let (mut code, mut copied) = (TargetCode::default(), TargetCode::default());
    for (offset, len) in PLACES {
        let (addr, patch) = parent.patch(offset, len);
        code.place(&mut parent.memory, addr, patch).unwrap();
        copied.patches.insert(child.at.add(offset as u64), patch);
    }
    // one is not yet in the copy, one is in it half, one was taken out of the parent since
    write(&mut child.memory, child.at.add(4), &[0xe9, 0xa1]).unwrap();
    write(&mut child.memory, child.at.add(8), &[INT3, 0xa1]).unwrap();
    write(&mut child.memory, child.at.add(16), copied.patches.get(child.at.add(16)).unwrap().replacement()).unwrap();
    code.lift(&mut parent.memory, parent.at.add(4)).unwrap();
    copied.patches.remove(child.at.add(4));
    copied.catch_up_with(&mut child.memory, &parent.memory).unwrap();
    assert_eq!(child.bytes(), parent.bytes());
    write(&mut child.memory, child.at.add(4), &[0xe9, 0xa1]).unwrap();
    restore_copy(&mut child.memory, &copied.patches).unwrap();
    assert_eq!(child.bytes(), child.original);
}

/// A forked child's state page is wiped: what it would lead to is not there, so that nobody may switch it on.
#[test]
fn a_copy_has_no_switches() {
    let (mut parent, mut child) = (Target::start(), Target::start());
    let mut code = TargetCode::default();
    let at = child.at.add(4);
    let [off, ..] = child.original[4..5] else { panic!("a target of 64 bytes") };
    code.patches.insert(at, Patch::switch(off, off ^ 1));
    let copied = code.fork(None);
    copied.catch_up_with(&mut child.memory, &parent.memory).unwrap();
    assert_eq!(child.bytes(), child.original);
    code.place(&mut parent.memory, parent.at.add(4), Patch::switch(off, off ^ 1)).unwrap();
    assert_ne!(parent.bytes(), parent.original);
}

#[test]
fn code_of_ours_is_zeroed_but_for_what_is_kept() {
    let mut target = Target::start();
    write(&mut target.memory, target.at, &[0; 64]).unwrap();
    let mut code = TargetCode::default();
    let start = Addr(target.at.0.next_multiple_of(16));
    code.own().add_region(start, 48, None);
    let [first, kept, last] = [OwnKind::Other, OwnKind::SigtrapFallback, OwnKind::Other].map(|kind| {
        let at = code.own().reserve(8, kind).unwrap();
        code.write_own(&mut target.memory, at, &[0x90; 8]).unwrap();
        at
    });
    clear_own(&mut target.memory, code.patches(), Some(kept)).unwrap();
    let word = |target: &Target, at: Addr| target.memory.read_word_uncached(at).unwrap();
    assert_eq!([first, kept, last].map(|at| word(&target, at)), [0, u64::from_le_bytes([0x90; 8]), 0]);
    clear_own(&mut target.memory, code.patches(), None).unwrap();
    assert_eq!(target.bytes(), [0; 64]);
}
