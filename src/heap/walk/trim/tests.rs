use super::*;

const HEAP: u64 = 0x10000;

/// An arena's region of these chunks, one behind the other, all of whose pages are resident.
fn estimate_of(arena: usize, chunks: &[(u64, State)], brk: u64) -> Trim {
    let mut at = HEAP;
    let mut all = Vec::new();
    for &(size, state) in chunks {
        all.push(Chunk::glibc(Addr(at), size, state));
        at += size;
    }
    let region = Region {
        range: Addr(HEAP)..Addr(at),
        books: Addr(HEAP)..Addr(HEAP),
        arena: Some(arena),
        chunks: 0..all.len(),
        broken_at: None,
    };
    let walk = Walk { chunks: all, regions: vec![region], ..Walk::default() };
    let pages = Pages { resident: vec![Addr(HEAP)..Addr(at.next_multiple_of(PAGE))], swapped: Vec::new() };
    estimate(&walk, Some(Addr(HEAP + brk)), &pages)
}

/// By malloc/malloc.c: the links stay, and so does the page that they lie in; a page of which a part is in use stays.
#[test]
fn whole_pages_behind_the_links_are_given_back() {
    let inside = |chunks: &[(u64, State)]| estimate_of(0, chunks, 0).inside;
    assert_eq!(inside(&[(0x100, State::Live), (0x2f00, State::Free)]), 0x2000);
    assert_eq!(inside(&[(0x100, State::Live), (0x1e00, State::Free), (0x100, State::Live)]), 0);
    assert_eq!(inside(&[(0x100, State::Live), (0x1f00, State::Free), (0x100, State::Live)]), 0x1000);
    // it begins so near to a page's end that its links reach into the next
    assert_eq!(inside(&[(0xfe0, State::Live), (0x2020, State::Free)]), 0x1000);
    // what threads keep is left alone, and parts the rest
    assert_eq!(inside(&[(0x1000, State::Free), (0x1000, State::Tcache), (0x1000, State::Free)]), 0);
    // small chunks of fast bins are merged with what lies beside them
    assert_eq!(inside(&[(0xfd0, State::Free), (0x20, State::Fast), (0x1010, State::Free)]), 0x1000);
}

#[test]
fn the_end_of_the_first_arena_alone_is_given_back() {
    let chunks = [(0x100, State::Live), (0x3f00, State::Top)];
    assert_eq!(estimate_of(0, &chunks, 0x4000), Trim { inside: 0, end: 0x3000 });
    assert_eq!(estimate_of(1, &chunks, 0x4000), Trim::default());
    // somebody else has moved the end on
    assert_eq!(estimate_of(0, &chunks, 0x5000), Trim::default());
    // a fast chunk before it becomes a part of it
    let chunks = [(0x20, State::Fast), (0x1fe0, State::Top)];
    assert_eq!(estimate_of(0, &chunks, 0x2000), Trim { inside: 0, end: 0x1000 });
}
