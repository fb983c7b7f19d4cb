mod latest;
mod undo;
mod walk;

/// What undo takes for granted of parts whose ends it does not ask for.
#[test]
fn the_parts_for_calls_that_are_not_picked_are_in_order() {
    let code = super::routine::code();
    let labels = [
        code.begin,
        code.long,
        code.fast_malloc,
        code.fast_bytes,
        code.fast_calls,
        code.fast_counted,
        code.fast_free,
        code.fast_passed,
        code.enter,
        code.leave,
    ];
    assert!(labels.is_sorted_by(|a, b| a < b), "{labels:x?}");
}

/// They are copied to one region.
#[test]
fn the_routine_ends_in_front_of_the_stubs() {
    let len = super::routine::bytes().len() as u64;
    assert!(len <= crate::jump::stub::STUBS, "{len}");
}
