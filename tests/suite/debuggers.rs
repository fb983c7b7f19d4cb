//! A debugger that a program starts on itself can't attach while heaptrace traces: the summary names it.

use crate::support::program::Program;

#[test]
fn a_debugger_that_a_crash_handler_starts_is_named() {
    let traced = Program::fixture("debugs_itself").traced();
    assert_eq!(traced.ended.code(), 11, "{}", traced.ended.stderr);
    let told = traced.ended.stderr.replace("\n  ", " ");
    assert!(told.contains("started gdb on itself after a fault: it could not attach"), "{}", traced.ended.stderr);
    // gdb says the same
    assert!(told.contains("ptrace: Operation not permitted"), "{}", traced.ended.stderr);
}
