mod undo;
mod walk;

/// They are copied to one region.
#[test]
fn the_routine_ends_in_front_of_the_stubs() {
    let len = super::routine::bytes().len() as u64;
    assert!(len <= crate::jump::stub::STUBS, "{len}");
}
