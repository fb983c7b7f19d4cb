//! Chains, cycles, trees, interior pointers: what leads where, without threads.

use super::{
    DEFINITE, Expected, INDIRECT, POSSIBLE, REACHABLE, assert_classes, assert_ours, fixture, same, times, truer,
};
use crate::support::leakcheck::{Amount, Found};
use crate::support::report::functions_of;

/// What becomes of the blocks of `chains`.
pub fn nine_cases() -> Vec<Expected> {
    vec![
        same("case1_b", REACHABLE),
        same("case2_a", REACHABLE),
        same("case2_b", REACHABLE),
        same("case3_b", DEFINITE),
        same("case4_a", DEFINITE),
        same("case4_b", INDIRECT),
        same("case5_b", POSSIBLE),
        same("case6_a", REACHABLE),
        same("case6_b", POSSIBLE),
        same("case7_a", POSSIBLE),
        same("case7_b", POSSIBLE),
        same("case8_a", POSSIBLE),
        same("case8_b", POSSIBLE),
        same("case9_a", DEFINITE),
        same("case9_b", INDIRECT),
    ]
}

/// What becomes of the blocks of `cycles`.
pub fn cycles() -> Vec<Expected> {
    vec![
        same("self_loop", DEFINITE),
        same("pair", [1, 1, 0, 0]),
        same("ring", [1, 4, 0, 0]),
        same("held_ring", times(3, REACHABLE)),
        same("head_of_ring", DEFINITE),
        same("headed_ring", times(3, INDIRECT)),
        same("ring_with_tail", [1, 2, 0, 0]),
        same("tail", INDIRECT),
        same("first_of_two", times(3, INDIRECT)),
        same("second_of_two", [1, 1, 0, 0]),
        same("inside_ring", [1, 2, 0, 0]),
        same("possible_ring", times(3, POSSIBLE)),
    ]
}

/// What becomes of the blocks of `mapped`.
pub fn mapped() -> Vec<Expected> {
    vec![
        same("in_private_anonymous", REACHABLE),
        same("in_large_anonymous", REACHABLE),
        same("in_shared_anonymous", REACHABLE),
        same("in_private_file", REACHABLE),
        // Memcheck looks at memory that can be written to
        truer("in_read_only_now", REACHABLE, DEFINITE),
        same("in_beside_mapped_block", REACHABLE),
        same("large_held", REACHABLE),
        same("in_mapped_block", REACHABLE),
        same("large_lost", DEFINITE),
        same("in_large_lost", INDIRECT),
        // and can't read what the program has protected for now
        truer("in_protected", REACHABLE, DEFINITE),
        truer("in_partly_protected", REACHABLE, DEFINITE),
        truer("in_protected_block", REACHABLE, DEFINITE),
        truer("page_block", REACHABLE, DEFINITE),
        same("in_unmapped", DEFINITE),
    ]
}

/// What becomes of the blocks of `freed`.
pub fn freed() -> Vec<Expected> {
    vec![
        same("only_in_small_freed", DEFINITE),
        same("only_in_large_freed", DEFINITE),
        same("only_in_mapped_freed", DEFINITE),
        same("in_kept_part", REACHABLE),
        same("in_cut_off_part", DEFINITE),
    ]
}

/// T47: the nine chain cases of Memcheck's manual.
#[test]
fn t47_nine_chain_cases() {
    let checked = assert_classes(&fixture("chains"), &nine_cases(), &[]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
    assert_eq!(checked.report.text("/verdict/result"), "leaks");
    assert_eq!(checked.report.text("/leaks/moment"), "exit");
}

/// With LeakSanitizer's view of interior pointers, all that was possible is reachable, and nothing else changes.
#[test]
fn interior_pointers_can_count_as_reachable() {
    let program = fixture("chains");
    let usual = Found::from_report(&program.checked(&[]).report).totals();
    let lenient = Found::from_report(&program.checked(&["--interior-pointers", "reachable"]).report).totals();
    let [definite, indirect, mut possible, reachable] = usual;
    possible.add(reachable);
    assert_eq!(lenient, [definite, indirect, Amount::default(), possible]);
}

/// Zero sizes, the first and last byte, one past the end, words that are not aligned.
#[test]
fn edges_of_blocks() {
    let expected = [
        same("zero_size_held", REACHABLE),
        same("zero_size_lost", DEFINITE),
        same("last_byte", POSSIBLE),
        same("one_past_end", DEFINITE),
        same("behind_one_past_end", DEFINITE),
        same("before_start", DEFINITE),
        same("unaligned_slot", DEFINITE),
        same("masked", DEFINITE),
        same("start_and_inside", REACHABLE),
        same("odd_size", REACHABLE),
        same("in_odd_tail", DEFINITE),
    ];
    assert_classes(&fixture("edges"), &expected, &[]);
}

/// T48: of each lost group exactly one block is definite.
#[test]
fn t48_cycles() {
    assert_classes(&fixture("cycles"), &cycles(), &[]);
}

/// What hangs on lost blocks is told once, at one of them, however deep it is.
#[test]
fn trees_and_lists() {
    let expected = [
        same("lost_root", DEFINITE),
        same("lost_node", times(38, INDIRECT)),
        same("held_node", times(63, REACHABLE)),
        same("cut_above", REACHABLE),
        same("cut_below_first", DEFINITE),
        same("cut_below", times(15, INDIRECT)),
        same("first_owner", DEFINITE),
        same("second_owner", DEFINITE),
        same("shared", INDIRECT),
        same("list_head", DEFINITE),
        same("list_item", times(20_000, INDIRECT)),
    ];
    let checked = assert_classes(&fixture("trees"), &expected, &[]);
    let holds = |function: &str| {
        let all = checked.report.list("/findings").iter().filter(|finding| finding["kind"] == "leak_definite");
        let own = all.filter(|finding| functions_of(finding)[0] == function);
        own.map(|finding| finding["indirect"]["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(holds("list_head"), 20_000 * 24);
    assert_eq!(holds("lost_root"), 38 * 32);
    assert_eq!(holds("cut_below_first"), 15 * 32);
    assert_eq!(holds("first_owner") + holds("second_owner"), 1000, "shared by two, told once");
}

/// The interior pointers that C++ programs use on purpose.
#[test]
fn usual_interior_pointers() {
    let expected = [
        same("string_old_abi", REACHABLE),
        same("string_wrong_capacity", POSSIBLE),
        same("string_too_long", POSSIBLE),
        same("length64_exact", REACHABLE),
        same("length64_wrong", POSSIBLE),
        same("array_divides", REACHABLE),
        same("array_does_not_divide", POSSIBLE),
        same("array_of_none", POSSIBLE),
        same("new_array", REACHABLE),
        same("second_base", REACHABLE),
        same("member_behind_plain", POSSIBLE),
        same("held_by_string_block", REACHABLE),
        same("held_through_array", REACHABLE),
    ];
    assert_classes(&fixture("heuristics"), &expected, &[]);
}

/// Rust's own interior pointers. Memcheck knows none of them, and calls possibly lost what a static holds by
/// `Arc::into_raw`, and every table of a live `HashMap` with all its values. ours: an Arc's or Rc's value lies behind
/// its two counters, and a table's control bytes behind its entries.
#[test]
fn interior_pointers_of_rust() {
    let expected = [
        truer("pointers::arc_value", REACHABLE, POSSIBLE),
        truer("pointers::rc_value", REACHABLE, POSSIBLE),
        truer("pointers::arc_of_box", REACHABLE, POSSIBLE),
        truer("pointers::box_in_arc", REACHABLE, POSSIBLE),
        truer("pointers::table", REACHABLE, POSSIBLE),
        truer("pointers::value_in_table", times(100, REACHABLE), times(100, POSSIBLE)),
        same("pointers::boxed_table", REACHABLE),
        same("pointers::nearly_arc", POSSIBLE),
        same("pointers::lost_table", DEFINITE),
        same("pointers::lost_value", times(30, INDIRECT)),
        same("pointers::lost_arc", DEFINITE),
    ];
    assert_classes(&fixture("pointers"), &expected, &[]);
}

/// Memory that the program has mapped itself is looked through, to the word where the allocator's begins; what can't be
/// written or is gone is not.
#[test]
fn pointers_in_mapped_memory() {
    let program = fixture("mapped");
    let file = program.outside("mapped");
    assert_classes(&program.args([file]), &mapped(), &[]);
}

/// What lies in the program's own parts of the brk area.
#[test]
fn pointers_kept_aside() {
    let expected = [
        same("in_first_break", REACHABLE),
        same("in_break_between", REACHABLE),
        same("in_last_break", REACHABLE),
        same("lost_before", DEFINITE),
        same("lost_between", DEFINITE),
        same("lost_behind", DEFINITE),
        same("lost_holder", DEFINITE),
        same("held_by_lost", INDIRECT),
        same("filler", times(4, REACHABLE)),
    ];
    let checked = assert_classes(&fixture("kept_aside"), &expected, &[]);
    assert_eq!(checked.report.number("/leaks/definite/blocks"), 4, "{}", checked.ended.stderr);
}

/// What the dynamic linker keeps behind its data leads to its list of the global scope. (Memcheck has libraries of its
/// own in that: its list is longer.)
#[test]
fn lists_of_the_dynamic_linker() {
    let program = fixture("global_scope");
    let checked = assert_ours(&program, &[same("lost", DEFINITE)]);
    assert_eq!(checked.report.number("/leaks/definite/blocks"), 1, "{}", checked.ended.stderr);
    let memcheck = program.memcheck_leaks(&[]).1.totals();
    assert_eq!((memcheck[0].blocks, memcheck[1].blocks), (1, 0));
}

/// A tag hides no block, and makes none reachable. Memcheck knows tags in the lowest bits only.
#[test]
fn pointers_with_tags() {
    let expected = [
        truer("upper_bits", POSSIBLE, DEFINITE),
        truer("below_upper_bits", POSSIBLE, INDIRECT),
        truer("highest_bit", POSSIBLE, DEFINITE),
        truer("upper_and_lowest_bits", POSSIBLE, DEFINITE),
        same("lowest_bits", POSSIBLE),
        truer("in_block_with_upper_bits", POSSIBLE, DEFINITE),
        same("upper_bits_inside", DEFINITE),
        same("start_and_upper_bits", REACHABLE),
        same("text", times(40, POSSIBLE)),
        same("lost", DEFINITE),
    ];
    let checked = assert_classes(&fixture("tagged"), &expected, &[]);
    let doubt = |function: &str| {
        let mut findings = checked.report.list("/findings").iter();
        let finding = findings.find(|finding| functions_of(finding)[0] == function).unwrap();
        finding["doubt"].as_str().map(str::to_owned)
    };
    assert_eq!(doubt("upper_bits").as_deref(), Some("tagged"));
    assert_eq!(doubt("in_block_with_upper_bits").as_deref(), Some("tagged"));
    assert_eq!(doubt("lowest_bits").as_deref(), Some("behind 3"));
    assert_eq!(doubt("text").as_deref(), Some("behind 3"));
    assert_eq!((doubt("below_upper_bits"), doubt("lost")), (None, None));
    let told = fixture("tagged").checked(&["--leak-kinds", "possible"]).ended.stderr;
    assert!(told.contains("1 block by pointers that are tagged"), "{told}");
    assert!(told.contains("40 blocks by pointers 3 bytes behind their start"), "{told}");
}

/// What was given back holds nothing any more, though its bytes are still there.
#[test]
fn pointers_in_freed_memory() {
    assert_classes(&fixture("freed"), &freed(), &[]);
}

/// Words that were never written since their memory was handed out. Memcheck follows the life of every bit, and does
/// not read them. From outside a process they look as all others, and an old pointer in one keeps its block: what is
/// lost may be told as reachable or possible, never the other way round.
#[test]
fn old_pointers_in_words_never_written() {
    let expected = [
        truer("only_in_recycled", REACHABLE, DEFINITE),
        truer("inside_in_recycled", POSSIBLE, DEFINITE),
        same("recycled", times(2, REACHABLE)),
    ];
    assert_classes(&fixture("recycled"), &expected, &[]);
}
