//! What threads hold, and where: stacks, registers, thread-local variables, thread-specific data; and every way out.

use super::{DEFINITE, Expected, INDIRECT, REACHABLE, assert_classes, assert_ours, fixture, same, times, truer};
use crate::support::fixtures;

/// T49: thread-local variables, thread-specific data and stacks of threads that live hold their blocks; of one that has
/// ended nothing does.
#[test]
fn t49_what_threads_hold() {
    assert_classes(&fixture("threads"), &of_threads(), &["start"]);
}

/// The same with thread-local variables of a library that came by dlopen: they lie in blocks of the C library, to which
/// only the thread's table (DTV) leads. Memcheck takes them for possibly lost, with all that hangs on them.
#[test]
fn t49_thread_local_variables_of_a_loaded_library() {
    let library = fixtures::library("leaks/tls_plugin");
    let mut expected = of_threads();
    // three threads' and the main one's: of the latter Memcheck finds the first table, which is the loader's own, not a
    // block
    let [ours, memcheck] = [times(4, REACHABLE), [0, 0, 3, 1]];
    expected.extend(["in_dynamic_tls", "behind_dynamic_tls"].map(|name| truer(name, ours, memcheck)));
    let program = fixture("threads").args([library]);
    assert_classes(&program, &expected, &["start", "plugin_keep"]);
}

/// What becomes of the blocks of `threads`.
pub fn of_threads() -> Vec<Expected> {
    let threads = |name| same(name, times(3, REACHABLE));
    vec![
        same("main_tls", REACHABLE),
        same("main_specific", REACHABLE),
        same("main_specific_far", REACHABLE),
        same("main_stack", REACHABLE),
        threads("thread_tls"),
        threads("thread_tls_far"),
        threads("thread_specific"),
        threads("thread_specific_far"),
        threads("thread_stack"),
        threads("behind_thread_stack"),
        same("ended_thread_tls", DEFINITE),
        same("ended_thread_stack", DEFINITE),
    ]
}

/// T49: a pointer in a register only. Memcheck reads the registers of a thread that waits, but not of the one that ends
/// the process, which for it has ended by then; yet that register still held the pointer when the program had its last
/// chance to use it. Vector registers are left out by both.
#[test]
fn t49_pointers_in_registers() {
    let expected = [
        same("in_waiting_thread", REACHABLE),
        truer("in_ending_thread", REACHABLE, DEFINITE),
        truer("behind_register", REACHABLE, INDIRECT),
        same("in_vector_register", DEFINITE),
        same("lost", DEFINITE),
    ];
    for arguments in [&[][..], &["_exit"]] {
        let checked = assert_classes(&fixture("registers").args(arguments), &expected, &["build"]);
        let moment = if arguments.is_empty() { "last_thread" } else { "exit" };
        assert_eq!(checked.report.text("/leaks/moment"), moment);
    }
}

/// Vector registers of a thread that computes hold its blocks; what the thread that calls `_exit` has in registers that
/// no function keeps holds nothing.
#[test]
fn t49_registers_at_the_end() {
    assert_ours(
        &fixture("last_words"),
        &[same("in_vector_register", REACHABLE), same("in_scratch_register", DEFINITE)],
    );
}

/// T50: every way out, with the same classes as Memcheck, and the status that the program or the verdict asks for.
#[test]
fn t50_ways_out() {
    // way, status of check, whether exit handlers ran, moment
    let ways: [(&str, i32, bool, &str); 10] = [
        ("return", 23, true, "exit"),
        ("exit", 23, true, "exit"),
        ("quick_exit", 23, true, "exit"),
        ("thread", 23, true, "exit"),
        ("_exit", 23, false, "exit"),
        ("_Exit", 23, false, "exit"),
        ("exit_group", 23, false, "last_thread"),
        ("abort", 134, false, "last_thread"),
        ("segv", 139, false, "last_thread"),
        ("term", 143, false, "last_thread"),
    ];
    for (way, status, handlers, moment) in ways {
        let mut expected =
            vec![same("lost", DEFINITE), same("below_lost", INDIRECT), same("held_by_thread", REACHABLE)];
        if handlers {
            expected.extend([same("held_by_global", REACHABLE), same("lost_in_exit_handler", DEFINITE)]);
        } else {
            expected.push(same("released_in_exit_handler", REACHABLE));
        }
        // when main has returned, its frame is no more
        expected.push(same("held_by_main", if way == "return" { DEFINITE } else { REACHABLE }));
        let checked = assert_classes(&fixture("ways_out").args([way]), &expected, &["main", "end"]);
        assert_eq!(checked.ended.code(), status, "{way}\n{}", checked.ended.stderr);
        assert_eq!(checked.report.text("/leaks/moment"), moment, "{way}");
        let result = if status == 23 { "leaks" } else { "program_failed" };
        assert_eq!(checked.report.text("/verdict/result"), result, "{way}");
    }
}

/// T50: the main thread ends first, and the last other thread ends the process.
#[test]
fn t50_main_thread_ends_first() {
    let expected = [
        same("lost", DEFINITE),
        same("below_lost", INDIRECT),
        same("held_by_global", REACHABLE),
        same("lost_in_exit_handler", DEFINITE),
        same("held_by_main", DEFINITE),
    ];
    let checked = assert_classes(&fixture("ways_out").args(["pthread_exit"]), &expected, &["end"]);
    assert_eq!(checked.ended.code(), 23, "{}", checked.ended.stderr);
}
